"""`godwit worker`: volunteer for kinds of work, and do it with a command, or pretend to."""

from __future__ import annotations

import shlex
import shutil
from typing import Annotated, Final

import typer

from godwit.cli.connecting import (
    DEFAULT_BROKER,
    BrokerOption,
    SecretOption,
    Target,
    TimeoutOption,
    connected,
    run,
)
from godwit.errors import UsageError
from godwit.limits import MAX_CAPACITY, MAX_KINDS

MAX_SECONDS: Final = 3600.0


def register(root: typer.Typer) -> None:
    """Adds `godwit worker`."""
    root.command("worker", epilog="Example: godwit worker anna --kind resize --exec 'convert - -resize 50% -'")(worker)


def worker(
    name: Annotated[str, typer.Argument(help="Who this worker is; each has a name of its own.")],
    kinds: Annotated[
        list[str], typer.Option("--kind", "-k", metavar="KIND", help="What it volunteers for; may be repeated.")
    ],
    command: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="CMD",
            help="Run this for each task: payload on its standard input, result from its standard output.",
        ),
    ] = None,
    capacity: Annotated[int, typer.Option(metavar="N", help="So many tasks at once.")] = 1,
    seconds: Annotated[
        float | None,
        typer.Option(metavar="S", help="Without --exec: how long it pretends to work on a task; 1 unless given."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show the tasks.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    secret_file: SecretOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Volunteer for work and do it until Ctrl-C, which hands unfinished tasks back at once.

    With --exec each task is a run of the command, without a shell; an exit code other than 0 is a failure, told with
    the end of what it wrote to stderr. Without --exec the worker pretends to work, with progress, for trying things
    out. Waits for the broker if it is not there yet, and comes back to it if it is lost.
    """
    from godwit.broker.topics import check_kind
    from godwit.cli.worker_tasks import executing, pretending, work

    if not name:
        raise UsageError("the name of the worker is empty; give it one")
    if len(kinds) > MAX_KINDS:
        raise UsageError(f"{len(kinds)} kinds are too many; a worker volunteers for {MAX_KINDS} at most")
    for kind in kinds:
        check_kind(kind)
    if not 1 <= capacity <= MAX_CAPACITY:
        raise UsageError(f"--capacity {capacity} cannot be; give a number from 1 to {MAX_CAPACITY:,}")
    if command is not None and seconds is not None:
        raise UsageError("--seconds is for a worker that pretends; leave it out, or leave out --exec")
    doing = (
        pretending(check_pretence(1.0 if seconds is None else seconds))
        if command is None
        else executing(split_command(command))
    )
    target = Target.of(broker, name, secret_file, timeout)

    async def main() -> None:
        async with connected(target) as client:
            await work(client, list(dict.fromkeys(kinds)), capacity, doing, quiet=quiet)

    run(main())


def check_pretence(seconds: float) -> float:
    """UsageError if nobody would pretend for so long."""
    if not 0 <= seconds <= MAX_SECONDS:
        raise UsageError(f"to pretend for {seconds:g} s cannot be; give seconds from 0 to {MAX_SECONDS:g}")
    return seconds


def split_command(text: str) -> list[str]:
    """A command and its arguments; quotes hold them together as in a shell, and that is all that they do."""
    try:
        words = shlex.split(text)
    except ValueError:
        raise UsageError(f"--exec {text!r} has a quote that is not closed; close it") from None
    if not words:
        raise UsageError("--exec is empty; name a command")
    if shutil.which(words[0]) is None:
        raise UsageError(f"there is no command {words[0]!r} here; check --exec, it takes a program and its arguments")
    return words
