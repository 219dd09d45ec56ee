"""The durable world: the broker world with the server's log on a simulated disk, and both can fail at any time.

The process is killed or the machine loses power, between two turns or during any write or sync. It is started again
with the data that its disk preserved, or with an older copy of it, and its clients reconnect. For a while the disk may
be full, or fail writes or syncs. Each time the log is opened, it is compared with all that was ever appended. At the
end an auditor, the last client, reads it from its beginning, the power is cut once more, and it is compared for the
last time.

The plan of a seed is drawn before the simulation starts, as in the broker world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Protocol

from godwit.broker.admission import RESTART_GRACE_US
from godwit.broker.effects import Losing
from godwit.errors import DiskError, LogDamagedError, StorageError
from godwit.impairment import LinkSettings
from godwit.limits import KIB
from godwit.server.direct_log import DirectLog
from godwit.server.server import Listener, Server
from godwit.store.port import Change, Entry, Slice, Store
from godwit.store.retention import Deletion, Retention, RetentionRule
from godwit.store.sqlite import SqliteStore
from godwit.transport.config import EndpointConfig
from godwit.wire.changes import StoredState
from godwit.wire.epochs import Epoch
from godwit_sim.broker_log_model import LogBackup, Publication
from godwit_sim.broker_restarts import StoreBackup, StoreContents
from godwit_sim.disk import DAMAGES, DiedError, Disk, Trouble
from godwit_sim.network import Trace
from godwit_sim.worlds.broker import BrokerWorld, observe
from godwit_sim.worlds.broker_harness import HEAD_BYTES, Checkers, ListenerAdapter
from godwit_sim.worlds.broker_plan import (
    BrokerPlan,
    ClientPlan,
    PublicationPlan,
    ReadingPlan,
    SubscriptionPlan,
    draw_plan,
)
from godwit_sim.worlds.transport_plan import HostPlan

# -- plans ------------------------------------------------------------------------------------------------------------

AUDITOR = "auditor"


@dataclass(frozen=True, slots=True)
class Death:
    """The end of one run of the server, unless it is already dead."""

    at_s: float
    loses_power: bool
    """False: only the process dies, and its written data remains."""
    in_calls: int | None = None
    """It dies during the write or sync after this number of them; None: at that time, between two."""
    down_s: float = 0.0
    """The time until it is started again."""


@dataclass(frozen=True, slots=True)
class DiskFault:
    """A period in which the disk fails."""

    at_s: float
    lasts_s: float
    trouble: Trouble


@dataclass(frozen=True, slots=True)
class Restore:
    """A restart of the broker with a copy of its disk that was made before."""

    copied_s: float
    at_s: float
    down_s: float


@dataclass(frozen=True, slots=True)
class DurablePlan:
    """The plan of one seed."""

    broker: BrokerPlan
    deaths: tuple[Death, ...]
    disk_faults: tuple[DiskFault, ...]
    checkpoints: float
    """The share of appends that are followed by a checkpoint."""
    rots: float
    """The share of deaths after which a bit on the disk is flipped."""
    max_age_s: float | None
    """How long messages remain in the log; None: forever."""
    restores: tuple[Restore, ...] = ()


def draw_durable_plan(seed: int) -> DurablePlan:
    """Draw the plan of this seed."""
    broker = draw_plan(seed, "durable")
    rng = Random(f"durable plan {seed} disk")
    end_s = broker.faults_end_s
    clients = tuple(_without_live_retained(client) for client in broker.clients)
    plan = DurablePlan(
        broker=replace(broker, clients=(*clients, auditor(end_s)), hostile=None),
        deaths=draw_deaths(rng, end_s),
        disk_faults=draw_disk_faults(rng, end_s),
        checkpoints=rng.choice((0.0, 0.05, 0.3)),
        rots=rng.choice((0.0, 0.0, 0.5)),
        max_age_s=rng.choice((None, None, 1.0, 5.0)),
    )
    restores = draw_restores(Random(f"durable plan {seed} restores"), end_s)
    return with_restores(plan, restores) if restores else plan


def with_restores(plan: DurablePlan, restores: tuple[Restore, ...]) -> DurablePlan:
    """Return a plan with restores, without operations whose loss by a restore could not be distinguished from a fault.

    Sessions, cursors and wills are in the copy as they were: clients get the older ones, which is correct. A
    subscription by offset cannot be checked.
    """
    clients = tuple(_without_session(client) for client in plan.broker.clients)
    broker = replace(plan.broker, clients=clients)
    return replace(plan, broker=broker, rots=0.0, max_age_s=None, restores=restores)


def _without_session(client: ClientPlan) -> ClientPlan:
    subscriptions = tuple(
        replace(one, start="earliest" if one.start == "offset" else one.start, cursor=None)
        for one in client.subscriptions
    )
    unlike = {one.filters: one for one in subscriptions}  # without cursors some would be the same
    return replace(client, session_expiry_s=0, will=None, subscriptions=tuple(unlike.values()))


def draw_restores(rng: Random, end_s: float) -> tuple[Restore, ...]:
    restores = []
    if rng.random() < 0.35:
        for _ in range(rng.choice((1, 1, 2, 3))):
            copied_s, at_s = sorted(rng.uniform(0.0, end_s) for _ in range(2))
            restores.append(Restore(copied_s, at_s, min(rng.choice((0.0, 0.3, 3.0)), end_s - at_s)))
    return tuple(sorted(restores, key=lambda restore: restore.at_s))


def _without_live_retained(client: ClientPlan) -> ClientPlan:
    """Remove retained messages of QoS 0: whether they survive a death of the broker is not specified."""
    plans = [replace(one, retain=one.retain and one.qos > 0) for one in client.publications]
    return replace(client, publications=tuple(one for one in plans if one.retain or one.size_bytes))


def draw_deaths(rng: Random, end_s: float) -> tuple[Death, ...]:
    deaths = []
    for _ in range(rng.choice((1, 2, 3, 5, 8))):
        at_s = rng.choice((0.0, *(rng.uniform(0.0, end_s) for _ in range(9))))
        in_calls = rng.choice((None, *(rng.randrange(most) for most in (3, 10, 30))))
        down_s = min(rng.choice((0.0, 0.3, 3.0)), end_s - at_s)
        deaths.append(Death(at_s, rng.random() < 0.6, in_calls, down_s))
    return tuple(sorted(deaths, key=lambda death: death.at_s))


def draw_disk_faults(rng: Random, end_s: float) -> tuple[DiskFault, ...]:
    faults = []
    if rng.random() < 0.5:
        for _ in range(rng.choice((1, 2, 4))):
            at_s = rng.uniform(0.0, end_s)
            lasts_s = min(rng.choice((0.01, 0.3, 2.0)), end_s - at_s)
            faults.append(DiskFault(at_s, lasts_s, rng.choice(("full", "write", "sync"))))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def auditor(at_s: float) -> ClientPlan:
    """Return the plan of a client that starts at that time and reads the whole log."""
    return ClientPlan(
        start_s=at_s,
        name=AUDITOR,
        secret=b"",
        session_expiry_s=0,
        will=None,
        host=HostPlan(joins=True, wake_delay_s=0.0, timer_step_s=0.0, epoch_s=0.0),
        listener=0,
        endpoint=EndpointConfig(),
        send_buffer_bytes=64 * KIB,
        up=LinkSettings(delay_s=0.001),
        down=LinkSettings(delay_s=0.001),
        reading=ReadingPlan(),
        subscriptions=(SubscriptionPlan(0.0, ("#",), "earliest"),),
        publications=(PublicationPlan(at_s, "audit", 1, 20),),
        remembers=False,
    )


# -- adapters around the store and the server -------------------------------------------------------------------------

PATH: Final = "/data/log.sqlite"
READ_BYTES: Final = 1024 * 1024
DIED: Final = "died"
"""The event of a listener whose machine died."""


class DurableStore(Store, Protocol):
    """The methods of a store that this world needs in addition to the port."""

    findings: list[str]

    def checkpoint(self, *, truncate: bool) -> None: ...
    def close(self) -> None: ...


def open_store(disk: Disk, new_log_id: bytes, now_us: int) -> DurableStore:
    """Open the shipped store on a simulated disk."""
    return SqliteStore.open(PATH, new_log_id=new_log_id, now_us=now_us, vfs=disk.vfs_name)


Opener = Callable[[Disk, bytes, int], DurableStore]


class WatchedDurableStore:
    """One opening of the log, with every append observed by the checkers."""

    def __init__(self, store: DurableStore, disk: Disk, checkers: Checkers, plan: DurablePlan, rng: Random) -> None:
        self._store = store
        self._disk = disk
        self._checkers = checkers
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
        checkers = self._checkers
        restarts = checkers.restarts
        restarts.attempted(entries, changes)
        try:
            first_offset = self._store.append(entries, changes)
        except StorageError as error:
            checkers.note(f"append of {len(entries)} batches failed: {error}")
            restarts.failed()
            raise
        self._disk.may_die()  # if the store hid the error
        restarts.succeeded(first_offset)
        checkers.wills.saved()
        self._learn(first_offset, entries)
        if self._rng.random() < self._checkpoints:
            with suppress(StorageError):  # a later append tries again
                self._store.checkpoint(truncate=self._rng.random() < 0.5)
        return first_offset

    def trim(self, now_us: int) -> list[Deletion]:
        """Delete messages that are too old, as far as one step does."""
        if self._retention is None:
            return []
        checkers = self._checkers
        checkers.restarts.trimming()
        try:
            trimmed = self._retention.step(now_us)
        except StorageError as error:
            checkers.note(f"nothing could be deleted: {error}")
            return []
        self._disk.may_die()
        if not trimmed:
            checkers.restarts.not_trimmed()
            return []
        checkers.restarts.trimmed(self.first_offset)
        checkers.log.deleted_below = self.first_offset
        return trimmed

    def learn_found(self) -> None:
        """Compare the file with all appends, and pass newly found ones to the checkers."""
        checkers = self._checkers
        more = checkers.restarts.reopened(read_whole(self._store))
        checkers.log.deleted_below = self.first_offset
        self._learn(self.next_offset - sum(entry.count for entry in more), more)
        state = self._store.state()
        checkers.restarts.check_retained(state, checkers.retained.current())
        checkers.restarts.check_quiet(state)

    def _learn(self, first_offset: int, entries: Sequence[Entry]) -> None:
        checkers = self._checkers
        now = checkers.network.now
        for entry in entries:
            checkers.note(f"append {entry.topic} {entry.publisher} {entry.count} flags {entry.flags}")
        if entries:
            for publication in checkers.log.appended(first_offset, entries):
                checkers.retained.changed(publication, now)
        checkers.on_learned(entries)

    def close(self) -> None:
        """Close the store. If its machine is dead, no change reaches the disk."""
        with suppress(StorageError, DiedError):
            self._store.close()


def read_whole(store: DurableStore) -> StoreContents:
    """Return everything that a store has."""
    found = StoreContents(store.log_id, store.first_offset, store.next_offset, [], store.state())
    offset = 0
    while offset < found.next_offset:
        piece = store.read(offset, READ_BYTES)
        found.entries += piece.entries
        found.damaged += piece.damaged
        offset = piece.next_offset
    return found


class TrimmedLog(DirectLog):
    """A log that deletes old messages between two appends, as the writing thread of a real broker does."""

    store: WatchedDurableStore

    def work(self, now_us: int) -> None:
        super().work(now_us)
        for trimmed in self.store.trim(now_us):
            self.broker.handle(Losing(trimmed.entries, trimmed.floor, trimmed.pattern), now_us)

    @property
    def is_idle(self) -> bool:
        return False  # every turn may delete something


class CrashableAdapter(ListenerAdapter):
    """A listener whose machine may die during a turn."""

    def __init__(self, listener: Listener, disk: Disk) -> None:
        super().__init__(listener)
        self._disk = disk
        self._turn = listener.events
        self.events = self._events

    def _events(self) -> Sequence[object]:
        try:
            notices = self._turn()
        except (DiedError, Exception):  # SQLite or the store may replace DiedError by another one
            if not self._disk.is_dead:
                raise
        return [DIED] if self._disk.is_dead else notices


# -- the world --------------------------------------------------------------------------------------------------------

NEEDLE_BYTES = HEAD_BYTES + 8
"""This many bytes of a message occur nowhere else, not even by chance."""
COPIES_AGAIN_S = 0.1
STARTS_AGAIN_S = 0.2
"""The delay after a failed start."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The disk at one moment, and the state of the checkers at that moment."""

    disk: Disk
    log: LogBackup
    restarts: StoreBackup
    retained: dict[str, Publication]


