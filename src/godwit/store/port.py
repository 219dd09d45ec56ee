"""The interface of a log to the broker, and ranges of offsets.

Offsets count messages, in one sequence per log; the unit of storage is a batch. A store is synchronous: when `append`
returns, its data is as safe as this store can make it.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from godwit.wire.batch import Entry
from godwit.wire.changes import Change, StoredState
from godwit.wire.epochs import Epoch

__all__ = [
    "ENTRY_COST_BYTES",
    "Change",
    "Entry",
    "OffsetRanges",
    "ProgressCallback",
    "Slice",
    "Store",
    "entry_bytes",
    "joined",
]

ENTRY_COST_BYTES: Final = 384
"""Memory of an entry in Python without its texts and bytes, rounded up."""

ProgressCallback: TypeAlias = Callable[[int, int], None]
"""Called with the bytes done and the total. It may raise, to end the operation."""


def entry_bytes(entry: Entry) -> int:
    """Return the memory that an entry takes, by which reads and rings are limited."""
    return len(entry.rest) + len(entry.topic) + len(entry.publisher) + ENTRY_COST_BYTES


class Slice(msgspec.Struct, frozen=True):
    """Consecutive entries of a log."""

    entries: list[tuple[int, Entry]]
    """The offset of each entry's first message, and the entry."""
    next_offset: int
    """Where to continue reading."""
    damaged: list[tuple[int, int]] = []
    """Ranges of offsets, begin and end, that were skipped because they are unreadable."""


class Store(Protocol):
    """A log. SqliteStore and MemoryStore implement it."""

    @property
    def log_id(self) -> bytes:
        """A random id, made with the log: offsets are only meaningful within one log."""
        ...

    @property
    def first_offset(self) -> int:
        """The oldest offset in the log; next_offset if the log is empty."""
        ...

    @property
    def next_offset(self) -> int:
        """The offset of the next message."""
        ...

    @property
    def epochs(self) -> Sequence[Epoch]:
        """The epochs of all messages, in order, followed by that of this opening, which may have no message yet.

        Empty in a store that does not outlive the process.
        """
        ...

    def append(self, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        """Append entries and apply changes, all or none, and return the offset of the first entry.

        Everything is durable when this returns. Receive times must not decrease from one entry to the next.
        """
        ...

    def state(self) -> StoredState:
        """Return the state rows that result from all changes; empty in a store that does not outlive the process."""
        ...

    def read(self, offset: int, max_bytes: int) -> Slice:
        """Return whole entries, starting with the one that contains the offset.

        Args:
            offset: Where to start. Deleted messages are skipped, so the first entry's offset may be higher.
            max_bytes: Limit, as counted by entry_bytes. At least one entry is returned if there is any. Where a large
                range is damaged there may be no entry before the next_offset of the slice: then continue from there.
        """
        ...

    def offset_at(self, time_us: int) -> int:
        """Return the first offset received at or after a time; next_offset if there is none."""
        ...


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order, with adjacent and overlapping ones merged and empty ones removed."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if begin >= end:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


class OffsetRanges:
    """A set of ranges of offsets that do not overlap."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, begin: int, end: int) -> bool:
        """Add a range and return True, or return False if it overlaps one that was added before."""
        at = bisect_right(self._ranges, (begin, end))
        if at and self._ranges[at - 1][1] > begin:
            return False
        if at < len(self._ranges) and self._ranges[at][0] < end:
            return False
        insort(self._ranges, (begin, end))
        return True

    @property
    def end(self) -> int:
        """The end of the last range, or 0."""
        return self._ranges[-1][1] if self._ranges else 0

    def gaps(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges between two offsets that were not added."""
        missing = []
        for start, stop in [*self._ranges, (end, end)]:
            if begin < start:
                missing.append((begin, start))
            begin = max(begin, stop)
        return missing
