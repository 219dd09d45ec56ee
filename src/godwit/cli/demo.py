"""`godwit demo`: messages over a bad network, with no loss."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from godwit.cli.interrupts import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from rich.console import Console

    from godwit.cli.demo_run import DemoSnapshot
    from godwit.cli.demo_view import DemoView

EXIT_FAILED: Final = 1


def register(root: typer.Typer) -> None:
    """Add `godwit demo`."""
    root.command("demo", epilog="Example: godwit demo --seconds 10 --loss 0.2")(demo)


def demo(
    seconds: Annotated[
        float, typer.Option(min=1.0, max=90.0, metavar="SECONDS", help="Time for which messages are sent.")
    ] = 20.0,
    loss: Annotated[float, typer.Option(min=0.0, max=0.5, help="Share of datagrams that the network loses.")] = 0.05,
    rate: Annotated[float, typer.Option(min=1.0, max=4000.0, help="Messages per second of each room.")] = 1000.0,
    seed: Annotated[int, typer.Option(help="Seed of the readings and of the network's faults.")] = 1,
    forever: Annotated[bool, typer.Option("--forever", help="Run until Ctrl-C, then print the summary.")] = False,
    report: Annotated[
        Path, typer.Option("--report", metavar="FILE", readable=False, help="Path of the report at the end.")
    ] = Path("godwit-demo.html"),
    no_report: Annotated[bool, typer.Option("--no-report", help="Make no report, and do not run Spark.")] = False,
) -> None:
    """Watch messages and jobs survive a bad network, and become a report.

    Simulated rooms publish their temperatures to a broker, and a subscriber receives them: real processes and UDP
    sockets, with a relay between them that loses, damages, repeats and reorders datagrams and assigns another address
    to every client half-way. The subscriber checks every message. Two workers do jobs meanwhile, until one of them is
    killed. At the end there is a report of the run, with tables that Spark makes of the logged messages if Java is
    installed. The exit code is 0 if all messages arrived once and in order and all jobs were done, else 1.
    """
    from rich.console import Console

    from godwit.cli.demo_run import Demo, DemoSettings
    from godwit.cli.demo_view import LiveView, PlainView, write_demo_report
    from godwit.cli.new_file import check_free
    from godwit.net import loop

    console = Console()
    is_bounded = not forever
    settings = DemoSettings(
        seconds if is_bounded else None, loss, rate, seed, report if is_bounded and not no_report else None
    )
    if settings.report is not None:
        check_free(settings.report, force=True)  # before the demo, not after it
    live = console.is_terminal and not console.is_dumb_terminal
    view: DemoView = LiveView(console, settings) if live else PlainView(console, settings)

    def announce(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    try:
        snapshot = loop.run(Demo(settings, view.show, write_demo_report, announce).run())
    except KeyboardInterrupt:
        view.close()
        typer.echo("interrupted", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        view.close()
    _conclude(console, snapshot)


def _conclude(console: Console, snapshot: DemoSnapshot) -> None:
    from rich.text import Text

    from godwit.cli.demo_view import summary, verdict

    good, text = verdict(snapshot)
    for line in (*summary(snapshot), Text(text, style="bold green" if good else "bold red")):
        console.print(line, soft_wrap=True)
    if snapshot.pipeline is not None:
        console.print(Text(snapshot.pipeline.sentence), soft_wrap=True)
        good = good and snapshot.pipeline.is_good
    if not good:
        raise typer.Exit(EXIT_FAILED)
