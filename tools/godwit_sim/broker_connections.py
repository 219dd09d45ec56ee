"""What the broker was told, in the order in which it was told: an ear at the border between its transport and itself.

The transport has its own world and is trusted here. So this knows exactly who was connected and subscribed at what
time, which messages of QoS 0 arrived and in which order, and how each connection ended, without asking the broker.

Checkers of promises that concern more than one subscription: retained messages, wills, how many were reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from godwit.errors import DecodeError
from godwit.transport.events import Closed, Connected, Received
from godwit.wire.batch import Batch, decode_batches
from godwit.wire.control import Code, Login, Open, Subscribe, Unsubscribe, decode_control
from godwit_sim.broker_log_model import Ledger, Publication, fits_any
from godwit_sim.broker_streams import Stream
from godwit_sim.checkers import ViolationError

CLOSE_CALL_S: Final = 0.1
"""So near to its expiry nobody can say whether a session is still there."""


@dataclass(slots=True)
class Presence:
    """One subscription on one connection, as long as it was there."""

    filters: tuple[str, ...]
    since_s: float
    first_live: int
    """How many messages of QoS 0 had arrived before it."""
    is_sure: bool = True
    """Asked for by somebody honest: the broker has surely agreed."""
    is_settled: bool = False
    """Its client was told that it stands: from then on the session is kept, as long as the subscription is there."""
    until_s: float | None = None

    def matches(self, topic: str) -> bool:
        return fits_any(self.filters, topic)


@dataclass(slots=True, eq=False)
class Seat:
    """One connection at the broker."""

    connection: Any
    since_s: float
    login: Login | None = None
    is_in: bool = False
    """It went on after its login, so that was accepted."""
    resumes: bool | None = False
    """Whether its login finds a session of its name; None: perhaps."""
    presences: dict[int, Presence] = field(default_factory=dict)
    """Its subscriptions, by their numbers."""
    left: dict[int, Presence] = field(default_factory=dict)
    """Those that it had when it ended."""
    channels: dict[int, Open] = field(default_factory=dict)
    next_sequences: dict[int, int] = field(default_factory=dict)
    """Of each channel of QoS 0 whose batches are numbered."""
    closed: Closed | None = None
    closed_s: float = 0.0
    is_cut_off: bool = False
    """The broker died under it."""

    @property
    def is_over(self) -> bool:
        return self.closed is not None or self.is_cut_off

    @property
    def instance(self) -> bytes:
        return self.login.instance if self.login is not None else b""

    @property
    def name(self) -> str | None:
        return self.login.name if self.login is not None else None


class Roster:
    """Feed: heard. Everything else is for looking."""

    def __init__(self, ledger: Ledger) -> None:
        self.seats: list[Seat] = []
        self.live: list[Publication] = []
        """Messages of QoS 0 as they arrived; late ones, which would break the order, are left out."""
        self.on_retain: Callable[[Publication, float], None] = lambda publication, now: None
        self.on_closed: Callable[[Seat, float], None] = lambda seat, now: None
        self.honest: set[bytes] = set()
        """The instances of clients that ask for nothing they may not have."""
        self._ledger = ledger
        self._open: dict[int, Seat] = {}
        self._presences: list[Presence] = []
        self._ranks: dict[int, int] = {}
        self._doubts_s = -1.0

    def heard(self, events: Sequence[Any], now: float) -> None:
        """The broker is about to get these events of its transport."""
        for event in events:
            if isinstance(event, Connected):
                seat = self._open[id(event.connection)] = Seat(event.connection, now)
                self.seats.append(seat)
            elif isinstance(event, Received):
                self._received(self._open[id(event.connection)], event, now)
            elif isinstance(event, Closed):
                # Keeping the connection in its seat keeps its id from being used again.
                seat = self._open.pop(id(event.connection))
                seat.closed = event
                self._leave(seat, now)
                self.on_closed(seat, now)

    def doubt(self, until_s: float) -> None:
        """Its disk fails the broker: what it is told until then it may have to refuse, or to forget."""
        self._doubts_s = max(self._doubts_s, until_s)
        for presence in self._presences:
            presence.is_sure = False

    def is_doubtful(self, now: float) -> bool:
        """Whether what the broker says now may not be kept: it goes on without its disk as far as it can."""
        return now <= self._doubts_s

    def cut_off(self, now: float) -> list[Seat]:
        """The broker is dead, and knows no connection any more. Gives those that there were."""
        self.doubt(now)
        seats = list(self._open.values())
        for seat in seats:
            seat.is_cut_off = True
            self._leave(seat, now)
        self._open.clear()
        return seats

    def _leave(self, seat: Seat, now: float) -> None:
        seat.closed_s = now
        for presence in seat.presences.values():
            presence.until_s = now
        seat.left, seat.presences = seat.presences, {}

    # -- look ---------------------------------------------------------------------------------------------------------

    def reached(self, topic: str, since_s: float, until_s: float) -> tuple[int, int]:
        """How many connected subscriptions a message of that time must have matched at the least and at the most."""
        least = most = 0
        for presence in self._presences:
            ends_s = presence.until_s if presence.until_s is not None else until_s + 1.0
            if presence.since_s <= until_s and ends_s >= since_s and presence.matches(topic):
                most += 1
                least += presence.is_sure and presence.since_s < since_s and ends_s > until_s
        return least, most

    def presence(self, instance: bytes, filters: Sequence[str]) -> Presence | None:
        """The newest subscription of this client to these filters, if it is still there."""
        wanted = tuple(sorted(set(filters)))
        seat = self.seat_of(instance)
        presences = reversed(seat.presences.values()) if seat is not None else ()
        return next((presence for presence in presences if presence.filters == wanted), None)

    def live_before(self, presence: Presence, publication: Publication) -> int:
        """How many messages of QoS 0 came for this subscription before this one."""
        rank = self._ranks[id(publication)]
        return sum(presence.matches(one.topic) for one in self.live[presence.first_live : rank])

    def arrived(self, publication: Publication) -> bool:
        return id(publication) in self._ranks

    # -- records ------------------------------------------------------------------------------------------------------

    def _received(self, seat: Seat, event: Received, now: float) -> None:
        if event.channel == 0:
            self._on_control(seat, event.body, now)
        elif event.record == 0 and event.channel not in seat.channels:
            message = _control(event.body)
            if isinstance(message, Open):
                seat.is_in = True
                seat.channels[event.channel] = message
        elif (channel := seat.channels.get(event.channel)) is not None and channel.qos == 0:
            self._on_live(seat, event.channel, event.body, now)

    def _on_control(self, seat: Seat, body: bytes, now: float) -> None:
        message = _control(body)
        if isinstance(message, Login):
            seat.resumes = self._resumes(message, now)
            seat.login = message
            return
        seat.is_in = True
        is_honest = seat.instance in self.honest
        if isinstance(message, Subscribe):
            is_sure = is_honest and not self.is_doubtful(now)
            presence = Presence(tuple(sorted(set(message.filters))), now, len(self.live), is_sure)
            # Of others nobody knows whether the broker agreed, so all that they ever asked for stands.
            number = message.subscription if is_honest else -1 - len(seat.presences)
            if number not in seat.presences:
                seat.presences[number] = presence
                self._presences.append(presence)
        elif isinstance(message, Unsubscribe) and is_honest:
            ended = seat.presences.pop(message.subscription, None)
            if ended is not None:
                ended.until_s = now

    def _resumes(self, login: Login, now: float) -> bool | None:
        """Whether there is a session for this login, as far as can be known."""
        if login.name is None or login.fresh:
            return False
        for seat in reversed(self.seats):
            if seat.name != login.name or seat.login is None or seat.instance not in self.honest:
                continue  # nobody else gets in under this name
            expires_s = float(seat.login.session_expiry_s)
            if seat.since_s <= self._doubts_s:
                is_settled = any(presence.is_settled for presence in seat.left.values())
                is_kept = is_settled and now < seat.closed_s + expires_s - CLOSE_CALL_S
                return True if is_kept and expires_s else None
            if seat.closed is None:
                return _but_empty(bool(expires_s), seat) if seat.is_in else None
            if not seat.is_in:
                if seat.closed.origin == "local":
                    continue  # refused
                return None
            left_s = seat.closed_s + expires_s - now
            return None if abs(left_s) < CLOSE_CALL_S and expires_s else _but_empty(left_s > 0.0, seat)
        return False

    def seat_of(self, instance: bytes) -> Seat | None:
        """The newest connection of this run of a client."""
        return next((seat for seat in reversed(self.seats) if seat.instance == instance), None)

    def _on_live(self, seat: Seat, channel: int, body: bytes, now: float) -> None:
        topic = seat.channels[channel].topic
        try:
            batches = decode_batches(body)
        except DecodeError:
            return
        for batch in batches:
            if batch.sequence is not None:
                if batch.sequence < seat.next_sequences.get(channel, 0):
                    continue  # late: it would break the order
                seat.next_sequences[channel] = batch.sequence + len(batch.payloads)
            found = [self._find(payload, batch, index) for index, payload in enumerate(batch.payloads)]
            if None in found:
                continue  # somebody else's, who means harm
            known = [one for one in found if one is not None and one.topic == topic]
            for publication in known:
                self._ranks[id(publication)] = len(self.live)
                self.live.append(publication)
            if known and batch.retain:
                self.on_retain(known[-1], now)

    def _find(self, payload: bytes, batch: Batch, index: int) -> Publication | None:
        published_us = batch.published_us + (batch.deltas_us[index] if batch.deltas_us else 0)
        return self._ledger.find(payload, published_us)


def _but_empty(resumes: bool, seat: Seat) -> bool | None:
    """A session without subscriptions need not be kept; it may still have those of an earlier connection."""
    return None if resumes and not seat.presences and not seat.left else resumes


def _control(body: bytes) -> Any:
    try:
        return decode_control(body)
    except DecodeError:
        return None


REFUSALS: Final = frozenset((Code.NAME_IN_USE, Code.NOT_ALLOWED, Code.BAD_NAME, Code.TOO_MANY, Code.NOT_LOGGED_IN))
"""With these a broker closes a connection that it never let in."""


class RetainedChecker:
    """A new subscription gets what each topic retains, nothing older, and nothing of a topic that was cleared."""

    NAME = "retained"

    def __init__(self) -> None:
        self._history: dict[str, list[tuple[float, Publication]]] = {}

    def changed(self, publication: Publication, now: float) -> None:
        """From now on the topic retains this one (or nothing, if it is empty)."""
        self._history.setdefault(publication.topic, []).append((now, publication))

    def copy(self) -> dict[str, Publication]:
        """What each topic that ever retained something has retained last."""
        return {topic: history[-1][1] for topic, history in self._history.items()}

    def put_back(self, kept: dict[str, Publication], now: float) -> None:
        """From now on topics retain what they retained when a copy was made."""
        for topic, history in self._history.items():
            before = kept.get(topic) or replace(history[-1][1], payload=b"")
            if before is not history[-1][1]:
                history.append((now, before))

    def current(self) -> dict[str, bytes]:
        """What each topic retains by now, if anything."""
        newest = {topic: history[-1][1].payload for topic, history in self._history.items()}
        return {topic: payload for topic, payload in newest.items() if payload}

    def check(self, stream: Stream, asked_s: float, *, all_is_there: bool) -> None:
        """A subscription asked for at that time got what it has. `all_is_there`: nothing more is under way."""
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
        """One that a subscription asked for at that time must get and has not got."""
        for topic in self._history:
            values = self._values(topic, asked_s)
            # Whoever is slow may get what came meanwhile instead.
            if len(values) == 1 and values[0] is not None and stream.matches(topic) and topic not in stream.retained:
                return values[0]
        return None

    def _values(self, topic: str, since_s: float) -> list[Publication | None]:
        """What the topic retained at that time, and everything that it retained later."""
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
class _Testament:
    """One run of a client that left a will."""

    will: Publication
    least: int = 0
    most: int = 0
    is_safe: bool = False
    """Its client was told that the broker has it, and the broker's disk was well."""
    is_unsaved: bool = False
    """The broker has heard a goodbye, and may forget that with its life."""
    is_adrift: bool | None = None
    """The broker died under its client, which has not come back: it is due (surely, or perhaps), in a while."""
    ends: list[str] = field(default_factory=list)

    @property
    def due(self) -> int:
        """How often it must have been published."""
        return self.least + (self.is_adrift is True)


