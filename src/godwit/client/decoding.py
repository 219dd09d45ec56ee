"""Turns the records of a subscription into messages: the subscriber's hot path.

What a batch says once (topic, publisher, times) is looked up once; then its messages are made by calls into C that work
on all of them. tests/client/test_decoding.py compares it with the plain godwit.wire.batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate, pairwise, repeat
from typing import Final

from godwit.client.message import Message
from godwit.errors import DecodeError
from godwit.limits import MAX_BATCH_MESSAGES, MAX_LABELS
from godwit.wire.batch import (
    HAS_DELTAS,
    HAS_EXTENSION,
    HAS_ROUTE,
    HAS_SEQUENCE,
    LONE,
    QOS_SHIFT,
    RETAIN,
    decode_batch,
)
from godwit.wire.control import Labels

_ROUTED: Final = struct.Struct(">BQIIQQII")
"""Head, route, count and the first length of a batch that has nothing else."""
_SHAPE: Final = LONE | HAS_DELTAS | HAS_SEQUENCE | HAS_ROUTE | HAS_EXTENSION
_U32: Final = struct.Struct(">I")
MOST_REMEMBERED: Final = 4096
"""Formats for batches of more messages are not kept: they are long."""


class UnknownLabelError(DecodeError):
    """A batch names its topic or publisher by a number that was not introduced on its channel."""

    def __init__(self, topic: int, publisher: int) -> None:
        super().__init__("label", f"topic {topic} or publisher {publisher} was not introduced on this channel")


class Reader:
    """Reads one channel: knows what the numbers in its routes stand for, and how far it has come.

    On a channel of the log `position` is the next offset that the application has not had. On a live one it is the
    running number of the next message, and what is missing before a batch was lost.
    """

    __slots__ = ("_publishers", "_topics", "live", "missed", "position", "repeated")

    def __init__(self, *, live: bool, position: int = 0) -> None:
        self.live = live
        self.position = position
        self.missed = 0
        """On a live channel: how many were missing so far."""
        self.repeated = 0
        """How many were left out so far because the application has had them."""
        self._topics: dict[int, str] = {}
        self._publishers: dict[int, str] = {}

    def learn(self, labels: Labels) -> None:
        """Names for numbers."""
        if labels.forget:
            self._topics.clear()
            self._publishers.clear()
        self._topics.update(labels.topics)
        self._publishers.update(labels.publishers)
        if len(self._topics) + len(self._publishers) > 2 * MAX_LABELS:
            raise DecodeError("labels", f"more than {MAX_LABELS} on one channel")

    def read(self, record: bytes) -> list[Message]:
        """The messages of a record that the application has not had. DecodeError: it is not made of routed batches."""
        found: list[Message] = []
        position = self.position
        live = self.live
        missed = 0
        at = 0
        stop = len(record)
        if not stop:
            raise DecodeError("batch", "an empty record")
        try:
            while at < stop:
                is_plain = record[at] & _SHAPE == HAS_ROUTE
                messages, offset, retain, at = (self._plain if is_plain else self._unusual)(record, at)
                if retain and not live:
                    found += messages  # sent because of the subscription: its offset says nothing
                    continue
                known = position - offset
                if known > 0:
                    known = min(known, len(messages))
                    self.repeated += known
                    if known == len(messages):
                        continue
                    del messages[:known]
                    offset = position
                elif live:
                    missed -= known
                position = offset + len(messages)
                found += messages
        except struct.error:
            raise DecodeError("batch", "cut short") from None
        if at > stop:
            raise DecodeError("batch", "bodies are cut short")
        self.position = position
        self.missed += missed
        return found

    def _plain(self, record: bytes, at: int) -> tuple[list[Message], int, int, int]:
        """A batch of the usual shape: its messages, its offset, whether it is retained, where it ends."""
        flags, published_us, topic, publisher, offset, received_us, count, length = _ROUTED.unpack_from(record, at)
        try:
            topic_name = self._topics[topic]
            publisher_name = self._publishers[publisher]
        except KeyError:
            raise UnknownLabelError(topic, publisher) from None
        at += _ROUTED.size
        retain = flags & RETAIN
        qos = flags >> QOS_SHIFT
        if count == 1 and qos < 3:
            end = at + length
            place = None if self.live or not qos else offset
            message = Message(
                topic_name, record[at:end], publisher_name, published_us, received_us, qos, retain != 0, place
            )
            return [message], offset, retain, end
        if not 1 <= count <= MAX_BATCH_MESSAGES or qos == 3:
            raise DecodeError("batch", f"{count} messages of QoS {qos}")
        payloads, end = _bodies(record, at - _U32.size, count, length)
        messages = map(
            Message,
            repeat(topic_name),
            payloads,
            repeat(publisher_name),
            repeat(published_us),
            repeat(received_us),
            repeat(qos),
            repeat(retain != 0),
            repeat(None) if self.live or not qos else range(offset, offset + count),
        )
        return list(messages), offset, retain, end

    def _unusual(self, record: bytes, at: int) -> tuple[list[Message], int, int, int]:
        """As _plain, for a batch with times for each message, with an extension, or without lengths."""
        batch, end = decode_batch(record, at)
        route = batch.route
        if route is None:
            raise DecodeError("batch", "one for a subscriber has a route")
        topic = self._topics.get(route.topic)
        publisher = self._publishers.get(route.publisher)
        if topic is None or publisher is None:
            raise UnknownLabelError(route.topic, route.publisher)
        first_us = batch.published_us
        has_offset = not self.live and batch.qos > 0
        messages = [
            Message(
                topic,
                payload,
                publisher,
                first_us + delta_us,
                route.received_us,
                batch.qos,
                batch.retain,
                route.offset + place if has_offset else None,
                batch.extension,
            )
            for place, (payload, delta_us) in enumerate(zip(batch.payloads, batch.deltas_us or repeat(0), strict=False))
        ]
        return messages, route.offset, int(batch.retain), end


def _bodies(record: bytes, at: int, count: int, first_bytes: int) -> tuple[Iterable[bytes], int]:
    """The bodies of a batch whose lengths stand at `at`, and where they end."""
    bodies_at = at + _U32.size * count
    if record[at:bodies_at] == _U32.pack(first_bytes) * count:
        # All have one length, as the readings of a sensor do: then one call cuts them all.
        end = bodies_at + count * first_bytes
        if end > len(record):
            raise DecodeError("batch", "bodies are cut short")
        return _same_lengths(first_bytes, count).unpack_from(record, bodies_at), end
    stops = list(accumulate(struct.unpack_from(f">{count}I", record, at), initial=bodies_at))
    return [record[start:stop] for start, stop in pairwise(stops)], stops[-1]


def _same_lengths(length: int, count: int) -> struct.Struct:
    return _remembered(length, count) if count <= MOST_REMEMBERED else struct.Struct(f"{length}s" * count)


@lru_cache(maxsize=64)
def _remembered(length: int, count: int) -> struct.Struct:
    return struct.Struct(f"{length}s" * count)
