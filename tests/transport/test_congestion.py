"""The rate finds what the path carries, whatever gets lost on it; the window follows the path's product."""

from __future__ import annotations

import random
from heapq import heappop, heappush

import pytest

from godwit.limits import MAX_TRAIN_BYTES, RECEIVE_BUFFER_BYTES
from godwit.transport.congestion import (
    INITIAL_WINDOW_DATAGRAMS,
    PROBE_RTT_S,
    SLOWEST_DATAGRAM_S,
    SMALLEST_WINDOW_DATAGRAMS,
    Congestion,
    CongestionMode,
    Flight,
    Pacer,
    train_bytes,
    train_limit_bytes,
)

DATAGRAM = 1400


class Pipe:
    """A bottleneck with a queue, a delay and perhaps loss; one sender that always has something to send."""

    def __init__(
        self, rate: float, round_trip_s: float, *, queue_bytes: float = 1e9, loss: float = 0.0, seed: int = 1,
        peer_buffer_bytes: int = RECEIVE_BUFFER_BYTES, hint_s: float | None = None,
    ) -> None:  # fmt: skip
        self.rate = rate
        self.round_trip_s = round_trip_s
        self.queue_bytes = queue_bytes
        self.loss = loss
        self.rng = random.Random(seed)
        self.now = 0.0
        self.free_at = 0.0
        self.congestion = Congestion(
            now=0.0, datagram_bytes=DATAGRAM, round_trip_s=hint_s, peer_buffer_bytes=peer_buffer_bytes
        )
        self.pacer = Pacer(0.0)
        self.train_limit = train_limit_bytes(peer_buffer_bytes, DATAGRAM)
        self.acks: list[tuple[float, int, float, Flight, bool]] = []
        self.sends = True
        self.delivered_bytes = 0
        self.modes: list[CongestionMode] = []
        self.longest_queue_s = 0.0
        self._count = 0

    def _send(self) -> float | None:
        """Sends what may go; gives when more may."""
        control = self.congestion
        while self.sends and control.in_flight_bytes + DATAGRAM <= control.window_bytes:
            size = train_bytes(control.rate_bytes_per_s, DATAGRAM, self.train_limit)
            if self.pacer.room_bytes(self.now, control.rate_bytes_per_s, size) < size:
                return self.pacer.ready_at(control.rate_bytes_per_s, size)
            flight = control.begin_flight(self.now)
            for _ in range(size // DATAGRAM):
                self._launch(flight)
            self.pacer.bucket_bytes -= size
        if not self.sends:
            control.handle_idle()
        return None

    def _launch(self, flight: Flight) -> None:
        self.congestion.handle_sent(DATAGRAM)
        queued_s = max(self.free_at - self.now, 0.0)
        self.longest_queue_s = max(self.longest_queue_s, queued_s)
        lost = self.rng.random() < self.loss or queued_s * self.rate > self.queue_bytes
        if queued_s * self.rate <= self.queue_bytes:
            self.free_at = self.now + queued_s + DATAGRAM / self.rate
        self._count += 1
        heappush(self.acks, (self.free_at + self.round_trip_s, self._count, self.now, flight, lost))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            then = self._send()
            times = [time for time in (then, self.acks[0][0] if self.acks else None, until) if time is not None]
            self.now = max(min(times), self.now)
            while self.acks and self.acks[0][0] <= self.now:
                _, _, sent_at, flight, lost = heappop(self.acks)
                if lost:
                    self.congestion.handle_lost(DATAGRAM, sent_at)
                    continue
                self.delivered_bytes += DATAGRAM
                self.congestion.handle_delivered(self.now, DATAGRAM, flight, self.now - sent_at)
            mode = self.congestion.mode
            if not self.modes or self.modes[-1] is not mode:
                self.modes.append(mode)


RATES = [50_000.0, 1.25e6, 1e7]


def test_the_beginning_is_modest() -> None:
    control = Pipe(1e6, 0.02, hint_s=0.02).congestion
    assert control.mode is CongestionMode.STARTUP
    assert control.window_bytes == INITIAL_WINDOW_DATAGRAMS * DATAGRAM
    assert control.bandwidth_bytes_per_s == 0.0
    assert control.shortest_trip_s == 0.02
    assert control.rate_bytes_per_s == pytest.approx(2.885 * control.window_bytes / 0.02)


def test_startup_doubles_each_round_trip() -> None:
    pipe = Pipe(2e7, 0.05, hint_s=0.05)
    pipe.run(0.06)
    before = pipe.congestion.bandwidth_bytes_per_s
    pipe.run(0.15)
    assert pipe.congestion.mode is CongestionMode.STARTUP
    assert pipe.congestion.bandwidth_bytes_per_s > 4 * before


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("round_trip_s", [0.005, 0.03, 0.2])
def test_finds_the_rate_and_drains_its_queue(rate: float, round_trip_s: float) -> None:
    pipe = Pipe(rate, round_trip_s, hint_s=round_trip_s + DATAGRAM / rate)
    pipe.run(max(40 * round_trip_s, 3.0))
    control = pipe.congestion
    assert pipe.modes[:3] == [CongestionMode.STARTUP, CongestionMode.DRAIN, CongestionMode.PROBE_BW]
    assert control.bandwidth_bytes_per_s == pytest.approx(rate, rel=0.1)
    assert control.shortest_trip_s == pytest.approx(round_trip_s + DATAGRAM / rate, rel=0.2)
    queued_bytes = control.in_flight_bytes - rate * control.shortest_trip_s
    assert queued_bytes <= 1.1 * rate * control.shortest_trip_s + 8 * DATAGRAM
    before = pipe.delivered_bytes
    pipe.run(2.0)
    assert pipe.delivered_bytes - before == pytest.approx(2.0 * rate, rel=0.1)


@pytest.mark.parametrize(("loss", "share"), [(0.02, 0.9), (0.1, 0.85), (0.2, 0.7)])
def test_loss_alone_does_not_lower_the_rate(loss: float, share: float) -> None:
    """`share` of what can arrive at all. (From a fifth on, the fast phase of the cycle no longer finds more.)"""
    pipe = Pipe(1.25e6, 0.03, loss=loss, hint_s=0.03)
    pipe.run(3.0)
    before = pipe.delivered_bytes
    pipe.run(5.0)
    assert pipe.delivered_bytes - before > share * (1 - loss) * 5 * 1.25e6
    assert pipe.congestion.bandwidth_bytes_per_s > share * (1 - loss) * 1.25e6


def test_a_short_queue_is_enough() -> None:
    pipe = Pipe(1.25e6, 0.03, queue_bytes=25 * 1500, hint_s=0.03)
    pipe.run(3.0)
    before = pipe.delivered_bytes
    pipe.run(5.0)
    assert pipe.delivered_bytes - before > 0.85 * 5 * 1.25e6


def test_follows_a_path_that_becomes_faster_or_slower() -> None:
    pipe = Pipe(1e6, 0.03, hint_s=0.03)
    pipe.run(3.0)
    pipe.rate = 3e6
    pipe.run(3.0)
    assert pipe.congestion.bandwidth_bytes_per_s == pytest.approx(3e6, rel=0.1)
    pipe.rate = 5e5
    pipe.run(8.0)  # ten round trips, long ones behind the queue that has built up
    assert pipe.congestion.bandwidth_bytes_per_s == pytest.approx(5e5, rel=0.15)


def test_looks_for_a_shorter_round_trip_every_ten_seconds() -> None:
    pipe = Pipe(1.25e6, 0.03, hint_s=0.03)
    pipe.run(9.0)
    assert CongestionMode.PROBE_RTT not in pipe.modes
    pipe.round_trip_s = 0.05  # a longer way: only a probe can tell it from a queue
    probing_s = 0.0
    smallest = 1 << 60
    while pipe.now < 40.0:
        pipe.run(0.01)
        if pipe.congestion.mode is CongestionMode.PROBE_RTT:
            probing_s += 0.01
            smallest = min(smallest, pipe.congestion.window_bytes)
    assert CongestionMode.PROBE_RTT in pipe.modes
    assert smallest == SMALLEST_WINDOW_DATAGRAMS * DATAGRAM
    assert PROBE_RTT_S <= probing_s < 2.0
    assert pipe.congestion.shortest_trip_s == pytest.approx(0.051, rel=0.1)
    assert pipe.congestion.bandwidth_bytes_per_s == pytest.approx(1.25e6, rel=0.1)


def test_a_probe_of_the_round_trip_before_the_path_is_full_goes_back_to_startup() -> None:
    control = Congestion(now=0.0, datagram_bytes=DATAGRAM, round_trip_s=0.03, peer_buffer_bytes=10**6)
    now = 0.0
    modes = set()
    control.begin_flight(now)
    control.handle_sent(DATAGRAM)  # stays under way, so that no flight begins from rest
    for _ in range(60):
        now += 0.5
        control.handle_idle()
        flight = control.begin_flight(now)
        control.handle_sent(DATAGRAM)
        control.handle_delivered(now + 0.031, DATAGRAM, flight, 0.031)
        modes.add(control.mode)
    assert modes == {CongestionMode.STARTUP, CongestionMode.PROBE_RTT}


def test_a_burst_after_a_rest_needs_no_probe_of_the_round_trip() -> None:
    control = Congestion(now=0.0, datagram_bytes=DATAGRAM, round_trip_s=0.03, peer_buffer_bytes=10**6)
    for now in (0.0, 30.0, 60.0):
        flight = control.begin_flight(now)
        control.handle_sent(DATAGRAM)
        control.handle_delivered(now + 0.031, DATAGRAM, flight, 0.031)
        assert control.mode is CongestionMode.STARTUP


def test_bursts_after_rests_follow_a_path_that_grows_longer() -> None:
    pipe = Pipe(1.25e6, 0.03, hint_s=0.03)
    pipe.run(3.0)
    for _ in range(4):
        pipe.sends = False
        pipe.run(15.0)
        pipe.round_trip_s += 0.001  # never a shorter one, so the one that is known grows old
        pipe.sends = True
        pipe.run(0.5)
    assert CongestionMode.PROBE_RTT not in pipe.modes
    assert pipe.congestion.shortest_trip_s == pytest.approx(0.034 + DATAGRAM / 1.25e6, rel=0.05)


def test_what_the_application_held_back_says_nothing_about_the_path() -> None:
    pipe = Pipe(1.25e6, 0.03, hint_s=0.03)
    pipe.run(3.0)
    found = pipe.congestion.bandwidth_bytes_per_s
    for _ in range(100):  # a datagram now and then
        pipe.sends = False
        pipe.run(0.1)
        pipe.sends = True
        pipe._send()
        pipe.sends = False
    assert pipe.congestion.bandwidth_bytes_per_s >= 0.9 * found


def test_few_bytes_now_and_then_do_not_end_startup() -> None:
    control = Congestion(now=0.0, datagram_bytes=DATAGRAM, round_trip_s=0.03, peer_buffer_bytes=10**6)
    now = 0.0
    for _ in range(50):
        now += 0.1
        control.handle_idle()
        flight = control.begin_flight(now)
        control.handle_sent(100)
        control.handle_delivered(now + 0.03, 100, flight, 0.03)
    assert control.mode is CongestionMode.STARTUP
    assert control.window_bytes >= INITIAL_WINDOW_DATAGRAMS * DATAGRAM


@pytest.mark.parametrize("buffer", [20_000, RECEIVE_BUFFER_BYTES, 4_000_000])
def test_on_a_local_path_the_window_is_bounded_by_the_receive_buffer(buffer: int) -> None:
    pipe = Pipe(1e9, 0.0001, peer_buffer_bytes=buffer, hint_s=0.0002)
    pipe.run(0.02)
    window = pipe.congestion.window_bytes
    floor = min(4 * train_limit_bytes(buffer, DATAGRAM), buffer // 2)
    assert window >= min(floor, SMALLEST_WINDOW_DATAGRAMS * DATAGRAM)
    assert window >= floor or window == buffer // 2
    assert window <= max(buffer // 2, SMALLEST_WINDOW_DATAGRAMS * DATAGRAM)
    assert CongestionMode.PROBE_RTT not in pipe.modes


def test_the_account_of_what_is_in_flight() -> None:
    control = Congestion(now=0.0, datagram_bytes=DATAGRAM, round_trip_s=None, peer_buffer_bytes=10**6)
    flight = control.begin_flight(0.0)
    control.handle_sent(5000)
    control.handle_lost(1000, 0.0)
    control.handle_delivered(0.03, 3000, flight, 0.03)
    assert control.in_flight_bytes == 1000
    assert control.shortest_trip_s == pytest.approx(0.03)


def test_what_was_sent_on_another_path_says_nothing() -> None:
    old = Congestion(now=0.0, datagram_bytes=DATAGRAM, round_trip_s=0.03, peer_buffer_bytes=10**6)
    flight = old.begin_flight(1.0)
    new = Congestion(now=5.0, datagram_bytes=DATAGRAM, round_trip_s=None, peer_buffer_bytes=10**6)
    before = (new.rate_bytes_per_s, new.window_bytes, new.bandwidth_bytes_per_s, new.shortest_trip_s)
    new.handle_sent(100_000)
    for n in range(10):
        new.handle_delivered(5.1 + n / 100, 10_000, flight, 4.0)
    assert (new.rate_bytes_per_s, new.window_bytes, new.bandwidth_bytes_per_s, new.shortest_trip_s) == before
    assert new.in_flight_bytes == 0
    assert new.mode is CongestionMode.STARTUP


def test_larger_datagrams_make_a_larger_smallest_window() -> None:
    pipe = Pipe(20_000, 0.01, hint_s=0.01)
    pipe.run(5.0)
    pipe.congestion.handle_datagram_size(9000)
    pipe.run(1.0)
    assert pipe.congestion.window_bytes >= SMALLEST_WINDOW_DATAGRAMS * 9000


@pytest.mark.parametrize(
    ("buffer", "datagram", "limit"),
    [
        (212_992, 1472, 26_624),
        (10**7, 1472, MAX_TRAIN_BYTES),
        (2400, 1200, 2400),
        (10**7, 60_000, MAX_TRAIN_BYTES),
    ],
)
def test_a_train_is_an_eighth_of_the_receive_buffer(buffer: int, datagram: int, limit: int) -> None:
    assert train_limit_bytes(buffer, datagram) == limit


# -- lone packets -----------------------------------------------------------------------------------------------------


def made(now: float = 0.0) -> Congestion:
    return Congestion(now=now, datagram_bytes=DATAGRAM, round_trip_s=None, peer_buffer_bytes=RECEIVE_BUFFER_BYTES)


def test_a_lone_packet_begins_its_flight_in_one_step() -> None:
    one, other = made(), made()
    rng = random.Random(4)
    now = 0.0
    flights: list[tuple[Flight, Flight]] = []
    for _ in range(200):
        now += rng.uniform(0.0, 0.02)
        if flights and rng.random() < 0.5:
            mine, yours = flights.pop(0)
            one.handle_delivered(now, 48, mine, now - mine.sent_at)
            other.handle_delivered(now, 48, yours, now - yours.sent_at)
        else:
            other.handle_idle()
            flight = other.begin_flight(now)
            other.handle_sent(48)
            flights.append((one.begin_lone_flight(now, 48, was_idle=True), flight))
        assert [mine == yours for mine, yours in flights] == [True] * len(flights)
    assert one.in_flight_bytes == other.in_flight_bytes


@pytest.mark.parametrize("seed", range(5))
def test_what_tells_nothing_of_the_path_changes_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model with the way around it, and without."""

    def model(control: Congestion) -> list[object]:
        return [getattr(control, name) for name in Congestion.__slots__]

    one, other = made(), made()
    rng = random.Random(seed)
    true_look = Congestion._is_uninformative
    skipped = 0

    def look(control: Congestion, *arguments: object) -> bool:
        nonlocal skipped
        tells_nothing = control is one and true_look(control, *arguments)  # type: ignore[arg-type]
        skipped += tells_nothing
        return tells_nothing

    monkeypatch.setattr(Congestion, "_is_uninformative", look)
    now = 0.0
    for _ in range(600):
        now += rng.choice((0.001, 0.03, 0.03, 2.0))
        size = rng.choice((48, 48, 48, 1200))
        mine, yours = (control.begin_lone_flight(now, size, was_idle=True) for control in (one, other))
        now += rng.uniform(0.005, 0.03)
        for control, flight in ((one, mine), (other, yours)):
            control.handle_delivered(now, size, flight, now - flight.sent_at)
        assert model(one) == model(other)
    assert skipped > 200


def test_the_rate_never_falls_so_low_that_it_measures_itself() -> None:
    """Each acknowledgement says that next to nothing was delivered in a long time, as when nearly all is repeated."""
    control = Congestion(now=0.0, datagram_bytes=DATAGRAM, round_trip_s=0.05, peer_buffer_bytes=2**20)
    now = 0.0
    for _ in range(200):
        flight = control.begin_flight(now)
        control.handle_sent(DATAGRAM)
        now += 60.0
        control.handle_delivered(now, DATAGRAM, flight, None)
    assert control.bandwidth_bytes_per_s < 100
    assert control.rate_bytes_per_s >= DATAGRAM / SLOWEST_DATAGRAM_S
