"""Blocks: encoding and decoding are inverse, and damaged or malformed data is refused."""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from itertools import accumulate

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from tests.store.entries import LISTS, make_entry

from godwit.store import block as block_module
from godwit.store.block import (
    BLOCK_BYTES,
    HEAD_BYTES,
    NO_SECRET,
    DamagedBlockError,
    TopicShare,
    claimed_bytes,
    decode_block,
    decode_names,
    decode_topic_index,
    encode_block,
    encode_blocks,
    encode_topic_index,
    has_valid_numbers,
    is_row_valid,
    join_with_checksum,
    make_row,
    open_block,
    pack_u32,
    pack_u64,
    read_u32,
    read_u64,
    row_of,
    secret_of,
    verify_checksum,
)
from godwit.wire.batch import HAS_DELTAS, HAS_EXTENSION, HAS_ROUTE, HAS_SEQUENCE, LONE, Entry


def numbered(entries: list[Entry], first_offset: int = 0) -> list[tuple[int, Entry]]:
    offsets = accumulate((entry.count for entry in entries), initial=first_offset)
    return list(zip(offsets, entries, strict=False))


def with_new_checksum(data: bytes) -> bytes:
    """Return the block with a correct checksum, as an attacker would forge it."""
    return data[:-4] + struct.pack("<I", crc32c(data[:-4]))


# -- there and back ---------------------------------------------------------------------------------------------------


@given(LISTS, st.integers(0, 2**40), st.lists(st.integers(0, 1000), min_size=8, max_size=8))
def test_entries_come_out_as_they_went_in(entries: list[Entry], first_offset: int, holes: list[int]) -> None:
    ends = accumulate((hole + entry.count for hole, entry in zip(holes, entries, strict=False)), initial=first_offset)
    rows = [(end + hole, entry) for end, hole, entry in zip(ends, holes, entries, strict=False)]
    row = encode_block(rows)
    assert decode_block(row.body) == rows
    assert (row.first_offset, row.end_offset) == (rows[0][0], rows[-1][0] + entries[-1].count)
    assert (row.received_us, row.until_us) == (entries[0].received_us, entries[-1].received_us)


@given(LISTS)
def test_a_row_tells_what_each_topic_has_in_it(entries: list[Entry]) -> None:
    row = encode_block(numbered(entries))
    counts: dict[str, int] = {}
    payload_bytes: dict[str, int] = {}
    for entry in entries:
        at = open_block(encode_block([(0, entry)]).body)
        counts[entry.topic] = counts.get(entry.topic, 0) + entry.count
        payload_bytes[entry.topic] = payload_bytes.get(entry.topic, 0) + at.bodies_bytes
    assert decode_topic_index(row.topics) == [TopicShare(name, counts[name], payload_bytes[name]) for name in counts]
    assert is_row_valid(row)
    assert row_of(row.body) == row


def test_a_block_has_the_stamp_of_its_log() -> None:
    entries = [make_entry(bytes(BLOCK_BYTES)), make_entry(b"x")]
    rows = encode_blocks(entries, 5, b"12345678")
    assert len(rows) == 2
    for row, entry in zip(rows, entries, strict=True):
        assert secret_of(row.body) == b"12345678"
        assert row_of(row.body) == row
        assert decode_block(row.body)[0][1] == entry
    assert secret_of(encode_blocks(entries, 5)[0].body) == NO_SECRET


