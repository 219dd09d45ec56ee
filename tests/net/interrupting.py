"""Ctrl-C at every step: KeyboardInterrupt at each place where CPython may handle a signal in the blocking client.

CPython looks for signals when a function begins or a generator resumes, when a loop jumps back, and after a call of
anything but a plain Python function. A trace of all instructions finds these places. While the client has replaced the
handler of the signal (godwit.net.direct), the signal is sent, and the client's handler decides.
"""

from __future__ import annotations

import dis
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from godwit.net import blocking_publisher, direct, loop, publisher, subscription

FILES = {module.__file__ for module in (blocking_publisher, publisher, subscription, loop, direct)}


class Interrupter:
    """Calls a function in which the `step`-th place raises KeyboardInterrupt."""

    def __init__(self, step: int) -> None:
        self._left = step
        self._last: dict[FrameType, str] = {}
        """By frame, the instruction that ran last."""
        self.has_raised = False

    def run(self, function: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return function()
        finally:
            sys.settrace(before)
            self._last.clear()  # so that what the frames hold ends with them

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        frame.f_trace_opcodes = True
        last = self._last.get(frame, "")
        if event == "return" and frame.f_back in self._last:
            self._last[frame.f_back] = "a plain function returned"
        elif event == "opcode":
            self._last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if event == "call" or (event == "opcode" and (last == "JUMP_BACKWARD" or last.startswith("CALL"))):
            self._left -= 1
            if self._left == 0:
                self.has_raised = True
                signal.raise_signal(signal.SIGINT)  # in the main thread, at once
        return self._trace
