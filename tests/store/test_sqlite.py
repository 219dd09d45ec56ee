"""The log in a file: what it does with the disk, with other files, and with trouble. See test_port for the contract."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from tests.store.entries import LOG_ID, make_entry
from tests.store.rights import ordinary_rights

from godwit.errors import DiskError, LogDamagedError, LogVersionError
from godwit.store.block import BLOCK_BYTES
from godwit.store.port import Slice
from godwit.store.reader import LogReader
from godwit.store.schema import APPLICATION_ID, VERSION
from godwit.store.sqlite import EXTENSION_BYTES, SqliteStore
from godwit.store.sqlite_pages import PAGE_BYTES
from godwit.wire.changes import Change, IdentityRow, QueryRow, SubscriptionRow, TopicRow

BLOCKS = 200


def open_log(path: Path, **more: str) -> SqliteStore:
    return SqliteStore.open(path, new_log_id=LOG_ID, now_us=77, **more)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite"


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that all users can enter, unlike tmp_path."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    opened = open_log(path)
    yield opened
    opened.close()


# -- making and opening it --------------------------------------------------------------------------------------------


def test_a_new_file_is_as_it_should_be(store: SqliteStore) -> None:
    ask = store.connection.pragma
    assert (ask("journal_mode"), ask("synchronous"), ask("page_size")) == ("wal", 2, PAGE_BYTES)
    assert (ask("secure_delete"), ask("wal_autocheckpoint"), ask("mmap_size"), ask("auto_vacuum")) == (0, 0, 0, 0)
    assert (ask("application_id"), ask("user_version")) == (APPLICATION_ID, VERSION)
    assert (store.log_id, store.created_us, store.last_received_us) == (LOG_ID, 77, 0)


def test_everything_is_there_after_a_restart(path: Path) -> None:
    store = open_log(path)
    changes: list[Change] = [
        TopicRow("a", 5),
        SubscriptionRow("s", ("a",), None, 3),
        IdentityRow("o", "p", "t", 1, 2, 3),
        QueryRow("q", 1),
    ]
    store.append([make_entry(b"1", b"2", received_us=5), make_entry(b"3", received_us=6)], changes)
    store.append([make_entry(b"4", received_us=9)])
    before, state = store.read(0, 10**6), store.state()
    store.close()
    assert sorted(file.name for file in path.parent.iterdir()) == ["log.sqlite", "log.sqlite-witness"]
    again = SqliteStore.open(path, new_log_id=b"other", now_us=99)
    assert (again.log_id, again.created_us, again.last_received_us) == (LOG_ID, 77, 9)
    assert (again.first_offset, again.next_offset) == (0, 4)
    assert again.read(0, 10**6) == before
    assert again.state() == state
    assert len(state.topics) == len(state.subscriptions) == len(state.identities) == len(state.queries) == 1
    assert again.append([make_entry(b"5")]) == 4
    again.close()


def test_what_was_committed_is_there_after_a_sudden_death(path: Path, tmp_path: Path) -> None:
    """The files as a kill leaves them: nothing was closed, all of it is in the WAL."""
    store = open_log(path)
    store.append([make_entry(b"1")], [TopicRow("a")])
    dead = tmp_path / "dead"
    dead.mkdir()
    for file in (path, Path(f"{path}-wal")):
        shutil.copy(file, dead)
    store.close()
    again = open_log(dead / "log.sqlite")
    assert (again.log_id, again.next_offset, len(again.state().topics)) == (LOG_ID, 1, 1)
    again.close()


def test_a_long_commit_is_several_blocks_in_one_transaction(store: SqliteStore) -> None:
    entries = [make_entry(bytes(60_000)) for _ in range(50)]
    store.append(entries)
    assert store.connection.execute("SELECT count(*) FROM blocks").get == 3
    assert [entry for _, entry in store.read(0, 10**8).entries] == entries
    assert 50 * 60_000 < store.size_bytes < 50 * 60_000 + 2 * BLOCK_BYTES


def test_a_file_that_was_only_begun_is_made_anew(path: Path) -> None:
    path.touch()
    open_log(path).close()
    begun = path.with_name("begun.sqlite")
    connection = apsw.Connection(str(begun))
    connection.pragma("page_size", PAGE_BYTES)
    connection.pragma("journal_mode", "wal")
    connection.close()
    assert begun.stat().st_size
    store = open_log(begun)
    assert store.append([make_entry()]) == 0
    store.close()


# -- offsets are never given out twice --------------------------------------------------------------------------------


def test_the_end_outlives_all_blocks(path: Path) -> None:
    store = open_log(path)
    store.append([make_entry(b"1", b"2", b"3")])
    store.append([make_entry(b"4")])
    with store.transaction() as connection:
        connection.execute("DELETE FROM blocks")
    assert (store.first_offset, store.next_offset) == (4, 4)
    store.close()
    again = open_log(path)
    assert (again.first_offset, again.next_offset) == (4, 4)
    assert again.read(0, 100) == Slice([], 4)
    assert again.offset_at(0) == 4
    assert again.append([make_entry()]) == 4
    again.close()


def test_the_end_outlives_a_newest_block_that_became_shorter(path: Path) -> None:
    store = open_log(path)
    store.append([make_entry(b"1", b"2", b"3")])
    with store.transaction() as connection:
        connection.execute("UPDATE blocks SET end_offset = 1")
        connection.execute("DELETE FROM blocks")
    store.close()
    again = open_log(path)
    assert again.next_offset == 3
    again.close()


# -- versions ---------------------------------------------------------------------------------------------------------


def test_a_newer_file_is_refused_and_left_as_it_is(path: Path) -> None:
    newer = VERSION + 1
    store = open_log(path)
    store.append([make_entry()])
    store.connection.execute("CREATE TABLE extra (x)")
    store.connection.pragma("user_version", newer)
    store.close()
    before = path.read_bytes()
    with pytest.raises(
        LogVersionError, match=rf"a newer Godwit: its format is {newer}, and this one knows {newer - 1}"
    ):
        open_log(path)
    with pytest.raises(LogVersionError, match="was written by a newer Godwit"):
        LogReader.open(path)
    assert path.read_bytes() == before


def foreign(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE blocks (first_offset); CREATE TABLE meta (key, value)")
    connection.close()


def numbered(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA user_version = 1; PRAGMA application_id = 5")
    connection.close()


def waiting(path: Path) -> None:
    """Create the database of another application, with a WAL that is not in the file yet."""
    connection = apsw.Connection(str(path))
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.pragma("journal_mode", "wal")
    connection.execute("CREATE TABLE t (x)")
    connection.close()


@pytest.mark.parametrize("make", [foreign, numbered, waiting])
def test_another_database_is_refused_and_left_as_it_is(path: Path, make: Callable[[Path], None]) -> None:
    make(path)
    before = path.read_bytes()
    with pytest.raises(LogVersionError, match="not a log of Godwit: choose another folder"):
        open_log(path)
    with pytest.raises(LogVersionError):
        LogReader.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"no database at all" * 1000, b"x"])
def test_another_file_is_refused_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(LogDamagedError, match=r"not a database.* Save what is intact with `godwit log recover`"):
        open_log(path)
    assert path.read_bytes() == content


# -- trouble with the disk --------------------------------------------------------------------------------------------


def test_a_full_disk_takes_nothing_and_later_all(store: SqliteStore) -> None:
    store.append([make_entry(b"1")])
    store.connection.pragma("max_page_count", store.connection.pragma("page_count"))
    with pytest.raises(DiskError, match=r"log.sqlite cannot be written: the disk is full. Free some space"):
        store.append([make_entry(bytes(200_000))], [TopicRow("a")])
    assert (store.next_offset, store.state().topics) == (1, [])
    assert len(store.read(0, 10**6).entries) == 1
    store.connection.pragma("max_page_count", 10**6)
    assert store.append([make_entry(bytes(200_000))], [TopicRow("a")]) == 1
    assert len(store.read(0, 10**6).entries) == 2
    assert len(store.state().topics) == 1


class _FailingFile(apsw.VFSFile):
    def __init__(self, vfs: _FailingVfs, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__(vfs.base_vfs, name, flags)
        self._vfs = vfs

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._vfs.fail("write")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._vfs.fail("sync")
        super().xSync(flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._vfs.fail("read")
        return super().xRead(amount, offset)


class _FailingVfs(apsw.VFS):
    """The system's files, until it is told to fail."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "")
        self.base_vfs = ""
        self.failing: dict[str, int] = {}
        self.calls: list[str] = []

    def fail(self, operation: str) -> None:
        if operation != "read":
            self.calls.append(operation)
        if (code := self.failing.get(operation)) is not None:
            raise apsw.exception_for(code)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _FailingFile(self, name, flags)


