"""How long to wait before the next attempt to connect."""

from __future__ import annotations

from typing import Protocol


class Random(Protocol):
    """What is needed of `random.Random`: everything random comes in from outside."""

    def random(self) -> float: ...


class Backoff:
    """A random time between the shortest and a bound that doubles with each failure, up to the longest.

    Random over the whole range: after a broker's restart its clients do not come back all at once.
    """

    def __init__(self, shortest_s: float, longest_s: float, random: Random) -> None:
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self._random = random
        self._bound_s = shortest_s

    def wait_s(self) -> float:
        """The time to wait after one more failure."""
        self._bound_s = min(2 * self._bound_s, self._longest_s)
        return self._shortest_s + (self._bound_s - self._shortest_s) * self._random.random()

    def reset(self) -> None:
        """It worked for a while."""
        self._bound_s = self._shortest_s
