"""Ranges of offsets, each with its begin and its end."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order, those that touch as one, without empty ones."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if begin >= end:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


class Ranges:
    """Offsets that were found. No range overlaps another."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, begin: int, end: int) -> bool:
        """Unless some of it is there already."""
        at = bisect_right(self._ranges, (begin, end))
        if at and self._ranges[at - 1][1] > begin:
            return False
        if at < len(self._ranges) and self._ranges[at][0] < end:
            return False
        insort(self._ranges, (begin, end))
        return True

    @property
    def end(self) -> int:
        return self._ranges[-1][1] if self._ranges else 0

    def gaps(self, begin: int, end: int) -> list[tuple[int, int]]:
        """What is missing from one offset to another."""
        missing = []
        for start, stop in [*self._ranges, (end, end)]:
            if begin < start:
                missing.append((begin, start))
            begin = max(begin, stop)
        return missing
