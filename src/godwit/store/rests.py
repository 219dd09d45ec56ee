"""The rests of batches as columns: lengths and deltas of all messages, extensions, bodies. Apart, and together again.

Full batches are cut in four pieces each, whatever is in them; lone messages need no cut at all. Nothing here works
message by message.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

import msgspec

from godwit.store.packing import U32, DamagedBlockError, narrow
from godwit.wire.batch import HAS_DELTAS, HAS_EXTENSION, LONE, Entry

SHAPE: Final = LONE | HAS_DELTAS | HAS_EXTENSION
"""The flags that say how a rest is made up."""
MAX_PIECES: Final = 256
"""Of bodies: more are joined first, because each costs a call when the block is put together."""


class Parts(msgspec.Struct, frozen=True):
    """What split_rests finds."""

    lengths: bytes
    """Of all messages."""
    deltas: bytes | None
    """Of all messages, zero for those of a batch without; None if no batch has any."""
    batch_bytes: Sequence[int]
    """Of the bodies of each batch."""
    extension_bytes: Sequence[int]
    """Of each batch, zero for one without."""
    extensions: bytes
    bodies: Sequence[bytes | memoryview]
    """Few and long, or one."""
    bodies_bytes: int


def split_rests(entries: Sequence[Entry], shapes: set[int]) -> Parts:
    """The flags of all entries are in `shapes`. ValueError when a rest is not made up as its flags say."""
    if all(flags & SHAPE == LONE for flags in shapes):
        return _split_lone(entries)
    return _split(entries, any(flags & HAS_DELTAS for flags in shapes))


def _split_lone(entries: Sequence[Entry]) -> Parts:
    """Nothing but lone messages, as many small senders bring: their rests are their bodies."""
    for entry in entries:
        if entry.count != 1:
            raise _misshapen(entry)
    rests = [entry.rest for entry in entries]
    lengths = list(map(len, rests))
    return Parts(narrow(lengths), None, lengths, [0] * len(lengths), b"", [b"".join(rests)], sum(lengths))


def _split(entries: Sequence[Entry], has_deltas: bool) -> Parts:
    lengths: list[bytes] = []
    deltas: list[bytes] = []
    batch_bytes: list[int] = []
    extension_bytes: list[int] = []
    extensions: list[bytes] = []
    bodies: list[bytes | memoryview] = []
    for entry in entries:
        rest, flags, count = entry.rest, entry.flags, entry.count
        at = 0
        if flags & HAS_EXTENSION:
            at = U32.size + int.from_bytes(rest[: U32.size], "big")
            extensions.append(rest[U32.size : at])
        extension_bytes.append(max(at - U32.size, 0))
        if flags & LONE:
            column = U32.pack(max(len(rest) - at, 0))
            is_whole = count == 1 and not flags & HAS_DELTAS
        else:
            is_whole = rest[at : at + U32.size] == U32.pack(count)
            at += U32.size
            column = rest[at : at + U32.size * count]
            at += U32.size * count
        if flags & HAS_DELTAS:
            deltas.append(rest[at : at + U32.size * count])
            at += U32.size * count
        elif has_deltas:
            deltas.append(bytes(U32.size * count))
        if not is_whole or at > len(rest) or _total(column, count) != len(rest) - at:
            raise _misshapen(entry)
        lengths.append(column)
        batch_bytes.append(len(rest) - at)
        bodies.append(memoryview(rest)[at:] if at else rest)
    return Parts(
        b"".join(lengths),
        b"".join(deltas) if has_deltas else None,
        batch_bytes,
        extension_bytes,
        b"".join(extensions),
        bodies if len(bodies) <= MAX_PIECES else [b"".join(bodies)],
        sum(batch_bytes),
    )


def _misshapen(entry: Entry) -> ValueError:
    return ValueError(f"a batch on {entry.topic!r} is not made up as its flags and its count say")


def _total(column: bytes, count: int) -> int:
    """The sum of a column of lengths, which are often all the same."""
    first = column[: U32.size]
    if column == first * count:
        return count * int.from_bytes(first, "big")
    return sum(struct.unpack(f">{count}I", column))


class Packed(msgspec.Struct, frozen=True):
    """What join_rests needs: a block, where its sections begin, and what its columns say of each batch."""

    data: bytes
    length_at: int
    delta_at: int | None
    extensions_at: int
    bodies_at: int
    flags: bytes
    counts: Sequence[int]
    batch_bytes: Sequence[int]
    extension_bytes: Sequence[int]


def join_rests(packed: Packed) -> list[bytes]:
    """The rests as they were. The sums of the columns are those of the sections."""
    data = packed.data
    stops = accumulate(packed.batch_bytes, initial=packed.bodies_at)
    if all(flags & SHAPE == LONE for flags in set(packed.flags)):
        return [data[start:stop] for start, stop in pairwise(stops)]
    rests = []
    extension_at = packed.extensions_at
    column_at = 0
    for flags, count, extension_bytes, (start, stop) in zip(
        packed.flags, packed.counts, packed.extension_bytes, pairwise(stops), strict=True
    ):
        pieces = []
        if flags & HAS_EXTENSION:
            pieces += [U32.pack(extension_bytes), data[extension_at : extension_at + extension_bytes]]
            extension_at += extension_bytes
        column_end = column_at + U32.size * count
        if not flags & LONE:
            pieces += [U32.pack(count), data[packed.length_at + column_at : packed.length_at + column_end]]
        if flags & HAS_DELTAS:
            if packed.delta_at is None:
                raise DamagedBlockError("a batch misses its deltas")
            pieces.append(data[packed.delta_at + column_at : packed.delta_at + column_end])
        column_at = column_end
        rests.append(b"".join((*pieces, memoryview(data)[start:stop])) if pieces else data[start:stop])
    return rests
