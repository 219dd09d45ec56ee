"""The tables beside the messages: every change is stored and loaded, and every damaged row is noticed."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import apsw
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.entries import make_job, make_task

from godwit.limits import MAX_JOB_PAYLOAD_BYTES
from godwit.store.block import SECRET_BYTES
from godwit.store.connection import DamagedRowError
from godwit.store.schema import FLOORS, STATE, script
from godwit.store.state import (
    LogMeta,
    apply_changes,
    has_valid_checksum,
    load_floors,
    load_meta,
    load_queries,
    load_state,
    load_topics,
    new_secret,
    store_floor,
    store_meta,
    unsettle_subscriptions,
    with_checksum,
)
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
    RetainedRow,
    SessionDeleted,
    SessionRow,
    StoredState,
    SubscriptionDeleted,
    SubscriptionRow,
    TaskRow,
    TopicDeleted,
    TopicRow,
)
from godwit.wire.control import Will

NAMES = st.sampled_from(["", "a", "a/b", "größe", "null", '["x"]'])
NUMBERS = st.integers(0, 2**63 - 1)
FILTERS = st.lists(NAMES, min_size=1, max_size=3).map(tuple)
WILLS = st.none() | st.builds(
    Will, topic=NAMES, payload=st.binary(max_size=5), qos=st.sampled_from([0, 1, 2]), retain=st.booleans()
)
CURSORS = st.none() | NAMES
JOBS = st.integers(1, 4)
TASK_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "state": st.sampled_from(["waiting", "leased", "finished"]),
    "worker": NAMES,
    "instance": st.binary(max_size=16),
    "fence": NUMBERS,
    "failures": NUMBERS,
    "losses": NUMBERS,
    "begins_us": NUMBERS,
    "since_us": NUMBERS,
    "previous_workers": st.lists(NAMES, max_size=3).map(tuple),
    "result": st.binary(max_size=4),
    "error": NAMES,
}
TASKS_KEPT = st.builds(TaskRow, JOBS, st.integers(0, 2), **TASK_FIELDS)
JOB_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "controller": NAMES,
    "key": NAMES,
    "kind": NAMES,
    "workers": NUMBERS,
    "priority": st.integers(-100, 100),
    "submitted_us": NUMBERS,
    "begins_us": NUMBERS,
    "deadline_us": st.none() | NUMBERS,
    "retries": NUMBERS,
    "retry_delay_ms": NUMBERS,
    "time_limit_ms": st.none() | NUMBERS,
    "state": st.sampled_from(["waiting", "running", "done"]),
    "agreed": st.none() | NUMBERS,
    "ended_us": st.none() | NUMBERS,
    "reason": NAMES,
    "payload_bytes": st.none() | NUMBERS,
    "payload": st.none() | st.binary(max_size=4),
}
JOBS_KEPT = JOBS.flatmap(
    lambda job: st.builds(
        JobRow,
        st.just(job),
        **JOB_FIELDS,
        task=st.none() | st.builds(TaskRow, st.just(job), st.just(0), **TASK_FIELDS),
    )
)
CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(TopicRow, NAMES, NUMBERS, NUMBERS, NUMBERS, st.booleans()),
    st.builds(TopicDeleted, NAMES),
    st.builds(RetainedRow, NAMES, st.binary(max_size=4), NAMES, NUMBERS, NUMBERS, st.integers(0, 2), NUMBERS),
    st.builds(SessionRow, NAMES, st.binary(max_size=16), st.booleans(), NUMBERS, st.none() | NUMBERS, WILLS),
    st.builds(SessionDeleted, NAMES),
    st.builds(SubscriptionRow, NAMES, FILTERS, CURSORS, NUMBERS, NUMBERS),
    st.builds(SubscriptionRow, NAMES, FILTERS, CURSORS, NUMBERS, NUMBERS, quiet_from=NUMBERS, is_settled=st.booleans()),
    st.builds(SubscriptionDeleted, NAMES, FILTERS, CURSORS),
    st.builds(SubscriptionDeleted, NAMES, st.just(()), st.none()),
    st.builds(FilterRow, NAMES, NAMES, NUMBERS, st.none() | NUMBERS, NUMBERS, NUMBERS),
    st.builds(FilterDeleted, NAMES, NAMES),
    st.builds(PacketRow, NAMES, st.booleans(), NUMBERS),
    st.builds(PacketDeleted, NAMES, st.booleans(), NUMBERS),
    st.builds(IdentityRow, NAMES, NAMES, NAMES, NUMBERS, NUMBERS, NUMBERS),
    st.builds(IdentityDeleted, NAMES, NAMES, NAMES),
    st.builds(QueryRow, NAMES, NUMBERS, NUMBERS),
    st.builds(QueryDeleted, NAMES),
    JOBS_KEPT,
    st.builds(JobPayloadRow, JOBS, st.binary(max_size=4)),
    TASKS_KEPT,
    st.builds(JobDeleted, JOBS),
    st.builds(NextJobRow, NUMBERS),
)


def new_file() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute(script())
    return connection


class Model:
    """The same with dictionaries."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicRow] = {}
        self.retained: dict[str, RetainedRow] = {}
        self.sessions: dict[str, SessionRow] = {}
        self.subscriptions: dict[tuple[str, tuple[str, ...], str | None], SubscriptionRow] = {}
        self.filters: dict[tuple[str, str], FilterRow] = {}
        self.packets: dict[tuple[str, bool, int], PacketRow] = {}
        self.identities: dict[tuple[str, str, str], IdentityRow] = {}
        self.queries: dict[str, QueryRow] = {}
        self.next_job = 1
        self.jobs: dict[int, JobRow] = {}
        self.payloads: dict[int, JobPayloadRow] = {}
        self.tasks: dict[tuple[int, int], TaskRow] = {}

    def apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            match change:
                case TopicRow():
                    self.topics[change.name] = change
                case TopicDeleted():
                    self.topics.pop(change.name, None)
                case RetainedRow() if change.payload:
                    self.retained[change.topic] = change
                case RetainedRow():
                    self.retained.pop(change.topic, None)
                case SessionRow():
                    self.sessions[change.name] = change
                case SessionDeleted():
                    self.sessions.pop(change.name, None)
                    self.subscriptions = {
                        key: feed for key, feed in self.subscriptions.items() if feed.session != change.name
                    }
                    self._end_table(change.name)
                case SubscriptionRow():
                    self.subscriptions[change.session, change.filters, change.cursor] = change
                case SubscriptionDeleted():
                    self.subscriptions.pop((change.session, change.filters, change.cursor), None)
                    if not change.filters:
                        self._end_table(change.session)
                case IdentityRow():
                    self.identities[change.owner, change.publisher, change.topic] = change
                case IdentityDeleted():
                    self.identities.pop((change.owner, change.publisher, change.topic), None)
                case _:
                    self._apply_more(change)

    def _end_table(self, session: str) -> None:
        self.filters = {key: row for key, row in self.filters.items() if row.session != session}
        self.packets = {key: row for key, row in self.packets.items() if row.session != session}

    def _apply_more(self, change: Change) -> None:
        match change:
            case FilterRow():
                self.filters[change.session, change.filter] = change
            case FilterDeleted():
                self.filters.pop((change.session, change.filter), None)
            case PacketRow():
                self.packets[change.session, change.is_outgoing, change.number] = change
            case PacketDeleted():
                self.packets.pop((change.session, change.is_outgoing, change.number), None)
            case QueryRow():
                self.queries[change.query] = change
            case QueryDeleted():
                self.queries.pop(change.query, None)
            case JobRow():
                self.jobs[change.job] = change
            case JobPayloadRow():
                self.payloads[change.job] = change
            case TaskRow():
                self.tasks[change.job, change.number] = change
            case JobDeleted():
                self.jobs.pop(change.job, None)
                self.payloads.pop(change.job, None)
                self.tasks = {key: task for key, task in self.tasks.items() if task.job != change.job}
            case NextJobRow():
                self.next_job = change.job

    def agrees_with(self, state: StoredState) -> None:
        assert {kept.name: kept for kept in state.topics} == self.topics
        assert {kept.topic: kept for kept in state.retained} == self.retained
        assert {kept.name: kept for kept in state.sessions} == self.sessions
        assert {(kept.session, kept.filters, kept.cursor): kept for kept in state.subscriptions} == self.subscriptions
        assert {(row.session, row.filter): row for row in state.filters} == self.filters
        assert {(row.session, row.is_outgoing, row.number): row for row in state.packets} == self.packets
        assert {(kept.owner, kept.publisher, kept.topic): kept for kept in state.identities} == self.identities
        assert {kept.query: kept for kept in state.queries} == self.queries
        assert [kept.last_us for kept in state.queries] == sorted(kept.last_us for kept in state.queries)
        assert state.next_job == self.next_job
        payloads, tasks = self.payloads.copy(), self.tasks.copy()
        for job in self.jobs.values():  # a payload and a task in it are newer than rows of their own
            if job.payload is not None:
                payloads[job.job] = JobPayloadRow(job.job, job.payload)
            if job.task is not None:
                tasks[job.job, 0] = job.task
        assert state.jobs == [
            msgspec.structs.replace(self.jobs[job], payload=None, task=None) for job in sorted(self.jobs)
        ]
        assert state.payloads == [payloads[job] for job in sorted(payloads)]
        assert state.tasks == [tasks[key] for key in sorted(tasks)]
        assert len(state.subscriptions) == len(self.subscriptions)
        assert [kept.last_us for kept in state.identities] == sorted(kept.last_us for kept in state.identities)


