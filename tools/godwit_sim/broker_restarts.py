"""The checker of restarts: a log that is opened again has all that was appended, and no append in part.

It stores every batch and every change of every append. Appends that the store confirmed must be present byte for byte.
An append that was interrupted, or failed, may be present as a whole, batches and changes together, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final, TypeAlias

import msgspec

from godwit.wire.batch import Entry
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
    job_parts,
)
from godwit_sim.broker_log_model import LogChecker
from godwit_sim.checkers import ViolationError

Rows: TypeAlias = dict[tuple[Any, ...], Any]
"""The state stored beside the log, by kind and key."""
SubscriptionKey: TypeAlias = tuple[str, tuple[str, ...], str | None]
"""Session, filters and cursor."""

_GONE: Final[dict[type, str]] = {
    TopicDeleted: "topic",
    SubscriptionDeleted: "feed",
    FilterDeleted: "filter",
    PacketDeleted: "packet",
    IdentityDeleted: "identity",
    QueryDeleted: "query",
}
"""The kind of row that each of these changes deletes; its fields are the key."""
SESSION_ROWS: Final = ("feed", "filter", "packet")
"""The kinds of rows that belong to a session; its name follows in the key."""
JOB_ROWS: Final = ("job", "payload", "task")
"""The kinds of rows that belong to a job; the job's number follows in the key."""


def apply(rows: Rows, changes: Sequence[Change]) -> Rows:
    """Return the rows after these changes: an independent implementation of their meaning."""
    rows = dict(rows)
    for change in changes:
        match change:
            case TopicRow():
                rows["topic", change.name] = change
            case RetainedRow():
                rows["retained", change.topic] = change
                if not change.payload:
                    del rows["retained", change.topic]
            case SessionRow():
                rows["session", change.name] = change
            case SessionDeleted():
                rows.pop(("session", change.name), None)
                for key in [key for key in rows if key[0] in SESSION_ROWS and key[1] == change.name]:
                    del rows[key]
            case SubscriptionRow():
                rows["feed", change.session, change.filters, change.cursor] = change
            case IdentityRow():
                rows["identity", change.owner, change.publisher, change.topic] = change
            case QueryRow():
                rows["query", change.query] = change
            case _:
                _apply_more(rows, change)
    return rows


def _apply_more(rows: Rows, change: Change) -> None:
    match change:
        case FilterRow():
            rows["filter", change.session, change.filter] = change
        case PacketRow():
            rows["packet", change.session, change.is_outgoing, change.number] = change
        case (
            TopicDeleted()
            | SubscriptionDeleted()
            | FilterDeleted()
            | PacketDeleted()
            | IdentityDeleted()
            | QueryDeleted()
        ):
            rows.pop((_GONE[type(change)], *msgspec.structs.astuple(change)), None)
            if isinstance(change, SubscriptionDeleted) and not change.filters:
                for key in [key for key in rows if key[0] in SESSION_ROWS[1:] and key[1] == change.session]:
                    del rows[key]
        case NextJobRow():
            rows["next job",] = change
        case JobRow():
            rows["job", change.job], payload, task = job_parts(change)
            if payload is not None:
                rows["payload", change.job] = payload
            if task is not None:
                rows["task", change.job, 0] = task
        case JobPayloadRow():
            rows["payload", change.job] = change
        case TaskRow():
            rows["task", change.job, change.number] = change
        case JobDeleted():
            for key in [key for key in rows if key[0] in JOB_ROWS and key[1] == change.job]:
                del rows[key]


def rows_of(state: StoredState) -> Rows:
    """Return the rows of the state that a store returns when it is opened."""
    lists: list[Sequence[Change]] = [
        state.topics, state.retained, state.sessions, state.subscriptions, state.filters, state.packets,
        state.identities, state.queries, state.jobs, state.payloads, state.tasks,
        [NextJobRow(state.next_job)] if state.next_job > 1 else [],
    ]  # fmt: skip
    return apply({}, [change for changes in lists for change in changes])


