"""Distributions: how often a figure was within each of a few ranges, for the histograms of the metrics endpoint."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds for commits: a fast disk takes half a millisecond, a stalled one seconds."""
LONG_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds for micro-batches."""
BYTES: Final = (256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216)
COUNTS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


class Distribution:
    """Counts observations by upper bounds. One thread observes; others may read, and see a recent state."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: inclusive upper bounds of the ranges, ascending. A last range has everything above."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self._counts)

    @property
    def total(self) -> float:
        """The sum of all observations."""
        return self._total

    def buckets(self) -> list[tuple[str, int]]:
        """Return the upper bounds, and how many observations were at most as large; "+Inf" is the last one."""
        found: list[tuple[str, int]] = []
        below = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts.copy(), strict=True):
            below += count
            found.append(("+Inf" if bound == float("inf") else repr(float(bound)), below))
        return found
