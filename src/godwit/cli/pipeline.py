"""`godwit pipeline`: keep brokers' logs as tables in a lake, and query them. It runs on Spark."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from godwit.cli.connection import DEFAULT_BROKER, BrokerOption
from godwit.errors import UsageError

DEFAULT_LAKE: Final = "godwit-lake"
DEFAULT_ROWS: Final = 1000

LakeOption = Annotated[
    str,
    typer.Option(
        "--lake", metavar="DIR", help="Location of the tables: a folder, or an address such as s3://bucket/path."
    ),
]
MasterOption = Annotated[
    str, typer.Option("--master", metavar="URL", help="Spark master: local[N], spark://HOST:PORT, yarn or k8s://URL.")
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="Setting of Spark; may be repeated.", show_default=False),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Install a missing Java without asking.")]
ArchiveOption = Annotated[
    list[str] | None,
    typer.Option(
        "--archive",
        metavar="HOST:PORT",
        help="Address of a broker's archive, or of replicas of one log, as 'A|B'; may be repeated.",
        show_default="host of the broker, its port plus one",
    ),
]
TokenOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        readable=False,
        help="File with the token for the archive.",
        show_default="the variable GODWIT_ARCHIVE_TOKEN",
    ),
]
CertificateOption = Annotated[
    Path | None,
    typer.Option(
        "--certificate-file",
        metavar="FILE",
        readable=False,
        help="Certificate to trust, for an archive at grpc+tls://HOST:PORT.",
        show_default=False,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        readable=False,
        help="Configuration of the decoders and of retention (TOML).",
        show_default="pipeline.toml in the lake",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
LOCAL: Final = "local[*,4]"
"""All processors of this machine, with four attempts per task, as on a cluster."""


class QueryEngine(StrEnum):
    """The program that executes a query."""

    DUCKDB = "duckdb"
    SPARK = "spark"


app = typer.Typer(no_args_is_help=True)


def register(root: typer.Typer) -> None:
    """Add `godwit pipeline`."""
    root.add_typer(app, name="pipeline")


@app.callback(epilog="Example: godwit pipeline run --once")
def pipeline() -> None:
    """Keep brokers' logs as tables: messages, readings, windows, devices, traffic, jobs, anomalies. Runs on Spark."""


@app.command("run", epilog="Example: godwit pipeline run --archive one:50001 --archive two:50001")
def run(
    once: Annotated[bool, typer.Option("--once", help="End when the current messages of the logs are read.")] = False,
    archive: ArchiveOption = None,
    broker: BrokerOption = DEFAULT_BROKER,
    master: MasterOption = LOCAL,
    lake: LakeOption = DEFAULT_LAKE,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topics", metavar="FILTER", help="Only topics that match; may be repeated.", show_default="all"),
    ] = None,
    trigger: Annotated[float, typer.Option("--trigger", metavar="SECONDS", help="Interval between two batches.")] = 1.0,
    fail_on_data_loss: Annotated[
        bool,
        typer.Option(
            "--fail-on-data-loss/--no-fail-on-data-loss",
            help="End when messages were deleted before they were read, or continue without them.",
        ),
    ] = True,
    token_file: TokenOption = None,
    certificate_file: CertificateOption = None,
    config: ConfigOption = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="TCP address that serves metrics of the run for Prometheus.",
            show_default="none",
        ),
    ] = None,
    conf: ConfOption = None,
    yes: YesOption = False,
) -> None:
    """Read the logs into the tables of the lake until Ctrl-C, continuing after the last run.

    A run may be ended at any moment, even by a power failure: each message is in the tables once. A query that fails
    is started again. The messages of Spark are in the lake, in _logs/spark.log.
    """
    from godwit.cli.pipeline_run import SourceOptions, SparkOptions, run_pipeline

    if not 0.001 <= trigger <= 3600:
        raise UsageError(f"--trigger {trigger:g} is out of range; give seconds, from 0.001 to 3600")
    sources = SourceOptions(archive or [], broker, topics or [], token_file, certificate_file, fail_on_data_loss)
    options = SparkOptions(master, conf or [], yes)
    run_pipeline(options, lake, sources, config, is_once=once, trigger_s=trigger, metrics=metrics)


