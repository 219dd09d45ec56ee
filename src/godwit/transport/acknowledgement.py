"""Received packet numbers as ranges, and when to acknowledge them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from godwit.limits import MAX_ACK_DELAY_S, MAX_ACK_RANGES
from godwit.wire.packet import AckFrame


class RangeSet:
    """A set of integers as ranges [start, stop) in ascending order that do not touch."""

    __slots__ = ("starts", "stops")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.stops: list[int] = []

    def __len__(self) -> int:
        """Return the number of ranges, which determines the memory."""
        return len(self.starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.starts, self.stops, strict=True)

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self.starts, number) - 1
        return place >= 0 and number < self.stops[place]

    def missing(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the parts of [start, stop) that are not in the set, in ascending order."""
        gaps = []
        place = max(bisect_right(self.starts, start) - 1, 0)
        while place < len(self.starts) and start < stop:
            span_start = self.starts[place]
            if span_start >= stop:
                break
            if span_start > start:
                gaps.append((start, span_start))
            start = max(start, self.stops[place])
            place += 1
        if start < stop:
            gaps.append((start, stop))
        return gaps

    def add(self, start: int, stop: int) -> bool:
        """Add [start, stop). Return False if all of it was in the set."""
        starts, stops = self.starts, self.stops
        if not stops or start > stops[-1]:
            starts.append(start)
            stops.append(stop)
            return True
        # Ranges that touch [start, stop) are merged with it.
        low = bisect_right(stops, start - 1)
        high = bisect_right(starts, stop)
        if low < high:
            if starts[low] <= start and stop <= stops[low]:
                return False
            start = min(start, starts[low])
            stop = max(stop, stops[high - 1])
        starts[low:high] = [start]
        stops[low:high] = [stop]
        return True

    def drop_lowest(self) -> int:
        """Remove the lowest range and return its stop."""
        del self.starts[0]
        return self.stops.pop(0)


MAX_TRACKED_RANGES: Final = 64
"""The number of ranges to remember; a packet below them counts as a repeat."""
RANGES_IN_A_FRAME: Final = 16
"""Newest first; more if more are new since the last frame. Earlier frames have reported the others many times."""
MAX_REPORTS: Final = 8
"""The number of frames that report a packet. If all of them are lost, which is rare, the packet is sent again."""
PROMPT_PACKETS: Final = 2
"""The number of packets that are acknowledged immediately (RFC 9000, 13.2.2), limited by SHORTEST_INTERVAL_S."""
SHORTEST_INTERVAL_S: Final = 0.0003
"""At hundreds of MB/s not every train needs a reply: reading one costs the sender half as much as a train."""
KEEP_ALIVE_AFTER_S: Final = 1.0
"""A ping is a keep-alive if nothing was acknowledged for this time."""

_MASK: Final = 0xFFFFFFFF


