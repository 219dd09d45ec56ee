"""Connections without a login have slots of their own, and one host cannot take them all."""

from __future__ import annotations

import pytest
from tests.transport.world import CLIENT, SERVER, World, packet_for

from godwit.errors import SendBufferFullError
from godwit.limits import (
    BASE_DATAGRAM_BYTES,
    LOGIN_GRACE_S,
    MAX_UNADMITTED_PER_HOST,
    MAX_WILL_BYTES,
    UNADMITTED_BYTES,
)
from godwit.transport.admission import UnadmittedConnections, host_of
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, Closed, Connected, ConnectionState, Train
from godwit.wire import packet as wire
from godwit.wire.control_base import Code


@pytest.mark.parametrize(
    ("host", "other", "is_same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:1:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("a.host", "a.host", True),
    ],
)
def test_what_counts_as_one_host(host: str, other: str, is_same: bool) -> None:
    assert (host_of((host, 1)) == host_of((other, 2))) is is_same


def test_a_quarter_of_all_slots_but_at_least_those_of_one_host() -> None:
    for most, slots in ((20_000, 5_000), (1000, 250), (100, 64), (3, 3)):
        waiting = UnadmittedConnections(most)
        for n in range(slots):
            assert not waiting.is_full()
            waiting.add(n, (f"192.0.2.{n}", 1), 0.0)
        assert waiting.is_full()
        waiting.remove(0)
        waiting.remove(0)
        assert not waiting.is_full()
        assert len(waiting) == slots - 1


def test_the_oldest_of_the_greediest_host_makes_room() -> None:
    waiting = UnadmittedConnections(1000)
    waiting.add(1, ("192.0.2.1", 1), 0.0)
    for n in range(2, 5):
        waiting.add(n, ("192.0.2.2", n), 1.0)
    assert waiting.victim(("192.0.2.3", 1), 1.0, must_have=True) == 2
    assert waiting.victim(("192.0.2.1", 1), 1.0, must_have=True) == 2
    # Within the greediest host itself only those that had the time for a login do.
    assert waiting.victim(("192.0.2.2", 1), 1.0, must_have=True) is None
    assert waiting.victim(("192.0.2.2", 1), 1.0 + LOGIN_GRACE_S, must_have=True) == 2
    assert waiting.victim(("192.0.2.2", 1), 100.0, must_have=False) is None
    waiting.remove(2)
    assert waiting.victim(("192.0.2.3", 1), 1.0, must_have=True) == 3


def test_a_host_keeps_no_more_than_its_own_slots() -> None:
    waiting = UnadmittedConnections(20_000)
    for n in range(MAX_UNADMITTED_PER_HOST):
        waiting.add(n, CLIENT, 0.0)
    assert waiting.victim(CLIENT, LOGIN_GRACE_S - 0.1, must_have=False) is None
    assert waiting.victim(CLIENT, LOGIN_GRACE_S, must_have=False) == 0
    assert waiting.victim(("192.0.2.77", 1), LOGIN_GRACE_S, must_have=False) is None


def test_without_any_there_is_none_to_make_room() -> None:
    assert UnadmittedConnections(10).victim(CLIENT, 0.0, must_have=True) is None


# -- in an endpoint ---------------------------------------------------------------------------------------------------


class Crowd:
    """A server that admits, and clients with an endpoint each."""

    def __init__(self, max_connections: int) -> None:
        self.world = World(server=EndpointConfig(accepts=True, needs_admission=True, max_connections=max_connections))
        self.server = self.world.server.endpoint
        self.now = 100.0
        self.clients: dict[Address, tuple[Endpoint, Connection]] = {}
        self.serial = 0

    def connect(self, host: str) -> Connection:
        """A client from this host goes through the handshake, as far as the server lets it."""
        self.serial += 1
        address: Address = (host, self.serial)
        endpoint = Endpoint(EndpointConfig(), entropy=self.world.rng.randbytes)
        connection = endpoint.connect(SERVER, self.now)
        self.clients[address] = endpoint, connection
        for _ in range(4):
            self.move()
        return connection

    def move(self) -> None:
        for address, (endpoint, _) in self.clients.items():
            for train in endpoint.trains(self.now):
                self.server.receive(Train(address, train.data, train.segment_bytes), self.now)
        while self.server.waiting_handshakes:
            self.server.handle_timers(self.now)
        for train in self.server.trains(self.now):
            if train.address in self.clients:
                self.clients[train.address][0].receive(Train(SERVER, train.data, train.segment_bytes), self.now)

    def admit_all(self) -> None:
        for event in self.server.events():
            if isinstance(event, Connected):
                event.connection.admit()


def test_one_host_cannot_keep_others_out() -> None:
    crowd = Crowd(max_connections=40)
    admitted = [crowd.connect(f"192.0.2.{n}") for n in range(5)]
    crowd.admit_all()
    greedy = [crowd.connect("203.0.113.9") for _ in range(60)]
    assert len(crowd.server.connections) == 40
    busy = [one for one in greedy if one.state is ConnectionState.CLOSED]
    assert len(busy) == 60 - 35  # its own connections were too young to make room
    newcomers = [crowd.connect(f"198.51.100.{n}") for n in range(10)]
    assert all(one.state is ConnectionState.OPEN for one in (*newcomers, *admitted))
    assert crowd.server.dropped["evicted"] == 10
    closed = [one for one in crowd.server.events() if isinstance(one, Closed)]
    assert {(one.code, one.origin) for one in closed} == {(Code.BUSY, "local")}
    ended = [one for one in greedy[:35] if one.state is not ConnectionState.OPEN]
    assert ended == greedy[:10]  # the oldest, and each was told


