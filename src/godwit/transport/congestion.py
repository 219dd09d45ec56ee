"""Congestion control by rate, after BBR (Cardwell et al., version 1): how fast to send, and how much at once.

A lost datagram is no sign of congestion on the networks that Godwit is for. What the path carries is measured instead:
the largest delivery rate of the last ten round trips, and the shortest round trip of the last ten seconds. Their
product is what fits into the path; the pacer sends at the rate, the window keeps twice the product under way.

    STARTUP    the rate more than doubles each round trip, until it stops growing
    DRAIN      the queue that this built up is let go
    PROBE_BW   a cycle of eight phases: one faster (is there more?), one slower (drain it), six at the rate
    PROBE_RTT  every ten seconds without a shorter round trip: almost nothing under way for 200 ms, to see the bare path

Where the round trip is under a millisecond (loopback, one switch) the event loop's own pace is longer than the path:
there the window never falls below some trains, and never takes more than half of the other side's receive buffer.
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
CYCLE: Final = (1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
RATE_WINDOW_ROUNDS: Final = 10
RATE_WINDOW_S: Final = 0.25
"""At least so long: ten rounds of a short path are over before a busy machine has had its turn again."""
SHORTEST_TRIP_WINDOW_S: Final = 10.0
PROBE_RTT_S: Final = 0.2
INITIAL_WINDOW_DATAGRAMS: Final = 10
SMALLEST_WINDOW_DATAGRAMS: Final = 4
HEAVY_LOSS: Final = 0.3
"""A share of lost bytes in one round that only an overflowing queue explains, together with a rate that stands."""
SLOWEST_DATAGRAM_S: Final = 0.25
"""A datagram goes at least so often, or each round trip if that is longer: no path is slower for long."""
CLOCK_STEP_S: Final = 1e-6
"""Shorter intervals say more about the clock than about the path."""
LOCAL_ROUND_TRIP_S: Final = 0.001
"""Below this the path is shorter than the event loop's own pace."""
LOCAL_WINDOW_TRAINS: Final = (4, 32)
"""There the window does not fall below this: four trains, up to 32 where the other side has buffer for many more.
It answers only after a turn of its event loop, which may take several trains; with four the two would wait in turns."""


class Mode(Enum):
    """What the control is doing just now."""

    STARTUP = "startup"
    DRAIN = "drain"
    PROBE_BW = "probe-bw"
    PROBE_RTT = "probe-rtt"


_STARTUP: Final = Mode.STARTUP


class Flight(msgspec.Struct, gc=False, frozen=True):
    """The account at the moment a train left: what its acknowledgement will be measured against."""

    sent_at: float
    delivered_bytes: int
    delivered_at: float
    first_sent_at: float
    app_limited: bool


