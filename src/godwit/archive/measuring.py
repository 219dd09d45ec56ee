"""How far a range of the log may go until it has so many rows or bytes: from the blocks' tables, no body is read.

Within a block messages are taken to be alike, so the answer is as exact as a block is small. A reader that wants a
little at a time, or shares of equal size, asks here.
"""

from __future__ import annotations

from typing import Final

import msgspec

from godwit.archive.requests import MeasureRequest
from godwit.store.block import BlockRow, DamagedBlockError, decode_topic_index
from godwit.store.reader import LogReader, TopicSelection

CHUNK_BLOCKS: Final = 1024
MAX_BLOCKS: Final = 65_536
"""Looked at for one answer; then it ends there, and the client asks on."""


class Measured(msgspec.Struct, frozen=True):
    """Up to which offset, and what is before it."""

    offset: int
    rows: int
    bytes: int


def measure(request: MeasureRequest, reader: LogReader) -> Measured:
    """As far as the limits allow, at least one message further than the start if there is one before the end."""
    chosen = TopicSelection(request.filters)
    end = min(request.end, reader.next_offset())
    at = request.start
    rows = size = 0
    for _ in range(MAX_BLOCKS // CHUNK_BLOCKS):
        if at >= end:
            break
        found = reader.spans(at, end, CHUNK_BLOCKS)
        for row in found.rows:
            of_rows, of_bytes = _wanted(row, at, end, chosen)
            share = _share(request, rows, size, of_rows, of_bytes)
            if share < 1:
                first = max(row.first_offset, at)
                last = min(row.end_offset, end)
                offset = first + int((last - first) * share)
                if offset <= request.start:  # a limit that holds less than a message must not stop a reader for ever
                    offset = request.start + 1
                return Measured(offset, rows + int(of_rows * share), size + int(of_bytes * share))
            rows += of_rows
            size += of_bytes
        at = max(found.next_offset, at + 1)
    return Measured(min(at, end), rows, size)


def _share(request: MeasureRequest, rows: int, size: int, of_rows: int, of_bytes: int) -> float:
    """How much of a block still fits."""
    share = 1.0
    if request.max_rows is not None and rows + of_rows > request.max_rows:
        share = min(share, (request.max_rows - rows) / of_rows)
    if request.max_bytes is not None and size + of_bytes > request.max_bytes:
        share = min(share, (request.max_bytes - size) / of_bytes)
    return share


def _wanted(row: BlockRow, start: int, end: int, chosen: TopicSelection) -> tuple[int, int]:
    """Rows and bytes of payload that a block brings, about: the part of it that lies in the range."""
    whole = row.end_offset - row.first_offset
    inside = (min(row.end_offset, end) - max(row.first_offset, start)) / whole
    try:
        shares = decode_topic_index(row.topics)
    except DamagedBlockError:
        return round(whole * inside), 0
    rows = sum([share.messages for share in shares if chosen.has(share.name)])
    size = sum([share.payload_bytes for share in shares if chosen.has(share.name)])
    return round(rows * inside), round(size * inside)
