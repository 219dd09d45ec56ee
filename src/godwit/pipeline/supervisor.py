"""Supervises the queries of a run: reports progress, restarts them after a failure, and decides when to give up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql.streaming.query import StreamingQuery

from godwit.pipeline.errors import PipelineError, explained

MAX_FAILURES_ONCE: Final = 5
"""Consecutive failures after which a run with `is_once` ends."""
FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 60.0


@dataclass(frozen=True)
class BatchProgress:
    """A completed micro-batch, or a completed step of gold."""

    query: str
    number: int
    rows: int
    took_s: float
    lag: int
    """Messages beyond it in the logs; for gold, in bronze and silver."""


@dataclass
class RunStats:
    """Batches and rows of a run, by query."""

    batches: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)


class RunListener(Protocol):
    """Receives the events of a run. An exception that it raises ends the run."""

    def on_batch(self, batch: BatchProgress) -> None:
        """Handle the completion of a micro-batch."""

    def on_failure(self, query: str, sentence: str, pause_s: float) -> None:
        """Handle the failure of a query, which restarts after the pause."""


class RunningQuery(Protocol):
    """A query as the supervisor sees it."""

    @property
    def is_active(self) -> bool:
        """Whether it still runs."""

    def next_batches(self) -> list[BatchProgress]:
        """Return the batches that were completed since the last call."""

    def error(self) -> Exception | None:
        """Return the error that ended it, if any."""


class SparkQuery:
    """A streaming query of Spark as a RunningQuery."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._last_number = -1
        self._last_progress: tuple[int, str] | None = None

    @property
    def is_active(self) -> bool:
        """Whether it still runs."""
        return self._query.isActive

    def error(self) -> Exception | None:
        """Return the error that ended it, if any."""
        return self._query.exception()

    def next_batches(self) -> list[BatchProgress]:
        """Return the batches that were completed since the last call."""
        last = self._query.lastProgress
        if last is None or (last.batchId, last.timestamp) == self._last_progress:
            return []  # the usual case, without the cost of recentProgress
        self._last_progress = (last.batchId, last.timestamp)
        found = []
        for report in self._query.recentProgress:
            progress = json.loads(report.json)
            number, rows = int(progress["batchId"]), int(progress["numInputRows"])
            if number > self._last_number and rows:
                self._last_number = number
                took_s = progress["batchDuration"] / 1000
                found.append(BatchProgress(progress["name"], number, rows, took_s, _lag(progress)))
        return found


class SupervisedQuery:
    """One query of a run, with its restarts."""

    def __init__(
        self, name: str, start: Callable[[], RunningQuery], is_once: bool, listener: RunListener, stats: RunStats
    ) -> None:
        self._name = name
        self._start = start
        self._is_once = is_once
        self._listener = listener
        self._stats = stats
        self._failures = 0
        """Consecutive ones, without a completed batch in between."""
        self._running: RunningQuery | None = None
        self._next_start = 0.0
        self.is_done = False
        """Whether it has ended without an error."""
        stats.batches[name] = stats.rows[name] = 0

    def poll(self) -> None:
        """Start the query if it is due, report completed batches, and handle its end.

        Raise PipelineError if it failed and a restart is useless.
        """
        if self.is_done or (self._running is None and time.monotonic() < self._next_start):
            return
        is_active, batches = False, []
        try:
            if self._running is None:
                self._running = self._start()
            is_active = self._running.is_active
            batches = self._running.next_batches()
            error = None if is_active else self._running.error()
        except Exception as raised:
            error = raised
        self._report(batches)
        if error is not None:
            self._handle_failure(error)
        elif not is_active:
            self.is_done = True

    def _report(self, batches: list[BatchProgress]) -> None:
        for batch in batches:
            self._failures = 0
            self._stats.batches[self._name] += 1
            self._stats.rows[self._name] += batch.rows
            self._listener.on_batch(batch)

    def _handle_failure(self, error: Exception) -> None:
        self._running = None
        if isinstance(error, PipelineError):
            raise error
        if isinstance(error, ConnectionError | Py4JNetworkError):
            raise PipelineError("Spark's Java process has exited: see its log, then start again") from error
        failure = explained(str(error))
        pause_s = float(min(FIRST_PAUSE_S * 2**self._failures, MAX_PAUSE_S))
        self._failures += 1
        if failure.is_final or (self._is_once and self._failures >= MAX_FAILURES_ONCE):
            raise PipelineError(f"the query {self._name} failed: {failure.sentence}") from error
        self._next_start = time.monotonic() + pause_s
        self._listener.on_failure(self._name, failure.sentence, pause_s)


def _lag(progress: Mapping[str, Any]) -> int:
    lag = 0
    for source in progress["sources"]:
        ends, latest = source["endOffset"] or {}, source["latestOffset"] or {}
        lag += sum(max(at - ends.get(log, 0), 0) for log, at in latest.items() if isinstance(at, int))
    return lag
