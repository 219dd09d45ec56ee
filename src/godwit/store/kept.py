"""What changes beside the log, as rows: from changes to statements, and from rows to the state of a broker.

Each row ends in a seal, a checksum of its other values. A broker believes these rows at its start, and gives retained
messages to subscribers, so a row that is not what was written must not pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, Final, TypeAlias

import apsw
import msgspec
from crc32c import crc32c

from godwit.store.sql import QUERIES
from godwit.wire.changes import (
    Change,
    FeedGone,
    FeedKept,
    IdentityGone,
    IdentityKept,
    JobGone,
    JobKept,
    JobPayload,
    NextJob,
    QueryDone,
    QueryGone,
    RetainedKept,
    SessionGone,
    SessionKept,
    State,
    TaskKept,
    TopicGone,
    TopicKept,
)
from godwit.wire.control import Will

_Values: TypeAlias = tuple[Any, ...]

_pack: Final = msgspec.msgpack.Encoder().encode
_pack_text: Final = msgspec.json.Encoder().encode
_unpack_names: Final = msgspec.json.Decoder(tuple[str, ...]).decode
_unpack_will: Final = msgspec.msgpack.Decoder(Will).decode
_astuple: Final = msgspec.structs.astuple
_HAD: Final = TaskKept.__struct_fields__.index("had")


class DamagedRowError(Exception):
    """A row beside the log is not what was written."""


def apply(connection: apsw.Connection, changes: Iterable[Change]) -> None:
    """In this order, within the caller's transaction; those of a kind that follow one another go together."""
    for statement, run in groupby(map(_statement, changes), key=_sql):
        connection.executemany(statement, [values for _, values in run])


def set_mark(connection: apsw.Connection, pattern: str, floor: int) -> None:
    """Up to which offset a rule of retention has deleted; within the caller's transaction."""
    connection.execute(QUERIES["upsert_mark"], sealed((pattern, floor)))


def load_state(connection: apsw.Connection) -> State:
    """All that is kept. Raises DamagedRowError when a row is not what was written."""
    quiet = {row[:3]: row[3:] for row in _rows(connection, "quiet_feeds")}
    return State(
        topics=topics_of(connection),
        retained=[RetainedKept(*row) for row in _rows(connection, "retained")],
        sessions=[_session(*row) for row in _rows(connection, "sessions")],
        feeds=[_feed(*row, *quiet.get(row[:3], (None, 0))) for row in _rows(connection, "feeds")],
        identities=[IdentityKept(*row) for row in _rows(connection, "identities")],
        queries=[QueryDone(*row) for row in _rows(connection, "queries")],
        next_job=next((job for _, job in _rows(connection, "next_job")), 1),
        jobs=[JobKept(*row) for row in _rows(connection, "jobs")],
        payloads=[JobPayload(*row) for row in _rows(connection, "job_payloads")],
        tasks=[_task(*row) for row in _rows(connection, "tasks")],
        marks=marks_of(connection),
    )


def unsettle(connection: apsw.Connection, end_offset: int) -> None:
    """Store for the settled subscriptions that they resume at an offset; within the caller's transaction.

    For a log that gets blocks from behind its end, as of which its rows are: some of them may be for these.
    """
    feeds = [feed for feed in load_state(connection).feeds if feed.is_settled]
    apply(connection, [msgspec.structs.replace(feed, resume_at=end_offset, is_settled=False) for feed in feeds])


def topics_of(connection: apsw.Connection) -> list[TopicKept]:
    return [_topic(*row) for row in _rows(connection, "topics")]


def queries_of(connection: apsw.Connection) -> dict[str, int]:
    """The newest batch of each."""
    return {query: batch for query, batch, _ in _rows(connection, "queries")}


def marks_of(connection: apsw.Connection) -> dict[str, int]:
    return dict(_rows(connection, "marks"))


def sealed(values: _Values) -> _Values:
    """A row with its seal."""
    return (*values, crc32c(_pack(values)))


def is_sealed(row: _Values) -> bool:
    """Whether a row's last value is the seal of the others."""
    return bool(row[-1] == crc32c(_pack(row[:-1])))


def _rows(connection: apsw.Connection, table: str) -> list[_Values]:
    found = []
    try:
        for row in connection.execute(QUERIES[f"select_{table}"]):
            if not is_sealed(row):
                raise DamagedRowError(f"a row of the table {table} is not what was written")
            found.append(row[:-1])
    except UnicodeDecodeError:
        raise DamagedRowError(f"a text in the table {table} is no UTF-8") from None
    return found


def _topic(name: str, messages: int, payload_bytes: int, last_us: int, is_created: int) -> TopicKept:
    return TopicKept(name, messages, payload_bytes, last_us, bool(is_created))


