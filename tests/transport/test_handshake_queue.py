"""Handshakes of many clients at once: they wait, each client once, and do not delay the open connections."""

from __future__ import annotations

import random
from math import inf

import pytest
from tests.transport.world import SERVER, World

from godwit.limits import (
    BASE_DATAGRAM_BYTES,
    CONNECT_COST,
    HANDSHAKE_COST_A_TURN,
    HANDSHAKE_STALE_S,
    LOGIN_GRACE_S,
    MAX_CONNECTS_WAITING,
    MAX_HELLOS_WAITING,
)
from godwit.transport import endpoint as endpoint_module
from godwit.transport.admission import SHARE, HandshakeQueue
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


def address_of(host: int, port: int = 1) -> Address:
    return f"198.18.{host // 250}.{host % 250}", port


def is_free(host: str, now: float) -> float:
    return now


def packet(frame: wire.HelloFrame | wire.ConnectFrame) -> bytes:
    content = wire.encode_frame(frame)
    size = BASE_DATAGRAM_BYTES - wire.OVERHEAD_BYTES if isinstance(frame, wire.HelloFrame) else 0
    return wire.encode_packet(0, 0, content.ljust(size, b"\0"))


def test_each_kind_in_its_order() -> None:
    queue = HandshakeQueue()
    for number in (1, 2):
        assert queue.add_hello(hello(number), HERE, 5.0)
    for number in (3, 4):
        assert queue.add_connect(connect(number), HERE, 5.0)
    assert len(queue) == 4
    assert [queue.next_connect(is_free, 5.0) for _ in range(3)] == [(connect(3), HERE), (connect(4), HERE), inf]
    assert [queue.next_hello(5.0) for _ in range(3)] == [(hello(1), HERE), (hello(2), HERE), None]
    assert not queue


def test_a_client_waits_once_and_keeps_its_place() -> None:
    queue = HandshakeQueue()
    for number in (1, 2, 1):
        queue.add_hello(hello(number), HERE, 5.0)
    assert queue.is_repeat(packet(hello(1)), HERE, 5.0)
    assert not queue.is_repeat(packet(hello(3)), HERE, 5.0)
    assert not queue.is_repeat(packet(connect(1)), HERE, 5.0)  # it has a cookie by now
    assert [queue.next_hello(5.0) for _ in range(3)] == [(hello(1), HERE), (hello(2), HERE), None]
    queue.add_connect(connect(4), HERE, 5.0)
    assert queue.is_repeat(packet(connect(4)), HERE, 5.0)
    assert queue.is_repeat(packet(hello(4)), HERE, 5.0)
    assert not queue.is_repeat(packet(connect(4)), THERE, 5.0)  # its cookie must be checked again
    queue.add_connect(connect(4), THERE, 5.0)
    assert len(queue) == 1
    assert queue.next_connect(is_free, 5.0) == (connect(4), THERE)
    assert not queue


def test_a_copy_of_a_hello_from_another_address_does_not_take_the_answer_away() -> None:
    queue = HandshakeQueue()
    queue.add_hello(hello(1), HERE, 5.0)
    assert not queue.is_repeat(packet(hello(1)), THERE, 5.0)
    assert queue.add_hello(hello(1), THERE, 5.0)
    assert [queue.next_hello(5.0) for _ in range(3)] == [(hello(1), HERE), (hello(1), THERE), None]


def test_hosts_take_turns_and_those_that_are_not_free_wait() -> None:
    queue = HandshakeQueue()
    for number in range(3):
        queue.add_connect(connect(number), HERE, 5.0)
    queue.add_connect(connect(8), THERE, 5.0)
    queue.add_connect(connect(9), THERE, 5.0)

    def free_at(host: str, now: float) -> float:
        return now + 1.5 if host == HERE[0] and len(queue) < 4 else now

    order = [queue.next_connect(free_at, 5.0) for _ in range(5)]
    assert order == [(connect(0), HERE), (connect(8), THERE), (connect(9), THERE), 6.5, 6.5]
    assert queue.next_connect(is_free, 6.5) == (connect(1), HERE)


def test_packets_that_their_clients_no_longer_repeat_are_dropped() -> None:
    queue = HandshakeQueue()
    for number in range(4):
        queue.add_hello(hello(number), HERE, 5.0)
        queue.add_connect(connect(10 + number), HERE, 5.0)
    later = 5.0 + HANDSHAKE_STALE_S
    assert queue.is_repeat(packet(hello(2)), HERE, later)
    assert queue.is_repeat(packet(connect(13)), HERE, later)
    assert queue.next_connect(is_free, later + 0.1) == (connect(13), HERE)
    assert queue.next_hello(later + 0.1) == (hello(2), HERE)
    assert queue.next_connect(is_free, later + 0.1) == inf
    assert queue.next_hello(later + 0.1) is None
    assert not queue


