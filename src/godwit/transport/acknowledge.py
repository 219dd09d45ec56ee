"""What arrived, and when to say so: the receiver's account of packet numbers."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from godwit.limits import MAX_ACK_DELAY_S, MAX_ACK_RANGES
from godwit.transport.ranges import RangeSet
from godwit.wire.frames import Ack

MAX_TRACKED_RANGES: Final = 64
"""Gaps older than so many are forgotten; a packet from before them counts as a repeat."""
RANGES_IN_A_FRAME: Final = 16
"""Newest first; more if more are new since the last frame. What is left out, earlier frames have said many times."""
SAY_TIMES: Final = 8
"""What arrived is said in so many frames; that all of them get lost is rare, and then it is only sent again."""
PROMPT_PACKETS: Final = 2
"""So many packets are acknowledged at once (RFC 9000, 13.2.2), but not more often than the next line says."""
SHORTEST_INTERVAL_S: Final = 0.0003
"""A sender at hundreds of megabytes a second needs no answer to every train: reading one costs it half a train."""

_MASK: Final = 0xFFFFFFFF


class Acknowledger:
    """Feed: on_packet, on_run, on_eliciting. Drain: frame, when due_at has come or a packet leaves anyway."""

    __slots__ = (
        "_at_once", "_forgotten", "_frames_said", "_largest_at", "_most_waiting", "_old_news", "_received", "_said_at",
        "_waiting", "due_at", "largest", "packets",
    )  # fmt: skip

    def __init__(self, *, at_once: bool, most_waiting: int) -> None:
        self._at_once = at_once
        """Go-back-n and stop-and-wait: the sender waits for every one."""
        self._most_waiting = most_waiting
        """So many packets are acknowledged at once even if the last frame was just said."""
        self._received = RangeSet()
        self._forgotten = 0
        """Nothing is known of packets below this; they count as repeats."""
        self._frames_said: list[int] = []
        """The newest number in each of the last frames."""
        self._old_news = 0
        """Ranges that end before this have been said often enough."""
        self._said_at = 0.0
        self._waiting = 0
        self._largest_at = 0.0
        self.largest = -1
        self.packets = 0
        """How many arrived, repeats not counted."""
        self.due_at: float | None = None

    def on_packet(self, number: int, now: float) -> bool:
        """A packet arrived. False when it is a repeat."""
        received = self._received
        if number < self._forgotten or not received.add(number, number + 1):
            return False
        if len(received) > MAX_TRACKED_RANGES:
            self._forgotten = received.drop_lowest()
        self.packets += 1
        if number < self._old_news:
            self._old_news = number
            self._frames_said.clear()
        if number > self.largest:
            self.largest = number
            self._largest_at = now
        return True

    def on_next(self, now: float) -> None:
        """The packet right after the newest one arrived, and asks for an acknowledgement."""
        if self._waiting or self._at_once or self.due_at is not None:
            self.on_run(1, now)
            return
        stops = self._received.stops
        if stops:
            stops[-1] += 1
        else:
            self._received.add(0, 1)
        self.largest += 1
        self.packets += 1
        self._largest_at = now
        self._waiting = 1
        self.due_at = now + MAX_ACK_DELAY_S

    def on_run(self, count: int, now: float) -> None:
        """So many packets arrived right after the newest one, each asking for an acknowledgement."""
        received = self._received
        if received.stops:
            received.stops[-1] += count
        else:
            received.add(0, count)
        self.largest += count
        self.packets += count
        self._largest_at = now
        self.on_eliciting(count, now, in_order=True)

    def on_eliciting(self, count: int, now: float, *, in_order: bool) -> None:
        """So many of the packets ask for an acknowledgement."""
        self._waiting += count
        if not in_order or self._at_once or self._waiting >= self._most_waiting:
            self.due_at = now
        else:
            is_prompt = self._waiting >= PROMPT_PACKETS
            due_at = max(now, self._said_at + SHORTEST_INTERVAL_S) if is_prompt else now + MAX_ACK_DELAY_S
            self.due_at = due_at if self.due_at is None else min(self.due_at, due_at)

    @property
    def is_waiting(self) -> bool:
        """Whether something is to be acknowledged, now or later."""
        return self.due_at is not None

    @property
    def has_gaps(self) -> bool:
        """Whether an acknowledgement has more than one range. Old gaps have been told and do not count."""
        stops = self._received.stops
        return len(stops) > 1 and stops[-2] > self._old_news

    def take_range(self, now: float) -> tuple[int, int, int]:
        """As frame, if there are no gaps: the delay in us, the first and the last number."""
        self._waiting = 0
        self._said_at = now
        self.due_at = None
        said = self._frames_said
        if len(said) == SAY_TIMES:
            self._old_news = said.pop(0)
        largest = self.largest
        said.append(largest)
        delay_us = int((now - self._largest_at) * 1e6)
        if not 0 <= delay_us <= _MASK:
            delay_us = 0 if delay_us < 0 else _MASK
        return delay_us, self._received.starts[-1], largest

    def frame(self, now: float, next_position: int | None) -> Ack:
        """The acknowledgement of all that arrived."""
        self._waiting = 0
        self._said_at = now
        self.due_at = None
        received = self._received
        said = self._frames_said[-1] if self._frames_said else -1
        fresh = len(received) - bisect_right(received.stops, said + 1)
        newest = slice(None, -min(max(fresh, RANGES_IN_A_FRAME), MAX_ACK_RANGES) - 1, -1)
        ranges = tuple(
            (start & _MASK, (stop - 1) & _MASK)
            for start, stop in zip(received.starts[newest], received.stops[newest], strict=True)
            if stop > self._old_news
        )
        if len(self._frames_said) == SAY_TIMES:
            self._old_news = self._frames_said.pop(0)
        self._frames_said.append(self.largest)
        delay_us = min(max(int((now - self._largest_at) * 1e6), 0), _MASK)
        return Ack(delay_us, ranges, None if next_position is None else next_position & _MASK)
