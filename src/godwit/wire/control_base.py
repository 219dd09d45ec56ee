"""What all control messages share: their base, and the types of their fields with the bounds of each."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from godwit.errors import Code as Code  # noqa: PLC0414 - exported: codes are fields of control messages
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
