"""The commands of the shell: words, usage, replies, errors, jobs and tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.fake_client import FakeClient

from godwit.cli.shell_commands import (
    HELP,
    SHOWN_JOBS,
    USAGE_WIDTH,
    Shell,
    arguments,
    first_word,
    leading_options,
    missing_argument,
    quoted,
    topic_and_message,
    words,
)
from godwit.cli.text import hanging
from godwit.cli.worker import TaskRunner
from godwit.errors import GodwitError, KickedError, UsageError
from godwit.net.jobs import Update
from godwit.wire.control_base import Code

# -- shell words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("", []),
        ("  sub   home/# ", ["sub", "home/#"]),
        ('kick "the display" home/+', ["kick", "the display", "home/+"]),
        ("a 'b c'", ["a", "b c"]),
        ('a ""', ["a", ""]),
        ("it's", ["it's"]),
    ],
)
def test_words(line: str, found: list[str]) -> None:
    assert words(line) == found


@pytest.mark.parametrize(
    ("line", "topic", "message"),
    [
        ("a hello", "a", "hello"),
        ("a  two  words ", "a", "two  words"),
        ('"living room/temperature" 21.5', "living room/temperature", "21.5"),
        ('a "in quotes"', "a", "in quotes"),
        ('a {"celsius": 21.5}', "a", '{"celsius": 21.5}'),
        ('a "x" and "y"', "a", '"x" and "y"'),
        ("a", "a", ""),
        ('a ""', "a", ""),
        ("a '", "a", "'"),
    ],
)
def test_topic_and_message(line: str, topic: str, message: str) -> None:
    assert topic_and_message(line) == (topic, message)


def test_a_quote_that_is_not_closed() -> None:
    with pytest.raises(UsageError, match="is not closed"):
        first_word('"living room')


@given(st.text(alphabet="ab/ '+#", min_size=1))
def test_what_is_quoted_is_read_as_it_was(name: str) -> None:
    assert words(quoted(name)) == [name]


def test_quotes_only_where_needed() -> None:
    assert quoted("home/kitchen") == "home/kitchen"
    assert quoted("living room") == '"living room"'
    assert quoted('12" tube') == "'12\" tube'"


# -- shell usage ------------------------------------------------------------------------------------------------------


def test_arguments() -> None:
    assert arguments("list", "", 0, 1) == []
    assert arguments("kick", '"the display" home/#', 1, None) == ["the display", "home/#"]
    for rest, error in (
        ("", "an argument is missing: create TOPIC"),
        ("a b", "too many arguments: create"),
        ('""', "empty"),
    ):
        with pytest.raises(UsageError, match=error):
            arguments("create", rest, 1, 1)


def test_what_is_missing_is_named() -> None:
    assert str(missing_argument("job show")) == "an argument is missing: job show JOB"


def test_options_before_the_arguments() -> None:
    options = ["--workers", "--seconds"]
    assert leading_options("x", "resize --workers 3", options) == ({}, "resize --workers 3")
    assert leading_options("x", "--workers 3 --seconds 2 resize a b", options) == (
        {"--workers": "3", "--seconds": "2"},
        "resize a b",
    )
    with pytest.raises(UsageError, match="x has no option --fast; it has --workers and --seconds"):
        leading_options("x", "--fast resize", options)
    with pytest.raises(UsageError, match="the option --workers needs a value"):
        leading_options("x", "--workers", options)


def test_every_line_of_the_help_begins_with_its_command() -> None:
    assert all(usage.startswith(name) for name, (usage, _) in HELP.items())


def test_in_the_help_there_is_room_behind_every_command() -> None:
    for usage, what in HELP.values():
        first, *rest = hanging(usage, what, title_width=USAGE_WIDTH)
        assert first.startswith(f"{usage}  ")
        assert all(len(line) < 80 for line in [first, *rest])


# -- shell commands ---------------------------------------------------------------------------------------------------


class Terminal:
    """A shell with a fake client; `type` returns the printed text, with an error in brackets."""

    def __init__(self, client: FakeClient) -> None:
        self.client = client
        self.text = ""
        self.shell = Shell(client.as_client(), self._write)

    async def _write(self, text: str) -> None:
        self.text += text

    async def type(self, line: str) -> str:
        self.text = ""
        try:
            if not await self.shell.execute(line):
                self.text += "<end>"
        except GodwitError as error:
            self.text += f"[{error}]"
        return await self.settled()

    async def settled(self) -> str:
        for _ in range(10):  # published messages and updates arrive
            await asyncio.sleep(0)
        return self.text


def in_terminal(
    client: FakeClient | None = None,
) -> Callable[[Callable[[Terminal], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Runs a test inside an event loop, with a shell that is closed behind it."""

    def wrap(test: Callable[[Terminal], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        async def main() -> None:
            terminal = Terminal(client or FakeClient())
            try:
                async with asyncio.timeout(120):
                    await test(terminal)
            finally:
                await terminal.shell.close()
            assert terminal.client.subscriptions == []
            assert len(asyncio.all_tasks()) == 1, "a task is left after the end"

        def run() -> None:
            asyncio.run(main())

        run.__name__ = test.__name__
        return run

    return wrap


@in_terminal()
async def test_publish_and_subscribe(terminal: Terminal) -> None:
    assert await terminal.type("pub home/kitchen 21.5 degrees") == "reached no subscriber\n"
    assert await terminal.type("sub home/+") == "Subscribed to home/+.\n"
    assert set((await terminal.type("pub home/kitchen 22")).splitlines()) == {
        "reached 1 subscriber",
        "home/kitchen: 22",
    }
    assert await terminal.type("subs") == "home/+\n"
    assert await terminal.type("unsub home/+") == "Unsubscribed from home/+.\n"
    assert await terminal.type("pub home/kitchen 23") == "reached no subscriber\n"


@in_terminal()
async def test_the_answers_of_the_second_reference_system(terminal: Terminal) -> None:
    await terminal.type("sub a")
    assert await terminal.type("sub a") == "[Already subscribed to topic.]"
    assert await terminal.type("unsub b") == "[You are not currently subscribed to this topic.]"


@in_terminal(FakeClient(policy="publishers"))
async def test_an_unknown_topic(terminal: Terminal) -> None:
    assert await terminal.type("sub nowhere") == "[Topic does not exist.]"
    assert await terminal.type("subs") == "You are not subscribed to anything.\n"
    await terminal.type("pub nowhere 1")
    assert await terminal.type("sub nowhere") == "Subscribed to nowhere.\n"


@in_terminal()
async def test_blanks_and_quotes(terminal: Terminal) -> None:
    await terminal.type('pub "living room/temperature" {"celsius": 21.5}')
    assert terminal.client.published == [("living room/temperature", b'{"celsius": 21.5}', 1, False)]
    assert "needs quotes" in await terminal.type("sub living room")
    assert "is not closed" in await terminal.type('sub "living room')


@in_terminal()
async def test_retain(terminal: Terminal) -> None:
    await terminal.type("retain a kept")
    await terminal.type("retain a")
    assert terminal.client.published == [("a", b"kept", 1, True), ("a", b"", 1, True)]


@in_terminal()
async def test_topics(terminal: Terminal) -> None:
    assert await terminal.type("list") == "There are no topics.\n"
    assert await terminal.type("create room1") == "Topic created.\n"
    assert await terminal.type("create room1") == "[topic room1 exists already]"
    for line in ("list", "list topics", "list +"):
        assert await terminal.type(line) == "room1  (0 subscribers)\n"
    assert await terminal.type("list other") == "There are no topics.\n"


@in_terminal()
async def test_clients_and_kick(terminal: Terminal) -> None:
    text = await terminal.type("clients")
    assert text.splitlines()[0] == "me (you)  127.0.0.1:1  no subscription"
    assert text.splitlines()[1] == "the display  away  no subscription"
    assert await terminal.type('kick "the display" home/#') == "removed the subscription of the display to home/#\n"
    assert await terminal.type('kick "the display"') == "removed the display\n"
    assert terminal.client.kicked == [("the display", ("home/#",), "by me"), ("the display", (), "by me")]
    assert await terminal.type("kick unknown") == "[there is no client unknown]"


@in_terminal()
async def test_a_kick_and_a_gap_are_reported(terminal: Terminal) -> None:
    await terminal.type("sub a")
    (subscription,) = terminal.client.subscriptions
    subscription.on_gap(3)
    assert "(missed up to 3 messages of a)\na: 1\n" in await terminal.type("pub a 1")
    subscription.on_gap(None)
    assert "(missed some messages of a)" in await terminal.type("pub a 1")
    subscription.queue.put_nowait(KickedError(Code.KICKED, "by admin: enough"))
    assert "You were removed from a: by admin: enough\n" in await terminal.type("")
    assert terminal.shell.filters == []
    assert await terminal.type("sub a") == "Subscribed to a.\n"


@in_terminal()
async def test_nothing_from_the_network_acts_on_the_terminal(terminal: Terminal) -> None:
    await terminal.type("sub a")
    assert "a: \\x1b[2J\\n" in await terminal.type("pub a \x1b[2J\n!")


@in_terminal()
async def test_wrong_lines(terminal: Terminal) -> None:
    for line, error in (
        ("fly", "unknown command fly"),
        ("pub", "an argument is missing: pub TOPIC MESSAGE"),
        ("pub a", "an argument is missing: pub TOPIC MESSAGE"),
        ("retain", "an argument is missing: retain TOPIC MESSAGE"),
        ("sub", "an argument is missing: sub FILTER"),
        ('sub ""', "a name is empty"),
        ("sub a#b", "a wildcard stands alone"),
        ("pub a/+ x", "wildcards are for subscriptions"),
        ("list a b", "too many arguments: list"),
        ("wait", "an argument is missing"),
        ("wait soon", "wait soon is out of range"),
        ("wait -1", "wait -1 is out of range"),
        ("wait nan", "wait nan is out of range"),
    ):
        assert error in await terminal.type(line), line
    assert terminal.client.published == []


@in_terminal()
async def test_help_quit_and_empty_lines(terminal: Terminal) -> None:
    text = await terminal.type("help")
    assert all(usage in text for usage, _ in HELP.values())
    for line in ("", "   ", "# a remark", "wait 0"):
        assert await terminal.type(line) == ""
    assert all(len(line) < 80 for line in text.splitlines())
    assert "Ctrl-C" in text
    assert "too many arguments: quit" in await terminal.type("quit extra")
    for line in ("quit", " exit "):
        assert await terminal.type(line) == "<end>"


def test_every_command_is_explained() -> None:
    shell = Shell(FakeClient().as_client(), lambda text: asyncio.sleep(0))
    assert {*shell._commands, "quit"} == {name.partition(" ")[0] for name in HELP}


@pytest.mark.parametrize("error", [GodwitError("the session is over")])
def test_a_subscription_that_ends_otherwise(error: GodwitError) -> None:
    @in_terminal()
    async def run(terminal: Terminal) -> None:
        await terminal.type("sub a")
        terminal.client.subscriptions[0].queue.put_nowait(error)
        assert await terminal.type("") == "No longer subscribed to a: the session is over\n"

    run()


# -- shell work -------------------------------------------------------------------------------------------------------


# -- jobs -------------------------------------------------------------------------------------------------------------


@in_terminal()
async def test_updates_of_a_job_are_shown_while_the_user_types(terminal: Terminal) -> None:
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


@in_terminal()
async def test_how_many_workers(terminal: Terminal) -> None:
    await terminal.type("job submit --workers all resize")
    await terminal.type("job submit --workers 3 'two words' {\"a\": 1}")
    assert terminal.client.submitted == [("resize", b"", "all"), ("two words", b'{"a": 1}', 3)]


@in_terminal()
async def test_lists(terminal: Terminal) -> None:
    assert await terminal.type("job list") == "7  resize  running  1/3 finished  (boss)\n"
    assert await terminal.type("job list other") == "There are no jobs.\n"
    terminal.client.job_copies = SHOWN_JOBS + 1
    *jobs, last = (await terminal.type("job list")).splitlines()
    assert (len(jobs), last) == (SHOWN_JOBS, "Older jobs are not listed.")
    text = await terminal.type("job show 7")
    assert text.startswith("job         7\nkind        resize\n")
    assert text.endswith("task 2  waiting\n")


@in_terminal()
async def test_watch_and_cancel(terminal: Terminal) -> None:
    await terminal.type("job submit resize")
    assert await terminal.type("job watch 1") == "[Job 1 is already being watched.]"
    assert await terminal.type("job cancel 1 not needed any more") == "job 1: cancelled: not needed any more\n"
    assert terminal.client.cancelled == [(1, "not needed any more")]
    job = terminal.client.known_jobs[1]
    job.queue.put_nowait(Update(what="accepted"))
    assert await terminal.type("job watch 1") == "job 1: 2 workers agreed\n"
    job.queue.put_nowait(GodwitError("the broker forgot it"))
    assert await terminal.type("") == "job 1 is no longer watched: the broker forgot it\n"
    assert await terminal.type("job cancel 1") == "job 1: cancelled\n"
    assert "there is no job 9" in await terminal.type("job watch 9")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("job", "job needs a command: submit, list, show, watch, cancel"),
        ("job fly", "unknown command job fly; choose one of: submit"),
        ("job submit", "an argument is missing: job submit KIND [PAYLOAD]"),
        ("job submit --workers 0 resize", "--workers '0' is out of range"),
        ("job submit --fast resize", "job submit has no option --fast"),
        ("job submit a/#", "#"),
        ("job show", "an argument is missing: job show JOB"),
        ("job show x", "'x' is not the number of a job"),
        ("job cancel", "an argument is missing: job cancel JOB [REASON]"),
        ("job list a b", "too many arguments: job list"),
        ("volunteer", "an argument is missing: volunteer KIND..."),
        ("volunteer a/+", "+"),
        ("volunteer --seconds soon a", "'soon' is not a number of seconds"),
        ("volunteer --seconds -1 a", "a simulated task of -1 s is out of range"),
        ("withdraw", "You are not volunteering."),
        ("withdraw now", "too many arguments: withdraw"),
    ],
)
def test_wrong_lines_of_jobs_and_workers(line: str, error: str) -> None:
    @in_terminal()
    async def run(terminal: Terminal) -> None:
        assert error in await terminal.type(line)
        assert terminal.client.submitted == []

    run()


