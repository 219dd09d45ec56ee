"""Batches: every message comes back, a broker can forward without looking inside, and hostile bytes are refused."""

from __future__ import annotations

import struct
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import batches, bodies, hostile, routes, u, value_or_refusal

from godwit.errors import DecodeError
from godwit.limits import MAX_BATCH_MESSAGES
from godwit.wire import batch as b
from godwit.wire.batch import (
    Batch,
    Route,
    decode_batch,
    decode_batches,
    decode_head,
    encode_batch,
    encode_head,
    encode_joinable,
    with_lengths,
)


def record_of(several: list[Batch]) -> bytes:
    """All but the last need their lengths: a lone batch runs to the end of the record."""
    return b"".join(map(encode_joinable, several[:-1])) + encode_batch(several[-1])


records = st.lists(batches(), min_size=1, max_size=3).map(record_of)

# -- round trip -------------------------------------------------------------------------------------------------------


@given(batches())
def test_a_batch_comes_back(batch: Batch) -> None:
    encoded = encode_batch(batch)
    assert decode_batch(encoded) == (batch, len(encoded))
    assert decode_batches(encoded) == [batch]


@given(st.lists(batches(), min_size=1, max_size=3))
def test_several_batches_of_a_record_come_back(several: list[Batch]) -> None:
    assert decode_batches(record_of(several)) == several


@given(batches(), st.binary(max_size=30), st.binary(max_size=30))
def test_a_joinable_batch_is_found_between_other_bytes(batch: Batch, before: bytes, behind: bytes) -> None:
    encoded = encode_joinable(batch)
    record = before + encoded + behind
    assert decode_batch(record, len(before)) == (batch, len(before) + len(encoded))
    assert decode_head(record, len(before)).end == len(before) + len(encoded)


@given(batches())
def test_the_head_tells_what_the_batch_is(batch: Batch) -> None:
    encoded = encode_batch(batch)
    head = decode_head(encoded)
    assert (head.published_us, head.sequence, head.route) == (batch.published_us, batch.sequence, batch.route)
    assert (head.qos, head.retain) == (batch.qos, batch.retain)
    assert head.count == len(batch.payloads)
    assert head.end == len(encoded)
    assert encode_head(head.flags, head.published_us, head.sequence, head.route) == encoded[: head.rest_at]


@given(batches())
def test_every_byte_is_where_the_specification_says(batch: Batch) -> None:
    count = len(batch.payloads)
    lone = count == 1 and batch.deltas_us is None
    flags = batch.qos << 6 | 4 * batch.retain | lone
    flags |= 2 * (batch.deltas_us is not None) | 8 * (batch.sequence is not None)
    flags |= 0x10 * (batch.route is not None) | 0x20 * (batch.extension is not None)
    expected = bytes([flags]) + batch.published_us.to_bytes(8, "big")
    if batch.sequence is not None:
        expected += batch.sequence.to_bytes(8, "big")
    if (route := batch.route) is not None:
        expected += route.topic.to_bytes(4, "big") + route.publisher.to_bytes(4, "big")
        expected += route.offset.to_bytes(8, "big") + route.received_us.to_bytes(8, "big")
    if batch.extension is not None:
        expected += len(batch.extension).to_bytes(4, "big") + batch.extension
    if not lone:
        expected += count.to_bytes(4, "big") + b"".join(len(body).to_bytes(4, "big") for body in batch.payloads)
    expected += b"".join(delta.to_bytes(4, "big") for delta in batch.deltas_us or ())
    assert encode_batch(batch) == expected + b"".join(batch.payloads)


def test_one_message_with_a_delta_is_not_lone() -> None:
    batch = Batch([b"late"], published_us=5, deltas_us=(7,))
    encoded = encode_batch(batch)
    assert not encoded[0] & b.LONE
    assert encoded[0] & b.HAS_DELTAS
    assert len(encoded) == 1 + 8 + 4 + 4 + 4 + len(b"late")
    assert decode_batches(encoded) == [batch]


def test_a_lone_batch_costs_its_head_and_nothing_else() -> None:
    assert len(encode_batch(Batch([b"x" * 100], published_us=1))) == 9 + 100


def test_empty_messages_are_messages() -> None:
    for batch in (Batch([b""], published_us=1), Batch([b"", b"", b""], published_us=1, deltas_us=(0, 0, 0))):
        assert decode_batches(encode_batch(batch)) == [batch]


def test_the_most_messages_that_a_batch_holds() -> None:
    batch = Batch([b"x"] * MAX_BATCH_MESSAGES, published_us=1)
    assert decode_batches(encode_batch(batch)) == [batch]


# -- joining and forwarding -------------------------------------------------------------------------------------------


@given(
    payload=bodies,
    published_us=u(64),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    sequence=st.none() | u(64),
    route=st.none() | routes,
    extension=st.none() | bodies,
    before=st.binary(max_size=20),
)
def test_lengths_written_out_change_nothing(
    payload: bytes,
    published_us: int,
    qos: int,
    retain: bool,
    sequence: int | None,
    route: Route | None,
    extension: bytes | None,
    before: bytes,
) -> None:
    lone = Batch([payload], published_us, qos, retain, sequence, route, None, extension)
    record = before + encode_batch(lone)
    head = decode_head(record, len(before))
    joinable = with_lengths(record, head)
    assert head.flags & b.LONE
    assert not joinable[0] & b.LONE
    assert len(joinable) == len(record) - len(before) + 8
    assert decode_batch(joinable + b"another one") == (lone, len(joinable))
    assert encode_joinable(lone) == joinable


