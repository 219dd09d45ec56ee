"""Where `godwit shell` writes: above the prompt while somebody types, or simply to standard output."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NoReturn

from prompt_toolkit.application import in_terminal
from prompt_toolkit.input import Input, create_input

from godwit.cli.streams import Output

PAUSE_S: Final = 0.05
"""Between two writes above the prompt: typing stays smooth however much arrives."""
MAX_WAITING_CHARACTERS: Final = 64 * 1024
"""Whoever writes more waits until the terminal has taken some."""


def steady_input() -> Input:
    """Keys that stay keys while something is written above the prompt.

    prompt_toolkit would hand the terminal back to the system for that time: then keys are echoed into the output, and
    Ctrl-C and Ctrl-D do what they do elsewhere.
    """
    if sys.platform == "win32":
        return create_input()
    from prompt_toolkit.input.vt100 import Vt100Input

    class SteadyInput(Vt100Input):
        def cooked_mode(self) -> AbstractContextManager[None]:
            return nullcontext()

        def detach(self) -> AbstractContextManager[None]:
            return nullcontext()

    return SteadyInput(sys.stdin)


class PlainScreen:
    """Standard output that nobody types into."""

    def __init__(self, output: Output) -> None:
        self._output = output

    async def write(self, text: str) -> None:
        await self._output.write(text.encode("utf-8", "backslashreplace"))


class PromptScreen:
    """Collects what is written, and puts it above the prompt a few times a second. `run` does the work."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._waiting: list[str] = []
        self._characters = 0
        self._something = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def write(self, text: str) -> None:
        """Returns when there is room for more."""
        self._waiting.append(text)
        self._characters += len(text)
        self._something.set()
        if self._characters >= MAX_WAITING_CHARACTERS:
            self._room.clear()
        await self._room.wait()

    async def run(self) -> NoReturn:
        while True:
            await self._something.wait()
            async with in_terminal():
                await self.flush()
            await asyncio.sleep(PAUSE_S)

    async def flush(self) -> None:
        """Writes what waits, where the cursor is."""
        text = "".join(self._waiting)
        self._waiting.clear()
        self._characters = 0
        self._something.clear()
        self._room.set()
        if text:
            await self._output.write(text.encode("utf-8", "backslashreplace"))
