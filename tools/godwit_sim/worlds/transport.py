"""The transport world: the shipped endpoints over a simulated network, from one seed.

Safety: while faults last, no wrong record may be delivered, and memory and sent bytes stay within their bounds.
Liveness: after the network has healed, within a bounded time all outstanding records arrive, every client gets a record
through in both directions, all connections close for the reason given, and no state remains.

The application on each end of a connection sends its planned records when they are due, waits for Writable when the
buffer is full, delays the consumption of each record, and reports all it does and receives to the checkers.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from godwit.errors import ConnectionClosedError, SendBufferFullError
from godwit.impairment import ImpairedLink, LinkSettings
from godwit.limits import CONTROL_WINDOW_BYTES, UNRELIABLE_QUEUE_BYTES
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import (
    Address,
    ChannelConfirmed,
    Closed,
    Connected,
    Event,
    PathChanged,
    Received,
    Writable,
)
from godwit_sim.attacker import Attacker
from godwit_sim.checkers import (
    AmplificationWatcher,
    ConfirmChecker,
    DeliveryChecker,
    LifecycleChecker,
    MemoryWatcher,
    TimeoutWatcher,
    TimerWatcher,
    ViolationError,
)
from godwit_sim.network import Host, LivelockError, Network, Trace
from godwit_sim.sealing import sealer_of_world
from godwit_sim.worlds.transport_plan import (
    CONTROL,
    ClientPlan,
    Fault,
    HostPlan,
    Sending,
    TransportPlan,
    draw_plan,
    patience_s,
)

# -- applications -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Checkers:
    """The checkers of one world."""

    seed: int
    network: Network
    delivery: DeliveryChecker = field(default_factory=DeliveryChecker)
    confirms: ConfirmChecker = field(default_factory=ConfirmChecker)
    lifecycle: LifecycleChecker = field(default_factory=LifecycleChecker)
    note_content: Callable[[bytes], None] | None = None
    """Called with the body of each record."""

    def content(self, label: str, direction: str, count: int, size_bytes: int) -> bytes:
        """Return the unique body of a record, so that a wrong one is noticed."""
        body = Random(f"{self.seed} {label} {direction} {count}").randbytes(size_bytes)
        if self.note_content is not None:
            self.note_content(body)
        return body


class End:
    """One end of a connection, and the application on it."""

    def __init__(
        self,
        checkers: Checkers,
        host: Host,
        connection: Connection,
        label: str,
        side: str,
        todo: deque[Sending],
        reads_after_s: float,
        *,
        eager: bool = False,
    ) -> None:
        self.checkers = checkers
        self.host = host
        self.connection = connection
        self.label = label
        self.name = f"{label}@{side}"
        self.sends, self.gets = ("up", "down") if side == "client" else ("down", "up")
        self.todo = todo
        self.reads_after_s = reads_after_s
        self.connected = False
        self._eager = eager
        self.over = False
        """Closed, or its process is dead."""
        self._is_orphan = False
        self._channels: dict[int, int] = {CONTROL: 0}
        self._finished: set[int] = set()
        self._count = 0
        self._blocked = False
        checkers.lifecycle.opened(self.name)

    # -- sending ------------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Send the records that are due. Called by a scheduled event, so the host is drained afterwards."""
        self._send_due()
        self.checkers.network.pump(self.host)

    def _send_due(self) -> None:
        network = self.checkers.network
        while self.todo and (self.connected or self._eager) and not self.over and not self._blocked:
            sending = self.todo[0]
            if sending.at_s > network.now:
                network.at(sending.at_s, self.work)
                return
            if not self._send(sending):
                return
            self.todo.popleft()

    def _send(self, sending: Sending) -> bool:
        body = self.checkers.content(self.label, self.sends, self._count, sending.size_bytes)
        try:
            channel = self._channels.get(sending.channel_index)
            if channel is None or channel in self._finished:
                channel = self._channels[sending.channel_index] = self.connection.open_channel()
            reliable = self.connection.send(channel, body, reliable=sending.reliable, last=sending.last)
        except SendBufferFullError:
            self._blocked = True
            return False
        except ConnectionClosedError:
            return False  # a Closed event follows
        self._count += 1
        self.checkers.delivery.sent((self.label, self.sends, channel), body, reliable=reliable, last=sending.last)
        if sending.last:
            self._finished.add(channel)
        return True

    def close(self, code: int, reason: str) -> None:
        """Close the connection as its application."""
        if self.over:
            return
        self.checkers.lifecycle.asked(self.name, code, reason)
        self.connection.close(self.host.clock(self.checkers.network.now), code, reason)
        self.checkers.network.pump(self.host)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> None:
        """Handle any event of this end; for Closed, `ended` follows."""
        lifecycle = self.checkers.lifecycle
        match event:
            case Connected():
                lifecycle.connected(self.name)
                self.connected = True
                self._send_due()
            case Received(_, channel, record, body, reliable, last):
                lifecycle.active(self.name, "Received")
                self._received(channel, record, body, reliable, last, now)
            case ChannelConfirmed(_, channel, sequence, reached):
                lifecycle.active(self.name, "Confirmed")
                self.checkers.confirms.got((self.label, self.sends, channel), sequence, reached)
            case Writable():
                lifecycle.active(self.name, "Writable")
                if not self._blocked:
                    raise ViolationError("lifecycle", f"{self.name}: Writable, but no send had found the buffer full")
                self._blocked = False
                self._send_due()
            case PathChanged():
                lifecycle.active(self.name, "PathChanged")
            case Closed(_, code, reason, origin):
                lifecycle.closed(self.name, code, reason, origin)
                self.ended()

    def _received(self, channel: int, record: int, body: bytes, reliable: bool, last: bool, now: float) -> None:
        flow = (self.label, self.gets, channel)
        self.checkers.delivery.received(flow, body, reliable=reliable, last=last, record=record)
        if not reliable:
            return  # it cost no credit to return
        sequence = self.checkers.delivery.received_on(flow)
        if self.reads_after_s:
            self.checkers.network.at(now + self.reads_after_s, self._take_later, channel, len(body), sequence)
        else:
            self._take(channel, len(body), sequence)

    def _take_later(self, channel: int, body_bytes: int, sequence: int) -> None:
        if not self.over:
            self._take(channel, body_bytes, sequence)
            self.checkers.network.pump(self.host)

    def _take(self, channel: int, body_bytes: int, sequence: int) -> None:
        self.connection.consume(channel, body_bytes)
        if channel and sequence % 3 == 0:  # not every record, so that confirms are cumulative
            try:
                self.connection.confirm(channel, sequence, reached=sequence % 7)
            except ConnectionClosedError:
                return  # a Closed event follows
            self.checkers.confirms.given((self.label, self.gets, channel), sequence, sequence % 7)

    def ended(self) -> None:
        """Record that this end is over: records in flight in either direction may be lost."""
        self.over = True
        if not self._is_orphan:
            self.checkers.delivery.forget(self.label)
            self.checkers.confirms.forget(self.label)

    def orphaned(self) -> None:
        """Record that its peer uses another end under the same label: this one sends no more."""
        self._is_orphan = True
        self.todo = deque()

    def died(self) -> None:
        """Record that the process died."""
        if not self.over:
            self.checkers.lifecycle.died(self.name)
            self.ended()


