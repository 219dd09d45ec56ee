"""Where the shell writes. The prompt itself is tested on a real terminal, in test_shell.py."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from godwit.cli import shell_screen
from godwit.cli.shell_screen import PlainScreen, PromptScreen
from godwit.cli.streams import Output


def test_a_plain_screen_writes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "out"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    asyncio.run(PlainScreen(Output(fd)).write("a: ü\udcff\n"))
    os.close(fd)
    assert path.read_text() == "a: ü\\udcff\n"


def test_a_prompt_screen_collects_and_holds_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_screen, "MAX_WAITING_CHARACTERS", 10)
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
        await asyncio.wait_for(too_much, 5)
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
