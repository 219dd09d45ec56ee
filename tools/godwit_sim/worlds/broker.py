"""The broker world: the shipped server and many clients over a simulated network, from one seed.

Safety: while faults last, no wrong message may be delivered, confirmed, retained, published as a will or stored.
Liveness: after the network has healed, all clients are connected and read, and within a bounded time all promises are
fulfilled. Then all clients close, and the server must hold no memory for them.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from godwit.broker.access import Access
from godwit.broker.settings import Settings
from godwit.impairment import ImpairedLink, LinkSettings
from godwit.limits import (
    BASE_DATAGRAM_BYTES,
    CONTROL_QUEUE_BYTES,
    CONTROL_WINDOW_BYTES,
    KIB,
    NAME_PING_S,
    UNRELIABLE_QUEUE_BYTES,
)
from godwit.server.log import Log
from godwit.server.memory_log import MemoryLog
from godwit.server.server import Server, endpoint_config
from godwit.transport.config import EndpointConfig
from godwit.transport.events import Address, Event
from godwit_sim.broker_connections import ConnectionRecord
from godwit_sim.checkers import MemoryWatcher, TimerWatcher, ViolationError
from godwit_sim.network import Host, LivelockError, Network, Trace
from godwit_sim.sealing import sealer_of_world
from godwit_sim.worlds.broker_clients import ClientApp
from godwit_sim.worlds.broker_harness import (
    EPOCH_US,
    Checkers,
    ListenerAdapter,
    SiblingListeners,
    WatchedStore,
    observe_events,
)
from godwit_sim.worlds.broker_hostile import TOPIC, Hostile
from godwit_sim.worlds.broker_plan import BrokerPlan, Fault, PublicationPlan, draw_plan
from godwit_sim.worlds.transport_plan import HostPlan

STEP_S = 0.25
MAX_MESSAGE_BYTES = 128 * KIB
APPEND_COST = 4
"""The most times its record's credit that a delayed append is counted: small records have overhead."""


