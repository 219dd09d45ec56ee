"""A range of the log, piece by piece: blocks out of the file, record batches out of blocks, and what is gone told.

Each chunk of blocks is one read of the file that is over before anything is sent, so the pace of a client has nothing
to do with how long a read transaction lasts. A reading holds no connection: it is given one for each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from godwit.archive.columns import ROW_BYTES, Block, Rows, schema_of
from godwit.archive.losses import DataLossError, Ranges, ReplacedLogError, gone_below
from godwit.archive.requests import ReadRequest
from godwit.limits import MIB
from godwit.store.block import BlockRow, DamagedBlockError, open_block
from godwit.store.port import joined
from godwit.store.reader import LogReader, TopicSelection
from godwit.wire.epochs import Epoch, same_below

CHUNK_BLOCKS: Final = 128


class Sizes(NamedTuple):
    """How much a stream takes at once."""

    chunk_bytes: int
    """Of blocks, read at once."""
    piece_bytes: int
    """As Arrow, made and sent at once: blocks are longer then. Only one long message makes a longer one."""


FULL: Final = Sizes(4 * MIB, 8 * MIB)
LEAN: Final = Sizes(1 * MIB, 2 * MIB)
"""For each of many streams."""


class Piece(msgspec.Struct, frozen=True):
    """What a client gets at once; perhaps no rows, when none of a chunk's is wanted."""

    batch: pa.RecordBatch
    next_offset: int
    """Where to read on after it."""
    lost: Ranges
    """What was passed over on the way to it, because it is gone."""

    @property
    def metadata(self) -> bytes:
        told: dict[str, object] = {"next": self.next_offset}
        if self.lost:
            told["lost"] = self.lost
        return msgspec.json.encode(told)


class Reading:
    """One range for one client."""

    def __init__(self, request: ReadRequest, reader: LogReader) -> None:
        """DataLossError if it begins below what is there, or asks for more than was ever there. ReplacedLogError if the
        epochs of the request are of another history."""
        self._request = request
        self._chosen = TopicSelection(request.filters)
        self._wanted = None if self._chosen.is_everything else self._chosen.concerns
        self.schema: Final = schema_of(reader.log_id, request.columns)
        with reader.snapshot():
            self.first_offset: Final = reader.first_offset()
            log_end: Final = reader.next_offset()
            gone = gone_below(self.first_offset, reader.marks(), request.filters)
            epochs = [row.epoch for row in reader.epochs()] if request.epochs else []
        if request.epochs and request.end is not None:
            known = [Epoch(bytes.fromhex(text), first_offset) for text, first_offset in request.epochs]
            same = same_below(known, epochs, log_end)
            if same < request.end:
                raise ReplacedLogError(same, request.end)
        if request.start is None:
            self.start = self.first_offset
            self.gaps_known_below = gone  # "from the oldest on": what was deleted before is no news
        else:
            self.start = request.start
            self.gaps_known_below = request.gaps_known_below
        self.end: Final = log_end if request.end is None else max(request.end, self.start)
        if request.fail_on_data_loss and max(self.start, self.end) > log_end:
            raise DataLossError(
                [(log_end, max(self.start + 1, self.end))],
                f"the log ends at {log_end}; were they there once, it is an older copy",
            )
        self._end = min(self.end, log_end)
        self._position = self.start
        self._pieces: Iterator[Piece] = iter(())
        if lost := self._deleted(gone, self._end):
            self._check(lost, "retention has deleted them, or may have")

    def next_piece(self, reader: LogReader, sizes: Sizes = FULL) -> Piece | None:
        """The next one; None at the end. DataLossError if something is gone, unless the client passes that over."""
        while (piece := next(self._pieces, None)) is None:
            if self._position >= self._end:
                return None
            self._pieces = self._chunk(reader, sizes)
        return piece

    def _chunk(self, reader: LogReader, sizes: Sizes) -> Iterator[Piece]:
        """Reads at once, and gives the pieces of what it read as they are asked for."""
        start = self._position
        with reader.snapshot():
            found = reader.rows(start, self._end, CHUNK_BLOCKS, sizes.chunk_bytes, self._wanted)
            gone = gone_below(reader.first_offset(), reader.marks(), self._request.filters)
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
        return self._made(blocks, start, stop, joined([*damaged, *deleted]), sizes.piece_bytes)

    def _made(self, blocks: list[Block], start: int, stop: int, lost: Ranges, max_bytes: int) -> Iterator[Piece]:
        choice = None if self._chosen.is_everything else self._chosen.among
        has_rows = False
        for group in _groups(blocks, max_bytes):
            rows = Rows(group, choice)
            for first, until in rows.cuts(rows.row_of(start), rows.row_of(stop), max_bytes):
                batch = rows.record_batch(self.schema, first, until)
                yield Piece(batch, rows.offset_of(until - 1) + 1, lost)
                lost, has_rows = [], True
        if not has_rows:  # the client hears how far it is, and one that is gone is noticed
            yield Piece(pa.RecordBatch.from_pylist([], schema=self.schema), stop, lost)

    def _deleted(self, gone: int, stop: int) -> Ranges:
        return joined([(max(self._position, self.gaps_known_below), min(gone, stop))])

    def _check(self, lost: Ranges, why: str) -> None:
        if lost and self._request.fail_on_data_loss:
            raise DataLossError(lost, why)


def _opened(row: BlockRow) -> Block | None:
    """None if it is damaged, or a whole block that does not belong here."""
    try:
        at = open_block(row.body)
    except DamagedBlockError:
        return None
    if (at.first_offset, at.end_offset) != (row.first_offset, row.end_offset):
        return None
    return Block(row.body, at)


def _groups(blocks: list[Block], max_bytes: int) -> Iterator[list[Block]]:
    """So that none, but for the names in it, is longer than this as Arrow, or is one block."""
    group: list[Block] = []
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
