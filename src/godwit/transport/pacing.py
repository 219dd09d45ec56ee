"""The pacer: spreads what may be sent over time, by trains.

A bucket of bytes fills at the rate. It holds two milliseconds more than a train, because an event loop's timers resolve
one: what comes while a timer is late must not be lost. A train holds what one millisecond brings, from two datagrams up
to the limit, so that a fast path costs few system calls and a slow one sees no bursts.
"""

from __future__ import annotations

from typing import Final

TRAIN_S: Final = 0.001
DEPTH_S: Final = 0.002
SHORTEST_WAIT_S: Final = 1e-5
"""Far below what a timer resolves, and far above the steps of a clock that counts seconds since a machine started."""


class Pacer:
    """Ask `room_bytes` before a train, tell `on_sent` after it; `ready_at` says when asking is worth while again."""

    __slots__ = ("_bucket_bytes", "_filled_at")

    def __init__(self, now: float) -> None:
        self._bucket_bytes = float("inf")  # the first look cuts it to the depth
        self._filled_at = now

    def room_bytes(self, now: float, rate_bytes_per_s: float, train_bytes: int) -> float:
        """What may go now."""
        depth = rate_bytes_per_s * DEPTH_S + train_bytes
        self._bucket_bytes = min(self._bucket_bytes + (now - self._filled_at) * rate_bytes_per_s, depth)
        self._filled_at = now
        # A byte of mercy: a timer set for the exact moment must not come too early by a rounding error.
        return self._bucket_bytes + 1.0

    def on_sent(self, sent_bytes: int) -> None:
        """Packets outside the pacer's control (probes) may take the bucket below nothing."""
        self._bucket_bytes -= sent_bytes

    def ready_at(self, rate_bytes_per_s: float, needed_bytes: int) -> float:
        """When so much may go."""
        return self._filled_at + max((needed_bytes - self._bucket_bytes) / rate_bytes_per_s, SHORTEST_WAIT_S)


def train_bytes(rate_bytes_per_s: float, datagram_bytes: int, limit_bytes: int) -> int:
    """How long a train is at this rate: a whole number of datagrams."""
    wanted = max(int(rate_bytes_per_s * TRAIN_S), 2 * datagram_bytes)
    return max(min(wanted, limit_bytes) // datagram_bytes, 1) * datagram_bytes