class BrokerWorld:
    """One seed, from its plan to its end."""

    def __init__(self, plan: BrokerPlan, trace: Trace, server: type[Server] = Server) -> None:
        self.plan = plan
        self.network = Network(trace)
        self._is_finishing = False
        unseen = [client.will.topic for client in plan.clients if client.will is not None and not client.will.qos]
        if plan.hostile is not None:
            unseen.append(TOPIC)
        self.checkers = Checkers(
            plan.seed,
            self.network,
            odd_clocks="odd_clocks" in plan.troubles,
            unseen_topics=tuple(unseen),
        )
        self.checkers.connections.on_closed = self._on_closed
        self.hosts = [
            self._add_host(f"server{number}", (f"192.0.2.{number + 1}", 50_000), host)
            for number, host in enumerate(plan.server_hosts)
        ]
        self.apps = [self._add_app(number) for number in range(len(plan.clients))]
        self.hostile = self._add_hostile()
        self._server_kind = server
        self._begin_server()
        self.memory = MemoryWatcher(self._used_bytes, self._memory_bound)
        self.network.observers += [
            SiblingListeners(self.checkers, self.hosts),
            self.memory,
            TimerWatcher(self._has_work),
        ]

    def run(self) -> None:
        """Run the seed. Raises ViolationError, or any exception from the code under test."""
        self.start()
        self.network.run(self.plan.faults_end_s)
        self._heal()
        self._until(self._unsettled, self._patience_s(), "everything is settled")
        self._check_all()
        self._finish()

    def start(self) -> None:
        """Start the server and schedule all clients and faults of the plan."""
        network = self.network
        self._start_server()
        for app in self.apps:
            network.at(app.plan.start_s, app.begin)
        for fault in self.plan.faults:
            network.at(fault.at_s, self._apply_fault, fault)
        if self.hostile is not None:
            self.hostile.schedule()

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

    def _add_app(self, number: int) -> ClientApp:
        plan = self.plan.clients[number]
        host = self._add_host(f"client{number}", (f"10.0.0.{number + 1}", 40_000), plan.host)
        server = self.hosts[plan.listener]
        self._join(host, server, plan.up)
        self._join(server, host, plan.down)
        return ClientApp(self.checkers, number, plan, host, server.address)

    def _add_hostile(self) -> Hostile | None:
        if self.plan.hostile is None:
            return None
        host = self.network.add_host(Host("hostile", ("203.0.113.66", 6666)))
        for server in self.hosts:
            self._join(host, server, LinkSettings(delay_s=0.002))
            self._join(server, host, LinkSettings(delay_s=0.002))
        return Hostile(self.checkers, host, self.plan, self.hosts[0].address)

    def _join(self, source: Host, destination: Host, settings: LinkSettings) -> None:
        rng = Random(f"{self.plan.seed} link {source.name} {destination.name}")
        self.network.join(source, destination, ImpairedLink(settings, rng))

    def _begin_server(self) -> None:
        """Create the log and the server without starting them."""
        self.store = WatchedStore(self.plan.ring_bytes, self.checkers, b"log of the world")
        self.server = self._make_server(MemoryLog(self.store), "server", EPOCH_US)

    def _start_server(self) -> None:
        for host, listener in zip(self.hosts, self.server.listeners, strict=True):
            self.network.start(host, ListenerAdapter(listener), lambda events, now: None)

    def _make_server(self, log: Log, label: str, epoch_us: int) -> Server:
        settings = self._settings()
        config = self._config(settings)
        self._connection_bytes = _most_bytes(config)
        entropy = Random(f"{self.plan.seed} entropy {label}").randbytes
        now = self.hosts[0].clock(self.network.now)
        sealer = sealer_of_world(entropy)
        made = self._server_kind(settings, log, entropy=entropy, now=now, epoch_us=epoch_us, sealer=sealer)
        for _ in self.hosts:
            observe_events(made, config, self._observe_events)
        return made

    def _settings(self) -> Settings:
        plan = self.plan
        return Settings(
            access=Access(is_open=True, secrets=plan.secrets),
            ring_bytes=plan.ring_bytes,
            client_window_bytes=plan.client_window_bytes,
            max_message_bytes=MAX_MESSAGE_BYTES,
            hold_back_s=plan.hold_back_s,
        )

    def _config(self, settings: Settings) -> EndpointConfig:
        """Return the configuration of a listener: as shipped, except for its timeouts."""
        drawn = self.plan.server
        return replace(
            endpoint_config(settings, receive_buffer_bytes=drawn.receive_buffer_bytes),
            max_datagram_bytes=drawn.max_datagram_bytes,
            idle_timeout_s=drawn.idle_timeout_s,
            keep_alive_s=drawn.keep_alive_s,
            reset_key=drawn.reset_key,
        )

    def _observe_events(self, events: Sequence[Event]) -> None:
        """Record events that the broker is about to receive from its transport."""
        self.checkers.connections.handle_events(events, self.network.now)

    # -- queries of the watchers --------------------------------------------------------------------------------------

    def _used_bytes(self, host: Host) -> int:
        return self.server.buffered_bytes if host in self.hosts else 0

    def _memory_bound(self, host: Host) -> int:
        """Return the bytes that the settings and the transport's limits allow for all connections."""
        if host not in self.hosts:
            return 0
        connections = sum(len(listener.endpoint.connections) for listener in self.server.listeners)
        return self._connection_bytes * (connections + 1)

    @property
    def _clients(self) -> int:
        """Return how many clients are connected after the faults."""
        return len(self.apps)

    def _has_work(self, host: Host) -> bool:
        if host in self.hosts:
            return bool(self.server.listeners[self.hosts.index(host)].endpoint.connections)
        return any(app.host is host and app.client is not None and app.is_online for app in self.apps)

    def _on_closed(self, conn: ConnectionRecord, now: float) -> None:
        connections = self.checkers.connections
        if conn.name is None:  # only the same client replaces its connection
            self.checkers.wills.closed(conn, conn.instance)
            return
        successors = [
            other for other in connections.records if other.name == conn.name and other.instance in connections.honest
        ]
        self.checkers.wills.closed(conn, successors[-1].instance if successors else None)

    def summary(self) -> str:
        """Return a summary in a few words."""
        streams = self.checkers.streams
        received = sum(stream.received for stream in streams)
        missed = sum(stream.missed for stream in streams)
        return (
            f"{len(self.apps)} clients, {len(self.checkers.published.publications)} published, "
            f"{self.checkers.log.next_offset} logged, {len(streams)} subscriptions, "
            f"{received} received, {missed} missed, "
            f"{self.network.now:.0f} s, {self.network.trace.notes} notes"
        )

    # -- faults -------------------------------------------------------------------------------------------------------

    def _apply_fault(self, fault: Fault) -> None:
        network = self.network
        app = self.apps[fault.client]
        server = self.hosts[app.plan.listener]
        match fault.kind:
            case "partition":
                network.partition(app.host, server, both_ways=fault.client % 2 == 0)
                network.at(network.now + fault.lasts_s, network.heal, app.host, server)
            case "rebind":
                ip, port = app.host.address
                network.rebind(app.host, (f"{ip}9" if fault.lasts_s > 0.3 and len(ip) < 12 else ip, port + 1))
            case "route":
                assert fault.route is not None
                for settings, link in zip(fault.route, self._links(app), strict=True):
                    link.change(settings)
            case "pause":
                network.pause(server if fault.client % 3 == 2 else app.host, network.now + fault.lasts_s)
            case "client_dies":
                app.die()
                network.at(network.now + fault.lasts_s, lambda: app.begin(fresh=fault.fresh))
            case "client_closes":
                app.close()
                network.at(network.now + fault.lasts_s + 0.5, self._return, app)

    def _return(self, app: ClientApp) -> None:
        """Restart a client after a close, if it has closed."""
        if app.is_closing and not self._is_finishing:
            app.die()
            app.begin()

    def _links(self, app: ClientApp) -> tuple[ImpairedLink, ImpairedLink]:
        server = self.hosts[app.plan.listener].name
        return self.network.links[app.host.name, server], self.network.links[server, app.host.name]

    def _heal(self) -> None:
        """End all faults: every link is clean (with the same delay and bandwidth), every process runs and reads."""
        network = self.network
        network.trace.note(network.now, "heal everything")
        if self.hostile is not None:
            self.hostile.leave()
        for app in self.apps:
            for settings, link in zip((app.plan.up, app.plan.down), self._links(app), strict=True):
                link.up = True
                link.change(
                    LinkSettings(
                        delay_s=settings.delay_s,
                        bandwidth_bits_per_s=settings.bandwidth_bits_per_s,
                        queue_packets=settings.queue_packets,
                    )
                )
            self._return(app)
            app.begin()
            app.reader.read_at_once()
            for qos in (0, 1, 2):
                for topic in dict.fromkeys(one.topic for one in app.plan.publications if one.qos == qos):
                    app.todo.append(PublicationPlan(network.now, topic, qos, 50))
            app.work()

    # -- liveness -----------------------------------------------------------------------------------------------------

    def _patience_s(self) -> float:
        """Return how long it may take until all is settled: generous, but finite."""
        plan = self.plan
        idle_s = max(plan.server.idle_timeout_s, *(client.endpoint.idle_timeout_s for client in plan.clients))
        published = [len(one.payload) + 200 for one in self.checkers.published.publications]
        published += [one.size_bytes + 200 for app in self.apps for one in app.todo]
        slowest_s = 0.0
        for client in plan.clients:
            if (
                client.endpoint.arq == "stop-and-wait"
            ):  # each datagram takes a round trip, with a copy for each subscription
                datagrams = sum(published) / BASE_DATAGRAM_BYTES * (1 + len(client.subscriptions)) + len(published)
                slowest_s = max(slowest_s, datagrams * (client.up.delay_s + client.down.delay_s + 0.01))
        return 30.0 + 2 * idle_s + 2 * NAME_PING_S + 4 * plan.hold_back_s + 2 * slowest_s

    def _unsettled(self) -> str:
        """Describe something that is not yet as it must be; return an empty string if all is settled."""
        for app in self.apps:
            if not app.is_online:
                return f"{app.label} is not online"
            if app.todo:
                return f"{app.label} has {len(app.todo)} messages to send"
            if app.unconfirmed:
                return f"{app.label} waits for {app.unconfirmed} confirms"
            for sub in app.reader.subscriptions:
                if not sub.stream.is_answered:
                    return f"{sub.stream.name} has no answer"
                if sub.stream.outstanding():
                    return f"{sub.stream.name} waits for offsets {sub.stream.outstanding()[:5]}"
                if sub.is_new and (kept := self.checkers.retained.missing(sub.stream, sub.asked_s)) is not None:
                    return f"{sub.stream.name} waits for {kept}, which is retained"
        present = sum(not conn.is_over for conn in self.checkers.connections.records)
        if present > self._clients:
            return f"the broker believes in {present} connections"
        return self.checkers.wills.outstanding()

    def _until(self, unsettled: Callable[[], str], patience_s: float, what: str) -> None:
        """Run in steps until all is settled. Raises ViolationError if that takes longer than `patience_s`."""
        deadline = self.network.now + patience_s
        while problem := unsettled():
            if self.network.now >= deadline:
                raise ViolationError("liveness", f"it is not true after {patience_s:.1f} s that {what}: {problem}")
            self.network.run(self.network.now + STEP_S)

    def _check_all(self) -> None:
        """Check that all messages and wills have arrived, now that all is settled."""
        for app in self.apps:
            for sub in app.reader.subscriptions:
                sub.stream.complete()
                if sub.is_new is not None:
                    self.checkers.retained.check(sub.stream, sub.asked_s, all_is_there=sub.is_new)
        self.checkers.wills.complete()
        for publication in self.checkers.published.publications:
            is_lost = publication in self.checkers.log.lost and not publication.offsets
            if (
                publication.qos == 2
                and publication.confirmed_s is not None
                and not is_lost
                and len(publication.offsets) != 1
            ):
                raise ViolationError(
                    "log", f"{publication} was confirmed and is there {len(publication.offsets)} times"
                )

    def _finish(self) -> None:
        """Close all clients; check that no will is published for that, and that the server holds no memory."""
        self._is_finishing = True
        before = self.checkers.log.next_offset
        for app in self.apps:
            app.close()
        listeners = self.server.listeners
        self._until(
            lambda: "connections are left" if any(one.endpoint.connections for one in listeners) else "",
            60.0,
            "no connection is left",
        )
        if self.checkers.log.next_offset != before:
            raise ViolationError("will", f"{self.checkers.log.at(before)} was published after a regular close")
        if self.server.buffered_bytes:
            raise ViolationError("memory", f"the server holds {self.server.buffered_bytes} bytes without a connection")
        self.checkers.wills.complete()


