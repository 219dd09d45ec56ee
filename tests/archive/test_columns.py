"""Arrow from blocks, against the same messages decoded one by one."""

from __future__ import annotations

from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.archive import logs

from godwit.archive import columns
from godwit.archive.columns import (
    ALL_COLUMNS,
    LOG_ID,
    ROW_BYTES,
    SHORT_BYTES,
    MessageColumns,
    OpenBlock,
    schema_of,
)
from godwit.errors import LogDamagedError
from godwit.store.block import BlockRow, decode_block, encode_block, encode_blocks, open_block
from godwit.wire.batch import Entry
from godwit.wire.extension import add_origin

SCHEMA = schema_of(logs.LOG_ID)


def opened(*rows: BlockRow) -> list[OpenBlock]:
    return [OpenBlock(row.body, open_block(row.body)) for row in rows]


def whole(rows: MessageColumns) -> pa.RecordBatch:
    batch = rows.record_batch(SCHEMA, 0, len(rows))
    batch.validate(full=True)
    return batch


@given(logs.blocks(), st.sampled_from([0, 20, SHORT_BYTES]))
def test_the_same_as_message_by_message(
    found: list[tuple[BlockRow, list[tuple[int, Entry]]]], short_bytes: int
) -> None:
    with patch.object(columns, "SHORT_BYTES", short_bytes):
        check_blocks(found)


def check_blocks(found: list[tuple[BlockRow, list[tuple[int, Entry]]]]) -> None:
    rows = MessageColumns(opened(*[row for row, _ in found]))
    expected = [pair for row, _ in found for pair in decode_block(row.body)]
    assert expected == [pair for _, pairs in found for pair in pairs]
    assert whole(rows).to_pylist() == logs.rows_of(expected)


@given(logs.blocks(), st.data())
def test_any_run_of_rows_in_any_columns(
    found: list[tuple[BlockRow, list[tuple[int, Entry]]]], data: st.DataObject
) -> None:
    rows = MessageColumns(opened(*[row for row, _ in found]), with_extensions=True)
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    chosen = data.draw(st.lists(st.sampled_from(ALL_COLUMNS), min_size=1, unique=True))
    batch = rows.record_batch(schema_of(logs.LOG_ID, chosen), start, stop)
    batch.validate(full=True)
    expected = logs.rows_of([pair for _, pairs in found for pair in pairs], with_extensions=True)[start:stop]
    assert batch.to_pylist() == [{name: row[name] for name in chosen} for row in expected]


@given(logs.blocks(), st.sets(st.sampled_from(logs.TOPICS)))
def test_only_wanted_topics(found: list[tuple[BlockRow, list[tuple[int, Entry]]]], wanted: set[str]) -> None:
    rows = MessageColumns(opened(*[row for row, _ in found]), lambda names: [name in wanted for name in names])
    expected = logs.rows_of([pair for _, pairs in found for pair in pairs if pair[1].topic in wanted])
    assert whole(rows).to_pylist() == expected


@given(logs.blocks(), st.sets(st.sampled_from(logs.TOPICS)))
def test_extensions_of_wanted_topics(found: list[tuple[BlockRow, list[tuple[int, Entry]]]], wanted: set[str]) -> None:
    blocks = opened(*[row for row, _ in found])
    rows = MessageColumns(blocks, lambda names: [name in wanted for name in names], with_extensions=True)
    batch = rows.record_batch(schema_of(logs.LOG_ID, ALL_COLUMNS), 0, len(rows))
    batch.validate(full=True)
    pairs = [pair for _, pairs in found for pair in pairs if pair[1].topic in wanted]
    assert batch.to_pylist() == logs.rows_of(pairs, with_extensions=True)


def test_the_origin_of_messages_that_came_by_a_bridge() -> None:
    log = bytes(range(16))
    relayed = add_origin(b"", log, 1000)
    assert relayed is not None
    entries = [
        (0, logs.make_entry("t", [b"a", b"b", b"c"], extension=relayed)),
        (3, logs.make_entry("t", [b"d"])),
        (4, logs.make_entry("t", [b"e", b"f"], extension=relayed)),
    ]
    rows = MessageColumns(opened(encode_block(entries)), with_extensions=True)
    schema = schema_of(logs.LOG_ID, ["offset", "origin_log", "origin_offset"])
    expected = [(0, 1000), (1, 1001), (2, 1002), (3, None), (4, 1000), (5, 1001)]
    for start in range(6):
        for stop in range(start, 7):
            batch = rows.record_batch(schema, start, stop)
            batch.validate(full=True)
            found = [(row["offset"], row["origin_offset"]) for row in batch.to_pylist()]
            assert found == expected[start:stop]
            assert {row["origin_log"] for row in batch.to_pylist()} <= {None, log.hex()}


