"""What changed in a turn and must outlive a restart: marked where it happens, written down when the turn is sealed.

Marked are objects, not values: what is written is how they stand at the end of the turn. So marks of an append that
failed are simply put back, and the next one writes what is true by then.

Two things change all the time and matter little, so they are marked apart and saved about once a second: how much was
published to a topic, and how far a subscription without a named cursor has come.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from godwit.broker.jobs.job_table import DirtyJobs
from godwit.broker.topics import RESERVED
from godwit.wire.changes import (
    Change,
    IdentityDeleted,
    IdentityRow,
    QueryDeleted,
    QueryRow,
    RetainedRow,
    SessionDeleted,
    SessionRow,
    SubscriptionDeleted,
    SubscriptionRow,
    TopicDeleted,
    TopicRow,
)

if TYPE_CHECKING:
    from godwit.broker.catalogue import Topic
    from godwit.broker.feed import Feed
    from godwit.broker.identities import Key, Progress
    from godwit.broker.jobs.model import Job, JobTask
    from godwit.broker.session import Session

SAVED_AT_ONCE: Final = 1000
"""Of what is saved now and then: so that no append becomes long by it."""

T = TypeVar("T")


class Marks:
    """What is to be written."""

    __slots__ = ("feeds", "identities", "jobs", "queries", "retained", "sessions", "topics", "topics_gone", "unsettled")

    def __init__(self) -> None:
        self.topics: dict[Topic, None] = {}
        self.topics_gone: dict[str, None] = {}
        """By name: there may be another one by now."""
        self.retained: dict[Topic, None] = {}
        """Whose retained message changed without a batch in the log."""
        self.sessions: dict[Session, None] = {}
        self.feeds: dict[Feed, None] = {}
        self.unsettled: list[Feed] = []
        """Subscriptions that the store had as settled until these were written."""
        self.identities: dict[Key, Progress | None] = {}
        """None: it is forgotten."""
        self.queries: dict[str, QueryRow | QueryDeleted] = {}
        self.jobs = DirtyJobs()


class Journal:
    """What there is to write. Drain: take; put_back on failure. Feed: all the others.

    `sessions` is the broker's own table, by name. A journal that does not keep takes nothing.

    What is put back is everything but queries, and it is tried again for ever. So a store must be able to take it when
    its disk can: whatever comes from outside is bounded before it is marked, numbers to 63 bits, texts to valid ones.
    """

    def __init__(self, sessions: dict[str, Session], *, keeps: bool) -> None:
        self.keeps = keeps
        self.is_marked = False
        """Whether there is anything to write at once."""
        self.used: dict[Topic, None] = {}
        """Topics with new figures."""
        self.moved: dict[Feed, None] = {}
        """Subscriptions that have come further, or lost something."""
        self._sessions = sessions
        self._marks = Marks()

    # -- what happened ------------------------------------------------------------------------------------------------

    def topic(self, topic: Topic) -> None:
        """It is new, or has other figures."""
        if self.keeps:
            self._marks.topics[topic] = None
            self.is_marked = True

    def topic_gone(self, topic: Topic) -> None:
        """It is forgotten, and what was to be written of it too."""
        self.used.pop(topic, None)
        if self.keeps and topic.is_stored:
            self._marks.topics_gone[topic.name] = None
            self.is_marked = True

    def published(self, topics: dict[Topic, None]) -> None:
        """They have new messages, which go into the log now. A topic is written down with its first one."""
        self.used.update(topics)
        for topic in topics:
            if not topic.is_stored:
                self.topic(topic)

    def retained(self, topic: Topic) -> None:
        """Its retained message is not what was written last. The broker's own figures are not kept."""
        if self.keeps and not topic.name.startswith(RESERVED):
            self._marks.retained[topic] = None
            self.is_marked = True

    def session(self, session: Session) -> bool:
        """Something about it, or it is over. Gives whether that matters: most sessions hold nothing."""
        if not self.keeps or not (session.is_stored or session.outlives_restart):
            return False
        self._marks.sessions[session] = None
        self.is_marked = True
        return True

    def feed(self, feed: Feed) -> bool:
        """Where it stands, or it is over. Gives whether that matters."""
        if not self.keeps or not (feed.is_stored or feed.session.outlives_restart):
            return False
        self._marks.feeds[feed] = None
        self.is_marked = True
        return True

    def identity(self, key: Key, progress: Progress | None) -> None:
        if self.keeps:
            self._marks.identities[key] = progress
            self.is_marked = True

    def query(self, change: QueryRow | QueryDeleted) -> None:
        """Unlike the others this belongs to one append, and is not put back."""
        if self.keeps:
            self._marks.queries[change.query] = change
            self.is_marked = True

    def work(self, jobs: Iterable[Job], tasks: Iterable[JobTask], gone: Iterable[int], next_job: int) -> None:
        """These jobs and tasks have changed; of jobs that are gone the numbers. `next_job`: not given yet."""
        if self.keeps:
            self._marks.jobs.add(jobs, tasks, gone, next_job)
            self.is_marked = self.is_marked or bool(self._marks.jobs)

    def forget_job(self, job: Job) -> None:
        """It could not be written, and its controller has been told: it is not tried again."""
        self._marks.jobs.forget(job)

    def drop_queries(self) -> None:
        """Those of the turn that is under way: what they brought is not written."""
        self._marks.queries.clear()

    @property
    def identities(self) -> list[Key]:
        """Those that are marked."""
        return list(self._marks.identities)

    @property
    def has_unsaved(self) -> bool:
        return bool(self.used or self.moved)

    def save_some(self) -> None:
        """It is time to save what changes all the time, or a part of it."""
        for topic in _take(self.used):
            self.topic(topic)
        for feed in _take(self.moved):
            self.feed(feed)

    # -- what to write ------------------------------------------------------------------------------------------------

    def take(self, end_offset: int) -> tuple[list[Change], Marks]:
        """How everything that is marked stands, and the marks. `end_offset` is the log's end."""
        marks, self._marks = self._marks, Marks()
        self.is_marked = False
        changes: list[Change] = [TopicDeleted(name) for name in marks.topics_gone]
        for topic in marks.topics:
            if not topic.is_gone:
                topic.is_stored = True
                changes.append(_topic(topic))
        changes += [_retained(topic) for topic in marks.retained if not topic.is_gone]
        changes += self._of_sessions(marks, end_offset)
        for key, progress in marks.identities.items():
            if progress is None:
                changes.append(IdentityDeleted(*key))
            else:
                changes.append(IdentityRow(*key, progress.epoch, progress.next_sequence, progress.last_us))
        changes += marks.queries.values()
        if marks.jobs:
            changes += marks.jobs.changes()
        return changes, marks

    def _of_sessions(self, marks: Marks, end_offset: int) -> list[Change]:
        """First what is over, because something new may have the same name."""
        sessions, feeds = dict(marks.sessions), dict(marks.feeds)
        gone: dict[str, None] = {}
        for session in marks.sessions:
            if not self._is_kept(session) and session.is_stored:
                gone[session.name] = None
                successor = self._sessions.get(session.name)
                if successor is not None and successor is not session:
                    sessions[successor] = None
                    feeds.update(dict.fromkeys(successor.feeds.values()))
        changes: list[Change] = [SessionDeleted(name) for name in gone]
        for feed in list(feeds):
            present = self._present(feed)
            if present is not None:
                feeds[present] = None
            elif feed.is_stored and feed.session.name not in gone:
                changes.append(SubscriptionDeleted(feed.session.name, feed.filters, feed.cursor))
        for session in sessions:
            if self._is_kept(session):
                session.is_stored = True
                changes.append(
                    SessionRow(
                        session.name,
                        session.instance,
                        session.is_proved,
                        session.expiry_s,
                        None if session.is_awaited else session.ends_at_us,
                        session.will,
                    )
                )
        for feed in feeds:
            if self._present(feed) is feed:
                if feed.is_stored_settled and not feed.is_settled:
                    marks.unsettled.append(feed)
                feed.is_stored = True
                feed.is_stored_settled = feed.is_settled
                resume_at, quiet_from, lost = feed.standing(end_offset)
                changes.append(
                    SubscriptionRow(
                        feed.session.name,
                        feed.filters,
                        feed.cursor,
                        resume_at,
                        lost,
                        quiet_from=quiet_from if quiet_from < resume_at or feed.is_settled else None,
                        is_settled=feed.is_settled,
                    )
                )
        return changes

    def _is_kept(self, session: Session) -> bool:
        return self._sessions.get(session.name) is session and session.outlives_restart

    def _present(self, feed: Feed) -> Feed | None:
        """The subscription that has the key of this one, if it is to be kept."""
        session = self._sessions.get(feed.session.name)
        if session is None or not session.outlives_restart or not session.expiry_s:
            return None
        return session.feeds.get((feed.filters, feed.cursor))

    def on_failed(self, marks: Marks) -> None:
        """What was taken could not be written, whether it is put back or not."""
        for feed in marks.unsettled:
            feed.is_stored_settled = True

    def put_back(self, marks: Marks) -> None:
        """What was taken could not be written. All of it, but for queries, is written again as it stands by then."""
        now = self._marks
        now.topics.update(marks.topics)
        now.topics_gone.update(marks.topics_gone)
        now.retained.update(marks.retained)
        now.sessions.update(marks.sessions)
        now.feeds.update(marks.feeds)
        now.identities = marks.identities | now.identities
        now.jobs.put_back(marks.jobs)
        self.is_marked = self.is_marked or bool(
            now.topics or now.topics_gone or now.retained or now.sessions or now.feeds or now.identities or now.jobs
        )


def _topic(topic: Topic) -> TopicRow:
    return TopicRow(topic.name, topic.messages, topic.payload_bytes, topic.last_us, topic.is_created)


def _retained(topic: Topic) -> RetainedRow:
    kept = topic.kept
    if kept is None:
        return RetainedRow(topic.name, b"")
    return RetainedRow(
        topic.name, kept.payload, kept.publisher, kept.published_us, kept.received_us, kept.qos, kept.offset
    )


def _take(waiting: dict[T, None]) -> list[T]:
    taken = list(islice(waiting, SAVED_AT_ONCE))
    for one in taken:
        del waiting[one]
    return taken
