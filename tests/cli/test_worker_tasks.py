"""Tasks in a worker's hands: how they are done, and what is said of them."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, cast

import pytest

from godwit.cli.worker_tasks import SHOWN_BYTES, Hands, OnProgress, executing, pretending, shown
from godwit.errors import TaskFailedError
from godwit.net.worker import STOPPED

if TYPE_CHECKING:
    from godwit.net.tasks import Task


class FakeTask:
    def __init__(self, payload: bytes = b"a photo", *, attempt: int = 1) -> None:
        self.job, self.number, self.fence, self.kind, self.controller = 7, 0, 1, "resize\x1b", "boss"
        self.payload = payload
        self.attempt = attempt
        self.is_revoked = False
        self.revoked_because = ""
        self.steps: list[float | None] = []

    def progress(self, fraction: float | None, note: str = "") -> None:
        self.steps.append(fraction)

    def as_task(self) -> Task:
        return cast("Task", self)


class Lines:
    def __init__(self) -> None:
        self.text = ""

    async def write(self, text: str) -> None:
        self.text += text


def test_pretending() -> None:
    task = FakeTask()
    shows: list[float | None] = []
    result = asyncio.run(_await(pretending(0.3)(task.as_task(), shows.append)))
    assert result == b"pretended for 0.3 s"
    assert shows == task.steps
    assert len(shows) >= 2
    assert shows[0] == pytest.approx(0, abs=0.1)
    assert asyncio.run(_await(pretending(0)(FakeTask().as_task(), shows.append))) == b"pretended for 0 s"


async def _await(doing: object) -> bytes:
    return await doing  # type: ignore[misc, no-any-return]


def test_executing() -> None:
    script = "import os, sys; sys.stdout.write(os.environ['GODWIT_JOB'] + sys.stdin.read()[::-1])"
    task = FakeTask(b"abc")
    task.kind = "reverse"
    assert asyncio.run(_await(executing([sys.executable, "-c", script])(task.as_task(), print))) == b"7cba"


def test_a_task_that_is_done() -> None:
    lines = Lines()

    async def main() -> bytes:
        return await Hands(pretending(0), lines.write).handle(FakeTask(attempt=2).as_task())

    assert asyncio.run(main()) == b"pretended for 0 s"
    assert lines.text.splitlines() == [
        "job 7, task 0: resize\\x1b from boss, attempt 2: a photo",
        "job 7, task 0: finished in 0.0 s, result 17 B",
    ]


@pytest.mark.parametrize("error", [TaskFailedError("no \x1b"), ValueError("no \x1b")])
def test_a_task_that_fails(error: Exception) -> None:
    lines = Lines()

    async def fail(task: Task, show: object) -> bytes:
        raise error

    hands = Hands(fail, lines.write)
    with pytest.raises(type(error)):
        asyncio.run(hands.handle(FakeTask(b"").as_task()))
    assert lines.text.splitlines() == [
        "job 7, task 0: resize\\x1b from boss",
        "job 7, task 0: failed after 0.0 s: no \\x1b",
    ]
    assert hands.given_back == 0


def test_a_task_that_is_stopped() -> None:
    """By whoever interrupts the worker: it is handed back. By the broker: it is taken back."""
    lines = Lines()
    hands = Hands(pretending(60), lines.write)

    async def stop(reason: str | None) -> None:
        task = FakeTask()
        doing = asyncio.create_task(hands.handle(task.as_task()))
        while not task.steps:
            await asyncio.sleep(0)
        if reason is not None:
            task.is_revoked, task.revoked_because = True, reason
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
        assert doing.cancelled()

    asyncio.run(stop(None))
    asyncio.run(stop(STOPPED))
    assert hands.given_back == 2
    assert lines.text.count("\n") == 2
    asyncio.run(stop("the job was cancelled"))
    assert lines.text.endswith("job 7, task 0: taken back: the job was cancelled\n")
    asyncio.run(stop(""))
    assert lines.text.endswith("job 7, task 0: taken back\n")
    assert hands.given_back == 2


def test_a_task_that_does_not_end_at_once_counts_as_handed_back() -> None:
    """Such as a command that is asked to end, and takes its time."""
    ends = asyncio.Event()

    async def stubborn(task: Task, show: OnProgress) -> bytes:
        try:
            await asyncio.sleep(60)
        finally:
            await ends.wait()
        return b""

    async def main() -> None:
        task = FakeTask()
        hands = Hands(stubborn, Lines().write)
        doing = asyncio.create_task(hands.handle(task.as_task()))
        for _ in range(3):
            await asyncio.sleep(0)
        task.is_revoked, task.revoked_because = True, STOPPED
        doing.cancel()
        await asyncio.sleep(0)
        assert hands.given_back == 1
        ends.set()
        await asyncio.gather(doing, return_exceptions=True)
        assert hands.given_back == 1

    asyncio.run(main())


def test_long_payloads_are_cut() -> None:
    assert shown(b"") == ""
    assert shown(b"x" * SHOWN_BYTES) == ": " + "x" * SHOWN_BYTES
    assert shown(b"x" * (SHOWN_BYTES + 1)) == ": " + "x" * SHOWN_BYTES + "…"
    assert shown(b"\x1b\xff") == ": \\x1b\\xff"
