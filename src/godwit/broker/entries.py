"""Messages as batches for the log (Entry): made of payloads, taken apart, shortened.

The core forwards batches without looking into them; these functions are for the few cases in which it must, and for
protocols that have single messages. The layout is that of godwit.wire.batch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from godwit.wire.batch import (
    HAS_DELTAS,
    HAS_EXTENSION,
    LONE,
    QOS_SHIFT,
    RETAIN,
    Batch,
    Entry,
    decode_batch,
    encode_batch,
    encode_head,
)

_U32: Final = struct.Struct(">I")
_HEAD_BYTES: Final = len(encode_head(0, 0, None, None))


def make_entry(
    topic: str,
    publisher: str,
    payloads: Sequence[bytes],
    *,
    qos: int,
    now_us: int,
    retain: bool = False,
    published_us: int | None = None,
    sequence: int | None = None,
    epoch: int = 0,
) -> Entry:
    """Return a batch of these messages, at least one. `published_us`: by the publisher's clock, by default `now_us`."""
    flags = qos << QOS_SHIFT | (RETAIN if retain else 0)
    count = len(payloads)
    if count == 1:
        flags |= LONE
        rest = payloads[0]
    else:
        rest = struct.pack(f">{count + 1}I", count, *map(len, payloads)) + b"".join(payloads)
    published_us = now_us if published_us is None else published_us
    return Entry(
        topic=topic,
        publisher=publisher,
        flags=flags,
        published_us=published_us,
        received_us=now_us,
        sequence=sequence,
        epoch=epoch,
        count=count,
        rest=rest,
    )


def decode_entry(entry: Entry) -> Batch:
    """Return the messages of a batch."""
    batch, _ = decode_batch(encode_head(entry.flags, entry.published_us, None, None) + entry.rest)
    return batch


def without_first(entry: Entry, count: int) -> Entry:
    """Return the batch without its first messages."""
    batch = decode_entry(entry)
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
        rest=packed[_HEAD_BYTES:],
    )


def last_message(entry: Entry) -> tuple[bytes, int]:
    """Return the payload of the last message of a batch, and when it was published."""
    rest = entry.rest
    at = 0
    if entry.flags & HAS_EXTENSION:
        at = _U32.size + _U32.unpack_from(rest)[0]
    if entry.flags & LONE:
        return rest[at:], entry.published_us
    count = entry.count
    (last_bytes,) = _U32.unpack_from(rest, at + 4 * count)
    published_us = entry.published_us
    if entry.flags & HAS_DELTAS:
        published_us += _U32.unpack_from(rest, at + 8 * count)[0]
    return (rest[-last_bytes:] if last_bytes else b""), published_us


def payload_bytes(entry: Entry) -> int:
    """Return about how long the payloads are together: a batch adds little else."""
    return len(entry.rest) - (4 * entry.count + 4 if entry.count > 1 else 0)


def longest_message(flags: int, count: int, rest: bytes) -> int:
    """Return the length of the longest message of a batch whose lengths have been checked."""
    at = _U32.size + _U32.unpack_from(rest)[0] if flags & HAS_EXTENSION else 0
    if flags & LONE:
        return len(rest) - at
    longest: int = max(struct.unpack_from(f">{count}I", rest, at + _U32.size))
    return longest
