"""Batches: messages of one publisher, topic, QoS and retain flag, packed into one run of bytes.

    flags u8 | published u64 | [sequence u64] | [route: topic u32, publisher u32, offset u64, received u64]
    | [extension: length u32, bytes] | [count u32, count x length u32] | [count x delta u32] | bodies

Times are microseconds since the epoch. The first line is the *head*, the second the *rest*. A broker that forwards a
batch writes a new head (with a route, without a sequence) before the rest, which it does not decode. A record holds one
or more batches. A lone batch has neither count nor lengths: its one message extends to the end of the record, so it is
the last of its record.

Between broker, log and archive a batch is an Entry: the fields of its head, with names instead of labels, and its rest.

All knowledge of this layout is in this module. The functions work on whole batches; none calls Python code per message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
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
SHAPE: Final = LONE | HAS_DELTAS | HAS_EXTENSION
"""The flags that describe the rest."""
HEAD_FLAGS: Final = HAS_SEQUENCE | HAS_ROUTE
"""The flags that describe the head. An Entry has none of them."""
LONE_QOS_1: Final = LONE | 1 << QOS_SHIFT
"""The flags of the most frequent record of a small sender: one message with QoS 1, whose rest is its body."""

HEAD: Final = struct.Struct(">BQ")
"""The head without sequence and route: flags and time."""
ROUTED: Final = struct.Struct(">BQIIQQII")
"""Head, route, count and the first length of a routed batch without extension and sequence."""
LENGTH_BYTES: Final = 4
"""The overhead of a message in a batch; twice that if the batch has deltas."""
SEQUENCE_BYTES: Final = 8
MAX_DELTA_US: Final = 2**32 - 1
MAX_PUBLISHED_HEAD_BYTES: Final = HEAD.size + SEQUENCE_BYTES + LENGTH_BYTES
"""The longest head of a publisher's batch, with its sequence, and the count after it."""
MAX_CACHED_FORMAT: Final = 4096
"""Formats for batches of more messages are not cached, because they are long."""
MAX_BODY_CHUNKS: Final = 256
"""More bodies are joined to one chunk by split_entries, because each chunk costs a call when they are written."""

_HEAD_WITH_SEQUENCE: Final = struct.Struct(">BQQ")
_ROUTED_HEAD: Final = struct.Struct(">BQIIQQ")
_U64: Final = struct.Struct(">Q")
_U32: Final = struct.Struct(">I")
_ROUTE: Final = struct.Struct(">IIQQ")


class Route(msgspec.Struct, frozen=True, gc=False):
    """The broker's fields in a batch for a subscriber: labels for topic and publisher, its offset in the log."""

    topic: int
    publisher: int
    offset: int
    received_us: int


class Batch(msgspec.Struct, frozen=True):
    """A decoded batch. `payloads` are copies; `deltas_us` are relative to `published_us`."""

    payloads: list[bytes]
    published_us: int
    qos: int = 1
    retain: bool = False
    sequence: int | None = None
    route: Route | None = None
    deltas_us: tuple[int, ...] | None = None
    extension: bytes | None = None


class Head(msgspec.Struct, frozen=True, gc=False):
    """The part of a batch that a broker decodes: its head, the number of messages, the offsets of the rest and the
    end."""

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


