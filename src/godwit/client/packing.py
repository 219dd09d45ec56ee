"""Packs a publisher's messages into a batch: one call into C for all lengths, one for all bodies."""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from godwit.errors import UsageError
from godwit.wire.batch import HAS_DELTAS, HAS_EXTENSION, HAS_SEQUENCE, LONE, QOS_SHIFT, RETAIN

Payload: TypeAlias = bytes | bytearray | memoryview | str
"""What can be sent; a text travels as UTF-8."""
LENGTH_BYTES: Final = 4
"""Of a message in a batch, beside its body; as much again if the batch has times for each message."""
HEAD_BYTES: Final = 9 + 8 + 4
"""The longest head of a publisher's batch, with its sequence, and the count behind it."""

_HEAD: Final = struct.Struct(">BQ")
_HEAD_WITH_SEQUENCE: Final = struct.Struct(">BQQ")
_U32: Final = struct.Struct(">I")


def to_bytes(payload: Payload) -> bytes:
    """A text travels as UTF-8."""
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise UsageError(f"a payload of type {type(payload).__name__}: give bytes or a text")


def pack_batch(
    payloads: list[bytes],
    qos: int,
    published_us: int,
    *,
    retain: bool,
    sequence: int | None,
    deltas_us: list[int] | None = None,
    extension: bytes | None = None,
) -> bytes:
    """The bytes of a batch, as godwit.wire.batch describes it. Uses `payloads` up."""
    flags = qos << QOS_SHIFT
    if retain:
        flags |= RETAIN
    count = len(payloads)
    parts: list[bytes] = []
    if extension is not None:
        flags |= HAS_EXTENSION
        parts += (_U32.pack(len(extension)), extension)
    if deltas_us is not None:
        flags |= HAS_DELTAS
        parts.append(struct.pack(f">{2 * count + 1}I", count, *map(len, payloads), *deltas_us))
    elif count == 1:
        flags |= LONE
    else:
        parts.append(struct.pack(f">{count + 1}I", count, *map(len, payloads)))
    if sequence is None:
        parts.insert(0, _HEAD.pack(flags, published_us))
    else:
        parts.insert(0, _HEAD_WITH_SEQUENCE.pack(flags | HAS_SEQUENCE, published_us, sequence))
    payloads[:0] = parts
    return b"".join(payloads)
