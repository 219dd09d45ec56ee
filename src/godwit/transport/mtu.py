"""How long a datagram the path carries: found by trying (RFC 8899).

The base of 1200 bytes always works. Once a connection has filled a datagram, larger sizes are tried with packets of
nothing but padding: first the largest that both sides take, then by halves. A client that only says a little now and
then is spared that, and so is a server with thousands of them. If full-size packets vanish later (a route with a
smaller MTU), it falls back to the base and tries again after a while.
"""

from __future__ import annotations

from typing import Final

from godwit.limits import BASE_DATAGRAM_BYTES

TRIES: Final = 3
"""So many probes of one size must get lost before the size counts as too large."""
CLOSE_ENOUGH_BYTES: Final = 16
"""The search ends when the answer is known this well."""
RETRY_S: Final = 60.0
"""When a search ended below the largest size, the path is tried again."""
SOON_S: Final = 1.0
"""After a fall back to the base, too."""
SUSPICIOUS_LOSSES: Final = 8
"""So many larger packets lost, and none newer arrived, while small ones may still pass."""
SUSPICIOUS_PROBES: Final = 2
"""So many probe timeouts in a row with larger packets under way: the path may have stopped carrying them."""


class PathMtu:
    """Ask `probe_bytes` whenever something is sent; tell what became of the probe."""

    __slots__ = (
        "_failures",
        "_largest",
        "_lost_since",
        "_newest_acked",
        "_retry_at",
        "_too_large",
        "_under_way",
        "datagram_bytes",
        "is_wanted",
    )

    def __init__(self, largest_bytes: int) -> None:
        self.datagram_bytes = BASE_DATAGRAM_BYTES
        self.is_wanted = False
        """Whether longer datagrams would be used: until then none is tried."""
        self._largest = largest_bytes
        self._too_large = largest_bytes + 1
        self._failures = 0
        self._under_way = 0
        self._retry_at: float | None = None
        self._newest_acked = -1
        """The number of the newest packet longer than the base that arrived."""
        self._lost_since = 0
        """How many such packets, newer than that one, got lost."""

    def probe_bytes(self, now: float) -> int | None:
        """The size to be tried now, or None."""
        if not self.is_wanted or self._under_way:
            return None
        if self._retry_at is not None:
            if now < self._retry_at:
                return None
            self._retry_at = None
            self._too_large = self._largest + 1
        if self.datagram_bytes >= self._largest:
            return None
        if self._too_large > self._largest:
            return self._largest
        if self._too_large - self.datagram_bytes <= CLOSE_ENOUGH_BYTES:
            self._retry_at = now + RETRY_S
            return None
        return (self.datagram_bytes + self._too_large) // 2

    def on_probe_sent(self, size_bytes: int) -> None:
        self._under_way = size_bytes

    def on_probe_acked(self, size_bytes: int) -> None:
        if size_bytes != self._under_way:
            return  # it was sent on another path
        self._under_way = 0
        self._failures = 0
        self.datagram_bytes = max(self.datagram_bytes, size_bytes)

    def on_probe_lost(self, size_bytes: int) -> None:
        if size_bytes != self._under_way:
            return
        self._under_way = 0
        self._failures += 1
        if self._failures >= TRIES:
            self._failures = 0
            self._too_large = min(self._too_large, size_bytes)

    def on_probe_timeouts(self, in_a_row: int, now: float) -> bool:
        """Nothing comes back. True when that made it fall back to the base size."""
        return in_a_row >= SUSPICIOUS_PROBES and self._fall_back(now)

    def on_large_acked(self, number: int) -> None:
        """A packet longer than the base has arrived, so the path carries them."""
        if number > self._newest_acked:
            self._newest_acked = number
            self._lost_since = 0

    def on_large_lost(self, number: int, now: float) -> bool:
        """One got lost. True when they are so many, and none newer arrived, that it falls back to the base size."""
        if number > self._newest_acked:
            self._lost_since += 1
        return self._lost_since >= SUSPICIOUS_LOSSES and self._fall_back(now)

    def _fall_back(self, now: float) -> bool:
        if self.datagram_bytes == BASE_DATAGRAM_BYTES:
            return False
        self._lost_since = 0
        self.datagram_bytes = BASE_DATAGRAM_BYTES
        self._too_large = self._largest + 1
        self._failures = 0
        # Most often the whole path was away for a moment, so the first new try comes soon.
        self._retry_at = now + SOON_S
        return True
