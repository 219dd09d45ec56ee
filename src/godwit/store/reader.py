"""Read a log: scan its blocks past any damage, and LogReader, which reads beside the writer.

A range of offsets counts as damaged if its block is unreadable or has a wrong checksum, or if the block is missing
although no retention rule has deleted there. Everything that is read for one answer is as of one commit, and no
statement remains open after it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, Final, TypeAlias

import apsw
import msgspec

from godwit.errors import LogVersionError
from godwit.store.block import (
    BlockRow,
    DamagedBlockError,
    decode_block,
    decode_topic_index,
    has_valid_numbers,
    is_row_valid,
    row_of,
)
from godwit.store.connection import DamagedRowError, allow_interrupts, connect, snapshot, translate_errors
from godwit.store.port import Slice, entry_bytes
from godwit.store.schema import EPOCHS, QUERIES, VERSION, check_schema, refuse_foreign_file, version_of
from godwit.store.state import load_floors, load_meta, load_queries, load_topics, select_valid, with_checksum
from godwit.wire.batch import Entry
from godwit.wire.changes import TopicRow
from godwit.wire.epochs import UNKNOWN, Epoch
from godwit.wire.filters import matches

MAX_DAMAGED: Final = 64
"""Damaged ranges in one answer: after these the caller continues, so that it never waits for a whole ruined log."""
MAX_PASSED: Final = 4096
"""Unwanted blocks in one answer, for the same reason."""
MAX_EPOCHS: Final = 1000
"""Epochs in a log; the oldest ones beyond that are dropped."""
MAX_KNOWN_TOPICS: Final = 50_000
"""Topics whose match a TopicSelection remembers; beyond that it starts anew."""
BLOCKS_HELD: Final = 4
"""Decoded blocks in memory, for readers that continue in small pieces within the same block."""
_LAST_OFFSET: Final = 2**63 - 1

IndexFilter: TypeAlias = Callable[[bytes], bool]
"""Takes the topic index of a block (see decode_topic_index) and returns whether its body is wanted."""


class BlockSlice(msgspec.Struct, frozen=True):
    """Consecutive blocks of a log."""

    rows: list[BlockRow]
    next_offset: int
    """Where to continue reading."""
    damaged: list[tuple[int, int]]
    """Ranges of unreadable offsets. A block in `rows` may still prove to be damaged when it is opened."""


class LogEnds(msgspec.Struct, frozen=True, gc=False):
    """Where a log begins and ends."""

    first_offset: int
    """Of the oldest block; next_offset if there is none."""
    next_offset: int
    until_us: int
    """Receive time of the newest message; 0 if there is none."""


class _Span(msgspec.Struct, frozen=True, gc=False):
    """A step of a scan: a block without its body, or a damaged range."""

    first_offset: int
    end_offset: int
    row: BlockRow | None = None
    """Its topic index is empty unless it was asked for."""
    body_bytes: int = 0
    until_us: int = 0


_UNREADABLE: Final = (apsw.CorruptError, apsw.TooBigError, UnicodeDecodeError)
"""Raised for pages of noise, for example if a column of numbers seems to be a text."""


class BlockScanner:
    """Reads blocks through a connection of the caller."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._decoded: OrderedDict[tuple[int, int, int], list[tuple[int, Entry]]] = OrderedDict()
        """By offsets and length: a block that retention rewrote has become shorter."""

    def ends(self) -> LogEnds:
        """Return where the log begins and ends. Raise DamagedRowError if the newest block is unreadable."""
        with snapshot(self._connection):
            first_offset = self._first_offset()
            end_offset = self._value("select_end_offset")
            if end_offset is None:
                raise DamagedRowError("the table meta lacks a row")
            if first_offset is None:
                return LogEnds(end_offset, end_offset, 0)
            newest = self._span(*self._connection.execute(QUERIES["select_block_at"], (_LAST_OFFSET,)))
        if newest is None:
            raise DamagedRowError("the end of the newest block is unknown")
        return LogEnds(first_offset, max(end_offset, newest.end_offset), newest.until_us)

    def read(self, offset: int, max_bytes: int) -> Slice:
        """Return entries; see Store.read."""
        entries: list[tuple[int, Entry]] = []
        damaged: list[tuple[int, int]] = []
        with snapshot(self._connection), closing(self._scan(offset, _LAST_OFFSET, False)) as spans:
            for span in spans:
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

    def rows(
        self, start: int, stop: int, max_blocks: int, max_bytes: int, wanted: IndexFilter | None = None
    ) -> BlockSlice:
        """Return the blocks with messages between two offsets; at least one if there is any.

        Args:
            start: First offset.
            stop: End offset.
            max_blocks: Limit of blocks.
            max_bytes: Limit of the bytes of their bodies.
            wanted: Skip the blocks for which it returns False. Without it, topic indexes are left out.
        """
        rows: list[BlockRow] = []
        damaged: list[tuple[int, int]] = []
        passed = 0
        with snapshot(self._connection), closing(self._scan(start, stop, wanted is not None)) as spans:
            for span in spans:
                if span.row is not None and wanted is not None and not wanted(span.row.topics):
                    passed += 1
                elif rows and max_bytes < span.body_bytes:
                    return BlockSlice(rows, span.first_offset, damaged)
                elif span.row is None or (body := self._body(span.first_offset)) is None:
                    damaged.append((max(span.first_offset, start), min(span.end_offset, stop)))
                else:
                    max_bytes -= span.body_bytes
                    rows.append(msgspec.structs.replace(span.row, body=body))
                if len(rows) >= max_blocks or len(damaged) >= MAX_DAMAGED or passed >= MAX_PASSED:
                    return BlockSlice(rows, min(span.end_offset, stop), damaged)
            return BlockSlice(rows, max(start, min(stop, self.ends().next_offset)), damaged)

    def spans(self, start: int, stop: int, max_blocks: int) -> BlockSlice:
        """Return the same as `rows`, with topic indexes but without reading the bodies."""
        rows: list[BlockRow] = []
        damaged: list[tuple[int, int]] = []
        with snapshot(self._connection), closing(self._scan(start, stop, True)) as spans:
            for span in spans:
                if span.row is None:
                    damaged.append((max(span.first_offset, start), min(span.end_offset, stop)))
                else:
                    rows.append(span.row)
                if len(rows) >= max_blocks or len(damaged) >= MAX_DAMAGED:
                    return BlockSlice(rows, min(span.end_offset, stop), damaged)
            return BlockSlice(rows, max(start, min(stop, self.ends().next_offset)), damaged)

    def offset_at(self, time_us: int) -> int:
        """Return the first offset received at or after a time; see Store.offset_at.

        There is no index by time. Receive times never decrease, so a binary search finds the block.
        """
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

    # -- the scan -----------------------------------------------------------------------------------------------------

    def _scan(self, start: int, stop: int, has_topics: bool) -> Generator[_Span, None, None]:
        """Yield the blocks and damaged ranges between two offsets, in order."""
        ends = self.ends()
        position = max(start, ends.first_offset)
        stop = min(stop, ends.next_offset)
        is_ruined = False  # whether the range since `position` contains a block with a bad checksum
        if position >= stop:
            return
        rows = self._select(position, stop, has_topics)
        while True:
            is_corrupt = False
            try:
                values = next(rows, None)
            except _UNREADABLE:
                values, is_corrupt = None, True
            if values is None:
                if position >= stop:
                    return
                # Also without an error: a page of noise may look like one whose keys are behind `stop`.
                readable = self._next_readable(position, stop)
                if is_corrupt or readable < stop:
                    yield _Span(position, readable)
                else:
                    yield from self._hole(position, stop, is_ruined)
                if readable >= stop:
                    return
                position, is_ruined = readable, False
                rows = self._select(position, stop, has_topics)
                continue
            span = self._span(values, has_topics)
            if span is None:
                is_ruined = True
                continue
            if span.end_offset <= position:
                continue
            if span.first_offset > position:
                if not _is_exact(values):  # perhaps noise on a page, with the key of a block that is on another page
                    readable = self._next_readable(position, span.first_offset)
                    if readable < span.first_offset:
                        yield _Span(position, readable)
                        position, is_ruined = readable, False
                        rows = self._select(position, stop, has_topics)
                        continue
                yield from self._hole(position, span.first_offset, is_ruined)
            is_ruined = False
            yield span
            position = span.end_offset

    def _first_offset(self) -> int | None:
        """Return the first offset; 0 if it is unreadable, so that the front counts as damaged and not as deleted."""
        try:
            values = self._next_row(0)
        except _UNREADABLE:
            return 0
        if values is None:
            return None
        return int(values[0]) if _is_exact(values) else 0

    def _select(self, start: int, stop: int, has_topics: bool) -> Iterator[tuple[Any, ...]]:
        """Yield small columns of the block that holds `start`, or the last one before it, and of the following."""
        ((key,),) = self._connection.execute(QUERIES["select_key_at"], (start,))
        query = QUERIES["select_blocks_with_topics" if has_topics else "select_blocks"]
        yield from self._connection.execute(query, (start if key is None else min(key, start), stop))  # it may be noise

    def _hole(self, begin: int, end: int, is_ruined: bool) -> Iterator[_Span]:
        """Yield the damaged part of a range without blocks: retention only deletes below its floors."""
        if not is_ruined:
            begin = max(begin, self._value("select_highest_floor"))
        if begin < end:
            yield _Span(begin, end)

    def _next_readable(self, offset: int, stop: int) -> int:
        """Return the first block after a damaged page of the tree: probe at doubling distances, then bisect."""
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
        """Return the first block from an offset on; None where the tree is unreadable or ends, or its row is noise."""
        try:
            values = self._next_row(offset)
        except _UNREADABLE:
            return None
        is_block = values is not None and _is_exact(values) and values[0] >= offset  # noise may lead to an earlier page
        return int(values[0]) if values is not None and is_block else None

    def _next_row(self, offset: int) -> tuple[Any, ...] | None:
        """Return small columns of the first block from an offset on."""
        with closing(iter(self._connection.execute(QUERIES["select_blocks"], (offset, _LAST_OFFSET)))) as rows:
            return next(rows, None)

    # -- one block ----------------------------------------------------------------------------------------------------

    def _span(self, values: tuple[Any, ...], has_topics: bool = False) -> _Span | None:
        """Return a block by its small columns if they are valid, else by its body; None if that is damaged too."""
        first_offset, end_offset, received_us, until_us, checksum, topics, body_bytes = values
        row = BlockRow(first_offset, end_offset, received_us, until_us, checksum, topics, b"")
        if not (is_row_valid(row) if has_topics else has_valid_numbers(row)):
            try:
                row = msgspec.structs.replace(row_of(self._body(first_offset) or b""), body=b"")
            except DamagedBlockError:
                return None
            if row.first_offset != first_offset:
                return None
        # A block without a body is a lost range that `recover` or the start of a broker has recorded.
        return _Span(row.first_offset, row.end_offset, row if body_bytes else None, body_bytes, row.until_us)

    def _span_at(self, offset: int) -> _Span | None:
        """Return the block that holds an offset, or else the last valid one before it."""
        while found := list(self._connection.execute(QUERIES["select_block_at"], (offset,))):
            values: tuple[Any, ...] = found[0]
            if (span := self._span(values)) is not None:
                return span
            offset = values[0] - 1
        return None

    def _entries(self, span: _Span) -> list[tuple[int, Entry]] | None:
        """Return the entries of a block, or None if it is damaged."""
        if span.row is None:
            return None
        key = (span.first_offset, span.end_offset, span.body_bytes)
        if (decoded := self._decoded.get(key)) is not None:
            self._decoded.move_to_end(key)
            return decoded
        try:
            entries = decode_block(self._body(span.first_offset) or b"")
        except DamagedBlockError:
            return None
        if entries[0][0] != span.first_offset or _end_of(entries[-1]) != span.end_offset:
            return None  # an intact block, but of another row
        self._decoded[key] = entries
        if len(self._decoded) > BLOCKS_HELD:
            self._decoded.popitem(last=False)
        return entries

    def _body(self, first_offset: int) -> bytes | None:
        """Return the body of a block, or None if its pages are unreadable. A statement would copy it once more."""
        try:
            with self._connection.blob_open("main", "blocks", "body", first_offset, False) as blob:
                body = blob.read()
        except (apsw.CorruptError, apsw.SQLError):  # the latter: the row is missing, or has a value of another type
            return None
        return body

    def _value(self, query: str, *bindings: int) -> Any:
        return self._connection.execute(QUERIES[query], bindings).get


