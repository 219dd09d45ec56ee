"""What is kept beside the log: every kind of change comes back, and nothing that was not written does."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import apsw
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.entries import make_job, make_task

from godwit.limits import MAX_JOB_PAYLOAD_BYTES
from godwit.store.epochs import TABLE as EPOCHS
from godwit.store.kept import (
    DamagedRowError,
    apply,
    is_sealed,
    load_state,
    marks_of,
    queries_of,
    sealed,
    set_mark,
    topics_of,
    unsettle,
)
from godwit.store.schema import state_tables
from godwit.store.sql import MIGRATIONS
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

NAMES = st.sampled_from(["", "a", "a/b", "größe", "null", '["x"]'])
NUMBERS = st.integers(0, 2**63 - 1)
FILTERS = st.lists(NAMES, min_size=1, max_size=3).map(tuple)
WILLS = st.none() | st.builds(
    Will, topic=NAMES, payload=st.binary(max_size=5), qos=st.sampled_from([0, 1, 2]), retain=st.booleans()
)
CURSORS = st.none() | NAMES
JOBS = st.integers(1, 4)
JOBS_KEPT = st.builds(
    JobKept,
    JOBS,
    controller=NAMES,
    key=NAMES,
    kind=NAMES,
    workers=NUMBERS,
    priority=st.integers(-100, 100),
    submitted_us=NUMBERS,
    begins_us=NUMBERS,
    deadline_us=st.none() | NUMBERS,
    retries=NUMBERS,
    retry_delay_ms=NUMBERS,
    time_limit_ms=st.none() | NUMBERS,
    state=st.sampled_from(["waiting", "running", "done"]),
    agreed=st.none() | NUMBERS,
    ended_us=st.none() | NUMBERS,
    reason=NAMES,
)
TASKS_KEPT = st.builds(
    TaskKept,
    JOBS,
    st.integers(0, 2),
    state=st.sampled_from(["waiting", "leased", "finished"]),
    worker=NAMES,
    instance=st.binary(max_size=16),
    fence=NUMBERS,
    failures=NUMBERS,
    losses=NUMBERS,
    begins_us=NUMBERS,
    since_us=NUMBERS,
    had=st.lists(NAMES, max_size=3).map(tuple),
    result=st.binary(max_size=4),
    error=NAMES,
)
CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(TopicKept, NAMES, NUMBERS, NUMBERS, NUMBERS, st.booleans()),
    st.builds(TopicGone, NAMES),
    st.builds(RetainedKept, NAMES, st.binary(max_size=4), NAMES, NUMBERS, NUMBERS, st.integers(0, 2), NUMBERS),
    st.builds(SessionKept, NAMES, st.binary(max_size=16), st.booleans(), NUMBERS, st.none() | NUMBERS, WILLS),
    st.builds(SessionGone, NAMES),
    st.builds(FeedKept, NAMES, FILTERS, CURSORS, NUMBERS, NUMBERS),
    st.builds(FeedKept, NAMES, FILTERS, CURSORS, NUMBERS, NUMBERS, quiet_from=NUMBERS, is_settled=st.booleans()),
    st.builds(FeedGone, NAMES, FILTERS, CURSORS),
    st.builds(IdentityKept, NAMES, NAMES, NAMES, NUMBERS, NUMBERS, NUMBERS),
    st.builds(IdentityGone, NAMES, NAMES, NAMES),
    st.builds(QueryDone, NAMES, NUMBERS, NUMBERS),
    st.builds(QueryGone, NAMES),
    JOBS_KEPT,
    st.builds(JobPayload, JOBS, st.binary(max_size=4)),
    TASKS_KEPT,
    st.builds(JobGone, JOBS),
    st.builds(NextJob, NUMBERS),
)


def new_file() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    for script in MIGRATIONS:
        connection.execute(script)
    return connection


class Model:
    """The same with dictionaries."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicKept] = {}
        self.retained: dict[str, RetainedKept] = {}
        self.sessions: dict[str, SessionKept] = {}
        self.feeds: dict[tuple[str, tuple[str, ...], str | None], FeedKept] = {}
        self.identities: dict[tuple[str, str, str], IdentityKept] = {}
        self.queries: dict[str, QueryDone] = {}
        self.next_job = 1
        self.jobs: dict[int, JobKept] = {}
        self.payloads: dict[int, JobPayload] = {}
        self.tasks: dict[tuple[int, int], TaskKept] = {}

    def apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            match change:
                case TopicKept():
                    self.topics[change.name] = change
                case TopicGone():
                    self.topics.pop(change.name, None)
                case RetainedKept() if change.payload:
                    self.retained[change.topic] = change
                case RetainedKept():
                    self.retained.pop(change.topic, None)
                case SessionKept():
                    self.sessions[change.name] = change
                case SessionGone():
                    self.sessions.pop(change.name, None)
                    self.feeds = {key: feed for key, feed in self.feeds.items() if feed.session != change.name}
                case FeedKept():
                    self.feeds[change.session, change.filters, change.cursor] = change
                case FeedGone():
                    self.feeds.pop((change.session, change.filters, change.cursor), None)
                case IdentityKept():
                    self.identities[change.owner, change.publisher, change.topic] = change
                case IdentityGone():
                    self.identities.pop((change.owner, change.publisher, change.topic), None)
                case _:
                    self._apply_more(change)

    def _apply_more(self, change: Change) -> None:
        match change:
            case QueryDone():
                self.queries[change.query] = change
            case QueryGone():
                self.queries.pop(change.query, None)
            case JobKept():
                self.jobs[change.job] = change
            case JobPayload():
                self.payloads[change.job] = change
            case TaskKept():
                self.tasks[change.job, change.number] = change
            case JobGone():
                self.jobs.pop(change.job, None)
                self.payloads.pop(change.job, None)
                self.tasks = {key: task for key, task in self.tasks.items() if task.job != change.job}
            case NextJob():
                self.next_job = change.job

    def agrees_with(self, state: State) -> None:
        assert {kept.name: kept for kept in state.topics} == self.topics
        assert {kept.topic: kept for kept in state.retained} == self.retained
        assert {kept.name: kept for kept in state.sessions} == self.sessions
        assert {(kept.session, kept.filters, kept.cursor): kept for kept in state.feeds} == self.feeds
        assert {(kept.owner, kept.publisher, kept.topic): kept for kept in state.identities} == self.identities
        assert {kept.query: kept for kept in state.queries} == self.queries
        assert [kept.last_us for kept in state.queries] == sorted(kept.last_us for kept in state.queries)
        assert state.next_job == self.next_job
        assert state.jobs == [self.jobs[job] for job in sorted(self.jobs)]
        assert state.payloads == [self.payloads[job] for job in sorted(self.payloads)]
        assert state.tasks == [self.tasks[key] for key in sorted(self.tasks)]
        assert len(state.feeds) == len(self.feeds)
        assert [kept.last_us for kept in state.identities] == sorted(kept.last_us for kept in state.identities)


