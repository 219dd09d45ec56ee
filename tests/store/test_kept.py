"""What is kept beside the log: every kind of change comes back, and nothing that was not written does."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
)
from godwit.store.sql import MIGRATIONS
from godwit.wire.changes import (
    Change,
    FeedGone,
    FeedKept,
    IdentityGone,
    IdentityKept,
    QueryDone,
    QueryGone,
    RetainedKept,
    SessionGone,
    SessionKept,
    State,
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
CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(TopicKept, NAMES, NUMBERS, NUMBERS, NUMBERS, st.booleans()),
    st.builds(TopicGone, NAMES),
    st.builds(RetainedKept, NAMES, st.binary(max_size=4), NAMES, NUMBERS, NUMBERS, st.integers(0, 2), NUMBERS),
    st.builds(SessionKept, NAMES, st.binary(max_size=16), st.booleans(), NUMBERS, st.none() | NUMBERS, WILLS),
    st.builds(SessionGone, NAMES),
    st.builds(FeedKept, NAMES, FILTERS, CURSORS, NUMBERS, NUMBERS),
    st.builds(FeedGone, NAMES, FILTERS, CURSORS),
    st.builds(IdentityKept, NAMES, NAMES, NAMES, NUMBERS, NUMBERS, NUMBERS),
    st.builds(IdentityGone, NAMES, NAMES, NAMES),
    st.builds(QueryDone, NAMES, NUMBERS, NUMBERS),
    st.builds(QueryGone, NAMES),
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
                case QueryDone():
                    self.queries[change.query] = change
                case QueryGone():
                    self.queries.pop(change.query, None)

    def agrees_with(self, state: State) -> None:
        assert {kept.name: kept for kept in state.topics} == self.topics
        assert {kept.topic: kept for kept in state.retained} == self.retained
        assert {kept.name: kept for kept in state.sessions} == self.sessions
        assert {(kept.session, kept.filters, kept.cursor): kept for kept in state.feeds} == self.feeds
        assert {(kept.owner, kept.publisher, kept.topic): kept for kept in state.identities} == self.identities
        assert {kept.query: kept for kept in state.queries} == self.queries
        assert [kept.last_us for kept in state.queries] == sorted(kept.last_us for kept in state.queries)
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
    kept = [FeedKept(name, ("x",), cursor, 1) for name in ("a", "b") for cursor in (None, "", "c")]
    apply(connection, [*kept, SessionGone("a"), kept[0]])
    assert load_state(connection).feeds == [kept[0], *kept[3:]]


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
    FeedKept("s", ("a", "b"), "c", 4, 5),
    IdentityKept("o", "p", "t", 6, 7, 8),
    QueryDone("q", 9),
]


@pytest.mark.parametrize("table", ["topics", "retained", "sessions", "feeds", "identities", "queries", "marks"])
def test_a_changed_value_is_noticed(table: str) -> None:
    connection = new_file()
    apply(connection, FULL)
    set_mark(connection, "#", 5)
    load_state(connection)
    columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
    for column in columns:
        connection.execute("SAVEPOINT before")
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
