"""The stages that are being written: so many at once, and one that stands still gives way to one that moves.

An upload holds a place and a thread for as long as its client likes. So its place is its own only while rows come: when
all are taken, the one that has stood still for longest is ended for a new one; and one that has stood still for very
long is ended anyhow. To end one means to end its connection: it counts as standing still when all uploads on it do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from godwit.archive.connections import cut_connection
from godwit.archive.gate import BusyError

STILL_S: Final = 10.0
"""After so long without rows an upload gives way, if all places are taken."""
EXPIRY_S: Final = 600.0
"""After so long it is ended."""
GIVE_WAY_S: Final = 2.0
"""How long the end of one may take that gives way."""


class Upload:
    """One that has a place."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.moved_at = time.monotonic()

    def move(self) -> None:
        """Rows have come."""
        self.moved_at = time.monotonic()


class Uploads:
    """`cut` ends a client's connection, and with it the upload."""

    def __init__(self, most: int, cut: Callable[[str], object] = cut_connection) -> None:
        self._most = most
        self._cut = cut
        self._changed = threading.Condition()
        self._inside: list[Upload] = []

    @property
    def inside(self) -> int:
        return len(self._inside)

    @contextmanager
    def entered(self, peer: str) -> Iterator[Upload]:
        """BusyError if all places are taken by uploads that move."""
        upload = Upload(peer)
        with self._changed:
            if not self._has_room():
                stillest = self._still_for(STILL_S)[:1]
                for still in stillest:
                    self._cut(still)
                if not stillest or not self._changed.wait_for(self._has_room, GIVE_WAY_S):
                    raise BusyError(f"{self._most} stages are under way already: try again in a while")
            self._inside.append(upload)
        try:
            yield upload
        finally:
            with self._changed:
                self._inside.remove(upload)
                self._changed.notify()

    def expire(self) -> int:
        """Ends connections whose uploads have not moved for very long; gives how many."""
        with self._changed:
            peers = self._still_for(EXPIRY_S)
        for peer in peers:
            self._cut(peer)
        return len(peers)

    def _has_room(self) -> bool:
        return len(self._inside) < self._most

    def _still_for(self, still_s: float) -> list[str]:
        """Clients none of whose uploads has moved for so long; the one that moved longest ago comes first."""
        moved_at: dict[str, float] = {}
        for upload in self._inside:
            moved_at[upload.peer] = max(upload.moved_at, moved_at.get(upload.peer, upload.moved_at))
        moved_before = time.monotonic() - still_s
        return sorted([peer for peer, at in moved_at.items() if at <= moved_before], key=moved_at.__getitem__)
