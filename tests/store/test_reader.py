"""Reading beside the one who writes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.entries import LOG_ID, make_entry
from tests.store.rights import ordinary_rights

from godwit.errors import DiskError, LogDamagedError, LogVersionError
from godwit.store.block import decode_block
from godwit.store.kept import set_mark
from godwit.store.reader import LogReader
from godwit.store.sqlite import SqliteStore
from godwit.wire.changes import QueryDone, TopicKept


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
    store.append(entries, [TopicKept("a/b", 3), QueryDone("q", 4)])
    assert reader.next_offset() == 3
    assert reader.read(0, 10**6) == store.read(0, 10**6)
    assert reader.offset_at(15) == 1
    assert reader.topics() == [TopicKept("a/b", 3)]
    assert reader.queries() == {"q": 4}
    (row,) = reader.rows(0, 100, 10, 10**6).rows
    assert [entry for _, entry in decode_block(row.body)] == entries
    assert reader.spans(0, 100, 10).rows[0].end_offset == 3
    with store.transaction() as connection:
        set_mark(connection, "#", 3)
        connection.execute("DELETE FROM blocks")
        assert (reader.first_offset(), reader.marks()) == (0, {})
    assert (reader.first_offset(), reader.next_offset(), reader.marks()) == (3, 3, {"#": 3})


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
    with pytest.raises(LogVersionError, match="is empty: no broker has made a log of it"):
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
    """Not in tmp_path, which nobody else can enter."""
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
