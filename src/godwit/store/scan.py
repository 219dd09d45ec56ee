"""Walking along the blocks of a log, over whatever is damaged.

A range of offsets counts as damaged when its block cannot be read or does not hold what its checksum says, and when it
is missing although no rule of retention has deleted there. Everything that is read for one answer is of one moment, and
no statement stays open behind it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any, Final, TypeAlias

import apsw
import msgspec

from godwit.store.block import DamagedBlockError, Row, are_numbers_sealed, decode_block, is_row_sealed, row_of
from godwit.store.connection import snapshot
from godwit.store.kept import DamagedRowError
from godwit.store.port import Slice, entry_bytes
from godwit.store.sql import QUERIES
from godwit.wire.batch import Entry

MAX_DAMAGED: Final = 64
"""Damaged ranges in one answer: then the caller has it and asks on, so that nobody waits for a whole ruined log."""
MAX_PASSED: Final = 4096
"""Blocks that nobody wants, in one answer; for the same reason."""
BLOCKS_HELD: Final = 4
"""Blocks that stay decoded: who reads on in small pieces comes back to the same one."""
_LAST_OFFSET: Final = 2**63 - 1

Wanted: TypeAlias = Callable[[bytes], bool]
"""Looks at the topics of a block (see decode_topics) and says whether its body is to be read."""


class Rows(msgspec.Struct, frozen=True):
    """Blocks of a log, in order."""

    rows: list[Row]
    next_offset: int
    """Where to read on."""
    damaged: list[tuple[int, int]]
    """Ranges of offsets that cannot be read. A block in `rows` may still prove to be damaged when it is opened."""


class Ends(msgspec.Struct, frozen=True, gc=False):
    first_offset: int
    """Of the oldest block; next_offset if there is none."""
    next_offset: int
    until_us: int
    """When the newest block was received; 0 if there is none."""


class _Span(msgspec.Struct, frozen=True, gc=False):
    """A step of the walk: a block without its body, or a damaged range."""

    first_offset: int
    end_offset: int
    row: Row | None = None
    """Its topics are empty unless they were asked for."""
    body_bytes: int = 0
    until_us: int = 0


class Scanner:
    """Reads the blocks through a connection of the caller's."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._held: OrderedDict[tuple[int, int, int], list[tuple[int, Entry]]] = OrderedDict()
        """By offsets and length: a block that was written anew has become shorter."""

    def ends(self) -> Ends:
        """Where the log begins and ends. DamagedRowError when the newest block does not say."""
        with snapshot(self._connection):
            first_offset = self._first_offset()
            end_offset = self._value("select_end_offset")
            if end_offset is None:
                raise DamagedRowError("the table meta lacks a row")
            if first_offset is None:
                return Ends(end_offset, end_offset, 0)
            newest = self._span(*self._connection.execute(QUERIES["select_block_at"], (_LAST_OFFSET,)))
        if newest is None:
            raise DamagedRowError("nobody knows where the newest block ends")
        return Ends(first_offset, max(end_offset, newest.end_offset), newest.until_us)

    def read(self, offset: int, max_bytes: int) -> Slice:
        """See Store.read."""
        entries: list[tuple[int, Entry]] = []
        damaged: list[tuple[int, int]] = []
        with snapshot(self._connection), closing(self._walk(offset, _LAST_OFFSET, False)) as walk:
            for span in walk:
                found = self._entries(span)
                if found is None:
                    damaged.append((max(span.first_offset, offset), span.end_offset))
                    if len(damaged) >= MAX_DAMAGED:
                        return Slice(entries, span.end_offset, damaged)
                    continue
                start = bisect_right(found, offset, key=_end_of)
                for row in range(start, len(found)):
                    max_bytes -= entry_bytes(found[row][1])
                    if max_bytes < 0 and (entries or row > start):
                        entries += found[start:row]
                        return Slice(entries, _end_of(entries[-1]), damaged)
                entries += found[start:]
            return Slice(entries, max(offset, self.ends().next_offset), damaged)

    def rows(self, start: int, stop: int, max_blocks: int, max_bytes: int, wanted: Wanted | None = None) -> Rows:
        """The wanted ones of the blocks with messages from `start` on and before `stop`; at least one if there is.

        Their topics are left out if nobody asks whether they are wanted.
        """
        rows: list[Row] = []
        damaged: list[tuple[int, int]] = []
        passed = 0
        with snapshot(self._connection), closing(self._walk(start, stop, wanted is not None)) as walk:
            for span in walk:
                if span.row is not None and wanted is not None and not wanted(span.row.topics):
                    passed += 1
                elif rows and max_bytes < span.body_bytes:
                    return Rows(rows, span.first_offset, damaged)
                elif span.row is None or (body := self._body(span.first_offset)) is None:
                    damaged.append((max(span.first_offset, start), min(span.end_offset, stop)))
                else:
                    max_bytes -= span.body_bytes
                    rows.append(msgspec.structs.replace(span.row, body=body))
                if len(rows) >= max_blocks or len(damaged) >= MAX_DAMAGED or passed >= MAX_PASSED:
                    return Rows(rows, min(span.end_offset, stop), damaged)
            return Rows(rows, max(start, min(stop, self.ends().next_offset)), damaged)

    def spans(self, start: int, stop: int, max_blocks: int) -> Rows:
        """As `rows`, but the bodies are left out, and not read."""
        rows: list[Row] = []
        damaged: list[tuple[int, int]] = []
        with snapshot(self._connection), closing(self._walk(start, stop, True)) as walk:
            for span in walk:
                if span.row is None:
                    damaged.append((max(span.first_offset, start), min(span.end_offset, stop)))
                else:
                    rows.append(span.row)
                if len(rows) >= max_blocks or len(damaged) >= MAX_DAMAGED:
                    return Rows(rows, min(span.end_offset, stop), damaged)
            return Rows(rows, max(start, min(stop, self.ends().next_offset)), damaged)

    def offset_at(self, time_us: int) -> int:
        """See Store.offset_at. There is no index by time, which never goes backwards: halving finds the block."""
        with snapshot(self._connection):
            ends = self.ends()
            low, high = ends.first_offset, ends.next_offset
            while low < high:
                middle = (low + high) // 2
                span = self._span_at(middle)
                if span is None or span.until_us < time_us:
                    low = middle + 1
                else:
                    high = max(low, span.first_offset)
            span = self._span_at(low)
            if span is None or span.until_us < time_us:
                return ends.next_offset
            entries = self._entries(span)
        if entries is None:
            return span.first_offset
        return entries[bisect_left(entries, time_us, key=_received_us)][0]

    # -- the walk -----------------------------------------------------------------------------------------------------

    def _walk(self, start: int, stop: int, has_topics: bool) -> Generator[_Span, None, None]:
        """Blocks and damaged ranges that have something between these offsets, in order."""
        ends = self.ends()
        position = max(start, ends.first_offset)
        stop = min(stop, ends.next_offset)
        is_ruined = False  # whether there was a block here that nobody can believe
        if position >= stop:
            return
        rows = self._select(position, stop, has_topics)
        while True:
            try:
                values = next(rows, None)
            except apsw.CorruptError:
                readable = self._next_readable(position, stop)
                yield _Span(position, readable)
                position = readable
                if position >= stop:
                    return
                rows = self._select(position, stop, has_topics)
                continue
            if values is None:
                break
            span = self._span(values, has_topics)
            if span is None:
                is_ruined = True
                continue
            if span.end_offset <= position:
                continue
            if span.first_offset > position:
                yield from self._hole(position, span.first_offset, is_ruined)
            is_ruined = False
            yield span
            position = span.end_offset
        if position < stop:
            yield from self._hole(position, stop, is_ruined)

    def _first_offset(self) -> int | None:
        """As far as it can be read: what is damaged at the front counts as damaged, and not as deleted."""
        try:
            found = self._value("select_first_offset")
        except apsw.CorruptError:
            return 0
        return int(found) if found is not None else None

    def _select(self, start: int, stop: int, has_topics: bool) -> Iterator[tuple[Any, ...]]:
        """Small columns of the block that holds `start`, or the last one before it, and of those behind it."""
        ((key,),) = self._connection.execute(QUERIES["select_key_at"], (start,))
        query = QUERIES["select_blocks_with_topics" if has_topics else "select_blocks"]
        yield from self._connection.execute(query, (start if key is None else key, stop))

    def _hole(self, begin: int, end: int, is_ruined: bool) -> Iterator[_Span]:
        """No block is here. Above all marks retention has not been."""
        if not is_ruined:
            begin = max(begin, self._value("select_highest_mark"))
        if begin < end:
            yield _Span(begin, end)

    def _next_readable(self, offset: int, stop: int) -> int:
        """The first block behind a damaged page of the tree: try further and further ahead, then halve back."""
        bad, step = offset, 1
        while (good := offset + step) < stop and self._seek(good) is None:
            bad = good
            step *= 2
        if good >= stop:
            return stop
        while good - bad > 1:
            middle = (bad + good) // 2
            if self._seek(middle) is None:
                bad = middle
            else:
                good = middle
        return min(self._seek(good) or stop, stop)

    def _seek(self, offset: int) -> int | None:
        """The first block from an offset on; None where the tree cannot be read, or ends."""
        try:
            found = self._value("select_next_block", offset)
        except apsw.CorruptError:
            return None
        return int(found) if found is not None else None

    # -- one block ----------------------------------------------------------------------------------------------------

    def _span(self, values: tuple[Any, ...], has_topics: bool = False) -> _Span | None:
        """By the small columns if they are what was written, else by the block; None if that is damaged too."""
        first_offset, end_offset, received_us, until_us, seal, topics, body_bytes = values
        row = Row(first_offset, end_offset, received_us, until_us, seal, topics, b"")
        if not (is_row_sealed(row) if has_topics else are_numbers_sealed(row)):
            try:
                row = msgspec.structs.replace(row_of(self._body(first_offset) or b""), body=b"")
            except DamagedBlockError:
                return None
            if row.first_offset != first_offset:
                return None
        # A range that was given up when a log was recovered stays in it as a block without a body.
        return _Span(row.first_offset, row.end_offset, row if body_bytes else None, body_bytes, row.until_us)

    def _span_at(self, offset: int) -> _Span | None:
        """The block that holds an offset, or else the last one before it that can be believed."""
        while found := list(self._connection.execute(QUERIES["select_block_at"], (offset,))):
            values: tuple[Any, ...] = found[0]
            if (span := self._span(values)) is not None:
                return span
            offset = values[0] - 1
        return None

    def _entries(self, span: _Span) -> list[tuple[int, Entry]] | None:
        """None if the block is damaged."""
        if span.row is None:
            return None
        key = (span.first_offset, span.end_offset, span.body_bytes)
        if (held := self._held.get(key)) is not None:
            self._held.move_to_end(key)
            return held
        try:
            entries = decode_block(self._body(span.first_offset) or b"")
        except DamagedBlockError:
            return None
        if entries[0][0] != span.first_offset or _end_of(entries[-1]) != span.end_offset:
            return None  # a whole block, but not the one that belongs here
        self._held[key] = entries
        if len(self._held) > BLOCKS_HELD:
            self._held.popitem(last=False)
        return entries

    def _body(self, first_offset: int) -> bytes | None:
        """None if its pages cannot be read. Not by a statement, which would copy it once more."""
        try:
            with self._connection.blob_open("main", "blocks", "body", first_offset, False) as blob:
                body = blob.read()
        except (apsw.CorruptError, apsw.SQLError):  # the latter: there is no such row, or something else in its place
            return None
        return body

    def _value(self, query: str, *bindings: int) -> Any:
        return self._connection.execute(QUERIES[query], bindings).get


def _end_of(pair: tuple[int, Entry]) -> int:
    return pair[0] + pair[1].count


def _received_us(pair: tuple[int, Entry]) -> int:
    return pair[1].received_us
