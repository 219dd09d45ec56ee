"""Messages to the service manager that started this process, as systemd does with `Type=notify`.

The manager names a datagram socket in NOTIFY_SOCKET, and a time in WATCHDOG_USEC within which the process must send a
sign of life. The event loop sends two in that time: if it hangs, they end, and the manager restarts the broker. (A
thread would only report that the process exists.) A log that cannot be written does not end the signs of life, because
a restart makes no room on a disk. Without these variables nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Final

from godwit.errors import printable

NOTIFY_SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG_TIME: Final = "WATCHDOG_USEC"
WATCHDOG_PROCESS: Final = "WATCHDOG_PID"
SHORTEST_WATCHDOG_S: Final = 0.1
"""A shorter time could not be met by a broker under load, and is not used."""

_logger = logging.getLogger(__name__)


class ServiceManager:
    """Sends the state of this process to its service manager, if it has one. Nothing here raises."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Read the environment, by default that of the process."""
        environment = os.environ if environment is None else environment
        self._path = _socket_path(environment)
        self.watchdog_s = _watchdog_time_s(environment) if self._path else None
        """The time within which a sign of life is expected; None without a watchdog."""
        self._timer: asyncio.TimerHandle | None = None

    def notify_ready(self, status: str) -> None:
        """Report that the process serves, or serves again after a reload, with a text for the operator.

        Signs of life begin now, in the running event loop.
        """
        self._send("READY=1", f"STATUS={printable(status)}")
        if self.watchdog_s is not None and self._timer is None:
            self._send_sign_of_life()

    def notify_reloading(self) -> None:
        """Report that the configuration is read again. `notify_ready` ends that."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def notify_stopping(self) -> None:
        """Report that the process stops. Signs of life go on, as long as the event loop runs."""
        self._send("STOPPING=1", "STATUS=stopping")

    def close(self) -> None:
        """End the signs of life."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send_sign_of_life(self) -> None:
        assert self.watchdog_s is not None
        self._send("WATCHDOG=1")
        self._timer = asyncio.get_running_loop().call_later(self.watchdog_s / 2, self._send_sign_of_life)

    def _send(self, *lines: str) -> None:
        if not self._path:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as handle:
                handle.setblocking(False)
                handle.sendto("\n".join(lines).encode(), self._path)
        except OSError as error:
            _logger.warning("the service manager did not get %s: %s", lines[0], error.strerror or error)


def _socket_path(environment: Mapping[str, str]) -> str:
    """Return the address of the socket, or an empty text. An address with a leading @ has no file."""
    text = environment.get(NOTIFY_SOCKET, "")
    if not text or not hasattr(socket, "AF_UNIX"):
        return ""
    if text[0] not in "/@":
        _logger.warning(
            "%s is %r, which is not the path of a socket; the service manager gets no messages", NOTIFY_SOCKET, text
        )
        return ""
    return f"\0{text[1:]}" if text[0] == "@" else text


def _watchdog_time_s(environment: Mapping[str, str]) -> float | None:
    text, process = environment.get(WATCHDOG_TIME, ""), environment.get(WATCHDOG_PROCESS, "")
    if not text or (process and process != str(os.getpid())):
        return None
    time_s = int(text) / 1e6 if text.isascii() and text.isdigit() and len(text) < 16 else 0.0
    if time_s < SHORTEST_WATCHDOG_S:
        _logger.warning("%s is %r, which is not a time in microseconds that can be used", WATCHDOG_TIME, text)
        return None
    return time_s
