"""The prompt of `godwit shell`: output above it, completion, and history."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import typer
from prompt_toolkit import PromptSession
from prompt_toolkit.application import in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.patch_stdout import patch_stdout

from godwit.cli.connection import Target, connected, guarded
from godwit.cli.interrupts import EXIT_INTERRUPTED
from godwit.cli.shell_commands import HELP, QUOTES, Shell, quoted
from godwit.cli.streams import Output
from godwit.cli.text import safe
from godwit.errors import GodwitError

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient
    from godwit.wire.jobs import JobInfo


# -- the screen -------------------------------------------------------------------------------------------------------


PAUSE_S: Final = 0.05
"""Time between two writes above the prompt, so that typing stays smooth."""
MAX_WAITING_CHARACTERS: Final = 64 * 1024
"""Amount of pending output above which a writer waits for the terminal."""


def steady_input() -> Input:
    """Return an input that keeps the terminal in raw mode while output is written above the prompt.

    prompt_toolkit would return the terminal to the system for that time. The terminal would then echo keys into the
    output, and Ctrl-C and Ctrl-D would have their usual effect.
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


class PromptScreen:
    """Collects output and writes it above the prompt a few times per second. `run` does the writing."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._pending: list[str] = []
        self._characters = 0
        self._something = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def write(self, text: str) -> None:
        """Add text, and return when there is room for more."""
        self._pending.append(text)
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
        """Write the pending text at the cursor."""
        text = "".join(self._pending)
        self._pending.clear()
        self._characters = 0
        self._something.clear()
        self._room.set()
        if text:
            await self._output.write(text.encode("utf-8", "backslashreplace"))


# -- completion -------------------------------------------------------------------------------------------------------


FRESH_S: Final = 2.0
"""Age at which names are requested again."""
NAMES_TIMEOUT_S: Final = 0.5
"""Longest time that completion waits for a list of names."""
MAX_SHOWN: Final = 100
LAST_COMMANDS_S: Final = 2.0
"""Time that `quit` waits for unfinished commands."""

TAKES_TOPIC: Final = frozenset(("pub", "retain", "sub", "list", "create"))
TAKES_JOB: Final = frozenset(("show", "watch", "cancel"))
COMMANDS: Final = tuple(dict.fromkeys(name.partition(" ")[0] for name in HELP))
JOB_COMMANDS: Final = tuple(name.removeprefix("job ") for name in HELP if name.startswith("job "))


class BrokerNames:
    """Topics, clients and jobs of the broker, requested when the user completes a name."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._topics: tuple[float, str, list[str]] = (-FRESH_S, "", [])
        self._clients: tuple[float, list[str]] = (-FRESH_S, [])
        self._jobs: tuple[float, list[JobInfo]] = (-FRESH_S, [])

    async def topics(self, beginning: str) -> list[str]:
        """Return the topics below the last complete level of the typed text."""
        parent, slash, _ = beginning.rpartition("/")
        filter = f"{parent}/#" if slash else "#"
        asked_at, asked_for, names = self._topics
        if asked_for == filter and time.monotonic() - asked_at < FRESH_S:
            return names
        try:
            async with asyncio.timeout(NAMES_TIMEOUT_S):
                names = [topic.name for topic in await self._client.topics(filter)]
        except (GodwitError, TimeoutError):  # completion without names is better than an error while the user types
            names = []
        self._topics = (time.monotonic(), filter, names)
        return names

    async def clients(self) -> list[str]:
        asked_at, names = self._clients
        if time.monotonic() - asked_at < FRESH_S:
            return names
        try:
            async with asyncio.timeout(NAMES_TIMEOUT_S):
                names = [client.name for client in await self._client.clients()]
        except (GodwitError, TimeoutError):
            names = []
        self._clients = (time.monotonic(), names)
        return names

    async def jobs(self) -> list[str]:
        """Return the numbers of the jobs that have not ended, the newest first."""
        return [str(job.job) for job in await self._present_jobs()]

    async def kinds(self) -> list[str]:
        """Return the kinds of the jobs that have not ended."""
        return sorted({job.of_kind for job in await self._present_jobs()})

    async def _present_jobs(self) -> list[JobInfo]:
        asked_at, jobs = self._jobs
        if time.monotonic() - asked_at < FRESH_S:
            return jobs
        try:
            async with asyncio.timeout(NAMES_TIMEOUT_S):
                jobs = await self._client.jobs(states=["waiting", "running"])
        except (GodwitError, TimeoutError):
            jobs = []
        self._jobs = (time.monotonic(), jobs)
        return jobs


