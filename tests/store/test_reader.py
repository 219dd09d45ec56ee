"""Reading a log past damage and beside its writer, and its epochs."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec
import pytest
from tests.store.entries import LOG_ID, make_entry
from tests.store.rights import ordinary_rights

from godwit.errors import DiskError, LogDamagedError, LogVersionError
from godwit.store import reader as reader_module
from godwit.store.block import (
    decode_block,
    decode_topic_index,
    encode_block,
    encode_blocks,
    encode_topic_index,
    make_row,
)
from godwit.store.connection import DamagedRowError
from godwit.store.port import Slice
from godwit.store.reader import MAX_DAMAGED, BlockScanner, BlockSlice, LogReader, TopicSelection
from godwit.store.schema import QUERIES
from godwit.store.sqlite import SqliteStore
from godwit.store.sqlite_pages import PAGE_BYTES
from godwit.store.state import store_floor
from godwit.wire.batch import Entry
from godwit.wire.changes import QueryRow, TopicRow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore.open(path, new_log_id=LOG_ID, now_us=7)
    yield opened
    opened.close()


@pytest.fixture
def reader(store: SqliteStore, path: Path) -> Iterator[LogReader]:
    opened = LogReader.open(path)
    yield opened
    opened.close()


def test_it_sees_what_is_committed_and_nothing_else(store: SqliteStore, reader: LogReader) -> None:
    assert (reader.log_id, reader.created_us, reader.first_offset(), reader.next_offset()) == (LOG_ID, 7, 0, 0)
    entries = [make_entry(b"1", received_us=10), make_entry(b"2", b"3", received_us=20)]
    store.append(entries, [TopicRow("a/b", 3), QueryRow("q", 4)])
    assert reader.next_offset() == 3
    assert reader.read(0, 10**6) == store.read(0, 10**6)
    assert reader.offset_at(15) == 1
    assert reader.topics() == [TopicRow("a/b", 3)]
    assert reader.queries() == {"q": 4}
    (row,) = reader.rows(0, 100, 10, 10**6).rows
    assert [entry for _, entry in decode_block(row.body)] == entries
    assert reader.spans(0, 100, 10).rows[0].end_offset == 3
    with store.transaction() as connection:
        store_floor(connection, "#", 3)
        connection.execute("DELETE FROM blocks")
        assert (reader.first_offset(), reader.retention_floors()) == (0, {})
    assert (reader.first_offset(), reader.next_offset(), reader.retention_floors()) == (3, 3, {"#": 3})


def test_a_snapshot_holds_for_several_questions(store: SqliteStore, reader: LogReader) -> None:
    store.append([make_entry(b"1")])
    with reader.snapshot():
        assert reader.next_offset() == 1
        store.append([make_entry(b"2")])
        assert (reader.next_offset(), len(reader.read(0, 10**6).entries)) == (1, 1)
        assert len(reader.rows(0, 100, 10, 10**6).rows) == 1
    assert reader.next_offset() == 2


def test_it_cannot_write(store: SqliteStore, reader: LogReader, path: Path) -> None:
    """Not even its close, which leaves the WAL to the one who writes."""
    store.append([make_entry(b"1")])
    wal_bytes = store.wal_bytes
    reader.close()
    assert store.wal_bytes == wal_bytes > 0


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=r"none.sqlite cannot be opened: the file or its folder is missing"):
        LogReader.open(tmp_path / "none.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_no_log(path: Path) -> None:
    path.touch()
    with pytest.raises(LogVersionError, match="is empty: a broker has not made it a log yet"):
        LogReader.open(path)


def test_a_log_whose_writer_has_closed_it(path: Path) -> None:
    store = SqliteStore.open(path, new_log_id=LOG_ID, now_us=7)
    store.append([make_entry(b"1")])
    store.close()
    reader = LogReader.open(path)
    assert reader.next_offset() == 1
    reader.close()


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that all users can enter, unlike tmp_path."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_log_in_a_folder_that_cannot_be_written(public_folder: Path) -> None:
    """A backup on a disk that is mounted read-only, or another user's."""
    path = public_folder / "log.sqlite"
    store = SqliteStore.open(path, new_log_id=LOG_ID, now_us=7)
    store.append([make_entry(b"1")])
    store.close()
    path.chmod(0o444)
    public_folder.chmod(0o555)
    with ordinary_rights():
        reader = LogReader.open(path)
        assert (reader.next_offset(), len(reader.read(0, 10**6).entries)) == (1, 1)
        reader.close()
    assert sorted(file.name for file in public_folder.iterdir()) == ["log.sqlite", "log.sqlite-witness"]


