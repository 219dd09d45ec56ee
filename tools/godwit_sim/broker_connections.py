"""A model of the broker's connections, and the checkers of promises that concern more than one subscription.

The model observes the events that pass from the transport to the broker. The transport has a world of its own and is
trusted here. So the model knows, without asking the broker, which client was connected and subscribed at what time,
which messages of QoS 0 arrived in which order, and how each connection ended. The checkers compare retained messages,
wills, sessions, the number of reached subscriptions and the gaps of QoS 0 with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from godwit.errors import DecodeError
from godwit.transport.events import Closed, Connected, Received
from godwit.wire.batch import Batch, decode_batches
from godwit.wire.control import Login, PublishOpen, Subscribe, Unsubscribe, decode_control
from godwit.wire.control_base import Code
from godwit_sim.broker_log_model import Publication, PublishedMessages, matches_any
from godwit_sim.broker_streams import Stream
from godwit_sim.checkers import ViolationError

MARGIN_S: Final = 0.1
"""This close to its expiry a session may or may not exist."""


@dataclass(slots=True)
class ConnectedSubscription:
    """One subscription on one connection, from the request to its end."""

    filters: tuple[str, ...]
    since_s: float
    first_live: int
    """The number of messages of QoS 0 that arrived before it."""
    is_certain: bool = True
    """A trusted client requested it: the broker has certainly accepted it."""
    is_settled: bool = False
    """Its client received the confirmation. From then on the session is stored as long as the subscription exists."""
    until_s: float | None = None

    def matches(self, topic: str) -> bool:
        return matches_any(self.filters, topic)


@dataclass(slots=True, eq=False)
class ConnectionRecord:
    """One connection at the broker."""

    connection: Any
    since_s: float
    login: Login | None = None
    is_accepted: bool = False
    """The client sent more after its login, so the login was accepted."""
    resumes: bool | None = False
    """Whether its login finds a session of its name; None if that is uncertain."""
    subscriptions: dict[int, ConnectedSubscription] = field(default_factory=dict)
    """Its subscriptions by number."""
    ended_subscriptions: dict[int, ConnectedSubscription] = field(default_factory=dict)
    """The subscriptions that existed when the connection ended."""
    channels: dict[int, PublishOpen] = field(default_factory=dict)
    next_sequences: dict[int, int] = field(default_factory=dict)
    """The next sequence number of each QoS 0 channel with numbered batches."""
    closed: Closed | None = None
    closed_s: float = 0.0
    is_broker_dead: bool = False
    """The broker died while the connection existed."""

    @property
    def is_over(self) -> bool:
        return self.closed is not None or self.is_broker_dead

    @property
    def instance(self) -> bytes:
        return self.login.instance if self.login is not None else b""

    @property
    def name(self) -> str | None:
        return self.login.name if self.login is not None else None


class ConnectionModel:
    """The broker's connections and their subscriptions. Input is `handle_events`; all other methods are queries."""

    def __init__(self, published: PublishedMessages) -> None:
        self.records: list[ConnectionRecord] = []
        self.live: list[Publication] = []
        """Messages of QoS 0 in order of arrival, without late ones, which would break the order."""
        self.on_retain: Callable[[Publication, float], None] = lambda publication, now: None
        self.on_closed: Callable[[ConnectionRecord, float], None] = lambda conn, now: None
        self.honest: set[bytes] = set()
        """The instances of clients that request only allowed things."""
        self._published = published
        self._open: dict[int, ConnectionRecord] = {}
        self._subscriptions: list[ConnectedSubscription] = []
        self._ranks: dict[int, int] = {}
        self._uncertain_until_s = -1.0

    def handle_events(self, events: Sequence[Any], now: float) -> None:
        """Record events that the broker is about to receive from its transport."""
        for event in events:
            if isinstance(event, Connected):
                conn = self._open[id(event.connection)] = ConnectionRecord(event.connection, now)
                self.records.append(conn)
            elif isinstance(event, Received):
                self._received(self._open[id(event.connection)], event, now)
            elif isinstance(event, Closed):
                # The record holds a reference to the connection, so that its id is not used again.
                conn = self._open.pop(id(event.connection))
                conn.closed = event
                self._end_connection(conn, now)
                self.on_closed(conn, now)

    def mark_uncertain(self, until_s: float) -> None:
        """Record that the disk fails: until then the broker may refuse or forget requests."""
        self._uncertain_until_s = max(self._uncertain_until_s, until_s)
        for subscription in self._subscriptions:
            subscription.is_certain = False

    def is_uncertain(self, now: float) -> bool:
        """Return whether the broker's replies may not be durable at this time, because it runs on without its disk."""
        return now <= self._uncertain_until_s

    def handle_broker_death(self, now: float) -> list[ConnectionRecord]:
        """Record that the broker died; return the connections that it had."""
        self.mark_uncertain(now)
        records = list(self._open.values())
        for conn in records:
            conn.is_broker_dead = True
            self._end_connection(conn, now)
        self._open.clear()
        return records

    def _end_connection(self, conn: ConnectionRecord, now: float) -> None:
        conn.closed_s = now
        for subscription in conn.subscriptions.values():
            subscription.until_s = now
        conn.ended_subscriptions, conn.subscriptions = conn.subscriptions, {}

    # -- queries ------------------------------------------------------------------------------------------------------

    def reached(self, topic: str, since_s: float, until_s: float) -> tuple[int, int]:
        """Return the least and the most connected subscriptions that a message sent at that time must have matched."""
        least = most = 0
        for subscription in self._subscriptions:
            ends_s = subscription.until_s if subscription.until_s is not None else until_s + 1.0
            if subscription.since_s <= until_s and ends_s >= since_s and subscription.matches(topic):
                most += 1
                least += subscription.is_certain and subscription.since_s < since_s and ends_s > until_s
        return least, most

    def subscription_of(self, instance: bytes, filters: Sequence[str]) -> ConnectedSubscription | None:
        """Return the newest subscription of this client to these filters, or None if it has ended."""
        wanted = tuple(sorted(set(filters)))
        conn = self.record_of(instance)
        subscriptions = reversed(conn.subscriptions.values()) if conn is not None else ()
        return next((subscription for subscription in subscriptions if subscription.filters == wanted), None)

    def live_before(self, subscription: ConnectedSubscription, publication: Publication) -> int:
        """Return how many messages of QoS 0 arrived for this subscription before this one."""
        rank = self._ranks[id(publication)]
        return sum(subscription.matches(one.topic) for one in self.live[subscription.first_live : rank])

    def arrived(self, publication: Publication) -> bool:
        return id(publication) in self._ranks

    # -- received records ---------------------------------------------------------------------------------------------

    def _received(self, conn: ConnectionRecord, event: Received, now: float) -> None:
        if event.channel == 0:
            self._on_control(conn, event.body, now)
        elif event.record == 0 and event.channel not in conn.channels:
            message = _control(event.body)
            if isinstance(message, PublishOpen):
                conn.is_accepted = True
                conn.channels[event.channel] = message
        elif (channel := conn.channels.get(event.channel)) is not None and channel.qos == 0:
            self._on_live(conn, event.channel, event.body, now)

    def _on_control(self, conn: ConnectionRecord, body: bytes, now: float) -> None:
        message = _control(body)
        if isinstance(message, Login):
            conn.resumes = self._resumes(message, now)
            conn.login = message
            return
        conn.is_accepted = True
        is_honest = conn.instance in self.honest
        if isinstance(message, Subscribe):
            is_certain = is_honest and not self.is_uncertain(now)
            subscription = ConnectedSubscription(tuple(sorted(set(message.filters))), now, len(self.live), is_certain)
            # Whether the broker accepted an untrusted request is unknown, so such subscriptions are never removed.
            number = message.subscription if is_honest else -1 - len(conn.subscriptions)
            if number not in conn.subscriptions:
                conn.subscriptions[number] = subscription
                self._subscriptions.append(subscription)
        elif isinstance(message, Unsubscribe) and is_honest:
            ended = conn.subscriptions.pop(message.subscription, None)
            if ended is not None:
                ended.until_s = now

    def _resumes(self, login: Login, now: float) -> bool | None:
        """Return whether a session exists for this login; None if that is uncertain."""
        if login.name is None or login.fresh:
            return False
        for conn in reversed(self.records):
            if conn.name != login.name or conn.login is None or conn.instance not in self.honest:
                continue  # no other client can log in under this name
            expires_s = float(conn.login.session_expiry_s)
            if conn.since_s <= self._uncertain_until_s:
                is_settled = any(subscription.is_settled for subscription in conn.ended_subscriptions.values())
                is_stored = is_settled and now < conn.closed_s + expires_s - MARGIN_S
                return True if is_stored and expires_s else None
            if conn.closed is None:
                return _unless_empty(bool(expires_s), conn) if conn.is_accepted else None
            if not conn.is_accepted:
                if conn.closed.origin == "local":
                    continue  # refused
                return None
            left_s = conn.closed_s + expires_s - now
            return None if abs(left_s) < MARGIN_S and expires_s else _unless_empty(left_s > 0.0, conn)
        return False

    def record_of(self, instance: bytes) -> ConnectionRecord | None:
        """Return the newest connection of this run of a client."""
        return next((conn for conn in reversed(self.records) if conn.instance == instance), None)

    def _on_live(self, conn: ConnectionRecord, channel: int, body: bytes, now: float) -> None:
        topic = conn.channels[channel].topic
        try:
            batches = decode_batches(body)
        except DecodeError:
            return
        for batch in batches:
            if batch.sequence is not None:
                if batch.sequence < conn.next_sequences.get(channel, 0):
                    continue  # late: it would break the order
                conn.next_sequences[channel] = batch.sequence + len(batch.payloads)
            found = [self._find(payload, batch, index) for index, payload in enumerate(batch.payloads)]
            if None in found:
                continue  # published by the hostile client
            known = [one for one in found if one is not None and one.topic == topic]
            for publication in known:
                self._ranks[id(publication)] = len(self.live)
                self.live.append(publication)
            if known and batch.retain:
                self.on_retain(known[-1], now)

    def _find(self, payload: bytes, batch: Batch, index: int) -> Publication | None:
        published_us = batch.published_us + (batch.deltas_us[index] if batch.deltas_us else 0)
        return self._published.find(payload, published_us)