def test_it_is_bounded() -> None:
    queue = HandshakeQueue()
    assert all(queue.add_hello(hello(number), HERE, 5.0) for number in range(MAX_HELLOS_WAITING))
    assert not queue.add_hello(hello(MAX_HELLOS_WAITING), HERE, 5.0)
    assert queue.add_hello(hello(0), HERE, 5.0)
    assert len(queue) == MAX_HELLOS_WAITING
    for number in range(2 * MAX_CONNECTS_WAITING):
        queue.add_connect(connect(number), address_of(number % 20), 5.0)
    assert len(queue) == MAX_HELLOS_WAITING + MAX_CONNECTS_WAITING
    assert queue.add_connect(connect(0), address_of(0, port=2), 5.0)  # a repeat from another port
    assert len(queue) == MAX_HELLOS_WAITING + MAX_CONNECTS_WAITING


def test_a_hello_that_is_no_longer_repeated_makes_room() -> None:
    queue = HandshakeQueue()
    for number in range(MAX_HELLOS_WAITING):
        queue.add_hello(hello(number), HERE, 5.0)
    later = 5.0 + HANDSHAKE_STALE_S
    assert not queue.add_hello(hello(MAX_HELLOS_WAITING), HERE, later)
    assert queue.add_hello(hello(MAX_HELLOS_WAITING), HERE, later + 0.1)
    assert len(queue) == MAX_HELLOS_WAITING
    assert queue.next_hello(later + 0.1) == (hello(MAX_HELLOS_WAITING), HERE)


def test_one_host_waits_with_a_quarter_at_most() -> None:
    queue = HandshakeQueue()
    most = MAX_CONNECTS_WAITING // SHARE
    assert all(queue.add_connect(connect(number), HERE, 5.0) for number in range(most))
    assert not queue.add_connect(connect(most), HERE, 5.0)
    assert queue.add_connect(connect(most), THERE, 5.0)


