"""What leaves the log when: rules by age and by size, for the whole log and for topics.

The first rule whose filter matches a topic decides for it, the broker-wide one if none does. A limit that a rule does
not have is no limit. With one exception: the broker-wide size bounds the file, so it takes the oldest blocks, whatever
is in them. Age goes by blocks: one leaves when its last message is too old. A block that several rules share is written
anew without the topics of the rule that is due; so offsets have holes.

All is done in steps on the writer's connection, each a transaction of its own that takes milliseconds, so no commit
waits for long. The rule's mark rises in the same transaction: see godwit.wire.marks. Freed pages are used again, so the
file stops growing; `godwit log compact` gives them back.

Age may empty the log; size leaves at least its newest block, or a bound below a block's size would keep nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from godwit.limits import MIB
from godwit.store.block import (
    DamagedBlockError,
    Row,
    TopicShare,
    decode_block,
    decode_topics,
    encode_block,
    encode_topics,
    is_row_sealed,
    make_row,
    row_of,
)
from godwit.store.connection import telling
from godwit.store.kept import marks_of, set_mark
from godwit.store.pages import PAGE_BYTES
from godwit.store.sql import parse_queries
from godwit.store.sqlite import SqliteStore
from godwit.wire.batch import Entry
from godwit.wire.filters import matches
from godwit.wire.marks import BROKER_WIDE, rule_covers

STEP_DELETED_BYTES: Final = 8 * MIB
"""A step deletes no more: it has to look at every page that it frees."""
STEP_REWRITTEN_BYTES: Final = 1 * MIB
"""A step writes no more anew."""
STEP_BLOCKS: Final = 256
"""A step looks at no more blocks ..."""
STEP_SHARES: Final = 4096
"""... nor at blocks of more topics together."""

_SQL: Final = parse_queries(Path(__file__).with_name("retention.sql").read_text(encoding="utf-8"))
_MAX_KNOWN_TOPICS: Final = 100_000
_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Rule:
    """How long messages stay: of topics that match the pattern; without one, of all that no other rule matches."""

    pattern: str | None = None
    max_age_s: float | None = None
    max_bytes: int | None = None
    """Payload that a filter's topics may hold together; of the broker-wide rule: how long the file may be."""


class Trimmed(msgspec.Struct, frozen=True):
    """What a step deleted, as godwit.broker.effects.Losing wants it.

    With a pattern (BROKER_WIDE too): the mark of this name has risen to the floor. Without: the log begins there now.
    """

    pattern: str | None
    floor: int
    entries: list[tuple[int, Entry]]
    """One for each block and topic, with the number of messages and nothing else. It ends where the block does."""


class _Span(msgspec.Struct, frozen=True, gc=False):
    """A block, and what of it belongs to somebody: to all, or to a rule."""

    row: Row
    """Its body may be left out."""
    shares: list[TopicShare]
    body_bytes: int

    @property
    def payload_bytes(self) -> int:
        return sum([share.payload_bytes for share in self.shares])

    def entries(self) -> Iterator[tuple[int, Entry]]:
        """A topic's messages as if they were the block's last: where they are, only the block itself knows.

        So who stands within the block is told of a few too many, never of too few.
        """
        for share in self.shares:
            yield (
                self.row.end_offset - share.messages,
                Entry(
                    topic=share.name,
                    publisher="",
                    flags=0,
                    published_us=0,
                    received_us=0,
                    count=share.messages,
                    rest=b"",
                ),
            )