class DurableWorld(BrokerWorld):
    """One seed, from its plan to its end."""

    def __init__(
        self, plan: DurablePlan, trace: Trace, server: type[Server] = Server, opener: Opener = open_store
    ) -> None:
        self.durable = plan
        self.disk = Disk(Random(f"{plan.broker.seed} disk"))
        self.deaths = 0
        self.damages = 0
        """The number of damaged copies of the log that were opened."""
        self.lost_by_damage = 0
        """The number of messages that these had lost."""
        self.restored = 0
        self._copies: dict[Restore, Copy] = {}
        self._rng = Random(f"{plan.broker.seed} rot")
        self._opener = opener
        self._openings = 0
        self._watched: WatchedDurableStore | None = None
        """The log of the running server."""
        self._planned = Death(0.0, loses_power=True)
        """How the present run ends."""
        super().__init__(plan.broker, trace, server)

    def run(self) -> None:
        try:
            super().run()
        finally:
            if self._watched is not None:
                self.disk.die()  # closing then writes nothing
                self._watched.close()

    def start(self) -> None:
        for death in self.durable.deaths:
            if death.at_s == 0.0:
                self._plan_death(death)  # in time for the first start, which creates the file
            else:
                self.network.at(death.at_s, self._plan_death, death)
        for fault in self.durable.disk_faults:
            self.network.at(fault.at_s, self._start_disk_fault, fault)
        for restore in self.durable.restores:
            self.network.at(restore.copied_s, self._copy_disk, restore)
            self.network.at(restore.at_s, self._restore, restore)
        super().start()

    def summary(self) -> str:
        restarts = self.checkers.restarts
        return (
            f"{super().summary()}, {self.deaths} deaths, {restarts.reopenings} openings, "
            f"{restarts.recovered_appends} appends found, {self.restored} restores, {self.disk.writes} writes, "
            f"{self.disk.syncs} syncs, {self.damages} damaged copies with {self.lost_by_damage} messages lost"
        )

    # -- runs of the server -------------------------------------------------------------------------------------------

    def _begin_server(self) -> None:
        """Do nothing: the server is created when it is started, possibly several times."""

    def _start_server(self) -> None:
        if self._watched is not None:
            return
        watched = self._open()
        if watched is None:
            self.network.at(self.network.now + STARTS_AGAIN_S, self._start_server)
            return
        self._watched = watched
        self.server = self._make_server(self._make_log(watched), f"server {self._openings}", self.checkers.now_us)
        for host, listener in zip(self.hosts, self.server.listeners, strict=True):
            if self._watched is watched:  # the machine may have died during the first turn
                self.network.start(host, CrashableAdapter(listener, self.disk), self._on_server_events)

    def _make_log(self, watched: WatchedDurableStore) -> TrimmedLog:
        return TrimmedLog(watched)

    def _open(self) -> WatchedDurableStore | None:
        """Open the log and check its contents; return None if the machine dies or the disk fails meanwhile."""
        if self.disk.has_lost_writes:
            self.disk.die_in(None)  # postponed: see has_lost_writes
        self._openings += 1
        rng = Random(f"{self.plan.seed} opening {self._openings}")
        watched: WatchedDurableStore | None = None
        try:
            store = self._opener(self.disk, rng.randbytes(16), self.checkers.now_us)
            watched = WatchedDurableStore(store, self.disk, self.checkers, self.durable, rng)
            self.disk.may_die()
            watched.learn_found()
        except (DiedError, Exception) as error:
            if self.disk.is_dead:
                self._end_machine(watched)
                return None
            if watched is not None:
                watched.close()
            if isinstance(error, DiskError) and self.disk.trouble is not None:
                self.checkers.note(f"no start: {error}")
                return None
            raise
        return watched

    def _on_server_events(self, events: object, now: float) -> None:
        if events == [DIED]:
            self._end_run()

    def _plan_death(self, death: Death) -> None:
        self._planned = death
        if death.in_calls is not None:
            self.disk.die_in(death.in_calls)
        elif self._watched is not None:
            self._end_run()

    def _end_run(self) -> None:
        """End the process, and its machine if that is planned."""
        network = self.network
        watched, self._watched = self._watched, None
        self._end_machine(watched)
        for host in self.hosts:
            if host.alive:
                network.kill(host)
        self.checkers.wills.handle_broker_death(self.checkers.connections.handle_broker_death(network.now))
        network.at(network.now + self._planned.down_s, self._start_server)

    def _end_machine(self, watched: WatchedDurableStore | None) -> None:
        self.deaths += 1
        self.checkers.note(f"death {self._planned}")
        self.disk.die()
        if watched is not None:
            watched.close()
        if self._planned.loses_power:
            self.disk.cut_power()
        else:
            self.disk.kill()
            if watched is not None:
                self._try_damage()
        if self._rng.random() < self.durable.rots:
            self._damage_message()

    def _try_damage(self) -> None:
        """Open a copy of the log with a damaged write-ahead log, and check that each loss is reported.

        Only after the death of a process that had the log open: a power cut may lose the witness's newest records.
        """
        restarts = self.checkers.restarts
        if not self.disk.sizes.get(f"{PATH}-wal") or not restarts.is_certain or self.disk.has_lost_writes:
            return
        rng = Random(f"{self.plan.seed} damage {self.deaths}")
        copy = self.disk.copy(rng)
        damage = rng.choice(DAMAGES)
        copy.damage(f"{PATH}-wal", damage)
        self.damages += 1
        try:
            store = self._opener(copy, rng.randbytes(16), self.checkers.now_us)
        except LogDamagedError as error:  # a checkpoint was in progress: the two files do not fit together
            self.checkers.note(f"damage: {damage} of the write-ahead log of a copy: {error}")
            return
        try:
            self.lost_by_damage += restarts.check_damaged(read_whole(store), store.findings)
            restarts.check_quiet(store.state(), store.next_offset)
        finally:
            store.close()
        self.checkers.note(f"damage: {damage} of the write-ahead log of a copy: {store.findings}")

    # -- copies of the disk -------------------------------------------------------------------------------------------

    def _copy_disk(self, restore: Restore) -> None:
        """Copy the disk as soon as the contents of the log are certain."""
        checkers = self.checkers
        if self._watched is None or not checkers.restarts.is_certain:
            self.network.at(self.network.now + COPIES_AGAIN_S, self._copy_disk, restore)
            return
        checkers.note(f"copy at offset {checkers.log.next_offset}")
        disk = self.disk.copy(Random(f"{self.plan.seed} copy"))
        self._copies[restore] = Copy(disk, checkers.log.copy(), checkers.restarts.copy(), checkers.retained.copy())

    def _restore(self, restore: Restore) -> None:
        copy = self._copies.pop(restore, None)
        if copy is None or self._watched is None:
            return  # the copy was not made in time, or the machine is down
        checkers = self.checkers
        checkers.note(f"the copy {restore} is put back, from offset {checkers.log.next_offset}")
        self._planned = Death(self.network.now, loses_power=False, down_s=restore.down_s)
        self._end_run()
        self.disk.restore(copy.disk)
        checkers.log.restore(copy.log)
        checkers.restarts.restore(copy.restarts)
        checkers.retained.restore(copy.retained, self.network.now)
        for app in self.apps:
            app.reader.on_restore(checkers.log.next_offset)
        self.restored += 1

    def _damage_message(self) -> None:
        """Corrupt a message that is only in the log: retained messages have no other copy to report as lost."""
        log = self.checkers.log
        offset = self._rng.randrange(log.deleted_below, log.next_offset + 1)
        found = log.at(offset)
        if found is None or found.retain or found.is_will or log.is_unavailable(offset):
            return
        needle = found.payload[:NEEDLE_BYTES]
        if len(needle) == NEEDLE_BYTES and self.disk.rot(PATH, needle):
            self.checkers.note(f"offset {offset} rots")
            for one in found.offsets:
                self.checkers.restarts.rotted(one)

    def _start_disk_fault(self, fault: DiskFault) -> None:
        now = self.network.now
        self.checkers.note(f"disk fault {fault}")
        self.checkers.is_storage_failing = True
        self.checkers.connections.mark_uncertain(now + fault.lasts_s)
        self.disk.trouble = fault.trouble
        self.network.at(now + fault.lasts_s, self._end_disk_fault, fault)

    def _end_disk_fault(self, fault: DiskFault) -> None:
        if self.disk.trouble == fault.trouble:
            self.disk.trouble = None

    # -- the end ------------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        self.disk.trouble = None
        self.disk.die_in(None)
        super()._heal()

    def _patience_s(self) -> float:
        return super()._patience_s() + 2 * RESTART_GRACE_US / 1e6

    def _finish(self) -> None:
        super()._finish()
        self._planned = Death(self.network.now, loses_power=True)
        self._end_machine(self._watched)
        self._watched = self._open()
        assert self._watched is not None, "nothing is planned that could keep it from being opened"


def run_durable(
    seed: int, trace: Trace, server: type[Server] = Server, opener: Opener = open_store
) -> tuple[str | None, str]:
    """Run one seed; return the violation, if any, and a summary."""
    plan = draw_durable_plan(seed)
    trace.comment(0.0, f"plan {plan}")
    return observe(DurableWorld(plan, trace, server, opener))
