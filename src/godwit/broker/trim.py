"""What is done with batches that have to be opened after all, which is rare."""

from __future__ import annotations

import struct
from typing import Final

from godwit.wire.batch import HAS_EXTENSION, LONE, Batch, Entry, decode_batch, encode_batch, encode_head

_U32: Final = struct.Struct(">I")


def without_first(entry: Entry, count: int) -> Entry:
    """The batch without its first messages, which are known already. Rare, so it is opened and packed anew."""
    data = encode_head(entry.flags, entry.published_us, None, None) + entry.rest
    batch, _ = decode_batch(data)
    deltas = batch.deltas_us
    shorter = Batch(
        batch.payloads[count:],
        batch.published_us,
        batch.qos,
        batch.retain,
        None,
        None,
        deltas[count:] if deltas is not None else None,
        batch.extension,
    )
    packed = encode_batch(shorter)
    head_bytes = len(encode_head(0, 0, None, None))
    sequence = None if entry.sequence is None else entry.sequence + count
    return Entry(
        topic=entry.topic,
        publisher=entry.publisher,
        flags=packed[0],
        published_us=entry.published_us,
        received_us=entry.received_us,
        sequence=sequence,
        epoch=entry.epoch,
        count=entry.count - count,
        rest=packed[head_bytes:],
    )


def payload_bytes(entry: Entry) -> int:
    """About what its messages have: a batch adds little else."""
    return len(entry.rest) - (4 * entry.count + 4 if entry.count > 1 else 0)


def longest_message(flags: int, count: int, rest: bytes) -> int:
    """The longest message of a batch, whose lengths were checked."""
    at = _U32.size + _U32.unpack_from(rest)[0] if flags & HAS_EXTENSION else 0
    if flags & LONE:
        return len(rest) - at
    longest: int = max(struct.unpack_from(f">{count}I", rest, at + _U32.size))
    return longest
