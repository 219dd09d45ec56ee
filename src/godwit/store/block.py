"""Blocks: what one commit took, as columns. One block is one row of the log; it tells everything about itself.

    head          magic "GWB1" | stamp, 8 bytes | first offset u64 | end offset u64 | batches u32 | messages u32 |
                  topics u32 | publishers u32 | bytes of names u32 | bytes of extensions u32 | bytes of bodies u64 |
                  flags u32                                                 flags: 1, there is a column of deltas
    a batch       published u64 | received u64 | sequence u64 | epoch u64
    a batch       offset - first offset u32 | messages u32 | topic u32 | publisher u32 | bytes of bodies u32 |
                  bytes of extension u32
    a name        bytes u32: the topics', then the publishers'
    a message     length u32 | [microseconds after the batch's time published u32]
    a batch       flags u8
    bytes         names | extensions | bodies
    check         CRC-32C of all that stands before it, u32

Each field is a column: that of all batches, then the next one. Big-endian but for the check, which is little-endian
like that of a packet. Wide columns stand first, so that all are aligned. A batch's flags are those of the wire
(godwit.wire.batch), with the one for a sequence. Offsets may have holes: retention removes batches from the middle.

The stamp is a secret of the log (godwit.store.kept): a checksum shows that a block is what somebody wrote, the stamp
that the log's own writer did, and not a publisher who hid a block in a message. Blocks outside of a log have none.

So a reader gets at any column, and at all bodies, without a look at a single message; and a batch comes out byte for
byte as it went in.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec
from crc32c import crc32c

from godwit.limits import MIB
from godwit.store.packing import (
    CHECK,
    DamagedBlockError,
    check_seal,
    cut_names,
    join_sealed,
    narrow,
    read_narrow,
    read_wide,
    wide,
)
from godwit.store.rests import Packed, join_rests, split_rests
from godwit.store.shares import TopicShare, decode_topics, encode_topics, pack_topics
from godwit.wire.batch import HAS_ROUTE, HAS_SEQUENCE, Entry

__all__ = [
    "BLOCK_BYTES",
    "NO_STAMP",
    "Columns",
    "DamagedBlockError",
    "Row",
    "TopicShare",
    "are_numbers_sealed",
    "decode_block",
    "decode_topics",
    "encode_block",
    "encode_blocks",
    "encode_topics",
    "is_row_sealed",
    "make_row",
    "open_block",
    "row_of",
]

BLOCK_BYTES: Final = 1 * MIB
"""Where a commit is cut into several blocks. One longer batch makes a longer block."""

MAGIC: Final = b"GWB1"
_HAS_DELTA_COLUMN: Final = 1
STAMP_BYTES: Final = 8
NO_STAMP: Final = bytes(STAMP_BYTES)
"""Of blocks outside of a log, as in staged files."""
_HEAD: Final = struct.Struct(">4s8sQQIIIIIIQI")
_SEALED: Final = struct.Struct(">QQQQ")
HEAD_BYTES: Final = _HEAD.size
_BATCH_BYTES: Final = 4 * 8 + 6 * 4 + 1 + 4 + (8 + 2 * 4) + 4
"""What a batch takes beside its rest and its names: its columns, a length, those of a topic and a publisher."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """A block with what the log's table says of it, so that it need not be opened to know whether it matters."""

    first_offset: int
    end_offset: int
    """Behind its last message."""
    received_us: int
    """When its first batch came ..."""
    until_us: int
    """... and when its last one did."""
    seal: int
    """A checksum of these numbers, see make_row."""
    topics: bytes
    """See decode_topics."""
    body: bytes


def make_row(first_offset: int, end_offset: int, received_us: int, until_us: int, topics: bytes, body: bytes) -> Row:
    """A row with its seal: who looks at the small columns alone must not be led past a block by a flipped bit."""
    seal = crc32c(_SEALED.pack(first_offset, end_offset, received_us, until_us))
    return Row(first_offset, end_offset, received_us, until_us, seal, topics, body)


def are_numbers_sealed(row: Row) -> bool:
    """Whether the row's numbers are what was written."""
    try:
        return row.seal == crc32c(_SEALED.pack(row.first_offset, row.end_offset, row.received_us, row.until_us))
    except struct.error:  # a number that no row was written with
        return False


def is_row_sealed(row: Row) -> bool:
    """Whether all small columns are what was written: the numbers, and the topics with their own checksum."""
    try:
        check_seal(row.topics)
    except DamagedBlockError:
        return False
    return are_numbers_sealed(row)


