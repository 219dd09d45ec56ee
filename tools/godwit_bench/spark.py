"""`godwit bench spark`: Godwit's source against a bare one in the same Spark session, and the delay to bronze.

A log of messages of 100 bytes, each alone in its batch and from one of 10,000 publishers on one of 10,000 topics, is
read through Spark by Godwit's source, and the same rows by a Python data source that only passes on rows from a Flight
server. Two tasks are timed as a whole: an aggregate of a batch, and Parquet files of a stream. One session in a process
of its own measures all sources in turn, so that JIT and Python workers are warm for all.

Then the pipeline runs as `godwit pipeline run` does, with a trigger of a second. A publisher sends readings at a steady
rate, and the delay of a message is the time from its publishing until a reader of the bronze table sees it.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import godwit.spark
from godwit.errors import GodwitError
from godwit.net.client import connect
from godwit.net.loop import run as run_loop
from godwit.pipeline import runner
from godwit.pipeline.datasets import bronze
from godwit.pipeline.errors import explained
from godwit.pipeline.lake import Lake, LakeTable
from godwit.pipeline.runner import RunConfig
from godwit.pipeline.session import JAVA_OPTIONS, spark_session
from godwit.pipeline.supervisor import BatchProgress
from godwit_bench import spark_bare
from godwit_bench.archive import MESSAGE_BYTES, fill_with_lone_messages
from godwit_bench.log import durable_broker
from godwit_bench.processes import READY, ProcessGroup, receive_reply
from godwit_bench.report import Ratio, Report, Result, interleaved, machine, median_ratio
from godwit_bench.spark_bare import FORMAT, bare_server

# -- rows per second --------------------------------------------------------------------------------------------------

MASTER: Final = "local[*,4]"
START_S: Final = 120.0
"""A JVM and its session start slowly on a busy machine."""
LONGEST_S: Final = 300.0
STOP: Final = "stop"


@dataclass(frozen=True)
class Source:
    """Rows that Spark can read."""

    format: str
    options: dict[str, str]


class Session:
    """A Spark session in a process of its own."""

    def __init__(self, processes: ProcessGroup, rows: int) -> None:
        self._pipe = processes.start(_work, str(processes.folder), rows)
        self.partitions = receive_reply(self._pipe, int, within_s=START_S)
        """The number of partitions of a large read."""

    def rows_per_s(self, task: str, source: Source) -> float:
        """Return the rows per second of a task of TASKS, which must see all rows."""
        self._pipe.send((task, source))
        return receive_reply(self._pipe, float, within_s=LONGEST_S)

    def stop(self) -> None:
        self._pipe.send(STOP)
        receive_reply(self._pipe, str, within_s=START_S)


def aggregate(spark: SparkSession, source: Source, folder: Path) -> int:
    """Count messages and bytes of each topic in a batch; return the number of messages."""
    rows = spark.read.format(source.format).options(**source.options).load()
    found = rows.groupBy("topic").agg(sf.count("*").alias("messages"), sf.sum(sf.length("payload")).alias("bytes"))
    (total,) = found.agg(sf.sum("messages").alias("messages"), sf.sum("bytes").alias("bytes")).collect()
    return int(total.messages)


def parquet(spark: SparkSession, source: Source, folder: Path) -> int:
    """Write all columns of a stream to files until its end; return the number of rows."""
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
    with spark_session(MASTER, Path(folder) / "spark.log", {JAVA_OPTIONS: ""}) as spark:
        godwit.spark.register(spark)
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


# -- the delay to bronze ----------------------------------------------------------------------------------------------

TOPICS: Final = 10
MESSAGES_PER_S: Final = 100
TRIGGER_S: Final = 1.0
WARM_BATCHES: Final = 5
"""Versions of the table that are not counted, while Java compiles the code."""
LOOK_S: Final = 0.01


def delays_s(processes: ProcessGroup, seconds: float) -> list[float]:
    """Return the delays of all messages that reached bronze within this time, once the pipeline is warm."""
    broker, archive = durable_broker(processes, processes.folder / "log", with_archive=True)
    lake = processes.folder / "lake"
    publisher = processes.start(_publish, broker)
    receive_reply(publisher, str)
    pipeline = processes.start(_run_pipeline, str(lake), archive)
    receive_reply(pipeline, str, within_s=START_S)
    found = watch(Lake(str(lake)).table(bronze.SPEC), seconds, on_look=lambda: _check(pipeline))
    pipeline.send(STOP)  # it ends with its next batch, before the publisher does
    receive_reply(pipeline, str, within_s=LONGEST_S)
    return found


def watch(table: LakeTable, seconds: float, on_look: Callable[[], None]) -> list[float]:
    """Read the table repeatedly until it has been warm for this time; return the delays."""
    gives_up_at = time.monotonic() + LONGEST_S
    ends_at = math.inf
    seen, fresh, next_offset = 0, 0, 0
    found: list[float] = []
    while time.monotonic() < ends_at:
        on_look()
        if time.monotonic() > gives_up_at + seconds:
            raise GodwitError(f"bronze got {fresh} batches within {LONGEST_S:g} s: run it again on a quieter machine")
        if (transactions := _transactions(table)) == seen:
            time.sleep(LOOK_S)
            continue
        seen = transactions
        rows = list(table.scan(["offset", "published"], pc.field("offset") >= next_offset))
        seen_us = time.time_ns() // 1000
        news = pa.concat_tables(rows) if rows else None
        if news is None or not news.num_rows:
            continue
        next_offset = pc.max(news["offset"]).as_py() + 1
        fresh += 1
        if fresh == WARM_BATCHES:
            ends_at = time.monotonic() + seconds
        elif fresh > WARM_BATCHES:
            found += [(seen_us - at_us) / 1e6 for at_us in news["published"].cast(pa.int64()).to_pylist()]
    if not found:
        raise GodwitError(f"no message came to bronze within {seconds:g} s: watch for longer, with --seconds")
    return found


def _transactions(table: LakeTable) -> int:
    """Return the number of transactions without opening the table: frequent checks must need little processor time."""
    try:
        return sum(1 for _ in (Path(table.address) / "_delta_log").iterdir())
    except FileNotFoundError:
        return 0


def _check(pipeline: Pipe) -> None:
    """Raise the failure of a pipeline that has failed."""
    if pipeline.poll():
        receive_reply(pipeline, type(None))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


# -- in processes of their own ----------------------------------------------------------------------------------------


def _publish(pipe: Pipe, broker: str) -> None:
    run_loop(_publish_forever(pipe, broker))


async def _publish_forever(pipe: Pipe, broker: str) -> None:
    rng = random.Random(1)
    async with connect(broker, name="thermometers") as client:
        publishers = [client.publisher(f"rooms/{number}/climate", qos=1) for number in range(TOPICS)]
        pipe.send(READY)
        next_at = time.monotonic()
        while True:
            for publisher in publishers:
                publisher.send(json.dumps({"temperature": round(rng.gauss(21, 0.2), 2)}))
                next_at += 1 / MESSAGES_PER_S
                await asyncio.sleep(max(0.0, next_at - time.monotonic()))


class _EnoughError(Exception):
    """Raised to end the run."""


class _StopOnRequest:
    """End the run on request."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def on_batch(self, batch: BatchProgress) -> None:
        if self._pipe.poll():
            raise _EnoughError

    def on_failure(self, query: str, sentence: str, pause_s: float) -> None:
        raise GodwitError(f"the query {query} failed: {sentence}")


