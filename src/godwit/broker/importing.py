"""What queries staged in the archive: appended as a whole, once for each batch of a query, whatever is repeated.

The number of a query's last batch is written with its messages. A batch that is not above it is known already. One
without messages is not remembered: there is nothing in it that could come twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import groupby
from typing import Final

import msgspec

from godwit.broker.catalogue import Catalogue, Names, TooManyTopicsError, Topic
from godwit.broker.commits import Commits, Fate, Pending
from godwit.broker.effects import Effect, Import, Imported
from godwit.broker.journal import Journal
from godwit.broker.publishing import LATEST_US
from godwit.broker.session import check_name
from godwit.broker.topics import RESERVED, check_topic, shown
from godwit.broker.trim import longest_message, payload_bytes
from godwit.errors import BadTopicError, UsageError
from godwit.limits import MAX_BATCH_MESSAGES, MAX_MESSAGE_BYTES, MAX_RECORD_BYTES
from godwit.wire.batch import HAS_ROUTE, HAS_SEQUENCE, QOS_SHIFT, RETAIN, Entry
from godwit.wire.changes import QueryDeleted, QueryRow

MAX_QUERIES: Final = 100_000
"""Whose batches are remembered."""
QUERY_EXPIRY_US: Final = 7 * 24 * 3600 * 1_000_000
"""One that was silent for so long makes room for another; as long as that its batches are known for certain."""
LAST_BATCH: Final = 2**53
"""Nobody counts so far, and every language can."""
BATCH_ROOM_BYTES: Final = MAX_RECORD_BYTES - MAX_MESSAGE_BYTES
"""What a batch may be longer than the longest message."""


class _ProblemError(Exception):
    """Why it cannot be done."""


class _Query(msgspec.Struct):
    batch: int
    """The newest."""
    safe_batch: int
    """The newest that the log has."""
    last_us: int


class Importing:
    """Feed: take. The answer is an Imported among the effects, once the log has it."""

    def __init__(
        self, catalogue: Catalogue, names: Names, commits: Commits, journal: Journal, effects: list[Effect]
    ) -> None:
        self._catalogue = catalogue
        self._names = names
        self._commits = commits
        self._journal = journal
        self._effects = effects
        self._queries: OrderedDict[str, _Query] = OrderedDict()
        """The one that was silent for longest first."""

    def restore(self, queries: Iterable[QueryRow]) -> None:
        """Those that were known before the broker was restarted; the longest silent come first."""
        for kept in queries:
            self._queries[kept.query] = _Query(kept.batch, kept.batch, kept.last_us)

    def take(self, event: Import, now_us: int) -> None:
        """Staged messages, of all partitions in their order."""
        held: list[Topic] = []
        try:
            self._take(event, held, now_us)
        except _ProblemError as error:
            self._effects.append(Imported(event.key, problem=str(error)))
        finally:
            for topic in held:
                topic.publishers -= 1

    def _take(self, event: Import, held: list[Topic], now_us: int) -> None:
        """`held`: its topics, so that none of them makes room for another."""
        query = self._find(event, now_us)
        is_known = event.batch <= query.batch
        if not is_known:
            self._check_rights(event)
            self._check_entries(event.entries, held)
        before = sum([entry.count for pending in self._commits.fresh for entry in pending.entries])
        count = 0 if is_known else sum([entry.count for entry in event.entries])
        if count:
            self._remember(event, query, now_us)
            self._add(event.entries, now_us)

        def on_safe(first_offset: int) -> None:
            if count:
                query.safe_batch = max(event.batch, query.safe_batch)
            offset = first_offset + before if count else 0
            self._effects.append(Imported(event.key, was_known=is_known, first_offset=offset, count=count))

        def on_failed(text: str) -> None:
            query.batch = query.safe_batch
            if query.batch < 0 and self._queries.get(event.query) is query:
                del self._queries[event.query]
            self._effects.append(Imported(event.key, problem=text))

        self._commits.wait(on_safe, on_failed)

    def _find(self, event: Import, now_us: int) -> _Query:
        """The query as it is known, or as it will be."""
        if not 0 <= event.batch <= LAST_BATCH:
            raise _ProblemError(f"batch {event.batch} cannot be: they are counted from 0 to 2^53 at most")
        query = self._queries.get(event.query)
        if query is not None:
            return query
        try:
            check_name(event.query)
        except UsageError as error:
            raise _ProblemError(f"as a query: {error}") from None
        if event.entries and len(self._queries) >= MAX_QUERIES:
            oldest = next(iter(self._queries.values()))
            if oldest.last_us > now_us - QUERY_EXPIRY_US:
                raise _ProblemError(
                    f"the batches of {MAX_QUERIES} queries are remembered, and no room is left for more: "
                    "one that brings nothing for 7 days makes room"
                )
        return _Query(-1, -1, now_us)

    def _remember(self, event: Import, query: _Query, now_us: int) -> None:
        query.batch = event.batch
        query.last_us = now_us
        if event.query not in self._queries and len(self._queries) >= MAX_QUERIES:
            oldest, _ = self._queries.popitem(last=False)
            self._journal.query(QueryDeleted(oldest))
        self._queries[event.query] = query
        self._queries.move_to_end(event.query)
        self._journal.query(QueryRow(event.query, event.batch, now_us))

    def _check_rights(self, event: Import) -> None:
        """Check names and topics against the token: what it may have staged before may be forbidden now."""
        access = self._catalogue.settings.access
        for publisher in {entry.publisher for entry in event.entries}:
            has_secret = access.secret_of(publisher) is not None
            if problem := event.rights.name_problem(publisher, has_secret=has_secret):
                raise _ProblemError(problem)
        for topic in {entry.topic for entry in event.entries}:
            if problem := event.rights.publish_problem(topic):
                raise _ProblemError(problem)

    def _check_entries(self, entries: list[Entry], held: list[Topic]) -> None:
        """As if a publisher had sent them."""
        settings = self._catalogue.settings
        most_bytes = settings.max_message_bytes
        most_batch_bytes = most_bytes + BATCH_ROOM_BYTES
        for entry in entries:
            if entry.published_us > LATEST_US or entry.flags >> QOS_SHIFT == 3:
                raise _ProblemError(f"a batch for {shown(entry.topic)} has a time or a QoS that cannot be")
            if not 1 <= entry.count <= MAX_BATCH_MESSAGES or len(entry.rest) > most_batch_bytes:
                raise _ProblemError(
                    f"a batch for {shown(entry.topic)} has {entry.count} messages and {len(entry.rest)} bytes: "
                    f"stage batches of 1 to {MAX_BATCH_MESSAGES} messages and {most_batch_bytes} bytes at most"
                )
            if len(entry.rest) > most_bytes and longest_message(entry.flags, entry.count, entry.rest) > most_bytes:
                raise _ProblemError(
                    f"a message for {shown(entry.topic)} is longer than the {most_bytes} bytes that this broker takes"
                )
        try:
            for publisher in {entry.publisher for entry in entries}:
                check_name(publisher)
            for name in {entry.topic for entry in entries}:
                topic = self._require_topic(name)
                topic.publishers += 1
                held.append(topic)
        except (UsageError, TooManyTopicsError) as error:
            raise _ProblemError(str(error)) from None

    def _require_topic(self, name: str) -> Topic:
        topic = self._catalogue.get(name)
        if topic is not None and not name.startswith(RESERVED):
            return topic
        check_topic(name)
        if name.startswith(RESERVED):
            raise BadTopicError(f"topic {name!r} begins with '$': these are the broker's own")
        if self._catalogue.settings.policy_of(name) == "explicit":
            raise BadTopicError(f"topic {name!r} does not exist: create it first")
        return self._catalogue.create(name)

    def _add(self, entries: list[Entry], now_us: int) -> None:
        for (name, publisher), group in groupby(entries, key=lambda entry: (entry.topic, entry.publisher)):
            topic = self._catalogue.adopt(name)
            number = self._names.number(publisher)
            received = [_received(entry, now_us) for entry in group]
            topic.messages += sum([entry.count for entry in received])
            topic.payload_bytes += sum([payload_bytes(entry) for entry in received])
            topic.last_us = now_us
            self._commits.fresh.append(Pending(None, topic, number, 0, 0, received, Fate.DROPPED))
            self._commits.is_retaining |= any(entry.flags & RETAIN for entry in received)


def _received(entry: Entry, now_us: int) -> Entry:
    return Entry(
        topic=entry.topic,
        publisher=entry.publisher,
        flags=entry.flags & ~(HAS_SEQUENCE | HAS_ROUTE),
        published_us=entry.published_us,
        received_us=now_us,
        count=entry.count,
        rest=entry.rest,
    )
