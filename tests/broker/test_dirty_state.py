"""What changed is written as it stands in the end, what is over before what is new, and again if it failed."""

from __future__ import annotations

from tests.broker.durable import DurableWorld

from godwit.broker import dirty_state as journals
from godwit.broker.dirty_state import DirtyState
from godwit.broker.identities import PublisherProgress
from godwit.broker.jobs.model import Job
from godwit.broker.jobs.queue import JobQueue
from godwit.broker.session import Session
from godwit.broker.subscription import BrokerSubscription
from godwit.wire import changes as ch
from godwit.wire import control as c
from godwit.wire.jobs import JobSpec

WILL = c.Will(topic="state", payload=b"gone")
KEY = ("alice", "till", "orders")


def a_session(sessions: dict[str, Session], *filters: str) -> Session:
    session = sessions["bob"] = Session("bob", 1, is_remembered=True)
    session.instance = bytes(16)
    session.expiry_s = 100
    for serial, text in enumerate(filters):
        session.subscriptions[(text,), None] = BrokerSubscription(serial, session, (text,), None, 7)
    return session


def kept(session: Session) -> ch.SessionRow:
    return ch.SessionRow(session.name, session.instance, False, session.expiry_s, None, session.will)


def feed_kept(text: str, resume_at: int = 7, lost: int = 0, quiet_from: int | None = None) -> ch.SubscriptionRow:
    return ch.SubscriptionRow("bob", (text,), None, resume_at, lost, quiet_from=quiet_from)


def test_a_journal_that_does_not_keep_takes_nothing() -> None:
    sessions: dict[str, Session] = {}
    journal = DirtyState(sessions, is_durable=False)
    session = a_session(sessions, "a")
    assert not journal.session(session)
    assert not any(journal.subscription(feed) for feed in session.subscriptions.values())
    journal.identity(KEY, PublisherProgress(1, 2, 3))
    journal.query(ch.QueryRow("q", 1))
    assert not journal.is_marked
    assert journal.take(0)[0] == []


def test_what_is_written_is_how_it_stands_in_the_end() -> None:
    sessions: dict[str, Session] = {}
    journal = DirtyState(sessions, is_durable=True)
    session = a_session(sessions, "a")
    (feed,) = session.subscriptions.values()
    assert journal.session(session)
    assert journal.subscription(feed)
    progress = PublisherProgress(1, 2, 3)
    journal.identity(KEY, progress)
    feed.resume_at, feed.lost, progress.next_sequence = 9, 3, 8
    changes, _ = journal.take(0)
    assert changes == [kept(session), feed_kept("a", 9, 3, quiet_from=7), ch.IdentityRow(*KEY, 1, 8, 3)]
    assert not journal.is_marked
    assert journal.take(0)[0] == []


def test_a_session_without_anything_to_remember_is_not_written() -> None:
    sessions: dict[str, Session] = {}
    journal = DirtyState(sessions, is_durable=True)
    session = a_session(sessions)
    assert not journal.session(session)
    session.will = WILL
    assert journal.session(session)
    assert journal.take(0)[0] == [kept(session)]
    session.will = None
    assert journal.session(session)  # now it is to be forgotten
    assert journal.take(0)[0] == [ch.SessionDeleted("bob")]


def test_subscriptions_of_a_session_that_ends_with_its_connection_are_not_written() -> None:
    sessions: dict[str, Session] = {}
    journal = DirtyState(sessions, is_durable=True)
    session = a_session(sessions, "a")
    session.expiry_s, session.will = 0, WILL
    journal.session(session)
    for feed in session.subscriptions.values():
        journal.subscription(feed)
    assert journal.take(0)[0] == [kept(session)]


def test_what_is_over_comes_before_what_has_its_name() -> None:
    sessions: dict[str, Session] = {}
    journal = DirtyState(sessions, is_durable=True)
    old = a_session(sessions, "a", "b")
    journal.session(old)
    for feed in old.subscriptions.values():
        journal.subscription(feed)
    journal.take(0)
    new = a_session(sessions, "a")
    journal.session(new)
    journal.session(old)
    for feed in (*old.subscriptions.values(), *new.subscriptions.values()):
        journal.subscription(feed)
    assert journal.take(0)[0] == [ch.SessionDeleted("bob"), kept(new), feed_kept("a")]