class ShellCompleter(Completer):
    """Completes commands, then the names that a command takes. It asks the broker, so it needs the event loop."""

    def __init__(self, shell: Shell, names: BrokerNames) -> None:
        self._shell = shell
        self._names = names

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        return ()

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        before, word = split_last(document.text_before_cursor)
        beginning = word[1:] if word[:1] in QUOTES and word else word
        shown = 0
        for name in await self._candidates(before, beginning):
            if name.startswith(beginning) and name.isprintable():
                yield Completion(quoted(name) if before else name, start_position=-len(word), display=safe(name))
                shown += 1
                if shown == MAX_SHOWN:
                    return

    async def _candidates(self, before: list[str], beginning: str) -> list[str]:
        if not before:
            return list(COMMANDS)
        command, position = before[0], len(before)
        if command in TAKES_TOPIC and position == 1:
            return await self._names.topics(beginning)
        if command == "unsub" and position == 1:
            return self._shell.filters
        if command == "kick":
            return await self._names.clients() if position == 1 else await self._names.topics(beginning)
        if command == "job":
            return await self._job_candidates(before[1:])
        return await self._names.kinds() if command == "volunteer" else []

    async def _job_candidates(self, before: list[str]) -> list[str]:
        if not before:
            return list(JOB_COMMANDS)
        if before[0] in TAKES_JOB and len(before) == 1:
            return await self._names.jobs()
        if before[1:] == ["--workers"]:
            return ["all"]
        is_at_kind = len(before) == (3 if before[1:2] == ["--workers"] else 1)
        return await self._names.kinds() if before[0] in ("submit", "list") and is_at_kind else []


def split_last(text: str) -> tuple[list[str], str]:
    """Return the complete words of the text without their quotes, and the incomplete word with its quote."""
    whole: list[str] = []
    rest = text.lstrip()
    while rest:
        if rest[0] in QUOTES:
            end = rest.find(rest[0], 1)
            if end < 0 or end == len(rest) - 1:
                return whole, rest
            whole.append(rest[1:end])
            rest = rest[end + 1 :].lstrip()
        else:
            word, blank, rest = rest.partition(" ")
            if not blank:
                return whole, word
            whole.append(word)
            rest = rest.lstrip()
    return whole, ""


# -- the prompt -------------------------------------------------------------------------------------------------------


async def run_terminal(target: Target) -> int:
    """Run the shell on a terminal and return the exit code."""
    screen = PromptScreen(Output())
    async with connected(target) as client:
        shell = Shell(client, screen.write)
        keys = steady_input()
        prompt: PromptSession[str] = PromptSession(
            "godwit> ",
            input=keys,
            history=_history(),
            completer=ShellCompleter(shell, BrokerNames(client)),
            complete_while_typing=False,
        )
        typer.echo(f"Connected to {target.broker} as {safe(client.name)}.")
        typer.echo("Type help for the commands, quit to end.")
        try:
            with keys.raw_mode(), patch_stdout():  # also between two prompts, and for notices
                return await guarded(_run_prompt(prompt, shell, screen), screen.run())
        finally:
            await shell.close()
            await screen.flush()


async def _run_prompt(prompt: PromptSession[str], shell: Shell, screen: PromptScreen) -> int:
    lines: asyncio.Queue[str] = asyncio.Queue()
    executing = asyncio.create_task(_execute_lines(lines, shell, screen))
    try:
        while True:
            try:
                line = await prompt.prompt_async()
            except KeyboardInterrupt:
                if prompt.default_buffer.text:
                    continue
                return EXIT_INTERRUPTED
            except EOFError:
                line = "quit"
            if line.split() in (["quit"], ["exit"]):
                break
            lines.put_nowait(line)
        await asyncio.wait([asyncio.create_task(lines.join())], timeout=LAST_COMMANDS_S)
        return 0
    finally:
        executing.cancel()


async def _execute_lines(lines: asyncio.Queue[str], shell: Shell, screen: PromptScreen) -> None:
    """Execute the commands in order, while the user types the next one."""
    while True:
        line = await lines.get()
        try:
            await shell.execute(line)
        except GodwitError as error:
            await screen.write(f"{safe(str(error))}\n")
        finally:
            lines.task_done()


def _history() -> History:
    """Return the history in the user's folder for program state, or in memory if that is not writable."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = Path(base) / "godwit" / "shell_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
    except (OSError, RuntimeError):
        return InMemoryHistory()
    return FileHistory(str(path))
