"""When something is due: one time for each job, task, worker or queue that waits for one.

What was set and is no longer wanted stays in the heap until it comes to the top, or until there is more of it than of
the rest: so a deadline in a year does not keep a job in memory that is done.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_SLACK: Final = 64


class Timers(Generic[T]):
    """Sets times, and tells which have come."""

    __slots__ = ("_at_us", "_count", "_heap")

    def __init__(self) -> None:
        self._at_us: dict[T, int] = {}
        self._heap: list[tuple[int, int, T]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._at_us)

    def __contains__(self, owner: T) -> bool:
        return owner in self._at_us

    def set(self, owner: T, at_us: int) -> None:
        """Instead of what was set for it before."""
        if self._at_us.get(owner) == at_us:
            return
        self._at_us[owner] = at_us
        self._count += 1  # makes places unique, and the order the same in every run
        heappush(self._heap, (at_us, self._count, owner))
        self._trim()

    def stop(self, owner: T) -> None:
        if self._at_us.pop(owner, None) is not None:
            self._trim()

    def next_us(self) -> int | None:
        heap = self._heap
        while heap:
            at_us, _, owner = heap[0]
            if self._at_us.get(owner) == at_us:
                return at_us
            heappop(heap)
        return None

    def due(self, now_us: int) -> T | None:
        """One that is due, which has no time any more; None: there is none."""
        at_us = self.next_us()
        if at_us is None or at_us > now_us:
            return None
        owner = heappop(self._heap)[2]
        del self._at_us[owner]
        return owner

    def _trim(self) -> None:
        if len(self._heap) > 2 * len(self._at_us) + _SLACK:
            self._heap = [place for place in self._heap if self._at_us.get(place[2]) == place[0]]
            heapify(self._heap)
