"""Where the server's appends go and its reads come from. A log answers the broker in its own time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from godwit.broker.broker import Broker
from godwit.broker.effects import Append, Locate, Read
from godwit.wire.changes import StoredState
from godwit.wire.epochs import Epoch


class Log(Protocol):
    """It hands its answers to the broker by itself, from within these calls and never at another time."""

    @property
    def log_id(self) -> bytes: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...

    @property
    def epochs(self) -> Sequence[Epoch]:
        """See Store.epochs."""
        ...

    @property
    def keeps_state(self) -> bool:
        """Whether what changes beside the log outlives the process, so that it is worth telling."""
        ...

    def state(self) -> StoredState:
        """What the broker had kept, at its start."""
        ...

    def begin(self, broker: Broker) -> None:
        """Who gets the answers, and is asked or told before anything is forgotten."""
        ...

    def append(self, effect: Append, now_us: int) -> None:
        """Is answered by a Committed or a Failed, in the order of the appends.

        When the broker is handed a Failed, all appends that were given before that moment fail too: so what a publisher
        sent later is never in the log without what it sent before.
        """
        ...

    def read(self, effect: Read) -> None:
        """Is answered by a Found, unless its subscription is gone by then or waits for another one."""
        ...

    def locate(self, effect: Locate, now_us: int) -> None:
        """Is answered by a Located, unless its connection is closed by then."""
        ...

    def work(self, now_us: int) -> None:
        """Does what is due, a bounded piece of it: the loop's other users have their turn then."""
        ...

    @property
    def due_us(self) -> int | None:
        """When `work` wants to be called, if nothing else happens before; 0: at once."""
        ...

    @property
    def held_bytes(self) -> int:
        """What waits in memory to be appended."""
        ...