class Acknowledger:
    """Tracks received packets. Send next_frame when `due_at` has passed, or with a packet that leaves earlier."""

    __slots__ = (
        "_at_once", "_forgotten", "_largest_at", "_last_frame_at", "_max_unacknowledged", "_received",
        "_reported_below", "_reported_numbers", "_unacknowledged", "due_at", "largest", "largest_reported",
        "packets",
    )  # fmt: skip

    def __init__(self, *, at_once: bool, max_unacknowledged: int) -> None:
        self._at_once = at_once
        """Whether to acknowledge every packet immediately: the sender of go-back-n and stop-and-wait waits for it."""
        self._max_unacknowledged = max_unacknowledged
        """The number of packets that are acknowledged immediately, even directly after the last frame."""
        self._received = RangeSet()
        self._forgotten = 0
        """Packets below this number count as repeats."""
        self._reported_numbers: list[int] = []
        """The largest number in each of the last frames."""
        self._reported_below = 0
        """Ranges that end before this have been reported MAX_REPORTS times."""
        self._last_frame_at = 0.0
        self._unacknowledged = 0
        self._largest_at = 0.0
        self.largest = -1
        self.largest_reported = -1
        """The largest number that an acknowledgement has reported."""
        self.packets = 0
        """The number of packets received, without repeats."""
        self.due_at: float | None = None

    def handle_packet(self, number: int, now: float) -> bool:
        """Note a received packet. Return False if it is a repeat."""
        received = self._received
        if number < self._forgotten or not received.add(number, number + 1):
            return False
        if len(received) > MAX_TRACKED_RANGES:
            self._forgotten = received.drop_lowest()
        self.packets += 1
        if number < self._reported_below:
            self._reported_below = number
            self._reported_numbers.clear()
        if number > self.largest:
            self.largest = number
            self._largest_at = now
        return True

    def handle_next(self, now: float) -> None:
        """Note a packet that is the next one in order and asks for an acknowledgement."""
        if self._unacknowledged or self._at_once or self.due_at is not None:
            self.handle_run(1, now)
            return
        stops = self._received.stops
        if stops:
            stops[-1] += 1
        else:
            self._received.add(0, 1)
        self.largest += 1
        self.packets += 1
        self._largest_at = now
        self._unacknowledged = 1
        self.due_at = now + MAX_ACK_DELAY_S

    def handle_ping(self, now: float) -> None:
        """Acknowledge the packet that was noted last, which contains only a ping, at once if it is a keep-alive.

        Nothing will follow on an idle connection that the acknowledgement could share a packet with, and a timer would
        cost as much as the reply.
        """
        if self._last_frame_at and now - self._last_frame_at >= KEEP_ALIVE_AFTER_S:
            self.due_at = now

    def handle_run(self, count: int, now: float) -> None:
        """Note `count` packets that are the next ones in order and ask for an acknowledgement."""
        received = self._received
        if received.stops:
            received.stops[-1] += count
        else:
            received.add(0, count)
        self.largest += count
        self.packets += count
        self._largest_at = now
        self.handle_eliciting(count, now, in_order=True)

    def handle_eliciting(self, count: int, now: float, *, in_order: bool) -> None:
        """Note that `count` received packets ask for an acknowledgement."""
        self._unacknowledged += count
        if not in_order or self._at_once or self._unacknowledged >= self._max_unacknowledged:
            self.due_at = now
        else:
            is_prompt = self._unacknowledged >= PROMPT_PACKETS
            due_at = max(now, self._last_frame_at + SHORTEST_INTERVAL_S) if is_prompt else now + MAX_ACK_DELAY_S
            self.due_at = due_at if self.due_at is None else min(self.due_at, due_at)

    @property
    def is_waiting(self) -> bool:
        """Whether an acknowledgement is pending, now or later."""
        return self.due_at is not None

    @property
    def has_gaps(self) -> bool:
        """Whether an acknowledgement needs more than one range. Gaps that were reported often enough do not count."""
        stops = self._received.stops
        return len(stops) > 1 and stops[-2] > self._reported_below

    def next_range(self, now: float) -> tuple[int, int, int]:
        """Return the acknowledgement if there are no gaps: the delay in microseconds, the first and the last number."""
        self._unacknowledged = 0
        self._last_frame_at = now
        self.due_at = None
        control_keys = self._reported_numbers
        if len(control_keys) == MAX_REPORTS:
            self._reported_below = control_keys.pop(0)
        largest = self.largest_reported = self.largest
        control_keys.append(largest)
        delay_us = int((now - self._largest_at) * 1e6)
        if not 0 <= delay_us <= _MASK:
            delay_us = 0 if delay_us < 0 else _MASK
        return delay_us, self._received.starts[-1], largest

    def next_frame(self, now: float, next_position: int | None) -> AckFrame:
        """Return the acknowledgement of all received packets."""
        self._unacknowledged = 0
        self._last_frame_at = now
        self.due_at = None
        received = self._received
        control_keys = self._reported_numbers[-1] if self._reported_numbers else -1
        fresh = len(received) - bisect_right(received.stops, control_keys + 1)
        newest = slice(None, -min(max(fresh, RANGES_IN_A_FRAME), MAX_ACK_RANGES) - 1, -1)
        ranges = tuple(
            (start & _MASK, (stop - 1) & _MASK)
            for start, stop in zip(received.starts[newest], received.stops[newest], strict=True)
            if stop > self._reported_below
        )
        if len(self._reported_numbers) == MAX_REPORTS:
            self._reported_below = self._reported_numbers.pop(0)
        self._reported_numbers.append(self.largest)
        self.largest_reported = self.largest
        delay_us = min(max(int((now - self._largest_at) * 1e6), 0), _MASK)
        return AckFrame(delay_us, ranges, None if next_position is None else next_position & _MASK)
