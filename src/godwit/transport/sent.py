"""Packets that were sent and not acknowledged, in the order of their numbers.

Full packets of one long record are kept as one *run*, as long as they share their fate: the usual acknowledgement
covers a whole train and costs one step. Where it does not, the run is split.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from godwit.transport.congestion import Flight
from godwit.transport.fragment import Fragment

MAX_OLD_SKIPPED: Final = 16

Announcement: TypeAlias = tuple[Literal["confirm", "credit"], int, int]
"""What was said, of which channel, with which value."""


class SentRun(msgspec.Struct, gc=False):
    """Packets with consecutive numbers, most often one."""

    number: int
    """Of the first."""
    packet_bytes: int
    flight: Flight
    fragments: Sequence[Fragment] = ()
    """What they carry; if they are several, one fragment that is spread evenly over them."""
    said: Sequence[Announcement] = ()
    """The announcements in it, which must be repeated if it is lost."""
    count: int = 1
    is_mtu_probe: bool = False
    lost_by_time: bool = False
    """It was given up because of its age, not because newer packets had arrived."""

    @property
    def last(self) -> int:
        return self.number + self.count - 1

    @property
    def size_bytes(self) -> int:
        return self.count * self.packet_bytes

    def split(self, count: int) -> tuple[SentRun, SentRun]:
        """The first so many, and the rest. This run and its fragment are void from now on."""
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
        """Its packets one by one. Like split, this makes the run void unless it is one packet anyway."""
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
    """Runs by their numbers. New ones come at the upper end; any may leave."""

    __slots__ = ("numbers", "packets", "runs", "skipped")

    def __init__(self) -> None:
        self.numbers: list[int] = []
        """Of the first packet of each run."""
        self.runs: list[SentRun] = []
        self.packets = 0
        """How many packets are in it."""
        self.skipped: list[int] = []
        """Numbers that no packet was sent with, ascending: all since the oldest packet under way, some older ones."""

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[SentRun]:
        return iter(self.runs)

    def append(self, run: SentRun) -> None:
        """A run with higher numbers than all before."""
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
        """As append, but for any number."""
        place = bisect_left(self.numbers, run.number)
        self.numbers.insert(place, run.number)
        self.runs.insert(place, run)
        self.packets += run.count

    def oldest(self) -> SentRun:
        return self.runs[0]

    def take(self, first: int, last: int) -> list[SentRun]:
        """Takes the packets with numbers from first to last out, in ascending order."""
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
        """Forgets all but so many runs."""
        self.packets -= sum([run.count for run in self.runs[:-most]])
        del self.runs[:-most], self.numbers[:-most]
