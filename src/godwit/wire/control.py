"""Control messages: CBOR maps on channel 0, and the open that is record 0 of every other channel.

The field `kind` tells them apart. A request carries a number, and its reply the same one. Unknown fields are ignored;
an unknown kind is answered with an error, so that a newer program can talk to an older one.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from godwit.errors import DecodeError
from godwit.limits import MAX_CONTROL_RECORD_BYTES
from godwit.wire import cbor


class Code(IntEnum):
    """Why a connection ended or a request failed. Below 100: the transport's; from 100 on: the broker's."""

    NORMAL = 0
    SHUTDOWN = 1
    """The other side is being stopped; come back later."""
    PROTOCOL = 2
    """It broke the rules of the protocol."""
    LIMIT = 3
    """It sent more than it was allowed to."""
    VERSION = 4
    """It speaks another version."""
    BUSY = 5
    """There are as many connections as there may be; come back later."""
    TIMEOUT = 6
    """Nothing was heard for too long. Never sent: the other side would not hear it."""
    RESET = 7
    """The other side does not know the connection, because it was restarted. Never sent in a close."""
    INTERNAL = 8
    """A defect of the program that says so."""
    UNKNOWN_KIND = 100
    MALFORMED = 101
    NOT_ALLOWED = 102
    NO_SUCH_TOPIC = 103
    BAD_TOPIC = 104
    BAD_FILTER = 105
    TOO_LARGE = 106
    NOT_SUBSCRIBED = 107


_Request: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """The base that makes `kind` the tag."""


class Open(_Message, frozen=True, kw_only=True, tag="open"):
    """Record 0 of a publisher's channel: what the channel's batches are."""

    topic: _Text
    qos: Literal[0, 1, 2] = 1
    publisher: str | None = None
    """The identity under which repeats are recognised (QoS 2); without it, the connection's name."""
    epoch: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0


class Subscribe(_Message, frozen=True, kw_only=True, tag="subscribe"):
    """Deliver what matches one of the filters, each message once."""

    request: _Request
    filters: Annotated[list[_Text], msgspec.Meta(min_length=1, max_length=256)]


class Subscribed(_Message, frozen=True, kw_only=True, tag="subscribed"):
    """The reply: the channels on which it will come, reliable and unreliable."""

    request: _Request
    channel: Annotated[int, msgspec.Meta(ge=1, lt=2**32)]
    unreliable_channel: Annotated[int, msgspec.Meta(ge=1, lt=2**32)]


class Unsubscribe(_Message, frozen=True, kw_only=True, tag="unsubscribe"):
    """End the subscription that has this channel."""

    request: _Request
    channel: Annotated[int, msgspec.Meta(ge=1, lt=2**32)]


class Done(_Message, frozen=True, kw_only=True, tag="done"):
    """The reply to a request that has nothing else to say."""

    request: _Request


class Error(_Message, frozen=True, kw_only=True, tag="error"):
    """The reply to a request that failed; `request` is missing when it could not be read."""

    code: Annotated[int, msgspec.Meta(ge=0, lt=2**16)]
    text: str
    request: _Request | None = None


ControlMessage: TypeAlias = Open | Subscribe | Subscribed | Unsubscribe | Done | Error


class UnknownKind(msgspec.Struct, frozen=True):
    """A message of a kind that this version does not have: to be answered with Error(UNKNOWN_KIND)."""

    kind: str
    request: int | None


class _Envelope(msgspec.Struct):
    """Just enough to answer a message that cannot be understood."""

    kind: str
    request: Any = None


_KINDS = frozenset({"open", "subscribe", "subscribed", "unsubscribe", "done", "error"})


def encode_control(message: ControlMessage) -> bytes:
    """The CBOR map of a message."""
    return cbor.encode(message)


def decode_control(data: bytes) -> ControlMessage | UnknownKind:
    """The message, or the kind that is not known here; DecodeError if it is no control message at all."""
    if len(data) > MAX_CONTROL_RECORD_BYTES:
        raise DecodeError("control", f"{len(data)} bytes, at most {MAX_CONTROL_RECORD_BYTES}")
    envelope = cbor.decode(data, _Envelope)
    if envelope.kind not in _KINDS:
        request = envelope.request
        usable = type(request) is int and 0 <= request < 2**32  # exactly int: True is no request
        return UnknownKind(envelope.kind[:64], request if usable else None)
    message: ControlMessage = cbor.decode(data, ControlMessage)  # type: ignore[arg-type]  # a union is no class to mypy
    return message
