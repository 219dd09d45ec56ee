"""The folder that files arrive in: chunks into hidden part files, complete ones under their names. Blocking.

Nothing here believes what the network says: a size is only claimed, and the bytes that came are what is kept; names are
made safe; nothing is overwritten; there are never more than so many parts, of which the longest idle one gives way.
Files and parts together are bounded by a limit if one is given.
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

MAX_PARTS: Final = 256
"""Files that are not complete, in one folder. The longest idle one beyond it is removed."""
FILE_COST_BYTES: Final = 4 * KIB
"""What a file counts beside its content, so that a limit in bytes also bounds the number of small files."""
_MAX_NUMBER: Final = 100_000
_READ_BYTES: Final = 1 * MIB
_NO_LINKS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


class ReceivedFile(msgspec.Struct, frozen=True):
    """A file that arrived whole: its hash is the one that its sender named."""

    path: Path
    name: str
    """As the sender calls it; the one it has here is `path.name`."""
    topic: str
    publisher: str
    size_bytes: int
    sha256: bytes


class Growing(msgspec.Struct, frozen=True):
    """A file that is not complete yet."""

    name: str
    done_bytes: int
    size_bytes: int


class Problem(msgspec.Struct, frozen=True):
    """A file that cannot be completed from what came."""

    text: str


Outcome: TypeAlias = ReceivedFile | Growing | Problem | None


class _Part:
    """What has arrived of one file: the bytes from its beginning on, and their hash so far."""

    __slots__ = ("digest", "have_bytes", "path", "size_bytes")

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.have_bytes = 0
        self.digest: Any = hashlib.sha256()

    def load(self) -> None:
        """Goes on with what an earlier program left, if it can be the beginning of this file."""
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
        # Opened for each chunk: any number of parts needs no open files. Made only at the beginning: if somebody
        # removed it meanwhile, a new one would have a hole where the first bytes were.
        with _open(self.path, os.O_RDWR | (os.O_CREAT if self.have_bytes == 0 else 0)) as file:
            if file.seek(0, os.SEEK_END) < self.have_bytes:
                raise FileNotFoundError(f"{self.path} was cut")
            file.seek(self.have_bytes)
            view = memoryview(data)
            while view:
                view = view[file.write(view) or 0 :]
        self.digest.update(data)
        self.have_bytes += len(data)

    def settle(self, name: str) -> Path:
        """Gives the whole file its name, or the next one that is free."""
        with _open(self.path, os.O_RDWR) as file:
            file.truncate(self.size_bytes)  # an earlier program may have left more than is known here
            os.fsync(file.fileno())
        for number in range(_MAX_NUMBER):
            target = self.path.with_name(numbered(name, number))
            try:
                _open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL).close()
            except FileExistsError:
                continue
            # The name is ours now, with an empty file that is replaced in one step.
            self.path.replace(target)
            return target
        raise FileTransferError(f"{_MAX_NUMBER:,} files in {self.path.parent} are called like {name}: remove some")


class Inbox:
    """One folder. Its methods may be called from any thread, one at a time goes ahead."""

    def __init__(
        self,
        folder: Path,
        *,
        max_parts: int = MAX_PARTS,
        max_file_bytes: int | None = None,
        max_total_bytes: int | None = None,
    ) -> None:
        """Create the folder if needed, and find the parts in it.

        `max_total_bytes` limits the parts and the files received from now on that are still in the folder.
        """
        self.folder = folder
        self._max_total_bytes = max_total_bytes
        self._used_bytes = 0
        """At least what `_count` would return; less often counted than changed."""
        self._received: dict[Path, int] = {}
        """The cost of each received file, if there is a limit for all."""
        self._max_parts = max_parts
        self._max_file_bytes = max_file_bytes
        self._parts: OrderedDict[str, _Part | None] = OrderedDict()  # the longest idle first; None: left by another run
        self._complained: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        with _kindly(folder, "use the folder"):
            folder.mkdir(parents=True, exist_ok=True)
            left = sorted(folder.glob(PART_PATTERN), key=lambda path: path.lstat().st_mtime)
        for path in left:
            self._parts[path.name] = None
        self._used_bytes = self._count()

    @property
    def parts(self) -> int:
        """How many files are not complete."""
        return len(self._parts)

    def take(self, topic: str, publisher: str, header: FileHeader, chunk: bytes) -> Outcome:
        """Keeps a chunk. None: it told nothing new."""
        with self._lock, _kindly(self.folder, f"keep {safe_name(header.name)} in"):
            return self._take(topic, publisher, header, chunk)

    def _take(self, topic: str, publisher: str, header: FileHeader, chunk: bytes) -> Outcome:
        key = part_name(topic, header.id, header.size)
        name = safe_name(header.name)
        if self._max_file_bytes is not None and header.size > self._max_file_bytes:
            return self._complain(
                key,
                f"{name} is not received: it has {header.size:,} bytes, and at most {self._max_file_bytes:,} are "
                "allowed for a file; raise the limit and have it sent again",
            )
        part = self._part(key, header)
        new = unseen(part.have_bytes, header.at, chunk)
        if new is None:
            if part.have_bytes == 0:
                del self._parts[key]
            return self._complain(
                key, f"{name}: bytes {part.have_bytes:,} to {header.at:,} are missing; it must be sent again"
            )
        try:
            if new or part.have_bytes == 0:
                self._reserve(key, part, name, len(new))
                part.append(new)
        except FileNotFoundError:
            del self._parts[key]
            if part.have_bytes == 0:  # then it is the folder that is not there
                raise
            return Problem(f"{name}: its part was removed from {self.folder}; it must be sent again")
        self._parts.move_to_end(key)
        if part.have_bytes < part.size_bytes:
            return self._make_room() or (Growing(name, part.have_bytes, part.size_bytes) if new else None)
        del self._parts[key]
        self._complained.pop(key, None)
        if part.digest.digest() != header.sha256:
            part.path.unlink(missing_ok=True)
            return Problem(f"{name} arrived damaged: its SHA-256 is not the one that its sender named; send it again")
        path = part.settle(name)
        if self._max_total_bytes is not None:
            self._received[path] = FILE_COST_BYTES + header.size
        return ReceivedFile(path, header.name, topic, publisher, header.size, header.sha256)

    def _part(self, key: str, header: FileHeader) -> _Part:
        part = self._parts.get(key)
        if part is None:
            part = _Part(self.folder / key, header.size)
            if key in self._parts:
                part.load()
            self._parts[key] = part
        return part

    def _reserve(self, key: str, part: _Part, name: str, size_bytes: int) -> None:
        """Account for bytes to be written; FileTransferError if they exceed the limit for all files."""
        if self._max_total_bytes is None:
            return
        if part.have_bytes == 0:
            size_bytes += FILE_COST_BYTES
        if self._used_bytes + size_bytes > self._max_total_bytes:
            if part.have_bytes == 0:
                del self._parts[key]
            self._used_bytes = self._count()  # files may have been moved away, and parts given up
            if self._used_bytes + size_bytes > self._max_total_bytes:
                raise FileTransferError(
                    f"cannot keep {name} in {self.folder}: received files and parts there would exceed the limit of "
                    f"{self._max_total_bytes:,} bytes in total; move files away or raise the limit, and start again: "
                    "the transfer goes on where it stopped"
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

    def _make_room(self) -> Problem | None:
        if len(self._parts) <= self._max_parts:
            return None
        key, _ = self._parts.popitem(last=False)
        (self.folder / key).unlink(missing_ok=True)
        return Problem(f"more than {self._max_parts} files are not complete: the longest idle one was given up")

    def _complain(self, key: str, text: str) -> Problem | None:
        """Once for each file, not for each of its chunks."""
        if key in self._complained:
            return None
        self._complained[key] = None
        if len(self._complained) > self._max_parts:
            self._complained.popitem(last=False)
        return Problem(text)


def _open(path: Path, flags: int) -> FileIO:
    """Unbuffered; a link in the folder leads nowhere."""
    return FileIO(os.open(path, flags | _NO_LINKS, 0o666), "rb" if flags == os.O_RDONLY else "r+b")


@contextmanager
def _kindly(folder: Path, what: str) -> Iterator[None]:
    """Turns the system's errors into sentences."""
    try:
        yield
    except OSError as error:
        raise FileTransferError(
            f"cannot {what} {folder}: {error.strerror or error}; mend that and start again, "
            "the transfer goes on where it stopped"
        ) from error