@pytest.fixture
def vfs() -> Iterator[_FailingVfs]:
    made = _FailingVfs("failing")
    yield made
    made.unregister()


@pytest.mark.parametrize(
    ("operation", "code", "words"),
    [
        ("write", apsw.SQLITE_FULL, "the disk is full"),
        ("write", apsw.SQLITE_IOERR_WRITE, "the disk failed"),
        ("write", apsw.SQLITE_READONLY, "it is read-only"),
        ("sync", apsw.SQLITE_IOERR_FSYNC, "the disk failed"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_disk_that_fails_for_a_while(path: Path, vfs: _FailingVfs, operation: str, code: int, words: str) -> None:
    store = open_log(path, vfs="failing")
    store.append([make_entry(b"1")])
    vfs.failing[operation] = code
    for _ in range(2):
        with pytest.raises(DiskError, match=words):
            store.append([make_entry(b"2")], [TopicRow("a")])
        assert store.next_offset == 1
        assert len(store.read(0, 10**6).entries) == 1
    vfs.failing.clear()
    assert store.append([make_entry(b"3")], [QueryRow("q", 1)]) == 1
    assert [entry.rest for _, entry in store.read(0, 10**6).entries] == [b"1", b"3"]
    store.close()
    again = open_log(path)
    assert [entry.rest for _, entry in again.read(0, 10**6).entries] == [b"1", b"3"]
    assert (again.state().topics, again.state().queries) == ([], [QueryRow("q", 1)])
    again.close()


def test_a_disk_that_cannot_be_read_is_no_damage(path: Path, vfs: _FailingVfs) -> None:
    """The messages may be readable later, so they are not reported as lost."""
    store = open_log(path)
    store.append([make_entry(bytes(200_000))])
    store.close()
    store = open_log(path, vfs="failing")
    store.connection.pragma("cache_size", 0)
    store.connection.execute("PRAGMA shrink_memory")
    vfs.failing["read"] = apsw.SQLITE_IOERR_READ
    with pytest.raises(DiskError, match="cannot be read: the disk failed"):
        store.read(0, 10**6)
    vfs.failing.clear()
    assert len(store.read(0, 10**6).entries) == 1
    store.close()


def test_a_missing_folder_and_a_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=r"nowhere/log.sqlite cannot be opened: the file or its folder is missing"):
        open_log(tmp_path / "nowhere" / "log.sqlite")
    (tmp_path / "log.sqlite").mkdir()
    with pytest.raises(DiskError, match="cannot be opened"):
        open_log(tmp_path / "log.sqlite")


def test_a_place_without_a_write_ahead_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where a file of that name is made
    with pytest.raises(DiskError, match=r"does not allow a write-ahead log \(memory\)"):
        open_log(Path(":memory:"))


def test_what_is_found_is_on_the_disk_before_anybody_relies_on_it(path: Path, vfs: _FailingVfs) -> None:
    """A process that was killed between write and sync left a commit that can be read, and that a power cut takes."""
    store = open_log(path, vfs="failing")
    store.append([make_entry(b"1")])
    store.close()
    vfs.calls.clear()
    again = open_log(path, vfs="failing")
    assert vfs.calls[-1] == "sync"
    assert "write" in vfs.calls
    again.close()


def test_a_folder_without_the_right_to_write(public_folder: Path) -> None:
    path = public_folder / "log.sqlite"
    open_log(path).close()
    path.chmod(0o444)
    public_folder.chmod(0o555)
    before = path.read_bytes()
    with ordinary_rights(), pytest.raises(DiskError, match="cannot be opened"):
        open_log(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["log.sqlite", "log.sqlite-wal"])
def test_a_file_that_is_taken_away_is_noticed(store: SqliteStore, path: Path, name: str) -> None:
    store.append([make_entry(b"1")])
    path.with_name(name).rename(path.with_name("elsewhere"))
    with pytest.raises(DiskError, match="it was moved or deleted while it was in use"):
        store.append([make_entry(b"2")])
    assert store.wal_bytes > 0 or name == "log.sqlite-wal"
    path.with_name("elsewhere").rename(path.with_name(name))
    assert store.append([make_entry(b"2")]) == 1


def test_a_folder_that_is_taken_away_is_noticed_by_appends_alone(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    folder.mkdir()
    store = SqliteStore.open(folder / "log.sqlite", new_log_id=b"i" * 16, now_us=1)
    store.append([make_entry(b"1")])
    folder.rename(elsewhere)
    folder.touch()  # the way there is no folder now, which is another error than a missing file
    assert store.wal_bytes == 0
    with pytest.raises(DiskError, match="it was moved or deleted while it was in use"):
        store.append([make_entry(b"2")])
    folder.unlink()
    elsewhere.rename(folder)
    assert store.wal_bytes > 0
    assert store.append([make_entry(b"2")]) == 1
    store.close()


def test_another_program_that_writes_is_waited_for_and_then_told(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    store.connection.set_busy_timeout(1)
    with pytest.raises(DiskError, match="another program holds it locked"):
        store.append([make_entry()])
    other.execute("ROLLBACK")
    assert store.append([make_entry()]) == 0
    other.close()


# -- the write-ahead log ----------------------------------------------------------------------------------------------


def test_nothing_is_checkpointed_unasked(store: SqliteStore, path: Path) -> None:
    before = path.stat().st_size
    for _ in range(4):
        store.append([make_entry(bytes(10**6))])
    assert path.stat().st_size == before
    assert store.wal_bytes > 4 * 10**6
    store.checkpoint(truncate=False)
    assert path.stat().st_size > 4 * 10**6
    assert store.wal_bytes > 4 * 10**6
    store.checkpoint(truncate=True)
    assert store.wal_bytes == 0


def test_a_checkpoint_does_not_wait_for_readers(store: SqliteStore, path: Path) -> None:
    store.append([make_entry(b"1")])
    reader = LogReader.open(path)
    with reader.snapshot():
        assert reader.next_offset() == 1
        store.append([make_entry(b"2")])
        store.connection.set_busy_handler(lambda _: pytest.fail("it waited"))
        store.checkpoint(truncate=True)
        assert store.wal_bytes
        assert reader.next_offset() == 1
    store.checkpoint(truncate=True)
    assert store.wal_bytes == 0
    assert reader.next_offset() == 2
    reader.close()


# -- damage -----------------------------------------------------------------------------------------------------------


def damage(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.fixture
def closed(path: Path) -> Path:
    """A log with blocks of different lengths, some on pages of their own, and some state."""
    store = open_log(path)
    for number in range(BLOCKS):
        payload = bytes(40_000 if number % 10 == 5 else number * 40)
        store.append([make_entry(payload, received_us=number)], [TopicRow(f"t/{number:04}", number)])
    store.close()
    return path


def read_or_refuse(path: Path) -> Slice | None:
    try:
        store = open_log(path)
    except LogDamagedError:
        return None
    told = store.read(0, 10**9)
    store.close()
    return told


@pytest.mark.parametrize("is_long", [False, True])
def test_every_page_that_is_overwritten_is_noticed(
    closed: Path, monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    """Noise instead of a page: the start is refused, or in a file too long to look through the loss is told of."""
    if is_long:
        monkeypatch.setattr("godwit.store.sqlite.QUICK_CHECK_BYTES", 0)
    content = closed.read_bytes()
    told_of = 0
    for page in range(len(content) // PAGE_BYTES):
        damage(closed, page * PAGE_BYTES, bytes(range(256)) * (PAGE_BYTES // 256))
        told = read_or_refuse(closed)
        if told is not None:
            told_of += 1
            assert told.damaged, page
            assert len(told.entries) + sum(end - begin for begin, end in told.damaged) == BLOCKS
        closed.write_bytes(content)
    assert (told_of > 20) == is_long


def test_a_file_that_was_cut_is_refused(closed: Path) -> None:
    content = closed.read_bytes()
    for pages in (1, 2, len(content) // PAGE_BYTES // 2):
        closed.write_bytes(content[: pages * PAGE_BYTES])
        with pytest.raises(LogDamagedError):
            open_log(closed)


def test_a_file_without_its_first_page_is_refused(closed: Path) -> None:
    damage(closed, 0, bytes(PAGE_BYTES))
    with pytest.raises(LogDamagedError, match="not a database"):
        open_log(closed)
    with pytest.raises(LogDamagedError):
        LogReader.open(closed)


def test_a_file_that_says_no_version_is_refused(closed: Path) -> None:
    damage(closed, 60, bytes(4))
    with pytest.raises(LogDamagedError, match="does not contain its format version"):
        open_log(closed)


def test_changed_state_is_refused(closed: Path) -> None:
    at = closed.read_bytes().index(b"t/0123")
    damage(closed, at, b"t/9")
    with pytest.raises(LogDamagedError):
        open_log(closed)


def test_blocks_out_of_order_are_refused_in_a_long_file_too(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.store.sqlite.QUICK_CHECK_BYTES", 0)
    store = open_log(closed)
    store.close()
    content = closed.read_bytes()
    body = content.index(b"GWB1" + store.log_secret + (170).to_bytes(8, "big"))
    key = content.rindex(bytes([0x81, 0x2A]), 0, body)  # 170 as SQLite writes the key of a row
    damage(closed, key, bytes([0xFF]))
    with pytest.raises(LogDamagedError, match="wrong place"):
        open_log(closed)


def test_only_the_newest_blocks_of_a_long_file_are_looked_at(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start takes no longer for a longer log."""
    monkeypatch.setattr("godwit.store.sqlite.QUICK_CHECK_BYTES", 0)
    monkeypatch.setattr("godwit.store.sqlite.CHECKED_BLOCKS", 10)
    store = open_log(closed)
    store.close()
    content = closed.read_bytes()
    body = content.index(b"GWB1" + store.log_secret + (170).to_bytes(8, "big"))
    damage(closed, content.rindex(bytes([0x81, 0x2A]), 0, body), bytes([0xFF]))
    open_log(closed).close()


def test_a_new_file_is_for_its_owner_alone(public_folder: Path) -> None:
    """In a folder that others can enter."""
    path = public_folder / "log.sqlite"
    store = open_log(path)
    store.append([make_entry()])
    assert {file.name: file.stat().st_mode & 0o777 for file in public_folder.iterdir()} == {
        "log.sqlite": 0o600,
        "log.sqlite-wal": 0o600,
        "log.sqlite-shm": 0o600,
        "log.sqlite-witness": 0o600,
    }
    store.close()


def test_the_write_ahead_log_is_lengthened_in_pieces_and_then_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    store = SqliteStore.open(path, new_log_id=LOG_ID, now_us=1)
    entries = [make_entry(b"%d" % number, received_us=number + 1) for number in range(60)]
    store.append(entries[:1])
    wanted = store.wal_bytes + EXTENSION_BYTES + 10
    assert store.extend_wal(wanted) is False
    assert store.extend_wal(wanted) is True
    assert store.wal_bytes == wanted
    assert store.extend_wal(wanted) is True
    for number, entry in enumerate(entries[1:]):
        store.append([entry])
        if number % 20 == 19:
            store.checkpoint(truncate=False)
    assert store.wal_bytes == wanted
    copy = tmp_path / "killed"  # as the files are when the process is killed
    copy.mkdir()
    for file in tmp_path.glob("log.sqlite*"):
        shutil.copy(file, copy)
    store.checkpoint(truncate=True)
    assert store.extend_wal(wanted) is True
    assert store.wal_bytes == 0, "the next commit begins it"
    store.close()
    again = SqliteStore.open(copy / "log.sqlite", new_log_id=bytes(16), now_us=2)
    assert again.findings == []
    assert [entry for _, entry in again.read(0, 1 << 20).entries] == entries
    again.close()
