"""The command line, with one file for each group of commands. The installed `godwit` script calls `main`.

Also here, because it is needed before anything else is imported: Ctrl-C while the program is still being loaded.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

EXIT_INTERRUPTED: Final = 130
"""Exit code that a shell reports for a program ended by Ctrl-C: 128 + SIGINT."""


@contextmanager
def quick_interrupts() -> Iterator[None]:
    """Make Ctrl-C end the process at once, without output, within the block.

    A KeyboardInterrupt would not do: Python's import machinery prints some of them where no code can catch them.
    """
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield  # the caller handles the signal, or this thread may not change its handler
        return
    signal.signal(signal.SIGINT, _exit_at_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _exit_at_once(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(EXIT_INTERRUPTED)


with quick_interrupts():
    from godwit.cli.main import main

__all__ = ["EXIT_INTERRUPTED", "main", "quick_interrupts"]