@given(LISTS)
def test_the_columns_are_where_they_are_said_to_be(entries: list[Entry]) -> None:
    body = encode_block(numbered(entries, 7)).body
    at = open_block(body)
    assert (at.first_offset, at.batches, at.messages) == (7, len(entries), sum(entry.count for entry in entries))
    n = at.batches
    assert struct.unpack_from(f">{n}Q", body, at.published_at) == tuple(entry.published_us for entry in entries)
    assert struct.unpack_from(f">{n}Q", body, at.received_at) == tuple(entry.received_us for entry in entries)
    assert struct.unpack_from(f">{n}Q", body, at.sequence_at) == tuple(entry.sequence or 0 for entry in entries)
    assert struct.unpack_from(f">{n}Q", body, at.epoch_at) == tuple(entry.epoch for entry in entries)
    assert struct.unpack_from(f">{n}I", body, at.count_at) == tuple(entry.count for entry in entries)
    lengths = struct.unpack_from(f">{at.messages}I", body, at.length_at)
    assert sum(lengths) == at.bodies_bytes == len(body) - 4 - at.bodies_at
    names = list(dict.fromkeys(entry.topic for entry in entries))
    publishers = list(dict.fromkeys(entry.publisher for entry in entries))
    assert (at.topics, at.publishers) == (len(names), len(publishers))
    sizes = struct.unpack_from(f">{at.topics + at.publishers}I", body, at.name_bytes_at)
    assert list(sizes) == [len(name.encode()) for name in names + publishers]
    assert body[at.names_at : at.names_at + at.names_bytes] == "".join(names + publishers).encode()
    assert [names[number] for number in struct.unpack_from(f">{n}I", body, at.topic_at)] == [
        entry.topic for entry in entries
    ]
    assert body[at.flags_at : at.flags_at + n] == bytes(
        entry.flags | (0 if entry.sequence is None else HAS_SEQUENCE) for entry in entries
    )


def test_wide_columns_are_aligned() -> None:
    at = open_block(encode_block(numbered([make_entry(b"1", b"22"), make_entry(topic="c")])).body)
    assert all(place % 8 == 0 for place in (at.published_at, at.epoch_at))
    assert all(place % 4 == 0 for place in (at.offset_delta_at, at.extension_bytes_at, at.name_bytes_at, at.length_at))


def test_times_between_messages_are_a_column_when_a_batch_has_them() -> None:
    body = encode_block(numbered([make_entry(b"a", b"b", deltas_us=(5, 6)), make_entry(b"c")])).body
    at = open_block(body)
    assert at.has_deltas
    assert struct.unpack_from(">3I", body, at.delta_at) == (5, 6, 0)
    assert not open_block(encode_block(numbered([make_entry(b"a", b"b")])).body).has_deltas


# -- cutting ----------------------------------------------------------------------------------------------------------


def test_a_commit_is_cut_into_blocks_of_a_megabyte() -> None:
    entries = [make_entry(bytes(60_000), topic=f"t/{number}") for number in range(40)]
    rows = encode_blocks(entries, 100)
    assert [pair for row in rows for pair in decode_block(row.body)] == numbered(entries, 100)
    assert [row.first_offset for row in rows[1:]] == [row.end_offset for row in rows[:-1]]
    assert all(BLOCK_BYTES - 62_000 < len(row.body) <= BLOCK_BYTES for row in rows[:-1])
    assert rows[-1].end_offset == 140


def test_a_longer_batch_makes_a_longer_block() -> None:
    entries = [make_entry(b"1"), make_entry(bytes(3 * BLOCK_BYTES)), make_entry(b"2"), make_entry(b"3")]
    rows = encode_blocks(entries, 0)
    assert [(row.first_offset, row.end_offset) for row in rows] == [(0, 1), (1, 2), (2, 4)]


def test_names_count_too() -> None:
    entries = [make_entry(b"x", topic=f"{number:1000}", publisher=f"{number:250}") for number in range(3000)]
    rows = encode_blocks(entries, 0)
    assert max(len(row.body) for row in rows) <= BLOCK_BYTES
    assert sum(len(row.body) for row in rows) > 3 * BLOCK_BYTES


def test_nothing_makes_no_block() -> None:
    assert encode_blocks([], 5) == []
    with pytest.raises(ValueError, match="at least one batch"):
        encode_block([])


@pytest.mark.parametrize("flag", [HAS_SEQUENCE, HAS_ROUTE])
def test_flags_of_another_head_are_refused(flag: int) -> None:
    entry = msgspec.structs.replace(make_entry(), flags=make_entry().flags | flag)
    with pytest.raises(ValueError, match="must not include those for a sequence or a route"):
        encode_block([(0, entry)])


# -- damage -----------------------------------------------------------------------------------------------------------

SAMPLE = encode_block(
    numbered(
        [make_entry(b"one", b"two", deltas_us=(1, 2), extension=b"ext"), make_entry(b"three", topic="c", sequence=4)]
    )
)


