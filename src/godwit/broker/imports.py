"""Imports: messages that queries have staged in the archive, appended as a whole and once for each batch of a query.

The number of a query's last batch is written with its messages. A batch with a number that is not greater is a repeat.
A batch without messages is not remembered: nothing in it could be appended twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import msgspec

from godwit.broker.append_queue import AppendQueue, OnFailure, Pending
from godwit.broker.catalogue import Catalogue, PublisherNumbers, TooManyTopicsError, Topic
from godwit.broker.dirty_state import DirtyState
from godwit.broker.effects import Effect, Import, Imported
from godwit.broker.ports import RequestFailure
from godwit.broker.publications import LATEST_US, check_extension
from godwit.broker.session import check_name
from godwit.broker.topics import check_topic, shown
from godwit.errors import BadTopicError, UsageError
from godwit.limits import MAX_BATCH_MESSAGES, MAX_MESSAGE_BYTES, MAX_RECORD_BYTES
from godwit.wire.batch import HEAD_FLAGS, QOS_SHIFT, RETAIN, Entry, longest_message, payload_bytes
from godwit.wire.changes import QueryDeleted, QueryRow
from godwit.wire.filters import RESERVED

MAX_QUERIES: Final = 100_000
"""Queries whose last batch is remembered."""
QUERY_EXPIRY_US: Final = 7 * 24 * 3600 * 1_000_000
"""A query that imported nothing for this time makes room for another; until then its repeats are recognized."""
LAST_BATCH: Final = 2**53
"""The largest batch number: every language can represent it exactly."""
BATCH_ROOM_BYTES: Final = MAX_RECORD_BYTES - MAX_MESSAGE_BYTES
"""How much longer a batch may be than the longest message."""


class _ImportError(Exception):
    """Why the messages cannot be imported."""


class _Query(msgspec.Struct):
    batch: int
    """The newest."""
    stored_batch: int
    """The newest that the log has."""
    last_us: int


@dataclass(eq=False)
class Imports:
    """Input: handle. The answer is an Imported among the effects, once the log has stored the messages."""

    _catalogue: Catalogue
    _numbers: PublisherNumbers
    _queue: AppendQueue
    _dirty: DirtyState
    _effects: list[Effect]

    def __post_init__(self) -> None:
        self._queries: OrderedDict[str, _Query] = OrderedDict()
        """The least recently used one first."""

    def restore(self, queries: Iterable[QueryRow]) -> None:
        """Add the queries that were known before the broker was restarted, the least recently used ones first."""
        for row in queries:
            self._queries[row.query] = _Query(row.batch, row.batch, row.last_us)

    def handle(self, event: Import, now_us: int) -> None:
        """Append staged messages, of all partitions in their order."""
        held: list[Topic] = []
        try:
            self._import(event, held, now_us)
        except _ImportError as error:
            self._effects.append(Imported(event.key, problem=str(error)))
        finally:
            for topic in held:
                topic.publishers -= 1

    def _import(self, event: Import, held: list[Topic], now_us: int) -> None:
        """`held` gets the topics, so that none of them is deleted to make room for another."""
        query = self._find(event, now_us)
        is_known = event.batch <= query.batch
        if not is_known:
            self._check_rights(event)
            self._check_entries(event.entries, held)
        before = sum([entry.count for pending in self._queue.fresh for entry in pending.entries])
        count = 0 if is_known else sum([entry.count for entry in event.entries])
        if count:
            self._remember(event, query, now_us)
            self._add(event.entries, now_us)

        def stored(first_offset: int) -> None:
            if count:
                query.stored_batch = max(event.batch, query.stored_batch)
            offset = first_offset + before if count else 0
            self._effects.append(Imported(event.key, was_known=is_known, first_offset=offset, count=count))

        def failed(text: str) -> None:
            query.batch = query.stored_batch
            if query.batch < 0 and self._queries.get(event.query) is query:
                del self._queries[event.query]
            self._effects.append(Imported(event.key, problem=text))

        self._queue.wait(stored, failed)

    def _find(self, event: Import, now_us: int) -> _Query:
        """Return the query as it is known, or a new one."""
        if not 0 <= event.batch <= LAST_BATCH:
            raise _ImportError(f"batch {event.batch} is out of range: batches are counted from 0 to 2^53 at most")
        query = self._queries.get(event.query)
        if query is not None:
            return query
        try:
            check_name(event.query)
        except UsageError as error:
            raise _ImportError(f"as a query: {error}") from None
        if event.entries and len(self._queries) >= MAX_QUERIES:
            oldest = next(iter(self._queries.values()))
            if oldest.last_us > now_us - QUERY_EXPIRY_US:
                raise _ImportError(
                    f"the batches of {MAX_QUERIES} queries are remembered, and no room is left for more: "
                    "a query that imports nothing for 7 days makes room"
                )
        return _Query(-1, -1, now_us)

    def _remember(self, event: Import, query: _Query, now_us: int) -> None:
        query.batch = event.batch
        query.last_us = now_us
        if event.query not in self._queries and len(self._queries) >= MAX_QUERIES:
            oldest, _ = self._queries.popitem(last=False)
            self._dirty.query(QueryDeleted(oldest))
        self._queries[event.query] = query
        self._queries.move_to_end(event.query)
        self._dirty.query(QueryRow(event.query, event.batch, now_us))

    def _check_rights(self, event: Import) -> None:
        """Check names and topics against the token: its rights may have changed since it staged them."""
        access = self._catalogue.settings.access
        for publisher in {entry.publisher for entry in event.entries}:
            has_secret = access.is_listed(publisher)
            if problem := event.rights.name_problem(publisher, has_secret=has_secret):
                raise _ImportError(problem)
        for topic in {entry.topic for entry in event.entries}:
            if problem := event.rights.publish_problem(topic):
                raise _ImportError(problem)

    def _check_entries(self, entries: list[Entry], held: list[Topic]) -> None:
        """Check the messages as if a publisher had sent them."""
        settings = self._catalogue.settings
        most_bytes = settings.max_message_bytes
        most_batch_bytes = most_bytes + BATCH_ROOM_BYTES
        for entry in entries:
            if entry.published_us > LATEST_US or entry.flags >> QOS_SHIFT == 3:
                raise _ImportError(f"a batch for {shown(entry.topic)} has an invalid time or QoS")
            if not 1 <= entry.count <= MAX_BATCH_MESSAGES or len(entry.rest) > most_batch_bytes:
                raise _ImportError(
                    f"a batch for {shown(entry.topic)} has {entry.count} messages and {len(entry.rest)} bytes: "
                    f"stage batches of 1 to {MAX_BATCH_MESSAGES} messages and {most_batch_bytes} bytes at most"
                )
            if len(entry.rest) > most_bytes and longest_message(entry.flags, entry.count, entry.rest) > most_bytes:
                raise _ImportError(
                    f"a message for {shown(entry.topic)} is longer than the {most_bytes} bytes that this broker takes"
                )
        try:
            for entry in entries:
                check_extension(entry)
            for publisher in {entry.publisher for entry in entries}:
                check_name(publisher)
            for name in {entry.topic for entry in entries}:
                topic = require_topic(self._catalogue, name)
                topic.publishers += 1
                held.append(topic)
        except RequestFailure as failure:
            raise _ImportError(failure.text) from None
        except (UsageError, TooManyTopicsError) as error:
            raise _ImportError(str(error)) from None

    def _add(self, entries: list[Entry], now_us: int) -> None:
        for (name, publisher), group in groupby(entries, key=lambda entry: (entry.topic, entry.publisher)):
            topic = self._catalogue.adopt(name)
            number = self._numbers.number(publisher)
            received = [_received(entry, now_us) for entry in group]
            topic.messages += sum([entry.count for entry in received])
            topic.payload_bytes += sum([payload_bytes(entry) for entry in received])
            topic.last_us = now_us
            self._queue.fresh.append(Pending(None, topic, number, 0, received, OnFailure.DROPPED))
            self._queue.is_retaining |= any(entry.flags & RETAIN for entry in received)


def require_topic(catalogue: Catalogue, name: str) -> Topic:
    """Return a topic for messages that no client publishes here, created if necessary.

    Raises BadTopicError or TooManyTopicsError.
    """
    topic = catalogue.get(name)
    if topic is not None and not name.startswith(RESERVED):
        return topic
    check_topic(name)
    if name.startswith(RESERVED):
        raise BadTopicError(f"topic {name!r} begins with '$': these are the broker's own")
    if catalogue.settings.policy_of(name) == "explicit":
        raise BadTopicError(f"topic {name!r} does not exist: create it first")
    return catalogue.create(name)


def _received(entry: Entry, now_us: int) -> Entry:
    return Entry(
        topic=entry.topic,
        publisher=entry.publisher,
        flags=entry.flags & ~HEAD_FLAGS,
        published_us=entry.published_us,
        received_us=now_us,
        count=entry.count,
        rest=entry.rest,
    )