def _session(
    name: str, instance: bytes, is_proved: int, expiry_s: int, ends_at_us: int | None, will: bytes | None
) -> SessionKept:
    return SessionKept(
        name, instance, bool(is_proved), expiry_s, ends_at_us, None if will is None else _unpack_will(will)
    )


def _feed(
    session: str, filters: str, cursor: str | None, resume_at: int, lost: int, quiet_from: int | None, is_settled: int
) -> FeedKept:
    return FeedKept(
        session, _unpack_names(filters), cursor, resume_at, lost, quiet_from=quiet_from, is_settled=bool(is_settled)
    )


def _task(*row: Any) -> TaskKept:
    values = list(row)
    values[_HAD] = _unpack_names(values[_HAD])
    return TaskKept(*values)


# -- from a change to a statement and its values ----------------------------------------------------------------------

_FORGET_QUIET: Final = QUERIES["upsert_feed"] + QUERIES["delete_quiet_feed"]
_UPSERT_QUIET: Final = QUERIES["upsert_feed"] + QUERIES["upsert_quiet_feed"]
_DELETE_FEED: Final = QUERIES["delete_feed"] + QUERIES["delete_quiet_feed"]


def _sql(pair: tuple[str, _Values]) -> str:
    return pair[0]


def _statement(change: Change) -> tuple[str, _Values]:
    return _STATEMENTS[type(change)](change)


def _plain(name: str) -> Callable[[Any], tuple[str, _Values]]:
    """For a change whose fields are the columns."""
    sql = QUERIES[name]

    def statement(change: Change) -> tuple[str, _Values]:
        values = _astuple(change)
        return sql, (*values, crc32c(_pack(values)))

    return statement


def _gone(name: str) -> Callable[[Any], tuple[str, _Values]]:
    sql = QUERIES[name]
    return lambda change: (sql, _astuple(change))


def _kept_topic(change: TopicKept) -> tuple[str, _Values]:
    values = (change.name, change.messages, change.payload_bytes, change.last_us, int(change.is_created))
    return QUERIES["upsert_topic"], sealed(values)


def _retained(change: RetainedKept) -> tuple[str, _Values]:
    if not change.payload:
        return QUERIES["delete_retained"], (change.topic,)
    return QUERIES["upsert_retained"], sealed(_astuple(change))


def _kept_session(change: SessionKept) -> tuple[str, _Values]:
    will = None if change.will is None else _pack(change.will)
    values = (change.name, change.instance, int(change.is_proved), change.expiry_s, change.ends_at_us, will)
    return QUERIES["upsert_session"], sealed(values)


def _gone_session(change: SessionGone) -> tuple[str, _Values]:
    return QUERIES["delete_session"], (change.name,) * 3


def _kept_feed(change: FeedKept) -> tuple[str, _Values]:
    key = change.session, _pack_text(change.filters).decode(), change.cursor
    row = sealed((*key, change.resume_at, change.lost))
    if change.quiet_from is None:
        return _FORGET_QUIET, (*row, *key)
    return _UPSERT_QUIET, (*row, *sealed((*key, change.quiet_from, int(change.is_settled))))


def _gone_feed(change: FeedGone) -> tuple[str, _Values]:
    return _DELETE_FEED, (change.session, _pack_text(change.filters).decode(), change.cursor) * 2


def _gone_job(change: JobGone) -> tuple[str, _Values]:
    return QUERIES["delete_job"], (change.job,) * 3


def _kept_task(change: TaskKept) -> tuple[str, _Values]:
    values = _astuple(change)
    had = _pack_text(change.had).decode() if change.had else "[]"
    return QUERIES["replace_task"], sealed((*values[:_HAD], had, *values[_HAD + 1 :]))


def _next_job(change: NextJob) -> tuple[str, _Values]:
    return QUERIES["replace_next_job"], sealed((0, change.job))


_STATEMENTS: Final[dict[type, Callable[[Any], tuple[str, _Values]]]] = {
    TopicKept: _kept_topic,
    TopicGone: _gone("delete_topic"),
    RetainedKept: _retained,
    SessionKept: _kept_session,
    SessionGone: _gone_session,
    FeedKept: _kept_feed,
    FeedGone: _gone_feed,
    IdentityKept: _plain("upsert_identity"),
    IdentityGone: _gone("delete_identity"),
    QueryDone: _plain("upsert_query"),
    QueryGone: _gone("delete_query"),
    JobKept: _plain("replace_job"),
    JobPayload: _plain("replace_job_payload"),
    JobGone: _gone_job,
    TaskKept: _kept_task,
    NextJob: _next_job,
}
