"""The metrics of a broker: read when they are requested, from counters that the parts of the broker keep anyway.

The numbers are collected in the broker's event loop, in slices: however many connections and subscriptions there are,
no slice takes longer than about a millisecond. Everything else (HTTP, the text form, the sizes of files) happens in the
thread of the endpoint, see godwit.metrics.server.

A snapshot of the connections is taken first, and the counters of ended connections before it, so that the totals never
fall while connections end between two slices.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from godwit.broker.access import is_like
from godwit.broker.effects import Notice
from godwit.broker.session import Session
from godwit.broker.subscription import BrokerSubscription
from godwit.metrics.exposition import MetricSet, render_process
from godwit.metrics.server import Answer, HttpReply, MetricsServer, call_in, metrics_reply, open_endpoint
from godwit.native.peer import NativePeer
from godwit.net.address import parse_broker
from godwit.net.archive_process import ArchiveProcess
from godwit.net.broker_archive import Notices, is_local
from godwit.net.driver import EndpointDriver
from godwit.net.durable_log import BrokerLog
from godwit.net.mqtt import MqttListeners
from godwit.net.service_warnings import names_in_metrics
from godwit.server.configuration import MetricsSection
from godwit.server.server import Server
from godwit.transport.connection import Connection
from godwit.transport.connection_state import TransportTotals
from godwit.transport.events import ConnectionState
from godwit.transport.sealed_connection import SealedConnection

METRICS_PORT: Final = 9464
"""The usual port of metrics of programs that have none of their own."""
SLICE: Final = 200
"""Connections, subscriptions or topics that are examined before other work of the loop."""
MIN_INTERVAL_S: Final = 0.25
"""Metrics are collected at most this often; requests in between get the last ones."""
STALLED_S: Final = 30.0
"""A commit that takes longer than this makes the broker not ready."""
PROBE_INTERVAL_S: Final = 1.0
"""How often a log that cannot be written is tried."""
ROUND_TRIP_SHARES: Final = {"min": 0.0, "median": 0.5, "p95": 0.95, "max": 1.0}


class BrokerParts(NamedTuple):
    """The parts of a running broker that have counters."""

    server: Server
    drivers: list[EndpointDriver[Notice]]
    mqtt: MqttListeners | None
    durable: BrokerLog | None
    archive: ArchiveProcess | None


class Health(NamedTuple):
    """The answer to a supervisor."""

    is_good: bool
    text: str
    """A sentence with the reason."""


class NodeOfBroker(Protocol):
    """The node of a cluster whose broker this is, see godwit.net.cluster_metrics. Called in the broker's event loop."""

    @property
    def folder(self) -> Path:
        """The data folder."""

    def health(self) -> Health: ...
    def activity(self) -> Health: ...
    async def readiness(self) -> Health: ...
    def add_metrics(self, metrics: MetricSet) -> None: ...
    def add_active(self, metrics: MetricSet) -> None: ...
    def add_standby(self, metrics: MetricSet) -> None: ...


