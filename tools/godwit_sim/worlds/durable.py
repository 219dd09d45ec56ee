"""The durable world: the broker world, but the server's log is on a disk, and both can fail at any moment.

The process is killed or the machine loses its power, between two turns or in the midst of any write or sync; it is
started again from what its disk has kept, or from an older copy of it, and its clients go on by themselves. For a while
the disk may be full, or refuse writes or syncs. Every time that the log is opened it is compared with everything that
it was ever given; at the end an auditor reads it from its beginning, the power is cut once more, and it is compared for
the last time.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from godwit.broker.admission import RESTART_GRACE_US
from godwit.errors import DiskError, LogDamagedError
from godwit.server.server import Server
from godwit_sim.broker_ledger import Publication
from godwit_sim.broker_log import LogBackup
from godwit_sim.broker_restarts import Kept
from godwit_sim.disk import DAMAGES, DiedError, Disk
from godwit_sim.trace import Trace
from godwit_sim.worlds.broker import BrokerWorld, observe
from godwit_sim.worlds.broker_books import HEAD_BYTES
from godwit_sim.worlds.durable_plan import Death, DiskFault, DurablePlan, Restore, draw_durable_plan
from godwit_sim.worlds.durable_stage import (
    DIED,
    PATH,
    MortalShell,
    Opener,
    TrimmedLog,
    WatchedDurableStore,
    open_store,
    read_whole,
)

NEEDLE_BYTES = HEAD_BYTES + 8
"""So much of a message is found nowhere else, not even by chance."""
COPIES_AGAIN_S = 0.1
STARTS_AGAIN_S = 0.2
"""After a start that failed."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The disk at one moment, and what the checkers knew of it."""

    disk: Disk
    log: LogBackup
    restarts: Kept
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
        """Copies of the log that were opened after damage, and ..."""
        self.lost_by_damage = 0
        """... how many messages these had lost."""
        self.restored = 0
        self._copies: dict[Restore, Copy] = {}
        self._rng = Random(f"{plan.broker.seed} rot")
        self._opener = opener
        self._openings = 0
        self._watched: WatchedDurableStore | None = None
        """The log of the server that runs."""
        self._planned = Death(0.0, loses_power=True)
        """How the present life ends, if it does."""
        super().__init__(plan.broker, trace, server)

    def run(self) -> None:
        try:
            super().run()
        finally:
            if self._watched is not None:
                self.disk.die()  # nothing is left open, and nothing is written any more
                self._watched.close()

    def start(self) -> None:
        for death in self.durable.deaths:
            if death.at_s == 0.0:
                self._plan_death(death)  # in time for the first start, which makes the file
            else:
                self.network.at(death.at_s, self._plan_death, death)
        for fault in self.durable.disk_faults:
            self.network.at(fault.at_s, self._spoil_disk, fault)
        for restore in self.durable.restores:
            self.network.at(restore.copied_s, self._copy_disk, restore)
            self.network.at(restore.at_s, self._put_back, restore)
        super().start()

    def summary(self) -> str:
        restarts = self.books.restarts
        return (
            f"{super().summary()}, {self.deaths} deaths, {restarts.reopenings} openings, "
            f"{restarts.surfaced} appends found, {self.restored} restores, {self.disk.writes} writes, "
            f"{self.disk.syncs} syncs, {self.damages} damaged copies with {self.lost_by_damage} messages lost"
        )

    # -- lives of the server ------------------------------------------------------------------------------------------

    def _begin_server(self) -> None:
        """All of it happens at the start, which may be the first of many."""

    def _start_server(self) -> None:
        if self._watched is not None:
            return
        watched = self._open()
        if watched is None:
            self.network.at(self.network.now + STARTS_AGAIN_S, self._start_server)
            return
        self._watched = watched
        self.server = self._make_server(self._make_log(watched), f"server {self._openings}", self.books.now_us)
        for host, listener in zip(self.hosts, self.server.listeners, strict=True):
            if self._watched is watched:  # the first turn may have been its last
                self.network.start(host, MortalShell(listener, self.disk), self._on_server_events)

    def _make_log(self, watched: WatchedDurableStore) -> TrimmedLog:
        return TrimmedLog(watched)

    def _open(self) -> WatchedDurableStore | None:
        """Opens the log and looks what is in it; None if the machine dies over it, or the disk does not let it."""
        if self.disk.has_forgotten:
            self.disk.die_in(None)  # not now: see there
        self._openings += 1
        rng = Random(f"{self.plan.seed} opening {self._openings}")
        watched: WatchedDurableStore | None = None
        try:
            store = self._opener(self.disk, rng.randbytes(16), self.books.now_us)
            watched = WatchedDurableStore(store, self.disk, self.books, self.durable, rng)
            self.disk.may_die()
            watched.learn_found()
        except (DiedError, Exception) as error:
            if self.disk.is_dead:
                self._end_machine(watched)
                return None
            if watched is not None:
                watched.close()
            if isinstance(error, DiskError) and self.disk.trouble is not None:
                self.books.note(f"no start: {error}")
                return None
            raise
        return watched

    def _on_server_events(self, events: object, now: float) -> None:
        if events == [DIED]:
            self._end_life()

    def _plan_death(self, death: Death) -> None:
        self._planned = death
        if death.in_calls is not None:
            self.disk.die_in(death.in_calls)
        elif self._watched is not None:
            self._end_life()

    def _end_life(self) -> None:
        """The process is gone, perhaps with its machine."""
        network = self.network
        watched, self._watched = self._watched, None
        self._end_machine(watched)
        for host in self.hosts:
            if host.alive:
                network.kill(host)
        self.books.wills.cut_off(self.books.roster.cut_off(network.now))
        network.at(network.now + self._planned.down_s, self._start_server)

    def _end_machine(self, watched: WatchedDurableStore | None) -> None:
        self.deaths += 1
        self.books.note(f"death {self._planned}")
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
            self._spoil_message()

    def _try_damage(self) -> None:
        """Open a copy of the log whose write-ahead log was damaged, and see that nothing of it is lost in silence.

        Only after the death of a process that had the log open: a power cut may take the witness's newest records.
        """
        restarts = self.books.restarts
        if not self.disk.sizes.get(f"{PATH}-wal") or not restarts.is_certain or self.disk.has_forgotten:
            return
        rng = Random(f"{self.plan.seed} damage {self.deaths}")
        copy = self.disk.copy(rng)
        damage = rng.choice(DAMAGES)
        copy.damage(f"{PATH}-wal", damage)
        self.damages += 1
        try:
            store = self._opener(copy, rng.randbytes(16), self.books.now_us)
        except LogDamagedError as error:  # a checkpoint was under way: the file and what is left do not fit together
            self.books.note(f"damage: {damage} of the write-ahead log of a copy: {error}")
            return
        try:
            self.lost_by_damage += restarts.check_damaged(read_whole(store), store.findings)
            restarts.check_quiet(store.state(), store.next_offset)
        finally:
            store.close()
        self.books.note(f"damage: {damage} of the write-ahead log of a copy: {store.findings}")

    # -- copies of the disk -------------------------------------------------------------------------------------------

    def _copy_disk(self, restore: Restore) -> None:
        """As soon as everybody knows what is in the log."""
        books = self.books
        if self._watched is None or not books.restarts.is_certain:
            self.network.at(self.network.now + COPIES_AGAIN_S, self._copy_disk, restore)
            return
        books.note(f"copy at offset {books.log.next_offset}")
        disk = self.disk.copy(Random(f"{self.plan.seed} copy"))
        self._copies[restore] = Copy(disk, books.log.copy(), books.restarts.copy(), books.retained.copy())

    def _put_back(self, restore: Restore) -> None:
        copy = self._copies.pop(restore, None)
        if copy is None or self._watched is None:
            return  # it could not be made in time, or the machine is down: it is started with what it has
        books = self.books
        books.note(f"the copy {restore} is put back, from offset {books.log.next_offset}")
        self._planned = Death(self.network.now, loses_power=False, down_s=restore.down_s)
        self._end_life()
        self.disk.put_back(copy.disk)
        books.log.put_back(copy.log)
        books.restarts.put_back(copy.restarts)
        books.retained.put_back(copy.retained, self.network.now)
        for person in self.persons:
            person.reader.on_put_back(books.log.next_offset)
        self.restored += 1

    def _spoil_message(self) -> None:
        """One that is in the log and nowhere else: what topics retain has no other copy that could be told as lost."""
        log = self.books.log
        offset = self._rng.randrange(log.gone_below, log.next_offset + 1)
        found = log.at(offset)
        if found is None or found.retain or found.is_will or log.is_gone(offset):
            return
        needle = found.payload[:NEEDLE_BYTES]
        if len(needle) == NEEDLE_BYTES and self.disk.rot(PATH, needle):
            self.books.note(f"offset {offset} rots")
            for one in found.offsets:
                self.books.restarts.rotted(one)

    def _spoil_disk(self, fault: DiskFault) -> None:
        now = self.network.now
        self.books.note(f"disk fault {fault}")
        self.books.is_storage_failing = True
        self.books.roster.doubt(now + fault.lasts_s)
        self.disk.trouble = fault.trouble
        self.network.at(now + fault.lasts_s, self._mend_disk, fault)

    def _mend_disk(self, fault: DiskFault) -> None:
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
    """Runs one seed; gives the violation, if any, and a summary."""
    plan = draw_durable_plan(seed)
    trace.comment(0.0, f"plan {plan}")
    return observe(DurableWorld(plan, trace, server, opener))