def _is_exact(values: tuple[Any, ...]) -> bool:
    """Return whether the numbers of a row match its checksum."""
    first_offset, end_offset, received_us, until_us, checksum, *_ = values
    return has_valid_numbers(BlockRow(first_offset, end_offset, received_us, until_us, checksum, b"", b""))


def _end_of(pair: tuple[int, Entry]) -> int:
    return pair[0] + pair[1].count


def _received_us(pair: tuple[int, Entry]) -> int:
    return pair[1].received_us


# -- epochs (godwit.wire.epochs) --------------------------------------------------------------------------------------
# An epoch is written in the transaction of its first message. A broker that appends nothing writes none, so a full disk
# does not keep it from starting, and all first offsets are different. A position so old that none of its epochs is left
# counts as one of another log.


class EpochRow(msgspec.Struct, frozen=True):
    """One epoch of a log, and the receive time of its first message."""

    first_offset: int
    id: bytes
    begun_us: int

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.id, self.first_offset)


def load_epochs(connection: apsw.Connection) -> list[EpochRow]:
    """Return the epochs of all messages, in order and without a gap.

    Raise DamagedRowError if a row is not what was written, or its messages are missing.
    """
    rows = [EpochRow(*row) for row in select_valid(connection, QUERIES["select_epochs"], EPOCHS)]
    next_offset = BlockScanner(connection).ends().next_offset  # after the rows: a broker may begin an epoch meanwhile
    if rows and rows[-1].first_offset >= next_offset:
        raise DamagedRowError(
            f"the epoch {rows[-1].id.hex()} begins at offset {rows[-1].first_offset}, and the log ends at {next_offset}"
        )
    first_offset = rows[0].first_offset if rows else next_offset
    if first_offset > 0 and len(rows) < MAX_EPOCHS:
        # Messages of a broker that wrote no epochs, or whose table could not be recovered.
        rows.insert(0, EpochRow(0, UNKNOWN, 0))
    return rows


