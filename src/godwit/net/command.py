"""Run a command for a task or a request: the payload is its standard input, its standard output the result."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, cast

from godwit.errors import TaskFailedError
from godwit.limits import MAX_JOB_PAYLOAD_BYTES
from godwit.net.loop import completes
from godwit.net.tasks import Task

TERMINATE_TIMEOUT_S: Final = 1.0
"""Time between SIGTERM and SIGKILL."""
PIPE_POLL_S: Final = 0.1
"""Time between two checks whether a command that has exited left more output in its pipes."""
_QUIET_POLLS: Final = 2
"""Checks without new output until the output is complete. One is not enough: the loop may not have read the pipe."""
_ERROR_BYTES: Final = 700
"""How much of the end of its standard error is reported: the reason is usually in the last lines."""


async def run_command(task: Task, command: Sequence[str]) -> bytes:
    """Run a command without a shell, and return its standard output.

    The environment variables GODWIT_JOB, GODWIT_TASK, GODWIT_FENCE, GODWIT_KIND, GODWIT_ATTEMPT and GODWIT_CONTROLLER
    describe the task. When this coroutine is cancelled, the command and the processes that it started are terminated,
    and killed a second later.

    Raises:
        TaskFailedError: The exit code is not 0 (the text has the end of its standard error), or the output is too long.
        OSError: The command could not be started.
    """
    return await run_process(command, task.payload, _description(task))


async def run_process(command: Sequence[str], payload: bytes, variables: Mapping[str, str]) -> bytes:
    """Run a command without a shell, with a payload as its standard input, and return its standard output.

    `variables` are added to its environment. When this coroutine is cancelled, the command and the processes that it
    started are terminated, and killed a second later. Raises as run_command.
    """
    transport, output = await _begin(command, {**os.environ, **variables})
    try:
        stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        if not stdin.is_closing():  # the command may have ended already
            stdin.write(payload)
            stdin.close()  # takes effect when all is written, or the command has closed its end
        await output.is_over.wait()
        if output.is_too_long:
            raise TaskFailedError(
                f"{command[0]} printed more than {MAX_JOB_PAYLOAD_BYTES} bytes: "
                "send larger results as files, and print their names"
            )
        if code := transport.get_returncode():
            raise TaskFailedError(_failure(command[0], code, bytes(output.errors)))
        return b"".join(output.printed)
    finally:
        await _end(transport, output)


async def _begin(command: Sequence[str], env: dict[str, str]) -> tuple[asyncio.SubprocessTransport, _CommandOutput]:
    beginning = asyncio.ensure_future(
        asyncio.get_running_loop().subprocess_exec(
            _CommandOutput,
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=env,
            start_new_session=True,  # its own process group: Ctrl-C does not reach it, and it is killed as a whole
        )
    )
    try:
        return await asyncio.shield(beginning)
    except asyncio.CancelledError:
        with suppress(OSError):  # the command could not be started
            await _end(*await beginning)
        raise


def _description(task: Task) -> dict[str, str]:
    return {
        "GODWIT_JOB": str(task.job),
        "GODWIT_TASK": str(task.number),
        "GODWIT_FENCE": str(task.fence),
        "GODWIT_KIND": task.kind,
        "GODWIT_ATTEMPT": str(task.attempt),
        "GODWIT_CONTROLLER": task.controller,
    }


class _CommandOutput(asyncio.SubprocessProtocol):
    """The output of a command, up to the limits."""

    def __init__(self) -> None:
        self.printed: list[bytes] = []
        self.printed_bytes = 0
        self.errors = bytearray()
        self.has_exited = asyncio.Event()
        self.is_over = asyncio.Event()
        """Set when the command has exited and its output is complete, or when it has printed too much."""
        self.is_lost = asyncio.Event()
        """Set when the process and its pipes are closed."""

    @property
    def is_too_long(self) -> bool:
        return self.printed_bytes > MAX_JOB_PAYLOAD_BYTES

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self.errors += data
            del self.errors[:-_ERROR_BYTES]
            return
        self.printed_bytes += len(data)
        if self.is_too_long:
            self.printed.clear()
            self.is_over.set()
        else:
            self.printed.append(data)

    def process_exited(self) -> None:
        self.has_exited.set()
        self._poll_pipes(self.printed_bytes, 0)

    def _poll_pipes(self, printed_bytes: int, quiet: int) -> None:
        """Wait until no more output arrives. Processes that the command left running may hold its pipes open."""
        quiet = quiet + 1 if self.printed_bytes == printed_bytes else 0
        if quiet > _QUIET_POLLS:
            self.is_over.set()
        elif not self.is_over.is_set():
            asyncio.get_running_loop().call_later(PIPE_POLL_S, self._poll_pipes, self.printed_bytes, quiet)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over.set()
        self.is_lost.set()


def _failure(name: str, code: int, errors: bytes) -> str:
    how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with code {code}"
    text = errors.decode(errors="replace").strip()
    return f"{name} {how}: {text}" if text else f"{name} {how}"


async def _end(transport: asyncio.SubprocessTransport, output: _CommandOutput) -> None:
    """Stop the command if it runs, and close its pipes. Processes that an ended command left behind keep running."""
    try:
        if transport.get_returncode() is None:
            await _stop(transport, output)
    finally:
        transport.close()
        await output.is_lost.wait()


async def _stop(transport: asyncio.SubprocessTransport, output: _CommandOutput) -> None:
    _signal(transport, signal.SIGTERM)
    try:
        await completes(output.has_exited.wait(), TERMINATE_TIMEOUT_S)
    finally:  # also after a second cancellation; and the processes that the command started are killed too
        _signal(transport, signal.SIGKILL)


def _signal(transport: asyncio.SubprocessTransport, number: signal.Signals) -> None:
    """Send a signal to the command and the processes that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(transport.get_pid(), number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
