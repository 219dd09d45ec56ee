"""`godwit worker` as a user sees it."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from tests.cli.real import error_of, godwit, lines, needs_posix, running, subscribed
from tests.ports import free_port

from godwit.cli.worker import (
    SHOWN_BYTES,
    OnProgress,
    TaskRunner,
    command_work,
    payload_preview,
    simulated_work,
    split_command,
)
from godwit.errors import TaskFailedError, UsageError
from godwit.net.worker import STOPPED

if TYPE_CHECKING:
    from godwit.net.tasks import Task


# -- worker -----------------------------------------------------------------------------------------------------------


if sys.platform != "win32":
    from tests.cli.terminal import terminal

PYTHON = f'"{sys.executable}" -c'
REVERSE = f"{PYTHON} 'import sys; sys.stdout.write(sys.stdin.read()[::-1])'"


def test_commands_are_split_as_in_a_shell() -> None:
    assert split_command(f"'{sys.executable}' -c 'two words' $HOME") == [sys.executable, "-c", "two words", "$HOME"]
    for text, error in (
        ("'open", "a quote that is not closed"),
        ("  ", "--exec is empty"),
        ("no-such-x", "does not exist here"),
    ):
        with pytest.raises(UsageError, match=error):
            split_command(text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["anna", "--kind", "a/#"], "#"),
        (["anna", "--kind", "$sys"], "$"),
        (["anna", "--kind", "x" * 257], "257"),
        (["", "--kind", "a"], "the name of the worker is empty"),
        (["anna", "--kind", "a", "--capacity", "0"], "--capacity 0 is out of range; give a number from 1 to 4,096"),
        (["anna", "--kind", "a", "--seconds", "-1"], "a simulated task of -1 s is out of range"),
        (["anna", "--kind", "a", "--seconds", "1", "--exec", "cat"], "leave out --exec"),
        (["anna", "--kind", "a", "--exec", "no-such-program"], "the command 'no-such-program' does not exist here"),
        (["anna", *(word for n in range(65) for word in ("--kind", f"k{n}"))], "65 kinds are too many"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], text: str) -> None:
    assert text in error_of("worker", *arguments)


def test_a_kind_is_needed() -> None:
    assert godwit("worker", "anna").returncode == 1


def test_a_command_does_the_work(address: str) -> None:
    with running("worker", "worker-exec", "--kind", "worker/exec", "--exec", REVERSE, "--broker", address) as worker:
        assert worker.err.line() == "worker-exec volunteers for worker/exec"
        result = godwit("job", "submit", "worker/exec", "abc", "--wait", "--name", "boss-exec", "--broker", address)
        assert (result.returncode, result.stdout) == (0, b"worker-exec: cba\n")
        assert worker.out.line().endswith(": worker/exec from boss-exec: abc")
        assert worker.out.line().endswith("s, result 3 B")


def test_no_part_of_a_job_or_a_request_reaches_a_shell(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The payload is the input, names are in the environment, and the arguments are those of --exec, not expanded."""
    monkeypatch.chdir(tmp_path)
    canary = Path("canary")
    evil = f"x $(touch {canary}); `touch {canary}` | touch {canary} && touch {canary} > {canary} ' \" \\ () {{ :; }}; x"
    code = (
        "import json, os, sys; names = ('KIND', 'CONTROLLER', 'TOPIC', 'PUBLISHER'); "
        "print(json.dumps([sys.argv[1:], sys.stdin.read(), [os.environ.get(f'GODWIT_{one}') for one in names]]))"
    )
    command = shlex.join([sys.executable, "-c", code, "$HOME", "`id`", "*", "a b"])
    own = ["$HOME", "`id`", "*", "a b"]
    kind = f"worker/{evil}"
    options = ("--exec", command, "--broker", address)
    with running("worker", "worker-shell", "--kind", kind, *options) as worker:
        worker.err.until("volunteers")
        arguments = ("job", "submit", kind, f"! {evil}", "--wait", "-q", "--name", evil, "--broker", address)
        result = godwit(*arguments)
        assert result.returncode == 0, result.stderr
        found = json.loads(result.stdout.partition(b": ")[2])
        assert found == [own, f"! {evil}", [kind, evil, None, None]]
    with running("reply", kind, "-q", *options):
        subscribed(address, kind)
        result = godwit("request", kind, f"! {evil}", "--name", evil, "--timeout", "60", "--broker", address)
        assert result.returncode == 0, result.stderr
        found = json.loads(result.stdout.removesuffix(b"\n").removesuffix(b"\\n"))
        assert found == [own, f"! {evil}", [None, None, kind, evil]]
    assert not canary.exists()


