"""Ending a client's connection from here, which Flight has no call for.

A call that waits for its client waits in C++, and nothing in Python wakes it up. But the socket is this process's own:
shut down, it ends all calls of its connection as if the client had gone.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote

_OPEN_FILES: Final = Path("/dev/fd")
_IPV4_AS_IPV6: Final = "::ffff:"
"""In front of a host that came to a socket for both, as gRPC's are."""


def cut_connection(peer: str) -> bool:
    """Whether there was one. `peer`: as gRPC writes it, `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000`."""
    _, _, address = peer.partition(":")
    host, _, port = unquote(address).rpartition(":")
    wanted = (host.strip("[]").partition("%")[0], port)
    with suppress(OSError):  # a system that does not list them
        for path in list(_OPEN_FILES.iterdir()):
            with suppress(OSError, ValueError):  # closed in the meantime, or no socket
                if _shut_down(int(path.name), wanted):
                    return True
    return False


def _shut_down(fd: int, wanted: tuple[str, str]) -> bool:
    """If it is the connection to this host and port. Works on a copy of the descriptor: the original may be closed."""
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
