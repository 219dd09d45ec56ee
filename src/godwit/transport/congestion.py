"""Congestion control by rate, after BBR (Cardwell et al., version 1), and the pacer that enforces the rate.

On the networks that Godwit is made for, a lost datagram does not indicate congestion. The capacity of the path is
measured
instead: the highest delivery rate of the last ten round trips, and the shortest round trip of the last ten seconds.
Their
product is what the path holds; the pacer sends at the rate, the window allows twice the product in flight.

    STARTUP    the rate more than doubles each round trip, until it stops growing
    DRAIN      the queue that this built up is drained
    PROBE_BW   a cycle of eight phases: one faster (to find more bandwidth), one slower (to drain), six at the rate
    PROBE_RTT  after ten seconds without a shorter round trip: almost nothing in flight for 200 ms, to measure the path

If the round trip is under a millisecond (loopback, one switch), a turn of the event loop takes longer than the path:
then
the window never falls below some trains, and never exceeds half of the peer's receive buffer.

The pacer is a bucket of bytes that fills at the rate. It holds two milliseconds more than a train, because timers of an
event loop resolve one: a late timer must not waste bandwidth. A train holds one millisecond's worth, from two datagrams
up
to the limit, so that a fast path costs few system calls and a slow one sees no bursts.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from godwit.limits import INITIAL_ROUND_TRIP_S, MAX_TRAIN_BYTES

STARTUP_GAIN: Final = 2.885
"""2/ln 2: the smallest gain that doubles the rate each round trip."""
DRAIN_GAIN: Final = 1 / STARTUP_GAIN
WINDOW_GAIN: Final = 2.0
CYCLE: Final[tuple[float, ...]] = (1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
RATE_WINDOW_ROUNDS: Final = 10
RATE_WINDOW_S: Final = 0.25
"""The shortest rate window: ten rounds of a short path pass before a busy machine schedules the process again."""
SHORTEST_TRIP_WINDOW_S: Final = 10.0
PROBE_RTT_S: Final = 0.2
INITIAL_WINDOW_DATAGRAMS: Final = 10
SMALLEST_WINDOW_DATAGRAMS: Final = 4
HEAVY_LOSS: Final = 0.3
"""A share of lost bytes in one round that, with a constant rate, only an overflowing queue explains."""
SLOWEST_DATAGRAM_S: Final = 0.25
"""The longest interval between datagrams, unless the round trip is longer: no path is slower for long."""
CLOCK_STEP_S: Final = 1e-6
"""Shorter intervals measure the clock, not the path."""
LOCAL_ROUND_TRIP_S: Final = 0.001
"""Below this round trip, a turn of the event loop takes longer than the path."""
LOCAL_WINDOW_TRAINS: Final = (4, 32)
"""The smallest window for such a path: four trains, up to 32 if the peer has a buffer for many more. The peer
replies after a turn of its event loop, which may take several trains; with four, both sides would wait in turns."""


class CongestionMode(Enum):
    """The phase of the congestion control."""

    STARTUP = "startup"
    DRAIN = "drain"
    PROBE_BW = "probe-bw"
    PROBE_RTT = "probe-rtt"


_STARTUP: Final = CongestionMode.STARTUP


class Flight(msgspec.Struct, gc=False, frozen=True):
    """The counters when a train was sent, to compare with those when it is acknowledged."""

    sent_at: float
    delivered_bytes: int
    delivered_at: float
    first_sent_at: float
    app_limited: bool


class Congestion:
    """The congestion control of one path: sets `rate_bytes_per_s` and `window_bytes`."""

    __slots__ = (
        "_app_limited_until_bytes", "_began", "_datagram_bytes", "_delivered_at", "_delivered_bytes", "_first_sent_at",
        "_full_rate", "_gain", "_half_peer_buffer_bytes", "_local_window_bytes", "_lost_in_round_bytes",
        "_path_is_full", "_phase", "_phase_began", "_probe_rtt_ends", "_rates", "_round", "_round_ends_at_bytes",
        "_rounds_without_growth", "_shortest_trip_at", "_started_idle", "_train_bytes", "_trip_is_guess",
        "in_flight_bytes", "mode", "rate_bytes_per_s", "shortest_trip_s", "window_bytes",
    )  # fmt: skip

    def __init__(self, *, now: float, datagram_bytes: int, round_trip_s: float | None, peer_buffer_bytes: int) -> None:
        """`round_trip_s`: the round trip of the handshake, or None."""
        self.in_flight_bytes = 0
        self._began = now
        self._started_idle = True
        """Whether nothing was in flight when the oldest packets in flight were sent."""
        self.mode = CongestionMode.STARTUP
        self._datagram_bytes = datagram_bytes
        self._half_peer_buffer_bytes = peer_buffer_bytes // 2
        self._train_bytes = train_limit_bytes(peer_buffer_bytes, datagram_bytes)
        most_trains = LOCAL_WINDOW_TRAINS[1] * self._train_bytes
        self._local_window_bytes = max(
            LOCAL_WINDOW_TRAINS[0] * self._train_bytes, min(peer_buffer_bytes // 4, most_trains)
        )
        # the counters that delivery rates are measured with
        self._delivered_bytes = 0
        self._delivered_at = now
        self._first_sent_at = now
        self._app_limited_until_bytes = 0
        # the model of the path
        self._rates: list[tuple[int, float, float]] = []
        """(round, rate, time): the highest rates of the window, descending."""
        self.shortest_trip_s = INITIAL_ROUND_TRIP_S if round_trip_s is None else round_trip_s
        self._shortest_trip_at = now
        self._trip_is_guess = round_trip_s is None
        # rounds
        self._round = 0
        self._round_ends_at_bytes = 0
        self._lost_in_round_bytes = 0
        # startup
        self._full_rate = 0.0
        self._rounds_without_growth = 0
        self._path_is_full = False
        # the cycle, and probing the round trip
        self._phase = 2
        self._phase_began = now
        self._probe_rtt_ends: float | None = None
        self._gain = STARTUP_GAIN
        self.window_bytes = INITIAL_WINDOW_DATAGRAMS * datagram_bytes
        self.rate_bytes_per_s = STARTUP_GAIN * self.window_bytes / max(self.shortest_trip_s, LOCAL_ROUND_TRIP_S)

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """The measured delivery rate of the path, 0 before the first measurement."""
        return self._rates[0][1] if self._rates else 0.0

    # -- input --------------------------------------------------------------------------------------------------------

    def begin_flight(self, now: float) -> Flight:
        """Return the counters for a train that is about to be sent. Report its size with handle_sent."""
        if self.in_flight_bytes == 0:
            self._first_sent_at = self._delivered_at = now
            self._started_idle = True
        limited = self._app_limited_until_bytes > self._delivered_bytes
        return Flight(now, self._delivered_bytes, self._delivered_at, self._first_sent_at, limited)

    def begin_lone_flight(self, now: float, sent_bytes: int, *, was_idle: bool = False) -> Flight:
        """Return the counters for a single packet, with nothing else to send after it, nor before it if `was_idle`.

        The same as begin_flight, handle_sent, handle_idle, and if `was_idle` handle_idle before these.
        """
        delivered_bytes = self._delivered_bytes
        if self.in_flight_bytes == 0:
            self._first_sent_at = self._delivered_at = now
            self._started_idle = True
        limited = self._app_limited_until_bytes > delivered_bytes
        if was_idle and self.in_flight_bytes < self.window_bytes:
            limited = True
        self.in_flight_bytes += sent_bytes
        if self.in_flight_bytes < self.window_bytes:
            self._app_limited_until_bytes = delivered_bytes + self.in_flight_bytes
        return Flight(now, delivered_bytes, self._delivered_at, self._first_sent_at, limited)

    def handle_sent(self, sent_bytes: int) -> None:
        self.in_flight_bytes += sent_bytes

    def handle_idle(self) -> None:
        """Note that there is nothing to send: unless the window is full, packets in flight show little of the path."""
        if self.in_flight_bytes < self.window_bytes:
            self._app_limited_until_bytes = self._delivered_bytes + max(self.in_flight_bytes, 1)

    def handle_lost(self, lost_bytes: int, sent_at: float) -> None:
        """Remove lost packets from the path. The rate does not change: see the top of this module."""
        self.in_flight_bytes -= lost_bytes
        if sent_at >= self._began:
            self._lost_in_round_bytes += lost_bytes

    def handle_delivered(self, now: float, delivered_bytes: int, newest: Flight, round_trip_s: float | None) -> None:
        """Handle an acknowledgement of `delivered_bytes`; `newest` is the flight of the latest packet among them."""
        self.in_flight_bytes -= delivered_bytes
        self._delivered_bytes += delivered_bytes
        self._delivered_at = now
        if newest.sent_at < self._began:
            return  # sent on another path, before the peer moved
        self._first_sent_at = newest.sent_at
        round_began = newest.delivered_bytes >= self._round_ends_at_bytes
        if newest.app_limited and self.mode is _STARTUP and self._is_uninformative(now, newest, round_trip_s):
            # Most single packets: only the rounds are counted.
            self._started_idle = False
            if round_began:
                self._round += 1
                self._round_ends_at_bytes = self._delivered_bytes
                self._lost_in_round_bytes = 0
            return
        heavy_loss = False
        if round_began:
            self._round += 1
            delivered_in_round_bytes = self._delivered_bytes - self._round_ends_at_bytes
            heavy_loss = self._lost_in_round_bytes > HEAVY_LOSS * (delivered_in_round_bytes + self._lost_in_round_bytes)
            self._round_ends_at_bytes = self._delivered_bytes
            self._lost_in_round_bytes = 0
        trip_expired = now > self._shortest_trip_at + SHORTEST_TRIP_WINDOW_S
        self._note_rate(now, newest)
        self._note_trip(now, round_trip_s, trip_expired)
        if round_began and not self._path_is_full and not newest.app_limited:
            self._check_growth(heavy_loss)
        # A burst after an idle time finds an empty path: its first round trip is as good as a probe.
        self._change_mode(now, trip_expired and not self._started_idle)
        self._started_idle = False
        self._set_rate_and_window()

    def handle_datagram_size(self, datagram_bytes: int) -> None:
        """Set the datagram size of the path."""
        self._datagram_bytes = datagram_bytes

    def _is_uninformative(self, now: float, newest: Flight, round_trip_s: float | None) -> bool:
        """Return whether the acknowledgement of an application-limited flight cannot change the model of the path."""
        if (
            round_trip_s is None
            or round_trip_s <= self.shortest_trip_s
            or self._trip_is_guess
            or now > self._shortest_trip_at + SHORTEST_TRIP_WINDOW_S
            or not self._rates
        ):
            return False
        interval_s = now - newest.delivered_at
        if interval_s < newest.sent_at - newest.first_sent_at:
            interval_s = newest.sent_at - newest.first_sent_at
        return self._delivered_bytes - newest.delivered_bytes < self._rates[0][1] * interval_s

    # -- the model ----------------------------------------------------------------------------------------------------

    def _note_rate(self, now: float, newest: Flight) -> None:
        interval_s = max(newest.sent_at - newest.first_sent_at, now - newest.delivered_at)
        if interval_s < CLOCK_STEP_S or (interval_s < self.shortest_trip_s and not self._trip_is_guess):
            return  # shorter than a round trip: a clock step or a burst of acknowledgements
        rate = (self._delivered_bytes - newest.delivered_bytes) / interval_s
        rates = self._rates
        if newest.app_limited and rates and rate < rates[0][1]:
            return
        while rates and rates[-1][1] <= rate:
            rates.pop()
        rates.append((self._round, rate, now))
        while rates[0][0] < self._round - RATE_WINDOW_ROUNDS and rates[0][2] < now - RATE_WINDOW_S:
            rates.pop(0)

    def _note_trip(self, now: float, round_trip_s: float | None, expired: bool) -> None:
        if round_trip_s is None:
            return
        if self._trip_is_guess or round_trip_s <= self.shortest_trip_s or expired:
            self.shortest_trip_s = round_trip_s
            self._shortest_trip_at = now
            self._trip_is_guess = False

    def _check_growth(self, heavy_loss: bool) -> None:
        rate = self.bandwidth_bytes_per_s
        if rate >= self._full_rate * 1.25:
            self._full_rate = rate
            self._rounds_without_growth = 0
            return
        self._rounds_without_growth += 1
        # An overflowing queue shows the same as three rounds, and each further round would cost a path full of packets.
        self._path_is_full = heavy_loss or self._rounds_without_growth >= 3

    def _path_bytes(self) -> float:
        """Return the bandwidth-delay product: the bytes that the path holds without a queue."""
        return self.bandwidth_bytes_per_s * self.shortest_trip_s

    # -- modes --------------------------------------------------------------------------------------------------------

    def _change_mode(self, now: float, trip_expired: bool) -> None:
        if self.mode is CongestionMode.STARTUP and self._path_is_full:
            self.mode = CongestionMode.DRAIN
            self._gain = DRAIN_GAIN
        if self.mode is CongestionMode.DRAIN and self.in_flight_bytes <= self._path_bytes():
            self._enter_probe_bw(now)
        elif self.mode is CongestionMode.PROBE_BW:
            self._advance_cycle(now)
        # Under a millisecond there is nothing to measure: the window has a lower bound there.
        if trip_expired and self.mode is not CongestionMode.PROBE_RTT and self.shortest_trip_s >= LOCAL_ROUND_TRIP_S:
            self.mode = CongestionMode.PROBE_RTT
            self._gain = 1.0
            self._probe_rtt_ends = None
        if self.mode is CongestionMode.PROBE_RTT:
            self._probe_round_trip(now)

    def _enter_probe_bw(self, now: float) -> None:
        self.mode = CongestionMode.PROBE_BW
        # Connections start the cycle at different phases, or all would probe at once. The phase is derived, not drawn,
        # so
        # that a run can be repeated.
        self._phase = 2 + self._round % 6
        self._phase_began = now
        self._gain = CYCLE[self._phase]

    def _advance_cycle(self, now: float) -> None:
        elapsed = now - self._phase_began > self.shortest_trip_s
        if self._gain > 1:
            over = elapsed and self.in_flight_bytes >= self._gain * self._path_bytes() * 0.9
            over = over or now - self._phase_began > 4 * self.shortest_trip_s
        elif self._gain < 1:
            over = elapsed or self.in_flight_bytes <= self._path_bytes()
        else:
            over = elapsed
        if over:
            self._phase = (self._phase + 1) % len(CYCLE)
            self._phase_began = now
            self._gain = CYCLE[self._phase]

    def _probe_round_trip(self, now: float) -> None:
        if self._probe_rtt_ends is None:
            if self.in_flight_bytes <= SMALLEST_WINDOW_DATAGRAMS * self._datagram_bytes:
                self._probe_rtt_ends = now + max(PROBE_RTT_S, self.shortest_trip_s)
        elif now >= self._probe_rtt_ends:
            self._shortest_trip_at = now
            if self._path_is_full:
                self._enter_probe_bw(now)
            else:
                self.mode = CongestionMode.STARTUP
                self._gain = STARTUP_GAIN

    def _set_rate_and_window(self) -> None:
        bandwidth = self._rates[0][1] if self._rates else 0.0
        if bandwidth == 0.0:
            return
        smallest = SMALLEST_WINDOW_DATAGRAMS * self._datagram_bytes
        # With heavy losses, as in go-back-n, the measured rate is that of the retransmissions: without a lower bound it
        # would decrease each time.
        slowest = self._datagram_bytes / max(self.shortest_trip_s, SLOWEST_DATAGRAM_S)
        rate = max(self._gain * bandwidth, slowest)
        if self._path_is_full or rate > self.rate_bytes_per_s:
            self.rate_bytes_per_s = rate
        if self.mode is CongestionMode.PROBE_RTT:
            self.window_bytes = smallest
            return
        gain = WINDOW_GAIN if self._path_is_full else STARTUP_GAIN
        # Three trains more than the product: one being built, one in flight, one being acknowledged.
        quantum = min(max(rate * 0.001, 2 * self._datagram_bytes), self._train_bytes)
        window = int(gain * self._path_bytes() + 3 * quantum)
        if not self._path_is_full:
            window = max(window, self.window_bytes)
        if self.shortest_trip_s < LOCAL_ROUND_TRIP_S:
            window = min(max(window, self._local_window_bytes), self._half_peer_buffer_bytes)
        self.window_bytes = max(window, smallest)


def train_limit_bytes(peer_buffer_bytes: int, datagram_bytes: int) -> int:
    """Return the size of the longest train for the peer's receive buffer: an eighth of it."""
    return min(max(peer_buffer_bytes // 8, 2 * datagram_bytes), MAX_TRAIN_BYTES)


TRAIN_S: Final = 0.001
DEPTH_S: Final = 0.002
SHORTEST_WAIT_S: Final = 1e-5
"""Far below the resolution of timers, and far above the steps of a clock that counts seconds since boot."""


class Pacer:
    """A token bucket: ask for room_bytes before a train; ready_at is when to try again."""

    __slots__ = ("_filled_at", "bucket_bytes")

    def __init__(self, now: float) -> None:
        self.bucket_bytes = float("inf")  # the first call of room_bytes cuts it to the depth
        """Subtract the bytes of a train that was sent. Packets that ignore the pacer (probes) may make it negative."""
        self._filled_at = now

    def room_bytes(self, now: float, rate_bytes_per_s: float, train_bytes: int) -> float:
        """Return how many bytes may be sent now."""
        depth = rate_bytes_per_s * DEPTH_S + train_bytes
        self.bucket_bytes = min(self.bucket_bytes + (now - self._filled_at) * rate_bytes_per_s, depth)
        self._filled_at = now
        # One byte more, so that a timer for the exact moment is not too early by a rounding error.
        return self.bucket_bytes + 1.0

    def ready_at(self, rate_bytes_per_s: float, needed_bytes: int) -> float:
        """Return when `needed_bytes` may be sent."""
        return self._filled_at + max((needed_bytes - self.bucket_bytes) / rate_bytes_per_s, SHORTEST_WAIT_S)


def train_bytes(rate_bytes_per_s: float, datagram_bytes: int, limit_bytes: int) -> int:
    """Return the size of a train at this rate: a whole number of datagrams."""
    wanted = max(int(rate_bytes_per_s * TRAIN_S), 2 * datagram_bytes)
    return max(min(wanted, limit_bytes) // datagram_bytes, 1) * datagram_bytes
