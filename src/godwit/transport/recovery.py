"""Which packets arrived, which are lost, and when to ask: after RFC 9002.

A packet is lost when one sent `gap` numbers later has been acknowledged, or one sent later and more than 9/8 of a round
trip has passed. Both thresholds grow when a packet that was given up turns up after all: the path reorders. When
nothing is heard for too long, the probe timer asks, with growing patience.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from godwit.limits import (
    INITIAL_ROUND_TRIP_S,
    MAX_ACK_DELAY_S,
    MAX_PACKET_GAP_THRESHOLD,
    MAX_PROBE_INTERVAL_S,
    PACKET_GAP_THRESHOLD,
    TIME_THRESHOLD,
    TIMER_GRANULARITY_S,
)
from godwit.transport.sent import SentLog, SentRun

MAX_REMEMBERED_LOSSES: Final = 512
"""Lost packets are remembered for a while, to notice those that were only late."""
MAX_TIME_THRESHOLD: Final = 2.0
RELAX_AFTER: Final = 16
"""Losses in a row that were no mistake, before the thresholds come down again."""


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
        spread_s = 4 * self.variation_s
        return self.smoothed_s + (spread_s if spread_s > TIMER_GRANULARITY_S else TIMER_GRANULARITY_S) + MAX_ACK_DELAY_S


class Recovery:
    """Feed: on_sent, on_ack, on_probe. Drain: detect_losses. Look: loss_timer, probe_timer, round_trip."""

    __slots__ = (
        "_gap", "_last_sent_at", "_right_losses", "_time_threshold", "began", "given_up", "largest_acked",
        "loss_timer", "probes_sent", "round_trip", "sent", "spurious",
    )  # fmt: skip

    def __init__(self, initial_round_trip_s: float | None, now: float) -> None:
        self.began = now
        """Packets sent before this went another path: they say nothing about this one."""
        self.round_trip = RoundTrip(initial_round_trip_s)
        self.sent = SentLog()
        """Packets under way."""
        self.largest_acked = -1
        self.probes_sent = 0
        """In a row, without an acknowledgement in between."""
        self.spurious = 0
        self.given_up = SentLog()
        """Lost, as far as is known."""
        self._gap = PACKET_GAP_THRESHOLD
        self._time_threshold = TIME_THRESHOLD
        self.loss_timer: float | None = None
        """When something will be lost by its age."""
        self._right_losses = 0
        """Times that something was lost since the last one that was only late."""
        self._last_sent_at = now

    def on_sent(self, runs: Iterable[SentRun], now: float) -> None:
        for run in runs:
            self.sent.append(run)
        self._last_sent_at = now

    def on_sent_one(self, run: SentRun, now: float) -> None:
        sent = self.sent
        sent.numbers.append(run.number)
        sent.runs.append(run)
        sent.packets += run.count
        self._last_sent_at = now

    def on_all_acked(self, newest: int, run: SentRun, now: float) -> float | None:
        """The newest packet has arrived, and `run`, one packet, was all that was under way. Gives the round trip, if it
        showed one. What on_ack and detect_losses do, in the usual case."""
        self.sent.clear()
        self.probes_sent = 0
        self.loss_timer = None
        if newest <= self.largest_acked:
            return None
        self.largest_acked = newest
        if run.number != newest or run.flight.sent_at < self.began:
            return None
        return now - run.flight.sent_at

    def on_ack(self, ranges: Iterable[tuple[int, int]]) -> tuple[list[SentRun], list[SentRun]]:
        """Ranges (first, last) of numbers, newest first. Gives what is newly acknowledged, and what was only late.

        The late ones had been given up as lost, so they are no longer in flight. Ask detect_losses next. A range may
        claim billions: only what is under way is looked at.
        """
        acked: list[SentRun] = []
        late: list[SentRun] = []
        for first, last in ranges:
            acked += self.sent.take(first, last)
            if self.given_up:
                late += self.given_up.take(first, last)
            self.largest_acked = max(self.largest_acked, last)
        if acked:
            self.probes_sent = 0
        for run in late:
            self.spurious += 1
            self._right_losses = 0
            if run.lost_by_time:
                self._time_threshold = min(self._time_threshold + 1 / 8, MAX_TIME_THRESHOLD)
            else:
                self._gap = min(max(self._gap, self.largest_acked - run.number + 1), MAX_PACKET_GAP_THRESHOLD)
        return acked, late

    def detect_losses(self, now: float) -> list[SentRun]:
        """What counts as lost by now, packet by packet; it is no longer under way."""
        trip = self.round_trip
        patience_s = max(self._time_threshold * max(trip.smoothed_s, trip.latest_s), TIMER_GRANULARITY_S)
        overtaken = self.largest_acked - self._gap
        if self.sent.skipped:  # the threshold is about packets, not about numbers
            overtaken -= self.sent.count_skipped(overtaken + 1, self.largest_acked)
        last_lost = overtaken
        self.loss_timer = None
        # Numbers and times of sending grow together: what is lost is the lower end of the log.
        for run in self.sent:
            if run.number > self.largest_acked:
                break
            due = run.flight.sent_at + patience_s
            if due <= now:
                last_lost = max(last_lost, run.last)
            elif run.last > overtaken:
                self.loss_timer = due
                break
        lost = [packet for run in self.sent.take(0, last_lost) for packet in run.singly()]
        for packet in lost:
            packet.lost_by_time = packet.number > overtaken
        if lost:
            self._relax()
            self.given_up.extend(lost[-MAX_REMEMBERED_LOSSES:])
            self.given_up.keep_newest(MAX_REMEMBERED_LOSSES)
        return lost

    def _relax(self) -> None:
        """A path that no longer reorders gets the quicker thresholds back, step by step."""
        self._right_losses += 1
        if self._right_losses >= RELAX_AFTER:
            self._right_losses = 0
            self._gap = max(self._gap // 2, PACKET_GAP_THRESHOLD)
            self._time_threshold = max(self._time_threshold - 1 / 8, TIME_THRESHOLD)

    def oldest(self) -> SentRun | None:
        """The oldest packet under way, alone."""
        if not self.sent:
            return None
        oldest = self.sent.oldest()
        if oldest.count > 1:
            (alone,) = self.sent.take(oldest.number, oldest.number)
            self.sent.insert(alone)
            return alone
        return oldest

    def on_probe(self, now: float) -> None:
        """The probe timer fired, and something is being sent to ask."""
        self.probes_sent += 1
        self._last_sent_at = now

    @property
    def probe_timer(self) -> float | None:
        """When to ask, if nothing is heard."""
        if not self.sent:
            return None
        wait_s = self.round_trip.probe_timeout_s()
        backed_off_s = min(wait_s * (1 << min(self.probes_sent, 16)), max(MAX_PROBE_INTERVAL_S, wait_s))
        return self._last_sent_at + backed_off_s
