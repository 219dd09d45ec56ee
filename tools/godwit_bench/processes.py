"""The processes of a measurement: started together, connected by pipes, and always ended together."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import msgspec

from godwit.errors import GodwitError

GIVE_UP_S: Final = 120.0
"""A process that sends nothing for this long is stuck."""
HOST: Final = "127.0.0.1"
FIXED_PORTS: Final = (12_768, 32_768)
"""Range of the ports for programs that must be given one, below the range that the system chooses from."""
READY: Final = "ready"
"""The message of a process that has nothing else to send."""
_PR_SET_PDEATHSIG: Final = 1
_random: Final = random.SystemRandom()

T = TypeVar("T")


class Failure(msgspec.Struct, frozen=True):
    """The message of a process in place of its reply."""

    text: str


class ProcessGroup:
    """A group of processes that are ended when its `with` block is left, also by Ctrl-C."""

    def __init__(self, within: Path | None = None) -> None:
        """`within` is the parent of its folder: on the disk to be measured, if the processes write to one."""
        self._context = multiprocessing.get_context("spawn")
        self._processes: list[SpawnProcess] = []
        self._temporary = tempfile.TemporaryDirectory(prefix="godwit-bench-", dir=within)
        self.folder: Final = Path(self._temporary.name)
        """For files of the processes; removed at the end."""

    def start(self, target: Callable[..., None], *arguments: Any) -> Pipe:
        """Run `target(pipe, *arguments)`, a function of a module, in a process; return the other end of the pipe."""
        return self._start(target, *arguments)[0]

    def _start(self, target: Callable[..., None], *arguments: Any) -> tuple[Pipe, SpawnProcess]:
        here, there = self._context.Pipe()
        process = self._context.Process(target=_run_target, args=(target, there, arguments), daemon=True)
        self._processes.append(process)
        # Ctrl-C reaches all processes of a terminal, and this one handles it for all. The new process inherits the
        # mask, so that not even its start is interrupted; here the signal arrives a moment later.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        there.close()  # so that the end of the process is the end of the pipe
        return here, process

    def run(self, *command: str) -> Path:
        """Run another program; return the file with its output."""
        log = self.folder / f"{Path(command[0]).name}.log"
        self.run_to(log, *command)
        return log

    def run_to(self, log: Path, *command: str) -> SpawnProcess:
        """Run another program with its output in this file; return its process."""
        return self._start(_exec, command, str(log))[1]

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):  # brokers last, to avoid error messages of clients
            process.kill()
        for process in self._processes:
            process.join(timeout=5)
        self._temporary.cleanup()


def receive_reply(pipe: Pipe, kind: type[T], *, within_s: float = GIVE_UP_S) -> T:
    """Return the next message of a process, which must be of this kind.

    Raises GodwitError if the process failed, ended, or sent nothing in time.
    """
    if not pipe.poll(within_s):
        raise GodwitError(
            f"a process of the benchmark sent nothing for {within_s:g} s: run it again on a quieter machine"
        )
    try:
        answer = pipe.recv()
    except EOFError:
        raise GodwitError("a process of the benchmark ended too early: its output may show why") from None
    if isinstance(answer, Failure):
        raise GodwitError(f"a process of the benchmark failed: {answer.text}")
    if not isinstance(answer, kind):
        raise TypeError(f"a process sent {answer!r}, expected {kind.__name__}")
    return answer


def free_port() -> int:
    """Return a free TCP port for a program that cannot report its own.

    The system chooses none of these for other programs, which could take it before that program has started.
    """
    while True:
        port = _random.randrange(*FIXED_PORTS)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port


def wait_for_listener(port: int, log: Path, *, within_s: float = GIVE_UP_S) -> None:
    """Wait until a program accepts TCP connections on this port. Raises GodwitError if that takes too long."""
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    output = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    last = next((line for line in reversed(output) if line.strip()), "nothing")
    raise GodwitError(f"{log.stem} did not listen on port {port} within {within_s:g} s; the last it printed: {last}")


# -- in the new process -----------------------------------------------------------------------------------------------


def _run_target(target: Callable[..., None], pipe: Pipe, arguments: tuple[Any, ...]) -> None:
    _end_with_parent()
    try:
        target(pipe, *arguments)
    except GodwitError as error:
        pipe.send(Failure(str(error)))
    except Exception as error:
        pipe.send(Failure(f"{type(error).__name__}: {error}"))
        raise


def _exec(_: Pipe, command: tuple[str, ...], log: str) -> None:
    """Replace this process by another program, so that it is ended like all others."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    os.execv(command[0], command)


def _end_with_parent() -> None:
    """On Linux, end this process with its parent, even when that is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
