"""Batches of which a part is known already."""

from __future__ import annotations

from godwit.wire.batch import Batch, decode_batch, encode_batch, encode_head
from godwit.wire.entry import Entry


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
        entry.topic,
        entry.publisher,
        packed[0],
        entry.published_us,
        entry.received_us,
        sequence,
        entry.epoch,
        entry.count - count,
        packed[head_bytes:],
    )
