"""What Spark makes of a source's rows: an aggregate of a batch, and Parquet files of a stream, each timed as a whole.

One session measures all sources in turn, in a process of its own, so that JIT and Python workers are warm for all.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Final

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from godwit.errors import GodwitError
from godwit.pipeline.errors import explained
from godwit.pipeline.session import spark_session
from godwit_bench import spark_bare
from godwit_bench.stage import READY, Stage, hear

MASTER: Final = "local[*,4]"
START_S: Final = 120.0
"""A JVM and its session take their time on a busy machine."""
LONGEST_S: Final = 300.0
STOP: Final = "stop"


@dataclass(frozen=True)
class Source:
    """Rows that Spark can read."""

    format: str
    options: dict[str, str]


class Session:
    """Spark, in a process of its own."""

    def __init__(self, stage: Stage, rows: int) -> None:
        self._pipe = stage.start(_work, str(stage.folder), rows)
        self.partitions = hear(self._pipe, int, within_s=START_S)
        """Into how many a large read is cut."""

    def rows_per_s(self, task: str, source: Source) -> float:
        """Of a task of TASKS, which must see all rows."""
        self._pipe.send((task, source))
        return hear(self._pipe, float, within_s=LONGEST_S)

    def stop(self) -> None:
        self._pipe.send(STOP)
        hear(self._pipe, str, within_s=START_S)


def aggregate(spark: SparkSession, source: Source, folder: Path) -> int:
    """A batch: messages and bytes of each topic. Gives the number of messages."""
    rows = spark.read.format(source.format).options(**source.options).load()
    found = rows.groupBy("topic").agg(sf.count("*").alias("messages"), sf.sum(sf.length("payload")).alias("bytes"))
    (total,) = found.agg(sf.sum("messages").alias("messages"), sf.sum("bytes").alias("bytes")).collect()
    return int(total.messages)


def parquet(spark: SparkSession, source: Source, folder: Path) -> int:
    """A stream, until its end: all columns to files. Gives the number of rows."""
    target = folder / "parquet"
    try:
        rows = spark.readStream.format(source.format).options(**source.options).load()
        writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{target}/checkpoint")
        query = writer.option("path", f"{target}/rows").trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(int(one["numInputRows"]) for one in query.recentProgress)
    finally:
        shutil.rmtree(target, ignore_errors=True)


TASKS: Final[dict[str, Callable[[SparkSession, Source, Path], int]]] = {"aggregate": aggregate, "parquet": parquet}


def _work(pipe: Pipe, folder: str, rows: int) -> None:
    cloudpickle.register_pickle_by_value(spark_bare)  # type: ignore[no-untyped-call]  # as ours is
    with spark_session(MASTER, Path(folder) / "spark.log") as spark:
        spark.dataSource.register(spark_bare.BareSource)
        pipe.send(max(1, spark.sparkContext.defaultParallelism))
        while (order := pipe.recv()) != STOP:
            task, source = order
            began = time.perf_counter()
            try:
                seen = TASKS[task](spark, source, Path(folder))
            except PySparkException as error:  # it has no text any more once Spark's JVM has ended
                raise GodwitError(f"{task} through {source.format} failed: {explained(str(error)).sentence}") from None
            elapsed_s = time.perf_counter() - began
            if seen != rows:
                raise GodwitError(f"{rows} messages are there, and {seen} came through {source.format}")
            pipe.send(rows / elapsed_s)
    pipe.send(READY)
