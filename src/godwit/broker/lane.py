"""One channel towards a subscriber: joins batches into records, names labels first, remembers what is unconfirmed."""

from __future__ import annotations

import struct
from bisect import bisect_right
from operator import itemgetter
from typing import Final

from godwit.broker.effects import Effect, Open, Send
from godwit.limits import MAX_CONTROL_RECORD_BYTES, MAX_LABELS, MAX_TOPIC_BYTES, RECORD_COST_BYTES
from godwit.transport.connection import Connection
from godwit.wire.batch import HAS_EXTENSION, HAS_ROUTE, LONE, Entry
from godwit.wire.control import ControlMessage, DeliveryOpen, Labels, encode_control, encode_in_band

RECORD_BYTES: Final = 60_000
"""Small batches are joined into records of up to this: about what one train carries."""

LABEL_COST_BYTES: Final = 16
"""Of a label in its message, besides the name."""

_HEAD: Final = struct.Struct(">BQIIQQ")
_LONE_HEAD: Final = struct.Struct(">BQIIQQII")
_U32: Final = struct.Struct(">I")
_record: Final = itemgetter(0)


def routed(entry: Entry, flags: int, topic: int, publisher: int, offset: int) -> tuple[bytes, bytes]:
    """The batch for a subscriber, in two pieces: a head with the route, and the rest as it came.

    A lone batch gets its length written out, because another one may stand behind it in the record.
    """
    rest = entry.rest
    flags |= HAS_ROUTE
    if flags & LONE:
        if flags & HAS_EXTENSION:
            stop = _U32.size + _U32.unpack_from(rest)[0]
            head = _HEAD.pack(flags & ~LONE, entry.published_us, topic, publisher, offset, entry.received_us)
            return head + rest[:stop] + struct.pack(">II", 1, len(rest) - stop), rest[stop:]
        flags &= ~LONE
        return _LONE_HEAD.pack(
            flags, entry.published_us, topic, publisher, offset, entry.received_us, 1, len(rest)
        ), rest
    return _HEAD.pack(flags, entry.published_us, topic, publisher, offset, entry.received_us), rest


