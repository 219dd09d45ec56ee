"""Who could be given work at what time, and what workers have said: an ear between the broker and its transport.

The transport has its own world and is trusted here. So this knows, without asking the broker, who volunteered for what,
when each worker was heard last, and which leases it reported or handed back, in the words in which the broker got it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from godwit.broker.session import made_name
from godwit.errors import DecodeError
from godwit.transport.events import Closed, Connected, Received
from godwit.wire.codes import Code
from godwit.wire.control import Login, Work, decode_control
from godwit.wire.jobs import Ref, Volunteer
from godwit.wire.work import Outcome, Report, decode_from_client

CLOSE_CALL_S: Final = 0.000_01
"""So near to a change nobody can say which side of it a moment was on."""
GOODBYES: Final = (Code.NORMAL, Code.SHUTDOWN)


@dataclass(slots=True, eq=False)
class Presence:
    """A worker that volunteers, for as long as it does so in the same way."""

    name: str
    instance: bytes
    kinds: frozenset[str]
    capacity: int
    since_s: float
    until_s: float | None = None
    login_s: float = 0.0
    """When its connection asked for its name."""

    def was_there(self, now: float) -> bool:
        """Perhaps, at least."""
        return self.since_s - CLOSE_CALL_S <= now and (self.until_s is None or now <= self.until_s + CLOSE_CALL_S)

    def was_surely_there(self, now: float) -> bool:
        return self.since_s + CLOSE_CALL_S < now and (self.until_s is None or now < self.until_s - CLOSE_CALL_S)


@dataclass(slots=True, eq=False)
class _Seat:
    """One connection at the broker."""

    connection: Any
    name: str = ""
    instance: bytes = b""
    login_s: float = 0.0
    """When it asked for its name; who has that already may keep it for a while."""
    closed_s: float | None = None
    work_channel: int | None = None
    presence: Presence | None = None
    has_volunteered: bool = False


@dataclass(slots=True)
class _Worker:
    """What is known of a worker by its name, through all its lives."""

    presences: list[Presence] = field(default_factory=list)
    heard_s: list[float] = field(default_factory=list)
    seats: list[_Seat] = field(default_factory=list)
    """All that asked for this name."""
    returned: dict[Ref, float] = field(default_factory=dict)
    """Leases that it handed back, and when."""
    goodbyes_s: list[float] = field(default_factory=list)
    resumed: list[tuple[float, frozenset[Ref]]] = field(default_factory=list)
    """When it volunteered on a new connection, and what it still had."""
    outcomes: dict[Ref, list[tuple[Outcome, bytes]]] = field(default_factory=dict)


def who(login: Login) -> str:
    """What the broker calls a client that works or controls: its name, else one that is stable over reconnects."""
    return login.name if login.name is not None else made_name(login.instance)


class WorkRoster:
    """Feed: heard, started, cut_off. Everything else is for looking."""

    def __init__(self, lease_s: float, grace_s: float) -> None:
        """`grace_s`: so long a worker has, at the least, to come back after a restart."""
        self.lease_s = lease_s
        self._grace_s = max(lease_s, grace_s)
        self._open: dict[int, _Seat] = {}
        self._workers: dict[str, _Worker] = {}
        self._started_s: list[float] = []

    # -- feed ---------------------------------------------------------------------------------------------------------

    def started(self, now: float) -> None:
        """A broker begins to live."""
        self._started_s.append(now)

    def cut_off(self, now: float) -> None:
        """It is dead, and knows no connection any more."""
        for seat in self._open.values():
            self._end(seat, now)
        self._open.clear()

    def heard(self, events: Sequence[Any], now: float) -> None:
        """The broker is about to get these events of its transport."""
        for event in events:
            if isinstance(event, Connected):
                # The seat keeps the connection, so that its id is not used again.
                self._open[id(event.connection)] = _Seat(event.connection)
            elif isinstance(event, Received):
                self._received(self._open[id(event.connection)], event, now)
            elif isinstance(event, Closed):
                seat = self._open.pop(id(event.connection))
                self._end(seat, now)
                if event.origin == "peer" and event.code in GOODBYES and seat.name:
                    self._worker(seat.name).goodbyes_s.append(now)

    def _worker(self, name: str) -> _Worker:
        return self._workers.setdefault(name, _Worker())

    def _end(self, seat: _Seat, now: float) -> None:
        seat.closed_s = now
        self._end_presence(seat, now)

    def _end_presence(self, seat: _Seat, now: float) -> None:
        if seat.presence is not None:
            seat.presence.until_s = now
            seat.presence = None

    def _received(self, seat: _Seat, event: Received, now: float) -> None:
        try:
            if event.channel == 0:
                self._on_control(seat, decode_control(event.body), now)
            elif event.channel == seat.work_channel:
                self._on_work(seat, event.body, now)
            elif event.record == 0 and isinstance(decode_control(event.body), Work):
                seat.work_channel = event.channel
        except DecodeError:
            return  # not for this ear

    def _on_control(self, seat: _Seat, message: object, now: float) -> None:
        if isinstance(message, Login):
            seat.name, seat.instance, seat.login_s = who(message), message.instance, now
            self._worker(seat.name).seats.append(seat)
        elif isinstance(message, Volunteer):
            worker = self._worker(seat.name)
            worker.heard_s.append(now)
            self._end_presence(seat, now)
            if not seat.has_volunteered:
                seat.has_volunteered = True
                worker.resumed.append((now, frozenset(message.holding)))
            if message.kinds:
                kinds = frozenset(message.kinds)
                seat.presence = Presence(seat.name, seat.instance, kinds, message.capacity, now, login_s=seat.login_s)
                worker.presences.append(seat.presence)

    def _on_work(self, seat: _Seat, record: bytes, now: float) -> None:
        head, payloads = decode_from_client(record)
        if not isinstance(head, Report):
            return
        worker = self._worker(seat.name)
        worker.heard_s.append(now)
        for ref in head.returned:
            worker.returned.setdefault(ref, now)
        for outcome, payload in zip(head.outcomes, payloads, strict=True):
            worker.outcomes.setdefault(outcome.task, []).append((outcome, payload))

    # -- look ---------------------------------------------------------------------------------------------------------

    def outcomes(self, name: str, ref: Ref) -> list[tuple[Outcome, bytes]]:
        """How the worker said that this lease ended, as often as it came."""
        return self._worker(name).outcomes.get(ref, [])

    def was_restarted(self, since_s: float, until_s: float) -> bool:
        """Whether another broker began to live in this time."""
        return any(since_s - CLOSE_CALL_S <= at_s <= until_s + CLOSE_CALL_S for at_s in self._started_s)

    def silence_s(self, name: str, since_s: float, until_s: float) -> float:
        """How long the worker was not heard in this time, at the longest; what it said before counts too."""
        heard_s = self._worker(name).heard_s
        since_s += CLOSE_CALL_S
        last_s = max((at_s for at_s in heard_s if at_s <= since_s), default=since_s)
        times_s = [last_s, *(at_s for at_s in heard_s if since_s < at_s <= until_s), until_s]
        return max(later_s - earlier_s for earlier_s, later_s in pairwise(times_s))

    def count(self, kind: str, now: float) -> tuple[int, int]:
        """How many volunteered for the kind at that time, at the least and at the most."""
        return len(set(self.surely(kind, now))), len({one.name for one in self._there(kind, now)})

    def surely(self, kind: str, now: float) -> list[str]:
        """Those who did without any doubt: connected, heard in time, and nobody else was about to take their name."""
        return [
            one.name
            for one in self._there(kind, now)
            if one.was_surely_there(now) and self._was_heard(one, now) and not self._is_contested(one, now)
        ]

    def capacity(self, name: str, kind: str, now: float) -> int:
        """How many tasks the worker would take at that time, at the most; 0: none of this kind."""
        return max((one.capacity for one in self._there(kind, now) if one.name == name), default=0)

    def instances(self, name: str, kind: str, now: float) -> set[bytes]:
        """Which runs of the worker may have been given a task of this kind then."""
        return {one.instance for one in self._there(kind, now) if one.name == name}

    def _there(self, kind: str, now: float) -> Iterator[Presence]:
        for worker in self._workers.values():
            for one in worker.presences:
                if kind in one.kinds and one.was_there(now):
                    yield one

    def _was_heard(self, presence: Presence, now: float) -> bool:
        heard_s = self._worker(presence.name).heard_s
        return any(now - self.lease_s + CLOSE_CALL_S < at_s < now for at_s in heard_s)

    def _is_contested(self, presence: Presence, now: float) -> bool:
        seats = self._worker(presence.name).seats
        return any(
            presence.login_s < seat.login_s <= now + CLOSE_CALL_S and (seat.closed_s is None or now <= seat.closed_s)
            for seat in seats
        )

    def may_return(self, name: str, ref: Ref, leased_s: float, now: float) -> bool:
        """Whether the worker gave this lease up before that time: said so, said goodbye, or came back without it."""
        worker = self._worker(name)
        since_s, until_s = leased_s - CLOSE_CALL_S, now + CLOSE_CALL_S
        return (
            worker.returned.get(ref, until_s + 1.0) <= until_s
            or any(since_s <= at_s <= until_s for at_s in worker.goodbyes_s)
            or any(since_s <= at_s <= until_s and ref not in holding for at_s, holding in worker.resumed)
        )

    def may_be_lost(self, name: str, instance: bytes, leased_s: float, now: float) -> bool:
        """Whether the worker was silent for long enough before that time, or another run of it had come."""
        worker = self._worker(name)
        since_s, until_s = leased_s - CLOSE_CALL_S, now + CLOSE_CALL_S
        for seat in worker.seats:
            was_there = seat.login_s <= until_s and (seat.closed_s is None or since_s <= seat.closed_s)
            if was_there and seat.instance != instance:
                return True
        started_s = max(at_s for at_s in self._started_s if at_s <= until_s)
        grace_s = self._grace_s if started_s > leased_s else self.lease_s
        heard_s = max((at_s for at_s in worker.heard_s if at_s <= until_s), default=0.0)
        return until_s >= (heard_s + self.lease_s if heard_s > started_s else started_s + grace_s)
