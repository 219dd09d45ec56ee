"""Each checker and each watcher of the network accepts correct behaviour and catches planted faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from godwit.wire import packet as f
from godwit.wire.packet import encode_packet
from godwit_sim.checkers import (
    TIMER_ROUNDS,
    AmplificationWatcher,
    ConfirmChecker,
    DeliveryChecker,
    LifecycleChecker,
    MemoryWatcher,
    TimeoutWatcher,
    TimerWatcher,
    ViolationError,
)
from godwit_sim.network import Host

FLOW = ("c0.1", "up", 1)
CLIENT, SERVER = "c0.1@client", "c0.1@server.1"


@pytest.fixture
def delivery() -> DeliveryChecker:
    checker = DeliveryChecker()
    for body in (b"one", b"two", b"three"):
        checker.sent(FLOW, body)
    return checker


def test_everything_in_order(delivery: DeliveryChecker) -> None:
    for body in (b"one", b"two", b"three"):
        delivery.received(FLOW, body)
    delivery.complete()
    assert delivery.received_records == 3
    assert delivery.received_bytes == 11
    assert delivery.received_on(FLOW) == 3
    assert delivery.received_on(("x", "up", 9)) == 0


def wrong(*bodies: bytes) -> Callable[[DeliveryChecker], None]:
    def play(delivery: DeliveryChecker) -> None:
        for body in bodies:
            delivery.received(FLOW, body)

    return play


@pytest.mark.parametrize(
    ("play", "text"),
    [
        (wrong(b"two"), "record 1 came where record 0 was due"),
        (wrong(b"one", b"one"), "differ from the 3 sent, or came twice"),
        (wrong(b"one", b"tWo"), "differ"),
        (wrong(b"one", b"two", b"three", b"three"), "more than were sent"),
        (lambda d: d.received(("c0.1", "down", 1), b"one"), "nothing was sent"),
        (lambda d: d.received(("c0.1", "up", 2), b"one"), "nothing was sent"),
        (lambda d: d.received(FLOW, b"one", last=True), "last=True"),
        (lambda d: d.received(FLOW, b"one", reliable=False), "unreliable"),
    ],
)
def test_wrong_deliveries(delivery: DeliveryChecker, play: Callable[[DeliveryChecker], None], text: str) -> None:
    with pytest.raises(ViolationError, match=text):
        play(delivery)


def test_record_numbers_never_go_back(delivery: DeliveryChecker) -> None:
    delivery.received(FLOW, b"one", record=5)
    with pytest.raises(ViolationError, match="record 5 after record 5"):
        delivery.received(FLOW, b"two", record=5)


def test_nothing_follows_the_last_record() -> None:
    delivery = DeliveryChecker()
    delivery.sent(FLOW, b"end", last=True)
    delivery.sent(FLOW, b"more")
    delivery.received(FLOW, b"end", last=True)
    with pytest.raises(ViolationError, match="after the channel's last"):
        delivery.received(FLOW, b"more")


def test_unreliable_records_in_any_order_at_most_once() -> None:
    delivery = DeliveryChecker()
    for body in (b"a", b"b", b"b", b"lost"):
        delivery.sent(FLOW, body, reliable=False)
    for body in (b"b", b"a", b"b"):
        delivery.received(FLOW, body, reliable=False)
    delivery.complete()
    with pytest.raises(ViolationError, match="twice"):
        delivery.received(FLOW, b"b", reliable=False)


def test_a_record_that_never_arrives_is_missed(delivery: DeliveryChecker) -> None:
    delivery.received(FLOW, b"one")
    assert delivery.outstanding() == {FLOW: 2}
    with pytest.raises(ViolationError, match="2 records never arrived"):
        delivery.complete()


def test_an_ended_connection_owes_nothing_but_stays_honest(delivery: DeliveryChecker) -> None:
    delivery.forget("c0.1")
    delivery.complete()
    delivery.received(FLOW, b"one")
    with pytest.raises(ViolationError, match="out of order"):
        delivery.received(FLOW, b"three")


def test_a_new_beginning_needs_that_nothing_had_arrived(delivery: DeliveryChecker) -> None:
    delivery.sent(("c0.1", "down", 1), b"other")
    delivery.forget("c0.1")
    delivery.restart("c0.1", "up")
    assert delivery.outstanding() == {("c0.1", "down", 1): 1}
    delivery.received(("c0.1", "down", 1), b"other")
    with pytest.raises(ViolationError, match="made twice"):
        delivery.restart("c0.1", "down")


def test_confirms() -> None:
    confirms = ConfirmChecker()
    confirms.given(FLOW, 3, 1)
    confirms.given(FLOW, 6, 2)
    assert confirms.outstanding() == [FLOW]
    confirms.got(FLOW, 6, 2)  # cumulative: the first may be overtaken
    confirms.complete()
    with pytest.raises(ViolationError, match="sequence 3 after 6"):
        confirms.got(FLOW, 3, 1)


@pytest.mark.parametrize(("sequence", "reached"), [(4, 1), (3, 2)])
def test_confirms_that_were_never_sent(sequence: int, reached: int) -> None:
    confirms = ConfirmChecker()
    confirms.given(FLOW, 3, 1)
    with pytest.raises(ViolationError, match="never confirmed"):
        confirms.got(FLOW, sequence, reached)


def test_the_last_confirm_must_arrive() -> None:
    confirms = ConfirmChecker()
    confirms.given(FLOW, 3, 1)
    with pytest.raises(ViolationError, match="never arrived"):
        confirms.complete()
    confirms.forget("c0.1")
    confirms.complete()


@pytest.fixture
def state() -> LifecycleChecker:
    checker = LifecycleChecker()
    for end in (CLIENT, SERVER):
        checker.opened(end)
        checker.connected(end)
    return checker


def test_a_whole_lifecycle(state: LifecycleChecker) -> None:
    state.active(SERVER, "Received")
    state.asked(CLIENT, 7, "enough")
    state.closed(CLIENT, 7, "enough", "local")
    assert state.unclosed() == [SERVER]
    state.closed(SERVER, 7, "enough", "peer")
    state.complete()


@pytest.mark.parametrize(
    ("play", "text"),
    [
        (lambda c: c.opened(CLIENT), "opened twice"),
        (lambda c: c.connected(CLIENT), "Connected twice"),
        (lambda c: c.active("c9.1@client", "Received"), "never opened"),
        (lambda c: c.closed(CLIENT, 7, "x", "local"), r"asked for \[\]"),
        (lambda c: c.closed(CLIENT, 7, "x", "peer"), r"other end asked for \[\]"),
        (lambda c: c.closed(CLIENT, 0, "", "reset"), "neither closed nor dead"),
        (lambda c: c.closed(CLIENT, 0, "", "fate"), "unknown origin"),
        (lambda c: c.complete(), "never Closed"),
    ],
)
def test_wrong_lifecycles(state: LifecycleChecker, play: Callable[[LifecycleChecker], None], text: str) -> None:
    with pytest.raises(ViolationError, match=text):
        play(state)


def test_nothing_before_connected() -> None:
    state = LifecycleChecker()
    state.opened(CLIENT)
    with pytest.raises(ViolationError, match="Received before Connected"):
        state.active(CLIENT, "Received")


@pytest.mark.parametrize("again", ["Closed", "Received"])
def test_nothing_after_closed(state: LifecycleChecker, again: str) -> None:
    state.closed(CLIENT, 0, "", "timeout")
    with pytest.raises(ViolationError, match=f"{again} after Closed"):
        state.closed(CLIENT, 0, "", "timeout") if again == "Closed" else state.active(CLIENT, again)


def test_a_death_excuses_a_reset_and_owes_no_closed(state: LifecycleChecker) -> None:
    state.died(SERVER)
    state.closed(CLIENT, 0, "", "reset")
    state.complete()


def test_the_reason_must_be_the_one_given(state: LifecycleChecker) -> None:
    state.asked(SERVER, 8, "no more")
    with pytest.raises(ViolationError, match="no more"):
        state.closed(CLIENT, 8, "no moré", "peer")


SERVER_ADDRESS = ("192.0.2.1", 4000)
CLIENT_ADDRESS = ("10.0.0.1", 40_000)
ELSEWHERE = ("10.0.0.1", 40_001)


class Node:
    """The part of a node that a watcher uses."""

    def __init__(self, due: float | None = None) -> None:
        self.due = due

    def next_timer(self) -> float | None:
        return self.due


def host(name: str = "server", node: Any = None) -> Host:
    made = Host(name, SERVER_ADDRESS)
    made.node = node
    return made


def cookie(value: bytes) -> bytes:
    return encode_packet(0, 0, f.encode_frame(f.CookieFrame(value, bytes(16))))


def connect(value: bytes) -> bytes:
    return encode_packet(0, 0, f.encode_frame(f.ConnectFrame(5, bytes(16), value, b"")))


def test_three_times_is_allowed_and_one_byte_more_is_not() -> None:
    watcher, server = AmplificationWatcher("server"), host()
    watcher.arrived(server, CLIENT_ADDRESS, bytes(100), 0.0)
    watcher.sent(server, SERVER_ADDRESS, CLIENT_ADDRESS, bytes(300), 0.0)
    with pytest.raises(ViolationError, match="301 bytes"):
        watcher.sent(server, SERVER_ADDRESS, CLIENT_ADDRESS, bytes(1), 0.0)


def test_an_address_that_sent_nothing_gets_nothing() -> None:
    watcher, server = AmplificationWatcher("server"), host()
    watcher.arrived(server, CLIENT_ADDRESS, bytes(100), 0.0)
    with pytest.raises(ViolationError, match="sent 0"):
        watcher.sent(server, SERVER_ADDRESS, ELSEWHERE, bytes(1), 0.0)


def prove(watcher: AmplificationWatcher, server: Host) -> None:
    token = bytes(range(20))
    watcher.arrived(server, CLIENT_ADDRESS, bytes(1200), 0.0)
    watcher.sent(server, SERVER_ADDRESS, CLIENT_ADDRESS, cookie(token), 0.0)
    watcher.arrived(server, CLIENT_ADDRESS, connect(token), 0.0)


def test_a_returned_cookie_proves_the_address() -> None:
    watcher, server = AmplificationWatcher("server"), host()
    prove(watcher, server)
    watcher.sent(server, SERVER_ADDRESS, CLIENT_ADDRESS, bytes(100_000), 0.0)


def test_a_cookie_from_elsewhere_proves_nothing() -> None:
    watcher, server = AmplificationWatcher("server"), host()
    token = bytes(range(20))
    watcher.arrived(server, CLIENT_ADDRESS, bytes(1200), 0.0)
    watcher.sent(server, SERVER_ADDRESS, CLIENT_ADDRESS, cookie(token), 0.0)
    watcher.arrived(server, ELSEWHERE, connect(token), 0.0)
    watcher.arrived(server, CLIENT_ADDRESS, connect(bytes(20)), 0.0)
    for address in (CLIENT_ADDRESS, ELSEWHERE):
        with pytest.raises(ViolationError):
            watcher.sent(server, SERVER_ADDRESS, address, bytes(100_000), 0.0)


def test_a_path_response_proves_the_address() -> None:
    watcher, server = AmplificationWatcher("server"), host()
    watcher.arrived(server, ELSEWHERE, bytes(60), 0.0)
    watcher.sent(
        server, SERVER_ADDRESS, ELSEWHERE, encode_packet(1, 1, f.encode_frame(f.PathProbeFrame(b"12345678"))), 0.0
    )
    response = f.encode_frame(f.PathResponseFrame(b"12345678", bytes(16)))
    watcher.arrived(server, ELSEWHERE, encode_packet(1, 1, response), 0.0)
    watcher.sent(server, SERVER_ADDRESS, ELSEWHERE, bytes(100_000), 0.0)


def test_a_new_process_knows_nothing_of_old_proofs() -> None:
    watcher, server = AmplificationWatcher("server"), host()
    prove(watcher, server)
    watcher.started(server, 1.0)
    with pytest.raises(ViolationError):
        watcher.sent(server, SERVER_ADDRESS, CLIENT_ADDRESS, bytes(1), 1.0)


def test_clients_are_free() -> None:
    AmplificationWatcher("server").sent(host("client0"), CLIENT_ADDRESS, SERVER_ADDRESS, bytes(1200), 0.0)


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
    busy.drained(host(node=Node(1.0)), 0.0)
    idle.drained(host(node=Node(None)), 0.0)
    with pytest.raises(ViolationError, match="no timer"):
        busy.drained(host(node=Node(None)), 0.0)
    with pytest.raises(ViolationError, match="inf"):
        busy.drained(host(node=Node(float("inf"))), 0.0)


def test_memory() -> None:
    counts = iter((10, 20, 0, 21, -1))
    watcher = MemoryWatcher(lambda host: next(counts), lambda host: 20)
    for _ in range(3):
        watcher.drained(host(), 0.0)
    assert watcher.most_bytes == {"server": 20}
    for _ in range(2):
        with pytest.raises(ViolationError, match="bounded to 20"):
            watcher.drained(host(), 0.0)


def ping(connection_id: int, number: int) -> bytes:
    return encode_packet(connection_id, number, f.encode_frame(f.PingFrame()))


def test_a_time_out_needs_silence() -> None:
    watcher, server = TimeoutWatcher(), host()
    watcher.arrived(server, CLIENT_ADDRESS, ping(5, 1), 10.0)
    watcher.arrived(server, CLIENT_ADDRESS, ping(6, 1), 35.0)  # another connection
    watcher.arrived(server, CLIENT_ADDRESS, ping(5, 1), 36.0)  # a repeat
    watcher.arrived(server, CLIENT_ADDRESS, b"rubbish", 37.0)
    watcher.arrived(server, ELSEWHERE, ping(5, 3), 37.0)  # perhaps not the peer
    watcher.timed_out(server, 5, CLIENT_ADDRESS, 30.0, 40.0)
    watcher.timed_out(server, 7, CLIENT_ADDRESS, 30.0, 40.0)  # it never received anything
    watcher.arrived(server, CLIENT_ADDRESS, ping(5, 2), 38.0)
    with pytest.raises(ViolationError, match=r"2\.000 s after a packet"):
        watcher.timed_out(server, 5, CLIENT_ADDRESS, 30.0, 40.0)
