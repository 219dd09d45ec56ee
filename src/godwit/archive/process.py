"""The archive process: arguments, pipes to the broker, memory limits, start and end.

The broker starts it. They communicate over its standard input and output (godwit.server.archive_pipe), and it ends when
the broker does, whatever its clients are doing.

Memory: each chunk of a read takes some megabytes and frees them. By default glibc returns them to the system at once,
and the next chunk gets each page anew, which takes a tenth to a fifth of the archive's time. So freed memory is kept.
Flight receives and unpacks data before this program can examine it, and a few kilobytes of compressed Arrow expand to
gigabytes. A limit makes that an error of one call, or at worst the end of this process, which the broker restarts.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa

from godwit.archive.actions import Actions
from godwit.archive.range_reader import ReaderPool
from godwit.archive.server import ArchiveServer
from godwit.archive.stages import Stages
from godwit.archive.tokens import TokenFile
from godwit.broker.access import TokenRights
from godwit.errors import ConfigurationError, DecodeError, GodwitError, SocketError
from godwit.limits import KIB, MIB
from godwit.server.archive_pipe import (
    CallCounts,
    Commit,
    CommitDone,
    CommitRole,
    FromArchive,
    LogLine,
    PipeReader,
    Ready,
    decode_from_broker,
    encode_message,
)

EXPIRY_PERIOD_S: Final = 60.0
COUNTS_PERIOD_S: Final = 1.0
"""How often the broker gets the counts of calls, if they have changed."""
OOM_SCORE: Final = "1000"
"""If the machine runs out of memory, the system ends the archive, which is restarted, and not the broker."""
NICENESS: Final = 19
"""On two processors, two busy processes of normal priority halve the broker's rate; at this one they hardly matter."""
READ_BYTES: Final = 64 * KIB
KEPT_BYTES: Final = 32 * MIB
"""Freed memory that is kept per arena: about one for each thread that reads the log."""
LARGEST_KEPT_BYTES: Final = 16 * MIB
"""Larger allocations are returned to the system at once."""

MAX_MEMORY_BYTES: Final = 3072 * MIB
"""Includes stacks of 8 MiB per thread, of which there may be 224 for reads, uploads and actions."""

_M_TRIM_THRESHOLD: Final = -1  # numbers from glibc's malloc.h
_M_MMAP_THRESHOLD: Final = -3


def main(arguments: list[str] | None = None) -> int:
    """Run the archive until the broker ends, and return the exit code if it cannot start."""
    options = _parser().parse_args(arguments)
    broker_fd = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of libraries must not get between the messages
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    lower_priority()
    keep_freed_memory()
    limit_memory()
    ended = threading.Event()
    pipe = BrokerPipe(sys.stdin.fileno(), broker_fd, ended.set)
    try:
        stages = Stages(options.stages)
        server, url = _serve(options, stages, pipe)
    except (GodwitError, OSError) as error:
        pipe.log("warning", f"the archive cannot start: {error}")
        return 1
    pipe.start()
    pipe.ready(url)
    counts, expires_at = server.counts(), time.monotonic() + EXPIRY_PERIOD_S
    while not ended.wait(COUNTS_PERIOD_S):
        if (newer := server.counts()) != counts:
            counts = newer
            pipe.report_calls(counts)
        if time.monotonic() < expires_at:
            continue
        expires_at = time.monotonic() + EXPIRY_PERIOD_S
        if count := stages.expire(time.time()):
            pipe.log("info", f"removed {count} stages that were not committed in time")
        if count := server.expire_uploads():
            pipe.log("info", f"ended {count} connections whose uploads were stalled")
    os._exit(0)  # without waiting for slow clients


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m godwit.archive", description=__doc__)
    parser.add_argument("--log", type=Path, required=True, help="The log's file.")
    parser.add_argument("--stages", type=Path, required=True, help="The folder of staged writes.")
    parser.add_argument(
        "--listen", required=True, metavar="HOST:PORT", help="Address to serve on; port 0: any free port."
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        help="File of tokens and rights; without it every client may read and write.",
    )
    parser.add_argument("--certificate", type=Path, help="Certificate for TLS, PEM.")
    parser.add_argument("--key", type=Path, help="Private key of the certificate, PEM.")
    return parser


