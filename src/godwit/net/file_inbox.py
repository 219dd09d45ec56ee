"""The folder for received files: chunks are written to hidden part files, which get their names when they are complete.

Headers from the network are not trusted: disk space is used only for bytes that arrived, names are made safe, no file
is overwritten, and the number of part files is limited (the one that was idle for longest is deleted). Files and parts
together can be limited too. All methods block.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from godwit.client.files import PART_PATTERN, FileHeader, numbered, part_name, safe_name, unseen
from godwit.errors import FileTransferError
from godwit.limits import KIB, MIB
from godwit.store.atomic_file import move_into_place

MAX_PARTS: Final = 256
"""Maximum of incomplete files in a folder. One more, and the one that was idle for longest is deleted."""
FILE_COST_BYTES: Final = 4 * KIB
"""Counted for each file beside its content, so that a limit in bytes also limits the number of small files."""
_MAX_NUMBER: Final = 100_000
_READ_BYTES: Final = 1 * MIB
_NO_LINKS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


class ReceivedFile(msgspec.Struct, frozen=True):
    """A file that arrived completely, with a correct hash."""

    path: Path
    """Where it is."""
    name: str
    """The name that the sender gave it; `path.name` is a safe form of it."""
    topic: str
    publisher: str
    """The name of the client that sent it."""
    size_bytes: int
    sha256: bytes


class PartialFile(msgspec.Struct, frozen=True):
    """More of a file has arrived, but not all of it."""

    name: str
    done_bytes: int
    size_bytes: int


class FileProblem(msgspec.Struct, frozen=True):
    """A file cannot be received: the reason, and what to do."""

    text: str


ChunkOutcome: TypeAlias = ReceivedFile | PartialFile | FileProblem | None


class _PartFile:
    """The beginning of a file that has arrived so far, and its hash."""

    __slots__ = ("digest", "have_bytes", "path", "size_bytes")

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.have_bytes = 0
        self.digest: Any = hashlib.sha256()

    def load(self) -> None:
        """Load a part file of an earlier run, if it can be the beginning of this file; else delete it."""
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISREG(found.st_mode) or found.st_size > self.size_bytes:
            self.path.unlink()
            return
        with _open(self.path, os.O_RDONLY) as file:
            while data := file.read(_READ_BYTES):
                self.digest.update(data)
                self.have_bytes += len(data)

    def append(self, data: bytes) -> None:
        # Opened for each chunk, so that parts need no open files. Created only for the first chunk: if the part was
        # deleted meanwhile, a new one would have a hole in place of the first bytes.
        with _open(self.path, os.O_RDWR | (os.O_CREAT if self.have_bytes == 0 else 0)) as file:
            if file.seek(0, os.SEEK_END) < self.have_bytes:
                raise FileNotFoundError(f"{self.path} was cut")
            file.seek(self.have_bytes)
            view = memoryview(data)
            while view:
                view = view[file.write(view) or 0 :]
        self.digest.update(data)
        self.have_bytes += len(data)

    def complete(self, name: str) -> Path:
        """Rename the complete file to `name`, or to the next numbered name that is free."""
        with _open(self.path, os.O_RDWR) as file:
            file.truncate(self.size_bytes)  # an earlier run may have left more bytes
        for number in range(_MAX_NUMBER):
            target = self.path.with_name(numbered(name, number))
            if os.path.lexists(target):  # also a broken link
                continue
            try:
                move_into_place(self.path, target, is_new=True)
            except FileExistsError:  # another process was faster
                continue
            return target
        raise FileTransferError(f"{_MAX_NUMBER:,} files in {self.path.parent} are called like {name}: remove some")


class FileInbox:
    """The folder for received files. Its methods may be called from any thread; a lock serialises them."""

    def __init__(
        self,
        folder: Path,
        *,
        max_parts: int = MAX_PARTS,
        max_file_bytes: int | None = None,
        max_total_bytes: int | None = None,
    ) -> None:
        """Create the folder if needed, and find the part files in it.

        Args:
            folder: Where to write files.
            max_parts: Maximum of incomplete files.
            max_file_bytes: Maximum size of a file.
            max_total_bytes: Limits the parts, and the files received from now on that are still in the folder.

        Raises:
            FileTransferError: The folder cannot be used.
        """
        self.folder = folder
        self._max_total_bytes = max_total_bytes
        self._used_bytes = 0
        """Upper bound of `_count()`, which is called less often than this changes."""
        self._received: dict[Path, int] = {}
        """The cost of each received file, if `max_total_bytes` is given."""
        self._max_parts = max_parts
        self._max_file_bytes = max_file_bytes
        self._parts: OrderedDict[str, _PartFile | None] = OrderedDict()
        """The one that was idle for longest first; None for a part file of an earlier run that is not loaded yet."""
        self._reported: OrderedDict[str, None] = OrderedDict()
        """Files whose problem was reported."""
        self._lock = threading.Lock()
        with _translate_errors(folder, "use the folder"):
            folder.mkdir(parents=True, exist_ok=True)
            left = sorted(folder.glob(PART_PATTERN), key=lambda path: path.lstat().st_mtime)
        for path in left:
            self._parts[path.name] = None
        self._used_bytes = self._count()

    @property
    def parts(self) -> int:
        """The number of incomplete files."""
        return len(self._parts)

    def add(self, topic: str, publisher: str, header: FileHeader, chunk: bytes) -> ChunkOutcome:
        """Write a chunk of a file. Return None if it contained nothing new.

        Raises:
            FileTransferError: The folder cannot be written, or the limit for all files is reached.
        """
        with self._lock, _translate_errors(self.folder, f"keep {safe_name(header.name)} in"):
            return self._add(topic, publisher, header, chunk)

    def _add(self, topic: str, publisher: str, header: FileHeader, chunk: bytes) -> ChunkOutcome:
        key = part_name(topic, header.id, header.size)
        name = safe_name(header.name)
        if self._max_file_bytes is not None and header.size > self._max_file_bytes:
            return self._report(
                key,
                f"{name} is not received: it has {header.size:,} bytes, and at most {self._max_file_bytes:,} are "
                "allowed for a file; raise the limit and have it sent again",
            )
        part = self._part(key, header)
        new = unseen(part.have_bytes, header.at, chunk)
        if new is None:
            if part.have_bytes == 0:
                del self._parts[key]
            return self._report(
                key, f"{name}: bytes {part.have_bytes:,} to {header.at:,} are missing; it must be sent again"
            )
        try:
            if new or part.have_bytes == 0:
                self._reserve(key, part, name, len(new))
                part.append(new)
        except FileNotFoundError:
            del self._parts[key]
            if part.have_bytes == 0:  # then the folder itself is missing
                raise
            return FileProblem(f"{name}: its part was removed from {self.folder}; it must be sent again")
        self._parts.move_to_end(key)
        if part.have_bytes < part.size_bytes:
            return self._limit_parts() or (PartialFile(name, part.have_bytes, part.size_bytes) if new else None)
        del self._parts[key]
        self._reported.pop(key, None)
        if part.digest.digest() != header.sha256:
            part.path.unlink(missing_ok=True)
            return FileProblem(f"{name} arrived damaged: its SHA-256 differs from the sender's; send it again")
        path = part.complete(name)
        if self._max_total_bytes is not None:
            self._received[path] = FILE_COST_BYTES + header.size
        return ReceivedFile(path, header.name, topic, publisher, header.size, header.sha256)

    def _part(self, key: str, header: FileHeader) -> _PartFile:
        part = self._parts.get(key)
        if part is None:
            part = _PartFile(self.folder / key, header.size)
            if key in self._parts:
                part.load()
            self._parts[key] = part
        return part

    def _reserve(self, key: str, part: _PartFile, name: str, size_bytes: int) -> None:
        """Account for bytes to be written. Raise FileTransferError if they exceed the limit for all files."""
        if self._max_total_bytes is None:
            return
        if part.have_bytes == 0:
            size_bytes += FILE_COST_BYTES
        if self._used_bytes + size_bytes > self._max_total_bytes:
            if part.have_bytes == 0:
                del self._parts[key]
            self._used_bytes = self._count()  # files may have been moved away, and parts deleted
            if self._used_bytes + size_bytes > self._max_total_bytes:
                raise FileTransferError(
                    f"cannot keep {name} in {self.folder}: received files and parts there would exceed the limit of "
                    f"{self._max_total_bytes:,} bytes in total; move files away or raise the limit, and start again: "
                    "the transfer resumes where it stopped"
                )
            self._parts[key] = part
        self._used_bytes += size_bytes

    def _count(self) -> int:
        """Return the cost of all parts, and of the received files that are still in the folder."""
        if self._max_total_bytes is None:
            return 0
        self._received = {path: cost for path, cost in self._received.items() if path.exists()}
        parts = 0
        for name in self._parts:
            try:
                parts += FILE_COST_BYTES + (self.folder / name).lstat().st_size
            except FileNotFoundError:
                continue
        return parts + sum(self._received.values())

    def _limit_parts(self) -> FileProblem | None:
        if len(self._parts) <= self._max_parts:
            return None
        key, _ = self._parts.popitem(last=False)
        (self.folder / key).unlink(missing_ok=True)
        return FileProblem(f"more than {self._max_parts} files are not complete: the longest idle one was deleted")

    def _report(self, key: str, text: str) -> FileProblem | None:
        """Return a problem once for each file, not for each of its chunks."""
        if key in self._reported:
            return None
        self._reported[key] = None
        if len(self._reported) > self._max_parts:
            self._reported.popitem(last=False)
        return FileProblem(text)


def _open(path: Path, flags: int) -> FileIO:
    """Open a file without buffering. Symbolic links are not followed."""
    return FileIO(os.open(path, flags | _NO_LINKS, 0o666), "rb" if flags == os.O_RDONLY else "r+b")


@contextmanager
def _translate_errors(folder: Path, what: str) -> Iterator[None]:
    """Raise errors of the system as FileTransferError."""
    try:
        yield
    except OSError as error:
        raise FileTransferError(
            f"cannot {what} {folder}: {error.strerror or error}; correct that and start again, "
            "the transfer resumes where it stopped"
        ) from error