def test_long_extensions_make_small_pieces() -> None:
    """An extension is stored once for a batch, and repeated for each of its messages in Arrow."""
    entry = logs.make_entry("t", [b""] * 60_000, extension=bytes(4096))
    rows = MessageColumns(opened(encode_block([(0, entry)])), with_extensions=True)
    schema = schema_of(logs.LOG_ID, ["extension"])
    cuts = list(rows.cuts(0, len(rows), 8 * 1024 * 1024))
    assert len(cuts) > 28
    assert all(rows.record_batch(schema, *cut).nbytes <= 8 * 1024 * 1024 for cut in cuts[:3])


@given(logs.blocks(), st.data())
def test_offsets_and_rows(found: list[tuple[BlockRow, list[tuple[int, Entry]]]], data: st.DataObject) -> None:
    rows = MessageColumns(opened(*[row for row, _ in found]))
    offsets = [row["offset"] for row in logs.rows_of([pair for _, pairs in found for pair in pairs])]
    assert [rows.offset_of(row) for row in range(len(rows))] == offsets
    offset = data.draw(st.integers(max(offsets[0] - 2, 0), offsets[-1] + 2))
    assert rows.row_of(offset) == sum(other < offset for other in offsets)


@given(logs.blocks(), st.integers(1, 400), st.data())
def test_pieces_are_bounded_and_miss_nothing(
    found: list[tuple[BlockRow, list[tuple[int, Entry]]]], max_bytes: int, data: st.DataObject
) -> None:
    rows = MessageColumns(opened(*[row for row, _ in found]))
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    cuts = list(rows.cuts(start, stop, max_bytes))
    assert [row for first, until in cuts for row in range(first, until)] == list(range(start, stop))
    expected = logs.rows_of([pair for _, pairs in found for pair in pairs])
    for first, until in cuts:
        size_bytes = sum(
            ROW_BYTES + len(row["payload"]) + len(row["topic"].encode()) + len(row["publisher"].encode())
            for row in expected[first:until]
        )
        assert size_bytes <= max_bytes or until - first == 1


def test_long_names_make_small_pieces() -> None:
    """A publisher of empty messages under a long name makes little in the log and much in Arrow."""
    entry = logs.make_entry("t" * 1000, [b""] * 60_000)
    rows = MessageColumns(opened(encode_block([(0, entry)])))
    cuts = list(rows.cuts(0, len(rows), 8 * 1024 * 1024))
    assert len(cuts) > 6
    assert all(rows.record_batch(SCHEMA, *cut).nbytes <= 8 * 1024 * 1024 for cut in cuts)


def test_types_are_plain() -> None:
    assert SCHEMA.metadata == {LOG_ID: logs.LOG_ID.hex().encode()}
    assert str(SCHEMA.remove_metadata()).splitlines() == [
        "offset: int64",
        "topic: string",
        "publisher: string",
        "published: timestamp[us, tz=UTC]",
        "received: timestamp[us, tz=UTC]",
        "qos: int8",
        "retained: bool",
        "payload: binary",
    ]
    (row,) = encode_blocks([logs.make_entry()], 0)
    assert whole(MessageColumns(opened(row))).schema.equals(SCHEMA, check_metadata=True)


def test_a_lone_block_is_not_copied() -> None:
    (row,) = encode_blocks([logs.make_entry(payloads=[b"x" * 1000] * 100)], 0)
    payload = whole(MessageColumns(opened(row))).column("payload").buffers()[2]
    body = pa.py_buffer(row.body)
    assert body.address <= payload.address < body.address + body.size


def test_columns_that_do_not_fit_are_refused() -> None:
    """Numbers in a block are compared with each other, even when the checksum is right."""
    (row,) = encode_blocks([logs.make_entry(payloads=[b"a", b"b"])], 0)
    at = open_block(row.body)
    body = bytearray(row.body)
    body[at.count_at + 3] = 9
    with pytest.raises(LogDamagedError, match="from offset 0 on do not fit"):
        MessageColumns([OpenBlock(bytes(body), at)])
