"""When a silent peer is asked, and when it is given up."""

from __future__ import annotations

import math

import pytest
from tests.transport.world import World

from godwit.limits import HANDSHAKE_TIMEOUT_S, IDLE_TIMEOUT_S, KEEP_ALIVE_S
from godwit.transport.acknowledgement import Acknowledger
from godwit.transport.connection import Connection
from godwit.transport.events import ConnectionState, Role
from godwit.transport.timers import COARSE_S, PAUSE_PACKETS, PAUSE_S, SERVER_PATIENCE, IdleTimer
from godwit.wire import packet as wire

ROLES: tuple[Role, ...] = ("client", "server")


def test_a_peer_is_given_up_after_the_idle_timeout() -> None:
    idle_timer = IdleTimer(role="client", now=5.0, idle_timeout_s=30.0, keep_alive_s=10.0)
    assert idle_timer.timeout_at == 35.0
    assert idle_timer.keep_alive_at == 15.0
    idle_timer.handle_packets(1, 20.0)
    assert idle_timer.timeout_at == 50.0
    assert idle_timer.keep_alive_at == 30.0


def test_without_a_new_packet_nothing_was_heard() -> None:
    idle_timer = IdleTimer(role="client", now=0.0, idle_timeout_s=30.0, keep_alive_s=10.0)
    idle_timer.handle_packets(3, 1.0)
    idle_timer.handle_packets(3, 9.0)
    assert idle_timer.last_received_at == 1.0


def test_a_short_idle_timeout_is_asked_in_thirds() -> None:
    idle_timer = IdleTimer(role="client", now=0.0, idle_timeout_s=3.0, keep_alive_s=10.0)
    assert idle_timer.keep_alive_at == 1.0
    idle_timer = IdleTimer(role="server", now=0.0, idle_timeout_s=3.0, keep_alive_s=10.0)
    assert idle_timer.keep_alive_at == SERVER_PATIENCE


def test_a_client_that_was_never_heard_holds_its_place_for_a_shorter_time() -> None:
    idle_timer = IdleTimer(role="server", now=0.0, idle_timeout_s=300.0, keep_alive_s=10.0)
    assert idle_timer.timeout_at == HANDSHAKE_TIMEOUT_S
    idle_timer.handle_packets(1, 1.0)
    assert idle_timer.timeout_at == 301.0


def test_a_client_asks_once_when_a_stream_of_packets_stops() -> None:
    idle_timer = IdleTimer(role="client", now=0.0, idle_timeout_s=30.0, keep_alive_s=10.0)
    idle_timer.handle_packets(PAUSE_PACKETS - 1, 1.0)
    assert idle_timer.pause_at == math.inf
    idle_timer.handle_packets(PAUSE_PACKETS, 2.0)
    assert idle_timer.pause_at == 2.0 + PAUSE_S
    idle_timer.handle_ping_sent()
    assert idle_timer.pause_at == math.inf


def test_a_server_does_not_ask_after_a_lull() -> None:
    idle_timer = IdleTimer(role="server", now=0.0, idle_timeout_s=30.0, keep_alive_s=10.0)
    idle_timer.handle_packets(100, 2.0)
    assert idle_timer.pause_at == math.inf


def test_the_first_of_the_three_times() -> None:
    idle_timer = IdleTimer(role="client", now=0.0, idle_timeout_s=30.0, keep_alive_s=10.0)
    assert idle_timer.next_at(is_asking=False) == idle_timer.keep_alive_at == 10.0
    assert idle_timer.next_at(is_asking=True) == idle_timer.timeout_at == 30.0
    idle_timer.handle_packets(PAUSE_PACKETS, 2.0)
    assert idle_timer.next_at(is_asking=False) == idle_timer.next_at(is_asking=True) == idle_timer.pause_at
    server = IdleTimer(role="server", now=0.0, idle_timeout_s=300.0, keep_alive_s=100.0)
    assert server.next_at(is_asking=False) == server.next_at(is_asking=True) == HANDSHAKE_TIMEOUT_S
    server.handle_packets(PAUSE_PACKETS, 2.0)
    assert server.next_at(is_asking=False) == 2.0 + 100.0 * SERVER_PATIENCE


def test_a_server_leaves_keep_alives_to_its_client() -> None:
    client, server = (IdleTimer(role=role, now=0.0, idle_timeout_s=30.0, keep_alive_s=10.0) for role in ROLES)
    for idle_timer in (client, server):
        idle_timer.handle_packets(1, 0.0)
    assert client.next_at(is_asking=False) == 10.0
    assert 10.0 < server.next_at(is_asking=False) == 15.0 < server.timeout_at


