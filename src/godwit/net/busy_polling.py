"""When to poll a socket instead of sleeping until a datagram arrives.

To wake a process takes longer than everything that client or broker do for one message: its processor may have to leave
a sleep state, and its code and data are no longer in the caches. In a *brisk exchange*, where datagrams come one by one
and each soon after the one before, the process stays awake for a moment after each of them, and looks for the next one
again and again. Between two looks it lets other processes run that are ready.

Polling takes processor time that would be unused. So it begins only after many brisk datagrams in a row: messages that
come at random, or less than some thousand times a second, never cause it. It stops if the processor is needed for
something else.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, Final

BRISK_S: Final = 250e-6
"""A datagram that arrives within this time after the one before was handled, and not with many others, is brisk. It is
also how long to poll for the next one."""
BRISK_READS: Final = 64
"""How many brisk datagrams in a row make the process poll."""
CROWDED_S: Final = 200e-6
"""If one look takes longer, another process, thread or callback needs the processor."""
CROWDED_READS: Final = 5_000
"""Then this many brisk datagrams are read without polling, which takes about a second."""
_yield_processor: Final[Callable[[], Any] | None] = getattr(os, "sched_yield", None)
"""None on Windows, which has no such call: there nothing is polled."""


class BusyPolling:
    """Decides for one socket. `now` is monotonic seconds."""

    __slots__ = ("_looked_at", "_reads", "_until")

    def __init__(self) -> None:
        self._reads = 0
        """How many brisk datagrams there were in a row; below 0 after polling was crowded."""
        self._until = 0.0
        self._looked_at = math.inf
        """When the last look began; infinite before the first one."""

    def handle_read(self, gap_s: float, is_few: bool) -> None:
        """Datagrams were read: a few or many, this long after the ones before were handled."""
        if is_few and gap_s < BRISK_S:
            self._reads += 1
        elif self._reads > 0:
            self._reads = 0

    def begin(self, now: float) -> bool:
        """Return whether to poll, now that the datagrams are handled."""
        self._looked_at = math.inf
        self._until = now + BRISK_S
        return self._reads >= BRISK_READS and _yield_processor is not None

    def look_again(self, now: float) -> bool:
        """Return whether to look for a datagram now, after other processes had a turn."""
        if now - self._looked_at > CROWDED_S:
            self._looked_at = math.inf
            self._reads = -CROWDED_READS
        if now >= self._until or self._reads < BRISK_READS or _yield_processor is None:
            return False
        self._looked_at = now
        _yield_processor()
        return True
