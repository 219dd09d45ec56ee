"""The digest and the lines of a trace, the inspection of datagrams, and virtual time, hosts and addresses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from godwit.impairment import ImpairedLink, LinkSettings
from godwit.transport.events import Address, Train
from godwit.wire import packet as f
from godwit.wire.packet import encode_packet
from godwit_sim.network import (
    Host,
    LivelockError,
    Network,
    Observer,
    Trace,
    addressed_to,
    answers,
    challenges,
    describe,
    frames_of,
    join_datagrams,
)


def test_equal_notes_give_equal_digests() -> None:
    one, other = Trace(), Trace()
    for trace in (one, other):
        trace.note(0.1, "a")
        trace.note(0.2, "b")
    assert one.hexdigest() == other.hexdigest()
    assert one.notes == 2


def test_every_difference_shows() -> None:
    digests = set()
    for now, what in ((0.1, "a"), (0.1, "b"), (math.nextafter(0.1, 1.0), "a"), (0.2, "a")):
        trace = Trace()
        trace.note(now, what)
        digests.add(trace.hexdigest())
    assert len(digests) == 4  # the last bit of the time counts


def test_reading_changes_nothing() -> None:
    lines: list[str] = []
    read, unread = Trace(lines.append), Trace()
    for trace in (read, unread):
        trace.note(1.5, "something")
        trace.comment(1.5, "an explanation")
    assert read.readable
    assert not unread.readable
    assert read.hexdigest() == unread.hexdigest()
    assert [line.split() for line in lines] == [["1.500000", "something"], ["1.500000", "an", "explanation"]]


def packet(*frames: f.Frame) -> bytes:
    return encode_packet(0xABC, 7, b"".join(f.encode_frame(frame) for frame in frames))


def test_frames_of_rubbish_are_none() -> None:
    assert frames_of(b"rubbish") == []
    assert frames_of(packet(f.PingFrame())) == [f.PingFrame()]


def test_addressed_to() -> None:
    assert addressed_to(packet(f.PingFrame())) == (0xABC, 7)
    assert addressed_to(b"rubbish") is None


def test_challenges_and_answers() -> None:
    asked = packet(f.CookieFrame(b"c" * 20, bytes(16)), f.PathProbeFrame(b"p" * 8), f.PingFrame())
    assert challenges(asked) == [b"c" * 20, b"p" * 8]
    assert answers(asked) == []
    answered = packet(
        f.ConnectFrame(1, bytes(16), b"c" * 20, b""), f.PathResponseFrame(b"p" * 8, bytes(16)), f.PingFrame()
    )
    assert answers(answered) == [b"c" * 20, b"p" * 8]
    assert challenges(answered) == []


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (f.PingFrame(), "ping"),
        (f.DataFrame(f.HAS_LENGTH, 3, 4, 100, None, b"12345"), "data 3/4+100:105"),
        (
            f.DataFrame(f.HAS_LENGTH | f.LAST | f.END | f.HAS_POSITION, 3, 4, 9, 8, b"1"),
            "data 3/4+9:10. end position 8",
        ),
        (f.DataFrame(f.HAS_LENGTH | f.WHOLE | f.UNRELIABLE, 3, 4, 0, None, b""), "unreliable 3/4+0:0."),
        (f.AckFrame(0, ((5, 9), (3, 3))), "ack 5-9 3"),
        (f.AckFrame(0, ((9, 9), (7, 7), (5, 5), (3, 3), (1, 1)), 6), "ack 9 7 5 3 and 1 more next 6"),
        (f.CreditFrame(1, 10), "credit 1 to 10"),
        (f.BlockedFrame(1, 10), "blocked 1 at 10"),
        (f.ConfirmFrame(1, 2, 3), "confirm 1 up to 2 reached 3"),
        (f.CloseFrame(4, "bye", bytes(16)), "close 4 'bye'"),
    ],
)
def test_describe(frame: f.Frame, text: str) -> None:
    line = describe(packet(frame))
    assert line.endswith(f"#7 for 0000000000000abc: {text}")


def test_describe_rubbish() -> None:
    assert describe(b"rubbish") == "7 B, no packet (truncated)"


A: Address = ("10.0.0.1", 1)
B: Address = ("10.0.0.2", 2)


class Parrot:
    """Store received datagrams; reply with `reply` to each; set timers at the times in `timers`."""

    def __init__(self, reply: bytes = b"", timers: Sequence[float] = ()) -> None:
        self.got: list[tuple[float, Train]] = []
        self.rang: list[float] = []
        self.reply = reply
        self.timers = list(timers)
        self.out: list[Train] = []
        self.pending: list[str] = []

    def receive(self, train: Train, now: float) -> None:
        self.got.append((now, train))
        self.pending.append("received")
        if self.reply:
            self.out += [Train(train.address, self.reply, len(self.reply)) for _ in train.datagrams()]

    def handle_timers(self, now: float) -> None:
        self.rang.append(now)
        self.timers = [due for due in self.timers if due > now]

    def events(self) -> list[str]:
        pending, self.pending = self.pending, []
        return pending

    def trains(self, now: float) -> list[Train]:
        out, self.out = self.out, []
        return out

    def next_timer(self) -> float | None:
        return min(self.timers, default=None)

    def bodies(self) -> list[bytes]:
        return [datagram for _, train in self.got for datagram in train.datagrams()]


def ignore(events: Sequence[Any], now: float) -> None:
    pass


def world(trace: Trace | None = None, seed: int = 1, **settings: Any) -> tuple[Network, Host, Host]:
    network = Network(trace)
    one, other = network.add_host(Host("a", A)), network.add_host(Host("b", B))
    network.join(one, other, ImpairedLink(LinkSettings(**settings), Random(f"{seed} ab")))
    network.join(other, one, ImpairedLink(LinkSettings(**settings), Random(f"{seed} ba")))
    return network, one, other


def send(network: Network, host: Host, node: Parrot, to: Address, *datagrams: bytes) -> None:
    node.out += [Train(to, datagram, max(1, len(datagram))) for datagram in datagrams]
    network.pump(host)


def started(network: Network, host: Host, node: Parrot) -> Parrot:
    network.start(host, node, ignore)
    return node


def test_a_train_arrives_after_the_delay_and_is_answered() -> None:
    network, one, other = world(delay_s=0.1)
    a, b = started(network, one, Parrot()), started(network, other, Parrot(reply=b"yes"))
    a.out.append(Train(B, b"aaabbbc", 3))
    network.pump(one)
    network.run(1.0)
    ((when, train),) = b.got  # joined again, as it was sent
    assert when == pytest.approx(0.1)
    assert train == Train(A, b"aaabbbc", 3)
    assert a.bodies() == [b"yes"] * 3
    assert a.got[0][0] == pytest.approx(0.2)
    assert network.now == 1.0


def test_without_joining_each_datagram_comes_alone() -> None:
    network, one, other = world()
    other.joins = False
    a, b = started(network, one, Parrot()), started(network, other, Parrot())
    a.out.append(Train(B, b"aaabbbc", 3))
    network.pump(one)
    network.run(1.0)
    assert [train for _, train in b.got] == [Train(A, b"aaa", 3), Train(A, b"bbb", 3), Train(A, b"c", 1)]


def test_a_slow_process_finds_more_at_once() -> None:
    network, one, other = world()
    other.wake_delay_s = 0.01
    a, b = started(network, one, Parrot()), started(network, other, Parrot())
    for at_s in (0.0, 0.004, 0.009, 0.02):
        network.at(at_s, send, network, one, a, B, b"xyz")
    network.run(1.0)
    assert [(when, train.data) for when, train in b.got] == [(0.01, b"xyz" * 3), (0.03, b"xyz")]


def test_the_inbox_is_bounded() -> None:
    network, one, other = world()
    other.wake_delay_s, other.inbox_bytes = 0.01, 10
    a, b = started(network, one, Parrot()), started(network, other, Parrot())
    send(network, one, a, B, *[b"1234"] * 4)
    network.run(1.0)
    assert len(b.bodies()) == 2
    assert network.vanished["inbox_full"] == 2


def test_join_datagrams() -> None:
    assert join_datagrams([]) == []
    mixed = [(A, b"aa"), (A, b"bb"), (A, b"c"), (A, b"dd"), (B, b"ee"), (B, b"fff"), (B, b"")]
    assert join_datagrams(mixed) == [
        Train(A, b"aabbc", 2), Train(A, b"dd", 2), Train(B, b"ee", 2), Train(B, b"fff", 3), Train(B, b"", 1),
    ]  # fmt: skip
    many = join_datagrams([(A, bytes(100))] * 150)
    assert [len(train.data) // 100 for train in many] == [64, 64, 22]
    large = join_datagrams([(A, bytes(9000))] * 8)
    assert [len(train.data) // 9000 for train in large] == [7, 1]


def test_timers_ring_in_order_and_on_the_grid() -> None:
    network, one, other = world()
    other.timer_step_s = 0.25
    a, b = started(network, one, Parrot(timers=[0.5, 0.3])), started(network, other, Parrot(timers=[0.3, 0.5]))
    network.run(1.0)
    assert a.rang == [0.3, 0.5]
    assert b.rang == [0.5]  # both were due by then


def test_every_host_has_its_own_clock() -> None:
    network = Network()
    one, other = network.add_host(Host("a", A, epoch_s=1e6 / 3)), network.add_host(Host("b", B))
    network.join(one, other, ImpairedLink(LinkSettings(delay_s=0.1), Random(1)))
    network.join(other, one, ImpairedLink(LinkSettings(delay_s=0.1), Random(1)))
    due = 1e6 / 3 + 0.7
    a, b = started(network, one, Parrot(timers=[due])), started(network, other, Parrot(reply=b"r"))
    send(network, one, a, B, b"x")
    network.run(1.0)
    assert b.got[0][0] == pytest.approx(0.1)
    assert a.got[0][0] == pytest.approx(1e6 / 3 + 0.2)
    assert a.rang == [due]  # not earlier, whatever the rounding
    assert one.clock(0.0) >= due  # it never goes back


def test_a_moved_timer_rings_only_at_its_new_time() -> None:
    network, one, _ = world()
    a = started(network, one, Parrot(timers=[0.5]))
    a.timers = [0.7]
    network.pump(one)
    network.run(1.0)
    assert a.rang == [0.7]


def test_rebinding_changes_the_source_and_loses_datagrams_in_flight() -> None:
    network, one, other = world(delay_s=0.1)
    a, b = started(network, one, Parrot()), started(network, other, Parrot(reply=b"r"))
    send(network, one, a, B, b"before")
    network.at(0.15, network.rebind, one, ("10.0.0.1", 99))
    network.at(0.3, send, network, one, a, B, b"after")
    network.run(1.0)
    assert [train.address for _, train in b.got] == [A, ("10.0.0.1", 99)]
    assert a.bodies() == [b"r"]
    assert network.vanished["no_host"] == 1
    send(network, other, b, A, b"late")
    assert network.vanished["no_route"] == 1


def test_a_paused_process_finds_everything_later() -> None:
    network, one, other = world()
    a, b = started(network, one, Parrot()), started(network, other, Parrot(timers=[0.3, 0.9]))
    network.pause(other, 0.5)
    for at_s in (0.1, 0.2):
        network.at(at_s, send, network, one, a, B, b"xyz")
    network.run(1.0)
    assert [(when, train.data) for when, train in b.got] == [(0.5, b"xyzxyz")]
    assert b.rang == [0.5, 0.9]


def test_a_partition_and_its_end() -> None:
    network, one, other = world()
    a, b = started(network, one, Parrot()), started(network, other, Parrot())
    network.partition(one, other)
    send(network, one, a, B, b"lost")
    send(network, other, b, A, b"lost")
    network.heal(one, other)
    send(network, one, a, B, b"found")
    network.partition(one, other, both_ways=False)
    send(network, one, a, B, b"lost")
    send(network, other, b, A, b"found")
    network.run(1.0)
    assert (a.bodies(), b.bodies()) == ([b"found"], [b"found"])


def test_a_dead_process_receives_nothing_and_its_timers_are_gone() -> None:
    network, one, other = world(delay_s=0.1)
    a, b = started(network, one, Parrot()), started(network, other, Parrot(timers=[0.5]))
    send(network, one, a, B, b"to the dead")
    network.at(0.05, network.kill, other)
    network.run(0.4)
    assert network.vanished["no_process"] == 1
    again = started(network, other, Parrot(timers=[0.6]))
    send(network, one, a, B, b"to the living")
    network.run(1.0)
    assert (b.rang, b.got) == ([], [])
    assert again.rang == [0.6]
    assert again.bodies() == [b"to the living"]
    assert other.lives == 2


def test_an_application_may_kill_its_own_process() -> None:
    network, one, other = world()
    a = started(network, one, Parrot())
    b = Parrot(reply=b"never sent")
    network.start(other, b, lambda events, now: network.kill(other))
    send(network, one, a, B, b"x")
    network.run(1.0)
    assert not other.alive
    assert a.got == []


def test_a_node_that_never_rests_is_noticed() -> None:
    class Restless(Parrot):
        def events(self) -> list[str]:
            return ["again"]

    network, one, _ = world()
    with pytest.raises(LivelockError, match="a still produces"):
        network.start(one, Restless(), ignore)


def test_run_stops_when_done() -> None:
    network, one, other = world(delay_s=0.1)
    a, b = started(network, one, Parrot()), started(network, other, Parrot())
    send(network, one, a, B, b"x")
    assert network.run(10.0, lambda: bool(b.got))
    assert network.now == pytest.approx(0.1)
    assert not network.run(10.0, lambda: len(b.got) > 1)
    assert network.now == 10.0


def test_observers_see_everything() -> None:
    seen: list[str] = []

    class Spy(Observer):
        def started(self, host: Host, now: float) -> None:
            seen.append(f"started {host.name}")

        def stopped(self, host: Host, now: float) -> None:
            seen.append(f"stopped {host.name}")

        def sent(self, host: Host, source: Address, destination: Address, datagram: bytes, now: float) -> None:
            seen.append(f"sent {source} {destination} {datagram!r}")

        def arrived(self, host: Host, source: Address, datagram: bytes, now: float) -> None:
            seen.append(f"arrived {host.name} {source} {datagram!r}")

        def fired(self, host: Host, due: float, now: float) -> None:
            seen.append(f"fired {due}")

    network, one, other = world()
    network.observers.append(Spy())
    a = started(network, one, Parrot(timers=[0.5]))
    started(network, other, Parrot())
    network.inject(one, ("false", 1), B, b"x")
    network.run(1.0)
    network.kill(one)
    assert a.rang == [0.5]
    assert seen == [
        "started a",
        "started b",
        f"sent ('false', 1) {B} b'x'",
        "arrived b ('false', 1) b'x'",
        "fired 0.5",
        "stopped a",
    ]


def conversation(seed: int) -> str:
    trace = Trace()
    network, one, other = world(
        trace, seed, delay_s=0.01, jitter_s=0.01, loss=0.1, duplication=0.1, reordering=0.1, corruption=0.1
    )
    a = started(network, one, Parrot())
    started(network, other, Parrot(reply=b"reply"))
    for number in range(200):
        network.at(number * 0.005, send, network, one, a, B, bytes([number]) * 10)
    network.run(2.0)
    return trace.hexdigest()


def test_one_seed_gives_one_sequence_of_events() -> None:
    assert conversation(1) == conversation(1)
    assert conversation(1) != conversation(2)


def test_a_readable_trace_describes_datagrams() -> None:
    lines: list[str] = []
    network, one, _ = world(Trace(lines.append))
    a = started(network, one, Parrot())
    send(network, one, a, B, b"rubbish")
    assert any("no packet" in line for line in lines)