class Entry(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A batch between broker, log and archive."""

    topic: str
    publisher: str
    flags: int
    """The flags of the batch without HEAD_FLAGS."""
    published_us: int
    received_us: int
    """Not less than that of the previous entry in the log."""
    sequence: int | None = None
    epoch: int = 0
    count: int
    """The number of messages, and so of offsets."""
    rest: bytes
    """The batch after its head: extension, lengths, deltas, bodies."""


# -- encoding ---------------------------------------------------------------------------------------------------------


def pack_batch(
    payloads: list[bytes],
    published_us: int,
    *,
    qos: int,
    retain: bool = False,
    sequence: int | None = None,
    deltas_us: Sequence[int] | None = None,
    extension: bytes | None = None,
) -> bytes:
    """Return the bytes of a publisher's batch; lone if it has one message and no deltas. Consumes `payloads`."""
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
        parts.insert(0, HEAD.pack(flags, published_us))
    else:
        parts.insert(0, _HEAD_WITH_SEQUENCE.pack(flags | HAS_SEQUENCE, published_us, sequence))
    payloads[:0] = parts
    return b"".join(payloads)


def pack_rest(payloads: Sequence[bytes], *, extension: bytes | None = None) -> tuple[int, bytes]:
    """Return the shape flags and the rest of an Entry with these messages."""
    count = len(payloads)
    if count == 1 and extension is None:
        return LONE, payloads[0]
    lengths = struct.pack(f">{count}I", *map(len, payloads))
    return join_rest(count, lengths, None, b"".join(payloads), extension=extension)


def make_entry(
    topic: str,
    publisher: str,
    payloads: Sequence[bytes],
    *,
    qos: int,
    now_us: int,
    retain: bool = False,
    published_us: int | None = None,
    extension: bytes | None = None,
) -> Entry:
    """Return an entry with these messages, at least one. `published_us`: by the publisher's clock, by default
    `now_us`."""
    if len(payloads) == 1 and extension is None:
        shape, rest = LONE, payloads[0]
    else:
        shape, rest = pack_rest(payloads, extension=extension)
    return Entry(
        topic=topic,
        publisher=publisher,
        flags=shape | qos << QOS_SHIFT | (RETAIN if retain else 0),
        published_us=now_us if published_us is None else published_us,
        received_us=now_us,
        count=len(payloads),
        rest=rest,
    )


def make_lone_entry(topic: str, publisher: str, payload: bytes, qos: int, retain: bool, now_us: int) -> Entry:
    """Return what `make_entry` returns for one message without an extension, in fewer steps."""
    return Entry(
        topic=topic,
        publisher=publisher,
        flags=LONE | qos << QOS_SHIFT | (RETAIN if retain else 0),
        published_us=now_us,
        received_us=now_us,
        count=1,
        rest=payload,
    )


def join_rest(
    count: int, lengths: bytes, deltas: bytes | None, bodies: bytes, *, extension: bytes | None = None
) -> tuple[int, bytes]:
    """Return the shape flags and the rest of an Entry from columns of big-endian u32 and the joined bodies."""
    flags = 0
    parts: list[bytes] = []
    if extension is not None:
        flags |= HAS_EXTENSION
        parts += (_U32.pack(len(extension)), extension)
    if count == 1 and deltas is None:
        flags |= LONE
    else:
        parts += (_U32.pack(count), lengths)
    if deltas is not None:
        flags |= HAS_DELTAS
        parts.append(deltas)
    return flags, b"".join((*parts, bodies)) if parts else bodies


def encode_batch(batch: Batch) -> bytes:
    """Return the bytes of a batch; lone if it has one message and no deltas.

    Raises ValueError if it has no messages or too many.
    """
    count = len(batch.payloads)
    if not 1 <= count <= MAX_BATCH_MESSAGES:
        raise ValueError(f"{count} messages in a batch: it holds 1 to {MAX_BATCH_MESSAGES}")
    lengths = struct.pack(f">{count}I", *map(len, batch.payloads))
    deltas = None if batch.deltas_us is None else struct.pack(f">{count}I", *batch.deltas_us)
    shape, rest = join_rest(count, lengths, deltas, b"".join(batch.payloads), extension=batch.extension)
    flags = shape | batch.qos << QOS_SHIFT | (RETAIN if batch.retain else 0)
    return encode_head(flags, batch.published_us, batch.sequence, batch.route) + rest


def encode_joinable(batch: Batch) -> bytes:
    """Return the bytes of a batch with count and lengths even for one message, so that another batch can follow it."""
    data = encode_batch(batch)
    return with_lengths(data, decode_head(data)) if data[0] & LONE else data


def with_lengths(data: bytes, head: Head) -> bytes:
    """Return a lone batch with count and length added, so that another batch can follow it."""
    at = head.rest_at
    stop = at + _extension_end(head.flags, data[at : head.end])
    new_head = encode_head(head.flags & ~LONE, head.published_us, head.sequence, head.route)
    return b"".join((new_head, data[at:stop], struct.pack(">II", 1, head.end - stop), data[stop : head.end]))


def encode_head(flags: int, published_us: int, sequence: int | None, route: Route | None) -> bytes:
    """Return the head of a batch."""
    flags &= ~HEAD_FLAGS
    tail = b""
    if sequence is not None:
        flags |= HAS_SEQUENCE
        tail = _U64.pack(sequence)
    if route is not None:
        flags |= HAS_ROUTE
        tail += _ROUTE.pack(route.topic, route.publisher, route.offset, route.received_us)
    return HEAD.pack(flags, published_us) + tail


def route_entry(entry: Entry, flags: int, topic: int, publisher: int, offset: int) -> tuple[bytes, bytes]:
    """Return the batch for a subscriber in two pieces: a head with the route, and the rest.

    A lone batch gets its length added, because another batch may follow it in the record. `flags` are those of the
    entry, perhaps without RETAIN; `topic` and `publisher` are labels.
    """
    rest = entry.rest
    flags |= HAS_ROUTE
    if not flags & LONE:
        return _ROUTED_HEAD.pack(flags, entry.published_us, topic, publisher, offset, entry.received_us), rest
    if flags & HAS_EXTENSION:
        stop = _extension_end(flags, rest)
        head = _ROUTED_HEAD.pack(flags & ~LONE, entry.published_us, topic, publisher, offset, entry.received_us)
        return head + rest[:stop] + struct.pack(">II", 1, len(rest) - stop), rest[stop:]
    flags &= ~LONE
    return ROUTED.pack(flags, entry.published_us, topic, publisher, offset, entry.received_us, 1, len(rest)), rest


# -- decoding ---------------------------------------------------------------------------------------------------------


def decode_head(record: bytes, at: int = 0) -> Head:
    """Return the head of the batch at offset `at`.

    Raises DecodeError if the batch is malformed or longer than the record.
    """
    try:
        head, bodies_at, lengths_at = _scan(record, at)
    except struct.error:
        raise DecodeError("batch", "cut short") from None
    if lengths_at is None:
        return head
    end = bodies_at + _sum_column(record[lengths_at : lengths_at + _U32.size * head.count], head.count)
    if end > len(record):
        raise DecodeError("batch", "bodies are cut short")
    return msgspec.structs.replace(head, end=end)


def decode_batches(record: bytes) -> list[Batch]:
    """Return all batches of a record. Raises DecodeError if it is malformed or empty."""
    if not record:
        raise DecodeError("batch", "an empty record")
    batches = []
    at = 0
    while at < len(record):
        batch, at = decode_batch(record, at)
        batches.append(batch)
    return batches


def decode_batch(record: bytes, at: int = 0) -> tuple[Batch, int]:
    """Return the batch at offset `at`, and the offset of its end. Raises DecodeError if it is malformed."""
    try:
        head, bodies_at, lengths_at = _scan(record, at)
        count = head.count
        deltas = None
        payloads: Iterable[bytes]
        if lengths_at is None:
            payloads, end = [record[bodies_at:]], len(record)
        else:
            if head.flags & HAS_DELTAS:
                deltas = struct.unpack_from(f">{count}I", record, lengths_at + _U32.size * count)
            stops = list(accumulate(struct.unpack_from(f">{count}I", record, lengths_at), initial=bodies_at))
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


def decode_entry(entry: Entry) -> Batch:
    """Return the batch of an entry. Raises DecodeError if its rest is malformed."""
    return decode_batch(encode_head(entry.flags, entry.published_us, entry.sequence, None) + entry.rest)[0]


def lone_payload(entry: Entry) -> bytes | None:
    """Return the message of an entry that has one and no extension, else None."""
    return entry.rest if entry.flags & SHAPE == LONE else None


def payloads_of(entry: Entry) -> list[bytes]:
    """Return the messages of an entry. Raises DecodeError if its rest is malformed."""
    shape = entry.flags & SHAPE
    if shape == LONE:
        return [entry.rest]
    if shape:
        return decode_entry(entry).payloads
    rest, count = entry.rest, entry.count
    begin = _U32.size * (count + 1)
    if len(rest) < begin:
        raise DecodeError("batch", "cut short")
    stops = list(accumulate(struct.unpack_from(f">{count}I", rest, _U32.size), initial=begin))
    if stops[-1] > len(rest):
        raise DecodeError("batch", "bodies are cut short")
    return [rest[start:stop] for start, stop in pairwise(stops)]


def split_bodies(record: bytes, at: int, count: int, first_bytes: int) -> tuple[Iterable[bytes], int]:
    """Return the bodies of a batch without deltas whose lengths are at `at`, and the offset of their end.

    `first_bytes` is the first length, which the caller has read with ROUTED. Raises DecodeError if the record is too
    short, struct.error if it ends within the lengths.
    """
    bodies_at = at + _U32.size * count
    if record[at:bodies_at] == _U32.pack(first_bytes) * count:
        # All have one length, like the readings of a sensor: one call splits them.
        end = bodies_at + count * first_bytes
        if end > len(record):
            raise DecodeError("batch", "bodies are cut short")
        return _equal_lengths(first_bytes, count).unpack_from(record, bodies_at), end
    stops = list(accumulate(struct.unpack_from(f">{count}I", record, at), initial=bodies_at))
    return [record[start:stop] for start, stop in pairwise(stops)], stops[-1]


def _equal_lengths(length: int, count: int) -> struct.Struct:
    return _cached_format(length, count) if count <= MAX_CACHED_FORMAT else struct.Struct(f"{length}s" * count)


@lru_cache(maxsize=64)
def _cached_format(length: int, count: int) -> struct.Struct:
    return struct.Struct(f"{length}s" * count)


def _scan(record: bytes, at: int) -> tuple[Head, int, int | None]:
    """Return the head (its `end` is right only for a lone batch), and the offsets of bodies and lengths (None:
    lone)."""
    flags, published_us = HEAD.unpack_from(record, at)
    at += HEAD.size
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
    bodies_at = at + _U32.size * count * (2 if flags & HAS_DELTAS else 1)
    if bodies_at > len(record):
        raise DecodeError("batch", "lengths are cut short")
    return Head(flags, published_us, sequence, route, count, rest_at, bodies_at), bodies_at, at


# -- entries ----------------------------------------------------------------------------------------------------------


def extension_of(entry: Entry) -> bytes | None:
    """Return the extension of an entry, or None."""
    if not entry.flags & HAS_EXTENSION:
        return None
    return entry.rest[_U32.size : _extension_end(entry.flags, entry.rest)]


def extension_at(record: bytes) -> int:
    """Return the offset of the extension in a publisher's record, whose first batch must have one."""
    return HEAD.size + (SEQUENCE_BYTES if record[0] & HAS_SEQUENCE else 0) + _U32.size


def is_rest_valid(entry: Entry) -> bool:
    """Return whether the rest of an entry from outside has the shape of its flags and the number of its messages."""
    flags, rest, count = entry.flags, entry.rest, entry.count
    at = 0
    if flags & HAS_EXTENSION:
        if len(rest) < _U32.size:
            return False
        at = _extension_end(flags, rest)
        if at > len(rest):
            return False
    if flags & LONE:
        return count == 1 and not flags & HAS_DELTAS
    columns = 2 if flags & HAS_DELTAS else 1
    bodies_at = at + _U32.size * (1 + columns * count)
    if bodies_at > len(rest) or int.from_bytes(rest[at : at + _U32.size], "big") != count:
        return False
    lengths_at = at + _U32.size
    return _sum_column(rest[lengths_at : lengths_at + _U32.size * count], count) == len(rest) - bodies_at


def with_extension(entry: Entry, extension: bytes) -> Entry:
    """Return an entry with another extension."""
    at = _extension_end(entry.flags, entry.rest)
    rest = _U32.pack(len(extension)) + extension + entry.rest[at:]
    return msgspec.structs.replace(entry, flags=entry.flags | HAS_EXTENSION, rest=rest)


def has_times(entry: Entry) -> bool:
    """Return whether the messages of an entry have times of publishing of their own."""
    return bool(entry.flags & HAS_DELTAS)


def payload_bytes(entry: Entry) -> int:
    """Return the approximate size of the messages of an entry: lengths are subtracted, deltas and extension are not."""
    return len(entry.rest) - (4 * entry.count + 4 if entry.count > 1 else 0)


def longest_message(flags: int, count: int, rest: bytes) -> int:
    """Return the length of the longest message of a batch whose lengths were checked."""
    at = _extension_end(flags, rest)
    if flags & LONE:
        return len(rest) - at
    longest: int = max(struct.unpack_from(f">{count}I", rest, at + _U32.size))
    return longest


def last_message(entry: Entry) -> tuple[bytes, int]:
    """Return the last message of an entry, and its publish time."""
    rest = entry.rest
    at = _extension_end(entry.flags, rest)
    if entry.flags & LONE:
        return rest[at:], entry.published_us
    count = entry.count
    (last_bytes,) = _U32.unpack_from(rest, at + 4 * count)
    published_us = entry.published_us
    if entry.flags & HAS_DELTAS:
        published_us += _U32.unpack_from(rest, at + 8 * count)[0]
    return (rest[-last_bytes:] if last_bytes else b""), published_us


def without_first(entry: Entry, count: int) -> Entry:
    """Return an entry without its first `count` messages, which the receiver has already."""
    return cut_entry(entry, decode_entry(entry), count, entry.count)


def cut_entry(entry: Entry, batch: Batch, first: int, end: int) -> Entry:
    """Return an entry with some messages of another: from the index `first` on, below `end`.

    `batch`: the decoded entry, so that one that is cut several times is decoded once.
    """
    deltas = batch.deltas_us
    left = batch.payloads[first:end]
    lengths = struct.pack(f">{len(left)}I", *map(len, left))
    packed_deltas = None if deltas is None else struct.pack(f">{len(left)}I", *deltas[first:end])
    shape, rest = join_rest(len(left), lengths, packed_deltas, b"".join(left), extension=batch.extension)
    return msgspec.structs.replace(
        entry,
        flags=entry.flags & ~SHAPE | shape,
        sequence=None if entry.sequence is None else entry.sequence + first,
        count=len(left),
        rest=rest,
    )


def _extension_end(flags: int, rest: bytes) -> int:
    """Return the offset in a rest after its extension."""
    return _U32.size + int.from_bytes(rest[: _U32.size], "big") if flags & HAS_EXTENSION else 0


def _sum_column(column: bytes, count: int) -> int:
    """Return the sum of a column of lengths, which are often all equal: then it takes a tenth of the time."""
    first = column[: _U32.size]
    if column == first * count:
        return count * int.from_bytes(first, "big")
    return sum(struct.unpack(f">{count}I", column))


# -- columns of many entries, as a block of the log stores them -------------------------------------------------------


class EntryColumns(msgspec.Struct, frozen=True):
    """The rests of many entries as columns of big-endian u32, extensions and bodies."""

    lengths: bytes
    """The lengths of all messages."""
    deltas: bytes | None
    """The deltas of all messages, zero for an entry without; None if no entry has any."""
    body_bytes: Sequence[int]
    """The length of the bodies of each entry."""
    extension_bytes: Sequence[int]
    """The length of the extension of each entry, zero without one."""
    extensions: bytes
    bodies: Sequence[bytes | memoryview]
    """At most MAX_BODY_CHUNKS."""
    bodies_bytes: int


def split_entries(entries: Sequence[Entry], shapes: Iterable[int]) -> EntryColumns:
    """Return the rests of entries as columns. `shapes` contains the flags of all of them.

    Raises ValueError if a rest does not have the layout that its flags and its count describe.
    """
    are_lone, has_deltas = True, False
    for flags in shapes:
        are_lone = are_lone and flags & SHAPE == LONE
        has_deltas = has_deltas or bool(flags & HAS_DELTAS)
    if not are_lone:
        return _split_mixed(entries, has_deltas)
    # Only lone messages, as many small senders publish them: their rests are their bodies.
    rests = []
    for entry in entries:
        if entry.count != 1:
            raise _malformed(entry)
        rests.append(entry.rest)
    sizes = list(map(len, rests))
    lengths = struct.pack(f">{len(sizes)}I", *sizes)
    return EntryColumns(lengths, None, sizes, [0] * len(sizes), b"", [b"".join(rests)], sum(sizes))


def _split_mixed(entries: Sequence[Entry], has_deltas: bool) -> EntryColumns:
    lengths: list[bytes] = []
    deltas: list[bytes] = []
    body_bytes: list[int] = []
    extension_bytes: list[int] = []
    extensions: list[bytes] = []
    bodies: list[bytes | memoryview] = []
    for entry in entries:
        rest, flags, count = entry.rest, entry.flags, entry.count
        at = 0
        if flags & HAS_EXTENSION:
            at = _U32.size + int.from_bytes(rest[: _U32.size], "big")
            extensions.append(rest[_U32.size : at])
        extension_bytes.append(max(at - _U32.size, 0))
        if flags & LONE:
            column = _U32.pack(max(len(rest) - at, 0))
            is_whole = count == 1 and not flags & HAS_DELTAS
        else:
            is_whole = rest[at : at + _U32.size] == _U32.pack(count)
            at += _U32.size
            column = rest[at : at + _U32.size * count]
            at += _U32.size * count
        if flags & HAS_DELTAS:
            deltas.append(rest[at : at + _U32.size * count])
            at += _U32.size * count
        elif has_deltas:
            deltas.append(bytes(_U32.size * count))
        if not is_whole or at > len(rest) or _sum_column(column, count) != len(rest) - at:
            raise _malformed(entry)
        lengths.append(column)
        body_bytes.append(len(rest) - at)
        bodies.append(memoryview(rest)[at:] if at else rest)
    return EntryColumns(
        b"".join(lengths),
        b"".join(deltas) if has_deltas else None,
        body_bytes,
        extension_bytes,
        b"".join(extensions),
        bodies if len(bodies) <= MAX_BODY_CHUNKS else [b"".join(bodies)],
        sum(body_bytes),
    )


def _malformed(entry: Entry) -> ValueError:
    return ValueError(f"a batch on {entry.topic!r} does not have the layout that its flags and its count describe")


class StoredColumns(msgspec.Struct, frozen=True):
    """A block of bytes that contains the columns of many entries, and the offsets of the columns in it."""

    data: bytes
    length_at: int
    delta_at: int | None
    extensions_at: int
    bodies_at: int
    flags: bytes
    counts: Sequence[int]
    body_bytes: Sequence[int]
    extension_bytes: Sequence[int]


def join_rests(stored: StoredColumns) -> list[bytes]:
    """Return the rests of entries that split_entries has split. The sums of the columns must fit the sections.

    Raises ValueError if an entry has deltas and there is no column of deltas.
    """
    data = stored.data
    stops = accumulate(stored.body_bytes, initial=stored.bodies_at)
    if all(flags & SHAPE == LONE for flags in set(stored.flags)):
        return [data[start:stop] for start, stop in pairwise(stops)]
    rests = []
    extension_at = stored.extensions_at
    column_at = 0
    for flags, count, extension_bytes, (start, stop) in zip(
        stored.flags, stored.counts, stored.extension_bytes, pairwise(stops), strict=True
    ):
        pieces = []
        if flags & HAS_EXTENSION:
            pieces += [_U32.pack(extension_bytes), data[extension_at : extension_at + extension_bytes]]
            extension_at += extension_bytes
        column_end = column_at + _U32.size * count
        if not flags & LONE:
            pieces += [_U32.pack(count), data[stored.length_at + column_at : stored.length_at + column_end]]
        if flags & HAS_DELTAS:
            if stored.delta_at is None:
                raise ValueError("a batch misses its deltas")
            pieces.append(data[stored.delta_at + column_at : stored.delta_at + column_end])
        column_at = column_end
        rests.append(b"".join((*pieces, memoryview(data)[start:stop])) if pieces else data[start:stop])
    return rests
