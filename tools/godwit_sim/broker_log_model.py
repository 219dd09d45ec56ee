"""A model of the messages that applications published, and the checker of the log.

Nothing here uses the broker or the library. Filter matching is implemented a second time, in the simple way, so that
the trie is compared with independent code.

The log's checker requires: confirmed messages are in the log, those of QoS 2 once, the messages with one order key are
in order, and offsets count messages. It observes every append, so it knows the whole log, including messages that a
bounded store has since deleted. The checkers of subscriptions compare with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from typing import Final, TypeAlias

from godwit.errors import DecodeError
from godwit.wire.batch import RETAIN, Entry, decode_batch, encode_head, extension_of
from godwit.wire.extension import Properties, decode_properties, encode_properties
from godwit_sim.checkers import ViolationError

SHARED_TIME_US: Final = 1000
"""Messages that were published within this time may carry the time of the first."""

ANY_NAME: Final = "*"
BROKER: Final = "$broker"
"""The name under which the broker itself publishes."""
SHORT_LIFETIME_US: Final = 500_000
LONG_LIFETIME_US: Final = 3_600_000_000

OrderKey: TypeAlias = tuple[str, str, int]
"""Publisher (a client's label, or a publisher identity), topic and QoS. Messages with the same key are ordered."""


@lru_cache(maxsize=4096)
def matches_filter(filter_text: str, topic: str) -> bool:
    """Return whether a topic matches a filter.

    `+` matches one level, `*` one or more, `#` the rest and the parent. A topic that begins with `$` does not match a
    filter that begins with a wildcard.
    """
    if topic.startswith("$") and filter_text[:1] in ("+", "*", "#"):
        return False
    return _matches_levels(filter_text.split("/"), topic.split("/"))


def matches_any(filters: Sequence[str], topic: str) -> bool:
    return any(matches_filter(filter_text, topic) for filter_text in filters)


def _matches_levels(levels: Sequence[str], names: Sequence[str]) -> bool:
    if not levels:
        return not names
    if levels[0] == "#":
        return True
    if not names:
        return False
    if levels[0] == "*":
        return any(_matches_levels(levels[1:], names[count:]) for count in range(1, len(names) + 1))
    return levels[0] in ("+", names[0]) and _matches_levels(levels[1:], names[1:])


@dataclass(slots=True, eq=False)
class Publication:
    """One message that an application published, or its will."""

    author: str
    """The label of the client that published it."""
    order_key: OrderKey
    position: int
    """Its number among the messages with this order key, from 0."""
    topic: str
    qos: int
    retain: bool
    payload: bytes
    published_us: int | None
    """None for a will, whose time the broker sets."""
    sent_s: float
    headers: tuple[tuple[str, str], ...] = ()
    lifetime_us: int | None = None
    confirmed_s: float | None = None
    offsets: list[int] = field(default_factory=list)
    """Its offsets in the log."""

    @property
    def extension(self) -> bytes:
        """Its properties as the library encodes them."""
        return encode_properties(Properties(headers=self.headers, lifetime_us=self.lifetime_us))

    @property
    def may_expire(self) -> bool:
        """Whether it may expire in a run, so that it need not be delivered."""
        return self.lifetime_us is not None and self.lifetime_us <= SHORT_LIFETIME_US

    @property
    def is_will(self) -> bool:
        return self.published_us is None

    def __str__(self) -> str:
        what = "the will" if self.is_will else f"message {self.position}"
        return f"{what} of {self.order_key[0]} on {self.topic!r} at QoS {self.qos}"


class PublishedMessages:
    """All published messages. Payloads are unique; empty ones have unique times."""

    def __init__(self) -> None:
        self.publications: list[Publication] = []
        self._by_payload: dict[bytes, Publication] = {}
        self._empty: dict[int, Publication] = {}
        self._positions: dict[OrderKey, int] = {}
        self._names: dict[str, set[str]] = {}

    def names(self, author: str, *names: str) -> None:
        """Allow the author to publish under these names too."""
        self._names.setdefault(author, set()).update(names)

    def allow_any_name(self, author: str) -> None:
        """Allow the author to publish under any name: the broker assigned one that is not known yet."""
        self._names.setdefault(author, set()).add(ANY_NAME)

    def make(
        self,
        author: str,
        topic: str,
        payload: bytes,
        published_us: int,
        now: float,
        *,
        qos: int = 1,
        retain: bool = False,
        source: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        lifetime_us: int | None = None,
    ) -> Publication:
        """Return the next message with an order key. `source` is the publisher in the key if it is not the author."""
        order_key = (source or author, topic, qos)
        position = self._positions.get(order_key, 0)
        return Publication(
            author, order_key, position, topic, qos, retain, payload, published_us, now, headers, lifetime_us
        )

    def add(self, publication: Publication) -> None:
        """Record that the library accepted the message."""
        payload, published_us = publication.payload, publication.published_us
        assert published_us is not None
        assert self.find(payload, published_us) is None, "two equal payloads, or empty ones of one time, are one"
        if payload:
            self._by_payload[payload] = publication
        else:
            self._empty[published_us] = publication
        self._positions[publication.order_key] = publication.position + 1
        self.publications.append(publication)

    def add_will(
        self, author: str, topic: str, payload: bytes, now: float, *, qos: int = 1, retain: bool = False
    ) -> Publication:
        """Record the message to be published if this author is lost."""
        made = Publication(author, (f"{author} dead", topic, qos), 0, topic, qos, retain, payload, None, now)
        assert payload not in self._by_payload, "two equal wills are indistinguishable"
        self._by_payload[payload] = made
        return made

    def add_broker_message(self, topic: str, payload: bytes, published_us: int) -> None:
        """Record a message of the broker itself, which becomes known when it is in the log."""
        if payload in self._by_payload:
            raise ViolationError("log", f"{payload[:200]!r} on {topic!r} a second time")
        self.names(BROKER, BROKER)
        self.add(self.make(BROKER, topic, payload, published_us, 0.0))

    def find(self, payload: bytes, published_us: int) -> Publication | None:
        """Return the publication with this payload, or with this time if the payload is empty."""
        return self._by_payload.get(payload) if payload else self._empty.get(published_us)

    def identify(
        self, checker: str, where: str, topic: str, payload: bytes, published_us: int, qos: int, publisher: str
    ) -> Publication:
        """Return the publication that this message is.

        Raises ViolationError if it was never published, or was changed on its way.
        """
        found = self.find(payload, published_us)
        if found is None:
            raise ViolationError(checker, f"{where}: {len(payload)} bytes on {topic!r} that was never published")
        wrong = [
            f"{name} {is_now!r}, published with {was!r}"
            for name, is_now, was in (("topic", topic, found.topic), ("QoS", qos, found.qos))
            if is_now != was
        ]
        if found.published_us is not None and not 0 <= found.published_us - published_us <= SHARED_TIME_US:
            wrong.append(f"time {published_us}, published at {found.published_us}")
        if wrong:
            raise ViolationError(checker, f"{where}: {found} came with {'; '.join(wrong)}")
        names = self._names.get(found.author, set())
        if publisher not in names and ANY_NAME not in names:
            raise ViolationError(checker, f"{where}: {found} came from {publisher!r}, not one of {sorted(names)}")
        return found


def check_headers(checker: str, where: str, publication: Publication, extension: bytes | None) -> None:
    """Raise ViolationError if a message does not have the headers or the lifetime that it was published with."""
    found = decode_properties(extension)
    if found.headers != publication.headers:
        raise ViolationError(checker, f"{where}: {publication} has the headers {found.headers}")
    if (found.lifetime_us is None) != (publication.lifetime_us is None) or (
        found.lifetime_us is not None and found.lifetime_us > (publication.lifetime_us or 0)
    ):
        raise ViolationError(checker, f"{where}: {publication} has the lifetime {found.lifetime_us} us")


# -- the log ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class History:
    """The messages of one log, by offset minus `begin`. A new history begins when an older copy is restored."""

    begin: int
    messages: list[Publication] = field(default_factory=list)
    received_us: list[int] = field(default_factory=list)
    """Distinguishes two messages with the same offset, even if both are the same publication."""

    def has(self, offset: int, publication: Publication, received_us: int) -> bool:
        """Return whether the message is in this history at that offset."""
        index = offset - self.begin
        return (
            0 <= index < len(self.messages)
            and self.messages[index] is publication
            and self.received_us[index] == received_us
        )

    def same_below(self, other: History, end: int) -> int:
        """Return the first offset below `end` where another history has another message, or none; else `end`."""
        if self is other:
            return end
        ours, theirs = self.received_us[: end - self.begin], other.received_us[: end - self.begin]
        if ours == theirs:
            return end
        same = takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))
        return self.begin + sum(1 for _ in same)


