"""The durable world: plans, the observed store, runs with deaths and restores, and planted faults.

The observed store survives any number of deaths; incorrect stores and brokers are caught. Runs of a seed are equal.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, get_args

import apsw
import pytest
from msgspec.structs import replace as replace_struct
from tests.sim.worlds.broker_world import PLAN as BROKER_PLAN
from tests.sim.worlds.broker_world import READER, SENDER, client
from tests.sim.worlds.durable_world import HastyStore, SplitStore, StoreRuns, opener_of
from tests.store.entries import LOG_ID, make_entry

from godwit.broker import delivery
from godwit.broker.admission import Admission
from godwit.broker.append_queue import AppendQueue
from godwit.broker.broker import Broker
from godwit.broker.catalogue import Catalogue
from godwit.broker.delivery import Delivery
from godwit.broker.dirty_state import DirtyState
from godwit.broker.effects import BrokerEvent, Losing
from godwit.broker.identities import Identities
from godwit.broker.settings import Settings
from godwit.broker.subscription import QuietSubscriptions
from godwit.broker.subscriptions import SubscriptionRequests
from godwit.client.subscription import Subscription
from godwit.errors import DiskError, LogDamagedError
from godwit.server.server import Server
from godwit.store.port import Change, Entry
from godwit.store.sqlite import SqliteStore
from godwit.store.witness import Witness
from godwit.wire.changes import SubscriptionRow
from godwit.wire.epochs import Epoch
from godwit_sim.checkers import ViolationError
from godwit_sim.disk import DAMAGES, Damage, DiedError, Disk, Trouble
from godwit_sim.network import Trace
from godwit_sim.worlds import WORLDS, run_seed
from godwit_sim.worlds.broker_plan import Fault, PublicationPlan, ReadingPlan, SubscriptionPlan, WillPlan, draw_plan
from godwit_sim.worlds.durable import (
    AUDITOR,
    DIED,
    PATH,
    CrashableAdapter,
    Death,
    DiskFault,
    DurablePlan,
    DurableStore,
    DurableWorld,
    Opener,
    Restore,
    TrimmedLog,
    auditor,
    draw_durable_plan,
    open_store,
    run_durable,
    with_restores,
)

PLANS = [draw_durable_plan(seed) for seed in range(200)]


def test_the_same_seed_is_the_same_plan_and_not_the_broker_world_s() -> None:
    assert draw_durable_plan(7) == PLANS[7]
    assert draw_durable_plan(8) != PLANS[7]
    assert PLANS[7].broker.clients[:-1] != draw_plan(7).clients


def test_every_kind_of_death_and_fault_happens_in_time() -> None:
    deaths = [death for plan in PLANS for death in plan.deaths]
    assert {(death.loses_power, death.in_calls is None) for death in deaths} == {
        (True, True), (True, False), (False, True), (False, False)
    }  # fmt: skip
    assert any(death.at_s == 0.0 and death.in_calls is not None for death in deaths), "while the file is made"
    assert {fault.trouble for plan in PLANS for fault in plan.disk_faults} == set(get_args(Trouble))
    assert all(plan.deaths for plan in PLANS)
    assert {bool(plan.disk_faults) for plan in PLANS} == {True, False}
    for plan in PLANS:
        end_s = plan.broker.faults_end_s + 1e-9
        assert all(death.at_s + death.down_s <= end_s for death in plan.deaths)
        assert all(fault.at_s + fault.lasts_s <= end_s for fault in plan.disk_faults)


def test_the_auditor_reads_everything_when_all_is_over() -> None:
    for plan in PLANS:
        auditor = plan.broker.clients[-1]
        assert (auditor.name, auditor.start_s) == (AUDITOR, plan.broker.faults_end_s)
        assert [(one.filters, one.start) for one in auditor.subscriptions] == [(("#",), "earliest")]


def test_unverifiable_requests_are_not_planned() -> None:
    for plan in PLANS:
        assert plan.broker.hostile is None
        publications = [one for client in plan.broker.clients for one in client.publications]
        assert not any(one.retain and not one.qos for one in publications)
        assert not any(not one.size_bytes and not one.retain for one in publications)


def test_copies_are_restored_in_time_and_no_client_relies_on_them() -> None:
    restored = [plan for plan in PLANS if plan.restores]
    assert len(PLANS) // 5 < len(restored) < len(PLANS) // 2
    assert max(len(plan.restores) for plan in restored) > 1
    for plan in restored:
        assert all(one.copied_s <= one.at_s <= plan.broker.faults_end_s for one in plan.restores)
        assert all(not client.session_expiry_s and client.will is None for client in plan.broker.clients)
        subscriptions = [one for client in plan.broker.clients for one in client.subscriptions]
        assert all(one.cursor is None and one.start != "offset" for one in subscriptions)


PLAN = replace(draw_durable_plan(0), checkpoints=0.2, max_age_s=None)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kills", [0.0, 0.5, 1.0])
def test_the_store_keeps_its_word(seed: int, kills: float) -> None:
    runs = StoreRuns(seed, PLAN, kills=kills)
    runs.run(12)
    assert runs.checker.reopenings > 6
    assert runs.checkers.log.next_offset > 50


@pytest.mark.parametrize("trouble", ["full", "write", "sync"])
def test_the_store_keeps_its_word_on_a_disk_that_fails(trouble: Trouble) -> None:
    for seed in range(4):
        runs = StoreRuns(seed, PLAN, kills=0.5)
        runs.run(12, (None, None, trouble))
        assert runs.checkers.log.next_offset > 20


def test_a_failed_append_raises_and_the_next_one_works() -> None:
    runs = StoreRuns(1, PLAN)
    watched = runs.open()
    for trouble in ("full", "write", "sync"):
        before = watched.next_offset
        runs.disk.trouble = trouble
        with pytest.raises(DiskError):
            runs.append(watched)
        assert watched.next_offset == before
        runs.disk.trouble = None
        runs.append(watched)
    runs.end()
    runs.open()
    runs.end()


def interrupted_start(disk: Disk, calls: int) -> bool:
    """Open the log on a machine that dies with this call; return False if the start needs fewer calls."""
    disk.die_in(calls)
    store = None
    with suppress(DiedError, Exception):
        store = open_store(disk, LOG_ID, 0)
    has_died = disk.is_dead
    disk.die()  # no more writes
    if store is not None:
        store.close()
    return has_died


def begun(seed: int) -> tuple[Disk, DurableStore]:
    """Return a log with four messages, whose write-ahead log is not the one of the witness's last synced record."""
    disk = Disk(Random(seed))
    store = open_store(disk, LOG_ID, 0)
    store.append([make_entry(b"1")])
    store.checkpoint(truncate=False)
    for payload in (b"2", b"3", b"4"):
        store.append([make_entry(payload)])
    return disk, store


