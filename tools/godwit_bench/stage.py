"""The processes of a measurement: started together, heard through pipes, and gone together, however it ends."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import msgspec

from godwit.errors import GodwitError

GIVE_UP_S: Final = 30.0
"""A part that says nothing for this long is stuck."""
HOST: Final = "127.0.0.1"
READY: Final = "ready"
"""What a part says that has nothing else to say."""
_PR_SET_PDEATHSIG: Final = 1

T = TypeVar("T")


class Failure(msgspec.Struct, frozen=True):
    """What a part says instead of its answer."""

    text: str


class Stage:
    """Every process that is started in its `with` block is ended when the block is left, also by Ctrl-C."""

    def __init__(self, within: Path | None = None) -> None:
        """`within` is where its folder is made: on the disk to be measured, if the parts write to one."""
        self._context = multiprocessing.get_context("spawn")
        self._processes: list[SpawnProcess] = []
        self._temporary = tempfile.TemporaryDirectory(prefix="godwit-bench-", dir=within)
        self.folder: Final = Path(self._temporary.name)
        """For files that the parts need; removed at the end."""

    def start(self, part: Callable[..., None], *arguments: Any) -> Pipe:
        """Runs `part(pipe, *arguments)`, a function of a module, in a process. Gives the other end of the pipe."""
        here, there = self._context.Pipe()
        process = self._context.Process(target=_play, args=(part, there, arguments), daemon=True)
        self._processes.append(process)
        # Ctrl-C reaches all processes of a terminal, and the stage sees to it for all. The new process inherits the
        # mask, so that not even its start is disturbed; here it comes a moment later.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        there.close()  # so that the end of the process is the end of the pipe
        return here

    def run(self, *command: str) -> Path:
        """Runs another program; what it prints goes to the file that this gives."""
        log = self.folder / f"{Path(command[0]).name}.log"
        self.start(_become, command, str(log))
        return log

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):  # brokers last: a client might complain
            process.kill()
        for process in self._processes:
            process.join(timeout=5)
        self._temporary.cleanup()


def hear(pipe: Pipe, kind: type[T], *, within_s: float = GIVE_UP_S) -> T:
    """The next thing that a part says, which must be of this kind."""
    if not pipe.poll(within_s):
        raise GodwitError(
            f"a process of the benchmark said nothing for {within_s:g} s: run it again on a quieter machine"
        )
    try:
        answer = pipe.recv()
    except EOFError:
        raise GodwitError("a process of the benchmark ended too early: what it printed may say why") from None
    if isinstance(answer, Failure):
        raise GodwitError(f"a process of the benchmark failed: {answer.text}")
    if not isinstance(answer, kind):
        raise TypeError(f"a part said {answer!r} where {kind.__name__} was due")
    return answer


def free_port() -> int:
    """One that the system chose for TCP, for programs that cannot tell which one they got."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_listener(port: int, log: Path, *, within_s: float = GIVE_UP_S) -> None:
    """Until somebody accepts TCP connections there."""
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    said = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    last = next((line for line in reversed(said) if line.strip()), "nothing")
    raise GodwitError(f"{log.stem} did not listen on port {port} within {within_s:g} s; the last it printed: {last}")


# -- in the new process -----------------------------------------------------------------------------------------------


def _play(part: Callable[..., None], pipe: Pipe, arguments: tuple[Any, ...]) -> None:
    _end_with_parent()
    try:
        part(pipe, *arguments)
    except GodwitError as error:
        pipe.send(Failure(str(error)))
    except Exception as error:
        pipe.send(Failure(f"{type(error).__name__}: {error}"))
        raise


def _become(_: Pipe, command: tuple[str, ...], log: str) -> None:
    """Turns this process into another program, so that it is ended as all others are."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    os.execv(command[0], command)


def _end_with_parent() -> None:
    """Linux can promise that a process does not outlive its parent, not even when that one is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