@given(st.lists(st.lists(CHANGES, max_size=12), max_size=4))
def test_any_changes_against_dictionaries(appends: list[list[Change]]) -> None:
    connection = new_file()
    model = Model()
    for changes in appends:
        apply_changes(connection, changes)
        model.apply(changes)
        model.agrees_with(load_state(connection))
    assert load_topics(connection) == load_state(connection).topics
    assert load_queries(connection) == {query: kept.batch for query, kept in model.queries.items()}


def test_the_last_change_of_a_key_counts() -> None:
    connection = new_file()
    apply_changes(connection, [TopicRow("a", 1), TopicRow("a", 2), TopicRow("b", 3)])
    assert [(kept.name, kept.messages) for kept in load_state(connection).topics] == [("a", 2), ("b", 3)]


def test_a_deleted_session_takes_its_subscriptions_and_no_others() -> None:
    connection = new_file()
    kept = [SubscriptionRow(name, ("x",), cursor, 3, quiet_from=1) for name in ("a", "b") for cursor in (None, "", "c")]
    again = SubscriptionRow("a", ("x",), None, 1)
    apply_changes(connection, [*kept, SessionDeleted("a"), again])
    assert set(load_state(connection).subscriptions) == {again, *kept[3:]}


def test_a_subscription_that_is_not_quiet_any_more_is_stored_so() -> None:
    connection = new_file()
    settled = SubscriptionRow("a", ("x", "y"), "c", 3, quiet_from=1, is_settled=True)
    quiet = SubscriptionRow("a", ("x", "y"), "c", 5, quiet_from=1)
    active = SubscriptionRow("a", ("x", "y"), "c", 7)
    for kept in (settled, quiet, settled, active):
        apply_changes(connection, [kept])
        assert load_state(connection).subscriptions == [kept]
    apply_changes(connection, [settled, SubscriptionDeleted("a", ("x", "y"), "c"), active])
    assert load_state(connection).subscriptions == [active]


