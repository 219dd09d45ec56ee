"""Logging of the library, and the reports of clients that cannot reach their broker.

All modules log to `logging.getLogger("godwit....")`. In a program that does not configure `logging`, Python writes
warnings to standard error, such as those of a client without a broker, and nothing else. A program sees all records
when it configures `logging`, or when the environment variable GODWIT_LOG is debug, info, warning or error: then they
are written to standard error. GODWIT_LOG is read when `godwit.net` is imported, in programs and in the command line
alike. Commands print their own notices instead of the warnings.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from godwit.errors import AccessError, printable

if TYPE_CHECKING:
    import asyncio

    from godwit.net.client import AsyncClient

VARIABLE: Final = "GODWIT_LOG"
LEVELS: Final = ("debug", "info", "warning", "error")
FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
UNANSWERED_S: Final = 1.0
"""A client warns if the broker has not answered its first packets for this long."""
DROPPED_TOPIC: Final = "$sys/network/dropped"
"""The total of all drops; the topics below it have the counters for each reason."""
REPEAT_S: Final = 10.0
"""How often a client repeats the warning while it cannot reach its broker."""

_logger = logging.getLogger("godwit.net.connection")


def configure_logging(environment: Mapping[str, str] = os.environ) -> logging.Handler | None:
    """Attach a handler to the logger "godwit" that writes to standard error, if GODWIT_LOG is set.

    Args:
        environment: Where to look for GODWIT_LOG. An unknown level counts as debug, with a warning.

    Returns:
        The handler that was added, or None.
    """
    root = logging.getLogger("godwit")
    level = environment.get(VARIABLE, "").strip().lower()
    if not level:
        return None
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(FORMAT))
    root.addHandler(handler)
    root.setLevel((level if level in LEVELS else "debug").upper())
    if level not in LEVELS:
        root.warning("%s is %r: choose %s; debug is used", VARIABLE, level[:40], ", ".join(LEVELS))
    return handler


class ConnectionReporter:
    """Log the connection state of one client.

    While the client cannot reach its broker it logs a warning at once, and then every 10 seconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, broker: str) -> None:
        """`broker` is the address that the application gave, for the texts."""
        self._loop = loop
        self._broker = broker
        self._reason = ""
        self._is_online = False
        self._was_online = False
        self._unreachable_since = loop.time()
        self._timer: asyncio.TimerHandle | None = loop.call_later(UNANSWERED_S, self._warn)
        _logger.debug("connecting to the broker at %s", broker)

    def on_online(self, name: str, *, is_resumed: bool) -> None:
        self.close()
        session = "resumed" if is_resumed else "new"
        if self._was_online or self._reason:
            lost_s = self._loop.time() - self._unreachable_since
            _logger.info(
                "%s is connected again to the broker at %s after %.1f s (%s session)",
                printable(name), self._broker, lost_s, session,
            )  # fmt: skip
        else:
            _logger.info("%s is connected to the broker at %s (%s session)", printable(name), self._broker, session)
        self._is_online = self._was_online = True
        self._reason = ""

    def on_offline(self, reason: str, retry_in_s: float) -> None:
        """Handle a lost connection, or an attempt that failed. The reason may come from the network."""
        self._reason = reason = printable(reason)
        if self._is_online:
            self._is_online = False
            self._unreachable_since = self._loop.time()
            self.close()
            _logger.warning(
                "lost the broker at %s (%s); reconnecting in %.1f s and until it answers",
                self._broker, reason, retry_in_s,
            )  # fmt: skip
            self._timer = self._loop.call_later(REPEAT_S, self._warn)
        elif self._timer is not None and self._loop.time() < self._unreachable_since + UNANSWERED_S:
            self.close()  # the first attempt failed before the first warning
            self._warn()
        else:
            _logger.debug("attempt to reach the broker at %s failed (%s)", self._broker, reason)

    def on_ended(self, code: int, reason: str) -> None:
        self.close()
        _logger.info("the client of the broker at %s has ended (code %d): %s", self._broker, code, printable(reason))

    def _warn(self) -> None:
        self._timer = self._loop.call_later(REPEAT_S, self._warn)
        _logger.warning(
            "no broker has answered at %s for %.0f s%s; still trying: is it running there, and can UDP reach it?",
            self._broker,
            max(self._loop.time() - self._unreachable_since, 0.0),
            f" ({self._reason})" if self._reason else "",
        )

    def close(self) -> None:
        """Stop repeating the warning. May be repeated."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def read_drop_counters(client: AsyncClient, timeout_s: float = 1.0) -> dict[str, int]:
    """Return the broker's counters of dropped packets and datagrams, by reason, as last published on `$sys`.

    Args:
        client: A connected client that may read `$sys`.
        timeout_s: How long to wait for them.

    Returns:
        The counters; empty if the broker publishes none, or this client may not read them.
    """
    import asyncio  # here: commands that need no event loop import this module too

    found: dict[str, int] = {}
    with suppress(TimeoutError, AccessError):
        async with asyncio.timeout(timeout_s), client.subscribe(f"{DROPPED_TOPIC}/#") as messages:
            async for message in messages:
                found[message.topic.removeprefix(DROPPED_TOPIC).strip("/")] = int(message.payload)
                if "kernel" in found and found.get("") == sum(n for reason, n in found.items() if reason):
                    break  # "" is the total of all others
    found.pop("", None)
    return found


def log_drops(logger: logging.Logger, subject: str, counters: Iterable[Mapping[str, int]]) -> None:
    """Log how many packets and datagrams were dropped for each reason, if any were."""
    dropped: Counter[str] = Counter()
    for counter in counters:
        dropped.update(counter)
    if dropped:
        logger.info("%s dropped: %s", subject, ", ".join(f"{reason} {dropped[reason]}" for reason in sorted(dropped)))
