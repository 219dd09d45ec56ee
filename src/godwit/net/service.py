"""The broker with its sockets and its log: listeners, event lines, clean stop, and reload of the configuration.

async with Service(configuration) as service:
    print(service.addresses)
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any, Final, Protocol

import msgspec

from godwit.broker.effects import Import, Notice
from godwit.errors import GodwitError, SocketError, UsageError
from godwit.metrics.server import MetricsServer
from godwit.mqtt.protocol import MqttProtocol
from godwit.net.address import format_address, is_loopback, parse_broker, resolve_all
from godwit.net.archive_process import ArchiveProcess
from godwit.net.bridge import Bridge, check_bridge
from godwit.net.broker_archive import BrokerArchive, Notices
from godwit.net.broker_figures import BrokerFigures
from godwit.net.broker_metrics import METRICS_PORT, BrokerMetrics, BrokerParts, announce_metrics, open_metrics
from godwit.net.captures import BrokerCaptures
from godwit.net.diagnostics import log_drops
from godwit.net.driver import EndpointDriver
from godwit.net.durable_log import LOG_ID_BYTES, BrokerLog, DurableLog
from godwit.net.mqtt import MqttListeners, make_tls_context, parse_mqtt_address
from godwit.net.private_files import protect_files, protect_folder
from godwit.net.security import BrokerSecurity, default_key_folder, is_this_machine
from godwit.net.service_warnings import (
    KEY_NOT_STORED,
    PLAIN_ALLOWED,
    anonymous_rights,
    mqtt_without_tls,
    open_to_all,
    open_to_strangers,
)
from godwit.net.udp import UdpSocket
from godwit.server.configuration import Configuration, MqttSection
from godwit.server.log import Log
from godwit.server.memory_log import MemoryLog
from godwit.server.server import Listener, Server, endpoint_config
from godwit.store.memory import MemoryStore
from godwit.store.retention import RetentionRule
from godwit.transport.events import Address, Train

WALL_CLOCK_INTERVAL_S: Final = 1.0
CLOSE_TIMEOUT_S: Final = 0.5
"""How long a broker that stops repeats its close to clients that have not acknowledged it."""
ARCHIVE_TIMEOUT_S: Final = 10.0
"""How long the "listening" line waits for the archive's, so that both can be reached when it appears."""
_POLL_S: Final = 0.01

_logger = logging.getLogger(__name__)


class NoNotices:
    """Takes the place of event lines that the caller does not want."""

    def write(self, kind: str, text: str, fields: dict[str, Any]) -> None:
        """Drop the line."""