class Client:
    """A client machine through all its connections."""

    def __init__(self, number: int, plan: ClientPlan, host: Host) -> None:
        self.number = number
        self.plan = plan
        self.host = host
        self.todo_up = deque(replace(send, at_s=plan.start_s + send.at_s) for send in plan.sends_up)
        self.todo_down = deque(replace(send, at_s=plan.start_s + send.at_s) for send in plan.sends_down)
        self.connections = 0
        self.addresses = {host.address}
        """All addresses that it ever had."""
        self.end: End | None = None

    @property
    def label(self) -> str:
        return f"c{self.number}.{self.connections}"


def describe_event(event: Event) -> str:
    details = " ".join(
        f"{name}={len(value) if isinstance(value, bytes) else value}"
        for name in event.__struct_fields__
        if name != "connection"
        for value in (getattr(event, name),)
    )
    return f"{type(event).__name__} {details}"


# -- the world --------------------------------------------------------------------------------------------------------

RECONNECT_S = 0.25
STEP_S = 0.25
HARMLESS = frozenset(
    ("duplication", "reordering", "jitter", "rebind", "client_closes", "server_closes", "late_readers", "small_windows",
     "few_places", "eager", "coarse_timers", "slow_wakes", "short_idle", "small_buffers", "server_dies", "client_dies")
)  # fmt: skip
"""Troubles that interrupt no live connection: with these alone a timeout between live ends is a violation."""


