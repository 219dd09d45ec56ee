"""Staged rows become batches, and invalid rows are refused."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.archive import logs

from godwit.archive import staged_rows
from godwit.archive.requests import BadRequestError, StageRequest
from godwit.archive.staged_rows import BATCH_BYTES, StageWriter, check_schema, staged_entries
from godwit.archive.stages import Stages
from godwit.archive.tokens import TokenRightsError
from godwit.broker.access import TokenRights
from godwit.limits import MAX_BATCH_MESSAGES, MAX_MESSAGE_BYTES
from godwit.server.archive_pipe import split_blocks
from godwit.store.block import decode_block, encode_blocks
from godwit.wire.batch import Entry

ROWS = pa.schema(
    [
        ("topic", pa.string()),
        ("payload", pa.binary()),
        ("published", pa.timestamp("us", "UTC")),
        ("qos", pa.int8()),
        ("retained", pa.bool_()),
    ]
)
NEEDED = [ROWS.field("topic"), ROWS.field("payload")]

some_rows = st.lists(
    st.fixed_dictionaries(
        {
            "topic": st.sampled_from(["a", "a/b", "größe"]),
            "payload": st.binary(max_size=9),
            "published": st.integers(0, 2**34) | st.integers(0, 253_402_300_799_999_999),
            "qos": st.sampled_from([1, 2]),
            "retained": st.booleans(),
        }
    ),
    max_size=30,
)


def batch_of(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"topic": ["a"], "payload": [b"x"]} | columns)


@given(some_rows, st.integers(0, 3))
def test_rows_come_out_of_the_batches_as_they_went_in(rows: list[dict[str, Any]], skipped: int) -> None:
    table = pa.RecordBatch.from_pylist(rows, schema=ROWS).slice(skipped)
    entries = staged_entries([table], "me", logs.NOW_US)
    pairs = [pair for row in encode_blocks(entries, 0) for pair in decode_block(row.body)]
    found: dict[Any, list[Any]] = {}
    expected: dict[Any, list[Any]] = {}
    for row in logs.rows_of(pairs):
        assert (row["publisher"], row["received"]) == ("me", logs.EPOCH)
        key = (row["topic"], row["qos"], row["retained"])
        found.setdefault(key, []).append((row["published"], row["payload"]))
    for row in table.to_pylist():
        key = (row["topic"], row["qos"], row["retained"])
        expected.setdefault(key, []).append((row["published"], row["payload"]))
    assert found == expected  # the order within each topic, QoS and flag too


def test_topic_and_payload_are_enough() -> None:
    (entry,) = staged_entries([batch_of(topic=["a", "a"], payload=["x", "yz"])], "me", logs.NOW_US)
    (first, second) = logs.rows_of([(0, entry)])
    assert (first["payload"], second["payload"]) == (b"x", b"yz")
    assert (first["qos"], first["retained"], entry.published_us) == (1, False, logs.NOW_US)
    assert staged_entries([batch_of().slice(0, 0)], "me", 0) == []


def test_other_types_that_mean_the_same_are_taken() -> None:
    rows = batch_of(
        topic=pa.array(["a"], pa.large_string()),
        payload=pa.array([b"x"], pa.large_binary()),
        published=pa.array([datetime(2024, 1, 1, tzinfo=UTC)], pa.timestamp("ns", "Europe/Berlin")),
        qos=pa.array([2], pa.int32()),
    )
    check_schema(rows.schema)
    (entry,) = staged_entries([rows], "me", logs.NOW_US)
    assert logs.rows_of([(0, entry)])[0]["published"] == datetime(2024, 1, 1, tzinfo=UTC)
    assert entry.flags >> 6 == 2


def test_batches_are_cut_as_publishers_cut_them() -> None:
    rows = batch_of(topic=["a"] * 3000, payload=[b"x" * 100] * 3000)
    entries = staged_entries([rows], "me", logs.NOW_US)
    assert sum(entry.count for entry in entries) == 3000
    assert all(BATCH_BYTES / 2 < len(entry.rest) <= BATCH_BYTES + 208 for entry in entries[:-1])
    empty = batch_of(topic=["a"] * 70_000, payload=[b""] * 70_000)
    assert all(entry.count <= MAX_BATCH_MESSAGES for entry in staged_entries([empty], "me", logs.NOW_US))


def test_times_far_apart_are_in_different_batches() -> None:
    rows = batch_of(
        topic=["a"] * 3, payload=[b"x"] * 3, published=pa.array([5, 2**33, 2**33 + 7], pa.timestamp("us", "UTC"))
    )
    entries = staged_entries([rows], "me", logs.NOW_US)
    assert [(entry.published_us, entry.count) for entry in entries] == [(5, 1), (2**33, 2)]


def test_times_that_go_up_and_down_share_a_batch_as_far_as_deltas_reach() -> None:
    edge_us = 2**50  # on both sides of any power of two
    times = [edge_us - 1, edge_us + 1] * 500 + [edge_us - 1 + 2**32, edge_us + 2**32] * 500
    rows = batch_of(topic=["a"] * 2000, payload=[b"x"] * 2000, published=pa.array(times, pa.timestamp("us", "UTC")))
    entries = staged_entries([rows], "me", logs.NOW_US)
    assert [(entry.published_us, entry.count) for entry in entries] == [
        (edge_us - 1, 1000),
        (edge_us + 2**32 - 1, 1000),
    ]


def test_rows_of_several_pieces_share_batches_and_are_numbered_through() -> None:
    pieces = [batch_of(topic=["a", "b"], payload=[b"1", b"2"])] * 50
    assert [entry.count for entry in staged_entries(pieces, "me", logs.NOW_US)] == [50, 50]
    bad = batch_of(topic=["a", None], payload=[b"1", b"2"])
    with pytest.raises(BadRequestError, match="topic is null in row 1101"):
        staged_entries([*pieces, bad], "me", logs.NOW_US, 1000)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"topic": [None]}, "topic is null in row 0"),
        ({"payload": [None]}, "payload is null in row 0"),
        ({"topic": ["a/+"]}, "wildcards are for subscriptions"),
        ({"topic": [""]}, "is empty"),
        ({"topic": ["$sys/x"]}, "as only the broker's own do"),
        ({"qos": [0]}, "qos is 0 in row 0"),
        ({"qos": [3]}, "qos is 3 in row 0"),
        ({"qos": [300]}, "qos cannot be made int8 of int64"),
        ({"qos": pa.array([None], pa.int8())}, "qos is null in row 0"),
        ({"published": pa.array([-1], pa.timestamp("us", "UTC"))}, "published is -1 microseconds"),
        ({"published": pa.array([2**62], pa.timestamp("us", "UTC"))}, "between 1970 and 9999"),
        ({"payload": [b"x" * (MAX_MESSAGE_BYTES + 1)]}, f"at most {MAX_MESSAGE_BYTES} are allowed"),
    ],
)
def test_rows_that_cannot_be_are_told(columns: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadRequestError, match=complaint):
        staged_entries([batch_of(**columns)], "me", logs.NOW_US)


def test_arrays_that_lie_about_their_lengths_are_refused() -> None:
    """Offsets beyond the data would read other memory."""
    offsets = pa.py_buffer(struct.pack("<3i", 0, 10_000_000, 1))
    payload = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"x")])
    with pytest.raises(BadRequestError, match="not valid Arrow data"):
        staged_entries([pa.RecordBatch.from_arrays([pa.array(["a", "a"]), payload], ["topic", "payload"])], "me", 0)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ([("topic", pa.string())], "no column payload"),
        ([("payload", pa.string())], "no column topic"),
        ([*ROWS, ("key", pa.string())], "a column 'key': only topic, payload"),
        ([*ROWS, ("topic", pa.string())], "topic twice"),
        ([("topic", pa.int64()), ("payload", pa.string())], "topic is int64: it must be string"),
        ([("topic", pa.string()), ("payload", pa.float64())], "payload is double: it must be binary"),
        ([*NEEDED, ("published", pa.timestamp("us"))], r"must be timestamp\[us, tz=UTC\]"),
        ([*NEEDED, ("qos", pa.string())], "qos is string: it must be int8"),
        ([*NEEDED, ("retained", pa.int8())], "retained is int8: it must be bool"),
        # A few bytes of these become as many as they like.
        ([NEEDED[0], ("payload", pa.dictionary(pa.int8(), pa.binary()))], "without a dictionary or views"),
        ([("topic", pa.dictionary(pa.int8(), pa.string())), NEEDED[1]], "without a dictionary or views"),
        ([NEEDED[0], ("payload", pa.binary_view())], "without a dictionary or views"),
        ([("topic", pa.string_view()), NEEDED[1]], "without a dictionary or views"),
        ([*NEEDED, ("published", pa.dictionary(pa.int8(), pa.timestamp("us", "UTC")))], "without a dictionary"),
    ],
)
def test_schemas_that_cannot_be(fields: list[Any], complaint: str) -> None:
    with pytest.raises(BadRequestError, match=complaint):
        check_schema(pa.schema(fields))
    check_schema(ROWS)


RIGHTS = TokenRights(publish=("a",))


def staged(folder: Path, *pieces: pa.RecordBatch) -> list[Entry]:
    with Stages(folder).begin(StageRequest("q", 1, 0, 0, "p")) as stage:
        made = StageWriter(stage, "p", RIGHTS)
        for piece in pieces:
            made.add(piece)
        made.finish()
    (file,) = folder.iterdir()
    pairs = [pair for body in split_blocks(file.read_bytes()) for pair in decode_block(body)]
    assert made.count == sum(entry.count for _, entry in pairs)
    assert [offset for offset, _ in pairs] == sorted({offset for offset, _ in pairs})
    return [entry for _, entry in pairs]


def payloads(entries: list[Entry]) -> list[bytes]:
    return [row["payload"] for row in logs.rows_of([(0, entry) for entry in entries])]


def rows(start: int, stop: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"topic": ["a"] * (stop - start), "payload": [b"%d" % number for number in range(start, stop)]}
    )


def test_pieces_are_gathered(tmp_path: Path) -> None:
    entries = staged(tmp_path, *[rows(start, start + 3) for start in range(0, 300, 3)])
    assert [entry.count for entry in entries] == [300]
    assert payloads(entries) == [b"%d" % number for number in range(300)]


@pytest.mark.parametrize(("most_rows", "most_bytes"), [(7, 10**9), (10**9, 100), (1, 1)])
def test_only_so_much_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_rows: int, most_bytes: int) -> None:
    monkeypatch.setattr(staged_rows, "GATHERED_ROWS", most_rows)
    monkeypatch.setattr(staged_rows, "GATHERED_BYTES", most_bytes)
    entries = staged(tmp_path, rows(0, 5), rows(5, 10), rows(10, 40), rows(40, 41), rows(41, 41))
    assert payloads(entries) == [b"%d" % number for number in range(41)]
    assert max(entry.count for entry in entries) <= most_rows


def test_topics_that_the_token_does_not_allow(tmp_path: Path) -> None:
    with pytest.raises(TokenRightsError, match="may not publish to 'b': it may publish to 'a'"):
        staged(tmp_path, rows(0, 5), pa.RecordBatch.from_pydict({"topic": ["b"], "payload": [b""]}))
    assert not list(tmp_path.iterdir())


def test_batches_of_a_stage_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_rows, "MAX_COMMIT_BATCHES", 3)
    monkeypatch.setattr(staged_rows, "GATHERED_ROWS", 10)
    assert len(staged(tmp_path, rows(0, 30))) == 3
    with pytest.raises(BadRequestError, match="more than 3 batches"):
        staged(tmp_path, rows(0, 31))
