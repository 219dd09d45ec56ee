"""Ranges of a real log, while it is written and trimmed, whole and damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.archive import logs
from tests.archive.running import log_in

from godwit.archive import reading
from godwit.archive.losses import DataLossError, ReplacedLogError
from godwit.archive.reading import FULL, LEAN, Piece, Reading, Sizes
from godwit.archive.requests import ReadRequest
from godwit.store.connection import transaction
from godwit.store.kept import set_mark
from godwit.store.reader import LogReader
from godwit.store.sqlite import SqliteStore
from godwit.wire.batch import Entry
from godwit.wire.filters import matches
from godwit.wire.marks import BROKER_WIDE

TOPICS = ["home/a", "home/b/c", "noise", "$jobs/x"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with log_in(tmp_path) as store:
        yield store


@pytest.fixture
def reader(store: SqliteStore) -> Iterator[LogReader]:
    reader = LogReader.open(store.path)
    yield reader
    reader.close()


def read(reader: LogReader, sizes: Sizes = FULL, **request: Any) -> list[Piece]:
    made = Reading(ReadRequest(**request), reader)
    pieces = []
    while (piece := made.next_piece(reader, sizes)) is not None:
        pieces.append(piece)
    return pieces


def rows_in(pieces: list[Piece]) -> list[dict[str, Any]]:
    return logs.listed(*[piece.batch for piece in pieces])


def offsets_in(pieces: list[Piece]) -> list[int]:
    return [row["offset"] for row in rows_in(pieces)]


def lost_in(pieces: list[Piece]) -> list[tuple[int, int]]:
    return [lost for piece in pieces for lost in piece.lost]


def ten_blocks(store: SqliteStore) -> list[tuple[int, Entry]]:
    """Of ten messages each, five on home/a and five on noise."""
    entries = []
    for number in range(10):
        payloads = [b"%d" % number] * 5
        batch = [logs.make_entry("home/a", payloads), logs.make_entry("noise", payloads)]
        offset = store.append(batch)
        entries += [(offset, batch[0]), (offset + 5, batch[1])]
    return entries


def delete(store: SqliteStore, below: int, pattern: str = BROKER_WIDE) -> None:
    """As retention does: blocks and the mark in one transaction."""
    with transaction(store.connection):
        store.connection.execute("DELETE FROM blocks WHERE end_offset <= ?", (below,))
        set_mark(store.connection, pattern, below)


@pytest.mark.parametrize("seed", range(12))
def test_any_range_of_any_log(
    seed: int, store: SqliteStore, reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    print(f"seed {seed}")
    monkeypatch.setattr(reading, "CHUNK_BLOCKS", rng.choice([1, 2, 128]))
    sizes = Sizes(rng.choice([1, 500, 4 << 20]), rng.choice([1, 500, 8 << 20]))
    entries: list[tuple[int, Entry]] = []
    for _ in range(rng.randrange(1, 30)):
        batch = [
            logs.make_entry(rng.choice(TOPICS), [rng.randbytes(rng.randrange(20)) for _ in range(rng.randrange(1, 9))])
            for _ in range(rng.randrange(1, 5))
        ]
        offset = store.append(batch)
        for entry in batch:
            entries.append((offset, entry))
            offset += entry.count
    expected = logs.rows_of(entries)
    for _ in range(20):
        start = rng.randrange(len(expected) + 1)
        end = rng.randrange(start, len(expected) + 1)
        filters = rng.choice([(), ("#",), ("home/#",), ("noise", "$jobs/+"), ("nobody",)])
        pieces = read(reader, sizes, filters=filters, start=start, end=end)
        wanted = [row for row in expected[start:end] if not filters or any(matches(f, row["topic"]) for f in filters)]
        assert rows_in(pieces) == wanted
        assert not lost_in(pieces)
        reached = [piece.next_offset for piece in pieces]
        assert reached == sorted(reached)
        assert all(start < offset <= end for offset in reached)
        for piece in pieces:
            assert json.loads(piece.metadata) == {"next": piece.next_offset}


def test_the_end_is_that_of_the_moment_when_it_was_asked(store: SqliteStore, reader: LogReader) -> None:
    ten_blocks(store)
    made = Reading(ReadRequest(), reader)
    ten_blocks(store)
    pieces = []
    while (piece := made.next_piece(reader)) is not None:
        pieces.append(piece)
    assert offsets_in(pieces) == list(range(100))


def test_an_empty_log(reader: LogReader) -> None:
    assert read(reader) == []


def test_nothing_is_open_between_two_pieces(
    store: SqliteStore, reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the WAL could not be emptied while a client is slow."""
    monkeypatch.setattr(reading, "CHUNK_BLOCKS", 2)
    ten_blocks(store)
    made = Reading(ReadRequest(), reader)
    count = 0
    while (piece := made.next_piece(reader)) is not None:
        count += piece.batch.num_rows
        store.append([logs.make_entry()])
        assert store.wal_bytes > 0
        store.checkpoint(truncate=True)
        assert store.wal_bytes == 0
    assert count == 100


def test_lean_streams_take_less_at_once(store: SqliteStore, reader: LogReader) -> None:
    for _ in range(6):
        store.append([logs.make_entry(payloads=[bytes(50_000)] * 12)])
    for sizes in (LEAN, FULL):
        found = [piece.batch.get_total_buffer_size() for piece in read(reader, sizes)]
        assert sizes.piece_bytes / 4 < max(found) <= sizes.piece_bytes
        assert sum(found) >= 6 * 600_000


