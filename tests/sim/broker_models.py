"""A small log with its published messages, for the tests of the broker world's checkers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from godwit.wire.batch import Batch, Entry, decode_head, encode_batch
from godwit_sim.broker_log_model import LogChecker, Publication, PublishedMessages

RECEIVED_US: dict[Publication, int] = {}
"""When each was appended last."""


@dataclass
class Models:
    """Publish, append, and make the messages that a subscriber would receive."""

    published: PublishedMessages = field(default_factory=PublishedMessages)
    time_us: int = 1_000_000

    def __post_init__(self) -> None:
        self.log = LogChecker(self.published)
        self.published.names("alice", "Alice")
        self.published.names("bob", "Bob")

    def publish(
        self, topic: str = "a/b", *, author: str = "alice", payload: bytes | None = None, **how: Any
    ) -> Publication:
        self.time_us += 1
        content = b"payload %d" % self.time_us if payload is None else payload
        made = self.published.make(author, topic, content, self.time_us, 0.0, **how)
        self.published.add(made)
        return made

    def entry(self, *publications: Publication, **changes: Any) -> Entry:
        """Return a batch of these as the log receives it."""
        first = publications[0]
        base_us = first.published_us or self.time_us
        batch = Batch(
            [one.payload for one in publications],
            base_us,
            first.qos,
            first.retain,
            deltas_us=tuple((one.published_us or base_us) - base_us for one in publications)
            if publications[1:]
            else None,
        )
        data = encode_batch(batch)
        head = decode_head(data)
        fields: dict[str, Any] = {
            "topic": first.topic,
            "publisher": first.author.title(),
            "flags": head.flags,
            "published_us": base_us,
            "received_us": self.time_us,
            "sequence": None,
            "epoch": 0,
            "count": len(publications),
            "rest": data[head.rest_at :],
        }
        return Entry(**(fields | changes))

    def append(self, *publications: Publication, **changes: Any) -> None:
        for one in publications:
            entry = self.entry(one, **changes)
            self.log.appended(self.log.next_offset, [entry])
            RECEIVED_US[one] = entry.received_us

    def logged(self, topic: str = "a/b", **how: Any) -> Publication:
        publication = self.publish(topic, **how)
        self.append(publication)
        return publication


@dataclass(frozen=True)
class Got:
    """A message as a subscriber receives it."""

    topic: str
    payload: bytes
    publisher: str
    published_us: int
    qos: int
    retained: bool
    offset: int | None
    received_us: int = 0


def got(publication: Publication, **changes: Any) -> Got:
    """Return the message that the library would deliver for this publication."""
    fields: dict[str, Any] = {
        "topic": publication.topic,
        "payload": publication.payload,
        "publisher": publication.author.title(),
        "published_us": publication.published_us or 0,
        "qos": publication.qos,
        "retained": False,
        "offset": publication.offsets[-1] if publication.offsets else None,
        "received_us": RECEIVED_US.get(publication, 0),
    }
    return Got(**(fields | changes))