def test_a_command_that_fails(address: str) -> None:
    """The task is retried, and the controller receives the reason."""
    fail = f"{PYTHON} 'import sys; sys.exit(\"no paper\")'"
    with running("worker", "worker-fail", "--kind", "worker/fail", "--exec", fail, "--broker", address) as worker:
        worker.err.until("volunteers")
        result = godwit("job", "submit", "worker/fail", "x", "--retries", "0", "--wait", "--broker", address)
        assert (result.returncode, result.stdout) == (1, b"")
        assert "task 0: failed for good: " in result.stderr.decode()
        assert "no paper" in result.stderr.decode()
        worker.out.line()
        assert "no paper" in worker.out.line()


def test_a_worker_that_pretends(address: str) -> None:
    arguments = ("worker", "worker-pretend", "--kind", "worker/a", "--kind", "worker/b", "--seconds", "0.1")
    with running(*arguments, "--broker", address) as worker:
        assert worker.err.line() == "worker-pretend volunteers for worker/a, worker/b"
        for kind in ("worker/a", "worker/b"):
            result = godwit("job", "submit", kind, "--wait", "-q", "--broker", address)
            assert (result.returncode, result.stderr) == (0, b"")
            assert result.stdout == b"worker-pretend: simulated for 0.1 s\n"


def test_quiet(address: str) -> None:
    with running("worker", "worker-quiet", "--kind", "worker/q", "--seconds", "0", "-q", "--broker", address) as worker:
        assert godwit("job", "submit", "worker/q", "--wait", "--broker", address).returncode == 0
        assert worker.out.rest() == worker.err.rest() == []


@needs_posix
def test_ctrl_c_hands_tasks_back_at_once(address: str) -> None:
    """R5: a worker that quits has its unfinished jobs handed to others; the total agreed with the C&C still holds."""
    with (
        running("worker", "quitter", "--kind", "worker/quit", "--seconds", "600", "--broker", address) as quitter,
        running("job", "submit", "worker/quit", "--wait", "--broker", address) as job,
    ):
        quitter.out.until("worker/quit from")
        with running("worker", "helper", "--kind", "worker/quit", "--seconds", "0.1", "--broker", address) as helper:
            helper.err.until("volunteers")
            assert quitter.interrupt() == 130
            assert quitter.err.until("handed back") == "godwit: handed back 1 task"
            assert job.out.line() == "helper: simulated for 0.1 s"
            assert job.wait() == 0
            assert any("reassigned to helper" in line for line in [*job.err.seen, *job.err.rest()])


def test_a_worker_that_is_started_before_its_broker() -> None:
    """R5: it keeps trying and gets through once the broker is there."""
    address = f"127.0.0.1:{free_port()}"
    with running("worker", "early", "--kind", "early", "--seconds", "0", "--broker", address) as worker:
        worker.err.until("no broker answers")
        with running("broker", "--listen", address, "--memory"):
            worker.err.until("early volunteers for early")
            assert godwit("job", "submit", "early", "--wait", "--broker", address).returncode == 0


@needs_posix
def test_bars_on_a_terminal(address: str) -> None:
    arguments = ("worker", "worker-bar", "--kind", "worker/bar", "--seconds", "1", "--broker", address)
    with terminal(*arguments) as worker:
        worker.until("worker-bar volunteers for worker/bar")
        with terminal("job", "submit", "worker/bar", "photo", "--wait", "--broker", address) as job:
            job.until("1 worker agreed")
            worker.until("worker/bar from")
            worker.until("%")
            job.until("task 0 worker-bar")
            job.until("%")
            job.until("worker-bar: simulated for 1 s")
            assert job.wait() == 0
        worker.until("finished in ")
        worker.process.send_signal(signal.SIGINT)
        assert worker.wait() == 130


def test_one_name_is_one_worker(address: str) -> None:
    with running("worker", "twin", "--kind", "worker/twin", "--broker", address) as worker:
        worker.err.until("volunteers")
        assert "twin" in error_of("worker", "twin", "--kind", "worker/twin", "--timeout", "120", "--broker", address)


def test_help_has_an_example() -> None:
    assert any("Example: godwit worker anna" in line for line in lines(godwit("worker", "--help").stdout))


# -- worker tasks -----------------------------------------------------------------------------------------------------


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
    result = asyncio.run(_await(simulated_work(0.3)(task.as_task(), shows.append)))
    assert result == b"simulated for 0.3 s"
    assert shows == task.steps
    assert len(shows) >= 2
    assert shows[0] == pytest.approx(0, abs=0.1)
    assert asyncio.run(_await(simulated_work(0)(FakeTask().as_task(), shows.append))) == b"simulated for 0 s"


