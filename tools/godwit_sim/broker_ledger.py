"""The ledger of the broker world: what applications published, and how any message that turns up is told from others.

Nothing here looks at the broker or the library. The meaning of a filter is written down once more, the slow way, so
that the trie is checked against something else than itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeAlias

from godwit_sim.checkers import ViolationError

TOGETHER_US: Final = 1000
"""Messages that were published within this time may share the time of the first."""

ANY_NAME: Final = "*"
BROKER: Final = "$broker"
"""Under this name the broker itself publishes."""

Lane: TypeAlias = tuple[str, str, int]
"""Who publishes (a client's label, or an identity that outlives it), the topic, the QoS: in a lane there is order."""


@lru_cache(maxsize=4096)
def fits(filter_text: str, topic: str) -> bool:
    """Whether a topic matches a filter: `+` one level, `*` one or more, `#` the rest and the parent; `$` is shy."""
    if topic.startswith("$") and filter_text[:1] in ("+", "*", "#"):
        return False
    return _fits(filter_text.split("/"), topic.split("/"))


def fits_any(filters: Sequence[str], topic: str) -> bool:
    return any(fits(filter_text, topic) for filter_text in filters)


def _fits(levels: Sequence[str], names: Sequence[str]) -> bool:
    if not levels:
        return not names
    if levels[0] == "#":
        return True
    if not names:
        return False
    if levels[0] == "*":
        return any(_fits(levels[1:], names[count:]) for count in range(1, len(names) + 1))
    return levels[0] in ("+", names[0]) and _fits(levels[1:], names[1:])


@dataclass(slots=True, eq=False)
class Publication:
    """One message that an application published, or the will that it left."""

    author: str
    """The label of the client that published it."""
    lane: Lane
    place: int
    """Counts the messages of its lane from 0."""
    topic: str
    qos: int
    retain: bool
    payload: bytes
    published_us: int | None
    """None: a will, which the broker dates."""
    sent_s: float
    confirmed_s: float | None = None
    offsets: list[int] = field(default_factory=list)
    """Where it stands in the log."""

    @property
    def is_will(self) -> bool:
        return self.published_us is None

    def __str__(self) -> str:
        what = "the will" if self.is_will else f"message {self.place}"
        return f"{what} of {self.lane[0]} on {self.topic!r} at QoS {self.qos}"


class Ledger:
    """Everything that was published. Payloads are unlike each other; of the empty ones the times are."""

    def __init__(self) -> None:
        self.publications: list[Publication] = []
        self._by_payload: dict[bytes, Publication] = {}
        self._empty: dict[int, Publication] = {}
        self._places: dict[Lane, int] = {}
        self._names: dict[str, set[str]] = {}

    def names(self, author: str, *names: str) -> None:
        """The author publishes under these names too."""
        self._names.setdefault(author, set()).update(names)

    def names_any(self, author: str) -> None:
        """The author may publish under any name: the broker gave it one that nobody knows."""
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
    ) -> Publication:
        """The next message of a lane. `source` names the lane if it is not the author's own."""
        lane = (source or author, topic, qos)
        return Publication(author, lane, self._places.get(lane, 0), topic, qos, retain, payload, published_us, now)

    def add(self, publication: Publication) -> None:
        """The library has taken it."""
        payload, published_us = publication.payload, publication.published_us
        assert published_us is not None
        assert self.find(payload, published_us) is None, "two equal payloads, or empty ones of one time, are one"
        if payload:
            self._by_payload[payload] = publication
        else:
            self._empty[published_us] = publication
        self._places[publication.lane] = publication.place + 1
        self.publications.append(publication)

    def leave_will(
        self, author: str, topic: str, payload: bytes, now: float, *, qos: int = 1, retain: bool = False
    ) -> Publication:
        """Notes what shall be published if this author dies."""
        made = Publication(author, (f"{author} dead", topic, qos), 0, topic, qos, retain, payload, None, now)
        assert payload not in self._by_payload, "two equal wills cannot be told apart"
        self._by_payload[payload] = made
        return made

    def announce(self, topic: str, payload: bytes, published_us: int) -> None:
        """The broker itself published this: it is heard of when it is in the log."""
        if payload in self._by_payload:
            raise ViolationError("log", f"{payload[:200]!r} on {topic!r} a second time")
        self.names(BROKER, BROKER)
        self.add(self.make(BROKER, topic, payload, published_us, 0.0))

    def find(self, payload: bytes, published_us: int) -> Publication | None:
        """The publication with this content: by its payload, or by its time if that is empty."""
        return self._by_payload.get(payload) if payload else self._empty.get(published_us)

    def recognise(
        self, checker: str, where: str, topic: str, payload: bytes, published_us: int, qos: int, publisher: str
    ) -> Publication:
        """Which publication this is. A violation if it is none, or was changed on its way."""
        found = self.find(payload, published_us)
        if found is None:
            raise ViolationError(checker, f"{where}: {len(payload)} bytes on {topic!r} that nobody published")
        wrong = [
            f"{name} {is_now!r}, published with {was!r}"
            for name, is_now, was in (("topic", topic, found.topic), ("QoS", qos, found.qos))
            if is_now != was
        ]
        if found.published_us is not None and not 0 <= found.published_us - published_us <= TOGETHER_US:
            wrong.append(f"time {published_us}, published at {found.published_us}")
        if wrong:
            raise ViolationError(checker, f"{where}: {found} came with {'; '.join(wrong)}")
        names = self._names.get(found.author, set())
        if publisher not in names and ANY_NAME not in names:
            raise ViolationError(checker, f"{where}: {found} came from {publisher!r}, not one of {sorted(names)}")
        return found
