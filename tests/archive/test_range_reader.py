"""Ranges of the log as Arrow: rows, lost messages, sizes, and the threads that read."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.archive import logs
from tests.archive.logs import make_entry
from tests.archive.running import PATIENCE_S, archive_of, log_in

from godwit.archive import range_reader
from godwit.archive import range_reader as readers_module
from godwit.archive.range_reader import (
    FULL,
    LEAN,
    READERS,
    LostMessagesError,
    RangePiece,
    RangeReader,
    ReaderPool,
    ReplacedLogError,
    StreamSizes,
    gone_below,
    measure,
)
from godwit.archive.requests import MeasureRequest, ReadRequest
from godwit.errors import StorageError
from godwit.store.connection import transaction
from godwit.store.reader import LogReader
from godwit.store.sqlite import SqliteStore
from godwit.store.state import store_floor
from godwit.wire.batch import Entry
from godwit.wire.filters import matches
from godwit.wire.retention_floors import BROKER_WIDE

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


def read(reader: LogReader, sizes: StreamSizes = FULL, **request: Any) -> list[RangePiece]:
    made = RangeReader(ReadRequest(**request), reader)
    pieces = []
    while (piece := made.next_piece(reader, sizes)) is not None:
        pieces.append(piece)
    return pieces


def rows_in(pieces: list[RangePiece]) -> list[dict[str, Any]]:
    return logs.listed(*[piece.batch for piece in pieces])


def offsets_in(pieces: list[RangePiece]) -> list[int]:
    return [row["offset"] for row in rows_in(pieces)]


def lost_in(pieces: list[RangePiece]) -> list[tuple[int, int]]:
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
        store_floor(store.connection, pattern, below)


@pytest.mark.parametrize("seed", range(12))
def test_any_range_of_any_log(
    seed: int, store: SqliteStore, reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    print(f"seed {seed}")
    monkeypatch.setattr(range_reader, "CHUNK_BLOCKS", rng.choice([1, 2, 128]))
    sizes = StreamSizes(rng.choice([1, 500, 4 << 20]), rng.choice([1, 500, 8 << 20]))
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
        filters = rng.choice([(), ("#",), ("home/#",), ("noise", "$jobs/+"), ("unused",)])
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
    made = RangeReader(ReadRequest(), reader)
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
    monkeypatch.setattr(range_reader, "CHUNK_BLOCKS", 2)
    ten_blocks(store)
    made = RangeReader(ReadRequest(), reader)
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
    with pytest.raises(LostMessagesError, match="offsets 5 to 29 cannot be read: retention"):
        read(reader, start=5)
    pieces = read(reader, start=5, fail_on_data_loss=False)
    assert offsets_in(pieces) == list(range(30, 100))
    assert lost_in(pieces) == [(5, 30)]
    assert json.loads(pieces[0].metadata)["lost"] == [[5, 30]]
    assert offsets_in(read(reader, start=30)) == list(range(30, 100))
    assert offsets_in(read(reader, start=5, gaps_known_below=30)) == list(range(30, 100))
    with pytest.raises(LostMessagesError):
        read(reader, start=5, gaps_known_below=29)


def test_from_the_oldest_on_is_no_loss(store: SqliteStore, reader: LogReader) -> None:
    ten_blocks(store)
    delete(store, 30)
    store_floor(store.connection, "noise", 70)
    made = RangeReader(ReadRequest(), reader)
    assert (made.start, made.end, made.gaps_known_below) == (30, 100, 70)
    assert offsets_in(read(reader)) == list(range(30, 100))


def test_a_mark_counts_for_filters_that_it_concerns(store: SqliteStore, reader: LogReader) -> None:
    ten_blocks(store)
    store_floor(store.connection, "noise", 60)
    assert len(rows_in(read(reader, filters=("home/#",), start=0))) == 50
    for filters in ((), ("#",), ("noise",)):
        with pytest.raises(LostMessagesError, match="offsets 0 to 59"):
            read(reader, filters=filters, start=0)
    assert len(rows_in(read(reader, filters=("noise",), start=60))) == 20


def test_the_end_of_the_log_is_not_where_the_client_thinks(store: SqliteStore, reader: LogReader) -> None:
    ten_blocks(store)
    for start, end, lost in ((0, 101, (100, 101)), (150, None, (100, 151))):
        with pytest.raises(LostMessagesError, match=r"the log ends at 100; .* an older copy") as error:
            read(reader, start=start, end=end)
        assert error.value.lost == [lost]
    assert offsets_in(read(reader, start=90, end=2**62, fail_on_data_loss=False)) == list(range(90, 100))
    assert read(reader, start=150, fail_on_data_loss=False) == []


def test_what_is_deleted_while_it_is_read_is_told(
    store: SqliteStore, reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "CHUNK_BLOCKS", 1)
    ten_blocks(store)
    strict = RangeReader(ReadRequest(start=0), reader)
    lenient = RangeReader(ReadRequest(start=0, fail_on_data_loss=False), reader)
    assert [made.next_piece(reader) is not None for made in (strict, lenient)] == [True, True]
    delete(store, 40)
    with pytest.raises(LostMessagesError, match=r"offsets 10 to 39 .* while they were read"):
        strict.next_piece(reader)
    piece = lenient.next_piece(reader)
    assert piece is not None
    assert piece.lost == [(10, 40)]
    assert offsets_in([piece]) == list(range(40, 50))


def test_what_was_read_already_is_no_loss(
    store: SqliteStore, reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "CHUNK_BLOCKS", 3)
    ten_blocks(store)
    made = RangeReader(ReadRequest(start=0), reader)
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
    with pytest.raises(LostMessagesError, match=r"offsets 40 to 49 cannot be read: their block .* is damaged"):
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


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ((), 90),  # everything
        (("home/#",), 50),
        (("noise/#",), 90),
        (("noise/x", "home/a"), 90),
    ],
)
def test_marks_of_overlapping_rules_count(filters: tuple[str, ...], expected: int) -> None:
    marks = {BROKER_WIDE: 50, "noise/#": 90}
    assert gone_below(40, marks, filters) == expected


def test_nothing_is_there_below_the_first_offset() -> None:
    assert gone_below(70, {}, ("a",)) == 70
    assert gone_below(70, {"a": 60}, ("a",)) == 70
    assert gone_below(0, {}, ()) == 0


def test_the_error_is_for_people_and_for_programs() -> None:
    error = LostMessagesError([(0, 10), (20, 21), (30, 31), (40, 41)], "they were deleted")
    assert str(error) == (
        "messages at the offsets 0 to 9, 20 to 20, 30 to 30 and 1 more ranges cannot be read: they were deleted. "
        "To read what is there, ask again with fail_on_data_loss set to false"
    )
    assert json.loads(error.details) == {"kind": "data_loss", "lost": [[0, 10], [20, 21], [30, 31], [40, 41]]}


def test_an_older_copy_of_the_log_is_for_people_and_for_programs() -> None:
    error = ReplacedLogError(40, 70)
    assert str(error).startswith(
        "the log has other messages from offset 40 on than when the offsets up to 70 were read"
    )
    assert json.loads(error.details) == {"kind": "replaced", "same_below": 40}


BLOCKS = 10
OF_ONE = 100
"""Messages of either topic in a block."""


@pytest.fixture
def even_log(tmp_path: Path) -> LogReader:
    with log_in(tmp_path) as store:
        for _ in range(BLOCKS):
            store.append([make_entry("a", [b"x" * 10] * OF_ONE), make_entry("b", [b"y" * 30] * OF_ONE)])
    return LogReader.open(tmp_path / "log.sqlite")


def test_all_of_it_without_a_limit(even_log: LogReader) -> None:
    found = measure(MeasureRequest(0, 10_000), even_log)
    assert (found.offset, found.rows, found.bytes) == (2000, 2000, 40_000)


@pytest.mark.parametrize(("filters", "a_block"), [((), 200), (("a",), 100), (("a", "b"), 200)])
def test_rows_of_the_topics_that_are_wanted(even_log: LogReader, filters: tuple[str, ...], a_block: int) -> None:
    found = measure(MeasureRequest(0, 2000, filters, max_rows=5 * a_block), even_log)
    assert (found.offset, found.rows) == (1000, 5 * a_block)
    half = measure(MeasureRequest(0, 2000, filters, max_rows=a_block // 2), even_log)
    assert (half.offset, half.rows) == (100, a_block // 2)


def test_bytes_of_the_topics_that_are_wanted(even_log: LogReader) -> None:
    assert measure(MeasureRequest(200, 2000, ("b",), max_bytes=6000), even_log).offset == 600
    assert measure(MeasureRequest(0, 2000, max_bytes=4000), even_log).offset == 200


def test_a_limit_below_one_message_still_lets_a_reader_on(even_log: LogReader) -> None:
    assert measure(MeasureRequest(7, 2000, max_bytes=1), even_log).offset == 8


def test_topics_that_are_not_there_cost_nothing(even_log: LogReader) -> None:
    assert measure(MeasureRequest(0, 2000, ("c",), max_rows=1), even_log).offset == 2000


def test_nothing_beyond_the_end(even_log: LogReader) -> None:
    assert measure(MeasureRequest(2000, 2000, max_rows=1), even_log).offset == 2000


def test_over_flight(tmp_path: Path) -> None:
    with log_in(tmp_path) as store:
        store.append([make_entry(payloads=[b"12345"] * 10)])
        with archive_of(tmp_path) as (_, client):
            assert client.measure(0, 10, max_rows=4) == {"offset": 4, "rows": 4, "bytes": 20}


def test_each_thread_has_its_own_connection_and_keeps_it(tmp_path: Path) -> None:
    with log_in(tmp_path):
        readers = ReaderPool(tmp_path / "log.sqlite")
        together = threading.Barrier(READERS)

        def look(reader: LogReader) -> tuple[int, int]:
            together.wait(PATIENCE_S)  # so that no thread does two of them
            return threading.get_ident(), id(reader)

        first, second = (
            {future.result(PATIENCE_S) for future in [readers.start(look) for _ in range(READERS)]} for _ in range(2)
        )
        assert len({thread for thread, _ in first}) == len({reader for _, reader in first}) == READERS
        assert first == second
        readers.close()


def test_answers_and_errors_come_back(tmp_path: Path) -> None:
    with log_in(tmp_path) as store:
        readers = ReaderPool(tmp_path / "log.sqlite")
        assert readers.log_id == logs.LOG_ID
        assert readers.ask(LogReader.next_offset) == 0
        store.append([logs.make_entry()])
        assert readers.ask(LogReader.next_offset) == 1
        with pytest.raises(ZeroDivisionError):
            readers.ask(lambda reader: 1 // reader.first_offset())
        readers.close()


def test_a_log_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"log\.sqlite"):
        ReaderPool(tmp_path / "log.sqlite")


def test_a_job_waits_while_the_wal_is_long_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that are never all idle would keep the broker from taking it back."""
    with log_in(tmp_path) as store:
        readers = ReaderPool(tmp_path / "log.sqlite")
        store.append([logs.make_entry(payloads=[bytes(100_000)])])
        monkeypatch.setattr(readers_module, "LONG_WAL_BYTES", 50_000)
        monkeypatch.setattr(readers_module, "MAX_WAIT_S", PATIENCE_S)
        waiting = [readers.start(LogReader.next_offset) for _ in range(READERS)]
        with pytest.raises(TimeoutError):
            waiting[0].result(0.2)
        store.checkpoint(truncate=True)
        assert [job.result(PATIENCE_S) for job in waiting] == [1] * READERS
        store.append([logs.make_entry(payloads=[bytes(100_000)])])
        monkeypatch.setattr(readers_module, "MAX_WAIT_S", 0.05)
        assert readers.ask(LogReader.next_offset) == 2
        readers.close()
