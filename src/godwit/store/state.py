"""The tables beside the message log: the log's own metadata and retention floors, and the broker's state rows.

Table `state` has one row per state row of godwit.wire.changes:

    kind      which struct: "topic", "retained", "session", ... (see _KINDS)
    key       the key fields, as a MessagePack array. MessagePack integers and strings are prefix-free and keep the
              order of numbers, so all tasks of a job, or all subscriptions of a session, are one range of keys
    value     all fields, as a MessagePack array. A field that was added later is missing in older rows and gets its
              default; a field of a newer version is ignored. So a new field needs no new version of the file
    checksum  CRC-32C of kind, key and value

The other tables have columns of their own and end in a checksum of the row (column `seal`): CRC-32C of a MessagePack
array of the other values. A broker trusts all these rows at its start, so a row with a wrong checksum is an error.

The log secret (`stamp` in the table `meta`) is 8 random bytes in the header of every block. Only programs that can read
the file know it. A block that is found without the table around it (godwit.store.recover) is thereby known to be the
log's own, and not one that a publisher put into a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, Final, TypeAlias

import apsw
import msgspec
from crc32c import crc32c

from godwit.store.block import SECRET_BYTES
from godwit.store.connection import DamagedRowError
from godwit.store.schema import FLOORS, META, QUERIES, STATE
from godwit.wire.changes import (
    Change,
    FilterDeleted,
    FilterRow,
    IdentityDeleted,
    IdentityRow,
    JobDeleted,
    JobPayloadRow,
    JobRow,
    NextJobRow,
    PacketDeleted,
    PacketRow,
    QueryDeleted,
    QueryRow,
    RelayRow,
    RetainedRow,
    SessionDeleted,
    SessionRow,
    StateRow,
    StoredState,
    SubscriptionDeleted,
    SubscriptionRow,
    TaskRow,
    TopicDeleted,
    TopicRow,
    job_parts,
)

_Values: TypeAlias = tuple[Any, ...]
_Statement: TypeAlias = tuple[str, _Values]

_encode: Final = msgspec.msgpack.Encoder().encode
_REPLACE: Final = QUERIES["replace_state"]
_DELETE: Final = QUERIES["delete_state"]
_DELETE_RANGE: Final = QUERIES["delete_state_range"]


# -- rows with a checksum ---------------------------------------------------------------------------------------------


def with_checksum(values: _Values) -> _Values:
    """Return a row of a table with columns of its own, with its checksum appended."""
    return (*values, crc32c(_encode(values)))


def has_valid_checksum(row: _Values) -> bool:
    """Return whether the last value of a row is the checksum of the others."""
    return bool(row[-1] == crc32c(_encode(row[:-1])))


def select_valid(connection: apsw.Connection, query: str, table: str) -> Iterator[_Values]:
    """Yield rows without their checksum. Raise DamagedRowError if one is wrong."""
    try:
        for row in connection.execute(query):
            if not has_valid_checksum(row):
                raise DamagedRowError(f"a row of the table {table} is not what was written")
            yield row[:-1]
    except UnicodeDecodeError:
        raise DamagedRowError(f"a text in the table {table} is not UTF-8") from None


# -- metadata ---------------------------------------------------------------------------------------------------------


class LogMeta(msgspec.Struct, frozen=True):
    """The properties of a log that never change."""

    log_id: bytes
    created_us: int
    stamp: bytes
    """The log secret."""


def new_secret(connection: apsw.Connection) -> bytes:
    """Return a new log secret, made by SQLite, which has access to the system's randomness."""
    secret: bytes = connection.execute(QUERIES["select_random"], (SECRET_BYTES,)).get
    return secret


def store_meta(connection: apsw.Connection, meta: LogMeta, end_offset: int = 0) -> None:
    """Write the metadata of a new log, within the caller's transaction."""
    rows = [with_checksum(pair) for pair in msgspec.structs.asdict(meta).items()]
    connection.executemany(QUERIES["insert_meta"], [*rows, ("end_offset", end_offset, 0)])


def load_meta(connection: apsw.Connection) -> LogMeta:
    """Return the metadata. Raise DamagedRowError if it is damaged or incomplete."""
    found: dict[str, Any] = dict(select_valid(connection, QUERIES["select_meta"], META))
    try:
        return msgspec.convert(found, LogMeta)
    except msgspec.ValidationError:
        raise DamagedRowError("the table meta lacks a row") from None


# -- retention floors -------------------------------------------------------------------------------------------------


def store_floor(connection: apsw.Connection, pattern: str, floor: int) -> None:
    """Set the retention floor of a rule, within the caller's transaction."""
    connection.execute(QUERIES["upsert_floor"], with_checksum((pattern, floor)))


