"""The port of the server towards its log: where appends go and reads come from. A log answers in its own time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from godwit.broker.broker import Broker
from godwit.broker.effects import Append, Locate, Read
from godwit.wire.changes import StoredState
from godwit.wire.epochs import Epoch


class Log(Protocol):
    """A log hands its answers to Broker.handle, from within these calls and never at another time."""

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
        """Whether state beside the messages outlives the process, so that the broker must report its changes."""
        ...

    def state(self) -> StoredState:
        """Return the stored state, once at the start."""
        ...

    def begin(self, broker: Broker) -> None:
        """Set the broker that gets the answers, and is asked or notified before messages are deleted."""
        ...

    def append(self, effect: Append, now_us: int) -> None:
        """Write an append. It is answered by Committed or Failed, in the order of the appends.

        When the broker gets a Failed, all appends that were given before that moment fail too: so a message is never in
        the log without the messages that its publisher sent before.
        """
        ...

    def read(self, effect: Read) -> None:
        """Read messages. It is answered by Found, unless effect.peer is None by then."""
        ...

    def locate(self, effect: Locate, now_us: int) -> None:
        """Find an offset. It is answered by Located, unless effect.peer is None by then."""
        ...

    def work(self, now_us: int) -> None:
        """Do a bounded part of the pending work."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether `work` would do nothing."""
        ...

    @property
    def due_us(self) -> int | None:
        """When `work` is to be called, if nothing else happens before; 0: at once; None: not at all."""
        ...

    @property
    def held_bytes(self) -> int:
        """The bytes that wait in memory to be appended."""
        ...
