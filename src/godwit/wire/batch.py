"""Batches: messages of one publisher, topic, QoS and retain flag, packed into one run of bytes.

    flags u8 | published u64 | [sequence u64] | [route: topic u32, publisher u32, offset u64, received u64]
    | [extension: length u32, bytes] | [count u32, count x length u32] | [count x delta u32] | bodies

Times are microseconds since the epoch. What stands in the first line is the *head*; a broker that forwards a batch
writes a new head (with a route, without a sequence) before the rest and never looks into the rest. A record holds
one or more batches, one after another. A lone batch has neither count nor lengths: one message that runs to the end of
the record, which makes it the last of its record.
"""

from __future__ import annotations

import struct
from itertools import accumulate, pairwise
from typing import Final

import msgspec

from godwit.errors import DecodeError
from godwit.limits import MAX_BATCH_MESSAGES

LONE: Final = 0x01
HAS_DELTAS: Final = 0x02
RETAIN: Final = 0x04
HAS_SEQUENCE: Final = 0x08
HAS_ROUTE: Final = 0x10
HAS_EXTENSION: Final = 0x20
QOS_SHIFT: Final = 6

_HEAD: Final = struct.Struct(">BQ")
_U64: Final = struct.Struct(">Q")
_U32: Final = struct.Struct(">I")
_ROUTE: Final = struct.Struct(">IIQQ")


class Route(msgspec.Struct, frozen=True, gc=False):
    """What the broker tells a subscriber of a batch: labels for topic and publisher, its place in the log."""

    topic: int
    publisher: int
    offset: int
    received_us: int


class Batch(msgspec.Struct, frozen=True):
    """A decoded batch. `payloads` are copies; `deltas_us` are counted from `published_us`."""

    payloads: list[bytes]
    published_us: int
    qos: int = 1
    retain: bool = False
    sequence: int | None = None
    route: Route | None = None
    deltas_us: tuple[int, ...] | None = None
    extension: bytes | None = None


class Head(msgspec.Struct, frozen=True, gc=False):
    """What a broker needs of a batch: its head, how many messages follow, where the rest begins and the batch ends."""

    flags: int
    published_us: int
    sequence: int | None
    route: Route | None
    count: int
    rest_at: int
    end: int

    @property
    def qos(self) -> int:
        return self.flags >> QOS_SHIFT

    @property
    def retain(self) -> bool:
        return bool(self.flags & RETAIN)


def encode_batch(batch: Batch) -> bytes:
    """The bytes of a batch; lone if it has one message and nothing that a lone batch cannot have."""
    payloads = batch.payloads
    count = len(payloads)
    if not 1 <= count <= MAX_BATCH_MESSAGES:
        raise ValueError(f"{count} messages in a batch: it holds 1 to {MAX_BATCH_MESSAGES}")
    flags = batch.qos << QOS_SHIFT | (RETAIN if batch.retain else 0)
    parts: list[bytes] = []
    if batch.extension is not None:
        flags |= HAS_EXTENSION
        parts += (_U32.pack(len(batch.extension)), batch.extension)
    if count == 1 and batch.deltas_us is None:
        flags |= LONE
    else:
        parts.append(struct.pack(f">{count + 1}I", count, *map(len, payloads)))
    if batch.deltas_us is not None:
        flags |= HAS_DELTAS
        parts.append(struct.pack(f">{count}I", *batch.deltas_us))
    return encode_head(flags, batch.published_us, batch.sequence, batch.route) + b"".join(parts + payloads)


def encode_joinable(batch: Batch) -> bytes:
    """As encode_batch, but with count and lengths even for one message, so that another batch can stand behind it."""
    data = encode_batch(batch)
    return with_lengths(data, decode_head(data)) if data[0] & LONE else data


def with_lengths(data: bytes, head: Head) -> bytes:
    """A lone batch made joinable: the same batch with count and length written out."""
    at = head.rest_at
    extension = b""
    if head.flags & HAS_EXTENSION:
        stop = at + _U32.size + _U32.unpack_from(data, at)[0]
        extension = data[at:stop]
        at = stop
    new_head = encode_head(head.flags & ~LONE, head.published_us, head.sequence, head.route)
    return b"".join((new_head, extension, struct.pack(">II", 1, head.end - at), data[at : head.end]))


def encode_head(flags: int, published_us: int, sequence: int | None, route: Route | None) -> bytes:
    """The head alone: what a broker writes before the rest of a batch that it forwards."""
    flags &= ~(HAS_SEQUENCE | HAS_ROUTE)
    tail = b""
    if sequence is not None:
        flags |= HAS_SEQUENCE
        tail = _U64.pack(sequence)
    if route is not None:
        flags |= HAS_ROUTE
        tail += _ROUTE.pack(route.topic, route.publisher, route.offset, route.received_us)
    return _HEAD.pack(flags, published_us) + tail


