"""The applications of the broker world: one person behind each client, through all lives of it.

A life is one run of the library with its own instance. It ends by death (nobody is told) or by a close; the person
comes back under the same name, subscribes as before, and goes on publishing where it stopped. What it keeps on paper
between two lives are its messages of QoS 2 that were not confirmed, if it is one who remembers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from godwit.client import events as told
from godwit.client.config import ClientConfig
from godwit.client.protocol import ClientProtocol
from godwit.client.publisher import Publisher
from godwit.errors import BufferFullError
from godwit.transport.events import Address
from godwit.wire.control import Will
from godwit.wire.control_base import Code
from godwit_sim.broker_ledger import Publication
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Host
from godwit_sim.worlds.broker_books import Books, Shell, describe
from godwit_sim.worlds.broker_plan import ClientPlan, PublicationPlan, SubscriptionPlan
from godwit_sim.worlds.broker_readers import Reader


@dataclass(slots=True)
class _Kept:
    """Messages of QoS 2 that a person who remembers has sent: from `sequence` on they are not confirmed."""

    sequence: int = 0
    unconfirmed: deque[Publication] = field(default_factory=deque)


class Person:
    """One client through all its lives."""

    def __init__(self, books: Books, number: int, plan: ClientPlan, host: Host, server: Address) -> None:
        self.books = books
        self.number = number
        self.plan = plan
        self.host = host
        self.todo = deque(plan.publications)
        self.client: ClientProtocol | None = None
        self.is_online = False
        self.is_closing = False
        self.reader = Reader(books, plan, self._drain)
        self._lives = 0
        self._server = server
        self._will: Publication | None = None
        self._blocked = False
        self._publishers: dict[tuple[str, int], Publisher] = {}
        self._unconfirmed: dict[Publisher, deque[tuple[int, Publication]]] = {}
        self._kept: dict[str, _Kept] = {}
        self._again: deque[Publication] = deque()

    @property
    def whole(self) -> str:
        """The label of all lives together."""
        return f"c{self.number}"

    @property
    def label(self) -> str:
        """Of the present life."""
        return f"{self.whole}.{self._lives}"

    @property
    def unconfirmed(self) -> int:
        """Messages of QoS 1 and 2 of this life whose confirm is outstanding."""
        waiting = [len(waiting) for publisher, waiting in self._unconfirmed.items() if publisher.qos]
        return len(self._again) + sum(waiting)

    # -- lives --------------------------------------------------------------------------------------------------------

    def begin(self, *, fresh: bool = False) -> None:
        """Starts the process, unless it runs."""
        if self.host.alive:
            return
        books, network = self.books, self.books.network
        self._lives += 1
        self.is_closing = self._blocked = self.is_online = False
        entropy = Random(f"{books.seed} entropy {self.label}").randbytes
        client = ClientProtocol(
            self._config(fresh), entropy=entropy, random=Random(f"{books.seed} random {self.label}")
        )
        self.client = client
        self._register(client)
        if fresh:
            self.reader.doubt_session()
        self.reader.begin(client, self.label, lambda: network.pump(self.host))
        books.note(f"life {self.label} fresh={fresh}")
        client.connect([self._server], self.host.clock(network.now))
        # What was not confirmed in the last life goes out again, in other batches, under its old numbers.
        self._again = deque(one for kept in self._kept.values() for one in kept.unconfirmed)
        for plan in self.plan.subscriptions:
            network.at(plan.at_s, self._subscribe, plan, self._lives)
        network.start(self.host, Shell(client), self._on_events)
        self.work()

    def _config(self, fresh: bool) -> ClientConfig:
        plan = self.plan
        will = None
        if plan.will is not None:
            payload = b"will of " + self.label.encode()
            how: Any = {"qos": plan.will.qos, "retain": plan.will.retain}
            self._will = self.books.ledger.leave_will(
                self.label, plan.will.topic, payload, self.books.network.now, **how
            )
            will = Will(topic=plan.will.topic, payload=payload, **how)
        return ClientConfig(
            name=plan.name,
            secret=plan.secret,
            session_expiry_s=plan.session_expiry_s,
            fresh=fresh,
            will=will,
            send_buffer_bytes=plan.send_buffer_bytes,
            endpoint=plan.endpoint,
        )

    def _register(self, client: ClientProtocol) -> None:
        """The checkers hear of the new life."""
        books = self.books
        books.roster.honest.add(client.instance)
        if self._will is not None:
            books.wills.left(client.instance, self._will)
        if self.plan.name is None:
            books.ledger.names_any(self.label)  # a will may be published before the name is known
        else:
            for author in (self.whole, self.label):
                books.ledger.names(author, self.plan.name)

    def die(self) -> None:
        """Without a word."""
        if self.host.alive:
            self.books.network.kill(self.host)
            self.reader.end()
            self.client = None
            self.is_online = False
            self._publishers.clear()
            self._unconfirmed.clear()

    def close(self) -> None:
        """With a goodbye; the process stays until somebody ends it."""
        if self.host.alive and not self.is_closing and self.client is not None:
            self.is_closing = True
            self.reader.end()
            self.client.close(self.host.clock(self.books.network.now))
            self.books.network.pump(self.host)

    def _subscribe(self, plan: SubscriptionPlan, life: int) -> None:
        if life == self._lives and self.client is not None and not self.is_closing:
            self.reader.subscribe(plan)

    # -- publishing ---------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Sends what is due. Called by the world's clock, so the host is drained afterwards."""
        network = self.books.network
        while self._again and self._may_send and self._send(self._again[0]):
            self._again.popleft()
        while self.todo and self._may_send and not self._again:
            if self.todo[0].at_s > network.now:
                network.at(self.todo[0].at_s, self.work)
                break
            if not self._publish(self.todo[0]):
                break
            self.todo.popleft()
        network.pump(self.host)

    @property
    def _may_send(self) -> bool:
        return self.host.alive and not self.is_closing and not self._blocked

    def _publish(self, plan: PublicationPlan) -> bool:
        books = self.books
        payload = books.payload(plan.size_bytes) if plan.size_bytes else b""
        remembers = plan.qos == 2 and self.plan.remembers
        source = self.whole if self.plan.name is not None or remembers else self.label
        made = books.ledger.make(
            self.whole, plan.topic, payload, books.date_us(payload), books.network.now,
            qos=plan.qos, retain=plan.retain, source=source + " who remembers" if remembers else source,
        )  # fmt: skip
        if not self._send(made):
            return False
        books.ledger.add(made)
        if remembers:
            self._kept.setdefault(plan.topic, _Kept()).unconfirmed.append(made)
        return True

    def _send(self, publication: Publication) -> bool:
        """Hands it to the library; False if that has no room."""
        assert publication.published_us is not None
        publisher = self._publisher(publication.topic, publication.qos)
        try:
            sequence = publisher.send(publication.payload, publication.published_us, publication.retain)
        except BufferFullError:
            self._blocked = True
            return False
        self._unconfirmed[publisher].append((sequence, publication))
        return True

    def _publisher(self, topic: str, qos: int) -> Publisher:
        publisher = self._publishers.get((topic, qos))
        if publisher is None:
            assert self.client is not None
            if qos == 2 and self.plan.remembers:
                sequence = self._kept.setdefault(topic, _Kept()).sequence
                publisher = self.client.publisher(topic, qos=2, identity=f"keeper {self.number}", sequence=sequence)
            else:
                publisher = self.client.publisher(topic, qos=qos)
            self._publishers[topic, qos] = publisher
            self._unconfirmed[publisher] = deque()
        return publisher

    def _on_confirmed(self, event: told.Confirmed, now: float) -> None:
        waiting = self._unconfirmed[event.publisher]
        last: Publication | None = None
        while waiting and waiting[0][0] < event.sequence:
            _, last = waiting.popleft()
            self.books.log.confirmed(last, now)
            kept = self._kept.get(last.topic)
            if kept is not None and kept.unconfirmed and kept.unconfirmed[0] is last:
                kept.unconfirmed.popleft()
                kept.sequence += 1
        if last is None:
            raise ViolationError("confirm", f"{self.label}: a confirm up to {event.sequence} that brings nothing new")
        if last.qos:
            self.books.reach.confirmed(last, event.reached, now)

    def _on_refused(self, event: told.Refused) -> None:
        """The broker could not write: these messages are given up, the next ones are sent as if nothing had been."""
        if event.code != Code.STORAGE or not self.books.is_storage_failing:
            raise ViolationError("refused", f"{self.label} on {event.publisher.topic!r}: {event.text}")
        waiting = self._unconfirmed[event.publisher]
        kept = self._kept.get(event.publisher.topic) if event.publisher.qos == 2 else None
        while waiting and waiting[0][0] < event.sequence:
            _, publication = waiting.popleft()
            if kept is not None and kept.unconfirmed and kept.unconfirmed[0] is publication:
                kept.unconfirmed.popleft()
                kept.sequence += 1

    # -- events -------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        if self.client is not None:
            self._on_events(self.client.events(), self.books.network.now)

    def _on_events(self, events: Sequence[Any], now: float) -> None:
        for event in events:
            self.books.note(f"{self.label} {describe(event)}")
            match event:
                case told.Confirmed():
                    self._on_confirmed(event, now)
                case told.BufferAvailable():
                    self._blocked = False
                    self.books.network.at(now, self.work)
                case told.Online():
                    self._on_online(event)
                case told.Offline():
                    self.is_online = False
                    self.reader.on_offline()
                case told.Ended():
                    self._on_ended(event)
                case told.Reply():
                    self.reader.on_reply(event)
                case told.Refused():
                    self._on_refused(event)
                case _:
                    self.reader.on_event(event)

    def _on_online(self, event: told.Online) -> None:
        assert self.client is not None
        self.is_online = True
        for author in (self.whole, self.label):
            self.books.ledger.names(author, event.name)
        if self.plan.name is not None and event.name != self.plan.name:
            raise ViolationError("session", f"{self.label}: welcomed as {event.name!r}, not as {self.plan.name!r}")
        self.books.sessions.welcomed(self.label, self.client.instance, event.resumed)
        is_safe = not self.books.roster.is_doubtful(self.books.network.now)
        self.books.wills.welcomed(self.client.instance, is_safe=is_safe)
        self.reader.on_online(resumed=event.resumed)

    def _on_ended(self, event: told.Ended) -> None:
        self.is_online = False
        if not self.is_closing:
            raise ViolationError("life", f"{self.label}: ended with code {event.code}, {event.reason!r}")
