"""Stores whose disk does what a test wants, and the other ends of the threads that use them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from godwit.broker.broker import Broker
from godwit.broker.effects import Append, BrokerEvent, Locate, Read
from godwit.store.memory import MemoryStore
from godwit.store.port import Change, Entry, Slice

PATIENCE_S = 120.0


def entry(count: int = 1, size_bytes: int = 4, topic: str = "news") -> Entry:
    return Entry(
        topic=topic, publisher="alice", flags=5, published_us=1, received_us=2, count=count, rest=bytes(size_bytes)
    )


def append(*counts: int) -> Append:
    """Return an append whose entries have these numbers of messages."""
    return Append([entry(count) for count in counts])


class Asker:
    """A client, as far as a log looks at it."""

    def __init__(self) -> None:
        self.is_open = True

    def read(self, offset: int, max_bytes: int = 100_000) -> Read:
        """For a subscription of its own, which waits for the answer."""
        subscription: Any = _Subscription(self)
        question = subscription.reading = Read(subscription, offset, max_bytes)
        return question

    def locate(self, time_us: int) -> Locate:
        lookup: Any = SimpleNamespace(peer=self)
        return Locate(lookup, time_us)


class _Subscription:
    def __init__(self, peer: Asker) -> None:
        self.peer: Asker | None = peer
        self.reading: Read | None = None


class DiskStore(MemoryStore):
    """In memory, with a disk that can be slow, full or broken."""

    def __init__(self, *, is_slow: bool = False) -> None:
        super().__init__(log_id=b"id")
        self.is_slow = is_slow
        self.begun: queue.Queue[int] = queue.Queue()
        """How many entries each append has, when it begins."""
        self.may_end = threading.Semaphore(0)
        """What a slow one waits for."""
        self.errors: list[Exception | None] = []
        """For the next appends, one each."""
        self.changes: list[list[Change]] = []
        self._wal_bytes = 0
        self.wal_errors: list[Exception] = []
        """For the next looks at the file's length."""
        self.wal_bytes_a_commit = 0
        self.checkpoints: queue.Queue[bool] = queue.Queue()
        """Each with whether it truncated."""
        self.checkpoint_error: Exception | None = None
        self.blocked_wal_bytes = 0
        """What cannot be cut off, because of a reader."""
        self.extensions: queue.Queue[int] = queue.Queue()
        """The lengths that the write-ahead log was to get."""
        self.extensions_missing = 0
        """How many more pieces it needs."""
        self.extension_error: Exception | None = None
        self.witness_syncs = 0
        self.close_error: Exception | None = None
        self.is_closed = False
        self.threads: set[str] = set()

    @property
    def wal_bytes(self) -> int:
        """The file's length."""
        if self.wal_errors:
            raise self.wal_errors.pop(0)
        return self._wal_bytes

    @wal_bytes.setter
    def wal_bytes(self, value: int) -> None:
        self._wal_bytes = value

    def append(self, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        self._note_thread()
        self.begun.put(len(entries))
        if self.is_slow:
            assert self.may_end.acquire(timeout=PATIENCE_S)
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        self.changes.append(list(changes))
        self._wal_bytes += self.wal_bytes_a_commit
        return super().append(entries, changes)

    def extend_wal(self, least_bytes: int) -> bool:
        self._note_thread()
        self.extensions.put(least_bytes)
        if self.extension_error is not None:
            raise self.extension_error
        self.extensions_missing = max(self.extensions_missing - 1, 0)
        return not self.extensions_missing

    def checkpoint(self, *, truncate: bool) -> None:
        self._note_thread()
        error = self.checkpoint_error
        if truncate and error is None:
            self._wal_bytes = min(self._wal_bytes, self.blocked_wal_bytes)
        self.checkpoints.put(truncate)  # last: a test that waits for it looks at the length then
        if error is not None:
            raise error

    def sync_witness(self) -> None:
        self._note_thread()
        self.witness_syncs += 1

    def probe(self) -> None:
        self._note_thread()
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error

    def close(self) -> None:
        self._note_thread()
        self.is_closed = True
        if self.close_error is not None:
            raise self.close_error

    def _note_thread(self) -> None:
        self.threads.add(threading.current_thread().name)


class DiskReader:
    """Reads a store, if its disk lets it."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.error: Exception | None = None
        self.close_error: Exception | None = None
        self.is_closed = False
        self.has_read = threading.Event()
        self.may_read = threading.Event()
        self.may_read.set()
        self.reads: list[int] = []
        """Where."""
        self.looks: list[int] = []
        """For which times."""

    def read(self, offset: int, max_bytes: int) -> Slice:
        self.reads.append(offset)
        assert self.may_read.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        found = self._store.read(offset, max_bytes)
        self.has_read.set()
        return found

    def offset_at(self, time_us: int) -> int:
        self.looks.append(time_us)
        return self._store.offset_at(time_us)

    def close(self) -> None:
        self.is_closed = True
        if self.close_error is not None:
            raise self.close_error


class Answers:
    """The answers of a thread, in order, for a test that waits for them."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Any] = queue.Queue()
        self.calls = 0

    def __call__(self, answers: list[Any]) -> None:
        self.calls += 1
        for answer in answers:
            self._queue.put(answer)

    def next(self, count: int) -> list[Any]:
        return [self._queue.get(timeout=PATIENCE_S) for _ in range(count)]

    @property
    def is_empty(self) -> bool:
        return self._queue.empty()


class ListeningBroker(Broker):
    """Records its events, and does nothing."""

    def __init__(self) -> None:
        self.told: list[BrokerEvent] = []
        self.threads: set[str] = set()

    def handle(self, event: BrokerEvent, now_us: int) -> None:
        self.told.append(event)
        self.threads.add(threading.current_thread().name)