class WillChecker:
    """A will is published once for each connection that was lost without a goodbye, and not otherwise."""

    NAME = "will"

    def __init__(self) -> None:
        self._by_instance: dict[bytes, _Testament] = {}

    def left(self, instance: bytes, will: Publication) -> None:
        """A client with this instance has this will."""
        self._by_instance[instance] = _Testament(will)

    def closed(self, seat: Seat, next_instance: bytes | None) -> None:
        """The broker's connection has ended. `next_instance`: who takes the name over, if that was the reason."""
        testament = self._by_instance.get(seat.instance)
        closed = seat.closed
        if testament is None or closed is None:
            return
        testament.ends.append(f"{closed.origin} {closed.code}")
        if closed.origin == "peer" and closed.code in (Code.NORMAL, Code.SHUTDOWN):
            testament.is_unsaved = True
            testament.is_adrift = None  # it was back, whether or not its client got the welcome
            return  # a goodbye
        if closed.origin == "local" and closed.code in REFUSALS and not seat.is_in:
            return
        if closed.code == Code.TAKEN_OVER and next_instance == seat.instance:
            return  # it came back before it was missed
        testament.most += 1
        testament.least += seat.is_in

    def cut_off(self, seats: Sequence[Seat]) -> None:
        """The broker has died under these connections. Who comes back in time leaves no will, who does not does.

        What was due already and not published yet is remembered like that too.
        """
        for testament in self._by_instance.values():
            if testament.is_unsaved:
                testament.is_unsaved = False
                testament.most += 1
                testament.is_adrift = False
            if len(testament.will.offsets) < testament.least:
                testament.least = len(testament.will.offsets)
                testament.is_adrift = testament.is_safe
        for seat in seats:
            adrift = self._by_instance.get(seat.instance)
            if adrift is None:
                continue
            adrift.ends.append("broker died")
            adrift.most += adrift.is_adrift is None
            adrift.is_adrift = adrift.is_adrift or (adrift.is_safe and seat.name is not None)

    def saved(self) -> None:
        """The broker has written down what it knows."""
        for testament in self._by_instance.values():
            testament.is_unsaved = False

    def welcomed(self, instance: bytes, *, is_safe: bool) -> None:
        """Its client is online; what it left is on the disk, unless that fails."""
        testament = self._by_instance.get(instance)
        if testament is not None:
            testament.is_adrift = None
            testament.is_safe = testament.is_safe or is_safe

    def check(self) -> None:
        """Nobody's will was published too often."""
        for testament in self._by_instance.values():
            if len(testament.will.offsets) > testament.most:
                raise self._violation(testament)

    def outstanding(self) -> str:
        """Whose will is due and not published yet, in words."""
        for testament in self._by_instance.values():
            if testament.will.qos and len(testament.will.offsets) < testament.due:
                return f"{testament.will} is due"
        return ""

    def complete(self) -> None:
        """Liveness: every will that was due is in the log."""
        for testament in self._by_instance.values():
            if testament.will.qos and not testament.due <= len(testament.will.offsets) <= testament.most:
                raise self._violation(testament)

    def _violation(self, testament: _Testament) -> ViolationError:
        least, most = testament.due, testament.most
        due = str(least) if least == most else f"{least} to {most}"
        return ViolationError(
            self.NAME,
            f"{testament.will} was published {len(testament.will.offsets)} times, due {due} times; "
            f"its connections ended: {', '.join(testament.ends) or 'none'}",
        )