class TransportWorld:
    """One seed, from its plan to its end."""

    def __init__(self, plan: TransportPlan, trace: Trace, endpoint: type[Endpoint] = Endpoint) -> None:
        self.plan = plan
        self.network = Network(trace)
        self.checkers = Checkers(plan.seed, self.network)
        self._endpoint = endpoint
        self._finishing = False
        self._clean_since = 0.0 if HARMLESS.issuperset(plan.troubles) else float("inf")
        self._ends: dict[Connection, End] = {}
        self.server = self._add_host("server", ("192.0.2.1", 4000), plan.server_host)
        self.clients = [
            Client(number, client, self._add_host(f"client{number}", _address(number), client.host))
            for number, client in enumerate(plan.clients)
        ]
        for client in self.clients:
            self._join(client.host, self.server, client.plan.up)
            self._join(self.server, client.host, client.plan.down)
        self.handle_events = TimeoutWatcher()
        self.memory = MemoryWatcher(lambda host: self._node(host).buffered_bytes, self._memory_bound)
        self.network.observers += [
            self.handle_events,
            self.memory,
            AmplificationWatcher("server"),
            TimerWatcher(self._has_work),
        ]

    def run(self) -> None:
        """Run the seed. Raises ViolationError, or any exception from the transport."""
        plan = self.plan
        self._start_server()
        for client in self.clients:
            self.network.at(client.plan.start_s, self._start_client, client)
        for fault in plan.faults:
            self.network.at(fault.at_s, self._apply_fault, fault)
        if plan.attack is not None:
            self._add_attacker()
        self.network.run(plan.faults_end_s)
        self._heal()
        self._until(self._settled, patience_s(plan), "everything outstanding has arrived")
        self._finish()

    # -- building -----------------------------------------------------------------------------------------------------

    def _add_host(self, name: str, address: Address, plan: HostPlan) -> Host:
        return self.network.add_host(
            Host(
                name,
                address,
                joins=plan.joins,
                wake_delay_s=plan.wake_delay_s,
                timer_step_s=plan.timer_step_s,
                epoch_s=plan.epoch_s,
            )
        )

    def _join(self, source: Host, destination: Host, settings: LinkSettings) -> None:
        rng = Random(f"{self.plan.seed} link {source.name} {destination.name}")
        self.network.join(source, destination, ImpairedLink(settings, rng))

    def _add_attacker(self) -> None:
        assert self.plan.attack is not None
        host = self.network.add_host(Host("attacker", ("203.0.113.66", 6666)))
        victims = [self.server, *(client.host for client in self.clients)]
        for victim in victims:
            self._join(host, victim, LinkSettings(delay_s=0.002))
            self._join(victim, host, LinkSettings(delay_s=0.002))
        rng = Random(f"{self.plan.seed} attacker")
        Attacker(self.network, host, victims, self.plan.attack, rng).schedule()

    def _links(self, client: Client) -> tuple[ImpairedLink, ImpairedLink]:
        """Return the links of this client, up and down."""
        links = self.network.links
        return links[client.host.name, "server"], links["server", client.host.name]

    def _node(self, host: Host) -> Endpoint:
        assert isinstance(host.node, Endpoint)
        return host.node

    def _config(self, host: Host) -> EndpointConfig:
        return self.plan.server if host is self.server else self.plan.clients[int(host.name[6:])].config

    def _new_node(self, host: Host) -> Endpoint:
        entropy = Random(f"{self.plan.seed} entropy {host.name} {host.lives}").randbytes
        return self._endpoint(self._config(host), entropy=entropy, sealer=sealer_of_world(entropy))

    def _has_work(self, host: Host) -> bool:
        return bool(self._node(host).connections) or any(
            client.host is host and client.end is not None and not client.end.over for client in self.clients
        )

    def _memory_bound(self, host: Host) -> int:
        config = self._config(host)
        each = (
            config.send_buffer_bytes
            + config.connection_window_bytes
            + UNRELIABLE_QUEUE_BYTES
            + 2 * CONTROL_WINDOW_BYTES
            + config.max_record_bytes
        )
        return each * (len(self._node(host).connections) + 1)  # one may still be in its handshake

    # -- processes and connections ------------------------------------------------------------------------------------

    def _start_server(self) -> None:
        if not self.server.alive:
            self.network.start(self.server, self._new_node(self.server), self._server_application)

    def _start_client(self, client: Client) -> None:
        if not client.host.alive:
            node = self._new_node(client.host)
            self.network.start(client.host, node, lambda events, now: self._client_application(client, events, now))
        self._connect(client)

    def _connect(self, client: Client) -> None:
        if not client.host.alive or self._finishing or (client.end is not None and not client.end.over):
            return
        client.connections += 1
        node = self._node(client.host)
        clock_s = client.host.clock(self.network.now)
        connection = node.connect(self.server.address, clock_s, application=client.label.encode())
        client.end = self._ends[connection] = End(
            self.checkers,
            client.host,
            connection,
            client.label,
            "client",
            client.todo_up,
            client.plan.reads_after_s,
            eager=client.plan.eager,
        )
        client.end.work()

    def _client_application(self, client: Client, events: Sequence[Any], now: float) -> None:
        for event in events:
            end = self._handle(client.host, event, now)
            if isinstance(event, Closed) and end is client.end:
                self.network.at(now + RECONNECT_S, self._connect, client)

    def _server_application(self, events: Sequence[Any], now: float) -> None:
        for event in events:
            if isinstance(event, Connected):
                self._accept(event.connection, event.application.decode())
            self._handle(self.server, event, now)

    def _accept(self, connection: Connection, label: str) -> None:
        """Register a new connection of the server."""
        client = self._client_of(label)
        side = f"server.{self.server.lives}"
        todo = client.todo_down if label == client.label else deque[Sending]()
        known = [end for end in self._ends.values() if end.label == label and end.host is self.server]
        if known:
            side += f".{len(known)}"
            todo = self._meet_again(client, known, todo)
        self._ends[connection] = End(
            self.checkers, self.server, connection, label, side, todo, self.plan.server_reads_after_s
        )

    def _meet_again(self, client: Client, known: list[End], todo: deque[Sending]) -> deque[Sending]:
        """Handle a second connection with one label; return the records that it sends.

        If the client changed its address during the handshake, or the server died, the first connection is unused. If
        an attacker repeated an old handshake, the new one is unused.
        """
        label = known[0].label
        if client.end is not None and client.end.label == label and not client.end.connected:
            for end in known:
                end.orphaned()
            self.checkers.delivery.restart(label, "down")
            return todo
        if self.plan.attack is None or not self.plan.attack.sees:
            raise ViolationError("lifecycle", f"{label}: the server was Connected to it twice")
        return deque()

    def _client_of(self, label: str) -> Client:
        return self.clients[int(label[1 : label.index(".")])]

    def _handle(self, host: Host, event: Any, now: float) -> End:
        end = self._ends.get(event.connection)
        if end is None:
            raise ViolationError("lifecycle", f"{host.name}: {type(event).__name__} for an end that was never opened")
        self.network.trace.note(now, f"event {end.name} {describe_event(event)}")
        if isinstance(event, PathChanged) and event.address not in self._client_of(end.label).addresses:
            raise ViolationError("lifecycle", f"{end.name}: moved to {event.address}, where its peer never was")
        if isinstance(event, Closed) and event.origin in ("timeout", "refused"):
            self._check_time_out(host, end, event, now)
        end.handle(event, now)
        return end

    def _check_time_out(self, host: Host, end: End, event: Closed, now: float) -> None:
        """Check that a refusal is due to the limit of connections, and that a timeout follows an idle period."""
        client = self._client_of(end.label)
        idle_timeout_s = min(client.plan.config.idle_timeout_s, self.plan.server.idle_timeout_s)
        if event.origin == "refused":
            if "few_places" not in self.plan.troubles:
                raise ViolationError("lifecycle", f"{end.name}: refused with code {event.code}, {event.reason!r}")
            return
        if end.connected and not (self.plan.attack is not None and self.plan.attack.forges):
            self.handle_events.timed_out(host, event.connection.id, event.connection.peer_address, idle_timeout_s, now)
        others = [other for other in self._ends.values() if other.label == end.label and other is not end]
        silent = not any(other.connected and not other.over for other in others)
        if not silent and end.connected and now - self._clean_since > idle_timeout_s + 3.0:
            raise ViolationError(
                "lifecycle", f"{end.name}: timed out although both ends were alive and the links clean"
            )

    # -- faults -------------------------------------------------------------------------------------------------------

    def _apply_fault(self, fault: Fault) -> None:
        network = self.network
        client = self.clients[fault.client]
        match fault.kind:
            case "partition":
                network.partition(client.host, self.server, both_ways=fault.client % 2 == 0)
                network.at(network.now + fault.lasts_s, network.heal, client.host, self.server)
            case "rebind":
                host, port, *rest = client.host.address
                if fault.lasts_s > 0.3:
                    host = f"{host}{len(host) % 10}"  # another network, not just another port of a NAT
                network.rebind(client.host, (host, port + 1, *rest))
                client.addresses.add(client.host.address)
            case "route":
                assert fault.route is not None
                for settings, link in zip(fault.route, self._links(client), strict=True):
                    link.change(settings)
            case "pause":
                host = self.server if fault.client % 3 == 2 else client.host
                network.pause(host, network.now + fault.lasts_s)
            case "server_dies":
                self._die(self.server)
                network.at(network.now + fault.lasts_s, self._start_server)
            case "client_dies":
                self._die(client.host)
                network.at(network.now + fault.lasts_s, self._start_client, client)
            case "client_closes":
                if client.end is not None:
                    client.end.close(7, f"client {fault.client} has enough")
            case "server_closes":
                for end in [end for end in self._ends.values() if end.host is self.server and end.connected]:
                    if end.label == client.label:
                        end.close(8, f"no more of client {fault.client}")

    def _die(self, host: Host) -> None:
        if host.alive:
            self.network.kill(host)
            for end in list(self._ends.values()):
                if end.host is host:
                    end.died()

    def _heal(self) -> None:
        """End all faults: every link is clean (with the same delay and bandwidth), every process runs."""
        network = self.network
        network.trace.note(network.now, "heal everything")
        for client in self.clients:
            for settings, link in zip((client.plan.up, client.plan.down), self._links(client), strict=True):
                link.up = True
                link.change(
                    LinkSettings(
                        delay_s=settings.delay_s,
                        bandwidth_bits_per_s=settings.bandwidth_bits_per_s,
                        queue_packets=settings.queue_packets,
                        mtu_bytes=settings.mtu_bytes,
                    )
                )
        self._clean_since = min(self._clean_since, network.now)
        self._start_server()
        for client in self.clients:
            if self.plan.attack is not None and self.plan.attack.forges:
                self._die(client.host)  # it may be stalled by the attacker; a new one must work
            now = network.now
            client.todo_up.append(Sending(now, 0, 100))
            client.todo_down.append(Sending(now, 0, 100))
            self._start_client(client)
            for end in list(self._ends.values()):
                if not end.over and end.connected and end.label == client.label:
                    end.work()

    # -- liveness -----------------------------------------------------------------------------------------------------

    def _settled(self) -> bool:
        return not (
            any(client.todo_up or client.todo_down for client in self.clients)
            or self.checkers.delivery.outstanding()
            or self.checkers.confirms.outstanding()
        )

    def _until(self, done: Any, patience_s: float, what: str) -> None:
        """Run in steps until `done()`. Raises ViolationError if that takes longer than `patience_s`."""
        deadline = self.network.now + patience_s
        while not done():
            if self.network.now >= deadline:
                self.checkers.delivery.complete()
                self.checkers.confirms.complete()
                raise ViolationError("liveness", f"it is not true after {patience_s:.1f} s that {what}{self._todo()}")
            self.network.run(self.network.now + STEP_S)

    def _todo(self) -> str:
        waiting = {
            client.label: (len(client.todo_up), len(client.todo_down))
            for client in self.clients
            if client.todo_up or client.todo_down
        }
        return f"; unsent (up, down): {waiting}" if waiting else ""

    def _finish(self) -> None:
        """Close all connections from one side or the other and check that no state remains."""
        self._finishing = True
        idle_s = self.plan.idle_timeout_s
        for client in self.clients:
            ends = [end for end in self._ends.values() if end.label == client.label and not end.over]
            if ends:
                ends[client.number % len(ends)].close(client.number, "the end of the world")
        hosts = [self.server, *(client.host for client in self.clients)]
        self._until(lambda: not self.checkers.lifecycle.unclosed(), idle_s + 30.0, "every end is closed")
        self._until(
            lambda: not any(self._node(host).connections for host in hosts), idle_s + 30.0, "no connection is left"
        )
        self._until(lambda: all(self._node(host).next_timer() is None for host in hosts), 30.0, "no timer is left")
        for host in hosts:
            if self._node(host).buffered_bytes:
                raise ViolationError(
                    "memory",
                    f"{host.name} holds {self._node(host).buffered_bytes} bytes without a connection",
                )
        self.checkers.lifecycle.complete()
        self.checkers.delivery.complete()
        self.checkers.confirms.complete()