class BrokerMetrics:
    """Answers the requests to the metrics endpoint of a broker."""

    def __init__(
        self, parts: Callable[[], BrokerParts | None], section: MetricsSection, node: NodeOfBroker | None = None
    ) -> None:
        """Make it in the broker's event loop.

        Args:
            parts: Returns the present parts, and is called in that loop; None while a node is not active.
            section: Which names are shown.
            node: The node of a cluster that the broker belongs to.
        """
        self._parts = parts
        self._section = section
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._rendered = b""
        self._rendered_at = -math.inf
        self._rendering: asyncio.Task[bytes] | None = None
        self._probed_at = -math.inf

    def answers(self) -> dict[str, Answer]:
        """Return the replies by path, for MetricsServer."""
        return {
            "/metrics": self._answer_metrics,
            "/healthz": partial(self._answer_supervisor, self._find_health),
            "/readyz": partial(self._answer_supervisor, self._find_readiness),
            "/activez": partial(self._answer_supervisor, self._find_activity),
        }

    # -- in the thread of the endpoint --------------------------------------------------------------------------------

    async def _answer_metrics(self) -> HttpReply:
        if self._rendering is None and time.monotonic() < self._rendered_at + MIN_INTERVAL_S:
            return metrics_reply(self._rendered)
        if self._rendering is None:  # all requests that come meanwhile share it
            self._rendering = asyncio.get_running_loop().create_task(self._render())
            self._rendering.add_done_callback(self._end_rendering)
        return metrics_reply(await asyncio.shield(self._rendering))

    def _end_rendering(self, task: asyncio.Task[bytes]) -> None:
        self._rendering = None
        if not task.cancelled() and task.exception() is None:
            self._rendered, self._rendered_at = task.result(), time.monotonic()

    async def _render(self) -> bytes:
        metrics, data = await call_in(self._loop, self._collect)
        if data is not None:
            add_files(metrics, data)
        return metrics.render() + render_process()

    async def _answer_supervisor(self, find: Callable[[], Coroutine[Any, Any, Health]]) -> HttpReply:
        found = await call_in(self._loop, find)
        text = " ".join(found.text.split())  # reasons come from other programs, too
        return HttpReply(200 if found.is_good else 503, f"{text}\n".encode())

    # -- in the broker's event loop -----------------------------------------------------------------------------------

    async def _find_health(self) -> Health:
        return Health(True, "this broker works") if self._node is None else self._node.health()

    async def _find_activity(self) -> Health:
        if self._node is None:
            return Health(True, "this broker is active: it is not a node of a cluster")
        return self._node.activity()

    async def _find_readiness(self) -> Health:
        found = Health(True, "this broker stores messages and serves clients")
        if self._node is not None:
            found = await self._node.readiness()
        parts = self._parts()
        problem = "" if parts is None or parts.durable is None else self._find_problem(parts.durable)
        return Health(False, problem) if found.is_good and problem else found

    def _find_problem(self, durable: BrokerLog) -> str:
        """Return why the log cannot store messages, or an empty text."""
        writer = durable.log.writer
        now = time.monotonic()
        if (since := writer.busy_since) is not None and now > since + STALLED_S:
            return f"the log has not answered for {now - since:.0f} s: check its disk"
        problem = writer.problem
        if problem and now > self._probed_at + PROBE_INTERVAL_S:
            self._probed_at = now
            writer.probe()
        return f"the log is not writable: {problem}" if problem else ""

    async def _collect(self) -> tuple[MetricSet, Path | None]:
        """Return the metrics, and the data folder."""
        metrics = MetricSet()
        node, parts = self._node, self._parts()
        if node is not None:
            node.add_metrics(metrics)
            if parts is None:
                node.add_standby(metrics)
            else:
                node.add_active(metrics)
        if parts is not None:
            await self._collect_broker(metrics, parts)
        if node is not None:
            return metrics, node.folder
        return metrics, None if parts is None or parts.durable is None else parts.durable.folder.path

    async def _collect_broker(self, metrics: MetricSet, parts: BrokerParts) -> None:
        add_core(metrics, parts)
        add_drops(metrics, parts)
        await add_transport(metrics, parts.server)
        await add_lag(metrics, parts.server)
        add_bridges(metrics, parts.server)
        if parts.durable is not None:
            add_log(metrics, parts.durable)
        if parts.archive is not None:
            add_archive(metrics, parts.archive)
        if self._section.clients:
            await self._add_clients(metrics, parts.server)
        if self._section.topics:
            await self._add_topics(metrics, parts.server)

    async def _add_clients(self, metrics: MetricSet, server: Server) -> None:
        """Add metrics by client, for names that the configuration selects."""
        found: list[Session] = []
        omitted = 0
        after: str | None = None
        sessions = server.broker.sessions
        while True:
            page = []
            for session in sessions.after(after):
                page.append(session)
                if len(page) == SLICE:
                    break
            for session in page:
                if not any(is_like(session.name, glob) for glob in self._section.clients):
                    continue
                if len(found) < self._section.max_series:
                    found.append(session)
                    add_client(metrics, session, server.broker.end_offset)
                else:
                    omitted += 1
            if len(page) < SLICE:
                break
            after = page[-1].name
            await asyncio.sleep(0)
        _add_omitted(metrics, "client", omitted)

    async def _add_topics(self, metrics: MetricSet, server: Server) -> None:
        """Add metrics by topic, for the filters of the configuration."""
        seen: set[str] = set()
        omitted = 0
        for pattern in self._section.topics:
            after: str | None = None
            while True:
                page, after = server.broker.topics_page(pattern, after, SLICE)
                for topic in page:
                    if topic.name in seen:
                        continue
                    if len(seen) >= self._section.max_series:
                        omitted += 1
                        continue
                    seen.add(topic.name)
                    text = "Messages that were published to the topic."
                    metrics.counter("topic_messages", text, topic.messages, topic=topic.name)
                    text = "Payload bytes that were published to the topic."
                    metrics.counter("topic_payload_bytes", text, topic.payload_bytes, topic=topic.name)
                if after is None:
                    break
                await asyncio.sleep(0)
        _add_omitted(metrics, "topic", omitted)


