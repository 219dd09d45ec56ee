"""Incorrect stores for the tests of the durable world, and repeated openings of a store without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from random import Random

from tests.sim.broker_models import Models

from godwit.errors import DiskError
from godwit.store.port import Change, Entry
from godwit.store.sqlite import SqliteStore
from godwit.wire.changes import (
    IdentityRow,
    RetainedRow,
    SessionDeleted,
    SessionRow,
    SubscriptionRow,
    TopicRow,
)
from godwit_sim.broker_restarts import RestartChecker
from godwit_sim.disk import DiedError, Disk, Trouble
from godwit_sim.network import Network
from godwit_sim.worlds.broker_harness import Checkers
from godwit_sim.worlds.durable import PATH, DurablePlan, DurableStore, Opener, WatchedDurableStore, open_store


def opener_of(kind: type[SqliteStore], synchronous: str = "FULL") -> Opener:
    """Open another kind of store, or with weaker syncs."""

    def opener(disk: Disk, new_log_id: bytes, now_us: int) -> DurableStore:
        store = kind.open(PATH, new_log_id=new_log_id, now_us=now_us, vfs=disk.vfs_name)
        store.connection.pragma("synchronous", synchronous)
        return store

    return opener


class SplitStore(SqliteStore):
    """Use two transactions where one is needed."""

    def append(self, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        first_offset = super().append(entries)
        super().append([], changes)
        return first_offset


class HastyStore(SqliteStore):
    """Confirm batches before writing them with the next ones."""

    _waiting: tuple[Sequence[Entry], Sequence[Change]] = ((), ())

    @property
    def next_offset(self) -> int:
        return super().next_offset + sum(entry.count for entry in self._waiting[0])

    def append(self, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        first_offset = self.next_offset
        (waiting, before), self._waiting = self._waiting, ((), ())
        super().append(waiting, before)
        self._waiting = (entries, changes)
        return first_offset


class StoreRuns:
    """A store that is written, dies, and is opened again, from a seed."""

    def __init__(self, seed: int, plan: DurablePlan, opener: Opener = open_store, *, kills: float = 0.0) -> None:
        """`kills`: the share of deaths without a power cut."""
        self.disk = Disk(Random(f"{seed} disk"))
        self.checkers = Checkers(seed, Network())
        self.checkers.published.names("alice", "Alice")
        self._models = Models(self.checkers.published, self.checkers.now_us)
        self._rng = Random(f"{seed} lives")
        self._plan = plan
        self._opener = opener
        self._kills = kills
        self._watched: WatchedDurableStore | None = None

    @property
    def checker(self) -> RestartChecker:
        return self.checkers.restarts

    def run(self, runs: int, troubles: Sequence[Trouble | None] = (None,)) -> None:
        """End each run after some writes and syncs, at any point."""
        for _ in range(runs):
            self.disk.die_in(self._rng.choice((None, None, self._rng.randrange(80))))
            try:
                watched = self.open()
                self.disk.die_in(self._rng.randrange(300))
                while True:
                    self.disk.trouble = self._rng.choice(troubles)
                    with suppress(DiskError):
                        self.append(watched)
            except (DiedError, Exception):
                if not self.disk.is_dead:
                    raise
            finally:
                self.end()
        self.open()
        self.end()

    def open(self) -> WatchedDurableStore:
        self.disk.trouble = None
        if self.disk.has_lost_writes:
            self.disk.die_in(None)  # postponed: see has_lost_writes
        store = self._opener(self.disk, self._rng.randbytes(16), self.checkers.now_us)
        self.disk.may_die()
        self._watched = WatchedDurableStore(store, self.disk, self.checkers, self._plan, self._rng)
        self._watched.learn_found()
        return self._watched

    def append(self, watched: WatchedDurableStore) -> None:
        rng = self._rng
        entries: list[Entry] = []
        changes: list[Change] = [TopicRow("a/b", rng.randrange(100), rng.randrange(100), 1)]
        for _ in range(rng.choice((0, 1, 3))):
            payload = b"%d " % self._models.time_us + rng.randbytes(rng.choice((10, 1000, 30_000)))
            made = self._models.publish(payload=payload, retain=rng.random() < 0.3)
            entries.append(self._models.entry(made))
            if made.retain:
                changes.append(RetainedRow("a/b", payload, "Alice", self._models.time_us))
        session = SessionRow(rng.choice("xyz"), rng.randbytes(16), False, 5, None)
        changes += [
            session,
            SubscriptionRow(session.name, ("a/#",), None, rng.randrange(100)),
            SessionDeleted(rng.choice("xyz")),
        ]
        changes.append(IdentityRow("x", "p", "a/b", 0, rng.randrange(100), 1))
        watched.append(entries, changes)

    def end(self) -> None:
        self.disk.die()
        if self._watched is not None:
            self._watched.close()
            self._watched = None
        if self._rng.random() < self._kills:
            self.disk.kill()
        else:
            self.disk.cut_power()
