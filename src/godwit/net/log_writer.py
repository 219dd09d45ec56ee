"""The thread that writes the log. One commit contains all appends that arrived during the commit before.

So a single message is on disk after one commit, and a busy broker makes large commits, without a timer in between. All
other writes to the file happen in this thread too, between two commits: retention in small steps, and checkpoints.

When the disk fails, all appends fail that were queued before the broker knows of the failure; otherwise the second of
two batches could be in the log without the first. Later appends are tried again, and succeed once the disk has room. A
damaged file is never written again. An append that fails for a reason of its own, not the disk's, is separated from the
ones in the same commit and fails alone; repeating it would fail everything after it.

The thread survives all errors until it is ended: without it, publishers would wait forever.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, Protocol, TypeAlias

from godwit.broker.effects import Append, Committed, Failed, Losing, Notice
from godwit.errors import LogDamagedError, StorageError
from godwit.limits import MIB
from godwit.metrics.distribution import BYTES, COUNTS, SECONDS, Distribution
from godwit.net.checkpoints import Checkpoints, CheckpointStore
from godwit.store.port import Change, Entry, Store

_logger = logging.getLogger(__name__)

Answer: TypeAlias = Committed | Failed | Losing | Notice

COMMIT_BYTES: Final = 16 * MIB
"""Maximum size of a commit, plus one append, so that the next commit does not wait for long."""
MAINTENANCE_S: Final = 1.0
"""How often retention checks the log, and after which time failed maintenance is repeated."""
RETENTION_S: Final = 0.1
"""Retention checks the log this long after a commit, so that it keeps up with a busy broker."""
RECOVERED_S: Final = 1.0
"""The log counts as writable again after this time without a failure."""


class WritableStore(Store, CheckpointStore, Protocol):
    """The interface of godwit.store.sqlite.SqliteStore that the writer uses."""

    def probe(self) -> None: ...
    def close(self) -> None: ...


class AppendWriter(Protocol):
    """The interface of LogWriter that the log of a broker uses, and that figures and metrics read."""

    lets_read: threading.Event
    has_reported_all: threading.Event
    commits: int
    commit_seconds: Distribution
    commit_bytes: Distribution
    commit_messages: Distribution
    failures: int
    deleted_messages: int
    busy_since: float | None

    @property
    def problem(self) -> str: ...
    def start(self) -> None: ...
    def append(self, append: PendingAppend) -> None: ...
    def probe(self) -> None: ...
    def end(self) -> None: ...
    def join(self, timeout_s: float | None = None) -> bool: ...


class RetentionStep(Protocol):
    """A step of retention: returns the deleted messages, or None if nothing was due."""

    def __call__(self, now_us: int) -> Sequence[Losing] | None: ...


class PendingAppend(NamedTuple):
    """An append in the queue of the writer."""

    effect: Append
    size_bytes: int
    era: int
    """How often appends had failed when it was queued."""


class NewRetention(NamedTuple):
    """Replaces the step of retention."""

    retention: RetentionStep | None


class _WriteProbe(NamedTuple):
    """Asks whether the log can be written again."""


_PROBE: Final = _WriteProbe()


class LogWriter:
    """Owns the store from its start until it has ended."""

    def __init__(
        self,
        store: WritableStore,
        answer: Callable[[list[Answer]], None],
        *,
        retention: RetentionStep | None = None,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        path: Path | None = None,
    ) -> None:
        """Make a writer that is not running yet.

        Args:
            store: The log's file.
            answer: Called in the writer's thread with the answers, in the order of the appends. It must not wait.
            retention: A step of retention.
            clock_us: Returns the time in microseconds since 1970.
            path: The log's file, which is removed from error texts for clients.
        """
        self._store = store
        self._answer = answer
        self._clock_us = clock_us
        self._path = path
        self._queue: SimpleQueue[PendingAppend | NewRetention | _WriteProbe | None] = SimpleQueue()
        """None ends the thread."""
        self._retention = retention
        self._retention_at = 0.0
        self._checkpoints = Checkpoints(store, self._on_checkpoint_failed)
        self.lets_read = self._checkpoints.lets_read
        """Cleared while the write-ahead log must be truncated, which needs a moment without readers."""
        self._is_ending = False
        self._failed_era = -1
        """All appends of this era and earlier ones fail."""
        self._failure = ""
        """Why they fail."""
        self._reported = ""
        """The last reported reason why appends fail; empty after the report that the log is writable again."""
        self._recovered_at: float | None = None
        """When to report that, after a successful append: a nearly full disk may fail again at once."""
        self._maintenance_problem = ""
        """The last reported problem of maintenance between commits."""
        self._refusal = ""
        """Why nothing is written any more."""
        self.commits = 0
        """The number of commits so far."""
        self.commit_seconds = Distribution(SECONDS)
        self.commit_bytes = Distribution(BYTES)
        self.commit_messages = Distribution(COUNTS)
        self.failures = 0
        """The number of commits that failed."""
        self.deleted_messages = 0
        """How many messages retention has deleted."""
        self.busy_since: float | None = None
        """When the present commit began; None between commits. Monotonic seconds."""
        self._is_probe_due = False
        self.has_reported_all = threading.Event()
        """Cleared while messages are being deleted that are not among the answers yet."""
        self.has_reported_all.set()
        self._thread = threading.Thread(target=self._run, name="godwit-log-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def append(self, append: PendingAppend) -> None:
        """Queue an append. It is answered by a Committed or a Failed, in the order of the calls."""
        self._queue.put(append)

    def change_retention(self, retention: RetentionStep | None) -> None:
        """Replace the step of retention."""
        self._queue.put(NewRetention(retention))

    def probe(self) -> None:
        """Try to write to the log if the last append failed: without appends, a recovery would not be noticed."""
        self._queue.put(_PROBE)

    @property
    def problem(self) -> str:
        """Why messages are refused at present; empty if they are not. May be read by any thread."""
        return self._refusal or (self._failure if self._reported else "")

    def end(self) -> None:
        """Commit all pending appends, truncate the write-ahead log, close the store and end. Does not wait for it."""
        self._queue.put(None)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the thread. Return whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_ending:
            group = self._next_group()
            if group:
                self._commit(group)
            try:
                self._maintain()
            except Exception as error:  # maintenance must not prevent the next commit
                self._retention_at = time.monotonic() + MAINTENANCE_S
                self._checkpoints.postpone(time.monotonic())
                self._report_problem(f"maintenance of the log failed, which is tried again: {text_of(error)}", error)
        self._finish()

    def _next_group(self) -> list[PendingAppend]:
        """Return all queued appends, or wait for the first. Return an empty list when maintenance is due."""
        try:
            item = self._queue.get(timeout=self._wait_s())
        except Empty:
            return []
        group: list[PendingAppend] = []
        group_bytes = 0
        while item is not None:
            if isinstance(item, NewRetention):
                self._retention, self._retention_at = item.retention, 0.0
            elif isinstance(item, _WriteProbe):
                self._is_probe_due = True
            else:
                group.append(item)
                group_bytes += item.size_bytes
            if group_bytes >= COMMIT_BYTES:
                return group
            try:
                item = self._queue.get_nowait()
            except Empty:
                return group
        self._is_ending = True
        return group

    def _wait_s(self) -> float | None:
        if self._refusal:
            return None
        now = time.monotonic()
        waits = self._checkpoints.waits(now)
        if self._recovered_at is not None:
            waits.append(self._recovered_at - now)
        if self._retention is not None:
            waits.append(self._retention_at - now)
        return max(0.0, min(waits)) if waits else None

    def _commit(self, group: list[PendingAppend]) -> None:
        if group[0].era <= self._failed_era or self._refusal:  # it was queued before the failure was known
            late = [append for append in group if append.era <= self._failed_era or self._refusal]
            self._answer([Failed(self._refusal or self._failure)] * len(late))
            group = group[len(late) :]
            if not group:
                return
        entries: list[Entry] = group[0].effect.entries
        changes: list[Change] = group[0].effect.changes
        self.busy_since = began = time.monotonic()
        try:
            if len(group) > 1:
                entries = [entry for append in group for entry in append.effect.entries]
                changes = [change for append in group for change in append.effect.changes]
            offset = self._store.append(entries, changes)
        except Exception as error:  # whatever it is, publishers must be notified, and the thread must continue
            self.busy_since = None
            self.failures += 1
            if len(group) > 1 and _is_lasting(error):
                for append in group:  # one of them is the cause; when it has failed, the ones after it fail too
                    self._commit([append])
            else:
                self._fail(group, error)
            return
        self.commits += 1
        now = time.monotonic()
        self.busy_since = None
        self._observe(group, entries, now - began)
        self._checkpoints.handle_commit(sum([append.size_bytes for append in group]), now)
        self._retention_at = min(self._retention_at, now + RETENTION_S)
        answers: list[Answer] = []
        for append in group:
            answers.append(Committed(offset))
            for entry in append.effect.entries:
                offset += entry.count
        self._answer(answers)
        if self._reported and entries and self._recovered_at is None:
            self._recovered_at = now + RECOVERED_S

    def _observe(self, group: list[PendingAppend], entries: list[Entry], took_s: float) -> None:
        self.commit_seconds.observe(took_s)
        self.commit_bytes.observe(sum([append.size_bytes for append in group]))
        self.commit_messages.observe(sum([entry.count for entry in entries]))

    def _fail(self, group: list[PendingAppend], error: Exception) -> None:
        self._recovered_at = None
        text = text_of(error)
        self._failure = self._text_for_clients(error)
        self._failed_era = group[-1].era
        self._refuse_after(error)
        answers: list[Answer] = [Failed(self._failure, is_lasting=_is_lasting(error))] * len(group)
        if text != self._reported:  # once, not for each refused message
            self._reported = text
            _logger.warning("messages are refused", exc_info=error)
            answers.append(Notice("warning", f"messages are refused: {text}"))
        self._answer(answers)

    # -- between commits ----------------------------------------------------------------------------------------------

    def _maintain(self) -> None:
        if self._refusal:
            return
        now = time.monotonic()
        if self._is_probe_due:
            self._is_probe_due = False
            self._try_to_write(now)
        self._checkpoints.reserve(now)
        if self._recovered_at is not None and now >= self._recovered_at:
            self._reported, self._recovered_at = "", None
            _logger.info("the log can be written again")
            self._answer([Notice("log", "the log can be written again: messages are taken as before")])
        if self._retention is not None and now >= self._retention_at:
            self._run_retention(self._retention, now)
        if self._checkpoints.run(now):
            self._maintenance_problem = ""

    def _try_to_write(self, now: float) -> None:
        """Find out whether a log that could not be written can be written now."""
        if self._reported and self._recovered_at is None:
            try:
                self._store.probe()
            except Exception as error:
                _logger.debug("the log still cannot be written", exc_info=error)
            else:
                self._recovered_at = now + RECOVERED_S

    def _run_retention(self, retention: RetentionStep, now: float) -> None:
        self.has_reported_all.clear()
        try:
            lost = retention(self._clock_us())
            for losing in lost or ():
                self.deleted_messages += sum([entry.count for _, entry in losing.entries])
            if lost:
                self._answer(list(lost))
        except Exception as error:
            self._report_problem(f"old messages could not be deleted: {text_of(error)}", error)
            lost = None
        finally:
            self.has_reported_all.set()  # the reader waits for it
        if lost is None:
            self._retention_at = now + MAINTENANCE_S
        else:
            self._checkpoints.handle_deletion()

    def _on_checkpoint_failed(self, error: Exception) -> None:
        self._report_problem(
            f"the log's file could not be brought up to date, which is tried again: {text_of(error)}", error
        )

    def _report_problem(self, text: str, error: Exception) -> None:
        self._refuse_after(error)
        if text != self._maintenance_problem:
            self._maintenance_problem = text
            _logger.warning("maintenance of the log failed", exc_info=error)
            self._answer([Notice("warning", text)])

    def _refuse_after(self, error: Exception) -> None:
        if isinstance(error, LogDamagedError):
            self._refusal = self._text_for_clients(error)

    def _text_for_clients(self, error: Exception) -> str:
        """Return the error without details for the operator: the path of the file, and unexpected exceptions."""
        if not isinstance(error, StorageError):
            return "the broker's log failed unexpectedly: the broker's event lines have the details"
        return str(error) if self._path is None else str(error).replace(f"the log {self._path}", "the broker's log")

    def _finish(self) -> None:
        try:
            self.lets_read.set()
            if not self._refusal:
                self._store.checkpoint(truncate=True)
        except Exception as error:
            self._report_problem(f"the write-ahead log was not merged into the log: {text_of(error)}", error)
        try:
            self._store.close()
        except Exception as error:
            self._report_problem(f"the log could not be closed: {text_of(error)}", error)


def _is_lasting(error: Exception) -> bool:
    """Return whether the appended data is the cause, and not the disk or the machine."""
    return not isinstance(error, (StorageError, OSError, MemoryError))


def text_of(error: Exception) -> str:
    """Return the error as a text for the operator."""
    if isinstance(error, StorageError):
        return str(error)
    return f"the log failed unexpectedly ({type(error).__name__}: {error}): restart the broker"
