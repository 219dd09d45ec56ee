"""Where the shell writes. The prompt itself is tested on a real terminal, in test_shell.py."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from tests.cli.fake_client import FakeClient

from godwit.cli import shell_terminal
from godwit.cli.shell import text_writer
from godwit.cli.shell_commands import Shell
from godwit.cli.shell_terminal import BrokerNames, PromptScreen, ShellCompleter, split_last
from godwit.cli.streams import Output
from godwit.errors import GodwitError
from godwit.wire.control import TopicInfo

# -- shell screen -----------------------------------------------------------------------------------------------------


def test_a_script_writes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "out"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    asyncio.run(text_writer(Output(fd))("a: ü\udcff\n"))
    os.close(fd)
    assert path.read_text() == "a: ü\\udcff\n"


def test_a_prompt_screen_collects_and_holds_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_terminal, "MAX_WAITING_CHARACTERS", 10)
    path = tmp_path / "out"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)

    async def main() -> None:
        screen = PromptScreen(Output(fd))
        await screen.write("123\n")
        assert path.read_text() == ""
        too_much = asyncio.create_task(screen.write("1234567890\n"))
        await asyncio.sleep(0.01)
        assert not too_much.done()
        running = asyncio.create_task(screen.run())
        async with asyncio.timeout(120):
            await too_much
            while not path.read_text():
                await asyncio.sleep(0.01)
        assert path.read_text() == "123\n1234567890\n"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await screen.write("last\n")
        await screen.flush()
        await screen.flush()

    asyncio.run(main())
    os.close(fd)
    assert path.read_text() == "123\n1234567890\nlast\n"


# -- shell complete ---------------------------------------------------------------------------------------------------


TOPICS = ["home/kitchen/temperature", "home/living room/temperature", "garage", "bell\x07"]


def fake() -> FakeClient:
    client = FakeClient()
    client.infos = {name: TopicInfo(name=name) for name in TOPICS}
    return client


async def completions(client: FakeClient, *texts: str) -> list[list[str]]:
    shell = Shell(client.as_client(), lambda text: asyncio.sleep(0))
    await shell.execute("sub garage/#")
    completer = ShellCompleter(shell, BrokerNames(client.as_client()))
    found = []
    for text in texts:
        event = CompleteEvent(completion_requested=True)
        found.append([one.text async for one in completer.get_completions_async(Document(text), event)])
    await shell.close()
    return found


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("su", ["sub", "subs"]),
        ("pub g", ["garage"]),
        ("sub home/", ["home/kitchen/temperature", '"home/living room/temperature"']),
        ('sub "home/li', ['"home/living room/temperature"']),
        ("sub home/k", ["home/kitchen/temperature"]),
        ("unsub ", ["garage/#"]),
        ("kick ", ["me", '"the display"']),
        ("kick me ga", ["garage"]),
        ("pub garage x", []),
        ("help ", []),
        ("jo", ["job"]),
        ("job ", ["submit", "list", "show", "watch", "cancel"]),
        ("job w", ["watch"]),
        ("job watch ", ["7"]),
        ("job cancel 7 ", []),
        ("job submit ", ["resize"]),
        ("job submit --workers 2 re", ["resize"]),
        ("job submit --workers ", ["all"]),
        ("job submit resize ", []),
        ("job list r", ["resize"]),
        ("volunteer ", ["resize"]),
        ("volunteer crop re", ["resize"]),
        ("zzz", []),
    ],
)
def test_completions(typed: str, offered: list[str]) -> None:
    assert asyncio.run(completions(fake(), typed)) == [offered]


def test_names_are_asked_for_once_in_a_while() -> None:
    client = fake()
    found = asyncio.run(completions(client, "pub ga", "pub gar", "kick m", "kick me", "job show ", "volunteer "))
    assert found == [["garage"], ["garage"], ["me"], ["me"], ["7"], ["resize"]]
    assert client.questions == 3


def test_a_broker_that_does_not_answer_disturbs_no_typing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> list[object]:
        await asyncio.sleep(60)
        return []

    async def fails(*_: object, **__: object) -> list[object]:
        raise GodwitError("no")

    monkeypatch.setattr(shell_terminal, "NAMES_TIMEOUT_S", 0.01)
    for answer in (never, fails):
        client = fake()
        monkeypatch.setattr(client, "topics", answer)
        monkeypatch.setattr(client, "clients", answer)
        monkeypatch.setattr(client, "jobs", answer)
        assert asyncio.run(completions(client, "pub ", "kick ", "job show ")) == [[], [], []]


def test_there_is_a_limit() -> None:
    client = fake()
    client.infos = {f"t{number:04}": TopicInfo(name=f"t{number:04}") for number in range(1000)}
    (found,) = asyncio.run(completions(client, "pub t"))
    assert len(found) == shell_terminal.MAX_SHOWN


def test_without_a_loop_there_is_nothing() -> None:
    client = fake()
    completer = ShellCompleter(
        Shell(client.as_client(), lambda text: asyncio.sleep(0)), BrokerNames(client.as_client())
    )
    assert list(completer.get_completions(Document("pub "), CompleteEvent())) == []


@pytest.mark.parametrize(
    ("text", "whole", "last"),
    [
        ("", [], ""),
        ("  su", [], "su"),
        ("sub ", ["sub"], ""),
        ('kick "the display" ho', ["kick", "the display"], "ho"),
        ('kick "the dis', ["kick"], '"the dis'),
        ("a 'b'", ["a"], "'b'"),
    ],
)
def test_split_last(text: str, whole: list[str], last: str) -> None:
    assert split_last(text) == (whole, last)
