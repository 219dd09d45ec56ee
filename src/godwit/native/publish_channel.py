"""A channel on which a client publishes: records of batches in, confirms and credit out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from godwit.broker.effects import Effect, refusal_notice
from godwit.broker.ports import Publication, RequestFailure
from godwit.broker.publications import LAST_SEQUENCE, LATEST_US
from godwit.broker.session import Session
from godwit.errors import DecodeError
from godwit.limits import MAX_RECORD_BATCHES
from godwit.native.effects import ConfirmRecord, ReturnCredit
from godwit.native.peer import NativePeer
from godwit.transport.events import Received
from godwit.wire.batch import HAS_ROUTE, HEAD, HEAD_FLAGS, LONE_QOS_1, QOS_SHIFT, Entry, decode_head
from godwit.wire.control import Opened, PublishOpen, PublishRefused
from godwit.wire.control_base import Code

if TYPE_CHECKING:
    from godwit.broker.broker import Broker

BAD_TIME: Final = "published at a time that no clock shows"


class PublishReceipt(msgspec.Struct, gc=False):
    """Confirms one record of a publish channel."""

    channel: PublishChannel
    record: int
    body_bytes: int

    def accepted(self, reached: int) -> None:
        """Confirm the record, and return its credit: at once, or when the client's rate allows it."""
        channel = self.channel
        peer = channel.peer
        if not peer.is_open:
            return
        body_bytes = self.body_bytes
        effects = channel.effects
        bucket = peer.bucket
        if bucket is not None and bucket.due_us > channel.broker.now_us:
            credit = ReturnCredit(channel.connection, channel.number, body_bytes)
            channel.broker.deferred_credit.add(peer, partial(effects.append, credit))
            body_bytes = -1
        if channel.qos:
            effects.append(ConfirmRecord(channel.connection, channel.number, self.record, reached, body_bytes))
        elif body_bytes >= 0:
            effects.append(ReturnCredit(channel.connection, channel.number, body_bytes))

    def refused(self, code: Code, text: str) -> None:
        """Refuse the channel: a later record must not be stored without this one."""
        channel = self.channel
        if channel.peer.is_open:
            channel.effects.append(ReturnCredit(channel.connection, channel.number, self.body_bytes))
            channel.refuse(code, text)


class PublishChannel(Publication):
    """What a client publishes on one channel. Once refused, records that still arrive on it are discarded."""

    __slots__ = ("broker", "connection", "effects", "is_refused", "native_peer", "next_sequence", "number")

    def __init__(
        self, broker: Broker, peer: NativePeer, session: Session, number: int, effects: list[Effect], qos: int
    ) -> None:
        super().__init__(peer, session, qos)
        self.broker = broker
        self.native_peer = peer
        self.connection = peer.connection
        self.number = number
        self.effects = effects
        self.is_refused = False
        self.next_sequence = 0
        """With QoS 0: older messages that arrive late are discarded, to preserve the order."""
        peer.publish_channels[number] = self

    def open(self, request: PublishOpen) -> None:
        """Handle record 0."""
        try:
            subscribers = self.broker.open_publication(self, request.topic, request.publisher, request.epoch)
        except RequestFailure as failure:
            if failure.code is Code.NOT_ALLOWED:
                self.effects.append(refusal_notice(self.session, failure.code, failure.text))
            self.refuse(failure.code, failure.text)
        else:
            self.native_peer.send(Opened(channel=self.number, subscribers=subscribers))

    def refuse(self, code: Code, text: str) -> None:
        """Discard all further records of this channel, and report why."""
        if not self.is_refused:
            self.is_refused = True
            self.broker.close_publication(self)
            self.native_peer.send(PublishRefused(channel=self.number, code=code, text=text))

    def ended(self, code: Code, text: str) -> None:
        self.refuse(code, text)

    def _end(self) -> None:
        """The client has ended the channel."""
        self.broker.close_publication(self)
        self.native_peer.publish_channels.pop(self.number, None)

    def forget(self) -> None:
        """The connection has ended, and the core has closed its publications."""

    def handle(self, event: Received, now_us: int) -> None:
        """Handle a record of batches. Raises DecodeError if it is malformed."""
        body = event.body
        body_bytes = len(body)
        if not body or self.is_refused:
            if event.reliable:
                self.effects.append(ReturnCredit(self.connection, self.number, body_bytes))
        else:
            if self.qos and not event.reliable:
                raise DecodeError("batch", f"an unreliable record on a channel that was opened for QoS {self.qos}")
            if body[0] == LONE_QOS_1 and self.qos == 1 and body_bytes >= HEAD.size:
                # The usual record of a small sender, a single message, is decoded without a detour.
                flags, published_us = HEAD.unpack_from(body)
                if published_us > LATEST_US:
                    raise DecodeError("batch", BAD_TIME)
                topic, publisher = self.topic.name, self.session.name
                rest = body[HEAD.size :]
                entries = [
                    Entry(
                        topic=topic,
                        publisher=publisher,
                        flags=flags,
                        published_us=published_us,
                        received_us=now_us,
                        count=1,
                        rest=rest,
                    )
                ]
            else:
                entries = self._decode(body, now_us)
            receipt = PublishReceipt(self, event.record, body_bytes) if event.reliable else None
            self.broker.publish(self, entries, receipt, body_bytes, now_us)
        if event.last:
            self._end()

    def _decode(self, body: bytes, now_us: int) -> list[Entry]:
        """Return the batches of a record for the log."""
        topic = self.topic.name
        publisher = self.session.name
        qos = self.qos
        entries: list[Entry] = []
        at = batches = 0
        while at < len(body):
            batches += 1
            if batches > MAX_RECORD_BATCHES:
                raise DecodeError("batch", f"more than {MAX_RECORD_BATCHES} in a record")
            head = decode_head(body, at)
            flags = head.flags
            sequence = head.sequence
            if flags >> QOS_SHIFT != qos:
                raise DecodeError("batch", f"QoS {flags >> QOS_SHIFT} on a channel that was opened for QoS {qos}")
            if head.published_us > LATEST_US:
                raise DecodeError("batch", BAD_TIME)
            if flags & HAS_ROUTE:
                raise DecodeError("batch", "a publisher's batch has no route")
            if qos == 2 and sequence is None:
                raise DecodeError("batch", "a batch of QoS 2 has no sequence")
            if qos == 2 and sequence is not None and sequence > LAST_SEQUENCE:
                raise DecodeError("batch", f"the sequence {sequence} is out of range")
            rest = body[head.rest_at : head.end]
            at = head.end
            if qos == 0 and sequence is not None:
                if sequence < self.next_sequence:
                    continue
                self.next_sequence = sequence + head.count
            entries.append(
                Entry(
                    topic=topic,
                    publisher=publisher,
                    flags=flags & ~HEAD_FLAGS,
                    published_us=head.published_us,
                    received_us=now_us,
                    sequence=sequence,
                    epoch=self.epoch,
                    count=head.count,
                    rest=rest,
                )
            )
        return entries
