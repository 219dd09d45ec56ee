"""`godwit pipeline run`, `check`, `rebuild` and `requeue`, and what all pipeline commands share.

Shared are: packages, Java, the Spark session, the lock of the lake, and errors in one sentence.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from socket import socket
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from godwit.cli.connection import EXIT_TERMINATED, print_notice
from godwit.cli.interrupts import prompt_interrupts
from godwit.cli.tables import Column, show_objects, show_table
from godwit.cli.text import count, parse_position, safe
from godwit.errors import GodwitError, UsageError
from godwit.install import pip_command
from godwit.net.address import parse_broker, parse_brokers

if TYPE_CHECKING:
    from godwit.pipeline.decoders.selection import DecoderRule
    from godwit.pipeline.lake import Lake
    from godwit.pipeline.session import Session
    from godwit.pipeline.supervisor import BatchProgress, RunListener


PACKAGES: Final = ("pyspark", "deltalake", "duckdb", "datasketches", "pyarrow", "pandas")
MAX_PORT: Final = 65535
METRICS_PORT: Final = 9465
"""Default port of metrics: that of the broker is one lower."""
DEVICES: Final = "gold/devices"
"""The table that is rebuilt as a whole."""
SPECIAL_CHARACTERS: Final = "%\\[]{}*?"
"""Characters that Spark reads as patterns or Delta as escapes."""
SPECIAL_IN_ADDRESSES: Final = " #"
"""Characters that are escaped in addresses, in different ways by different libraries."""
SCHEMES: Final = ("s3", "gs", "abfss", "hdfs")
"""Schemes of addresses that both deltalake and pyarrow know. A folder has one name only, because of its lock."""


@dataclass(frozen=True)
class SparkOptions:
    """The options for Spark as typed."""

    master: str
    conf: list[str]
    is_java_installed_unasked: bool

    def settings(self) -> dict[str, str]:
        found = {}
        for text in self.conf:
            name, equals, value = text.partition("=")
            if not equals or not name.startswith("spark."):
                raise UsageError(f"--conf {text!r} is not a setting of Spark; write it as spark.executor.memory=4g")
            found[name] = value
        return found


@dataclass(frozen=True)
class SourceOptions:
    """The options for the logs to read as typed."""

    archives: list[str]
    broker: str
    topics: list[str]
    token_file: Path | None = None
    certificate_file: Path | None = None
    fails_on_data_loss: bool = True

    def options(self) -> dict[str, str]:
        """Return the options of format("godwit")."""
        found = {"archive": ",".join(self.archives or [default_archive(self.broker)])}
        if self.topics:
            found["topics"] = ",".join(self.topics)
        if self.token_file is not None:
            found["tokenFile"] = str(self.token_file.absolute())
        if self.certificate_file is not None:
            found["certificateFile"] = str(self.certificate_file.absolute())
        if not self.fails_on_data_loss:
            found["failOnDataLoss"] = "false"
        return found

    def warn_of_plain_token(self) -> None:
        """Print a warning if a token would be sent unencrypted to another machine. Ignores invalid options."""
        from godwit.pipeline.errors import PipelineError
        from godwit.pipeline.status import check_options

        with suppress(PipelineError):  # reported by the code that uses the options
            if warning := check_options(self.options()).access.plain_token_warning():
                print_notice(warning)


def default_archive(broker: str) -> str:
    """Return the default address of a broker's archive: its host, and its port plus one. Several brokers are replicas.

    Raises:
        UsageError: A port has no successor.
    """
    found = []
    for host, port in parse_brokers(broker):
        if not 0 < port < MAX_PORT:
            raise UsageError(f"the archive of a broker at port {port} has no default address: give it with --archive")
        found.append(f"[{host}]:{port + 1}" if ":" in host else f"{host}:{port + 1}")
    return "|".join(found)


def open_lake(address: str, *, must_exist: bool) -> Lake:
    """Return the lake at an address.

    Raises:
        UsageError: A package is missing, or the address has an unknown scheme, or a character that Spark or the
            libraries for object stores cannot handle.
        GodwitError: The lake does not exist, or its object store cannot be used.
    """
    require_packages()
    from godwit.pipeline.lake import Lake

    scheme, separator, place = address.partition("://")
    special = SPECIAL_CHARACTERS + (SPECIAL_IN_ADDRESSES if separator else "")
    if separator and (scheme not in SCHEMES or not place.strip("/")):
        raise UsageError(
            f"the lake {address!r} is not an address of an object store; write it as s3://bucket/path, "
            "gs://bucket/path or abfss://container@account.dfs.core.windows.net/path, or give the path of a folder"
        )
    path = address if separator else str(Path(address).absolute())
    if odd := sorted({letter for letter in path if letter in special or not letter.isprintable()}):
        raise UsageError(
            f"the path of a lake must not contain {' '.join(map(repr, odd))}: {address!r}; choose another path"
        )
    lake = Lake(path)
    with prompt_interrupts(), explained_errors():
        does_exist = lake.exists()
    if must_exist and not does_exist:
        raise GodwitError(
            f"the lake {address} does not exist: create it with godwit pipeline run, or name another with --lake"
        )
    return lake


def require_packages() -> None:
    """Check that the packages of the pipeline are installed.

    Raises:
        UsageError: A package is missing; the text has the command that installs it.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"the pipeline needs {', '.join(missing)}: run {pip_command('spark')}")


