"""The broker as a process: listens on several addresses, tells what happens, stops cleanly, reloads on SIGHUP.

async with Service(configuration) as service:      # in a program or a test
    print(service.addresses)

run(serve(configuration, load=..., notices=...))   # as a process of its own
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Protocol

from godwit.broker.effects import Notice
from godwit.errors import GodwitError, SocketError, UsageError
from godwit.limits import MAX_DATAGRAM_BYTES
from godwit.net.address import format_address, is_loopback, parse_broker, resolve_all
from godwit.net.drive import EndpointDriver
from godwit.net.udp import UdpSocket
from godwit.server.configuration import Configuration
from godwit.server.memory_log import MemoryLog
from godwit.server.server import Listener, Server, endpoint_config
from godwit.store.memory import MemoryStore
from godwit.transport.train import Address, Train

LOG_ID_BYTES: Final = 16
WALL_CLOCK_INTERVAL_S: Final = 1.0
GOODBYE_PATIENCE_S: Final = 0.5
"""So long a broker that is being stopped stays to say goodbye again to who has not heard it."""
_GOODBYE_LOOK_S: Final = 0.01
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class Notices(Protocol):
    """Who wants to know what happens: godwit.net.notices.NoticeWriter, or a test."""

    def write(self, kind: str, text: str, fields: dict[str, Any]) -> None: ...


class _Silent:
    def write(self, kind: str, text: str, fields: dict[str, Any]) -> None:
        """Nobody wants to know."""


class _Shared:
    """A listener among others: what one is fed may give the others something to send."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.others: list[EndpointDriver[Notice]] = []
        self.events = listener.events
        self.next_train = listener.next_train
        self.next_timer = listener.next_timer

    def receive(self, train: Train, now: float) -> None:
        self.listener.receive(train, now)
        for other in self.others:
            other.schedule_flush()

    def handle_timers(self, now: float) -> None:
        self.listener.handle_timers(now)
        for other in self.others:
            other.schedule_flush()


