"""How long a message takes from its publisher to a row of bronze, with the pipeline as `godwit pipeline run` runs it.

A publisher sends readings at a steady rate; whoever reads the table looks at it again and again, and the delay of a
message is the time from its publishing until a look sees it.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from godwit.errors import GodwitError
from godwit.net.client import connect
from godwit.net.loop import run as run_loop
from godwit.pipeline.datasets import bronze
from godwit.pipeline.lake import Lake, LakeTable
from godwit.pipeline.runner import RunConfig, run
from godwit.pipeline.session import spark_session
from godwit.pipeline.supervisor import BatchProgress
from godwit_bench.log_godwit import durable_broker
from godwit_bench.spark_reading import LONGEST_S, MASTER, START_S, STOP
from godwit_bench.stage import READY, Stage, hear

TOPICS: Final = 10
MESSAGES_PER_S: Final = 100
TRIGGER_S: Final = 1.0
WARM_BATCHES: Final = 5
"""Versions of the table that are not counted: Java compiles what it runs often while it runs."""
LOOK_S: Final = 0.01


def delays_s(stage: Stage, seconds: float) -> list[float]:
    """Of all messages that came to bronze within so many seconds, once the pipeline is warm."""
    broker, archive = durable_broker(stage, stage.folder / "log", with_archive=True)
    lake = stage.folder / "lake"
    publisher = stage.start(_publish, broker)
    hear(publisher, str)
    pipeline = stage.start(_run_pipeline, str(lake), archive)
    hear(pipeline, str, within_s=START_S)
    found = watch(Lake(str(lake)).table(bronze.SPEC), seconds, on_look=lambda: _check(pipeline))
    pipeline.send(STOP)  # it ends with its next batch, before the publisher does
    hear(pipeline, str, within_s=LONGEST_S)
    return found


def watch(table: LakeTable, seconds: float, on_look: Callable[[], None]) -> list[float]:
    """Looks at the table until it has been warm for so long."""
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
    """How many there were, without opening the table: whoever looks all the time must not need the processor for it."""
    try:
        return sum(1 for _ in (Path(table.address) / "_delta_log").iterdir())
    except FileNotFoundError:
        return 0


def _check(pipeline: Pipe) -> None:
    """A pipeline that has failed says so."""
    if pipeline.poll():
        hear(pipeline, type(None))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of them does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


# -- in processes of their own ----------------------------------------------------------------------------------------


def _publish(pipe: Pipe, broker: str) -> None:
    run_loop(_publish_for_ever(pipe, broker))


async def _publish_for_ever(pipe: Pipe, broker: str) -> None:
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
    """Nobody wants more."""


class _Watching:
    """Ends the run when it is told to."""

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
            run(spark, order, _Watching(pipe))
    pipe.send(READY)
