"""The writers: each row is in the broker's log once, whatever is retried."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.archive.client import ArchiveClient
from tests.archive.logs import listed
from tests.spark.archives import Served, options, served
from tests.spark.session import columns

from godwit.spark.options import OptionError, write_options
from godwit.spark.sink import BatchWriter


def messages(place: Served) -> list[tuple[str, bytes, bool]]:
    with ArchiveClient(place.address) as client:
        return [(row["topic"], row["payload"], row["retained"]) for row in listed(*client.read())]


def test_a_batch_is_written_whole_in_order_or_not_at_all(spark: SparkSession, tmp_path: Path) -> None:
    with served(tmp_path) as place:
        frame = spark.range(0, 1000, 1, 4).selectExpr("concat('t/', id % 2) topic", "cast(id as string) payload")
        frame.write.format("godwit").options(**options(place)).mode("append").save()
        found = messages(place)
        assert len(found) == 1000
        for half in range(2):
            mine = [int(payload) for topic, payload, _ in found if topic == f"t/{half}"]
            assert mine == list(range(half, 1000, 2))
        broken = spark.range(10).selectExpr("'t' topic", "if(id = 9, null, cast('x' as binary)) payload")
        with pytest.raises(PySparkException, match="the column payload is null in 1 of"):
            broken.write.format("godwit").options(**options(place)).mode("append").save()
        assert len(messages(place)) == 1000


def test_a_task_that_fails_and_is_tried_again_writes_once(spark: SparkSession, tmp_path: Path) -> None:
    with served(tmp_path / "log") as place:

        def fail_at_first(batches):  # type: ignore[no-untyped-def]  # shipped to executors
            yield from batches
            context = TaskContext.get()
            assert context is not None
            if context.partitionId() == 1 and context.attemptNumber() == 0:
                raise ValueError("on purpose, behind the last row")

        frame = spark.range(0, 100, 1, 3).selectExpr("'t' topic", "cast(id as string) payload")
        frame = frame.mapInArrow(fail_at_first, frame.schema)
        frame.write.format("godwit").options(**options(place)).mode("append").save()
        assert sorted(int(payload) for _, payload, _ in messages(place)) == list(range(100))


def test_a_stream_writes_each_micro_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    with served(tmp_path / "in") as place, served(tmp_path / "out", log_id=bytes(range(1, 17))) as target:
        place.add(50, "in")
        checkpoint = str(tmp_path / "checkpoint")

        def run() -> None:
            source = spark.readStream.format("godwit").options(**options(place, maxRowsPerTrigger="20")).load()
            frame = source.selectExpr("concat('out/', topic) topic", "payload", "true retained")
            writer = frame.writeStream.format("godwit").options(**options(target), checkpointLocation=checkpoint)
            assert writer.trigger(availableNow=True).start().awaitTermination(120)

        run()
        run()
        assert messages(target) == [("out/in", f"{number} ".encode().ljust(10, b"."), True) for number in range(50)]
        # The driver died after the broker had accepted the last batch, before Spark committed it.
        (tmp_path / "checkpoint" / "commits" / "2").unlink()
        (tmp_path / "checkpoint" / "commits" / ".2.crc").unlink(missing_ok=True)
        run()
        assert len(messages(target)) == 50


def test_a_numbered_write_is_done_once(spark: SparkSession, tmp_path: Path) -> None:
    with served(tmp_path) as place:

        def write(frame: DataFrame, batch: int) -> None:
            given = options(place, query="alerts", batch=str(batch), topic="alerts/a")
            frame.write.format("godwit").options(**given).mode("append").save()

        frame = spark.range(3).selectExpr("cast(id as string) payload")
        for batch in (0, 0, 1, 0):
            write(frame, batch)
        assert [payload for _, payload, _ in messages(place)] == [b"0", b"1", b"2"] * 2


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("topic string", "the column payload is missing"),
        ("payload string", "the column topic is missing"),
        ("topic int, payload string", "the column topic is int: cast it to string"),
        ("topic string, payload string, when timestamp", "unknown column 'when'"),
    ],
)
def test_invalid_columns(schema: str, complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        BatchWriter(write_options({"archive": "localhost"}), columns(schema))


def test_a_topic_for_rows_without_one() -> None:
    writer = BatchWriter(
        write_options({"archive": "localhost", "topic": "rest"}), columns("topic string, payload string")
    )
    batch = writer._to_messages(pa.record_batch({"topic": ["a", None], "payload": ["x", "y"]}))
    assert batch.column("topic").to_pylist() == ["a", "rest"]
    assert batch.column("payload").to_pylist() == [b"x", b"y"]
    assert batch.column("retained").to_pylist() == [False, False]
