"""`godwit demo`: the main job, shown: messages over a bad network, and not one is lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from godwit.cli.demo_run import Picture
    from godwit.cli.demo_view import View

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
    rate: Annotated[float, typer.Option(min=1.0, max=4000.0, help="Messages a second, of each room.")] = 1000.0,
    seed: Annotated[int, typer.Option(help="Of the readings and of the network's faults.")] = 1,
    forever: Annotated[bool, typer.Option("--forever", help="Go on until Ctrl-C; then the summary comes.")] = False,
    report: Annotated[
        Path, typer.Option("--report", metavar="FILE", readable=False, help="Where the report at the end goes.")
    ] = Path("godwit-demo.html"),
    no_report: Annotated[bool, typer.Option("--no-report", help="Without Spark, and so without a report.")] = False,
) -> None:
    """Watch messages and work survive a bad network, and become a report.

    Simulated rooms publish their temperatures to a broker, and a subscriber gets them: real processes and UDP sockets,
    with a relay between them that loses, damages, repeats and reorders datagrams, and gives every client another
    address half-way. The subscriber checks every message. Two workers do jobs meanwhile, until one of them is killed.
    At the end Spark makes tables of what the broker has logged, and a report of them, if there is a Java for it. The
    exit code is 0 if all messages arrived once and in order and all jobs were done, 1 if not.
    """
    from rich.console import Console

    from godwit.cli.demo_run import Demo, Settings
    from godwit.cli.demo_view import Display, Lines
    from godwit.net import loop

    console = Console()
    is_bounded = not forever
    settings = Settings(
        seconds if is_bounded else None, loss, rate, seed, report if is_bounded and not no_report else None
    )
    live = console.is_terminal and not console.is_dumb_terminal
    view: View = Display(console, settings) if live else Lines(console, settings)
    try:
        picture = loop.run(Demo(settings, view.show).run())
    except KeyboardInterrupt:
        view.close()
        typer.echo("interrupted", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        view.close()
    _conclude(console, picture)


def _conclude(console: Console, picture: Picture) -> None:
    from rich.text import Text

    from godwit.cli.demo_view import summary, verdict

    good, text = verdict(picture)
    for line in (*summary(picture), Text(text, style="bold green" if good else "bold red")):
        console.print(line, soft_wrap=True)
    if picture.pipeline is not None:
        console.print(Text(picture.pipeline.sentence), soft_wrap=True)
        good = good and picture.pipeline.is_good
    if not good:
        raise typer.Exit(EXIT_FAILED)