def test_admitted_connections_make_no_room() -> None:
    crowd = Crowd(max_connections=10)
    admitted = [crowd.connect("192.0.2.1") for _ in range(10)]
    crowd.admit_all()
    crowd.now += 60
    refused = crowd.connect("192.0.2.2")
    assert refused.state is ConnectionState.CLOSED
    assert all(one.state is ConnectionState.OPEN for one in admitted)
    assert crowd.server.dropped["busy"] == 1


def test_a_host_beyond_its_share_gets_no_more_slots_once_its_connections_had_time_for_a_login() -> None:
    """Each new connection replaces the oldest one. None is closed beyond that: the login timeout does the rest."""
    crowd = Crowd(max_connections=20_000)
    for _ in range(100):
        crowd.connect("203.0.113.9")
    assert len(crowd.server.connections) == 100
    crowd.now += LOGIN_GRACE_S
    last = [crowd.connect("203.0.113.9") for _ in range(50)]
    assert len(crowd.server.connections) == 100
    assert all(one.state is ConnectionState.OPEN for one in last)
    assert crowd.server.dropped["evicted"] == 50


def test_many_clients_behind_one_address_that_log_in_all_get_in() -> None:
    crowd = Crowd(max_connections=1000)
    for _ in range(700):
        crowd.connect("203.0.113.9")
        crowd.clients.clear()  # they only have to be accepted
        crowd.admit_all()
    assert len(crowd.server.connections) == 700
    assert crowd.server.dropped["evicted"] == 0


# -- before the login -------------------------------------------------------------------------------------------------


def unadmitted() -> tuple[World, Connection, Connection]:
    world = World(server=EndpointConfig(accepts=True, needs_admission=True))
    client, server = world.connect()
    assert not server.is_admitted
    assert client.is_admitted
    return world, client, server


def test_only_channel_0_is_open() -> None:
    world, client, _ = unadmitted()
    client.send(0, b"login")
    world.run(1)
    assert world.server.bodies(0) == [b"login"]
    client.send(client.open_channel(), b"x")
    world.run(1)
    closed = world.closed(world.client)
    assert (closed.code, closed.origin) == (Code.NOT_LOGGED_IN, "peer")
    assert world.server.endpoint.dropped["not_admitted"] == 1
    assert world.server.bodies(1) == []


def test_all_channels_are_open_once_it_is_admitted() -> None:
    world, client, server = unadmitted()
    server.admit()
    server.admit()
    assert server.is_admitted
    client.send(client.open_channel(), bytes(1_000_000))
    world.run(5)
    assert world.server.bodies(1) == [bytes(1_000_000)]


@pytest.mark.parametrize("seed", range(4))
def test_the_longest_login_arrives_over_a_bad_path(seed: int) -> None:
    world = World(seed, loss=0.2, server=EndpointConfig(accepts=True, needs_admission=True))
    client, _ = world.connect()
    world.fate = lambda flying: [delay_s + world.rng.random() * 0.05 for delay_s in world.usual_fate(flying)]
    login = world.rng.randbytes(MAX_WILL_BYTES + 3000)
    client.send(0, login)
    world.run_until(lambda: world.server.bodies(0) == [login])


@pytest.mark.parametrize("kind", ["fragments", "empty records", "a run"])
def test_little_is_held_for_a_stranger(kind: str) -> None:
    world, _, server = unadmitted()
    most = 0
    for n in range(1, 2000):
        frames: list[wire.Frame]
        if kind == "fragments":
            frames = [wire.DataFrame(0, 0, 0, 60 * n, None, bytes(50))]
        elif kind == "empty records":
            frames = [wire.DataFrame(wire.WHOLE | wire.HAS_LENGTH, 0, 5 * n + k, 0, None, b"") for k in range(5)]
        else:
            body = bytes(BASE_DATAGRAM_BYTES - 40)
            frames = [wire.DataFrame(0, 0, 0, (n - 1) * len(body), None, body)]
        number = server._components.acknowledger.largest + 1
        world.inject(world.server, packet_for(server, number, *frames), source=CLIENT)
        most = max(most, world.server.endpoint._budget.used_bytes)
        if server.state is not ConnectionState.OPEN:
            break
    assert server.state is ConnectionState.CLOSING
    assert UNADMITTED_BYTES // 2 < most < UNADMITTED_BYTES + 2000
    assert world.server.endpoint._budget.used_bytes == 0
    assert world.server.endpoint.dropped["limit"] == 1


def test_few_replies_wait_for_a_stranger() -> None:
    world, _, server = unadmitted()
    world.fate = lambda flying: []
    for _ in range(80):
        server.send(0, bytes(1000))
    with pytest.raises(SendBufferFullError):
        server.send(0, bytes(10_000))
    assert server.buffered_bytes <= UNADMITTED_BYTES
    server.admit()
    server.send(0, bytes(1000))
