"""Read ranges of the log as Arrow: record batches, lost ranges, and the size of a range.

Blocks are read from the file, and record batches are made of them (godwit.archive.columns). Messages that are missing
from a range are always reported: below the log's beginning or a retention floor, or in damaged blocks.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec
import pyarrow as pa

from godwit.archive.columns import EXTENSION_COLUMNS, ROW_BYTES, MessageColumns, OpenBlock, schema_of
from godwit.archive.requests import MeasureRequest, ReadRequest
from godwit.errors import StorageError
from godwit.limits import MIB
from godwit.store.block import BlockRow, DamagedBlockError, decode_topic_index, open_block
from godwit.store.port import joined
from godwit.store.reader import LogReader, TopicSelection
from godwit.wire.epochs import Epoch, same_below
from godwit.wire.retention_floors import lost_below

CHUNK_BLOCKS: Final = 128
"""Blocks read at once."""
MEASURED_BLOCKS: Final = 1024
MAX_MEASURED_BLOCKS: Final = 65_536
"""Blocks examined for one answer; the client continues from there."""
READERS: Final = 4
"""Threads."""
LONG_WAL_BYTES: Final = 256 * MIB
"""The size at which the broker tries to truncate it."""
MAX_WAIT_S: Final = 1.0
WAIT_STEP_S: Final = 0.01

_ResultT = TypeVar("_ResultT")

Ranges: TypeAlias = list[tuple[int, int]]
"""Ranges of offsets: begin and end."""

_SHOWN: Final = 3


class LostMessagesError(StorageError):
    """Messages of the requested range were deleted or damaged, or never existed."""

    def __init__(self, lost: Ranges, why: str) -> None:
        shown = ", ".join(f"{begin} to {end - 1}" for begin, end in lost[:_SHOWN])
        if len(lost) > _SHOWN:
            shown += f" and {len(lost) - _SHOWN} more ranges"
        super().__init__(
            f"messages at the offsets {shown} cannot be read: {why}. "
            "To read what is there, ask again with fail_on_data_loss set to false"
        )
        self.lost = lost

    @property
    def details(self) -> bytes:
        """The error for programs, as JSON."""
        return json.dumps({"kind": "data_loss", "lost": self.lost}).encode()


class ReplacedLogError(StorageError):
    """The range refers to another history of the log: an older copy was restored."""

    def __init__(self, same_below: int, end: int) -> None:
        super().__init__(
            f"the log has other messages from offset {same_below} on than when the offsets up to {end} were read: an "
            "older copy of it was put back"
        )
        self.same_below = same_below

    @property
    def details(self) -> bytes:
        """The error for programs, as JSON."""
        return json.dumps({"kind": "replaced", "same_below": self.same_below}).encode()


def gone_below(first_offset: int, floors: Mapping[str, int], filters: Sequence[str]) -> int:
    """Return the offset below which messages that match the filters may be deleted; no filters match everything."""
    reached = lost_below(floors, filters) if filters else max(floors.values(), default=0)
    return max(first_offset, reached)


class StreamSizes(NamedTuple):
    """How much a stream reads and sends at once."""

    chunk_bytes: int
    """Blocks read at once."""
    piece_bytes: int
    """Arrow data made and sent at once. Only a single long message makes a longer piece."""


FULL: Final = StreamSizes(4 * MIB, 8 * MIB)
LEAN: Final = StreamSizes(1 * MIB, 2 * MIB)
"""For each stream when there are many."""


class RangePiece(msgspec.Struct, frozen=True):
    """Rows sent to a client at once; none if a chunk contains no requested topic."""

    batch: pa.RecordBatch
    next_offset: int
    """Where to continue after these rows."""
    lost: Ranges
    """Ranges that were skipped before these rows because their messages are deleted or damaged."""

    @property
    def metadata(self) -> bytes:
        """The metadata of its record batch, as JSON."""
        metadata: dict[str, object] = {"next": self.next_offset}
        if self.lost:
            metadata["lost"] = self.lost
        return msgspec.json.encode(metadata)


class RangeReader:
    """Reads one range of the log for one client, piece by piece.

    Each chunk of blocks is one read of the file, which is finished before anything is sent, so a slow client does not
    prolong a read transaction. A RangeReader holds no connection: it gets one for each step.
    """

    def __init__(self, request: ReadRequest, reader: LogReader) -> None:
        """Check a request.

        Raise LostMessagesError if the range begins before the log or ends after it, ReplacedLogError if the epochs of
        the request belong to another history of the log.
        """
        self._request = request
        self._selection = TopicSelection(request.filters)
        self._wanted = None if self._selection.is_everything else self._selection.concerns
        self.schema: Final = schema_of(reader.log_id, request.columns)
        with reader.snapshot():
            self.first_offset: Final = reader.first_offset()
            log_end: Final = reader.next_offset()
            gone = gone_below(self.first_offset, reader.retention_floors(), request.filters)
            epochs = [row.epoch for row in reader.epochs()] if request.epochs else []
        if request.epochs and request.end is not None:
            known = [Epoch(bytes.fromhex(text), first_offset) for text, first_offset in request.epochs]
            same = same_below(known, epochs, log_end)
            if same < request.end:
                raise ReplacedLogError(same, request.end)
        if request.start is None:
            self.start = self.first_offset
            self.gaps_known_below = gone  # the client asked for the oldest message: earlier deletions are expected
        else:
            self.start = request.start
            self.gaps_known_below = request.gaps_known_below
        self.end: Final = log_end if request.end is None else max(request.end, self.start)
        if request.fail_on_data_loss and max(self.start, self.end) > log_end:
            raise LostMessagesError(
                [(log_end, max(self.start + 1, self.end))],
                f"the log ends at {log_end}; if they existed once, it is an older copy",
            )
        self._end = min(self.end, log_end)
        self._position = self.start
        self._pieces: Iterator[RangePiece] = iter(())
        if lost := self._deleted(gone, self._end):
            self._check(lost, "retention has deleted them, or may have")

    def next_piece(self, reader: LogReader, sizes: StreamSizes = FULL) -> RangePiece | None:
        """Return the next piece, or None at the end.

        Raise LostMessagesError if messages are deleted or damaged, unless the request allows that.
        """
        while (piece := next(self._pieces, None)) is None:
            if self._position >= self._end:
                return None
            self._pieces = self._chunk(reader, sizes)
        return piece

    def _chunk(self, reader: LogReader, sizes: StreamSizes) -> Iterator[RangePiece]:
        """Read a chunk now, and return an iterator that makes its pieces when they are needed."""
        start = self._position
        with reader.snapshot():
            found = reader.rows(start, self._end, CHUNK_BLOCKS, sizes.chunk_bytes, self._wanted)
            gone = gone_below(reader.first_offset(), reader.retention_floors(), self._request.filters)
        stop = min(found.next_offset, self._end)
        damaged = [(max(begin, start), min(end, stop)) for begin, end in found.damaged]
        blocks = []
        for row in found.rows:
            if (block := _opened(row)) is None:
                damaged.append((max(row.first_offset, start), min(row.end_offset, stop)))
            else:
                blocks.append(block)
        deleted = self._deleted(gone, stop)
        self._check(joined(damaged), "their block in the log's file is damaged")
        self._check(deleted, "retention has deleted them, or may have, while they were read")
        self._position = stop
        return self._pieces_of(blocks, start, stop, joined([*damaged, *deleted]), sizes.piece_bytes)

    def _pieces_of(
        self, blocks: list[OpenBlock], start: int, stop: int, lost: Ranges, max_bytes: int
    ) -> Iterator[RangePiece]:
        choice = None if self._selection.is_everything else self._selection.among
        has_rows = False
        for group in _groups(blocks, max_bytes):
            rows = MessageColumns(group, choice, with_extensions=not EXTENSION_COLUMNS.isdisjoint(self.schema.names))
            for first, until in rows.cuts(rows.row_of(start), rows.row_of(stop), max_bytes):
                batch = rows.record_batch(self.schema, first, until)
                yield RangePiece(batch, rows.offset_of(until - 1) + 1, lost)
                lost, has_rows = [], True
        if not has_rows:  # tells the client its position, and notices a client that has left
            yield RangePiece(pa.RecordBatch.from_pylist([], schema=self.schema), stop, lost)

    def _deleted(self, gone: int, stop: int) -> Ranges:
        return joined([(max(self._position, self.gaps_known_below), min(gone, stop))])

    def _check(self, lost: Ranges, why: str) -> None:
        if lost and self._request.fail_on_data_loss:
            raise LostMessagesError(lost, why)


def _opened(row: BlockRow) -> OpenBlock | None:
    """Return an opened block, or None if it is damaged or belongs to another row."""
    try:
        at = open_block(row.body)
    except DamagedBlockError:
        return None
    if (at.first_offset, at.end_offset) != (row.first_offset, row.end_offset):
        return None
    return OpenBlock(row.body, at)


def _groups(blocks: list[OpenBlock], max_bytes: int) -> Iterator[list[OpenBlock]]:
    """Yield groups of blocks that are at most this long as Arrow, apart from names, or single blocks."""
    group: list[OpenBlock] = []
    size_bytes = 0
    for block in blocks:
        block_bytes = block.at.messages * ROW_BYTES + block.at.bodies_bytes
        if group and size_bytes + block_bytes > max_bytes:
            yield group
            group, size_bytes = [], 0
        group.append(block)
        size_bytes += block_bytes
    if group:
        yield group


class RangeSize(msgspec.Struct, frozen=True):
    """The end of a range, and the rows and payload bytes before it."""

    offset: int
    rows: int
    bytes: int


def measure(request: MeasureRequest, reader: LogReader) -> RangeSize:
    """Return how far a range may go until it reaches a number of rows or bytes, without reading any body.

    Messages of a block are assumed to be of equal size, so the answer is as exact as a block is small. It is at least
    one message if there is one. Readers that want a little at a time, or parts of equal size, ask for it.
    """
    selection = TopicSelection(request.filters)
    end = min(request.end, reader.next_offset())
    at = request.start
    rows = size = 0
    for _ in range(MAX_MEASURED_BLOCKS // MEASURED_BLOCKS):
        if at >= end:
            break
        found = reader.spans(at, end, MEASURED_BLOCKS)
        for row in found.rows:
            of_rows, of_bytes = _wanted(row, at, end, selection)
            share = _share(request, rows, size, of_rows, of_bytes)
            if share < 1:
                first = max(row.first_offset, at)
                last = min(row.end_offset, end)
                offset = first + int((last - first) * share)
                if offset <= request.start:  # a limit below the size of a message must not stop a reader forever
                    offset = request.start + 1
                return RangeSize(offset, rows + int(of_rows * share), size + int(of_bytes * share))
            rows += of_rows
            size += of_bytes
        at = max(found.next_offset, at + 1)
    return RangeSize(min(at, end), rows, size)


def _share(request: MeasureRequest, rows: int, size: int, of_rows: int, of_bytes: int) -> float:
    """Return the fraction of a block that still fits the limits."""
    share = 1.0
    if request.max_rows is not None and rows + of_rows > request.max_rows:
        share = min(share, (request.max_rows - rows) / of_rows)
    if request.max_bytes is not None and size + of_bytes > request.max_bytes:
        share = min(share, (request.max_bytes - size) / of_bytes)
    return share


def _wanted(row: BlockRow, start: int, end: int, selection: TopicSelection) -> tuple[int, int]:
    """Return the approximate rows and payload bytes of the part of a block that is in the range."""
    whole = row.end_offset - row.first_offset
    inside = (min(row.end_offset, end) - max(row.first_offset, start)) / whole
    try:
        shares = decode_topic_index(row.topics)
    except DamagedBlockError:
        return round(whole * inside), 0
    rows = sum([share.messages for share in shares if selection.has(share.name)])
    size = sum([share.payload_bytes for share in shares if selection.has(share.name)])
    return round(rows * inside), round(size * inside)


class ReaderPool:
    """A few threads that read the log, each with a connection of its own.

    They serve any number of streams: a stream holds no connection and no statement while its client is slow, so it
    neither makes the WAL grow nor uses up connections. Several busy streams can do so, because the WAL can only be
    truncated at a moment without readers. So a read is delayed for a while when the WAL has become long.
    """

    def __init__(self, path: Path) -> None:
        """Open the log once, so that a damaged file is reported at the start. Raise a StorageError then."""
        self._path = path
        self._wal_path = Path(f"{path}-wal")
        self._own = threading.local()
        reader = LogReader.open(path)
        self.log_id: Final = reader.log_id
        reader.close()
        self._threads = ThreadPoolExecutor(READERS, "log reader")

    def start(self, task: Callable[[LogReader], _ResultT]) -> Future[_ResultT]:
        """Run a function in one of the threads."""
        return self._threads.submit(lambda: self._run(task))

    def ask(self, task: Callable[[LogReader], _ResultT]) -> _ResultT:
        """Run a function in one of the threads, and return its result."""
        return self.start(task).result()

    def _run(self, task: Callable[[LogReader], _ResultT]) -> _ResultT:
        give_up_at = time.monotonic() + MAX_WAIT_S
        while self._is_wal_long() and time.monotonic() < give_up_at:
            time.sleep(WAIT_STEP_S)
        return task(self._reader())

    def _is_wal_long(self) -> bool:
        try:
            return self._wal_path.stat().st_size > LONG_WAL_BYTES
        except OSError:  # it does not exist
            return False

    def _reader(self) -> LogReader:
        reader: LogReader | None = getattr(self._own, "reader", None)
        if reader is None:
            reader = self._own.reader = LogReader.open(self._path)
        return reader

    def close(self) -> None:
        """Wait for running functions. The connections are closed with their threads."""
        self._threads.shutdown(cancel_futures=True)
