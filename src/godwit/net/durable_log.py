"""The log of a running broker on disk: two threads wait for the disk, so that the event loop never does.

    loop      append, read, locate  --->  writer (godwit.net.log_writer), reader
    loop      work                  <---  their answers, in a queue; `wake` makes the loop call `work`

The reader has its own database connection, so that catching up and committing do not wait for each other. It serves
clients in turn, however much each of them requests, and skips requests of clients that are gone.

`DurableLog` opens the folder with its lock, the reset key and the file, and starts these threads (`ThreadedLog`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from godwit.broker.broker import Broker
from godwit.broker.effects import Append, Committed, Failed, Found, Locate, Located, Losing, Notice, Read
from godwit.errors import LogInUseError
from godwit.net.log_writer import (
    COMMIT_BYTES,
    Answer,
    AppendWriter,
    LogWriter,
    PendingAppend,
    RetentionStep,
    text_of,
)
from godwit.store.connection import translate_errors
from godwit.store.folder import DataFolder
from godwit.store.port import Slice
from godwit.store.reader import LogReader
from godwit.store.retention import Retention, RetentionRule
from godwit.store.sqlite import SqliteStore
from godwit.wire.changes import StoredState
from godwit.wire.epochs import Epoch

READS_A_TURN: Final = 4
"""Maximum of read results that one turn delivers, so that live messages are not held up by subscriptions behind."""
RETRY_S: Final = 1.0
"""Time until a failed read is repeated, while its subscription waits."""
READ_PAUSE_S: Final = 1.0
"""Maximum time that a read waits for the write-ahead log to be truncated. That needs a moment without readers, which
several busy readers would never leave."""
LOG_ID_BYTES: Final = 16
RESET_KEY_BYTES: Final = 32
MAX_FREED_BYTES: Final = 2 * COMMIT_BYTES
"""Maximum that retention deletes between two commits: the next commit waits for it."""
LOCK_TRIES: Final = 3
LOCK_PAUSE_S: Final = 0.02
_POLL_S: Final = 0.002

Item = TypeVar("Item")
Question: TypeAlias = Read | Locate
_logger = logging.getLogger(__name__)


class ReadableLog(Protocol):
    """The interface of godwit.store.reader.LogReader that the reader thread uses."""

    def read(self, offset: int, max_bytes: int) -> Slice: ...
    def offset_at(self, time_us: int) -> int: ...
    def close(self) -> None: ...


class StoredLog(Protocol):
    """A log as its broker finds it."""

    @property
    def log_id(self) -> bytes: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def epochs(self) -> Sequence[Epoch]: ...
    def state(self) -> StoredState: ...
    def close(self) -> None: ...


class ThreadedLog:
    """A log in two threads, see godwit.server.log. It owns the store and the reader, and closes them."""

    _broker: Broker
    keeps_state: Final = True

    def __init__(
        self,
        store: StoredLog,
        reader: ReadableLog,
        new_writer: Callable[[Callable[[list[Answer]], None]], AppendWriter],
        *,
        wake: Callable[[], None],
        on_notice: Callable[[Notice], None],
    ) -> None:
        """Make a log that is not running: `begin` starts the threads.

        Args:
            store: The log.
            reader: Reads the log.
            new_writer: Makes the writer, which passes its answers to the argument, in its thread. It closes the store.
            wake: Called in another thread; it must make the event loop call `work` soon.
            on_notice: Called by `work` with an event line.
        """
        self.log_id = store.log_id
        self.first_offset = store.first_offset
        self.next_offset = store.next_offset
        self.epochs = store.epochs
        self._store = store
        self._wake = wake
        self._notify = on_notice
        self._is_woken = False
        self._answers: deque[Answer] = deque()
        self._found: deque[Found | Located] = deque()
        self._unanswered: deque[int] = deque()
        """The sizes of the appends that are not answered yet."""
        self._held_bytes = 0
        self._era = 0
        """How often appends have failed."""
        self._known_failures = 0
        """Number of failures that the writer will still report, and that were passed to the broker already."""
        self._has_begun = False
        self.due_us: int | None = None
        """0 if the last call of `work` has left results for the next turn. New ones wake the loop."""
        self.writer = new_writer(self._on_answers)
        self._reader = _ReaderThread(self, reader)

    # -- called by the server -----------------------------------------------------------------------------------------

    def state(self) -> StoredState:
        return self._store.state()

    def begin(self, broker: Broker) -> None:
        self._broker = broker
        self._has_begun = True
        self.writer.start()
        self._reader.start()

    def append(self, effect: Append, now_us: int) -> None:
        size_bytes = 0
        for entry in effect.entries:
            size_bytes += len(entry.rest)
        self._unanswered.append(size_bytes)
        self._held_bytes += size_bytes
        self.writer.append(PendingAppend(effect, size_bytes, self._era))

    def read(self, effect: Read) -> None:
        self._reader.ask(effect)

    def locate(self, effect: Locate, now_us: int) -> None:
        self._reader.ask(effect)

    def work(self, now_us: int) -> None:
        self._is_woken = False  # before the queues are read, so that later answers wake the loop again
        # Deletions that affect these results are among the answers, which are handled first. Messages that were deleted
        # since count as lost although a result still contains them: a reported gap may be too large, never too small.
        found = min(len(self._found), READS_A_TURN)
        answers, broker = self._answers, self._broker
        while answers:
            answer = answers.popleft()
            if isinstance(answer, Committed):
                self._held_bytes -= self._unanswered.popleft()
                broker.handle(answer, now_us)
            elif isinstance(answer, Failed):
                self._on_failed(answer, now_us)
            elif isinstance(answer, Notice):
                self._notify(answer)
            else:
                broker.handle(answer, now_us)
        for _ in range(found):
            broker.handle(self._found.popleft(), now_us)
        self.due_us = 0 if self._found else None

    @property
    def is_idle(self) -> bool:
        return not (self._is_woken or self._answers or self._found)  # `work` lets later answers wake the loop

    def _on_failed(self, answer: Failed, now_us: int) -> None:
        """Fail all appends given so far: the writer does not try them, see godwit.net.log_writer."""
        if self._known_failures:
            self._known_failures -= 1
            return
        self._era += 1
        failed = len(self._unanswered)
        self._known_failures = failed - 1
        self._unanswered.clear()
        self._held_bytes = 0
        self._broker.handle(answer, now_us)
        for _ in range(failed - 1):
            self._broker.handle(Failed(answer.text), now_us)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def reads_waiting(self) -> int:
        """The number of reads and lookups that the reader has not begun."""
        return self._reader.waiting

    # -- the end ------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Commit all pending appends and close everything, without waiting for that."""
        if self._has_begun:
            self._reader.end()
        else:
            self._reader.close()
            self._store.close()

    @property
    def has_ended(self) -> bool:
        return self.join(0)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the threads to end. Return whether they have."""
        return not self._has_begun or (self._reader.join(timeout_s) and self.writer.join(timeout_s))

    # -- in the threads -----------------------------------------------------------------------------------------------

    def _on_answers(self, answers: list[Answer]) -> None:
        self._answers.extend(answers)
        self._wake_once()

    def on_found(self, answer: Found | Located) -> None:
        """Deliver a result of the reader's thread."""
        self._found.append(answer)
        self._wake_once()

    def on_notice(self, notice: Notice) -> None:
        """Deliver an event line of the reader's thread."""
        self._on_answers([notice])

    def on_reader_ended(self) -> None:
        """End the writer after the reader: the last connection that closes merges the write-ahead log into the file."""
        self.writer.end()

    def _wake_once(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._wake()


class _ReaderThread:
    """Answer reads and lookups one after the other. Failed ones are repeated until the disk works again."""

    def __init__(self, log: ThreadedLog, reader: ReadableLog) -> None:
        self._log = log
        self._reader = reader
        self._questions: FairQueue[Question] = FairQueue()
        self._ending = threading.Event()
        self._is_failing = False
        self._has_reported_damage = False
        self._thread = threading.Thread(target=self._run, name="godwit-log-reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self, question: Question) -> None:
        asker = question.peer
        if asker is not None:
            self._questions.put(asker, question)

    @property
    def waiting(self) -> int:
        return len(self._questions)

    def end(self) -> None:
        self._ending.set()
        self._questions.end()

    def join(self, timeout_s: float | None) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        self._reader.close()

    def _run(self) -> None:
        try:
            while (question := self._questions.get()) is not None:
                if question.peer is not None:
                    self._try(question)
            self.close()
        except Exception as error:  # the writer must be ended in any case
            _logger.exception("the log's reader has ended")
            self._log.on_notice(Notice("warning", f"the log's reader has ended: {text_of(error)}"))
        finally:
            self._log.on_reader_ended()

    def _try(self, question: Question) -> None:
        try:
            self._log.writer.lets_read.wait(READ_PAUSE_S)
            answer = self._look_up(question)
            self._log.writer.has_reported_all.wait()  # deletions that affect the result are reported before it
            self._log.on_found(answer)
        except Exception as error:  # whatever it is, the subscriptions must resume once it is over
            if not self._is_failing:
                self._is_failing = True
                _logger.warning("the log cannot be read", exc_info=error)
                text = f"the log cannot be read, which is tried again: {text_of(error)}"
                self._log.on_notice(Notice("warning", text))
            self.ask(question)
            self._ending.wait(RETRY_S)
        else:
            if self._is_failing:
                self._is_failing = False
                self._log.on_notice(Notice("log", "the log can be read again"))

    def _look_up(self, question: Question) -> Found | Located:
        if isinstance(question, Read):
            found = self._reader.read(question.offset, question.max_bytes)
            if found.damaged and not self._has_reported_damage:
                self._has_reported_damage = True  # once: `verify` finds all damage
                begin, end = found.damaged[0]
                text = (
                    f"the log is damaged: offsets {begin} to {end - 1} cannot be read, and subscribers are notified. "
                )
                self._log.on_notice(Notice("warning", text + "Run `godwit log verify` to find all damage"))
            return Found(question, found.entries, found.next_offset, found.damaged)
        return Located(question, self._reader.offset_at(question.time_us))


class BrokerLog(Protocol):
    """The log of a running broker in a data folder: DurableLog, or that of the active node of a cluster."""

    folder: DataFolder
    log: ThreadedLog
    reset_key: bytes
    last_received_us: int
    """When its newest message arrived. The time of the log never goes backwards."""
    findings: list[str]
    """Problems of the log that were found at the start, one sentence each."""
    hold_from: int | None
    """Retention deletes nothing from this offset on; None: no limit."""

    def change_rules(self, rules: Sequence[RetentionRule]) -> None:
        """Replace the rules of retention."""

    async def close(self) -> None:
        """Commit all pending appends, and end the use of the log."""


class DurableLog:
    """The log of a broker that is alone, in a data folder. It is open from the moment it is made."""

    def __init__(
        self,
        path: Path,
        rules: Sequence[RetentionRule],
        *,
        now_us: int,
        wake: Callable[[], None],
        on_notice: Callable[[Notice], None],
        hold_from: int | None = None,
    ) -> None:
        """Open the folder, its log and its reset key. After an error nothing is left open.

        Args:
            path: The data folder.
            rules: Rules of retention.
            now_us: The time in microseconds since 1970.
            wake: Called in another thread; it must make the event loop call `log.work` soon.
            on_notice: Called with an event line.
            hold_from: See the attribute. Retention begins at once, so the first value is needed here.

        Raises:
            StorageError: The folder or the log cannot be used.
        """
        self.folder = DataFolder(path)
        open_folder(self.folder)
        try:
            self.reset_key = self.folder.reset_key(os.urandom(RESET_KEY_BYTES))
            log_path = self.folder.log_path
            self._store = SqliteStore.open(log_path, new_log_id=os.urandom(LOG_ID_BYTES), now_us=now_us)
            try:
                reader = LogReader.open(log_path)
            except BaseException:
                self._store.close()
                raise
            self.folder.mark_log()
        except BaseException:
            self.folder.close()
            raise
        self.findings = self._store.findings
        """Problems of the log that were found at the start, one sentence each."""
        for finding in self.findings:
            _logger.warning("recovery of the log in %s: %s", path, finding)
        self.last_received_us = self._store.last_received_us
        """When its newest message arrived. The time of the log never goes backwards."""
        self._clock = LogClock(self._store)
        self.hold_from = hold_from
        """Retention deletes nothing from this offset on; None: no limit. It is read in the writer's thread."""
        self._writer: LogWriter

        def new_writer(answer: Callable[[list[Answer]], None]) -> LogWriter:
            retention = self._retention_step(rules)
            self._writer = LogWriter(self._store, answer, retention=retention, path=log_path)
            return self._writer

        self.log = ThreadedLog(self._store, reader, new_writer, wake=wake, on_notice=on_notice)

    def __str__(self) -> str:
        """Return a line with the offsets of the log at the start."""
        first_offset, next_offset = self.log.first_offset, self.log.next_offset
        if first_offset == next_offset:
            return f"log in {self.folder.path}: no messages, the next one has offset {next_offset}"
        return f"log in {self.folder.path}: offsets {first_offset} to {next_offset - 1}"

    def change_rules(self, rules: Sequence[RetentionRule]) -> None:
        """Replace the rules of retention."""
        self._writer.change_retention(self._retention_step(rules))

    async def close(self) -> None:
        """Commit all pending appends, close the log and release the folder."""
        self.log.end()
        # Polled instead of joined in a thread: a second Ctrl-C must end the process even if the disk hangs.
        while not self.log.has_ended:
            await asyncio.sleep(_POLL_S)
        self.folder.close()

    def _retention_step(self, rules: Sequence[RetentionRule]) -> RetentionStep | None:
        return _RetentionSteps(self._store, rules, self._clock, lambda: self.hold_from) if rules else None


def open_folder(folder: DataFolder) -> None:
    """Open the folder, with a few retries: commands that check whether it is in use hold its lock for a moment."""
    for _ in range(LOCK_TRIES - 1):
        try:
            folder.open()
        except LogInUseError:
            time.sleep(LOCK_PAUSE_S)
        else:
            return
    folder.open()


class LogClock:
    """The time of the log, by which the ages of messages are measured: it always advances, and never goes backwards.

    If the system's clock was ahead once, the messages received since have times from there on. By the corrected system
    clock they would not age until that clock has reached those times.
    """

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._us = 0
        self._at = time.monotonic()

    def at(self, wall_us: int) -> int:
        """Return the time of the log at a time of the system's clock."""
        now = time.monotonic()
        self._us = max(wall_us, self._store.last_received_us, self._us + int((now - self._at) * 1e6))
        self._at = now
        return self._us


class _RetentionSteps:
    """Retention in the writer's thread. The Retention is created there too, because it reads the file."""

    def __init__(
        self,
        store: SqliteStore,
        rules: Sequence[RetentionRule],
        clock: LogClock,
        hold: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._store = store
        self._rules = rules
        self._clock = clock
        self._hold = hold
        self._retention: Retention | None = None
        self._settled_bytes = 0
        """The size of the file's content when last nothing was due, or less."""

    def __call__(self, now_us: int) -> list[Losing] | None:
        """Delete as much as was added since the last call, if that much is due, so that the log keeps its limits.

        Return the deleted messages, or None if nothing was due.
        """
        if self._retention is None:
            self._retention = Retention(self._store, self._rules, self._hold)
            self._settled_bytes = self._used_bytes()
        now_us = self._clock.at(now_us)
        losing: list[Losing] = []
        begun_bytes = used_bytes = self._used_bytes()
        while True:
            trimmed = self._retention.step(now_us)
            if trimmed is None:
                self._settled_bytes = used_bytes
                return losing or None
            losing += [Losing(part.entries, part.floor, part.pattern) for part in trimmed]
            before_bytes, used_bytes = used_bytes, self._used_bytes()
            has_freed_enough = used_bytes <= self._settled_bytes or begun_bytes - used_bytes >= MAX_FREED_BYTES
            if has_freed_enough or used_bytes >= before_bytes:
                self._settled_bytes = min(self._settled_bytes, used_bytes)
                return losing

    def _used_bytes(self) -> int:
        connection = self._store.connection
        with translate_errors(self._store.path, "read"):
            pages = int(connection.pragma("page_count")) - int(connection.pragma("freelist_count"))
            return pages * int(connection.pragma("page_size"))


class FairQueue(Generic[Item]):
    """A queue between threads that serves its owners in turn, one item each. All methods may be called by any thread.

    An owner with many items delays only itself: an item of another owner waits for one of them, not for all.
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[Hashable, deque[Item]] = OrderedDict()
        """The non-empty queues by owner; the next one to serve first."""
        self._changed = threading.Condition()
        self._has_ended = False

    def __len__(self) -> int:
        with self._changed:
            return sum([len(queue) for queue in self._queues.values()])

    def put(self, owner: Hashable, item: Item) -> None:
        with self._changed:
            self._queues.setdefault(owner, deque()).append(item)
            self._changed.notify()

    def get(self) -> Item | None:
        """Wait for the next item. Return None once the queue has ended, even if it is not empty."""
        with self._changed:
            while not self._has_ended:
                if self._queues:
                    owner, queue = self._queues.popitem(last=False)
                    item = queue.popleft()
                    if queue:
                        self._queues[owner] = queue
                    return item
                self._changed.wait()
            return None

    def end(self) -> None:
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