def test_damage_has_a_sentence(path: Path) -> None:
    path.write_bytes(b"no database" * 100)
    with pytest.raises(LogDamagedError, match="godwit log recover"):
        LogReader.open(path)


LENGTH = 10
"""Messages in each block here."""
ALL = 2**62


@pytest.fixture
def scanner(store: SqliteStore) -> BlockScanner:
    return BlockScanner(store.connection)


def fill(store: SqliteStore, blocks: int) -> None:
    for number in range(store.next_offset // LENGTH, store.next_offset // LENGTH + blocks):
        times = range(number * 100, number * 100 + LENGTH)
        store.append([make_entry(b"%d" % number, topic=f"t/{number % 3}", received_us=time_us) for time_us in times])


def offsets(found: Slice) -> list[int]:
    return [offset for offset, _ in found.entries]


def kept(*numbers: int) -> list[int]:
    """Offsets in these blocks."""
    return [offset for number in numbers for offset in range(number * LENGTH, (number + 1) * LENGTH)]


def change(store: SqliteStore, number: int, column: str, value: object) -> None:
    store.connection.execute(
        f"UPDATE blocks SET {column} = ? WHERE first_offset = ?",
        (value, number * LENGTH),
    )


# -- damaged blocks ---------------------------------------------------------------------------------------------------


def test_a_damaged_body_is_passed_over_and_told(store: SqliteStore, scanner: BlockScanner) -> None:
    fill(store, 5)
    change(store, 2, "body", b"GWB1 and then nothing")
    assert offsets(found := scanner.read(0, ALL)) == kept(0, 1, 3, 4)
    assert (found.damaged, found.next_offset) == ([(20, 30)], 50)
    found = scanner.read(25, ALL)
    assert (found.damaged, offsets(found)) == ([(25, 30)], kept(3, 4))
    assert scanner.read(30, ALL).damaged == []
    assert scanner.offset_at(205) == 20
    change(store, 4, "body", b"")
    assert scanner.read(40, ALL) == Slice([], 50, [(40, 50)])


def test_a_whole_block_in_the_wrong_place_is_damage(store: SqliteStore, scanner: BlockScanner) -> None:
    fill(store, 3)
    change(store, 1, "body", store.connection.execute("SELECT body FROM blocks WHERE first_offset = 0").get)
    found = scanner.read(0, ALL)
    assert (offsets(found), found.damaged) == (kept(0, 2), [(10, 20)])


@pytest.mark.parametrize(
    ("column", "value"),
    [("end_offset", 99), ("end_offset", -1), ("received_us", 0), ("until_us", ALL), ("seal", 1), ("topics", b"\xff")],
)
@pytest.mark.parametrize("number", [0, 2, 4])
def test_changed_small_columns_lose_nothing_while_the_body_is_whole(
    store: SqliteStore, scanner: BlockScanner, column: str, value: object, number: int
) -> None:
    fill(store, 5)
    change(store, number, column, value)
    assert scanner.read(0, ALL) == Slice(scanner.read(0, ALL).entries, 50, [])
    assert offsets(scanner.read(0, ALL)) == kept(0, 1, 2, 3, 4)
    rows = scanner.rows(0, ALL, 100, ALL, wanted=lambda topics: decode_topic_index(topics)[0].name == f"t/{number % 3}")
    assert number * LENGTH in [row.first_offset for row in rows.rows]
    assert rows.damaged == []
    assert scanner.offset_at(number * 100 + 5) == number * LENGTH + 5


def test_a_block_that_nobody_can_believe_is_told_of_by_its_neighbours(
    store: SqliteStore, scanner: BlockScanner
) -> None:
    fill(store, 5)
    store_floor(store.connection, "#", 1000)  # retention has been there: this one was not its doing
    change(store, 2, "end_offset", 10**9)
    change(store, 2, "body", b"?")
    found = scanner.read(0, ALL)
    assert (offsets(found), found.damaged) == (kept(0, 1, 3, 4), [(20, 30)])
    assert scanner.spans(0, ALL, 100).damaged == [(20, 30)]
    assert scanner.offset_at(205) == 30
    assert scanner.ends().next_offset == 50


def test_a_row_that_is_not_even_its_own_block(store: SqliteStore, scanner: BlockScanner) -> None:
    fill(store, 3)
    change(store, 1, "seal", 5)
    change(store, 1, "body", store.connection.execute("SELECT body FROM blocks WHERE first_offset = 0").get)
    found = scanner.read(0, ALL)
    assert (offsets(found), found.damaged) == (kept(0, 2), [(10, 20)])


def test_a_newest_block_that_nobody_can_believe(store: SqliteStore, scanner: BlockScanner) -> None:
    fill(store, 2)
    change(store, 1, "end_offset", 10**9)
    change(store, 1, "body", b"?")
    with pytest.raises(DamagedRowError, match="newest block"):
        scanner.ends()


def test_a_log_without_its_end_is_damaged(store: SqliteStore, scanner: BlockScanner) -> None:
    store.connection.execute("DELETE FROM meta WHERE key = 'end_offset'")
    with pytest.raises(DamagedRowError, match="meta"):
        scanner.ends()


def test_much_damage_is_told_in_pieces(store: SqliteStore, scanner: BlockScanner) -> None:
    fill(store, MAX_DAMAGED + 10)
    store.connection.execute("UPDATE blocks SET body = x'00' WHERE first_offset < ?", ((MAX_DAMAGED + 5) * LENGTH,))
    first = scanner.read(0, ALL)
    assert (first.entries, len(first.damaged), first.next_offset) == ([], MAX_DAMAGED, MAX_DAMAGED * LENGTH)
    second = scanner.read(first.next_offset, ALL)
    assert (len(second.entries), len(second.damaged)) == (5 * LENGTH, 5)


# -- missing blocks ---------------------------------------------------------------------------------------------------


def test_a_missing_block_is_damage_unless_retention_was_there(store: SqliteStore, scanner: BlockScanner) -> None:
    fill(store, 6)
    store.connection.execute("DELETE FROM blocks WHERE first_offset IN (10, 40)")
    found = scanner.read(0, ALL)
    assert (offsets(found), found.damaged, found.next_offset) == (kept(0, 2, 3, 5), [(10, 20), (40, 50)], 60)
    assert scanner.read(15, ALL).damaged == [(15, 20), (40, 50)]
    store_floor(store.connection, "t/#", 20)
    found = scanner.read(0, ALL)
    assert (offsets(found), found.damaged) == (kept(0, 2, 3, 5), [(40, 50)])
    store_floor(store.connection, "u/#", 45)
    assert scanner.read(0, ALL).damaged == [(45, 50)]


def test_what_is_missing_at_the_front_is_retentions(store: SqliteStore, scanner: BlockScanner) -> None:
    fill(store, 4)
    store.connection.execute("DELETE FROM blocks WHERE first_offset < 20")
    assert scanner.ends().first_offset == 20
    found = scanner.read(3, ALL)
    assert (offsets(found), found.damaged) == (kept(2, 3), [])


def test_missing_blocks_at_the_end_are_known_too(store: SqliteStore, scanner: BlockScanner) -> None:
    fill(store, 4)
    store.connection.execute("DELETE FROM blocks WHERE first_offset >= 20")
    assert scanner.ends().next_offset == 40
    assert scanner.read(0, ALL).damaged == [(20, 40)]
    assert scanner.read(0, ALL).next_offset == 40
    assert scanner.rows(0, 30, 100, ALL).damaged == [(20, 30)]
    store_floor(store.connection, "#", 40)
    assert scanner.read(0, ALL).damaged == []


def test_a_range_that_was_given_up_is_told_again_and_again(store: SqliteStore, scanner: BlockScanner) -> None:
    fill(store, 1)
    lost = make_row(10, 1000, 100, 100, encode_topic_index([]), b"")
    store.connection.execute(QUERIES["insert_block"], msgspec.structs.astuple(lost))
    for ask in (lambda: scanner.read(0, ALL), lambda: scanner.rows(0, ALL, 100, ALL), lambda: scanner.spans(0, ALL, 9)):
        assert (ask().damaged, ask().next_offset) == ([(10, 1000)], 1000)


def test_holes_within_a_block_are_nothing_special(store: SqliteStore, scanner: BlockScanner) -> None:
    fill(store, 2)
    entries = scanner.read(0, ALL).entries
    thinned = encode_block([entries[number] for number in (2, 3, 7)])
    store.connection.execute("DELETE FROM blocks WHERE first_offset = 0")
    store_floor(store.connection, "#", 10)
    store.connection.execute(QUERIES["insert_block"], msgspec.structs.astuple(thinned))
    assert scanner.read(0, ALL).entries == [entries[number] for number in (2, 3, 7, *range(10, 20))]
    assert offsets(scanner.read(4, 0)) == [7]
    assert offsets(scanner.read(8, 0)) == [10]
    assert scanner.offset_at(4) == 7
    assert scanner.read(0, ALL).damaged == []


def test_a_block_that_was_written_anew_is_read_anew(store: SqliteStore, scanner: BlockScanner) -> None:
    fill(store, 1)
    entries = scanner.read(0, ALL).entries
    row = encode_block(entries[:4])
    store.connection.execute("DELETE FROM blocks")
    store_floor(store.connection, "#", 10)
    store.connection.execute(QUERIES["insert_block"], msgspec.structs.astuple(row))
    assert scanner.read(0, ALL).entries == entries[:4]


# -- pages that SQLite cannot read ------------------------------------------------------------------------------------


@pytest.mark.parametrize("begin_of_noise", [b"", b"\x0d\0\0\0\x09", b"\x0d\0\0\x04\xac"])
def test_a_leaf_of_the_tree_that_is_gone(tmp_path: Path, begin_of_noise: bytes) -> None:
    """Blocks small enough to stand many on a page, and a page that is noise: its neighbours are all there.

    Noise that begins like a leaf may pass the checks of SQLite, and have keys that are behind all others.
    """
    path = tmp_path / "log.sqlite"
    store = SqliteStore.open(path, new_log_id=LOG_ID, now_us=1)
    fill(store, 400)
    store.close()
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    content = path.read_bytes()
    leaves = [
        page
        for page in range(len(content) // PAGE_BYTES)
        if content[page * PAGE_BYTES] == 13 and b"GWB1" in content[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]
    ]
    assert len(leaves) > 10
    for page in leaves[:-1]:
        noise = begin_of_noise + random.Random(seed + page).randbytes(PAGE_BYTES - len(begin_of_noise))
        path.write_bytes(content[: page * PAGE_BYTES] + noise + content[(page + 1) * PAGE_BYTES :])
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        found = BlockScanner(connection).read(0, ALL)
        begin, end = found.damaged[0][0], found.damaged[-1][1]
        assert len(found.entries) + sum(last - first for first, last in found.damaged) == 4000
        assert len(found.entries) > 3000
        assert BlockScanner(connection).rows(begin + 5, end - 5, 9, ALL) == BlockSlice(
            [], end - 5, [(begin + 5, end - 5)]
        )
        assert all(entry.rest == b"%d" % (offset // LENGTH) for offset, entry in found.entries)
        connection.close()


# -- rows -------------------------------------------------------------------------------------------------------------


def test_rows_in_chunks(store: SqliteStore, scanner: BlockScanner) -> None:
    fill(store, 7)
    found: list[tuple[int, int]] = []
    start = 15
    while start < 60:
        part = scanner.rows(start, 60, 2, ALL)
        assert len(part.rows) <= 2
        found += [(row.first_offset, row.end_offset) for row in part.rows]
        start = part.next_offset
    assert found == [(10, 20), (20, 30), (30, 40), (40, 50), (50, 60)]
    size = len(scanner.rows(0, 10, 1, ALL).rows[0].body)
    assert [len(scanner.rows(0, 70, 9, limit).rows) for limit in (0, size, 2 * size - 1, 2 * size, 3 * size)] == [
        1,
        1,
        1,
        2,
        3,
    ]
    assert scanner.rows(70, 100, 9, ALL).next_offset == 70
    assert scanner.rows(100, 200, 9, ALL).next_offset == 100
    assert scanner.rows(0, ALL, 100, ALL).next_offset == 70
    assert scanner.rows(15, 16, 9, ALL).next_offset == 16


def test_blocks_that_nobody_wants_are_not_read(
    store: SqliteStore, scanner: BlockScanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 9)
    read: list[int] = []
    body = BlockScanner._body

    def watched(self: BlockScanner, first_offset: int) -> bytes | None:
        read.append(first_offset)
        return body(self, first_offset)

    monkeypatch.setattr(BlockScanner, "_body", watched)
    rows = scanner.rows(0, ALL, 100, ALL, wanted=lambda topics: decode_topic_index(topics)[0].name == "t/1")
    assert [row.first_offset for row in rows.rows] == read == [10, 40, 70]
    assert rows.next_offset == 90
    spans = scanner.spans(0, ALL, 100)
    assert ([row.first_offset for row in spans.rows], read) == (list(range(0, 90, 10)), [10, 40, 70])
    assert {row.body for row in spans.rows} == {b""}
    monkeypatch.setattr(reader_module, "MAX_PASSED", 4)
    assert scanner.rows(0, ALL, 100, ALL, wanted=lambda topics: False).next_offset == 40


def test_spans_in_chunks(store: SqliteStore, scanner: BlockScanner) -> None:
    fill(store, 5)
    part = scanner.spans(5, 45, 3)
    assert ([row.first_offset for row in part.rows], part.next_offset) == ([0, 10, 20], 30)
    part = scanner.spans(30, 45, 3)
    assert ([row.first_offset for row in part.rows], part.next_offset) == ([30, 40], 45)


# -- in small pieces --------------------------------------------------------------------------------------------------


def test_a_long_block_is_opened_once_for_many_reads(
    store: SqliteStore, scanner: BlockScanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [make_entry(b"%d" % number) for number in range(500)]
    store.append(entries)
    opened = 0
    decode = decode_block

    def counted(body: bytes) -> list[tuple[int, Entry]]:
        nonlocal opened
        opened += 1
        return decode(body)

    monkeypatch.setattr(reader_module, "decode_block", counted)
    offset = 0
    found: list[Entry] = []
    while part := scanner.read(offset, 4000).entries:
        found += [entry for _, entry in part]
        offset = part[-1][0] + 1
    assert found == entries
    assert opened == 1


def test_nothing_stays_open_behind_a_read(store: SqliteStore, scanner: BlockScanner) -> None:
    fill(store, 5)
    scanner.read(0, 1)
    scanner.rows(0, 50, 1, 1)
    scanner.spans(0, 50, 1)
    scanner.offset_at(5)
    assert not store.connection.in_transaction
    store.checkpoint(truncate=True)
    assert store.wal_bytes == 0


# -- selecting topics -------------------------------------------------------------------------------------------------


def index_of(*topics: str) -> bytes:
    (row,) = encode_blocks([make_entry(topic=topic) for topic in topics], 0)
    return row.topics


def test_filters_and_topics() -> None:
    selection = TopicSelection(["home/+", "x"])
    assert selection.among(["home/a", "home/a/b", "x", "y"]) == [True, False, True, False]
    assert not selection.is_everything


def test_no_filter_is_everything_and_hash_is_not() -> None:
    assert TopicSelection([]).is_everything
    assert TopicSelection([]).has("$jobs/build")
    assert not TopicSelection(["#"]).has("$jobs/build")
    assert TopicSelection(["#"]).has("home")


def test_blocks_without_a_selected_topic_are_skipped() -> None:
    selection = TopicSelection(["home/#"])
    assert selection.concerns(index_of("a", "home/x"))
    assert not selection.concerns(index_of("a", "b"))
    assert TopicSelection([]).concerns(index_of("a"))


def test_a_damaged_or_empty_index_may_contain_any_topic() -> None:
    """Damaged blocks are read, so that they are reported."""
    selection = TopicSelection(["home/#"])
    assert selection.concerns(index_of("a")[:-1])
    assert selection.concerns(encode_topic_index([]))


def test_what_it_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "MAX_KNOWN_TOPICS", 3)
    selection = TopicSelection(["t/+"])
    for number in range(20):
        assert selection.has(f"t/{number}")
        assert not selection.has(f"u/{number}")
        assert len(selection._known) <= 3