def _unless_empty(resumes: bool, conn: ConnectionRecord) -> bool | None:
    """Return None in place of True if the session has no subscriptions: the broker need not store it.

    It may still have the subscriptions of an earlier connection.
    """
    return None if resumes and not conn.subscriptions and not conn.ended_subscriptions else resumes


def _control(body: bytes) -> Any:
    try:
        return decode_control(body)
    except DecodeError:
        return None


# -- checkers ---------------------------------------------------------------------------------------------------------

REFUSALS: Final = frozenset((Code.NAME_IN_USE, Code.NOT_ALLOWED, Code.BAD_NAME, Code.TOO_MANY, Code.NOT_LOGGED_IN))
"""Codes with which a broker closes a connection that it never accepted."""


class RetainedChecker:
    """Check that a new subscription receives the retained message of each topic: not an older one, none if cleared."""

    NAME = "retained"

    def __init__(self) -> None:
        self._history: dict[str, list[tuple[float, Publication]]] = {}

    def changed(self, publication: Publication, now: float) -> None:
        """Record that the topic retains this message from now on (or none, if it is empty)."""
        self._history.setdefault(publication.topic, []).append((now, publication))

    def copy(self) -> dict[str, Publication]:
        """Return the last retained message of each topic that ever had one."""
        return {topic: history[-1][1] for topic, history in self._history.items()}

    def restore(self, kept: dict[str, Publication], now: float) -> None:
        """Record that a copy of the log was restored, with these retained messages."""
        for topic, history in self._history.items():
            before = kept.get(topic) or replace(history[-1][1], payload=b"")
            if before is not history[-1][1]:
                history.append((now, before))

    def current(self) -> dict[str, bytes]:
        """Return the payload that each topic retains now, if any."""
        newest = {topic: history[-1][1].payload for topic, history in self._history.items()}
        return {topic: payload for topic, payload in newest.items() if payload}

    def check(self, stream: Stream, asked_s: float, *, all_is_there: bool) -> None:
        """Check the retained messages of a subscription that was requested at that time.

        `all_is_there`: all messages have arrived, so a missing one is a violation.
        """
        for topic, got in stream.retained.items():
            values = self._values(topic, asked_s)
            if got not in values:
                raise ViolationError(
                    self.NAME, f"{stream.name}: {got} came, but {values[0] or 'nothing'} was retained when it asked"
                )
        missing = self.missing(stream, asked_s) if all_is_there else None
        if missing is not None:
            raise ViolationError(self.NAME, f"{stream.name}: {missing} was retained and never came")

    def missing(self, stream: Stream, asked_s: float) -> Publication | None:
        """Return a retained message that a subscription requested at that time must receive and has not received."""
        for topic in self._history:
            values = self._values(topic, asked_s)
            # A slow subscriber may receive a later message instead.
            if len(values) == 1 and values[0] is not None and stream.matches(topic) and topic not in stream.retained:
                return values[0]
        return None

    def _values(self, topic: str, since_s: float) -> list[Publication | None]:
        """Return the message that the topic retained at that time, and all that it retained later."""
        before: Publication | None = None
        later: list[Publication | None] = []
        for changed_s, publication in self._history.get(topic, ()):
            value = publication if publication.payload else None
            if changed_s < since_s:  # at the same instant it may have been before or after
                before = value
            else:
                later.append(value)
        return [before, *later]