@pytest.mark.parametrize("hosts", [4, 30, 500])
def test_hosts_that_send_too_many_connects_do_not_keep_another_one_out(hosts: int) -> None:
    """They fill the queue one after another, and take every slot that becomes free before the other host tries."""
    queue = HandshakeQueue()
    serial = 0
    for _ in range(min(50, MAX_CONNECTS_WAITING // (hosts + 1) - 1)):  # its share, if not one of them were handled
        for host in range(hosts):
            while queue.add_connect(connect(serial), address_of(host), 5.0):
                serial += 1
        assert queue.add_connect(connect(serial), THERE, 5.0)
        assert len(queue) == MAX_CONNECTS_WAITING
        serial += 1
        for _ in range(HANDSHAKE_COST_A_TURN // CONNECT_COST):
            queue.next_connect(is_free, 5.0)
    order = [queue.next_connect(is_free, 5.0) for _ in range(hosts + 1)]
    assert sum(one[1] == THERE for one in order if not isinstance(one, float)) == 1  # it has its turn among the others


def test_no_host_makes_room_for_another_one_with_as_many_connects() -> None:
    queue = HandshakeQueue()
    for number in range(MAX_CONNECTS_WAITING):
        assert queue.add_connect(connect(number), address_of(number), 5.0)
    assert not queue.add_connect(connect(MAX_CONNECTS_WAITING), THERE, 5.0)
    assert queue.next_connect(is_free, 5.0) == (connect(0), address_of(0))
    assert queue.add_connect(connect(9000), address_of(1), 5.0)
    assert not queue.add_connect(connect(9001), address_of(2), 5.0)
    assert queue.add_connect(connect(9001), THERE, 5.0)  # in place of the second one of another host
    assert len(queue) == MAX_CONNECTS_WAITING
    assert queue.next_connect(is_free, 5.0) == (connect(1), address_of(1))


class Storm:
    """A server, and many clients that begin at once: all of their packets arrive before the server's next turn."""

    def __init__(self, seed: int, count: int, *, needs_admission: bool = False) -> None:
        rng = random.Random(seed)
        self.now = 100.0
        config = EndpointConfig(accepts=True, needs_admission=needs_admission)
        self.server = Endpoint(config, entropy=rng.randbytes)
        self.clients: dict[Address, Endpoint] = {}
        self.connections: list[Connection] = []
        for number in range(count):
            endpoint = Endpoint(EndpointConfig(), entropy=rng.randbytes)
            self.clients["192.0.2.9", number] = endpoint
            self.connections.append(endpoint.connect(SERVER, self.now))
        self.turns: list[int] = []
        """How many packets the server sent in each turn."""
        self.is_lossy = False
        """Whether everything that the server sends is lost."""

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
            if not self.is_lossy:
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
        data = packet(hello(number))
        world.server.endpoint.receive(Train(HERE, data, len(data)), world.now)
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
        data = packet(connect(number))
        world.server.endpoint.receive(Train(HERE, data, len(data)), world.now)
    assert world.server.endpoint.dropped == {"bad_cookie": 19}
    assert not world.server.endpoint.waiting_handshakes


def test_a_full_queue_drops_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.transport.admission.MAX_HELLOS_WAITING", 10)
    storm = Storm(1, 100)
    storm.turn()
    assert storm.server.dropped["handshake_overflow"] == 100 - HANDSHAKE_COST_A_TURN - 10
    storm.run()  # clients that were dropped repeat their hello


def test_the_clients_of_a_host_wait_while_many_others_of_it_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.transport.admission.MAX_LOGINS_AT_ONCE", 10)
    storm = Storm(1, 60, needs_admission=True)
    for _ in range(100):
        storm.turn()
    assert len(storm.server.connections) == 10
    due = storm.server.next_timer()
    assert due is not None
    assert due > storm.now  # no turn without work
    for connection in list(storm.server.connections.values())[:4]:
        connection.admit()
    due = storm.server.next_timer()
    assert due is not None
    assert due <= storm.now
    for _ in range(20):
        storm.turn()
    assert len(storm.server.connections) == 14
    for _ in range(50):
        for connection in storm.server.connections.values():
            connection.admit()
        for _ in range(20):
            storm.turn()
    assert len(storm.server.connections) == 60
    assert storm.server.dropped["evicted"] == 0


def test_those_that_do_not_log_in_hold_up_others_of_their_host_for_a_short_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("godwit.transport.admission.MAX_LOGINS_AT_ONCE", 10)
    storm = Storm(1, 20, needs_admission=True)
    for _ in range(int(LOGIN_GRACE_S * 1000) + 100):
        storm.turn()
    assert len(storm.server.connections) == 20


def test_a_client_whose_accept_was_lost_gets_it_again_while_others_of_its_host_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("godwit.transport.admission.MAX_LOGINS_AT_ONCE", 10)
    storm = Storm(1, 40, needs_admission=True)
    while len(storm.server.connections) < 10:
        storm.turn()
        storm.is_lossy = bool(storm.server.connections)
    assert storm.server.waiting_handshakes
    storm.is_lossy = False
    while storm.now < 100.0 + LOGIN_GRACE_S - 0.5:
        storm.turn()
    assert sum(connection.state is ConnectionState.OPEN for connection in storm.connections) == 10
    assert storm.server.dropped["repeated_connect"] > 0


def test_connects_without_end_do_not_keep_hellos_waiting() -> None:
    """Many hosts with valid cookies send more connects than the server can handle."""
    rng = random.Random(3)
    server = Endpoint(EndpointConfig(accepts=True, max_connections=10_000), entropy=rng.randbytes)
    connects: list[Train] = []
    for number in range(1, 400):
        address = address_of(number)
        endpoint = Endpoint(EndpointConfig(), entropy=rng.randbytes)
        endpoint.connect(SERVER, 100.0)
        for train in endpoint.trains(100.0):
            server.receive(Train(address, train.data, train.segment_bytes), 100.0)
        while server.waiting_handshakes:
            server.handle_timers(100.0)
        for train in server.trains(100.0):
            endpoint.receive(Train(SERVER, train.data, train.segment_bytes), 100.0)
        connects += [Train(address, train.data, train.segment_bytes) for train in endpoint.trains(100.0)]
    assert len(connects) == 399
    now = 100.0
    data = packet(hello(7))
    for turn in range(30):
        now += 0.001
        for _ in range(3 * HANDSHAKE_COST_A_TURN // CONNECT_COST):
            server.receive(connects.pop(), now)
        if turn == 3:
            server.receive(Train(HERE, data, len(data)), now)
        server.handle_timers(now)
        if any(train.address == HERE for train in server.trains(now)):
            break
    else:
        raise AssertionError("the hello was never answered")
    assert server.waiting_handshakes > HANDSHAKE_COST_A_TURN
