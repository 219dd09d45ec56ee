"""What goes into the broker and what comes out of it, besides the transport's own events.

    in      Connected, Received, Confirmed, Closed (godwit.transport.events), Committed, Failed, Found, Located, Losing,
            Import, Tick
    out     Append, Read, Locate, Open, Send, Confirm, Consume, Admit, Close, Imported, Notice

The broker never waits: an Append is answered by a Committed when the store has it or a Failed when it cannot have it,
in the order of the appends; a Read by a Found, a Locate by a Located.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from godwit.broker.token_rights import TokenRights
from godwit.transport.connection import Connection
from godwit.transport.events import ChannelConfirmed, Closed, Connected, PathChanged, Received, Writable
from godwit.wire.batch import Entry
from godwit.wire.changes import Change
from godwit.wire.control import Subscribe

if TYPE_CHECKING:
    from godwit.broker.feed import Feed


# -- in ---------------------------------------------------------------------------------------------------------------


class Committed(msgspec.Struct, frozen=True):
    """The store has the batches of the oldest Append that it had not answered; the first message has this offset."""

    first_offset: int


class Failed(msgspec.Struct, frozen=True):
    """The oldest Append that was not answered could not be written: nothing of it is in the log."""

    text: str
    """What is wrong and what to do, for those who published."""
    is_lasting: bool = False
    """To try the same again does not help: what changed with it is not put back."""


class Found(msgspec.Struct, frozen=True):
    """The answer to a Read: batches with their offsets, and where to read on."""

    read: Read
    entries: list[tuple[int, Entry]]
    next_offset: int
    damaged: list[tuple[int, int]] = []
    """Ranges of offsets, begin and end, that the log has lost to a damage."""


class Located(msgspec.Struct, frozen=True):
    """The answer to a Locate."""

    connection: Connection
    request: Subscribe
    offset: int


class Losing(msgspec.Struct, frozen=True):
    """These batches are about to leave the log, or have just left it.

    What stands below `floor` is gone then: all of it, or with a `pattern` only what topics that match it had there.
    """

    entries: list[tuple[int, Entry]]
    """Those that anybody may miss; their `rest` may be empty."""
    floor: int
    pattern: str | None = None


class Import(msgspec.Struct, frozen=True):
    """Messages that a query staged: append them once, in this order, and remember the batch's number."""

    key: int
    """For the answer."""
    query: str
    batch: int
    entries: list[Entry]
    """Without the time received, which the broker adds."""
    rights: TokenRights = TokenRights()
    """Of the token that asked for it."""


class Tick(msgspec.Struct, frozen=True):
    """Time has passed: see Broker.next_timer_us."""


BrokerEvent: TypeAlias = (
    Connected
    | Received
    | ChannelConfirmed
    | Closed
    | Writable
    | PathChanged
    | Committed
    | Failed
    | Found
    | Located
    | Losing
    | Import
    | Tick
)

# -- out --------------------------------------------------------------------------------------------------------------


class Append(msgspec.Struct, frozen=True):
    """Put these into the log, all or none, in this order, together with what changes beside it."""

    entries: list[Entry]
    changes: list[Change] = []


class Read(msgspec.Struct, frozen=True):
    """Look up what the log has from this offset on, for a subscription that is behind."""

    feed: Feed
    offset: int
    max_bytes: int


class Locate(msgspec.Struct, frozen=True):
    """Which offset was the first at or after the request's time?"""

    connection: Connection
    request: Subscribe
    time_us: int


class Open(msgspec.Struct, frozen=True):
    """A new channel towards a client: its number must be this, because the broker counts them too."""

    connection: Connection
    channel: int


class Send(msgspec.Struct, frozen=True):
    connection: Connection
    channel: int
    body: bytes
    reliable: bool = True
    last: bool = False


class Confirm(msgspec.Struct, frozen=True):
    """A record is safe; and, unless it is -1, the credit for so many bytes of it may be given back."""

    connection: Connection
    channel: int
    record: int
    reached: int
    body_bytes: int


class Consume(msgspec.Struct, frozen=True):
    connection: Connection
    channel: int
    body_bytes: int


class Admit(msgspec.Struct, frozen=True):
    """The client has logged in: it may use all channels."""

    connection: Connection


class Close(msgspec.Struct, frozen=True):
    connection: Connection
    code: int
    reason: str


class Imported(msgspec.Struct, frozen=True):
    """The answer to an Import."""

    key: int
    problem: str = ""
    """Why it was not done, or nothing."""
    was_known: bool = False
    """This batch of the query, or a later one, had been imported before."""
    first_offset: int = 0
    count: int = 0


class Notice(msgspec.Struct, frozen=True):
    """Something that the people who run the broker may want to read."""

    kind: str
    text: str
    fields: dict[str, Any] = {}


Effect: TypeAlias = Append | Read | Locate | Open | Send | Confirm | Consume | Admit | Close | Imported | Notice
