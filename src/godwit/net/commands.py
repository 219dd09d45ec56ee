"""A task done by a command: its payload goes to the standard input, and what the command prints is the result."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, cast

from godwit.errors import TaskFailedError
from godwit.limits import MAX_JOB_PAYLOAD_BYTES
from godwit.net.loop import completes
from godwit.net.task import Task

TERMINATE_PATIENCE_S: Final = 1.0
"""Between the request to end, which a command may follow, and the order, which it cannot disobey."""
PIPE_PATIENCE_S: Final = 0.1
"""Between two looks whether more comes from a command that has exited."""
_CALM_LOOKS: Final = 2
"""The first may come before the event loop has read what is there."""
_ERROR_BYTES: Final = 700
"""Of the end of what it wrote to its standard error: the reason is mostly in the last lines."""


async def run_command(task: Task, command: Sequence[str]) -> bytes:
    """Runs the command without a shell. An exit code other than 0 is a failure with the end of its standard error.

    It finds the task in GODWIT_JOB, GODWIT_TASK, GODWIT_FENCE, GODWIT_KIND, GODWIT_ATTEMPT and GODWIT_CONTROLLER. When
    the task is revoked, the command and the processes that it started are terminated, and killed a second later.
    """
    transport, talk = await _begin(command, {**os.environ, **_description(task)})
    try:
        stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        if not stdin.is_closing():  # it may have ended already
            stdin.write(task.payload)
            stdin.close()  # when all is written, or the command does not want it
        await talk.is_over.wait()
        if talk.is_too_long:
            raise TaskFailedError(
                f"{command[0]} printed more than {MAX_JOB_PAYLOAD_BYTES} bytes: "
                "send larger results as files, and print their names"
            )
        if code := transport.get_returncode():
            raise TaskFailedError(_complaint(command[0], code, bytes(talk.errors)))
        return b"".join(talk.printed)
    finally:
        await _end(transport, talk)


async def _begin(command: Sequence[str], env: dict[str, str]) -> tuple[asyncio.SubprocessTransport, _Conversation]:
    beginning = asyncio.ensure_future(
        asyncio.get_running_loop().subprocess_exec(
            _Conversation,
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=env,
            start_new_session=True,  # a group of its own: Ctrl-C is for the worker, and its children end with it
        )
    )
    try:
        return await asyncio.shield(beginning)
    except asyncio.CancelledError:
        with suppress(OSError):  # it could not be begun
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


class _Conversation(asyncio.SubprocessProtocol):
    """What a command says, as much of it as is wanted."""

    def __init__(self) -> None:
        self.printed: list[bytes] = []
        self.printed_bytes = 0
        self.errors = bytearray()
        self.has_exited = asyncio.Event()
        self.is_over = asyncio.Event()
        """It has exited and nothing more comes from it, or it has printed too much."""
        self.is_lost = asyncio.Event()
        """Nothing of it is left."""

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
        self._look(self.printed_bytes, 0)

    def _look(self, printed_bytes: int, calm: int) -> None:
        """What it left running may hold its pipes open for ever."""
        calm = calm + 1 if self.printed_bytes == printed_bytes else 0
        if calm > _CALM_LOOKS:
            self.is_over.set()
        elif not self.is_over.is_set():
            asyncio.get_running_loop().call_later(PIPE_PATIENCE_S, self._look, self.printed_bytes, calm)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over.set()
        self.is_lost.set()


def _complaint(name: str, code: int, errors: bytes) -> str:
    how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with code {code}"
    text = errors.decode(errors="replace").strip()
    return f"{name} {how}: {text}" if text else f"{name} {how}"


async def _end(transport: asyncio.SubprocessTransport, talk: _Conversation) -> None:
    """Nothing of it is left when this returns; but what a command that has ended left behind is its own affair."""
    try:
        if transport.get_returncode() is None:
            await _stop(transport, talk)
    finally:
        transport.close()
        await talk.is_lost.wait()


async def _stop(transport: asyncio.SubprocessTransport, talk: _Conversation) -> None:
    _signal(transport, signal.SIGTERM)
    try:
        await completes(talk.has_exited.wait(), TERMINATE_PATIENCE_S)
    finally:  # also when somebody does not want to wait for it, and for those that it started
        _signal(transport, signal.SIGKILL)


def _signal(transport: asyncio.SubprocessTransport, number: signal.Signals) -> None:
    """To it and the processes that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(transport.get_pid(), number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
