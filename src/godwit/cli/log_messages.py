"""What stands in the log as messages: where the newest begin, and all of them between two offsets.

Everything is read in small statements that are over when they return: a broker may write to the file meanwhile, and its
WAL must not grow because somebody looks. Blocks without a wanted topic are passed over unread.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

from godwit.archive.choosing import Chosen
from godwit.client.message import Message
from godwit.limits import MIB
from godwit.store.block import DamagedBlockError, decode_block, decode_topics
from godwit.wire.batch import decode_batch, encode_head

if TYPE_CHECKING:
    from godwit.store.block import Row
    from godwit.store.reader import LogReader
    from godwit.wire.batch import Entry

SPANS_A_TIME: Final = 1024
BLOCKS_A_TIME: Final = 128
READ_BYTES: Final = 4 * MIB
FIRST_LOOK: Final = 4096
"""Offsets that are looked at first for the newest messages; then ever more."""


class Piece(NamedTuple):
    messages: list[Message]
    damaged: list[tuple[int, int]]
    """Ranges of offsets that could not be read."""


def newest(reader: LogReader, chosen: Chosen, count: int, stop: int) -> tuple[int, int]:
    """Where to begin, and how many to leave out from there on, for the last so many messages before an offset."""
    first = reader.first_offset()
    start, found, look = stop, 0, max(count, FIRST_LOOK)
    while found < count and start > first:
        end, start = start, max(start - look, first)
        for row in blocks(reader, start, end):
            start = min(start, row.first_offset)  # whole blocks, so that none is counted twice
            found += matching(row, chosen)
        look *= 4
    surplus = found - count
    for row in blocks(reader, start, stop):
        amount = matching(row, chosen)
        if amount > surplus:
            break
        surplus -= amount
        start = row.end_offset
    return start, max(surplus, 0)


def blocks(reader: LogReader, start: int, stop: int) -> Iterator[Row]:
    """Every block that has something of this range, without its body."""
    while start < stop:
        found = reader.spans(start, stop, SPANS_A_TIME)
        yield from found.rows
        start = found.next_offset


def matching(row: Row, chosen: Chosen) -> int:
    """How many messages of a block are wanted."""
    return sum(share.messages for share in decode_topics(row.topics) if chosen.has(share.name))


def pieces(reader: LogReader, start: int, stop: int, chosen: Chosen) -> Iterator[Piece]:
    """The wanted messages from `start` on and before `stop`, in order; some pieces have none."""
    wanted = None if chosen.is_everything else chosen.concerns
    while start < stop:
        found = reader.rows(start, stop, BLOCKS_A_TIME, READ_BYTES, wanted)
        messages: list[Message] = []
        damaged = list(found.damaged)
        for row in found.rows:
            try:
                entries = decode_block(row.body)
            except DamagedBlockError:
                damaged.append((row.first_offset, row.end_offset))
                continue
            for offset, entry in entries:
                if chosen.has(entry.topic) and offset < stop:
                    messages += messages_of(offset, entry)[max(start - offset, 0) : stop - offset]
        yield Piece(messages, damaged)
        start = found.next_offset


def messages_of(offset: int, entry: Entry) -> list[Message]:
    """The messages of a batch whose first one has this offset."""
    batch, _ = decode_batch(encode_head(entry.flags, entry.published_us, None, None) + entry.rest)
    return [
        Message(
            entry.topic,
            payload,
            entry.publisher,
            entry.published_us + delta_us,
            entry.received_us,
            batch.qos,
            batch.retain,
            place,
            batch.extension,
        )
        for place, (payload, delta_us) in enumerate(
            zip(batch.payloads, batch.deltas_us or repeat(0), strict=False), start=offset
        )
    ]