@given(st.lists(st.lists(CHANGES, max_size=12), max_size=4))
def test_any_changes_against_dictionaries(appends: list[list[Change]]) -> None:
    connection = new_file()
    model = Model()
    for changes in appends:
        apply(connection, changes)
        model.apply(changes)
        model.agrees_with(load_state(connection))
    assert topics_of(connection) == load_state(connection).topics
    assert queries_of(connection) == {query: kept.batch for query, kept in model.queries.items()}


def test_the_last_change_of_a_key_counts() -> None:
    connection = new_file()
    apply(connection, [TopicKept("a", 1), TopicKept("a", 2), TopicKept("b", 3)])
    assert [(kept.name, kept.messages) for kept in load_state(connection).topics] == [("a", 2), ("b", 3)]


def test_a_session_that_is_gone_takes_its_feeds_and_no_others() -> None:
    connection = new_file()
    kept = [FeedKept(name, ("x",), cursor, 3, quiet_from=1) for name in ("a", "b") for cursor in (None, "", "c")]
    again = FeedKept("a", ("x",), None, 1)
    apply(connection, [*kept, SessionGone("a"), again])
    assert load_state(connection).feeds == [again, *kept[3:]]


def test_a_subscription_that_is_not_quiet_any_more_is_stored_so() -> None:
    connection = new_file()
    settled = FeedKept("a", ("x", "y"), "c", 3, quiet_from=1, is_settled=True)
    quiet = FeedKept("a", ("x", "y"), "c", 5, quiet_from=1)
    active = FeedKept("a", ("x", "y"), "c", 7)
    for kept in (settled, quiet, settled, active):
        apply(connection, [kept])
        assert load_state(connection).feeds == [kept]
    apply(connection, [settled, FeedGone("a", ("x", "y"), "c"), active])
    assert load_state(connection).feeds == [active]


