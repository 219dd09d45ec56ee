"""`godwit demo`: the main job, shown: messages over a bad network, and not one is lost."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from rich.console import Console

from godwit.cli.demo_run import Demo, Picture, Settings
from godwit.cli.demo_view import Display, Lines, heading, summary, verdict
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
    seed: Annotated[int, typer.Option(help="Of the network's faults and of the readings.")] = 1,
    forever: Annotated[bool, typer.Option("--forever", help="Go on until Ctrl-C, then show the summary.")] = False,
) -> None:
    """Watch messages survive a bad network.

    Five simulated rooms send their temperatures from one process to another, over real UDP sockets and through a relay
    that loses, damages, repeats and reorders datagrams and changes the sender's address half-way. The receiver checks
    every message. The exit code is 0 if all of them arrived once and in order, 1 if not.
    """
    console = Console()
    typer.echo(heading(loss)) if not console.is_terminal else None
    view = Display(console) if console.is_terminal and not console.is_dumb_terminal else Lines(console)
    try:
        picture = loop.run(Demo(Settings(None if forever else seconds, loss, seed), view.show).run())
    except KeyboardInterrupt:
        view.close()
        typer.echo("interrupted", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        view.close()
    _conclude(picture)


def _conclude(picture: Picture) -> None:
    for line in summary(picture):
        typer.echo(line)
    good, text = verdict(picture)
    typer.echo()
    typer.secho(text, fg="green" if good else "red", bold=True)
    if not good:
        raise typer.Exit(EXIT_FAILED)
