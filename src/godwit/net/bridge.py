"""A bridge in the process of its edge: the client towards the hub, and a thread that reads the log for it.

The decisions are in godwit.client.relay. A bridge whose hub does not answer, or refuses it, tries again for ever; its
state and the reason are in `godwit bridge status` and in the event lines.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from godwit.broker.broker import Broker
from godwit.broker.effects import Notice
from godwit.client.config import ClientConfig
from godwit.client.relay import LogPiece, RelaySender
from godwit.errors import AddressError, GodwitError, StorageError
from godwit.net.address import parse_brokers
from godwit.net.runtime import BrokerResolver, ClientRuntime
from godwit.net.security import securities_of
from godwit.server.configuration import BridgeSection
from godwit.store.reader import LogReader
from godwit.wire.relay import BridgeInfo, BridgeState
from godwit.wire.retention_floors import lost_below

RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
"""Bounds of the pause before a bridge that has ended begins again. It doubles with each failure."""
CLOSE_TIMEOUT_S: Final = 0.5
"""How long a broker that stops waits for a read that is under way."""

_logger = logging.getLogger(__name__)


class Bridge:
    """One bridge of a broker, in the running event loop."""

    def __init__(
        self,
        section: BridgeSection,
        broker: Broker,
        log_path: Path,
        *,
        on_notice: Callable[[Notice], None],
        wall_clock_us: Callable[[], int],
    ) -> None:
        """Begin at once. `broker` is the edge, whose log is at `log_path`."""
        self.section = section
        self.sender = RelaySender(section.filters, section.prefix, broker.log_id, broker.epochs)
        self.sender.on_change = self._on_change
        self._broker = broker
        self._log_path = log_path
        self._on_notice = on_notice
        self._wall_clock_us = wall_clock_us
        self._wake = asyncio.Event()
        self._reader: LogReader | None = None
        self._readers = ThreadPoolExecutor(1, thread_name_prefix=f"godwit-bridge-{section.name}")
        self._runtime: ClientRuntime | None = None
        self._problem = ""
        """Why the client has ended or did not begin."""
        self._reported: tuple[BridgeState, str] = ("connecting", "")
        self._retry_s = RETRY_MIN_S
        self._config = ClientConfig(name=section.name, secret=section.secret, session_expiry_s=0)
        self.on_committed(broker.end_offset)
        broker.relays.on_sources.append(self._on_sources)
        broker.relays.outgoing.append(self.status)
        self._task = asyncio.get_running_loop().create_task(self._run())

    # -- input --------------------------------------------------------------------------------------------------------

    def on_committed(self, next_offset: int) -> None:
        """The log ends here now."""
        if next_offset > self.sender.end:
            self.sender.end = next_offset
            self._wake.set()

    async def close(self) -> None:
        """End the bridge. The hub stores records that are on their way, or the next run sends them again."""
        broker = self._broker
        with suppress(ValueError):
            broker.relays.on_sources.remove(self._on_sources)
            broker.relays.outgoing.remove(self.status)
        self._task.cancel()
        await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT_S)
        self._readers.submit(self._close_reader)
        self._readers.shutdown(wait=False)

    def status(self) -> BridgeInfo:
        """Return the state of the bridge."""
        sender = self.sender
        confirmed = sender.confirmed
        state, problem = self._state()
        return BridgeInfo(
            name=self.section.name,
            direction="out",
            peer=self.section.hub,
            state=state,
            log_id=self._broker.log_id.hex(),
            position=confirmed,
            lag=max(0, sender.end - (confirmed or 0)),
            messages=sender.messages,
            missed=sender.missed,
            problem=problem[:1000],
        )

    def _state(self) -> tuple[BridgeState, str]:
        if self._problem:
            return "refused", self._problem
        sender = self.sender
        if sender.state == "connecting" and self._runtime is not None:
            return "connecting", self._runtime.last_reason
        return sender.state, sender.problem

    # -- changes ------------------------------------------------------------------------------------------------------

    def _on_sources(self) -> None:
        self.sender.set_sources(self._broker.relays.sources(), time.monotonic())
        if self._runtime is not None:
            self._runtime.schedule_flush()

    def _on_change(self) -> None:
        self._wake.set()
        state, problem = self._state()
        if state in ("running", "refused", "stopped") and (state, problem) != self._reported:
            self._reported = state, problem
            name = self.section.name
            text = f"bridge {name} sends to {self.section.hub}"
            if state != "running":
                text = f"bridge {name} to {self.section.hub} is {state}: {problem}"
            kind = "bridge" if state == "running" else "warning"
            self._on_notice(Notice(kind, text, {"bridge": name, "state": state}))

    def _on_client_state(self, state: str, reason: str) -> None:
        if state == "closed" and reason:
            self._problem = reason
        elif state == "online":
            self._problem = ""
        self._on_change()

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._run_client()
                except Exception as error:  # whatever it is, the bridge tries again, and its status has the reason
                    if not isinstance(error, GodwitError | OSError):
                        _logger.exception("the bridge %s failed", self.section.name)
                    self._problem = str(error) or type(error).__name__
                    self._on_change()
                await asyncio.sleep(self._retry_s)
                self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
        finally:
            if self._runtime is not None:
                self._runtime.abort()

    async def _run_client(self) -> None:
        """Connect to the hub and send, until the client has ended. Raises an error that prevents that."""
        resolver = BrokerResolver(parse_brokers(self.section.hub))
        addresses = await resolver.resolve()
        runtime = self._runtime = ClientRuntime(
            self._config,
            addresses,
            on_state=self._on_client_state,
            resolver=resolver,
            relay=self.sender,
            securities=securities_of(self.section.hub, None),
        )
        self.sender.set_sources(self._broker.relays.sources(), time.monotonic())
        try:
            while runtime.state != "closed":
                self._wake.clear()
                wanted = self.sender.wanted_read()
                if wanted is None or wanted[0] >= self.sender.end:
                    await self._wake.wait()
                    continue
                self._retry_s = RETRY_MIN_S
                piece = await asyncio.get_running_loop().run_in_executor(self._readers, self._read, *wanted)
                self.sender.handle_read(piece, time.monotonic(), self._wall_clock_us())
                runtime.driver.flush()
        finally:
            self._runtime = None
            runtime.abort()

    # -- in the reader's thread ---------------------------------------------------------------------------------------

    def _read(self, offset: int, max_bytes: int) -> LogPiece:
        try:
            if self._reader is None:
                self._reader = LogReader.open(self._log_path)
            reader = self._reader
            with reader.snapshot():
                found = reader.read(offset, max_bytes)
                floors = reader.retention_floors()
                gone_below = lost_below(floors, self.section.filters) if floors else reader.first_offset()
                end = reader.next_offset()
        except StorageError:
            self._close_reader()
            raise
        return LogPiece(offset, found.entries, found.next_offset, found.damaged, gone_below, end)

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def check_bridge(section: BridgeSection) -> None:
    """Raise AddressError if the address of the hub is invalid, or ConfigurationError if name or secret are."""
    try:
        parse_brokers(section.hub)
        securities_of(section.hub, None)
    except AddressError as error:
        raise AddressError(f"bridge {section.name}: {error}") from None
    ClientConfig(name=section.name, secret=section.secret)
