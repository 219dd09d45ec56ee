"""Frames: each comes back as it went, and hostile bytes are refused at the price of their length."""

from __future__ import annotations

import struct
import tracemalloc
from typing import cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import VALID_DATA_FLAGS, any_frame, frame_lists, hostile, join, value_or_refusal

from godwit.errors import DecodeError
from godwit.limits import (
    BASE_DATAGRAM_BYTES,
    LARGEST_DATAGRAM_BYTES,
    MAX_ACK_RANGES,
    MAX_FRAMES,
    MAX_REASON_BYTES,
)
from godwit.wire import packet as f
from godwit.wire.batch import Batch, encode_batch
from godwit.wire.packet import (
    OVERHEAD_BYTES,
    Frame,
    decode_first_frame,
    decode_frames,
    encode_frame,
    encode_packet,
    encode_reason,
)

NONCE = bytes(range(16))
MAC = bytes(range(16, 32))
COOKIE = bytes(range(20))

ONE_OF_EACH: list[Frame] = [
    f.PingFrame(),
    f.HelloFrame(1, NONCE),
    f.CookieFrame(COOKIE, NONCE),
    f.ConnectFrame(1, NONCE, COOKIE, b"parameters"),
    f.AcceptFrame(1, NONCE, MAC, b"parameters"),
    f.RefuseFrame(NONCE, 5, "busy"),
    f.AckFrame(7, ((9, 9), (1, 5))),
    f.AckFrame(7, ((9, 9), (1, 5)), 3),
    f.ConfirmFrame(1, 2, 3),
    f.CreditFrame(1, 2),
    f.BlockedFrame(1, 2),
    f.PathProbeFrame(bytes(8)),
    f.PathResponseFrame(bytes(8), MAC),
    f.CloseFrame(2, "because", MAC),
    f.ResetFrame(MAC),
    f.CryptoFrame(1172, 99, b"client hello"),
    f.CryptoFrame(0, 0, b""),
    f.TokenFrame(MAC),
    f.DataFrame(f.HAS_LENGTH, 1, 2, 3, None, b"body"),
    f.DataFrame(f.HAS_LENGTH | f.WHOLE | f.HAS_POSITION, 1, 2, 0, 3, b"body"),
]


def name(frame: Frame) -> str:
    return type(frame).__name__


# -- round trip -------------------------------------------------------------------------------------------------------


@given(any_frame)
def test_each_frame_comes_back(frame: Frame) -> None:
    assert decode_frames(encode_frame(frame)) == [frame]


@given(frame_lists())
def test_frames_come_back_in_their_order(frames: list[Frame]) -> None:
    assert decode_frames(join(frames)) == frames


@given(st.sampled_from(ONE_OF_EACH), st.integers(0, 100))
def test_padding_behind_frames_is_skipped(frame: Frame, padding_bytes: int) -> None:
    assert decode_frames(encode_frame(frame) + bytes(padding_bytes)) == [frame]


@pytest.mark.parametrize("flags", VALID_DATA_FLAGS)
def test_every_kind_of_data_frame(flags: int) -> None:
    position = 4 if flags & f.HAS_POSITION else None
    frame = f.DataFrame(flags, 1, 2, 0 if flags & f.WHOLE else 3, position, b"body")
    encoded = encode_frame(frame)
    assert encoded[0] == f.DATA | flags
    overhead = 9 + 4 * (not flags & f.WHOLE) + 4 * bool(flags & f.HAS_POSITION) + 2 * bool(flags & f.HAS_LENGTH)
    assert len(encoded) == overhead + len(b"body")
    assert decode_frames(encoded) == [frame]


def test_no_frame_type_is_without_a_test() -> None:
    kinds = {encode_frame(frame)[0] for frame in ONE_OF_EACH}
    assert {kind for kind in kinds if kind & 0xC0 != f.DATA} == set(range(f.PING, f.TOKEN + 1))
    assert {type(frame) for frame in ONE_OF_EACH} == set(get_args(Frame))


def test_a_one_message_qos_1_publication_on_an_open_channel_costs_at_most_40_bytes() -> None:
    """Over its payload and UDP: a promise of the design, from the first byte of the datagram to the last."""
    payload = b"21.5"
    record = encode_batch(Batch([payload], published_us=1_763_200_000_000_000, qos=1))
    data = f.DataFrame(f.WHOLE, channel=1, record=1, offset=0, position=None, body=record)
    datagram = encode_packet(0x0123456789ABCDEF, 7, encode_frame(data))
    assert len(datagram) - len(payload) == 35
    # With stop-and-wait or go-back-n a position comes on top, and it still holds.
    data = f.DataFrame(f.WHOLE | f.HAS_POSITION, channel=1, record=1, offset=0, position=1, body=record)
    assert len(encode_packet(0x0123456789ABCDEF, 7, encode_frame(data))) - len(payload) == 39


