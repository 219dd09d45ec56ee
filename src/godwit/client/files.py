"""Files as messages, sans-IO: the header of a chunk, which chunks to send, which bytes of one are new, safe names.

A file is a run of QoS 2 messages on a topic, each a batch of its own. The payload is a chunk, the batch's extension a
CBOR map with the header of the file and the chunk's place in it. Chunks are numbered by the publisher's sequence and a
run by its epoch, so the broker recognises what is sent again and knows how far a broken run got.

A receiver keeps what it has from the beginning on; the length of that is all it has to know after a break.
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

CHUNK_BYTES: Final = 256 * KIB
MAX_HEADER_BYTES: Final = 4 * KIB
"""Of the extension: a longer one is not even looked at."""
MAX_WIRE_NAME_BYTES: Final = 1024
MAX_NAME_BYTES: Final = 200
"""Of a name that is written to: file systems take 255, and a number may have to go in."""
MAX_SUFFIX_BYTES: Final = 24
FALLBACK_NAME: Final = "file"
PART_PATTERN: Final = ".godwit-*.part"
"""The names of files that are not complete."""

_ID_BYTES: Final = 16
_FORBIDDEN: Final = frozenset('<>:"|?*')
"""What some file systems do not take, or take for something else."""
_DEVICES: Final = frozenset({"con", "prn", "aux", "nul", *(f"{kind}{n}" for kind in ("com", "lpt") for n in range(10))})


class FileHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What every chunk says of its file."""

    id: Annotated[bytes, msgspec.Meta(min_length=_ID_BYTES, max_length=_ID_BYTES)]
    """Made from content, name and topic: the same file sent again has the same one."""
    run: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    """Which sending of it this is."""
    name: Annotated[str, msgspec.Meta(max_length=MAX_WIRE_NAME_BYTES)]
    size: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    at: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    """Where in the file this chunk begins."""
    sha256: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class _Extension(msgspec.Struct, frozen=True):
    file: FileHeader | None = None


class Run(msgspec.Struct, frozen=True):
    """Which chunks to send, and under which epoch."""

    epoch: int
    first_chunk: int
    chunks: int

    @property
    def first_byte(self) -> int:
        return self.first_chunk * CHUNK_BYTES


# -- the sender -------------------------------------------------------------------------------------------------------


def file_id(sha256: bytes, name: str, topic: str) -> bytes:
    return hashlib.sha256(sha256 + name.encode() + topic.encode()).digest()[:_ID_BYTES]


def publisher_of(id_: bytes) -> str:
    """The publisher's identity of a file."""
    return f"file-{id_.hex()}"


def wire_name(name: str) -> str:
    """A file's name as it travels: always UTF-8, of bounded length. The end is kept, because the suffix is there."""
    encoded = name.encode("utf-8", "replace")
    return encoded[-MAX_WIRE_NAME_BYTES:].decode("utf-8", "ignore")


def chunk_count(size_bytes: int) -> int:
    """An empty file is one empty chunk."""
    return max(1, -(-size_bytes // CHUNK_BYTES))


def plan(size_bytes: int, known_epoch: int, known_next: int) -> Run:
    """What to send, from what the broker knows of this file (epoch 0: nothing)."""
    chunks = chunk_count(size_bytes)
    if known_epoch and known_next < chunks:
        return Run(known_epoch, known_next, chunks)  # it broke off there
    return Run(known_epoch + 1, 0, chunks)


def encode_header(header: FileHeader) -> bytes:
    """The extension of a chunk's batch."""
    return cbor.encode(_Extension(header))


# -- the receiver -----------------------------------------------------------------------------------------------------


def decode_header(extension: bytes | None, topic: str, chunk_bytes: int) -> FileHeader | None:
    """The header of a chunk; None for a message that is no part of a file; DecodeError for one that cannot be."""
    if extension is None:
        return None
    if len(extension) > MAX_HEADER_BYTES:
        raise DecodeError("file", f"an extension of {len(extension)} bytes, at most {MAX_HEADER_BYTES}")
    header = cbor.decode(extension, _Extension).file
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
    """What of a chunk comes right behind the bytes that are there already; None if something is missing between."""
    if at > have_bytes:
        return None
    return chunk[have_bytes - at :] if at < have_bytes else chunk


def part_name(topic: str, id_: bytes, size: int) -> str:
    """Where a file that is not complete yet is kept: hidden, the same whoever sends the rest of it.

    The size is part of it, so that nobody spoils another's file by a false one.
    """
    return PART_PATTERN.replace("*", hashlib.sha256(id_ + size.to_bytes(8, "big") + topic.encode()).hexdigest()[:32])


def safe_name(name: str) -> str:
    """A name from the network reduced to a plain base name that stays in its folder on any system."""
    base = name.replace("\\", "/").rpartition("/")[2]
    base = unicodedata.normalize("NFC", base)
    # Category C: control characters, lone surrogates, and the invisible ones that turn the reading direction.
    base = "".join(
        "_" if character in _FORBIDDEN else character for character in base if unicodedata.category(character)[0] != "C"
    )
    base = base.lstrip(". ").rstrip(". ")
    if base.partition(".")[0].rstrip().lower() in _DEVICES:
        base = f"_{base}"
    return _shorten(base, MAX_NAME_BYTES) or FALLBACK_NAME


def numbered(name: str, number: int) -> str:
    """`report.pdf`, `report (1).pdf`, `report (2).pdf`: what to try when a name is taken."""
    if number == 0:
        return name
    path = PurePosixPath(name)
    return f"{path.stem} ({number}){path.suffix}"


def _shorten(name: str, max_bytes: int) -> str:
    """Cut in the middle of the name, so that the suffix stays if it is a reasonable one."""
    if len(name.encode()) <= max_bytes:
        return name
    suffix = PurePosixPath(name).suffix
    if len(suffix.encode()) > MAX_SUFFIX_BYTES:
        suffix = ""
    stem = name.removesuffix(suffix).encode()[: max_bytes - len(suffix.encode())].decode("utf-8", "ignore")
    return f"{stem.rstrip('. ')}{suffix}"
