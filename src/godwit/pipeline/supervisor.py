"""Supervises the queries of a run: reports progress, restarts them after a failure, and decides when to give up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Final, Protocol

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from godwit.pipeline.errors import PipelineError, explained

MAX_FAILURES_ONCE: Final = 5
"""Consecutive failures after which a run with `is_once` ends."""
FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 60.0
POLL_S: Final = 0.1
STOP_TIMEOUT_S: Final = 4.0
SMALL_STEP: Final = 5_000
"""Offsets of a step that the driver processes itself: starting a job of Spark would take longer."""


@dataclass(frozen=True)
class BatchProgress:
    """A completed micro-batch, or a completed step of gold."""

    query: str
    number: int
    rows: int
    took_s: float
    lag: int
    """Messages beyond it in the logs; for gold, in bronze and silver."""
    tables: Mapping[str, int] = field(default_factory=dict)
    """Rows that it added, by table; of the query `tables` only."""


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


@dataclass(frozen=True)
class StepResult:
    """The result of one step of a StepQuery."""

    messages: int
    """Messages that were processed; 0 if there was nothing to do."""
    behind: int
    """Messages that were there when the step began and are still to be processed."""
    tables: Mapping[str, int] = field(default_factory=dict)
    """Rows that were added, by table."""


class StepQuery:
    """A query that runs steps in a thread of its own until it is stopped, or until all of its input is processed.

    It implements RunningQuery.
    """

    def __init__(
        self,
        name: str,
        spark: SparkSession,
        step: Callable[[], StepResult],
        is_input_complete: Callable[[], bool],
        *,
        interval_s: float = 0.0,
        pause_s: float = 0.0,
    ) -> None:
        """`is_input_complete` returns whether the input has everything that it will ever get.

        A step begins `interval_s` after the last one began, and at least `pause_s` after that one ended. If the last
        one left messages, it begins at once.
        """
        self._name = name
        self._spark = spark
        self._step = step
        self._is_input_complete = is_input_complete
        self._interval_s = interval_s
        self._pause_s = pause_s
        self._tag = f"godwit-{name}"
        self._done: list[BatchProgress] = []
        self._steps = 0
        self._error: Exception | None = None
        self._stop = Event()
        # Not a daemon: Python must not exit while a table is being written.
        self._thread: Thread = InheritableThread(target=self._run, name=self._tag, daemon=False)
        self._thread.start()

    @property
    def is_active(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def error(self) -> Exception | None:
        """Return the error that ended the thread, if any."""
        return self._error

    def next_batches(self) -> list[BatchProgress]:
        """Return the steps that were completed since the last call."""
        found, self._done = self._done, []
        return found

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Cancel the current step, and wait for the thread to end, up to `timeout_s`."""
        self._stop.set()
        ends_at = time.monotonic() + timeout_s
        while self._thread.is_alive() and time.monotonic() < ends_at:
            with suppress(Exception):  # the JVM may have exited, which ends the thread as well
                self._spark.sparkContext.cancelJobsWithTag(self._tag)
            self._thread.join(POLL_S)

    def _run(self) -> None:
        try:
            self._spark.sparkContext.addJobTag(self._tag)
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._tag)
            while not self._stop.is_set():
                is_last = self._is_input_complete()
                began_at = time.monotonic()
                result = self._step()
                ended_at = time.monotonic()
                if result.messages:
                    took_s = ended_at - began_at
                    self._done.append(
                        BatchProgress(self._name, self._steps, result.messages, took_s, result.behind, result.tables)
                    )
                    self._steps += 1
                if is_last and not result.behind:
                    return
                if not result.behind:
                    self._wait_until(max(began_at + self._interval_s, ended_at + self._pause_s))
                elif not result.messages:  # its input is not there now
                    self._stop.wait(POLL_S)
        except Exception as error:  # of Spark, py4j or Delta: the supervisor decides whether to retry
            self._error = error

    def _wait_until(self, next_at: float) -> None:
        """Wait for the next step, or until the input is complete: its last rows may have come during the step."""
        while (wait_s := next_at - time.monotonic()) > 0 and not self._is_input_complete():
            if self._stop.wait(min(POLL_S, wait_s)):
                return


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
        failure = explained(_text_of(error))
        pause_s = float(min(FIRST_PAUSE_S * 2**self._failures, MAX_PAUSE_S))
        self._failures += 1
        if failure.is_final or (self._is_once and self._failures >= MAX_FAILURES_ONCE):
            raise PipelineError(f"the query {self._name} failed: {failure.sentence}") from error
        self._next_start = time.monotonic() + pause_s
        self._listener.on_failure(self._name, failure.sentence, pause_s)


def _text_of(error: Exception) -> str:
    """Return the text of an error with the name of its type, as a traceback has it: errors of steps have no other."""
    kind = type(error)
    is_of_spark = kind.__module__.startswith(("pyspark.", "py4j."))
    return str(error) if is_of_spark else f"{kind.__module__}.{kind.__qualname__}: {error}"