def decode_head(record: bytes, at: int = 0) -> Head:
    """The head of the batch that begins at `at`, its lengths checked against the bytes that are there."""
    try:
        head, bodies_at, lengths_at = _scan(record, at)
    except struct.error:
        raise DecodeError("batch", "cut short") from None
    if lengths_at is None:
        return head
    first = record[lengths_at : lengths_at + _U32.size]
    if record[lengths_at : lengths_at + _U32.size * head.count] == first * head.count:
        end = bodies_at + head.count * _U32.unpack(first)[0]  # all of one length, as readings are: ten times as quick
    else:
        end = bodies_at + sum(struct.unpack_from(f">{head.count}I", record, lengths_at))
    if end > len(record):
        raise DecodeError("batch", "bodies are cut short")
    return msgspec.structs.replace(head, end=end)


def decode_batches(record: bytes) -> list[Batch]:
    """All batches of a record."""
    if not record:
        raise DecodeError("batch", "an empty record")
    batches = []
    at = 0
    while at < len(record):
        batch, at = decode_batch(record, at)
        batches.append(batch)
    return batches


def decode_batch(record: bytes, at: int = 0) -> tuple[Batch, int]:
    """The batch that begins at `at`, and where it ends."""
    try:
        head, bodies_at, lengths_at = _scan(record, at)
        count = head.count
        if lengths_at is None:
            payloads = [record[bodies_at:]]
            end = len(record)
            deltas = None
        else:
            lengths = struct.unpack_from(f">{count}I", record, lengths_at)
            has_deltas = head.flags & HAS_DELTAS
            deltas = struct.unpack_from(f">{count}I", record, lengths_at + 4 * count) if has_deltas else None
            stops = list(accumulate(lengths, initial=bodies_at))
            end = stops[-1]
            if end > len(record):
                raise DecodeError("batch", "bodies are cut short")
            payloads = [record[start:stop] for start, stop in pairwise(stops)]
    except struct.error:
        raise DecodeError("batch", "cut short") from None
    extension = None
    if head.flags & HAS_EXTENSION:
        (length,) = _U32.unpack_from(record, head.rest_at)
        extension = record[head.rest_at + _U32.size : head.rest_at + _U32.size + length]
    return Batch(payloads, head.published_us, head.qos, head.retain, head.sequence, head.route, deltas, extension), end


def _scan(record: bytes, at: int) -> tuple[Head, int, int | None]:
    """Head (its `end` right only for a lone batch), where the bodies begin, where the lengths do (None: lone)."""
    flags, published_us = _HEAD.unpack_from(record, at)
    at += _HEAD.size
    if flags >> QOS_SHIFT == 3:
        raise DecodeError("batch", "QoS 3 does not exist")
    sequence: int | None = None
    route: Route | None = None
    if flags & HAS_SEQUENCE:
        (sequence,) = _U64.unpack_from(record, at)
        at += _U64.size
    if flags & HAS_ROUTE:
        route = Route(*_ROUTE.unpack_from(record, at))
        at += _ROUTE.size
    rest_at = at
    if flags & HAS_EXTENSION:
        at += _U32.size + _U32.unpack_from(record, at)[0]
        if at > len(record):
            raise DecodeError("batch", "the extension is cut short")
    if flags & LONE:
        if flags & HAS_DELTAS:
            raise DecodeError("batch", "a lone batch has no deltas")
        return Head(flags, published_us, sequence, route, 1, rest_at, len(record)), at, None
    (count,) = _U32.unpack_from(record, at)
    at += _U32.size
    if not 1 <= count <= MAX_BATCH_MESSAGES:
        raise DecodeError("batch", f"{count} messages, a batch has 1 to {MAX_BATCH_MESSAGES}")
    bodies_at = at + 4 * count * (2 if flags & HAS_DELTAS else 1)
    if bodies_at > len(record):
        raise DecodeError("batch", "lengths are cut short")
    return Head(flags, published_us, sequence, route, count, rest_at, bodies_at), bodies_at, at


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One batch. Its `flags` are the batch's, without those for a sequence and a route."""

    topic: str
    publisher: str
    flags: int
    published_us: int
    received_us: int
    """Never less than that of the entry before it in the log."""
    sequence: int | None
    epoch: int
    count: int
    """Messages in the batch: so many offsets are its own."""
    rest: bytes
    """Everything behind the batch's head: extension, lengths, deltas, bodies."""
