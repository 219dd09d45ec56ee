"""The commands of the shell: the answers of the reference systems, and what can go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.cli.fake_client import FakeClient

from godwit.cli.shell_commands import Shell
from godwit.cli.shell_usage import HELP
from godwit.errors import GodwitError, KickedError
from godwit.wire.control_base import Code


class Terminal:
    """A shell with a fake client; `type` gives what was printed, an error in brackets."""

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
        for _ in range(5):  # what was published arrives
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
                await test(terminal)
            finally:
                await terminal.shell.close()
            assert terminal.client.subscriptions == []

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
    assert await terminal.type("kick nobody") == "[there is no client nobody]"


@in_terminal()
async def test_being_kicked_and_missing_something_are_told(terminal: Terminal) -> None:
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
        ("fly", "there is no command fly"),
        ("pub", "something is missing: pub TOPIC MESSAGE"),
        ("pub a", "something is missing: pub TOPIC MESSAGE"),
        ("retain", "something is missing: retain TOPIC MESSAGE"),
        ("sub", "something is missing: sub FILTER"),
        ('sub ""', "a name is empty"),
        ("sub a#b", "a wildcard stands alone"),
        ("pub a/+ x", "wildcards are for subscriptions"),
        ("list a b", "more than list takes"),
        ("wait", "something is missing"),
        ("wait soon", "wait soon cannot be"),
        ("wait -1", "wait -1 cannot be"),
        ("wait nan", "wait nan cannot be"),
    ):
        assert error in await terminal.type(line), line
    assert terminal.client.published == []


@in_terminal()
async def test_help_quit_and_lines_that_say_nothing(terminal: Terminal) -> None:
    text = await terminal.type("help")
    assert all(usage in text for usage, _ in HELP.values())
    for line in ("", "   ", "# a remark", "wait 0"):
        assert await terminal.type(line) == ""
    assert all(len(line) < 80 for line in text.splitlines())
    assert "Ctrl-C" in text
    assert "more than quit takes" in await terminal.type("quit extra")
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