def _most_bytes(config: EndpointConfig) -> int:
    """Return the most bytes that a server may hold for one connection."""
    coming_bytes = config.connection_window_bytes + config.max_record_bytes
    return (
        config.send_buffer_bytes
        + coming_bytes * (1 + APPEND_COST)
        + UNRELIABLE_QUEUE_BYTES
        + CONTROL_QUEUE_BYTES
        + 2 * CONTROL_WINDOW_BYTES
    )


def run_broker(seed: int, trace: Trace, server: type[Server] = Server) -> tuple[str | None, str]:
    """Run one seed; return the violation, if any, and a summary."""
    plan = draw_plan(seed)
    trace.comment(0.0, f"plan {plan}")
    return observe(BrokerWorld(plan, trace, server))


def observe(world: BrokerWorld) -> tuple[str | None, str]:
    """Run a world; return the violation, if any, and a summary."""
    violation: str | None = None
    try:
        world.run()
    except ViolationError as error:
        violation = f"at {world.network.now:.6f} s: {error}"
    except LivelockError as error:
        violation = f"at {world.network.now:.6f} s: unrest: {error}"
    except Exception:  # any exception from the code under test is a violation
        violation = f"at {world.network.now:.6f} s: an exception escaped:\n{traceback.format_exc()}"
    if violation is not None:
        world.network.trace.note(world.network.now, f"VIOLATION {violation}")
    return violation, world.summary()