def _serve(options: argparse.Namespace, stages: Stages, pipe: BrokerPipe) -> tuple[ArchiveServer, str]:
    """Return the running server and its address."""
    if (options.certificate is None) != (options.key is None):
        raise ConfigurationError("a certificate needs its key and a key its certificate: give both or none")
    certificate = None
    if options.certificate is not None:
        certificate = (options.certificate.read_bytes(), options.key.read_bytes())
    scheme = "grpc" if certificate is None else "grpc+tls"
    tokens = None
    if options.token_file is not None:
        tokens = TokenFile(options.token_file, lambda text: pipe.log("warning", text))
    readers = ReaderPool(options.log)
    host, _, port = options.listen.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigurationError(f"{options.listen!r} is not an address: give HOST:PORT, as in 127.0.0.1:50001")
    try:
        server = ArchiveServer(
            f"{scheme}://{host}:{port}",
            readers=readers,
            stages=stages,
            actions=Actions(readers, stages, pipe),
            warn=lambda text: pipe.log("warning", text),
            tokens=tokens,
            certificate=certificate,
        )
    except pa.ArrowException as error:
        raise SocketError(
            f"cannot listen on {scheme}://{host}:{port}: {error}; the port may be in use, or the certificate bad"
        ) from error
    return server, f"{scheme}://{host}:{server.port}"


class BrokerPipe:
    """The archive's ends of the pipes to the broker: commits out, replies in. Its methods may be called by any thread.

    `on_end` is called from the receiving thread when the broker has ended.
    """

    def __init__(self, read_fd: int, write_fd: int, on_end: Callable[[], None]) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._on_end = on_end
        self._writing = threading.Lock()
        self._pending: dict[int, _Reply] = {}
        self._next_key = 0
        self.is_accepting = True
        """Whether the broker accepts commits."""

    def start(self) -> None:
        """Start the receiving thread."""
        threading.Thread(target=self._receive, name="broker pipe", daemon=True).start()

    def ready(self, url: str) -> None:
        """Report that the archive serves at this address."""
        self._write(Ready(url))

    def log(self, level: Literal["info", "warning"], text: str) -> None:
        """Send a line for the broker's log."""
        self._write(LogLine(level, text))

    def report_calls(self, counts: CallCounts) -> None:
        """Send the counts of calls."""
        self._write(counts)

    def commit(
        self, query: str, batch: int, files: list[str], rights: TokenRights, timeout_s: float
    ) -> CommitDone | None:
        """Ask the broker to append staged files, and return its reply.

        Return None after the timeout: then it is unknown whether they were appended.
        """
        reply = _Reply()
        with self._writing:
            key = self._next_key
            self._next_key += 1
            self._pending[key] = reply
        try:
            self._write(Commit(key, query, batch, files, rights))
            reply.has_arrived.wait(timeout_s)
        finally:
            del self._pending[key]
        return reply.done

    def _write(self, message: FromArchive) -> None:
        data = memoryview(encode_message(message))
        with self._writing:
            while data:
                try:
                    data = data[os.write(self._write_fd, data) :]
                except OSError:  # the broker has ended: the receiving thread notices it too, and ends the process
                    return

    def _receive(self) -> None:
        reader = PipeReader()
        try:
            while data := os.read(self._read_fd, READ_BYTES):
                for body in reader.feed(data):
                    message = decode_from_broker(body)
                    if isinstance(message, CommitRole):
                        self.is_accepting = message.is_accepting
                    elif (reply := self._pending.get(message.key)) is not None:
                        reply.done = message
                        reply.has_arrived.set()
        except (OSError, DecodeError):
            pass  # the broker has ended
        self._on_end()


class _Reply:
    """Lets a thread wait for the broker's reply."""

    def __init__(self) -> None:
        self.has_arrived = threading.Event()
        self.done: CommitDone | None = None


def lower_priority() -> None:
    """Lower the priority of all threads; later ones inherit it. Before the imports, a start could take minutes."""
    tasks = Path("/proc/self/task")  # Linux has a priority for each thread
    threads = [int(one.name) for one in tasks.iterdir()] if tasks.exists() else [0]
    with suppress(OSError):  # the system has no process priorities, or a thread has just ended
        for thread in threads:
            os.setpriority(os.PRIO_PROCESS, thread, NICENESS)


def keep_freed_memory() -> bool:
    """Keep freed memory for later allocations; return whether the C library supports it, as glibc does."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)) and bool(mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES))


def limit_memory(max_bytes: int = MAX_MEMORY_BYTES) -> None:
    """Limit the memory of this process; a lower limit that it has already remains."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bound = max_bytes if hard == resource.RLIM_INFINITY else min(max_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))
