"""What queries staged in the archive: appended as a whole, once for each batch of a query, whatever is repeated.

The number of a query's last batch is written with its messages. A batch that is not above it is known already.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Final

from godwit.broker.catalogue import Catalogue, Names, TooManyTopicsError
from godwit.broker.commits import Commits, Fate, Pending
from godwit.broker.effects import Effect, Import, Imported
from godwit.broker.journal import Journal
from godwit.broker.publishing import LATEST_US
from godwit.broker.session import check_name
from godwit.broker.topics import RESERVED, check_topic, shown
from godwit.broker.trim import longest_message
from godwit.errors import BadTopicError, UsageError
from godwit.limits import MAX_BATCH_MESSAGES, MAX_MESSAGE_BYTES, MAX_RECORD_BYTES
from godwit.wire.batch import HAS_ROUTE, HAS_SEQUENCE, QOS_SHIFT, RETAIN
from godwit.wire.entry import Entry

MAX_QUERIES: Final = 100_000
"""Whose batches are remembered."""
BATCH_ROOM_BYTES: Final = MAX_RECORD_BYTES - MAX_MESSAGE_BYTES
"""What a batch may be longer than the longest message."""


class _ProblemError(Exception):
    """Why it cannot be done."""


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
        self._batches: dict[str, int] = {}
        """By query, the newest batch."""
        self._safe: dict[str, int] = {}
        """The same, as far as the log has it."""

    def restore(self, batches: Mapping[str, int]) -> None:
        self._batches.update(batches)
        self._safe.update(batches)

    def take(self, event: Import, now_us: int) -> None:
        """Staged messages, of all partitions in their order."""
        query = event.query
        try:
            if query not in self._batches:
                self._check_query(query)
            is_known = event.batch <= self._batches.get(query, -1)
            if not is_known:
                self._check_entries(event.entries)
        except _ProblemError as error:
            self._effects.append(Imported(event.key, problem=str(error)))
            return
        before = sum([entry.count for pending in self._commits.fresh for entry in pending.entries])
        if not is_known:
            self._batches[query] = event.batch
            self._journal.query(query, event.batch)
            self._add(event.entries, now_us)
        count = 0 if is_known else sum([entry.count for entry in event.entries])

        def on_safe(first_offset: int) -> None:
            self._safe[query] = max(event.batch, self._safe.get(query, -1))
            offset = 0 if is_known else first_offset + before
            self._effects.append(Imported(event.key, was_known=is_known, first_offset=offset, count=count))

        def on_failed(text: str) -> None:
            self._batches[query] = self._safe.get(query, -1)
            self._effects.append(Imported(event.key, problem=text))

        self._commits.wait(on_safe, on_failed)

    def _check_query(self, query: str) -> None:
        try:
            check_name(query)
        except UsageError as error:
            raise _ProblemError(f"as a query: {error}") from None
        if len(self._batches) >= MAX_QUERIES:
            raise _ProblemError(f"the batches of {MAX_QUERIES} queries are remembered, and no room is left for more")

    def _check_entries(self, entries: list[Entry]) -> None:
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
                self._require_topic(name)
        except (UsageError, TooManyTopicsError) as error:
            raise _ProblemError(str(error)) from None

    def _require_topic(self, name: str) -> None:
        if self._catalogue.get(name) is not None and not name.startswith(RESERVED):
            return
        check_topic(name)
        if name.startswith(RESERVED):
            raise BadTopicError(f"topic {name!r} begins with '$': these are the broker's own")
        if self._catalogue.settings.policy_of(name) == "explicit":
            raise BadTopicError(f"topic {name!r} does not exist: create it first")
        self._catalogue.create(name)

    def _add(self, entries: list[Entry], now_us: int) -> None:
        for (name, publisher), group in groupby(entries, key=lambda entry: (entry.topic, entry.publisher)):
            topic = self._catalogue.adopt(name)
            number = self._names.number(publisher)
            received = [_received(entry, now_us) for entry in group]
            topic.messages += sum([entry.count for entry in received])
            topic.payload_bytes += sum([len(entry.rest) for entry in received])
            topic.last_us = now_us
            self._commits.fresh.append(Pending(None, topic, number, 0, 0, received, Fate.DROPPED))
            self._commits.is_retaining |= any(entry.flags & RETAIN for entry in received)


def _received(entry: Entry, now_us: int) -> Entry:
    return Entry(
        entry.topic,
        entry.publisher,
        entry.flags & ~(HAS_SEQUENCE | HAS_ROUTE),
        entry.published_us,
        now_us,
        None,
        0,
        entry.count,
        entry.rest,
    )
