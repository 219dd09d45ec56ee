"""A broker as a node of a cluster: a standby until its node is active, then a broker (godwit.net.service).

    standby    the UDP addresses are open to refuse clients, with the address of the active node; the archive serves
               the log of this node
    active     a Service on the log of this node
    otherwise  the Service is closed, then the node continues as a standby, or the process ends

The endpoint for metrics and health is open in all states (godwit.net.cluster_metrics).
The node itself runs in a thread (godwit.net.cluster_member). This module follows its state.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from godwit.broker.effects import Import, Imported, Notice
from godwit.cluster.values import NodeConfig
from godwit.errors import ConfigurationError, GodwitError, LogVersionError, NodeStoppedError, UsageError
from godwit.install import pip_command
from godwit.metrics.server import MetricsServer
from godwit.net.address import format_address
from godwit.net.broker_archive import BrokerArchive, Notices
from godwit.net.broker_metrics import BrokerMetrics, BrokerParts, announce_metrics, open_metrics
from godwit.net.cluster_member import ClusterMember, MemberStatus, NewEngine, ReplicatedLog
from godwit.net.cluster_metrics import NodeMetrics
from godwit.net.cluster_tls import engine_tls, unencrypted
from godwit.net.driver import EndpointDriver
from godwit.net.durable_log import RESET_KEY_BYTES, open_folder
from godwit.net.engine_server import EngineServer
from godwit.net.private_files import protect_files, protect_folder
from godwit.net.security import BrokerSecurity
from godwit.net.service import Service, check_configuration, listener_reset_key, open_sockets
from godwit.net.service_warnings import cluster_without_tls
from godwit.net.udp import UdpSocket
from godwit.server.cluster_configuration import ClusterSection
from godwit.server.configuration import Configuration
from godwit.server.server import endpoint_config
from godwit.store.folder import DataFolder
from godwit.store.retention import RetentionRule
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, Event

CHECK_S: Final = 2.0
"""How often a node finds out whether it could do its part."""
NOT_READY_S: Final = 10.0
"""A node that could not do its part for this time reports it."""
REFRESH_S: Final = 0.5
"""How often a standby looks for the address of the active node."""
RESIGN_S: Final = 1.0
"""How long a node that ends waits until it has resigned."""
END_S: Final = 3.0
"""How long a node that ends waits for its thread, which may wait for an engine that does not answer."""
AWAY: Final = "away"
"""The state of a node that has sent no heartbeat for a while, in `$sys/cluster/node/NAME/state`."""
_POLL_S: Final = 0.005


def engine_maker(section: ClusterSection, *, makes_stream: bool = True) -> NewEngine:
    """Return a function that makes the engine of a cluster.

    Raises ConfigurationError if the packages are not installed, or a file with certificates is not usable.
    """
    extra = "cluster" if section.engine == "nats" else "cluster-postgres"
    try:
        return _nats(section, makes_stream) if section.engine == "nats" else _postgres(section, makes_stream)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f'a cluster with engine = "{section.engine}" needs the package {error.name}: run {pip_command(extra)}'
        ) from error


def _postgres(section: ClusterSection, makes_tables: bool) -> NewEngine:
    from godwit.net.postgres_engine import PostgresEngine, PostgresSettings

    settings = PostgresSettings(
        name=section.name,
        servers=list(section.servers),
        is_single_allowed=section.is_single_allowed,
        tls=engine_tls(section),
    )
    return partial(PostgresEngine, settings, makes_tables=makes_tables)


def _nats(section: ClusterSection, makes_stream: bool) -> NewEngine:
    from godwit.net.nats_engine import NatsEngine, NatsSettings

    settings = NatsSettings(
        name=section.name,
        servers=list(section.servers),
        monitors=list(section.monitors),
        user=section.user,
        password=section.password,
        credentials=None if section.credentials is None else str(section.credentials),
        tls=engine_tls(section),
    )
    return partial(NatsEngine, settings, makes_stream=makes_stream)


class StandbyListener:
    """Refuses the clients that connect to one socket, and resets their former connections."""

    def __init__(self, udp: UdpSocket, configuration: Configuration, reset_key: bytes) -> None:
        config = endpoint_config(configuration.settings, receive_buffer_bytes=udp.receive_buffer_bytes)
        config = replace(config, reset_key=listener_reset_key(reset_key, udp.local_address))
        self._endpoint = Endpoint(config, entropy=os.urandom)
        self.address = udp.local_address
        self.set_text("this broker is a standby of a cluster")
        self._driver: EndpointDriver[Event] = EndpointDriver(self._endpoint, udp, lambda events: None)

    def set_text(self, text: str) -> None:
        """Set why clients are refused."""
        self._endpoint.standby_text = text

    def release(self) -> UdpSocket:
        """End, and return the socket."""
        return self._driver.release()

    def close(self) -> None:
        """End, and close the socket."""
        self._driver.close()


class _ActiveParts:
    """See godwit.net.service.ActiveNode."""

    def __init__(self, member: ClusterMember, sockets: list[UdpSocket], archive: BrokerArchive) -> None:
        self._member = member
        self.sockets = sockets
        self.archive = archive

    def open_log(
        self,
        rules: Sequence[RetentionRule],
        *,
        wake: Callable[[], None],
        on_notice: Callable[[Notice], None],
        hold_from: int | None,
    ) -> ReplicatedLog:
        snapshot = self._member.snapshot
        assert snapshot is not None
        return ReplicatedLog(self._member, snapshot, rules, wake=wake, on_notice=on_notice, hold_from=hold_from)


class ClusterService:
    """A node in the running event loop. It has the interface of godwit.net.service.Service for a process."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        notices: Notices,
        wall_clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """Make a node. `start`, or `async with`, runs it.

        Args:
            configuration: With `cluster` and `data`.
            notices: Receives an event line for each event.
            wall_clock_us: Returns the time in microseconds since 1970.
        """
        self.configuration = configuration
        self.addresses: list[Address] = []
        self.failed: asyncio.Future[GodwitError] = asyncio.get_running_loop().create_future()
        """Why this node must not continue, once that is so."""
        self.service: Service | None = None
        """The broker, while this node is active."""
        self.security = BrokerSecurity(configuration.security, configuration.data)
        self.on_reload: Callable[[], None] = lambda: None
        """Called after the configuration was read again."""
        self._notices = notices
        self._wall_clock_us = wall_clock_us
        self._member: ClusterMember
        self._folder: DataFolder
        self._archive: BrokerArchive
        self._listeners: list[StandbyListener] = []
        self._engine_server: EngineServer | None = None
        self._report: NodeMetrics
        self._metrics: MetricsServer | None = None
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[None] | None = None
        self._is_ending = False

    @property
    def urls(self) -> list[str]:
        """Its addresses as `udp://127.0.0.1:50000`."""
        return [f"udp://{format_address(address)}" for address in self.addresses]

    @property
    def metrics_url(self) -> str:
        """The address of the metrics endpoint as `http://127.0.0.1:9464`; empty without one."""
        return "" if self._metrics is None else self._metrics.url

    @property
    def status(self) -> MemberStatus:
        """The state of the node."""
        return self._member.status

    async def __aenter__(self) -> ClusterService:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -- begin and end ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the log and all sockets, start the engine's server if this node has one, and begin as a standby.

        Raises:
            UsageError: The configuration is invalid.
            SocketError: The system refused a socket.
            StorageError: The log cannot be opened.
            ConfigurationError: Other users can read the data folder, a key or a secret, and that cannot be changed.
            NodeStoppedError: A newer version has written the log.
        """
        configuration, section = self.configuration, self.configuration.cluster
        assert section is not None
        check_configuration(configuration)
        if configuration.data is None:
            raise UsageError("a node of a cluster has its log on disk: give data under [log], or --data")
        self._warn([*protect_files(configuration.private_files), *protect_folder(configuration.data)])
        new_engine = engine_maker(section)
        if plain := unencrypted(section):
            self._warn([cluster_without_tls(plain)])
        sockets = await open_sockets(configuration.listen)
        self.addresses = [udp.local_address for udp in sockets]
        endpoint: socket.socket | None = None
        try:
            endpoint = await open_metrics(configuration.metrics)
            self._open(configuration.data, section, new_engine)
        except BaseException:
            for udp in sockets:
                udp.close()
            if endpoint is not None:
                endpoint.close()
            raise
        self._listen(sockets)
        if self._engine_server is not None:
            self._engine_server.start()
        self._archive.process.accept_commits(False)
        self._archive.run(configuration, self.addresses)
        where = ", ".join(self.urls)
        text = f"node {section.node} of the cluster {section.name} is a standby on {where}, with its log in "
        self._notices.write("cluster", f"{text}{configuration.data}", {"node": section.node, "state": "standby"})
        if endpoint is not None and configuration.metrics is not None:
            answers = BrokerMetrics(self._parts, configuration.metrics, self._report).answers()
            self._metrics = MetricsServer(endpoint, answers)
            announce_metrics(self._notices, configuration.metrics, self._metrics)
        self._member.start()
        self._following = asyncio.get_running_loop().create_task(self._follow())
        self._checking = asyncio.get_running_loop().create_task(self._check_readiness())

    def _open(self, data: Path, section: ClusterSection, new_engine: NewEngine) -> None:
        loop = asyncio.get_running_loop()

        def on_change() -> None:  # in the thread of the node
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._changed.set)

        def on_notice(notice: Notice) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._write_notice, notice)

        self._folder = DataFolder(data)
        open_folder(self._folder)
        try:
            reset_key = self._folder.reset_key(os.urandom(RESET_KEY_BYTES))
            if section.run is not None:
                self._engine_server = EngineServer(section, data / "engine", self._write_notice)
            self._member = ClusterMember(
                NodeConfig(
                    name=section.node,
                    address=section.address or format_address(self.addresses[0]),
                    heartbeat_s=section.heartbeat_s,
                    suspect_s=section.suspect_s,
                    withdraw_s=section.withdraw_s,
                    keep_bytes=section.keep_bytes,
                ),
                self._folder,
                new_engine,
                reset_key=reset_key,
                now_us=self._wall_clock_us(),
                on_change=on_change,
                on_notice=on_notice,
            )
        except BaseException as error:
            self._folder.close()
            if isinstance(error, LogVersionError):
                raise NodeStoppedError(str(error)) from error
            raise
        self._archive = BrokerArchive(
            self._folder, self._notices, import_staged=self._refuse_import, on_notice=self._write_notice
        )
        self._report = NodeMetrics(
            section, self._member, self._archive.process, self._engine_server, lambda: self.service is not None
        )

    def _parts(self) -> BrokerParts | None:
        return None if self.service is None else self.service.parts()

    async def stop(self) -> None:
        """Hand over, and close everything. May be repeated."""
        following, self._following = self._following, None
        if following is None:
            return
        self._is_ending = self._report.is_ending = True
        self._changed.set()
        if self._checking is not None:
            self._checking.cancel()
        await asyncio.wait([following])
        if self.service is not None:
            await self._close_service()
            self._member.resign("")
            await self._wait_for(lambda: self.status.state != "active", RESIGN_S)
        for listener in self._listeners:
            listener.close()
        await self._archive.process.stop()
        self._member.end()
        await self._wait_for(lambda: not self._member.is_alive, END_S)
        if self._engine_server is not None:
            await self._engine_server.stop()
        if self._metrics is not None:
            self._metrics.close()
        self._folder.close()
        self._notices.write("stopped", "the broker has stopped", {})

    async def _wait_for(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while not is_done() and time.monotonic() < until:
            await asyncio.sleep(_POLL_S)

    # -- states -------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(REFRESH_S):
                        await self._changed.wait()
                self._changed.clear()
                if self._is_ending:
                    return
                await self._follow_state()
                if (failure := self._member.failure) is not None:
                    await self._close_service()
                    self._fail(NodeStoppedError(str(failure)))
                    return
        except GodwitError as error:
            self._fail(error)
        except Exception as error:
            self._fail(GodwitError(f"the node failed unexpectedly ({type(error).__name__}: {error})"))
            raise

    def _fail(self, error: GodwitError) -> None:
        if not self.failed.done():
            self.failed.set_result(error)

    async def _follow_state(self) -> None:
        member = self._member
        state = self.status.state
        if state != "active":
            if self.service is not None:
                await self._close_service()
                member.handle_closed()
            member.handover = None
        elif self.service is None:
            if member.snapshot is not None:
                await self._activate()
        elif member.handover is not None:
            to, member.handover = member.handover, None
            self._notices.write("cluster", f"handing over to {to or 'another node'}", {"to": to})
            await self._close_service()
            member.snapshot = None  # no broker is opened before the next claim
            member.resign(to)
        for listener in self._listeners:
            listener.set_text(self._standby_text())

    async def _check_readiness(self) -> None:
        """Find out again and again whether this node could do its part, for heartbeats and event lines."""
        ready_at = time.monotonic()
        is_reported = False
        while not self.failed.done():
            self._member.problem = problem = await self._report.find_problem()
            now = time.monotonic()
            if not problem:
                ready_at = now
            if is_reported if not problem else not is_reported and now >= ready_at + NOT_READY_S:
                is_reported = not is_reported
                self._announce_readiness(problem)
            await asyncio.sleep(CHECK_S)

    def _announce_readiness(self, problem: str) -> None:
        section = self.configuration.cluster
        assert section is not None
        text = f"not ready: {problem}" if problem else "ready again"
        self._notices.write("cluster", f"node {section.node} is {text}", {"node": section.node, "ready": not problem})

    async def _activate(self) -> None:
        sockets = [listener.release() for listener in self._listeners]
        self._listeners = []
        service = Service(
            self.configuration,
            notices=self._notices,
            wall_clock_us=self._wall_clock_us,
            node=_ActiveParts(self._member, sockets, self._archive),
        )
        await service.start()
        service.server.broker.add_figures(self.figures)
        self._archive.process.accept_commits(True)
        self.service = service

    async def _close_service(self) -> None:
        service, self.service = self.service, None
        if service is None:
            return
        self.configuration = service.configuration
        self._archive.import_staged = self._refuse_import
        self._archive.process.accept_commits(False)
        await service.stop()
        self._listen([UdpSocket(address[0], address[1]) for address in self.addresses])

    def _listen(self, sockets: list[UdpSocket]) -> None:
        self._listeners = [StandbyListener(udp, self.configuration, self._member.reset_key) for udp in sockets]

    def _standby_text(self) -> str:
        status, section = self.status, self.configuration.cluster
        assert section is not None
        text = f"this broker is a standby of the cluster {section.name}"
        if status.active_name and status.active_name != section.node:
            return f"{text}: the node {status.active_name} at {status.active_address} is active"
        return f"{text}: no node is active yet"

    # -- while it is running ------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, int | str]:
        """Return the figures for `$sys/cluster/...`."""
        status, section = self.status, self.configuration.cluster
        assert section is not None
        found: dict[str, int | str] = {
            "cluster/name": section.name,
            "cluster/node": section.node,
            "cluster/epoch": status.epoch,
            "cluster/position": status.position,
            "cluster/in_flight": status.in_flight,
            "cluster/void": status.void,
            "cluster/nodes": len(status.members),
        }
        for beat in (*status.members, *status.absent):
            prefix = f"cluster/node/{beat.name}"
            found[f"{prefix}/state"] = AWAY if beat in status.absent else beat.state
            found[f"{prefix}/address"] = beat.address
            found[f"{prefix}/problem"] = beat.problem
            found[f"{prefix}/behind"] = max(0, status.position - beat.applied)
        return found

    def try_reload(self, load: Callable[[], Configuration]) -> None:
        """Load the configuration again. An invalid one changes nothing, and is reported as a warning line.

        The certificates of the cluster are read again, too; the rest of its section needs a restart.
        """
        self._renew_certificates()
        if self.service is not None:
            self.service.try_reload(load)
            self.configuration = self.service.configuration
            self._reload_security(self.configuration)
            self.on_reload()
            return
        try:
            configuration = load()
            check_configuration(configuration)
            self._warn(protect_files(configuration.private_files))
        except (GodwitError, OSError) as error:
            self._notices.write("warning", f"the configuration stays as it was: {error}", {})
            return
        former = self.configuration
        configuration = self._reload_security(configuration)
        if configuration.cluster != former.cluster:
            self._notices.write("warning", "other settings of the cluster need a restart of the broker", {})
        if configuration.metrics != former.metrics:
            self._notices.write("warning", "other settings of metrics need a restart of the broker", {})
        self.configuration = replace(
            configuration, listen=former.listen, data=former.data, cluster=former.cluster, metrics=former.metrics
        )
        self._archive.run(self.configuration, self.addresses)
        self._notices.write("reloaded", "the configuration was read again", {})
        self.on_reload()

    def _renew_certificates(self) -> None:
        """Read the certificates of the cluster again, for new connections. Refuse them if they are not usable."""
        section = self.configuration.cluster
        assert section is not None
        try:
            tls = engine_tls(section)
            if tls is None:
                return
            context = tls.renewed_context()
        except GodwitError as error:
            self._notices.write("warning", f"the certificates of the cluster stay as they were: {error}", {})
            return
        self._member.renew(context)
        if self._engine_server is not None:
            self._engine_server.renew(context)
        self._notices.write("cluster", "the certificates of the cluster were read again", {"node": section.node})

    def _reload_security(self, configuration: Configuration) -> Configuration:
        """Use the files of another configuration. Return it, with the former section if they are not usable."""
        try:
            self.security.reload(configuration.security)
        except GodwitError as error:
            self._notices.write("warning", f"the settings of security stay as they were: {error}", {})
            return replace(configuration, security=self.security.section)
        return configuration

    def _warn(self, texts: Sequence[str]) -> None:
        for text in texts:
            self._notices.write("warning", text, {})

    def _refuse_import(self, event: Import) -> None:
        problem = f"{self._standby_text()}: commit there"
        asyncio.get_running_loop().call_soon(self._archive.process.answer, Imported(event.key, problem))

    def _write_notice(self, notice: Notice) -> None:
        self._notices.write(notice.kind, notice.text, notice.fields)
