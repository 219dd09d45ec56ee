"""The checks of `godwit demo`: what arrived, message by message, against the only order that is right."""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from godwit.cli.house import RoomReading

if TYPE_CHECKING:
    from godwit.client.message import Message

PREFIX: Final = "home"
LATE_S: Final = 0.25
"""A message that took longer had to wait for a repair, on a network with this delay."""
DELAYS_MS: Final = (20, 30, 40, 50, 75, 100, 150, 250, 500, 1000, 2500, 5000, 10_000)
"""Delays are counted up to each of these, and above the last."""


def topic_of(room: str) -> str:
    return f"{PREFIX}/{room}/temperature"


def running_digest(digest: hashlib._Hash, payloads: Sequence[bytes]) -> None:
    """Both sides count this in. It does not depend on how the messages are cut into batches."""
    digest.update(b"\n".join(payloads) + b"\n")


class SentRoom(msgspec.Struct, frozen=True):
    """What one room published."""

    room: str
    sent: int
    digest: str
    """SHA-256 over all payloads, each with a newline behind it."""


class RoomReport(msgspec.Struct, frozen=True):
    """What arrived of one room."""

    room: str
    received: int
    missing: int
    """Numbers that were skipped."""
    misplaced: int
    """Repeated, out of order, or of another room."""
    celsius: float
    """The latest."""
    digest: str


class Delays(msgspec.Struct, frozen=True):
    """How long messages took from the publisher's call to the subscriber's."""

    counts: tuple[int, ...] = (0,) * (len(DELAYS_MS) + 1)
    longest_s: float = 0.0

    def within_ms(self, share: float) -> float:
        """The bound that so large a share of the messages did not exceed."""
        wanted = sum(self.counts) * share
        total = 0
        for bound_ms, number in zip(DELAYS_MS, self.counts, strict=False):
            total += number
            if total >= wanted:
                return min(float(bound_ms), self.longest_s * 1000)
        return self.longest_s * 1000


class WatchReport(msgspec.Struct, frozen=True):
    """What the subscriber has seen so far."""

    at_s: float = 0.0
    rooms: tuple[RoomReport, ...] = ()
    received_bytes: int = 0
    late: int = 0
    """Messages that took longer than LATE_S."""
    missed: int = 0
    """What the broker said it could not deliver."""
    delays: Delays = Delays()
    retained: dict[str, str] = {}
    """What a subscriber who came at the end got of each topic: the SHA-256 of the payload."""
    problem: str = ""

    @property
    def received(self) -> int:
        return sum(room.received for room in self.rooms)


class RoomCheck:
    """Every message of one room, in the order of arrival."""

    def __init__(self, room: str) -> None:
        self._decoder = msgspec.json.Decoder(RoomReading)
        self._digest = hashlib.sha256()
        self._room = room
        self._expected = 0
        self._received = 0
        self._missing = 0
        self._misplaced = 0
        self._celsius = 0.0

    def take(self, payloads: Sequence[bytes]) -> None:
        """msgspec.DecodeError for a payload that is no reading."""
        running_digest(self._digest, payloads)
        decode = self._decoder.decode
        for payload in payloads:
            reading = decode(payload)
            self._received += 1
            if reading.number < self._expected or reading.room != self._room:
                self._misplaced += 1
                continue
            self._missing += reading.number - self._expected
            self._expected = reading.number + 1
            self._celsius = reading.celsius

    def report(self) -> RoomReport:
        return RoomReport(
            self._room, self._received, self._missing, self._misplaced, self._celsius, self._digest.hexdigest()
        )


class Watch:
    """All rooms, as they come in at the subscriber."""

    def __init__(self) -> None:
        self._checks: dict[str, RoomCheck] = {}
        self._bytes = 0
        self._late = 0
        self._delays: Counter[int] = Counter()
        self._longest_s = 0.0
        self.missed = 0
        self.retained: dict[str, str] = {}
        self.problem = ""

    def take(self, messages: Sequence[Message], now_us: int) -> None:
        """The next messages, and when they were handed over."""
        by_topic: dict[str, list[bytes]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message.payload)
            self._bytes += len(message.payload)
            delay_s = max(now_us - message.published_us, 0) / 1e6
            self._delays[bisect(DELAYS_MS, delay_s * 1000)] += 1
            if delay_s > LATE_S:
                self._late += 1
            if delay_s > self._longest_s:
                self._longest_s = delay_s
        for topic, payloads in by_topic.items():
            check = self._checks.get(topic)
            if check is None:
                check = self._checks[topic] = RoomCheck(room_of(topic))
            try:
                check.take(payloads)
            except msgspec.DecodeError as error:
                self.problem = f"a message of {topic} cannot be read: {error}"

    def keep(self, message: Message) -> None:
        """One that the late subscriber got."""
        self.retained[message.topic] = hashlib.sha256(message.payload).hexdigest()
        if not message.retained:
            self.problem = f"the late subscriber got a message of {message.topic} that was not retained"

    def report(self, now_s: float) -> WatchReport:
        return WatchReport(
            at_s=now_s,
            rooms=tuple(check.report() for _, check in sorted(self._checks.items())),
            received_bytes=self._bytes,
            late=self._late,
            missed=self.missed,
            delays=Delays(tuple(self._delays[place] for place in range(len(DELAYS_MS) + 1)), self._longest_s),
            retained=dict(self.retained),
            problem=self.problem,
        )


def room_of(topic: str) -> str:
    return topic.removeprefix(f"{PREFIX}/").removesuffix("/temperature")


def problems(rooms: Sequence[SentRoom], last_digests: dict[str, str], seen: WatchReport) -> list[str]:
    """What is wrong with what arrived; empty when every message arrived once, in order and as it was sent.

    `last_digests` are of the retained messages: SHA-256 of the payload by topic.
    """
    found = [seen.problem] if seen.problem else []
    arrived = {room.room: room for room in seen.rooms}
    for room in rooms:
        there = arrived.pop(room.room, None)
        received = 0 if there is None else there.received
        if received != room.sent:
            found.append(f"{room.room}: {received:,} of {room.sent:,} messages arrived")
        if there is None:
            continue
        if there.missing:
            found.append(f"{room.room}: {there.missing:,} messages are missing in between")
        if there.misplaced:
            found.append(f"{room.room}: {there.misplaced:,} messages came twice or out of order")
        if received == room.sent and there.digest != room.digest:
            found.append(f"{room.room}: the bytes that arrived are not those that were sent")
    found += [f"{name or 'a room'}: nobody sent this" for name in arrived]
    if seen.missed:
        found.append(f"the broker gave {seen.missed:,} messages up")
    found += [
        f"{room_of(topic)}: the late subscriber did not get the last temperature"
        for topic, digest in last_digests.items()
        if seen.retained.get(topic) != digest
    ]
    return found