class Columns(msgspec.Struct, frozen=True, gc=False):
    """Where everything stands in a block whose checksum is right. `..._at` counts bytes from the block's begin."""

    first_offset: int
    end_offset: int
    batches: int
    messages: int
    topics: int
    publishers: int
    names_bytes: int
    extensions_bytes: int
    bodies_bytes: int
    has_deltas: bool
    # a column of u64, one for each batch
    published_at: int
    received_at: int
    sequence_at: int
    epoch_at: int
    # u32, one for each batch
    offset_delta_at: int
    count_at: int
    topic_at: int
    publisher_at: int
    batch_bytes_at: int
    extension_bytes_at: int
    # u32, one for each topic, then one for each publisher
    name_bytes_at: int
    # u32, one for each message
    length_at: int
    delta_at: int
    # u8, one for each batch
    flags_at: int
    # bytes
    names_at: int
    extensions_at: int
    bodies_at: int


def encode_blocks(entries: Sequence[Entry], first_offset: int, stamp: bytes = NO_STAMP) -> list[Row]:
    """Entries that follow one another without a hole, in as few blocks as BLOCK_BYTES allows."""
    offsets = list(accumulate([entry.count for entry in entries], initial=first_offset))
    # Names count for each batch although a block has each of them once: quick, and the bound holds.
    sizes = [_BATCH_BYTES + len(entry.rest) + len(entry.topic) + len(entry.publisher) for entry in entries]
    ends = list(accumulate(sizes, initial=0))
    blocks = []
    start = 0
    while start < len(entries):
        stop = max(start + 1, bisect_right(ends, ends[start] + BLOCK_BYTES, lo=start) - 1)
        blocks.append(_encode(offsets[start:stop], entries[start:stop], stamp))
        start = stop
    return blocks


def encode_block(rows: Sequence[tuple[int, Entry]], stamp: bytes = NO_STAMP) -> Row:
    """One block of entries whose offsets grow and may have holes."""
    if not rows:
        raise ValueError("a block has at least one batch")
    return _encode([offset for offset, _ in rows], [entry for _, entry in rows], stamp)


def _encode(offsets: Sequence[int], entries: Sequence[Entry], stamp: bytes) -> Row:
    first_offset = offsets[0]
    counts = [entry.count for entry in entries]
    end_offset = offsets[-1] + counts[-1]
    received_us = [entry.received_us for entry in entries]
    sequences = [entry.sequence for entry in entries]
    flags = bytes([entry.flags for entry in entries])
    shapes = set(flags)
    if any(flag & (HAS_SEQUENCE | HAS_ROUTE) for flag in shapes):
        raise ValueError("the flags of an entry say nothing of a sequence or a route")
    parts = split_rests(entries, shapes)
    if sequences.count(None) != len(sequences):
        has = [0 if sequence is None else HAS_SEQUENCE for sequence in sequences]
        flags = bytes([flag | more for flag, more in zip(flags, has, strict=True)])

    topic_names = [entry.topic for entry in entries]
    topics = _numbered(topic_names)
    batch_topics = [topics[name] for name in topic_names]
    publisher_names = [entry.publisher for entry in entries]
    publishers = _numbered(publisher_names)
    topic_lengths, topics_utf8 = _utf8(topics)
    publisher_lengths, publishers_utf8 = _utf8(publishers)
    topic_messages, topic_bytes = _shares(len(topics), batch_topics, counts, parts.batch_bytes)

    head = _HEAD.pack(
        MAGIC,
        stamp,
        first_offset,
        end_offset,
        len(entries),
        sum(counts),
        len(topics),
        len(publishers),
        len(topics_utf8) + len(publishers_utf8),
        len(parts.extensions),
        parts.bodies_bytes,
        0 if parts.deltas is None else _HAS_DELTA_COLUMN,
    )
    columns = (
        head,
        wide([entry.published_us for entry in entries]),
        wide(received_us),
        wide([sequence or 0 for sequence in sequences]),
        wide([entry.epoch for entry in entries]),
        narrow([offset - first_offset for offset in offsets]),
        narrow(counts),
        narrow(batch_topics),
        narrow([publishers[name] for name in publisher_names]),
        narrow(parts.batch_bytes),
        narrow(parts.extension_bytes),
        narrow(topic_lengths),
        narrow(publisher_lengths),
        parts.lengths,
        parts.deltas or b"",
        flags,
        topics_utf8,
        publishers_utf8,
        parts.extensions,
    )
    body = join_sealed((b"".join(columns), *parts.bodies))
    shares = pack_topics(topic_lengths, topics_utf8, topic_messages, topic_bytes)
    return make_row(first_offset, end_offset, received_us[0], received_us[-1], shares, body)


def _numbered(names: Sequence[str]) -> dict[str, int]:
    """Each once, in the order in which they come."""
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _utf8(names: dict[str, int]) -> tuple[list[int], bytes]:
    encoded = [name.encode() for name in names]
    return list(map(len, encoded)), b"".join(encoded)