@dataclass(slots=True)
class _WillState:
    """The will of one run of a client."""

    will: Publication
    least: int = 0
    most: int = 0
    is_safe: bool = False
    """Its client was notified that the broker stored it, and the disk did not fail."""
    is_unsaved: bool = False
    """The broker has received a regular close, and may forget that if it dies."""
    is_orphaned: bool | None = None
    """The broker died and the client has not returned: the will is due later. True if certain, False if uncertain."""
    ends: list[str] = field(default_factory=list)

    @property
    def due(self) -> int:
        """Return how often it must have been published."""
        return self.least + (self.is_orphaned is True)


class WillChecker:
    """Check that a will is published once for each connection that was lost without a regular close, and only then."""

    NAME = "will"

    def __init__(self) -> None:
        self._by_instance: dict[bytes, _WillState] = {}

    def register(self, instance: bytes, will: Publication) -> None:
        """Record the will of the client with this instance."""
        self._by_instance[instance] = _WillState(will)

    def closed(self, conn: ConnectionRecord, next_instance: bytes | None) -> None:
        """Record that a connection of the broker ended.

        `next_instance` is the instance that takes the name over, if that was the reason.
        """
        state = self._by_instance.get(conn.instance)
        closed = conn.closed
        if state is None or closed is None:
            return
        state.ends.append(f"{closed.origin} {closed.code}")
        if closed.origin == "peer" and closed.code in (Code.NORMAL, Code.SHUTDOWN):
            state.is_unsaved = True
            state.is_orphaned = None  # it had reconnected, even if it has not received the welcome
            return  # a regular close
        if closed.origin == "local" and closed.code in REFUSALS and not conn.is_accepted:
            return
        if closed.code == Code.TAKEN_OVER and next_instance == conn.instance:
            return  # it reconnected before the connection was lost
        state.most += 1
        state.least += conn.is_accepted

    def handle_broker_death(self, records: Sequence[ConnectionRecord]) -> None:
        """Record that the broker died with these connections open.

        A client that reconnects in time cancels its will; otherwise the will is published. The same holds for wills
        that were due and not yet published.
        """
        for state in self._by_instance.values():
            if state.is_unsaved:
                state.is_unsaved = False
                state.most += 1
                state.is_orphaned = False
            if len(state.will.offsets) < state.least:
                state.least = len(state.will.offsets)
                state.is_orphaned = state.is_safe
        for conn in records:
            orphaned = self._by_instance.get(conn.instance)
            if orphaned is None:
                continue
            orphaned.ends.append("broker died")
            orphaned.most += orphaned.is_orphaned is None
            orphaned.is_orphaned = orphaned.is_orphaned or (orphaned.is_safe and conn.name is not None)

    def saved(self) -> None:
        """Record that the broker has stored its state."""
        for state in self._by_instance.values():
            state.is_unsaved = False

    def welcomed(self, instance: bytes, *, is_safe: bool) -> None:
        """Record that the client is online; its will is on the disk, unless the disk fails."""
        state = self._by_instance.get(instance)
        if state is not None:
            state.is_orphaned = None
            state.is_safe = state.is_safe or is_safe

    def check(self) -> None:
        """Check that no will was published too often."""
        for state in self._by_instance.values():
            if len(state.will.offsets) > state.most:
                raise self._violation(state)

    def outstanding(self) -> str:
        """Return a description of a will that is due and not yet published, or an empty string."""
        for state in self._by_instance.values():
            if state.will.qos and len(state.will.offsets) < state.due:
                return f"{state.will} is due"
        return ""

    def complete(self) -> None:
        """Check liveness: every will that was due is in the log."""
        for state in self._by_instance.values():
            if state.will.qos and not state.due <= len(state.will.offsets) <= state.most:
                raise self._violation(state)

    def _violation(self, state: _WillState) -> ViolationError:
        least, most = state.due, state.most
        due = str(least) if least == most else f"{least} to {most}"
        return ViolationError(
            self.NAME,
            f"{state.will} was published {len(state.will.offsets)} times, due {due} times; "
            f"its connections ended: {', '.join(state.ends) or 'none'}",
        )