# -- what is gone -----------------------------------------------------------------------------------------------------


def test_below_the_beginning(store: SqliteStore, reader: LogReader) -> None:
    ten_blocks(store)
    delete(store, 30)
    with pytest.raises(DataLossError, match="offsets 5 to 29 cannot be read: retention"):
        read(reader, start=5)
    pieces = read(reader, start=5, fail_on_data_loss=False)
    assert offsets_in(pieces) == list(range(30, 100))
    assert lost_in(pieces) == [(5, 30)]
    assert json.loads(pieces[0].metadata)["lost"] == [[5, 30]]
    assert offsets_in(read(reader, start=30)) == list(range(30, 100))
    assert offsets_in(read(reader, start=5, gaps_known_below=30)) == list(range(30, 100))
    with pytest.raises(DataLossError):
        read(reader, start=5, gaps_known_below=29)


def test_from_the_oldest_on_is_no_loss(store: SqliteStore, reader: LogReader) -> None:
    ten_blocks(store)
    delete(store, 30)
    set_mark(store.connection, "noise", 70)
    made = Reading(ReadRequest(), reader)
    assert (made.start, made.end, made.gaps_known_below) == (30, 100, 70)
    assert offsets_in(read(reader)) == list(range(30, 100))


def test_a_mark_counts_for_filters_that_it_concerns(store: SqliteStore, reader: LogReader) -> None:
    ten_blocks(store)
    set_mark(store.connection, "noise", 60)
    assert len(rows_in(read(reader, filters=("home/#",), start=0))) == 50
    for filters in ((), ("#",), ("noise",)):
        with pytest.raises(DataLossError, match="offsets 0 to 59"):
            read(reader, filters=filters, start=0)
    assert len(rows_in(read(reader, filters=("noise",), start=60))) == 20


def test_the_end_of_the_log_is_not_where_the_client_thinks(store: SqliteStore, reader: LogReader) -> None:
    ten_blocks(store)
    for start, end, lost in ((0, 101, (100, 101)), (150, None, (100, 151))):
        with pytest.raises(DataLossError, match=r"the log ends at 100; .* an older copy") as error:
            read(reader, start=start, end=end)
        assert error.value.lost == [lost]
    assert offsets_in(read(reader, start=90, end=2**62, fail_on_data_loss=False)) == list(range(90, 100))
    assert read(reader, start=150, fail_on_data_loss=False) == []


def test_what_is_deleted_while_it_is_read_is_told(
    store: SqliteStore, reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_BLOCKS", 1)
    ten_blocks(store)
    strict = Reading(ReadRequest(start=0), reader)
    lenient = Reading(ReadRequest(start=0, fail_on_data_loss=False), reader)
    assert [made.next_piece(reader) is not None for made in (strict, lenient)] == [True, True]
    delete(store, 40)
    with pytest.raises(DataLossError, match=r"offsets 10 to 39 .* while they were read"):
        strict.next_piece(reader)
    piece = lenient.next_piece(reader)
    assert piece is not None
    assert piece.lost == [(10, 40)]
    assert offsets_in([piece]) == list(range(40, 50))


def test_what_was_read_already_is_no_loss(
    store: SqliteStore, reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_BLOCKS", 3)
    ten_blocks(store)
    made = Reading(ReadRequest(start=0), reader)
    first = made.next_piece(reader)
    assert first is not None
    delete(store, 30)
    pieces = [first]
    while (piece := made.next_piece(reader)) is not None:
        pieces.append(piece)
    assert offsets_in(pieces) == list(range(100))


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE blocks SET body = zeroblob(length(body)) WHERE first_offset = 40",
        "UPDATE blocks SET body = CAST(substr(body, 1, length(body) - 4) || x'99887766' AS BLOB) WHERE first_offset=40",
        "UPDATE blocks SET body = x'' WHERE first_offset = 40",
        "UPDATE blocks SET body = (SELECT body FROM blocks WHERE first_offset = 50) WHERE first_offset = 40",
        "DELETE FROM blocks WHERE first_offset = 40",
    ],
)
def test_a_damaged_block_is_told_and_never_given(store: SqliteStore, reader: LogReader, damage: str) -> None:
    ten_blocks(store)
    store.connection.execute(damage)
    with pytest.raises(DataLossError, match=r"offsets 40 to 49 cannot be read: their block .* is damaged"):
        read(reader, start=0)
    pieces = read(reader, start=0, fail_on_data_loss=False)
    assert offsets_in(pieces) == [*range(40), *range(50, 100)]
    assert lost_in(pieces) == [(40, 50)]
    assert lost_in(read(reader, start=43, end=47, fail_on_data_loss=False)) == [(43, 47)]
    assert offsets_in(read(reader, start=50)) == list(range(50, 100))


def test_a_range_of_another_history_is_refused(store: SqliteStore, reader: LogReader) -> None:
    ten_blocks(store)
    (ours,) = [(row.id.hex(), row.first_offset) for row in reader.epochs()]
    other = ("0011223344556677", 60)
    assert offsets_in(read(reader, start=90, end=95, epochs=(ours,))) == list(range(90, 95))
    assert offsets_in(read(reader, start=50, end=60, epochs=(ours, other))) == list(range(50, 60))
    for fails in (True, False):
        with pytest.raises(ReplacedLogError) as error:
            read(reader, start=50, end=61, epochs=(ours, other), fail_on_data_loss=fails)
        assert error.value.same_below == 60
