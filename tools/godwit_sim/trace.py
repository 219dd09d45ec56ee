"""What happened in a world, as a running digest and, when somebody wants to read it, as lines of text.

Two runs of one seed must have equal digests; a difference means that something besides the seed had a say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable


class Trace:
    """Takes notes. `sink` gets each note as a line, at the cost of writing it out."""

    def __init__(self, sink: Callable[[str], None] | None = None) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self._sink = sink
        self.notes = 0

    @property
    def readable(self) -> bool:
        """Whether somebody reads: only then is it worth describing datagrams."""
        return self._sink is not None

    def note(self, now: float, what: str) -> None:
        self.notes += 1
        self._digest.update(f"{now!r} {what}\n".encode())
        if self._sink is not None:
            self._sink(f"{now:12.6f}  {what}")

    def comment(self, now: float, what: str) -> None:
        """A line for the reader alone, outside the digest."""
        if self._sink is not None:
            self._sink(f"{now:12.6f}  {what}")

    def hexdigest(self) -> str:
        return self._digest.hexdigest()
