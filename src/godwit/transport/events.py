"""What an endpoint tells the layer above."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from godwit.transport.train import Address

if TYPE_CHECKING:
    from godwit.transport.connection import Connection

Origin: TypeAlias = Literal["local", "peer", "timeout", "reset", "refused"]


class Connected(msgspec.Struct, frozen=True):
    """The handshake is done. `application` is what the other side's layer above said in it."""

    connection: Connection
    application: bytes


class Received(msgspec.Struct, frozen=True):
    """A whole record. Give the credit of a reliable one back with `connection.consume(channel, len(body))`.

    An unreliable record costs no credit.
    """

    connection: Connection
    channel: int
    record: int
    body: bytes
    reliable: bool = True
    last: bool = False
    """No record follows on this channel."""


class Confirmed(msgspec.Struct, frozen=True):
    """The other side confirmed everything on the channel up to `sequence`; the last one reached so many."""

    connection: Connection
    channel: int
    sequence: int
    reached: int


class Writable(msgspec.Struct, frozen=True):
    """There is room in the send buffer again, after a send that found it full."""

    connection: Connection


class PathChanged(msgspec.Struct, frozen=True):
    """The other side has moved to another address, and proved it."""

    connection: Connection
    address: Address


class Closed(msgspec.Struct, frozen=True):
    """The connection has ended: the last event of it, and the only one of its kind."""

    connection: Connection
    code: int
    reason: str
    origin: Origin


Event: TypeAlias = Connected | Received | Confirmed | Writable | PathChanged | Closed
