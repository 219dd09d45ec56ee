"""The types that pass between an endpoint and its caller: events, trains of datagrams, the states of a connection.

    CONNECTING --accepted--> OPEN --close()-----------------------------> CLOSING --time--> CLOSED
         |                    \\-----peer closed, reset, idle timeout---> DRAINING --time--> CLOSED
         \\--refused, timed out, close()------------------------------------------------> CLOSED

A CLOSING connection answers late packets by repeating its close; a DRAINING one sends nothing. Both wait only until
late packets have died out.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from godwit.transport.connection import Connection

Role: TypeAlias = Literal["client", "server"]
Origin: TypeAlias = Literal["local", "peer", "timeout", "reset", "refused"]


class PeerCertificate(msgspec.Struct, frozen=True):
    """The certificate of a client: the peer has proven that it has its key."""

    fingerprint: str
    """Of its key."""
    names: tuple[str, ...] = ()
    """The names in it, if an authority for clients has issued it."""


class Connected(msgspec.Struct, frozen=True):
    """The handshake is complete. `application` is the peer application's data from the handshake."""

    connection: Connection
    application: bytes


class Received(msgspec.Struct, frozen=True):
    """A whole record has arrived.

    Return the credit of a reliable record with `connection.consume(channel, len(body))`. An unreliable record costs no
    credit.
    """

    connection: Connection
    channel: int
    record: int
    body: bytes
    reliable: bool = True
    last: bool = False
    """Whether this is the last record of its channel."""


class ChannelConfirmed(msgspec.Struct, frozen=True):
    """The peer has confirmed every record of the channel up to `sequence`; `reached` is the count for the last one."""

    connection: Connection
    channel: int
    sequence: int
    reached: int


class Writable(msgspec.Struct, frozen=True):
    """The send buffer has room again, after a send that found it full."""

    connection: Connection


class PathChanged(msgspec.Struct, frozen=True):
    """The peer has moved to another address, and has proved it."""

    connection: Connection
    address: Address


class Closed(msgspec.Struct, frozen=True):
    """The connection has ended. This is its last event, and comes exactly once."""

    connection: Connection
    code: int
    reason: str
    origin: Origin


Event: TypeAlias = Connected | Received | ChannelConfirmed | Writable | PathChanged | Closed


Address: TypeAlias = tuple[Any, ...]
"""A socket address as `socket.recvmsg` returns it: (host, port), or (host, port, flow, scope) with IPv6."""


class Train(msgspec.Struct, frozen=True, gc=False):
    """Datagrams of one size for one address: the unit between transport and socket, moved by one system call.

    A train to send has at most `limits.MAX_TRAIN_DATAGRAMS` datagrams and `limits.MAX_TRAIN_BYTES` bytes.
    """

    address: Address
    """The destination of an outgoing train, the source of an incoming one."""
    data: bytes
    """The datagrams, concatenated."""
    segment_bytes: int
    """The size of every datagram except the last, which may be shorter. At least 1."""

    def datagrams(self) -> Iterator[bytes]:
        """Yield the datagrams in order."""
        data = self.data
        segment_bytes = self.segment_bytes
        if len(data) <= segment_bytes:
            if data:
                yield data  # one datagram, the common case: no copy
            return
        for start in range(0, len(data), segment_bytes):
            yield data[start : start + segment_bytes]


class ConnectionState(Enum):
    """The state of a connection; the transitions are drawn at the top of this module."""

    CONNECTING = "connecting"
    OPEN = "open"
    CLOSING = "closing"
    DRAINING = "draining"
    CLOSED = "closed"