def test_settled_subscriptions_of_a_log_that_gets_blocks_from_behind_its_end() -> None:
    connection = new_file()
    settled = SubscriptionRow("a", ("x",), None, 3, quiet_from=1, is_settled=True)
    others = [SubscriptionRow("b", ("x",), None, 9, 2, quiet_from=8), SubscriptionRow("c", ("x",), "c", 4)]
    apply_changes(connection, [settled, *others])
    unsettle_subscriptions(connection, 7)
    assert load_state(connection).subscriptions == [SubscriptionRow("a", ("x",), None, 7, quiet_from=1), *others]


def test_a_job_that_is_gone_takes_its_payload_and_its_tasks_and_no_others() -> None:
    connection = new_file()
    kept = [make_task(job, number) for job in (1, 2) for number in range(3)]
    apply_changes(
        connection, [make_job(1), make_job(2), JobPayloadRow(1, b"a"), JobPayloadRow(2, b"b"), *kept, JobDeleted(1)]
    )
    state = load_state(connection)
    assert (state.jobs, state.payloads, state.tasks) == ([make_job(2)], [JobPayloadRow(2, b"b")], kept[3:])


def test_a_job_in_one_row_is_newer_than_the_rows_of_an_older_version() -> None:
    connection = new_file()
    older, row = make_task(1, 0), make_job(1)
    apply_changes(connection, [row, JobPayloadRow(1, b"payload"), older, make_job(2), JobPayloadRow(2, b"b")])
    finished = make_task(1, 0, b"result")
    apply_changes(connection, [msgspec.structs.replace(row, state="done", payload=b"", task=finished)])
    state = load_state(connection)
    assert state.jobs == [make_job(1, state="done"), make_job(2)]
    assert state.payloads == [JobPayloadRow(1, b""), JobPayloadRow(2, b"b")]
    assert state.tasks == [finished]
    apply_changes(connection, [JobDeleted(1)])
    state = load_state(connection)
    assert (state.jobs, state.payloads, state.tasks) == ([make_job(2)], [JobPayloadRow(2, b"b")], [])


def test_a_payload_and_a_result_of_the_largest_size() -> None:
    connection = new_file()
    payload, result = (Random(seed).randbytes(MAX_JOB_PAYLOAD_BYTES) for seed in (1, 2))
    changes: list[Change] = [make_job(1), JobPayloadRow(1, payload), make_task(1, 0, result), make_task(1, 1, result)]
    apply_changes(connection, changes)
    apply_changes(connection, [make_task(1, 1)])
    state = load_state(connection)
    assert state.payloads == [JobPayloadRow(1, payload)]
    assert state.tasks == [make_task(1, 0, result), make_task(1, 1)]


