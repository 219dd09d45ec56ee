"""`godwit demo`: the main job, shown: messages over a bad network, and not one is lost."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from godwit.cli.demo_run import Demo, Picture, Settings
from godwit.cli.demo_view import Display, Lines, View, summary, verdict
from godwit.net import loop

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130


def register(root: typer.Typer) -> None:
    """Adds `godwit demo`."""
    root.command("demo", epilog="Example: godwit demo --seconds 10 --loss 0.2")(demo)


def demo(
    seconds: Annotated[float, typer.Option(min=1.0, max=90.0, help="How long messages are sent.")] = 20.0,
    loss: Annotated[
        float, typer.Option(min=0.0, max=0.5, help="The share of datagrams that the network loses.")
    ] = 0.05,
    seed: Annotated[int, typer.Option(help="Of the readings and of the network's faults.")] = 1,
    forever: Annotated[bool, typer.Option("--forever", help="Go on until Ctrl-C; then the summary comes.")] = False,
) -> None:
    """Watch messages survive a bad network.

    Simulated rooms send their temperatures from one process to another, over real UDP sockets and through a relay that
    loses, damages, repeats and reorders datagrams, and gives the sender another address half-way. The receiver checks
    every message. The exit code is 0 if all of them arrived once and in order, 1 if not.
    """
    console = Console()
    live = console.is_terminal and not console.is_dumb_terminal
    view: View = Display(console, loss) if live else Lines(console, loss)
    try:
        picture = loop.run(Demo(Settings(None if forever else seconds, loss, seed), view.show).run())
    except KeyboardInterrupt:
        view.close()
        typer.echo("interrupted", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        view.close()
    _conclude(console, picture)


def _conclude(console: Console, picture: Picture) -> None:
    good, text = verdict(picture)
    for line in (*summary(picture), Text(text, style="bold green" if good else "bold red")):
        console.print(line, soft_wrap=True)
    if not good:
        raise typer.Exit(EXIT_FAILED)
