"""`godwit pipeline`: brokers' logs as tables in a lake, and what can be asked of them. It runs on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from godwit.cli.connecting import DEFAULT_BROKER, BrokerOption
from godwit.errors import UsageError

DEFAULT_LAKE: Final = "godwit-lake"
DEFAULT_ROWS: Final = 1000

LakeOption = Annotated[
    str,
    typer.Option("--lake", metavar="DIR", help="Where the tables are: a folder, or an address as s3://bucket/path."),
]
MasterOption = Annotated[
    str, typer.Option("--master", metavar="URL", help="Where Spark runs: here, or spark://HOST:PORT, yarn, k8s://URL.")
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's own; may be repeated.", show_default=False),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Install Java without asking, if it is missing.")]
ArchiveOption = Annotated[
    list[str] | None,
    typer.Option(
        "--archive",
        metavar="HOST:PORT",
        help="A broker's archive; may be repeated. The broker's host, and its port plus one, unless given.",
        show_default=False,
    ),
]
TokenOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        readable=False,
        help="Holds the archive's token; else it is in GODWIT_ARCHIVE_TOKEN.",
        show_default=False,
    ),
]
CertificateOption = Annotated[
    Path | None,
    typer.Option(
        "--certificate-file",
        metavar="FILE",
        readable=False,
        help="The certificate to trust, for an archive at grpc+tls://HOST:PORT.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object.")]
LOCAL: Final = "local[*,4]"
"""All processors; a task that fails is tried again, as on a cluster."""

app = typer.Typer(no_args_is_help=True, help="Keep brokers' logs as tables, and ask them.")


def register(root: typer.Typer) -> None:
    """Adds `godwit pipeline`."""
    root.add_typer(app, name="pipeline")


@app.callback(epilog="Example: godwit pipeline run --once")
def pipeline() -> None:
    """Keep brokers' logs as tables: messages, readings, windows, devices, traffic, jobs, anomalies. Runs on Spark."""


@app.command("run", epilog="Example: godwit pipeline run --archive one:50001 --archive two:50001 --lake /data/lake")
def run(
    once: Annotated[bool, typer.Option("--once", help="Up to what the logs have now, then end.")] = False,
    archive: ArchiveOption = None,
    broker: BrokerOption = DEFAULT_BROKER,
    master: MasterOption = LOCAL,
    lake: LakeOption = DEFAULT_LAKE,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topics", metavar="FILTER", help="Only these; may be repeated. All unless given."),
    ] = None,
    trigger: Annotated[float, typer.Option("--trigger", metavar="SECONDS", help="How often to look for more.")] = 1.0,
    fail_on_data_loss: Annotated[
        bool,
        typer.Option(
            "--fail-on-data-loss/--no-fail-on-data-loss",
            help="End when messages are gone before they were read, or go on without them.",
        ),
    ] = True,
    token_file: TokenOption = None,
    certificate_file: CertificateOption = None,
    conf: ConfOption = None,
    yes: YesOption = False,
) -> None:
    """Read the logs into the tables of the lake, until Ctrl-C; what was read before is not read again.

    It may end at any moment, also by a power cut: each message is in the tables once. A query that fails is started
    again. What Spark has to say is in the lake, in _logs/spark.log.
    """
    from godwit.cli.pipeline_run import run_pipeline
    from godwit.cli.pipeline_spark import Sources, Spark

    if not 0.001 <= trigger <= 3600:
        raise UsageError(f"--trigger {trigger:g} cannot be; give seconds, from 0.001 to 3600")
    sources = Sources(archive or [], broker, topics or [], token_file, certificate_file, fail_on_data_loss)
    run_pipeline(Spark(master, conf or [], yes), lake, sources, is_once=once, trigger_s=trigger)


