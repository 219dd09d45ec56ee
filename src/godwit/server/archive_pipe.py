"""The messages between the broker and its archive process, over the pipes that the archive was started with.

    archive -> broker   standard output   Ready once, LogLine, Commit; CallCounts, at most once a second
    broker -> archive   standard input    CommitDone for each Commit, CommitRole; end of file: the broker has ended

A message is its length (u32, big endian) and a JSON object with the field `kind`. Staged messages are not sent here: a
Commit names files in the folder of stages. Such a file is a sequence of blocks (godwit.store.block, offsets counted
from 0), each behind its length (u32, big endian). The archive removes them when the answer has come.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypeAlias

import msgspec

from godwit.broker.access import TokenRights
from godwit.errors import DecodeError
from godwit.limits import MIB

MAX_PIPE_MESSAGE_BYTES: Final = 8 * MIB
"""A commit names one file per partition."""
MAX_COMMIT_BATCHES: Final = 100_000
"""Of all files of a commit: the broker appends them in one turn, in which it does nothing else."""
_LENGTH: Final = struct.Struct(">I")


# -- archive -> broker ------------------------------------------------------------------------------------------------


class Ready(msgspec.Struct, frozen=True, tag_field="kind", tag="ready"):
    """The archive accepts connections."""

    url: str


class Commit(msgspec.Struct, frozen=True, tag_field="kind", tag="commit"):
    """Append the messages of these files, in this order, once for this batch of the query."""

    key: int
    """Repeated in the answer; each Commit of an archive process has its own."""
    query: str
    batch: int
    files: list[str]
    """Names in the folder of stages."""
    rights: TokenRights = TokenRights()
    """Of the token with which the client requested it."""


class LogLine(msgspec.Struct, frozen=True, tag_field="kind", tag="log"):
    """An event for the operators of the broker."""

    level: Literal["info", "warning"]
    text: str


class CallCounts(msgspec.Struct, frozen=True, tag_field="kind", tag="calls"):
    """How many calls clients have made since the archive was started."""

    calls: dict[str, int]
    """By method."""
    failed: dict[str, int]
    """Those of them that ended with an error, by method."""
    active: int
    """Streams and uploads under way."""


FromArchive: TypeAlias = Ready | Commit | LogLine | CallCounts

# -- broker -> archive ------------------------------------------------------------------------------------------------


class CommitDone(msgspec.Struct, frozen=True, tag_field="kind", tag="committed"):
    """The answer to the Commit with this key."""

    key: int
    problem: str = ""
    """Why nothing was appended; empty if there was no problem."""
    was_known: bool = False
    """This batch of the query, or a later one, had been committed before: nothing was appended now."""
    first_offset: int = 0
    count: int = 0


class CommitRole(msgspec.Struct, frozen=True, tag_field="kind", tag="role"):
    """Whether this broker accepts commits. Until the first of these messages it does."""

    is_accepting: bool


FromBroker: TypeAlias = CommitDone | CommitRole

# -- bytes ------------------------------------------------------------------------------------------------------------

_encode: Final = msgspec.json.Encoder().encode
_decode_from_archive: Final = msgspec.json.Decoder(FromArchive).decode
_decode_from_broker: Final = msgspec.json.Decoder(FromBroker).decode


def encode_message(message: FromArchive | FromBroker) -> bytes:
    """Return a message with its length in front."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class PipeReader:
    """Splits the bytes that come out of a pipe into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the bodies of all messages that are complete now. Raises DecodeError for an invalid length."""
        self._data += data
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            if length > MAX_PIPE_MESSAGE_BYTES:
                raise DecodeError("oversize", f"a message of {length} bytes on the pipe between broker and archive")
            end = _LENGTH.size + length
            if len(self._data) < end:
                return
            body = bytes(self._data[_LENGTH.size : end])
            del self._data[:end]
            yield body


def decode_from_archive(body: bytes) -> FromArchive:
    """Return a message of the archive. Raises DecodeError if it is malformed."""
    try:
        message: FromArchive = _decode_from_archive(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError("malformed", f"on the pipe from the archive: {error}") from error
    return message


def decode_from_broker(body: bytes) -> FromBroker:
    """Return a message of the broker. Raises DecodeError if it is malformed."""
    try:
        message: FromBroker = _decode_from_broker(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError("malformed", f"on the pipe from the broker: {error}") from error
    return message


# -- files of stages --------------------------------------------------------------------------------------------------


def join_blocks(bodies: Iterable[bytes]) -> bytes:
    """Return the contents of a stage's file, or a part of it: parts may be written one after the other."""
    return b"".join([part for body in bodies for part in (_LENGTH.pack(len(body)), body)])


def split_blocks(data: bytes) -> Iterator[bytes]:
    """Yield the blocks of a whole file. Raises DecodeError if it ends in the middle of one."""
    start = 0
    while start < len(data):
        body_at = start + _LENGTH.size
        if body_at > len(data):
            raise DecodeError("truncated", "the stage ends inside a block's length")
        (length,) = _LENGTH.unpack_from(data, start)
        start = body_at + length
        if start > len(data):
            raise DecodeError("truncated", f"the stage ends inside a block of {length} bytes")
        yield data[body_at:start]
