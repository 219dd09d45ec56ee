"""A rate with a burst: the token bucket."""

from __future__ import annotations


class Bucket:
    """Holds up to `burst` tokens and gets `per_s` more every second. It may be overdrawn: `due_us` says until when."""

    __slots__ = ("_burst", "_per_s", "_tokens", "_updated_us")

    def __init__(self, per_s: float, burst: float, now_us: int) -> None:
        self._per_s = per_s
        self._burst = burst
        self._tokens = burst
        self._updated_us = now_us

    def take(self, count: int, now_us: int) -> bool:
        """Takes so many; False if that was more than there were."""
        elapsed_s = max(0, now_us - self._updated_us) / 1e6
        self._updated_us = max(now_us, self._updated_us)
        self._tokens = min(self._burst, self._tokens + elapsed_s * self._per_s) - count
        return self._tokens >= 0

    def has(self, count: int, now_us: int) -> bool:
        """Return whether there are at least this many, without taking them."""
        self.take(0, now_us)
        return self._tokens >= count

    @property
    def due_us(self) -> int:
        """When it is no longer overdrawn."""
        return self._updated_us + max(0, int(-self._tokens / self._per_s * 1e6) + 1 if self._tokens < 0 else 0)
