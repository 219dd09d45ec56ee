"""What stands between the server and the durable world: a store that is read along, and listeners that can die."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final, Protocol

from godwit.broker.effects import Losing
from godwit.errors import StorageError
from godwit.server.direct_log import DirectLog
from godwit.server.server import Listener
from godwit.store.port import Change, Entry, Slice, Store
from godwit.store.retention import Deletion, Retention, RetentionRule
from godwit.store.sqlite import SqliteStore
from godwit.wire.changes import StoredState
from godwit.wire.epochs import Epoch
from godwit_sim.broker_restarts import Found
from godwit_sim.disk import DiedError, Disk
from godwit_sim.worlds.broker_books import Books
from godwit_sim.worlds.broker_stage import ListenerShell
from godwit_sim.worlds.durable_plan import DurablePlan

PATH: Final = "/data/log.sqlite"
READ_BYTES: Final = 1024 * 1024
DIED: Final = "died"
"""What a listener tells instead of notices when its machine is gone."""


class DurableStore(Store, Protocol):
    """What the world needs of a store beside the port."""

    findings: list[str]

    def checkpoint(self, *, truncate: bool) -> None: ...
    def close(self) -> None: ...


def open_store(disk: Disk, new_log_id: bytes, now_us: int) -> DurableStore:
    """The store as it ships, on a simulated disk."""
    return SqliteStore.open(PATH, new_log_id=new_log_id, now_us=now_us, vfs=disk.vfs_name)


Opener = Callable[[Disk, bytes, int], DurableStore]


class WatchedDurableStore:
    """One opening of the log, with somebody who reads along."""

    def __init__(self, store: DurableStore, disk: Disk, books: Books, plan: DurablePlan, rng: Random) -> None:
        self._store = store
        self._disk = disk
        self._books = books
        self._checkpoints = plan.checkpoints
        self._rng = rng
        self._retention: Retention | None = None
        if isinstance(store, SqliteStore) and plan.max_age_s is not None:
            self._retention = Retention(store, [RetentionRule(max_age_s=plan.max_age_s)])

    @property
    def log_id(self) -> bytes:
        return self._store.log_id

    @property
    def first_offset(self) -> int:
        return self._store.first_offset

    @property
    def next_offset(self) -> int:
        return self._store.next_offset

    @property
    def epochs(self) -> Sequence[Epoch]:
        return self._store.epochs

    def state(self) -> StoredState:
        return self._store.state()

    def read(self, offset: int, max_bytes: int) -> Slice:
        return self._store.read(offset, max_bytes)

    def offset_at(self, time_us: int) -> int:
        return self._store.offset_at(time_us)

    def append(self, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        books = self._books
        restarts = books.restarts
        restarts.attempted(entries, changes)
        try:
            first_offset = self._store.append(entries, changes)
        except StorageError as error:
            books.note(f"append of {len(entries)} batches failed: {error}")
            restarts.failed()
            raise
        self._disk.may_die()  # whoever made something else of it
        restarts.succeeded(first_offset)
        books.wills.saved()
        self._learn(first_offset, entries)
        if self._rng.random() < self._checkpoints:
            with suppress(StorageError):  # it is tried again with a later one
                self._store.checkpoint(truncate=self._rng.random() < 0.5)
        return first_offset

    def trim(self, now_us: int) -> list[Deletion]:
        """Deletes what is too old, as far as one step does."""
        if self._retention is None:
            return []
        books = self._books
        books.restarts.trimming()
        try:
            trimmed = self._retention.step(now_us)
        except StorageError as error:
            books.note(f"nothing could be deleted: {error}")
            return []
        self._disk.may_die()
        if not trimmed:
            books.restarts.not_trimmed()
            return []
        books.restarts.trimmed(self.first_offset)
        books.log.gone_below = self.first_offset
        return trimmed

    def learn_found(self) -> None:
        """What the file has is compared with what it was given; the checkers learn what nobody had heard of."""
        books = self._books
        more = books.restarts.reopened(read_whole(self._store))
        books.log.gone_below = self.first_offset
        self._learn(self.next_offset - sum(entry.count for entry in more), more)
        state = self._store.state()
        books.restarts.check_retained(state, books.retained.current())
        books.restarts.check_quiet(state)

    def _learn(self, first_offset: int, entries: Sequence[Entry]) -> None:
        books = self._books
        now = books.network.now
        for entry in entries:
            books.note(f"append {entry.topic} {entry.publisher} {entry.count} flags {entry.flags}")
        if entries:
            for publication in books.log.appended(first_offset, entries):
                books.retained.changed(publication, now)
        books.on_learned(entries)

    def close(self) -> None:
        """Lets go of it. If its machine is gone, nothing of this reaches the disk."""
        with suppress(StorageError, DiedError):
            self._store.close()


def read_whole(store: DurableStore) -> Found:
    """Return everything that a store has."""
    found = Found(store.log_id, store.first_offset, store.next_offset, [], store.state())
    offset = 0
    while offset < found.next_offset:
        piece = store.read(offset, READ_BYTES)
        found.entries += piece.entries
        found.damaged += piece.damaged
        offset = piece.next_offset
    return found


class TrimmedLog(DirectLog):
    """Deletes what is too old between two appends, as the thread that writes does it in a real broker."""

    store: WatchedDurableStore

    def work(self, now_us: int) -> None:
        super().work(now_us)
        for trimmed in self.store.trim(now_us):
            self.broker.handle(Losing(trimmed.entries, trimmed.floor, trimmed.pattern), now_us)


class MortalShell(ListenerShell):
    """A listener whose machine may be gone when it is asked what happened."""

    def __init__(self, listener: Listener, disk: Disk) -> None:
        super().__init__(listener)
        self._disk = disk
        self._turn = listener.events
        self.events = self._events

    def _events(self) -> Sequence[object]:
        try:
            notices = self._turn()
        except (DiedError, Exception):  # whatever SQLite or the store made of it
            if not self._disk.is_dead:
                raise
        return [DIED] if self._disk.is_dead else notices
