"""Programs below a shell that ends them when their pipe is closed. No process is left, however they end."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from tests.net.running import DEADLINE_S, both_loops, run
from tests.sessions import needs_linux, processes_of, wait_for_end

from godwit.net.child_process import end_process, kill_group, start_watched

pytestmark = needs_linux
LONG_S = 10 * DEADLINE_S
"""Longer than the test, which fails if this time has to pass."""
WAITS = "echo ready; exec sleep 10000"
IGNORES_SIGTERM = f"trap '' TERM; {WAITS}"
WITH_A_CHILD = "sleep 10000 & echo ready; read line < $0; exit 7"


@asynccontextmanager
async def started(program: str, kill_after_s: float, argument: str = "") -> AsyncIterator[tuple[Process, int]]:
    """Yield the shell and the process id of a program that has printed that it is ready."""
    process = await start_watched(["sh", "-c", program, argument], kill_after_s, output=PIPE)
    try:
        assert process.stdout is not None
        lines = sorted([await process.stdout.readline() for _ in range(2)])
        assert lines[0] == b"ready\n"
        pid = int(lines[1].removeprefix(b'{"kind": "process", "pid": ').removesuffix(b"}\n"))
        assert any(one.split()[0] == str(pid) for one in processes_of(process.pid))
        yield process, pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # after a failed test, processes may be left
        await process.wait()
        assert process.stdout is not None
        await process.stdout.read()  # uvloop cannot be closed before it has read the end


async def close_input(process: Process) -> int:
    assert process.stdin is not None
    process.stdin.close()
    return await process.wait()


@both_loops
def test_a_program_that_ends_leaves_no_process(loop: Any, tmp_path: Any) -> None:
    async def test() -> None:
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        async with started(WITH_A_CHILD, LONG_S, str(fifo)) as (process, _):
            await asyncio.to_thread(fifo.write_text, "end\n")
            assert await process.wait() == 7
            await asyncio.to_thread(wait_for_end, [process.pid])  # its input is still open

    run(test, loop)


@both_loops
@pytest.mark.parametrize(
    ("program", "kill_after_s", "code"),
    [(WAITS, LONG_S, 128 + signal.SIGTERM), (IGNORES_SIGTERM, 0.1, 128 + signal.SIGKILL)],
)
def test_it_ends_when_its_input_is_closed(loop: Any, program: str, kill_after_s: float, code: int) -> None:
    async def test() -> None:
        async with started(program, kill_after_s) as (process, _):
            assert await close_input(process) == code
            await asyncio.to_thread(wait_for_end, [process.pid])

    run(test, loop)


def test_a_stopped_program_ends_too() -> None:
    async def test() -> None:
        async with started(WAITS, LONG_S) as (process, pid):
            os.kill(pid, signal.SIGSTOP)
            assert await close_input(process) == 128 + signal.SIGTERM
            await asyncio.to_thread(wait_for_end, [process.pid])

    run(test)


@both_loops
def test_it_is_killed_after_a_time(loop: Any) -> None:
    async def test() -> None:
        async with started(IGNORES_SIGTERM, LONG_S) as (process, _):
            await end_process(process, 0.1)
            assert process.returncode == -signal.SIGKILL
            await asyncio.to_thread(wait_for_end, [process.pid])

    run(test, loop)


@both_loops
def test_it_is_killed_when_the_wait_for_its_end_is_cancelled(loop: Any) -> None:
    async def test() -> None:
        async with started(IGNORES_SIGTERM, LONG_S) as (process, _):
            ending = asyncio.create_task(end_process(process, LONG_S))
            await asyncio.sleep(0)
            ending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ending
            assert process.returncode == -signal.SIGKILL
            await asyncio.to_thread(wait_for_end, [process.pid])

    run(test, loop)


@both_loops
def test_a_cancelled_start_leaves_no_process(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    create = asyncio.create_subprocess_exec
    created: list[Process] = []
    ready = asyncio.Event()

    async def create_slowly(*command: str, **options: Any) -> Process:
        created.append(await create(*command, **options))
        assert created[0].stdout is not None
        await created[0].stdout.readline()
        await created[0].stdout.readline()
        assert processes_of(created[0].pid) != []
        ready.set()
        await asyncio.sleep(0)
        return created[0]

    async def test() -> None:
        starting = asyncio.create_task(start_watched(["sh", "-c", IGNORES_SIGTERM], LONG_S, output=PIPE))
        await ready.wait()
        starting.cancel()
        try:
            with pytest.raises(asyncio.CancelledError):
                await starting
            await asyncio.to_thread(wait_for_end, [created[0].pid])
        finally:
            with suppress(ProcessLookupError):
                os.killpg(created[0].pid, signal.SIGKILL)
            await created[0].wait()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create_slowly)
    run(test, loop)


def test_a_group_that_has_just_ended_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS refuses signals to a group whose processes have all ended, and were not waited for yet."""

    async def test() -> None:
        async with started(WAITS, LONG_S) as (process, _):
            for error in (PermissionError, ProcessLookupError):

                def refuse(group: int, number: int, error: type[OSError] = error) -> None:
                    assert (group, number) == (process.pid, signal.SIGKILL)
                    raise error

                with monkeypatch.context() as patch:
                    patch.setattr(os, "killpg", refuse)
                    kill_group(process)
            await end_process(process, LONG_S)
            with monkeypatch.context() as patch:
                patch.setattr(os, "killpg", None)
                kill_group(process)  # it has ended: no signal is sent to a group that may be another one now

    run(test)