def _shares(
    topics: int, batch_topics: Sequence[int], counts: Sequence[int], batch_bytes: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]]:
    """Messages and payload bytes of each topic."""
    if topics == 1:
        return [sum(counts)], [sum(batch_bytes)]
    if topics == len(counts):
        return counts, batch_bytes
    messages = [0] * topics
    payload_bytes = [0] * topics
    for topic, count, size in zip(batch_topics, counts, batch_bytes, strict=True):
        messages[topic] += count
        payload_bytes[topic] += size
    return messages, payload_bytes


def open_block(body: bytes) -> Columns:
    """Where its columns are, once its checksum was right and they fill it; else it raises DamagedBlockError."""
    columns, end = _columns(body)
    if end + CHECK.size != len(body):
        raise DamagedBlockError("its sections do not fill it")
    check_seal(body)
    return columns


def claimed_bytes(head: bytes) -> int:
    """How long a block is by its first HEAD_BYTES alone, which may lie; 0 if no block begins like this."""
    try:
        return _columns(head)[1] + CHECK.size
    except DamagedBlockError:
        return 0


def _columns(body: bytes) -> tuple[Columns, int]:
    """By the numbers of its head, and where the last section ends."""
    if len(body) < _HEAD.size or not body.startswith(MAGIC):
        raise DamagedBlockError("this is no block")
    _, _, first, end, batches, messages, topics, publishers, names, extensions, bodies, flags = _HEAD.unpack_from(body)
    has_deltas = flags == _HAS_DELTA_COLUMN
    if flags and not has_deltas:
        raise DamagedBlockError("it has sections that are not known here")
    sizes = (
        *(8 * batches,) * 4,
        *(4 * batches,) * 6,
        4 * (topics + publishers),
        4 * messages,
        4 * messages if has_deltas else 0,
        batches,
        names,
        extensions,
        bodies,
    )
    *places, stop = accumulate(sizes, initial=_HEAD.size)
    return (
        Columns(first, end, batches, messages, topics, publishers, names, extensions, bodies, has_deltas, *places),
        stop,
    )


def stamp_of(body: bytes) -> bytes:
    """That of a block, which is one."""
    return body[len(MAGIC) : len(MAGIC) + STAMP_BYTES]


def row_of(body: bytes) -> Row:
    """The row of a block, from the block alone."""
    try:
        return encode_block(decode_block(body), stamp_of(body))
    except (ValueError, struct.error):
        raise DamagedBlockError("its batches are not made up as they say") from None


def decode_block(body: bytes) -> list[tuple[int, Entry]]:
    """The entries with their offsets, as they were; DamagedBlockError if that cannot be."""
    at = open_block(body)
    batches = at.batches
    lengths = read_narrow(body, at.name_bytes_at, at.topics + at.publishers)
    names = cut_names(body[at.names_at : at.extensions_at], lengths)
    topics, publishers = names[: at.topics], names[at.topics :]
    flags = body[at.flags_at : at.names_at]
    counts = read_narrow(body, at.count_at, batches)
    batch_bytes = read_narrow(body, at.batch_bytes_at, batches)
    extension_bytes = read_narrow(body, at.extension_bytes_at, batches)
    sums = (sum(counts), sum(batch_bytes), sum(extension_bytes))
    if not batches or sums != (at.messages, at.bodies_bytes, at.extensions_bytes):
        raise DamagedBlockError("its batches do not fill its sections")
    delta_at = at.delta_at if at.has_deltas else None
    places = (at.length_at, delta_at, at.extensions_at, at.bodies_at)
    rests = join_rests(Packed(body, *places, flags, counts, batch_bytes, extension_bytes))
    sequences: Sequence[int | None] = read_wide(body, at.sequence_at, batches)
    sequences = [number if flag & HAS_SEQUENCE else None for number, flag in zip(sequences, flags, strict=True)]
    try:
        columns = zip(
            [topics[number] for number in read_narrow(body, at.topic_at, batches)],
            [publishers[number] for number in read_narrow(body, at.publisher_at, batches)],
            flags,
            read_wide(body, at.published_at, batches),
            read_wide(body, at.received_at, batches),
            sequences,
            read_wide(body, at.epoch_at, batches),
            counts,
            rests,
            strict=True,
        )
    except IndexError:
        raise DamagedBlockError("a batch has a topic or a publisher that is not there") from None
    entries = [
        Entry(
            topic=topic,
            publisher=publisher,
            flags=flag & ~HAS_SEQUENCE,
            published_us=published_us,
            received_us=received_us,
            sequence=sequence,
            epoch=epoch,
            count=count,
            rest=rest,
        )
        for topic, publisher, flag, published_us, received_us, sequence, epoch, count, rest in columns
    ]
    offsets = [at.first_offset + delta for delta in read_narrow(body, at.offset_delta_at, batches)]
    if offsets[0] != at.first_offset or offsets[-1] + counts[-1] != at.end_offset:
        raise DamagedBlockError("its batches do not stand where it does")
    return list(zip(offsets, entries, strict=True))
