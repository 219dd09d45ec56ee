"""When a silent peer is asked, and when it is given up."""

from __future__ import annotations

import math

from godwit.limits import HANDSHAKE_TIMEOUT_S
from godwit.transport.silence import LULL_PACKETS, LULL_S, Silence


def test_a_peer_is_given_up_after_the_idle_timeout() -> None:
    silence = Silence(role="client", now=5.0, idle_timeout_s=30.0, keep_alive_s=10.0)
    assert silence.too_long_at == 35.0
    assert silence.ask_at == 15.0
    silence.on_heard(1, 20.0)
    assert silence.too_long_at == 50.0
    assert silence.ask_at == 30.0


def test_without_a_new_packet_nothing_was_heard() -> None:
    silence = Silence(role="client", now=0.0, idle_timeout_s=30.0, keep_alive_s=10.0)
    silence.on_heard(3, 1.0)
    silence.on_heard(3, 9.0)
    assert silence.heard_at == 1.0


def test_a_short_idle_timeout_is_asked_in_thirds() -> None:
    silence = Silence(role="server", now=0.0, idle_timeout_s=3.0, keep_alive_s=10.0)
    assert silence.ask_at == 1.0


def test_a_client_that_was_never_heard_holds_its_place_for_a_shorter_time() -> None:
    silence = Silence(role="server", now=0.0, idle_timeout_s=300.0, keep_alive_s=10.0)
    assert silence.too_long_at == HANDSHAKE_TIMEOUT_S
    silence.on_heard(1, 1.0)
    assert silence.too_long_at == 301.0


def test_a_client_asks_once_when_a_stream_of_packets_stops() -> None:
    silence = Silence(role="client", now=0.0, idle_timeout_s=30.0, keep_alive_s=10.0)
    silence.on_heard(LULL_PACKETS - 1, 1.0)
    assert silence.lulls_at == math.inf
    silence.on_heard(LULL_PACKETS, 2.0)
    assert silence.lulls_at == 2.0 + LULL_S
    silence.on_asked()
    assert silence.lulls_at == math.inf


def test_a_server_does_not_ask_after_a_lull() -> None:
    silence = Silence(role="server", now=0.0, idle_timeout_s=30.0, keep_alive_s=10.0)
    silence.on_heard(100, 2.0)
    assert silence.lulls_at == math.inf


def test_the_first_of_the_three_times() -> None:
    silence = Silence(role="client", now=0.0, idle_timeout_s=30.0, keep_alive_s=10.0)
    assert silence.next_at(is_asking=False) == silence.ask_at == 10.0
    assert silence.next_at(is_asking=True) == silence.too_long_at == 30.0
    silence.on_heard(LULL_PACKETS, 2.0)
    assert silence.next_at(is_asking=False) == silence.next_at(is_asking=True) == silence.lulls_at
    server = Silence(role="server", now=0.0, idle_timeout_s=300.0, keep_alive_s=100.0)
    assert server.next_at(is_asking=False) == server.next_at(is_asking=True) == HANDSHAKE_TIMEOUT_S
    server.on_heard(LULL_PACKETS, 2.0)
    assert server.next_at(is_asking=False) == 102.0
