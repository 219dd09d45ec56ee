"""Batches: the hot path encodes and decodes as godwit.wire.batch does, drops repeats and detects errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.client.batches import ChannelDecoder, UnknownLabelError
from godwit.client.message import Message
from godwit.errors import DecodeError
from godwit.limits import MAX_LABELS
from godwit.wire.batch import MAX_CACHED_FORMAT, Batch, Route, decode_batches, encode_batch, encode_joinable
from godwit.wire.control import Labels

TOPICS = {1: "a/b", 2: "c"}
PUBLISHERS = {1: "someone", 9: "other"}


def reader(*, live: bool = False, position: int = 0) -> ChannelDecoder:
    made = ChannelDecoder(live=live, position=position)
    made.learn(Labels(topics=list(TOPICS.items()), publishers=list(PUBLISHERS.items())))
    return made


def batch(payloads: list[bytes], offset: int, *, qos: int = 1, retain: bool = False) -> Batch:
    return Batch(payloads, 100, qos, retain, None, Route(1, 1, offset, 200))


def expected(batches: list[Batch], *, live: bool, position: int) -> tuple[list[Message], int, int]:
    """Return messages, next position and missed count, computed message by message."""
    found = []
    missed = 0
    for one in batches:
        route = one.route
        assert route is not None
        for place, payload in enumerate(one.payloads):
            offset = route.offset + place
            if live or not one.retain:
                if offset < position:
                    continue
                missed += offset - position if live else 0
                position = offset + 1
            found.append(
                Message(
                    TOPICS[route.topic],
                    payload,
                    PUBLISHERS[route.publisher],
                    one.published_us + (one.deltas_us[place] if one.deltas_us is not None else 0),
                    route.received_us,
                    one.qos,
                    one.retain,
                    offset if one.qos and not live else None,
                    one.extension,
                )
            )
    return found, position, missed


@st.composite
def routed_batches(draw: st.DrawFn) -> Batch:
    same = draw(st.booleans())
    count = draw(st.integers(1, 8))
    size = draw(st.integers(0, 12))
    payloads = [draw(st.binary(min_size=size if same else 0, max_size=size)) for _ in range(count)]
    deltas = draw(st.none() | st.lists(st.integers(0, 2**32 - 1), min_size=count, max_size=count).map(tuple))
    route = Route(
        draw(st.sampled_from(sorted(TOPICS))),
        draw(st.sampled_from(sorted(PUBLISHERS))),
        draw(st.integers(0, 40)),
        draw(st.integers(0, 2**62)),
    )
    return Batch(
        payloads,
        draw(st.integers(0, 2**62)),
        draw(st.integers(0, 2)),
        draw(st.booleans()),
        draw(st.none() | st.integers(0, 2**62)),
        route,
        deltas,
        draw(st.none() | st.binary(max_size=10)),
    )


@given(st.lists(routed_batches(), min_size=1, max_size=5), st.booleans(), st.integers(0, 40), st.booleans())
def test_same_messages_as_the_plain_decoder(
    batches: list[Batch], live: bool, position: int, last_is_lone: bool
) -> None:
    record = b"".join(map(encode_joinable, batches[:-1])) + (encode_batch if last_is_lone else encode_joinable)(
        batches[-1]
    )
    assert decode_batches(record) == batches
    one = reader(live=live, position=position)
    assert (one.decode(record), one.position, one.missed) == expected(batches, live=live, position=position)


@given(st.data())
def test_any_bytes_give_messages_or_one_error(data: st.DataObject) -> None:
    record = data.draw(st.binary(max_size=60) | routed_batches().map(encode_joinable))
    start = data.draw(st.integers(0, len(record)))
    change = data.draw(st.binary(max_size=6))
    broken = record[:start] + change + record[start + data.draw(st.integers(0, 6)) :]
    one = reader(live=data.draw(st.booleans()))
    try:
        messages = one.decode(broken)
    except DecodeError:
        assert one.position == 0
    else:
        assert sum(len(message.payload) for message in messages) <= len(broken)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=12), st.integers(0, 30))
def test_no_offset_is_repeated_or_left_out(runs: list[tuple[int, int]], position: int) -> None:
    """Records that overlap in any way, as after reconnects."""
    one = reader(position=position)
    given_out: list[int] = []
    for start, count in runs:
        messages = one.decode(encode_joinable(batch([b"x"] * count, start)))
        given_out += [message.offset for message in messages if message.offset is not None]
        new = [offset for offset in range(start, start + count) if offset >= position]
        assert [message.offset for message in messages] == new
        position = max(position, start + count)
    assert given_out == sorted(set(given_out))


def test_retained_messages_are_never_repeats() -> None:
    one = reader(position=100)
    (message,) = one.decode(encode_joinable(batch([b"old"], 3, retain=True)))
    assert (message.retained, message.offset, one.position) == (True, 3, 100)
    (message,) = one.decode(encode_joinable(batch([b"old"], 0, retain=True, qos=0)))
    assert (message.qos, message.offset) == (0, None)


def test_a_live_channel_counts_missing_messages_and_drops_late_ones() -> None:
    one = reader(live=True)
    assert [m.payload for m in one.decode(encode_batch(batch([b"0", b"1"], 0, qos=0)))] == [b"0", b"1"]
    assert [m.payload for m in one.decode(encode_batch(batch([b"5"], 5, qos=0)))] == [b"5"]
    assert one.missed == 3
    assert one.decode(encode_batch(batch([b"2"], 2, qos=0))) == []
    assert one.missed == 3
    assert [m.offset for m in one.decode(encode_batch(batch([b"6"], 6, qos=0)))] == [None]


def test_labels_are_forgotten_and_learned_anew() -> None:
    one = reader()
    one.learn(Labels(topics=[(1, "new")], publishers=[(1, "newer")], forget=True))
    (message,) = one.decode(encode_joinable(batch([b"x"], 0)))
    assert (message.topic, message.publisher) == ("new", "newer")
    with pytest.raises(UnknownLabelError):
        one.decode(encode_joinable(Batch([b"x"], 0, 1, False, None, Route(2, 1, 1, 0))))
    with pytest.raises(UnknownLabelError):
        one.decode(encode_batch(Batch([b"x"], 0, 1, False, None, Route(1, 9, 1, 0))))


def test_labels_are_bounded() -> None:
    one = reader()
    one.learn(Labels(topics=[(number, "x") for number in range(MAX_LABELS)]))
    with pytest.raises(DecodeError):
        one.learn(Labels(publishers=[(number, "x") for number in range(MAX_LABELS + 1)]))


@pytest.mark.parametrize("sizes", [[7] * (MAX_CACHED_FORMAT + 1), [0] * 3, [0, 1, 0], [5]])
def test_batches_of_any_shape(sizes: list[int]) -> None:
    payloads = [bytes(size) for size in sizes]
    assert [m.payload for m in reader().decode(encode_joinable(batch(payloads, 0)))] == payloads


@pytest.mark.parametrize(
    "record",
    [
        b"",
        encode_batch(Batch([b"x"], 0)),
        encode_joinable(batch([b"abc"], 0))[:-1],
        encode_joinable(batch([b"abc", b"def"], 0))[:-1],
        encode_joinable(batch([b"abc", b"de"], 0))[:-1],
        bytes([encode_joinable(batch([b"abc"], 0))[0] | 0xC0]) + encode_joinable(batch([b"abc"], 0))[1:],
        bytes([encode_joinable(batch([b"a", b"b"], 0))[0] | 0xC0]) + encode_joinable(batch([b"a", b"b"], 0))[1:],
        encode_joinable(batch([b"abc"], 0))[:33] + bytes(8),
        encode_joinable(batch([b"abc"], 0))[:33] + b"\xff" * 8,
    ],
)
def test_a_record_without_routed_batches_is_an_error(record: bytes) -> None:
    with pytest.raises(DecodeError):
        reader().decode(record)