class SessionChecker:
    """Check that a client finds its session if it returns in time, and a new one if it is too late or asks for one."""

    NAME = "session"

    def __init__(self, connections: ConnectionModel) -> None:
        self._connections = connections

    def settled(self, instance: bytes, number: int, now: float) -> bool:
        """Record a confirmed subscription of this client; return whether it is certainly durable from now on."""
        conn = self._connections.record_of(instance)
        is_safe = conn is not None and not self._connections.is_uncertain(now)
        if conn is not None and is_safe:
            subscription = conn.subscriptions.get(number) or conn.ended_subscriptions.get(number)
            if subscription is not None:
                subscription.is_settled = True
        return is_safe

    def welcomed(self, label: str, instance: bytes, resumed: bool) -> None:
        conn = self._connections.record_of(instance)
        if conn is None:
            raise ViolationError(self.NAME, f"{label}: welcomed by a broker that never received its login")
        if conn.resumes is not None and conn.resumes is not resumed:
            raise ViolationError(self.NAME, f"{label}: welcomed with resumed={resumed}, it should be {conn.resumes}")


class ReachChecker:
    """Check that a confirm reports a possible number of connected subscriptions that match."""

    NAME = "reached"

    def __init__(self, connections: ConnectionModel) -> None:
        self._connections = connections

    def confirmed(self, publication: Publication, reached: int, now: float) -> None:
        least, most = self._connections.reached(publication.topic, publication.sent_s, now)
        if not least <= reached <= most:
            raise ViolationError(
                self.NAME, f"{publication} reached {reached} subscriptions, it must have been {least} to {most}"
            )


