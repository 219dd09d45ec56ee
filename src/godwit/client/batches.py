"""From batches to messages: the hot path of subscribers.

What a batch stores once (topic, publisher, times) is handled once; its messages are unpacked by calls into C that work
on all of them. tests/client/test_batches.py compares the result with decode_batches of godwit.wire.batch.
"""

from __future__ import annotations

import struct
from itertools import repeat
from typing import Any, Final, TypeAlias

from godwit.client.message import Message
from godwit.errors import DecodeError, UsageError
from godwit.limits import MAX_BATCH_MESSAGES, MAX_LABELS
from godwit.wire.batch import (
    HAS_ROUTE,
    HEAD_FLAGS,
    LENGTH_BYTES,
    QOS_SHIFT,
    RETAIN,
    ROUTED,
    SHAPE,
    decode_batch,
    split_bodies,
)
from godwit.wire.control import Labels
from godwit.wire.extension import lifetime_of

Payload: TypeAlias = bytes | bytearray | memoryview | str | dict[str, Any] | list[Any] | int | float | bool | None
"""A payload to send: bytes as they are, a text as UTF-8, and a dict, list, number, bool or None as JSON."""
EncodedPayload: TypeAlias = bytes | bytearray | memoryview | str
"""A payload that needs no JSON."""
_ALL_FLAGS: Final = SHAPE | HEAD_FLAGS


# -- the publisher's side ---------------------------------------------------------------------------------------------


def to_bytes(payload: object, what: str = "a payload") -> bytes:
    """Return the payload as bytes: a text as UTF-8; a dict, list, number, bool or None as JSON.

    Args:
        payload: the payload as the application gave it.
        what: the name of the value in the text of an error.

    Raises UsageError for any other type, and for a value that JSON does not have.
    """
    if type(payload) is bytes:
        return payload
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    if isinstance(payload, str):
        return _encode_text(payload, what)
    if payload is None or isinstance(payload, dict | list | int | float):
        return _encode_json(payload, what)
    raise UsageError(
        f"{what} of type {type(payload).__name__}: give bytes or a text, or a dict, list, number, bool or None, "
        "which are sent as JSON"
    )


def _encode_text(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} has a character that UTF-8 does not have: {error}; remove it") from None


def _encode_json(value: object, what: str) -> bytes:
    """Encode with the standard library: msgspec would turn NaN into null and bytes into base64 without an error."""
    import json

    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{what} of type {type(value).__name__} is not valid as JSON: {error}; use texts, finite numbers, bools, "
            "None, lists, and dicts with texts as keys"
        ) from None
    return _encode_text(text, what)


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

    __slots__ = (
        "_has_expired",
        "_publishers",
        "_topics",
        "is_shared",
        "live",
        "missed",
        "now_us",
        "position",
        "repeated",
        "waited_us",
    )

    def __init__(self, *, live: bool, position: int = 0, is_shared: bool = False) -> None:
        self.live = live
        self.is_shared = is_shared
        """Whether it belongs to a member of a consumer group: offsets come in any order, and again."""
        self.position = position
        self.missed = 0
        """On a live channel: the number of lost messages so far."""
        self.repeated = 0
        """The number of messages dropped so far as repeats."""
        self.now_us: int | None = None
        """The time in microseconds since the epoch, if it is known; else expired messages are not recognised."""
        self.waited_us = 0
        """How long ago the record arrived that is decoded next."""
        self._has_expired = False
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
        """Return the messages of a record, without repeats, and without messages that have expired since it arrived.

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
                is_plain = record[at] & _ALL_FLAGS == HAS_ROUTE
                messages, offset, retain, at = (self._plain if is_plain else self._general)(record, at)
                if (retain and not live) or self.is_shared:
                    found += messages  # its offset is unrelated to the position
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
        if self._has_expired:
            self._has_expired = False
            now_us = self.now_us or 0
            found = [one for one in found if one.expires_us is None or one.expires_us > now_us]
        return found

    def _plain(self, record: bytes, at: int) -> tuple[list[Message], int, int, int]:
        """Decode a batch of the usual shape: return its messages, offset, retain flag and end."""
        flags, published_us, topic, publisher, offset, received_us, count, length = ROUTED.unpack_from(record, at)
        try:
            topic_name = self._topics[topic]
            publisher_name = self._publishers[publisher]
        except KeyError:
            raise UnknownLabelError(topic, publisher) from None
        at += ROUTED.size
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
        payloads, end = split_bodies(record, at - LENGTH_BYTES, count, length)
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
        lifetime_us = None if batch.extension is None else lifetime_of(batch.extension)
        expires_us = None
        if lifetime_us is not None and self.now_us is not None:
            expires_us = self.now_us + lifetime_us - self.waited_us
            self._has_expired = self._has_expired or expires_us <= self.now_us
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
                expires_us,
            )
            for index, (payload, delta_us) in enumerate(zip(batch.payloads, batch.deltas_us or repeat(0), strict=False))
        ]
        return messages, route.offset, int(batch.retain), end
