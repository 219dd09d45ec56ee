"""A batch as broker and log hand it to each other: its head's fields, names instead of labels, the rest unopened."""

from __future__ import annotations

import msgspec


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One batch. Its `flags` are the batch's, without those for a sequence and a route."""

    topic: str
    publisher: str
    flags: int
    published_us: int
    received_us: int
    """Never less than that of the entry before it in the log."""
    sequence: int | None
    epoch: int
    count: int
    """Messages in the batch: so many offsets are its own."""
    rest: bytes
    """Everything behind the batch's head: extension, lengths, deltas, bodies."""