def require_java(*, is_installed_unasked: bool) -> None:
    """Find Java and set JAVA_HOME for Spark. Install Java if it is missing and the user agrees.

    Raises:
        GodwitError: Java is missing.
    """
    from godwit.pipeline import java

    found = java.find_java(os.environ)
    user = os.getuid()
    command = java.install_command(user)
    if found is None and user == 0 and command is not None and (is_installed_unasked or _agrees(command)):
        print_notice(f"running {' '.join(command)}")
        subprocess.run(command, check=False, stdout=sys.stderr)
        found = java.find_java(os.environ)
    if found is None:
        raise GodwitError(java.missing_text(user))
    os.environ.update(found.variables)


def _agrees(command: list[str]) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return typer.confirm(f"Spark needs Java, which is missing. Install it with {' '.join(command)}?", err=True)


@contextmanager
def status_line(text: str) -> Iterator[Status]:
    """Show a status on a terminal during the block. Its text can be updated."""
    status = Status(Text(safe(text)), console=Console(stderr=True))
    if not sys.stderr.isatty():
        yield status
        return
    with status:
        yield status


@contextmanager
def session(spark: SparkOptions, lake: Lake, status: Status, *, purpose: str | None = None) -> Iterator[Session]:
    """Yield a Spark session. With a `purpose`, hold the lock of the lake, so that no other process writes to it."""
    from godwit.pipeline.lock import LakeLock
    from godwit.pipeline.session import log_path, spark_session

    settings = spark.settings()
    require_java(is_installed_unasked=spark.is_java_installed_unasked)
    status.update("starting Spark")
    if purpose is None:
        log = log_path(lake).with_name("query.log")  # a run may be writing to the other log
        with spark_session(spark.master, log, settings) as found:
            yield found
        return
    with LakeLock(lake, purpose) as lock, spark_session(spark.master, log_path(lake), settings) as found:
        lock.share(found)
        yield found


@contextmanager
def explained_errors() -> Iterator[None]:
    """Turn errors of the pipeline into GodwitError, and end the block on SIGTERM as on Ctrl-C."""
    require_packages()
    from godwit.pipeline.errors import PipelineError, explained_store
    from godwit.pipeline.lake import LAKE_ERRORS

    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    except PipelineError as error:
        raise GodwitError(str(error)) from error
    except BrokenPipeError:  # of the output
        raise
    except LAKE_ERRORS as error:
        reason = explained_store(str(error)) or type(error).__name__
        raise GodwitError(f"reading or writing the lake failed: {reason}") from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(EXIT_TERMINATED)


# -- run --------------------------------------------------------------------------------------------------------------