def _run_pipeline(pipe: Pipe, lake: str, archive: str) -> None:
    order = RunConfig(Lake(lake), {"archive": archive}, trigger_s=TRIGGER_S)
    with spark_session(MASTER, Path(lake) / "spark.log") as spark:
        pipe.send(READY)
        with suppress(_EnoughError):
            runner.run(spark, order, _StopOnRequest(pipe))
    pipe.send(READY)


# -- the benchmark ----------------------------------------------------------------------------------------------------

MESSAGES: Final = 2_000_000
DELAY: Final = "delay"
OURS: Final = "godwit"


def run(
    *, folder: Path, rounds: int, seconds: float, on_round: Callable[[str], None], messages: int = MESSAGES
) -> Report:
    """Measure all sources in turns and return the medians; then measure the delay for this number of seconds."""
    figures = _reading(folder, rounds, on_round, messages)
    with ProcessGroup(within=folder) as processes:
        on_round(DELAY)
        delays_ms = [delay_s * 1000 for delay_s in delays_s(processes, seconds)]
    unit = f"messages/s of {MESSAGE_BYTES} B"
    what = f"ms from publishing to a row of bronze, trigger {TRIGGER_S:g} s"
    results = [Result(name, statistics.median(values), unit) for name, values in figures.items()]
    results += [Result(f"delay_p{share}_ms", percentile(delays_ms, share / 100), what) for share in (50, 95)]
    ratios = [
        Ratio(
            f"{task}_vs_bare",
            median_ratio(figures[f"{task}_{OURS}"], figures[f"{task}_{FORMAT}"]),
            "a Python source that only hands on the same rows",
        )
        for task in TASKS
    ]
    return Report("spark", machine(), results, ratios)


def _reading(folder: Path, rounds: int, on_round: Callable[[str], None], messages: int) -> dict[str, list[float]]:
    with ProcessGroup(within=folder) as processes:
        on_round("writing the log")
        rows = fill_with_lone_messages(processes.folder / "log", messages=messages)
        _, archive = durable_broker(processes, processes.folder / "log", with_archive=True)
        on_round("starting Spark")
        bare = bare_server(processes, archive)
        session = Session(processes, rows)
        options = {"address": bare, "rows": str(rows), "pieces": str(session.partitions)}
        sources = {OURS: Source(OURS, {"archive": archive}), FORMAT: Source(FORMAT, options)}
        measures = {
            f"{task}_{name}": partial(session.rows_per_s, task, source)
            for task in TASKS
            for name, source in sources.items()
        }
        interleaved(measures, 1, lambda name: on_round(f"{name}, to warm up"))
        figures = interleaved(measures, rounds, on_round)
        session.stop()
    return figures
