"""Channels towards a subscriber: batches are joined into records, labels introduced before they are used.

A subscription has two: one for the messages of the log, in order and reliable, and one for messages of QoS 0 that are
not logged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from godwit.broker.effects import Effect
from godwit.broker.ports import Outbound, OutboundBatch
from godwit.limits import (
    MAX_CONTROL_RECORD_BYTES,
    MAX_LABELS,
    MAX_TOPIC_BYTES,
    MAX_UNRELIABLE_BYTES,
    RECORD_COST_BYTES,
)
from godwit.native.effects import OpenChannel, SendRecord
from godwit.native.peer import NativePeer
from godwit.wire.batch import route_entry
from godwit.wire.control import ControlMessage, DeliveryOpen, Gap, Kicked, Labels, encode_control, encode_in_band
from godwit.wire.extension import shorten_lifetime

if TYPE_CHECKING:
    from godwit.broker.broker import Broker

RECORD_BYTES: Final = 60_000
"""Small batches are joined into records of up to this length: about what one train carries."""
WINDOW_SHARE: Final = 3
"""A subscription may hold at most this many times the free part of its client's window: alone, three quarters of the
window. So the other subscriptions of a client continue if one of them is not confirmed."""
LABEL_COST_BYTES: Final = 16
"""Of a label in its message, besides the name."""
NATIVE: Final = "native"
"""The key of the encoded form of a batch, see OutboundBatch.encodings."""

_record: Final = itemgetter(0)


def encode_routed(batch: OutboundBatch, offset: int) -> tuple[bytes, bytes, int]:
    """Return a batch for subscribers in two parts, see route_entry, and their length."""
    entry = batch.entry
    if batch.remaining_us is not None:
        entry = shorten_lifetime(entry, batch.remaining_us)
    head, rest = route_entry(entry, batch.flags, batch.topic.number, batch.publisher_number, offset)
    return head, rest, len(head) + len(rest)


class SubscriberChannel:
    """One channel: `add` collects batches, `cut` and `cut_unreliable` send them as a record."""

    __slots__ = (
        "_effects", "_forgets_labels", "_new_publishers", "_new_topics", "_peer", "held_bytes", "next_record", "number",
        "pieces", "pieces_bytes", "publishers", "sent_below", "topics", "unconfirmed",
    )  # fmt: skip

    def __init__(self, peer: NativePeer, effects: list[Effect], message: DeliveryOpen) -> None:
        """Open the channel. `message`: record 0."""
        self._peer = peer
        self._effects = effects
        self.number = peer.take_channel()
        self.next_record = 0
        self.pieces: list[bytes] = []
        """Of the next record."""
        self.pieces_bytes = 0
        self.held_bytes = 0
        """Unconfirmed, or to be sent."""
        self.unconfirmed: list[tuple[int, int, int, int]] = []
        """Record, the offset behind the last message sent up to it, bytes, gap reports."""
        self.sent_below = 0
        """The offset behind the last message that was added."""
        self.topics: set[int] = set()
        self.publishers: set[int] = set()
        """Labels that the client knows, or will know with the next record."""
        self._new_topics: list[tuple[int, str]] = []
        self._new_publishers: list[tuple[int, str]] = []
        self._forgets_labels = False
        effects.append(OpenChannel(peer.connection, self.number))
        self._send(encode_control(message))

    def introduce(self, batch: OutboundBatch) -> None:
        """Name the labels of a batch before the record in which they are used."""
        topic, publisher = batch.topic.number, batch.publisher_number
        if len(self.topics) + len(self.publishers) >= MAX_LABELS:
            # All labels are introduced again; the collected batches are sent first, because they use them.
            self.cut()
            self.topics.clear()
            self.publishers.clear()
            self._forgets_labels = True
        if topic not in self.topics:
            self.topics.add(topic)
            self._new_topics.append((topic, batch.topic.name))
        if publisher not in self.publishers:
            self.publishers.add(publisher)
            self._new_publishers.append((publisher, batch.entry.publisher))

    def add(self, head: bytes, rest: bytes, size: int) -> None:
        """Add an encoded batch to the next record."""
        self.pieces += (head, rest)
        self.pieces_bytes += size
        self.held_bytes += size
        self._peer.unconfirmed_bytes += size

    def cut(self) -> None:
        """Send the collected batches as a record, their labels before it."""
        if not self.pieces:
            return
        if self._new_topics or self._new_publishers:
            self._send_labels()
        body = b"".join(self.pieces)
        # The pieces are counted already.
        self.held_bytes -= self.pieces_bytes
        self._peer.unconfirmed_bytes -= self.pieces_bytes
        self.pieces = []
        self.pieces_bytes = 0
        self._send(body)

    def cut_unreliable(self) -> None:
        """Send the collected batches as a record that may get lost, after their labels, which may not."""
        if not self.pieces:
            return
        if self._new_topics or self._new_publishers:
            self._send_labels()
        body = b"".join(self.pieces)
        self._effects.append(SendRecord(self._peer.connection, self.number, body, reliable=False))
        self.held_bytes -= self.pieces_bytes
        self._peer.unconfirmed_bytes -= self.pieces_bytes
        self.pieces = []
        self.pieces_bytes = 0

    def send_message(self, message: ControlMessage, *, gaps: int = 0) -> None:
        """Send a control message between the batches, behind the collected ones."""
        self.cut()
        self._send(encode_in_band(message), gaps)

    def handle_confirm(self, record: int) -> tuple[int, int]:
        """The client has processed all records up to this one. Return the offset reached, and how many gap reports."""
        unconfirmed = self.unconfirmed
        count = bisect_right(unconfirmed, record, key=_record)
        offset = unconfirmed[count - 1][1] if count else 0
        freed_bytes = gaps = 0
        for _, _, size, reports in unconfirmed[:count]:
            freed_bytes += size
            gaps += reports
        del unconfirmed[:count]
        self.held_bytes -= freed_bytes
        self._peer.unconfirmed_bytes -= freed_bytes
        return offset, gaps

    def close(self) -> None:
        """End the channel: nothing of it counts any more."""
        self._peer.unconfirmed_bytes -= self.held_bytes
        self.held_bytes = 0
        self._effects.append(SendRecord(self._peer.connection, self.number, b"", last=True))

    def _send_labels(self) -> None:
        while self._new_topics or self._new_publishers:
            topics, publishers = _take_labels(self._new_topics), _take_labels(self._new_publishers)
            labels = Labels(topics=topics, publishers=publishers, forget=self._forgets_labels)
            self._forgets_labels = False
            self._send(encode_in_band(labels), before_pieces=True)

    def _send(self, body: bytes, gaps: int = 0, *, before_pieces: bool = False) -> None:
        peer = self._peer
        self._effects.append(SendRecord(peer.connection, self.number, body))
        size = len(body) + RECORD_COST_BYTES
        offset = self.sent_below
        if before_pieces:  # the collected batches are not sent yet
            offset = self.unconfirmed[-1][1] if self.unconfirmed else 0
        self.unconfirmed.append((self.next_record, offset, size, gaps))
        self.held_bytes += size
        peer.unconfirmed_bytes += size
        self.next_record += 1


class NativeOutbound(Outbound):
    """The two channels of a subscription."""

    __slots__ = ("_effects", "_live_number", "_peer", "channel", "live", "number")

    channel: SubscriberChannel
    live: SubscriberChannel

    def __init__(self, peer: NativePeer, number: int, effects: list[Effect]) -> None:
        """`number`: by which the client knows the subscription."""
        super().__init__()
        self.number = number
        self._peer = peer
        self._effects = effects
        self._live_number = 0
        """Counts the messages of QoS 0, sent or dropped: so the client notices missing ones."""

    def begin(self, offset: int) -> None:
        peer = self._peer
        self.channel = SubscriberChannel(peer, self._effects, DeliveryOpen(subscription=self.number, live=False))
        self.live = SubscriberChannel(peer, self._effects, DeliveryOpen(subscription=self.number, live=True))
        peer.channels[self.channel.number] = peer.channels[self.live.number] = self

    def room(self) -> int:
        peer = self._peer
        free_bytes = peer.window_bytes - peer.unconfirmed_bytes
        held_bytes = self.channel.held_bytes
        return max(WINDOW_SHARE * free_bytes - held_bytes if held_bytes else free_bytes, 0)

    def put(self, batch: OutboundBatch) -> bool:
        encoded = batch.encodings.get(NATIVE)
        if encoded is None:
            encoded = batch.encodings[NATIVE] = encode_routed(batch, batch.offset)
        head, rest, size = encoded
        peer = self._peer
        channel = self.channel
        free_bytes = peer.window_bytes - peer.unconfirmed_bytes
        held_bytes = channel.held_bytes
        # A subscription that holds nothing may have any message while there is room at all, so that none is too long.
        if held_bytes + size > WINDOW_SHARE * free_bytes if held_bytes else free_bytes <= 0:
            return False
        if channel.pieces_bytes and channel.pieces_bytes + size > RECORD_BYTES:
            channel.cut()
        if batch.topic.number not in channel.topics or batch.publisher_number not in channel.publishers:
            channel.introduce(batch)
        channel.pieces += (head, rest)
        channel.pieces_bytes += size
        channel.held_bytes += size
        peer.unconfirmed_bytes += size
        channel.sent_below = batch.end_offset
        return True

    def put_live(self, batch: OutboundBatch) -> bool:
        peer = self._peer
        channel = self.live
        number = self._live_number
        self._live_number += batch.entry.count
        head, rest, size = encode_routed(batch, number)
        is_reliable = size > MAX_UNRELIABLE_BYTES or batch.topic.is_inbox
        # One that is longer than the window is sent when half of it is free: else it could never be sent.
        if is_reliable and peer.unconfirmed_bytes + min(size, peer.window_bytes // 2) > peer.window_bytes:
            return False
        if channel.pieces_bytes + size > MAX_UNRELIABLE_BYTES:
            channel.cut_unreliable()
        if batch.topic.number not in channel.topics or batch.publisher_number not in channel.publishers:
            if len(channel.topics) + len(channel.publishers) >= MAX_LABELS:
                channel.cut_unreliable()
            channel.introduce(batch)
        channel.add(head, rest, size)
        if is_reliable:
            channel.cut()
        return True

    def gap(self, count: int, next_offset: int, below: int) -> None:
        self.channel.cut()
        self.channel.sent_below = next_offset
        gap = Gap(count=count, next_offset=next_offset, below=below if below > next_offset else None)
        self.channel.send_message(gap, gaps=1)

    def is_idle(self) -> bool:
        unconfirmed = self.channel.unconfirmed
        return not self.channel.pieces and (not unconfirmed or unconfirmed[-1][0] == 0)  # record 0 has no messages

    def flush(self) -> None:
        if self.channel.pieces:
            self.channel.cut()
        if self.live.pieces:
            self.live.cut_unreliable()

    def close(self) -> None:
        peer = self._peer
        for channel in (self.channel, self.live):
            del peer.channels[channel.number]
            channel.close()
        del peer.outbounds[self.number]

    def removed(self, by: str, reason: str) -> None:
        self._peer.send(Kicked(subscription=self.number, by=by, reason=reason))

    def handle_confirm(self, broker: Broker, channel: int, record: int) -> None:
        """The client has processed all records of a channel up to this one."""
        peer = self._peer
        if channel == self.channel.number:
            offset, gaps = self.channel.handle_confirm(record)
            if self.subscription is not None:
                broker.acknowledge(self.subscription, offset, gaps)
        else:
            self.live.handle_confirm(record)
        if peer.members:
            broker.resume_members(peer)
        if peer.behind and (peer.unconfirmed_bytes <= peer.window_bytes // 2 or not self.channel.held_bytes):
            broker.resume(peer)


class MemberChannel(SubscriberChannel):
    """The channel of a member of a consumer group: it knows which messages each record has."""

    __slots__ = ("_records", "_spans", "collected")

    def __init__(self, peer: NativePeer, effects: list[Effect], message: DeliveryOpen) -> None:
        self._records: deque[tuple[int, list[tuple[int, int]]]] = deque()
        """Unconfirmed records with messages: the offsets (first, end) of their batches."""
        self._spans: list[tuple[int, int]] = []
        """Of the next record."""
        self.collected = 0
        """The number of messages in the next record."""
        super().__init__(peer, effects, message)

    def note(self, first: int, end: int) -> None:
        """A batch with these offsets was added."""
        self._spans.append((first, end))
        self.collected += end - first

    def cut(self) -> None:
        if self.pieces:
            super().cut()
            self._records.append((self.next_record - 1, self._spans))
            self._spans = []
            self.collected = 0

    def take_confirmed(self, record: int) -> list[tuple[int, int]]:
        """Return the offsets of the batches up to a record, which the client has processed."""
        found: list[tuple[int, int]] = []
        while self._records and self._records[0][0] <= record:
            found += self._records.popleft()[1]
        return found

    def take_handled(self, count: int) -> list[tuple[int, int]]:
        """Return the offsets of the first messages of the oldest unconfirmed record."""
        found: list[tuple[int, int]] = []
        for first, end in self._records[0][1] if self._records else ():
            if count > 0:
                found.append((first, min(end, first + count)))
                count -= end - first
        return found


class NativeMemberOutbound(NativeOutbound):
    """The two channels of a member of a consumer group."""

    __slots__ = ("member_channel",)

    member_channel: MemberChannel

    def begin(self, offset: int) -> None:
        peer = self._peer
        self.member_channel = MemberChannel(peer, self._effects, DeliveryOpen(subscription=self.number, live=False))
        self.channel = self.member_channel
        self.live = SubscriberChannel(peer, self._effects, DeliveryOpen(subscription=self.number, live=True))
        peer.channels[self.channel.number] = peer.channels[self.live.number] = self

    def put(self, batch: OutboundBatch) -> bool:
        if not super().put(batch):
            return False
        channel = self.member_channel
        channel.note(batch.offset, batch.end_offset)
        # Two records at least are on their way, so that the next one has arrived when one is confirmed.
        if self.member is not None and channel.collected >= self.member.window // 2:
            channel.cut()
        return True

    def handle_confirm(self, broker: Broker, channel: int, record: int) -> None:
        member = self.member
        if channel == self.channel.number and member is not None:
            for first, end in self.member_channel.take_confirmed(record):
                broker.acknowledge_in_group(member, first, end)
        super().handle_confirm(broker, channel, record)

    def leave(self, broker: Broker, record: int | None, handled: int) -> None:
        """The client unsubscribes. It has processed the records up to this one, and some messages of the next."""
        member = self.member
        if member is None:
            return
        spans = [] if record is None else self.member_channel.take_confirmed(record)
        for first, end in [*spans, *self.member_channel.take_handled(handled)]:
            broker.acknowledge_in_group(member, first, end)
        broker.leave_group(member)
        self.close()


def _take_labels(labels: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Remove as many labels from the front as certainly fit a control message, with as many of the other kind."""
    most_bytes = MAX_CONTROL_RECORD_BYTES // 2 - 4 * MAX_TOPIC_BYTES
    taken_bytes = count = 0
    while count < len(labels) and taken_bytes <= most_bytes:
        taken_bytes += 4 * len(labels[count][1]) + LABEL_COST_BYTES  # a character has at most four bytes
        count += 1
    taken = labels[:count]
    del labels[:count]
    return taken
