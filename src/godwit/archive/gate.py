"""How many calls of a kind are under way at once: each takes a thread and memory, for as long as its client likes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from godwit.errors import GodwitError


class BusyError(GodwitError):
    """Too many at once: it can be asked again in a while."""


class Gate:
    """Lets so many in, and sends the others away at once: who waits inside would need a thread too."""

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        self._lock = threading.Lock()
        self._inside = 0

    @property
    def inside(self) -> int:
        return self._inside

    @contextmanager
    def entered(self) -> Iterator[None]:
        with self._lock:
            if self._inside >= self._most:
                raise BusyError(f"{self._most} {self._what} are under way already: try again in a while")
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
