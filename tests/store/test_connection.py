"""Transactions, snapshots, and SQLite's troubles in our words."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import apsw
import msgspec
import pytest

from godwit.errors import DiskError, LogDamagedError, StorageError
from godwit.store.connection import (
    DamagedRowError,
    allow_interrupts,
    connect,
    snapshot,
    transaction,
    translate_errors,
    translated,
)

READ_WRITE = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE


@pytest.fixture
def connection(tmp_path: Path) -> apsw.Connection:
    opened = connect(tmp_path / "x.sqlite", READ_WRITE, None)
    opened.pragma("journal_mode", "wal")
    opened.execute("CREATE TABLE t (x PRIMARY KEY)")
    return opened


def count(connection: apsw.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM t").get)


def test_a_transaction_is_all_or_nothing(connection: apsw.Connection) -> None:
    with transaction(connection):
        connection.execute("INSERT INTO t VALUES (1), (2)")
    assert count(connection) == 2

    def fail(error: BaseException) -> None:
        with transaction(connection):
            connection.execute("INSERT INTO t VALUES (3)")
            raise error

    for error in (KeyboardInterrupt(), apsw.FullError(), ValueError()):
        with pytest.raises(type(error)):
            fail(error)
    assert count(connection) == 2
    assert not connection.in_transaction


def test_a_rollback_by_sqlite_itself_is_no_second_error(connection: apsw.Connection) -> None:
    with pytest.raises(apsw.ConstraintError), transaction(connection):
        connection.execute("INSERT OR ROLLBACK INTO t VALUES (1), (1)")
    assert not connection.in_transaction


def test_a_snapshot_is_of_one_moment(connection: apsw.Connection, tmp_path: Path) -> None:
    reader = connect(tmp_path / "x.sqlite", apsw.SQLITE_OPEN_READONLY, None)
    with snapshot(reader):
        assert count(reader) == 0
        connection.execute("INSERT INTO t VALUES (1)")
        with snapshot(reader):
            assert count(reader) == 0
        assert count(reader) == 0
    assert count(reader) == 1
    assert not reader.in_transaction


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (apsw.SQLITE_FULL, DiskError, "cannot be written: the disk is full. Free some space"),
        (apsw.SQLITE_READONLY, DiskError, "it is read-only. Check the rights"),
        (apsw.SQLITE_PERM, DiskError, "it is read-only. Check the rights"),
        (apsw.SQLITE_CANTOPEN, DiskError, "the file or its folder is missing"),
        (apsw.SQLITE_BUSY, DiskError, "another program holds it locked"),
        (apsw.SQLITE_IOERR_FSYNC, DiskError, "the disk failed"),
        (apsw.SQLITE_CORRUPT, LogDamagedError, "it is damaged .* Save what is intact with `godwit log recover`"),
        (apsw.SQLITE_NOTADB, LogDamagedError, "it is damaged"),
        (apsw.SQLITE_ERROR, LogDamagedError, "it is damaged"),
        (apsw.SQLITE_CONSTRAINT, LogDamagedError, "it is damaged"),
        (apsw.SQLITE_INTERRUPT, StorageError, "cannot be written"),
    ],
)
def test_troubles_have_a_sentence(code: int, kind: type[StorageError], words: str) -> None:
    with (
        pytest.raises(kind, match=rf"the log /x/log.sqlite .*{words}") as caught,
        translate_errors("/x/log.sqlite", "written"),
    ):
        raise apsw.exception_for(code)
    assert type(caught.value) is kind
    assert isinstance(caught.value.__cause__, apsw.Error)


def test_a_row_that_is_not_what_was_written_is_damage() -> None:
    assert isinstance(translated("x", "read", DamagedRowError("a row")), LogDamagedError)


def test_other_errors_pass() -> None:
    with pytest.raises(ValueError, match=r"^x$"), translate_errors("x", "read"):
        raise ValueError("x")


def test_a_row_that_cannot_be_unpacked_is_damage() -> None:
    with pytest.raises(LogDamagedError, match="godwit log recover"), translate_errors("x", "opened"):
        msgspec.json.decode(b"{")


def test_nothing_can_be_attached(tmp_path: Path) -> None:
    """What a hostile file could make of a statement reaches no other file."""
    opened = connect(tmp_path / "a", apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, None)
    with pytest.raises(apsw.SQLError, match="too many attached"):
        opened.execute("ATTACH ? AS other", (str(tmp_path / "b"),))
    opened.close()
    assert not (tmp_path / "b").exists()


def test_a_signal_ends_a_long_statement(connection: apsw.Connection) -> None:
    def ring(*_: object) -> None:
        raise KeyboardInterrupt

    allow_interrupts(connection)
    before = signal.signal(signal.SIGALRM, ring)
    began = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            connection.execute("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 60.0  # the statement itself never ends
