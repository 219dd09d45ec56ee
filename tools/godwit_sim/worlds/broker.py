"""The broker world: the server and many clients as they ship, over an invented network, from one seed.

Safety first: while faults last, nothing wrong may be delivered, confirmed, retained, published for the dead or kept.
Then liveness: the network heals, everybody is there and reads, and within a bounded time everything that was promised
has happened; then all say goodbye, and nothing is left behind.
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
from godwit.transport.events import Event
from godwit.transport.train import Address
from godwit_sim.broker_connections import Seat
from godwit_sim.checkers import MemoryWatcher, TimerWatcher, ViolationError
from godwit_sim.network import Host, Network, Trace, UnrestError
from godwit_sim.worlds.broker_clients import Person
from godwit_sim.worlds.broker_harness import EPOCH_US, Books, ListenerShell, Siblings, WatchedStore, listen_at
from godwit_sim.worlds.broker_hostile import TOPIC, Hostile
from godwit_sim.worlds.broker_plan import BrokerPlan, Fault, PublicationPlan, draw_plan
from godwit_sim.worlds.transport_plan import HostPlan

STEP_S = 0.25
MAX_MESSAGE_BYTES = 128 * KIB
APPEND_COST = 4
"""So many times its record's credit an append counts at most while it is held back: small ones have overhead."""