class _SharedListener:
    """A listener of a broker with several: input of one may cause output of the others, which are flushed too."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.others: list[EndpointDriver[Notice]] = []
        self.events = listener.events
        self.pending_events = listener.pending_events
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


class ActiveNode(Protocol):
    """What an active node of a cluster lends to its broker. It remains open when the broker is stopped."""

    sockets: list[UdpSocket]
    """The broker closes them."""
    archive: BrokerArchive

    def open_log(
        self,
        rules: Sequence[RetentionRule],
        *,
        wake: Callable[[], None],
        on_notice: Callable[[Notice], None],
        hold_from: int | None,
    ) -> BrokerLog:
        """Return the log, for one broker. See godwit.net.durable_log.DurableLog for the arguments."""


class Service:
    """A broker in the running event loop.

    async with Service(configuration) as service:
        print(service.urls)
    """

    def __init__(
        self,
        configuration: Configuration | None = None,
        *,
        notices: Notices | None = None,
        wall_clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        node: ActiveNode | None = None,
    ) -> None:
        """Make a broker. `start`, or `async with`, runs it.

        Args:
            configuration: By default a broker in memory on a free port of 127.0.0.1.
            notices: Receives an event line for each event.
            wall_clock_us: Returns the time in microseconds since 1970.
            node: The parts of a node of a cluster, which outlive this broker.
        """
        self._node = node
        self.configuration = configuration or Configuration(listen=["127.0.0.1:0"])
        self.addresses: list[Address] = []
        """Where it listens, in the order of the configuration, with the actual ports."""
        self.server: Server
        self._notices: Notices = notices or NoNotices()
        self._wall_clock_us = wall_clock_us
        self._drivers: list[EndpointDriver[Notice]] = []
        self._wall_clock_timer: asyncio.TimerHandle | None = None
        self._durable: BrokerLog | None = None
        self.security = BrokerSecurity(self.configuration.security, None)
        self._archive: BrokerArchive | None = None
        self._announcing: asyncio.Task[None] | None = None
        self._mqtt: MqttListeners | None = None
        self._bridges: list[Bridge] = []
        self._metrics: MetricsServer | None = None
        self._captures: BrokerCaptures | None = None
        self._figures: BrokerFigures | None = None
        self.on_reload: Callable[[], None] = lambda: None
        """Called after the configuration was read again."""

    @property
    def urls(self) -> list[str]:
        """Its addresses as `udp://127.0.0.1:50000`, for godwit.connect; `udps` if clients there must seal."""
        plain = self.configuration.security.plain
        return [
            f"{'udp' if plain == 'allow' or (plain == 'loopback' and is_this_machine(address)) else 'udps'}://"
            f"{format_address(address)}"
            for address in self.addresses
        ]

    @property
    def archive_url(self) -> str:
        """The archive's address as `grpc://127.0.0.1:50001`; empty while no archive runs."""
        return "" if self._archive is None else self._archive.process.url

    @property
    def mqtt_urls(self) -> list[str]:
        """The addresses for MQTT clients as `mqtt://127.0.0.1:1883`."""
        return [] if self._mqtt is None else self._mqtt.urls

    @property
    def metrics_url(self) -> str:
        """The address of the metrics endpoint as `http://127.0.0.1:9464`; empty without one."""
        return "" if self._metrics is None else self._metrics.url

    # -- begin and end ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Service:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open its log and all its sockets, and begin to serve. After an error nothing is left open.

        Raises:
            UsageError: It runs already, or the configuration is invalid.
            AddressError: A host to listen on cannot be resolved.
            SocketError: The system refused a socket, for example because the port is in use.
            StorageError: The log cannot be opened.
            ConfigurationError: Other users can read the data folder, a key or a secret, and the repair failed.
        """
        if self._drivers:
            raise UsageError("this service runs already: make another one")
        check_configuration(self.configuration)
        self._protect(self.configuration)
        if self.configuration.data is not None:
            self._warn(protect_folder(self.configuration.data))
        if self._node is None:
            sockets = await open_sockets(self.configuration.listen)
        else:
            sockets = self._node.sockets
        try:
            log = self._open_log()
            last_us = 0 if self._durable is None else self._durable.last_received_us
            self.security = self._open_security([udp.local_address for udp in sockets])
            self.server = Server(
                self.configuration.settings,
                log,
                entropy=os.urandom,
                now=time.monotonic(),
                epoch_us=max(self._wall_clock_us(), last_us),  # the system's clock may have been set back since
                sealer=self.security,
            )
        except BaseException:
            for udp in sockets:
                udp.close()
            if self._durable is not None:
                await self._durable.close()
            raise
        self.server.broker.add_figures(self.network_figures)
        self._listen(sockets)
        self.addresses = [udp.local_address for udp in sockets]
        self._captures = BrokerCaptures(self.server.broker, self._drivers)
        self._figures = BrokerFigures(self.parts, lambda: self.configuration.retention)
        self.server.broker.add_figures(self._figures.latest)
        self._update_wall_clock()
        try:
            await self._listen_mqtt()
            await self._serve_metrics()
        except BaseException:
            await self.stop()
            raise
        if self._durable is not None:
            if self._node is None:
                self._archive = BrokerArchive(
                    self._durable.folder,
                    self._notices,
                    import_staged=self._import_staged,
                    on_notice=self._write_notice,
                )
            else:
                self._archive = self._node.archive
                self._archive.import_staged = self._import_staged
            self._run_bridges(self._durable)
        if self._archive is None or not self._run_archive():
            self._announce()
        else:
            self._announcing = asyncio.get_running_loop().create_task(self._announce_after(self._archive.process))

    def _protect(self, configuration: Configuration) -> None:
        """Make sure that other users of the machine cannot read keys and secrets. Raises ConfigurationError."""
        self._warn(protect_files(configuration.private_files))

    def _warn(self, texts: Sequence[str]) -> None:
        for text in texts:
            self._notices.write("warning", text, {})

    def _run_bridges(self, durable: BrokerLog) -> None:
        for section in self.configuration.bridges:
            bridge = Bridge(
                section,
                self.server.broker,
                durable.folder.log_path,
                on_notice=self._write_notice,
                wall_clock_us=self._wall_clock_us,
            )
            self._bridges.append(bridge)
        self._hold_retention()

    def _hold_retention(self) -> None:
        """Let retention wait for the messages that a hub does not have yet, for bridges that want that."""
        if self._durable is not None and self._bridges:
            held = [bridge.sender.confirmed or 0 for bridge in self._bridges if bridge.section.hold]
            self._durable.hold_from = min(held) if held else None

    def _open_security(self, addresses: Sequence[Address]) -> BrokerSecurity:
        """Return how connections are sealed. If other machines can reach the broker, its key is loaded or made now.

        Raises GodwitError if that fails.
        """
        section = self.configuration.security
        is_remote = not all(map(is_this_machine, addresses))
        folder = None if self._durable is None else self._durable.folder.path
        if folder is None and is_remote and section.certificate is None:
            folder = default_key_folder()
            if folder is None:
                self._notices.write("warning", KEY_NOT_STORED, {})
        asks_client = bool(self.configuration.settings.access.certificates)
        security = BrokerSecurity(section, folder, asks_client=asks_client)
        if is_remote or section.plain == "refuse" or section.certificate is not None:
            security.sealer()
        return security

    def _open_log(self) -> Log:
        configuration = self.configuration
        # Until the bridges run, nothing is known of what their hubs have.
        hold_from = 0 if any(section.hold for section in configuration.bridges) else None
        if self._node is not None:
            self._durable = self._node.open_log(
                configuration.retention, wake=self._waker(), on_notice=self._write_notice, hold_from=hold_from
            )
            return self._durable.log
        if configuration.data is None:
            return MemoryLog(MemoryStore(configuration.settings.ring_bytes, log_id=os.urandom(LOG_ID_BYTES)))
        self._durable = DurableLog(
            configuration.data,
            configuration.retention,
            now_us=self._wall_clock_us(),
            wake=self._waker(),
            on_notice=self._write_notice,
            hold_from=hold_from,
        )
        return self._durable.log

    def _waker(self) -> Callable[[], None]:
        loop = asyncio.get_running_loop()

        def wake() -> None:  # in another thread
            with suppress(RuntimeError):  # the loop has ended, and so does the log
                loop.call_soon_threadsafe(self._on_log)

        return wake

    def _listen(self, sockets: Sequence[UdpSocket]) -> None:
        sides: list[_SharedListener] = []
        for udp in sockets:
            config = endpoint_config(
                self.configuration.settings,
                receive_buffer_bytes=udp.receive_buffer_bytes,
            )
            if self._durable is not None:
                config = replace(config, reset_key=listener_reset_key(self._durable.reset_key, udp.local_address))
            _logger.debug(
                "listening on udp://%s: receive buffer of %d bytes, GSO %s, GRO %s",
                format_address(udp.local_address), udp.receive_buffer_bytes, udp.gso, udp.gro,
            )  # fmt: skip
            listener = self.server.listen(config)
            side = _SharedListener(listener)
            sides.append(side)
            self._drivers.append(EndpointDriver(side if len(sockets) > 1 else listener, udp, self._on_notices))
        for number, side in enumerate(sides):
            side.others = [driver for place, driver in enumerate(self._drivers) if place != number]

    async def _listen_mqtt(self) -> None:
        section = self.configuration.mqtt
        if section is None:
            return
        key = os.urandom(LOG_ID_BYTES) if self._durable is None else self._durable.reset_key
        protocol = MqttProtocol(
            self.server.broker,
            section.settings,
            key=hmac.digest(key, b"godwit 1 mqtt", "sha256"),
            entropy=os.urandom,
        )
        context = None
        if section.certificate is not None and section.key is not None:
            context = make_tls_context(section.certificate, section.key, section.client_ca)
        addresses = [parse_mqtt_address(text) for text in section.listen]
        max_clients = self.configuration.settings.max_clients
        self._mqtt = MqttListeners(self.server, protocol, self._schedule_turn, max_clients)
        await self._mqtt.start(addresses, context)

    async def _serve_metrics(self) -> None:
        section = self.configuration.metrics if self._node is None else None  # that of a node is open already
        handle = await open_metrics(section)
        if section is not None and handle is not None:
            self._metrics = MetricsServer(handle, BrokerMetrics(self.parts, section).answers())

    def parts(self) -> BrokerParts:
        """Return the present parts, for metrics."""
        archive = None if self._archive is None else self._archive.process
        return BrokerParts(self.server, self._drivers, self._mqtt, self._durable, archive)

    def _schedule_turn(self) -> None:
        for driver in self._drivers:
            driver.schedule_flush()

    def _run_archive(self) -> bool:
        """Run the archive of the configuration, and no other. Return whether there is one."""
        return self._archive is not None and self._archive.run(self.configuration, self.addresses)

    async def _announce_after(self, archive: ArchiveProcess) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(ARCHIVE_TIMEOUT_S):
                await archive.wait_until_settled()
        self._announce()

    def _announce(self) -> None:
        write = self._notices.write
        for warning in self.configuration.warnings:
            write("warning", warning, {})
        self._announce_rights()
        if self.security.is_loaded:
            from godwit.net.tls import key_log_path, key_log_warning

            fingerprint = self.security.sealer().identity.fingerprint
            write("key", f"the broker's key is {fingerprint}", {"fingerprint": fingerprint})
            if (path := key_log_path()) is not None:
                write("warning", key_log_warning(path), {})
        if self.configuration.security.plain == "allow" and not all(map(is_this_machine, self.addresses)):
            write("warning", PLAIN_ALLOWED, {})
        if self._durable is not None:
            write("log", str(self._durable), {"data": str(self._durable.folder.path)})
            for finding in self._durable.findings:
                write("warning", finding, {"data": str(self._durable.folder.path)})
        for address, url in zip(self.addresses, self.urls, strict=True):
            write("listening", f"listening on {url}", {"url": url, "host": address[0], "port": address[1]})
        if self._mqtt is not None:
            self._announce_mqtt(self._mqtt)
        if self._metrics is not None and self.configuration.metrics is not None:
            announce_metrics(self._notices, self.configuration.metrics, self._metrics)

    def _announce_rights(self) -> None:
        """Write which rights clients without a proved name have, and warn if other machines have more than to read."""
        access = self.configuration.settings.access
        addresses = list(zip(self.urls, self.addresses, strict=True))
        if self._mqtt is not None:
            addresses += [
                (url, address) for url, (_, address) in zip(self._mqtt.urls, self._mqtt.addresses, strict=True)
            ]
        if not access.is_open or not all(is_loopback(address) for _, address in addresses):
            self._notices.write("access", anonymous_rights(access), {})
        for url, address in addresses:
            if not is_loopback(address):
                text = open_to_all(url) if access.is_open else open_to_strangers(url, access)
                if text:
                    self._notices.write("warning", text, {"url": url})

    def _announce_mqtt(self, mqtt: MqttListeners) -> None:
        for url, (where, address) in zip(mqtt.urls, mqtt.addresses, strict=True):
            if not is_loopback(address) and self.configuration.settings.access.secrets and not where.has_tls:
                self._notices.write("warning", mqtt_without_tls(url), {"url": url})
            fields = {"url": url, "host": address[0], "port": address[1]}
            self._notices.write("listening", f"listening on {url}", fields)

    async def stop(self) -> None:
        """Notify all clients that the broker stops, and close everything. May be repeated."""
        if self._wall_clock_timer is not None:
            self._wall_clock_timer.cancel()
        if self._announcing is not None:
            self._announcing.cancel()
        self._log_drops()
        metrics, self._metrics = self._metrics, None
        if metrics is not None:
            metrics.close()
        if self._captures is not None:
            self._captures.close()
        if self._figures is not None:
            self._figures.stop()
        drivers, self._drivers = self._drivers, []
        archive, self._archive = self._archive, None
        durable, self._durable = self._durable, None
        mqtt, self._mqtt = self._mqtt, None
        bridges, self._bridges = self._bridges, []
        if mqtt is not None:
            mqtt.stop_listening()
        for bridge in bridges:
            await bridge.close()
        async with AsyncExitStack() as rest:  # runs the callbacks in reverse order, each even if others fail
            for driver in drivers:
                rest.callback(driver.close)
            if mqtt is not None:
                rest.callback(mqtt.close)
            if drivers and self._node is None:
                rest.callback(self._notices.write, "stopped", "the broker has stopped", {})
            if durable is not None:
                rest.push_async_callback(durable.close)
                rest.callback(self.server.run_turn)  # stores the positions of the subscribers
            if archive is not None and self._node is None:
                rest.push_async_callback(archive.process.stop)
            if drivers:
                await self._close_connections(drivers)

    async def _close_connections(self, drivers: list[EndpointDriver[Notice]]) -> None:
        until = time.monotonic() + CLOSE_TIMEOUT_S
        while True:
            self.server.close(time.monotonic())  # repeated: clients that were closed may reconnect too early
            for driver in drivers:
                driver.flush()
            if time.monotonic() >= until or not any(
                listener.endpoint.connections for listener in self.server.listeners
            ):
                return
            await asyncio.sleep(_POLL_S)

    # -- while it is running ------------------------------------------------------------------------------------------

    def reload(self, configuration: Configuration) -> None:
        """Apply new topics, policies, access rules, limits, retention rules and another archive.

        Other addresses or another data folder need a restart: a warning line reports that.

        Raises:
            UsageError: The configuration is invalid; then nothing was changed.
        """
        check_configuration(configuration)
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
        mqtt = self._reload_mqtt(configuration.mqtt)
        if configuration.cluster != former.cluster:
            self._notices.write("warning", "other settings of the cluster need a restart of the broker", {})
        if configuration.bridges != former.bridges:
            self._notices.write("warning", "other bridges need a restart of the broker", {})
        if configuration.metrics != former.metrics:
            self._notices.write("warning", "other settings of metrics need a restart of the broker", {})
        try:
            asks_client = bool(configuration.settings.access.certificates)
            self.security.reload(configuration.security, asks_client=asks_client)
        except GodwitError as error:
            self._notices.write("warning", f"the settings of security stay as they were: {error}", {})
            configuration = replace(configuration, security=former.security)
        self.configuration = replace(
            configuration,
            listen=former.listen,
            data=former.data,
            mqtt=mqtt,
            bridges=former.bridges,
            metrics=former.metrics,
            cluster=former.cluster,
        )
        self._run_archive()
        for warning in configuration.warnings:
            self._notices.write("warning", warning, {})
        if configuration.settings.access != former.settings.access:
            self._announce_rights()
        self._notices.write("reloaded", "the configuration was read again", {})
        self._audit("reloaded", "the configuration was read again", {})
        self.on_reload()

    def _reload_mqtt(self, section: MqttSection | None) -> MqttSection | None:
        """Read the certificate, from other files if the section names others. Return the section that is in use.

        Everything else needs a restart.
        """
        used = self.configuration.mqtt
        if self._mqtt is not None and section is not None and used is not None and used.certificate is not None:
            certificate, key = section.certificate, section.key
            if certificate is not None and key is not None:
                try:
                    self._mqtt.reload_certificate(certificate, key)
                    used = replace(used, certificate=certificate, key=key)
                except OSError as error:
                    text = f"the certificate of mqtt stays as it was: {error}; check {certificate} and {key}"
                    self._notices.write("warning", text, {})
                    section = replace(section, certificate=used.certificate, key=used.key)
        if section != used:
            self._notices.write("warning", "other settings of mqtt need a restart of the broker", {})
        return used

    def try_reload(self, load: Callable[[], Configuration]) -> None:
        """Load the configuration again. An invalid one changes nothing, and is reported as a warning line."""
        try:
            configuration = load()
            check_configuration(configuration)
            self._protect(configuration)
        except (GodwitError, OSError) as error:
            self._notices.write("warning", f"the configuration stays as it was: {error}", {})
        else:
            self.reload(configuration)

    def _update_wall_clock(self) -> None:
        """Set the server's wall clock, once a second. The server ignores a time that is earlier than before."""
        self.server.set_wall_clock(time.monotonic(), self._wall_clock_us())
        self._hold_retention()
        loop = asyncio.get_running_loop()
        self._wall_clock_timer = loop.call_later(WALL_CLOCK_INTERVAL_S, self._update_wall_clock)

    def network_figures(self) -> dict[str, int]:
        """Return how many packets and datagrams were dropped since the start, in total and for each reason.

        `packet`: by the transport, see Endpoint.dropped. `socket`: by the sockets, see UdpSocket.dropped. `kernel`: for
        want of room in the kernel's receive buffers.
        """
        packets: Counter[str] = Counter()
        datagrams: Counter[str] = Counter()
        kernel = 0
        for listener in self.server.listeners:
            packets.update(listener.endpoint.dropped)
        for driver in self._drivers:
            datagrams.update(driver.udp.dropped)
            kernel += driver.udp.kernel_drops
        return {
            "network/dropped": packets.total() + datagrams.total() + kernel,
            "network/dropped/kernel": kernel,
            **{f"network/dropped/packet/{_topic_level(reason)}": count for reason, count in packets.items()},
            **{f"network/dropped/socket/{_topic_level(reason)}": count for reason, count in datagrams.items()},
        }

    def _log_drops(self) -> None:
        if self._drivers:
            prefix = "network/dropped/"
            found = {key.removeprefix(prefix): n for key, n in self.network_figures().items() if n and prefix in key}
            log_drops(_logger, f"the broker on {', '.join(self.urls)}", [found])

    def _on_notices(self, notices: list[Notice]) -> None:
        for notice in notices:
            self._write_notice(notice)
            if notice.kind in AUDITED:
                self._audit(notice.kind, notice.text, notice.fields)

    def _write_notice(self, notice: Notice) -> None:
        # All of them, with their fields: the event lines have a limited rate. %r, because names come from the network.
        _logger.debug("%s: %r %r", notice.kind, notice.text, notice.fields)
        self._notices.write(notice.kind, notice.text, notice.fields)

    def _audit(self, kind: str, text: str, fields: Mapping[str, Any]) -> None:
        """Publish an event that matters for security on `$audit/KIND`, to the subscribers that are connected."""
        event = {"time_us": self._wall_clock_us(), "event": kind, "text": text, **fields}
        self.server.broker.publish_live(f"$audit/{kind}", msgspec.json.encode(event))
        self._schedule_turn()

    def _on_log(self) -> None:
        """Run a turn of the server for the answers of the log, and send its output."""
        for driver in self._drivers:
            driver.flush()
        if self._bridges:
            for bridge in self._bridges:
                bridge.on_committed(self.server.broker.end_offset)
            self._hold_retention()
        imported = self.server.imported
        while imported and self._archive is not None:
            self._archive.process.answer(imported.pop(0))

    def _import_staged(self, event: Import) -> None:
        self.server.import_staged(event)
        self._on_log()