@given(st.lists(batches(), min_size=1, max_size=3), routes)
def test_forwarding_is_a_new_head_before_the_same_rest(several: list[Batch], route: Route) -> None:
    """What a broker does for each subscriber: it writes heads and copies rests, and never opens a rest."""
    record = record_of(several)
    forwarded = []
    at = 0
    while at < len(record):
        head = decode_head(record, at)
        forwarded.append(encode_head(head.flags, head.published_us, None, route) + record[head.rest_at : head.end])
        at = head.end
    expected = [msgspec.structs.replace(batch, sequence=None, route=route) for batch in several]
    assert decode_batches(b"".join(forwarded)) == expected


@given(st.lists(batches(), min_size=1, max_size=3), routes)
def test_batches_of_many_publishers_join_into_one_record(several: list[Batch], route: Route) -> None:
    """The other thing that a broker does: batches that came alone go on together, the lone ones made joinable."""
    joined = []
    for record in map(encode_batch, several):
        head = decode_head(record)
        if head.flags & b.LONE:
            record = with_lengths(record, head)
            head = decode_head(record)
        joined.append(encode_head(head.flags, head.published_us, None, route) + record[head.rest_at : head.end])
    expected = [msgspec.structs.replace(batch, sequence=None, route=route) for batch in several]
    assert decode_batches(b"".join(joined)) == expected


# -- hostile input ----------------------------------------------------------------------------------------------------


@given(hostile(records))
def test_hostile_bytes_give_batches_or_an_error(record: bytes) -> None:
    found = value_or_refusal(decode_batches, record)
    if found is not None:
        assert sum(len(batch.payloads) for batch in found) <= len(record)
        assert sum(len(payload) for batch in found for payload in batch.payloads) <= len(record)
        # Encoded again they are the same batches; not always the same bytes, as one message need not be lone.
        assert decode_batches(record_of(found)) == found


@given(hostile(records), st.integers(0, 40))
def test_the_head_and_the_batch_agree_on_hostile_bytes(record: bytes, at: int) -> None:
    head = value_or_refusal(lambda data: decode_head(data, at), record)
    found = value_or_refusal(lambda data: decode_batch(data, at), record)
    assert (head is None) == (found is None)
    if head is not None and found is not None:
        batch, end = found
        assert head.end == end <= len(record)
        assert head.count == len(batch.payloads)


@given(batches())
def test_every_truncation_of_what_has_lengths_is_refused(batch: Batch) -> None:
    encoded = encode_joinable(batch)
    for size in range(len(encoded)):
        for decode in (decode_batches, decode_head):
            with pytest.raises(DecodeError) as caught:
                decode(encoded[:size])
            assert caught.value.reason == "batch"


HEAD = struct.pack(">Q", 1)
BILLIONS = struct.pack(">I", 0xFFFFFFFF)


def u32(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}I", *numbers)


REFUSED: list[tuple[str, bytes]] = [
    ("cut short", b"\x41"),
    ("cut short", b"\x41" + HEAD[1:]),
    ("cut short", bytes([0x41 | b.HAS_SEQUENCE]) + HEAD + bytes(7)),
    ("cut short", bytes([0x41 | b.HAS_ROUTE]) + HEAD + bytes(23)),
    ("cut short", bytes([0x41 | b.HAS_EXTENSION]) + HEAD + bytes(3)),
    ("cut short", b"\x40" + HEAD + bytes(3)),
    ("the extension is cut short", bytes([0x41 | b.HAS_EXTENSION]) + HEAD + BILLIONS + b"x"),
    ("the extension is cut short", bytes([0x40 | b.HAS_EXTENSION]) + HEAD + u32(2) + b"x"),
    ("QoS 3 does not exist", b"\xc1" + HEAD + b"x"),
    ("a lone batch has no deltas", bytes([0x41 | b.HAS_DELTAS]) + HEAD + b"x"),
    ("0 messages", b"\x40" + HEAD + u32(0)),
    ("4294967295 messages", b"\x40" + HEAD + BILLIONS + bytes(100)),
    ("65537 messages", b"\x40" + HEAD + u32(MAX_BATCH_MESSAGES + 1) + bytes(100)),
    ("lengths are cut short", b"\x40" + HEAD + u32(MAX_BATCH_MESSAGES) + bytes(100)),
    ("lengths are cut short", b"\x40" + HEAD + u32(2, 0)),
    ("lengths are cut short", b"\x42" + HEAD + u32(1, 0)),
    ("bodies are cut short", b"\x40" + HEAD + u32(1, 2) + b"x"),
    ("bodies are cut short", b"\x40" + HEAD + u32(1) + BILLIONS + b"x"),
    ("bodies are cut short", b"\x40" + HEAD + u32(3) + BILLIONS * 3 + b"x" * 100),
]


@pytest.mark.parametrize(("why", "record"), REFUSED)
def test_every_refusal(why: str, record: bytes) -> None:
    for decode in (decode_batches, decode_head):
        with pytest.raises(DecodeError) as caught:
            decode(record)
        assert caught.value.reason == "batch"
        assert why in str(caught.value)


def test_an_empty_record_holds_no_batch() -> None:
    with pytest.raises(DecodeError, match="an empty record"):
        decode_batches(b"")


def test_work_is_bounded_by_the_bytes_that_are_there() -> None:
    tracemalloc.start()
    try:
        for _, record in REFUSED:
            value_or_refusal(decode_batches, record)
            value_or_refusal(decode_head, record)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 128 * 1024


# -- the program's own mistakes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, MAX_BATCH_MESSAGES + 1])
def test_a_batch_has_at_least_one_message_and_not_too_many(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} messages in a batch"):
        encode_batch(Batch([b""] * count, published_us=1))


def test_a_delta_for_each_message_or_none() -> None:
    with pytest.raises(struct.error):
        encode_batch(Batch([b"a", b"b"], published_us=1, deltas_us=(1,)))
