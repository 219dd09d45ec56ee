"""The lock of a lake: one run at a time, also while the JVM of a killed run is still alive.

The JVM of a killed driver lives on for some seconds and may still write. The lock therefore has two halves: an flock
held by Python, and a POSIX lock, the kind that Java's FileChannel takes, held by the JVM. A run needs both. They are on
two files, because some network file systems do not distinguish the two kinds. The first file names the holder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from pyspark.sql import SparkSession

from godwit.pipeline.errors import PipelineError
from godwit.pipeline.lake import Lake

NAME: Final = "_lock"
_PROPERTY: Final = "godwit.lake.lock"


class LakeLock:
    """A context manager that holds the lock. Entering raises PipelineError if another run holds it."""

    def __init__(self, lake: Lake, purpose: str) -> None:
        """`purpose` is the command, for the error text of other runs."""
        self._lake = lake
        self._purpose = purpose
        self._path = lock_path(lake)
        self._java_path = self._path.with_name(f"{self._path.name}.java")
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self._file = _open(self._path)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with _open(self._java_path) as java:
                fcntl.lockf(java, fcntl.LOCK_EX | fcntl.LOCK_NB)  # only a test whether it is free: our JVM takes it
        except OSError:
            holder = _read_holder(self._file)
            self._file.close()
            raise PipelineError(in_use_text(self._lake.address, holder, is_alive=_is_alive(holder))) from None
        self._write_holder()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._file is not None
        self._file.close()

    def share(self, spark: SparkSession) -> None:
        """Let the JVM of the session take its half, until it exits. Raise PipelineError if another JVM has it."""
        jvm: Any = spark.sparkContext._jvm
        channel = jvm.java.io.RandomAccessFile(str(self._java_path), "rw").getChannel()
        held = channel.tryLock()
        if held is None:
            raise PipelineError(
                f"the lake {self._lake.address} was taken by another run at the moment when this one began; "
                "let that one end, then try again"
            )
        # A reference that the JVM keeps: otherwise it closes the file once Python has released the object.
        jvm.java.lang.System.getProperties().put(_PROPERTY, held)
        self._write_holder(jvm=int(jvm.java.lang.ProcessHandle.current().pid()))

    def _write_holder(self, jvm: int | None = None) -> None:
        assert self._file is not None
        holder = {"process": os.getpid(), "jvm": jvm, "host": socket.gethostname(), "purpose": self._purpose}
        holder["since_us"] = int(time.time() * 1e6)
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps(holder).encode())
        self._file.flush()


def lock_path(lake: Lake) -> Path:
    """Return the lock file: in the lake, or on this machine for an object store, which has no locks."""
    if "://" not in lake.address:
        return Path(lake.address) / NAME
    name = hashlib.sha256(lake.address.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"godwit-{os.getuid()}-{name}{NAME}"


def in_use_text(lake: str, holder: dict[str, Any], *, is_alive: bool) -> str:
    """Return the error text for a lake in use. `holder` is the content of the lock file."""
    if "process" not in holder:
        return f"another run has the lake {lake}: let it end, then try again"
    since = datetime.fromtimestamp(holder["since_us"] / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
    run = f"process {holder['process']} on {holder['host']} ({holder['purpose']}, since {since} UTC)"
    if is_alive:
        return f"{run} has the lake {lake}: stop it, or let it end, then try again"
    return (
        f"the lake {lake} was in use by {run}. That process has exited, but its Java process {holder['jvm']} has not "
        "yet: it exits within seconds; try again"
    )


def _open(path: Path) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+b")
    except OSError as error:
        raise PipelineError(
            f"cannot write to the lake: {path}: {error.strerror}; check the path and its permissions"
        ) from error


def _read_holder(file: IO[bytes]) -> dict[str, Any]:
    try:
        holder = json.loads(file.read())
    except ValueError:  # it is being written, or is empty
        return {}
    return holder if isinstance(holder, dict) else {}


def _is_alive(holder: dict[str, Any]) -> bool:
    """Return whether the Python process of the holder runs; assume so for a process on another machine."""
    if holder.get("host") != socket.gethostname():
        return True
    try:
        os.kill(int(holder["process"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