class Retention:
    """Of one store, in the thread that writes."""

    def __init__(self, store: SqliteStore, rules: Sequence[Rule]) -> None:
        named = [rule for rule in rules if rule.pattern is not None]
        wide = [rule for rule in rules if rule.pattern is None] or [Rule()]
        if len(wide) > 1:
            raise ValueError("there is more than one rule without a pattern")
        self._store = store
        self._connection = store.connection
        self._rules = [*named, *wide]
        self._keys = [rule.pattern or BROKER_WIDE for rule in self._rules]
        self._wide = len(named)
        self._owners: dict[str, int] = {}  # topic -> its rule
        self._cursors = [0] * len(self._rules)  # no block before it has anything of the rule
        self._due_us: list[float] = [0.0] * len(self._rules)
        self._held_bytes = [0] * len(self._rules)  # of blocks before _counted_to
        self._counted_to = 0
        self._counts = any(rule.max_bytes is not None for rule in named)
        self._turn = 0
        self._is_marked = False

    def step(self, now_us: int) -> list[Trimmed] | None:
        """One small transaction; None if nothing is due, a list, perhaps empty, if there may be more to do."""
        if all(rule.max_age_s is None and rule.max_bytes is None for rule in self._rules):
            return None
        with telling(self._store.path, "trimmed"):
            if not self._is_marked:
                self._mark_rules()
            if self._counts and not self._count():
                return []
            max_bytes = self._rules[self._wide].max_bytes
            if max_bytes is not None and self._used_bytes() > max_bytes and (trimmed := self._trim_front(max_bytes)):
                return trimmed
            for _ in self._rules:
                index = self._turn
                self._turn = (index + 1) % len(self._rules)
                if (trimmed := self._trim(index, now_us)) is not None:
                    return trimmed
        return None

    # -- by rule ------------------------------------------------------------------------------------------------------

    def _trim(self, index: int, now_us: int) -> list[Trimmed] | None:
        """Delete what is due by one rule. None if nothing is."""
        rule = self._rules[index]
        if self._excess_bytes(index) <= 0 and (rule.max_age_s is None or now_us < self._due_us[index]):
            return None
        due, cursor = self._due(index, now_us)
        if not due:
            has_moved = cursor > self._cursors[index]
            self._cursors[index] = cursor
            return [] if has_moved else None
        first_before = self._store.first_offset
        with self._store.transaction():
            parts = [self._remove(index, span) for span in due]
            marks = self._raise_marks(index, due[-1].row.end_offset)
            first_after = self._store.first_offset  # here, so that nothing is deleted that cannot be told
        self._cursors[index] = cursor
        told = self._told(self._keys[index], marks, parts)
        return told if first_after == first_before else [*told, Trimmed(None, first_after, [])]

    def _due(self, index: int, now_us: int) -> tuple[list[_Span], int]:
        """Blocks that a rule deletes from now, as many as a step takes, and where to look next."""
        max_age_s = self._rules[index].max_age_s
        age_us = math.inf if max_age_s is None else max_age_s * _US
        excess_bytes = self._excess_bytes(index)
        due: list[_Span] = []
        cursor = self._cursors[index]
        deleted_bytes = rewritten_bytes = 0
        newest = self._newest()
        spans, is_all = self._spans(cursor)
        for span in spans:
            is_old = span.row.until_us + age_us <= now_us
            if not is_old and (excess_bytes <= 0 or span.row.first_offset == newest):
                self._due_us[index] = span.row.until_us + age_us
                return due, cursor
            if mine := self._part(index, span):
                if mine is span:
                    deleted_bytes += span.body_bytes
                else:
                    rewritten_bytes += span.body_bytes
                if due and (deleted_bytes > STEP_DELETED_BYTES or rewritten_bytes > STEP_REWRITTEN_BYTES):
                    return due, cursor
                due.append(span)
                excess_bytes -= mine.payload_bytes
            cursor = span.row.end_offset
        if is_all:
            self._due_us[index] = now_us + age_us  # what comes from now on is not due before
        return due, cursor

    def _part(self, index: int, span: _Span) -> _Span | None:
        """What of a block belongs to a rule: the block itself if all does, and None if nothing does.

        A block that does not tell its topics is damaged, or stands for one that was: it goes by the broker-wide rule.
        """
        mine = [share for share in span.shares if self._owner(share.name) == index]
        if len(mine) == len(span.shares):
            return span if mine or index == self._wide else None
        return msgspec.structs.replace(span, shares=mine) if mine else None

    def _remove(self, index: int, span: _Span) -> _Span:
        """Take a rule's topics out of a block, within the caller's transaction; what left."""
        mine = self._part(index, span) or span
        if mine is span:
            self._connection.execute(_SQL["delete_block"], (span.row.first_offset,))
            return mine
        names = {share.name for share in mine.shares}
        old = span.row
        body = self._body(old.first_offset)
        try:
            kept = [(offset, entry) for offset, entry in decode_block(body) if entry.topic not in names]
            new = encode_block(kept, self._store.stamp)
        except DamagedBlockError:  # it stays, so that its loss is told, until the last of its topics is due
            others = encode_topics([share for share in span.shares if share.name not in names])
            new = make_row(old.first_offset, old.end_offset, old.received_us, old.until_us, others, body)
        self._connection.execute(_SQL["replace_block"], (*msgspec.structs.astuple(new), old.first_offset))
        return mine

    # -- the broker-wide size -----------------------------------------------------------------------------------------

    def _used_bytes(self) -> int:
        ((pages,),) = self._connection.execute(_SQL["select_used_pages"])
        return int(pages) * PAGE_BYTES

    def _trim_front(self, max_bytes: int) -> list[Trimmed] | None:
        """Delete the oldest blocks, whatever is in them, until the file is short enough or the step long enough."""
        parts: list[_Span] = []
        newest = self._newest()
        with self._store.transaction():
            for span in self._spans(0)[0]:
                if span.row.first_offset == newest:
                    break
                self._connection.execute(_SQL["delete_block"], (span.row.first_offset,))
                parts.append(span)
                if sum(part.body_bytes for part in parts) >= STEP_DELETED_BYTES or self._used_bytes() <= max_bytes:
                    break
            if not parts:
                return None
            marks = self._raise_marks(None, parts[-1].row.end_offset)
            first_after = self._store.first_offset
        return [*self._told(BROKER_WIDE, marks, parts), Trimmed(None, first_after, [])]

    # -- marks --------------------------------------------------------------------------------------------------------

    def _mark_rules(self) -> None:
        """A rule without a mark gets one: what wider rules deleted before it came counts for its topics too."""
        marks = marks_of(self._connection)
        if missing := [key for key in self._keys if key not in marks]:
            with self._store.transaction():
                for key in missing:
                    floor = max((marks[other] for other in marks if rule_covers(other, key)), default=0)
                    set_mark(self._connection, key, floor)
        self._is_marked = True

    def _raise_marks(self, index: int | None, floor: int) -> dict[str, int]:
        """That of a rule and of those that it covers, but for earlier ones; without a rule, all of them."""
        earlier = self._keys[: index or 0]
        concerned = {
            key: max(old, floor)
            for key, old in marks_of(self._connection).items()
            if index is None or (key not in earlier and rule_covers(self._keys[index], key))
        }
        for key, mark in concerned.items():
            set_mark(self._connection, key, mark)
        return concerned

    def _told(self, key: str, marks: dict[str, int], parts: list[_Span]) -> list[Trimmed]:
        """What left, with the mark of the rule, and the other marks."""
        for part in parts:
            if part.row.first_offset < self._counted_to:
                for share in part.shares:
                    self._held_bytes[self._owner(share.name)] -= share.payload_bytes
        told = [Trimmed(key, marks[key], [entry for part in parts for entry in part.entries()])]
        return [*told, *(Trimmed(other, mark, []) for other, mark in marks.items() if other != key)]

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _spans(self, offset: int) -> tuple[list[_Span], bool]:
        """Blocks from an offset on, as many as a step looks at, and whether these are all."""
        rows: list[tuple[Any, ...]] = self._connection.execute(_SQL["select_spans"], (offset, STEP_BLOCKS)).fetchall()
        spans: list[_Span] = []
        shares_left = STEP_SHARES
        for first_offset, end_offset, received_us, until_us, seal, topics, body_bytes in rows:
            row = Row(first_offset, end_offset, received_us, until_us, seal, topics, b"")
            row = self._believed(row, spans)
            spans.append(_Span(row, decode_topics(row.topics), body_bytes))
            shares_left -= len(spans[-1].shares)
            if shares_left <= 0:
                break
        return spans, len(spans) == len(rows) < STEP_BLOCKS

    def _believed(self, row: Row, before: Sequence[_Span]) -> Row:
        """A row that is not what was written must not delete what is intact: then its block says what it is.

        A row of which nothing can be believed goes with the block before it.
        """
        if is_row_sealed(row):
            return row
        try:
            found = row_of(self._body(row.first_offset))
            if found.first_offset == row.first_offset:
                return found
        except DamagedBlockError:
            pass
        until_us = before[-1].row.until_us if before else 0
        return make_row(row.first_offset, row.first_offset + 1, until_us, until_us, encode_topics([]), b"")

    def _body(self, first_offset: int) -> bytes:
        body = self._connection.execute(_SQL["select_body"], (first_offset,)).get
        return body if isinstance(body, bytes) else b""

    def _newest(self) -> int | None:
        newest: int | None = self._connection.execute(_SQL["select_newest"]).get
        return newest

    def _owner(self, topic: str) -> int:
        """The rule that decides for a topic."""
        owner = self._owners.get(topic)
        if owner is None:
            if len(self._owners) >= _MAX_KNOWN_TOPICS:
                self._owners.clear()
            named = enumerate(self._keys[: self._wide])
            owner = next((index for index, pattern in named if matches(pattern, topic)), self._wide)
            self._owners[topic] = owner
        return owner

    def _count(self) -> bool:
        """Take blocks into account that were not yet, as many as a step looks at; whether these were all."""
        spans, is_all = self._spans(self._counted_to)
        for span in spans:
            for share in span.shares:
                self._held_bytes[self._owner(share.name)] += share.payload_bytes
            self._counted_to = span.row.end_offset
        return is_all

    def _excess_bytes(self, index: int) -> int:
        """By how much the topics of a rule with a filter hold more than they may."""
        max_bytes = self._rules[index].max_bytes
        return 0 if max_bytes is None or index == self._wide else self._held_bytes[index] - max_bytes