@pytest.mark.parametrize("end", [Disk.kill, Disk.cut_power])
@pytest.mark.parametrize("seed", range(6))
def test_a_start_that_is_interrupted_after_a_power_cut_can_be_repeated(seed: int, end: Callable[[Disk], None]) -> None:
    disk, store = begun(seed)
    disk.die()
    store.close()
    disk.cut_power()  # loses the newest records of the witness
    calls = 0
    while interrupted_start(copy := disk.copy(Random(calls)), calls):
        end(copy)
        store = open_store(copy, LOG_ID, 0)
        assert (store.next_offset, store.findings) == (4, []), f"after {calls} calls"
        store.close()
        calls += 1
    assert calls > 5, "a start writes and syncs"


@pytest.mark.parametrize("calls_before", range(6))
def test_a_start_after_a_kill_can_be_interrupted_by_a_power_cut(calls_before: int) -> None:
    """The killed process wrote frames that it did not sync: they may be gone, and nothing else."""
    calls = 0
    while True:
        disk, store = begun(calls)
        disk.die_in(calls_before)
        with suppress(DiedError, Exception):
            store.append([make_entry(b"5")])
        disk.die()
        store.close()
        disk.kill()
        if not interrupted_start(disk, calls):
            break
        disk.cut_power()
        store = open_store(disk, LOG_ID, 0)
        assert store.next_offset in (4, 5), f"after {calls} calls"
        assert not store.findings
        store.close()
        calls += 1
    assert calls > 5, "a start writes and syncs"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_start_that_repairs_damage_can_be_interrupted(damage: Damage) -> None:
    calls = 0
    while True:
        disk, store = begun(calls)
        disk.die()
        store.close()
        disk.kill()
        disk.damage(f"{PATH}-wal", damage)
        if not interrupted_start(disk, calls):
            break
        disk.kill()
        store = open_store(disk, LOG_ID, 0)
        assert store.next_offset == 4, f"after {calls} calls"
        store.close()
        calls += 1
    assert calls > 5, "a start writes and syncs"