async def _await(doing: object) -> bytes:
    return await doing  # type: ignore[misc, no-any-return]


def test_executing() -> None:
    script = "import os, sys; sys.stdout.write(os.environ['GODWIT_JOB'] + sys.stdin.read()[::-1])"
    task = FakeTask(b"abc")
    task.kind = "reverse"
    assert asyncio.run(_await(command_work([sys.executable, "-c", script])(task.as_task(), print))) == b"7cba"


def test_a_task_that_is_done() -> None:
    lines = Lines()

    async def main() -> bytes:
        return await TaskRunner(simulated_work(0), lines.write).handle(FakeTask(attempt=2).as_task())

    assert asyncio.run(main()) == b"simulated for 0 s"
    assert lines.text.splitlines() == [
        "job 7, task 0: resize\\x1b from boss, attempt 2: a photo",
        "job 7, task 0: finished in 0.0 s, result 17 B",
    ]


@pytest.mark.parametrize("error", [TaskFailedError("no \x1b"), ValueError("no \x1b")])
def test_a_task_that_fails(error: Exception) -> None:
    lines = Lines()

    async def fail(task: Task, show: object) -> bytes:
        raise error

    hands = TaskRunner(fail, lines.write)
    with pytest.raises(type(error)):
        asyncio.run(hands.handle(FakeTask(b"").as_task()))
    assert lines.text.splitlines() == [
        "job 7, task 0: resize\\x1b from boss",
        "job 7, task 0: failed after 0.0 s: no \\x1b",
    ]
    assert hands.returned_count == 0


def test_a_task_that_is_stopped() -> None:
    """A task of an interrupted worker is handed back; a task that the broker revokes is taken back."""
    lines = Lines()
    hands = TaskRunner(simulated_work(60), lines.write)

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
    assert hands.returned_count == 2
    assert lines.text.count("\n") == 2
    asyncio.run(stop("the job was cancelled"))
    assert lines.text.endswith("job 7, task 0: taken back: the job was cancelled\n")
    asyncio.run(stop(""))
    assert lines.text.endswith("job 7, task 0: taken back\n")
    assert hands.returned_count == 2


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
        hands = TaskRunner(stubborn, Lines().write)
        doing = asyncio.create_task(hands.handle(task.as_task()))
        for _ in range(3):
            await asyncio.sleep(0)
        task.is_revoked, task.revoked_because = True, STOPPED
        doing.cancel()
        await asyncio.sleep(0)
        assert hands.returned_count == 1
        ends.set()
        await asyncio.gather(doing, return_exceptions=True)
        assert hands.returned_count == 1

    asyncio.run(main())


def test_long_payloads_are_cut() -> None:
    assert payload_preview(b"") == ""
    assert payload_preview(b"x" * SHOWN_BYTES) == ": " + "x" * SHOWN_BYTES
    assert payload_preview(b"x" * (SHOWN_BYTES + 1)) == ": " + "x" * SHOWN_BYTES + "…"
    assert payload_preview(b"\x1b\xff") == ": \\x1b\\xff"


# -- a worker of a Python module --------------------------------------------------------------------------------------

SHOP = """
import godwit

worker = godwit.Worker(capacity=2)
other = 7

@worker.handles("app/reverse")
def reverse(task):
    return task.payload[::-1]
"""


def test_the_worker_of_a_module(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "godwit_test_shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    with running("worker", "app-anna", "--app", "godwit_test_shop:worker", "--broker", address) as worker:
        assert worker.err.line() == "godwit: app-anna does the work of godwit_test_shop:worker"
        result = godwit("job", "submit", "app/reverse", "abc", "--wait", "-q", "--broker", address)
    assert (result.returncode, result.stdout) == (0, b"app-anna: cba\n")


@pytest.mark.parametrize(
    ("app", "text"),
    [
        ("shop", "is not MODULE:NAME"),
        ("godwit_no_such_module:worker", "cannot import godwit_no_such_module: ModuleNotFoundError"),
        ("json:dumps", "'dumps' of json is not a godwit.Worker"),
        ("json:nothing", "'nothing' of json is not a godwit.Worker"),
    ],
)
def test_an_app_that_cannot_be_used(app: str, text: str) -> None:
    assert text in error_of("worker", "anna", "--app", app)


def test_an_app_has_its_own_kinds() -> None:
    assert "leave out the other options" in error_of("worker", "anna", "--app", "a:b", "--kind", "x")
    assert "name the kinds of work with --kind" in error_of("worker", "anna")