class BrokerWorld:
    """One seed, from its plan to its end."""

    def __init__(self, plan: BrokerPlan, trace: Trace, server: type[Server] = Server) -> None:
        self.plan = plan
        self.network = Network(trace)
        self._is_finishing = False
        unseen = [client.will.topic for client in plan.clients if client.will is not None and not client.will.qos]
        if plan.hostile is not None:
            unseen.append(TOPIC)
        self.books = Books(
            plan.seed,
            self.network,
            odd_clocks="odd_clocks" in plan.troubles,
            unseen_topics=tuple(unseen),
        )
        self.books.roster.on_closed = self._on_closed
        self.hosts = [
            self._add_host(f"server{number}", (f"192.0.2.{number + 1}", 50_000), host)
            for number, host in enumerate(plan.server_hosts)
        ]
        self.persons = [self._add_person(number) for number in range(len(plan.clients))]
        self.hostile = self._add_hostile()
        self._server_kind = server
        self._begin_server()
        self.memory = MemoryWatcher(self._used_bytes, self._memory_bound)
        self.network.observers += [Siblings(self.books, self.hosts), self.memory, TimerWatcher(self._has_work)]

    def run(self) -> None:
        """Raises ViolationError, or whatever escapes from what is tested."""
        self.start()
        self.network.run(self.plan.faults_end_s)
        self._heal()
        self._until(self._unsettled, self._patience_s(), "everything is settled")
        self._check_all()
        self._finish()

    def start(self) -> None:
        """Everything that the plan wants is on its way."""
        network = self.network
        self._start_server()
        for person in self.persons:
            network.at(person.plan.start_s, person.begin)
        for fault in self.plan.faults:
            network.at(fault.at_s, self._befall, fault)
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

    def _add_person(self, number: int) -> Person:
        plan = self.plan.clients[number]
        host = self._add_host(f"client{number}", (f"10.0.0.{number + 1}", 40_000), plan.host)
        server = self.hosts[plan.listener]
        self._join(host, server, plan.up)
        self._join(server, host, plan.down)
        return Person(self.books, number, plan, host, server.address)

    def _add_hostile(self) -> Hostile | None:
        if self.plan.hostile is None:
            return None
        host = self.network.add_host(Host("hostile", ("203.0.113.66", 6666)))
        for server in self.hosts:
            self._join(host, server, LinkSettings(delay_s=0.002))
            self._join(server, host, LinkSettings(delay_s=0.002))
        return Hostile(self.books, host, self.plan, self.hosts[0].address)

    def _join(self, source: Host, destination: Host, settings: LinkSettings) -> None:
        rng = Random(f"{self.plan.seed} link {source.name} {destination.name}")
        self.network.join(source, destination, ImpairedLink(settings, rng))

    def _begin_server(self) -> None:
        """Makes the log and the server; neither runs yet."""
        self.store = WatchedStore(self.plan.ring_bytes, self.books, b"log of the world")
        self.server = self._make_server(MemoryLog(self.store), "server", EPOCH_US)

    def _start_server(self) -> None:
        for host, listener in zip(self.hosts, self.server.listeners, strict=True):
            self.network.start(host, ListenerShell(listener), lambda events, now: None)

    def _make_server(self, log: Log, label: str, epoch_us: int) -> Server:
        settings = self._settings()
        config = self._config(settings)
        self._connection_bytes = _most_bytes(config)
        entropy = Random(f"{self.plan.seed} entropy {label}").randbytes
        now = self.hosts[0].clock(self.network.now)
        made = self._server_kind(settings, log, entropy=entropy, now=now, epoch_us=epoch_us)
        for _ in self.hosts:
            listen_at(made.listen(config), self._overhear)
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
        """What a listener offers: as it ships, but for its patience."""
        drawn = self.plan.server
        return replace(
            endpoint_config(settings, receive_buffer_bytes=drawn.receive_buffer_bytes),
            max_datagram_bytes=drawn.max_datagram_bytes,
            idle_timeout_s=drawn.idle_timeout_s,
            keep_alive_s=drawn.keep_alive_s,
            reset_key=drawn.reset_key,
        )

    def _overhear(self, events: Sequence[Event]) -> None:
        """The broker is about to get these events of its transport."""
        self.books.roster.heard(events, self.network.now)

    # -- what watchers ask --------------------------------------------------------------------------------------------

    def _used_bytes(self, host: Host) -> int:
        return self.server.buffered_bytes if host in self.hosts else 0

    def _memory_bound(self, host: Host) -> int:
        """What the settings and the transport's limits allow for each connection, however it behaves."""
        if host not in self.hosts:
            return 0
        connections = sum(len(listener.endpoint.connections) for listener in self.server.listeners)
        return self._connection_bytes * (connections + 1)

    @property
    def _clients(self) -> int:
        """How many are connected when all is well."""
        return len(self.persons)

    def _has_work(self, host: Host) -> bool:
        if host in self.hosts:
            return bool(self.server.listeners[self.hosts.index(host)].endpoint.connections)
        return any(person.host is host and person.client is not None and person.is_online for person in self.persons)

    def _on_closed(self, seat: Seat, now: float) -> None:
        roster = self.books.roster
        heirs = [other for other in roster.seats if other.name == seat.name and other.instance in roster.honest]
        self.books.wills.closed(seat, heirs[-1].instance if heirs and seat.name is not None else None)

    def summary(self) -> str:
        """In a few words."""
        streams = self.books.streams
        received = sum(stream.received for stream in streams)
        missed = sum(stream.missed for stream in streams)
        return (
            f"{len(self.persons)} clients, {len(self.books.ledger.publications)} published, "
            f"{self.books.log.next_offset} logged, {len(streams)} subscriptions, {received} received, {missed} missed, "
            f"{self.network.now:.0f} s, {self.network.trace.notes} notes"
        )

    # -- trouble ------------------------------------------------------------------------------------------------------

    def _befall(self, fault: Fault) -> None:
        network = self.network
        person = self.persons[fault.client]
        server = self.hosts[person.plan.listener]
        match fault.kind:
            case "partition":
                network.partition(person.host, server, both_ways=fault.client % 2 == 0)
                network.at(network.now + fault.lasts_s, network.heal, person.host, server)
            case "rebind":
                ip, port = person.host.address
                network.rebind(person.host, (f"{ip}9" if fault.lasts_s > 0.3 and len(ip) < 12 else ip, port + 1))
            case "route":
                assert fault.route is not None
                for settings, link in zip(fault.route, self._links(person), strict=True):
                    link.change(settings)
            case "pause":
                network.pause(server if fault.client % 3 == 2 else person.host, network.now + fault.lasts_s)
            case "client_dies":
                person.die()
                network.at(network.now + fault.lasts_s, lambda: person.begin(fresh=fault.fresh))
            case "client_closes":
                person.close()
                network.at(network.now + fault.lasts_s + 0.5, self._return, person)

    def _return(self, person: Person) -> None:
        """Comes back after a close, if it has closed."""
        if person.is_closing and not self._is_finishing:
            person.die()
            person.begin()

    def _links(self, person: Person) -> tuple[ImpairedLink, ImpairedLink]:
        server = self.hosts[person.plan.listener].name
        return self.network.links[person.host.name, server], self.network.links[server, person.host.name]

    def _heal(self) -> None:
        """No more faults: every line is clean (as long and as wide as before), every process runs and reads."""
        network = self.network
        network.trace.note(network.now, "heal everything")
        if self.hostile is not None:
            self.hostile.leave()
        for person in self.persons:
            for settings, link in zip((person.plan.up, person.plan.down), self._links(person), strict=True):
                link.up = True
                link.change(
                    LinkSettings(
                        delay_s=settings.delay_s,
                        bandwidth_bits_per_s=settings.bandwidth_bits_per_s,
                        queue_packets=settings.queue_packets,
                    )
                )
            self._return(person)
            person.begin()
            person.reader.read_at_once()
            for qos in (0, 1, 2):
                for topic in dict.fromkeys(one.topic for one in person.plan.publications if one.qos == qos):
                    person.todo.append(PublicationPlan(network.now, topic, qos, 50))
            person.work()

    # -- liveness -----------------------------------------------------------------------------------------------------

    def _patience_s(self) -> float:
        """How long it may take until everything is settled: generous, but finite."""
        plan = self.plan
        idle_s = max(plan.server.idle_timeout_s, *(client.endpoint.idle_timeout_s for client in plan.clients))
        published = [len(one.payload) + 200 for one in self.books.ledger.publications]
        published += [one.size_bytes + 200 for person in self.persons for one in person.todo]
        slowest_s = 0.0
        for client in plan.clients:
            if (
                client.endpoint.arq == "stop-and-wait"
            ):  # a datagram takes a round trip, and a copy for each subscription
                datagrams = sum(published) / BASE_DATAGRAM_BYTES * (1 + len(client.subscriptions)) + len(published)
                slowest_s = max(slowest_s, datagrams * (client.up.delay_s + client.down.delay_s + 0.01))
        return 30.0 + 2 * idle_s + 2 * NAME_PING_S + 4 * plan.hold_back_s + 2 * slowest_s

    def _unsettled(self) -> str:
        """What is not yet as it should be, in words; empty: all is well."""
        for person in self.persons:
            if not person.is_online:
                return f"{person.label} is not online"
            if person.todo:
                return f"{person.label} has {len(person.todo)} messages to send"
            if person.unconfirmed:
                return f"{person.label} waits for {person.unconfirmed} confirms"
            for desk in person.reader.desks:
                if not desk.stream.is_answered:
                    return f"{desk.stream.name} has no answer"
                if desk.stream.outstanding():
                    return f"{desk.stream.name} waits for offsets {desk.stream.outstanding()[:5]}"
                if desk.is_new and (kept := self.books.retained.missing(desk.stream, desk.asked_s)) is not None:
                    return f"{desk.stream.name} waits for {kept}, which is retained"
        present = sum(not seat.is_over for seat in self.books.roster.seats)
        if present > self._clients:
            return f"the broker believes in {present} connections"
        return self.books.wills.outstanding()

    def _until(self, unsettled: Callable[[], str], patience_s: float, what: str) -> None:
        """Runs in steps until nothing is unsettled; a violation if that takes longer than `patience_s`."""
        deadline = self.network.now + patience_s
        while problem := unsettled():
            if self.network.now >= deadline:
                raise ViolationError("liveness", f"it is not true after {patience_s:.1f} s that {what}: {problem}")
            self.network.run(self.network.now + STEP_S)

    def _check_all(self) -> None:
        """Everything was settled: what is not there now never comes."""
        for person in self.persons:
            for desk in person.reader.desks:
                desk.stream.complete()
                if desk.is_new is not None:
                    self.books.retained.check(desk.stream, desk.asked_s, all_is_there=desk.is_new)
        self.books.wills.complete()
        for publication in self.books.ledger.publications:
            is_lost = publication in self.books.log.lost and not publication.offsets
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
        """Everybody says goodbye; no will is published for that, and the server holds nothing for nobody."""
        self._is_finishing = True
        before = self.books.log.next_offset
        for person in self.persons:
            person.close()
        listeners = self.server.listeners
        self._until(
            lambda: "connections are left" if any(one.endpoint.connections for one in listeners) else "",
            60.0,
            "no connection is left",
        )
        if self.books.log.next_offset != before:
            raise ViolationError("will", f"{self.books.log.at(before)} was published after a goodbye")
        if self.server.buffered_bytes:
            raise ViolationError("memory", f"the server holds {self.server.buffered_bytes} bytes for nobody")
        self.books.wills.complete()


