"""Encode and decode batches: the hot path of publishers and subscribers.

What a batch stores once (topic, publisher, times) is handled once; its messages are packed and unpacked by calls into C
that work on all of them. tests/client/test_batches.py compares both with the plain godwit.wire.batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate, pairwise, repeat
from typing import Final, TypeAlias

from godwit.client.message import Message
from godwit.errors import DecodeError, UsageError
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

Payload: TypeAlias = bytes | bytearray | memoryview | str
"""The types that a publisher accepts; a text is sent as UTF-8."""
LENGTH_BYTES: Final = 4
"""Overhead of a message in a batch; twice that if the batch stores a time for each message."""
HEAD_BYTES: Final = 9 + 8 + 4
"""The longest head of a publisher's batch: with its sequence, and the count that follows it."""
MAX_CACHED_COUNT: Final = 4096
"""Formats for batches with more messages are not cached: they are long."""

_HEAD: Final = struct.Struct(">BQ")
_HEAD_WITH_SEQUENCE: Final = struct.Struct(">BQQ")
_ROUTED: Final = struct.Struct(">BQIIQQII")
"""Head, route, count and the first length of a batch that has nothing else."""
_SHAPE: Final = LONE | HAS_DELTAS | HAS_SEQUENCE | HAS_ROUTE | HAS_EXTENSION
_U32: Final = struct.Struct(">I")


# -- the publisher's side ---------------------------------------------------------------------------------------------


def to_bytes(payload: Payload) -> bytes:
    """Return the payload as bytes, a text as UTF-8.

    Raises UsageError for any other type.
    """
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise UsageError(f"a payload of type {type(payload).__name__}: give bytes or a text")


def pack_batch(
    payloads: list[bytes],
    qos: int,
    published_us: int,
    *,
    retain: bool,
    sequence: int | None,
    deltas_us: list[int] | None = None,
    extension: bytes | None = None,
) -> bytes:
    """Return the encoding of a batch (see godwit.wire.batch).

    The list `payloads` is modified. `sequence` is None at QoS 1; `deltas_us` has a time for each message, relative to
    `published_us`, or is None if all share that time.
    """
    flags = qos << QOS_SHIFT
    if retain:
        flags |= RETAIN
    count = len(payloads)
    parts: list[bytes] = []
    if extension is not None:
        flags |= HAS_EXTENSION
        parts += (_U32.pack(len(extension)), extension)
    if deltas_us is not None:
        flags |= HAS_DELTAS
        parts.append(struct.pack(f">{2 * count + 1}I", count, *map(len, payloads), *deltas_us))
    elif count == 1:
        flags |= LONE
    else:
        parts.append(struct.pack(f">{count + 1}I", count, *map(len, payloads)))
    if sequence is None:
        parts.insert(0, _HEAD.pack(flags, published_us))
    else:
        parts.insert(0, _HEAD_WITH_SEQUENCE.pack(flags | HAS_SEQUENCE, published_us, sequence))
    payloads[:0] = parts
    return b"".join(payloads)


# -- the subscriber's side --------------------------------------------------------------------------------------------


class UnknownLabelError(DecodeError):
    """The topic or publisher of a batch is a number that the broker has not introduced on this channel."""

    def __init__(self, topic: int, publisher: int) -> None:
        super().__init__("label", f"topic {topic} or publisher {publisher} was not introduced on this channel")


class ChannelDecoder:
    """Decodes the records of one channel: stores its labels, drops repeated messages and counts missing ones.

    On a channel of the log, `position` is the next offset to hand to the application; messages below it are repeats.
    On a live channel (QoS 0) it is the running number of the next message, and a jump in it is a loss.
    """

    __slots__ = ("_publishers", "_topics", "live", "missed", "position", "repeated")

    def __init__(self, *, live: bool, position: int = 0) -> None:
        self.live = live
        self.position = position
        self.missed = 0
        """On a live channel: the number of lost messages so far."""
        self.repeated = 0
        """The number of messages dropped so far as repeats."""
        self._topics: dict[int, str] = {}
        self._publishers: dict[int, str] = {}

    def learn(self, labels: Labels) -> None:
        """Store the names of topics and publishers for the numbers in the batches that follow.

        Raises DecodeError if the channel has too many labels.
        """
        if labels.forget:
            self._topics.clear()
            self._publishers.clear()
        self._topics.update(labels.topics)
        self._publishers.update(labels.publishers)
        if len(self._topics) + len(self._publishers) > 2 * MAX_LABELS:
            raise DecodeError("labels", f"more than {MAX_LABELS} on one channel")

    def decode(self, record: bytes) -> list[Message]:
        """Return the messages of a record, without repeats.

        Raises DecodeError if the record does not consist of routed batches, UnknownLabelError for a missing label.
        """
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
                messages, offset, retain, at = (self._plain if is_plain else self._general)(record, at)
                if retain and not live:
                    found += messages  # retained: its offset is unrelated to the position
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
        """Decode a batch of the usual shape: return its messages, offset, retain flag and end."""
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
            message_offset = None if self.live or not qos else offset
            message = Message(
                topic_name, record[at:end], publisher_name, published_us, received_us, qos, retain != 0, message_offset
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

    def _general(self, record: bytes, at: int) -> tuple[list[Message], int, int, int]:
        """Decode a batch with a time for each message, with an extension, or with a single message."""
        batch, end = decode_batch(record, at)
        route = batch.route
        if route is None:
            raise DecodeError("batch", "a batch for a subscriber must have a route")
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
                route.offset + index if has_offset else None,
                batch.extension,
            )
            for index, (payload, delta_us) in enumerate(zip(batch.payloads, batch.deltas_us or repeat(0), strict=False))
        ]
        return messages, route.offset, int(batch.retain), end


def _bodies(record: bytes, at: int, count: int, first_bytes: int) -> tuple[Iterable[bytes], int]:
    """Return the bodies of a batch whose lengths begin at `at`, and the end of the last one."""
    bodies_at = at + _U32.size * count
    if record[at:bodies_at] == _U32.pack(first_bytes) * count:
        # All bodies have the same length, as sensor readings often do: one call splits them.
        end = bodies_at + count * first_bytes
        if end > len(record):
            raise DecodeError("batch", "bodies are cut short")
        return _same_lengths(first_bytes, count).unpack_from(record, bodies_at), end
    stops = list(accumulate(struct.unpack_from(f">{count}I", record, at), initial=bodies_at))
    return [record[start:stop] for start, stop in pairwise(stops)], stops[-1]


def _same_lengths(length: int, count: int) -> struct.Struct:
    return _cached_lengths(length, count) if count <= MAX_CACHED_COUNT else struct.Struct(f"{length}s" * count)


@lru_cache(maxsize=64)
def _cached_lengths(length: int, count: int) -> struct.Struct:
    return struct.Struct(f"{length}s" * count)
