"""The root of the command line: the table of commands, commands of other distributions, and the exit code."""

from __future__ import annotations

import importlib
import inspect
import io
import sys
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

import godwit
from godwit.cli.interrupts import EXIT_INTERRUPTED, quick_interrupts
from godwit.cli.streams import complete_streams
from godwit.cli.text import safe
from godwit.errors import GodwitError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

EXIT_ERROR: Final = 1

COMMANDS: Final[Mapping[str, str]] = {
    name: f"godwit.cli.{module or name}"
    for name, module in (
        ("broker", ""), ("pub", ""), ("sub", ""), ("job", ""), ("worker", ""), ("topics", ""), ("clients", ""),
        ("kick", "clients"), ("ping", "clients"), ("log", ""), ("pipeline", ""), ("shell", ""), ("sensors", ""),
        ("demo", ""),
    )
}  # fmt: skip
"""The commands in the order of the help text, each with its module.

Each module has a function `register(app)` that adds its commands (`app.command("demo")(demo)`) or its group
(`app.add_typer(group, name="job")`), each with an example as `epilog`. Only the module of the requested command is
imported, so that the command starts quickly.
"""

DEVELOPMENT_COMMANDS: Final = ("sim", "bench")
"""Commands of a development checkout, which adds them as entry points. An installed Godwit does not have them."""

ENTRY_POINTS: Final = "godwit.commands"
"""Entry point group through which other distributions add commands.

The name of an entry is the name of the command. The entry is a `typer.Typer` with subcommands, or a function that
becomes one command. It is imported only when its command is run. An entry with the name of a command of `COMMANDS` is
ignored.
"""


class RootGroup(TyperGroup):
    """The root command. It finds commands of other distributions when they are listed or run, and not before."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *(name for name in self._entries if name not in self.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or for one of another distribution a stand-in for the list of commands."""
        if (command := super().get_command(ctx, cmd_name)) is not None:
            return command
        entry = self._entries.get(cmd_name)
        return None if entry is None else TyperCommand(cmd_name, help=f"Command of {distribution_name(entry)}.")

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command to run, loaded.

        Raises:
            GodwitError: It is a development tool that is not installed, or cannot be loaded.
        """
        if args[0] in DEVELOPMENT_COMMANDS and self.get_command(ctx, args[0]) is None:
            raise GodwitError(
                f"godwit {args[0]} is a development tool and not installed: run make setup in a checkout of the "
                "repository, and use the command there"
            )
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and name not in self.commands:
            command = self.commands[name] = load_command(self._entries[name])
        return name, command, rest

    @cached_property
    def _entries(self) -> dict[str, EntryPoint]:
        from importlib import metadata

        return {entry.name: entry for entry in metadata.entry_points(group=ENTRY_POINTS) if entry.name not in COMMANDS}


def load_command(entry: EntryPoint) -> Any:
    """Import the command of an entry point.

    Raises:
        GodwitError: The entry cannot be imported, or is not a command. The text names its distribution.
    """
    try:
        found = entry.load()
        holder = typer.Typer(add_completion=False)
        holder.callback()(_root)  # makes it a group, even with one command
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=entry.name)
        else:
            holder.command(entry.name)(found)
        _unwrap_help(holder)
        return typer.main.get_group(holder).commands[entry.name]
    except Exception as error:  # code of another distribution can raise anything
        raise GodwitError(
            f"the command {entry.name} of {distribution_name(entry)} cannot be loaded: {type(error).__name__}: "
            f"{error}; update or uninstall that distribution"
        ) from error


def distribution_name(entry: EntryPoint) -> str:
    """Return the name and version of the distribution that an entry point comes from."""
    return "an unknown distribution" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


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
    """Return the root command with the command `wanted`, or with all commands if that is not one of `COMMANDS`."""
    app = typer.Typer(
        name="godwit",
        cls=RootGroup,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(epilog="Example: godwit demo. Each command explains itself: godwit COMMAND --help")(_root)
    modules = [COMMANDS[wanted]] if wanted is not None and wanted in COMMANDS else COMMANDS.values()
    for module in dict.fromkeys(modules):
        importlib.import_module(module).register(app)
    _unwrap_help(app)
    return app


def _unwrap_help(app: typer.Typer) -> None:
    """Remove the line breaks within the paragraphs of all help texts, because each terminal has its own width."""
    for command in app.registered_commands:
        text = inspect.getdoc(command.callback) if command.callback else None
        command.help = command.help or "\n\n".join(part.replace("\n", " ") for part in (text or "").split("\n\n"))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _unwrap_help(group.typer_instance)


def run(app: typer.Typer) -> NoReturn:
    """Run a command and exit.

    An error that the user can act on is printed as one line on stderr. A traceback is always a bug of Godwit.
    """
    try:
        app()
    except GodwitError as error:
        text = " ".join(str(error).split()) or type(error).__name__
        print(f"godwit: {safe(text)}", file=sys.stderr)  # the text may come from a broker
        sys.exit(EXIT_ERROR)
    except KeyboardInterrupt:  # before and after a command; typer handles it within one
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(0)


def main() -> NoReturn:
    """Run the `godwit` script."""
    complete_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # where the terminal's character set is not UTF-8
    with quick_interrupts():
        app = build_app(sys.argv[1] if len(sys.argv) > 1 else None)
    run(app)