@app.command("status", epilog="Example: godwit pipeline status --json")
def status(
    archive: ArchiveOption = None,
    broker: BrokerOption = DEFAULT_BROKER,
    lake: LakeOption = DEFAULT_LAKE,
    token_file: TokenOption = None,
    certificate_file: CertificateOption = None,
    as_json: JsonOption = False,
) -> None:
    """How far it has got: messages not read yet, the last batch, and the rows of each table. Also during a run."""
    from godwit.cli.pipeline_show import show_status
    from godwit.cli.pipeline_spark import Sources

    show_status(lake, Sources(archive or [], broker, [], token_file, certificate_file), as_json=as_json)


@app.command(
    "query", epilog='Example: godwit pipeline query "SELECT topic, max(value) FROM silver_readings GROUP BY topic"'
)
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="Tables are called bronze_messages, gold_windows, ...")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="A line of titles, then a line a row.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", help=f"At most so many rows; {DEFAULT_ROWS} in a table unless given, else all."
        ),
    ] = None,
    master: MasterOption = LOCAL,
    lake: LakeOption = DEFAULT_LAKE,
    conf: ConfOption = None,
    yes: YesOption = False,
) -> None:
    """Ask the tables in SQL, also during a run. Spark takes some seconds to start."""
    from godwit.cli.pipeline_show import show_query
    from godwit.cli.pipeline_spark import Spark

    if as_json and as_csv:
        raise UsageError("--json and --csv are two ways to print: give one of them")
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit} cannot be; give a number from 1 upward")
    form = "json" if as_json else "csv" if as_csv else "table"
    show_query(Spark(master, conf or [], yes), lake, sql, form, limit)


@app.command("check", epilog="Example: godwit pipeline check")
def check(
    master: MasterOption = LOCAL,
    lake: LakeOption = DEFAULT_LAKE,
    conf: ConfOption = None,
    yes: YesOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a check.")] = False,
) -> None:
    """Look whether the tables are right: nothing twice, nothing lost on the way, no value that cannot be.

    It ends with 1 if they are not. While it looks no run may write.
    """
    from godwit.cli.pipeline_repair import run_check
    from godwit.cli.pipeline_spark import Spark

    run_check(Spark(master, conf or [], yes), lake, as_json=as_json)


@app.command("rebuild", epilog="Example: godwit pipeline rebuild --from 2026-11-01 --to 2026-11-15T12:00")
def rebuild(
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="As 2026-11-01T12:00 (UTC); the beginning unless given."),
    ] = None,
    stop: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Before which to end; the end unless given.")
    ] = None,
    master: MasterOption = LOCAL,
    lake: LakeOption = DEFAULT_LAKE,
    conf: ConfOption = None,
    yes: YesOption = False,
) -> None:
    """Make gold anew from silver and bronze, for the hours of a range of time, in the place of what is there.

    Windows go by the time of readings, traffic and jobs by the time received; devices are made from all messages.
    """
    from godwit.cli.pipeline_repair import run_rebuild
    from godwit.cli.pipeline_spark import Spark

    run_rebuild(Spark(master, conf or [], yes), lake, start, stop)


@app.command("requeue", epilog="Example: godwit pipeline requeue")
def requeue(
    master: MasterOption = LOCAL, lake: LakeOption = DEFAULT_LAKE, conf: ConfOption = None, yes: YesOption = False
) -> None:
    """Read quarantine again, as after an update: what is a reading now goes to silver and its windows."""
    from godwit.cli.pipeline_repair import run_requeue
    from godwit.cli.pipeline_spark import Spark

    run_requeue(Spark(master, conf or [], yes), lake)


@app.command("report", epilog="Example: godwit pipeline report --output report.html")
def report(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", readable=False, help="The file to make.")
    ] = Path("godwit-report.html"),
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    lake: LakeOption = DEFAULT_LAKE,
) -> None:
    """One HTML file with plots of the gold tables, which needs nothing else. Also during a run, and without Java."""
    from godwit.cli.pipeline_show import write_report_file

    write_report_file(lake, output, force=force)
