"""The end of a connection: the close is said a few times, and stray packets are known for a while (RFC 9000, 10.2)."""

from __future__ import annotations

from typing import Final

from godwit.limits import MAX_PROBE_INTERVAL_S

REPEATS: Final = 3
"""The close is sent so often unasked, because nobody acknowledges it."""
LINGER_PROBE_TIMEOUTS: Final = 3
MAX_ANSWERS: Final = 16
"""Packets that still come are answered with the close, so often at the most."""


class Farewell:
    """Drain: take. An empty frame: the peer has closed, nothing is to be said."""

    __slots__ = ("_answers", "_frame", "_interval_s", "_next_at", "_said", "ends_at")

    def __init__(self, frame: bytes, now: float, probe_timeout_s: float) -> None:
        self._frame = frame
        # After a pause of the whole process the measured round trip can be minutes: a place must not be held so long.
        self._interval_s = min(probe_timeout_s, MAX_PROBE_INTERVAL_S)
        self._next_at: float | None = now if frame else None
        self._said = 0
        self._answers = 0
        self.ends_at = now + LINGER_PROBE_TIMEOUTS * self._interval_s

    def on_packet(self, now: float) -> None:
        """The peer has not heard of the end yet."""
        if self._answers < MAX_ANSWERS:
            self._answers += 1
            self._next_at = now

    def take(self, now: float) -> bytes | None:
        """The close frame, if it is to be said now."""
        if self._next_at is None or now < self._next_at:
            return None
        self._said += 1
        self._next_at = now + self._interval_s if self._said < REPEATS else None
        return self._frame

    def next_timer(self) -> float:
        return self.ends_at if self._next_at is None else min(self._next_at, self.ends_at)
