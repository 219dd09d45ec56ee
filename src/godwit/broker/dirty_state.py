"""State that changed in a turn and must outlive a restart: marked where it changes, collected when the turn ends.

Objects are marked, not values: the state that they have at the end of the turn is written. So the marks of an append
that failed are simply put back, and the next append writes the state of that time.

Two kinds of state change all the time and matter little, so they are marked apart and saved about once a second: how
much was published to a topic, and the position of a subscription without a named cursor.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar, cast

from godwit.broker.jobs.job_table import DirtyJobs
from godwit.wire.changes import (
    Change,
    FilterDeleted,
    FilterRow,
    IdentityDeleted,
    IdentityRow,
    PacketDeleted,
    PacketRow,
    QueryDeleted,
    QueryRow,
    RelayRow,
    RetainedRow,
    SessionDeleted,
    SessionRow,
    SubscriptionDeleted,
    SubscriptionRow,
    TopicDeleted,
    TopicRow,
)
from godwit.wire.filters import RESERVED

if TYPE_CHECKING:
    from godwit.broker.catalogue import Topic
    from godwit.broker.identities import PublisherKey, PublisherProgress
    from godwit.broker.jobs.model import Job, JobTask
    from godwit.broker.session import Session
    from godwit.broker.subscription import BrokerSubscription, FilterTable, PacketNumbers

SAVED_AT_ONCE: Final = 1000
"""How many of the objects that change all the time are saved with one append, to bound its length."""

TABLE_KEY: Final[tuple[tuple[str, ...], str | None]] = ((), None)
"""The key of a FilterTable among the subscriptions of its session."""

T = TypeVar("T")


class DirtySet:
    """The marked objects of one append."""

    __slots__ = (
        "filters", "identities", "jobs", "packets", "passed", "queries", "relays", "retained", "sessions",
        "subscriptions", "topics", "topics_gone", "unsettled",
    )  # fmt: skip

    def __init__(self) -> None:
        self.topics: dict[Topic, None] = {}
        self.topics_gone: dict[str, None] = {}
        """By name: another topic may have it by now."""
        self.retained: dict[Topic, None] = {}
        """Topics whose retained message changed without a batch in the log."""
        self.sessions: dict[Session, None] = {}
        self.subscriptions: dict[BrokerSubscription, None] = {}
        self.filters: dict[tuple[FilterTable, str], None] = {}
        """Filters that were added to a table, changed or removed. The table is in `subscriptions` too."""
        self.packets: dict[tuple[FilterTable, bool, int], None] = {}
        """Handshakes of QoS 2 that have begun or ended: whether outgoing, and the number. The table, too."""
        self.passed: list[tuple[PacketNumbers, int]] = []
        """Released messages whose deletion is written, because the position is stored behind them."""
        self.unsettled: list[BrokerSubscription] = []
        """Subscriptions that the store had as settled until this append."""
        self.identities: dict[PublisherKey, PublisherProgress | None] = {}
        """None: the identity is deleted."""
        self.queries: dict[str, QueryRow | QueryDeleted] = {}
        self.relays: dict[tuple[str, bytes], RelayRow] = {}
        """By link and log."""
        self.jobs = DirtyJobs()


class DirtyState:
    """Collects the state to write. `take` returns it for one append, `put_back` undoes that after a failure.

    Everything except queries and bridges is put back and retried without end. So a store must be able to write it as
    soon as its disk can: values from outside are checked before they are marked, numbers for 63 bits, texts for valid
    Unicode.
    """

    def __init__(self, sessions: dict[str, Session], *, is_durable: bool) -> None:
        """`sessions`: the broker's own table. `is_durable`: whether the log stores state; if not, nothing is marked."""
        self.is_durable = is_durable
        self.is_marked = False
        """Whether there is anything to write at once."""
        self.used: dict[Topic, None] = {}
        """Topics with new message counts."""
        self.moved: dict[BrokerSubscription, None] = {}
        """Subscriptions that have advanced or lost messages."""
        self._sessions = sessions
        self._dirty = DirtySet()

    # -- marks --------------------------------------------------------------------------------------------------------

    def topic(self, topic: Topic) -> None:
        """The topic is new, or has new message counts."""
        if self.is_durable:
            self._dirty.topics[topic] = None
            self.is_marked = True

    def topic_gone(self, topic: Topic) -> None:
        """The topic is deleted."""
        self.used.pop(topic, None)
        if self.is_durable and topic.is_stored:
            self._dirty.topics_gone[topic.name] = None
            self.is_marked = True

    def published(self, topics: dict[Topic, None]) -> None:
        """The append has messages of these topics. A topic is stored with its first message."""
        self.used.update(topics)
        for topic in topics:
            if not topic.is_stored:
                self.topic(topic)

    def retained(self, topic: Topic) -> None:
        """The retained message differs from the stored one. The broker's own figures are not stored."""
        if self.is_durable and not topic.name.startswith(RESERVED):
            self._dirty.retained[topic] = None
            self.is_marked = True

    def session(self, session: Session) -> bool:
        """The session has changed or ended. Return whether that is stored: most sessions have nothing to remember."""
        if not self.is_durable or not (session.is_stored or session.outlives_restart):
            return False
        self._dirty.sessions[session] = None
        self.is_marked = True
        return True

    def subscription(self, subscription: BrokerSubscription) -> bool:
        """The subscription has moved or ended. Return whether that is stored."""
        if not self.is_durable or not (subscription.is_stored or subscription.session.outlives_restart):
            return False
        if subscription.is_inbox:
            return False
        self._dirty.subscriptions[subscription] = None
        self.is_marked = True
        return True

    def filters(self, table: FilterTable, texts: Iterable[str]) -> bool:
        """Filters were added to a table, changed or removed. Return whether that is stored."""
        if not self.subscription(table):
            return False
        self._dirty.filters.update(((table, text), None) for text in texts)
        return True

    def packet(self, table: FilterTable, is_outgoing: bool, number: int) -> bool:
        """A handshake of QoS 2 has begun or ended. Return whether that is stored."""
        if not self.subscription(table):
            return False
        self._dirty.packets[table, is_outgoing, number] = None
        return True

    def identity(self, key: PublisherKey, progress: PublisherProgress | None) -> None:
        """The progress of a QoS 2 publisher has changed, or (None) the publisher is deleted."""
        if self.is_durable:
            self._dirty.identities[key] = progress
            self.is_marked = True

    def query(self, change: QueryRow | QueryDeleted) -> None:
        """Unlike the others this belongs to one append, and is not put back."""
        if self.is_durable:
            self._dirty.queries[change.query] = change
            self.is_marked = True

    def relay(self, row: RelayRow) -> None:
        """A bridge has brought messages. As with a query, this belongs to one append."""
        if self.is_durable:
            self._dirty.relays[row.link, row.log] = row
            self.is_marked = True

    def work(self, jobs: Iterable[Job], tasks: Iterable[JobTask], gone: Iterable[int], next_job: int) -> None:
        """These jobs and tasks have changed; `gone`: numbers of deleted jobs. `next_job`: the next unused number."""
        if self.is_durable:
            self._dirty.jobs.add(jobs, tasks, gone, next_job)
            self.is_marked = self.is_marked or bool(self._dirty.jobs)

    def forget_job(self, job: Job) -> None:
        """The job could not be written and its controller was notified: it is not retried."""
        self._dirty.jobs.forget(job)

    def drop_queries(self) -> None:
        """Remove the queries and bridges of the current turn: the messages that they brought are not written."""
        self._dirty.queries.clear()
        self._dirty.relays.clear()

    @property
    def identities(self) -> list[PublisherKey]:
        """The marked identities."""
        return list(self._dirty.identities)

    def save_some(self) -> None:
        """Mark some of the objects that change all the time."""
        for topic in _take(self.used):
            self.topic(topic)
        for subscription in _take(self.moved):
            self.subscription(subscription)

    # -- what to write ------------------------------------------------------------------------------------------------

    def take(self, end_offset: int) -> tuple[list[Change], DirtySet]:
        """Return the changes to write, and the marks that they stand for. `end_offset` is the log's end."""
        dirty, self._dirty = self._dirty, DirtySet()
        self.is_marked = False
        changes: list[Change] = list(map(TopicDeleted, dirty.topics_gone))
        # Before the others: a new topic with the same name may have a retained message.
        changes += [RetainedRow(topic.name, b"") for topic in dirty.retained if topic.is_gone]
        for topic in dirty.topics:
            if not topic.is_gone:
                topic.is_stored = True
                changes.append(_topic(topic))
        changes += [_retained(topic) for topic in dirty.retained if not topic.is_gone]
        if dirty.sessions or dirty.subscriptions:
            changes += self._session_changes(dirty, end_offset)
        for key, progress in dirty.identities.items():
            if progress is None:
                changes.append(IdentityDeleted(*key))
            else:
                changes.append(IdentityRow(*key, progress.epoch, progress.next_sequence, progress.last_us))
        changes += dirty.queries.values()
        changes += dirty.relays.values()
        changes += dirty.jobs.changes()
        return changes, dirty

    def _session_changes(self, dirty: DirtySet, end_offset: int) -> list[Change]:
        """Return the changes, deletions first: a new session may have the same name."""
        sessions, subscriptions = dict(dirty.sessions), dict(dirty.subscriptions)
        gone: dict[str, None] = {}
        for session in dirty.sessions:
            if not self._is_current(session) and session.is_stored:
                gone[session.name] = None
                successor = self._sessions.get(session.name)
                if successor is not None and successor is not session:
                    sessions[successor] = None
                    subscriptions.update(dict.fromkeys(successor.subscriptions.values()))
        changes: list[Change] = [SessionDeleted(name) for name in gone]
        for one in list(subscriptions):
            current = self._current(one)
            if current is not None:
                subscriptions[current] = None
            elif one.is_stored and one.session.name not in gone:
                changes.append(SubscriptionDeleted(one.session.name, *one.key))
                if one.key == TABLE_KEY:
                    cast("FilterTable", one).is_written = False
        for session in sessions:
            if self._is_current(session):
                session.is_stored = True
                changes.append(
                    SessionRow(
                        session.name,
                        session.instance,
                        session.is_proved,
                        session.expiry_s,
                        None if session.is_awaited else session.ends_at_us,
                        session.will,
                        principal=None if session.principal == session.name else session.principal,
                        will_extension=session.will_extension,
                        will_delay_s=session.will_delay_s,
                        will_due_us=session.will_due_us,
                    )
                )
        for one in subscriptions:
            if self._current(one) is one:
                table = cast("FilterTable", one) if one.key == TABLE_KEY else None
                if table is not None and (not table.is_written or one.session.name in gone):
                    _mark_all(table, dirty)
                changes.append(_subscription(one, table, dirty, end_offset))
        changes += [_filter(table, text) for table, text in dirty.filters if self._current(table) is table]
        changes += [_packet(*key) for key in dirty.packets if self._current(key[0]) is key[0]]
        return changes

    def _is_current(self, session: Session) -> bool:
        return self._sessions.get(session.name) is session and session.outlives_restart

    def _current(self, subscription: BrokerSubscription) -> BrokerSubscription | None:
        """Return the subscription that has the key of this one now, if it is to be stored."""
        session = self._sessions.get(subscription.session.name)
        if session is None or not session.outlives_restart or not session.expiry_s:
            return None
        return session.subscriptions.get(subscription.key)

    def on_failed(self, dirty: DirtySet) -> None:
        """These changes could not be written, whether they are put back or not."""
        for subscription in dirty.unsettled:
            subscription.is_stored_settled = True
        for numbers, offset in dirty.passed:
            if offset in numbers.released:
                numbers.released[offset] = numbers.DONE
        for subscription in dirty.subscriptions:
            if subscription.key == TABLE_KEY:
                cast("FilterTable", subscription).is_written = False  # perhaps

    def put_back(self, dirty: DirtySet) -> None:
        """These changes could not be written: mark them again, except queries and bridges."""
        now = self._dirty
        now.topics.update(dirty.topics)
        now.topics_gone.update(dirty.topics_gone)
        now.retained.update(dirty.retained)
        now.sessions.update(dirty.sessions)
        now.subscriptions.update(dirty.subscriptions)
        now.filters.update(dirty.filters)
        now.packets.update(dirty.packets)
        now.identities = dirty.identities | now.identities
        now.jobs.put_back(dirty.jobs)
        self.is_marked = self.is_marked or bool(
            now.topics
            or now.topics_gone
            or now.retained
            or now.sessions
            or now.subscriptions
            or now.identities
            or now.jobs
        )


