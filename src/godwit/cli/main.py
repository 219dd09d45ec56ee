"""The root of the command line: which commands there are, and how any of them ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Final, NoReturn

import typer

import godwit
from godwit.cli import bench, demo, sim
from godwit.errors import GodwitError

EXIT_ERROR: Final = 1
EXIT_INTERRUPTED: Final = 130
"""What a shell reports for a program that Ctrl-C ended: 128 + SIGINT."""

COMMANDS: Final[tuple[Callable[[typer.Typer], None], ...]] = (demo.register, sim.register, bench.register)
"""The one place to register commands, in the order of the help text.

Each file of this folder has a function `register(app)`, which adds its command (`app.command("demo")(demo)`) or its
group (`app.add_typer(group, name="sim")`), with an example as `epilog`. Import the file above and name its `register`.
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


def build_app() -> typer.Typer:
    """The root command with everything that `COMMANDS` registers."""
    app = typer.Typer(
        name="godwit",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(epilog="Example: godwit demo. Each command explains itself: godwit COMMAND --help")(_root)
    for register in COMMANDS:
        register(app)
    return app


def run(app: typer.Typer) -> NoReturn:
    """Run and exit. What a user can act on is told in one line on stderr; a traceback is always a bug of ours."""
    try:
        app()
    except GodwitError as error:
        text = " ".join(str(error).split()) or type(error).__name__
        print(f"godwit: {text}", file=sys.stderr)
        sys.exit(EXIT_ERROR)
    except KeyboardInterrupt:  # typer sees to it inside a command; this one is for the moments before and after
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(0)


def main() -> NoReturn:
    """The `godwit` script."""
    run(build_app())
