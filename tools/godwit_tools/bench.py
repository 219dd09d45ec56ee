"""`godwit bench`: measure on this machine, side by side with peers and limits."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from godwit.cli.connection import (
    DEFAULT_BROKER,
    REQUEST_TIMEOUT_S,
    ArqOption,
    BrokerOption,
    NameOption,
    SecretOption,
    Target,
    TimeoutOption,
)
from godwit.errors import UsageError
from godwit_bench import forward as forward_bench
from godwit_bench import transport as transport_bench
from godwit_bench.report import Report, merged, print_report
from godwit_bench.sealed import report_forward

app = typer.Typer(no_args_is_help=True, help="Measure Godwit against peers and limits, in one run on this machine.")

Rounds = Annotated[int, typer.Option(min=1, help="Number of rounds; the medians are shown.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="Duration of each measurement of a round.")]
IsSealed = Annotated[bool, typer.Option("--sealed", help="Compare sealed connections with plain ones instead.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Folder = Annotated[
    Path,
    typer.Option(
        exists=True,
        file_okay=False,
        help="Folder on the disk to be measured; all written files are removed.",
    ),
]


@app.callback(epilog="Example: godwit bench transport --rounds 5")
def group() -> None:
    """Measure Godwit against peers and limits, in one run on this machine."""


def _run(measure: Callable[..., Report], as_json: bool, *, may_install: bool = False, **options: Any) -> None:
    """Run a benchmark with its progress on stderr, and print its report."""
    folder = options.get("folder")
    if folder is not None and not os.access(folder, os.W_OK):
        raise UsageError(f"the folder {folder} cannot be written to: name another one with --folder")
    console = Console(stderr=True)
    if may_install:
        options["on_install"] = lambda command: console.print(f"a peer is missing, installing it: {command}")
    with console.status("starting") as status:
        report = measure(on_round=lambda name: status.update(f"measuring: {name}"), **options)
    print_report(report, as_json=as_json)


@app.command("transport", epilog="Example: godwit bench transport --json")
def transport(rounds: Rounds = 9, seconds: Seconds = 0.7, sealed: IsSealed = False, as_json: AsJson = False) -> None:
    """The reliable transport against raw UDP from Python, between two processes on loopback.

    With --sealed also the time of handshakes, and the memory of connections.
    """
    _run(transport_bench.run_sealed if sealed else transport_bench.run, as_json, rounds=rounds, seconds=seconds)


@app.command("forward", epilog="Example: godwit bench forward --json")
def forward(rounds: Rounds = 5, seconds: Seconds = 1.0, sealed: IsSealed = False, as_json: AsJson = False) -> None:
    """The broker against Zenoh, NATS and Mosquitto, and against itself with 100,000 more subscriptions.

    Takes about one and a half minutes. The peers' clients come with `make setup`. Missing mosquitto and
    nats-server are installed with apt-get if you are root; else the error shows the command to install them.
    """
    if sealed:
        _run(report_forward, as_json, rounds=rounds, seconds=seconds)
    else:
        _run(forward_bench.run, as_json, may_install=True, rounds=rounds, seconds=seconds)


@app.command("log", epilog="Example: godwit bench log --folder /var/lib --json")
def log(rounds: Rounds = 5, seconds: Seconds = 3.0, folder: Folder = Path(), as_json: AsJson = False) -> None:
    """Confirmed publishes on disk against JetStream, and bytes per second against the bare disk.

    Takes about one and a half minutes and a few gigabytes. nats-py comes with `make setup`. A missing
    nats-server is installed with apt-get if you are root; else the error shows the command to install it.
    """
    from godwit_bench import log as log_bench

    _run(log_bench.run, as_json, may_install=True, folder=folder, rounds=rounds, seconds=seconds)


@app.command("cluster", epilog="Example: godwit bench cluster --kills 10 --json")
def cluster(
    rounds: Rounds = 3,
    seconds: Seconds = 3.0,
    kills: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="Kills of the active node, of each of the two kinds.")
    ] = 20,
    folder: Folder = Path(),
    as_json: AsJson = False,
) -> None:
    """A cluster of brokers: pauses after a kill, confirms and throughput against a broker alone, catch-up, a bridge.

    Takes about ten minutes and some gigabytes. It needs `pip install 'godwit-mq[cluster]'`, which has the servers.
    """
    from godwit_bench import cluster as cluster_bench

    _run(cluster_bench.run, as_json, folder=folder, rounds=rounds, seconds=seconds, kills=kills)


@app.command("console", epilog="Example: godwit bench console --json")
def console(rounds: Rounds = 5, seconds: Seconds = 3.0, as_json: AsJson = False) -> None:
    """Measure how fast a broker forwards with an open web console and scraped metrics, and alone."""
    from godwit_bench import console as console_bench

    _run(console_bench.run, as_json, rounds=rounds, seconds=seconds)


@app.command("groups", epilog="Example: godwit bench groups --json")
def groups(
    rounds: Rounds = 3,
    messages: Annotated[int, typer.Option(min=100, help="Messages for Godwit; JetStream gets a quarter.")] = 200_000,
    members: Annotated[int, typer.Option(min=1, max=64, help="Members of the group, a process each.")] = 4,
    folder: Folder = Path(),
    as_json: AsJson = False,
) -> None:
    """A consumer group against the queue consumers of JetStream, pull and push: received and acknowledged messages.

    Takes about a minute. nats-py comes with `make setup`. A missing nats-server is installed with apt-get if you are
    root; else the error shows the command to install it.
    """
    from godwit_bench import groups as groups_bench

    _run(
        groups_bench.run,
        as_json,
        may_install=True,
        folder=folder,
        rounds=rounds,
        messages=messages,
        members=members,
    )


@app.command("mqtt", epilog="Example: godwit bench mqtt --rounds 3 --json")
def mqtt(rounds: Rounds = 5, seconds: Seconds = 1.5, folder: Folder = Path(), as_json: AsJson = False) -> None:
    """The MQTT listener against Mosquitto: QoS 0, QoS 1 on disk, 1,000 senders, 1,000 topics, a session that resumes.

    Takes about two minutes, and compiles a small load generator with the C compiler of this machine. A missing
    mosquitto is installed with apt-get if you are root; else the error shows the command to install it.
    """
    from godwit_bench import mqtt as mqtt_bench

    _run(mqtt_bench.run, as_json, may_install=True, folder=folder, rounds=rounds, seconds=seconds)


@app.command("clients", epilog="Example: godwit bench clients --clients 1000 --seconds 10 --json")
def clients(
    count: Annotated[
        int, typer.Option("--clients", min=1, max=20_000, metavar="N", help="Idle clients, and clients that reconnect.")
    ] = 10_000,
    seconds: Annotated[float, typer.Option(min=0.1, help="Duration of the measurement of idle clients.")] = 20.0,
    folder: Folder = Path(),
    as_json: AsJson = False,
) -> None:
    """Many clients of one broker: idle, all reconnecting after its restart, and one with 256 subscriptions.

    Measures the broker's processor time while the clients are idle, how long it takes until all are back, how long
    a message of an open publisher and subscriber waits meanwhile, and how long a session with 256 subscriptions takes
    to resume after 2,000 messages. Takes about two minutes and 1 GB of memory.
    """
    from godwit_bench import clients as clients_bench

    _run(clients_bench.run, as_json, clients=count, seconds=seconds, folder=folder)


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


# -- a broker of the user's -------------------------------------------------------------------------------------------

Topic = Annotated[str, typer.Option(metavar="TOPIC", help="Topic of the messages.")]
Messages = Annotated[int, typer.Option("--messages", "-n", min=1, metavar="N", help="Number of messages in all.")]
Size = Annotated[int, typer.Option(min=0, max=1_000_000, metavar="BYTES", help="Size of a payload.")]
Quality = Annotated[int, typer.Option(min=0, max=2, help="QoS of the messages.")]
Clients = Annotated[int, typer.Option("--clients", "-c", min=1, max=1000, metavar="N", help="Number of clients.")]


def _connection(target: Target) -> dict[str, Any]:
    """Return the arguments of a load that say which broker it is for, and how it connects."""
    return {
        "broker": target.broker,
        "name": target.name,
        "secret": target.secret,
        "timeout_s": target.timeout_s,
        "endpoint": target.endpoint(),
        "security": target.security(),
    }


@app.command("pub", epilog="Example: godwit bench pub --broker broker.local -n 100000 --clients 4")
def pub(
    messages: Messages = 100_000,
    size: Size = 100,
    clients: Clients = 1,
    qos: Quality = 1,
    topic: Topic = "bench/load",
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Publish to a broker of yours as fast as it confirms. QoS 1 and 2 end when everything is confirmed."""
    from godwit_bench import broker as broker_bench

    target = Target.of(broker, name, secret_file, timeout, arq)
    load = broker_bench.BrokerLoad(
        **_connection(target), topic=topic, clients=clients, messages=messages, size=size, qos=qos
    )
    _run(broker_bench.publish, as_json, load=load)


