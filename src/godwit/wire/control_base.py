"""What all control messages share: their base, and the types of their fields with the bounds of each."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from godwit.limits import MAX_CLIENT_NAME_BYTES, MAX_FILTERS, MAX_TOPIC_BYTES

MAX_TEXT_CHARACTERS: Final = 1024
"""Of a reason, an error, a note."""

Request: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Channel: TypeAlias = Annotated[int, msgspec.Meta(ge=1, lt=2**32)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
CodeNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**16)]
Label: TypeAlias = tuple[Request, str]
TopicText: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_TOPIC_BYTES)]
Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_CLIENT_NAME_BYTES)]
Filters: TypeAlias = Annotated[list[TopicText], msgspec.Meta(min_length=1, max_length=MAX_FILTERS)]
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARACTERS)]
Fraction: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
Qos: TypeAlias = Literal[0, 1, 2]


class BaseControlMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """The base that makes `kind` the tag."""


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
    """No packet was received for the idle timeout. Not sent in a close: the peer would not receive it."""
    RESET = 7
    """The other side does not know the connection, because it was restarted. Never sent in a close."""
    INTERNAL = 8
    """A defect of the program that reports it."""
    UNKNOWN_KIND = 100
    MALFORMED = 101
    NOT_ALLOWED = 102
    """No right to do this, or a wrong proof of the name."""
    NO_SUCH_TOPIC = 103
    BAD_TOPIC = 104
    BAD_FILTER = 105
    TOO_LARGE = 106
    NOT_SUBSCRIBED = 107
    BAD_NAME = 108
    NAME_IN_USE = 109
    """Another client has this name and answers."""
    TAKEN_OVER = 110
    """The same client has connected again: do not come back."""
    KICKED = 111
    """An authorised client removed this client: do not reconnect."""
    STALE_EPOCH = 112
    """A newer run of this publisher is known."""
    TOPIC_EXISTS = 113
    NOT_LOGGED_IN = 114
    TOO_MANY = 115
    """A limit of the broker: topics, subscriptions, sessions."""
    NO_SUCH_CLIENT = 116
    STORAGE = 117
    """The log could not be written: what was asked is not done, or not safe. Try again later."""
    NO_SUCH_OFFSET = 118
    """The log ends before it."""
    NO_SUCH_JOB = 119
    """It is not there, or no longer, or not for this client to see."""
    BAD_KIND = 120
    """No kind of work can be called so."""
