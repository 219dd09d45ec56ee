"""Blocks: what goes in comes out, and nothing else does."""

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
    NO_STAMP,
    DamagedBlockError,
    TopicShare,
    are_numbers_sealed,
    claimed_bytes,
    decode_block,
    decode_topics,
    encode_block,
    encode_blocks,
    encode_topics,
    is_row_sealed,
    make_row,
    open_block,
    row_of,
    stamp_of,
)
from godwit.wire.batch import HAS_ROUTE, HAS_SEQUENCE, Entry


def numbered(entries: list[Entry], first_offset: int = 0) -> list[tuple[int, Entry]]:
    offsets = accumulate((entry.count for entry in entries), initial=first_offset)
    return list(zip(offsets, entries, strict=False))


def resealed(data: bytes) -> bytes:
    """With a checksum that is right, as somebody with bad intentions would make it."""
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
    assert decode_topics(row.topics) == [TopicShare(name, counts[name], payload_bytes[name]) for name in counts]
    assert is_row_sealed(row)
    assert row_of(row.body) == row


def test_a_block_has_the_stamp_of_its_log() -> None:
    entries = [make_entry(bytes(BLOCK_BYTES)), make_entry(b"x")]
    rows = encode_blocks(entries, 5, b"12345678")
    assert len(rows) == 2
    for row, entry in zip(rows, entries, strict=True):
        assert stamp_of(row.body) == b"12345678"
        assert row_of(row.body) == row
        assert decode_block(row.body)[0][1] == entry
    assert stamp_of(encode_blocks(entries, 5)[0].body) == NO_STAMP


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
    with pytest.raises(ValueError, match="nothing of a sequence or a route"):
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
        decode_block(resealed(b"GWB1" + data + bytes(100)))


@given(LISTS, st.data())
def test_a_forged_block_gives_entries_or_is_damaged(entries: list[Entry], data: st.DataObject) -> None:
    """Its checksum is right, so somebody meant it: still nothing but DamagedBlockError comes of it."""
    forged = bytearray(encode_block(numbered(entries)).body)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(4, len(forged) - 5))
        forged[place] = data.draw(st.integers(0, 255))
    for read in (decode_block, open_block, row_of):
        with suppress(DamagedBlockError):
            read(resealed(bytes(forged)))


def test_forged_heads_do_not_make_it_work() -> None:
    """Numbers that claim much more than is there cost nothing."""
    for place in range(28, HEAD_BYTES, 4):
        forged = bytearray(SAMPLE.body)
        forged[place : place + 4] = b"\xff\xff\xff\xff"
        with pytest.raises(DamagedBlockError):
            decode_block(resealed(bytes(forged)))


# -- rows -------------------------------------------------------------------------------------------------------------


def test_a_row_whose_small_columns_changed_is_noticed() -> None:
    for field in ("first_offset", "end_offset", "received_us", "until_us", "seal"):
        changed = msgspec.structs.replace(SAMPLE, **{field: getattr(SAMPLE, field) ^ 1})
        assert not is_row_sealed(changed), field
    assert not is_row_sealed(msgspec.structs.replace(SAMPLE, topics=SAMPLE.topics[:-1] + b"?"))
    assert not is_row_sealed(msgspec.structs.replace(SAMPLE, end_offset=-1))
    assert is_row_sealed(make_row(5, 9, 1, 2, encode_topics([]), b""))
    assert not is_row_sealed(make_row(5, 9, 1, 2, b"", b""))
    assert are_numbers_sealed(make_row(5, 9, 1, 2, b"", b""))


def test_a_forged_block_whose_batches_are_misshapen_has_no_row() -> None:
    """The lengths of the messages are not those of the batch."""
    forged = bytearray(SAMPLE.body)
    forged[open_block(SAMPLE.body).length_at + 3] += 1
    with pytest.raises(DamagedBlockError, match="made up"):
        row_of(resealed(bytes(forged)))


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
