"""Fragments tell their frames, and a record is done when every byte and its end have arrived."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.limits import RECORD_COST_BYTES
from godwit.transport.send_channels import Fragment, OutgoingChannel, OutgoingRecord
from godwit.wire import packet as wire


def record(body: bytes, *, number: int = 0, ends: bool = False, channel: int = 3) -> OutgoingRecord:
    return OutgoingRecord(OutgoingChannel(channel, 0), number, body, ends)


def decoded(fragment: Fragment, *, with_length: bool) -> wire.DataFrame:
    encoded = b"".join(fragment.encode(with_length=with_length))
    behind = b"\x01" if with_length else b""
    frames = wire.decode_frames(encoded + behind)
    assert len(frames) == 1 + len(behind)
    assert isinstance(frames[0], wire.DataFrame)
    expected = fragment.header_bytes() + fragment.body_bytes() + (2 if with_length else 0)
    assert len(encoded) == expected
    return frames[0]


@given(st.binary(max_size=50), st.data(), st.booleans(), st.booleans(), st.none() | st.integers(0, 2**40))
def test_the_frame_says_what_the_fragment_is(
    body: bytes, data: st.DataObject, ends: bool, with_length: bool, position: int | None
) -> None:
    stop = data.draw(st.integers(min(len(body), 1), len(body)))
    start = data.draw(st.integers(0, max(stop - 1, 0)))
    fragment = Fragment(record(body, number=2**32 + 7, ends=ends), start, stop)
    if position is not None:
        fragment.position = position
    frame = decoded(fragment, with_length=with_length)
    assert (frame.channel, frame.record, frame.offset, frame.body) == (3, 7, start, body[start:stop])
    assert frame.position == (None if position is None else position % 2**32)
    is_last = stop == len(body)
    assert fragment.is_last is is_last
    assert bool(frame.flags & wire.WHOLE) is (start == 0 and is_last)
    assert bool(frame.flags & (wire.LAST | wire.WHOLE)) is is_last
    assert bool(frame.flags & wire.END) is (is_last and ends)


@given(st.binary(max_size=60), st.sets(st.integers(1, 59)), st.randoms(use_true_random=False))
def test_done_when_all_parts_have_arrived_in_any_order(body: bytes, cuts: set[int], chance: object) -> None:
    whole = record(body)
    places = sorted({0, len(body)} | {cut for cut in cuts if cut < len(body)})
    parts = [Fragment(whole, start, stop) for start, stop in itertools.pairwise(places)]
    if not body:
        parts = [Fragment(whole, 0, 0)]
    chance.shuffle(parts)  # type: ignore[attr-defined]
    for part in parts[:-1]:
        assert not part.settle()
        assert not part.settle()
    assert parts[-1].settle()
    assert not parts[-1].settle()


def test_a_replaced_fragment_counts_for_nothing() -> None:
    whole = record(b"0123456789")
    old = Fragment(whole, 0, 10)
    old.settled = True
    first, second = Fragment(whole, 0, 4), Fragment(whole, 4, 10)
    assert not old.settle()
    assert not second.settle()
    assert first.settle()


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_cost(size: int) -> None:
    assert record(bytes(size)).cost_bytes == size + RECORD_COST_BYTES
