"""The checker of restarts accepts a correct log and catches each kind of loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.sim.broker_models import Models

from godwit.wire.batch import Entry
from godwit.wire.changes import (
    Change,
    IdentityDeleted,
    IdentityRow,
    QueryRow,
    RetainedRow,
    SessionDeleted,
    SessionRow,
    StoredState,
    SubscriptionDeleted,
    SubscriptionRow,
    TopicRow,
)
from godwit_sim.broker_restarts import RestartChecker, StoreContents, apply, rows_of
from godwit_sim.checkers import ViolationError

TOPIC = TopicRow("a/b", 1, 2, 3)
FEED = SubscriptionRow("alice", ("a/#",), "cursor", 7)


class Case:
    """A log that is written and opened again."""

    def __init__(self) -> None:
        self.models = Models()
        self.checker = RestartChecker(self.models.log)
        self.entries: list[tuple[int, Entry]] = []
        self.state = StoredState()

    def entry(self) -> Entry:
        return self.models.entry(self.models.publish())

    def append(self, *changes: Change, count: int = 1) -> list[Entry]:
        """Append messages that the store confirms."""
        entries = [self.entry() for _ in range(count)]
        first = self.models.log.next_offset
        self.checker.attempted(entries, changes)
        self.checker.succeeded(first)
        self.models.log.appended(first, entries)
        self.entries += [(first + number, entry) for number, entry in enumerate(entries)]
        return entries

    def reopen(self, more: Sequence[Entry] = (), **changes: Any) -> list[Entry]:
        end = len(self.entries)
        entries = self.entries + [(end + number, entry) for number, entry in enumerate(more)]
        fields: dict[str, Any] = {
            "log_id": b"log",
            "first_offset": 0,
            "next_offset": len(entries),
            "entries": entries,
            "state": self.state,
        }
        return self.checker.reopened(StoreContents(**(fields | changes)))


def test_a_log_that_kept_its_word() -> None:
    case = Case()
    assert case.reopen() == []
    case.append(TOPIC, FEED)
    case.append()
    case.state = StoredState(topics=[TOPIC], subscriptions=[FEED])
    assert case.reopen() == []
    assert case.checker.reopenings == 2


def test_confirmed_batches_are_present() -> None:
    case = Case()
    case.append(count=3)
    with pytest.raises(ViolationError, match=r"offset 2 .* is not there; it was not yet confirmed"):
        case.reopen(entries=case.entries[:2], next_offset=2)
    confirmed = case.models.log.at(1)
    assert confirmed is not None
    case.models.log.confirmed(confirmed, 1.0)
    with pytest.raises(ViolationError, match=r"offset 1 .* is not there; message 1 of alice .* was confirmed"):
        case.reopen(entries=case.entries[:1], next_offset=1)


def test_present_batches_are_unchanged() -> None:
    case = Case()
    case.append(count=2)
    first, last = case.entries
    with pytest.raises(ViolationError, match=r"offset 0 .* has changed"):
        case.reopen(entries=[(0, last[1]), (1, first[1])])
    with pytest.raises(ViolationError, match="the next offset is 3, behind the last message it is 2"):
        case.reopen(next_offset=3)
    with pytest.raises(ViolationError, match="another log"):
        case.reopen(log_id=b"other")


@pytest.mark.parametrize("fails", [True, False])
def test_an_append_without_an_answer_is_there_whole_or_not_at_all(fails: bool) -> None:
    for is_there in (True, False):
        case = Case()
        case.append()
        entries = [case.entry(), case.entry()]
        case.checker.attempted(entries, [TOPIC])
        if fails:
            case.checker.failed()
        if is_there:
            case.state = StoredState(topics=[TOPIC])
            assert case.reopen(entries) == entries
            assert case.checker.recovered_appends == 1
            case.models.log.appended(1, entries)
            case.entries += [(1, entries[0]), (2, entries[1])]
        assert case.reopen() == []


@pytest.mark.parametrize(
    ("some", "state"), [(1, StoredState(topics=[TOPIC])), (2, StoredState()), (0, StoredState(topics=[TOPIC]))]
)
def test_half_an_append_is_caught(some: int, state: StoredState) -> None:
    case = Case()
    case.append()
    entries = [case.entry(), case.entry()]
    case.checker.attempted(entries, [TOPIC])
    case.state = state
    with pytest.raises(ViolationError, match=r"that no append had together|expected was"):
        case.reopen(entries[:some])


def test_several_appends_that_failed() -> None:
    case = Case()
    case.append()
    for _ in range(2):
        case.checker.attempted([case.entry()], [])
        case.checker.failed()
    case.checker.attempted([], [TOPIC])
    case.state = StoredState(topics=[TOPIC])
    assert case.reopen() == []
    assert case.reopen() == [], "it has become a part of the log"
    case.state = StoredState()
    with pytest.raises(ViolationError, match="expected was TopicRow"):
        case.reopen()


def test_a_later_success_overwrites_failed_attempts() -> None:
    case = Case()
    lost = [case.entry()]
    case.checker.attempted(lost, [])
    case.checker.failed()
    case.append()
    with pytest.raises(ViolationError, match="no append had together"):
        case.reopen(lost)


def test_retention_deletes_the_oldest() -> None:
    case = Case()
    case.append(count=3)
    with pytest.raises(ViolationError, match="begins at 1, it was 0"):
        case.reopen(first_offset=1, entries=case.entries[1:])
    case.checker.trimming()
    case.checker.not_trimmed()
    with pytest.raises(ViolationError, match="begins at 1, it was 0"):
        case.reopen(first_offset=1, entries=case.entries[1:])
    case.checker.trimming()
    case.reopen(first_offset=1, entries=case.entries[1:])
    with pytest.raises(ViolationError, match="begins at 0, it was 1"):
        case.reopen()
    case.checker.trimming()
    case.checker.trimmed(3)
    case.reopen(first_offset=3, next_offset=3, entries=[])
    with pytest.raises(ViolationError, match="the next offset is 0, behind the last message it is 3"):
        case.reopen(first_offset=3, next_offset=0, entries=[])


def test_only_corrupted_offsets_are_damaged() -> None:
    case = Case()
    case.append(count=4)
    left = [case.entries[0], case.entries[3]]
    with pytest.raises(ViolationError, match=r"offset 1 .* has changed"):
        case.reopen(entries=left)
    with pytest.raises(ViolationError, match="1 to 3 are damaged, and were not"):
        case.reopen(entries=left, damaged=[(1, 3)])
    case.checker.rotted(2)
    case.reopen(entries=left, damaged=[(1, 3)])
    assert [case.models.log.is_unavailable(offset) for offset in range(4)] == [False, True, True, False]


def test_cursors_stay_where_an_answered_commit_put_them() -> None:
    case = Case()
    key = (FEED.session, FEED.filters, FEED.cursor)
    case.append(FEED)
    case.state = StoredState(subscriptions=[FEED])
    case.checker.commit_answered(key, 7)
    case.reopen()
    case.checker.commit_answered(key, 8)
    with pytest.raises(ViolationError, match="is at 7, the commit of 8 was answered"):
        case.reopen()
    case.checker.commit_answered(("bob", *key[1:]), 1)
    case.checker.commit_answered(key, 7)
    with pytest.raises(ViolationError, match="is gone"):
        case.reopen()
    case.checker.cursor_dropped(("bob", *key[1:]))
    case.reopen()


def test_topics_retain_the_last_message_of_the_log() -> None:
    checker = RestartChecker(Models().log)
    state = StoredState(retained=[RetainedRow("a", b"1"), RetainedRow("$sys/x", b"2")])
    checker.check_retained(state, {"a": b"1"})
    for wrong in ({}, {"a": b"2"}, {"a": b"1", "b": b"3"}):
        with pytest.raises(ViolationError, match="by the log it is"):
            checker.check_retained(state, wrong)


def test_a_subscription_that_passes_over_its_message_is_caught() -> None:
    models = Models()
    checker = RestartChecker(models.log)
    for topic in ("a/b", "b", "a/b"):
        models.logged(topic)

    def check(resume_at: int, **fields: Any) -> None:
        checker.check_quiet(StoredState(subscriptions=[SubscriptionRow("alice", ("a/#",), None, resume_at, **fields)]))

    check(3)
    check(2, quiet_from=1)
    check(1, quiet_from=3, is_settled=True)
    check(3, quiet_from=1, lost=1)
    for wrong in ({"quiet_from": 0}, {"quiet_from": 1, "is_settled": True}):
        with pytest.raises(ViolationError, match="which matches it"):
            check(2, **wrong)
    models.log.deleted_below = 3
    check(2, quiet_from=0)


def test_the_meaning_of_changes() -> None:
    session = SessionRow("alice", b"i", False, 9, None)
    identity = IdentityRow("alice", "p", "a/b", 1, 5, 0)
    everything: list[Change] = [TOPIC, RetainedRow("a", b"1"), session, FEED, identity, QueryRow("q", 3)]
    state = StoredState([TOPIC], [RetainedRow("a", b"1")], [session], [FEED], [identity], [QueryRow("q", 3)])
    assert apply({}, everything) == rows_of(state)
    newer = SubscriptionRow(FEED.session, FEED.filters, FEED.cursor, 9)
    assert apply({}, [FEED, newer]) == rows_of(StoredState(subscriptions=[newer]))
    gone: list[Change] = [
        RetainedRow("a", b""), SubscriptionDeleted("alice", ("a/#",), "cursor"), IdentityDeleted("alice", "p", "a/b")
    ]  # fmt: skip
    assert apply(apply({}, everything), gone) == apply({}, [TOPIC, session, QueryRow("q", 3)])
    assert apply(apply({}, [session, FEED]), [SessionDeleted("alice")]) == {}


def test_a_restored_copy_has_its_old_contents() -> None:
    case = Case()
    case.append(TOPIC)
    kept, log = case.checker.copy(), case.models.log.copy()
    case.append(FEED)
    case.checker.commit_answered(("alice", ("a/#",), "cursor"), 7)
    case.checker.attempted([case.entry()], [])
    case.checker.restore(kept)
    case.models.log.restore(log)
    del case.entries[1:]
    case.state = StoredState(topics=[TOPIC])
    assert case.reopen() == []


def test_an_append_without_outcome_is_not_certain() -> None:
    case = Case()
    case.append(TOPIC)
    certain = [case.checker.is_certain]
    case.checker.attempted([case.entry()], [])
    certain.append(case.checker.is_certain)
    assert certain == [True, False]