class Congestion:
    """Feed: begin_flight, on_sent, on_delivered, on_lost, on_idle. Look: rate, window and what is in flight."""

    __slots__ = (
        "_app_limited_until_bytes", "_began", "_comes_from_rest", "_datagram_bytes", "_delivered_at",
        "_delivered_bytes", "_first_sent_at", "_full_rate", "_gain", "_half_peer_buffer_bytes", "_local_window_bytes",
        "_lost_in_round_bytes", "_path_is_full", "_phase", "_phase_began", "_probe_rtt_ends", "_rates", "_round",
        "_round_ends_at_bytes", "_rounds_without_growth", "_shortest_trip_at", "_train_bytes",
        "_trip_is_guess", "in_flight_bytes", "mode", "rate_bytes_per_s",
        "shortest_trip_s", "window_bytes",
    )  # fmt: skip

    def __init__(self, *, now: float, datagram_bytes: int, round_trip_s: float | None, peer_buffer_bytes: int) -> None:
        """`round_trip_s`: what the handshake showed, if it showed one."""
        self.in_flight_bytes = 0
        self._began = now
        self._comes_from_rest = True
        """Nothing was under way when the oldest packets under way were sent."""
        self.mode = Mode.STARTUP
        self._datagram_bytes = datagram_bytes
        self._half_peer_buffer_bytes = peer_buffer_bytes // 2
        self._train_bytes = train_limit_bytes(peer_buffer_bytes, datagram_bytes)
        most_trains = LOCAL_WINDOW_TRAINS[1] * self._train_bytes
        self._local_window_bytes = max(
            LOCAL_WINDOW_TRAINS[0] * self._train_bytes, min(peer_buffer_bytes // 4, most_trains)
        )
        # the account that delivery rates are measured by
        self._delivered_bytes = 0
        self._delivered_at = now
        self._first_sent_at = now
        self._app_limited_until_bytes = 0
        # the model of the path
        self._rates: list[tuple[int, float, float]] = []
        """(round, rate, time): the largest rates of the window, falling."""
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
        """The delivery rate that the path has shown, 0 before the first measurement."""
        return self._rates[0][1] if self._rates else 0.0

    # -- feed ---------------------------------------------------------------------------------------------------------

    def begin_flight(self, now: float) -> Flight:
        """A train is about to leave. What comes back is kept with its packets; on_sent tells how long it became."""
        if self.in_flight_bytes == 0:
            self._first_sent_at = self._delivered_at = now
            self._comes_from_rest = True
        limited = self._app_limited_until_bytes > self._delivered_bytes
        return Flight(now, self._delivered_bytes, self._delivered_at, self._first_sent_at, limited)

    def begin_idle_flight(self, now: float, sent_bytes: int) -> Flight:
        """A lone packet leaves, of so many bytes, and there is nothing else to send before or after it: on_idle,
        begin_flight, on_sent, on_idle."""
        delivered_bytes = self._delivered_bytes
        if self.in_flight_bytes == 0:
            self._first_sent_at = self._delivered_at = now
            self._comes_from_rest = True
        limited = self.in_flight_bytes < self.window_bytes or self._app_limited_until_bytes > delivered_bytes
        self.in_flight_bytes += sent_bytes
        if self.in_flight_bytes < self.window_bytes:
            self._app_limited_until_bytes = delivered_bytes + self.in_flight_bytes
        return Flight(now, delivered_bytes, self._delivered_at, self._first_sent_at, limited)

    def on_sent(self, sent_bytes: int) -> None:
        self.in_flight_bytes += sent_bytes

    def on_idle(self) -> None:
        """There is room to send but nothing to send: what is under way says little about the path."""
        self._app_limited_until_bytes = self._delivered_bytes + max(self.in_flight_bytes, 1)

    def on_lost(self, lost_bytes: int, sent_at: float) -> None:
        """Packets are given up. They leave the path; the rate stays, see the module's first lines."""
        self.in_flight_bytes -= lost_bytes
        if sent_at >= self._began:
            self._lost_in_round_bytes += lost_bytes

    def on_delivered(self, now: float, delivered_bytes: int, newest: Flight, round_trip_s: float | None) -> None:
        """An acknowledgement covered so many bytes; `newest` is the flight of the latest packet among them."""
        self.in_flight_bytes -= delivered_bytes
        self._delivered_bytes += delivered_bytes
        self._delivered_at = now
        if newest.sent_at < self._began:
            return  # sent on another path, before the peer moved
        self._first_sent_at = newest.sent_at
        round_began = newest.delivered_bytes >= self._round_ends_at_bytes
        if newest.app_limited and self.mode is _STARTUP and self._tells_nothing(now, newest, round_trip_s):
            # As with most lone packets: only the rounds are counted.
            self._comes_from_rest = False
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
        # A burst after a rest finds an empty path: its first round trip is as good as one that was probed for.
        self._change_mode(now, trip_expired and not self._comes_from_rest)
        self._comes_from_rest = False
        self._set_rate_and_window()

    def on_datagram_size(self, datagram_bytes: int) -> None:
        """The path carries larger or smaller datagrams than thought."""
        self._datagram_bytes = datagram_bytes

    def _tells_nothing(self, now: float, newest: Flight, round_trip_s: float | None) -> bool:
        """Whether an acknowledgement of what the application limited cannot change the model of the path."""
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
            return  # shorter than a round trip: the clock or a burst of acknowledgements, not the path
        rate = (self._delivered_bytes - newest.delivered_bytes) / interval_s
        if newest.app_limited and rate < self.bandwidth_bytes_per_s:
            return
        rates = self._rates
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
        # A queue that overflows says the same as three rounds, and each more would cost a path full of packets.
        self._path_is_full = heavy_loss or self._rounds_without_growth >= 3

    def _path_bytes(self) -> float:
        """The bandwidth-delay product: what the path holds without a queue."""
        return self.bandwidth_bytes_per_s * self.shortest_trip_s

    # -- modes --------------------------------------------------------------------------------------------------------

    def _change_mode(self, now: float, trip_expired: bool) -> None:
        if self.mode is Mode.STARTUP and self._path_is_full:
            self.mode = Mode.DRAIN
            self._gain = DRAIN_GAIN
        if self.mode is Mode.DRAIN and self.in_flight_bytes <= self._path_bytes():
            self._enter_probe_bw(now)
        elif self.mode is Mode.PROBE_BW:
            self._advance_cycle(now)
        # Under a millisecond there is nothing to find out: the window has a floor there.
        if trip_expired and self.mode is not Mode.PROBE_RTT and self.shortest_trip_s >= LOCAL_ROUND_TRIP_S:
            self.mode = Mode.PROBE_RTT
            self._gain = 1.0
            self._probe_rtt_ends = None
        if self.mode is Mode.PROBE_RTT:
            self._probe_round_trip(now)

    def _enter_probe_bw(self, now: float) -> None:
        self.mode = Mode.PROBE_BW
        # Not all connections begin the cycle at the same place, or they would all probe at once; the place is derived,
        # not drawn, so that a run can be repeated.
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
                self.mode = Mode.STARTUP
                self._gain = STARTUP_GAIN

    def _set_rate_and_window(self) -> None:
        bandwidth = self.bandwidth_bytes_per_s
        if bandwidth == 0.0:
            return
        smallest = SMALLEST_WINDOW_DATAGRAMS * self._datagram_bytes
        # Where losses leave little of a round, as with go-back-n, what is measured is the pace of the repeats: it would
        # measure itself, slower each time.
        slowest = self._datagram_bytes / max(self.shortest_trip_s, SLOWEST_DATAGRAM_S)
        rate = max(self._gain * bandwidth, slowest)
        if self._path_is_full or rate > self.rate_bytes_per_s:
            self.rate_bytes_per_s = rate
        if self.mode is Mode.PROBE_RTT:
            self.window_bytes = smallest
            return
        gain = WINDOW_GAIN if self._path_is_full else STARTUP_GAIN
        # Three trains more than the product: one being made, one on the way, one being acknowledged.
        quantum = min(max(rate * 0.001, 2 * self._datagram_bytes), self._train_bytes)
        window = int(gain * self._path_bytes() + 3 * quantum)
        if not self._path_is_full:
            window = max(window, self.window_bytes)
        if self.shortest_trip_s < LOCAL_ROUND_TRIP_S:
            window = min(max(window, self._local_window_bytes), self._half_peer_buffer_bytes)
        self.window_bytes = max(window, smallest)


def train_limit_bytes(peer_buffer_bytes: int, datagram_bytes: int) -> int:
    """The longest train that the other side's receive buffer takes well: an eighth of it."""
    return min(max(peer_buffer_bytes // 8, 2 * datagram_bytes), MAX_TRAIN_BYTES)
