"""Limits of concurrent calls: each takes a thread and memory for as long as its client likes."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from godwit.errors import GodwitError

STALLED_S: Final = 10.0
"""An upload that has received no rows for this time is ended if the limit is reached and another one begins."""
EXPIRY_S: Final = 600.0
"""An upload that has received no rows for this time is ended."""
END_TIMEOUT_S: Final = 2.0
"""How long a new upload waits for a stalled one to end."""

_OPEN_FILES: Final = Path("/dev/fd")
_IPV4_AS_IPV6: Final = "::ffff:"
"""Prefix of an IPv4 address on a socket for both families, as gRPC uses."""


class BusyError(GodwitError):
    """The limit of concurrent calls is reached; the client may try again later."""


class CallLimit:
    """Limits concurrent calls of a kind. Further calls fail at once: a waiting call would need a thread too."""

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self._limit = limit
        self._lock = threading.Lock()
        self._active = 0

    @property
    def active(self) -> int:
        """Number of calls under way."""
        return self._active

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Count a call for the time of the block. Raise BusyError if the limit is reached."""
        with self._lock:
            if self._active >= self._limit:
                raise BusyError(f"{self._limit} {self._what} are under way already: try again in a while")
            self._active += 1
        try:
            yield
        finally:
            with self._lock:
                self._active -= 1


def cut_connection(peer: str) -> bool:
    """Shut down the connection to a client, and return whether there was one.

    Flight has no call for this. A call that waits for its client waits in C++, where nothing in Python wakes it up. But
    the socket belongs to this process: shutting it down ends all calls of its connection, as if the client had left.

    Args:
        peer: The client as gRPC writes it, `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000`.
    """
    _, _, address = peer.partition(":")
    host, _, port = unquote(address).rpartition(":")
    wanted = (host.strip("[]").partition("%")[0], port)
    with suppress(OSError):  # the system does not list open files
        for path in list(_OPEN_FILES.iterdir()):
            with suppress(OSError, ValueError):  # closed meanwhile, or not a socket
                if _shut_down(int(path.name), wanted):
                    return True
    return False


def _shut_down(fd: int, wanted: tuple[str, str]) -> bool:
    """Shut down a socket if it is the connection to this host and port.

    This works on a duplicate of the descriptor, because the original may be closed meanwhile.
    """
    copy = os.dup(fd)
    try:
        connection = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        host, port, *_ = connection.getpeername()
        if (host.removeprefix(_IPV4_AS_IPV6).partition("%")[0], str(port)) != wanted:
            return False
        connection.shutdown(socket.SHUT_RDWR)
        return True


class Upload:
    """An upload under way."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.moved_at = time.monotonic()

    def handle_rows(self) -> None:
        """Note that rows were received."""
        self.moved_at = time.monotonic()


class Uploads:
    """Limits concurrent uploads. An upload that receives rows keeps its place.

    An upload holds a thread for as long as its client likes. If the limit is reached, the one that has been stalled for
    longest is ended for a new one; one that has been stalled for very long is ended in any case. Ending an upload means
    shutting down its connection, which counts as stalled if all uploads on it are.
    """

    def __init__(self, limit: int, cut: Callable[[str], object] = cut_connection) -> None:
        """`cut` shuts down a client's connection."""
        self._limit = limit
        self._cut = cut
        self._changed = threading.Condition()
        self._active: list[Upload] = []

    @property
    def active(self) -> int:
        """Number of uploads under way."""
        return len(self._active)

    @contextmanager
    def enter(self, peer: str) -> Iterator[Upload]:
        """Count an upload for the time of the block. Raise BusyError if the limit is reached and none is stalled."""
        upload = Upload(peer)
        with self._changed:
            if not self._has_room():
                longest_stalled = self._stalled_for(STALLED_S)[:1]
                for stalled in longest_stalled:
                    self._cut(stalled)
                if not longest_stalled or not self._changed.wait_for(self._has_room, END_TIMEOUT_S):
                    raise BusyError(f"{self._limit} stages are under way already: try again in a while")
            self._active.append(upload)
        try:
            yield upload
        finally:
            with self._changed:
                self._active.remove(upload)
                self._changed.notify()

    def expire(self) -> int:
        """End connections whose uploads have been stalled for very long, and return their number."""
        with self._changed:
            peers = self._stalled_for(EXPIRY_S)
        for peer in peers:
            self._cut(peer)
        return len(peers)

    def _has_room(self) -> bool:
        return len(self._active) < self._limit

    def _stalled_for(self, stalled_s: float) -> list[str]:
        """Return the clients whose uploads have all been stalled for this time, the longest stalled first."""
        moved_at: dict[str, float] = {}
        for upload in self._active:
            moved_at[upload.peer] = max(upload.moved_at, moved_at.get(upload.peer, upload.moved_at))
        moved_before = time.monotonic() - stalled_s
        return sorted([peer for peer, at in moved_at.items() if at <= moved_before], key=moved_at.__getitem__)