def load_floors(connection: apsw.Connection) -> dict[str, int]:
    """Return the retention floors by the filter of their rule. Raise DamagedRowError if one is damaged."""
    return dict(select_valid(connection, QUERIES["select_floors"], FLOORS))


# -- state rows -------------------------------------------------------------------------------------------------------


def apply_changes(connection: apsw.Connection, changes: Iterable[Change]) -> None:
    """Write changes in order, within the caller's transaction, with one executemany for each run of a statement."""
    runs: list[tuple[str, list[_Values]]] = []
    for change in changes:
        statement, values = _STATEMENTS[type(change)](change)
        if runs and runs[-1][0] == statement:
            runs[-1][1].append(values)
        else:
            runs.append((statement, [values]))
    for statement, rows in runs:
        connection.executemany(statement, rows)


def load_state(connection: apsw.Connection) -> StoredState:
    """Return all state rows and retention floors. Raise DamagedRowError if one is damaged."""
    try:
        state = collect_state(decode_row(*row) for row in connection.execute(QUERIES["select_state"]))
    except UnicodeDecodeError:
        raise DamagedRowError(f"a text in the table {STATE} is not UTF-8") from None
    state.retention_floors = load_floors(connection)
    return state


def collect_state(rows: Iterable[StateRow]) -> StoredState:
    """Return these rows as a StoredState without retention floors."""
    found: dict[type, list[Any]] = {row_type: [] for row_type in _KINDS}
    for row in rows:
        found[type(row)].append(row)
    jobs, payloads, tasks = _split_jobs(found[JobRow], found[JobPayloadRow], found[TaskRow])
    return StoredState(
        topics=sorted(found[TopicRow], key=attrgetter("name")),
        retained=found[RetainedRow],
        sessions=found[SessionRow],
        subscriptions=found[SubscriptionRow],
        filters=found[FilterRow],
        packets=found[PacketRow],
        identities=sorted(found[IdentityRow], key=attrgetter("last_us", "owner", "publisher", "topic")),
        queries=sorted(found[QueryRow], key=attrgetter("last_us", "query")),
        relays=found[RelayRow],
        next_job=next((row.job for row in found[NextJobRow]), 1),
        jobs=jobs,
        payloads=payloads,
        tasks=tasks,
    )


def _split_jobs(
    jobs: list[JobRow], payloads: list[JobPayloadRow], tasks: list[TaskRow]
) -> tuple[list[JobRow], list[JobPayloadRow], list[TaskRow]]:
    """Return the rows of jobs without payloads and tasks, and all rows of payloads and of tasks, ordered by number.

    A job's row is newer than the separate rows of its payload and its only task, which an older version has written.
    """
    found_jobs: list[JobRow] = []
    found_payloads = {row.job: row for row in payloads}
    found_tasks = {(row.job, row.number): row for row in tasks}
    for row in jobs:
        job, payload, task = job_parts(row)
        found_jobs.append(job)
        if payload is not None:
            found_payloads[job.job] = payload
        if task is not None:
            found_tasks[job.job, 0] = task
    return (
        found_jobs,
        sorted(found_payloads.values(), key=attrgetter("job")),
        sorted(found_tasks.values(), key=attrgetter("job", "number")),
    )


def load_topics(connection: apsw.Connection) -> list[TopicRow]:
    """Return the topics, ordered by name."""
    return sorted(_load_kind(connection, TopicRow), key=attrgetter("name"))


def load_queries(connection: apsw.Connection) -> dict[str, int]:
    """Return the newest committed batch of each query that stages messages."""
    return {row.query: row.batch for row in _load_kind(connection, QueryRow)}


def unsettle_subscriptions(connection: apsw.Connection, end_offset: int) -> None:
    """Let settled subscriptions resume at an offset, within the caller's transaction.

    Needed when blocks are appended that the state rows do not know of: some may be for these subscriptions.
    """
    settled = [row for row in load_state(connection).subscriptions if row.is_settled]
    apply_changes(connection, [msgspec.structs.replace(row, resume_at=end_offset, is_settled=False) for row in settled])


def decode_row(kind: Any, key: Any, value: Any, checksum: Any) -> StateRow:
    """Return the state row in a row of the table `state`. Raise DamagedRowError if it is not what was written."""
    known = _DECODERS.get(kind)
    if known is None or not isinstance(key, bytes) or not isinstance(value, bytes):
        raise DamagedRowError(f"a row of the table {STATE} is of an unknown kind")
    kind_checksum, decode = known
    if checksum != crc32c(value, crc32c(key, kind_checksum)):
        raise DamagedRowError(f"a row of the table {STATE} is not what was written ({kind})")
    try:
        return decode(value)
    except msgspec.MsgspecError as error:
        raise DamagedRowError(f"a row of the table {STATE} has other fields ({kind}: {error})") from error


