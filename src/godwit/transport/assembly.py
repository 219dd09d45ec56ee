"""Records on their way in: the fragments of one that is being put together, and the channel that it belongs to."""

from __future__ import annotations

from typing import Final

from godwit.limits import PIECE_BYTES, RECORD_COST_BYTES
from godwit.transport.ranges import RangeSet
from godwit.wire.frames import DATA, DATA_HEADER

_MASK: Final = 0xFFFFFFFF
COMPACT_PIECES: Final = 64


class Assembly:
    """A record being put together. The usual case, fragments in order, only appends to `run`."""

    __slots__ = (
        "_compact", "allowed_bytes", "apart", "channel", "covered", "end_bytes", "ends_channel", "frame_head",
        "next_bytes", "number", "run", "settled_bytes",
    )  # fmt: skip

    def __init__(self, channel: IncomingChannel, number: int) -> None:
        self.channel = channel
        self.number = number
        self.frame_head = DATA_HEADER.pack(DATA, channel.id, number & _MASK)
        """How the frame of a fragment begins that is not the last."""
        self.run: list[bytes] = []
        """The fragments from the start of the record without a gap."""
        self.next_bytes = 0
        """How long the run is."""
        self.settled_bytes = 0
        """How much of the run has been counted against the credit."""
        self.allowed_bytes = 0
        """How long the run may get before the credit must be looked at again."""
        self.apart: dict[int, bytes] = {}
        """Fragments beyond a gap, by their offset; they do not overlap."""
        self.covered: RangeSet | None = None
        """The bytes that are there, once there is a gap."""
        self.end_bytes: int | None = None
        self.ends_channel = False
        self._compact = 0
        """How many at the front of the run are not worth joining."""

    def compact(self) -> None:
        """Joins small fragments as they become many: else a flood of tiny ones would cost many times its credit."""
        run = self.run
        if len(run) - self._compact >= COMPACT_PIECES:
            fresh = run[self._compact :]
            if sum(map(len, fresh)) < len(fresh) * PIECE_BYTES:
                run[self._compact :] = [b"".join(fresh)]
            self._compact = len(run)


class IncomingChannel:
    """One ordered lane of records."""

    __slots__ = (
        "consumed_bytes", "delivered_bytes", "expected", "grants_at_bytes", "held", "id", "most_bytes",
        "most_held_bytes", "received_bytes", "window_bytes",
    )  # fmt: skip

    def __init__(self, channel: int, window_bytes: int, most_bytes: int) -> None:
        self.id = channel
        self.window_bytes = window_bytes
        self.most_bytes = most_bytes
        """The longest record."""
        self.most_held_bytes = window_bytes + most_bytes + RECORD_COST_BYTES
        """A record that is longer than the window may be begun when all before it was consumed: hence the longest one
        beyond the window."""
        self.grants_at_bytes = window_bytes // 4
        """When this much was consumed, a new limit is sent to the peer."""
        self.received_bytes = 0
        self.delivered_bytes = 0
        self.consumed_bytes = 0
        self.expected = 0
        """The number of the record to be delivered next."""
        self.held: dict[int, Assembly] = {}
