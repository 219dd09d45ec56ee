"""The thread that writes the log: it commits everything that waited while the last commit ran.

So a lone message is on disk after one commit, and a busy broker has large ones, without a timer in between. What else
writes to the file happens here too, between two commits: retention in its small steps, and checkpoints.

What goes wrong with the disk is the answer to everything that was given before the broker hears of it: else the second
of two batches could be in the log without the first. What comes afterwards is tried again, and works once there is
room. Only a file that is damaged is not written to again. What cannot be written whatever the disk does is found among
what it was joined with, and fails alone: to try it again would fail everything that comes after it.

The thread goes on whatever happens, until it is told to end: without it, publishers would wait for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, Protocol, TypeAlias

from godwit.broker.effects import Append, Committed, Failed, Losing, Notice
from godwit.errors import LogDamagedError, StorageError
from godwit.limits import KIB, MIB
from godwit.store.port import Change, Entry, Store

Answer: TypeAlias = Committed | Failed | Losing | Notice

COMMIT_BYTES: Final = 16 * MIB
"""No more than this and one append go into a commit: the next one should not have to wait for long."""
CHECKPOINT_BYTES: Final = 16 * MIB
"""After so much a checkpoint copies the write-ahead log into the file, and what follows is written over it. It holds
the next commit up for 30 to 100 ms; larger ones are hardly cheaper."""
COMMIT_PAGES_BYTES: Final = 4 * 16 * KIB
"""What a commit writes beside the messages, about: the pages that lead to them."""
KEPT_BYTES: Final = 64 * MIB
"""So long the write-ahead log may stay when there is nothing to do. It is not cut off each time: to write over what is
there takes a fraction of the time that a file takes which grows, because the system then writes down its length too."""
TRUNCATE_BYTES: Final = 256 * MIB
"""Longer it gets only while readers are in the way. Then it is cut off as soon as they let it be."""
IDLE_S: Final = 1.0
"""After so long without an append there is time for a checkpoint."""
CHORES_S: Final = 1.0
"""How often retention has a look, and what failed is tried again."""
RETAIN_S: Final = 0.1
"""So soon retention has a look after a commit: it must keep up with a broker that is busy."""
WITNESS_S: Final = 1.0
"""How often the witness is synced while there are commits. When there are none, a checkpoint follows, which does it."""
WELL_S: Final = 1.0
"""So long nothing must have failed before the trouble counts as over."""
RETRY_S: Final = 0.05
"""When it is tried again to cut off a write-ahead log that is too long."""


class WritableStore(Store, Protocol):
    """What the writer needs of godwit.store.sqlite.SqliteStore."""

    @property
    def wal_bytes(self) -> int: ...
    def checkpoint(self, *, truncate: bool) -> None: ...
    def sync_witness(self) -> None: ...
    def close(self) -> None: ...


class Chore(Protocol):
    """A step of retention: what left the log, or None if there is nothing to do."""

    def __call__(self, now_us: int) -> Sequence[Losing] | None: ...


class Job(NamedTuple):
    """An append, and how often appends had failed when it was given."""

    effect: Append
    size_bytes: int
    era: int


class NewRetention(NamedTuple):
    """What is to be done from now on."""

    retain: Chore | None


class LogWriter:
    """Owns the store from its start until it has ended. `answer` is called in its thread, and must not wait."""

    def __init__(
        self,
        store: WritableStore,
        answer: Callable[[list[Answer]], None],
        *,
        retain: Chore | None = None,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        path: Path | None = None,
    ) -> None:
        """`path`: the log's file, which clients are not told of."""
        self._store = store
        self._answer = answer
        self._clock_us = clock_us
        self._path = path
        self._queue: SimpleQueue[Job | NewRetention | None] = SimpleQueue()
        """None: there are no more."""
        self._retain = retain
        self._retain_at = 0.0
        self._idle_at = time.monotonic() + IDLE_S
        """When there will have been no append for long."""
        self._checkpoint_at = 0.0
        """Not before: the last one failed."""
        self._witness_at = 0.0
        """When the witness is synced next."""
        self._wal_bytes = 0
        """How long the write-ahead log was when it was last looked at."""
        self.lets_read = threading.Event()
        """Unless the write-ahead log is so long that it must be cut off, for which nobody may read for a moment."""
        self._look()
        self._written_bytes = self._wal_bytes
        """Since the last checkpoint, about."""
        self._is_ending = False
        self._failed_era = -1
        """All appends of this one, and of those before it, fail."""
        self._failure = ""
        """Why they do."""
        self._told = ""
        """What was last told of it; nothing once it was told that messages are taken again."""
        self._well_at: float | None = None
        """When that may be told, after messages were taken: where little fits, more may not."""
        self._trouble = ""
        """What was last told of what is done between them."""
        self._refusal = ""
        """Why nothing is written any more."""
        self.commits = 0
        self.has_told_all = threading.Event()
        """Unless something was deleted, or is about to be, that is not among the answers yet."""
        self.has_told_all.set()
        self._thread = threading.Thread(target=self._run, name="godwit-log-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def append(self, job: Job) -> None:
        """Is answered by a Committed or a Failed, in the order of the calls."""
        self._queue.put(job)

    def change_retention(self, retain: Chore | None) -> None:
        """From the next step on."""
        self._queue.put(NewRetention(retain))

    def end(self) -> None:
        """Has it commit what waits, empty the write-ahead log, close the store and end. Does not wait for it."""
        self._queue.put(None)

    def join(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_ending:
            group = self._take()
            if group:
                self._commit(group)
            try:
                self._do_chores()
            except Exception as error:  # nothing of it may keep the next commit from being taken
                self._retain_at = self._checkpoint_at = time.monotonic() + CHORES_S
                self._note(f"the log could not be looked after, which is tried again: {text_of(error)}", error)
        self._finish()

    def _take(self) -> list[Job]:
        """Everything that waits; if nothing does, what comes first, or nothing when it is time for something else."""
        try:
            job = self._queue.get(timeout=self._patience_s())
        except Empty:
            return []
        group: list[Job] = []
        group_bytes = 0
        while job is not None:
            if isinstance(job, NewRetention):
                self._retain, self._retain_at = job.retain, 0.0
            else:
                group.append(job)
                group_bytes += job.size_bytes
            if group_bytes >= COMMIT_BYTES:
                return group
            try:
                job = self._queue.get_nowait()
            except Empty:
                return group
        self._is_ending = True
        return group

    def _patience_s(self) -> float | None:
        if self._refusal:
            return None
        waits = []
        now = time.monotonic()
        if self._well_at is not None:
            waits.append(self._well_at - now)
        if self._retain is not None:
            waits.append(self._retain_at - now)
        if self._wal_bytes > TRUNCATE_BYTES:
            waits.append(self._checkpoint_at - now)
        elif self._written_bytes or self._wal_bytes > KEPT_BYTES:
            waits.append(max(self._idle_at, self._checkpoint_at) - now)
        return max(0.0, min(waits)) if waits else None

    def _commit(self, group: list[Job]) -> None:
        if group[0].era <= self._failed_era or self._refusal:  # it was given before this was known
            late = [job for job in group if job.era <= self._failed_era or self._refusal]
            self._answer([Failed(self._refusal or self._failure)] * len(late))
            group = group[len(late) :]
            if not group:
                return
        entries: list[Entry] = group[0].effect.entries
        changes: list[Change] = group[0].effect.changes
        try:
            if len(group) > 1:
                entries = [entry for job in group for entry in job.effect.entries]
                changes = [change for job in group for change in job.effect.changes]
            offset = self._store.append(entries, changes)
        except Exception as error:  # whatever it is, publishers must hear of it, and the thread must go on
            if len(group) > 1 and _is_lasting(error):
                for job in group:  # one of them is to blame; when it has failed, those behind it fail with it
                    self._commit([job])
            else:
                self._fail(group, error)
            return
        self.commits += 1
        self._written_bytes += sum([job.size_bytes for job in group]) + COMMIT_PAGES_BYTES
        now = time.monotonic()
        self._idle_at = now + IDLE_S
        self._retain_at = min(self._retain_at, now + RETAIN_S)
        answers: list[Answer] = []
        for job in group:
            answers.append(Committed(offset))
            offset += sum([entry.count for entry in job.effect.entries])
        self._answer(answers)
        if self._told and entries and self._well_at is None:
            self._well_at = now + WELL_S

    def _fail(self, group: list[Job], error: Exception) -> None:
        self._well_at = None
        text = text_of(error)
        self._failure = self._text_for_clients(error)
        self._failed_era = group[-1].era
        self._refuse_after(error)
        answers: list[Answer] = [Failed(self._failure, is_lasting=_is_lasting(error))] * len(group)
        if text != self._told:  # told once, not for each message that meets it
            self._told = text
            answers.append(Notice("warning", f"messages are refused: {text}"))
        self._answer(answers)

    # -- between commits ----------------------------------------------------------------------------------------------

    def _do_chores(self) -> None:
        if self._refusal:
            return
        now = time.monotonic()
        if self._well_at is not None and now >= self._well_at:
            self._told, self._well_at = "", None
            self._answer([Notice("log", "the log can be written again: messages are taken as before")])
        if self._retain is not None and now >= self._retain_at:
            self._step(self._retain, now)
        if now >= self._witness_at:
            self._witness_at = now + WITNESS_S
            self._store.sync_witness()
        if now < self._checkpoint_at:
            return
        is_idle = now >= self._idle_at
        self._look()
        if self._wal_bytes > (KEPT_BYTES if is_idle else TRUNCATE_BYTES):
            self._checkpoint(truncate=True)
        elif self._written_bytes >= (1 if is_idle else CHECKPOINT_BYTES):
            self._checkpoint(truncate=False)

    def _step(self, retain: Chore, now: float) -> None:
        self.has_told_all.clear()
        try:
            lost = retain(self._clock_us())
            if lost:
                self._answer(list(lost))
        except Exception as error:  # as for an append: what is wrong is told, and tried again
            self._note(f"old messages could not be deleted: {text_of(error)}", error)
            lost = None
        finally:
            self.has_told_all.set()  # the reader waits for it
        if lost is None:
            self._retain_at = now + CHORES_S
        else:
            self._written_bytes += COMMIT_PAGES_BYTES

    def _checkpoint(self, *, truncate: bool) -> None:
        try:
            self._store.checkpoint(truncate=truncate)
        except Exception as error:
            self._checkpoint_at = time.monotonic() + CHORES_S
            self._note(f"the log's file could not be brought up to date, which is tried again: {text_of(error)}", error)
            return
        self._trouble = ""
        self._written_bytes = 0
        self._look()
        if truncate and self._wal_bytes:  # a reader was in the way
            self._checkpoint_at = time.monotonic() + (RETRY_S if self._wal_bytes > TRUNCATE_BYTES else CHORES_S)

    def _look(self) -> None:
        self._wal_bytes = self._store.wal_bytes
        if self._wal_bytes > TRUNCATE_BYTES:
            self.lets_read.clear()
        else:
            self.lets_read.set()

    def _note(self, text: str, error: Exception) -> None:
        self._refuse_after(error)
        if text != self._trouble:
            self._trouble = text
            self._answer([Notice("warning", text)])

    def _refuse_after(self, error: Exception) -> None:
        if isinstance(error, LogDamagedError):
            self._refusal = self._text_for_clients(error)

    def _text_for_clients(self, error: Exception) -> str:
        """Without what only concerns who runs the broker: where the file lies, and what went wrong inside."""
        if not isinstance(error, StorageError):
            return "the broker's log failed in a way that was not foreseen: whoever runs the broker was told more"
        return str(error) if self._path is None else str(error).replace(f"the log {self._path}", "the broker's log")

    def _finish(self) -> None:
        try:
            self.lets_read.set()
            if not self._refusal:
                self._store.checkpoint(truncate=True)
        except Exception as error:
            self._note(f"the log stays as it is: {text_of(error)}", error)
        try:
            self._store.close()
        except Exception as error:
            self._note(f"the log could not be closed: {text_of(error)}", error)


def _is_lasting(error: Exception) -> bool:
    """Whether it is what was to be written that is wrong, and not the disk or the machine."""
    return not isinstance(error, (StorageError, OSError, MemoryError))


def text_of(error: Exception) -> str:
    """For those who run the broker."""
    if isinstance(error, StorageError):
        return str(error)
    return f"the log failed in a way that was not foreseen ({type(error).__name__}: {error}): restart the broker"
