"""The harness of the broker world: unique messages and times, readable events, observed appends, woken listeners."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.sim.broker_models import Models

from godwit.broker.settings import Settings
from godwit.client import events as client_events
from godwit.server.memory_log import MemoryLog
from godwit.server.server import Server
from godwit.store.memory import MemoryStore
from godwit.store.port import Entry
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.events import Connected, Train
from godwit_sim.broker_log_model import SHARED_TIME_US, Publication
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Host, Network
from godwit_sim.worlds.broker_harness import (
    EPOCH_US,
    ODD_US,
    Checkers,
    ListenerAdapter,
    NodeAdapter,
    SiblingListeners,
    WatchedStore,
    describe,
    observe_events,
)


def test_payloads_are_unlike_each_other_and_as_long_as_asked() -> None:
    checkers = Checkers(1, Network())
    payloads = [checkers.payload(size) for size in (16, 16, 100, 0)]
    assert len(set(payloads)) == 4
    assert [len(payload) for payload in payloads] == [16, 16, 100, 16]


def test_another_world_is_equal() -> None:
    one, other = Checkers(1, Network()), Checkers(1, Network())
    assert one.payload(50) == other.payload(50)
    assert one.payload(50) != Checkers(2, Network()).payload(50)


def test_dates_rise_and_empty_messages_keep_their_distance() -> None:
    checkers = Checkers(1, Network())
    dates = [checkers.date_us(b"x"), checkers.date_us(b"x"), checkers.date_us(b"")]
    assert dates[0] < dates[1] < dates[2] - SHARED_TIME_US
    checkers.network.now = 3.0
    assert checkers.date_us(b"x") == EPOCH_US + 3_000_000 == checkers.now_us


def test_odd_calendars_are_odd_but_not_absurd() -> None:
    checkers = Checkers(1, Network(), odd_clocks=True)
    dates = [checkers.date_us(b"x") for _ in range(100)]
    assert len(set(dates)) == 100
    assert dates != sorted(dates)
    assert all(abs(date - EPOCH_US) <= ODD_US for date in dates)


def test_notes_go_to_the_trace() -> None:
    checkers = Checkers(1, Network())
    checkers.note("something")
    assert checkers.network.trace.notes == 1


class Machine:
    """A stand-in with the interface of a client."""

    def __init__(self) -> None:
        self.left = [Train(("a", 1), b"x", 1), Train(("a", 1), b"y", 1)]

    def next_train(self, now: float) -> Train | None:
        return self.left.pop(0) if self.left else None

    def receive(self, train: Train, now: float) -> None: ...
    def handle_timers(self, now: float) -> None: ...
    def events(self) -> list[Any]:
        return ["event"]

    def next_timer(self) -> float | None:
        return 5.0


def test_a_shell_hands_over_all_trains() -> None:
    shell = NodeAdapter(Machine())
    assert [train.data for train in shell.trains(0.0)] == [b"x", b"y"]
    assert shell.trains(0.0) == []
    assert (shell.events(), shell.next_timer()) == (["event"], 5.0)


class Source:
    topic, qos, filters = "a/b", 1, ("a/#", "b")


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (client_events.Online(True, "sensor"), "Online resumed=True name=sensor"),
        (client_events.Confirmed(Source(), 5, 2), "Confirmed a/b QoS 1 sequence=5 reached=2"),  # type: ignore[arg-type]
        (client_events.Available(Source()), "Available a/# and b "),  # type: ignore[arg-type]
    ],
)
def test_events_are_described_without_addresses(event: Any, text: str) -> None:
    assert describe(event) == text


def entry_of(checkers: Checkers, **how: Any) -> tuple[Publication, Entry]:
    models = Models(checkers.published, checkers.now_us + checkers._count)
    checkers.payload(16)
    made = models.publish(**how)
    return made, models.entry(made)


def test_the_log_is_read_along() -> None:
    checkers = Checkers(1, Network())
    store = WatchedStore(64 * 1024, checkers, bytes(16))
    first, entry = entry_of(checkers)
    kept, other = entry_of(checkers, retain=True)
    assert store.append([entry, other]) == 0
    assert (first.offsets, kept.offsets) == ([0], [1])
    assert checkers.retained._history["a/b"] == [(0.0, kept)]
    assert checkers.network.trace.notes == 2


def test_deleted_offsets_are_known() -> None:
    checkers = Checkers(1, Network())
    store = WatchedStore(64 * 1024, checkers, bytes(16))
    for number in range(100):
        store.append([entry_of(checkers, payload=b"%d" % number + bytes(2000))[1]])
    assert 0 < checkers.log.deleted_below == store.first_offset


def test_a_ring_that_grows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    checkers = Checkers(1, Network())
    store = WatchedStore(64 * 1024, checkers, bytes(16))
    entries = [entry_of(checkers, payload=b"%d" % number)[1] for number in range(2)]
    monkeypatch.setattr(MemoryStore, "size_bytes", property(lambda self: 10**6))
    with pytest.raises(ViolationError, match="the ring holds 1000000 bytes"):
        store.append(entries)


def serve(listeners: int) -> tuple[Checkers, Server, list[Host]]:
    checkers = Checkers(1, Network())
    store = WatchedStore(64 * 1024, checkers, bytes(16))
    server = Server(Settings(), MemoryLog(store), entropy=Random(1).randbytes, now=0.0, epoch_us=checkers.now_us)
    hosts = [checkers.network.add_host(Host(f"server{number}", (f"s{number}", 1))) for number in range(listeners)]
    for host in hosts:
        observe_events(
            server,
            EndpointConfig(accepts=True),
            lambda events: checkers.connections.handle_events(events, checkers.network.now),
        )
        checkers.network.start(host, ListenerAdapter(server.listeners[-1]), lambda events, now: None)
    return checkers, server, hosts


def test_input_to_one_listener_wakes_the_others() -> None:
    checkers, _, hosts = serve(2)
    siblings = SiblingListeners(checkers, hosts)
    node = hosts[0].node
    assert isinstance(node, ListenerAdapter)
    waiting = len(checkers.network._heap)
    node.receive(Train(("a", 1), b"x", 1), 0.0)
    node.handle_timers(0.0)
    for _ in range(2):
        siblings.drained(hosts[0], 0.0)
    assert len(checkers.network._heap) == waiting + 1, "once for each feed, or they would wake each other for ever"


class Alice(Connection):
    """A connection that has an address only."""

    def __init__(self) -> None:
        self.peer_address = ("a", 1)


def test_the_connection_model_gets_the_broker_s_events() -> None:
    checkers, server, _ = serve(1)
    connection = Alice()
    server.listeners[0].endpoint.pending_events.append(Connected(connection, b""))
    server.run_turn()
    assert [conn.connection for conn in checkers.connections.records] == [connection]