def test_the_longest_acknowledgement_fits_a_base_datagram() -> None:
    spans = tuple((number, number) for number in range(2 * MAX_ACK_RANGES, 0, -2))
    for ack in (f.AckFrame(1, spans), f.AckFrame(1, spans, 1)):
        assert len(encode_frame(ack)) + OVERHEAD_BYTES <= BASE_DATAGRAM_BYTES


# -- reasons ----------------------------------------------------------------------------------------------------------


@given(st.text(max_size=400))
def test_a_reason_is_cut_between_characters(reason: str) -> None:
    text = encode_reason(reason)
    assert len(text) <= MAX_REASON_BYTES
    whole = reason.encode("utf-8", "replace")
    assert whole.startswith(text)
    assert len(whole) <= MAX_REASON_BYTES or len(text) > MAX_REASON_BYTES - 4
    for frame in (f.CloseFrame(1, reason, MAC), f.RefuseFrame(NONCE, 1, reason)):
        (found,) = decode_frames(encode_frame(frame))
        assert isinstance(found, f.CloseFrame | f.RefuseFrame)
        assert found.reason.encode() == text


# -- hostile input ----------------------------------------------------------------------------------------------------


@given(hostile(frame_lists().map(join)))
def test_hostile_bytes_give_frames_or_an_error(data: bytes) -> None:
    found = value_or_refusal(decode_frames, data)
    if found is not None:
        # What was understood is all that was there, but for padding: nothing was read into it or overlooked.
        encoded = join(found)
        assert data.startswith(encoded)
        assert not any(data[len(encoded) :])


@given(first=st.integers(0, 255), rest=st.binary(max_size=60))
def test_every_type_byte_with_anything_behind_it(first: int, rest: bytes) -> None:
    value_or_refusal(decode_frames, bytes([first]) + rest)


@pytest.mark.parametrize("frame", ONE_OF_EACH, ids=name)
def test_every_truncation_is_refused(frame: Frame) -> None:
    encoded = encode_frame(frame)
    for size in range(len(encoded)):
        with pytest.raises(DecodeError) as caught:
            decode_frames(encoded[:size])
        assert caught.value.reason == "frame"


BILLIONS = 0xFFFFFFFF
REFUSED: list[tuple[str, bytes]] = [
    ("no frame", b""),
    ("no frame", b"\x00"),
    ("no frame", bytes(1000)),
    ("padding that is not zero", b"\x01\x00\x01"),
    ("padding that is not zero", bytes(100) + b"\x01"),
    ("unknown type 0x12", b"\x12"),
    ("unknown type 0x3f", b"\x3f"),
    ("unknown type 0x80", b"\x80"),
    ("unknown type 0xff", b"\xff" * 50),
    ("type 0x09 is cut short", b"\x09\x00"),
    ("type 0x07 is cut short", struct.pack(">BIBII", f.ACK, 0, 2, 5, 5)),
    ("0 ranges", struct.pack(">BIB", f.ACK, 0, 0)),
    ("65 ranges", struct.pack(">BIB", f.ACK, 0, MAX_ACK_RANGES + 1) + bytes(8 * (MAX_ACK_RANGES + 1))),
    ("255 ranges", struct.pack(">BIIB", f.ACK_POSITION, 0, 0, 255) + bytes(2040)),
    ("a field is cut short", struct.pack(">BQ16s20sH", f.CONNECT, 1, NONCE, COOKIE, 0xFFFF) + b"x"),
    ("a field is cut short", struct.pack(">BQ16s16sH", f.ACCEPT, 1, NONCE, MAC, 0xFFFF) + b"x"),
    ("a field is cut short", struct.pack(">B16sHH", f.REFUSE, NONCE, 1, 2) + b"x"),
    ("a field is cut short", struct.pack(">BHH", f.CLOSE, 1, 2) + b"x"),
    ("a field is cut short", struct.pack(">BHH", f.CLOSE, 1, 2) + b"xy" + MAC[1:]),
    ("a reason of 257 bytes", struct.pack(">BHH", f.CLOSE, 1, 257) + b"x" * 257 + MAC),
    ("a reason of 257 bytes", struct.pack(">B16sHH", f.REFUSE, NONCE, 1, 257) + b"x" * 257),
    ("not UTF-8", struct.pack(">BHH", f.CLOSE, 1, 1) + b"\xff" + MAC),
    ("not UTF-8", struct.pack(">B16sHH", f.REFUSE, NONCE, 1, 3) + b"\xed\xa0\x80"),  # a lone surrogate
    ("data is cut short", struct.pack(">BIIH", f.DATA | f.WHOLE | f.HAS_LENGTH, 1, 1, 0xFFFF) + b"x"),
    ("an empty fragment", struct.pack(">BIII", f.DATA, 1, 1, 5)),
    ("an empty fragment", struct.pack(">BIIIH", f.DATA | f.HAS_LENGTH, 1, 1, 5, 0)),
    ("beyond the largest record", struct.pack(">BIII", f.DATA, 1, 1, BILLIONS) + b"x"),
    ("beyond the largest record", struct.pack(">BIII", f.DATA | f.LAST, 1, 1, 2**31) + b"x"),
    ("an unreliable record", struct.pack(">BIII", f.DATA | f.UNRELIABLE, 1, 1, 0) + b"x"),
    ("an unreliable record", struct.pack(">BIII", f.DATA | f.UNRELIABLE | f.LAST, 1, 1, 0) + b"x"),
    ("an unreliable record", struct.pack(">BIII", f.DATA | f.UNRELIABLE | f.WHOLE | f.HAS_POSITION, 1, 1, 0)),
    ("an unreliable record", struct.pack(">BII", f.DATA | f.UNRELIABLE | f.WHOLE | f.END, 1, 1)),
    ("a channel ends with the end of a record", struct.pack(">BIII", f.DATA | f.END, 1, 1, 0) + b"x"),
]


