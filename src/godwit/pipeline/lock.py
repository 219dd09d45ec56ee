"""One run at a time on a lake, also while the JVM of a killed one still lives.

A driver that is killed leaves its JVM behind for some seconds, and that may still write. So the lock has two halves:
flock, which Python holds, and a POSIX lock, which is the kind that Java's FileChannel takes, held by the JVM. Whoever
wants the lake needs both. They are on two files, as on some network file systems the two kinds are one. The first file
also tells who holds it.
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

from godwit.pipeline.lake import Lake
from godwit.pipeline.problems import PipelineError

NAME: Final = "_lock"
_PIN: Final = "godwit.lake.lock"


class LakeLock:
    """Held for the time of a block; PipelineError if somebody else has it."""

    def __init__(self, lake: Lake, purpose: str) -> None:
        self._lake = lake
        self._purpose = purpose
        self._path = lock_path(lake)
        self._java_path = self._path.with_name(f"{self._path.name}.java")
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self._file = _opened(self._path)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with _opened(self._java_path) as java:
                fcntl.lockf(java, fcntl.LOCK_EX | fcntl.LOCK_NB)  # is it free? It is for our JVM to take
        except OSError:
            holder = _told(self._file)
            self._file.close()
            raise PipelineError(in_use_text(self._lake.address, holder, is_alive=_is_alive(holder))) from None
        self._tell()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._file is not None
        self._file.close()

    def share(self, spark: SparkSession) -> None:
        """The JVM takes its half, until it ends."""
        jvm: Any = spark.sparkContext._jvm
        channel = jvm.java.io.RandomAccessFile(str(self._java_path), "rw").getChannel()
        held = channel.tryLock()
        if held is None:
            raise PipelineError(
                f"the lake {self._lake.address} was taken by another run in the moment that this one began; "
                "let that one end, then try again"
            )
        # Else the JVM would close the file once Python has forgotten it.
        jvm.java.lang.System.getProperties().put(_PIN, held)
        self._tell(jvm=int(jvm.java.lang.ProcessHandle.current().pid()))

    def _tell(self, jvm: int | None = None) -> None:
        assert self._file is not None
        holder = {"process": os.getpid(), "jvm": jvm, "host": socket.gethostname(), "purpose": self._purpose}
        holder["since_us"] = int(time.time() * 1e6)
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps(holder).encode())
        self._file.flush()


def lock_path(lake: Lake) -> Path:
    """In the lake; of an object store, which knows no locks, a file on this machine."""
    if "://" not in lake.address:
        return Path(lake.address) / NAME
    name = hashlib.sha256(lake.address.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"godwit-{os.getuid()}-{name}{NAME}"


def in_use_text(lake: str, holder: dict[str, Any], *, is_alive: bool) -> str:
    """Who holds it, as far as the file tells, and what to do."""
    if "process" not in holder:
        return f"another run has the lake {lake}: let it end, then try again"
    since = datetime.fromtimestamp(holder["since_us"] / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
    who = f"process {holder['process']} on {holder['host']} ({holder['purpose']}, since {since} UTC)"
    if is_alive:
        return f"{who} has the lake {lake}: stop it, or let it end, then try again"
    return (
        f"the lake {lake} was in use by {who}. That one is gone, but its Java process {holder['jvm']} is not yet: "
        "it ends by itself within seconds; try again"
    )


def _opened(path: Path) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+b")
    except OSError as error:
        raise PipelineError(
            f"cannot write to the lake: {path}: {error.strerror}; check the path and its rights"
        ) from error


def _told(file: IO[bytes]) -> dict[str, Any]:
    try:
        holder = json.loads(file.read())
    except ValueError:  # it is being written, or nobody ever did
        return {}
    return holder if isinstance(holder, dict) else {}


def _is_alive(holder: dict[str, Any]) -> bool:
    """Whether the Python process that holds it runs; one of another machine counts as running."""
    if holder.get("host") != socket.gethostname():
        return True
    try:
        os.kill(int(holder["process"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
