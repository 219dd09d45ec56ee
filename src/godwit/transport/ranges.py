"""A set of whole numbers kept as spans: small while its members lie close together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class RangeSet:
    """Spans [start, stop) in ascending order, never touching."""

    __slots__ = ("starts", "stops")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.stops: list[int] = []

    def __len__(self) -> int:
        """How many spans there are: what it costs in memory."""
        return len(self.starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.starts, self.stops, strict=True)

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self.starts, number) - 1
        return place >= 0 and number < self.stops[place]

    def missing(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of [start, stop) that are not in the set, in ascending order."""
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
        """Puts [start, stop) in. False when all of it was there already."""
        starts, stops = self.starts, self.stops
        if not stops or start > stops[-1]:
            starts.append(start)
            stops.append(stop)
            return True
        # The spans that touch [start, stop) become one with it.
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
        """Forgets the lowest span. Gives where it stopped."""
        del self.starts[0]
        return self.stops.pop(0)
