"""Retention: delete messages by age and by size, for the whole log and for topics.

A topic belongs to the first rule whose filter matches it, or to the broker-wide rule. A rule without a limit has none,
with one exception: the broker-wide size limits the file, so it deletes the oldest blocks, whatever topics they contain.
Age is measured by block: it is deleted when its last message is too old. A block that several rules share is rewritten
without the topics of the rule that is due, so offsets may have holes.

Everything is done in steps on the writer's connection. A step is planned (`Retention.plan`), which changes nothing; the
resulting cut names blocks, topics and floors, and is applied (`apply_cut`) in a transaction of a few milliseconds, so
that no commit waits for long. The retention floor of the rule rises in the same transaction
(godwit.wire.retention_floors). In a cluster the active broker plans, and the cut is a record that every node applies.
Freed pages are reused, so the file stops growing; `godwit log compact` returns them to the file system.

The age limit may empty the log. A size limit leaves at least the newest block: otherwise one below the size of a block
would delete everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import apsw
import msgspec

from godwit.limits import MIB
from godwit.store.block import (
    BlockRow,
    DamagedBlockError,
    TopicShare,
    decode_block,
    decode_topic_index,
    encode_block,
    encode_topic_index,
    is_row_valid,
    make_row,
    row_of,
)
from godwit.store.connection import translate_errors
from godwit.store.schema import QUERIES
from godwit.store.sqlite import SqliteStore
from godwit.store.sqlite_pages import PAGE_BYTES
from godwit.store.state import load_floors, store_floor
from godwit.wire.batch import Entry
from godwit.wire.filters import matches
from godwit.wire.retention_floors import BROKER_WIDE, rule_covers

STEP_DELETED_BYTES: Final = 8 * MIB
"""Limit of deleted bytes in a step, which visits every page that it frees."""
STEP_REWRITTEN_BYTES: Final = 1 * MIB
"""Limit of rewritten bytes in a step."""
STEP_BLOCKS: Final = 256
"""Limit of examined blocks in a step."""
STEP_SHARES: Final = 4096
"""Limit of topics of examined blocks in a step."""

_MAX_KNOWN_TOPICS: Final = 100_000
_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """Limits for topics that match the pattern; without a pattern, for all topics that match no other rule."""

    pattern: str | None = None
    max_age_s: float | None = None
    max_bytes: int | None = None
    """Limit of payload bytes of all topics of the rule together; of the broker-wide rule: limit of the file size."""


class Deletion(msgspec.Struct, frozen=True):
    """Messages that a step deleted, in the form that the broker needs.

    With a pattern (including BROKER_WIDE): the retention floor of this rule has risen to `floor`. Without a pattern:
    the log now begins at `floor`.
    """

    pattern: str | None
    floor: int
    entries: list[tuple[int, Entry]]
    """One for each block and topic, with the number of messages only. Its last offset is that of the block."""


class BlockCut(msgspec.Struct, frozen=True, array_like=True):
    """The messages to delete from one block."""

    first_offset: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    topics: list[str] | None = None
    """Of these topics; None: all messages."""


class RetentionCut(msgspec.Struct, frozen=True, array_like=True):
    """The changes of one step: the same cut makes the same file of the same file."""

    blocks: list[BlockCut]
    floors: dict[str, Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]]
    """The new retention floors by rule."""


class PlannedCut(msgspec.Struct, frozen=True):
    """A step that is planned and not applied yet."""

    cut: RetentionCut | None
    """None: nothing is to be deleted, and more may be due."""
    key: str = BROKER_WIDE
    """The rule of the deletion."""
    index: int | None = None
    """Its number; None for the broker-wide size."""
    cursor: int = 0
    parts: list[_BlockPart] = []


class _BlockPart(msgspec.Struct, frozen=True, gc=False):
    """A block, and the topics in it: all, or those of a rule."""

    row: BlockRow
    """Its body may be left out."""
    shares: list[TopicShare]
    body_bytes: int

    @property
    def payload_bytes(self) -> int:
        return sum([share.payload_bytes for share in self.shares])

    def entries(self) -> Iterator[tuple[int, Entry]]:
        """Yield the messages of each topic as if they were the last ones of the block.

        Their real offsets are only in the block itself. So a subscriber within the block is notified of too many lost
        messages at times, and never of too few.
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
    """The retention of one store, to be used in the writer's thread."""

    def __init__(
        self, store: SqliteStore, rules: Sequence[RetentionRule], hold: Callable[[], int | None] = lambda: None
    ) -> None:
        """`hold` returns an offset from which on nothing is deleted, whatever is due; None for no such offset."""
        named = [rule for rule in rules if rule.pattern is not None]
        wide = [rule for rule in rules if rule.pattern is None] or [RetentionRule()]
        if len(wide) > 1:
            raise ValueError("there is more than one rule without a pattern")
        self._store = store
        self._connection = store.connection
        self._rules = [*named, *wide]
        self._keys = [rule.pattern or BROKER_WIDE for rule in self._rules]
        self._wide = len(named)
        self._owners: dict[str, int] = {}  # topic -> index of its rule
        self._cursors = [0] * len(self._rules)  # no block before it has messages of the rule
        self._due_us: list[float] = [0.0] * len(self._rules)
        self._held_bytes = [0] * len(self._rules)  # of blocks before _counted_to
        self._counted_to = 0
        self._counts = any(rule.max_bytes is not None for rule in named)
        self._turn = 0
        self._has_floors = False
        self._hold = hold

    def step(self, now_us: int) -> list[Deletion] | None:
        """Delete what is due in one small transaction.

        Return None if nothing is due, else the deletions: a list, perhaps empty, after which more may be due.
        """
        planned = self.plan(now_us)
        while planned is not None and planned.cut is not None and not planned.cut.blocks:
            with self._store.transaction():
                apply_cut(self._connection, planned.cut, self._store.log_secret)
            planned = self.plan(now_us)
        if planned is None or planned.cut is None:
            return None if planned is None else []
        with translate_errors(self._store.path, "trimmed"):
            first_before = self._store.first_offset
            with self._store.transaction():
                apply_cut(self._connection, planned.cut, self._store.log_secret)
                first_after = self._store.first_offset  # within the transaction: an error undoes the deletion
        deletions = self.finish(planned)
        return deletions if first_after == first_before else [*deletions, Deletion(None, first_after, [])]

    def plan(self, now_us: int) -> PlannedCut | None:
        """Return the next step, or None if nothing is due. Nothing is changed: apply the cut, then call `finish`.

        The next step must be planned after that.
        """
        if all(rule.max_age_s is None and rule.max_bytes is None for rule in self._rules):
            return None
        with translate_errors(self._store.path, "read"):
            if not self._has_floors:
                if missing := self._missing_floors():
                    return PlannedCut(RetentionCut([], missing))
                self._has_floors = True
            if self._counts and not self._count():
                return PlannedCut(None)
            max_bytes = self._rules[self._wide].max_bytes
            if (
                max_bytes is not None
                and self._used_bytes() > max_bytes
                and (planned := self._plan_oldest(max_bytes)) is not None
            ):
                return planned
            for _ in self._rules:
                index = self._turn
                self._turn = (index + 1) % len(self._rules)
                if (planned := self._plan_due(index, now_us)) is not None:
                    return planned
        return None

    def finish(self, planned: PlannedCut) -> list[Deletion]:
        """Return the deletions of a step whose cut was applied; without that of the log's begin."""
        cut = planned.cut
        if cut is None or not planned.parts:
            return []
        if planned.index is not None:
            self._cursors[planned.index] = planned.cursor
        for part in planned.parts:
            if part.row.first_offset < self._counted_to:
                for share in part.shares:
                    self._held_bytes[self._owner(share.name)] -= share.payload_bytes
        key, floors = planned.key, cut.floors
        deletion = Deletion(key, floors[key], [entry for part in planned.parts for entry in part.entries()])
        return [deletion, *(Deletion(other, floor, []) for other, floor in floors.items() if other != key)]

    # -- by rule ------------------------------------------------------------------------------------------------------

    def _plan_due(self, index: int, now_us: int) -> PlannedCut | None:
        """Plan the deletion by one rule. Return None if nothing is due."""
        rule = self._rules[index]
        if self._excess_bytes(index) <= 0 and (rule.max_age_s is None or now_us < self._due_us[index]):
            return None
        due, cursor = self._due(index, now_us)
        if not due:
            has_moved = cursor > self._cursors[index]
            self._cursors[index] = cursor
            return PlannedCut(None) if has_moved else None
        parts = [self._part(index, span) or span for span in due]
        blocks = [
            BlockCut(span.row.first_offset, None if part is span else [share.name for share in part.shares])
            for span, part in zip(due, parts, strict=True)
        ]
        cut = RetentionCut(blocks, self._raised_floors(index, due[-1].row.end_offset))
        return PlannedCut(cut, self._keys[index], index, cursor, parts)

    def _due(self, index: int, now_us: int) -> tuple[list[_BlockPart], int]:
        """Return the blocks that a rule deletes from in this step, and where to look next."""
        max_age_s = self._rules[index].max_age_s
        age_us = math.inf if max_age_s is None else max_age_s * _US
        excess_bytes = self._excess_bytes(index)
        due: list[_BlockPart] = []
        cursor = self._cursors[index]
        deleted_bytes = rewritten_bytes = 0
        newest = self._newest()
        held = self._hold()
        spans, is_all = self._spans(cursor)
        for span in spans:
            if held is not None and span.row.end_offset > held:
                return due, cursor
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
            self._due_us[index] = now_us + age_us  # later messages are not due before
        return due, cursor

    def _part(self, index: int, span: _BlockPart) -> _BlockPart | None:
        """Return the part of a block that belongs to a rule: the block itself if all does, None if nothing does.

        A block without topics is damaged, or represents a lost range: it belongs to the broker-wide rule.
        """
        mine = [share for share in span.shares if self._owner(share.name) == index]
        if len(mine) == len(span.shares):
            return span if mine or index == self._wide else None
        return msgspec.structs.replace(span, shares=mine) if mine else None

    # -- the broker-wide size -----------------------------------------------------------------------------------------

    def _used_bytes(self) -> int:
        ((pages,),) = self._connection.execute(QUERIES["select_used_pages"])
        return int(pages) * PAGE_BYTES

    def _plan_oldest(self, max_bytes: int) -> PlannedCut | None:
        """Plan to delete the oldest blocks until the file fits the limit or the step is long enough.

        How much a block frees is estimated, rather too high: then another step follows.
        """
        parts: list[_BlockPart] = []
        newest = self._newest()
        held = self._hold()
        excess_bytes = self._used_bytes() - max_bytes
        for span in self._spans(0)[0]:
            if span.row.first_offset == newest or (held is not None and span.row.end_offset > held):
                break
            parts.append(span)
            row_bytes = span.body_bytes + len(span.row.topics)
            excess_bytes -= row_bytes if row_bytes < PAGE_BYTES else -(-row_bytes // PAGE_BYTES) * PAGE_BYTES
            if sum(part.body_bytes for part in parts) >= STEP_DELETED_BYTES or excess_bytes <= 0:
                break
        if not parts:
            return None
        blocks = [BlockCut(part.row.first_offset) for part in parts]
        return PlannedCut(RetentionCut(blocks, self._raised_floors(None, parts[-1].row.end_offset)), parts=parts)

    # -- floors -------------------------------------------------------------------------------------------------------

    def _missing_floors(self) -> dict[str, int]:
        """Return the floor of each new rule: earlier deletions by wider rules concern its topics too."""
        known = load_floors(self._connection)
        return {
            key: max((known[other] for other in known if rule_covers(other, key)), default=0)
            for key in self._keys
            if key not in known
        }

    def _raised_floors(self, index: int | None, floor: int) -> dict[str, int]:
        """Return the raised floors of a rule and of later rules that it covers; without a rule, all floors."""
        earlier = self._keys[: index or 0]
        return {
            key: max(old, floor)
            for key, old in load_floors(self._connection).items()
            if index is None or (key not in earlier and rule_covers(self._keys[index], key))
        }

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _spans(self, offset: int) -> tuple[list[_BlockPart], bool]:
        """Return the blocks from an offset on that a step examines, and whether these are all."""
        rows: list[tuple[Any, ...]] = self._connection.execute(
            QUERIES["select_retention_blocks"], (offset, STEP_BLOCKS)
        ).fetchall()
        spans: list[_BlockPart] = []
        shares_left = STEP_SHARES
        for first_offset, end_offset, received_us, until_us, checksum, topics, body_bytes in rows:
            row = BlockRow(first_offset, end_offset, received_us, until_us, checksum, topics, b"")
            row = self._validated(row, spans)
            spans.append(_BlockPart(row, decode_topic_index(row.topics), body_bytes))
            shares_left -= len(spans[-1].shares)
            if shares_left <= 0:
                break
        return spans, len(spans) == len(rows) < STEP_BLOCKS

    def _validated(self, row: BlockRow, before: Sequence[_BlockPart]) -> BlockRow:
        """Return a row if it is valid, else the row computed from its block, so that no intact message is deleted.

        If the block is damaged too, it is deleted together with the block before it.
        """
        if is_row_valid(row):
            return row
        try:
            found = row_of(_read_body(self._connection, row.first_offset))
            if found.first_offset == row.first_offset:
                return found
        except DamagedBlockError:
            pass
        until_us = before[-1].row.until_us if before else 0
        return make_row(row.first_offset, row.first_offset + 1, until_us, until_us, encode_topic_index([]), b"")

    def _newest(self) -> int | None:
        newest: int | None = self._connection.execute(QUERIES["select_newest_block"]).get
        return newest

    def _owner(self, topic: str) -> int:
        """Return the index of the rule that a topic belongs to."""
        owner = self._owners.get(topic)
        if owner is None:
            if len(self._owners) >= _MAX_KNOWN_TOPICS:
                self._owners.clear()
            named = enumerate(self._keys[: self._wide])
            owner = next((index for index, pattern in named if matches(pattern, topic)), self._wide)
            self._owners[topic] = owner
        return owner

    def _count(self) -> bool:
        """Add the payload of blocks that were not counted yet, within the limits of a step; return whether all are."""
        spans, is_all = self._spans(self._counted_to)
        for span in spans:
            for share in span.shares:
                self._held_bytes[self._owner(share.name)] += share.payload_bytes
            self._counted_to = span.row.end_offset
        return is_all

    def _excess_bytes(self, index: int) -> int:
        """Return by how much the topics of a rule with a filter exceed its size limit."""
        max_bytes = self._rules[index].max_bytes
        return 0 if max_bytes is None or index == self._wide else self._held_bytes[index] - max_bytes


# -- cuts -------------------------------------------------------------------------------------------------------------


def apply_cut(connection: apsw.Connection, cut: RetentionCut, log_secret: bytes) -> None:
    """Delete messages and raise floors, within the caller's transaction."""
    for block in cut.blocks:
        if block.topics is None:
            connection.execute(QUERIES["delete_block"], (block.first_offset,))
        else:
            _rewrite(connection, block.first_offset, set(block.topics), log_secret)
    for key, floor in cut.floors.items():
        store_floor(connection, key, floor)


def _rewrite(connection: apsw.Connection, first_offset: int, topics: set[str], log_secret: bytes) -> None:
    """Remove topics from a block. A damaged one remains, so that readers report the loss."""
    found = connection.execute(QUERIES["select_retention_blocks"], (first_offset, 1)).fetchone()
    if found is None or found[0] != first_offset:
        return
    first, end_offset, received_us, until_us, checksum, topics_index, _ = found
    old = BlockRow(first, end_offset, received_us, until_us, checksum, topics_index, b"")
    body = _read_body(connection, first_offset)
    try:
        rest = [(offset, entry) for offset, entry in decode_block(body) if entry.topic not in topics]
        if rest:
            new = encode_block(rest, log_secret)
        else:
            connection.execute(QUERIES["delete_block"], (first_offset,))
            return
    except DamagedBlockError:
        if not is_row_valid(old):
            return
        others = encode_topic_index([share for share in decode_topic_index(old.topics) if share.name not in topics])
        new = make_row(first_offset, old.end_offset, old.received_us, old.until_us, others, body)
    connection.execute(QUERIES["replace_block"], (*msgspec.structs.astuple(new), first_offset))


def _read_body(connection: apsw.Connection, first_offset: int) -> bytes:
    body = connection.execute(QUERIES["select_body"], (first_offset,)).get
    return body if isinstance(body, bytes) else b""
