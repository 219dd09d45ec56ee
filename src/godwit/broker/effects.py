"""The core's input besides the calls of protocols, and its output.

    in      Committed, Failed, Found, Located, Losing (the log's answers and reports), Import, Tick
    out     Append, Read, Locate (for the log), Imported, Notice

The core never waits. An Append is answered by Committed when the log has stored it or by Failed when it could not, in
the order of the appends; a Read by Found, a Locate by Located.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from godwit.broker.access import TokenRights
from godwit.wire.batch import Entry
from godwit.wire.changes import Change

if TYPE_CHECKING:
    from godwit.broker.ports import Peer
    from godwit.broker.session import Session
    from godwit.broker.subscription import BrokerSubscription, Lookup


# -- in ---------------------------------------------------------------------------------------------------------------


class Committed(msgspec.Struct, frozen=True):
    """The oldest unanswered Append is stored; its first message has this offset."""

    first_offset: int


class Failed(msgspec.Struct, frozen=True):
    """The oldest unanswered Append could not be written: nothing of it is in the log."""

    text: str
    """The problem and its remedy, for the publishers."""
    is_lasting: bool = False
    """Whether another attempt to write the same would fail too: then its changes are dropped, not retried."""


class Found(msgspec.Struct, frozen=True):
    """The answer to a Read: batches with their offsets, and where to read next."""

    read: Read
    entries: list[tuple[int, Entry]]
    next_offset: int
    damaged: list[tuple[int, int]] = []
    """Ranges of offsets (first, end) that the log has lost to damage."""


class Located(msgspec.Struct, frozen=True):
    """The answer to a Locate."""

    locate: Locate
    offset: int


class Losing(msgspec.Struct, frozen=True):
    """Batches are about to be deleted from the log, or have just been.

    Everything below `floor` is deleted; with a `pattern`, only messages of topics that match it.
    """

    entries: list[tuple[int, Entry]]
    """The deleted batches that a subscription may miss; their `rest` may be empty."""
    floor: int
    pattern: str | None = None


class Import(msgspec.Struct, frozen=True):
    """Messages that a query has staged: append them once, in this order, and remember the number of the batch."""

    key: int
    """Repeated in the answer."""
    query: str
    batch: int
    entries: list[Entry]
    """Without the time of receipt, which the broker adds."""
    rights: TokenRights = TokenRights()
    """Of the token with which the import was requested."""


class Tick(msgspec.Struct, frozen=True):
    """Time has passed: see Broker.next_timer_us."""


BrokerEvent: TypeAlias = Committed | Failed | Found | Located | Losing | Import | Tick

# -- out --------------------------------------------------------------------------------------------------------------


class Append(msgspec.Struct, frozen=True):
    """Write these entries and state changes to the log, in this order, all or none."""

    entries: list[Entry]
    changes: list[Change] = []


class Read(msgspec.Struct, frozen=True):
    """Read the log from this offset on, for a subscription that is behind."""

    subscription: BrokerSubscription
    offset: int
    max_bytes: int

    @property
    def peer(self) -> Peer | None:
        """The connection that the answer is for; None if the answer is no longer needed."""
        return self.subscription.peer if self.subscription.reading is self else None


class Locate(msgspec.Struct, frozen=True):
    """Find the offset of the first message received at or after a time, for a new subscription."""

    lookup: Lookup
    time_us: int

    @property
    def peer(self) -> Peer | None:
        """The connection that the answer is for; None if it has ended."""
        return self.lookup.peer if self.lookup.peer.is_open else None


class Imported(msgspec.Struct, frozen=True):
    """The answer to an Import."""

    key: int
    problem: str = ""
    """Why nothing was imported; empty if there was no problem."""
    was_known: bool = False
    """This batch of the query, or a later one, had been imported before."""
    first_offset: int = 0
    count: int = 0


class Notice(msgspec.Struct, frozen=True):
    """An event for the operators of the broker."""

    kind: str
    text: str
    fields: dict[str, Any] = {}


def refusal_notice(session: Session, code: int, text: str) -> Notice:
    """Return the notice about a request of a client that was refused."""
    return Notice("refused", f"refused: {text}", session.fields(code=int(code)))


Effect: TypeAlias = Any
"""Append, Read, Locate, Imported or Notice; or a protocol's own, which the server hands back to that protocol."""
