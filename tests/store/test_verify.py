"""What verify finds, and that it disturbs nobody. Flipped bytes of all kinds are in test_bit_flips."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from tests.store.entries import LOG_ID, make_entry

from godwit.errors import DiskError, LogDamagedError
from godwit.store.folder import DataFolder
from godwit.store.pages import PAGE_BYTES
from godwit.store.recover import recover
from godwit.store.sqlite import SqliteStore
from godwit.store.verify import Verdict, verify
from godwit.wire.changes import Change, RetainedKept, TopicKept


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore.open(tmp_path / "log.sqlite", new_log_id=LOG_ID, now_us=1)
    for number in range(10):
        changes: list[Change] = [TopicKept("a/b", number), RetainedKept("a/b", b"retained", offset=number)]
        opened.append([make_entry(bytes(20_000), b"", received_us=number)], changes)
    yield opened
    opened.close()


def look(path: Path) -> Verdict:
    seen: list[tuple[int, int]] = []
    verdict = verify(path, lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]
    return verdict


def test_a_sound_log(store: SqliteStore) -> None:
    verdict = look(store.path)
    assert verdict.is_sound
    assert (verdict.log_id, verdict.first_offset, verdict.next_offset) == (LOG_ID, 0, 20)
    assert (verdict.blocks, verdict.messages) == (10, 20)
    assert verdict.size_bytes == store.path.stat().st_size


def test_an_empty_log(tmp_path: Path) -> None:
    SqliteStore.open(tmp_path / "log.sqlite", new_log_id=LOG_ID, now_us=1).close()
    verdict = look(tmp_path / "log.sqlite")
    assert verdict.is_sound
    assert (verdict.blocks, verdict.next_offset) == (0, 0)


def test_damaged_blocks_are_told_as_ranges(store: SqliteStore) -> None:
    for first_offset in (2, 4, 10):
        store.connection.execute(
            "UPDATE blocks SET body = zeroblob(length(body)) WHERE first_offset = ?", (first_offset,)
        )
    verdict = look(store.path)
    assert not verdict.is_sound
    assert verdict.damaged == [(2, 6), (10, 12)]
    assert (verdict.blocks, verdict.messages) == (7, 14)
    assert verdict.problems == []


def test_what_recover_gave_up_is_told(store: SqliteStore, tmp_path: Path) -> None:
    store.connection.execute("UPDATE blocks SET body = zeroblob(length(body)) WHERE first_offset = 2")
    store.checkpoint(truncate=True)
    store.close()
    recover(store.path, tmp_path / "saved", new_log_id=LOG_ID, now_us=2, progress=lambda *_: None)
    verdict = look(tmp_path / "saved")
    assert (verdict.damaged, verdict.given_up, verdict.problems, verdict.blocks) == ([], [(2, 4)], [], 9)
    assert verdict.is_sound


@pytest.mark.parametrize("is_in_use", [False, True])
def test_a_row_beside_the_log_that_is_not_what_was_written(tmp_path: Path, is_in_use: bool) -> None:
    folder = DataFolder(tmp_path / "data")
    folder.open()
    store = SqliteStore.open(folder.log_path, new_log_id=LOG_ID, now_us=1)
    store.append([make_entry()], [RetainedKept("a/b", b"retained")])
    store.connection.execute("UPDATE retained SET payload = x'00'")
    if not is_in_use:
        folder.close()
    verdict = look(store.path)
    assert not verdict.is_sound
    assert verdict.damaged == []
    assert verdict.problems == ["a row of the table retained is not what was written"]
    store.close()
    folder.close()


def test_damaged_pages_are_told_if_nobody_uses_the_log(store: SqliteStore) -> None:
    """The number of free pages is wrong: no block suffers, but SQLite would stumble over it."""
    store.connection.execute("DELETE FROM blocks WHERE first_offset = 0")
    store.close()
    data = bytearray(store.path.read_bytes())
    data[39] ^= 1
    store.path.write_bytes(data)
    verdict = look(store.path)
    assert verdict.damaged == []
    assert any("free" in problem.lower() for problem in verdict.problems)


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(DiskError):
        look(tmp_path / "log.sqlite")
    (tmp_path / "log.sqlite").write_bytes(b"x" * PAGE_BYTES)
    with pytest.raises(LogDamagedError):
        look(tmp_path / "log.sqlite")


def test_a_log_goes_on_while_it_is_verified(store: SqliteStore) -> None:
    """Nothing holds the WAL between the pieces, and what came later does not matter."""

    def write(done: int, total: int) -> None:
        store.append([make_entry(received_us=1000)])
        store.checkpoint(truncate=True)
        assert store.wal_bytes == 0

    verdict = verify(store.path, write)
    assert verdict.is_sound
    assert verdict.next_offset == 20


def test_it_does_not_write(store: SqliteStore) -> None:
    store.close()
    before = store.path.read_bytes()
    look(store.path)
    assert store.path.read_bytes() == before
    connection = apsw.Connection(str(store.path))
    assert connection.pragma("journal_mode") == "wal"
    connection.close()


def test_a_block_that_lost_its_body_is_not_given_up(store: SqliteStore) -> None:
    """Its row still says which topics it had."""
    store.connection.execute("UPDATE blocks SET body = x'' WHERE first_offset = 2")
    verdict = look(store.path)
    assert (verdict.damaged, verdict.given_up) == ([(2, 4)], [])
    assert not verdict.is_sound
