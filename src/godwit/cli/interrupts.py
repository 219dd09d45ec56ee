"""Ctrl-C while the program is still being loaded, and during calls of libraries that do not return."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

EXIT_BY_SIGNAL: Final = 128
"""Exit code that a shell reports for a program ended by a signal, less the number of the signal."""
EXIT_INTERRUPTED: Final = 130
"""Exit code that a shell reports for a program ended by Ctrl-C: 128 + SIGINT."""
GRACE_S: Final = 2.0
"""Time for a command to end by itself after a signal."""
_SHOW_CURSOR: Final = "\x1b[?25h"


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


@contextmanager
def prompt_interrupts() -> Iterator[None]:
    """Make Ctrl-C and SIGTERM end the process after GRACE_S at the latest, within the block.

    The usual handlers run when the main thread returns from the library that it is in. For an object store that does
    not answer, that may take minutes. The block must be safe to kill, and start no processes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    has_ended = threading.Event()

    def watch() -> None:
        while received := os.read(reader, 1):
            number = received[0]
            if number in (signal.SIGINT, signal.SIGTERM) and not has_ended.wait(GRACE_S):
                if sys.stderr.isatty():
                    sys.stderr.write(_SHOW_CURSOR)  # a status line has hidden it
                    sys.stderr.flush()
                os._exit(EXIT_BY_SIGNAL + number)

    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=watch, name="godwit-interrupts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        os.close(writer)  # ends the thread
        thread.join()
        os.close(reader)
