"""`godwit bench`: measure on this machine, side by side with peers and limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from godwit_bench import forward as forward_bench
from godwit_bench import transport as transport_bench
from godwit_bench.report import Report, merged, print_report

app = typer.Typer(no_args_is_help=True, help="Measure Godwit against peers and limits, in one run on this machine.")

Rounds = Annotated[int, typer.Option(min=1, help="Number of rounds; the medians are shown.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="Duration of each measurement of a round.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Folder = Annotated[
    Path,
    typer.Option(
        exists=True,
        file_okay=False,
        writable=True,
        help="Folder on the disk to be measured; all written files are removed.",
    ),
]


@app.callback(epilog="Example: godwit bench transport --rounds 5")
def group() -> None:
    """Measure Godwit against peers and limits, in one run on this machine."""


def _run(measure: Callable[..., Report], as_json: bool, *, may_install: bool = False, **options: Any) -> None:
    """Run a benchmark with its progress on stderr, and print its report."""
    console = Console(stderr=True)
    if may_install:
        options["on_install"] = lambda command: console.print(f"a peer is missing, installing it: {command}")
    with console.status("starting") as status:
        report = measure(on_round=lambda name: status.update(f"measuring: {name}"), **options)
    print_report(report, as_json=as_json)


@app.command("transport", epilog="Example: godwit bench transport --json")
def transport(rounds: Rounds = 9, seconds: Seconds = 0.7, as_json: AsJson = False) -> None:
    """The reliable transport against raw UDP from Python, between two processes on loopback."""
    _run(transport_bench.run, as_json, rounds=rounds, seconds=seconds)


@app.command("forward", epilog="Example: godwit bench forward --json")
def forward(rounds: Rounds = 5, seconds: Seconds = 1.0, as_json: AsJson = False) -> None:
    """The broker against Zenoh, NATS and Mosquitto, and against itself with 100,000 more subscriptions.

    Takes about one and a half minutes. The peers' clients come with `make setup`. Missing mosquitto and
    nats-server are installed with apt-get if you are root; else the error shows the command to install them.
    """
    _run(forward_bench.run, as_json, may_install=True, rounds=rounds, seconds=seconds)


@app.command("log", epilog="Example: godwit bench log --folder /var/lib --json")
def log(rounds: Rounds = 5, seconds: Seconds = 3.0, folder: Folder = Path(), as_json: AsJson = False) -> None:
    """Confirmed publishes on disk against JetStream, and bytes per second against the bare disk.

    Takes about one and a half minutes and a few gigabytes. nats-py comes with `make setup`. A missing
    nats-server is installed with apt-get if you are root; else the error shows the command to install it.
    """
    from godwit_bench import log as log_bench

    _run(log_bench.run, as_json, may_install=True, folder=folder, rounds=rounds, seconds=seconds)


@app.command("archive", epilog="Example: godwit bench archive --json")
def archive(rounds: Rounds = 5, seconds: Seconds = 2.0, folder: Folder = Path(), as_json: AsJson = False) -> None:
    """The archive of the log as Arrow against a bare Flight server, and the cost of reading it for the broker.

    Takes about two minutes, 2 GB of memory and 1 GB of disk.
    """
    from godwit_bench import archive as archive_bench  # it imports pyarrow, which is slow

    _run(archive_bench.run, as_json, folder=folder, rounds=rounds, seconds=seconds)


@app.command("jobs", epilog="Example: godwit bench jobs --folder /var/lib --json")
def jobs(rounds: Rounds = 5, seconds: Seconds = 2.0, folder: Folder = Path(), as_json: AsJson = False) -> None:
    """Jobs submitted, leased and completed on disk against beanstalkd, which syncs each of its changes.

    Takes about one and a half minutes. greenstalk comes with `make setup`. A missing beanstalkd is installed
    with apt-get if you are root; else the error shows the command to install it.
    """
    from godwit_bench import jobs as jobs_bench

    _run(jobs_bench.run, as_json, may_install=True, folder=folder, rounds=rounds, seconds=seconds)


@app.command("anomalies", epilog="Example: godwit bench anomalies --data ../shared/data")
def anomalies(
    data: Annotated[
        Path, typer.Option(file_okay=False, help="Folder with the series: nab and suthaharan_multihop.")
    ] = Path("../shared/data"),
    nab: Annotated[
        Path | None,
        typer.Option(
            file_okay=False, help="Checkout of github.com/numenta/NAB: score all of its series. Cloned if missing."
        ),
    ] = None,
    held_out: Annotated[
        bool, typer.Option(help="With --nab: also score other parameters, chosen without each family of series.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The pipeline's detector against a rolling rule of three deviations, on real series with labelled anomalies.

    With `--nab`, its score on all series of the Numenta Anomaly Benchmark, by the scorer of that benchmark; the folder
    of `--data` may then be missing.
    """
    from godwit_bench import anomalies as anomalies_bench
    from godwit_bench import nab as nab_bench
    from godwit_bench.anomalies import figures, print_comparisons

    with Console(stderr=True).status("starting") as status:

        def on_round(name: str) -> None:
            status.update(f"measuring: {name}")

        found = anomalies_bench.run(data, on_round) if nab is None or data.exists() else []
        of_nab = None if nab is None else nab_bench.run(nab, on_round)
        settings = nab_bench.run_settings(nab, on_round) if nab is not None and held_out else []
    if as_json:
        reports = [figures(found)] if found else []
        if of_nab is not None:
            more = list(nab_bench.held_out_results(settings)) if settings else []
            reports.append(nab_bench.figures(of_nab, more))
        print_report(merged(reports), as_json=True)
        return
    if found:
        print_comparisons(found)
    if of_nab is not None:
        nab_bench.print_series(of_nab)
    if settings:
        nab_bench.print_settings(settings)