@app.command("status", epilog="Example: godwit pipeline status --json")
def status(
    archive: ArchiveOption = None,
    broker: BrokerOption = DEFAULT_BROKER,
    lake: LakeOption = DEFAULT_LAKE,
    token_file: TokenOption = None,
    certificate_file: CertificateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the progress: unread messages, the last batch, and the size of each table. Works during a run."""
    from godwit.cli.pipeline_run import SourceOptions
    from godwit.cli.pipeline_show import show_status

    show_status(lake, SourceOptions(archive or [], broker, [], token_file, certificate_file), as_json=as_json)


@app.command("query", epilog="Example: godwit pipeline query 'SELECT count(*) FROM silver_readings'")
def query(
    sql: Annotated[
        str,
        typer.Argument(
            metavar="SQL", help="Query on the tables bronze_messages, silver_readings, gold_windows and so on."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per row.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a line of titles.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            help="Largest number of rows.",
            show_default=f"{DEFAULT_ROWS}, with --json or --csv all",
        ),
    ] = None,
    engine: Annotated[
        QueryEngine,
        typer.Option(
            "--engine", metavar="duckdb|spark", help="SQL of DuckDB, in about a second, or of Spark, on Java."
        ),
    ] = QueryEngine.DUCKDB,
    master: MasterOption = LOCAL,
    lake: LakeOption = DEFAULT_LAKE,
    conf: ConfOption = None,
    yes: YesOption = False,
) -> None:
    """Query the tables in SQL, which can read them and nothing else. Works during a run.

    With --engine spark, SQL can also read files of this machine and call Java: do not run statements of others.
    """
    from godwit.cli.pipeline_run import SparkOptions
    from godwit.cli.pipeline_show import show_query

    if engine is not QueryEngine.SPARK and (conf or master != LOCAL):
        raise UsageError("--master and --conf are for Spark: give --engine spark, too")
    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other: give one of them")
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit} is out of range; give a number from 1 upward")
    form = "json" if as_json else "csv" if as_csv else "table"
    spark = SparkOptions(master, conf or [], yes) if engine is QueryEngine.SPARK else None
    show_query(spark, lake, sql, form, limit)


@app.command("check", epilog="Example: godwit pipeline check --all")
def check(
    is_complete: Annotated[
        bool, typer.Option("--all", help="Check all messages, not only changes since the last check.")
    ] = False,
    master: MasterOption = LOCAL,
    lake: LakeOption = DEFAULT_LAKE,
    config: ConfigOption = None,
    conf: ConfOption = None,
    yes: YesOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per check.")] = False,
) -> None:
    """Check the tables: no duplicates, no losses between tables, and no impossible values.

    Only changes since the last check without errors are examined. The exit code is 1 if a check fails. No run may
    write during the checks. Spark starts only if gold is not up to date.
    """
    from godwit.cli.pipeline_run import SparkOptions, run_check

    run_check(SparkOptions(master, conf or [], yes), lake, config, is_complete=is_complete, as_json=as_json)


@app.command("rebuild", epilog="Example: godwit pipeline rebuild --from 2026-11-01 --to 2026-11-15T12:00")
def rebuild(
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help="First time, such as 2026-11-01T12:00 (UTC).", show_default="the first"
        ),
    ] = None,
    stop: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Time to end before.", show_default="the last")
    ] = None,
    master: MasterOption = LOCAL,
    lake: LakeOption = DEFAULT_LAKE,
    conf: ConfOption = None,
    yes: YesOption = False,
) -> None:
    """Make the gold tables again from silver and bronze, for the hours of a range of time.

    Windows are chosen by the time of the readings, traffic and jobs by the time received. Devices are made from all
    messages.
    """
    from godwit.cli.pipeline_run import SparkOptions, run_rebuild

    run_rebuild(SparkOptions(master, conf or [], yes), lake, start, stop)


@app.command("requeue", epilog="Example: godwit pipeline requeue --all")
def requeue(
    is_all: Annotated[
        bool, typer.Option("--all", help="Decode all messages of bronze again, not only those in quarantine.")
    ] = False,
    config: ConfigOption = None,
    master: MasterOption = LOCAL,
    lake: LakeOption = DEFAULT_LAKE,
    conf: ConfOption = None,
    yes: YesOption = False,
) -> None:
    """Decode the quarantine again, as after an update or a change of the configuration.

    New readings go to silver and to their windows. With --all, silver, quarantine and windows are made again from
    bronze; anomalies are not.
    """
    from godwit.cli.pipeline_run import SparkOptions, run_requeue

    run_requeue(SparkOptions(master, conf or [], yes), lake, config, is_all=is_all)


@app.command("decode", epilog="Example: godwit pipeline decode home/kitchen/temperature '70 deg F'")
def decode(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Topic of the message.")] = None,
    payload: Annotated[
        str | None, typer.Argument(metavar="PAYLOAD|@FILE", help="Payload, or the file that has it.")
    ] = None,
    lines: Annotated[
        bool,
        typer.Option(
            "--lines",
            help="Read messages from standard input, one JSON object a line with topic, payload_base64 and perhaps "
            "content_type, and print one a line.",
        ),
    ] = False,
    content_type: Annotated[
        str | None,
        typer.Option("--content-type", metavar="TYPE", help="Content type of the message, such as application/cbor."),
    ] = None,
    config: ConfigOption = None,
    lake: LakeOption = DEFAULT_LAKE,
) -> None:
    """Show what the pipeline reads from a payload, or why it would go to quarantine. No Spark is started."""
    from godwit.cli.pipeline_decode import decode_lines, load_decoders, show_decoded

    if lines and topic is not None:
        raise UsageError("with --lines the messages come from standard input: leave out TOPIC and PAYLOAD")
    if lines and content_type is not None:
        raise UsageError("with --lines each message has its own content_type: leave out --content-type")
    if not lines and (topic is None or payload is None):
        raise UsageError("give TOPIC and PAYLOAD (or @FILE), or --lines")
    decoders = load_decoders(config, lake)
    if lines:
        decode_lines(decoders)
    elif topic is not None and payload is not None:
        show_decoded(decoders, topic, payload, content_type)


@app.command("quarantine", epilog="Example: godwit pipeline quarantine --json")
def quarantine(lake: LakeOption = DEFAULT_LAKE, as_json: JsonOption = False) -> None:
    """List the reasons for quarantine with counts and a suggested configuration. Works during a run, without Java."""
    from godwit.cli.pipeline_show import show_quarantine

    show_quarantine(lake, as_json=as_json)


@app.command("report", epilog="Example: godwit pipeline report --output report.html")
def report(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", readable=False, help="File to create.")
    ] = Path("godwit-report.html"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    lake: LakeOption = DEFAULT_LAKE,
) -> None:
    """Make one self-contained HTML file with plots of the gold tables. Works during a run, and without Java."""
    from godwit.cli.pipeline_show import write_report_file

    write_report_file(lake, output, force=force)
