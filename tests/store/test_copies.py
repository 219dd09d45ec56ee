"""Backups, also while the log is written, and logs without free pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import apsw
import pytest
from tests.store.damage import changes_of, make_log
from tests.store.entries import LOG_ID, make_entry

from godwit.errors import DiskError, LogDamagedError, LogInUseError, LogVersionError, StorageError
from godwit.limits import KIB
from godwit.store import copies
from godwit.store import reader as reader_module
from godwit.store.connection import connect
from godwit.store.copies import backup, compact
from godwit.store.pages import PAGE_BYTES
from godwit.store.reader import LogReader
from godwit.store.retention import Retention, Rule
from godwit.store.sqlite import SqliteStore
from godwit.wire.batch import Entry

EVERYTHING = 2**40


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore.open(tmp_path / "log.sqlite", new_log_id=LOG_ID, now_us=1)
    yield opened
    opened.close()


def quiet(done: int, total: int) -> None:
    assert 0 <= done <= total


def fill(store: SqliteStore, blocks: int, size: int = 30_000) -> None:
    rng = Random(blocks)
    for number in range(blocks):
        entry = make_entry(rng.randbytes(size), topic=f"t/{number % 3}", received_us=store.next_offset + 1)
        store.append([entry], changes_of(number, rng))


def read(path: Path) -> list[tuple[int, Entry]]:
    reader = LogReader.open(path)
    found = reader.read(0, EVERYTHING)
    assert found.damaged == []
    reader.close()
    return found.entries


# -- backup -----------------------------------------------------------------------------------------------------------


def test_a_backup_is_the_same_log(store: SqliteStore, tmp_path: Path) -> None:
    fill(store, 20)
    copied = backup(store.path, tmp_path / "copy", quiet)
    assert copied.blocks == 20
    assert copied.next_offset == store.next_offset
    assert copied.size_bytes == (tmp_path / "copy").stat().st_size
    assert read(tmp_path / "copy") == store.read(0, EVERYTHING).entries
    other = SqliteStore.open(tmp_path / "copy", new_log_id=b"unused", now_us=2)
    assert (other.log_id, other.created_us, other.next_offset) == (LOG_ID, 1, store.next_offset)
    assert other.state() == store.state()
    assert other.append([make_entry(received_us=10**9)]) == copied.next_offset
    other.close()


def test_an_empty_log_has_a_backup_too(store: SqliteStore, tmp_path: Path) -> None:
    assert backup(store.path, tmp_path / "copy", quiet).blocks == 0
    assert read(tmp_path / "copy") == []


def test_a_log_goes_on_during_its_backup(store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends, retention and checkpoints between the pieces: the copy is of one moment, and the WAL is free."""
    monkeypatch.setattr(copies, "PIECE_BYTES", 60 * KIB)
    fill(store, 40)
    trimming = Retention(store, [Rule("t/0", max_bytes=200_000), Rule(max_bytes=store.size_bytes)])
    published = dict(store.read(0, EVERYTHING).entries)
    pieces = 0

    def write(done: int, total: int) -> None:
        nonlocal pieces
        pieces += 1
        quiet(done, total)
        if done < total:
            fill(store, 1)
            published.update(store.read(store.next_offset - 1, EVERYTHING).entries)
            while trimming.step(0) is not None:
                pass
            store.checkpoint(truncate=True)
            assert store.wal_bytes == 0

    copied = backup(store.path, tmp_path / "copy", write)
    assert pieces > 10
    assert copied.next_offset == store.next_offset
    found = read(tmp_path / "copy")
    assert dict(found).items() <= published.items()
    assert dict(store.read(0, EVERYTHING).entries).items() <= dict(found).items()
    other = SqliteStore.open(tmp_path / "copy", new_log_id=b"unused", now_us=2)
    assert other.state() == store.state()
    other.close()