@pytest.mark.parametrize(("why", "data"), REFUSED)
def test_every_refusal(why: str, data: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_frames(data)
    assert caught.value.reason == "frame"
    assert why in str(caught.value)


@pytest.mark.parametrize(("why", "data"), REFUSED)
def test_one_bad_frame_makes_the_packet_bad(why: str, data: bytes) -> None:
    if data.strip(b"\x00"):  # nothing, or padding alone, is fine behind a frame
        with pytest.raises(DecodeError, match=r"^frame"):
            decode_frames(b"\x01" + data)


def test_only_these_flags_of_data_pass() -> None:
    passed = []
    for flags in range(0x40):
        layout = ">BII" if flags & f.WHOLE else ">BIII"
        head = struct.pack(layout, f.DATA | flags, *([1] * (len(layout) - 2)))
        body = struct.pack(">I", 1) * bool(flags & f.HAS_POSITION) + struct.pack(">H", 4) * bool(flags & f.HAS_LENGTH)
        if value_or_refusal(decode_frames, head + body + b"body") is not None:
            passed.append(flags)
    assert sorted(passed) == sorted(VALID_DATA_FLAGS)


def test_work_is_bounded_by_the_bytes_that_are_there() -> None:
    """Claims of billions, one after another: the memory that they cost together is a small multiple of their own."""
    claims = [data for _, data in REFUSED]
    tracemalloc.start()
    try:
        for data in claims:
            value_or_refusal(decode_frames, data)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 128 * 1024


def test_a_packet_full_of_the_shortest_frames_is_refused_after_some() -> None:
    assert len(decode_frames(b"\x01" * MAX_FRAMES)) == MAX_FRAMES
    with pytest.raises(DecodeError, match="more than 256 frames"):
        decode_frames(b"\x01" * (LARGEST_DATAGRAM_BYTES - OVERHEAD_BYTES))


def test_the_first_frame_alone() -> None:
    assert decode_first_frame(b"\x01\xff\xff") == f.PingFrame()
    for bad in (b"\xff", b"\x02\x00", b"\x00"):
        with pytest.raises(DecodeError):
            decode_first_frame(bad)


# -- the program's own mistakes ---------------------------------------------------------------------------------------


def test_encoding_something_else_is_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match="not a frame"):
        encode_frame(cast(Frame, "ping"))


@pytest.mark.parametrize(
    "frame", [f.CreditFrame(2**32, 0), f.CreditFrame(-1, 0), f.AckFrame(2**32, ((1, 1),)), f.HelloFrame(2**64, NONCE)]
)
def test_a_field_out_of_range_is_a_mistake_of_the_program(frame: Frame) -> None:
    with pytest.raises(struct.error):
        encode_frame(frame)
