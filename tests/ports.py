"""Ports for servers that must know them before they start, or that return under the same one.

When the system has chosen a port and it was closed again, any other program may get it before the server binds it, or
while the server is down: with several workers that happens. These ports are below the range that the system chooses
from.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_SPAN = 20_000


class _PortPicker:
    """Returns ports in turn, from a part of the range that belongs to this worker of pytest."""

    def __init__(self) -> None:
        end = min(32_768, int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768)
        begin = max(1_024, end - _SPAN)
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        self._count = (end - begin) // workers
        self._begin = begin + worker * self._count
        self._next = os.getpid() * 97 % self._count  # another run of tests on this machine begins elsewhere

    def next_port(self) -> int:
        """Return the next port that is free for TCP and for UDP."""
        for _ in range(self._count):
            port = self._begin + self._next
            self._next = (self._next + 1) % self._count
            if _is_free(port):
                return port
        raise AssertionError(f"no port from {self._begin} to {self._begin + self._count - 1} is free")


def _is_free(port: int) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


_picker = _PortPicker()


def free_port() -> int:
    """Return a port that no program on 127.0.0.1 uses, and that the system chooses for no other."""
    return _picker.next_port()


def free_ports(count: int) -> list[int]:
    """Return several of them."""
    return [free_port() for _ in range(count)]
