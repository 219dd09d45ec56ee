"""Tasks done by commands: input, output, and that no process is left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.net.running import both_loops, run
from tests.net.test_tasks import Steps
from tests.net.work_stands import lease

from godwit.errors import TaskFailedError
from godwit.limits import MAX_JOB_PAYLOAD_BYTES
from godwit.net import command
from godwit.net.command import run_command
from godwit.net.tasks import Task


def task(payload: bytes = b"") -> Task:
    return Task(Steps().on_progress, lease(7, kind="count", payload=payload, failures=1), "anna")


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{process}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


def cancelled(running: asyncio.Task[bytes]) -> Awaitable[object]:
    running.cancel()
    return asyncio.wait([running])


@both_loops
def test_the_payload_goes_in_and_the_result_comes_out(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test() -> None:
        payload = bytes(range(256)) * (MAX_JOB_PAYLOAD_BYTES // 256)
        assert await run_command(task(payload), ["cat"]) == payload
        assert await run_command(task(b"three words here"), ["wc", "-w"]) == b"3\n"

    run(test, loop)


def test_the_command_knows_its_task() -> None:
    async def test() -> None:
        names = [f"GODWIT_{name}" for name in ("JOB", "TASK", "FENCE", "KIND", "ATTEMPT", "CONTROLLER")]
        program = f"import os; print(*(os.environ[name] for name in {names}))"
        assert await run_command(task(), python(program)) == b"7 0 1 count 2 controller\n"

    run(test)


def test_an_exit_code_is_a_failure_with_the_end_of_what_it_complained_about() -> None:
    async def test() -> None:
        program = "import sys; sys.stderr.write('x' * 100_000 + ' no such picture\\n'); sys.exit(3)"
        with pytest.raises(TaskFailedError, match=r"ended with code 3: x+ no such picture$") as caught:
            await run_command(task(), python(program))
        assert len(str(caught.value)) < 1000
        with pytest.raises(TaskFailedError, match=r"^false ended with code 1$"):
            await run_command(task(), ["false"])
        with pytest.raises(TaskFailedError, match="was ended by SIGKILL"):
            await run_command(task(), python("import os; os.kill(os.getpid(), 9)"))
        with pytest.raises(FileNotFoundError):
            await run_command(task(), ["/there/is/no/such/command"])

    run(test)


def test_signals_without_a_name_have_a_number() -> None:
    assert command._signal_name(signal.SIGRTMIN + 1) == f"signal {signal.SIGRTMIN + 1}"


def test_a_command_need_not_read_its_payload() -> None:
    async def test() -> None:
        assert await run_command(task(bytes(MAX_JOB_PAYLOAD_BYTES)), ["echo", "done"]) == b"done\n"

    run(test)


def test_a_result_that_is_too_long_is_a_failure() -> None:
    async def test() -> None:
        program = f"import sys; sys.stdout.buffer.write(bytes({MAX_JOB_PAYLOAD_BYTES} + 1))"
        with pytest.raises(TaskFailedError, match=f"printed more than {MAX_JOB_PAYLOAD_BYTES} bytes"):
            await run_command(task(), python(program))
        with pytest.raises(TaskFailedError, match="printed more"):
            await run_command(task(), ["yes"])  # it would never end by itself

    run(test)


def test_what_a_command_leaves_running_on_purpose_is_left_alone(tmp_path: Path) -> None:
    async def test() -> None:
        shell = "sleep 60 >/dev/null 2>&1 </dev/null & echo $!"
        process = int(await run_command(task(), ["sh", "-c", shell]))
        assert is_alive(process)
        os.kill(process, signal.SIGKILL)

    run(test)


@both_loops
def test_a_cancelled_command_is_asked_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    monkeypatch.setattr(command, "TERMINATE_TIMEOUT_S", 20.0)  # on a busy machine

    async def test() -> None:
        note = tmp_path / "note"
        program = (
            "import pathlib, signal, sys, time\n"
            f"note = pathlib.Path({str(note)!r})\n"
            "def end(*_): note.write_text('tidied up'); sys.exit()\n"
            "signal.signal(signal.SIGTERM, end)\n"
            "note.write_text('begun')\n"
            "time.sleep(60)\n"
        )
        running = asyncio.create_task(run_command(task(), python(program)))
        await until(lambda: note.exists() and note.read_text() == "begun")
        await cancelled(running)
        assert running.cancelled()
        assert note.read_text() == "tidied up"

    run(test, loop)


def test_one_that_does_not_heed_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "TERMINATE_TIMEOUT_S", 0.1)

    async def test() -> None:
        note = tmp_path / "note"
        shell = f"trap '' TERM; sleep 60 & echo $$ $! > {note}; wait; wait; sleep 60"
        running = asyncio.create_task(run_command(task(), ["sh", "-c", shell]))
        await until(lambda: note.exists() and len(note.read_text().split()) == 2)
        processes = [int(number) for number in note.read_text().split()]
        assert all(map(is_alive, processes))
        began = time.monotonic()
        await cancelled(running)
        assert time.monotonic() - began > 0.09  # timers of uvloop are rounded to milliseconds
        assert running.cancelled()
        await until(lambda: not any(map(is_alive, processes)))

    run(test)


@both_loops
def test_one_that_is_cancelled_while_it_begins_is_ended_too(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test() -> None:
        for words in (["sleep", "60"], ["/there/is/no/such/command"]):
            running = asyncio.create_task(run_command(task(), words))
            await asyncio.sleep(0)
            await cancelled(running)
            assert running.cancelled()

    run(test, loop)


def test_a_second_cancellation_kills_it_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        note = tmp_path / "note"
        running = asyncio.create_task(run_command(task(), ["sh", "-c", f"trap '' TERM; echo $$ > {note}; sleep 60"]))
        await until(lambda: note.exists() and bool(note.read_text().strip()))
        process = int(note.read_text())
        running.cancel()
        await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.wait([running])
        await until(lambda: not is_alive(process))

    run(test)
