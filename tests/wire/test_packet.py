"""Packets: the header's bytes, the checksum, and numbers that travel in half."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.wire.strategies import hostile, u, value_or_refusal

from godwit.errors import DecodeError
from godwit.limits import LARGEST_DATAGRAM_BYTES
from godwit.wire.packet import (
    FIRST_BYTE,
    FLAG_SEALED,
    INTACT,
    OVERHEAD_BYTES,
    SMALLEST_PACKET_BYTES,
    VERSION,
    check_packet,
    decode_packet,
    encode_packet,
    expand_number,
)

WRAP = 2**32
TOP = 2**64

packets = st.builds(encode_packet, u(64), u(64), st.binary(min_size=1, max_size=200))


def crc32c_bit_by_bit(data: bytes) -> int:
    """The checksum as docs/PROTOCOL.md tells it, with none of the library's speed."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def seal(head: bytes) -> bytes:
    return head + struct.pack("<I", crc32c_bit_by_bit(head))


# -- the bytes --------------------------------------------------------------------------------------------------------


@given(connection_id=u(64), number=u(64), frames=st.binary(min_size=1, max_size=300))
def test_round_trip(connection_id: int, number: int, frames: bytes) -> None:
    datagram = encode_packet(connection_id, number, frames)
    assert len(datagram) == OVERHEAD_BYTES + len(frames)
    assert decode_packet(datagram) == (connection_id, number % WRAP, frames)


@given(connection_id=u(64), number=u(64), frames=st.binary(min_size=1, max_size=40))
def test_every_byte_is_where_the_specification_says(connection_id: int, number: int, frames: bytes) -> None:
    head = b"\x10" + connection_id.to_bytes(8, "big") + (number % WRAP).to_bytes(4, "big") + frames
    assert encode_packet(connection_id, number, frames) == seal(head)


def test_the_checksum_is_crc_32c() -> None:
    assert crc32c_bit_by_bit(b"123456789") == 0xE3069283  # the check value of the CRC catalogues
    assert crc32c_bit_by_bit(encode_packet(1, 2, b"\x01")) == INTACT


@pytest.mark.parametrize("size", [SMALLEST_PACKET_BYTES, LARGEST_DATAGRAM_BYTES])
def test_the_smallest_and_the_longest_pass(size: int) -> None:
    datagram = encode_packet(1, 1, bytes(size - OVERHEAD_BYTES))
    assert len(datagram) == size
    check_packet(datagram)


# -- hostile input ----------------------------------------------------------------------------------------------------


@given(hostile(packets))
def test_hostile_bytes_give_a_packet_or_an_error(datagram: bytes) -> None:
    found = value_or_refusal(decode_packet, datagram)
    if found is not None:
        assert encode_packet(*found) == datagram


@pytest.mark.parametrize("frame_bytes", [1, 2, 40, 1472 - OVERHEAD_BYTES])
def test_every_single_flipped_bit_is_caught(frame_bytes: int) -> None:
    datagram = encode_packet(0x0123456789ABCDEF, 77, bytes(index % 251 for index in range(frame_bytes)))
    for bit in range(8 * len(datagram)):
        broken = bytearray(datagram)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DecodeError) as caught:
            check_packet(bytes(broken))
        assert caught.value.reason == "checksum"


@given(packets, st.data())
def test_every_damage_within_32_bits_is_caught(datagram: bytes, data: st.DataObject) -> None:
    """A CRC-32 misses no burst that is not longer than itself."""
    pattern = data.draw(st.integers(1, WRAP - 1))
    shift = data.draw(st.integers(0, 8 * len(datagram) - pattern.bit_length()))
    broken = int.from_bytes(datagram, "little") ^ pattern << shift
    with pytest.raises(DecodeError) as caught:
        check_packet(broken.to_bytes(len(datagram), "little"))
    assert caught.value.reason == "checksum"


def _other(first_byte: int, size: int = 40) -> bytes:
    return seal(bytes([first_byte]) + bytes(size - 5))


@pytest.mark.parametrize(
    ("datagram", "reason"),
    [
        (b"", "truncated"),
        (encode_packet(1, 1, b"\x01")[:-1], "truncated"),
        (seal(bytes([FIRST_BYTE]) + bytes(12)), "truncated"),  # intact, but without a frame
        (encode_packet(1, 1, bytes(LARGEST_DATAGRAM_BYTES - OVERHEAD_BYTES + 1)), "oversized"),
        (bytes(40), "checksum"),
        (_other(0x00), "version"),
        (_other(0x20), "version"),
        (_other(0x21), "version"),
        (_other(0xF0), "version"),
        (_other(FIRST_BYTE | FLAG_SEALED), "flags"),
        (_other(FIRST_BYTE | 0x08), "flags"),
    ],
)
def test_every_reason(datagram: bytes, reason: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_packet(datagram)
    assert caught.value.reason == reason


@pytest.mark.parametrize("flags", range(1, 16))
def test_no_flag_is_in_use(flags: int) -> None:
    with pytest.raises(DecodeError, match="flags"):
        check_packet(_other(VERSION << 4 | flags))


# -- numbers ----------------------------------------------------------------------------------------------------------


def nearest(truncated: int, expected: int) -> int:
    """The definition: of all 64-bit numbers that end in `truncated` the nearest, of two equally near the greater."""
    turns = range(expected // WRAP - 2, expected // WRAP + 3)
    numbers = [turn * WRAP + truncated for turn in turns if 0 <= turn < WRAP]
    return min(numbers, key=lambda number: (abs(number - expected), -number))


@given(truncated=u(32), expected=u(64))
def test_expansion_is_the_definition(truncated: int, expected: int) -> None:
    assert expand_number(truncated, expected) == nearest(truncated, expected)


EDGES = (0, 1, 2**31 - 1, 2**31, 2**31 + 1, WRAP - 1)


@pytest.mark.parametrize("turn", [0, 1, 2, 5, 2**31, WRAP - 2, WRAP - 1])
def test_expansion_is_the_definition_around_every_edge(turn: int) -> None:
    for low in EDGES:
        for truncated in EDGES:
            for off in range(-2, 3):
                expected = turn * WRAP + low + off
                if 0 <= expected < TOP:
                    found = expand_number(truncated, expected)
                    assert found == nearest(truncated, expected)
                    assert 0 <= found < TOP


@given(expected=u(64), distance=st.integers(-(2**31) + 1, 2**31))
@example(expected=WRAP - 1, distance=1)
@example(expected=WRAP, distance=-1)
@example(expected=0, distance=2**31)
def test_a_number_less_than_half_a_turn_away_comes_back_whole(expected: int, distance: int) -> None:
    number = expected + distance
    if 0 <= number < TOP:
        _, truncated, _ = decode_packet(encode_packet(1, number, b"\x01"))
        assert expand_number(truncated, expected) == number


def test_numbers_follow_each_other_over_the_wrap() -> None:
    expected = WRAP - 5
    for number in range(WRAP - 5, WRAP + 5):
        assert expand_number(number % WRAP, expected) == number
        expected = number + 1
