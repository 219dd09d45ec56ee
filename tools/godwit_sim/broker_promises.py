"""Checkers of promises that concern more than one subscription: retained messages, wills, how many were reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from godwit.wire.control_base import Code
from godwit_sim.broker_ledger import Publication
from godwit_sim.broker_roster import Presence, Roster, Seat
from godwit_sim.broker_streams import Stream
from godwit_sim.checkers import ViolationError

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
