"""Work in the shell: jobs are followed while somebody types, and tasks are worked on beside that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.cli.fake_client import FakeClient

from godwit.cli.shell_commands import Shell
from godwit.cli.shell_work import SHOWN_JOBS
from godwit.cli.worker_tasks import Hands
from godwit.errors import GodwitError, UsageError
from godwit.net.jobs import Update


class Terminal:
    """A shell with a fake client; `type` gives what was printed, an error in brackets."""

    def __init__(self) -> None:
        self.client = FakeClient()
        self.text = ""
        self.shell = Shell(self.client.as_client(), self._write)

    async def _write(self, text: str) -> None:
        self.text += text

    async def type(self, line: str) -> str:
        self.text = ""
        try:
            assert await self.shell.execute(line)
        except GodwitError as error:
            self.text += f"[{error}]"
        return await self.settled()

    async def settled(self) -> str:
        for _ in range(10):
            await asyncio.sleep(0)
        return self.text


def in_terminal(test: Callable[[Terminal], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    async def main() -> None:
        terminal = Terminal()
        try:
            async with asyncio.timeout(20):
                await test(terminal)
        finally:
            await terminal.shell.close()
        assert len(asyncio.all_tasks()) == 1, "something goes on after the end"

    def run() -> None:
        asyncio.run(main())

    run.__name__ = test.__name__
    return run


# -- jobs -------------------------------------------------------------------------------------------------------------


@in_terminal
async def test_what_becomes_of_a_job_is_shown_while_one_types(terminal: Terminal) -> None:
    assert await terminal.type("job submit resize a photo") == "job 1: 2 workers agreed\n"
    assert terminal.client.submitted == [("resize", b"a photo", 1)]
    job = terminal.client.known_jobs[1]
    job.queue.put_nowait(Update(what="progress", task=0, worker="anna", progress=0.5))
    job.queue.put_nowait(Update(what="result", task=0, worker="anna", result=b"\x1b[2J"))
    assert await terminal.type("subs") == (
        "You are not subscribed to anything.\njob 1, task 0: anna finished: \\x1b[2J\n"
    )
    job.end("done")
    assert await terminal.type("") == "job 1: done\n"


@in_terminal
async def test_how_many_workers(terminal: Terminal) -> None:
    await terminal.type("job submit --workers all resize")
    await terminal.type("job submit --workers 3 'two words' {\"a\": 1}")
    assert terminal.client.submitted == [("resize", b"", "all"), ("two words", b'{"a": 1}', 3)]


@in_terminal
async def test_lists(terminal: Terminal) -> None:
    assert await terminal.type("job list") == "7  resize  running  1/3 finished  (boss)\n"
    assert await terminal.type("job list other") == "There are no jobs.\n"
    terminal.client.job_copies = SHOWN_JOBS + 1
    *jobs, last = (await terminal.type("job list")).splitlines()
    assert (len(jobs), last) == (SHOWN_JOBS, "There are older ones.")
    text = await terminal.type("job show 7")
    assert text.startswith("job         7\nkind        resize\n")
    assert text.endswith("task 2  waiting\n")


@in_terminal
async def test_watch_and_cancel(terminal: Terminal) -> None:
    await terminal.type("job submit resize")
    assert await terminal.type("job watch 1") == "[Job 1 is being watched already.]"
    assert await terminal.type("job cancel 1 not needed any more") == "job 1: cancelled: not needed any more\n"
    assert terminal.client.cancelled == [(1, "not needed any more")]
    job = terminal.client.known_jobs[1]
    job.queue.put_nowait(Update(what="accepted"))
    assert await terminal.type("job watch 1") == "job 1: 2 workers agreed\n"
    job.queue.put_nowait(GodwitError("the broker forgot it"))
    assert await terminal.type("") == "job 1 is watched no longer: the broker forgot it\n"
    assert await terminal.type("job cancel 1") == "job 1: cancelled\n"
    assert "there is no job 9" in await terminal.type("job watch 9")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("job", "job what? submit, list, show, watch, cancel"),
        ("job fly", "there is no command job fly; there are: submit"),
        ("job submit", "something is missing: job submit KIND [PAYLOAD]"),
        ("job submit --workers 0 resize", "'0' workers cannot be"),
        ("job submit --fast resize", "job submit has no option --fast"),
        ("job submit a/#", "#"),
        ("job show", "something is missing: job show JOB"),
        ("job show x", "'x' is no job's number"),
        ("job cancel", "something is missing: job cancel JOB [REASON]"),
        ("job list a b", "more than job list takes"),
        ("volunteer", "something is missing: volunteer KIND..."),
        ("volunteer a/+", "+"),
        ("volunteer --seconds soon a", "'soon' is no number of seconds"),
        ("volunteer --seconds -1 a", "to pretend for -1 s cannot be"),
        ("withdraw", "You are not volunteering."),
        ("withdraw now", "more than withdraw takes"),
    ],
)
def test_wrong_lines(line: str, error: str) -> None:
    @in_terminal
    async def run(terminal: Terminal) -> None:
        assert error in await terminal.type(line)
        assert terminal.client.submitted == []

    run()


# -- tasks ------------------------------------------------------------------------------------------------------------


class FakeWorker:
    """Serves until it is told otherwise."""

    def __init__(self, hands: Hands) -> None:
        self.hands = hands
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ready(self) -> None:
        await asyncio.sleep(0)
        if self.failure.done():
            raise UsageError("it has ended before it was ready")

    async def serve(self, client: object) -> None:
        try:
            await self.failure
        except asyncio.CancelledError:
            self.hands._given_back = 2
            raise


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], FakeWorker]]:
    found: list[tuple[list[str], FakeWorker]] = []

    def worker(hands: Hands, kinds: list[str], capacity: int) -> FakeWorker:
        found.append((kinds, FakeWorker(hands)))
        return found[-1][1]

    monkeypatch.setattr(Hands, "worker", worker)
    return found


def test_volunteer_and_withdraw(workers: list[tuple[list[str], FakeWorker]]) -> None:
    @in_terminal
    async def run(terminal: Terminal) -> None:
        assert await terminal.type("volunteer resize crop resize") == "Volunteering for resize, crop.\n"
        assert await terminal.type("volunteer other") == "[You are volunteering already; withdraw first.]"
        assert await terminal.type("withdraw") == "Withdrawn; 2 tasks handed back.\n"
        assert await terminal.type("withdraw") == "[You are not volunteering.]"
        assert await terminal.type("volunteer --seconds 0.5 other") == "Volunteering for other.\n"
        assert [kinds for kinds, _ in workers] == [["resize", "crop"], ["other"]]

    run()


def test_who_may_not_volunteer_is_told(
    workers: list[tuple[list[str], FakeWorker]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(worker: FakeWorker, client: object) -> None:
        worker.failure.cancel()
        raise GodwitError("you may not work on secret")

    @in_terminal
    async def run(terminal: Terminal) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(FakeWorker, "serve", refused)
            assert await terminal.type("volunteer secret") == "[you may not work on secret]"
        assert await terminal.type("withdraw") == "[You are not volunteering.]"
        assert await terminal.type("volunteer open") == "Volunteering for open.\n"

    run()


def test_who_loses_the_right_to_work_is_told(workers: list[tuple[list[str], FakeWorker]]) -> None:
    @in_terminal
    async def run(terminal: Terminal) -> None:
        await terminal.type("volunteer secret")
        workers[0][1].failure.set_exception(GodwitError("you may not work on secret"))
        assert await terminal.type("") == "You no longer volunteer: you may not work on secret\n"
        assert await terminal.type("withdraw") == "[You are not volunteering.]"

    run()
