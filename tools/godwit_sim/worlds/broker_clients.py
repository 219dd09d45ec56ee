"""The client applications of the broker world: they publish, subscribe, read, commit, die and restart.

A run of an application is one instance of the library's client. It ends by death (without a notification to the broker)
or by a close. The application restarts under the same name, subscribes as before, and resumes publishing. If its plan
has `remembers`, it stores unconfirmed messages of QoS 2 between two runs.

A Reader holds the subscriptions of one application. It knows what the session at the broker must store, so that after a
death the next run knows where its subscriptions must resume.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeAlias

from godwit.client import events as client_events
from godwit.client.config import ClientConfig
from godwit.client.message import Message
from godwit.client.protocol import ClientProtocol
from godwit.client.publisher import Publisher
from godwit.client.subscription import Subscription
from godwit.errors import BufferFullError
from godwit.transport.events import Address
from godwit.wire.control import Done, Error, Will
from godwit.wire.control_base import Code
from godwit_sim.broker_connections import LiveChecker
from godwit_sim.broker_log_model import LONG_LIFETIME_US, SHORT_LIFETIME_US, Publication, check_headers
from godwit_sim.broker_restarts import SubscriptionKey
from godwit_sim.broker_streams import Start, Stream
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Host
from godwit_sim.sealing import sealer_of_world
from godwit_sim.worlds.broker_harness import Checkers, NodeAdapter, describe
from godwit_sim.worlds.broker_plan import ClientPlan, PublicationPlan, SubscriptionPlan

ASKS_AGAIN_S = 0.5
LASTING_S = 60
MAX_TRANSIT_S = 20.0
"""How long a message may be on its way from the broker, also during pauses of the network. The time there is added to
its lifetime."""
"""A session with at least this expiry outlives every absence in this world."""

Key: TypeAlias = tuple[tuple[str, ...], str | None]
"""Filters and cursor, which identify a subscription within its session."""


@dataclass(slots=True, eq=False)
class ClientSubscription:
    """One subscription in one run of an application, and how it is read."""

    plan: SubscriptionPlan
    subscription: Subscription
    stream: Stream
    live: LiveChecker
    asked_s: float
    lowest: int
    """The end of the log when it was requested."""
    since_us: int | None = None
    """The time from which on it was requested."""
    is_new: bool | None = None
    """Whether the broker starts it anew and sends retained messages; None if that is uncertain."""
    takes: int = 0
    is_stored: bool = False
    """The broker has confirmed and stored it."""
    is_due: bool = False
    """A read is scheduled."""
    commits: dict[int, int] = field(default_factory=dict)
    """Commits without a reply: request and offset."""
    committed: int | None = None
    asked_to_commit: int | None = None

    @property
    def key(self) -> Key:
        return self.plan.filters, self.plan.cursor

    def resume_start(self) -> Start:
        """Return where the next run of the same session begins."""
        stream = self.stream
        if self.plan.cursor is None:
            return Start(stream.start.lowest, stream.resume_offset, is_approximate=True)
        if self.asked_to_commit is None:
            return replace(stream.start, is_approximate=True)
        lowest = self.committed if self.committed is not None else stream.start.lowest
        return Start(lowest, self.asked_to_commit, is_approximate=True)


class Reader:
    """All subscriptions of an application. `drain` passes pending events of the library to the application."""

    def __init__(self, checkers: Checkers, plan: ClientPlan, drain: Callable[[], None]) -> None:
        self.checkers = checkers
        self.subscriptions: list[ClientSubscription] = []
        self._plan = plan.reading
        self._session = plan.name
        self._is_lasting = plan.session_expiry_s >= LASTING_S
        self._drain = drain
        self._at_once = False
        self._client: ClientProtocol
        self._label = ""
        self._pump: Callable[[], None]
        self._clock: Callable[[float], float]
        self._former: dict[Key, ClientSubscription] = {}
        """The last subscription by key, if the session certainly stores it."""
        self._asked: dict[Key, tuple[ClientSubscription, int]] = {}
        """The first subscription by key that the session may store, and the lowest offset where it may have begun."""

    # -- runs ---------------------------------------------------------------------------------------------------------

    def begin(
        self, client: ClientProtocol, label: str, pump: Callable[[], None], clock: Callable[[float], float]
    ) -> None:
        """Begin a run. `pump` drains the host after a call from outside, `clock` is the host's own."""
        self._client, self._label, self._pump, self._clock = client, label, pump, clock

    def end(self) -> None:
        """End the run."""
        for sub in self.subscriptions:
            self._leave(sub)
            if self._session is not None and sub.is_stored:
                self._former[sub.key] = sub
        self.subscriptions.clear()

    def mark_session_uncertain(self) -> None:
        """Record that a new session will be requested: without a reply it is unknown which one exists."""
        for key, sub in self._former.items():
            self._asked[key] = sub, sub.stream.start.lowest
        self._forget_session()

    def _forget_session(self) -> None:
        self._former.clear()
        for key in self._asked:
            self.checkers.restarts.cursor_dropped(self._feed(key))

    def on_online(self, *, resumed: bool) -> None:
        if not resumed:
            self._forget_session()
            self._asked.clear()
        for sub in self.subscriptions:
            if not sub.stream.is_answered:
                self._expect(sub)
            else:  # the library subscribes again at its position: a new session stores that, also if no reply arrives
                self._asked.setdefault(sub.key, (sub, sub.stream.start.lowest))

    def on_offline(self) -> None:
        for sub in self.subscriptions:
            sub.live.disconnected()
            sub.stream.disconnected()

    def on_restore(self, end: int) -> None:
        """Record that an older copy of the log was restored, which ends at this offset."""
        self._asked = {key: (sub, min(lowest, end)) for key, (sub, lowest) in self._asked.items()}
        for sub in self.subscriptions:
            sub.lowest = min(sub.lowest, end)
            sub.stream.restore(end)

    def read_at_once(self) -> None:
        """Read all messages without delay from now on."""
        self._at_once = True
        for sub in list(self.subscriptions):
            self._read(sub)

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def subscribe(self, plan: SubscriptionPlan) -> None:
        checkers, network = self.checkers, self.checkers.network
        if plan.until_s is not None and network.now >= plan.until_s:
            return
        start, since_us, known = self._draw_start(plan)
        name = f"{self._label} on {' and '.join(plan.filters)}"
        # A session that could not be stored is unknown after a restart, and so are its positions.
        is_quiet = plan.is_quiet and not checkers.is_storage_failing
        stream = Stream(name, plan.filters, checkers.published, checkers.log, known, is_quiet=is_quiet)
        subscription = self._client.subscribe(plan.filters, start=start, since_us=since_us, cursor=plan.cursor)
        # A time is looked up in the log first: messages of the same instant may be before or after it.
        counts = plan.start != "time" and not any(map(stream.matches, checkers.unseen_topics))
        counts = counts and not checkers.is_storage_failing
        live = LiveChecker(checkers.connections, stream, counts=counts)
        sub = ClientSubscription(plan, subscription, stream, live, network.now, checkers.log.next_offset, since_us)
        checkers.streams.append(stream)
        self.subscriptions.append(sub)
        self._expect(sub)
        if plan.until_s is not None:
            network.at(plan.until_s, self._unsubscribe, sub)
        self._pump()

    def _draw_start(self, plan: SubscriptionPlan) -> tuple[Any, int | None, Start]:
        """Return what to request, and the start that it implies."""
        log = self.checkers.log
        match plan.start:
            case "earliest":
                return "earliest", None, Start(log.deleted_below)
            case "offset":
                offset = Random(f"{self.checkers.seed} {self._label} {plan.filters}").randint(
                    log.begin, log.next_offset
                )
                return offset, None, Start(offset, offset, is_approximate=True)
            case "time":
                since_us = self.checkers.now_us - 500_000
                return None, since_us, Start(log.since(since_us))
        return plan.start, None, Start(log.next_offset)

    def _expect(self, sub: ClientSubscription) -> None:
        """Set where a subscription without a reply begins, by the state of the session."""
        if sub.plan.start not in (None, "latest"):
            sub.is_new = False
            return
        former = self._former.get(sub.key)
        asked, lowest = self._asked.setdefault(sub.key, (sub, sub.lowest))
        if sub.plan.start == "latest":
            sub.is_new = True if former is None and asked is sub else None
        elif former is not None:
            sub.is_new = False
            sub.stream.start = former.resume_start()
        elif asked is not sub:
            sub.is_new = None
            sub.stream.start = Start(lowest, is_approximate=True)
        else:
            sub.is_new = True
            sub.stream.start = Start(sub.lowest)

    def _feed(self, key: Key) -> SubscriptionKey:
        return self._session or "", *key

    def _unsubscribe(self, sub: ClientSubscription) -> None:
        if sub not in self.subscriptions:
            return
        self.subscriptions.remove(sub)
        self._leave(sub)
        self._former.pop(sub.key, None)
        self.checkers.restarts.cursor_dropped(self._feed(sub.key))
        self._client.unsubscribe(sub.subscription)
        self._pump()

    def _leave(self, sub: ClientSubscription) -> None:
        sub.stream.ended()
        self.checkers.retained.check(sub.stream, sub.asked_s, all_is_there=False)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read_later(self, sub: ClientSubscription) -> None:
        if not sub.is_due:
            sub.is_due = True
            now = self.checkers.network.now
            self.checkers.network.at(now if self._at_once else self._plan.next_take_s(now), self._read, sub)

    def _read(self, sub: ClientSubscription) -> None:
        """Read all available messages, or one record if the plan has pauses."""
        sub.is_due = False
        while sub in self.subscriptions:
            now = self.checkers.network.now
            messages = sub.subscription.take(self._clock(now), self.checkers.now_us)
            self._drain()  # missed messages were before these
            if messages is None:
                sub.stream.finished()
                break
            self._take(sub, messages)
            if not self._at_once and (self._plan.pause_s or self._plan.stalls):
                self._read_later(sub)
                break
        else:
            return
        self._pump()

    def _take(self, sub: ClientSubscription, messages: Sequence[Message]) -> None:
        for message in messages:
            self.checkers.note(
                f"{sub.stream.name} takes {message.topic} {message.payload[:16]!r} from {message.publisher} "
                f"QoS {message.qos} offset {message.offset}{' retained' if message.retained else ''}"
            )
        taken = sub.stream.took(messages)
        for publication, message in zip(taken, messages, strict=True):
            check_headers("headers", sub.stream.name, publication, message.extension)
            self._check_expiry(sub, publication, message)
        live = [one for one, message in zip(taken, messages, strict=True) if not message.qos and not message.retained]
        sub.live.took(self._client.instance, live)
        sub.takes += 1
        if sub.plan.cursor is not None and sub.takes % sub.plan.commits_every == 0:
            offset = sub.subscription.position
            sub.commits[self._client.commit(sub.subscription, offset)] = offset
            sub.asked_to_commit = offset

    def _check_expiry(self, sub: ClientSubscription, publication: Publication, message: Message) -> None:
        """Check that a message has not expired: here, or long ago at the broker."""
        lifetime_us = publication.lifetime_us
        if lifetime_us is None:
            return
        left_us = (message.expires_us or 0) - self.checkers.now_us
        age_us = self.checkers.now_us - message.received_us  # at the broker: the way there may be long
        if not 0 < left_us <= lifetime_us or age_us > lifetime_us + MAX_TRANSIT_S * 1e6:
            raise ViolationError(
                "expiry",
                f"{sub.stream.name}: {publication} with a lifetime of {lifetime_us / 1e6:g} s came "
                f"{age_us / 1e6:g} s after the broker had it, with {left_us / 1e6:g} s left",
            )

    # -- events -------------------------------------------------------------------------------------------------------

    def on_event(self, event: Any) -> None:
        """Handle an event of one subscription."""
        sub = next((sub for sub in self.subscriptions if sub.subscription is event.subscription), None)
        if sub is None:
            return
        if isinstance(event, client_events.Available):
            self._read_later(sub)
        elif isinstance(event, client_events.SubscriptionStarted):
            # Messages deleted before the broker looks are not missed by a subscription to the past. While the
            # broker was dead, the length of the log was unknown.
            log, lowest = self.checkers.log, sub.stream.start.lowest
            if sub.since_us is not None:
                lowest = max(lowest, log.since(sub.since_us))
            past = sub.plan.start in ("earliest", "time")
            # The reply may be of a log that was replaced by a shorter copy while it was on its way.
            end = max(log.next_offset, event.next_offset)
            sub.stream.answered(max(lowest, log.deleted_below) if past else end)
            number, now = sub.subscription.number, self.checkers.network.now
            sub.is_stored = self.checkers.sessions.settled(self._client.instance, number, now)
        elif isinstance(event, client_events.SubscriptionEnded):
            self._on_refused(sub, event)
        elif isinstance(event, client_events.Missed):
            if event.live and event.count is not None:
                sub.live.notified_missed(event.count)
            elif event.had_below is not None and event.next_offset is not None:
                sub.stream.notified_replaced(event.next_offset, event.had_below)
            elif event.count is None or event.next_offset is None:
                raise ViolationError("stream", f"{sub.stream.name}: notified of another log")
            else:
                sub.stream.notified_missed(event.count, event.next_offset)

    def _on_refused(self, sub: ClientSubscription, event: client_events.SubscriptionEnded) -> None:
        """Subscribe again a little later: the broker could not write."""
        if event.code != Code.STORAGE or not self.checkers.is_storage_failing:
            raise ViolationError("refused", f"{sub.stream.name}: {event.code} {event.text}")
        self.subscriptions.remove(sub)
        self._leave(sub)
        now = self.checkers.network.now
        self.checkers.network.at(now + ASKS_AGAIN_S, self._subscribe_again, sub.plan, self._client)

    def _subscribe_again(self, plan: SubscriptionPlan, client: ClientProtocol) -> None:
        if self._client is client:
            self.subscribe(plan)

    def on_reply(self, event: client_events.Reply) -> None:
        for sub in self.subscriptions:
            offset = sub.commits.pop(event.request, None)
            if offset is None:
                continue
            if isinstance(event.message, Done):
                sub.committed = max(offset, sub.committed or 0)
                if sub.plan.start is None and self._is_lasting:  # else a run may begin anew, and commit less
                    self.checkers.restarts.commit_answered(self._feed(sub.key), offset)
            elif not (isinstance(event.message, Error) and event.message.code == Code.STORAGE) or (
                not self.checkers.is_storage_failing
            ):
                raise ViolationError("refused", f"{sub.stream.name}: the commit of {offset}: {event.message}")


