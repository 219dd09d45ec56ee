"""`godwit shell`: an interactive terminal, or a script, in which messages and tasks arrive between commands."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import typer

from godwit.cli.connection import (
    DEFAULT_BROKER,
    ArqOption,
    BrokerOption,
    EndlessTimeoutOption,
    NameOption,
    SecretOption,
    Target,
    connected,
    guarded,
    print_notice,
    run,
)
from godwit.errors import GodwitError

if TYPE_CHECKING:
    from godwit.cli.shell_commands import Shell
    from godwit.cli.streams import Output

EXIT_FAILED: Final = 1
MAX_LINE_BYTES: Final = 1024 * 1024
LAST_MESSAGES_S: Final = 0.1
"""Time for which a script that has ended still prints messages."""


def register(root: typer.Typer) -> None:
    """Add `godwit shell`."""
    root.command("shell", epilog="Example: godwit shell --name me; then: sub home/#")(shell)


def shell(
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: EndlessTimeoutOption = None,
) -> None:
    """Publish, subscribe, submit jobs, work and inspect by hand. Arriving messages are shown while you type.

    Commands: pub, retain, sub, unsub, subs, list, create, clients, kick, job, volunteer, withdraw, wait, help, quit.
    The shell has a history and completion (Tab). It also reads a script from standard input; the exit code is then 1
    if a command failed.
    """
    target = Target.of(broker, name, secret_file, timeout, arq)
    if sys.stdin.isatty() and sys.stdout.isatty():
        from godwit.cli.shell_terminal import run_terminal

        code = run(run_terminal(target), is_interactive=True)
    else:
        code = run(_script(target))
    if code:
        raise typer.Exit(code)


async def _script(target: Target) -> int:
    from godwit.cli.shell_commands import Shell
    from godwit.cli.streams import Output

    output = Output()
    async with connected(target) as client:
        shell = Shell(client, text_writer(output))
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
                print_notice(str(error))
    await shell.client.ping()
    await asyncio.sleep(LAST_MESSAGES_S)
    return code


def text_writer(output: Output) -> Callable[[str], Coroutine[Any, Any, None]]:
    """Return a function that writes text to the output at once."""

    async def write(text: str) -> None:
        await output.write(text.encode("utf-8", "backslashreplace"))

    return write
