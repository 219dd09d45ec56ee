"""The processes of a session, for tests that check that none is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

PATIENCE_S = 120.0
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="finds the processes of a session in /proc")


def processes_of(session: int) -> list[str]:
    """Return the running processes of a session: the number and the command of each."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            before, _, after = (folder / "stat").read_text().rpartition(")")
            state, _, _, number = after.split()[:4]
        except OSError:  # it has just ended
            continue
        if int(number) == session and state not in "ZX":
            found.append(before.replace("(", ""))
    return found


def wait_for_end(sessions: Iterable[int]) -> None:
    """Wait until these sessions have no process."""
    ends = time.monotonic() + PATIENCE_S
    while left := [one for session in sessions for one in processes_of(session)]:
        assert time.monotonic() < ends, f"still running: {left}"
        time.sleep(0.02)