class SessionChecker:
    """Who comes back in time finds its session, who comes too late or wants a new one does not."""

    NAME = "session"

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def settled(self, instance: bytes, number: int, now: float) -> bool:
        """A subscription of this client was answered. Gives whether it is kept from now on, whatever happens."""
        seat = self._roster.seat_of(instance)
        is_safe = seat is not None and not self._roster.is_doubtful(now)
        if seat is not None and is_safe:
            presence = seat.presences.get(number) or seat.left.get(number)
            if presence is not None:
                presence.is_settled = True
        return is_safe

    def welcomed(self, label: str, instance: bytes, resumed: bool) -> None:
        seat = self._roster.seat_of(instance)
        if seat is None:
            raise ViolationError(self.NAME, f"{label}: welcomed by a broker that never heard of it")
        if seat.resumes is not None and seat.resumes is not resumed:
            raise ViolationError(self.NAME, f"{label}: welcomed with resumed={resumed}, it should be {seat.resumes}")


class ReachChecker:
    """A confirm tells how many connected subscriptions matched: as many as were surely there, no more than may be."""

    NAME = "reached"

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def confirmed(self, publication: Publication, reached: int, now: float) -> None:
        least, most = self._roster.reached(publication.topic, publication.sent_s, now)
        if not least <= reached <= most:
            raise ViolationError(
                self.NAME, f"{publication} reached {reached} subscriptions, it must have been {least} to {most}"
            )