def _load_kind(connection: apsw.Connection, row_type: type) -> list[Any]:
    kind = _KINDS[row_type][0]
    return [decode_row(*row) for row in connection.execute(QUERIES["select_state_of_kind"], (kind,))]


def _replacement(kind: str, key_fields: tuple[str, ...]) -> Callable[[Any], _Statement]:
    """Return the function that makes a row of one kind a statement with its values."""
    kind_checksum = crc32c(kind.encode())
    key_of = attrgetter(*key_fields) if key_fields else _no_key
    is_single = len(key_fields) == 1

    def statement(row: StateRow) -> _Statement:
        key = _encode((key_of(row),) if is_single else key_of(row))
        value = _encode(row)
        return _REPLACE, (kind, key, value, crc32c(value, crc32c(key, kind_checksum)))

    return statement


def _no_key(row: StateRow) -> tuple[()]:
    return ()


def _deletion(row_type: type) -> Callable[[Any], _Statement]:
    """Return the function for a deletion, whose fields are the key of the row."""
    kind = _KINDS[row_type][0]
    return lambda change: (_DELETE, (kind, _encode(msgspec.structs.astuple(change))))


def _retained(row: RetainedRow) -> _Statement:
    if row.payload:
        return _REPLACEMENTS[RetainedRow](row)
    return _DELETE, (_KINDS[RetainedRow][0], _encode((row.topic,)))


def _delete_session(change: SessionDeleted) -> _Statement:
    key = (_KINDS[SessionRow][0], _encode((change.name,)))
    ranges = [_keys_under(row_type, change.name) for row_type in (SubscriptionRow, FilterRow, PacketRow)]
    return _DELETE + 3 * _DELETE_RANGE, (*key, *ranges[0], *ranges[1], *ranges[2])


def _delete_subscription(change: SubscriptionDeleted) -> _Statement:
    key = (_KINDS[SubscriptionRow][0], _encode(msgspec.structs.astuple(change)))
    if change.filters:
        return _DELETE, key
    ranges = [_keys_under(row_type, change.session) for row_type in (FilterRow, PacketRow)]
    return _DELETE + 2 * _DELETE_RANGE, (*key, *ranges[0], *ranges[1])


def _delete_job(change: JobDeleted) -> _Statement:
    key = _encode((change.job,))
    keys = (_KINDS[JobRow][0], key, _KINDS[JobPayloadRow][0], key)
    return _DELETE + _DELETE + _DELETE_RANGE, (*keys, *_keys_under(TaskRow, change.job))


def _keys_under(row_type: type, first_key_field: Any) -> tuple[str, bytes, bytes]:
    """Return the kind of a row, and the range of keys that begin with this field."""
    kind, key_fields = _KINDS[row_type]
    begin = bytes([0x90 + len(key_fields)]) + _encode(first_key_field)  # the header of a short array, and its start
    return kind, begin, (int.from_bytes(begin, "big") + 1).to_bytes(len(begin), "big")


_KINDS: Final[dict[type, tuple[str, tuple[str, ...]]]] = {
    TopicRow: ("topic", ("name",)),
    RetainedRow: ("retained", ("topic",)),
    SessionRow: ("session", ("name",)),
    SubscriptionRow: ("subscription", ("session", "filters", "cursor")),
    FilterRow: ("filter", ("session", "filter")),
    PacketRow: ("packet", ("session", "is_outgoing", "number")),
    IdentityRow: ("identity", ("owner", "publisher", "topic")),
    QueryRow: ("query", ("query",)),
    RelayRow: ("relay", ("link", "log")),
    NextJobRow: ("next job", ()),
    JobRow: ("job", ("job",)),
    JobPayloadRow: ("job payload", ("job",)),
    TaskRow: ("task", ("job", "number")),
}
_DECODERS: Final[dict[Any, tuple[int, Callable[[bytes], StateRow]]]] = {
    kind: (crc32c(kind.encode()), msgspec.msgpack.Decoder(row_type).decode) for row_type, (kind, _) in _KINDS.items()
}
_REPLACEMENTS: Final = {row_type: _replacement(*kind) for row_type, kind in _KINDS.items()}
_STATEMENTS: Final[dict[type, Callable[[Any], _Statement]]] = {
    **_REPLACEMENTS,
    RetainedRow: _retained,
    TopicDeleted: _deletion(TopicRow),
    SessionDeleted: _delete_session,
    SubscriptionDeleted: _delete_subscription,
    FilterDeleted: _deletion(FilterRow),
    PacketDeleted: _deletion(PacketRow),
    IdentityDeleted: _deletion(IdentityRow),
    QueryDeleted: _deletion(QueryRow),
    JobDeleted: _delete_job,
}
