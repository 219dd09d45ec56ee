"""A real terminal (a pty) with a command in it, for tests that type."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.real import GODWIT, PATIENCE_S, environment

ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07|[=>])")
BLANKS = re.compile(r"[\s\x08]+")
POSITION_QUESTION = b"\x1b[6n"


class Terminal:
    """The text on the screen, without cursor movements and blanks.

    A blank is often drawn by moving the cursor over it, so blanks in the expected text are ignored too.
    """

    def __init__(self, *arguments: str, **more: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*GODWIT, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(TERM="xterm", **more),
            start_new_session=True,
        )
        os.close(slave)
        self.screen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, text: str) -> str:
        """Return everything up to this text; the rest is for the next call."""
        ends = time.monotonic() + PATIENCE_S
        text = BLANKS.sub("", text)
        while text not in self.screen:
            assert time.monotonic() < ends, f"no {text!r} at the end of {self.screen[-500:]!r}"
            self._read(0.1)
        before, _, self.screen = self.screen.partition(text)
        return before

    def insist(self, keys: str, text: str) -> None:
        """Types the keys again until this text comes."""
        ends = time.monotonic() + PATIENCE_S
        while BLANKS.sub("", text) not in self.screen:
            assert time.monotonic() < ends, f"no {text!r} at the end of {self.screen[-500:]!r}"
            self.type(keys)
            for _ in range(5):
                self._read(0.1)
        self.until(text)

    def wait(self) -> int:
        ends = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < ends, f"it does not end: {self.screen[-500:]!r}"
            self._read(0.05)
        self._read(0.05)
        assert self.process.returncode is not None
        return self.process.returncode

    def _read(self, patience_s: float) -> None:
        if not select.select([self._master], [], [], patience_s)[0]:
            return
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other end is closed
            time.sleep(patience_s)
            return
        if POSITION_QUESTION in data:
            os.write(self._master, b"\x1b[1;1R")
        self.screen += BLANKS.sub("", ESCAPES.sub("", data.decode("utf-8", "replace")))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._master)


@contextmanager
def terminal(*arguments: str, **more: str) -> Iterator[Terminal]:
    found = Terminal(*arguments, **more)
    try:
        yield found
    finally:
        found.close()
