"""One datagram is one packet: a short header, frames, and a CRC-32C over all of it.

     0        1                            9              13                 n-4          n
    +--------+----------------------------+--------------+-------- - - -----+------------+
    | vvvvffff  connection id (u64)        number (u32)   frames             CRC-32C     |
    +--------+----------------------------+--------------+-------- - - -----+------------+

`v` is the version, `f` flags (none is in use; 1 is reserved for sealed packets). The connection id is the *receiver's*,
0 while it is unknown. The number is the lower half of a 64-bit packet number. All integers are big-endian but the
checksum: sent little-endian, it makes the checksum of every intact packet the same constant, one call to check.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from godwit.errors import DecodeError
from godwit.limits import LARGEST_DATAGRAM_BYTES

VERSION: Final = 1
FIRST_BYTE: Final = VERSION << 4
FLAG_SEALED: Final = 0x01

HEADER: Final = struct.Struct(">BQI")
CHECKSUM: Final = struct.Struct("<I")
OVERHEAD_BYTES: Final = HEADER.size + CHECKSUM.size
SMALLEST_PACKET_BYTES: Final = OVERHEAD_BYTES + 1
INTACT: Final = 0x48674BC7
"""The CRC-32C of any packet with its own checksum behind it."""

_HALF: Final = 1 << 31
_WRAP: Final = 1 << 32
_MASK: Final = _WRAP - 1
_LAST_TURN: Final = (1 << 64) - _WRAP


def encode_packet(connection_id: int, number: int, frames: bytes) -> bytes:
    """A whole datagram. (transport/transmit.py writes the same bytes in fewer calls.)"""
    head = HEADER.pack(FIRST_BYTE, connection_id, number & _MASK) + frames
    return head + CHECKSUM.pack(crc32c(head))


def decode_packet(datagram: bytes) -> tuple[int, int, bytes]:
    """The connection id, the truncated number and the frames; DecodeError if it is no packet of this version."""
    check_packet(datagram)
    _, connection_id, number = HEADER.unpack_from(datagram)
    return connection_id, number, datagram[HEADER.size : -CHECKSUM.size]


def check_packet(datagram: bytes) -> None:
    """Raises DecodeError unless the datagram is an intact packet of this version."""
    if len(datagram) < SMALLEST_PACKET_BYTES:
        raise DecodeError("truncated", f"{len(datagram)} bytes, a packet has at least {SMALLEST_PACKET_BYTES}")
    if len(datagram) > LARGEST_DATAGRAM_BYTES:
        raise DecodeError("oversized", f"{len(datagram)} bytes, a packet has at most {LARGEST_DATAGRAM_BYTES}")
    if crc32c(datagram) != INTACT:
        raise DecodeError("checksum")
    if datagram[0] != FIRST_BYTE:
        if datagram[0] >> 4 != VERSION:
            raise DecodeError("version", f"version {datagram[0] >> 4}, this is {VERSION}")
        raise DecodeError("flags", f"unknown flags {datagram[0] & 0x0F:#x}")


def expand_number(truncated: int, expected: int) -> int:
    """The 64-bit number nearest to `expected` whose lower 32 bits are `truncated` (RFC 9000, A.3)."""
    candidate = (expected & ~_MASK) | truncated
    if candidate + _HALF <= expected and candidate < _LAST_TURN:
        return candidate + _WRAP
    if candidate > expected + _HALF and candidate >= _WRAP:
        return candidate - _WRAP
    return candidate