class LiveChecker:
    """Check QoS 0: as many messages are reported missed as arrived at the broker and were not delivered.

    After a reconnect it is unknown which messages were in flight, so only the first connection of a subscription is
    counted.
    """

    NAME = "live"

    def __init__(self, connections: ConnectionModel, stream: Stream, *, counts: bool = True) -> None:
        """`counts` is False if messages arrive that the connection model cannot know: wills."""
        self._connections = connections
        self._stream = stream
        self._subscription: ConnectedSubscription | None = None
        self._is_on = counts
        self._received = 0
        self._notified_missed = 0

    def disconnected(self) -> None:
        self._is_on = False

    def notified_missed(self, count: int) -> None:
        if count <= 0:
            raise ViolationError(self.NAME, f"{self._stream.name}: {count} messages are reported missing")
        self._notified_missed += count

    def took(self, instance: bytes, publications: Sequence[Publication]) -> None:
        """Record messages that arrived together; all missed messages before and between them have been reported."""
        if not self._is_on or not publications:
            return
        self._subscription = self._subscription or self._connections.subscription_of(instance, self._stream.filters)
        last = publications[-1]
        if not self._connections.arrived(last):
            raise ViolationError(self.NAME, f"{self._stream.name}: {last} came, but never came to the broker")
        if self._subscription is None:
            self._is_on = False  # the broker has closed the connection, and the client does not know yet
            return
        self._received += len(publications)
        expected = self._connections.live_before(self._subscription, last) + 1
        if self._received + self._notified_missed != expected:
            raise ViolationError(
                self.NAME,
                f"{self._stream.name}: {self._received} messages received and {self._notified_missed} reported missed "
                f"up to {last}, which was number {expected}",
            )
