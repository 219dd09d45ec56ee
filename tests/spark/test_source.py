"""`format("godwit")` in a real Spark session: batches and streams of real brokers' logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, StructField, StructType
from tests.spark.archives import options, served
from tests.spark.session import columns

from godwit.spark.options import OptionError
from godwit.spark.reader import SCHEMA, check_columns
from godwit.spark.source import GodwitSource

ALERT = StructType([StructField("payload", BinaryType())])


@pytest.mark.parametrize(
    ("make", "more"),
    [
        (lambda source: source.reader(SCHEMA), {}),
        (lambda source: source.streamReader(SCHEMA), {}),
        (lambda source: source.writer(ALERT, False), {"topic": "alerts"}),
        (lambda source: source.streamWriter(ALERT, False), {"topic": "alerts"}),
    ],
)
def test_a_token_without_encryption_is_warned_of(make: Callable[[GodwitSource], object], more: dict[str, str]) -> None:
    with pytest.warns(UserWarning, match=r"the archive at grpc://192.0.2.7:50001 is sent without encryption") as caught:
        make(GodwitSource({"archive": "192.0.2.7", "token": "secret"} | more))
    assert len(caught) == 1


def test_a_batch_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    with served(tmp_path) as place:
        place.add(30_000, "home/room1")
        place.add(30_000, "home/room2")
        frame = spark.read.format("godwit").options(**options(place)).load()
        assert frame.schema == SCHEMA
        assert frame.rdd.getNumPartitions() == 2
        counted = frame.groupBy("topic").agg(sf.count("*"), sf.countDistinct("broker", "offset")).collect()
        assert sorted(map(tuple, counted)) == [("home/room1", 30_000, 30_000), ("home/room2", 30_000, 30_000)]
        row = frame.where("offset = 30001").first()
        assert row is not None
        assert (row.topic, bytes(row.payload), row.qos, row.retained) == ("home/room2", b"1 ........", 1, False)
        assert row.received.timestamp() == row.published.timestamp() == 1_700_000_000
        two = spark.read.format("godwit").options(**options(place)).schema("payload binary, offset bigint").load()
        assert two.columns == ["payload", "offset"]
        assert two.count() == 60_000


def test_a_stream_resumes_at_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    with served(tmp_path / "log") as place:
        found: list[int] = []

        def run() -> list[int]:
            """Read to the end; return the number of rows of each micro-batch."""
            frame = spark.readStream.format("godwit").options(**options(place, maxRowsPerTrigger="40")).load()
            writer = frame.writeStream.foreachBatch(
                lambda batch, number: found.extend(row.offset for row in batch.select("offset").collect())
            )
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = writer.trigger(availableNow=True).start()
            assert query.awaitTermination(120)
            return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

        place.add(100)
        assert run() == [40, 40, 20]
        place.add(10)
        assert run() == [10]
        assert sorted(found) == list(range(110))


def test_errors_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match="the option archive is missing"):
        spark.read.format("godwit").load().collect()
    with served(tmp_path / "log") as place:
        lost = spark.readStream.format("godwit").options(**options(place, startingOffsets=f'{{"{place.log}": 5}}'))
        query = (
            lost.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        )
        with pytest.raises(StreamingQueryException, match="it ends at 0 now"):
            query.awaitTermination(60)


def test_unknown_columns() -> None:
    assert check_columns(columns("payload binary, offset bigint")) == ("payload", "offset")
    with pytest.raises(OptionError, match="unknown column 'body': choose from broker, offset"):
        check_columns(columns("body binary"))
    with pytest.raises(OptionError, match="the column payload is binary, not string: cast it after the load"):
        check_columns(columns("payload string"))