async def open_metrics(section: MetricsSection | None) -> socket.socket | None:
    """Return the listening socket of the endpoint, if there is one. Raises SocketError if the system refuses it."""
    if section is None:
        return None
    host, port = parse_broker(section.listen, default_port=METRICS_PORT)
    return await asyncio.get_running_loop().run_in_executor(None, open_endpoint, host, port)


def announce_metrics(notices: Notices, section: MetricsSection, server: MetricsServer) -> None:
    """Write where the endpoint is, and a warning if it shows names to other machines."""
    url = server.url
    if (section.clients or section.topics) and not is_local(section.listen):
        notices.write("warning", names_in_metrics(url), {"url": url})
    notices.write("metrics", f"metrics on {url}/metrics", {"url": url})


def _add_omitted(metrics: MetricSet, label: str, count: int) -> None:
    text = "Values of a label that have no series, because max_series of the configuration is reached."
    metrics.gauge("metrics_omitted_series", text, count, label=label)


def add_core(metrics: MetricSet, parts: BrokerParts) -> None:
    """Add the counters of the core."""
    server = parts.server
    core = server.broker.counters()
    metrics.gauge("uptime_seconds", "Time since the start of the broker.", core.uptime_s)
    text = "Open connections, with and without a login."
    native = sum(len(listener.endpoint.connections) for listener in server.listeners)
    metrics.gauge("connections", text, native, protocol="native")
    metrics.gauge("connections", text, 0 if parts.mqtt is None else parts.mqtt.connections, protocol="mqtt")
    metrics.gauge("clients", "Connected clients, after their login.", core.clients)
    metrics.gauge("sessions", "Sessions, of connected and disconnected clients.", core.sessions)
    metrics.counter("logins", "Logins that were admitted.", core.logins)
    metrics.counters("logins_refused", "Logins that were refused, by reason.", "reason", core.logins_refused)
    for qos in range(3):
        label = str(qos)
        metrics.counter("messages_received", "Messages of publishers.", core.messages_in[qos], qos=label)
        metrics.counter("messages_sent", "Messages to subscribers, once for each.", core.messages_out[qos], qos=label)
        metrics.counter("received_bytes", "Bytes of publishers' batches.", core.bytes_in[qos], qos=label)
        metrics.counter("sent_bytes", "Bytes of batches to subscribers, once for each.", core.bytes_out[qos], qos=label)
    metrics.counter("publishes_confirmed", "Records of publishers that were stored.", core.publishes_confirmed)
    text = "Records of publishers that the log could not store."
    metrics.counter("publishes_failed", text, core.publishes_refused)
    text = "Messages of QoS 0 that were dropped: beyond a rate limit, or for a slow subscriber."
    metrics.counters("messages_dropped", text, "reason", core.messages_dropped)
    metrics.gauge("topics", "Topics.", core.topics)
    metrics.gauge("retained_messages", "Retained messages.", core.retained)
    metrics.gauge("subscriptions", "Subscriptions, connected or not; a consumer group is one.", core.subscriptions)
    metrics.gauge("consumer_groups", "Consumer groups.", core.groups)
    metrics.gauge("log_first_offset", "Offset of the first message in the log.", core.first_offset)
    metrics.gauge("log_next_offset", "Offset of the next message in the log.", core.next_offset)
    metrics.gauge("append_queue_depth", "Appends that the log has not answered.", core.appends_under_way)
    metrics.gauge("append_queue_bytes", "Bytes of appends that the log has not answered.", server.log.held_bytes)
    metrics.gauge("list_queue_depth", "Requests for lists that wait for their turn.", core.lists_waiting)
    handshakes = sum(listener.endpoint.waiting_handshakes for listener in server.listeners)
    metrics.gauge("handshake_queue_depth", "Handshakes that wait for their turn.", handshakes)
    for state, count in core.jobs.items():
        metrics.gauge("jobs", "Jobs by state; ended ones are kept for a time.", count, state=state)
    metrics.counters("jobs_ended", "Jobs that have ended, by their last state.", "state", core.jobs_ended)
    metrics.gauge("task_leases", "Tasks that are leased to workers.", core.tasks_leased)
    metrics.gauge("workers", "Workers that may get tasks.", core.workers)
    metrics.gauge("worker_capacity", "Tasks that the workers do at once.", core.worker_capacity)


