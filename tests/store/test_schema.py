"""The schema: its scripts and statements, and that a file with another schema is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import apsw
import pytest
from tests.store.entries import LOG_ID, make_entry
from tests.store.older_logs import make_older_log

from godwit.errors import LogDamagedError
from godwit.store.reader import LogReader
from godwit.store.schema import (
    BLOCKS,
    EPOCHS,
    FLOORS,
    LEGACY_VERSIONS,
    META,
    QUERIES,
    STATE,
    VERSION,
    check_schema,
    parse_queries,
    schema_objects,
    script,
    tables,
)
from godwit.store.sqlite import SqliteStore

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
    """Change the file as another program can, and return its content."""
    connection = apsw.Connection(str(path))
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    connection.pragma("writable_schema", 1)
    connection.execute(statement)
    connection.pragma("journal_mode", "delete")
    connection.close()
    return path.read_bytes()


def test_the_tables_are_those_of_the_scripts() -> None:
    assert tables() == [META, BLOCKS, FLOORS, EPOCHS, STATE]
    assert {META, BLOCKS, FLOORS, "topics", "retained", "sessions", "feeds"} <= set(tables(1))
    assert set(tables(3)) - set(tables(1)) == {"next_job", "jobs", "job_payloads", "tasks", EPOCHS, "quiet_feeds"}


def test_a_released_schema_is_as_it_was() -> None:
    """Else no log that was made with it could be opened."""
    released = [
        "a0201f45327636dd1b8d0c3ff7ce93ff339d7c66c7cbff96e64ae1d38d59ed8f",
        "0848b8882b91034986d4b98266ea2917df2ad4c53021392a8531227d8642f984",
        "cf1255f45a685372f4a4e7a927226e947524d02ca99140e7e947f3919973408d",
        "eeae4ae9d80d92bd818c781b6eda13988c3480e8ff06b66458ae9f9c74085225",
    ]
    found = [hashlib.sha256(repr(schema_objects(version)).encode()).hexdigest() for version in range(1, VERSION)]
    assert found == released


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (ENDLESS, "the view 'blocks' in it is not ours"),
        ("CREATE TABLE more (x)", "the table 'more' in it is not ours"),
        (f'CREATE TABLE "{LONG}" (x)', f"the table '{LONG[:60]}' in it is not ours"),
        ("CREATE TRIGGER more AFTER INSERT ON blocks BEGIN DELETE FROM state; END", "the trigger 'more' in it"),
        ("CREATE INDEX more ON blocks (abs(received_us))", "the index 'more' in it"),
        ("DROP TRIGGER end_of_deleted", "something is missing in it"),
        ("UPDATE sqlite_schema SET sql = sql || ' ' WHERE name = 'marks'", "the table 'marks' in it is not ours"),
        (
            "UPDATE sqlite_schema SET sql = replace(sql, 'floor', CAST(x'fb' AS TEXT)) WHERE name = 'marks'",
            "a text in its schema is not UTF-8",
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


def test_a_file_of_an_older_version_has_the_schema_of_that(tmp_path: Path) -> None:
    for version in range(1, VERSION):
        path = tmp_path / f"{version}.sqlite"
        make_older_log(path, [make_entry()], [], version)
        connection = apsw.Connection(str(path))
        check_schema(connection, path, version)
        if version in LEGACY_VERSIONS:
            with pytest.raises(LogDamagedError, match=r"something is missing|is not ours"):
                check_schema(connection, path, VERSION)
        SqliteStore.open(path, new_log_id=LOG_ID, now_us=1).close()
        check_schema(connection, path, VERSION)
        connection.close()


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_wal_without_its_file_is_not_written_over(path: Path, is_empty: bool) -> None:
    """The log was moved without its WAL, which contains confirmed messages."""
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


def test_statements_are_found_by_name() -> None:
    text = "-- What this is.\n\n-- name: one\nSELECT 1;\n\n-- name: two\n-- why\nSELECT 2\nFROM x;\n"
    assert parse_queries(text) == {"one": "SELECT 1;", "two": "-- why\nSELECT 2\nFROM x;"}


def test_a_name_is_given_once() -> None:
    with pytest.raises(ValueError, match="named one"):
        parse_queries("\n-- name: one\nSELECT 1;\n-- name: one\nSELECT 2;\n")


def test_every_statement_fits_the_schema() -> None:
    connection = apsw.Connection(":memory:")
    connection.execute(script())
    for name, statement in QUERIES.items():
        connection.execute(statement, [None] * statement.count("?"), explain=1).fetchall()
        assert name.partition("_")[0] in {"insert", "select", "upsert", "replace", "delete"}
