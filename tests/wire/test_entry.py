"""An entry is a plain value that nobody changes on its way."""

from __future__ import annotations

import pytest

from godwit.wire.batch import Batch, Entry, decode_batches, decode_head, encode_batch, encode_head


def entry_of(record: bytes) -> Entry:
    head = decode_head(record)
    rest = record[head.rest_at : head.end]
    return Entry("a/b", "sensor-1", head.flags, head.published_us, 9, head.sequence, 3, head.count, rest)


def test_head_and_rest_are_the_batch() -> None:
    batch = Batch([b"one", b"two"], 7, qos=2, sequence=5, deltas_us=(0, 4), extension=b"x")
    record = encode_batch(batch)
    entry = entry_of(record)
    assert encode_head(entry.flags, entry.published_us, entry.sequence, None) + entry.rest == record
    assert decode_batches(encode_head(entry.flags, entry.published_us, 5, None) + entry.rest) == [batch]
    assert entry.count == 2


def test_it_does_not_change() -> None:
    with pytest.raises(AttributeError):
        entry_of(encode_batch(Batch([b""], 0))).count = 2  # type: ignore[misc]