def add_drops(metrics: MetricSet, parts: BrokerParts) -> None:
    """Add everything that was dropped before it reached the core."""
    packets: Counter[str] = Counter()
    datagrams: Counter[str] = Counter()
    kernel = 0
    for listener in parts.server.listeners:
        packets.update(listener.endpoint.dropped)
    for driver in parts.drivers:
        datagrams.update(driver.udp.dropped)
        kernel += driver.udp.kernel_drops
    text = "Packets that the transport dropped, by reason (section 27 of the protocol)."
    metrics.counters("packets_dropped", text, "reason", packets)
    text = "Datagrams that the sockets could not send or receive, by reason."
    reasons = {reason.lower().replace(" ", "_"): count for reason, count in datagrams.items()}
    metrics.counters("socket_datagrams_dropped", text, "reason", reasons)
    metrics.counter("kernel_datagrams_dropped", "Arrivals for which the kernel's buffer had no room.", kernel)


async def add_transport(metrics: MetricSet, server: Server) -> None:
    """Add the totals of all connections of the transport, open and ended, and the distribution of round trips."""
    totals = TransportTotals()
    connections: list[Connection] = []
    for listener in server.listeners:
        for name in TransportTotals.__struct_fields__:
            setattr(totals, name, getattr(totals, name) + getattr(listener.endpoint.ended, name))
        connections += listener.endpoint.connections.values()
    trips_s: list[float] = []
    buffered_bytes = sealed = 0
    for start in range(0, len(connections), SLICE):
        for connection in connections[start : start + SLICE]:
            connection.add_to(totals)
            buffered_bytes += connection.buffered_bytes
            sealed += isinstance(connection, SealedConnection)
            if connection.state is ConnectionState.OPEN:
                trips_s.append(connection.round_trip_s)
        await asyncio.sleep(0)
    metrics.counter("packets_sent", "Packets sent on connections.", totals.packets_sent)
    metrics.counter("packets_received", "Packets received on connections.", totals.packets_received)
    metrics.counter("packets_sent_bytes", "Bytes of packets sent on connections.", totals.bytes_sent)
    metrics.counter("packets_lost", "Sent packets that were considered lost.", totals.packets_lost)
    text = "Packets that were considered lost and acknowledged later."
    metrics.counter("packets_lost_spuriously", text, totals.packets_spuriously_lost)
    metrics.counter("fragments_retransmitted", "Fragments that were sent again.", totals.fragments_resent)
    text = "Unreliable records that were dropped because a send buffer was full."
    metrics.counter("unreliable_records_dropped", text, totals.unreliable_dropped)
    metrics.gauge("connection_buffer_bytes", "Bytes that connections hold, in both directions.", buffered_bytes)
    metrics.gauge("sealed_connections", "Native connections whose packets are encrypted.", sealed)
    trips_s.sort()
    for name, share in ROUND_TRIP_SHARES.items():
        trip_s = trips_s[round(share * (len(trips_s) - 1))] if trips_s else math.nan
        metrics.gauge("round_trip_seconds", "Smoothed round trips of open connections.", trip_s, stat=name)


async def add_lag(metrics: MetricSet, server: Server) -> None:
    """Add how far subscriptions are behind the end of the log."""
    broker = server.broker
    for state, ones in (("connected", broker.lagging_subscriptions()), ("absent", broker.absent_subscriptions())):
        behind = lag = max_lag = 0
        for start in range(0, len(ones), SLICE):
            for one in ones[start : start + SLICE]:
                messages = lag_of(one, broker.end_offset)
                lag += messages
                max_lag = max(max_lag, messages)
                behind += messages > 0 if state == "absent" else not one.is_live
            await asyncio.sleep(0)
        text = "Subscriptions that read the log because they are behind, or whose client is absent and has messages."
        metrics.gauge("subscriptions_behind", text, behind, client=state)
        text = "Messages of the log that subscriptions have not acknowledged, of all together."
        metrics.gauge("subscription_lag_messages", text, lag, client=state)
        text = "Messages of the log that the subscription with the largest lag has not acknowledged."
        metrics.gauge("subscription_lag_messages_max", text, max_lag, client=state)


