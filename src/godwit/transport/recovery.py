"""Sent packets, round trip and loss detection, after RFC 9002.

Full packets of one long record are stored as one *run* while they share their fate: the usual acknowledgement covers a
whole train and costs one step. Otherwise the run is split.

A packet is lost when one sent `gap` numbers later has been acknowledged, or a later one and more than 9/8 of a round
trip
has passed. Both thresholds grow when a packet arrives after it was declared lost, because the path reorders. When no
acknowledgement arrives, the probe timer fires at growing intervals.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, TypeAlias

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
from godwit.transport.congestion import Flight
from godwit.transport.send_channels import Fragment

MAX_OLD_SKIPPED: Final = 16

ControlFrameKey: TypeAlias = tuple[Literal["confirm", "credit", "token"], int, int]
"""The kind of a control frame, its channel and its value."""


class SentRun(msgspec.Struct, gc=False):
    """Packets with consecutive numbers, usually one."""

    number: int
    """The number of the first packet."""
    packet_bytes: int
    flight: Flight
    fragments: Sequence[Fragment] = ()
    """The fragments they carry; for more than one packet, one fragment that is spread evenly over them."""
    control_keys: Sequence[ControlFrameKey] = ()
    """The control frames they carry, to repeat if they are lost."""
    count: int = 1
    is_mtu_probe: bool = False
    lost_by_time: bool = False
    """Whether it was declared lost because of its age, not because newer packets had arrived."""

    @property
    def last(self) -> int:
        return self.number + self.count - 1

    @property
    def size_bytes(self) -> int:
        return self.count * self.packet_bytes

    def split(self, count: int) -> tuple[SentRun, SentRun]:
        """Return the first `count` packets and the rest. This run and its fragment are void afterwards."""
        (whole,) = self.fragments
        whole.settled = True
        middle = whole.start + (whole.stop - whole.start) // self.count * count
        number = self.number + count
        first = Fragment(whole.record, whole.start, middle, self.number)
        rest = Fragment(whole.record, middle, whole.stop, number)
        return (
            SentRun(self.number, self.packet_bytes, self.flight, (first,), (), count),
            SentRun(number, self.packet_bytes, self.flight, (rest,), (), self.count - count),
        )

    def singly(self) -> list[SentRun]:
        """Return the packets one by one. As with split, a run of more than one packet is void afterwards."""
        if self.count == 1:
            return [self]
        (whole,) = self.fragments
        whole.settled = True
        step = (whole.stop - whole.start) // self.count
        return [
            SentRun(
                self.number + place,
                self.packet_bytes,
                self.flight,
                (Fragment(whole.record, start, start + step, self.number + place),),
            )
            for place, start in enumerate(range(whole.start, whole.stop, step))
        ]


class SentLog:
    """Runs in order of their numbers. New ones are appended; any may be removed."""

    __slots__ = ("numbers", "packets", "runs", "skipped")

    def __init__(self) -> None:
        self.numbers: list[int] = []
        """The number of the first packet of each run."""
        self.runs: list[SentRun] = []
        self.packets = 0
        """The total number of packets."""
        self.skipped: list[int] = []
        """Packet numbers that were skipped, ascending: all since the oldest packet in flight, and some older ones."""

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[SentRun]:
        return iter(self.runs)

    def append(self, run: SentRun) -> None:
        """Add a run with higher numbers than all others."""
        self.numbers.append(run.number)
        self.runs.append(run)
        self.packets += run.count

    def skip(self, number: int) -> None:
        """Note that no packet will be sent with this number, which is higher than all before."""
        skipped = self.skipped
        skipped.append(number)
        oldest = self.numbers[0] if self.numbers else number
        while len(skipped) > MAX_OLD_SKIPPED and skipped[0] < oldest:
            del skipped[0]

    def count_skipped(self, first: int, last: int) -> int:
        """Return how many of the numbers from first to last were skipped."""
        skipped = self.skipped
        return bisect_right(skipped, last) - bisect_left(skipped, first)

    def clear(self) -> None:
        self.numbers.clear()
        self.runs.clear()
        self.packets = 0

    def extend(self, runs: Iterable[SentRun]) -> None:
        for run in runs:
            self.append(run)

    def insert(self, run: SentRun) -> None:
        """Add a run with any number."""
        place = bisect_left(self.numbers, run.number)
        self.numbers.insert(place, run.number)
        self.runs.insert(place, run)
        self.packets += run.count

    def oldest(self) -> SentRun:
        return self.runs[0]

    def remove(self, first: int, last: int) -> list[SentRun]:
        """Remove and return the packets with numbers from first to last, in ascending order."""
        numbers, runs = self.numbers, self.runs
        low = bisect_right(numbers, first) - 1
        if low < 0 or runs[low].last < first:
            low += 1
        high = bisect_right(numbers, last)
        if low >= high:
            return []
        taken = runs[low:high]
        kept: list[SentRun] = []
        if taken[-1].last > last:
            taken[-1], rest = taken[-1].split(last - taken[-1].number + 1)
            kept.append(rest)
        if taken[0].number < first:
            before, taken[0] = taken[0].split(first - taken[0].number)
            kept.insert(0, before)
        runs[low:high] = kept
        numbers[low:high] = [run.number for run in kept]
        self.packets -= sum([run.count for run in taken])
        return taken

    def keep_newest(self, most: int) -> None:
        """Remove all but the newest `most` runs."""
        self.packets -= sum([run.count for run in self.runs[:-most]])
        del self.runs[:-most], self.numbers[:-most]


MAX_REMEMBERED_LOSSES: Final = 512
"""The number of lost packets to remember, to recognise late ones."""
MAX_TIME_THRESHOLD: Final = 2.0
RELAX_AFTER: Final = 16
"""The number of correct losses in a row before the thresholds are lowered again."""


class RoundTrip:
    """The smoothed round trip and its variation (RFC 9002, 5)."""

    __slots__ = ("has_sample", "latest_s", "probe_timeout_s", "smoothed_s", "variation_s")

    def __init__(self, initial_s: float | None) -> None:
        self.has_sample = initial_s is not None
        self.smoothed_s = self.latest_s = INITIAL_ROUND_TRIP_S if initial_s is None else initial_s
        self.variation_s = self.smoothed_s / 2
        self.probe_timeout_s = self.smoothed_s + max(4 * self.variation_s, TIMER_GRANULARITY_S) + MAX_ACK_DELAY_S
        """How long to wait for an acknowledgement before sending a probe."""

    def sample(self, trip_s: float, ack_delay_s: float, shortest_s: float) -> None:
        self.latest_s = trip_s
        # The peer's delay is subtracted only if the result is a possible round trip.
        if trip_s - ack_delay_s >= shortest_s:
            trip_s -= ack_delay_s
        if not self.has_sample:
            self.has_sample = True
            self.smoothed_s = trip_s
            self.variation_s = trip_s / 2
        else:
            self.variation_s += (abs(self.smoothed_s - trip_s) - self.variation_s) / 4
            self.smoothed_s += (trip_s - self.smoothed_s) / 8
        self.probe_timeout_s = self.smoothed_s + max(4 * self.variation_s, TIMER_GRANULARITY_S) + MAX_ACK_DELAY_S


class Recovery:
    """Tracks packets in flight. Call detect_losses after handle_ack and when loss_timer is due."""

    __slots__ = (
        "_gap", "_last_sent_at", "_right_losses", "_time_threshold", "began", "declared_lost", "largest_acked",
        "loss_timer", "probes_sent", "round_trip", "sent", "spurious",
    )  # fmt: skip

    def __init__(self, initial_round_trip_s: float | None, now: float) -> None:
        self.began = now
        """Packets sent before this time used another path and show nothing about this one."""
        self.round_trip = RoundTrip(initial_round_trip_s)
        self.sent = SentLog()
        """Packets in flight."""
        self.largest_acked = -1
        self.probes_sent = 0
        """The number of probes in a row without an acknowledgement."""
        self.spurious = 0
        self.declared_lost = SentLog()
        """Packets that were declared lost, to recognise late ones."""
        self._gap = PACKET_GAP_THRESHOLD
        self._time_threshold = TIME_THRESHOLD
        self.loss_timer: float | None = None
        """When the next packet will be lost by its age."""
        self._right_losses = 0
        """The number of losses since the last one that turned out to be late."""
        self._last_sent_at = now

    def handle_sent(self, runs: Iterable[SentRun], now: float) -> None:
        for run in runs:
            self.sent.append(run)
        self._last_sent_at = now

    def handle_sent_one(self, run: SentRun, now: float) -> None:
        sent = self.sent
        sent.numbers.append(run.number)
        sent.runs.append(run)
        sent.packets += run.count
        self._last_sent_at = now

    def handle_all_acked(self, newest: int, run: SentRun, now: float) -> float | None:
        """Handle the acknowledgement of everything in flight: single packets, of which `run` is the newest. Return the
        round trip, or None.

        This is handle_ack and detect_losses for the usual case.
        """
        self.sent.clear()
        self.probes_sent = 0
        self.loss_timer = None
        if newest <= self.largest_acked:
            return None
        self.largest_acked = newest
        if run.number != newest or run.flight.sent_at < self.began:
            return None
        return now - run.flight.sent_at

    def handle_ack(self, ranges: Iterable[tuple[int, int]]) -> tuple[list[SentRun], list[SentRun]]:
        """Handle ranges (first, last) of numbers, newest first. Return newly acknowledged packets, and late ones.

        Late packets had been declared lost, so they are not in flight. Call detect_losses next. A range may claim
        billions
        of numbers: the cost depends on the packets in flight only.
        """
        acked: list[SentRun] = []
        late: list[SentRun] = []
        for first, last in ranges:
            acked += self.sent.remove(first, last)
            if self.declared_lost:
                late += self.declared_lost.remove(first, last)
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
        """Remove and return the packets that are lost at `now`, one by one."""
        trip = self.round_trip
        patience_s = max(self._time_threshold * max(trip.smoothed_s, trip.latest_s), TIMER_GRANULARITY_S)
        overtaken = self.largest_acked - self._gap
        if self.sent.skipped:  # the threshold counts packets, not numbers
            overtaken -= self.sent.count_skipped(overtaken + 1, self.largest_acked)
        last_lost = overtaken
        self.loss_timer = None
        # Numbers and send times grow together: lost packets are at the lower end.
        for run in self.sent:
            if run.number > self.largest_acked:
                break
            due = run.flight.sent_at + patience_s
            if due <= now:
                last_lost = max(last_lost, run.last)
            elif run.last > overtaken:
                self.loss_timer = due
                break
        lost = [packet for run in self.sent.remove(0, last_lost) for packet in run.singly()]
        for packet in lost:
            packet.lost_by_time = packet.number > overtaken
        if lost:
            self._relax()
            self.declared_lost.extend(lost[-MAX_REMEMBERED_LOSSES:])
            self.declared_lost.keep_newest(MAX_REMEMBERED_LOSSES)
        return lost

    def _relax(self) -> None:
        """Lower the thresholds step by step on a path that no longer reorders."""
        self._right_losses += 1
        if self._right_losses >= RELAX_AFTER:
            self._right_losses = 0
            self._gap = max(self._gap // 2, PACKET_GAP_THRESHOLD)
            self._time_threshold = max(self._time_threshold - 1 / 8, TIME_THRESHOLD)

    def oldest(self) -> SentRun | None:
        """Return the oldest packet in flight, split from its run."""
        if not self.sent:
            return None
        oldest = self.sent.oldest()
        if oldest.count > 1:
            (alone,) = self.sent.remove(oldest.number, oldest.number)
            self.sent.insert(alone)
            return alone
        return oldest

    def handle_probe(self, now: float) -> None:
        """Note that the probe timer fired and a probe is being sent."""
        self.probes_sent += 1
        self._last_sent_at = now

    @property
    def probe_timer(self) -> float | None:
        """When to send a probe if no acknowledgement arrives."""
        if not self.sent.runs:
            return None
        wait_s = self.round_trip.probe_timeout_s
        backed_off_s = min(wait_s * (1 << min(self.probes_sent, 16)), max(MAX_PROBE_INTERVAL_S, wait_s))
        return self._last_sent_at + backed_off_s