@app.command("spark", epilog="Example: godwit bench spark --json")
def spark(
    rounds: Rounds = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="Duration of the measurement of the delay.")] = 30.0,
    folder: Folder = Path(),
    as_json: AsJson = False,
) -> None:
    """The source for Spark against a bare Python source with the same rows, and the delay from publishing to bronze.

    Takes some minutes. It needs `pip install 'godwit-mq[spark]'` and Java.
    """
    from godwit.cli.pipeline_run import require_java, require_packages

    require_packages()
    require_java(is_installed_unasked=False)
    from godwit_bench import spark as spark_bench

    _run(spark_bench.run, as_json, folder=folder, rounds=rounds, seconds=seconds)


@app.command("pipeline", epilog="Example: godwit bench pipeline --json")
def pipeline(
    rounds: Rounds = 3,
    seconds: Annotated[float, typer.Option(min=0.1, help="Duration of the measurement of the delay.")] = 30.0,
    messages: Annotated[int, typer.Option(min=10_000, help="Messages in the log.")] = 2_000_000,
    steps: Annotated[int, typer.Option(min=100, help="Small steps, of which the last are compared.")] = 1_000,
    folder: Folder = Path(),
    as_json: AsJson = False,
) -> None:
    """The pipeline against a plain PySpark job, a second run, many small steps, the delay to bronze, and memory.

    Takes half an hour. It needs `pip install 'godwit-mq[spark]'` and Java.
    """
    from godwit.cli.pipeline_run import require_java, require_packages

    require_packages()
    require_java(is_installed_unasked=False)
    from godwit_bench import pipeline as pipeline_bench

    _run(
        pipeline_bench.run,
        as_json,
        folder=folder,
        rounds=rounds,
        seconds=seconds,
        messages=messages,
        steps=steps,
    )


@app.command("startup", epilog="Example: godwit bench startup --json")
def startup(rounds: Rounds = 7, as_json: AsJson = False) -> None:
    """How quickly the command line starts: processor time of --version, --help and pub, and the time of a query.

    The query needs `pip install 'godwit-mq[spark]'`, and no Java.
    """
    from godwit_bench import startup as startup_bench

    _run(startup_bench.run, as_json, rounds=rounds)