def insert_epoch(connection: apsw.Connection, row: EpochRow) -> None:
    """Add the newest epoch and drop the oldest ones beyond the limit, within the caller's transaction."""
    connection.execute(QUERIES["insert_epoch"], with_checksum(msgspec.structs.astuple(row)))
    connection.execute(QUERIES["delete_old_epochs"], (MAX_EPOCHS - 1,))


# -- selecting topics -------------------------------------------------------------------------------------------------


class TopicSelection:
    """The topics that match one of some filters; without filters, every topic. Each name is matched once."""

    def __init__(self, filters: Sequence[str]) -> None:
        self._filters = tuple(filters)
        self._known: dict[str, bool] = {}

    @property
    def is_everything(self) -> bool:
        """Whether every topic is selected."""
        return not self._filters

    def has(self, topic: str) -> bool:
        """Return whether a topic is selected."""
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= MAX_KNOWN_TOPICS:
                self._known.clear()
            known = self.is_everything or any(matches(pattern, topic) for pattern in self._filters)
            self._known[topic] = known
        return known

    def among(self, topics: Sequence[str]) -> list[bool]:
        """Return for each topic whether it is selected."""
        return list(map(self.has, topics))

    def concerns(self, topics: bytes) -> bool:
        """Return whether a block with this topic index may contain a selected topic. A damaged index may."""
        if self.is_everything:
            return True
        try:
            shares = decode_topic_index(topics)
        except DamagedBlockError:
            return True
        return not shares or any(self.has(share.name) for share in shares)


