"""Files as messages, sans-IO: headers of chunks, the chunks to send, the new bytes of a chunk, safe names.

A file is a run of QoS 2 messages on a topic, each a batch of its own. The payload is a chunk, and the batch's extension
is a CBOR map with the header of the file and the position of the chunk. Chunks are numbered by the publisher's sequence
and runs by its epoch, so the broker recognises repeated chunks and knows how far an interrupted run came.

A receiver stores the beginning of the file; after an interruption, its length is all the receiver needs to know.
"""

from __future__ import annotations

import hashlib
import unicodedata
from pathlib import PurePosixPath
from typing import Annotated, Final

import msgspec

from godwit.errors import DecodeError
from godwit.limits import KIB
from godwit.wire import cbor
from godwit.wire.extension import ExtensionKey, decode_field

CHUNK_BYTES: Final = 256 * KIB
MAX_WIRE_NAME_BYTES: Final = 1024
MAX_NAME_BYTES: Final = 200
"""Limit for the name of a received file: file systems allow 255, and a number may have to be inserted."""
MAX_SUFFIX_BYTES: Final = 24
FALLBACK_NAME: Final = "file"
PART_PATTERN: Final = ".godwit-*.part"
"""Pattern of the names of incomplete files."""

_ID_BYTES: Final = 16
_FORBIDDEN: Final = frozenset('<>:"|?*')
"""Characters that some file systems refuse or give a special meaning."""
_DEVICES: Final = frozenset({"con", "prn", "aux", "nul", *(f"{kind}{n}" for kind in ("com", "lpt") for n in range(10))})


class FileHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a chunk: its file, and its position in it."""

    id: Annotated[bytes, msgspec.Meta(min_length=_ID_BYTES, max_length=_ID_BYTES)]
    """Made from content, name and topic: the same file sent again has the same id."""
    run: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    """The number of this transfer of the file, from 1."""
    name: Annotated[str, msgspec.Meta(max_length=MAX_WIRE_NAME_BYTES)]
    size: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    at: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    """The position of the chunk's first byte in the file."""
    sha256: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class _Extension(msgspec.Struct, frozen=True):
    file: FileHeader


class ChunkRange(msgspec.Struct, frozen=True):
    """The chunks to send, and the publisher's epoch."""

    epoch: int
    first_chunk: int
    chunks: int

    @property
    def first_byte(self) -> int:
        """The position of the first chunk in the file."""
        return self.first_chunk * CHUNK_BYTES


# -- the sender -------------------------------------------------------------------------------------------------------


def file_id(sha256: bytes, name: str, topic: str) -> bytes:
    """Return the id of a file with this hash and name on this topic."""
    return hashlib.sha256(sha256 + name.encode() + topic.encode()).digest()[:_ID_BYTES]


def publisher_of(id_: bytes) -> str:
    """Return the publisher's identity for a file."""
    return f"file-{id_.hex()}"


def wire_name(name: str) -> str:
    """Return a file's name as UTF-8 of bounded length. A long name loses its beginning, so that the suffix remains."""
    encoded = name.encode("utf-8", "replace")
    return encoded[-MAX_WIRE_NAME_BYTES:].decode("utf-8", "ignore")


def chunk_count(size_bytes: int) -> int:
    """Return the number of chunks of a file; an empty file has one empty chunk."""
    return max(1, -(-size_bytes // CHUNK_BYTES))


def plan(size_bytes: int, known_epoch: int, known_next: int) -> ChunkRange:
    """Return the chunks to send.

    Args:
        size_bytes: the size of the file.
        known_epoch: the epoch of the last run that the broker knows of this file; 0 if there is none.
        known_next: the first chunk of that run that the broker does not have.
    """
    chunks = chunk_count(size_bytes)
    if known_epoch and known_next < chunks:
        return ChunkRange(known_epoch, known_next, chunks)  # resume the interrupted run
    return ChunkRange(known_epoch + 1, 0, chunks)


def encode_header(header: FileHeader) -> bytes:
    """Return the extension of a chunk's batch, with the name that receivers of version 0.5 read in place of the key."""
    return cbor.encode(_Extension(header))


# -- the receiver -----------------------------------------------------------------------------------------------------


def decode_header(extension: bytes | None, topic: str, chunk_bytes: int) -> FileHeader | None:
    """Return the header of a chunk, or None for a message that is not part of a file.

    Raises DecodeError for a header that is invalid or contradicts itself, the topic or the length of the chunk.
    """
    header = decode_field(extension, ExtensionKey.FILE, FileHeader)
    if header is None:
        return None
    if header.id != file_id(header.sha256, header.name, topic):
        raise DecodeError("file", "its id does not follow from its hash, name and topic")
    if header.at + chunk_bytes > header.size:
        raise DecodeError("file", f"a chunk that ends at {header.at + chunk_bytes} of {header.size} bytes")
    if chunk_bytes == 0 and header.size > 0:
        raise DecodeError("file", "an empty chunk of a file that is not empty")
    return header


def unseen(have_bytes: int, at: int, chunk: bytes) -> bytes | None:
    """Return the bytes of a chunk that follow the first `have_bytes` of the file, or None if bytes between are missing.

    `at` is the position of the chunk in the file.
    """
    if at > have_bytes:
        return None
    return chunk[have_bytes - at :] if at < have_bytes else chunk


def part_name(topic: str, id_: bytes, size: int) -> str:
    """Return the hidden name of an incomplete file. It does not depend on the publisher, which may change.

    It depends on the size, so that a chunk with a false size cannot damage another publisher's file.
    """
    return PART_PATTERN.replace("*", hashlib.sha256(id_ + size.to_bytes(8, "big") + topic.encode()).hexdigest()[:32])


def safe_name(name: str) -> str:
    """Return a name from the network as a base name that is valid on any system and cannot leave its folder."""
    base = name.replace("\\", "/").rpartition("/")[2]
    base = unicodedata.normalize("NFC", base)
    # Category C: control characters, lone surrogates, and invisible characters that change the reading direction.
    base = "".join(
        "_" if character in _FORBIDDEN else character for character in base if unicodedata.category(character)[0] != "C"
    )
    base = base.lstrip(". ").rstrip(". ")
    if base.partition(".")[0].rstrip().lower() in _DEVICES:
        base = f"_{base}"
    return _shorten(base, MAX_NAME_BYTES) or FALLBACK_NAME


def numbered(name: str, number: int) -> str:
    """Return the name to try if earlier ones exist: `report.pdf`, `report (1).pdf`, `report (2).pdf`."""
    if number == 0:
        return name
    path = PurePosixPath(name)
    return f"{path.stem} ({number}){path.suffix}"


def _shorten(name: str, max_bytes: int) -> str:
    """Shorten the stem of a name. The suffix remains, unless it is very long."""
    if len(name.encode()) <= max_bytes:
        return name
    suffix = PurePosixPath(name).suffix
    if len(suffix.encode()) > MAX_SUFFIX_BYTES:
        suffix = ""
    stem = name.removesuffix(suffix).encode()[: max_bytes - len(suffix.encode())].decode("utf-8", "ignore")
    return f"{stem.rstrip('. ')}{suffix}"