def run_pipeline(
    spark: SparkOptions,
    lake_address: str,
    sources: SourceOptions,
    config: Path | None = None,
    *,
    is_once: bool,
    trigger_s: float,
    metrics: str | None = None,
) -> None:
    """Run the queries until all messages are read, or until Ctrl-C."""
    lake = open_lake(lake_address, must_exist=False)
    from godwit.pipeline.runner import RunConfig, run
    from godwit.pipeline.session import log_path
    from godwit.pipeline.status import check_options, find_logs

    options = sources.options()
    spark.settings()  # reports invalid settings before the archive is contacted
    with (
        opened_endpoint(metrics) as endpoint,
        explained_errors(),
        status_line(f"looking for the archive at {options['archive']}") as status,
    ):
        check_options(options)  # reports invalid ones before anything else is printed
        sources.warn_of_plain_token()
        rules, retention = configured_rules(config, lake), configured_retention(config, lake)
        if not sys.stderr.isatty():
            print_notice(f"looking for the archive at {options['archive']}")
        logs = find_logs(options)
        with session(spark, lake, status, purpose="godwit pipeline run") as found:
            archives = ", ".join(log.address for log in logs)
            status.stop()  # else the status and this line would be mixed
            print_now(f"reading {archives} into {lake.address}; Spark's own messages are in {log_path(lake)}")
            if sys.stderr.isatty():
                status.start()
            run_config = RunConfig(lake, options, is_once, trigger_s, rules, retention)
            with served_metrics(endpoint, _RunStatus(status, log_path(lake))) as listener:
                outcome = run(found, run_config, listener)
    for query, batches in outcome.batches.items():
        print_now(
            f"{query}: {count(outcome.rows[query], 'message')} in {batches:,} batch{'' if batches == 1 else 'es'}"
        )


@contextmanager
def opened_endpoint(listen: str | None) -> Iterator[socket | None]:
    """Open the socket for metrics, if there is an address: a port in use is reported before Spark is started.

    Raises:
        SocketError: The address cannot be used.
    """
    if listen is None:
        yield None
        return
    from godwit.metrics.server import open_endpoint

    with closing(open_endpoint(*parse_broker(listen, default_port=METRICS_PORT))) as handle:
        yield handle


@contextmanager
def served_metrics(handle: socket | None, listener: RunListener) -> Iterator[RunListener]:
    """Serve metrics of a run during the block, if there is a socket. Yield the listener of the run."""
    if handle is None:
        yield listener
        return
    from godwit.metrics.server import MetricsServer
    from godwit.pipeline.metrics import PipelineMetrics

    counted = PipelineMetrics(listener)
    server = MetricsServer(handle, counted.answers())
    print_now(f"metrics on {server.url}/metrics")
    try:
        yield counted
    finally:
        server.close()


def print_now(text: str) -> None:
    """Print a line and flush it, for a program that reads it."""
    typer.echo(safe(text))
    sys.stdout.flush()


class _RunStatus:
    """Shows one line on a terminal that changes with each batch, and prints failures."""

    def __init__(self, status: Status, log: Path) -> None:
        self._status = status
        self._log = log
        self._batches: dict[str, str] = {}
        status.update("working on the first batch")

    def on_batch(self, batch: BatchProgress) -> None:
        speed = batch.rows / batch.took_s if batch.took_s else 0.0
        self._batches[batch.query] = (
            f"{batch.query}: batch {batch.number}, {count(batch.rows, 'message')}, {speed:,.0f}/s, {batch.lag:,} behind"
        )
        self._status.update("   ".join(self._batches.values()))

    def on_failure(self, query: str, sentence: str, pause_s: float) -> None:
        print_notice(f"the query {query} failed: {sentence}; starting it again in {pause_s:g} s (see {self._log})")


# -- check, rebuild, requeue ------------------------------------------------------------------------------------------