def test_every_flipped_bit_is_noticed() -> None:
    for place in range(len(SAMPLE.body)):
        for bit in range(8):
            damaged = bytearray(SAMPLE.body)
            damaged[place] ^= 1 << bit
            with pytest.raises(DamagedBlockError):
                open_block(bytes(damaged))


def test_every_cut_is_noticed() -> None:
    for length in range(len(SAMPLE.body)):
        with pytest.raises(DamagedBlockError):
            decode_block(SAMPLE.body[:length])
    with pytest.raises(DamagedBlockError):
        decode_block(SAMPLE.body + b"\0")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_block_or_damaged(data: bytes) -> None:
    with pytest.raises(DamagedBlockError):
        decode_block(data)
    with pytest.raises(DamagedBlockError):
        decode_block(with_new_checksum(b"GWB1" + data + bytes(100)))


@given(LISTS, st.data())
def test_a_forged_block_gives_entries_or_is_damaged(entries: list[Entry], data: st.DataObject) -> None:
    """An attacker can make the checksum correct: decoding still raises nothing but DamagedBlockError."""
    forged = bytearray(encode_block(numbered(entries)).body)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(4, len(forged) - 5))
        forged[place] = data.draw(st.integers(0, 255))
    for read in (decode_block, open_block, row_of):
        with suppress(DamagedBlockError):
            read(with_new_checksum(bytes(forged)))


def test_forged_heads_do_not_make_it_work() -> None:
    """Numbers that claim much more than is there cost nothing."""
    for place in range(28, HEAD_BYTES, 4):
        forged = bytearray(SAMPLE.body)
        forged[place : place + 4] = b"\xff\xff\xff\xff"
        with pytest.raises(DamagedBlockError):
            decode_block(with_new_checksum(bytes(forged)))


# -- rows -------------------------------------------------------------------------------------------------------------


def test_a_row_whose_small_columns_changed_is_noticed() -> None:
    for field in ("first_offset", "end_offset", "received_us", "until_us", "checksum"):
        changed = msgspec.structs.replace(SAMPLE, **{field: getattr(SAMPLE, field) ^ 1})
        assert not is_row_valid(changed), field
    assert not is_row_valid(msgspec.structs.replace(SAMPLE, topics=SAMPLE.topics[:-1] + b"?"))
    assert not is_row_valid(msgspec.structs.replace(SAMPLE, end_offset=-1))
    assert is_row_valid(make_row(5, 9, 1, 2, encode_topic_index([]), b""))
    assert not is_row_valid(make_row(5, 9, 1, 2, b"", b""))
    assert has_valid_numbers(make_row(5, 9, 1, 2, b"", b""))


def test_a_forged_block_whose_batches_are_misshapen_has_no_row() -> None:
    """The lengths of the messages are not those of the batch."""
    forged = bytearray(SAMPLE.body)
    forged[open_block(SAMPLE.body).length_at + 3] += 1
    with pytest.raises(DamagedBlockError, match="do not match their flags"):
        row_of(with_new_checksum(bytes(forged)))


def test_a_head_tells_how_long_the_block_is() -> None:
    assert claimed_bytes(SAMPLE.body[:HEAD_BYTES]) == len(SAMPLE.body)
    assert claimed_bytes(SAMPLE.body[: HEAD_BYTES - 1]) == 0
    assert claimed_bytes(b"GWB2" + SAMPLE.body[4:HEAD_BYTES]) == 0


def test_a_long_block_of_many_kinds_comes_out_as_it_went_in() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    entries = [
        make_entry(
            *(rng.randbytes(rng.randrange(50)) for _ in range(rng.choice([1, 1, 1, 30]))),
            topic=f"t/{rng.randrange(40)}",
            publisher=f"p{rng.randrange(900)}",
            sequence=rng.choice([None, rng.randrange(2**40)]),
        )
        for _ in range(1000)
    ]
    rows = encode_blocks(entries, 0)
    assert [pair for row in rows for pair in decode_block(row.body)] == numbered(entries)


def test_the_head_is_as_long_as_the_docstring_says() -> None:
    assert HEAD_BYTES == 64
    assert "GWB1" in (block_module.__doc__ or "")


@given(st.lists(st.integers(0, 2**32 - 1)), st.binary(max_size=9))
def test_columns_come_back(values: list[int], before: bytes) -> None:
    assert read_u32(before + pack_u32(values), len(before), len(values)) == tuple(values)
    assert read_u64(before + pack_u64(values), len(before), len(values)) == tuple(values)


