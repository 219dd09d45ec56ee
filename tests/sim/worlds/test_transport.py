"""The transport world: good seeds pass, the same seed is the same world, and a broken transport is caught."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Closed, Received, Train
from godwit_sim.attacker import BLIND, AttackPlan
from godwit_sim.checkers import ViolationError
from godwit_sim.network import UnrestError
from godwit_sim.trace import Trace
from godwit_sim.worlds import WORLDS, run_seed
from godwit_sim.worlds.transport import TransportWorld, run_transport
from godwit_sim.worlds.transport_plan import Fault, FaultKind, Sending, TransportPlan, draw_plan

QUIET = next(
    plan
    for plan in map(draw_plan, range(1000))
    if not plan.troubles and len(plan.clients) == 1 and plan.clients[0].sends_up
)
SENDS = tuple(Sending(0.02 * number, number % 2, 200 * number) for number in range(30))
PLAN = replace(QUIET, clients=(replace(QUIET.clients[0], start_s=0.0, sends_up=SENDS, sends_down=SENDS),))
"""One client, no trouble, thirty records on two channels each way."""


def run(plan: TransportPlan, endpoint: type[Endpoint] = Endpoint) -> TransportWorld:
    world = TransportWorld(plan, Trace(), endpoint)
    world.run()
    return world


@pytest.mark.parametrize("seed", range(12))
def test_seeds_pass(seed: int) -> None:
    outcome = run_seed("transport", seed)
    assert outcome.violation is None


def test_the_quiet_plan_delivers_everything() -> None:
    world = run(PLAN)
    assert world.books.delivery.received_records == 2 * len(SENDS) + 2


@pytest.mark.parametrize(
    "kind", ["partition", "rebind", "pause", "server_dies", "client_dies", "client_closes", "server_closes"]
)
def test_single_faults(kind: FaultKind) -> None:
    run(replace(PLAN, troubles=(kind,), faults=(Fault(0.3, kind, 0, 0.4), Fault(0.35, kind, 0, 0.4))))


@pytest.mark.parametrize("spoofs", [False, True])
def test_a_blind_attacker_does_no_harm(spoofs: bool) -> None:
    world = run(replace(PLAN, troubles=("attacker",), attack=AttackPlan(0.0, 1.0, 300, BLIND, spoofs)))
    assert world.clients[0].connections == 1


def test_the_same_seed_is_the_same_world_in_any_process() -> None:
    code = "from godwit_sim.worlds import run_seed; print(*(run_seed('transport', seed).digest for seed in (3, 4)))"
    here = [run_seed("transport", seed).digest for seed in (3, 4)]
    assert here[0] != here[1]
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True)
        assert done.stdout.split() == here


def test_reading_the_trace_does_not_change_it() -> None:
    lines: list[str] = []
    assert run_seed("transport", 3, Trace(lines.append)).digest == run_seed("transport", 3).digest
    assert len(lines) > 100


def test_the_registry() -> None:
    assert "transport" in WORLDS


# -- broken transports ------------------------------------------------------------------------------------------------


class Broken(Endpoint):
    """Does something wrong to the tenth record that it receives."""

    count = 0

    def events(self) -> list[Any]:
        found: list[Any] = []
        for event in super().events():
            if isinstance(event, Received):
                self.count += 1
                if self.count == 10:
                    found += self.spoil(event)
                    continue
            found.append(event)
        return found

    def spoil(self, event: Received) -> list[Any]:
        return []  # lost


class Repeats(Broken):
    def spoil(self, event: Received) -> list[Any]:
        return [event, event]


class Swaps(Broken):
    kept: Received | None = None

    def events(self) -> list[Any]:
        events = super().events()
        kept = self.kept
        if kept is not None and any(isinstance(event, Received) and event.channel == kept.channel for event in events):
            events.append(kept)
            self.kept = None
        return events

    def spoil(self, event: Received) -> list[Any]:
        self.kept = event
        return []


class Corrupts(Broken):
    def spoil(self, event: Received) -> list[Any]:
        return [msgspec.structs.replace(event, body=event.body[:-1] + bytes([event.body[-1] ^ 1]))]


class ClosesTwice(Endpoint):
    def events(self) -> list[Any]:
        return [event for event in super().events() for _ in range(2 if isinstance(event, Closed) else 1)]


class ForgetsTimers(Endpoint):
    def next_timer(self) -> float | None:
        return None


class Spins(Endpoint):
    def next_timer(self) -> float | None:
        due = super().next_timer()
        return None if due is None else min(due, max(self.now, 0.0))


class Chatters(Endpoint):
    def trains(self, now: float) -> list[Train]:
        again = Train(("192.0.2.1", 4000), b"again", 5)
        return [*super().trains(now), *(() if self._config.accepts else (again,))]


class Amplifies(Endpoint):
    echo: tuple[Train, ...] = ()

    def receive(self, train: Train, now: float) -> None:
        super().receive(train, now)
        if not self.connections:
            self.echo = (Train(train.address, train.data * 4, train.segment_bytes),)

    def trains(self, now: float) -> list[Train]:
        echo, self.echo = self.echo, ()
        return [*super().trains(now), *echo]


class Leaks(Endpoint):
    @property
    def buffered_bytes(self) -> int:
        return 2**40


class Raises(Endpoint):
    def receive(self, train: Train, now: float) -> None:
        raise ZeroDivisionError("on purpose")


class Stalls(Endpoint):
    """Sends nothing more after a while."""

    def trains(self, now: float) -> list[Train]:
        trains = super().trains(now)
        return trains if now < 0.3 else []


@pytest.mark.parametrize(
    ("endpoint", "error", "text"),
    [
        (Broken, ViolationError, "delivery: .*(lost, or out of order|never arrived)"),
        (Repeats, ViolationError, "delivery: .*(twice|after record)"),
        (Swaps, ViolationError, "delivery: .*out of order"),
        (Corrupts, ViolationError, "delivery: .*differ"),
        (ClosesTwice, ViolationError, "life: .*Closed after Closed"),
        (ForgetsTimers, ViolationError, "timers: .*no timer"),
        (Spins, ViolationError, "timers: .*same instant"),
        (Chatters, UnrestError, "still produces"),
        (Amplifies, ViolationError, "three times: "),
        (Leaks, ViolationError, "memory: "),
        (Raises, ZeroDivisionError, "on purpose"),
        (Stalls, ViolationError, "liveness: .*not true"),
    ],
)
def test_a_broken_transport_is_caught(endpoint: type[Endpoint], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run(PLAN, endpoint)


@pytest.mark.parametrize(
    ("endpoint", "text"), [(Raises, "an exception escaped"), (Chatters, "unrest"), (Leaks, "memory")]
)
def test_a_violation_is_told(endpoint: type[Endpoint], text: str) -> None:
    violation, summary = run_transport(0, Trace(), endpoint)
    assert violation is not None
    assert text in violation
    assert "clients" in summary