def test_settled_subscriptions_of_a_log_that_gets_blocks_from_behind_its_end() -> None:
    connection = new_file()
    settled = FeedKept("a", ("x",), None, 3, quiet_from=1, is_settled=True)
    others = [FeedKept("b", ("x",), None, 9, 2, quiet_from=8), FeedKept("c", ("x",), "c", 4)]
    apply(connection, [settled, *others])
    unsettle(connection, 7)
    assert load_state(connection).feeds == [FeedKept("a", ("x",), None, 7, quiet_from=1), *others]


def test_a_job_that_is_gone_takes_its_payload_and_its_tasks_and_no_others() -> None:
    connection = new_file()
    kept = [make_task(job, number) for job in (1, 2) for number in range(3)]
    apply(connection, [make_job(1), make_job(2), JobPayload(1, b"a"), JobPayload(2, b"b"), *kept, JobGone(1)])
    state = load_state(connection)
    assert (state.jobs, state.payloads, state.tasks) == ([make_job(2)], [JobPayload(2, b"b")], kept[3:])


def test_a_payload_and_a_result_of_the_largest_size() -> None:
    connection = new_file()
    payload, result = (Random(seed).randbytes(MAX_JOB_PAYLOAD_BYTES) for seed in (1, 2))
    changes: list[Change] = [make_job(1), JobPayload(1, payload), make_task(1, 0, result), make_task(1, 1, result)]
    apply(connection, changes)
    apply(connection, [make_task(1, 1)])
    state = load_state(connection)
    assert state.payloads == [JobPayload(1, payload)]
    assert state.tasks == [make_task(1, 0, result), make_task(1, 1)]


def test_texts_from_strangers_come_back_as_they_were() -> None:
    """Keys, notes and errors are any text: NUL is a character as others."""
    connection = new_file()
    job = msgspec.structs.replace(make_job(1), key="a\0b", reason="\x1b[2J\U0001f426")
    task = msgspec.structs.replace(make_task(1, 0), worker="\0", error="x\0", had=("\0", '"', "\U0001f426"))
    apply(connection, [job, task])
    state = load_state(connection)
    assert (state.jobs, state.tasks) == ([job], [task])


def test_the_number_of_the_next_job_is_1_until_told() -> None:
    connection = new_file()
    assert load_state(connection).next_job == 1
    apply(connection, [NextJob(5), NextJob(7)])
    assert load_state(connection).next_job == 7


def test_marks() -> None:
    connection = new_file()
    set_mark(connection, "a/#", 5)
    set_mark(connection, "#", 7)
    set_mark(connection, "a/#", 9)
    assert marks_of(connection) == load_state(connection).marks == {"#": 7, "a/#": 9}


FULL: list[Change] = [
    TopicKept("a", 1, 2, 3),
    RetainedKept("a", b"payload", "me", 1, 2, 1, 5),
    SessionKept("s", bytes(16), True, 60, 99, Will(topic="w", payload=b"bye")),
    FeedKept("s", ("a", "b"), "c", 4, 5, quiet_from=3),
    IdentityKept("o", "p", "t", 6, 7, 8),
    QueryDone("q", 9),
    msgspec.structs.replace(make_job(1), deadline_us=1, time_limit_ms=2, ended_us=3),
    JobPayload(1, b"payload"),
    make_task(1, 0, b"result"),
    NextJob(2),
]


@pytest.mark.parametrize("table", [table for table in state_tables() if table != EPOCHS])
def test_a_changed_value_is_noticed(table: str) -> None:
    connection = new_file()
    apply(connection, FULL)
    set_mark(connection, "#", 5)
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
    connection.execute("INSERT INTO topics VALUES (CAST(x'ff' AS TEXT), 1, 1, 1, 1, 1)")
    with pytest.raises(DamagedRowError, match="UTF-8"):
        topics_of(connection)


def test_seals() -> None:
    row = sealed(("a", 1, None, b"x"))
    assert is_sealed(row)
    assert not is_sealed(("b", *row[1:]))