def _most_bytes(config: EndpointConfig) -> int:
    """What a server may hold for one connection."""
    coming_bytes = config.connection_window_bytes + config.max_record_bytes
    return (
        config.send_buffer_bytes
        + coming_bytes * (1 + APPEND_COST)
        + UNRELIABLE_QUEUE_BYTES
        + CONTROL_QUEUE_BYTES
        + 2 * CONTROL_WINDOW_BYTES
    )


def run_broker(seed: int, trace: Trace, server: type[Server] = Server) -> tuple[str | None, str]:
    """Runs one seed; gives the violation, if any, and a summary."""
    plan = draw_plan(seed)
    trace.comment(0.0, f"plan {plan}")
    return observe(BrokerWorld(plan, trace, server))


def observe(world: BrokerWorld) -> tuple[str | None, str]:
    """Runs a world; gives the violation, if any, and a summary."""
    violation: str | None = None
    try:
        world.run()
    except ViolationError as error:
        violation = f"at {world.network.now:.6f} s: {error}"
    except UnrestError as error:
        violation = f"at {world.network.now:.6f} s: unrest: {error}"
    except Exception:  # whatever escapes from what is tested is a violation: that is what this world is for
        violation = f"at {world.network.now:.6f} s: an exception escaped:\n{traceback.format_exc()}"
    if violation is not None:
        world.network.trace.note(world.network.now, f"VIOLATION {violation}")
    return violation, world.summary()
