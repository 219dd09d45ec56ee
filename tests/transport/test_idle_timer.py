"""When a silent peer is asked, and when it is given up."""

from __future__ import annotations

import math

from godwit.limits import HANDSHAKE_TIMEOUT_S
from godwit.transport.events import Role
from godwit.transport.timers import PAUSE_PACKETS, PAUSE_S, SERVER_PATIENCE, IdleTimer

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
    for number in range(100):
        server = IdleTimer(role="server", now=0.0, idle_timeout_s=30.0, keep_alive_s=10.0)
        server.handle_packets(1, number / 100)
        assert server.next_at(is_asking=False) >= server.keep_alive_at
        assert server.next_at(is_asking=True) >= server.timeout_at
        due.add(server.next_at(is_asking=False))
    assert sorted(due) == [15.0, 15.5, 16.0]
