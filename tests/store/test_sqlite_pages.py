"""Pages and tables of a SQLite file, read without SQLite."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.entries import LOG_ID, make_entry

from godwit.errors import DiskError
from godwit.store.sqlite import SqliteStore
from godwit.store.sqlite_pages import (
    FRAME_BYTES,
    PAGE_BYTES,
    WAL_HEAD_BYTES,
    BrokenPageError,
    PageFile,
    Tree,
    _header_checksum,
    _wal_checksum,
    leaf_cells,
    read_chain,
    record,
    varint,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore.open(tmp_path / "log.sqlite", new_log_id=LOG_ID, now_us=1)
    yield opened
    opened.close()


def append(store: SqliteStore, *sizes: int) -> None:
    rng = Random(len(sizes))
    for size in sizes:
        store.append([make_entry(rng.randbytes(size))])


def copied(store: SqliteStore) -> Path:
    """The files as they are, as after a kill."""
    folder = store.path.parent / "copy"
    folder.mkdir()
    for ending in ("", "-wal"):
        shutil.copy(f"{store.path}{ending}", folder / f"log.sqlite{ending}")
    return folder / "log.sqlite"


def seen_by_sqlite(path: Path) -> list[bytes]:
    """The pages once SQLite has taken what it takes from the write-ahead log."""
    connection = apsw.Connection(str(path))
    connection.pragma("schema_version")  # a connection that has read nothing knows of no write-ahead log
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()
    data = path.read_bytes()
    return [data[at : at + PAGE_BYTES] for at in range(0, len(data), PAGE_BYTES)]


def pages_of(path: Path, *, is_lenient: bool = False) -> list[bytes]:
    with PageFile(path, is_lenient=is_lenient) as file:
        pages = [file.page(number) for number in range(1, file.page_count + 1)]
        assert file.page(0) is None
        assert file.page(file.page_count + 1) is None
    return [page for page in pages if page is not None]


def test_a_log_has_the_size_of_page_that_is_believed(store: SqliteStore) -> None:
    assert store.connection.pragma("page_size") == PAGE_BYTES


def test_the_newest_of_each_page(store: SqliteStore) -> None:
    append(store, 100, 50_000)
    store.checkpoint(truncate=False)
    append(store, 200, 90_000)
    path = copied(store)
    assert pages_of(path) == pages_of(path, is_lenient=True)
    assert pages_of(path) == seen_by_sqlite(path)


def test_a_log_without_a_write_ahead_log(store: SqliteStore) -> None:
    append(store, 50_000)
    store.checkpoint(truncate=True)
    path = copied(store)
    Path(f"{path}-wal").unlink()
    assert pages_of(path) == seen_by_sqlite(path)


@pytest.mark.parametrize("place", [3, 10, 30, 40, 5 * FRAME_BYTES + 100, 9 * FRAME_BYTES + 3000])
def test_a_damage_ends_the_write_ahead_log_as_it_does_for_sqlite(store: SqliteStore, place: int) -> None:
    append(store, 100, 50_000, 300, 90_000)
    path = copied(store)
    wal = Path(f"{path}-wal")
    data = bytearray(wal.read_bytes())
    assert place < len(data)
    data[place] ^= 0x10
    wal.write_bytes(data)
    assert pages_of(path) == seen_by_sqlite(path)


def test_lenient_reading_continues_after_a_damage(store: SqliteStore) -> None:
    append(store, 100, 50_000, 300, 90_000)
    path = copied(store)
    whole = pages_of(path)
    wal = Path(f"{path}-wal")
    data = bytearray(wal.read_bytes())
    data[32 + 24 + 5000] ^= 0x10  # within the first page
    wal.write_bytes(data)
    with PageFile(path) as file, PageFile(path, is_lenient=True) as lenient:
        assert lenient.has_other_frames(file)
        assert file.page_count < lenient.page_count
    found = pages_of(path, is_lenient=True)
    assert sum(page != other for page, other in zip(found, whole, strict=True)) <= 1


def test_what_was_not_committed_does_not_count(store: SqliteStore) -> None:
    append(store, 100, 50_000)
    path = copied(store)
    before = pages_of(path)
    wal = Path(f"{path}-wal")
    data = wal.read_bytes()
    wal.write_bytes(data[: len(data) - FRAME_BYTES])  # the last frame of a commit is missing
    assert len(pages_of(path)) < len(before)
    assert len(pages_of(path, is_lenient=True)) == len(pages_of(path))


def test_a_number_of_a_page_that_cannot_be_makes_the_file_no_longer(store: SqliteStore) -> None:
    append(store, 100, 50_000)
    path = copied(store)
    wal = Path(f"{path}-wal")
    data = bytearray(wal.read_bytes())
    data[32 : 32 + 4] = b"\xff\xff\xff\xff"
    wal.write_bytes(data)
    with PageFile(path, is_lenient=True) as file:
        assert file.page_count <= path.stat().st_size // PAGE_BYTES + len(data) // FRAME_BYTES


def test_a_high_number_of_a_page_costs_nothing(store: SqliteStore) -> None:
    """A frame with valid checksums that was made by an attacker: the pages between do not exist."""
    append(store, 100)
    path = copied(store)
    wal = Path(f"{path}-wal")
    data = bytearray(wal.read_bytes()[: WAL_HEAD_BYTES + FRAME_BYTES])
    order, checksum = _header_checksum(bytes(data[:WAL_HEAD_BYTES]))
    frame = WAL_HEAD_BYTES
    data[frame : frame + 8] = struct.pack(">II", 2**26, 2**26)
    checksum = _wal_checksum(order, bytes(data[frame : frame + 8]), checksum)
    checksum = _wal_checksum(order, bytes(data[frame + 24 :]), checksum)
    data[frame + 16 : frame + 24] = struct.pack(">II", *checksum)
    wal.write_bytes(data)
    pages = path.stat().st_size // PAGE_BYTES
    with PageFile(path) as file:
        assert file.page_count == 2**26
        assert file.numbers == [*range(1, pages + 1), 2**26]
        assert file.size_bytes == (pages + 1) * PAGE_BYTES
        assert (file.page(2**26) or b"")[:99] == data[frame + 24 : frame + 24 + 99]


def test_free_pages(store: SqliteStore) -> None:
    append(store, 200_000, 100, 300_000)
    store.connection.execute("DELETE FROM blocks WHERE first_offset = 0")
    store.checkpoint(truncate=True)
    count = store.connection.pragma("freelist_count")
    with PageFile(store.path) as file:
        free = file.free_pages() or set()
        assert len(free) == count > 10


@pytest.mark.parametrize("damage", ["count", "trunk", "leaves", "circle"])
def test_a_list_of_free_pages_that_is_not_whole_is_not_believed(store: SqliteStore, damage: str) -> None:
    append(store, 200_000, 100)
    store.connection.execute("DELETE FROM blocks WHERE first_offset = 0")
    store.checkpoint(truncate=True)
    path = copied(store)
    data = bytearray(path.read_bytes())
    trunk = int.from_bytes(data[32:36], "big")
    trunk_at = (trunk - 1) * PAGE_BYTES
    match damage:
        case "count":
            data[39] ^= 1
        case "trunk":
            data[32] = 0xFF
        case "leaves":
            data[trunk_at + 4] = 0xFF
        case "circle":
            data[trunk_at : trunk_at + 4] = data[32:36]
    path.write_bytes(data)
    with PageFile(path) as file:
        assert file.free_pages() is None


def test_a_file_that_was_cut_ends_in_zeros(store: SqliteStore) -> None:
    append(store, 50_000)
    store.checkpoint(truncate=True)
    path = copied(store)
    data = path.read_bytes()
    path.write_bytes(data[: 3 * PAGE_BYTES + 100])
    found = pages_of(path)
    assert found[:3] == [data[at : at + PAGE_BYTES] for at in range(0, 3 * PAGE_BYTES, PAGE_BYTES)]
    assert found[3] == data[3 * PAGE_BYTES : 3 * PAGE_BYTES + 100].ljust(PAGE_BYTES, b"\0")


def test_an_empty_file_has_no_pages(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert pages_of(tmp_path / "empty") == []
    with PageFile(tmp_path / "empty") as file:
        assert file.free_pages() is None


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=r"cannot open the log .*nothing\.sqlite: No such file"):
        PageFile(tmp_path / "nothing.sqlite")


def test_pages_are_not_read_without_end(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.store.sqlite_pages.MAX_READS_PER_PAGE", 2)
    with PageFile(store.path) as file:
        reads = 0
        while file.page(1) is not None:
            reads += 1
        assert reads == 2 * (file.page_count + 2)


TABLES = ["CREATE TABLE t (id INTEGER PRIMARY KEY, a, b)", "CREATE TABLE t (id PRIMARY KEY, a, b) WITHOUT ROWID"]
VALUES: list[Any] = [None, 0, 1, -1, 127, -32_768, 2**23, 2**31, 2**47, -(2**63), 0.5, "", "größe", b"", b"\0\xff"]


def make_table(path: Path, create: str, rows: list[tuple[Any, ...]]) -> int:
    connection = apsw.Connection(str(path))
    connection.pragma("page_size", PAGE_BYTES)
    connection.execute(create)
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    connection.execute("COMMIT")
    root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 't'").get
    connection.close()
    return int(root)


def some_rows(count: int) -> list[tuple[Any, ...]]:
    """Of all sizes: in a leaf, with one overflow page, with many."""
    rng = Random(count)
    sizes = [3, 100, 2_000, 4_085, 5_000, 16_349, 16_350, 20_000, 100_000]
    return [(number, rng.choice(VALUES), rng.randbytes(rng.choice(sizes))) for number in range(count)]


@pytest.mark.parametrize("create", TABLES)
@pytest.mark.parametrize("count", [0, 1, 40, 700])
def test_all_rows(tmp_path: Path, create: str, count: int) -> None:
    rows = some_rows(count)
    root = make_table(tmp_path / "t", create, rows)
    with PageFile(tmp_path / "t") as file:
        tree = Tree(file, root)
        found = {}
        for cell in tree.cells():
            key, *values = record(cell.payload)
            found[cell.rowid if key is None else key] = tuple(values)
        assert found == {key: tuple(values) for key, *values in rows}
        assert tree.is_whole
        assert tree.is_end_whole
        assert len(tree.pages) <= file.page_count


def test_rows_of_the_schema_which_begins_behind_the_head_of_the_file(tmp_path: Path) -> None:
    make_table(tmp_path / "t", TABLES[0], [])
    with PageFile(tmp_path / "t") as file:
        (values,) = [record(cell.payload) for cell in Tree(file, 1).cells()]
    assert values == ["table", "t", "t", 2, TABLES[0]]


@pytest.mark.parametrize("create", TABLES)
def test_damaged_pages_give_fewer_rows_and_no_other_trouble(tmp_path: Path, create: str) -> None:
    rows = some_rows(120)
    root = make_table(tmp_path / "t", create, rows)
    data = (tmp_path / "t").read_bytes()
    told = 0
    for seed in range(60):
        rng = Random(seed)
        damaged = bytearray(data)
        for _ in range(rng.choice([1, 5])):
            place = rng.randrange(len(data) // PAGE_BYTES) * PAGE_BYTES
            damaged[place + rng.randrange(rng.choice([16, 200, PAGE_BYTES]))] ^= rng.randrange(1, 256)
        (tmp_path / "d").write_bytes(damaged)
        with PageFile(tmp_path / "d") as file:
            tree = Tree(file, root)
            for cell in tree.cells():
                try:
                    record(cell.payload)
                except BrokenPageError:
                    told += 1
            told += not tree.is_whole
    assert told > 0


def test_a_lost_leaf_is_told_and_whether_it_was_the_last(tmp_path: Path) -> None:
    root = make_table(tmp_path / "t", TABLES[0], some_rows(120))
    with PageFile(tmp_path / "t") as file:
        leaves = [cell.page for cell in Tree(file, root).cells()]
    data = (tmp_path / "t").read_bytes()
    for leaf, is_end_whole in ((leaves[0], True), (leaves[-1], False)):
        damaged = bytearray(data)
        damaged[(leaf - 1) * PAGE_BYTES] = 77
        (tmp_path / "d").write_bytes(damaged)
        with PageFile(tmp_path / "d") as file:
            tree = Tree(file, root)
            assert [cell for cell in tree.cells() if cell.page == leaf] == []
            assert tree.damaged_pages == [leaf]
            assert tree.is_end_whole is is_end_whole


def test_a_page_is_visited_once(tmp_path: Path) -> None:
    """A root that is its own child."""
    root = make_table(tmp_path / "t", TABLES[0], some_rows(120))
    data = bytearray((tmp_path / "t").read_bytes())
    at = (root - 1) * PAGE_BYTES + 8
    data[at : at + 4] = root.to_bytes(4, "big")
    (tmp_path / "t").write_bytes(data)
    with PageFile(tmp_path / "t") as file:
        tree = Tree(file, root)
        assert len(list(tree.cells())) < 120
        assert tree.damaged_pages == [root]
        assert not tree.is_end_whole


def test_a_chain_that_is_a_circle_ends(tmp_path: Path) -> None:
    page = (2).to_bytes(4, "big").ljust(PAGE_BYTES, b"x")
    (tmp_path / "t").write_bytes(page + (1).to_bytes(4, "big").ljust(PAGE_BYTES, b"y"))
    with PageFile(tmp_path / "t") as file:
        data, pages = read_chain(file, 1, 100 * PAGE_BYTES)
    assert pages == [1, 2]
    assert len(data) == 2 * (PAGE_BYTES - 4)


@given(st.binary(max_size=12))
def test_any_bytes_are_a_number_or_not(data: bytes) -> None:
    try:
        value, end = varint(data, 0)
    except BrokenPageError:
        assert all(byte >= 0x80 for byte in data[:8])
        assert len(data) < 9
    else:
        assert 0 <= value < 2**64
        assert 1 <= end <= 9


@given(st.binary(max_size=40))
def test_any_bytes_are_a_record_or_not(data: bytes) -> None:
    try:
        values = record(data)
    except BrokenPageError:
        return
    assert len(values) < 40


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (b"", "without an end"),
        (b"\x09\x01", "longer than the record"),
        (b"\x02\x06\x00", "ends within a value"),
        (b"\x02\x0a", "a reserved type"),
        (b"\x02\x0f\xff", "not UTF-8"),
    ],
)
def test_what_is_wrong_with_a_record(payload: bytes, complaint: str) -> None:
    with pytest.raises(BrokenPageError, match=complaint):
        record(payload)


def test_the_rows_of_one_leaf(tmp_path: Path) -> None:
    path = tmp_path / "file"
    connection = apsw.Connection(str(path))
    connection.pragma("page_size", PAGE_BYTES)
    connection.execute("CREATE TABLE t (x); INSERT INTO t VALUES (zeroblob(40000)), (5), (6)")
    connection.close()
    with PageFile(path) as file:
        assert [record(cell.payload) for cell in leaf_cells(file, 2)] == [[bytes(40000)], [5], [6]]
        assert leaf_cells(file, 3) == leaf_cells(file, 999) == []  # overflow, and nothing
    data = bytearray(path.read_bytes())
    data[PAGE_BYTES + 8 : PAGE_BYTES + 10] = (PAGE_BYTES - 4).to_bytes(2, "big")
    data[2 * PAGE_BYTES - 4 : 2 * PAGE_BYTES] = b"\x7f\1\0\0"  # the first cell goes beyond the page
    path.write_bytes(data)
    with PageFile(path) as file:
        assert [record(cell.payload) for cell in leaf_cells(file, 2)] == [[5], [6]]
    data[PAGE_BYTES + 3 : PAGE_BYTES + 5] = b"\xff\xff"
    path.write_bytes(data)
    with PageFile(path) as file:
        assert leaf_cells(file, 2) == []
