"""The subscriptions of one person in the broker world: asked for, read at a pace of their own, committed, ended.

A reader keeps in mind what its session at the broker must remember, so that after a death the next life knows where
its subscriptions have to go on.

The applications of the broker world: one person behind each client, through all lives of it.

A life is one run of the library with its own instance. It ends by death (nobody is told) or by a close; the person
comes back under the same name, subscribes as before, and goes on publishing where it stopped. What it keeps on paper
between two lives are its messages of QoS 2 that were not confirmed, if it is one who remembers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeAlias

from godwit.client import events as told
from godwit.client.client import Client
from godwit.client.config import ClientConfig
from godwit.client.message import Message
from godwit.client.publisher import Publisher
from godwit.client.subscription import Subscription
from godwit.errors import BufferFullError
from godwit.transport.train import Address
from godwit.wire.control import Code, Done, Error, Will
from godwit_sim.broker_connections import LiveChecker
from godwit_sim.broker_log_model import Publication
from godwit_sim.broker_restarts import FeedKey
from godwit_sim.broker_streams import Start, Stream
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Host
from godwit_sim.worlds.broker_harness import Books, Shell, describe
from godwit_sim.worlds.broker_plan import ClientPlan, PublicationPlan, SubscriptionPlan

ASKS_AGAIN_S = 0.5
LASTING_S = 60
"""A session that is kept for so long outlives every absence in this world."""

Key: TypeAlias = tuple[tuple[str, ...], str | None]
"""Filters and cursor: what makes a subscription the same one for its session."""


@dataclass(slots=True, eq=False)
class Desk:
    """One subscription in one life, and how its application reads."""

    plan: SubscriptionPlan
    subscription: Subscription
    stream: Stream
    live: LiveChecker
    asked_s: float
    lowest: int
    """The end of the log when it was asked for."""
    since_us: int | None = None
    """It was asked for from this time on."""
    is_new: bool | None = None
    """Whether the broker begins it anew and sends what topics retain; None: perhaps."""
    takes: int = 0
    is_kept: bool = False
    """The broker has agreed, and will remember that."""
    is_due: bool = False
    """A take is scheduled."""
    commits: dict[int, int] = field(default_factory=dict)
    """Not answered yet: request, offset."""
    committed: int | None = None
    asked_to_commit: int | None = None

    @property
    def key(self) -> Key:
        return self.plan.filters, self.plan.cursor

    def goes_on(self) -> Start:
        """Where the next life of the same session begins."""
        stream = self.stream
        if self.plan.cursor is None:
            return Start(stream.start.lowest, stream.goes_on_at, is_vague=True)
        if self.asked_to_commit is None:
            return replace(stream.start, is_vague=True)
        lowest = self.committed if self.committed is not None else stream.start.lowest
        return Start(lowest, self.asked_to_commit, is_vague=True)


class Reader:
    """All subscriptions of a person. `drain`: hands the library's waiting events to the person at once."""

    def __init__(self, books: Books, plan: ClientPlan, drain: Callable[[], None]) -> None:
        self.books = books
        self.desks: list[Desk] = []
        self._plan = plan.reading
        self._session = plan.name
        self._is_lasting = plan.session_expiry_s >= LASTING_S
        self._drain = drain
        self._at_once = False
        self._client: Client
        self._label = ""
        self._pump: Callable[[], None]
        self._former: dict[Key, Desk] = {}
        """The last desk of each subscription that the session surely keeps."""
        self._asked: dict[Key, tuple[Desk, int]] = {}
        """Who first asked for each subscription that the session may know, and where it can have begun."""

    # -- lives --------------------------------------------------------------------------------------------------------

    def begin(self, client: Client, label: str, pump: Callable[[], None]) -> None:
        """A new life. `pump` drains the host after a call from outside."""
        self._client, self._label, self._pump = client, label, pump

    def end(self) -> None:
        """The life is over, one way or the other."""
        for desk in self.desks:
            self._leave(desk)
            if self._session is not None and desk.is_kept:
                self._former[desk.key] = desk
        self.desks.clear()

    def doubt_session(self) -> None:
        """A new one will be asked for, and if nobody answers, nobody knows which one there is."""
        for key, desk in self._former.items():
            self._asked[key] = desk, desk.stream.start.lowest
        self._forget_session()

    def _forget_session(self) -> None:
        self._former.clear()
        for key in self._asked:
            self.books.restarts.cursor_dropped(self._feed(key))

    def on_online(self, *, resumed: bool) -> None:
        if not resumed:
            self._forget_session()
            self._asked.clear()
        for desk in self.desks:
            if not desk.stream.is_answered:
                self._expect(desk)

    def on_offline(self) -> None:
        for desk in self.desks:
            desk.live.disconnected()
            desk.stream.disconnected()

    def on_put_back(self, end: int) -> None:
        """An older copy of the log was put back, which ends there."""
        self._asked = {key: (desk, min(lowest, end)) for key, (desk, lowest) in self._asked.items()}
        for desk in self.desks:
            desk.lowest = min(desk.lowest, end)
            desk.stream.put_back(end)

    def read_at_once(self) -> None:
        """From now on nothing is left lying."""
        self._at_once = True
        for desk in list(self.desks):
            self._read(desk)

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def subscribe(self, plan: SubscriptionPlan) -> None:
        books, network = self.books, self.books.network
        if plan.until_s is not None and network.now >= plan.until_s:
            return
        start, since_us, known = self._draw_start(plan)
        name = f"{self._label} on {' and '.join(plan.filters)}"
        # A session that could not be stored is not known after a restart, and neither is what it has had.
        is_quiet = plan.is_quiet and not books.is_storage_failing
        stream = Stream(name, plan.filters, books.ledger, books.log, known, is_quiet=is_quiet)
        subscription = self._client.subscribe(plan.filters, start=start, since_us=since_us, cursor=plan.cursor)
        # A time is looked up in the log first: what comes at the same instant may be before it or behind.
        counts = plan.start != "time" and not any(map(stream.matches, books.unseen_topics))
        counts = counts and not books.is_storage_failing
        live = LiveChecker(books.roster, stream, counts=counts)
        desk = Desk(plan, subscription, stream, live, network.now, books.log.next_offset, since_us)
        books.streams.append(stream)
        self.desks.append(desk)
        self._expect(desk)
        if plan.until_s is not None:
            network.at(plan.until_s, self._unsubscribe, desk)
        self._pump()

    def _draw_start(self, plan: SubscriptionPlan) -> tuple[Any, int | None, Start]:
        """What to ask for, and what that means."""
        log = self.books.log
        match plan.start:
            case "earliest":
                return "earliest", None, Start(log.gone_below)
            case "offset":
                offset = Random(f"{self.books.seed} {self._label} {plan.filters}").randint(log.begin, log.next_offset)
                return offset, None, Start(offset, offset, is_vague=True)
            case "time":
                since_us = self.books.now_us - 500_000
                return None, since_us, Start(log.since(since_us))
        return plan.start, None, Start(log.next_offset)

    def _expect(self, desk: Desk) -> None:
        """What the session has to do with a subscription that the broker has not answered yet."""
        if desk.plan.start not in (None, "latest"):
            desk.is_new = False
            return
        former = self._former.get(desk.key)
        asked, lowest = self._asked.setdefault(desk.key, (desk, desk.lowest))
        if desk.plan.start == "latest":
            desk.is_new = True if former is None and asked is desk else None
        elif former is not None:
            desk.is_new = False
            desk.stream.start = former.goes_on()
        elif asked is not desk:
            desk.is_new = None
            desk.stream.start = Start(lowest, is_vague=True)
        else:
            desk.is_new = True
            desk.stream.start = Start(desk.lowest)

    def _feed(self, key: Key) -> FeedKey:
        return self._session or "", *key

    def _unsubscribe(self, desk: Desk) -> None:
        if desk not in self.desks:
            return
        self.desks.remove(desk)
        self._leave(desk)
        self._former.pop(desk.key, None)
        self.books.restarts.cursor_dropped(self._feed(desk.key))
        self._client.unsubscribe(desk.subscription)
        self._pump()

    def _leave(self, desk: Desk) -> None:
        desk.stream.ended()
        self.books.retained.check(desk.stream, desk.asked_s, all_is_there=False)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read_later(self, desk: Desk) -> None:
        if not desk.is_due:
            desk.is_due = True
            now = self.books.network.now
            self.books.network.at(now if self._at_once else self._plan.next_take_s(now), self._read, desk)

    def _read(self, desk: Desk) -> None:
        """Takes what there is, or one record if there is a pause between two."""
        desk.is_due = False
        while desk in self.desks:
            messages = desk.subscription.take()
            self._drain()  # what was missed stood before these messages
            if messages is None:
                desk.stream.finished()
                break
            self._take(desk, messages)
            if not self._at_once and (self._plan.pause_s or self._plan.stalls):
                self._read_later(desk)
                break
        else:
            return
        self._pump()

    def _take(self, desk: Desk, messages: Sequence[Message]) -> None:
        for message in messages:
            self.books.note(
                f"{desk.stream.name} takes {message.topic} {message.payload[:16]!r} from {message.publisher} "
                f"QoS {message.qos} offset {message.offset}{' retained' if message.retained else ''}"
            )
        taken = desk.stream.took(messages)
        live = [one for one, message in zip(taken, messages, strict=True) if not message.qos and not message.retained]
        desk.live.took(self._client.instance, live)
        desk.takes += 1
        if desk.plan.cursor is not None and desk.takes % desk.plan.commits_every == 0:
            offset = desk.subscription.position
            desk.commits[self._client.commit(desk.subscription, offset)] = offset
            desk.asked_to_commit = offset

    # -- events -------------------------------------------------------------------------------------------------------

    def on_event(self, event: Any) -> None:
        """Anything that concerns one subscription."""
        desk = next((desk for desk in self.desks if desk.subscription is event.subscription), None)
        if desk is None:
            return
        if isinstance(event, told.Available):
            self._read_later(desk)
        elif isinstance(event, told.SubscriptionStarted):
            # What is gone already when the broker looks is not missed by whoever asked for the past. And while it was
            # dead, nobody knew how long the log is.
            log, lowest = self.books.log, desk.stream.start.lowest
            if desk.since_us is not None:
                lowest = max(lowest, log.since(desk.since_us))
            past = desk.plan.start in ("earliest", "time")
            desk.stream.answered(max(lowest, log.gone_below) if past else None)
            number, now = desk.subscription.number, self.books.network.now
            desk.is_kept = self.books.sessions.settled(self._client.instance, number, now)
        elif isinstance(event, told.SubscriptionEnded):
            self._on_refused(desk, event)
        elif isinstance(event, told.Missed):
            if event.live and event.count is not None:
                desk.live.told_missed(event.count)
            elif event.had_below is not None and event.next_offset is not None:
                desk.stream.told_replaced(event.next_offset, event.had_below)
            elif event.count is None or event.next_offset is None:
                raise ViolationError("stream", f"{desk.stream.name}: told of another log")
            else:
                desk.stream.told_missed(event.count, event.next_offset)

    def _on_refused(self, desk: Desk, event: told.SubscriptionEnded) -> None:
        """The broker could not write: it is asked again a little later."""
        if event.code != Code.STORAGE or not self.books.is_storage_failing:
            raise ViolationError("refused", f"{desk.stream.name}: {event.code} {event.text}")
        self.desks.remove(desk)
        self._leave(desk)
        now = self.books.network.now
        self.books.network.at(now + ASKS_AGAIN_S, self._subscribe_again, desk.plan, self._client)

    def _subscribe_again(self, plan: SubscriptionPlan, client: Client) -> None:
        if self._client is client:
            self.subscribe(plan)

    def on_reply(self, event: told.Reply) -> None:
        for desk in self.desks:
            offset = desk.commits.pop(event.request, None)
            if offset is None:
                continue
            if isinstance(event.message, Done):
                desk.committed = max(offset, desk.committed or 0)
                if desk.plan.start is None and self._is_lasting:  # else a life may begin anew, and commit less
                    self.books.restarts.commit_answered(self._feed(desk.key), offset)
            elif not (isinstance(event.message, Error) and event.message.code == Code.STORAGE) or (
                not self.books.is_storage_failing
            ):
                raise ViolationError("refused", f"{desk.stream.name}: the commit of {offset}: {event.message}")


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
        self.client: Client | None = None
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
        client = Client(self._config(fresh), entropy=entropy, random=Random(f"{books.seed} random {self.label}"))
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

    def _register(self, client: Client) -> None:
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
                case told.Room():
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
