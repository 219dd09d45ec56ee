"""One timer of an event loop that follows an absolute time which keeps moving."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

RESOLUTION_S = 0.001
"""What event loops resolve. A time that moves by less is not worth a new timer."""


class LoopTimer:
    """Calls back at a time, or up to a few milliseconds later; also when the time moved away meanwhile.

    A new timer costs the loop more than a call in vain, so only a time that moves earlier makes one. `now` and `when`
    are time.monotonic() seconds: the loop's own clock may stand still during a turn (uvloop's does).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for = math.inf

    def arm(self, when: float | None, now: float) -> None:
        """Wants to be called at `when`; None: not at all."""
        if when is None or when >= self._armed_for - RESOLUTION_S:
            return
        if self._handle is not None:
            self._handle.cancel()
        # What is due already comes in the loop's next turn. The rest is rounded up to whole milliseconds, as loops do
        # or else, as uvloop, down: then a timer would go off early, again and again until the time has come.
        delay_s = math.ceil((when - now) / RESOLUTION_S) * RESOLUTION_S if when > now else 0.0
        self._armed_for = now + delay_s
        self._handle = self._loop.call_later(delay_s, self._fire)

    def cancel(self) -> None:
        """Never calls back again, unless armed anew."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._armed_for = math.inf

    def _fire(self) -> None:
        self._handle = None
        self._armed_for = math.inf
        self._callback()
