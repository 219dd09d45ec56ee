"""Runs the two streaming queries of the pipeline and watches over them.

`tables` writes bronze, silver and most of gold; `anomalies` has a state of its own and finds what is unusual. They read
the same logs from checkpoints of their own, so that neither waits for the other. One that fails is started again after
a pause; an error that cannot get better ends the run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from godwit.pipeline.batches import Tables
from godwit.pipeline.checkpoints import ANOMALIES, TABLES, check_checkpoints, checkpoint_address
from godwit.pipeline.datasets import anomalies
from godwit.pipeline.failures import Pauses, explained
from godwit.pipeline.lake import Lake
from godwit.pipeline.problems import PipelineError

LOOK_S: Final = 0.5
MAX_ROWS: Final = 200_000
MAX_BYTES: Final = 256 * 1024 * 1024
"""Of one micro-batch: what a driver with little memory can handle."""
TRIES_ONCE: Final = 5
"""Failures in a row after which a run that somebody waits for ends."""


@dataclass(frozen=True)
class Order:
    """What is to be run."""

    lake: Lake
    source: Mapping[str, str]
    """Options of format("godwit")."""
    is_once: bool = False
    """Up to what the logs have now, and no further."""
    trigger_s: float = 1.0


@dataclass(frozen=True)
class Batch:
    """A micro-batch that is done."""

    query: str
    number: int
    rows: int
    took_s: float
    lag: int
    """Messages that the logs have beyond it."""


@dataclass
class Outcome:
    """Of a run: batches and rows by query."""

    batches: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)


class Observer(Protocol):
    """Is told what happens."""

    def on_batch(self, batch: Batch) -> None:
        """A micro-batch is done."""

    def on_failure(self, query: str, sentence: str, pause_s: float) -> None:
        """A query failed, and is started again after the pause."""


def run(spark: SparkSession, order: Order, observer: Observer) -> Outcome:
    """Until all is done (`is_once`), or until it is interrupted. PipelineError if it cannot go on."""
    check_checkpoints(order.lake)
    outcome = Outcome()
    watched = [_Watched(name, start, order.is_once, observer, outcome) for name, start in _starts(spark, order)]
    while not all(one.is_done for one in watched):
        for one in watched:
            one.look()
        time.sleep(LOOK_S)
    return outcome


def _starts(spark: SparkSession, order: Order) -> list[tuple[str, Callable[[], StreamingQuery]]]:
    trigger: dict[str, Any] = (
        {"availableNow": True} if order.is_once else {"processingTime": f"{order.trigger_s:g} seconds"}
    )
    source = {"maxRowsPerTrigger": str(MAX_ROWS), "maxBytesPerTrigger": str(MAX_BYTES)} | dict(order.source)
    tables = Tables(order.lake)

    def start_tables() -> StreamingQuery:
        stream = spark.readStream.format("godwit").options(**source).load()
        writer = stream.writeStream.queryName(TABLES).foreachBatch(tables.write)
        writer = writer.option("checkpointLocation", checkpoint_address(order.lake, TABLES))
        return writer.trigger(**trigger).start()

    def start_anomalies() -> StreamingQuery:
        checkpoint = checkpoint_address(order.lake, ANOMALIES)
        return anomalies.start(spark, source, order.lake, checkpoint, trigger)

    return [(TABLES, start_tables), (ANOMALIES, start_anomalies)]


class _Watched:
    """One query, from start to restart to end."""

    def __init__(
        self, name: str, start: Callable[[], StreamingQuery], is_once: bool, observer: Observer, outcome: Outcome
    ) -> None:
        self._name = name
        self._start = start
        self._is_once = is_once
        self._observer = observer
        self._outcome = outcome
        self._pauses = Pauses()
        self._query: StreamingQuery | None = None
        self._next_start = 0.0
        self._seen = -1
        self._last: tuple[int, str] | None = None
        self.is_done = False
        outcome.batches[name] = outcome.rows[name] = 0

    def look(self) -> None:
        """Starts it if it is time, tells what it has done, and sees whether it has ended."""
        if self.is_done or (self._query is None and time.monotonic() < self._next_start):
            return
        try:
            if self._query is None:
                self._query = self._start()
            is_active = self._query.isActive
            self._tell_batches(self._query)
            if not is_active:
                error = self._query.exception()
                if error is not None:
                    raise error
                self.is_done = True
        except PySparkException as error:
            self._failed(str(error))
        except Exception as error:
            if isinstance(error, ConnectionError) or type(error).__module__.startswith("py4j."):
                raise PipelineError(
                    "Spark's Java process has ended by itself: see its log, then start again"
                ) from error
            raise

    def _tell_batches(self, query: StreamingQuery) -> None:
        last = query.lastProgress
        if last is None or (last.batchId, last.timestamp) == self._last:
            return  # a short look, as most of the time nothing is new
        self._last = (last.batchId, last.timestamp)
        for told in query.recentProgress:
            progress = json.loads(told.json)
            number = int(progress["batchId"])
            rows = int(progress["numInputRows"])
            if number <= self._seen or not rows:
                continue
            self._seen = number
            self._pauses.reset()
            self._outcome.batches[self._name] += 1
            self._outcome.rows[self._name] += rows
            took_s = progress["batchDuration"] / 1000
            self._observer.on_batch(Batch(self._name, number, rows, took_s, _lag(progress)))

    def _failed(self, text: str) -> None:
        self._query = None
        failure = explained(text)
        pause_s = self._pauses.next_s()
        if failure.is_final or (self._is_once and self._pauses.failures >= TRIES_ONCE):
            raise PipelineError(f"the query {self._name} failed: {failure.sentence}")
        self._next_start = time.monotonic() + pause_s
        self._observer.on_failure(self._name, failure.sentence, pause_s)


def _lag(progress: Mapping[str, Any]) -> int:
    lag = 0
    for source in progress["sources"]:
        ends, latest = source["endOffset"] or {}, source["latestOffset"] or {}
        lag += sum(max(at - ends.get(log, 0), 0) for log, at in latest.items() if isinstance(at, int))
    return lag
