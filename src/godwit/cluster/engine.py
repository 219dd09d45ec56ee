"""The port of a node towards the engine that stores the replicated log: requests, and what the engine reports.

The engine is a list of records with positions 1, 2, 3, ... on the disks of a majority of its servers. Its adapter
carries out requests in its own time. Any request or report may be late, doubled or lost; a node repeats its requests.
The adapter must keep three promises:

    Stored and RecordFound are facts    the record is at that position on the disks of a majority, and stays there
    AppendRefused is not a fact         the record may be stored, may be stored later, or never
    AppendRequest is conditional        where the engine can do that, a record is stored only directly behind `after`.
                                        A node does not depend on it; without it, more records are void

An adapter raises EngineUnavailableError at its start while the engine does not answer, and ConfigurationError if it
cannot keep these promises.

Members of a cluster also send each other short messages (Beat), which are not stored and may be lost.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from godwit.errors import GodwitError


class EngineUnavailableError(GodwitError):
    """The engine does not answer at present: try again."""


class AppendRequest(msgspec.Struct, frozen=True):
    """Store a record behind this position. Answered by Stored or AppendRefused."""

    after: int
    data: bytes


class RecordRequest(msgspec.Struct, frozen=True):
    """Read one record, from a server that knows all stored ones. Answered by RecordFound or Missing."""

    position: int


class InfoRequest(msgspec.Struct, frozen=True):
    """Answered by StreamInfo."""


class FollowRequest(msgspec.Struct, frozen=True):
    """Report all records behind a position as RecordFound, in order, until further notice; None: no longer."""

    after: int | None


class TrimRequest(msgspec.Struct, frozen=True):
    """Delete the records below a position."""

    below: int


class BeatRequest(msgspec.Struct, frozen=True):
    """Send this message to all members."""

    data: bytes


EngineRequest: TypeAlias = AppendRequest | RecordRequest | InfoRequest | FollowRequest | TrimRequest | BeatRequest


class Stored(msgspec.Struct, frozen=True):
    """A record of this node is stored at this position."""

    position: int
    data: bytes


class AppendRefused(msgspec.Struct, frozen=True):
    """It is not known whether a record is or will be stored."""

    text: str = ""


class RecordFound(msgspec.Struct, frozen=True):
    """The record at a position."""

    position: int
    data: bytes


class Missing(msgspec.Struct, frozen=True):
    """A position without a record, according to one server, which may be behind."""

    position: int
    first: int
    """The lowest position that is not deleted."""
    last: int
    """The highest position."""


class StreamInfo(msgspec.Struct, frozen=True):
    """How far the records reach, according to one server, which may be behind."""

    first: int
    last: int
    size_bytes: int = 0


class Beat(msgspec.Struct, frozen=True):
    """A message of a member, perhaps of this node itself."""

    data: bytes


class Unsuitable(msgspec.Struct, frozen=True):
    """A server of the engine cannot keep the promises above, which was not known at the start: the node stops."""

    text: str


EngineReport: TypeAlias = Stored | AppendRefused | RecordFound | Missing | StreamInfo | Beat | Unsuitable
