"""Each watcher of the network accepts what is right and catches what is deliberately wrong."""

from __future__ import annotations

from typing import Any

import pytest

from godwit.wire import packet as f
from godwit.wire.packet import encode_packet
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Host
from godwit_sim.watchers import TIMER_ROUNDS, AmplificationWatcher, HeardWatcher, MemoryWatcher, TimerWatcher

SERVER = ("192.0.2.1", 4000)
CLIENT = ("10.0.0.1", 40_000)
ELSEWHERE = ("10.0.0.1", 40_001)


class Node:
    """Only what a watcher asks for."""

    def __init__(self, due: float | None = None) -> None:
        self.due = due

    def next_timer(self) -> float | None:
        return self.due


def host(name: str = "server", node: Any = None) -> Host:
    made = Host(name, SERVER)
    made.node = node
    return made


def cookie(value: bytes) -> bytes:
    return encode_packet(0, 0, f.encode_frame(f.CookieFrame(value, bytes(16))))


def connect(value: bytes) -> bytes:
    return encode_packet(0, 0, f.encode_frame(f.ConnectFrame(5, bytes(16), value, b"")))


def test_three_times_is_allowed_and_one_byte_more_is_not() -> None:
    watcher, server = AmplificationWatcher("server"), host()
    watcher.arrived(server, CLIENT, bytes(100), 0.0)
    watcher.sent(server, SERVER, CLIENT, bytes(300), 0.0)
    with pytest.raises(ViolationError, match="301 bytes"):
        watcher.sent(server, SERVER, CLIENT, bytes(1), 0.0)


def test_an_address_that_sent_nothing_gets_nothing() -> None:
    watcher, server = AmplificationWatcher("server"), host()
    watcher.arrived(server, CLIENT, bytes(100), 0.0)
    with pytest.raises(ViolationError, match="sent 0"):
        watcher.sent(server, SERVER, ELSEWHERE, bytes(1), 0.0)


def prove(watcher: AmplificationWatcher, server: Host) -> None:
    token = bytes(range(20))
    watcher.arrived(server, CLIENT, bytes(1200), 0.0)
    watcher.sent(server, SERVER, CLIENT, cookie(token), 0.0)
    watcher.arrived(server, CLIENT, connect(token), 0.0)


def test_a_returned_cookie_proves_the_address() -> None:
    watcher, server = AmplificationWatcher("server"), host()
    prove(watcher, server)
    watcher.sent(server, SERVER, CLIENT, bytes(100_000), 0.0)


def test_a_cookie_from_elsewhere_proves_nothing() -> None:
    watcher, server = AmplificationWatcher("server"), host()
    token = bytes(range(20))
    watcher.arrived(server, CLIENT, bytes(1200), 0.0)
    watcher.sent(server, SERVER, CLIENT, cookie(token), 0.0)
    watcher.arrived(server, ELSEWHERE, connect(token), 0.0)
    watcher.arrived(server, CLIENT, connect(bytes(20)), 0.0)
    for address in (CLIENT, ELSEWHERE):
        with pytest.raises(ViolationError):
            watcher.sent(server, SERVER, address, bytes(100_000), 0.0)


def test_a_path_response_proves_the_address() -> None:
    watcher, server = AmplificationWatcher("server"), host()
    watcher.arrived(server, ELSEWHERE, bytes(60), 0.0)
    watcher.sent(server, SERVER, ELSEWHERE, encode_packet(1, 1, f.encode_frame(f.PathProbeFrame(b"12345678"))), 0.0)
    response = f.encode_frame(f.PathResponseFrame(b"12345678", bytes(16)))
    watcher.arrived(server, ELSEWHERE, encode_packet(1, 1, response), 0.0)
    watcher.sent(server, SERVER, ELSEWHERE, bytes(100_000), 0.0)


def test_a_new_process_knows_nothing_of_old_proofs() -> None:
    watcher, server = AmplificationWatcher("server"), host()
    prove(watcher, server)
    watcher.started(server, 1.0)
    with pytest.raises(ViolationError):
        watcher.sent(server, SERVER, CLIENT, bytes(1), 1.0)


def test_clients_are_free() -> None:
    AmplificationWatcher("server").sent(host("client0"), CLIENT, SERVER, bytes(1200), 0.0)


def test_a_timer_that_rings_for_ever() -> None:
    watcher, server = TimerWatcher(lambda host: True), host(node=Node(1.0))
    for _ in range(TIMER_ROUNDS):
        watcher.fired(server, 1.0, 1.0)
    watcher.fired(server, 1.5, 1.5)
    for _ in range(TIMER_ROUNDS - 1):
        watcher.fired(server, 1.5, 1.5)
    with pytest.raises(ViolationError, match="same instant"):
        watcher.fired(server, 1.5, 1.5)


def test_a_forgotten_timer() -> None:
    busy, idle = TimerWatcher(lambda host: True), TimerWatcher(lambda host: False)
    busy.rested(host(node=Node(1.0)), 0.0)
    idle.rested(host(node=Node(None)), 0.0)
    with pytest.raises(ViolationError, match="no timer"):
        busy.rested(host(node=Node(None)), 0.0)
    with pytest.raises(ViolationError, match="inf"):
        busy.rested(host(node=Node(float("inf"))), 0.0)


def test_memory() -> None:
    counts = iter((10, 20, 0, 21, -1))
    watcher = MemoryWatcher(lambda host: next(counts), lambda host: 20)
    for _ in range(3):
        watcher.rested(host(), 0.0)
    assert watcher.most_bytes == {"server": 20}
    for _ in range(2):
        with pytest.raises(ViolationError, match="bounded to 20"):
            watcher.rested(host(), 0.0)


def ping(connection_id: int, number: int) -> bytes:
    return encode_packet(connection_id, number, f.encode_frame(f.PingFrame()))


def test_a_time_out_needs_silence() -> None:
    watcher, server = HeardWatcher(), host()
    watcher.arrived(server, CLIENT, ping(5, 1), 10.0)
    watcher.arrived(server, CLIENT, ping(6, 1), 35.0)  # another connection
    watcher.arrived(server, CLIENT, ping(5, 1), 36.0)  # a repeat
    watcher.arrived(server, CLIENT, b"rubbish", 37.0)
    watcher.arrived(server, ELSEWHERE, ping(5, 3), 37.0)  # perhaps not the peer
    watcher.timed_out(server, 5, CLIENT, 30.0, 40.0)
    watcher.timed_out(server, 7, CLIENT, 30.0, 40.0)  # it never heard a word
    watcher.arrived(server, CLIENT, ping(5, 2), 38.0)
    with pytest.raises(ViolationError, match=r"2\.000 s after a packet"):
        watcher.timed_out(server, 5, CLIENT, 30.0, 40.0)