def run_check(spark: SparkOptions, lake_address: str, config: Path | None, *, is_complete: bool, as_json: bool) -> None:
    """Run the checks and print the results. Spark starts only if gold has to be brought up to date first.

    Raises:
        GodwitError: A check failed.
    """
    lake = open_lake(lake_address, must_exist=True)
    from godwit.pipeline.checks import gold_is_behind, run_checks
    from godwit.pipeline.gold import Gold
    from godwit.pipeline.lock import LakeLock

    purpose = "godwit pipeline check"
    results = []
    spark.settings()  # reports invalid settings
    with explained_errors(), status_line("starting") as status:
        rules = configured_rules(config, lake)
        with prompt_interrupts():
            is_behind = gold_is_behind(lake)
        if is_behind:
            with session(spark, lake, status, purpose=purpose) as found:
                status.update("bringing gold up to date")
                Gold(lake).catch_up(found)
        with prompt_interrupts(), LakeLock(lake, purpose):
            for result in run_checks(lake, rules, is_complete=is_complete):
                results.append(result)
                status.update(f"{count(len(results), 'check')} done, the last of {result.table}")
    if as_json:
        show_objects([asdict(result) for result in results])
    else:
        show_table(
            [Column("table", is_name=True), Column("check", least_width=24), Column("wrong", right=True)],
            [(result.table, result.check, f"{result.wrong:,}") for result in results],
        )
    if broken := [result for result in results if result.wrong]:
        raise GodwitError(
            f"{count(len(broken), 'check')} of {len(results)} failed: inspect the rows with godwit pipeline query; "
            "godwit pipeline rebuild makes gold again"
        )
    if not as_json:
        typer.echo(f"all {len(results)} checks passed")


def run_rebuild(spark: SparkOptions, lake_address: str, start: str | None, stop: str | None) -> None:
    """Make the gold tables again from silver and bronze."""
    begins, ends = parse_time("--from", start), parse_time("--to", stop)
    if begins is not None and ends is not None and ends <= begins:
        raise UsageError(f"--to {stop} is not after --from {start}; swap them")
    lake = open_lake(lake_address, must_exist=True)
    from godwit.pipeline.repair import rebuild, rebuild_notice, rebuilt_since

    with (
        explained_errors(),
        status_line("starting") as status,
        session(spark, lake, status, purpose="godwit pipeline rebuild") as found,
    ):
        status.update("rebuilding gold")
        counts = rebuild(found, lake, begins, ends)
        notices = [
            rebuild_notice(table, since)
            for table, since in rebuilt_since(lake).items()
            if begins is None or begins < since or table == DEVICES
        ]
    for table, rows in counts.items():
        typer.echo(f"{table}: {count(rows, 'row')}")
    for notice in notices:
        print_notice(notice)


def run_requeue(spark: SparkOptions, lake_address: str, config: Path | None, *, is_all: bool) -> None:
    """Decode the messages in quarantine again, or all messages."""
    lake = open_lake(lake_address, must_exist=True)
    from godwit.pipeline.repair import expired_notices, requeue, requeue_all

    with explained_errors(), status_line("starting") as status:
        rules = configured_rules(config, lake)  # before Spark, whose start takes long
        with session(spark, lake, status, purpose="godwit pipeline requeue") as found:
            status.update("decoding all messages" if is_all else "decoding the quarantine")
            first, second = (requeue_all if is_all else requeue)(found, lake, rules)
            notices = expired_notices(lake, is_all=is_all)
    if is_all:
        typer.echo(f"{count(first, 'reading')}, {count(second, 'message')} in quarantine")
    else:
        typer.echo(f"{count(first, 'message')} left quarantine, {second:,} remain")
    for notice in notices:
        print_notice(notice)


def configured_rules(config: Path | None, lake: Lake) -> tuple[DecoderRule, ...]:
    """Return the decoders of the configuration. Raise PipelineError if it is invalid."""
    from godwit.pipeline.configuration import find_configuration, load_rules

    return load_rules(find_configuration(config, lake.address))


def configured_retention(config: Path | None, lake: Lake) -> dict[str, timedelta]:
    """Return for how long tables keep their rows, in the configuration. Raise PipelineError if it is invalid."""
    from godwit.pipeline.configuration import find_configuration, load_retention

    return load_retention(find_configuration(config, lake.address))


def parse_time(option: str, text: str | None) -> datetime | None:
    """Return the time that an option names; None without a bound.

    Raises:
        UsageError: The text is not a time.
    """
    if text is None:
        return None
    found = parse_position(text)
    if not isinstance(found, datetime):
        raise UsageError(f"{option} {text!r} is not a time; write it as 2026-11-01T12:00")
    return found