class LiveChecker:
    """QoS 0: what was told as missed is what came for the subscription and was not delivered, while it was connected.

    After a break nobody knows what was under way, so only the first connection of a subscription is counted.
    """

    NAME = "live"

    def __init__(self, roster: Roster, stream: Stream, *, counts: bool = True) -> None:
        """`counts`: False if something comes that the roster cannot know, a will."""
        self._roster = roster
        self._stream = stream
        self._presence: Presence | None = None
        self._is_on = counts
        self._received = 0
        self._told = 0

    def disconnected(self) -> None:
        self._is_on = False

    def told_missed(self, count: int) -> None:
        if count <= 0:
            raise ViolationError(self.NAME, f"{self._stream.name}: told that {count} messages are missing")
        self._told += count

    def took(self, instance: bytes, publications: Sequence[Publication]) -> None:
        """These came together, what was missing before and between them has been told."""
        if not self._is_on or not publications:
            return
        self._presence = self._presence or self._roster.presence(instance, self._stream.filters)
        last = publications[-1]
        if not self._roster.arrived(last):
            raise ViolationError(self.NAME, f"{self._stream.name}: {last} came, but never came to the broker")
        if self._presence is None:
            self._is_on = False  # the broker has given the connection up, and its client does not know yet
            return
        self._received += len(publications)
        expected = self._roster.live_before(self._presence, last) + 1
        if self._received + self._told != expected:
            raise ViolationError(
                self.NAME,
                f"{self._stream.name}: {self._received} messages received and {self._told} told as missed "
                f"up to {last}, which was number {expected}",
            )
