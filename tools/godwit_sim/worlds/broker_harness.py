"""The books of the broker world: all checkers of one seed, what messages look like, and a shell for what is tested.

What stands between the server and the broker world: a log that is read along, listeners as the network's nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from godwit.server.server import Listener
from godwit.store.memory import MemoryStore, entry_bytes
from godwit.store.port import Change
from godwit.transport.events import Event
from godwit.transport.train import Train
from godwit.wire.entry import Entry
from godwit_sim.broker_connections import ReachChecker, RetainedChecker, Roster, SessionChecker, WillChecker
from godwit_sim.broker_log_model import TOGETHER_US, Ledger, LogChecker
from godwit_sim.broker_restarts import RestartChecker
from godwit_sim.broker_streams import Stream
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Host, Network, Observer

EPOCH_US: Final = 1_700_000_000_000_000
"""What a calendar shows when the world begins."""
HEAD_BYTES: Final = 16
ODD_US: Final = 10**12
"""A wrong calendar is wrong by up to this, eleven days."""


class Shell:
    """Gives the network what it asks of a node, around anything with the driver's contract."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.receive = machine.receive
        self.handle_timers = machine.handle_timers
        self.events = machine.events
        self.next_timer = machine.next_timer

    def trains(self, now: float) -> Sequence[Train]:
        return list(iter(lambda: self.machine.next_train(now), None))


@dataclass(slots=True)
class Books:
    """The checkers of one world."""

    seed: int
    network: Network
    odd_clocks: bool = False
    is_storage_failing: bool = False
    """The disk fails the broker now or has done so: whoever asks for something durable may be refused."""
    unseen_topics: tuple[str, ...] = ()
    """Where messages of QoS 0 come from that the roster cannot count: wills, and what somebody hostile publishes."""
    ledger: Ledger = field(default_factory=Ledger)
    retained: RetainedChecker = field(default_factory=RetainedChecker)
    wills: WillChecker = field(default_factory=WillChecker)
    log: LogChecker = field(init=False)
    roster: Roster = field(init=False)
    reach: ReachChecker = field(init=False)
    sessions: SessionChecker = field(init=False)
    restarts: RestartChecker = field(init=False)
    streams: list[Stream] = field(default_factory=list)
    on_learned: Callable[[Sequence[Entry]], None] = lambda entries: None
    """Told of each append that is safe, when the checkers here know it."""
    _count: int = 0
    _date_us: int = EPOCH_US
    _rng: Random = field(init=False)

    def __post_init__(self) -> None:
        self.log = LogChecker(self.ledger)
        self.roster = Roster(self.ledger)
        self.reach = ReachChecker(self.roster)
        self.sessions = SessionChecker(self.roster)
        self.restarts = RestartChecker(self.log)
        self.roster.on_retain = self.retained.changed
        self._rng = Random(f"{self.seed} books")

    @property
    def now_us(self) -> int:
        """What a right calendar shows."""
        return EPOCH_US + int(self.network.now * 1e6)

    def note(self, what: str) -> None:
        self.network.trace.note(self.network.now, what)

    def payload(self, size_bytes: int) -> bytes:
        """Nobody else's, so that a wrong one is noticed."""
        self._count += 1
        head = (b"%d " % self._count).ljust(HEAD_BYTES, b".")
        return head + self._rng.randbytes(max(0, size_bytes - HEAD_BYTES))

    def date_us(self, payload: bytes) -> int:
        """What the sender's calendar shows. No two dates are equal, and those of empty messages keep their distance."""
        if self.odd_clocks and self._rng.random() < 0.3:
            return EPOCH_US + self._rng.randrange(-ODD_US, ODD_US)
        self._date_us = max(self._date_us + (1 if payload else TOGETHER_US + 1), self.now_us)
        return self._date_us


def describe(event: Any) -> str:
    """An event of the library in one line, the same in every run."""
    publisher, subscription = getattr(event, "publisher", None), getattr(event, "subscription", None)
    place = f" {publisher.topic} QoS {publisher.qos}" if publisher is not None else ""
    place += f" {' and '.join(subscription.filters)}" if subscription is not None else ""
    details = " ".join(
        f"{name}={getattr(event, name)}"
        for name in event.__struct_fields__
        if name not in ("publisher", "subscription")
    )
    return f"{type(event).__name__}{place} {details}"


class WatchedStore(MemoryStore):
    """The shipped store, with somebody who reads along."""

    __slots__ = ("_books",)

    def __init__(self, max_bytes: int, books: Books, log_id: bytes) -> None:
        super().__init__(max_bytes, log_id=log_id)
        self._books = books

    def append(self, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        books = self._books
        first_offset = super().append(entries, changes)
        now = books.network.now
        for entry in entries:
            books.network.trace.note(now, f"append {entry.topic} {entry.publisher} {entry.count} flags {entry.flags}")
        for publication in books.log.appended(first_offset, entries):
            books.retained.changed(publication, now)
        books.log.gone_below = self.first_offset
        most_bytes = max(self._max_bytes, sum(map(entry_bytes, entries)))  # the newest append always has a place
        if self.size_bytes > most_bytes:
            raise ViolationError("memory", f"the ring holds {self.size_bytes} bytes, it may hold {most_bytes}")
        return first_offset


class ListenerShell(Shell):
    """A listener as the network's node; it knows when its siblings may have got something to send."""

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


class Siblings(Observer):
    """All listeners share one broker: what is fed to one may give another something to send."""

    def __init__(self, books: Books, hosts: Sequence[Host]) -> None:
        self._books = books
        self._network = books.network
        self._hosts = hosts

    def rested(self, host: Host, now: float) -> None:
        node = host.node
        if isinstance(node, ListenerShell) and node.was_fed:
            node.was_fed = False
            self._books.wills.check()
            for other in self._hosts:
                if other is not host:
                    self._network.at(now, self._network.pump, other)


def listen_at(listener: Listener, hear: Callable[[Sequence[Event]], None]) -> None:
    """Puts an ear between transport and broker: it gets what the broker is about to get."""
    endpoint = listener.endpoint
    fetch: Callable[[], list[Event]] = endpoint.events

    def events() -> list[Event]:
        found = fetch()
        if found:
            hear(found)
        return found

    setattr(endpoint, "events", events)  # noqa: B010 -- the type checker would not have it otherwise
