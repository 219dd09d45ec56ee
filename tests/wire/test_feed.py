"""Control messages between batches: told apart by one byte, and as strict as on channel 0."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import batches, control_messages, damaged, value_or_refusal

from godwit.errors import DecodeError
from godwit.limits import MAX_CONTROL_RECORD_BYTES
from godwit.wire.batch import Batch, decode_batches, encode_batch, encode_joinable
from godwit.wire.control import (
    IN_BAND,
    ControlMessage,
    DeliveryOpen,
    Gap,
    Labels,
    MalformedError,
    UnknownKind,
    decode_in_band,
    encode_control,
    encode_in_band,
    is_in_band,
)


@given(control_messages)
def test_a_message_comes_back(message: ControlMessage) -> None:
    record = encode_in_band(message)
    assert is_in_band(record)
    assert decode_in_band(record) == message


def test_the_mark_is_one_byte_before_the_map() -> None:
    gap = Gap(count=3, next_offset=10)
    assert encode_in_band(gap) == b"\xff" + encode_control(gap)


@given(st.lists(batches(), min_size=1, max_size=3))
def test_batches_are_never_taken_for_a_message(several: list[Batch]) -> None:
    record = b"".join(map(encode_joinable, several[:-1])) + encode_batch(several[-1])
    assert not is_in_band(record)
    with pytest.raises(DecodeError, match="without the mark"):
        decode_in_band(record)


@given(control_messages)
def test_a_message_is_never_taken_for_batches(message: ControlMessage) -> None:
    with pytest.raises(DecodeError, match="QoS 3"):
        decode_batches(encode_in_band(message))


def test_record_0_of_a_channel_has_no_mark_and_needs_none() -> None:
    """A CBOR map of few fields begins with 0xA0 to 0xBF."""
    record = encode_control(DeliveryOpen(subscription=1))
    assert not is_in_band(record)
    assert record[0] & 0xE0 == 0xA0


def test_an_empty_record_is_neither() -> None:
    assert not is_in_band(b"")
    with pytest.raises(DecodeError):
        decode_in_band(b"")


def test_a_newer_message_is_told_by_its_kind() -> None:
    assert decode_in_band(bytes([IN_BAND]) + b"\xa1\x64kind\x63new") == UnknownKind("new", None)


@given(
    (st.binary(max_size=100) | damaged(control_messages.map(encode_control))).map(lambda data: bytes([IN_BAND]) + data)
    | damaged(control_messages.map(encode_in_band))
)
def test_hostile_bytes_give_a_message_or_an_error(record: bytes) -> None:
    found = value_or_refusal(decode_in_band, record)
    if found is not None and not isinstance(found, UnknownKind):
        assert decode_in_band(encode_in_band(found)) == found


def test_a_wrong_field_is_told() -> None:
    record = encode_in_band(Labels(topics=[(-1, "a")]))
    with pytest.raises(MalformedError, match=r"topics\[0\]"):
        decode_in_band(record)


def test_a_message_has_a_longest_size() -> None:
    topics = [(number, "t" * 1000) for number in range(140)]
    record = encode_in_band(Labels(topics=topics))
    assert len(record) > MAX_CONTROL_RECORD_BYTES
    with pytest.raises(DecodeError, match="at most 131072"):
        decode_in_band(record)
