"""A driver of Spark's in a process of its own: plays one role on a master and prints what came of it as JSON.

Its functions go to executors by value: there is neither godwit nor the tests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import godwit.spark
from godwit.pipeline.session import spark_session

ANSWER = "answer: "
TWICE = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
}
"""A task that takes longer than the others is run a second time."""
SLOW_S = 60.0
ROWS = 2_000


def main() -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    role, master, log, arguments = sys.argv[1:5]
    settings = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1", **TWICE}
    with spark_session(master, Path(log), settings) as spark:
        godwit.spark.register(spark)
        answer = ROLES[role](spark, **json.loads(arguments))
        print(ANSWER + json.dumps(answer), flush=True)


# -- batch and stream -------------------------------------------------------------------------------------------------


def digest(spark: SparkSession, archive: str, checkpoint: str) -> dict[str, Any]:
    """What a batch and a stream have of the log, and what executors are made of."""
    options = {"archive": archive, "endingOffsets": "latest"}
    batch = _digest(spark.read.format("godwit").options(**options, minPartitions="6").load())
    found: list[Any] = []

    def take(frame: DataFrame, number: int) -> None:
        found.append(_digest(frame))

    stream = spark.readStream.format("godwit").options(archive=archive, maxRowsPerTrigger="7000", minPartitions="3")
    writer = stream.load().writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    executors = spark.range(0, 40, 1, 40).mapInArrow(_look_around, "host string, godwit boolean").distinct().collect()
    return {"batch": batch, "stream": found, "executors": sorted([row.host, row.godwit] for row in executors)}


def _digest(frame: DataFrame) -> list[list[Any]]:
    """Of each topic: rows, the sum of their hashes, and the last offset."""
    hashed = frame.withColumn("hash", sf.xxhash64(*frame.columns) % 1_000_003)
    found = hashed.groupBy("topic").agg(sf.count("*"), sf.sum("hash"), sf.max("offset"))
    return sorted(list(row) for row in found.collect())


def _look_around(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import os
    import time

    for _ in batches:
        pass
    time.sleep(0.1)  # so that no executor does all of them
    try:
        import godwit

        is_there = bool(godwit.__file__)
    except ImportError:
        is_there = False
    yield pa.RecordBatch.from_pydict({"host": [os.environ.get("SPARK_LOCAL_IP", "")], "godwit": [is_there]})


# -- the sink ---------------------------------------------------------------------------------------------------------


def sink(spark: SparkSession, archive: str, folder: str) -> dict[str, Any]:
    """Writes batches and streams whose tasks are slow, fail, or are cut anew when they are tried again."""
    _write(spark, archive, "slow", _slow_at_first(f"{folder}/slow"))
    _write(spark, archive, "failing", _failing_at_first(f"{folder}/failing"))
    failed = _stream_in_parts(spark, archive, f"{folder}/checkpoint", 3, is_broken=True)
    _stream_in_parts(spark, archive, f"{folder}/checkpoint", 7)
    (commit,) = Path(f"{folder}/checkpoint/commits").glob("[0-9]*")
    commit.unlink()  # as if the driver had died behind the sink's commit
    Path(f"{folder}/checkpoint/commits/.{commit.name}.crc").unlink(missing_ok=True)
    _stream_in_parts(spark, archive, f"{folder}/checkpoint", 2)
    return {"rows": ROWS, "failed": failed}


def _write(spark: SparkSession, archive: str, topic: str, trouble: Callable[..., Any]) -> None:
    rows = spark.range(0, ROWS, 1, 4).selectExpr(f"'out/{topic}' topic", "cast(id as string) payload")
    rows.mapInArrow(trouble, rows.schema).write.format("godwit").option("archive", archive).mode("append").save()


def _stream_in_parts(spark: SparkSession, archive: str, checkpoint: str, parts: int, *, is_broken: bool = False) -> str:
    """Run one micro-batch of all messages of in/# in `parts` partitions, and return the error if it failed."""
    stream = spark.readStream.format("godwit").options(archive=archive, topics="in/#", minPartitions=str(parts))
    rows = stream.load().selectExpr("'out/stream' topic", "payload")
    if is_broken:
        rows = rows.mapInArrow(_failing_at_the_end, rows.schema)
    writer = rows.writeStream.format("godwit").options(archive=archive, checkpointLocation=checkpoint)
    try:
        writer.trigger(availableNow=True).start().awaitTermination()
    except PySparkException as error:
        return str(error)
    return ""


def _attempt(folder: str) -> tuple[int, int]:
    """Partition and attempt of this task, which leaves a trace of itself."""
    import os

    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    number = context.partitionId(), context.attemptNumber()
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, f"{number[0]}-{number[1]}-{os.environ.get('SPARK_LOCAL_IP', '')}").touch()
    return number


def _slow_at_first(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def trouble(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        partition, attempt = _attempt(folder)
        yield from batches
        if partition == 0 and attempt == 0:
            time.sleep(SLOW_S)

    return trouble


def _failing_at_first(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def trouble(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition, attempt = _attempt(folder)
        yield from batches
        if partition == 1 and attempt == 0:
            raise ValueError("on purpose, behind the last row")

    return trouble


def _failing_at_the_end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One partition never gets through, when the others are done."""
    import time

    from pyspark import TaskContext

    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() == 0:
        time.sleep(1.0)
        raise ValueError("on purpose, in each attempt")


ROLES: dict[str, Callable[..., dict[str, Any]]] = {"digest": digest, "sink": sink}
