"""What the broker needs of a log. Offsets count messages, one sequence a log; the unit is a batch.

A store is synchronous: what `append` was given is safe when it returns, as safe as this store makes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from godwit.wire.changes import Change, State
from godwit.wire.entry import Entry

__all__ = ["Change", "Entry", "Slice", "State", "Store"]


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

        What is gone is passed over: an offset below first_offset starts there, so the first entry's offset tells.
        """
        ...

    def offset_at(self, time_us: int) -> int:
        """The first offset that was received at or after a time; next_offset if none was."""
        ...
