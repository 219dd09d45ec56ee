"""A file with anything but our own tables in it is not opened, whatever the rest of it is like."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random

import apsw
import pytest
from tests.store.damage import make_older_log, older_changes
from tests.store.entries import LOG_ID, make_entry, make_job, make_task

from godwit.errors import LogDamagedError, LogVersionError
from godwit.store import sql
from godwit.store.reader import LogReader
from godwit.store.schema import BLOCKS, META, check_schema, state_tables, tables
from godwit.store.sqlite import SqliteStore
from godwit.wire.changes import FeedKept, JobPayload, NextJob

ENDLESS = """
    DROP TABLE blocks;
    CREATE VIEW blocks AS
    WITH RECURSIVE r(first_offset) AS (SELECT 1 UNION ALL SELECT first_offset + 1 FROM r)
    SELECT first_offset, 0 end_offset, 0 received_us, 0 until_us, 0 seal, x'' topics, x'' body FROM r
"""
LONG = "n" * 5000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store = SqliteStore.open(tmp_path / "log.sqlite", new_log_id=LOG_ID, now_us=1)
    store.append([make_entry()])
    store.close()
    return store.path


def alter(path: Path, statement: str) -> bytes:
    """Change the file as somebody else can; what it is then."""
    connection = apsw.Connection(str(path))
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    connection.pragma("writable_schema", 1)
    connection.execute(statement)
    connection.pragma("journal_mode", "delete")
    connection.close()
    return path.read_bytes()


def test_the_tables_are_those_of_the_scripts() -> None:
    assert {BLOCKS, META, "topics", "retained", "sessions", "feeds"} <= set(tables())
    assert set(tables()) - set(state_tables()) == {BLOCKS, META}
    assert set(tables()) - set(tables(1)) == {"next_job", "jobs", "job_payloads", "tasks", "epochs", "quiet_feeds"}


def test_a_script_that_was_released_is_as_it_was() -> None:
    """Else no log that was made with it could be opened."""
    released = ["1764f64f7736becec754bcf4527206a44777167cb007031b98fc45224f3c4061"]
    found = [hashlib.sha256(script.encode()).hexdigest() for script in sql.MIGRATIONS]
    assert found[: len(released)] == released


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (ENDLESS, "the view 'blocks' in it is not ours"),
        ("CREATE TABLE more (x)", "the table 'more' in it is not ours"),
        (f'CREATE TABLE "{LONG}" (x)', f"the table '{LONG[:60]}' in it is not ours"),
        ("CREATE TRIGGER more AFTER INSERT ON blocks BEGIN DELETE FROM retained; END", "the trigger 'more' in it"),
        ("CREATE INDEX more ON blocks (abs(received_us))", "the index 'more' in it"),
        ("DROP TRIGGER end_of_deleted", "something is missing in it"),
        ("UPDATE sqlite_schema SET sql = sql || ' ' WHERE name = 'marks'", "the table 'marks' in it is not ours"),
        (
            "UPDATE sqlite_schema SET sql = replace(sql, 'floor', CAST(x'fb' AS TEXT)) WHERE name = 'marks'",
            "a text in its schema is no UTF-8",
        ),
    ],
)
def test_another_schema_is_refused_and_the_file_left_alone(path: Path, statement: str, words: str) -> None:
    content = alter(path, statement)
    with pytest.raises(LogDamagedError) as refused:
        LogReader.open(path)
    assert words in str(refused.value)
    assert len(str(refused.value)) < 500
    with pytest.raises(LogDamagedError) as refused:
        SqliteStore.open(path, new_log_id=LOG_ID, now_us=1)
    assert words in str(refused.value)
    assert path.read_bytes() == content


def test_a_file_of_an_older_version_has_the_schema_of_that(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "MIGRATIONS", (*sql.MIGRATIONS, "CREATE TABLE later (x)"))
    connection = apsw.Connection(str(path))
    check_schema(connection, path, len(sql.MIGRATIONS) - 1)
    with pytest.raises(LogDamagedError, match="something is missing"):
        check_schema(connection, path, len(sql.MIGRATIONS))
    SqliteStore.open(path, new_log_id=LOG_ID, now_us=1).close()
    check_schema(connection, path, len(sql.MIGRATIONS))
    connection.close()


def test_a_log_of_0_3_0_is_brought_forward(tmp_path: Path) -> None:
    """With all that is in it; from then on it keeps jobs too, and is read beside its writer."""
    path = tmp_path / "log.sqlite"
    entries = [make_entry(b"kept"), make_entry(b"as well", received_us=2)]
    make_older_log(path, entries, older_changes(3, Random(1)))
    newest = len(sql.MIGRATIONS)
    text = rf"its format is 1, and this one reads {newest}\. A broker brings it forward"
    with pytest.raises(LogVersionError, match=text):
        LogReader.open(path)
    for _ in range(2):
        store = SqliteStore.open(path, new_log_id=b"unused", now_us=2)
        assert (store.log_id, store.created_us, store.stamp) == (LOG_ID, 1, b"an older")
        assert [entry for _, entry in store.read(0, 2**20).entries] == entries
        state = store.state()
        assert [kept.name for kept in state.topics] == ["t/3"]
        assert len(state.retained) == len(state.sessions) == len(state.feeds) == len(state.identities) == 1
        store.append([], [make_job(1), JobPayload(1, b"payload"), make_task(1, 0), NextJob(2)])
        store.close()
    assert (state.next_job, state.jobs, state.tasks) == (2, [make_job(1)], [make_task(1, 0)])
    reader = LogReader.open(path)
    assert reader.next_offset() == 2
    reader.close()


def test_a_log_of_0_5_0_is_brought_forward(tmp_path: Path) -> None:
    """Its subscriptions are not known to be quiet; from then on they can be stored so."""
    path = tmp_path / "log.sqlite"
    old = FeedKept("me", ("a", "b/#"), None, 1, 2)
    make_older_log(path, [make_entry(), make_entry()], [old], version=2)
    store = SqliteStore.open(path, new_log_id=b"unused", now_us=2)
    state = store.state()
    assert state.feeds == [old]
    settled = FeedKept("me", ("a", "b/#"), None, 2, quiet_from=1, is_settled=True)
    store.append([], [settled])
    store.close()
    store = SqliteStore.open(path, new_log_id=b"unused", now_us=2)
    assert store.state().feeds == [settled]
    store.close()


def test_nothing_is_changed_when_a_step_forward_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.sqlite"
    make_older_log(path, [make_entry()], [])
    monkeypatch.setattr(sql, "MIGRATIONS", (*sql.MIGRATIONS, "CREATE TABLE jobs (x)"))
    with pytest.raises(LogDamagedError, match="table jobs already exists"):
        SqliteStore.open(path, new_log_id=b"unused", now_us=2)
    connection = apsw.Connection(str(path))
    assert connection.pragma("user_version") == 1
    check_schema(connection, path, 1)
    connection.close()


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_wal_without_its_file_is_not_written_over(path: Path, is_empty: bool) -> None:
    """Somebody has moved the one and forgotten the other: what is in it was confirmed."""
    store = SqliteStore.open(path, new_log_id=LOG_ID, now_us=1)
    store.append([make_entry()])
    wal = Path(f"{path}-wal")
    content = wal.read_bytes()
    store.close()
    wal.write_bytes(content)
    path.unlink()
    if is_empty:
        path.touch()
    for open_it in (LogReader.open, lambda path: SqliteStore.open(path, new_log_id=LOG_ID, now_us=1)):
        with pytest.raises(LogDamagedError, match=r"is missing or empty, and log.sqlite-wal beside it has messages"):
            open_it(path)
    assert wal.read_bytes() == content
    wal.unlink()
    with pytest.raises(LogDamagedError, match=r"is missing or empty, and messages up to offset 1 were confirmed"):
        SqliteStore.open(path, new_log_id=LOG_ID, now_us=1)
    Path(f"{path}-witness").unlink()
    SqliteStore.open(path, new_log_id=LOG_ID, now_us=1).close()
