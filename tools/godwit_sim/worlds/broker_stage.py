"""What stands between the server and the broker world: a log that is read along, listeners as the network's nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from godwit.server.server import Listener
from godwit.store.memory import MemoryStore, entry_bytes
from godwit.store.port import Change, Entry
from godwit.transport.events import Event, Train
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Host, Observer
from godwit_sim.worlds.broker_books import Books, Shell


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