def test_a_writer_that_is_faster_does_not_hold_it_up_for_ever(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "PIECE_BYTES", 20 * KIB)
    fill(store, 5)

    def write(done: int, total: int) -> None:
        if done < total:
            fill(store, 2)

    copied = backup(store.path, tmp_path / "copy", write)
    assert len(read(tmp_path / "copy")) == copied.next_offset == store.next_offset


def test_a_log_on_a_disk_that_cannot_be_written(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 3)
    expected = store.read(0, EVERYTHING).entries
    store.close()
    monkeypatch.setattr(LogReader, "is_immutable", True)
    backup(store.path, tmp_path / "copy", quiet)
    assert read(tmp_path / "copy") == expected


def test_damaged_blocks_are_copied_as_they_are(store: SqliteStore, tmp_path: Path) -> None:
    fill(store, 3)
    store.connection.execute("UPDATE blocks SET body = zeroblob(100) WHERE first_offset = 1")
    assert backup(store.path, tmp_path / "copy", quiet).blocks == 3
    reader = LogReader.open(tmp_path / "copy")
    assert reader.read(0, EVERYTHING).damaged == [(1, 2)]
    reader.close()


def test_what_has_no_backup(store: SqliteStore, tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    with pytest.raises(StorageError, match="is there already"):
        backup(store.path, tmp_path / "there", quiet)
    with pytest.raises(StorageError, match="missing/copy"):
        backup(store.path, tmp_path / "missing" / "copy", quiet)
    with pytest.raises(DiskError, match="nothing"):
        backup(tmp_path / "nothing", tmp_path / "copy", quiet)
    store.connection.pragma("user_version", 99)
    with pytest.raises(LogVersionError):
        backup(store.path, tmp_path / "copy", quiet)
    assert not (tmp_path / "copy").exists()


def test_a_full_disk_leaves_no_half_a_backup(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 20)

    def limited(path: Path, flags: int, vfs: str | None) -> apsw.Connection:
        connection = connect(path, flags, vfs)
        connection.pragma("page_size", PAGE_BYTES)
        connection.pragma("max_page_count", 25)
        return connection

    monkeypatch.setattr(copies, "connect", limited)
    with pytest.raises(DiskError, match="the disk is full"):
        backup(store.path, tmp_path / "copy", quiet)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("copy")] == []


def interrupt(done: int, total: int) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_leaves_nothing_behind(store: SqliteStore, tmp_path: Path) -> None:
    fill(store, 3)
    with pytest.raises(KeyboardInterrupt):
        backup(store.path, tmp_path / "copy", interrupt)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("copy")] == []


# -- compact ----------------------------------------------------------------------------------------------------------