# -- applications -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Qos2State:
    """Messages of QoS 2 that the application stores: from `sequence` on they are not confirmed."""

    sequence: int = 0
    unconfirmed: deque[Publication] = field(default_factory=deque)


class ClientApp:
    """One client application through all its runs."""

    def __init__(self, checkers: Checkers, number: int, plan: ClientPlan, host: Host, server: Address) -> None:
        self.checkers = checkers
        self.number = number
        self.plan = plan
        self.host = host
        self.todo = deque(plan.publications)
        self.client: ClientProtocol | None = None
        self.is_online = False
        self.is_closing = False
        self.reader = Reader(checkers, plan, self._drain)
        self._runs = 0
        self._server = server
        self._will: Publication | None = None
        self._blocked = False
        self._publishers: dict[tuple[str, int], Publisher] = {}
        self._unconfirmed: dict[Publisher, deque[tuple[int, Publication]]] = {}
        self._dropped: set[Publisher] = set()
        """Publishers some of whose messages expired since their last confirm."""
        self._qos2: dict[str, _Qos2State] = {}
        self._resend: deque[Publication] = deque()

    @property
    def base_label(self) -> str:
        """Return the label of all runs together."""
        return f"c{self.number}"

    @property
    def label(self) -> str:
        """Return the label of the present run."""
        return f"{self.base_label}.{self._runs}"

    @property
    def unconfirmed(self) -> int:
        """Return the number of messages of QoS 1 and 2 of this run without a confirm."""
        waiting = [len(waiting) for publisher, waiting in self._unconfirmed.items() if publisher.qos]
        return len(self._resend) + sum(waiting)

    # -- runs ---------------------------------------------------------------------------------------------------------

    def begin(self, *, fresh: bool = False) -> None:
        """Start the process, unless it runs."""
        if self.host.alive:
            return
        checkers, network = self.checkers, self.checkers.network
        self._runs += 1
        self.is_closing = self._blocked = self.is_online = False
        entropy = Random(f"{checkers.seed} entropy {self.label}").randbytes
        client = ClientProtocol(
            self._config(fresh),
            entropy=entropy,
            random=Random(f"{checkers.seed} random {self.label}"),
            sealer=sealer_of_world(entropy),
        )
        self.client = client
        self._register(client)
        if fresh:
            self.reader.mark_session_uncertain()
        self.reader.begin(client, self.label, lambda: network.pump(self.host), self.host.clock)
        checkers.note(f"life {self.label} fresh={fresh}")
        client.connect([self._server], self.host.clock(network.now))
        # Unconfirmed messages of the last run are sent again, in other batches, with their old numbers.
        self._resend = deque(one for qos2 in self._qos2.values() for one in qos2.unconfirmed)
        for plan in self.plan.subscriptions:
            network.at(plan.at_s, self._subscribe, plan, self._runs)
        network.start(self.host, NodeAdapter(client), self._on_events)
        self.work()

    def _config(self, fresh: bool) -> ClientConfig:
        plan = self.plan
        will = None
        if plan.will is not None:
            payload = b"will of " + self.label.encode()
            how: Any = {"qos": plan.will.qos, "retain": plan.will.retain}
            self._will = self.checkers.published.add_will(
                self.label, plan.will.topic, payload, self.checkers.network.now, **how
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
        """Register the new run at the checkers."""
        checkers = self.checkers
        checkers.connections.honest.add(client.instance)
        if self._will is not None:
            checkers.wills.register(client.instance, self._will)
        if self.plan.name is None:
            checkers.published.allow_any_name(self.label)  # a will may be published before the name is known
        else:
            for author in (self.base_label, self.label):
                checkers.published.names(author, self.plan.name)

    def die(self) -> None:
        """End the process without a close."""
        if self.host.alive:
            self.checkers.network.kill(self.host)
            self.reader.end()
            self.client = None
            self.is_online = False
            self._publishers.clear()
            self._unconfirmed.clear()

    def close(self) -> None:
        """Close the client; the process remains until it is ended."""
        if self.host.alive and not self.is_closing and self.client is not None:
            self.is_closing = True
            self.reader.end()
            self.client.close(self.host.clock(self.checkers.network.now))
            self.checkers.network.pump(self.host)

    def _subscribe(self, plan: SubscriptionPlan, run: int) -> None:
        if run == self._runs and self.client is not None and not self.is_closing:
            self.reader.subscribe(plan)

    # -- publishing ---------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Send the messages that are due. Called by a scheduled event, so the host is drained afterwards."""
        network = self.checkers.network
        while self._resend and self._may_send and self._send(self._resend[0]):
            self._resend.popleft()
        while self.todo and self._may_send and not self._resend:
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
        checkers = self.checkers
        payload = checkers.payload(plan.size_bytes) if plan.size_bytes else b""
        remembers = plan.qos == 2 and self.plan.remembers
        source = self.base_label if self.plan.name is not None or remembers else self.label
        made = checkers.published.make(
            self.base_label, plan.topic, payload, checkers.date_us(payload), checkers.network.now,
            qos=plan.qos, retain=plan.retain, source=source + ", remembered" if remembers else source,
        )  # fmt: skip
        if self.plan.has_properties:
            self._add_properties(made, may_expire=plan.qos > 0 and not remembers)
        if not self._send(made):
            return False
        checkers.published.add(made)
        if remembers:
            self._qos2.setdefault(plan.topic, _Qos2State()).unconfirmed.append(made)
        return True

    def _add_properties(self, made: Publication, *, may_expire: bool) -> None:
        """Add headers and a lifetime to some messages. Runs of equal ones share a batch."""
        number = made.position // 2
        if number % 3 == 1:
            made.headers = (("run", str(number % 4)), ("run", "again"))
        if number % 5 == 3 and may_expire and not made.retain:
            made.lifetime_us = SHORT_LIFETIME_US
        elif number % 5 == 4:
            made.lifetime_us = LONG_LIFETIME_US

    def _send(self, publication: Publication) -> bool:
        """Pass the message to the library; return False if its buffer is full."""
        assert publication.published_us is not None
        publisher = self._publisher(publication.topic, publication.qos)
        try:
            expires_at = None
            if publication.lifetime_us is not None:
                expires_at = self.host.clock(self.checkers.network.now) + publication.lifetime_us / 1e6
            sequence = publisher.send(
                publication.payload, publication.published_us, publication.retain, publication.extension, expires_at
            )
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
                sequence = self._qos2.setdefault(topic, _Qos2State()).sequence
                publisher = self.client.publisher(topic, qos=2, identity=f"keeper {self.number}", sequence=sequence)
            else:
                publisher = self.client.publisher(topic, qos=qos)
            self._publishers[topic, qos] = publisher
            self._unconfirmed[publisher] = deque()
        return publisher

    def _on_confirmed(self, event: client_events.Confirmed, now: float) -> None:
        waiting = self._unconfirmed[event.publisher]
        last: Publication | None = None
        while waiting and waiting[0][0] < event.sequence:
            _, last = waiting.popleft()
            self.checkers.log.confirmed(last, now)
            qos2 = self._qos2.get(last.topic)
            if qos2 is not None and qos2.unconfirmed and qos2.unconfirmed[0] is last:
                qos2.unconfirmed.popleft()
                qos2.sequence += 1
        if last is None and event.publisher in self._dropped:
            self._dropped.discard(event.publisher)
            return
        if last is None:
            raise ViolationError("confirm", f"{self.label}: a confirm up to {event.sequence} that brings nothing new")
        if last.qos and not last.may_expire:
            self.checkers.reach.confirmed(last, event.reached, now)

    def _on_expired(self, event: client_events.Expired, now: float) -> None:
        """Give up messages that expired in the queue of the library."""
        waiting = self._unconfirmed[event.publisher]
        self._dropped.add(event.publisher)
        for sequence, publication in [one for one in waiting if event.first_sequence <= one[0] < event.sequence]:
            waiting.remove((sequence, publication))
            # The clocks of hosts differ a little.
            if publication.lifetime_us is None or now - publication.sent_s < publication.lifetime_us / 1e6 * 0.9:
                raise ViolationError("expiry", f"{self.label}: {publication} was dropped as expired too early")

    def _on_refused(self, event: client_events.Refused) -> None:
        """Give up messages that the broker could not write; later ones are sent as usual."""
        if event.code != Code.STORAGE or not self.checkers.is_storage_failing:
            raise ViolationError("refused", f"{self.label} on {event.publisher.topic!r}: {event.text}")
        waiting = self._unconfirmed[event.publisher]
        qos2 = self._qos2.get(event.publisher.topic) if event.publisher.qos == 2 else None
        while waiting and waiting[0][0] < event.sequence:
            _, publication = waiting.popleft()
            if qos2 is not None and qos2.unconfirmed and qos2.unconfirmed[0] is publication:
                qos2.unconfirmed.popleft()
                qos2.sequence += 1

    # -- events -------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        if self.client is not None:
            self._on_events(self.client.events(), self.checkers.network.now)

    def _on_events(self, events: Sequence[Any], now: float) -> None:
        for event in events:
            self.checkers.note(f"{self.label} {describe(event)}")
            match event:
                case client_events.Confirmed():
                    self._on_confirmed(event, now)
                case client_events.BufferAvailable():
                    self._blocked = False
                    self.checkers.network.at(now, self.work)
                case client_events.Online():
                    self._on_online(event)
                case client_events.Offline():
                    self.is_online = False
                    self.reader.on_offline()
                case client_events.Unanswered():
                    pass  # no network of this world reports closed ports
                case client_events.Ended():
                    self._on_ended(event)
                case client_events.Reply():
                    self.reader.on_reply(event)
                case client_events.Refused():
                    self._on_refused(event)
                case client_events.Expired():
                    self._on_expired(event, now)
                case _:
                    self.reader.on_event(event)

    def _on_online(self, event: client_events.Online) -> None:
        assert self.client is not None
        self.is_online = True
        for author in (self.base_label, self.label):
            self.checkers.published.names(author, event.name)
        if self.plan.name is not None and event.name != self.plan.name:
            raise ViolationError("session", f"{self.label}: welcomed as {event.name!r}, not as {self.plan.name!r}")
        self.checkers.sessions.welcomed(self.label, self.client.instance, event.resumed)
        is_safe = not self.checkers.connections.is_uncertain(self.checkers.network.now)
        self.checkers.wills.welcomed(self.client.instance, is_safe=is_safe)
        self.reader.on_online(resumed=event.resumed)

    def _on_ended(self, event: client_events.Ended) -> None:
        self.is_online = False
        if not self.is_closing:
            raise ViolationError("lifecycle", f"{self.label}: ended with code {event.code}, {event.reason!r}")
