"""`godwit shell`: an interactive terminal, in which messages and tasks arrive while the user types."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from godwit.cli.connecting import (
    DEFAULT_BROKER,
    BrokerOption,
    NameOption,
    SecretOption,
    Target,
    TimeoutOption,
    connected,
    guarded,
    run,
    tell,
)
from godwit.cli.text import safe
from godwit.errors import GodwitError

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History

    from godwit.cli.shell_commands import Shell
    from godwit.cli.shell_screen import PromptScreen

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130
MAX_LINE_BYTES: Final = 1024 * 1024
LAST_COMMANDS_S: Final = 2.0
"""How long `quit` waits for commands that are not done yet."""
LAST_MESSAGES_S: Final = 0.1
"""How long a script that has ended still shows what is under way."""


def register(root: typer.Typer) -> None:
    """Adds `godwit shell`."""
    root.command("shell", epilog="Example: godwit shell --name me; then: sub home/#")(shell)


def shell(
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Publish, subscribe, give work, do work and look around by hand; what arrives is shown while you type.

    Commands: pub, retain, sub, unsub, subs, list, create, clients, kick, job, volunteer, withdraw, wait, help, quit.
    History and completion (Tab) are there. Reads a script from standard input as well: then the exit code is 1 if a
    command failed.
    """
    target = Target.of(broker, name, secret_file, timeout)
    types = sys.stdin.isatty() and sys.stdout.isatty()
    code = run(_terminal(target) if types else _script(target), types=types)
    if code:
        raise typer.Exit(code)


# -- a script ---------------------------------------------------------------------------------------------------------


async def _script(target: Target) -> int:
    from godwit.cli.shell_commands import Shell
    from godwit.cli.shell_screen import PlainScreen
    from godwit.cli.streams import Output

    output = Output()
    async with connected(target) as client:
        shell = Shell(client, PlainScreen(output).write)
        try:
            return await guarded(_run_script(shell), output.until_closed())
        finally:
            await shell.close()


async def _run_script(shell: Shell) -> int:
    from godwit.cli.streams import Input

    code = 0
    async for lines in Input().lines(MAX_LINE_BYTES):
        for line in lines:
            try:
                if not await shell.execute(line.decode("utf-8", "surrogateescape").rstrip("\r")):
                    return code
            except GodwitError as error:
                code = EXIT_FAILED
                tell(str(error))
    await shell.client.ping()
    await asyncio.sleep(LAST_MESSAGES_S)
    return code


# -- a terminal -------------------------------------------------------------------------------------------------------


async def _terminal(target: Target) -> int:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.patch_stdout import patch_stdout

    from godwit.cli.shell_commands import Shell
    from godwit.cli.shell_complete import Names, ShellCompleter
    from godwit.cli.shell_screen import PromptScreen, steady_input
    from godwit.cli.streams import Output

    screen = PromptScreen(Output())
    async with connected(target) as client:
        shell = Shell(client, screen.write)
        keys = steady_input()
        prompt: PromptSession[str] = PromptSession(
            "godwit> ",
            input=keys,
            history=_history(),
            completer=ShellCompleter(shell, Names(client)),
            complete_while_typing=False,
        )
        typer.echo(f"Connected to {target.broker} as {safe(client.name)}.")
        typer.echo("Type help for the commands, quit to end.")
        try:
            with keys.raw_mode(), patch_stdout():  # between two prompts too, and for the notices of others
                return await guarded(_run_prompt(prompt, shell, screen), screen.run())
        finally:
            await shell.close()
            await screen.flush()


async def _run_prompt(prompt: PromptSession[str], shell: Shell, screen: PromptScreen) -> int:
    lines: asyncio.Queue[str] = asyncio.Queue()
    working = asyncio.create_task(_work(lines, shell, screen))
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
        working.cancel()


async def _work(lines: asyncio.Queue[str], shell: Shell, screen: PromptScreen) -> None:
    """Does the commands in the order in which they were typed, while the next one is being typed."""
    while True:
        line = await lines.get()
        try:
            await shell.execute(line)
        except GodwitError as error:
            await screen.write(f"{safe(str(error))}\n")
        finally:
            lines.task_done()


def _history() -> History:
    """Kept in the user's folder for the state of programs; in memory where that cannot be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = Path(base) / "godwit" / "shell_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
    except (OSError, RuntimeError):
        return InMemoryHistory()
    return FileHistory(str(path))
