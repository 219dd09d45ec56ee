"""Watches over what runs: tells what it has done, starts it again after a failure, and knows when to give up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql.streaming.query import StreamingQuery

from godwit.pipeline.failures import Pauses, explained
from godwit.pipeline.problems import PipelineError

TRIES_ONCE: Final = 5
"""Failures in a row after which a run that somebody waits for ends."""


@dataclass(frozen=True)
class Batch:
    """A micro-batch that is done, or a step of gold."""

    query: str
    number: int
    rows: int
    took_s: float
    lag: int
    """Messages that the logs have beyond it, or, for gold, bronze and silver."""


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


class Running(Protocol):
    """What is watched."""

    @property
    def is_active(self) -> bool:
        """It has not ended yet."""

    def batches(self) -> list[Batch]:
        """Those that are done and were not given before."""

    def error(self) -> Exception | None:
        """Why it ended, if not well."""


class Query:
    """A streaming query of Spark's, as something that runs."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._seen = -1
        self._last: tuple[int, str] | None = None

    @property
    def is_active(self) -> bool:
        return self._query.isActive

    def error(self) -> Exception | None:
        return self._query.exception()

    def batches(self) -> list[Batch]:
        last = self._query.lastProgress
        if last is None or (last.batchId, last.timestamp) == self._last:
            return []  # a short look, as most of the time nothing is new
        self._last = (last.batchId, last.timestamp)
        found = []
        for told in self._query.recentProgress:
            progress = json.loads(told.json)
            number, rows = int(progress["batchId"]), int(progress["numInputRows"])
            if number > self._seen and rows:
                self._seen = number
                found.append(Batch(progress["name"], number, rows, progress["batchDuration"] / 1000, _lag(progress)))
        return found


class Watched:
    """One of them, from start to restart to end."""

    def __init__(
        self, name: str, start: Callable[[], Running], is_once: bool, observer: Observer, outcome: Outcome
    ) -> None:
        self._name = name
        self._start = start
        self._is_once = is_once
        self._observer = observer
        self._outcome = outcome
        self._pauses = Pauses()
        self._running: Running | None = None
        self._next_start = 0.0
        self.is_done = False
        outcome.batches[name] = outcome.rows[name] = 0

    def look(self) -> None:
        """Starts it if it is time, tells what it has done, and sees whether it has ended."""
        if self.is_done or (self._running is None and time.monotonic() < self._next_start):
            return
        is_active, batches = False, []
        try:
            if self._running is None:
                self._running = self._start()
            is_active = self._running.is_active
            batches = self._running.batches()
            error = None if is_active else self._running.error()
        except Exception as raised:
            error = raised
        self._tell(batches)
        if error is not None:
            self._failed(error)
        elif not is_active:
            self.is_done = True

    def _tell(self, batches: list[Batch]) -> None:
        for batch in batches:
            self._pauses.reset()
            self._outcome.batches[self._name] += 1
            self._outcome.rows[self._name] += batch.rows
            self._observer.on_batch(batch)

    def _failed(self, error: Exception) -> None:
        self._running = None
        if isinstance(error, PipelineError):
            raise error
        if isinstance(error, ConnectionError | Py4JNetworkError):
            raise PipelineError("Spark's Java process has ended by itself: see its log, then start again") from error
        failure = explained(str(error))
        pause_s = self._pauses.next_s()
        if failure.is_final or (self._is_once and self._pauses.failures >= TRIES_ONCE):
            raise PipelineError(f"the query {self._name} failed: {failure.sentence}") from error
        self._next_start = time.monotonic() + pause_s
        self._observer.on_failure(self._name, failure.sentence, pause_s)


def _lag(progress: Mapping[str, Any]) -> int:
    lag = 0
    for source in progress["sources"]:
        ends, latest = source["endOffset"] or {}, source["latestOffset"] or {}
        lag += sum(max(at - ends.get(log, 0), 0) for log, at in latest.items() if isinstance(at, int))
    return lag
