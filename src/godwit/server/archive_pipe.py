"""What the broker and its archive process say to each other, over the pipes that the archive was started with.

    archive -> broker   standard output   Ready once, LogLine, Commit
    broker -> archive   standard input    CommitDone for each Commit; its end says that the broker is gone

A message is its length (u32, big endian) and a JSON object whose `kind` says which it is. Staged messages do not travel
here: a Commit names files in the folder of stages. Such a file is a sequence of blocks (godwit.store.block, offsets
counted from 0), each behind its length (u32, big endian). Whoever staged them removes them, when the answer has come.
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
"""A commit names one file a partition."""
MAX_COMMIT_BATCHES: Final = 100_000
"""Of all files of a commit: the broker takes them in one turn, in which it does nothing else."""
_LENGTH: Final = struct.Struct(">I")


# -- archive -> broker ------------------------------------------------------------------------------------------------


class Ready(msgspec.Struct, frozen=True, tag_field="kind", tag="ready"):
    """The archive listens."""

    url: str


class Commit(msgspec.Struct, frozen=True, tag_field="kind", tag="commit"):
    """Append what these files hold, in this order, once for this batch of the query."""

    key: int
    """For the answer; each Commit of an archive process has its own."""
    query: str
    batch: int
    files: list[str]
    """Names in the folder of stages."""
    rights: TokenRights = TokenRights()
    """Of the token of the client that asked for it."""


class LogLine(msgspec.Struct, frozen=True, tag_field="kind", tag="log"):
    """Something that the people who run the broker may want to read."""

    level: Literal["info", "warning"]
    text: str


FromArchive: TypeAlias = Ready | Commit | LogLine

# -- broker -> archive ------------------------------------------------------------------------------------------------


class CommitDone(msgspec.Struct, frozen=True, tag_field="kind", tag="committed"):
    """The answer to the Commit with this key."""

    key: int
    problem: str = ""
    """Why it was not done, or nothing."""
    was_known: bool = False
    """This batch of the query, or a later one, had been committed before: nothing was appended now."""
    first_offset: int = 0
    count: int = 0


FromBroker: TypeAlias = CommitDone

# -- bytes ------------------------------------------------------------------------------------------------------------

_encode: Final = msgspec.json.Encoder().encode
_decode_from_archive: Final = msgspec.json.Decoder(FromArchive).decode
_decode_from_broker: Final = msgspec.json.Decoder(FromBroker).decode


def encode_message(message: FromArchive | FromBroker) -> bytes:
    """With its length in front."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class PipeReader:
    """Makes messages of the bytes that come out of a pipe, however they are cut."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies of all messages that are complete now. DecodeError: what follows is something else."""
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
    """DecodeError if it is none of the archive's messages."""
    try:
        message: FromArchive = _decode_from_archive(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError("malformed", f"on the pipe from the archive: {error}") from error
    return message


def decode_from_broker(body: bytes) -> FromBroker:
    """DecodeError if it is none of the broker's messages."""
    try:
        return _decode_from_broker(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError("malformed", f"on the pipe from the broker: {error}") from error


# -- files of stages --------------------------------------------------------------------------------------------------


def join_blocks(bodies: Iterable[bytes]) -> bytes:
    """A stage's file, or a piece of it: pieces may be written one after the other."""
    return b"".join([part for body in bodies for part in (_LENGTH.pack(len(body)), body)])


def split_blocks(data: bytes) -> Iterator[bytes]:
    """The blocks of a whole file. DecodeError if it ends in the middle of one."""
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