@given(st.lists(st.binary(max_size=40)))
def test_the_checksum_is_that_of_the_whole(pieces: list[bytes]) -> None:
    data = join_with_checksum(pieces)
    assert data[:-4] == b"".join(pieces)
    assert data == join_with_checksum([memoryview(b"".join(pieces))])
    verify_checksum(data)
    with pytest.raises(DamagedBlockError, match="checksum"):
        verify_checksum(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DamagedBlockError):
        verify_checksum(data[:3])


@given(st.lists(st.text(st.characters(codec="utf-8"))))
def test_names_are_cut_apart(names: list[str]) -> None:
    encoded = [name.encode() for name in names]
    assert decode_names(b"".join(encoded), list(map(len, encoded))) == names


@pytest.mark.parametrize(("data", "lengths"), [(b"abc", [2]), (b"abc", [2, 2]), (b"\xff", [1]), ("ä".encode(), [1, 1])])
def test_invalid_names(data: bytes, lengths: list[int]) -> None:
    with pytest.raises(DamagedBlockError):
        decode_names(data, lengths)


FULL = make_entry(b"one", b"three", is_joinable=True)
WITH_ALL = make_entry(b"one", b"three", deltas_us=(1, 2), extension=b"more")
LONE_WITH_EXTENSION = make_entry(b"one", extension=b"more")


def split(*entries: Entry) -> None:
    encode_blocks(entries, 0)


def changed(entry: Entry, **fields: object) -> Entry:
    return msgspec.structs.replace(entry, **fields)


@pytest.mark.parametrize(
    "entry",
    [
        changed(make_entry(b"x"), count=2),
        changed(FULL, count=1),
        changed(FULL, count=3),
        changed(FULL, rest=FULL.rest[:-1]),
        changed(FULL, rest=FULL.rest + b"!"),
        changed(FULL, rest=b""),
        changed(FULL, rest=FULL.rest[:6]),
        changed(FULL, flags=FULL.flags | HAS_DELTAS),
        changed(FULL, flags=FULL.flags | HAS_EXTENSION),
        changed(FULL, rest=struct.pack(">III", 2, 3, 6) + b"onethree"),
        changed(WITH_ALL, rest=WITH_ALL.rest[:9]),
        changed(WITH_ALL, flags=WITH_ALL.flags & ~HAS_DELTAS),
        changed(LONE_WITH_EXTENSION, rest=LONE_WITH_EXTENSION.rest[:5]),
        changed(LONE_WITH_EXTENSION, rest=b""),
        changed(LONE_WITH_EXTENSION, flags=LONE | HAS_DELTAS),
    ],
)
def test_a_batch_that_does_not_match_its_flags(entry: Entry) -> None:
    with pytest.raises(ValueError, match="'a/b' does not have the layout"):
        split(entry)
    with pytest.raises(ValueError, match="does not have the layout"):
        split(FULL, entry)


def test_whole_ones_are_taken() -> None:
    split(FULL, WITH_ALL, LONE_WITH_EXTENSION, make_entry(b""))


def test_deltas_that_a_block_does_not_have() -> None:
    body = bytearray(encode_block([(0, FULL)]).body)
    body[open_block(bytes(body)).flags_at] |= HAS_DELTAS
    with pytest.raises(DamagedBlockError, match="deltas"):
        decode_block(with_new_checksum(bytes(body)))


SHARES = st.builds(
    TopicShare, st.text(st.characters(codec="utf-8")), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
)


@given(st.lists(SHARES))
def test_shares_come_back(shares: list[TopicShare]) -> None:
    assert decode_topic_index(encode_topic_index(shares)) == shares


@given(st.lists(SHARES, max_size=3), st.data())
def test_other_bytes_are_damaged(shares: list[TopicShare], data: st.DataObject) -> None:
    encoded = bytearray(encode_topic_index(shares))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedBlockError):
        decode_topic_index(bytes(encoded))
    with suppress(DamagedBlockError):
        decode_topic_index(join_with_checksum([bytes(encoded[:-4])]))
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(DamagedBlockError):
        decode_topic_index(encode_topic_index(shares)[:cut])
