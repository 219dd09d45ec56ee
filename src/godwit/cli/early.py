"""Ctrl-C while the program is still being loaded."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

EXIT_INTERRUPTED: Final = 130
"""What a shell reports for a program that Ctrl-C ended: 128 + SIGINT."""


@contextmanager
def quick_interrupts() -> Iterator[None]:
    """Within the block Ctrl-C ends the process at once: there is nothing to tidy up yet, and nothing to tell.

    A KeyboardInterrupt would not do: Python's own import machinery prints some of them where nobody can catch them.
    """
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield  # somebody else has decided, or may
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(EXIT_INTERRUPTED)
