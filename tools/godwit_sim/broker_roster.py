"""What the broker was told, in the order in which it was told: an ear at the border between its transport and itself.

The transport has its own world and is trusted here. So this knows exactly who was connected and subscribed at what
time, which messages of QoS 0 arrived and in which order, and how each connection ended, without asking the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from godwit.errors import DecodeError
from godwit.transport.events import Closed, Connected, Received
from godwit.wire.batch import Batch, decode_batches
from godwit.wire.control import Login, PublishOpen, Subscribe, Unsubscribe, decode_control
from godwit_sim.broker_ledger import Ledger, Publication, fits_any

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
    channels: dict[int, PublishOpen] = field(default_factory=dict)
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
            if isinstance(message, PublishOpen):
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