@pytest.mark.parametrize("seed", range(40))
def test_a_witness_that_could_not_record_the_end_of_a_checkpoint_does_so_before_the_next_commit(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That commit begins the write-ahead log anew: a record that needs the old one must not come back."""
    disk = Disk(Random(seed))

    def fail(witness: Witness, sync: Callable[[Witness], None] = Witness.sync) -> None:
        disk.trouble = "sync"
        try:
            sync(witness)
        finally:
            disk.trouble = None

    store = open_store(disk, LOG_ID, 0)
    store.append([make_entry(b"1")])
    with monkeypatch.context() as patched:
        patched.setattr(Witness, "sync", fail)
        with pytest.raises(DiskError):
            store.checkpoint(truncate=False)
    store.append([make_entry(b"2")])
    disk.die()
    store.close()
    disk.cut_power()
    store = open_store(disk, LOG_ID, 0)
    assert (store.next_offset, store.findings) == (2, [])
    store.close()


def caught(
    opener: Opener, *, kills: float = 0.0, troubles: tuple[Trouble | None, ...] = (None,), seeds: range = range(6)
) -> list[str]:
    """Return the violations of an incorrect store in some seeds."""
    found = []
    for seed in seeds:
        try:
            StoreRuns(seed, PLAN, opener, kills=kills).run(10, troubles)
        except ViolationError as error:
            found.append(error.text)
        except LogDamagedError:
            pass  # it reported the error itself
    return found


@pytest.mark.parametrize(
    ("opener", "text"),
    [
        (opener_of(SqliteStore, "OFF"), "are damaged, and were not corrupted by the disk"),
        (opener_of(SqliteStore, "NORMAL"), "is not there"),
        (opener_of(SplitStore), "expected was"),
        (opener_of(HastyStore), "is not there"),
    ],
)
def test_a_store_that_breaks_its_word_is_caught(opener: Opener, text: str) -> None:
    assert any(text in violation for violation in caught(opener))


def test_half_of_a_transaction_is_caught_without_a_power_cut() -> None:
    assert caught(opener_of(SplitStore), kills=1.0)


def test_data_of_a_killed_process_is_synced_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise data that the next process finds is lost by a power cut, with all later writes."""
    monkeypatch.setattr(SqliteStore, "_secure", lambda store: store._witness.begin(store.log_id, 0))
    # One seed in twenty notices: the kill must come between a sync that failed and the next commit.
    assert caught(opener_of(SqliteStore), kills=0.5, troubles=(None, None, "sync"), seeds=range(29, 43))


def test_corrupted_messages_are_reported_damaged() -> None:
    runs = StoreRuns(3, replace(PLAN, checkpoints=1.0))
    watched = runs.open()
    while runs.checkers.log.next_offset < 20:
        runs.append(watched)
    runs.end()
    watched = runs.open()
    runs.append(watched)
    runs.end()
    offset = next(one for one in range(20) if runs.disk.rot(PATH, payload_at(runs, one)))
    with pytest.raises(ViolationError, match="were not corrupted by the disk"):
        runs.open()
    runs.end()
    runs.checker.rotted(offset)
    runs.open()
    assert offset in runs.checkers.log.damaged
    runs.end()


def payload_at(runs: StoreRuns, offset: int) -> bytes:
    found = runs.checkers.log.at(offset)
    assert found is not None
    return b"-" if found.retain else found.payload[:200]


class ReportingBroker(Broker):
    """Notes the events that a log passes to it."""

    def __init__(self, reported: list[Any]) -> None:
        super().__init__(Settings(), entropy=bytes, now_us=0)
        self.reported = reported

    def handle(self, event: BrokerEvent, now_us: int) -> None:
        self.reported.append(event)


def test_old_messages_are_deleted_and_the_broker_notified() -> None:
    runs = StoreRuns(1, replace(PLAN, max_age_s=1.0))
    watched = runs.open()
    runs.append(watched)
    reported: list[Any] = []
    log = TrimmedLog(watched)
    log.broker = ReportingBroker(reported)
    while not watched.next_offset:
        runs.append(watched)
    log.work(runs.checkers.now_us)
    assert not reported
    log.work(runs.checkers.now_us + 10_000_000)
    assert [type(event) for event in reported] == [Losing] * len(reported)
    assert (reported[-1].pattern, reported[-1].floor) == (None, watched.next_offset)
    assert runs.checkers.log.deleted_below == watched.first_offset == watched.next_offset
    runs.end()
    runs.open()
    runs.end()


def test_a_deletion_that_fails_is_tried_again() -> None:
    runs = StoreRuns(1, replace(PLAN, max_age_s=1.0))
    watched = runs.open()
    while not watched.next_offset:
        runs.append(watched)
    runs.disk.trouble = "write"
    late_us = runs.checkers.now_us + 10_000_000
    assert watched.trim(late_us) == []
    assert watched.first_offset == 0
    runs.disk.trouble = None
    assert watched.trim(late_us)
    assert watched.first_offset == watched.next_offset
    runs.end()


def test_a_listener_reports_that_its_machine_died() -> None:
    disk = StoreRuns(1, PLAN).disk

    def shell(events: Any) -> CrashableAdapter:
        listener: Any = SimpleNamespace(receive=None, handle_timers=None, next_timer=None, events=events)
        return CrashableAdapter(listener, disk)

    def die(error: BaseException) -> Any:
        disk.die()
        raise error

    assert shell(lambda: ["a notice"]).events() == ["a notice"]
    with pytest.raises(ZeroDivisionError):
        shell(lambda: 1 // 0).events()
    for error in (DiedError(), apsw.SQLError(), DiskError("what SQLite made of it")):
        assert shell(lambda error=error: die(error)).events() == [DIED]
        disk.kill()
    disk.die()
    assert shell(list).events() == [DIED], "the error was swallowed"


def test_a_store_that_takes_a_death_for_success_is_stopped() -> None:
    runs = StoreRuns(1, PLAN)
    watched = runs.open()
    runs.disk.die()
    with pytest.raises(DiedError):
        runs.append(watched)
    with suppress(DiedError):
        runs.append(watched)
    runs.end()
    runs.open()
    assert runs.checkers.log.next_offset == 0
    runs.end()


SEEDS = range(14)


@pytest.mark.parametrize("seed", SEEDS)
def test_seeds_pass(seed: int) -> None:
    assert run_seed("durable", seed).violation is None


def test_the_same_seed_is_the_same_world_in_any_process() -> None:
    code = "from godwit_sim.worlds import run_seed; print(*(run_seed('durable', seed).digest for seed in (2, 3)))"
    here = [run_seed("durable", seed).digest for seed in (2, 3)]
    assert here[0] != here[1]
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "1"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == here


def test_the_registry() -> None:
    assert WORLDS["durable"] is run_durable


# -- a small plan -----------------------------------------------------------------------------------------------------

KEEPER = replace(SENDER, remembers=True)
CURSOR = client(
    "cursor",
    subscriptions=(SubscriptionPlan(0.0, ("home/b",), None, "here"), SubscriptionPlan(0.0, ("home/c",))),
    will=WillPlan("home/will", 1, False),
)
SILENT = client("silent", subscriptions=(SubscriptionPlan(0.0, ("no-one/publishes/this",), is_quiet=True),))
QUIET = DurablePlan(
    broker=replace(BROKER_PLAN, clients=(KEEPER, READER, CURSOR, SILENT, auditor(BROKER_PLAN.faults_end_s))),
    deaths=(),
    disk_faults=(),
    checkpoints=0.1,
    rots=0.0,
    max_age_s=None,
)
"""A sender that remembers, a reader, another with a cursor and a will, and a quiet one, without faults."""


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def storm(seed: int, **changes: Any) -> DurablePlan:
    """Return a plan in which the server dies repeatedly during its work, and both readers die too."""
    rng = Random(f"storm {seed}")
    times = sorted(rng.uniform(0.2, 1.9) for _ in range(8))
    deaths = [Death(at_s, rng.random() < 0.5, rng.choice((None, *range(8))), 0.02) for at_s in times]
    faults = tuple(Fault(rng.uniform(0.3, 1.5), "client_dies", number, 0.3) for number in (1, 2))
    return replace(QUIET, broker=replace(QUIET.broker, seed=seed, faults=faults), deaths=tuple(deaths), **changes)


def run(plan: DurablePlan, opener: Opener = open_store, server: type[Server] = Server) -> DurableWorld:
    world = DurableWorld(plan, Trace(), server, opener)
    world.run()
    return world


def test_a_quiet_run() -> None:
    world = run(QUIET)
    published = [one for one in world.checkers.published.publications if one.qos]
    assert [len(one.offsets) for one in published] == [1] * len(published)
    (audit,) = [stream for stream in world.checkers.streams if stream.name.startswith("c4.")]
    assert audit.received == world.checkers.log.next_offset
    assert (world.deaths, world.checkers.restarts.reopenings) == (1, 2), "the power is always cut at the end"
    assert "1 deaths, 2 openings" in world.summary()


def test_storms() -> None:
    recovered_appends = 0
    for seed in range(6):
        world = run(storm(seed))
        assert world.deaths > 3
        recovered_appends += world.checkers.restarts.recovered_appends
    assert recovered_appends > 0, "now and then the broker dies after a commit that is not yet confirmed"


@pytest.mark.parametrize("loses_power", [False, True])
def test_a_broker_that_dies_over_a_subscribe_still_owes_the_retained_messages(loses_power: bool) -> None:
    """The subscription may be stored, and is then resumed, although its client never got the reply."""
    recovered_appends = 0
    for in_calls in range(8):
        # All messages are published by then: the next writes are those of the reader's second subscription.
        world = run(replace(QUIET, deaths=(Death(1.499, loses_power, in_calls, 0.02),)))
        (stream,) = [one for one in world.checkers.streams if one.filters == ("+/c", "home/b")]
        assert [one.position for one in stream.retained.values()] == [19]
        recovered_appends += world.checkers.restarts.recovered_appends
    assert recovered_appends > 0, "at least one death left the subscription on disk without a reply"


def test_a_failing_disk_is_reported_to_publishers_and_later_works() -> None:
    for trouble in ("full", "write", "sync"):
        lines: list[str] = []
        plan = replace(QUIET, disk_faults=(DiskFault(0.5, 0.3, trouble),))
        world = DurableWorld(plan, Trace(lines.append), Server, open_store)
        world.run()
        refused = [line for line in lines if re.search(r"c0\.1 Refused .* code=117 text=the log .* cannot be", line)]
        assert refused
        sent = [one for one in world.checkers.published.publications if one.qos]
        lost = [one for one in sent if not one.offsets]
        assert lost
        assert all(one.confirmed_s is None for one in lost)
        late = [one for one in sent if one.sent_s > 1.0]
        assert late
        assert all(one.confirmed_s is not None for one in late)


def test_a_refused_message_is_new_when_it_is_sent_again() -> None:
    world = run(fails(1))
    sent = [one for one in world.checkers.published.publications if one.qos == 2 and one.sent_s < 0.51]
    assert len(sent) > 3
    assert [len(one.offsets) for one in sent] == [1] * len(sent)


def test_a_server_that_finds_its_disk_full_starts_when_it_is_not() -> None:
    deaths = (Death(0.5, loses_power=True, down_s=0.1),)
    world = run(replace(QUIET, deaths=deaths, disk_faults=(DiskFault(0.55, 0.5, "write"),)))
    assert world.checkers.log.next_offset > 40


def test_a_late_reader_gets_a_report_of_deleted_messages() -> None:
    slow = replace(READER, subscriptions=READER.subscriptions[:1], reading=ReadingPlan(0.0, ((0.5, 4.0),)))
    sends = tuple(PublicationPlan(0.3 + 0.05 * number, "home/b", 1, 20_000) for number in range(60))
    broker = replace(
        QUIET.broker,
        clients=(client("sender", publications=sends), slow, auditor(4.0)),
        client_window_bytes=64 * 1024,
        faults_end_s=4.0,
    )
    reader, audit = run(replace(QUIET, broker=broker, max_age_s=0.5)).checkers.streams
    assert reader.missed > 0
    assert audit.received < 60


# -- an older copy of the disk is restored ----------------------------------------------------------------------------


def restores(seed: int) -> DurablePlan:
    """Return a plan with two copies that are restored later, during publishing, with slow readers that stay."""
    rng = Random(f"restores {seed}")
    times = sorted(rng.uniform(0.3, 1.9) for _ in range(4))
    pairs = [(times[0], times[2]), (times[1], times[3])]
    slow = replace(READER, name="slow", reading=ReadingPlan(pause_s=rng.choice((0.0, 0.05))))
    broker = replace(QUIET.broker, seed=seed, clients=(KEEPER, READER, slow, QUIET.broker.clients[-1]))
    made = tuple(Restore(copied_s, at_s, rng.choice((0.0, 0.1))) for copied_s, at_s in pairs)
    return with_restores(replace(QUIET, broker=broker), made)


def test_copies_that_are_put_back() -> None:
    reported = 0
    for seed in range(6):
        lines: list[str] = []
        world = DurableWorld(restores(seed), Trace(lines.append), Server, open_store)
        world.run()
        assert world.restored == 2
        assert world.checkers.log.lost
        reported += sum("Missed" in line and "had_below=None" not in line for line in lines)
    assert reported >= 6


@pytest.mark.parametrize(
    ("where", "name", "wrong", "text"),
    [
        (SubscriptionRequests, "_known_below", nothing, "stream: .*that was not reported|refused: .*does not exist"),
        (SqliteStore, "epochs", [Epoch(b"the same", 0)], "stream: .*(that was not reported|behind offset)|refused: "),
        (Subscription, "_compare", nothing, "stream: .*that was not reported|liveness: "),
    ],
)
def test_a_part_that_confuses_histories_is_caught(
    where: Any, name: str, wrong: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, wrong)
    assert_caught(text, restores)


# -- planted faults: an incorrect store -------------------------------------------------------------------------------


def assert_caught(text: str, plan: Callable[[int], DurablePlan], opener: Opener = open_store) -> None:
    """Assert that one of the first seeds reports a violation with this text."""
    found: list[str] = []
    for seed in range(8):
        try:
            run(plan(seed), opener)
        except (ViolationError, LogDamagedError) as error:
            found.append(str(error))
            if re.match(text, found[-1]):
                return
    raise AssertionError(f"caught was {found}")


@pytest.mark.parametrize(
    ("opener", "text"),
    [
        (opener_of(SqliteStore, "OFF"), "restart: .* was confirmed"),
        (opener_of(SqliteStore, "NORMAL"), "restart: .* was confirmed"),
        (opener_of(HastyStore), "restart: .* was confirmed"),
        (opener_of(SplitStore), "restart: .* expected was"),
    ],
)
def test_a_broken_store_is_caught(opener: Opener, text: str) -> None:
    assert_caught(text, storm, opener)


def test_a_store_that_swallows_errors_is_caught() -> None:
    """It confirms appends that the disk refused."""

    class Proud(SqliteStore):
        def append(self, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
            try:
                return super().append(entries, changes)
            except Exception:
                first_offset = self.next_offset
                self._next_offset += sum(entry.count for entry in entries)
                return first_offset

    plan = replace(QUIET, disk_faults=(DiskFault(0.5, 0.3, "full"),), deaths=(Death(1.0, loses_power=False),))
    with pytest.raises(ViolationError, match=r"restart: .*(was confirmed|are damaged, and|after damage there)"):
        run(plan, opener_of(Proud))


# -- planted faults: an incorrect broker ------------------------------------------------------------------------------


RESTORE = SubscriptionRequests.restore


def no(*_: Any, **__: Any) -> bool:
    return False


def unsettled(self: SubscriptionRequests, session: Any, kept: SubscriptionRow) -> None:
    """Begin at the position of the row when it was written, as 0.5.0 did."""
    RESTORE(self, session, replace_struct(kept, quiet_from=None, is_settled=False))


def fails(seed: int) -> DurablePlan:
    """Return a plan in which the sender is disconnected after its messages, which the disk refuses."""
    faults = (Fault(0.5025, "partition", 0, 5.0),)
    broker = replace(QUIET.broker, seed=seed, faults=faults, faults_end_s=7.0)
    return replace(QUIET, broker=broker, disk_faults=(DiskFault(0.504, 0.1, "full"),))


def trims(seed: int) -> DurablePlan:
    return storm(seed, max_age_s=0.3)


def rots(seed: int) -> DurablePlan:
    return storm(seed, rots=1.0, checkpoints=1.0)


@pytest.mark.parametrize(
    ("plan", "where", "name", "wrong", "text"),
    [
        (storm, DirtyState, "identity", nothing, "log: .*already"),
        (storm, Identities, "restore", nothing, "log: .*already"),
        (fails, Identities, "rewind", nothing, "log: .*is not in the log"),
        (storm, DirtyState, "subscription", no, "restart: .*cursor .* is gone|session: .*resumed=False"),
        (storm, DirtyState, "session", no, "session: .*resumed=False|will: |liveness: .*will"),
        (storm, Admission, "restore", nothing, "session: .*resumed=False|will: |liveness: .*will"),
        (storm, AppendQueue, "_retained", lambda *_: [], "restart: .*by the log it is"),
        (storm, Catalogue, "retain", nothing, "liveness: .*is retained|retained: "),
        (
            storm,
            QuietSubscriptions,
            "unsettle_all",
            nothing,
            "restart: .*skips offset",
        ),
        (trims, SubscriptionRequests, "restore", unsettled, "stream: .*none that matches it is gone"),
        (trims, Delivery, "on_losing", nothing, "(stream|liveness): .*(skipped|waits for offsets)"),
        (rots, delivery, "_pass_damage", nothing, "(stream|liveness): .*(skipped|waits for offsets)"),
    ],
)
def test_a_broken_part_is_caught(
    plan: Callable[[int], DurablePlan], where: Any, name: str, wrong: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, wrong)
    assert_caught(text, plan)
