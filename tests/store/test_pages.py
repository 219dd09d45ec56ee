"""Pages without SQLite are those that SQLite sees; damage and rubbish in the write-ahead log are passed over."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import apsw
import pytest
from tests.store.entries import LOG_ID, make_entry

from godwit.errors import DiskError
from godwit.store.pages import PAGE_BYTES, PageFile
from godwit.store.sqlite import SqliteStore

FRAME_BYTES = 24 + PAGE_BYTES


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


def pages_of(path: Path, *, is_doubting: bool = False) -> list[bytes]:
    with PageFile(path, is_doubting=is_doubting) as file:
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
    assert pages_of(path) == pages_of(path, is_doubting=True)
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


def test_doubting_goes_on_behind_a_damage(store: SqliteStore) -> None:
    append(store, 100, 50_000, 300, 90_000)
    path = copied(store)
    whole = pages_of(path)
    wal = Path(f"{path}-wal")
    data = bytearray(wal.read_bytes())
    data[32 + 24 + 5000] ^= 0x10  # within the first page
    wal.write_bytes(data)
    with PageFile(path) as file, PageFile(path, is_doubting=True) as doubting:
        assert doubting.is_other_view(file)
        assert file.page_count < doubting.page_count
    found = pages_of(path, is_doubting=True)
    assert sum(page != other for page, other in zip(found, whole, strict=True)) <= 1


def test_what_was_not_committed_does_not_count(store: SqliteStore) -> None:
    append(store, 100, 50_000)
    path = copied(store)
    before = pages_of(path)
    wal = Path(f"{path}-wal")
    data = wal.read_bytes()
    wal.write_bytes(data[: len(data) - FRAME_BYTES])  # the last frame of a commit is missing
    assert len(pages_of(path)) < len(before)
    assert len(pages_of(path, is_doubting=True)) == len(pages_of(path))


def test_a_number_of_a_page_that_cannot_be_makes_the_file_no_longer(store: SqliteStore) -> None:
    append(store, 100, 50_000)
    path = copied(store)
    wal = Path(f"{path}-wal")
    data = bytearray(wal.read_bytes())
    data[32 : 32 + 4] = b"\xff\xff\xff\xff"
    wal.write_bytes(data)
    with PageFile(path, is_doubting=True) as file:
        assert file.page_count <= path.stat().st_size // PAGE_BYTES + len(data) // FRAME_BYTES


def test_free_pages(store: SqliteStore) -> None:
    append(store, 200_000, 100, 300_000)
    store.connection.execute("DELETE FROM blocks WHERE first_offset = 0")
    store.checkpoint(truncate=True)
    count = store.connection.pragma("freelist_count")
    with PageFile(store.path) as file:
        free = file.free_pages()
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
        assert file.free_pages() == set()


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
        assert file.free_pages() == set()


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=r"cannot open the log .*nothing\.sqlite: No such file"):
        PageFile(tmp_path / "nothing.sqlite")


def test_pages_are_not_read_without_end(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.store.pages.READS_A_PAGE", 2)
    with PageFile(store.path) as file:
        reads = 0
        while file.page(1) is not None:
            reads += 1
        assert reads == 2 * (file.page_count + 2)
