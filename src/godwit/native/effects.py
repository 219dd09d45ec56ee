"""What the native protocol wants done on a connection: executed in order, among the core's effects of a turn."""

from __future__ import annotations

import msgspec

from godwit.transport.connection import Connection


class OpenChannel(msgspec.Struct, frozen=True):
    """Open a channel towards a client. Its number must be this one: the broker counts channels too."""

    connection: Connection
    channel: int


class SendRecord(msgspec.Struct, frozen=True):
    """Send a record on a channel."""

    connection: Connection
    channel: int
    body: bytes
    reliable: bool = True
    last: bool = False


class ConfirmRecord(msgspec.Struct, frozen=True):
    """Confirm a record to its publisher; unless `body_bytes` is -1, return the credit for its bytes too."""

    connection: Connection
    channel: int
    record: int
    reached: int
    body_bytes: int


class ReturnCredit(msgspec.Struct, frozen=True):
    """Return the credit for received bytes of a channel."""

    connection: Connection
    channel: int
    body_bytes: int


class AdmitConnection(msgspec.Struct, frozen=True):
    """The client has logged in: it may use all channels."""

    connection: Connection


class CloseConnection(msgspec.Struct, frozen=True):
    """Close a connection and report why."""

    connection: Connection
    code: int
    reason: str
