"""The folder of staged writes: files that nobody sees until the broker appends them, bounded in number, size and age.

    QUERY-BATCH-PARTITION-ATTEMPT.stage    blocks as in godwit.server.archive_pipe; QUERY is a hash of the query's name
    N.part                                 one that is being written

A stage is complete (written, synced, renamed) or not there. What a commit has named is removed when it is done, with
all other attempts of its batch; what none names in time expires.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from godwit.archive.requests import AbortRequest, BadRequestError, CommitRequest, StageRequest
from godwit.broker.topics import shown
from godwit.errors import DiskError
from godwit.limits import MIB

MAX_STAGE_BYTES: Final = 256 * MIB
MAX_COMMIT_BYTES: Final = 256 * MIB
"""One commit is one transaction, which the broker holds in memory."""
MAX_STAGED_BYTES: Final = 1024 * MIB
MAX_STAGES: Final = 8192
STAGE_EXPIRY_S: Final = 3600.0

_STAGE: Final = ".stage"
_PART: Final = ".part"

assert MAX_STAGE_BYTES <= MAX_COMMIT_BYTES <= MAX_STAGED_BYTES


class StagesFullError(DiskError):
    """There is no room for more stages now; there will be when others are committed, aborted or expire."""


class Stages:
    """The stages of one folder, which no other process writes to. Any thread may use it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._next_part = 0
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.suffix == _PART:
                path.unlink(missing_ok=True)  # of a process that died over it
            elif path.suffix == _STAGE:
                self._sizes[path.name] = path.stat().st_size

    def begin(self, request: StageRequest) -> Stage:
        """A place to write one; it is there for good only after `finish`."""
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
            return Stage(self, self._folder / part, self._folder / name)
        except OSError as error:
            self.forget([part])
            raise _trouble("make", self._folder / part, error) from error

    def files_of(self, request: CommitRequest) -> list[str] | None:
        """The names that a commit is about, in the order of partitions; None if any of them is not there (any more)."""
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
                    os.utime(self._folder / name)  # it does not expire while the broker reads it
            except FileNotFoundError:  # somebody else has removed it
                return None
        return names

    def abort(self, request: AbortRequest) -> int:
        """Remove what was staged, all of the batch or these parts; gives how many there were."""
        if request.parts is None:
            prefix = _prefix(request.query, request.batch)
            with self._lock:
                names = [name for name in self._sizes if name.startswith(prefix)]
        else:
            names = [_name(request.query, request.batch, part.partition, part.attempt) for part in request.parts]
        return self.forget(names)

    def expire(self, now_s: float) -> int:
        """Remove those that nobody has named in time; gives how many. `now_s`: seconds since the epoch."""
        old = []
        with self._lock:
            names = [name for name in self._sizes if name.endswith(_STAGE)]
        for name in names:
            with suppress(OSError):
                if (self._folder / name).stat().st_mtime < now_s - STAGE_EXPIRY_S:
                    old.append(name)
        return self.forget(old)

    def forget(self, names: Iterable[str]) -> int:
        """Remove these files, where they are there."""
        count = 0
        with self._lock:
            for name in names:
                if self._sizes.pop(name, None) is not None:
                    (self._folder / name).unlink(missing_ok=True)
                    count += 1
        return count

    def take(self, part: str, size_bytes: int) -> None:
        """Room for more of a stage that is being written."""
        with self._lock:
            if self._sizes[part] + size_bytes > MAX_STAGE_BYTES:
                raise BadRequestError(f"a stage holds at most {MAX_STAGE_BYTES} bytes: use more partitions")
            if sum(self._sizes.values()) + size_bytes > MAX_STAGED_BYTES:
                raise StagesFullError(
                    f"the stages that wait to be committed would have more than {MAX_STAGED_BYTES} bytes: commit or "
                    f"abort some, or wait until they expire after {STAGE_EXPIRY_S:.0f} s"
                )
            self._sizes[part] += size_bytes

    def keep(self, part: Path, name: Path) -> None:
        """The stage is written: give it its name."""
        with self._lock:
            part.rename(name)
            self._sizes[name.name] = self._sizes.pop(part.name)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class Stage:
    """One stage that is being written. Left without `finish`, it was never there."""

    def __init__(self, stages: Stages, part: Path, name: Path) -> None:
        self._stages = stages
        self._part = part
        self._name = name
        self._file = part.open("xb")

    def write(self, data: bytes) -> None:
        self._stages.take(self._part.name, len(data))
        try:
            self._file.write(data)
        except OSError as error:
            raise _trouble("write", self._part, error) from error

    def finish(self) -> None:
        """It is on disk under its name when this returns."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._stages.keep(self._part, self._name)
        except OSError as error:
            raise _trouble("keep", self._part, error) from error

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # what was buffered is not wanted any more
            self._file.close()
        self._stages.forget([self._part.name])


def _prefix(query: str, batch: int) -> str:
    return f"{hashlib.sha256(query.encode()).hexdigest()[:32]}-{batch}-"


def _name(query: str, batch: int, partition: int, attempt: int) -> str:
    return f"{_prefix(query, batch)}{partition}-{attempt}{_STAGE}"


def _trouble(what: str, path: Path, error: OSError) -> DiskError:
    return DiskError(f"cannot {what} the stage {path} ({error.strerror or error}): free space, or check its folder")