def test_compact_gives_space_back(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log.sqlite", Random(4), 60, is_trimmed=True)
    before_bytes = log.path.stat().st_size
    done = compact(log.path, quiet)
    assert done.before_bytes == before_bytes
    assert done.after_bytes == log.path.stat().st_size < before_bytes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.sqlite", "log.sqlite-witness"]
    store = SqliteStore.open(log.path, new_log_id=b"unused", now_us=2)
    assert dict(store.read(0, EVERYTHING).entries) == log.entries
    assert store.state() == log.state
    assert (store.log_id, store.next_offset) == (LOG_ID, log.next_offset)
    assert store.connection.pragma("freelist_count") == 0
    assert store.connection.execute("PRAGMA integrity_check").get == "ok"
    store.close()


def test_the_end_of_an_emptied_log_outlives_compact(store: SqliteStore) -> None:
    fill(store, 3)
    while Retention(store, [Rule(max_age_s=1.0)]).step(10**12) is not None:
        pass
    store.close()
    compact(store.path, quiet)
    other = SqliteStore.open(store.path, new_log_id=b"unused", now_us=2)
    assert other.next_offset == 3
    other.close()


def test_what_is_in_the_wal_only_is_kept(store: SqliteStore) -> None:
    fill(store, 3)
    expected = store.read(0, EVERYTHING).entries
    assert store.wal_bytes > 0
    compact_while_open(store)
    assert read(store.path) == expected


def compact_while_open(store: SqliteStore) -> None:
    """As after a kill: the WAL is there, and nobody has the file open."""
    folder = store.path.parent / "killed"
    folder.mkdir()
    for ending in ("", "-wal"):
        (folder / f"log.sqlite{ending}").write_bytes(Path(f"{store.path}{ending}").read_bytes())
    compact(folder / "log.sqlite", quiet)
    assert read(folder / "log.sqlite") == store.read(0, EVERYTHING).entries


def test_a_log_that_somebody_writes_is_left_alone(store: SqliteStore) -> None:
    fill(store, 3)

    def write(done: int, total: int) -> None:
        fill(store, 1)

    with pytest.raises(LogInUseError, match="another program has written"):
        compact(store.path, write)
    assert len(store.read(0, EVERYTHING).entries) > 3
    assert sorted(path.name for path in store.path.parent.iterdir()) == [
        "log.sqlite",
        "log.sqlite-shm",
        "log.sqlite-wal",
        "log.sqlite-witness",
    ]


def test_a_damaged_log_is_not_compacted(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log.sqlite", Random(4), 30, is_trimmed=False)
    data = bytearray(log.path.read_bytes())
    data[2 * PAGE_BYTES + 3 : 2 * PAGE_BYTES + 5] = b"\0\1"  # the root of the blocks has fewer children
    log.path.write_bytes(data)
    with pytest.raises(LogDamagedError, match="godwit log recover"):
        compact(log.path, quiet)
    assert log.path.read_bytes() == data


def test_an_interrupt_leaves_the_log_as_it_was(store: SqliteStore) -> None:
    fill(store, 3)
    expected = store.read(0, EVERYTHING).entries
    store.close()
    with pytest.raises(KeyboardInterrupt):
        compact(store.path, interrupt)
    assert read(store.path) == expected
    assert not list(store.path.parent.glob("*compact*"))


def test_what_a_killed_run_left_is_no_hindrance(store: SqliteStore) -> None:
    fill(store, 3)
    expected = store.read(0, EVERYTHING).entries
    store.close()
    for ending in (".compact", ".compact.draft"):
        Path(f"{store.path}{ending}").write_bytes(b"left")
    compact(store.path, quiet)
    assert read(store.path) == expected
    assert not list(store.path.parent.glob("*compact*"))


# -- files of others --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", ["backup", "compact"])
@pytest.mark.parametrize("is_checked", [True, False])
def test_names_in_a_file_are_no_statements(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, is_checked: bool
) -> None:
    """The file is refused; and if it were not, nothing of it would be run."""
    fill(store, 3)
    store.close()
    victim = tmp_path / "victim"
    inject = f"""x" SELECT 1; COMMIT; ATTACH '{victim}' AS q; CREATE TABLE q.owned(a); BEGIN; --"""
    connection = apsw.Connection(str(store.path))
    connection.execute(f"""CREATE TABLE "{inject.replace('"', '""')}"(a); CREATE TABLE x(a)""")
    connection.close()
    if not is_checked:
        for module in (copies, reader_module):
            monkeypatch.setattr(module, "check_schema", lambda *_: None)
        (backup(store.path, tmp_path / "copy", quiet) if work == "backup" else compact(store.path, quiet))
        monkeypatch.undo()
        assert len(read(tmp_path / "copy" if work == "backup" else store.path)) == 3  # it has our tables alone
    else:
        with pytest.raises(LogDamagedError, match="is not ours"):
            (backup(store.path, tmp_path / "copy", quiet) if work == "backup" else compact(store.path, quiet))
        assert not (tmp_path / "copy").exists()
    assert not victim.exists()


def test_a_full_disk_is_that_of_the_copy(store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 3)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(copies._Copy, "run", full)
    with pytest.raises(DiskError, match=r"no room for the copy in .*/elsewhere: the disk is full"):
        backup(store.path, tmp_path / "elsewhere" / "copy", quiet)


def full(copy: object) -> None:
    raise apsw.FullError("database or disk is full")
