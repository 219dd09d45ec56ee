"""A batch without its first messages is the batch that the publisher would have sent of the rest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from godwit.broker.entries import longest_message, payload_bytes, without_first
from godwit.wire.batch import Batch, Entry, decode_batch, decode_head, encode_batch, encode_head

_HEAD_BYTES = len(encode_head(0, 0, None, None))


def entry_of(batch: Batch) -> Entry:
    data = encode_batch(batch)
    return Entry(
        topic="a",
        publisher="me",
        flags=data[0],
        published_us=batch.published_us,
        received_us=7,
        sequence=100,
        epoch=2,
        count=len(batch.payloads),
        rest=data[_HEAD_BYTES:],
    )


def batch_of(entry: Entry) -> Batch:
    data = encode_head(entry.flags, entry.published_us, None, None) + entry.rest
    assert decode_head(data).end == len(data)
    return decode_batch(data)[0]


@given(st.data())
def test_the_rest_stays_as_it_was(data: st.DataObject) -> None:
    payloads = data.draw(st.lists(st.binary(max_size=20), min_size=2, max_size=12))
    deltas = data.draw(st.none() | st.tuples(*[st.integers(0, 2**32 - 1)] * len(payloads)))
    extension = data.draw(st.none() | st.binary(max_size=8))
    retain = data.draw(st.booleans())
    known = data.draw(st.integers(1, len(payloads) - 1))
    entry = without_first(entry_of(Batch(payloads, 5, 2, retain, deltas_us=deltas, extension=extension)), known)
    assert (entry.topic, entry.publisher, entry.published_us, entry.received_us, entry.epoch) == ("a", "me", 5, 7, 2)
    assert (entry.sequence, entry.count) == (100 + known, len(payloads) - known)
    rest = batch_of(entry)
    assert rest.payloads == payloads[known:]
    assert rest.deltas_us == (deltas[known:] if deltas is not None else None)
    assert (rest.extension, rest.retain, rest.qos) == (extension, retain, 2)


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=9), st.none() | st.binary(max_size=8), st.booleans())
def test_the_longest_message_is_found(payloads: list[bytes], extension: bytes | None, timed: bool) -> None:
    deltas = tuple(range(len(payloads))) if timed else None
    entry = entry_of(Batch(payloads, 5, 1, deltas_us=deltas, extension=extension))
    assert longest_message(entry.flags, entry.count, entry.rest) == max(map(len, payloads))


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=9))
def test_the_payload_of_a_plain_batch_is_counted_exactly(payloads: list[bytes]) -> None:
    assert payload_bytes(entry_of(Batch(payloads, 5, 1))) == sum(map(len, payloads))
