"""Epochs: which history of a log an offset belongs to.

A log that is replaced by an older copy of itself has the same id, and gives offsets to new messages that had stood for
others. So every process that appends to a log begins an epoch in it, with its first message: a random id, and the
offset of that message. Within an epoch offsets are given out by one process to one file, so an epoch and an offset name
one message for ever, and two copies of a log share the epochs of their common past.

A reader that stores a position stores with it the newest epochs that it knows, without a gap between them. What it has
read is the log's own up to the end of the newest epoch that both have, in whichever copy that epoch ends first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec

from godwit.wire.control_base import Count

EPOCH_ID_BYTES: Final = 8
MAX_EPOCHS_TOLD: Final = 16
"""The newest ones, which readers receive and remember."""
UNKNOWN: Final = bytes(EPOCH_ID_BYTES)
"""The id of the epoch of all messages that are older than the epochs that a log has written down."""

EpochId: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=EPOCH_ID_BYTES, max_length=EPOCH_ID_BYTES)]


class Epoch(NamedTuple):
    """One run of a broker that appended to a log. It ends where the next one begins, the newest with the log."""

    id: EpochId
    first_offset: Count


Epochs: TypeAlias = Annotated[list[Epoch], msgspec.Meta(max_length=MAX_EPOCHS_TOLD)]


def same_below(known: Sequence[Epoch], epochs: Sequence[Epoch], next_offset: int) -> int:
    """Return the offset below which a log has the messages that the reader with the known epochs read there.

    `epochs` are the log's own, `next_offset` is its end; both lists are in order and without gaps. Return 0 if they
    have none in common: then nothing is known to be the same.
    """
    ours = {epoch: place for place, epoch in enumerate(epochs)}
    for place in reversed(range(len(known))):
        found = ours.get(known[place])
        if found is not None:
            end = epochs[found + 1].first_offset if found + 1 < len(epochs) else next_offset
            return min(end, known[place + 1].first_offset) if place + 1 < len(known) else end
    return 0
