"""The epochs of a log: when they begin, how many are kept, and that copies and recovered logs have them."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
from tests.store.entries import LOG_ID, make_entry
from tests.store.older_logs import make_older_log

from godwit.errors import DiskError, LogDamagedError
from godwit.store import reader
from godwit.store.maintenance import backup, compact, verify
from godwit.store.reader import EpochRow, LogReader
from godwit.store.recover import recover
from godwit.store.schema import EPOCHS
from godwit.store.sqlite import SqliteStore
from godwit.store.witness import SUFFIX
from godwit.wire.changes import QueryRow
from godwit.wire.epochs import UNKNOWN, Epoch


def quiet(done: int, total: int) -> None:
    assert 0 <= done <= total


def opened(path: Path, letter: bytes) -> SqliteStore:
    return SqliteStore.open(path, new_log_id=letter * 16, now_us=1)


def run_broker(path: Path, letter: bytes, messages: int) -> None:
    """Open the log, append `messages` messages one at a time, and close it."""
    store = opened(path, letter)
    for _ in range(messages):
        store.append([make_entry(received_us=7 + store.next_offset)])
    store.close()


def stored(path: Path) -> list[EpochRow]:
    reader = LogReader.open(path)
    try:
        return reader.epochs()
    finally:
        reader.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log with the epochs a from 0, b from 3 and c from 4, and 6 messages."""
    path = tmp_path / "log.sqlite"
    for letter, messages in ((b"a", 3), (b"b", 1), (b"-", 0), (b"c", 2)):
        run_broker(path, letter, messages)
    return path


ROWS = [EpochRow(0, b"a" * 8, 7), EpochRow(3, b"b" * 8, 10), EpochRow(4, b"c" * 8, 11)]


def test_an_epoch_begins_with_the_first_message_of_a_process(path: Path) -> None:
    assert stored(path) == ROWS
    store = opened(path, b"d")
    before = [row.epoch for row in ROWS]
    assert store.epochs == [*before, Epoch(b"d" * 8, 6)]
    store.append([], [QueryRow("q", 1)])
    assert stored(path) == ROWS
    store.append([make_entry(received_us=99), make_entry(received_us=99)])
    store.append([make_entry(received_us=99)])
    assert store.epochs == [*before, Epoch(b"d" * 8, 6)]
    assert stored(path) == [*ROWS, EpochRow(6, b"d" * 8, 99)]
    store.close()


def test_a_new_log_has_that_of_its_process(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "log.sqlite", new_log_id=LOG_ID, now_us=1)
    assert store.epochs == [Epoch(LOG_ID[:8], 0)]
    store.close()


def test_an_epoch_that_could_not_be_written_begins_with_the_next_append(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(path, b"d")
    with monkeypatch.context() as patch:
        patch.setattr("godwit.store.sqlite.insert_epoch", lambda *_: (_ for _ in ()).throw(apsw.FullError("full")))
        with pytest.raises(DiskError):
            store.append([make_entry(received_us=99)])
    assert stored(path) == ROWS
    store.append([make_entry(received_us=100)])
    assert stored(path) == [*ROWS, EpochRow(6, b"d" * 8, 100)]
    store.close()


def test_the_oldest_are_dropped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_EPOCHS", 3)
    run_broker(path, b"d", 1)
    assert [row.id[:1] for row in stored(path)] == [b"b", b"c", b"d"]


def test_messages_of_an_older_version_are_of_an_epoch_without_a_name(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    make_older_log(path, [make_entry(b"one"), make_entry(b"two", received_us=2)], [])
    store = opened(path, b"a")
    assert store.epochs == [Epoch(UNKNOWN, 0), Epoch(b"a" * 8, 2)]
    store.append([make_entry(received_us=3)])
    store.close()
    assert stored(path) == [EpochRow(0, UNKNOWN, 0), EpochRow(2, b"a" * 8, 3)]


def test_copies_and_recovered_logs_have_them(path: Path, tmp_path: Path) -> None:
    backup(path, tmp_path / "copy", quiet)
    assert stored(tmp_path / "copy") == ROWS
    compact(path, quiet)
    assert stored(path) == ROWS
    saved = recover(path, tmp_path / "saved", new_log_id=b"n" * 16, now_us=1, progress=quiet)
    assert saved.lost_tables == []
    assert stored(tmp_path / "saved") == ROWS


def damage(path: Path, statement: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("change", ["first_offset = 5", "id = x'0011223344556677'", "begun_us = 1", "seal = 1"])
def test_a_changed_row_is_noticed_and_recover_keeps_no_other(path: Path, tmp_path: Path, change: str) -> None:
    """Without one of them, the one before it would seem to have the messages of both."""
    damage(path, f"UPDATE epochs SET {change} WHERE first_offset = 3")
    assert verify(path, quiet).problems == ["a row of the table epochs is not what was written"]
    with pytest.raises(LogDamagedError, match="a row of the table epochs"):
        opened(path, b"d")
    saved = recover(path, tmp_path / "saved", new_log_id=b"n" * 16, now_us=1, progress=quiet)
    assert saved.lost_tables == [EPOCHS]
    assert (saved.next_offset, saved.missing) == (6, [])
    assert stored(tmp_path / "saved") == [EpochRow(0, UNKNOWN, 0)]


def test_an_epoch_without_its_messages_is_a_damage(path: Path, tmp_path: Path) -> None:
    damage(path, "DROP TRIGGER end_of_deleted; DELETE FROM blocks WHERE first_offset >= 4")
    scripts = Path(reader.__file__).with_name("schema_1.sql").read_text(encoding="utf-8").split(";\n\n")
    damage(path, next(script for script in scripts if "end_of_deleted" in script))
    path.with_name(f"{path.name}{SUFFIX}").unlink()  # with it the missing messages become a lost range
    with pytest.raises(LogDamagedError, match="the epoch 6363636363636363 begins at offset 4, and the log ends at 4"):
        opened(path, b"d")
    assert "begins at offset 4" in verify(path, quiet).problems[0]
    saved = recover(path, tmp_path / "saved", new_log_id=b"n" * 16, now_us=1, progress=quiet)
    assert saved.next_offset >= 5  # the offset of its first message is not given out again