def test_the_timers_of_many_idle_connections_of_a_server_are_due_together() -> None:
    due = set()
    for number in range(1000):
        server = IdleTimer(role="server", now=0.0, idle_timeout_s=30.0, keep_alive_s=10.0)
        server.handle_packets(1, number / 1000)
        assert server.keep_alive_at <= server.next_at(is_asking=False) < server.keep_alive_at + COARSE_S
        assert server.timeout_at <= server.next_at(is_asking=True) < server.timeout_at + COARSE_S
        due.add(server.next_at(is_asking=False))
    assert sorted(due) == [15.0 + number * COARSE_S for number in range(17)]


def test_short_intervals_are_kept_exactly() -> None:
    server = IdleTimer(role="server", now=0.0, idle_timeout_s=0.3, keep_alive_s=10.0)
    server.handle_packets(1, 0.01)
    assert server.next_at(is_asking=False) == server.keep_alive_at
    assert server.next_at(is_asking=True) == server.timeout_at


# -- between two endpoints --------------------------------------------------------------------------------------------

IDLE_FOR_S = 20 * IDLE_TIMEOUT_S


def idle_world(seed: int = 1, loss: float = 0.0) -> tuple[World, Connection, Connection]:
    """Two endpoints with an open connection on which nothing is sent any more."""
    world = World(seed, loss=loss)
    client, server = world.connect()
    client.send(0, b"request")
    server.send(0, b"reply")
    world.run(2.0)
    world.log.clear()
    return world, client, server


def pings(world: World, connection: Connection) -> int:
    """Return how many pings this side has sent."""
    side = world.client if connection.role == "client" else world.server
    return sum(flying.has(wire.PingFrame) for flying in world.log if flying.source == side.address)


def test_the_client_sends_the_keep_alives_and_the_server_one_reply_to_each() -> None:
    world, client, server = idle_world()
    world.run(IDLE_FOR_S)
    assert pings(world, server) == 0
    assert 0.9 * IDLE_FOR_S <= pings(world, client) * KEEP_ALIVE_S <= 1.1 * IDLE_FOR_S
    assert len(world.log) == 2 * pings(world, client)


def test_the_server_keeps_a_client_without_keep_alives_connected() -> None:
    world, client, server = idle_world()
    client._idle_timer._keep_alive_s = math.inf
    client.ping()  # its timer is scheduled anew
    world.run(IDLE_FOR_S)
    assert client.state is server.state is ConnectionState.OPEN
    between_s = KEEP_ALIVE_S * SERVER_PATIENCE
    assert 0.9 * IDLE_FOR_S <= pings(world, server) * between_s <= 1.1 * IDLE_FOR_S
    assert pings(world, client) == 1 + pings(world, server) // PAUSE_PACKETS


@pytest.mark.parametrize("old", ROLES)
def test_a_peer_of_0_5_0_stays_connected(old: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    """There both sides send keep-alives after the same time, and acknowledge them as late as all other packets."""
    world, client, server = idle_world()
    connection = client if old == "client" else server
    connection._idle_timer._keep_alive_s = KEEP_ALIVE_S
    connection._idle_timer._is_coarse = False
    handle_ping = Acknowledger.handle_ping

    def handle_ping_of_old(self: Acknowledger, now: float) -> None:
        if self is not connection._components.acknowledger:
            handle_ping(self, now)

    monkeypatch.setattr(Acknowledger, "handle_ping", handle_ping_of_old)
    world.run(IDLE_FOR_S)
    assert client.state is server.state is ConnectionState.OPEN
    assert len(world.log) <= 4 * 1.1 * IDLE_FOR_S / KEEP_ALIVE_S
    client.send(0, b"still here")
    world.run(1.0)
    assert world.server.bodies() == [b"request", b"still here"]


@pytest.mark.parametrize("seed", range(10))
def test_idle_connections_survive_losses(seed: int) -> None:
    world, client, server = idle_world(seed, loss=0.3)
    world.run(IDLE_FOR_S)
    assert client.state is server.state is ConnectionState.OPEN


def test_a_peer_that_vanishes_is_given_up_after_the_idle_timeout() -> None:
    world, client, server = idle_world()
    until = world.now + IDLE_TIMEOUT_S
    world.fate = lambda flying: []
    for connection in (client, server):
        assert world.now < connection.last_received_at + IDLE_TIMEOUT_S <= until
    world.run(IDLE_TIMEOUT_S - 5.0)
    assert client.state is server.state is ConnectionState.OPEN
    world.run(5.0 + COARSE_S)
    assert ConnectionState.OPEN not in (client.state, server.state)