def add_bridges(metrics: MetricSet, server: Server) -> None:
    """Add the bridges of the configuration, and the number of those to this broker."""
    relays = server.broker.relays
    metrics.gauge("bridges_incoming", "Open bridges to this broker, of which it is the hub.", relays.incoming)
    for status in relays.outgoing:
        bridge = status()
        metrics.gauge("bridge_up", "1 if the hub accepts messages.", bridge.state == "running", bridge=bridge.name)
        text = "Messages of the log that the hub has not confirmed, whether they match the filters or not."
        metrics.gauge("bridge_lag_messages", text, bridge.lag, bridge=bridge.name)
        metrics.counter("bridge_messages", "Messages that were sent to the hub.", bridge.messages, bridge=bridge.name)
        text = "Messages that the hub will not get: deleted, damaged or too long."
        metrics.counter("bridge_missed_messages", text, bridge.missed, bridge=bridge.name)


def lag_of(subscription: BrokerSubscription, end_offset: int) -> int:
    """Return how many messages of the log a subscription has not acknowledged, whether they match or not."""
    return end_offset - min(subscription.restart_position(end_offset)[0], end_offset)


def add_log(metrics: MetricSet, durable: BrokerLog) -> None:
    """Add the figures of a log on disk."""
    writer = durable.log.writer
    metrics.histogram("log_commit_seconds", "Duration of commits of the log.", writer.commit_seconds)
    metrics.histogram("log_commit_bytes", "Bytes of messages in a commit of the log.", writer.commit_bytes)
    metrics.histogram("log_commit_messages", "Messages in a commit of the log.", writer.commit_messages)
    metrics.counter("log_commit_failures", "Commits of the log that failed.", writer.failures)
    metrics.gauge("log_writable", "1 if messages are stored, 0 if they are refused.", not writer.problem)
    text = "Messages that the rules of retention have deleted."
    metrics.counter("log_retention_deleted_messages", text, writer.deleted_messages)
    metrics.gauge("log_read_queue_depth", "Reads of the log that wait.", durable.log.reads_waiting)


def add_archive(metrics: MetricSet, archive: ArchiveProcess) -> None:
    """Add the figures of the archive process, which reports its calls once a second."""
    calls, failed = archive.calls()
    metrics.gauge("archive_up", "1 if the archive serves.", bool(archive.url))
    metrics.counter("archive_starts", "Processes of the archive that were started.", archive.starts)
    metrics.counters("archive_calls", "Calls to the archive, by method.", "method", calls)
    metrics.counters("archive_calls_failed", "Calls to the archive that failed, by method.", "method", failed)
    metrics.gauge("archive_streams", "Reads and uploads of the archive under way.", archive.counts.active)


def add_client(metrics: MetricSet, session: Session, end_offset: int) -> None:
    """Add the figures of one client."""
    name, peer = session.name, session.peer
    metrics.gauge("client_connected", "1 if the client is connected.", peer is not None, client=name)
    metrics.counter("client_messages_received", "Messages of the client.", session.messages_in, client=name)
    sent = 0 if peer is None else peer.messages_out
    metrics.gauge("client_connection_messages", "Messages to the client on its present connection.", sent, client=name)
    lag = max((lag_of(one, end_offset) for one in session.subscriptions.values()), default=0)
    metrics.gauge("client_lag_messages", "Largest lag of the client's subscriptions.", lag, client=name)
    if isinstance(peer, NativePeer) and peer.connection.state is ConnectionState.OPEN:
        figures = peer.connection.statistics
        metrics.gauge("client_round_trip_seconds", "Smoothed round trip.", figures.round_trip_s, client=name)
        text = "Packets lost on the present connection of the client."
        metrics.gauge("client_connection_lost_packets", text, figures.packets_lost, client=name)


def add_files(metrics: MetricSet, folder: Path) -> None:
    """Add the sizes of the log's files and the room on their disk. It waits for the disk."""
    size_bytes = sum(_sizes(folder.glob("log.sqlite*")))
    metrics.gauge("log_size_bytes", "Size of the files of the log.", size_bytes)
    with suppress(OSError):
        usage = shutil.disk_usage(folder)
        metrics.gauge("log_disk_free_bytes", "Free room on the disk of the log.", usage.free)
        metrics.gauge("log_disk_size_bytes", "Size of the disk of the log.", usage.total)


def _sizes(paths: Iterable[Path]) -> Iterable[int]:
    for path in paths:
        with suppress(OSError):
            yield path.stat().st_size
