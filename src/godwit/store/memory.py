"""A log in memory: a ring of limited size that drops its oldest entries. It does not outlive the process."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from godwit.limits import RING_BYTES
from godwit.store.port import Change, Entry, Slice, entry_bytes
from godwit.wire.changes import StoredState
from godwit.wire.epochs import Epoch

__all__ = ["STEPS", "MemoryStore", "entry_bytes"]

STEPS: Final = 64
"""A full ring drops one part in this number at once."""

_DROPPED: Final = Entry(topic="", publisher="", flags=0, published_us=0, received_us=0, count=1, rest=b"")
_MIN_DROP: Final = 1024


class MemoryStore:
    """A ring of at most `max_bytes`. The entries of the last append are always kept, whatever their size.

    Three lists of the same length, of which the first `_start` rows are dropped: the entries, their offsets, and the
    number of bytes appended before each. Both numbers ascend, so every lookup is a binary search.
    """

    epochs: Sequence[Epoch] = ()

    __slots__ = (
        "_before",
        "_entries",
        "_max_bytes",
        "_next_offset",
        "_offsets",
        "_start",
        "_step_bytes",
        "_total_bytes",
        "log_id",
    )

    def __init__(self, max_bytes: int = RING_BYTES, *, log_id: bytes, first_offset: int = 0) -> None:
        self.log_id = log_id
        self._max_bytes = max_bytes
        self._step_bytes = max_bytes // STEPS
        self._next_offset = first_offset
        self._total_bytes = 0
        self._entries: list[Entry] = []
        self._offsets: list[int] = []
        self._before: list[int] = []
        self._start = 0

    @property
    def first_offset(self) -> int:
        return self._offset_of(self._start)

    @property
    def next_offset(self) -> int:
        return self._next_offset

    @property
    def size_bytes(self) -> int:
        """Memory of the entries, as counted by entry_bytes."""
        return self._total_bytes - self._before[self._start] if self._start < len(self._before) else 0

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries) - self._start

    def append(self, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        """Append entries, and drop the oldest ones if the ring is full. Changes are not stored."""
        if not entries:
            return self._next_offset
        first_row = len(self._entries)
        first = offset = self._next_offset
        total_bytes = self._total_bytes
        for entry in entries:
            self._entries.append(entry)
            self._offsets.append(offset)
            self._before.append(total_bytes)
            offset += entry.count
            total_bytes += entry_bytes(entry)
        self._next_offset = offset
        self._total_bytes = total_bytes
        self._drop_before(min(self._first_fitting(total_bytes), first_row))
        return first

    def read(self, offset: int, max_bytes: int) -> Slice:
        """Return entries; see Store.read."""
        if offset >= self._next_offset or not self._entries:
            return Slice([], max(offset, self._next_offset))
        start = max(self._start, bisect_right(self._offsets, offset, lo=self._start) - 1)
        # An entry ends at `_before` of the next row; the last one ends at the total.
        stop = bisect_right(self._before, self._before[start] + max_bytes, lo=start + 1) - 1
        if self._total_bytes <= self._before[start] + max_bytes:
            stop = len(self._before)
        stop = max(stop, start + 1)
        rows = zip(self._offsets[start:stop], self._entries[start:stop], strict=True)
        return Slice(list(rows), self._offset_of(stop))

    def state(self) -> StoredState:
        """Return an empty state."""
        return StoredState()

    def floor_after(self, more_bytes: int) -> int:
        """Return the first_offset after an append of this number of bytes (see entry_bytes)."""
        if more_bytes <= 0:
            return self.first_offset
        return self._offset_of(self._first_fitting(self._total_bytes + more_bytes))

    def offset_at(self, time_us: int) -> int:
        """Return the first offset received at or after a time; see Store.offset_at."""
        row = bisect_left(self._entries, time_us, lo=self._start, key=lambda entry: entry.received_us)
        return self._offset_of(row)

    def _offset_of(self, row: int) -> int:
        return self._offsets[row] if row < len(self._offsets) else self._next_offset

    def _first_fitting(self, total_bytes: int) -> int:
        """Return the first row that fits into the ring once `total_bytes` have been appended since the start.

        A full ring drops several entries at once, so that subscribers are not notified of losses with every append.
        """
        if self._start == len(self._before) or total_bytes - self._before[self._start] <= self._max_bytes:
            return self._start
        return bisect_left(self._before, total_bytes - self._max_bytes + self._step_bytes, lo=self._start)

    def _drop_before(self, start: int) -> None:
        """Drop everything before a row."""
        for row in range(self._start, start):
            self._entries[row] = _DROPPED  # frees the entry now; rows are removed many at a time
        self._start = start
        if start >= _MIN_DROP and start * 2 >= len(self._entries):
            del self._entries[:start], self._offsets[:start], self._before[:start]
            self._start = 0
