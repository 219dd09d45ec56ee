"""Records on their way out: the channel they stand in, the fragments they are cut into, and those sent only once."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import msgspec

from godwit.limits import RECORD_COST_BYTES
from godwit.wire.frames import (
    DATA,
    DATA_HEADER,
    END,
    FRAGMENT_HEADER,
    HAS_LENGTH,
    HAS_POSITION,
    LAST,
    U16,
    U32,
    UNRELIABLE,
    WHOLE,
)

UNUSED: Final[Any] = ()
"""In the place of a queue that nothing has stood in yet: an empty deque takes 0.7 kB, and a server has many thousands.
Who appends looks for it first."""


class OutgoingChannel:
    """One ordered lane of records."""

    __slots__ = (
        "awaited", "ended", "id", "last_firm", "limit_bytes", "next_record", "next_unreliable", "pending", "queued",
        "queued_bytes", "sent_bytes",
    )  # fmt: skip

    def __init__(self, channel: int, limit_bytes: int) -> None:
        self.id = channel
        self.limit_bytes = limit_bytes
        self.sent_bytes = 0
        """The cost of the records begun so far, which the limit is about."""
        self.queued_bytes = 0
        """The cost of the records that are not wholly acknowledged."""
        self.queued = 0
        """How many these are."""
        self.last_firm = -1
        """The newest record that its sender wanted reliable."""
        self.awaited = 0
        """How many up to that one are not wholly acknowledged: until then it may not have been delivered."""
        self.next_record = 0
        self.next_unreliable = 0
        self.pending: deque[OutgoingRecord] = UNUSED
        self.ended = False


class OutgoingRecord:
    """Kept until every byte of it is acknowledged."""

    __slots__ = ("body", "channel", "cost_bytes", "cut_bytes", "ends_channel", "number", "unsettled")

    def __init__(self, channel: OutgoingChannel, number: int, body: bytes, ends_channel: bool) -> None:
        self.channel = channel
        self.number = number
        self.body = body
        self.ends_channel = ends_channel
        self.cost_bytes = len(body) + RECORD_COST_BYTES
        self.cut_bytes = 0
        """How much of it has been cut into fragments."""
        self.unsettled = len(body) + 1
        """What is not acknowledged yet: the bytes, and one more for the end, so that an empty record has something."""


class Fragment(msgspec.Struct, gc=False):
    """A piece of a record that was, or is to be, sent in one packet."""

    record: OutgoingRecord
    start: int
    stop: int
    packet: int = -1
    """The number of the packet that carried it last."""
    position: int = -1
    settled: bool = False
    """Acknowledged, or replaced by smaller fragments."""

    @property
    def is_last(self) -> bool:
        return self.stop == len(self.record.body)

    def settle(self) -> bool:
        """It has arrived. True if that was the last missing part of its record."""
        if self.settled:
            return False
        self.settled = True
        record = self.record
        record.unsettled -= self.stop - self.start + self.is_last
        return not record.unsettled

    def header_bytes(self) -> int:
        """How long its frame's header is, without the optional length."""
        whole = self.start == 0 and self.is_last
        return (DATA_HEADER.size if whole else FRAGMENT_HEADER.size) + (U32.size if self.position >= 0 else 0)

    def body_bytes(self) -> int:
        return self.stop - self.start

    def encode(self, *, with_length: bool) -> tuple[bytes, bytes]:
        """Its frame as header and body. With a length, another frame may follow it."""
        record = self.record
        kind = DATA
        if self.is_last:
            kind |= LAST | END if record.ends_channel else LAST
        if with_length:
            kind |= HAS_LENGTH
        if self.position >= 0:
            kind |= HAS_POSITION
        number = record.number & 0xFFFFFFFF
        if self.start == 0 and self.is_last:
            header = DATA_HEADER.pack(kind | WHOLE, record.channel.id, number)
        else:
            header = FRAGMENT_HEADER.pack(kind, record.channel.id, number, self.start)
        if self.position >= 0:
            header += U32.pack(self.position & 0xFFFFFFFF)
        if with_length:
            header += U16.pack(self.stop - self.start)
        return header, record.body[self.start : self.stop]


class UnreliableRecord(msgspec.Struct, gc=False, frozen=True):
    """Waits for one chance to be sent."""

    channel: int
    number: int
    body: bytes

    def header_bytes(self) -> int:
        return DATA_HEADER.size

    def body_bytes(self) -> int:
        return len(self.body)

    def encode(self, *, with_length: bool) -> tuple[bytes, bytes]:
        kind = DATA | WHOLE | UNRELIABLE | (HAS_LENGTH if with_length else 0)
        header = DATA_HEADER.pack(kind, self.channel, self.number & 0xFFFFFFFF)
        return (header + U16.pack(len(self.body)) if with_length else header), self.body