@dataclass(slots=True)
class _Attempt:
    """An append whose outcome is unknown."""

    entries: list[Entry]
    changes: list[Change]
    why: str = "was cut short"


@dataclass(slots=True)
class StoreContents:
    """The contents of a store after it was opened."""

    log_id: bytes
    first_offset: int
    next_offset: int
    entries: list[tuple[int, Entry]]
    state: StoredState
    damaged: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class StoreBackup:
    """The contents of a copy of the log's file."""

    entries: list[tuple[int, Entry]]
    rows: Rows


@dataclass(slots=True)
class RestartChecker:
    """Compare the contents of a reopened store with all that was appended, deleted and committed.

    Input: attempted, succeeded, failed; trimming, trimmed, not_trimmed; rotted; commit_answered, cursor_dropped. Then
    call reopened, check_retained and check_quiet.
    """

    log: LogChecker
    reopenings: int = 0
    recovered_appends: int = 0
    """The number of appends whose outcome was unknown and that were present."""
    _log_id: bytes | None = None
    _entries: list[tuple[int, Entry]] = field(default_factory=list)
    _rows: Rows = field(default_factory=dict)
    _history: list[tuple[int, Rows]] = field(default_factory=lambda: [(0, {})])
    """The end of the log and the rows after each commit."""
    _attempts: list[_Attempt] = field(default_factory=list)
    _commits: dict[SubscriptionKey, int] = field(default_factory=dict)
    _floor: int = 0
    _trims: int = 0
    """Deletions whose outcome is unknown."""
    _corrupted: set[int] = field(default_factory=set)

    NAME = "restart"

    def copy(self) -> StoreBackup:
        """Return a copy of the log's present contents: all that the store has confirmed."""
        return StoreBackup(self._entries[:], dict(self._rows))

    def restore(self, kept: StoreBackup) -> None:
        """Record that the file was replaced by a copy, which also undoes later confirmations to clients."""
        self._entries, self._rows = kept.entries[:], dict(kept.rows)
        self._commits.clear()
        self._forget_attempts()

    @property
    def rows(self) -> Rows:
        """Return the state stored beside the log, as far as the store has confirmed it."""
        return self._rows

    # -- appends ------------------------------------------------------------------------------------------------------

    def attempted(self, entries: Sequence[Entry], changes: Sequence[Change]) -> None:
        """Record that the store is about to receive these."""
        self._attempts.append(_Attempt(list(entries), list(changes)))

    def failed(self) -> None:
        """Record that the last append failed. It does not count, but may be present later."""
        self._attempts[-1].why = "failed"

    def succeeded(self, first_offset: int) -> None:
        """Record that the store confirmed the last append: from now on it must be present."""
        attempt = self._attempts[-1]
        self._forget_attempts()
        self._keep(attempt, first_offset)

    def _forget_attempts(self) -> None:
        """Forget attempts without an outcome: a later transaction has overwritten them."""
        self._attempts.clear()
        self._trims = 0

    def trimming(self) -> None:
        """Record that the store is about to delete some of the oldest blocks, if any are due."""
        self._trims += 1

    def not_trimmed(self) -> None:
        """Record that no blocks were due."""
        self._trims -= 1

    def trimmed(self, first_offset: int) -> None:
        """Record that the store confirmed the deletion."""
        self._forget_attempts()
        self._forget_below(first_offset)

    def _forget_below(self, first_offset: int) -> None:
        self._floor = first_offset
        self._entries = [one for one in self._entries if one[0] >= first_offset]

    def _keep(self, attempt: _Attempt, first_offset: int) -> None:
        for entry in attempt.entries:
            self._entries.append((first_offset, entry))
            first_offset += entry.count
        self._rows = apply(self._rows, attempt.changes)
        self._history.append((first_offset, self._rows))

    def rotted(self, offset: int) -> None:
        """Record that the disk corrupted this message."""
        self._corrupted.add(offset)

    # -- promises to subscribers --------------------------------------------------------------------------------------

    def commit_answered(self, key: SubscriptionKey, offset: int) -> None:
        """Record that a client's commit of its cursor was confirmed."""
        self._commits[key] = offset

    def cursor_dropped(self, key: SubscriptionKey) -> None:
        """Record that the subscription or its session may have been deleted."""
        self._commits.pop(key, None)

    # -- opening the store --------------------------------------------------------------------------------------------

    def reopened(self, found: StoreContents) -> list[Entry]:
        """Check a store that was opened; return the batches of an unconfirmed append that it contains."""
        self.reopenings += 1
        self._log_id = self._log_id or found.log_id
        if found.log_id != self._log_id:
            raise self._violation("it is another log")
        self._check_floor(found.first_offset)
        self._check_damage(found.damaged)
        more = self._check_entries(found)
        self._check_rows(found, more)
        self._check_cursors()
        self._forget_attempts()
        return [entry for _, entry in more]

    @property
    def is_certain(self) -> bool:
        """Return whether the outcome of every transaction is known."""
        return not self._attempts and not self._trims

    def check_damaged(self, found: StoreContents, findings: Sequence[str]) -> int:
        """Check a log whose write-ahead log was damaged externally; return how many messages it lost.

        It must equal its state after some commit. All later offsets must be a lost range, and be reported.
        """
        ends = [
            begin
            for begin, end in found.damaged
            if end == found.next_offset and self._corrupted.isdisjoint(range(begin, end))
        ]
        end = ends[0] if ends else found.next_offset
        if found.next_offset < self.log.next_offset:
            raise self._violation(f"offset {found.next_offset} would be used again after damage")
        expected = [one for one in self._entries if one[0] < end]
        there = [one for one in found.entries if one[0] >= self._floor]
        if there != expected:
            raise self._violation(f"after damage there are {len(there)} batches before {end}, expected {len(expected)}")
        if end < self.log.next_offset and (end, self.log.next_offset) not in found.damaged:
            raise self._violation(f"offsets from {end} on are gone after damage, without a report to readers")
        rows = {key: row for key, row in rows_of(found.state).items() if key != ("next job",)}
        is_lost = end < found.next_offset
        older = [
            {key: _unsettled(row, end) if is_lost else row for key, row in known.items() if key != ("next job",)}
            for at, known in self._history
            if at == end
        ]
        if rows not in older:
            raise self._violation(f"after damage there is {_difference(rows, older[-1] if older else {})}")
        if (rows != older[-1] or end < self.log.next_offset) and not findings:
            raise self._violation("commits are gone after damage, and the operator gets no report")
        return self.log.next_offset - end

    def _check_floor(self, first_offset: int) -> None:
        if self._trims and first_offset > self._floor:
            self._forget_below(first_offset)
        if first_offset != min(self._floor, self.log.next_offset):
            raise self._violation(f"the log begins at {first_offset}, it was {self._floor}")

    def _check_damage(self, damaged: list[tuple[int, int]]) -> None:
        """Check that only corrupted messages, and those committed with them, are damaged."""
        for begin, end in damaged:
            if self._corrupted.isdisjoint(range(begin, end)):
                raise self._violation(f"offsets {begin} to {end} are damaged, and were not corrupted by the disk")
            self.log.damaged.update(range(begin, end))
        self._entries = [one for one in self._entries if one[0] not in self.log.damaged]

    def _check_entries(self, found: StoreContents) -> list[tuple[int, Entry]]:
        """Check that all appended batches are present in order; return the batches after them."""
        for (offset, entry), there in zip_longest(self._entries, found.entries[: len(self._entries)]):
            if there != (offset, entry):
                raise self._violation(self._explain(offset, entry, there))
        more = found.entries[len(self._entries) :]
        end = more[-1][0] + more[-1][1].count if more else self.log.next_offset
        if found.next_offset != end:
            raise self._violation(f"the next offset is {found.next_offset}, behind the last message it is {end}")
        return more

    def _explain(self, offset: int, entry: Entry, there: tuple[int, Entry] | None) -> str:
        lost = [self.log.at(at) for at in range(offset, offset + entry.count)]
        confirmed = [one for one in lost if one is not None and one.confirmed_s is not None]
        what = "is not there" if there is None else f"has changed: offset {there[0]}, {there[1].topic!r}"
        claim = f"{confirmed[0]} in it was confirmed" if confirmed else "it was not yet confirmed"
        return f"the batch at offset {offset} on {entry.topic!r} {what}; {claim}"

    def _check_rows(self, found: StoreContents, more: list[tuple[int, Entry]]) -> None:
        """Check that the changes present belong to the batches present."""
        there = rows_of(found.state)
        entries = [entry for _, entry in more]
        fitting = [attempt for attempt in self._attempts if attempt.entries == entries]
        if more and not fitting:
            raise self._violation(f"{len(more)} batches from offset {more[0][0]} on that no append had together")
        rows = self._rows
        if not more and there == rows:
            return
        for attempt in fitting:
            rows = apply(self._rows, attempt.changes)
            if there == rows:
                self.recovered_appends += 1
                self._keep(attempt, found.next_offset - sum(entry.count for entry in entries))
                return
        raise self._violation(f"beside {len(more)} more batches there is {_difference(there, rows)}")

    def _check_cursors(self) -> None:
        for key, offset in self._commits.items():
            kept = self._rows.get(("feed", *key))
            if kept is None or kept.resume_at < offset:
                problem = "is gone" if kept is None else f"is at {kept.resume_at}"
                raise self._violation(f"cursor {key} {problem}, the commit of {offset} was answered")

    def check_retained(self, state: StoredState, by_log: dict[str, bytes]) -> None:
        """Check that topics retain what the log implies: the last retained message of each topic that has one.

        Call it after the log's checker has learned the batches that `reopened` returned.
        """
        there = {kept.topic: kept.payload for kept in state.retained if not kept.topic.startswith("$")}
        wrong = sorted(topic for topic in there.keys() | by_log.keys() if there.get(topic) != by_log.get(topic))
        if wrong:
            topic = wrong[0]
            raise self._violation(
                f"{topic!r} retains {there.get(topic, b'')[:16]!r}, by the log it is {by_log.get(topic, b'')[:16]!r}"
            )

    def check_quiet(self, state: StoredState, next_offset: int | None = None) -> None:
        """Check that offsets stored as skipped by a subscription did not match it. Call it after check_retained.

        `next_offset` is the end of the log that the state is from, if that is not the end of the whole log.
        """
        log_end = self.log.next_offset if next_offset is None else next_offset
        for kept in state.subscriptions:
            quiet_from = kept.resume_at if kept.quiet_from is None else kept.quiet_from
            end = log_end if kept.is_settled else kept.resume_at
            matching = self.log.matching(kept.filters, quiet_from, end, required=True)
            passed = [one for one in matching if not self.log.is_unavailable(one)]
            if passed and not kept.lost:
                raise self._violation(f"{kept} skips offset {passed[0]}, which matches it")

    def _violation(self, text: str) -> ViolationError:
        return ViolationError(self.NAME, f"at opening number {self.reopenings}: {text}")


def _unsettled(row: Any, end: int) -> Any:
    """Return a row as it is after the log lost the messages from `end` on, some of which may match the subscription."""
    if isinstance(row, SubscriptionRow) and row.is_settled:
        return msgspec.structs.replace(row, resume_at=end, is_settled=False)
    return row


def _difference(there: Rows, expected: Rows) -> str:
    """Return a description of the first rows that differ."""
    key = min((key for key in there.keys() | expected.keys() if there.get(key) != expected.get(key)), key=str)
    return f"{there.get(key)} for {key}, expected was {expected.get(key)}"
