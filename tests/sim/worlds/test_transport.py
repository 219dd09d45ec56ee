"""The transport world: the application of one end, good seeds, reproducible runs, and planted faults."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from godwit.errors import ConnectionClosedError, SendBufferFullError
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import ChannelConfirmed, Closed, Connected, PathChanged, Received, Train, Writable
from godwit_sim.attacker import BLIND, AttackPlan
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Host, LivelockError, Network, Trace
from godwit_sim.worlds import WORLDS, run_seed
from godwit_sim.worlds.transport import Checkers, Client, End, TransportWorld, describe_event, run_transport
from godwit_sim.worlds.transport_plan import CONTROL, Fault, FaultKind, Sending, TransportPlan, draw_plan


class Stub:
    """A connection that records its calls; `room` records fit its buffer."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.room = 100
        self.closed = False
        self.channels = 0

    def open_channel(self) -> int:
        self.channels += 1
        return self.channels

    def send(self, channel: int, body: bytes, *, reliable: bool, last: bool) -> bool:
        if self.closed:
            raise ConnectionClosedError(0, "")
        if not self.room:
            raise SendBufferFullError("full")
        self.room -= 1
        self.calls.append(("send", channel, len(body), reliable, last))
        return reliable

    def consume(self, channel: int, body_bytes: int) -> None:
        self.calls.append(("consume", channel, body_bytes))

    def confirm(self, channel: int, sequence: int, reached: int) -> None:
        if self.closed:
            raise ConnectionClosedError(0, "")
        self.calls.append(("confirm", channel, sequence, reached))

    def close(self, now: float, code: int, reason: str) -> None:
        self.calls.append(("close", code, reason))


class Rig:
    def __init__(self, *todo: Sending, reads_after_s: float = 0.0, eager: bool = False) -> None:
        self.network = Network()
        self.host = self.network.add_host(Host("a", ("a", 1)))
        self.checkers = Checkers(1, self.network)
        self.stub = Stub()
        self.connection = cast(Connection, self.stub)
        self.end = End(
            self.checkers, self.host, self.connection, "c0.1", "client", deque(todo), reads_after_s, eager=eager
        )

    def connect(self) -> None:
        self.end.handle(Connected(self.connection, b""), self.network.now)

    def receive(self, body: bytes, *, channel: int = 1, record: int = 0, reliable: bool = True) -> None:
        self.checkers.delivery.sent(("c0.1", "down", channel), body, reliable=reliable)
        event = Received(self.connection, channel, record, body, reliable)
        self.end.handle(event, self.network.now)


def test_records_go_when_they_are_due() -> None:
    rig = Rig(Sending(0.0, 0, 5), Sending(0.0, CONTROL, 6), Sending(1.0, 1, 7, reliable=False), Sending(1.0, 0, 8))
    assert rig.stub.calls == []
    rig.connect()
    assert rig.stub.calls == [("send", 1, 5, True, False), ("send", 0, 6, True, False)]
    rig.network.run(2.0)
    assert rig.stub.calls[2:] == [("send", 2, 7, False, False), ("send", 1, 8, True, False)]
    assert rig.checkers.delivery.outstanding() == {("c0.1", "up", 1): 2, ("c0.1", "up", 0): 1}


def test_an_eager_end_does_not_wait_to_be_connected() -> None:
    rig = Rig(Sending(0.0, 0, 5), eager=True)
    rig.end.work()
    assert rig.stub.calls == [("send", 1, 5, True, False)]


def test_a_full_buffer_waits_for_writable() -> None:
    rig = Rig(*(Sending(0.0, 0, size) for size in (1, 2, 3)))
    rig.stub.room = 2
    rig.connect()
    assert len(rig.stub.calls) == 2
    rig.end.work()
    assert len(rig.end.todo) == 1
    rig.stub.room = 1
    rig.end.handle(Writable(rig.connection), 0.0)
    assert len(rig.stub.calls) == 3
    with pytest.raises(ViolationError, match="no send had found"):
        rig.end.handle(Writable(rig.connection), 0.0)


def test_an_ended_channel_is_replaced() -> None:
    rig = Rig(Sending(0.0, 0, 1, last=True), Sending(0.0, 0, 2))
    rig.connect()
    assert rig.stub.calls == [("send", 1, 1, True, True), ("send", 2, 2, True, False)]


def test_a_closed_connection_keeps_the_rest_for_the_next() -> None:
    rig = Rig(Sending(0.0, 0, 1))
    rig.stub.closed = True
    rig.connect()
    assert len(rig.end.todo) == 1


