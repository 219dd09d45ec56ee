"""The harness of the broker world: its checkers, and the adapters between the network, the server and the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from godwit.server.server import Listener, Server
from godwit.store.memory import MemoryStore, entry_bytes
from godwit.store.port import Change
from godwit.transport.config import EndpointConfig
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Event, Train
from godwit.wire.batch import Entry
from godwit_sim.broker_connections import ConnectionModel, ReachChecker, RetainedChecker, SessionChecker, WillChecker
from godwit_sim.broker_log_model import SHARED_TIME_US, LogChecker, PublishedMessages
from godwit_sim.broker_restarts import RestartChecker
from godwit_sim.broker_streams import Stream
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Host, Network, Observer

EPOCH_US: Final = 1_700_000_000_000_000
"""The time of day at the start of the simulation."""
HEAD_BYTES: Final = 16
ODD_US: Final = 10**12
"""The largest error of a wrong clock: eleven days."""


class NodeAdapter:
    """Adapt a client or a listener to the interface of the network's nodes."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.receive = machine.receive
        self.handle_timers = machine.handle_timers
        self.events = machine.events
        self.next_timer = machine.next_timer

    def trains(self, now: float) -> Sequence[Train]:
        return list(iter(lambda: self.machine.next_train(now), None))


@dataclass(slots=True)
class Checkers:
    """The checkers of one world."""

    seed: int
    network: Network
    odd_clocks: bool = False
    is_storage_failing: bool = False
    """The disk fails or has failed: requests for durable state may be refused."""
    unseen_topics: tuple[str, ...] = ()
    """Topics with messages of QoS 0 that the connection model cannot count: wills, and those of a hostile client."""
    published: PublishedMessages = field(default_factory=PublishedMessages)
    retained: RetainedChecker = field(default_factory=RetainedChecker)
    wills: WillChecker = field(default_factory=WillChecker)
    log: LogChecker = field(init=False)
    connections: ConnectionModel = field(init=False)
    reach: ReachChecker = field(init=False)
    sessions: SessionChecker = field(init=False)
    restarts: RestartChecker = field(init=False)
    streams: list[Stream] = field(default_factory=list)
    on_learned: Callable[[Sequence[Entry]], None] = lambda entries: None
    """Called with the entries of each durable append, after the checkers here."""
    _count: int = 0
    _date_us: int = EPOCH_US
    _rng: Random = field(init=False)

    def __post_init__(self) -> None:
        self.log = LogChecker(self.published)
        self.connections = ConnectionModel(self.published)
        self.reach = ReachChecker(self.connections)
        self.sessions = SessionChecker(self.connections)
        self.restarts = RestartChecker(self.log)
        self.connections.on_retain = self.retained.changed
        self._rng = Random(f"{self.seed} books")

    @property
    def now_us(self) -> int:
        """Return the right time of day."""
        return EPOCH_US + int(self.network.now * 1e6)

    def note(self, what: str) -> None:
        self.network.trace.note(self.network.now, what)

    def payload(self, size_bytes: int) -> bytes:
        """Return a unique payload, so that a wrong one is noticed."""
        self._count += 1
        head = (b"%d " % self._count).ljust(HEAD_BYTES, b".")
        return head + self._rng.randbytes(max(0, size_bytes - HEAD_BYTES))

    def date_us(self, payload: bytes) -> int:
        """Return the time of day by the sender's clock. Times are unique; those of empty messages keep a distance."""
        if self.odd_clocks and self._rng.random() < 0.3:
            return EPOCH_US + self._rng.randrange(-ODD_US, ODD_US)
        self._date_us = max(self._date_us + (1 if payload else SHARED_TIME_US + 1), self.now_us)
        return self._date_us


def describe(event: Any) -> str:
    """Describe an event of the library in one line, the same in every run."""
    publisher, subscription = getattr(event, "publisher", None), getattr(event, "subscription", None)
    place = f" {publisher.topic} QoS {publisher.qos}" if publisher is not None else ""
    place += f" {' and '.join(subscription.filters)}" if subscription is not None else ""
    details = " ".join(
        f"{name}={getattr(event, name)}"
        for name in event.__struct_fields__
        if name not in ("publisher", "subscription")
    )
    return f"{type(event).__name__}{place} {details}"


# -- adapters around the server ---------------------------------------------------------------------------------------


class WatchedStore(MemoryStore):
    """The shipped store, with every append observed by the checkers."""

    __slots__ = ("_checkers",)

    def __init__(self, max_bytes: int, checkers: Checkers, log_id: bytes) -> None:
        super().__init__(max_bytes, log_id=log_id)
        self._checkers = checkers

    def append(self, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        checkers = self._checkers
        first_offset = super().append(entries, changes)
        now = checkers.network.now
        for entry in entries:
            checkers.network.trace.note(
                now, f"append {entry.topic} {entry.publisher} {entry.count} flags {entry.flags}"
            )
        for publication in checkers.log.appended(first_offset, entries):
            checkers.retained.changed(publication, now)
        checkers.log.deleted_below = self.first_offset
        most_bytes = max(self._max_bytes, sum(map(entry_bytes, entries)))  # the newest append is always stored
        if self.size_bytes > most_bytes:
            raise ViolationError("memory", f"the ring holds {self.size_bytes} bytes, it may hold {most_bytes}")
        return first_offset


class ListenerAdapter(NodeAdapter):
    """A listener as a node; it records when its siblings may have new output."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self.was_fed = False
        self.receive = self._receive
        self.handle_timers = self._handle_timers

    def _receive(self, train: Train, now: float) -> None:
        self.was_fed = True
        self.machine.receive(train, now)

    def _handle_timers(self, now: float) -> None:
        self.was_fed = True
        self.machine.handle_timers(now)


class SiblingListeners(Observer):
    """Drain all listeners after input to one of them: they share one broker."""

    def __init__(self, checkers: Checkers, hosts: Sequence[Host]) -> None:
        self._checkers = checkers
        self._network = checkers.network
        self._hosts = hosts

    def drained(self, host: Host, now: float) -> None:
        node = host.node
        if isinstance(node, ListenerAdapter) and node.was_fed:
            node.was_fed = False
            self._checkers.wills.check()
            for other in self._hosts:
                if other is not host:
                    self._network.at(now, self._network.pump, other)


class ObservedEndpoint(Endpoint):
    """Passes its events to `hear` before the broker receives them."""

    hear: Callable[[Sequence[Event]], None] | None = None

    def events(self) -> list[Event]:
        found = super().events()
        if found and self.hear is not None:
            self.hear(found)
        return found


def observe_events(server: Server, config: EndpointConfig, hear: Callable[[Sequence[Event]], None]) -> Listener:
    """Add a listener to a server, and pass the transport's events to `hear` before the broker receives them."""
    listener = server.listen(config, ObservedEndpoint)
    assert isinstance(listener.endpoint, ObservedEndpoint)
    listener.endpoint.hear = hear
    return listener