class Service:
    """A running broker in the running event loop."""

    def __init__(
        self,
        configuration: Configuration | None = None,
        *,
        notices: Notices | None = None,
        max_datagram_bytes: int = MAX_DATAGRAM_BYTES,
        wall_clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self.configuration = configuration or Configuration(listen=["127.0.0.1:0"])
        self.addresses: list[Address] = []
        """Where it listens, in the order of the configuration; ports are real ones."""
        self.server: Server
        self._notices: Notices = notices or _Silent()
        self._max_datagram_bytes = max_datagram_bytes
        self._wall_clock_us = wall_clock_us
        self._drivers: list[EndpointDriver[Notice]] = []
        self._wall_clock_timer: asyncio.TimerHandle | None = None

    @property
    def urls(self) -> list[str]:
        """`udp://127.0.0.1:50000`, as godwit.connect takes it."""
        return [f"udp://{format_address(address)}" for address in self.addresses]

    # -- begin and end ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Service:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Opens all its sockets or, with an error, none."""
        if self._drivers:
            raise UsageError("this service runs already: make another one")
        settings = self.configuration.settings
        sockets = await self._open_sockets(self.configuration.listen)
        self.server = Server(
            settings,
            MemoryLog(MemoryStore(settings.ring_bytes, log_id=os.urandom(LOG_ID_BYTES))),
            entropy=os.urandom,
            now=time.monotonic(),
            epoch_us=self._wall_clock_us(),
        )
        sides: list[_Shared] = []
        for udp in sockets:
            listener = self.server.listen(
                endpoint_config(
                    settings,
                    receive_buffer_bytes=udp.receive_buffer_bytes,
                    max_datagram_bytes=self._max_datagram_bytes,
                )
            )
            side = _Shared(listener)
            sides.append(side)
            self._drivers.append(EndpointDriver(side if len(sockets) > 1 else listener, udp, self._on_notices))
        for number, side in enumerate(sides):
            side.others = [driver for place, driver in enumerate(self._drivers) if place != number]
        self.addresses = [udp.local_address for udp in sockets]
        self._keep_wall_clock()
        self._announce()

    async def _open_sockets(self, listen: Sequence[str]) -> list[UdpSocket]:
        loop = asyncio.get_running_loop()
        sockets: list[UdpSocket] = []
        try:
            for text in listen:
                host, port = parse_broker(text)
                addresses = await loop.run_in_executor(None, resolve_all, host, port)
                sockets += _listen_on(host, port, addresses)
        except BaseException:
            for udp in sockets:
                udp.close()
            raise
        return sockets

    def _announce(self) -> None:
        write = self._notices.write
        for warning in self.configuration.warnings:
            write("warning", warning, {})
        for address, url in zip(self.addresses, self.urls, strict=True):
            if not is_loopback(address) and self.configuration.settings.access.is_open:
                write("warning", _open_to_all(url), {"url": url})
        for address, url in zip(self.addresses, self.urls, strict=True):
            write("listening", f"listening on {url}", {"url": url, "host": address[0], "port": address[1]})

    async def stop(self) -> None:
        """Tells all clients that the broker is being stopped, and ends. May be repeated."""
        if self._wall_clock_timer is not None:
            self._wall_clock_timer.cancel()
        drivers, self._drivers = self._drivers, []
        try:
            if drivers:
                await self._say_goodbye(drivers)
                self._notices.write("stopped", "the broker has stopped", {})
        finally:
            for driver in drivers:
                driver.close()

    async def _say_goodbye(self, drivers: list[EndpointDriver[Notice]]) -> None:
        until = time.monotonic() + GOODBYE_PATIENCE_S
        while True:
            self.server.close(time.monotonic())  # again and again: clients that heard it may come back too early
            for driver in drivers:
                driver.flush()
            if time.monotonic() >= until or not any(
                listener.endpoint.connections for listener in self.server.listeners
            ):
                return
            await asyncio.sleep(_GOODBYE_LOOK_S)

    # -- while it runs ------------------------------------------------------------------------------------------------

    def reload(self, configuration: Configuration) -> None:
        """Takes new topics, policies, access rules and limits; where it listens stays as it is."""
        self.server.change_settings(configuration.settings)
        for driver in self._drivers:
            driver.schedule_flush()
        if list(configuration.listen) != list(self.configuration.listen):
            self._notices.write("warning", "other addresses to listen on need a restart of the broker", {})
        self.configuration = replace(configuration, listen=self.configuration.listen)
        for warning in configuration.warnings:
            self._notices.write("warning", warning, {})
        self._notices.write("reloaded", "the configuration was read again", {})

    def try_reload(self, load: Callable[[], Configuration]) -> None:
        """Reads the configuration again; one with a mistake in it changes nothing, and is told."""
        try:
            configuration = load()
        except (GodwitError, OSError) as error:
            self._notices.write("warning", f"the configuration stays as it was: {error}", {})
        else:
            self.reload(configuration)

    def _keep_wall_clock(self) -> None:
        """Tells the server what time it is, now and again: it takes no time that is earlier than before."""
        self.server.set_wall_clock(time.monotonic(), self._wall_clock_us())
        loop = asyncio.get_running_loop()
        self._wall_clock_timer = loop.call_later(WALL_CLOCK_INTERVAL_S, self._keep_wall_clock)

    def _on_notices(self, notices: list[Notice]) -> None:
        for notice in notices:
            self._notices.write(notice.kind, notice.text, notice.fields)


async def serve(
    configuration: Configuration,
    *,
    notices: Notices | None = None,
    load: Callable[[], Configuration] | None = None,
    ready: Callable[[Service], None] | None = None,
) -> None:
    """Runs a broker until SIGINT or SIGTERM. SIGHUP has `load` read the configuration again."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    handled = [signal.SIGINT, signal.SIGTERM]
    async with Service(configuration, notices=notices) as service:
        with suppress(NotImplementedError):  # a loop that cannot, as on Windows: there Ctrl-C cancels this
            for number in handled:
                loop.add_signal_handler(number, stopping.set)
            if load is not None:
                handled.append(signal.SIGHUP)
                loop.add_signal_handler(signal.SIGHUP, service.try_reload, load)
        try:
            if ready is not None:
                ready(service)
            await stopping.wait()
        finally:
            # Given back at once: a second Ctrl-C ends the process without ceremony.
            with suppress(NotImplementedError):
                for number in handled:
                    loop.remove_signal_handler(number)


def _listen_on(host: str, port: int, addresses: Sequence[Address]) -> list[UdpSocket]:
    """A socket for each address of the host that this machine has; with port 0 for one of them."""
    if len(addresses) == 1:
        return [UdpSocket(host, port)]
    opened: list[UdpSocket] = []
    try:
        for address in addresses:
            try:
                opened.append(UdpSocket(address[0], port))
            except SocketError as error:
                cause = error.__cause__
                is_elsewhere = isinstance(cause, OSError) and cause.errno in _NOT_HERE
                if not is_elsewhere or (not opened and address == addresses[-1]):
                    raise
            if opened and port == 0:
                break
    except BaseException:
        for udp in opened:
            udp.close()
        raise
    return opened


def _open_to_all(url: str) -> str:
    return (
        f"{url} can be reached from other machines and everybody may do everything: "
        "list clients and rules under [access] in the configuration, or listen on 127.0.0.1 only"
    )
