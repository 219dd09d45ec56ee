"""Shift the wall clock of a process: Python imports this at its start if this folder is on PYTHONPATH.

SHIFTED_CLOCK_S is how many seconds the clock is ahead. Clocks of the system, as of SQLite or `datetime`, stay right.
"""

import os
import time

_SHIFT_NS = int(os.environ["SHIFTED_CLOCK_S"]) * 1_000_000_000
_right_time_ns = time.time_ns


def _time_ns() -> int:
    return _right_time_ns() + _SHIFT_NS


def _time() -> float:
    return _time_ns() / 1e9


time.time_ns = _time_ns
time.time = _time