class Lane:
    """Feed: begin, introduce, add, say. Drain: cut, which puts Send effects into the list given at the start."""

    __slots__ = (
        "_count", "_effects", "_forget", "_new_publishers", "_new_topics", "_publishers", "_topics", "channel",
        "connection", "held_bytes", "is_steady", "next_record", "pieces", "pieces_bytes", "start", "start_after",
        "unconfirmed",
    )  # fmt: skip

    def __init__(self, connection: Connection, channel: int, effects: list[Effect]) -> None:
        self.connection = connection
        self.channel = channel
        self.next_record = 0
        self.pieces: list[bytes] = []
        self.pieces_bytes = 0
        self.held_bytes = 0
        """Of what is unconfirmed or waits to be joined."""
        self.unconfirmed: list[tuple[int, int, int, int, int]] = []
        """Record, the offset before which everything is done when it is the oldest, the offset behind the message that
        was sent before it, bytes, messages."""
        self.is_steady = False
        """Publishers waited for this subscriber, and it moved on: see godwit.server.memory_log."""
        self._effects = effects
        self.start = 0
        """The offset before which everything is done when the pieces are the oldest that there is."""
        self.start_after = 0
        """The offset behind the message that was sent before the pieces."""
        self._count = 0
        self._topics: set[int] = set()
        self._publishers: set[int] = set()
        self._new_topics: list[tuple[int, str]] = []
        self._new_publishers: list[tuple[int, str]] = []
        self._forget = False

    def begin(self, subscription: int, *, live: bool, offset: int, after: int) -> int:
        """Record 0: whose channel this is. Gives what was sent, in bytes."""
        self._effects.append(Open(self.connection, self.channel))
        return self._send(encode_control(DeliveryOpen(subscription=subscription, live=live)), offset, after)

    def knows(self, topic: int, publisher: int) -> bool:
        return topic in self._topics and publisher in self._publishers

    def introduce(self, topic: int, topic_name: str, publisher: int, publisher_name: str) -> None:
        """The labels are named before the record in which they are used."""
        if topic not in self._topics:
            self._topics.add(topic)
            self._new_topics.append((topic, topic_name))
        if publisher not in self._publishers:
            self._publishers.add(publisher)
            self._new_publishers.append((publisher, publisher_name))

    @property
    def labels_are_many(self) -> bool:
        return len(self._topics) + len(self._publishers) >= MAX_LABELS

    def forget_labels(self) -> int:
        """All labels are said anew from here on; what waits is sent first, because it uses them."""
        sent_bytes = self.cut()
        self._topics.clear()
        self._publishers.clear()
        self._forget = True
        return sent_bytes

    def add(self, head: bytes, rest: bytes, offset: int, after: int, count: int) -> None:
        """Add a batch from `routed`. `offset` is where to begin again if this does not get through, `after` the offset
        behind the message that was sent before it."""
        if not self.pieces:
            self.start = offset
            self.start_after = after
        size = len(head) + len(rest)
        self.pieces += (head, rest)
        self._count += count
        self.pieces_bytes += size
        self.held_bytes += size

    def cut(self) -> int:
        """Sends what waits as a record, its labels before it. Gives the bytes sent that nobody has counted yet."""
        if not self.pieces:
            return 0
        extra_bytes = self._say_labels(self.start, self.start_after)
        body = b"".join(self.pieces)
        self.held_bytes -= self.pieces_bytes
        self.pieces = []
        self.pieces_bytes = 0
        self._send(body, self.start, self.start_after, self._count)
        self._count = 0
        return extra_bytes + RECORD_COST_BYTES

    def cut_unreliable(self) -> int:
        """As cut, but what waits may get lost (its labels may not)."""
        if not self.pieces:
            return 0
        extra_bytes = self._say_labels(0, 0)
        self._effects.append(Send(self.connection, self.channel, b"".join(self.pieces), reliable=False))
        self.held_bytes -= self.pieces_bytes
        self.pieces = []
        self.pieces_bytes = 0
        return extra_bytes

    def say(self, message: ControlMessage, offset: int, after: int) -> int:
        """A control message between the batches, behind what waits. Gives the bytes sent that nobody has counted."""
        return self.cut() + self._send(encode_in_band(message), offset, after)

    def on_confirm(self, record: int) -> int:
        """Everything up to this record was taken. Gives how many bytes that was."""
        unconfirmed = self.unconfirmed
        taken = bisect_right(unconfirmed, record, key=_record)
        freed_bytes = sum([size for _, _, _, size, _ in unconfirmed[:taken]])
        del unconfirmed[:taken]
        self.held_bytes -= freed_bytes
        return freed_bytes

    def _say_labels(self, offset: int, after: int) -> int:
        sent_bytes = 0
        while self._new_topics or self._new_publishers:
            labels = Labels(topics=_take(self._new_topics), publishers=_take(self._new_publishers), forget=self._forget)
            self._forget = False
            sent_bytes += self._send(encode_in_band(labels), offset, after)
        return sent_bytes

    def _send(self, body: bytes, offset: int, after: int, count: int = 0) -> int:
        self._effects.append(Send(self.connection, self.channel, body))
        size = len(body) + RECORD_COST_BYTES
        self.unconfirmed.append((self.next_record, offset, after, size, count))
        self.held_bytes += size
        self.next_record += 1
        return size


def _take(labels: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """From the front, as many as surely fit a control message together with as many of the other kind."""
    most_bytes = MAX_CONTROL_RECORD_BYTES // 2 - 4 * MAX_TOPIC_BYTES
    taken_bytes = count = 0
    while count < len(labels) and taken_bytes <= most_bytes:
        taken_bytes += 4 * len(labels[count][1]) + LABEL_COST_BYTES  # a character has at most four bytes
        count += 1
    taken = labels[:count]
    del labels[:count]
    return taken
