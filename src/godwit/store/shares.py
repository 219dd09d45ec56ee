"""The topics of a block and how much of it is theirs: a small column beside the block, to serve filters by.

    topics u32 | bytes of names u32 | of each: payload bytes u64 | of each: messages u32 | of each: bytes of name u32 |
    names, UTF-8 | CRC-32C u32, little-endian

Big-endian but for the checksum, as blocks are.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from godwit.store.packing import (
    CHECK,
    DamagedBlockError,
    check_seal,
    cut_names,
    join_sealed,
    narrow,
    read_narrow,
    read_wide,
    wide,
)

_HEAD: Final = struct.Struct(">II")
_SHARE_BYTES: Final = 8 + 4 + 4


class TopicShare(msgspec.Struct, frozen=True, gc=False):
    """How much of a block belongs to a topic."""

    name: str
    messages: int
    payload_bytes: int


def encode_topics(shares: Sequence[TopicShare]) -> bytes:
    names = [share.name.encode() for share in shares]
    messages = [share.messages for share in shares]
    payload_bytes = [share.payload_bytes for share in shares]
    return pack_topics(list(map(len, names)), b"".join(names), messages, payload_bytes)


def pack_topics(
    name_lengths: Sequence[int], names: bytes, messages: Sequence[int], payload_bytes: Sequence[int]
) -> bytes:
    """As encode_topics, from columns."""
    head = _HEAD.pack(len(name_lengths), len(names))
    return join_sealed((head, wide(payload_bytes), narrow(messages), narrow(name_lengths), names))


def decode_topics(data: bytes) -> list[TopicShare]:
    """Raises DamagedBlockError when it is not what was written."""
    if len(data) < _HEAD.size + CHECK.size:
        raise DamagedBlockError("cut short")
    check_seal(data)
    topics, names_bytes = _HEAD.unpack_from(data)
    names_at = _HEAD.size + topics * _SHARE_BYTES
    if names_at + names_bytes + CHECK.size != len(data):
        raise DamagedBlockError("its sections do not fill it")
    payload_bytes = read_wide(data, _HEAD.size, topics)
    messages = read_narrow(data, _HEAD.size + 8 * topics, topics)
    lengths = read_narrow(data, _HEAD.size + 12 * topics, topics)
    return list(map(TopicShare, cut_names(data[names_at : -CHECK.size], lengths), messages, payload_bytes))