def _address(number: int) -> Address:
    """Return an address; every second client has one as IPv6 sockets return them."""
    return (f"10.0.0.{number + 1}", 40_000) if number % 2 == 0 else (f"2001:db8::{number + 1}", 40_000, 0, 0)


def run_transport(seed: int, trace: Trace, endpoint: type[Endpoint] = Endpoint) -> tuple[str | None, str]:
    """Run one seed; return the violation, if any, and a summary."""
    plan = draw_plan(seed)
    trace.comment(0.0, f"plan {plan}")
    return judge(TransportWorld(plan, trace, endpoint), trace)


def judge(world: TransportWorld, trace: Trace) -> tuple[str | None, str]:
    """Run a world; return the violation, if any, and a summary."""
    violation: str | None = None
    try:
        world.run()
    except ViolationError as error:
        violation = f"at {world.network.now:.6f} s: {error}"
    except LivelockError as error:
        violation = f"at {world.network.now:.6f} s: unrest: {error}"
    except Exception:  # any exception from the transport is a violation
        violation = f"at {world.network.now:.6f} s: an exception escaped:\n{traceback.format_exc()}"
    if violation is not None:
        trace.note(world.network.now, f"VIOLATION {violation}")
    delivery = world.checkers.delivery
    summary = (
        f"{len(world.clients)} clients, {delivery.received_records} records, {delivery.received_bytes} bytes, "
        f"{world.network.now:.0f} s, {trace.notes} notes"
    )
    return violation, summary