def _topic(topic: Topic) -> TopicRow:
    return TopicRow(topic.name, topic.messages, topic.payload_bytes, topic.last_us, topic.is_created)


def _subscription(
    one: BrokerSubscription, table: FilterTable | None, dirty: DirtySet, end_offset: int
) -> SubscriptionRow:
    """Return the row of a subscription. `table`: the same, if it has one."""
    if one.is_stored_settled and not one.is_settled:
        dirty.unsettled.append(one)
    one.is_stored = True
    one.is_stored_settled = one.is_settled
    resume_at, quiet_from, lost = one.restart_position(end_offset)
    key = one.key
    if table is not None:
        _pass(table, resume_at, dirty)
    high, unfinished = one.pending()
    return SubscriptionRow(
        one.session.name,
        *key,
        resume_at,
        lost,
        quiet_from=quiet_from if quiet_from < resume_at or one.is_settled else None,
        is_settled=one.is_settled,
        created_at=0 if table is None else table.created_at,
        sent_below=0 if table is None else table.numbers.sent_below,
        high=high,
        unfinished=unfinished,
    )


def _mark_all(table: FilterTable, dirty: DirtySet) -> None:
    """The store may have nothing of this table: everything in it is written."""
    table.is_written = True
    dirty.filters.update(((table, text), None) for text in table.table)
    dirty.packets.update(((table, False, number), None) for number in table.numbers.received)
    dirty.packets.update(((table, True, offset), None) for offset in table.numbers.released)


