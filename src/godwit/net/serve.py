"""The broker as a process: listens on several addresses, tells what happens, stops cleanly, reloads on SIGHUP.

async with Service(configuration) as service:      # in a program or a test
    print(service.addresses)

run(serve(configuration, load=..., notices=...))   # as a process of its own
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Protocol

from godwit.broker.effects import Import, Notice
from godwit.errors import GodwitError, UsageError
from godwit.net.address import format_address, is_loopback, parse_broker, resolve_all
from godwit.net.archive_process import ArchiveProcess, archive_command
from godwit.net.drive import EndpointDriver
from godwit.net.durable import LOG_ID_BYTES, DurableLog
from godwit.net.listening import (
    archive_open_to_all,
    archive_without_tls,
    beside,
    is_only_here,
    listen_on,
    listener_reset_key,
    open_to_all,
)
from godwit.net.udp import UdpSocket
from godwit.server.configuration import Configuration
from godwit.server.log import Log
from godwit.server.memory_log import MemoryLog
from godwit.server.server import Listener, Server, endpoint_config
from godwit.store.folder import DataFolder
from godwit.store.memory import MemoryStore
from godwit.transport.train import Address, Train

WALL_CLOCK_INTERVAL_S: Final = 1.0
GOODBYE_PATIENCE_S: Final = 0.5
"""So long a broker that is being stopped stays to say goodbye again to who has not heard it."""
ARCHIVE_PATIENCE_S: Final = 10.0
"""So long the line that says where the broker listens waits for the archive's, so that all is ready when it comes."""
_GOODBYE_LOOK_S: Final = 0.01


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
        wall_clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self.configuration = configuration or Configuration(listen=["127.0.0.1:0"])
        self.addresses: list[Address] = []
        """Where it listens, in the order of the configuration; ports are real ones."""
        self.server: Server
        self._notices: Notices = notices or _Silent()
        self._wall_clock_us = wall_clock_us
        self._drivers: list[EndpointDriver[Notice]] = []
        self._wall_clock_timer: asyncio.TimerHandle | None = None
        self._durable: DurableLog | None = None
        self._archive: ArchiveProcess | None = None
        self._announcing: asyncio.Task[None] | None = None

    @property
    def urls(self) -> list[str]:
        """`udp://127.0.0.1:50000`, as godwit.connect takes it."""
        return [f"udp://{format_address(address)}" for address in self.addresses]

    @property
    def archive_url(self) -> str:
        """`grpc://127.0.0.1:50001`, or nothing while there is no archive."""
        return "" if self._archive is None else self._archive.url

    # -- begin and end ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Service:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Opens its log and all its sockets or, with an error, nothing."""
        if self._drivers:
            raise UsageError("this service runs already: make another one")
        _check(self.configuration)
        sockets = await self._open_sockets(self.configuration.listen)
        try:
            log = self._open_log()
            last_us = 0 if self._durable is None else self._durable.last_received_us
            self.server = Server(
                self.configuration.settings,
                log,
                entropy=os.urandom,
                now=time.monotonic(),
                epoch_us=max(self._wall_clock_us(), last_us),  # the clock may have been set back since
            )
        except BaseException:
            for udp in sockets:
                udp.close()
            if self._durable is not None:
                await self._durable.close()
            raise
        self._listen(sockets)
        self.addresses = [udp.local_address for udp in sockets]
        self._keep_wall_clock()
        if self._durable is not None:
            self._archive = ArchiveProcess(self._durable.folder.stages_path, bring_in=self._bring_in, tell=self._tell)
        command = self._run_archive()
        if self._archive is None or command is None:
            self._announce()
        else:
            self._announcing = asyncio.get_running_loop().create_task(self._announce_after(self._archive))

    def _open_log(self) -> Log:
        configuration = self.configuration
        if configuration.data is None:
            return MemoryLog(MemoryStore(configuration.settings.ring_bytes, log_id=os.urandom(LOG_ID_BYTES)))
        loop = asyncio.get_running_loop()

        def wake() -> None:  # in another thread
            with suppress(RuntimeError):  # the loop has ended, and so does the log
                loop.call_soon_threadsafe(self._on_log)

        self._durable = DurableLog(
            configuration.data, configuration.retention, now_us=self._wall_clock_us(), wake=wake, tell=self._tell
        )
        return self._durable.log

    def _listen(self, sockets: Sequence[UdpSocket]) -> None:
        sides: list[_Shared] = []
        for udp in sockets:
            config = endpoint_config(
                self.configuration.settings,
                receive_buffer_bytes=udp.receive_buffer_bytes,
            )
            if self._durable is not None:
                config = replace(config, reset_key=listener_reset_key(self._durable.reset_key, udp.local_address))
            listener = self.server.listen(config)
            side = _Shared(listener)
            sides.append(side)
            self._drivers.append(EndpointDriver(side if len(sockets) > 1 else listener, udp, self._on_notices))
        for number, side in enumerate(sides):
            side.others = [driver for place, driver in enumerate(self._drivers) if place != number]

    async def _open_sockets(self, listen: Sequence[str]) -> list[UdpSocket]:
        loop = asyncio.get_running_loop()
        sockets: list[UdpSocket] = []
        try:
            for text in listen:
                host, port = parse_broker(text)
                addresses = await loop.run_in_executor(None, resolve_all, host, port)
                sockets += listen_on(host, port, addresses)
        except BaseException:
            for udp in sockets:
                udp.close()
            raise
        return sockets

    def _run_archive(self) -> Sequence[str] | None:
        """Has the archive run that the configuration wants, and no other; its command, if there is one."""
        if self._durable is None or self._archive is None:
            return None
        command = self._archive_command(self._durable.folder)
        self._archive.run(command)
        return command

    def _archive_command(self, folder: DataFolder) -> Sequence[str] | None:
        section = self.configuration.archive
        if not section.is_on:
            return None
        if not self.configuration.settings.access.is_open and section.token_file is None:
            self._notices.write(
                "warning",
                "there are access rules and no tokens for the archive, so it does not run: "
                'give a token_file under [archive] in the configuration, or say listen = "none" there',
                {},
            )
            return None
        listen = beside(self.configuration.listen[0], self.addresses[0])
        if section.listen is not None:
            listen = format_address(parse_broker(section.listen))
        if not is_only_here(listen):
            if section.token_file is None:
                self._notices.write("warning", archive_open_to_all(listen), {})
            elif section.certificate is None:
                self._notices.write("warning", archive_without_tls(listen), {})
        return archive_command(folder.log_path, folder.stages_path, listen, section)

    async def _announce_after(self, archive: ArchiveProcess) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(ARCHIVE_PATIENCE_S):
                await archive.settled()
        self._announce()

    def _announce(self) -> None:
        write = self._notices.write
        for warning in self.configuration.warnings:
            write("warning", warning, {})
        for address, url in zip(self.addresses, self.urls, strict=True):
            if not is_loopback(address) and self.configuration.settings.access.is_open:
                write("warning", open_to_all(url), {"url": url})
        if self._durable is not None:
            write("log", str(self._durable), {"data": str(self._durable.folder.path)})
            for finding in self._durable.findings:
                write("warning", finding, {"data": str(self._durable.folder.path)})
        for address, url in zip(self.addresses, self.urls, strict=True):
            write("listening", f"listening on {url}", {"url": url, "host": address[0], "port": address[1]})

    async def stop(self) -> None:
        """Tells all clients that the broker is being stopped, and ends. May be repeated."""
        if self._wall_clock_timer is not None:
            self._wall_clock_timer.cancel()
        if self._announcing is not None:
            self._announcing.cancel()
        drivers, self._drivers = self._drivers, []
        archive, self._archive = self._archive, None
        durable, self._durable = self._durable, None
        async with AsyncExitStack() as rest:  # from its end on, each whatever becomes of the others
            for driver in drivers:
                rest.callback(driver.close)
            if drivers:
                rest.callback(self._notices.write, "stopped", "the broker has stopped", {})
            if durable is not None:
                rest.push_async_callback(durable.close)
                rest.callback(
                    self.server.run_turn
                )  # how far subscribers have got: they ask for the rest when they are back
            if archive is not None:
                rest.push_async_callback(archive.stop)
            if drivers:
                await self._say_goodbye(drivers)

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
        """Takes new topics, policies, access rules and limits, and another archive; where it listens stays as it is."""
        _check(configuration)
        self.server.change_settings(configuration.settings)
        for driver in self._drivers:
            driver.schedule_flush()
        former = self.configuration
        if list(configuration.listen) != list(former.listen):
            self._notices.write("warning", "other addresses to listen on need a restart of the broker", {})
        if configuration.data != former.data:
            self._notices.write("warning", "another folder for the log needs a restart of the broker", {})
        if self._durable is not None:
            self._durable.change_rules(configuration.retention)
        self.configuration = replace(configuration, listen=former.listen, data=former.data)
        self._run_archive()
        for warning in configuration.warnings:
            self._notices.write("warning", warning, {})
        self._notices.write("reloaded", "the configuration was read again", {})

    def try_reload(self, load: Callable[[], Configuration]) -> None:
        """Reads the configuration again; one with a mistake in it changes nothing, and is told."""
        try:
            configuration = load()
            _check(configuration)
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
            self._tell(notice)

    def _tell(self, notice: Notice) -> None:
        self._notices.write(notice.kind, notice.text, notice.fields)

    def _on_log(self) -> None:
        """The log has answers: the server's turn takes them, and what comes of them is sent."""
        for driver in self._drivers:
            driver.flush()
        imported = self.server.imported
        while imported and self._archive is not None:
            self._archive.answer(imported.pop(0))

    def _bring_in(self, event: Import) -> None:
        self.server.import_staged(event)
        self._on_log()


def _check(configuration: Configuration) -> None:
    """A mistake is told before anything is opened or changed."""
    if configuration.archive.listen is not None:
        parse_broker(configuration.archive.listen)


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
