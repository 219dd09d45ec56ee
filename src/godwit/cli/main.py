"""The root of the command line: which commands there are, and how any of them ends."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import io
import sys
from collections.abc import Mapping
from typing import Annotated, Final, NoReturn

import typer

import godwit
from godwit.cli.early import EXIT_INTERRUPTED, quick_interrupts
from godwit.cli.streams import complete_streams
from godwit.cli.text import safe
from godwit.errors import GodwitError

EXIT_ERROR: Final = 1

COMMANDS: Final[Mapping[str, str]] = {
    name: f"godwit.cli.{name}"
    for name in (
        "broker", "pub", "sub", "job", "worker", "topics", "clients", "kick", "ping", "log", "pipeline", "shell",
        "sensors", "demo",
    )
}  # fmt: skip
"""The one place to register commands, in the order of the help text: the command, and the module that has it.

Each module has a function `register(app)`, which adds its command (`app.command("demo")(demo)`) or its group
(`app.add_typer(group, name="sim")`), with an example as `epilog`. Only the module of the command that is wanted is
imported, so that it starts at once.
"""


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"godwit {godwit.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Move messages and work over plain UDP datagrams, and lose none."""


def build_app(wanted: str | None = None) -> typer.Typer:
    """The root command with one of `COMMANDS`, or with all of them."""
    app = typer.Typer(
        name="godwit",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(epilog="Example: godwit demo. Each command explains itself: godwit COMMAND --help")(_root)
    for module in [COMMANDS[wanted]] if wanted is not None and wanted in COMMANDS else COMMANDS.values():
        importlib.import_module(module).register(app)
    if wanted not in COMMANDS:
        added = importlib.metadata.entry_points(group="godwit.commands")
        for entry in [entry for entry in added if entry.name == wanted] or added:
            app.add_typer(entry.load(), name=entry.name)
    _flow(app)
    return app


def _flow(app: typer.Typer) -> None:
    """Takes the line breaks out of the paragraphs of all help texts: a terminal has its own width."""
    for command in app.registered_commands:
        text = inspect.getdoc(command.callback) if command.callback else None
        command.help = command.help or "\n\n".join(part.replace("\n", " ") for part in (text or "").split("\n\n"))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _flow(group.typer_instance)


def run(app: typer.Typer) -> NoReturn:
    """Run and exit. What a user can act on is told in one line on stderr; a traceback is always a bug of ours."""
    try:
        app()
    except GodwitError as error:
        text = " ".join(str(error).split()) or type(error).__name__
        print(f"godwit: {safe(text)}", file=sys.stderr)  # a broker may have written it
        sys.exit(EXIT_ERROR)
    except KeyboardInterrupt:  # typer sees to it inside a command; this one is for the moments before and after
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(0)


def main() -> NoReturn:
    """The `godwit` script."""
    complete_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # where the terminal's character set is not UTF-8
    with quick_interrupts():
        app = build_app(sys.argv[1] if len(sys.argv) > 1 else None)
    run(app)