@dataclass(slots=True)
class LogBackup:
    """The contents of a log when it was copied."""

    history: History
    newest: dict[OrderKey, int]


class LogChecker:
    """Check every append, message by message, and answer queries about the log."""

    NAME = "log"

    def __init__(self, published: PublishedMessages, next_offset: int = 0, *, logs_qos_0: bool = False) -> None:
        self.begin = next_offset
        self.deleted_below = next_offset
        """The store has deleted all offsets below."""
        self.damaged: set[int] = set()
        """Offsets that the store cannot read."""
        self.history = History(next_offset)
        self.former: list[History] = []
        """Histories that were replaced by an older copy."""
        self.lost: set[Publication] = set()
        """Messages that only replaced histories have."""
        self._logs_qos_0 = logs_qos_0
        self._published = published
        self._newest: dict[OrderKey, int] = {}

    @property
    def messages(self) -> list[Publication]:
        """Return the messages by offset minus `begin`."""
        return self.history.messages

    @property
    def _received_us(self) -> list[int]:
        return self.history.received_us

    def copy(self) -> LogBackup:
        """Return a copy of the log's present contents."""
        history = History(self.begin, self.messages[:], self._received_us[:])
        return LogBackup(history, dict(self._newest))

    def restore(self, backup: LogBackup) -> None:
        """Replace the log by a copy of itself, without the messages appended since."""
        for history in (self.history, backup.history):
            for publication in history.messages:
                publication.offsets.clear()
        self.lost.update(self.messages)
        self.former.append(self.history)
        kept = backup.history
        self.history = History(self.begin, kept.messages[:], kept.received_us[:])
        for offset, publication in enumerate(self.messages, self.begin):
            publication.offsets.append(offset)
        self._newest = dict(backup.newest)

    @property
    def next_offset(self) -> int:
        return self.begin + len(self.messages)

    def is_unavailable(self, offset: int) -> bool:
        """Return whether the offset was deleted or is damaged."""
        return offset < self.deleted_below or offset in self.damaged

    def at(self, offset: int) -> Publication | None:
        """Return the message with this offset, or None."""
        index = offset - self.begin
        return self.messages[index] if 0 <= index < len(self.messages) else None

    def since(self, time_us: int) -> int:
        """Return the first offset that was received at this time or later."""
        return self.begin + bisect_left(self._received_us, time_us)

    def matching(self, filters: Sequence[str], first: int, end: int, *, required: bool = False) -> list[int]:
        """Return the offsets from `first` up to, but not including, `end` whose topics match one of the filters.

        `required`: without messages that may have expired.
        """
        first = max(first, self.begin)
        return [
            offset
            for offset, one in enumerate(self.messages[first - self.begin : max(0, end - self.begin)], first)
            if matches_any(filters, one.topic) and not (required and one.may_expire)
        ]

    def appended(self, first_offset: int, entries: Sequence[Entry]) -> list[Publication]:
        """Record an append; return the messages in it that topics retain from now on."""
        if first_offset != self.next_offset:
            raise ViolationError(self.NAME, f"an append got offset {first_offset}, the next one was {self.next_offset}")
        return [found for entry in entries for found in self._take(entry)]

    def _take(self, entry: Entry) -> list[Publication]:
        if self._received_us and entry.received_us < self._received_us[-1]:
            raise ViolationError(self.NAME, f"received at {entry.received_us}, after one at {self._received_us[-1]}")
        found = []
        for offset, (payload, published_us) in enumerate(self._contents(entry), self.next_offset):
            where = f"offset {offset}"
            qos = entry.flags >> 6
            if entry.topic.startswith("$jobs/"):
                self._published.add_broker_message(entry.topic, payload, published_us)
            publication = self._published.identify(
                self.NAME, where, entry.topic, payload, published_us, qos, entry.publisher
            )
            check_headers(self.NAME, where, publication, extension_of(entry))
            self._check(publication, entry, where)
            publication.offsets.append(offset)
            self.messages.append(publication)
            self._received_us.append(entry.received_us)
            found.append(publication)
        return found[-1:] if entry.flags & RETAIN else []

    def _contents(self, entry: Entry) -> list[tuple[bytes, int]]:
        try:
            batch, _ = decode_batch(encode_head(entry.flags, entry.published_us, None, None) + entry.rest)
        except DecodeError as error:
            raise ViolationError(self.NAME, f"an invalid batch on {entry.topic!r}: {error}") from None
        if len(batch.payloads) != entry.count:
            raise ViolationError(self.NAME, f"a batch of {len(batch.payloads)} messages counted as {entry.count}")
        deltas_us = batch.deltas_us or (0,) * entry.count
        times_us = [entry.published_us + delta_us for delta_us in deltas_us]
        return list(zip(batch.payloads, times_us, strict=True))

    def _check(self, publication: Publication, entry: Entry, where: str) -> None:
        if publication.qos == 0 and not self._logs_qos_0:
            raise ViolationError(self.NAME, f"{where}: {publication} is in the log")
        if publication.topic.startswith("$sys/"):
            raise ViolationError(self.NAME, f"{where}: {publication} is in the log")
        if bool(entry.flags & RETAIN) is not publication.retain:
            raise ViolationError(self.NAME, f"{where}: {publication} was published with retain={publication.retain}")
        if publication.is_will:
            return  # one for each time that its client is lost: WillChecker counts them
        if publication.offsets:
            if publication.qos == 2:
                raise ViolationError(self.NAME, f"{where}: {publication} is there at {publication.offsets[0]} already")
            return  # QoS 1 sent again
        newest = self._newest.get(publication.order_key, -1)
        if publication.position < newest:
            raise ViolationError(self.NAME, f"{where}: {publication} is after message {newest}: out of order")
        self._newest[publication.order_key] = publication.position

    def confirmed(self, publication: Publication, now: float) -> None:
        """Record that the library confirmed this message to its application."""
        if publication.qos and not publication.offsets and publication not in self.lost:
            raise ViolationError(self.NAME, f"{publication} was confirmed and is not in the log")
        publication.confirmed_s = publication.confirmed_s if publication.confirmed_s is not None else now
