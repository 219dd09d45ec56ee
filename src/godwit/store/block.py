"""Encode and decode blocks: the batches of one commit, stored as columns. One block is one row of the table `blocks`.

Format of a block. Integers are big-endian, except for the checksum, which is little-endian like that of a packet.

    header        magic "GWB1" | log secret, 8 bytes | first offset u64 | end offset u64 | batches u32 | messages u32 |
                  topics u32 | publishers u32 | bytes of names u32 | bytes of extensions u32 | bytes of bodies u64 |
                  flags u32 (1: the block has a column of time deltas)
    per batch     published u64 | received u64 | sequence u64 | epoch u64
    per batch     offset - first offset u32 | messages u32 | topic u32 | publisher u32 | bytes of bodies u32 |
                  bytes of extension u32
    per name      bytes u32: first all topics, then all publishers
    per message   length u32 | [microseconds after the publish time of its batch u32]
    per batch     flags u8
    bytes         names | extensions | bodies
    checksum      CRC-32C of all preceding bytes, u32

Each field is a column: its values for all batches, then the next field. Wide columns come first, so that every column
is aligned. The flags of a batch are those of the wire format (godwit.wire.batch), including the one for a sequence.
Offsets may have holes, because retention removes batches from the middle of a block.

The log secret is 8 random bytes that only readers of the file know (godwit.store.state). The checksum proves that a
block is intact; the secret proves that the log's own writer wrote it, and not a publisher that put the bytes of a block
into a message. Blocks outside a log (staged files) have zeros there.

A reader can use any column, and all bodies, without touching single messages. Decoding returns every batch byte for
byte as it was encoded.

Format of a topic index, the column `topics` beside each block, which lets a reader skip blocks by topic:

    topics u32 | bytes of names u32 | payload bytes of each u64 | messages of each u32 | name length of each u32 |
    names, UTF-8 | CRC-32C u32, little-endian
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import or_
from typing import Final

import msgspec
from crc32c import crc32c

from godwit.limits import MIB
from godwit.wire.batch import HAS_SEQUENCE, HEAD_FLAGS, Entry, StoredColumns, join_rests, split_entries

BLOCK_BYTES: Final = 1 * MIB
"""A commit is split into blocks of at most this size. A longer batch makes a longer block."""

MAGIC: Final = b"GWB1"
SECRET_BYTES: Final = 8
NO_SECRET: Final = bytes(SECRET_BYTES)
"""In blocks outside a log, as in staged files."""

_HEAD: Final = struct.Struct(">4s8sQQIIIIIIQI")
HEAD_BYTES: Final = _HEAD.size
_INDEX_HEAD: Final = struct.Struct(">II")
_INDEX_ENTRY_BYTES: Final = 8 + 4 + 4
_ROW_NUMBERS: Final = struct.Struct(">QQQQ")
_CHECKSUM: Final = struct.Struct("<I")
_HAS_DELTA_COLUMN: Final = 1
_BATCH_BYTES: Final = 4 * 8 + 6 * 4 + 1 + 4 + (8 + 2 * 4) + 4
"""Size of a batch without its body and names: its columns, one length, and those of a topic and a publisher."""


class DamagedBlockError(Exception):
    """The bytes are not a block, or not the block that was written. The store reports it as a range of offsets."""


class BlockRow(msgspec.Struct, frozen=True, gc=False):
    """A row of the table `blocks`: a block, and columns that tell whether it is of interest without opening it."""

    first_offset: int
    end_offset: int
    """The offset after its last message."""
    received_us: int
    """Receive time of its first batch."""
    until_us: int
    """Receive time of its last batch."""
    checksum: int
    """Of the four numbers above; see make_row."""
    topics: bytes
    """The topic index; see decode_topic_index."""
    body: bytes


def make_row(
    first_offset: int, end_offset: int, received_us: int, until_us: int, topics: bytes, body: bytes
) -> BlockRow:
    """Return a row with its checksum, which keeps a flipped bit in the small columns from hiding a block."""
    checksum = crc32c(_ROW_NUMBERS.pack(first_offset, end_offset, received_us, until_us))
    return BlockRow(first_offset, end_offset, received_us, until_us, checksum, topics, body)


def has_valid_numbers(row: BlockRow) -> bool:
    """Return whether the numbers of a row match its checksum."""
    try:
        return row.checksum == crc32c(
            _ROW_NUMBERS.pack(row.first_offset, row.end_offset, row.received_us, row.until_us)
        )
    except struct.error:  # out of range, so it was not written by make_row
        return False


def is_row_valid(row: BlockRow) -> bool:
    """Return whether the numbers and the topic index of a row match their checksums."""
    try:
        verify_checksum(row.topics)
    except DamagedBlockError:
        return False
    return has_valid_numbers(row)


class BlockLayout(msgspec.Struct, frozen=True, gc=False):
    """The header of a block, and the positions of its columns (`..._at`, in bytes from the start of the block)."""

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
    # u64, one per batch
    published_at: int
    received_at: int
    sequence_at: int
    epoch_at: int
    # u32, one per batch
    offset_delta_at: int
    count_at: int
    topic_at: int
    publisher_at: int
    batch_bytes_at: int
    extension_bytes_at: int
    # u32, one per topic, then one per publisher
    name_bytes_at: int
    # u32, one per message
    length_at: int
    delta_at: int
    # u8, one per batch
    flags_at: int
    # bytes
    names_at: int
    extensions_at: int
    bodies_at: int


# -- encoding ---------------------------------------------------------------------------------------------------------


def encode_blocks(entries: Sequence[Entry], first_offset: int, secret: bytes = NO_SECRET) -> list[BlockRow]:
    """Return the blocks of entries with consecutive offsets, as few as BLOCK_BYTES allows.

    Raise ValueError if the body of an entry does not match its flags and count.
    """
    offsets = list(accumulate([entry.count for entry in entries], initial=first_offset))
    # Counts a name once per batch although a block stores it once: this is quick and never underestimates.
    sizes = [_BATCH_BYTES + len(entry.rest) + len(entry.topic) + len(entry.publisher) for entry in entries]
    ends = list(accumulate(sizes, initial=0))
    blocks = []
    start = 0
    while start < len(entries):
        stop = max(start + 1, bisect_right(ends, ends[start] + BLOCK_BYTES, lo=start) - 1)
        blocks.append(_encode(offsets[start:stop], entries[start:stop], secret))
        start = stop
    return blocks


def encode_block(rows: Sequence[tuple[int, Entry]], secret: bytes = NO_SECRET) -> BlockRow:
    """Return one block of entries with ascending offsets, which may have holes."""
    if not rows:
        raise ValueError("a block has at least one batch")
    return _encode([offset for offset, _ in rows], [entry for _, entry in rows], secret)


def _encode(offsets: Sequence[int], entries: Sequence[Entry], secret: bytes) -> BlockRow:
    first_offset = offsets[0]
    # A list comprehension for each column is the fastest way for a block of many batches.
    counts = [entry.count for entry in entries]
    end_offset = offsets[-1] + counts[-1]
    received_us = [entry.received_us for entry in entries]
    sequences = [entry.sequence for entry in entries]
    flags = bytes([entry.flags for entry in entries])
    distinct_flags = set(flags)
    for each in distinct_flags:
        if each & HEAD_FLAGS:
            raise ValueError("the flags of an entry must not include those for a sequence or a route")
    columns = split_entries(entries, distinct_flags)
    if sequences.count(None) != len(sequences):
        has = [0 if sequence is None else HAS_SEQUENCE for sequence in sequences]
        flags = bytes(map(or_, flags, has))

    topic_names = [entry.topic for entry in entries]
    topics = _numbered(topic_names)
    publisher_names = [entry.publisher for entry in entries]
    publishers = _numbered(publisher_names)
    batch_topics = list(map(topics.__getitem__, topic_names))
    topics_utf8 = list(map(str.encode, topics))
    publishers_utf8 = list(map(str.encode, publishers))
    topic_lengths = list(map(len, topics_utf8))
    names = b"".join(topics_utf8 + publishers_utf8)
    topic_messages, topic_bytes = _topic_totals(len(topics), batch_topics, counts, columns.body_bytes)

    head = _HEAD.pack(
        MAGIC,
        secret,
        first_offset,
        end_offset,
        len(entries),
        sum(counts),
        len(topics),
        len(publishers),
        len(names),
        len(columns.extensions),
        columns.bodies_bytes,
        0 if columns.deltas is None else _HAS_DELTA_COLUMN,
    )
    sections = (
        head,
        pack_u64(
            [
                *[entry.published_us for entry in entries],
                *received_us,
                *[sequence or 0 for sequence in sequences],
                *[entry.epoch for entry in entries],
            ]
        ),
        pack_u32(
            [
                *[offset - first_offset for offset in offsets],
                *counts,
                *batch_topics,
                *map(publishers.__getitem__, publisher_names),
                *columns.body_bytes,
                *columns.extension_bytes,
                *topic_lengths,
                *map(len, publishers_utf8),
            ]
        ),
        columns.lengths,
        columns.deltas or b"",
        flags,
        names,
        columns.extensions,
    )
    body = join_with_checksum((b"".join(sections), *columns.bodies))
    index = _pack_topic_index(topic_lengths, b"".join(topics_utf8), topic_messages, topic_bytes)
    return make_row(first_offset, end_offset, received_us[0], received_us[-1], index, body)


def _numbered(names: Sequence[str]) -> dict[str, int]:
    """Return each distinct name with its number, in the order of first use."""
    distinct = dict.fromkeys(names)
    return dict(zip(distinct, range(len(distinct)), strict=True))


def _topic_totals(
    topics: int, batch_topics: Sequence[int], counts: Sequence[int], batch_bytes: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]]:
    """Return messages and payload bytes of each topic."""
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


# -- decoding ---------------------------------------------------------------------------------------------------------


def open_block(body: bytes) -> BlockLayout:
    """Return the layout of a block. Raise DamagedBlockError if its checksum is wrong or its sections do not fill it."""
    layout, end = _read_layout(body)
    if end + _CHECKSUM.size != len(body):
        raise DamagedBlockError("its sections do not fill it")
    verify_checksum(body)
    return layout


def claimed_bytes(head: bytes) -> int:
    """Return the length of a block according to its first HEAD_BYTES, unverified; 0 if they are not a header."""
    try:
        return _read_layout(head)[1] + _CHECKSUM.size
    except DamagedBlockError:
        return 0


def _read_layout(body: bytes) -> tuple[BlockLayout, int]:
    """Return the layout that the header describes, and the end of the last section."""
    if len(body) < _HEAD.size or not body.startswith(MAGIC):
        raise DamagedBlockError("it does not begin with the header of a block")
    _, _, first, end, batches, messages, topics, publishers, names, extensions, bodies, flags = _HEAD.unpack_from(body)
    has_deltas = flags == _HAS_DELTA_COLUMN
    if flags and not has_deltas:
        raise DamagedBlockError("it has sections of an unknown kind")
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
    *positions, stop = accumulate(sizes, initial=_HEAD.size)
    return (
        BlockLayout(
            first, end, batches, messages, topics, publishers, names, extensions, bodies, has_deltas, *positions
        ),
        stop,
    )


def secret_of(body: bytes) -> bytes:
    """Return the log secret in the header of a block."""
    return body[len(MAGIC) : len(MAGIC) + SECRET_BYTES]


def row_of(body: bytes) -> BlockRow:
    """Return the row of a block, computed from the block alone. Raise DamagedBlockError if the block is damaged."""
    try:
        return encode_block(decode_block(body), secret_of(body))
    except (ValueError, struct.error):
        raise DamagedBlockError("its batches do not match their flags and counts") from None


def decode_block(body: bytes) -> list[tuple[int, Entry]]:
    """Return the entries of a block with their offsets. Raise DamagedBlockError if it is not what was written."""
    at = open_block(body)
    batches = at.batches
    lengths = read_u32(body, at.name_bytes_at, at.topics + at.publishers)
    names = decode_names(body[at.names_at : at.extensions_at], lengths)
    topics, publishers = names[: at.topics], names[at.topics :]
    flags = body[at.flags_at : at.names_at]
    counts = read_u32(body, at.count_at, batches)
    batch_bytes = read_u32(body, at.batch_bytes_at, batches)
    extension_bytes = read_u32(body, at.extension_bytes_at, batches)
    sums = (sum(counts), sum(batch_bytes), sum(extension_bytes))
    if not batches or sums != (at.messages, at.bodies_bytes, at.extensions_bytes):
        raise DamagedBlockError("its batches do not fill its sections")
    stored = StoredColumns(
        data=body,
        length_at=at.length_at,
        delta_at=at.delta_at if at.has_deltas else None,
        extensions_at=at.extensions_at,
        bodies_at=at.bodies_at,
        flags=flags,
        counts=counts,
        body_bytes=batch_bytes,
        extension_bytes=extension_bytes,
    )
    try:
        rests = join_rests(stored)
    except ValueError as error:
        raise DamagedBlockError(str(error)) from None
    sequences: Sequence[int | None] = read_u64(body, at.sequence_at, batches)
    sequences = [number if flag & HAS_SEQUENCE else None for number, flag in zip(sequences, flags, strict=True)]
    columns = zip(
        read_u32(body, at.topic_at, batches),
        read_u32(body, at.publisher_at, batches),
        flags,
        read_u64(body, at.published_at, batches),
        read_u64(body, at.received_at, batches),
        sequences,
        read_u64(body, at.epoch_at, batches),
        counts,
        rests,
        strict=True,
    )
    try:
        entries = [
            Entry(
                topic=topics[topic],
                publisher=publishers[publisher],
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
    except IndexError:
        raise DamagedBlockError("a batch refers to a topic or a publisher that is missing") from None
    offsets = [at.first_offset + delta for delta in read_u32(body, at.offset_delta_at, batches)]
    if offsets[0] != at.first_offset or offsets[-1] + counts[-1] != at.end_offset:
        raise DamagedBlockError("its batches do not have the offsets in its header")
    return list(zip(offsets, entries, strict=True))


# -- the topic index --------------------------------------------------------------------------------------------------


class TopicShare(msgspec.Struct, frozen=True, gc=False):
    """How much of a block belongs to a topic."""

    name: str
    messages: int
    payload_bytes: int


def encode_topic_index(shares: Sequence[TopicShare]) -> bytes:
    """Return the topic index with these shares."""
    names = [share.name.encode() for share in shares]
    messages = [share.messages for share in shares]
    payload_bytes = [share.payload_bytes for share in shares]
    return _pack_topic_index(list(map(len, names)), b"".join(names), messages, payload_bytes)


def _pack_topic_index(
    name_lengths: Sequence[int], names: bytes, messages: Sequence[int], payload_bytes: Sequence[int]
) -> bytes:
    head = _INDEX_HEAD.pack(len(name_lengths), len(names))
    return join_with_checksum((head, pack_u64(payload_bytes), pack_u32((*messages, *name_lengths)), names))


def decode_topic_index(data: bytes) -> list[TopicShare]:
    """Return the shares in a topic index. Raise DamagedBlockError if it is not what was written."""
    if len(data) < _INDEX_HEAD.size + _CHECKSUM.size:
        raise DamagedBlockError("cut short")
    verify_checksum(data)
    topics, names_bytes = _INDEX_HEAD.unpack_from(data)
    names_at = _INDEX_HEAD.size + topics * _INDEX_ENTRY_BYTES
    if names_at + names_bytes + _CHECKSUM.size != len(data):
        raise DamagedBlockError("its sections do not fill it")
    payload_bytes = read_u64(data, _INDEX_HEAD.size, topics)
    messages = read_u32(data, _INDEX_HEAD.size + 8 * topics, topics)
    lengths = read_u32(data, _INDEX_HEAD.size + 12 * topics, topics)
    names = decode_names(data[names_at : -_CHECKSUM.size], lengths)
    return list(map(TopicShare, names, messages, payload_bytes))


# -- columns of numbers and names -------------------------------------------------------------------------------------


def pack_u64(values: Sequence[int]) -> bytes:
    return struct.pack(f">{len(values)}Q", *values)


def pack_u32(values: Sequence[int]) -> bytes:
    return struct.pack(f">{len(values)}I", *values)


def read_u64(data: bytes, at: int, count: int) -> tuple[int, ...]:
    return struct.unpack_from(f">{count}Q", data, at)


def read_u32(data: bytes, at: int, count: int) -> tuple[int, ...]:
    return struct.unpack_from(f">{count}I", data, at)


def join_with_checksum(pieces: Sequence[bytes | memoryview]) -> bytes:
    """Return all pieces and their checksum, joined once: copying a long block again costs more than its checksum."""
    checksum = 0
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    return b"".join((*pieces, _CHECKSUM.pack(checksum)))


def verify_checksum(data: bytes) -> None:
    """Raise DamagedBlockError unless the checksum at the end of the data is right."""
    if len(data) < _CHECKSUM.size:
        raise DamagedBlockError("cut short")
    if _CHECKSUM.unpack_from(data, len(data) - _CHECKSUM.size)[0] != crc32c(memoryview(data)[: -_CHECKSUM.size]):
        raise DamagedBlockError("the checksum is wrong")


def decode_names(data: bytes, lengths: Sequence[int]) -> list[str]:
    """Return consecutive names in UTF-8. Raise DamagedBlockError if they are not valid or do not fill the data."""
    names = []
    at = 0
    try:
        for length in lengths:
            names.append(data[at : at + length].decode())
            at += length
    except UnicodeDecodeError:
        raise DamagedBlockError("a name is not valid UTF-8") from None
    if at != len(data):
        raise DamagedBlockError("the names do not fill their section")
    return names
