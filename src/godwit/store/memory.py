"""The log in memory: a ring of bounded size, which forgets the oldest entries. Nothing of it outlives the process."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from godwit.limits import RING_BYTES
from godwit.store.port import Change, Entry, Slice, State, entry_bytes
from godwit.wire.epochs import Epoch

__all__ = ["STEPS", "MemoryStore", "entry_bytes"]

STEPS: Final = 64
"""A full ring forgets this part of itself at once."""

_GONE: Final = Entry(topic="", publisher="", flags=0, published_us=0, received_us=0, count=1, rest=b"")
_MIN_DROP: Final = 1024


class MemoryStore:
    """Holds at most max_bytes, but what the last append brought always, so that nothing leaves unforeseen.

    Three columns of the same length, of which the first `_start` rows are forgotten: entries, the offset of each, and
    the bytes that came before it since the beginning. Both numbers grow, so that every question is a bisection.
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
        """What the entries that are there count for."""
        return self._total_bytes - self._before[self._start] if self._start < len(self._before) else 0

    def __len__(self) -> int:
        """How many entries there are."""
        return len(self._entries) - self._start

    def append(self, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        """What changes beside the log is as mortal as this store, so nothing is done about it."""
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
        self._forget(min(self._first_kept(total_bytes), first_row))
        return first

    def read(self, offset: int, max_bytes: int) -> Slice:
        if offset >= self._next_offset or not self._entries:
            return Slice([], max(offset, self._next_offset))
        start = max(self._start, bisect_right(self._offsets, offset, lo=self._start) - 1)
        # `before` of the row behind an entry is where that entry ends; the last one ends at the total.
        stop = bisect_right(self._before, self._before[start] + max_bytes, lo=start + 1) - 1
        if self._total_bytes <= self._before[start] + max_bytes:
            stop = len(self._before)
        stop = max(stop, start + 1)
        rows = zip(self._offsets[start:stop], self._entries[start:stop], strict=True)
        return Slice(list(rows), self._offset_of(stop))

    def state(self) -> State:
        return State()

    def floor_after(self, more_bytes: int) -> int:
        """What first_offset will be after one append of so many bytes (see entry_bytes)."""
        if more_bytes <= 0:
            return self.first_offset
        return self._offset_of(self._first_kept(self._total_bytes + more_bytes))

    def offset_at(self, time_us: int) -> int:
        row = bisect_left(self._entries, time_us, lo=self._start, key=lambda entry: entry.received_us)
        return self._offset_of(row)

    def _offset_of(self, row: int) -> int:
        return self._offsets[row] if row < len(self._offsets) else self._next_offset

    def _first_kept(self, total_bytes: int) -> int:
        """The first row that has room in the ring once so many bytes have been appended in all.

        A full ring forgets a part of itself at once, so that who must be told of it is not told with every append.
        """
        if self._start == len(self._before) or total_bytes - self._before[self._start] <= self._max_bytes:
            return self._start
        return bisect_left(self._before, total_bytes - self._max_bytes + self._step_bytes, lo=self._start)

    def _forget(self, start: int) -> None:
        """Everything before a row."""
        for row in range(self._start, start):
            self._entries[row] = _GONE  # lets go of it now; the row itself goes with many others
        self._start = start
        if start >= _MIN_DROP and start * 2 >= len(self._entries):
            del self._entries[:start], self._offsets[:start], self._before[:start]
            self._start = 0