# -- beside the writer ------------------------------------------------------------------------------------------------


class LogReader:
    """A read-only connection, in another thread or process than the writer's.

    Each call sees what is committed when it is made, and leaves no statement open. Errors are StorageError.
    """

    is_immutable = False
    """Whether the file is where nothing can be written, and therefore does not change."""

    def __init__(self, path: Path, connection: apsw.Connection) -> None:
        """Use `open`."""
        self.path = path
        self._connection = connection
        self._scanner = BlockScanner(connection)
        try:
            allow_interrupts(connection)
            _check_version(connection, path)
            check_schema(connection, path, VERSION)
            meta = load_meta(connection)
            self.log_id, self.created_us = meta.log_id, meta.created_us
        except BaseException:
            connection.close()
            raise

    @classmethod
    def open(cls, path: str | Path, vfs: str | None = None) -> LogReader:
        """Open an existing log of the current version. Raise a StorageError if that is not possible."""
        path = Path(path)
        if vfs is None:
            refuse_foreign_file(path)
        with translate_errors(path, "opened"):
            try:
                return cls(path, connect(path, apsw.SQLITE_OPEN_READONLY, vfs))
            except (apsw.CantOpenError, apsw.ReadOnlyError):
                if vfs is not None or not _is_closed_log(path):
                    raise
        # SQLite wants to create files beside it and cannot: a backup on a disk that is mounted read-only.
        return cls.open_without_wal(path)

    @classmethod
    def open_without_wal(cls, path: Path) -> LogReader:
        """Open a log whose main file has everything, without a lock. Raise a StorageError if that fails."""
        with translate_errors(path, "opened"):
            uri = f"{path.absolute().as_uri()}?immutable=1"
            reader = cls(path, connect(uri, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI, None))
            reader.is_immutable = True
            return reader

    @property
    def connection(self) -> apsw.Connection:
        """For verify, which has statements of its own."""
        return self._connection

    def first_offset(self) -> int:
        """Return the oldest offset in the log; next_offset if the log is empty."""
        with translate_errors(self.path, "read"):
            return self._scanner.ends().first_offset

    def next_offset(self) -> int:
        """Return the offset of the next message."""
        with translate_errors(self.path, "read"):
            return self._scanner.ends().next_offset

    def read(self, offset: int, max_bytes: int) -> Slice:
        """Return entries; see Store.read."""
        with translate_errors(self.path, "read"):
            return self._scanner.read(offset, max_bytes)

    def offset_at(self, time_us: int) -> int:
        """Return the first offset received at or after a time; see Store.offset_at."""
        with translate_errors(self.path, "read"):
            return self._scanner.offset_at(time_us)

    def rows(
        self, start: int, stop: int, max_blocks: int, max_bytes: int, wanted: IndexFilter | None = None
    ) -> BlockSlice:
        """Return blocks; see BlockScanner.rows."""
        with translate_errors(self.path, "read"):
            return self._scanner.rows(start, stop, max_blocks, max_bytes, wanted)

    def spans(self, start: int, stop: int, max_blocks: int) -> BlockSlice:
        """Return blocks without their bodies; see BlockScanner.spans."""
        with translate_errors(self.path, "read"):
            return self._scanner.spans(start, stop, max_blocks)

    def topics(self) -> list[TopicRow]:
        """Return the topics, ordered by name."""
        with translate_errors(self.path, "read"):
            return load_topics(self._connection)

    def retention_floors(self) -> dict[str, int]:
        """Return the offsets below which retention deleted messages, by the filter of its rule."""
        with translate_errors(self.path, "read"):
            return load_floors(self._connection)

    def epochs(self) -> list[EpochRow]:
        """Return the runs of brokers that appended to the log, in order (godwit.wire.epochs)."""
        with translate_errors(self.path, "read"):
            return load_epochs(self._connection)

    def queries(self) -> dict[str, int]:
        """Return the newest committed batch of each query that stages messages."""
        with translate_errors(self.path, "read"):
            return load_queries(self._connection)

    def snapshot(self) -> AbstractContextManager[None]:
        """Let all calls in the block see the log as of one commit. Keep it short: the WAL grows meanwhile."""
        return snapshot(self._connection)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _check_version(connection: apsw.Connection, path: Path) -> None:
    version = version_of(connection, path)
    if version == 0:
        raise LogVersionError(f"{path} is empty: a broker has not made it a log yet")
    if version < VERSION:
        raise LogVersionError(
            f"the log {path} was written by an older Godwit: its format is {version}, and this one reads "
            f"{VERSION}. A broker brings it forward when it opens it"
        )


def _is_closed_log(path: Path) -> bool:
    """Return whether all of a log is in its main file, as it is when its writer has closed it."""
    wal = Path(f"{path}-wal")
    return path.exists() and not (wal.exists() and wal.stat().st_size)