def _pass(table: FilterTable, resume_at: int, dirty: DirtySet) -> None:
    """The position is stored: delete what only messages before it needed."""
    for text in table.passed(resume_at):
        table.discard(text)
        table.session.filter_levels -= text.count("/") + 1
        dirty.filters[table, text] = None
    numbers = table.numbers
    done = [offset for offset, state in numbers.released.items() if state == numbers.DONE and offset < resume_at]
    for offset in done:
        numbers.released[offset] = numbers.DELETING
        dirty.passed.append((numbers, offset))
        dirty.packets[table, True, offset] = None


def _filter(table: FilterTable, text: str) -> Change:
    one = table.table.get(text)
    name = table.session.name
    if one is None:
        return FilterDeleted(name, text)
    return FilterRow(name, text, one.since, one.until, one.options, one.identifier)


def _packet(table: FilterTable, is_outgoing: bool, number: int) -> Change:
    numbers = table.numbers
    if is_outgoing:
        is_there = numbers.released.get(number, numbers.DELETING) != numbers.DELETING
    else:
        is_there = number in numbers.received
    return (PacketRow if is_there else PacketDeleted)(table.session.name, is_outgoing, number)


def _retained(topic: Topic) -> RetainedRow:
    message = topic.retained
    return RetainedRow(topic.name, b"") if message is None else message.row(topic.name)


def _take(waiting: dict[T, None]) -> list[T]:
    taken = list(islice(waiting, SAVED_AT_ONCE))
    for one in taken:
        del waiting[one]
    return taken
