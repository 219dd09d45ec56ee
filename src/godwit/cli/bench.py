"""`godwit bench`: measure on this machine, side by side with peers and limits."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from godwit.bench import forward as forward_bench
from godwit.bench import transport as transport_bench
from godwit.bench.report import print_report

app = typer.Typer(no_args_is_help=True, help="Measure Godwit against peers and limits, in one run on this machine.")

Rounds = Annotated[int, typer.Option(min=1, help="How often all is measured; the medians are shown.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="How long each measurement of a round takes.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def register(root: typer.Typer) -> None:
    """Adds `godwit bench`."""
    root.add_typer(app, name="bench")


@app.callback(epilog="Example: godwit bench transport --rounds 5")
def group() -> None:
    """Measure Godwit against peers and limits, in one run on this machine."""


@app.command("transport", epilog="Example: godwit bench transport --json")
def transport(rounds: Rounds = 9, seconds: Seconds = 0.7, as_json: AsJson = False) -> None:
    """The reliable transport against raw UDP from Python, between two processes on loopback."""
    console = Console(stderr=True)
    with console.status("starting") as status:
        report = transport_bench.run(
            rounds=rounds, seconds=seconds, on_round=lambda name: status.update(f"measuring: {name}")
        )
    print_report(report, as_json=as_json)


@app.command("forward", epilog="Example: godwit bench forward --json")
def forward(rounds: Rounds = 5, seconds: Seconds = 1.0, as_json: AsJson = False) -> None:
    """The broker against Zenoh, NATS and Mosquitto, and against itself with 100,000 more subscriptions.

    Takes about one and a half minutes. The peers' clients come with `pip install 'godwit[bench]'`; mosquitto and
    nats-server are installed with apt-get if they are missing and you are root, else you are told how to get them.
    """
    console = Console(stderr=True)
    with console.status("starting") as status:
        report = forward_bench.run(
            rounds=rounds,
            seconds=seconds,
            on_round=lambda name: status.update(f"measuring: {name}"),
            on_install=lambda command: console.print(f"a peer is missing, installing it: {command}"),
        )
    print_report(report, as_json=as_json)
