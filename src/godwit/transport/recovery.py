"""Which packets arrived, which are lost, and when to ask: after RFC 9002.

A packet is lost when one sent `gap` numbers later has been acknowledged, or one sent later and more than 9/8 of a round
trip has passed. Both thresholds grow when a packet that was given up turns up after all: the path reorders. When
nothing is heard for too long, the probe timer asks, with growing patience.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from godwit.limits import (
    INITIAL_ROUND_TRIP_S,
    MAX_ACK_DELAY_S,
    MAX_PACKET_GAP_THRESHOLD,
    MAX_PROBE_INTERVAL_S,
    PACKET_GAP_THRESHOLD,
    TIME_THRESHOLD,
    TIMER_GRANULARITY_S,
)
from godwit.transport.announce import Key
from godwit.transport.congestion import Flight
from godwit.transport.fragment import Fragment

MAX_REMEMBERED_LOSSES: Final = 512
"""Lost packets are remembered for a while, to notice those that were only late."""
MAX_TIME_THRESHOLD: Final = 2.0


class SentPacket(msgspec.Struct, gc=False):
    """A packet that asks for an acknowledgement and has not got one."""

    number: int
    size_bytes: int
    flight: Flight
    fragments: Sequence[Fragment] = ()
    said: Sequence[Key] = ()
    """The announcements in it, which must be repeated if it is lost."""
    is_mtu_probe: bool = False


class RoundTrip:
    """The smoothed round trip and its variation (RFC 9002, 5)."""

    __slots__ = ("has_sample", "latest_s", "smoothed_s", "variation_s")

    def __init__(self, initial_s: float | None) -> None:
        self.has_sample = initial_s is not None
        self.smoothed_s = self.latest_s = INITIAL_ROUND_TRIP_S if initial_s is None else initial_s
        self.variation_s = self.smoothed_s / 2

    def sample(self, trip_s: float, ack_delay_s: float, shortest_s: float) -> None:
        self.latest_s = trip_s
        # The delay that the other side names is believed only as far as it leaves a possible round trip.
        if trip_s - ack_delay_s >= shortest_s:
            trip_s -= ack_delay_s
        if not self.has_sample:
            self.has_sample = True
            self.smoothed_s = trip_s
            self.variation_s = trip_s / 2
            return
        self.variation_s += (abs(self.smoothed_s - trip_s) - self.variation_s) / 4
        self.smoothed_s += (trip_s - self.smoothed_s) / 8

    def probe_timeout_s(self) -> float:
        """How long to wait for an acknowledgement before asking."""
        return self.smoothed_s + max(4 * self.variation_s, TIMER_GRANULARITY_S) + MAX_ACK_DELAY_S


class Recovery:
    """Feed: on_sent, on_ack, on_probe. Drain: detect_losses. Look: loss_timer, probe_timer, round_trip."""

    def __init__(self, initial_round_trip_s: float | None) -> None:
        self.round_trip = RoundTrip(initial_round_trip_s)
        self.sent: dict[int, SentPacket] = {}
        """Packets under way, in the order of their numbers."""
        self.largest_acked = -1
        self.probes_sent = 0
        """In a row, without an acknowledgement in between."""
        self.spurious = 0
        self._late: dict[int, SentPacket] = {}
        self._gap = PACKET_GAP_THRESHOLD
        self._time_threshold = TIME_THRESHOLD
        self._loss_at: float | None = None
        self._last_sent_at = 0.0

    def on_sent(self, packets: Iterable[SentPacket], now: float) -> None:
        sent = self.sent
        for packet in packets:
            sent[packet.number] = packet
        self._last_sent_at = now

    def on_ack(self, ranges: Iterable[tuple[int, int]]) -> tuple[list[SentPacket], list[SentPacket]]:
        """Ranges (first, last), newest first. Gives what is newly acknowledged, newest first, and what was only late.

        The late ones had been given up as lost, so they are no longer in flight. Ask detect_losses next.
        """
        acked: list[SentPacket] = []
        late: list[SentPacket] = []
        sent = self.sent
        largest = -1
        for first, last in ranges:
            if largest < 0:
                largest = last
            if sent:
                oldest = next(iter(sent))
                low = max(first, oldest)
                # A range may claim billions; only what is under way is looked at.
                numbers = (
                    range(last, low - 1, -1)
                    if last - low < len(sent)
                    else [n for n in reversed(sent) if low <= n <= last]
                )
                for number in numbers:
                    packet = sent.pop(number, None)
                    if packet is not None:
                        acked.append(packet)
            if self._late:
                late.extend(self._found_late(first, last))
        if acked:
            self.probes_sent = 0
        if largest > self.largest_acked:
            self.largest_acked = largest
        return acked, late

    def _found_late(self, first: int, last: int) -> list[SentPacket]:
        found = [packet for number, packet in self._late.items() if first <= number <= last]
        for packet in found:
            del self._late[packet.number]
            self.spurious += 1
            self._gap = min(max(self._gap, self.largest_acked - packet.number + 1), MAX_PACKET_GAP_THRESHOLD)
            self._time_threshold = min(self._time_threshold + 1 / 8, MAX_TIME_THRESHOLD)
        return found

    def detect_losses(self, now: float) -> list[SentPacket]:
        """What counts as lost by now; it is no longer under way."""
        lost: list[SentPacket] = []
        trip = self.round_trip
        patience_s = max(self._time_threshold * max(trip.smoothed_s, trip.latest_s), TIMER_GRANULARITY_S)
        newest_lost = self.largest_acked - self._gap
        self._loss_at = None
        for number, packet in self.sent.items():
            if number > self.largest_acked:
                break
            due = packet.flight.sent_at + patience_s
            if number <= newest_lost or due <= now:
                lost.append(packet)
            else:
                self._loss_at = due if self._loss_at is None else min(self._loss_at, due)
        for packet in lost:
            del self.sent[packet.number]
            self._late[packet.number] = packet
        while len(self._late) > MAX_REMEMBERED_LOSSES:
            del self._late[next(iter(self._late))]
        return lost

    def oldest(self) -> SentPacket | None:
        return next(iter(self.sent.values())) if self.sent else None

    def on_probe(self, now: float) -> None:
        """The probe timer fired, and something is being sent to ask."""
        self.probes_sent += 1
        self._last_sent_at = now

    @property
    def loss_timer(self) -> float | None:
        return self._loss_at

    @property
    def probe_timer(self) -> float | None:
        """When to ask, if nothing is heard."""
        if not self.sent:
            return None
        wait_s = self.round_trip.probe_timeout_s()
        backed_off_s = min(wait_s * (1 << min(self.probes_sent, 16)), max(MAX_PROBE_INTERVAL_S, wait_s))
        return self._last_sent_at + backed_off_s
