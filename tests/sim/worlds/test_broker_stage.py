"""What stands between server and world: the log is read along, listeners wake each other, the roster hears first."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.sim.broker_truth import Truth

from godwit.broker.settings import Settings
from godwit.server.memory_log import MemoryLog
from godwit.server.server import Server
from godwit.store.memory import MemoryStore
from godwit.store.port import Entry
from godwit.transport.config import EndpointConfig
from godwit.transport.events import Connected, Train
from godwit_sim.broker_ledger import Publication
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Host, Network
from godwit_sim.worlds.broker_books import Books
from godwit_sim.worlds.broker_stage import ListenerShell, Siblings, WatchedStore, listen_at


def entry_of(books: Books, **how: Any) -> tuple[Publication, Entry]:
    truth = Truth(books.ledger, books.now_us + books._count)
    books.payload(16)
    made = truth.publish(**how)
    return made, truth.entry(made)


def test_the_log_is_read_along() -> None:
    books = Books(1, Network())
    store = WatchedStore(64 * 1024, books, bytes(16))
    first, entry = entry_of(books)
    kept, other = entry_of(books, retain=True)
    assert store.append([entry, other]) == 0
    assert (first.offsets, kept.offsets) == ([0], [1])
    assert books.retained._history["a/b"] == [(0.0, kept)]
    assert books.network.trace.notes == 2


def test_what_the_log_drops_is_known() -> None:
    books = Books(1, Network())
    store = WatchedStore(64 * 1024, books, bytes(16))
    for number in range(100):
        store.append([entry_of(books, payload=b"%d" % number + bytes(2000))[1]])
    assert 0 < books.log.gone_below == store.first_offset


def test_a_ring_that_grows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books(1, Network())
    store = WatchedStore(64 * 1024, books, bytes(16))
    entries = [entry_of(books, payload=b"%d" % number)[1] for number in range(2)]
    monkeypatch.setattr(MemoryStore, "size_bytes", property(lambda self: 10**6))
    with pytest.raises(ViolationError, match="the ring holds 1000000 bytes"):
        store.append(entries)


def serve(listeners: int) -> tuple[Books, Server, list[Host]]:
    books = Books(1, Network())
    store = WatchedStore(64 * 1024, books, bytes(16))
    server = Server(Settings(), MemoryLog(store), entropy=Random(1).randbytes, now=0.0, epoch_us=books.now_us)
    hosts = [books.network.add_host(Host(f"server{number}", (f"s{number}", 1))) for number in range(listeners)]
    for host in hosts:
        listen_at(
            server.listen(EndpointConfig(accepts=True)), lambda events: books.roster.heard(events, books.network.now)
        )
        books.network.start(host, ListenerShell(server.listeners[-1]), lambda events, now: None)
    return books, server, hosts


def test_what_is_fed_to_one_listener_wakes_the_others() -> None:
    books, _, hosts = serve(2)
    siblings = Siblings(books, hosts)
    node = hosts[0].node
    assert isinstance(node, ListenerShell)
    waiting = len(books.network._heap)
    node.receive(Train(("a", 1), b"x", 1), 0.0)
    node.handle_timers(0.0)
    for _ in range(2):
        siblings.rested(hosts[0], 0.0)
    assert len(books.network._heap) == waiting + 1, "once for each feed, or they would wake each other for ever"


def test_the_roster_hears_what_the_broker_hears() -> None:
    books, server, _ = serve(1)
    connection: Any = type("Somebody", (), {"peer_address": ("a", 1)})()
    server.listeners[0].endpoint.pending_events.append(Connected(connection, b""))
    server.run_turn()
    assert [seat.connection for seat in books.roster.seats] == [connection]
