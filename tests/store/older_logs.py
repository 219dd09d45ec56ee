"""Logs as earlier versions of Godwit wrote them, with one table per kind of state row."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import apsw
import msgspec
from crc32c import crc32c
from tests.store.damage import changes_of
from tests.store.entries import LOG_ID

from godwit.store.block import encode_blocks
from godwit.store.schema import APPLICATION_ID, LEGACY_VERSIONS, QUERIES, script
from godwit.store.sqlite_pages import PAGE_BYTES
from godwit.store.state import LogMeta, apply_changes, store_meta, with_checksum
from godwit.wire.batch import Entry
from godwit.wire.changes import (
    IdentityRow,
    JobDeleted,
    JobPayloadRow,
    JobRow,
    NextJobRow,
    QueryRow,
    RetainedRow,
    SessionRow,
    StateRow,
    SubscriptionRow,
    TaskRow,
    TopicRow,
)

TABLES = {
    TopicRow: "topics",
    RetainedRow: "retained",
    SessionRow: "sessions",
    SubscriptionRow: "feeds",
    IdentityRow: "identities",
    QueryRow: "queries",
    JobRow: "jobs",
    JobPayloadRow: "job_payloads",
    TaskRow: "tasks",
    NextJobRow: "next_job",
}


def make_older_log(path: Path, entries: list[Entry], rows: list[StateRow], version: int = 1) -> None:
    """Make a log of a version: 1 is that of 0.3.0, 2 that of 0.5.0, 3 has epochs, 4 has one table of state rows."""
    connection = apsw.Connection(str(path))
    connection.pragma("page_size", PAGE_BYTES)
    connection.pragma("journal_mode", "wal")
    with connection:
        connection.execute(script(version))
        meta = LogMeta(LOG_ID, 1, b"an older")
        store_meta(connection, meta)
        blocks = encode_blocks(entries, 0, meta.stamp)
        connection.executemany(QUERIES["insert_block"], map(msgspec.structs.astuple, blocks))
        if version not in LEGACY_VERSIONS:
            apply_changes(connection, [row for row in rows if not isinstance(row, JobRow)])
            for job in [row for row in rows if isinstance(row, JobRow)]:
                _insert_job(connection, job)
            rows = []
        for row in rows:
            _insert(connection, TABLES[type(row)], columns_of(row))
            if isinstance(row, SubscriptionRow) and row.quiet_from is not None:
                quiet = (*columns_of(row)[:3], row.quiet_from, int(row.is_settled))
                _insert(connection, "quiet_feeds", quiet)
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", version)
    connection.close()


def columns_of(row: StateRow) -> tuple[Any, ...]:
    """Return a row as it was stored in its table, without the checksum."""
    match row:
        case TopicRow():
            return row.name, row.messages, row.payload_bytes, row.last_us, int(row.is_created)
        case RetainedRow():
            return msgspec.structs.astuple(row)[:7]  # it had no extension
        case SessionRow():
            will = None if row.will is None else msgspec.msgpack.encode(row.will)
            return row.name, row.instance, int(row.is_proved), row.expiry_s, row.ends_at_us, will
        case SubscriptionRow():
            return row.session, msgspec.json.encode(row.filters).decode(), row.cursor, row.resume_at, row.lost
        case TaskRow():
            values = list(msgspec.structs.astuple(row))
            values[10] = msgspec.json.encode(row.previous_workers).decode()
            return tuple(values)
        case NextJobRow():
            return 0, row.job
        case JobRow():
            return msgspec.structs.astuple(row)[:16]  # it had no payload and no task
    return msgspec.structs.astuple(row)


def _insert(connection: apsw.Connection, table: str, values: tuple[Any, ...]) -> None:
    row = with_checksum(values)
    connection.execute(f"REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def _insert_job(connection: apsw.Connection, row: JobRow) -> None:
    """Write the row of a job as version 4 did."""
    key = msgspec.msgpack.encode((row.job,))
    value = msgspec.msgpack.encode(columns_of(row))
    connection.execute(QUERIES["replace_state"], ("job", key, value, crc32c(value, crc32c(key, crc32c(b"job")))))


def older_rows(number: int, rng: Random) -> list[StateRow]:
    """Return the rows of a log that was written before there were jobs."""
    newer = (JobDeleted, JobRow, JobPayloadRow, NextJobRow, TaskRow)
    rows: list[StateRow] = [change for change in changes_of(number, rng) if not isinstance(change, newer)]  # type: ignore[misc]
    return rows
