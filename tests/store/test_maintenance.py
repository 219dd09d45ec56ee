"""Backup, compact and verify."""

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
from godwit.store import maintenance
from godwit.store import reader as reader_module
from godwit.store.connection import connect
from godwit.store.folder import DataFolder
from godwit.store.maintenance import VerifyReport, backup, compact, verify
from godwit.store.reader import LogReader
from godwit.store.recover import recover
from godwit.store.retention import Retention, RetentionRule
from godwit.store.sqlite import SqliteStore
from godwit.store.sqlite_pages import PAGE_BYTES
from godwit.wire.batch import Entry
from godwit.wire.changes import Change, RetainedRow, TopicRow

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
    monkeypatch.setattr(maintenance, "PIECE_BYTES", 60 * KIB)
    fill(store, 40)
    trimming = Retention(store, [RetentionRule("t/0", max_bytes=200_000), RetentionRule(max_bytes=store.size_bytes)])
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
    assert dict(found).items() < published.items()
    assert found == store.read(0, EVERYTHING).entries
    other = SqliteStore.open(tmp_path / "copy", new_log_id=b"unused", now_us=2)
    assert other.state() == store.state()
    other.close()


def test_a_writer_that_is_faster_does_not_hold_it_up_for_ever(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "PIECE_BYTES", 20 * KIB)
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

    monkeypatch.setattr(maintenance, "connect", limited)
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
    while Retention(store, [RetentionRule(max_age_s=1.0)]).step(10**12) is not None:
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
    """Compact a copy that has a WAL and is not open, as after a kill."""
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
        for module in (maintenance, reader_module):
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
    monkeypatch.setattr(maintenance._Copy, "run", full)
    with pytest.raises(DiskError, match=r"no room for the copy in .*/elsewhere: the disk is full"):
        backup(store.path, tmp_path / "elsewhere" / "copy", quiet)


def full(copy: object) -> None:
    raise apsw.FullError("database or disk is full")


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore.open(tmp_path / "log.sqlite", new_log_id=LOG_ID, now_us=1)
    for number in range(10):
        changes: list[Change] = [TopicRow("a/b", number), RetainedRow("a/b", b"retained", offset=number)]
        opened.append([make_entry(bytes(20_000), b"", received_us=number)], changes)
    yield opened
    opened.close()


def look(path: Path) -> VerifyReport:
    seen: list[tuple[int, int]] = []
    verdict = verify(path, lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]
    return verdict


def test_a_sound_log(filled: SqliteStore) -> None:
    verdict = look(filled.path)
    assert verdict.is_sound
    assert (verdict.log_id, verdict.first_offset, verdict.next_offset) == (LOG_ID, 0, 20)
    assert (verdict.blocks, verdict.messages) == (10, 20)
    assert verdict.size_bytes == filled.path.stat().st_size


def test_an_empty_log(tmp_path: Path) -> None:
    SqliteStore.open(tmp_path / "log.sqlite", new_log_id=LOG_ID, now_us=1).close()
    verdict = look(tmp_path / "log.sqlite")
    assert verdict.is_sound
    assert (verdict.blocks, verdict.next_offset) == (0, 0)


def test_damaged_blocks_are_told_as_ranges(filled: SqliteStore) -> None:
    for first_offset in (2, 4, 10):
        filled.connection.execute(
            "UPDATE blocks SET body = zeroblob(length(body)) WHERE first_offset = ?", (first_offset,)
        )
    verdict = look(filled.path)
    assert not verdict.is_sound
    assert verdict.damaged == [(2, 6), (10, 12)]
    assert (verdict.blocks, verdict.messages) == (7, 14)
    assert verdict.problems == []


def test_what_recover_gave_up_is_told(filled: SqliteStore, tmp_path: Path) -> None:
    filled.connection.execute("UPDATE blocks SET body = zeroblob(length(body)) WHERE first_offset = 2")
    filled.checkpoint(truncate=True)
    filled.close()
    recover(filled.path, tmp_path / "saved", new_log_id=LOG_ID, now_us=2, progress=lambda *_: None)
    verdict = look(tmp_path / "saved")
    assert (verdict.damaged, verdict.given_up, verdict.problems, verdict.blocks) == ([], [(2, 4)], [], 9)
    assert verdict.is_sound


@pytest.mark.parametrize("is_in_use", [False, True])
def test_a_row_beside_the_log_that_is_not_what_was_written(tmp_path: Path, is_in_use: bool) -> None:
    folder = DataFolder(tmp_path / "data")
    folder.open()
    filled = SqliteStore.open(folder.log_path, new_log_id=LOG_ID, now_us=1)
    filled.append([make_entry()], [RetainedRow("a/b", b"retained")])
    filled.connection.execute("UPDATE state SET value = x'00'")
    if not is_in_use:
        folder.close()
    verdict = look(filled.path)
    assert not verdict.is_sound
    assert verdict.damaged == []
    assert verdict.problems == ["a row of the table state is not what was written (retained)"]
    filled.close()
    folder.close()


def test_damaged_pages_are_told_if_nobody_uses_the_log(filled: SqliteStore) -> None:
    """The number of free pages is wrong: no block suffers, but SQLite would stumble over it."""
    filled.connection.execute("DELETE FROM blocks WHERE first_offset = 0")
    filled.close()
    data = bytearray(filled.path.read_bytes())
    data[39] ^= 1
    filled.path.write_bytes(data)
    verdict = look(filled.path)
    assert verdict.damaged == []
    assert any("free" in problem.lower() for problem in verdict.problems)


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(DiskError):
        look(tmp_path / "log.sqlite")
    (tmp_path / "log.sqlite").write_bytes(b"x" * PAGE_BYTES)
    with pytest.raises(LogDamagedError):
        look(tmp_path / "log.sqlite")


def test_a_log_goes_on_while_it_is_verified(filled: SqliteStore) -> None:
    """Nothing holds the WAL between the pieces, and what came later does not matter."""

    def write(done: int, total: int) -> None:
        filled.append([make_entry(received_us=1000)])
        filled.checkpoint(truncate=True)
        assert filled.wal_bytes == 0

    verdict = verify(filled.path, write)
    assert verdict.is_sound
    assert verdict.next_offset == 20


def test_it_does_not_write(filled: SqliteStore) -> None:
    filled.close()
    before = filled.path.read_bytes()
    look(filled.path)
    assert filled.path.read_bytes() == before
    connection = apsw.Connection(str(filled.path))
    assert connection.pragma("journal_mode") == "wal"
    connection.close()


def test_a_block_that_lost_its_body_is_not_given_up(filled: SqliteStore) -> None:
    """Its row still says which topics it had."""
    filled.connection.execute("UPDATE blocks SET body = x'' WHERE first_offset = 2")
    verdict = look(filled.path)
    assert (verdict.damaged, verdict.given_up) == ([(2, 4)], [])
    assert not verdict.is_sound
