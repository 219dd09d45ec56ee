"""The folder of staged writes: files that wait until the broker appends them, limited in number, size and age.

    QUERY-BATCH-PARTITION-ATTEMPT.stage    blocks as in godwit.server.archive_pipe; QUERY is a hash of the query's name
    N.part                                 a stage that is being written

A stage is complete (written, synced, renamed) or does not exist. After a commit all stages of its batch are deleted,
including other attempts. A stage that is not committed in time expires.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from godwit.archive.requests import AbortRequest, BadRequestError, CommitRequest, StageRequest
from godwit.broker.topics import shown
from godwit.errors import DiskError
from godwit.limits import MIB
from godwit.store.atomic_file import move_into_place

MAX_STAGE_BYTES: Final = 256 * MIB
MAX_COMMIT_BYTES: Final = 256 * MIB
"""Limit of a commit, which is one transaction that the broker holds in memory."""
MAX_STAGED_BYTES: Final = 1024 * MIB
MAX_STAGES: Final = 8192
STAGE_EXPIRY_S: Final = 3600.0

_STAGE: Final = ".stage"
_PART: Final = ".part"

assert MAX_STAGE_BYTES <= MAX_COMMIT_BYTES <= MAX_STAGED_BYTES


class StagesFullError(DiskError):
    """The limit of stages is reached until others are committed, aborted or expire."""


class Stages:
    """The stages of one folder, which no other process writes to. Its methods may be called by any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._next_part = 0
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.suffix == _PART:
                path.unlink(missing_ok=True)  # left by a killed process
            elif path.suffix == _STAGE:
                self._sizes[path.name] = path.stat().st_size

    def begin(self, request: StageRequest) -> StageFile:
        """Return a stage to write to, which exists only after its `finish`.

        Raise StagesFullError if the limit of stages is reached, DiskError if the file cannot be created.
        """
        with self._lock:
            if len(self._sizes) >= MAX_STAGES:
                raise StagesFullError(
                    f"{MAX_STAGES} stages wait to be committed: commit or abort some, or wait until they expire "
                    f"after {STAGE_EXPIRY_S:.0f} s"
                )
            part = f"{self._next_part}{_PART}"
            self._next_part += 1
            self._sizes[part] = 0
        name = _name(request.query, request.batch, request.partition, request.attempt)
        try:
            return StageFile(self, self._folder / part, self._folder / name)
        except OSError as error:
            self.delete([part])
            raise _disk_error("make", self._folder / part, error) from error

    def files_of(self, request: CommitRequest) -> list[str] | None:
        """Return the stages of a commit, in the order of partitions; None if one of them does not exist.

        Raise BadRequestError if they are too long for a commit.
        """
        parts = sorted(request.parts, key=lambda part: part.partition)
        names = [_name(request.query, request.batch, part.partition, part.attempt) for part in parts]
        with self._lock:
            if not self._sizes.keys() >= set(names):
                return None
            total_bytes = sum(self._sizes[name] for name in names)
            if total_bytes > MAX_COMMIT_BYTES:
                raise BadRequestError(
                    f"batch {request.batch} of {shown(request.query)} has {total_bytes} bytes: a commit takes at most "
                    f"{MAX_COMMIT_BYTES}; make smaller batches"
                )
            try:
                for name in names:
                    os.utime(self._folder / name)  # keeps it from expiring while the broker reads it
            except FileNotFoundError:  # deleted by another program
                return None
        return names

    def abort(self, request: AbortRequest) -> int:
        """Delete the stages of a batch, or some of them, and return their number."""
        if request.parts is None:
            prefix = _prefix(request.query, request.batch)
            with self._lock:
                names = [name for name in self._sizes if name.startswith(prefix)]
        else:
            names = [_name(request.query, request.batch, part.partition, part.attempt) for part in request.parts]
        return self.delete(names)

    def expire(self, now_s: float) -> int:
        """Delete stages that were not committed in time, and return their number. `now_s`: seconds since 1970."""
        old = []
        with self._lock:
            names = [name for name in self._sizes if name.endswith(_STAGE)]
        for name in names:
            with suppress(OSError):
                if (self._folder / name).stat().st_mtime < now_s - STAGE_EXPIRY_S:
                    old.append(name)
        return self.delete(old)

    def delete(self, names: Iterable[str]) -> int:
        """Delete these files, and return how many existed."""
        count = 0
        with self._lock:
            for name in names:
                if self._sizes.pop(name, None) is not None:
                    (self._folder / name).unlink(missing_ok=True)
                    count += 1
        return count

    def reserve(self, part: str, size_bytes: int) -> None:
        """Reserve space for a stage that is being written.

        Raise BadRequestError if the stage becomes too long, StagesFullError if all stages together do.
        """
        with self._lock:
            if self._sizes[part] + size_bytes > MAX_STAGE_BYTES:
                raise BadRequestError(f"a stage holds at most {MAX_STAGE_BYTES} bytes: use more partitions")
            if sum(self._sizes.values()) + size_bytes > MAX_STAGED_BYTES:
                raise StagesFullError(
                    f"the stages that wait to be committed would take more than {MAX_STAGED_BYTES} bytes: commit or "
                    f"abort some, or wait until they expire after {STAGE_EXPIRY_S:.0f} s"
                )
            self._sizes[part] += size_bytes

    def complete(self, part: Path, name: Path) -> None:
        """Give a written stage its name."""
        move_into_place(part, name)  # outside the lock: the sync may take seconds
        with self._lock:
            self._sizes[name.name] = self._sizes.pop(part.name)


class StageFile:
    """A stage that is being written. It is deleted at the end of its `with` block unless it was finished."""

    def __init__(self, stages: Stages, part: Path, name: Path) -> None:
        self._stages = stages
        self._part = part
        self._name = name
        self._file = part.open("xb")

    def write(self, data: bytes) -> None:
        """Append data."""
        self._stages.reserve(self._part.name, len(data))
        try:
            self._file.write(data)
        except OSError as error:
            raise _disk_error("write", self._part, error) from error

    def finish(self) -> None:
        """Complete the stage: it is on disk under its name when this returns."""
        try:
            self._file.close()
            self._stages.complete(self._part, self._name)
        except OSError as error:
            raise _disk_error("keep", self._part, error) from error

    def __enter__(self) -> StageFile:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # buffered data is discarded
            self._file.close()
        self._stages.delete([self._part.name])


def _prefix(query: str, batch: int) -> str:
    return f"{hashlib.sha256(query.encode()).hexdigest()[:32]}-{batch}-"


def _name(query: str, batch: int, partition: int, attempt: int) -> str:
    return f"{_prefix(query, batch)}{partition}-{attempt}{_STAGE}"


def _disk_error(what: str, path: Path, error: OSError) -> DiskError:
    return DiskError(f"cannot {what} the stage {path} ({error.strerror or error}): free space, or check its folder")
