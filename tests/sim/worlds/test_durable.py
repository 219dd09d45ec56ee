"""The durable world: good seeds pass, the same seed is the same world, and each planted fault is caught."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct
from tests.sim.worlds.broker_scene import PLAN, READER, SENDER, client
from tests.sim.worlds.durable_scene import HastyStore, SplitStore, opener_of

from godwit.broker import delivery
from godwit.broker.admission import Admission
from godwit.broker.append_queue import AppendQueue
from godwit.broker.catalogue import Catalogue
from godwit.broker.delivery import Delivery
from godwit.broker.dirty_state import DirtyState
from godwit.broker.identities import Identities
from godwit.broker.subscription import QuietSubscriptions
from godwit.broker.subscriptions import SubscriptionRequests
from godwit.client.subscription import Subscription
from godwit.errors import LogDamagedError
from godwit.server.server import Server
from godwit.store.port import Change, Entry
from godwit.store.sqlite import SqliteStore
from godwit.wire.changes import SubscriptionRow
from godwit.wire.epochs import Epoch
from godwit_sim.checkers import ViolationError
from godwit_sim.trace import Trace
from godwit_sim.worlds import WORLDS, run_seed
from godwit_sim.worlds.broker_plan import Fault, PublicationPlan, ReadingPlan, SubscriptionPlan, WillPlan
from godwit_sim.worlds.durable import DurableWorld, run_durable
from godwit_sim.worlds.durable_plan import Death, DiskFault, DurablePlan, Restore, auditor, with_restores
from godwit_sim.worlds.durable_stage import Opener, open_store

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
SILENT = client("silent", subscriptions=(SubscriptionPlan(0.0, ("nobody/publishes/this",), is_quiet=True),))
QUIET = DurablePlan(
    broker=replace(PLAN, clients=(KEEPER, READER, CURSOR, SILENT, auditor(PLAN.faults_end_s))),
    deaths=(),
    disk_faults=(),
    checkpoints=0.1,
    rots=0.0,
    max_age_s=None,
)
"""A sender that remembers, a reader, another with a cursor and a will, and a quiet one; the server is left in peace."""


def nothing(*_: Any, **__: Any) -> None:
    """Forgets to do it."""


def storm(seed: int, **changes: Any) -> DurablePlan:
    """The server dies again and again, in the midst of its work; both who read die too."""
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
    published = [one for one in world.books.ledger.publications if one.qos]
    assert [len(one.offsets) for one in published] == [1] * len(published)
    (audit,) = [stream for stream in world.books.streams if stream.name.startswith("c4.")]
    assert audit.received == world.books.log.next_offset
    assert (world.deaths, world.books.restarts.reopenings) == (1, 2), "the power is always cut at the end"
    assert "1 deaths, 2 openings" in world.summary()


def test_storms() -> None:
    surfaced = 0
    for seed in range(6):
        world = run(storm(seed))
        assert world.deaths > 3
        surfaced += world.books.restarts.surfaced
    assert surfaced > 0, "now and then the broker dies behind a commit that nobody has heard of"


@pytest.mark.parametrize("loses_power", [False, True])
def test_a_broker_that_dies_over_a_subscribe_still_owes_the_retained_messages(loses_power: bool) -> None:
    """The subscription may be stored, and is then resumed, although its client never got the reply."""
    surfaced = 0
    for in_calls in range(8):
        # All messages are published by then: the next writes are those of the reader's second subscription.
        world = run(replace(QUIET, deaths=(Death(1.499, loses_power, in_calls, 0.02),)))
        (stream,) = [one for one in world.books.streams if one.filters == ("+/c", "home/b")]
        assert [one.place for one in stream.retained.values()] == [19]
        surfaced += world.books.restarts.surfaced
    assert surfaced > 0, "at least one death left the subscription on disk without a reply"


def test_a_disk_that_fails_is_told_to_publishers_and_later_all_is_well() -> None:
    for trouble in ("full", "write", "sync"):
        lines: list[str] = []
        plan = replace(QUIET, disk_faults=(DiskFault(0.5, 0.3, trouble),))
        world = DurableWorld(plan, Trace(lines.append), Server, open_store)
        world.run()
        refused = [line for line in lines if re.search(r"c0\.1 Refused .* code=117 text=the log .* cannot be", line)]
        assert refused
        sent = [one for one in world.books.ledger.publications if one.qos]
        lost = [one for one in sent if not one.offsets]
        assert lost
        assert all(one.confirmed_s is None for one in lost)
        late = [one for one in sent if one.sent_s > 1.0]
        assert late
        assert all(one.confirmed_s is not None for one in late)


def test_what_the_disk_did_not_take_is_new_when_it_comes_again() -> None:
    world = run(fails(1))
    sent = [one for one in world.books.ledger.publications if one.qos == 2 and one.sent_s < 0.51]
    assert len(sent) > 3
    assert [len(one.offsets) for one in sent] == [1] * len(sent)


def test_a_server_that_finds_its_disk_full_starts_when_it_is_not() -> None:
    deaths = (Death(0.5, loses_power=True, down_s=0.1),)
    world = run(replace(QUIET, deaths=deaths, disk_faults=(DiskFault(0.55, 0.5, "write"),)))
    assert world.books.log.next_offset > 40


def test_who_is_late_is_told_what_retention_took() -> None:
    slow = replace(READER, subscriptions=READER.subscriptions[:1], reading=ReadingPlan(0.0, ((0.5, 4.0),)))
    sends = tuple(PublicationPlan(0.3 + 0.05 * number, "home/b", 1, 20_000) for number in range(60))
    broker = replace(
        QUIET.broker,
        clients=(client("sender", publications=sends), slow, auditor(4.0)),
        client_window_bytes=64 * 1024,
        faults_end_s=4.0,
    )
    reader, audit = run(replace(QUIET, broker=broker, max_age_s=0.5)).books.streams
    assert reader.missed > 0
    assert audit.received < 60


# -- an older copy of the disk is put back ----------------------------------------------------------------------------


def restores(seed: int) -> DurablePlan:
    """Two copies are made and put back later, while messages flow; those who read are slow, and stay."""
    rng = Random(f"restores {seed}")
    times = sorted(rng.uniform(0.3, 1.9) for _ in range(4))
    pairs = [(times[0], times[2]), (times[1], times[3])]
    slow = replace(READER, name="slow", reading=ReadingPlan(pause_s=rng.choice((0.0, 0.05))))
    broker = replace(QUIET.broker, seed=seed, clients=(KEEPER, READER, slow, QUIET.broker.clients[-1]))
    made = tuple(Restore(copied_s, at_s, rng.choice((0.0, 0.1))) for copied_s, at_s in pairs)
    return with_restores(replace(QUIET, broker=broker), made)


def test_copies_that_are_put_back() -> None:
    told = 0
    for seed in range(6):
        lines: list[str] = []
        world = DurableWorld(restores(seed), Trace(lines.append), Server, open_store)
        world.run()
        assert world.restored == 2
        assert world.books.log.lost
        told += sum("Missed" in line and "had_below=None" not in line for line in lines)
    assert told >= 6


@pytest.mark.parametrize(
    ("where", "name", "wrong", "text"),
    [
        (SubscriptionRequests, "_known_below", nothing, "stream: .*it was not told|refused: .*does not exist"),
        (SqliteStore, "epochs", [Epoch(b"the same", 0)], "stream: .*(it was not told|behind offset)|refused: "),
        (Subscription, "_compare", nothing, "stream: .*it was not told|liveness: "),
    ],
)
def test_a_part_that_does_not_tell_histories_apart_is_caught(
    where: Any, name: str, wrong: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, wrong)
    assert_caught(text, restores)


# -- planted faults: a store that breaks its word ---------------------------------------------------------------------


def assert_caught(text: str, plan: Callable[[int], DurablePlan], opener: Opener = open_store) -> None:
    """One of the first seeds notices it, and says what it should."""
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
    """It says that it has what the disk did not take."""

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


# -- planted faults: a broker that breaks its word --------------------------------------------------------------------


RESTORE = SubscriptionRequests.restore


def no(*_: Any, **__: Any) -> bool:
    return False


def unsettled(self: SubscriptionRequests, session: Any, kept: SubscriptionRow) -> None:
    """Begins where its row stood when it was written, as 0.5.0 did."""
    RESTORE(self, session, replace_struct(kept, quiet_from=None, is_settled=False))


def fails(seed: int) -> DurablePlan:
    """The sender's line breaks just behind its messages, which the disk does not take: it hears nothing of that."""
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
            "restart: .*passes over offset",
        ),
        (trims, SubscriptionRequests, "restore", unsettled, "stream: .*none that is gone was for it"),
        (trims, Delivery, "on_losing", nothing, "(stream|liveness): .*(passed over|waits for offsets)"),
        (rots, delivery, "_pass_damage", nothing, "(stream|liveness): .*(passed over|waits for offsets)"),
    ],
)
def test_a_broken_part_is_caught(
    plan: Callable[[int], DurablePlan], where: Any, name: str, wrong: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, wrong)
    assert_caught(text, plan)