def test_reading_at_once_and_confirming_every_third() -> None:
    rig = Rig()
    rig.connect()
    for number in range(3):
        rig.receive(bytes(10 + number), record=number)
    rig.receive(b"unreliable", reliable=False)  # costs no credit
    consumed = [("consume", 1, 10), ("consume", 1, 11), ("consume", 1, 12)]
    assert rig.stub.calls == [*consumed, ("confirm", 1, 3, 3)]
    assert rig.checkers.confirms.outstanding() == [("c0.1", "down", 1)]


def test_reading_late() -> None:
    rig = Rig(reads_after_s=1.0)
    rig.connect()
    rig.receive(b"abc")
    rig.network.run(0.9)
    assert rig.stub.calls == []
    rig.network.run(1.1)
    assert rig.stub.calls == [("consume", 1, 3)]
    rig.receive(b"abcd", record=1)
    rig.end.died()
    rig.network.run(3.0)
    assert len(rig.stub.calls) == 1


def test_confirming_on_a_connection_that_just_closed() -> None:
    rig = Rig()
    rig.connect()
    rig.stub.closed = True
    for number in range(3):
        rig.receive(b"x", record=number)
    assert rig.checkers.confirms.outstanding() == []


def test_other_events_reach_the_checkers() -> None:
    rig = Rig()
    rig.connect()
    rig.checkers.confirms.given(("c0.1", "up", 1), 3, 1)
    rig.end.handle(ChannelConfirmed(rig.connection, 1, 3, 1), 0.0)
    rig.end.handle(PathChanged(rig.connection, ("b", 2)), 0.0)
    rig.checkers.confirms.complete()
    with pytest.raises(ViolationError, match="never confirmed"):
        rig.end.handle(ChannelConfirmed(rig.connection, 1, 4, 1), 0.0)


def test_closing() -> None:
    rig = Rig(Sending(0.0, 0, 1))
    rig.connect()
    rig.end.close(7, "enough")
    assert rig.stub.calls[-1] == ("close", 7, "enough")
    rig.end.handle(Closed(rig.connection, 7, "enough", "local"), 0.0)
    assert rig.end.over
    assert rig.checkers.delivery.outstanding() == {}
    rig.end.close(8, "again")
    assert rig.stub.calls[-1] == ("close", 7, "enough")


def test_an_orphan_sends_nothing_and_excuses_no_loss() -> None:
    rig = Rig(Sending(0.0, 0, 1), Sending(1.0, 0, 1))
    rig.connect()
    rig.end.orphaned()
    rig.network.run(2.0)
    assert len(rig.stub.calls) == 1
    rig.end.handle(Closed(rig.connection, 6, "silence", "timeout"), 2.0)
    assert rig.checkers.delivery.outstanding() == {("c0.1", "up", 1): 1}


def test_contents_differ() -> None:
    checkers = Checkers(1, Network())
    places = [("c0.1", "up", 0), ("c0.1", "up", 1), ("c0.1", "down", 0), ("c0.2", "up", 0)]
    assert len({checkers.content(*place, 16) for place in places}) == 4
    assert checkers.content("c0.1", "up", 0, 16) == Checkers(1, Network()).content("c0.1", "up", 0, 16)
    assert checkers.content("c0.1", "up", 0, 16) != Checkers(2, Network()).content("c0.1", "up", 0, 16)


def test_a_client_through_its_connections() -> None:
    plan = next(plan for plan in map(draw_plan, range(100)) if plan.clients[0].start_s and plan.clients[0].sends_up)
    client = Client(3, plan.clients[0], Host("client3", ("a", 1)))
    assert client.todo_up[0].at_s == plan.clients[0].start_s + plan.clients[0].sends_up[0].at_s
    client.connections += 2
    assert client.label == "c3.2"


def test_describe_event() -> None:
    event = Received(cast(Connection, Stub()), 1, 2, b"12345")
    assert describe_event(event) == "Received channel=1 record=2 body=5 reliable=True last=False"


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
    assert world.checkers.delivery.received_records == 2 * len(SENDS) + 2


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


# -- planted faults: an incorrect transport ---------------------------------------------------------------------------


class Broken(Endpoint):
    """Change the tenth record that it receives."""

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
    """Stop sending after a while."""

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
        (ClosesTwice, ViolationError, "lifecycle: .*Closed after Closed"),
        (ForgetsTimers, ViolationError, "timers: .*no timer"),
        (Spins, ViolationError, "timers: .*same instant"),
        (Chatters, LivelockError, "still produces"),
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
def test_a_violation_is_reported(endpoint: type[Endpoint], text: str) -> None:
    violation, summary = run_transport(0, Trace(), endpoint)
    assert violation is not None
    assert text in violation
    assert "clients" in summary
