"""Handshakes of many clients at once: they wait, each client once, and do not delay the open connections."""

from __future__ import annotations

import random

import pytest
from tests.transport.world import SERVER, World

from godwit.limits import (
    BASE_DATAGRAM_BYTES,
    CONNECT_COST,
    HANDSHAKE_COST_A_TURN,
    MAX_HELLOS_WAITING,
)
from godwit.transport import endpoint as endpoint_module
from godwit.transport.admission import HandshakeQueue
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, Connected, ConnectionState, Train
from godwit.wire import packet as wire

HERE: Address = ("192.0.2.7", 1)
THERE: Address = ("192.0.2.8", 2)


def hello(number: int) -> wire.HelloFrame:
    return wire.HelloFrame(number, number.to_bytes(wire.NONCE_BYTES, "big"))


def connect(number: int) -> wire.ConnectFrame:
    return wire.ConnectFrame(number, number.to_bytes(wire.NONCE_BYTES, "big"), bytes(20), b"")


def test_connects_come_first_and_each_kind_in_its_order() -> None:
    queue = HandshakeQueue()
    for number in (1, 2):
        assert queue.add_hello(hello(number), HERE)
    for number in (3, 4):
        assert queue.add_connect(connect(number), HERE)
    assert len(queue) == 4
    order = [queue.next() for _ in range(4)]
    assert [frame for frame, _, _ in order] == [connect(3), connect(4), hello(1), hello(2)]
    assert [cost for _, _, cost in order] == [CONNECT_COST, CONNECT_COST, 1, 1]
    assert not queue


def test_a_client_waits_once_and_keeps_its_place_at_its_new_address() -> None:
    queue = HandshakeQueue()
    for number in (1, 2, 1):
        queue.add_hello(hello(number), HERE)
    assert queue.repeat_hello((1).to_bytes(8, "big") + hello(1).nonce, THERE)
    assert not queue.repeat_hello((3).to_bytes(8, "big") + hello(3).nonce, THERE)
    assert [queue.next()[:2] for _ in range(2)] == [(hello(1), THERE), (hello(2), HERE)]
    assert not queue


def test_it_is_bounded() -> None:
    queue = HandshakeQueue()
    assert all(queue.add_hello(hello(number), HERE) for number in range(MAX_HELLOS_WAITING))
    assert not queue.add_hello(hello(MAX_HELLOS_WAITING), HERE)
    assert queue.add_hello(hello(0), HERE)
    assert len(queue) == MAX_HELLOS_WAITING


class Storm:
    """A server, and many clients that begin at once: all of their packets arrive before the server's next turn."""

    def __init__(self, seed: int, count: int) -> None:
        rng = random.Random(seed)
        self.now = 100.0
        self.server = Endpoint(EndpointConfig(accepts=True), entropy=rng.randbytes)
        self.clients: dict[Address, Endpoint] = {}
        self.connections: list[Connection] = []
        for number in range(count):
            endpoint = Endpoint(EndpointConfig(), entropy=rng.randbytes)
            self.clients["192.0.2.9", number] = endpoint
            self.connections.append(endpoint.connect(SERVER, self.now))
        self.turns: list[int] = []
        """How many packets the server sent in each turn."""

    def turn(self) -> None:
        self.now += 0.001
        for address, endpoint in self.clients.items():
            due = endpoint.next_timer()
            if due is not None and due <= self.now:
                endpoint.handle_timers(self.now)
            for train in endpoint.trains(self.now):
                self.server.receive(Train(address, train.data, train.segment_bytes), self.now)
        due = self.server.next_timer()
        if due is not None and due <= self.now:
            self.server.handle_timers(self.now)
        trains = self.server.trains(self.now)
        self.turns.append(len(trains))
        for train in trains:
            self.clients[train.address].receive(Train(SERVER, train.data, train.segment_bytes), self.now)

    def run(self) -> None:
        for _ in range(3000):
            if all(connection.state is ConnectionState.OPEN for connection in self.connections):
                return
            self.turn()
        raise AssertionError("some clients were never accepted")


@pytest.mark.parametrize("seed", range(3))
def test_all_get_in_as_without_a_queue(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Storm(seed, 150)
    waiting.turn()
    assert waiting.server.waiting_handshakes == 150 - 2 * HANDSHAKE_COST_A_TURN  # on arrival, and by the timer
    waiting.run()
    monkeypatch.setattr(endpoint_module, "HANDSHAKE_COST_A_TURN", 10**9)
    at_once = Storm(seed, 150)
    at_once.turn()
    assert at_once.turns == [150]
    at_once.run()
    for storm in (waiting, at_once):
        assert len(storm.server.connections) == 150
        assert sum(isinstance(event, Connected) for event in storm.server.events()) == 150
        assert not storm.server.waiting_handshakes
    assert max(waiting.turns[:3]) <= 2 * HANDSHAKE_COST_A_TURN
    assert waiting.server.dropped["bad_cookie"] == 0


def test_an_open_connection_is_served_before_handshakes_that_wait() -> None:
    world = World()
    client, _ = world.connect()
    for number in range(1, 500):
        packet = wire.encode_packet(0, 0, wire.encode_frame(hello(number)).ljust(BASE_DATAGRAM_BYTES - 17, b"\0"))
        world.server.endpoint.receive(Train(HERE, packet, len(packet)), world.now)
    assert world.server.endpoint.waiting_handshakes > 400
    client.send(0, b"request")
    for train in world.client.endpoint.trains(world.now):
        world.server.endpoint.receive(Train(world.client.address, train.data, train.segment_bytes), world.now)
    world.server.note_events()
    assert world.server.bodies() == [b"request"]
    assert world.server.endpoint.waiting_handshakes > 400


def test_a_wrong_cookie_does_not_wait() -> None:
    world = World()
    for number in range(1, 20):
        packet = wire.encode_packet(0, 0, wire.encode_frame(connect(number)))
        world.server.endpoint.receive(Train(HERE, packet, len(packet)), world.now)
    assert world.server.endpoint.dropped == {"bad_cookie": 19}
    assert not world.server.endpoint.waiting_handshakes


def test_a_full_queue_drops_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.transport.admission.MAX_HELLOS_WAITING", 10)
    storm = Storm(1, 100)
    storm.turn()
    assert storm.server.dropped["handshake_overflow"] == 100 - HANDSHAKE_COST_A_TURN - 10
    storm.run()  # clients that were dropped repeat their hello