def _topic_level(reason: str) -> str:
    return reason.lower().replace(" ", "_")


def check_configuration(configuration: Configuration) -> None:
    """Raise AddressError for an invalid address, before anything is opened or changed."""
    if configuration.archive.listen is not None:
        parse_broker(configuration.archive.listen)
    if configuration.mqtt is not None:
        for text in configuration.mqtt.listen:
            parse_mqtt_address(text)
    for section in configuration.bridges:
        check_bridge(section)
    if configuration.bridges and configuration.data is None:
        raise UsageError("a bridge sends messages of a log on disk: give data under [log], or --data")
    if configuration.metrics is not None:
        parse_broker(configuration.metrics.listen, default_port=METRICS_PORT)


AUDITED: Final = frozenset(("connected", "disconnected", "refused", "kicked", "closed", "capture"))
"""Notices that are published on `$audit/...`, beside changes of the configuration."""
_NOT_LOCAL: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


async def open_sockets(listen: Sequence[str]) -> list[UdpSocket]:
    """Open the sockets of all addresses, or none."""
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


def listen_on(host: str, port: int, addresses: Sequence[Address]) -> list[UdpSocket]:
    """Open a socket for each address of the host that this machine has; with port 0, for one of them.

    Raises:
        SocketError: The system refused one of them for another reason, or the machine has none of the addresses.
    """
    if len(addresses) == 1:
        return [UdpSocket(host, port)]
    opened: list[UdpSocket] = []
    try:
        for address in addresses:
            try:
                opened.append(UdpSocket(address[0], port))
            except SocketError as error:
                if error.errno not in _NOT_LOCAL or (not opened and address == addresses[-1]):
                    raise
            if opened and port == 0:
                break
    except BaseException:
        for udp in opened:
            udp.close()
        raise
    return opened


def listener_reset_key(reset_key: bytes, address: Address) -> bytes:
    """Return the reset key of the listener that is bound to this address, derived from the broker's stored key.

    With one key for all, a listener that receives a packet for a connection of another listener would answer with that
    connection's token. The address is the same after a restart. A port picked by the system is not, but then no client
    sends to the old one either.
    """
    host, port, *_ = address
    return hmac.digest(reset_key, f"godwit 1 listener {host} {port}".encode(), "sha256")