def test_a_subscription_that_is_over_and_one_like_it() -> None:
    sessions: dict[str, Session] = {}
    journal = DirtyState(sessions, is_durable=True)
    session = a_session(sessions, "a", "b")
    first, other = session.subscriptions.values()
    for feed in (first, other):
        journal.subscription(feed)
    journal.take(0)
    del session.subscriptions[("a",), None]
    journal.subscription(first)
    assert journal.take(0)[0] == [ch.SubscriptionDeleted("bob", ("a",), None)]
    session.subscriptions[("a",), None] = again = BrokerSubscription(5, session, ("a",), None, 11)
    journal.subscription(first)
    journal.subscription(again)
    assert journal.take(0)[0] == [feed_kept("a", 11)]


def test_what_failed_is_written_again_as_it_stands_by_then() -> None:
    """The end of a session could not be written; a new one of its name could. Then the end comes again."""
    sessions: dict[str, Session] = {}
    journal = DirtyState(sessions, is_durable=True)
    old = a_session(sessions, "a")
    journal.session(old)
    journal.take(0)
    del sessions["bob"]
    journal.session(old)
    changes, failed = journal.take(0)
    assert changes == [ch.SessionDeleted("bob")]
    new = a_session(sessions, "b")
    journal.session(new)
    for feed in new.subscriptions.values():
        journal.subscription(feed)
    assert journal.take(0)[0] == [kept(new), feed_kept("b")]
    journal.put_back(failed)
    assert journal.is_marked
    assert journal.take(0)[0] == [ch.SessionDeleted("bob"), kept(new), feed_kept("b")]


def test_newer_marks_count_for_more_than_those_that_are_put_back() -> None:
    journal = DirtyState({}, is_durable=True)
    journal.identity(KEY, PublisherProgress(1, 2, 3))
    _, failed = journal.take(0)
    journal.identity(KEY, None)
    journal.put_back(failed)
    assert journal.take(0)[0] == [ch.IdentityDeleted(*KEY)]


def test_jobs_are_written_put_back_and_forgotten() -> None:
    journal = DirtyState({}, is_durable=True)
    job = Job(7, "ann", JobSpec(key="k", of_kind="resize"), JobQueue("resize"), b"payload", 0)
    journal.work([job], job.tasks, [3], 8)
    changes, marks = journal.take(0)
    assert [type(change) for change in changes] == [ch.NextJobRow, ch.JobRow, ch.JobDeleted]
    journal.put_back(marks)
    assert journal.is_marked
    journal.forget_job(job)
    assert journal.take(0)[0] == [ch.NextJobRow(8), ch.JobDeleted(3)]


def test_a_journal_that_does_not_keep_takes_no_jobs() -> None:
    journal = DirtyState({}, is_durable=False)
    journal.work([], [], [3], 8)
    assert not journal.is_marked


def test_a_query_belongs_to_its_append() -> None:
    journal = DirtyState({}, is_durable=True)
    journal.query(ch.QueryRow("q", 5))
    changes, failed = journal.take(0)
    assert changes == [ch.QueryRow("q", 5)]
    journal.put_back(failed)
    assert not journal.is_marked


def test_what_changes_all_the_time_is_saved_now_and_then_and_not_all_at_once(monkeypatch: object) -> None:
    world = DurableWorld()
    alice = world.client("alice")
    channels = [alice.open(f"t/{number}") for number in range(5)]
    for _ in range(2):
        for channel in channels:
            alice.publish(channel, b"x")
    assert {kept.messages for kept in world.keeping.of("topic").values()} == {1}
    monkeypatch.setattr(journals, "SAVED_AT_ONCE", 3)  # type: ignore[attr-defined]
    world.pass_s(1)
    assert sorted(kept.messages for kept in world.keeping.of("topic").values()) == [1, 1, 2, 2, 2]
    world.pass_s(1)
    assert {kept.messages for kept in world.keeping.of("topic").values()} == {2}
    appends = len(world.keeping.appends)
    world.pass_s(60)
    assert len(world.keeping.appends) == appends  # a broker at rest writes nothing