@app.command("sub", epilog="Example: godwit bench sub --broker broker.local --messages 1000000")
def sub(
    messages: Messages = 100_000,
    clients: Clients = 1,
    topic: Topic = "bench/load",
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Receive what `godwit bench pub` sends to a broker of yours; each client receives all messages.

    Start it before `godwit bench pub`, with the same topic and number of messages. The time begins with the first one.
    """
    from godwit_bench import broker as broker_bench

    target = Target.of(broker, name, secret_file, timeout, arq)
    load = broker_bench.BrokerLoad(**_connection(target), topic=topic, clients=clients, messages=messages)
    _run(broker_bench.subscribe, as_json, load=load)


@app.command("latency", epilog="Example: godwit bench latency --broker broker.local --rate 1000")
def latency(
    rounds: Rounds = 5,
    seconds: Seconds = 1.0,
    folder: Folder = Path(),
    broker: Annotated[
        str | None, typer.Option(metavar="HOST[:PORT]", help="A broker of yours, in place of the comparison.")
    ] = None,
    messages: Messages = 1_000,
    rate: Annotated[
        float, typer.Option(min=0.1, max=1e6, metavar="R", help="Messages per second, with --broker.")
    ] = 100.0,
    size: Annotated[
        int, typer.Option(min=8, max=1_000_000, metavar="BYTES", help="Size of a payload, with --broker.")
    ] = 100,
    qos: Quality = 1,
    topic: Topic = "bench/latency",
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """The round trip of one message against NATS, Mosquitto, Zenoh and a bare UDP relay; or that of a broker of yours.

    With --broker: the time from publishing to the arrival at a subscriber, both on this machine. Else the comparison,
    which takes about two minutes. The peers' clients come with `make setup`. Missing mosquitto and nats-server are
    installed with apt-get if you are root; else the error shows the command to install them.
    """
    if broker is None:
        from godwit_bench import latency as latency_bench

        _run(latency_bench.run, as_json, may_install=True, folder=folder, rounds=rounds, seconds=seconds)
        return
    from godwit_bench import broker as broker_bench

    target = Target.of(broker, name, secret_file, timeout, arq)
    load = broker_bench.BrokerLoad(**_connection(target), topic=topic, messages=messages, size=size, qos=qos)
    _run(broker_bench.latency, as_json, load=load, rate=rate)