# -- tasks ------------------------------------------------------------------------------------------------------------


class FakeWorker:
    """Serves until it is stopped."""

    def __init__(self, runner: TaskRunner) -> None:
        self.runner = runner
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ready(self) -> None:
        await asyncio.sleep(0)
        if self.failure.done():
            raise UsageError("it has ended before it was ready")

    async def serve(self, client: object) -> None:
        try:
            await self.failure
        except asyncio.CancelledError:
            self.runner._returned_count = 2
            raise


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], FakeWorker]]:
    found: list[tuple[list[str], FakeWorker]] = []

    def worker(runner: TaskRunner, kinds: list[str], capacity: int) -> FakeWorker:
        found.append((kinds, FakeWorker(runner)))
        return found[-1][1]

    monkeypatch.setattr(TaskRunner, "worker", worker)
    return found


def test_volunteer_and_withdraw(workers: list[tuple[list[str], FakeWorker]]) -> None:
    @in_terminal()
    async def run(terminal: Terminal) -> None:
        assert await terminal.type("volunteer resize crop resize") == "Volunteering for resize, crop.\n"
        assert await terminal.type("volunteer other") == "[You are already volunteering; withdraw first.]"
        assert await terminal.type("withdraw") == "Withdrawn; 2 tasks handed back.\n"
        assert await terminal.type("withdraw") == "[You are not volunteering.]"
        assert await terminal.type("volunteer --seconds 0.5 other") == "Volunteering for other.\n"
        assert [kinds for kinds, _ in workers] == [["resize", "crop"], ["other"]]

    run()


def test_a_refused_volunteer_is_notified(
    workers: list[tuple[list[str], FakeWorker]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(worker: FakeWorker, client: object) -> None:
        worker.failure.cancel()
        raise GodwitError("you may not work on secret")

    @in_terminal()
    async def run(terminal: Terminal) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(FakeWorker, "serve", refused)
            assert await terminal.type("volunteer secret") == "[you may not work on secret]"
        assert await terminal.type("withdraw") == "[You are not volunteering.]"
        assert await terminal.type("volunteer open") == "Volunteering for open.\n"

    run()


def test_a_lost_right_to_work_is_reported(workers: list[tuple[list[str], FakeWorker]]) -> None:
    @in_terminal()
    async def run(terminal: Terminal) -> None:
        await terminal.type("volunteer secret")
        workers[0][1].failure.set_exception(GodwitError("you may not work on secret"))
        assert await terminal.type("") == "You no longer volunteer: you may not work on secret\n"
        assert await terminal.type("withdraw") == "[You are not volunteering.]"

    run()
