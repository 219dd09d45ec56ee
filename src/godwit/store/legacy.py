"""Logs of the versions 1 to 3, which had one table per kind of state row: reading these tables, and the upgrade.

Version 1 is that of Godwit 0.3.0, version 2 that of 0.5.0; version 3 added epochs and quiet subscriptions. Each row of
these tables ends in a checksum, like those of the table `meta` (godwit.store.state). The tables `meta`, `blocks`,
`marks` and `epochs` are the same in all versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import apsw
import msgspec

from godwit.store.schema import BLOCKS, EPOCHS, FLOORS, LEGACY_VERSIONS, META, STATE, VERSION, schema_objects, tables
from godwit.store.state import apply_changes, select_valid
from godwit.wire.changes import (
    IdentityRow,
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
from godwit.wire.control import Will

QUIET: Final = "quiet_feeds"
"""The table that extended `feeds` in version 3. Its rows are not state rows by themselves."""

_Values: TypeAlias = tuple[Any, ...]

_decode_names: Final = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_will: Final = msgspec.msgpack.Decoder(Will).decode
_PREVIOUS_WORKERS: Final = TaskRow.__struct_fields__.index("previous_workers")


def legacy_tables(version: int) -> list[str]:
    """Return the tables of a version that the table `state` replaces."""
    return [name for name in tables(version) if name not in (META, BLOCKS, FLOORS, EPOCHS)]


def upgrade(connection: apsw.Connection, version: int) -> None:
    """Convert a log of an earlier version to the current one, within the caller's transaction.

    Version 4 has the same tables, and its rows are read as they are. Raise DamagedRowError if a row is damaged. The
    schema must have been checked.
    """
    if version not in LEGACY_VERSIONS:
        return
    quiet: dict[_Values, _Values] = {}
    if QUIET in tables(version):
        quiet = {row[:3]: row[3:] for row in _select(connection, QUIET)}
    rows: list[StateRow] = []
    for table in legacy_tables(version):
        if table != QUIET:
            rows += [legacy_row(table, values, quiet) for values in _select(connection, table)]
        connection.execute(f'DROP TABLE "{table}"')
    for _, name, _, sql in schema_objects(VERSION):
        if name in (STATE, EPOCHS) and name not in tables(version):
            connection.execute(sql)
    apply_changes(connection, rows)


def legacy_row(table: str, values: _Values, quiet: dict[_Values, _Values]) -> StateRow:
    """Return the state row in a row of an old table.

    Raise TypeError, ValueError or msgspec.MsgspecError if the values do not fit, which a valid checksum rules out.

    Args:
        table: The name of the table.
        values: The row without its checksum.
        quiet: The rows of the table `quiet_feeds`, by their key.
    """
    row = _CONVERSIONS[table](values)
    if isinstance(row, SubscriptionRow):
        quiet_from, is_settled = quiet.get(values[:3], (None, False))
        row = msgspec.structs.replace(row, quiet_from=quiet_from, is_settled=bool(is_settled))
    return row


def _select(connection: apsw.Connection, table: str) -> Iterable[_Values]:
    return select_valid(connection, f'SELECT * FROM "{table}"', table)


def _topic(values: _Values) -> TopicRow:
    name, messages, payload_bytes, last_us, is_created = values
    return TopicRow(name, messages, payload_bytes, last_us, bool(is_created))


def _session(values: _Values) -> SessionRow:
    name, instance, is_proved, expiry_s, ends_at_us, will = values
    decoded = None if will is None else _decode_will(will)
    return SessionRow(name, instance, bool(is_proved), expiry_s, ends_at_us, decoded)


def _subscription(values: _Values) -> SubscriptionRow:
    session, filters, cursor, resume_at, lost = values
    return SubscriptionRow(session, _decode_names(filters), cursor, resume_at, lost)


def _task(values: _Values) -> TaskRow:
    fields = list(values)
    fields[_PREVIOUS_WORKERS] = _decode_names(fields[_PREVIOUS_WORKERS])
    return TaskRow(*fields)


_CONVERSIONS: Final[dict[str, Callable[[_Values], StateRow]]] = {
    "topics": _topic,
    "retained": lambda values: RetainedRow(*values),
    "sessions": _session,
    "feeds": _subscription,
    "identities": lambda values: IdentityRow(*values),
    "queries": lambda values: QueryRow(*values),
    "next_job": lambda values: NextJobRow(values[1]),
    "jobs": lambda values: JobRow(*values),
    "job_payloads": lambda values: JobPayloadRow(*values),
    "tasks": _task,
}
