"""Numbers in columns, and the one error of bytes that are not what was written."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

CHECK: Final = struct.Struct("<I")
"""A checksum, little-endian as at the end of a packet."""
U32: Final = struct.Struct(">I")


class DamagedBlockError(Exception):
    """Bytes that are no block, or not the block that was written. The store tells of it as a range of offsets."""


def wide(values: Sequence[int]) -> bytes:
    """A column of u64."""
    return struct.pack(f">{len(values)}Q", *values)


def narrow(values: Sequence[int]) -> bytes:
    """A column of u32."""
    return struct.pack(f">{len(values)}I", *values)


def read_wide(data: bytes, at: int, count: int) -> tuple[int, ...]:
    return struct.unpack_from(f">{count}Q", data, at)


def read_narrow(data: bytes, at: int, count: int) -> tuple[int, ...]:
    return struct.unpack_from(f">{count}I", data, at)


def join_sealed(pieces: Sequence[bytes | memoryview]) -> bytes:
    """All in one, with its checksum. It is made in one go: to copy a long block once more costs more than to sum it."""
    check = 0
    for piece in pieces:
        check = crc32c(piece, check)
    return b"".join((*pieces, CHECK.pack(check)))


def check_seal(data: bytes) -> None:
    """Raises DamagedBlockError unless the checksum at the end is right."""
    if len(data) < CHECK.size:
        raise DamagedBlockError("cut short")
    if CHECK.unpack_from(data, len(data) - CHECK.size)[0] != crc32c(memoryview(data)[: -CHECK.size]):
        raise DamagedBlockError("the checksum is wrong")


def cut_names(data: bytes, lengths: Sequence[int]) -> list[str]:
    """Names that stand one behind the other in UTF-8."""
    names = []
    at = 0
    try:
        for length in lengths:
            names.append(data[at : at + length].decode())
            at += length
    except UnicodeDecodeError:
        raise DamagedBlockError("a name is no UTF-8") from None
    if at != len(data):
        raise DamagedBlockError("the names do not fill their section")
    return names
