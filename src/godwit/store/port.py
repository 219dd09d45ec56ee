"""What the broker needs of a log. Offsets count messages, one sequence a log; the unit is a batch.

A store is synchronous: what `append` was given is safe when it returns, as safe as this store makes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from godwit.wire.batch import Entry
from godwit.wire.changes import Change, State
from godwit.wire.epochs import Epoch

__all__ = ["ENTRY_COST_BYTES", "Change", "Entry", "Slice", "State", "Store", "entry_bytes"]

ENTRY_COST_BYTES: Final = 384
"""What Python needs for an entry beside its texts and bytes, rounded up."""


def entry_bytes(entry: Entry) -> int:
    """What an entry counts for: what it takes in memory."""
    return len(entry.rest) + len(entry.topic) + len(entry.publisher) + ENTRY_COST_BYTES


class Slice(msgspec.Struct, frozen=True):
    """A piece of the log, in order."""

    entries: list[tuple[int, Entry]]
    """The offset of each entry's first message, and the entry."""
    next_offset: int
    """Where to read on."""
    damaged: list[tuple[int, int]] = []
    """Ranges of offsets, begin and end, that cannot be read any more: they are passed over, and told."""


class Store(Protocol):
    @property
    def log_id(self) -> bytes:
        """Random, made with the log: offsets of another log mean nothing here."""
        ...

    @property
    def first_offset(self) -> int:
        """The oldest that is still there; next_offset if nothing is."""
        ...

    @property
    def next_offset(self) -> int:
        """What the next message gets."""
        ...

    @property
    def epochs(self) -> Sequence[Epoch]:
        """Those of all messages, in order, and at the end the one of this opening, which may have no message yet.

        Empty in a store that does not outlive the process.
        """
        ...

    def append(self, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        """Add them in this order, with the changes, all or none; gives the offset of the first entry.

        All is safe when it returns. The time received never goes backwards from one entry to the next.
        """
        ...

    def state(self) -> State:
        """What the changes so far amount to; nothing in a store that does not outlive the process."""
        ...

    def read(self, offset: int, max_bytes: int) -> Slice:
        """Whole entries from the one that contains the offset on, up to so many bytes but at least one if there is any.

        Bytes as entry_bytes counts them. What is gone is passed over: an offset below first_offset starts there, so the
        first entry's offset tells. Where much is damaged there may be no entry before next_offset: then read on.
        """
        ...

    def offset_at(self, time_us: int) -> int:
        """The first offset that was received at or after a time; next_offset if none was."""
        ...