def test_texts_from_strangers_come_back_as_they_were() -> None:
    """Keys, notes and errors are any text: NUL is a character as others."""
    connection = new_file()
    job = msgspec.structs.replace(make_job(1), key="a\0b", reason="\x1b[2J\U0001f426")
    task = msgspec.structs.replace(
        make_task(1, 0), worker="\0", error="x\0", previous_workers=("\0", '"', "\U0001f426")
    )
    apply_changes(connection, [job, task])
    state = load_state(connection)
    assert (state.jobs, state.tasks) == ([job], [task])


def test_the_number_of_the_next_job_is_1_until_told() -> None:
    connection = new_file()
    assert load_state(connection).next_job == 1
    apply_changes(connection, [NextJobRow(5), NextJobRow(7)])
    assert load_state(connection).next_job == 7


def test_marks() -> None:
    connection = new_file()
    store_floor(connection, "a/#", 5)
    store_floor(connection, "#", 7)
    store_floor(connection, "a/#", 9)
    assert load_floors(connection) == load_state(connection).retention_floors == {"#": 7, "a/#": 9}


FULL: list[Change] = [
    TopicRow("a", 1, 2, 3),
    RetainedRow("a", b"payload", "me", 1, 2, 1, 5),
    SessionRow("s", bytes(16), True, 60, 99, Will(topic="w", payload=b"bye")),
    SubscriptionRow("s", ("a", "b"), "c", 4, 5, quiet_from=3),
    IdentityRow("o", "p", "t", 6, 7, 8),
    QueryRow("q", 9),
    msgspec.structs.replace(make_job(1), deadline_us=1, time_limit_ms=2, ended_us=3),
    JobPayloadRow(1, b"payload"),
    make_task(1, 0, b"result"),
    NextJobRow(2),
]


@pytest.mark.parametrize("table", [STATE, FLOORS])
def test_a_changed_value_is_noticed(table: str) -> None:
    connection = new_file()
    apply_changes(connection, FULL)
    store_floor(connection, "#", 5)
    load_state(connection)
    columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
    for column in columns:
        connection.execute("SAVEPOINT before")
        connection.pragma("ignore_check_constraints", 1)
        connection.execute(
            f"""UPDATE {table} SET "{column}" = CASE typeof("{column}") WHEN 'integer' THEN "{column}" + 1
            WHEN 'text' THEN "{column}" || '!' ELSE CAST("{column}" || '!' AS BLOB) END"""
        )
        with pytest.raises(DamagedRowError):
            load_state(connection)
        connection.execute("ROLLBACK TO before")


def test_a_text_that_is_no_utf_8_is_noticed() -> None:
    connection = new_file()
    connection.execute("INSERT INTO state VALUES (CAST(x'ff' AS TEXT), x'', x'', 1)")
    with pytest.raises(DamagedRowError, match="UTF-8"):
        load_state(connection)
    connection.execute("DELETE FROM state; INSERT INTO marks VALUES (CAST(x'ff' AS TEXT), 1, 1)")
    with pytest.raises(DamagedRowError, match="UTF-8"):
        load_state(connection)


def test_seals() -> None:
    row = with_checksum(("a", 1, None, b"x"))
    assert has_valid_checksum(row)
    assert not has_valid_checksum(("b", *row[1:]))


META = LogMeta(b"id", 77, b"12345678")


@pytest.fixture
def connection() -> apsw.Connection:
    opened = apsw.Connection(":memory:")
    opened.execute(script())
    return opened


def test_it_comes_back(connection: apsw.Connection) -> None:
    with pytest.raises(DamagedRowError, match="lacks a row"):
        load_meta(connection)
    store_meta(connection, META, 5)
    assert load_meta(connection) == META
    assert connection.execute("SELECT value FROM meta WHERE key = 'end_offset'").get == 5


@pytest.mark.parametrize("key", META.__struct_fields__)
def test_a_changed_or_missing_row_is_noticed(connection: apsw.Connection, key: str) -> None:
    store_meta(connection, META)
    connection.execute("UPDATE meta SET value = x'00' WHERE key = ?", (key,))
    with pytest.raises(DamagedRowError, match="not what was written"):
        load_meta(connection)
    connection.execute("DELETE FROM meta WHERE key = ?", (key,))
    with pytest.raises(DamagedRowError, match="lacks a row"):
        load_meta(connection)


def test_a_value_of_another_kind_is_not_taken(connection: apsw.Connection) -> None:
    store_meta(connection, msgspec.structs.replace(META, log_id=3))
    with pytest.raises(DamagedRowError):
        load_meta(connection)


def test_no_two_logs_have_the_same_stamp(connection: apsw.Connection) -> None:
    stamps = {new_secret(connection) for _ in range(100)}
    assert len(stamps) == 100
    assert {len(stamp) for stamp in stamps} == {SECRET_BYTES}
