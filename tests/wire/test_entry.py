"""Entries: a batch apart from its head, split into columns and joined again, without its first messages, routed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.wire.batch import (
    HAS_DELTAS,
    HAS_ROUTE,
    LENGTH_BYTES,
    LONE,
    MAX_BODY_CHUNKS,
    MAX_CACHED_FORMAT,
    MAX_PUBLISHED_HEAD_BYTES,
    RETAIN,
    ROUTED,
    Batch,
    Entry,
    Route,
    StoredColumns,
    decode_batches,
    decode_entry,
    decode_head,
    encode_batch,
    encode_head,
    extension_of,
    join_rests,
    last_message,
    longest_message,
    make_entry,
    make_lone_entry,
    pack_batch,
    pack_rest,
    payload_bytes,
    route_entry,
    split_bodies,
    split_entries,
    without_first,
)

PAYLOADS = st.lists(st.binary(max_size=20), min_size=1, max_size=6)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    payloads = draw(PAYLOADS)
    count = len(payloads)
    deltas = draw(st.none() | st.lists(st.integers(0, 2**32 - 1), min_size=count, max_size=count))
    return Batch(
        payloads,
        draw(st.integers(0, 2**40)),
        qos=draw(st.integers(0, 2)),
        retain=draw(st.booleans()),
        sequence=draw(st.none() | st.integers(0, 2**40)),
        deltas_us=None if deltas is None else tuple(deltas),
        extension=draw(st.none() | st.binary(max_size=9)),
    )


def entry_of(record: bytes) -> Entry:
    head = decode_head(record)
    rest = record[head.rest_at : head.end]
    return Entry(
        topic="a/b",
        publisher="sensor-1",
        flags=head.flags & ~0x18,
        published_us=head.published_us,
        received_us=9,
        sequence=head.sequence,
        epoch=3,
        count=head.count,
        rest=rest,
    )


def stored(entries: list[Entry]) -> StoredColumns:
    columns = split_entries(entries, {entry.flags for entry in entries})
    lengths, deltas, bodies = columns.lengths, columns.deltas or b"", b"".join(columns.bodies)
    assert len(bodies) == columns.bodies_bytes == sum(columns.body_bytes)
    extensions_at = len(lengths) + len(deltas)
    return StoredColumns(
        lengths + deltas + columns.extensions + bodies,
        0,
        None if columns.deltas is None else len(lengths),
        extensions_at,
        extensions_at + len(columns.extensions),
        bytes(entry.flags for entry in entries),
        [entry.count for entry in entries],
        columns.body_bytes,
        columns.extension_bytes,
    )


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


def test_it_takes_keywords_only() -> None:
    with pytest.raises(TypeError):
        Entry("a", "b", 0, 0, 0, None, 0, 1, b"")  # type: ignore[call-arg]


@given(batches())
def test_an_entry_has_all_of_its_batch(batch: Batch) -> None:
    entry = entry_of(encode_batch(batch))
    assert decode_entry(entry) == batch
    assert extension_of(entry) == batch.extension
    assert longest_message(entry.flags, entry.count, entry.rest) == max(map(len, batch.payloads))
    last_us = batch.published_us + (batch.deltas_us[-1] if batch.deltas_us else 0)
    assert last_message(entry) == (batch.payloads[-1], last_us)
    assert payload_bytes(entry) >= sum(map(len, batch.payloads)) - 2 * LENGTH_BYTES


@given(batches())
def test_a_publishers_batch_is_packed_as_any_other(batch: Batch) -> None:
    packed = pack_batch(
        list(batch.payloads),
        batch.published_us,
        qos=batch.qos,
        retain=batch.retain,
        sequence=batch.sequence,
        deltas_us=batch.deltas_us,
        extension=batch.extension,
    )
    assert packed == encode_batch(batch)


@given(PAYLOADS, st.none() | st.binary(max_size=9))
def test_a_rest_is_packed_from_payloads(payloads: list[bytes], extension: bytes | None) -> None:
    flags, rest = pack_rest(payloads, extension=extension)
    record = encode_batch(Batch(payloads, 7, extension=extension))
    assert (record[0] & 0x3F, record[9:]) == (flags, rest)


@given(PAYLOADS)
def test_sizes_of_plain_batches_are_exact(payloads: list[bytes]) -> None:
    assert payload_bytes(make_entry("a", "b", payloads, qos=1, now_us=7)) == sum(map(len, payloads))
    packed = pack_batch([*payloads, b""], 7, qos=2, sequence=0)
    assert len(packed) == MAX_PUBLISHED_HEAD_BYTES + sum(LENGTH_BYTES + len(each) for each in [*payloads, b""])


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_the_entry_of_one_message_is_the_general_one(qos: int, retain: bool) -> None:
    for payload in (b"", b"21.5"):
        general = make_entry("a/b", "c", [payload], qos=qos, retain=retain, now_us=7)
        assert make_lone_entry("a/b", "c", payload, qos, retain, 7) == general


@given(PAYLOADS, st.none() | st.binary(max_size=9), st.booleans())
def test_an_entry_is_made_from_payloads(payloads: list[bytes], extension: bytes | None, retain: bool) -> None:
    entry = make_entry("a", "b", payloads, qos=1, retain=retain, now_us=7, published_us=5, extension=extension)
    assert (entry.topic, entry.publisher, entry.received_us, entry.count) == ("a", "b", 7, len(payloads))
    assert decode_entry(entry) == Batch(payloads, 5, retain=retain, extension=extension)


@given(batches(), st.data())
def test_the_first_messages_are_cut_off(batch: Batch, data: st.DataObject) -> None:
    if len(batch.payloads) == 1:
        return
    count = data.draw(st.integers(1, len(batch.payloads) - 1))
    left = decode_entry(without_first(entry_of(encode_batch(batch)), count))
    assert left.payloads == batch.payloads[count:]
    assert left.deltas_us == (None if batch.deltas_us is None else batch.deltas_us[count:])
    assert left.sequence == (None if batch.sequence is None else batch.sequence + count)
    assert (left.extension, left.qos, left.retain) == (batch.extension, batch.qos, batch.retain)


@given(batches(), batches())
def test_routed_batches_stand_one_after_another(one: Batch, other: Batch) -> None:
    pieces: list[bytes] = []
    for batch in (one, other):
        entry = entry_of(encode_batch(batch))
        pieces += route_entry(entry, entry.flags & ~RETAIN, 12, 3, 1000)
    found = decode_batches(b"".join(pieces))
    for batch, routed in zip((one, other), found, strict=True):
        assert routed.route == Route(12, 3, 1000, 9)
        assert (routed.payloads, routed.deltas_us, routed.extension) == (
            batch.payloads,
            batch.deltas_us,
            batch.extension,
        )
        assert routed.retain is False


@pytest.mark.parametrize("payloads", [[b"ab", b"cd"], [b"a", b"bcd"], [b"x"] * (MAX_CACHED_FORMAT + 1), [b"only"]])
def test_bodies_are_split(payloads: list[bytes]) -> None:
    entry = entry_of(encode_batch(Batch(payloads, 7)))
    record = b"".join(route_entry(entry, entry.flags, 1, 2, 3))
    flags, *_, count, first_bytes = ROUTED.unpack_from(record)
    assert flags & HAS_ROUTE
    found, end = split_bodies(record, ROUTED.size - LENGTH_BYTES, count, first_bytes)
    assert (list(found), end) == (payloads, len(record))


@given(st.lists(batches(), min_size=1, max_size=5))
def test_columns_are_joined_to_the_same_rests(several: list[Batch]) -> None:
    entries = [entry_of(encode_batch(batch)) for batch in several]
    assert join_rests(stored(entries)) == [entry.rest for entry in entries]


def test_lone_messages_are_one_chunk() -> None:
    entries = [entry_of(encode_batch(Batch([b"ab"], 7)))] * 3
    assert list(split_entries(entries, {LONE | 0x40}).bodies) == [b"ababab"]
    assert join_rests(stored(entries)) == [b"ab"] * 3


def test_many_bodies_are_joined() -> None:
    entries = [entry_of(encode_batch(Batch([b"a", b"b"], 7)))] * (MAX_BODY_CHUNKS + 1)
    assert len(split_entries(entries, {0x40}).bodies) == 1


@pytest.mark.parametrize(
    ("flags", "count", "rest"),
    [
        (LONE, 2, b"ab"),
        (LONE | HAS_DELTAS, 1, bytes(8)),
        (0, 2, bytes(4)),
        (0, 1, b"\0\0\0\1\0\0\0\5abc"),
        (0x20, 1, b"\0\0\0\x09"),
    ],
)
def test_a_rest_of_another_shape_is_refused(flags: int, count: int, rest: bytes) -> None:
    entry = Entry(topic="a", publisher="b", flags=flags, published_us=0, received_us=0, count=count, rest=rest)
    with pytest.raises(ValueError, match="layout"):
        split_entries([entry], {flags})


def test_missing_deltas_are_noticed() -> None:
    columns = StoredColumns(bytes(8), 0, None, 4, 4, bytes([HAS_DELTAS]), [1], [1], [0])
    with pytest.raises(ValueError, match="misses its deltas"):
        join_rests(columns)
