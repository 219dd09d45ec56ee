"""Rests that are not what they say are refused before they get into the log; the round trip is tested with blocks."""

from __future__ import annotations

import struct

import msgspec
import pytest
from tests.store.entries import make_entry

from godwit.store.packing import DamagedBlockError
from godwit.store.rests import MAX_PIECES, Packed, join_rests, split_rests
from godwit.wire.batch import HAS_DELTAS, HAS_EXTENSION, LONE, Entry

FULL = make_entry(b"one", b"three", is_joinable=True)
WITH_ALL = make_entry(b"one", b"three", deltas_us=(1, 2), extension=b"more")
LONE_WITH_EXTENSION = make_entry(b"one", extension=b"more")


def split(*entries: Entry) -> None:
    split_rests(entries, {entry.flags for entry in entries})


def changed(entry: Entry, **fields: object) -> Entry:
    return msgspec.structs.replace(entry, **fields)


@pytest.mark.parametrize(
    "entry",
    [
        changed(make_entry(b"x"), count=2),
        changed(FULL, count=1),
        changed(FULL, count=3),
        changed(FULL, rest=FULL.rest[:-1]),
        changed(FULL, rest=FULL.rest + b"!"),
        changed(FULL, rest=b""),
        changed(FULL, rest=FULL.rest[:6]),
        changed(FULL, flags=FULL.flags | HAS_DELTAS),
        changed(FULL, flags=FULL.flags | HAS_EXTENSION),
        changed(FULL, rest=struct.pack(">III", 2, 3, 6) + b"onethree"),
        changed(WITH_ALL, rest=WITH_ALL.rest[:9]),
        changed(WITH_ALL, flags=WITH_ALL.flags & ~HAS_DELTAS),
        changed(LONE_WITH_EXTENSION, rest=LONE_WITH_EXTENSION.rest[:5]),
        changed(LONE_WITH_EXTENSION, rest=b""),
        changed(LONE_WITH_EXTENSION, flags=LONE | HAS_DELTAS),
    ],
)
def test_a_batch_that_is_not_made_up_as_it_says(entry: Entry) -> None:
    with pytest.raises(ValueError, match="'a/b' is not made up"):
        split(entry)
    with pytest.raises(ValueError, match="is not made up"):
        split(FULL, entry)


def test_whole_ones_are_taken() -> None:
    split(FULL, WITH_ALL, LONE_WITH_EXTENSION, make_entry(b""))


def test_many_bodies_become_one_piece() -> None:
    few = split_rests([FULL] * MAX_PIECES, {FULL.flags})
    many = split_rests([FULL] * (MAX_PIECES + 1), {FULL.flags})
    assert (len(few.bodies), len(many.bodies)) == (MAX_PIECES, 1)
    assert b"".join(many.bodies) == b"onethree" * (MAX_PIECES + 1)
    assert many.bodies_bytes == 8 * (MAX_PIECES + 1)


def test_deltas_that_a_block_does_not_have() -> None:
    with pytest.raises(DamagedBlockError, match="deltas"):
        join_rests(Packed(bytes(100), 0, None, 0, 0, bytes([HAS_DELTAS]), [1], [5], [0]))
