"""The retained message of a topic: the last one of the last batch that had the flag."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import msgspec

from godwit.wire.batch import HAS_DELTAS, HAS_EXTENSION, LONE, QOS_SHIFT, RETAIN, Entry

if TYPE_CHECKING:
    from godwit.broker.catalogue import Catalogue, Topic

_U32 = struct.Struct(">I")


class Kept(msgspec.Struct, frozen=True):
    """One retained message."""

    payload: bytes
    publisher: str
    published_us: int
    received_us: int
    qos: int
    offset: int
    """Its place in the log; 0 for QoS 0, which is in none."""
    serial: int
    """Grows with every retained message of the broker."""

    def entry(self, topic: str) -> Entry:
        """As a batch of its own."""
        flags = LONE | RETAIN | self.qos << QOS_SHIFT
        return Entry(
            topic=topic,
            publisher=self.publisher,
            flags=flags,
            published_us=self.published_us,
            received_us=self.received_us,
            count=1,
            rest=self.payload,
        )


def last_message(entry: Entry) -> tuple[bytes, int]:
    """The last message of a batch, and when it was published."""
    rest = entry.rest
    at = 0
    if entry.flags & HAS_EXTENSION:
        at = _U32.size + _U32.unpack_from(rest)[0]
    if entry.flags & LONE:
        return rest[at:], entry.published_us
    count = entry.count
    (last_bytes,) = _U32.unpack_from(rest, at + 4 * count)
    published_us = entry.published_us
    if entry.flags & HAS_DELTAS:
        published_us += _U32.unpack_from(rest, at + 8 * count)[0]
    return (rest[-last_bytes:] if last_bytes else b""), published_us


def keep(entry: Entry, offset: int, serial: int) -> Kept | None:
    """What the topic keeps after this batch, whose last message has this offset: None if it was empty."""
    payload, published_us = last_message(entry)
    if not payload:
        return None
    qos = entry.flags >> QOS_SHIFT
    return Kept(payload, entry.publisher, published_us, entry.received_us, qos, offset if qos else 0, serial)


def retain(catalogue: Catalogue, topic: Topic, entry: Entry, offset: int) -> bool:
    """The topic keeps what `keep` says. False: there is no room, because others were faster, or it is a will."""
    kept = keep(entry, offset, catalogue.keeps + 1)
    if kept is not None and catalogue.keep_problem(topic, kept.publisher, len(kept.payload)):
        return False
    catalogue.keep(topic, kept)
    return True
