"""`godwit pipeline status`, `query`, `quarantine` and `report`: the content of the lake."""

from __future__ import annotations

import base64
import csv
import io
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
import typer

from godwit.cli.connection import print_notice
from godwit.cli.interrupts import prompt_interrupts
from godwit.cli.new_file import check_free, new_file
from godwit.cli.pipeline import DEFAULT_ROWS
from godwit.cli.pipeline_run import (
    SourceOptions,
    SparkOptions,
    explained_errors,
    open_lake,
    session,
    status_line,
)
from godwit.cli.streams import discard_output
from godwit.cli.tables import Column, show_objects, show_table
from godwit.cli.text import count, iso_time, moment, safe, safe_json, size

QUARANTINE_TOPICS: Final = 10
"""Topics of each reason in JSON."""
LOG_LETTERS: Final = 8
"""Number of characters of a log's id that are shown."""


def show_status(lake_address: str, sources: SourceOptions, *, as_json: bool) -> None:
    """Print the progress of the pipeline."""
    lake = open_lake(lake_address, must_exist=True)
    from godwit.pipeline.status import status_of

    options = sources.options()
    sources.warn_of_plain_token()
    with prompt_interrupts(), explained_errors(), status_line("asking the archive"):
        found = status_of(lake, options)
    if as_json:
        fields = asdict(found)
        for one in fields["queries"]:
            one["done"] = iso_time(one.pop("done_us"))
        for one in fields["tables"]:
            for name in ("expired_before", "compacted", "vacuumed"):
                at_us = one.pop(f"{name}_us")
                one[name] = None if at_us is None else iso_time(at_us)
        show_objects([fields])
        return
    if found.problem:
        print_notice(f"the number of unread messages is unknown: {found.problem}")
    show_table(
        [Column("query", is_name=True), Column("log"), Column("offset", right=True), Column("lag", right=True)],
        [
            (one.query, one.log[:LOG_LETTERS], f"{one.offset:,}", "?" if one.lag is None else f"{one.lag:,}")
            for one in found.logs
        ],
    )
    typer.echo()
    show_table(
        [Column("query", is_name=True), Column("last batch", right=True), Column("done (UTC)")],
        [(one.query, f"{one.batch:,}", moment(one.done_us)) for one in found.queries],
    )
    typer.echo()
    show_table(
        [
            Column("table", is_name=True),
            Column("rows", right=True),
            Column("files", right=True),
            Column("size", right=True),
            Column("expired before (UTC)", drop=2),
            Column("compacted", drop=3),
            Column("vacuumed", drop=3),
            Column("grain", drop=1),
        ],
        [
            (
                one.table,
                f"{one.rows:,}",
                f"{one.files:,}",
                size(one.bytes),
                *[
                    "" if at_us is None else moment(at_us)
                    for at_us in (one.expired_before_us, one.compacted_us, one.vacuumed_us)
                ],
                one.grain,
            )
            for one in found.tables
        ],
    )


def show_query(spark: SparkOptions | None, lake_address: str, sql: str, form: str, limit: int | None) -> None:
    """Print the rows of a query, by DuckDB or with options for Spark by Spark."""
    lake = open_lake(lake_address, must_exist=True)
    with explained_errors(), status_line("working") as status:
        if spark is None:
            from godwit.pipeline.sql import run_sql

            with prompt_interrupts(), run_sql(lake, sql) as result:
                status.stop()  # the spinner would remain in front of the table
                _show_rows(result.columns, result.rows, form, limit)
            return
        from godwit.pipeline.sql import check_first_word, iterate_rows, run_query

        check_first_word(sql)
        with session(spark, lake, status) as found:
            status.update("working")
            answer = run_query(found, lake, sql)
            status.stop()
            _show_rows(answer.columns, iterate_rows(answer), form, limit)


def _show_rows(names: list[str], rows: Iterator[dict[str, Any]], form: str, limit: int | None) -> None:
    try:
        if form == "table":
            _table(names, list(islice(rows, (limit or DEFAULT_ROWS) + 1)), limit or DEFAULT_ROWS)
        elif form == "csv":
            _csv(names, islice(rows, limit))
        else:
            for row in islice(rows, limit):
                typer.echo(safe_json(msgspec.json.encode({name: json_value(value) for name, value in row.items()})))
    except BrokenPipeError:  # the reader closed the pipe
        discard_output()


def show_quarantine(lake_address: str, *, as_json: bool) -> None:
    """Print the reasons for quarantine."""
    lake = open_lake(lake_address, must_exist=True)
    from godwit.pipeline.quarantine import summarize

    with prompt_interrupts(), explained_errors(), status_line("reading the quarantine"):
        found = summarize(lake)
    if as_json:
        show_objects(
            [
                {
                    "reason": one.reason,
                    "meaning": one.meaning,
                    "messages": one.messages,
                    "topics": dict(one.topics.most_common(QUARANTINE_TOPICS)),
                    "detail": one.detail,
                    "suggestion": one.suggestion,
                }
                for one in found
            ]
        )
        return
    if not found:
        typer.echo("no message is in quarantine")
        return
    show_table(
        [Column("reason", is_name=True), Column("messages", right=True), Column("meaning", least_width=24, drop=1)],
        [(one.reason, f"{one.messages:,}", one.meaning) for one in found],
    )
    for one in found:
        typer.echo(safe(f"\n{one.reason}: {count(one.messages, 'message')}, {count(len(one.topics), 'topic')}"))
        for topic, messages in one.topics.most_common(3):
            typer.echo(safe(f"  {topic}: {messages:,}"))
        typer.echo(safe(f"  {one.detail}"))
        for line in one.suggestion.splitlines():
            typer.echo(safe(f"    {line}"))
    print_notice("try a configuration with godwit pipeline decode, then apply it with godwit pipeline requeue")


def write_report_file(lake_address: str, output: Path, *, force: bool) -> None:
    """Write the report to a file, complete or not at all."""
    lake = open_lake(lake_address, must_exist=True)
    check_free(output, force=force)
    from godwit.pipeline.report.page import write_report

    with explained_errors(), status_line("drawing"), new_file(output, force=force) as part, prompt_interrupts():
        write_report(lake, part)
    typer.echo(safe(str(output)))


def json_value(value: Any) -> Any:
    """Return a value for JSON: times in UTC, bytes as text or in base64."""
    if isinstance(value, datetime):
        return iso_time(int(value.astimezone(UTC).timestamp() * 1e6))  # Spark uses the zone of this machine
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, date | Decimal):
        return str(value)
    if hasattr(value, "asDict"):
        return json_value(value.asDict())
    if isinstance(value, dict):
        return {str(json_value(key)): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def cell_text(value: Any) -> str:
    """Return a value for a cell of a table."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    shown = json_value(value)
    if isinstance(value, bytes | bytearray) and not _is_text(bytes(value)):
        return f"<{count(len(value), 'byte')}>"
    return shown if isinstance(shown, str) else msgspec.json.encode(shown).decode()


def _is_text(value: bytes) -> bool:
    try:
        return value.decode().isprintable()
    except UnicodeDecodeError:
        return False


def _table(names: list[str], rows: list[dict[str, Any]], most: int) -> None:
    numbers = [all(isinstance(row[name], int | float | None) for row in rows) for name in names]
    columns = [
        Column(name, right=right, is_name=index == 0, least_width=12)
        for index, (name, right) in enumerate(zip(names, numbers, strict=True))
    ]
    show_table(columns, [[cell_text(row[name]) for name in names] for row in rows[:most]])
    if len(rows) > most:
        print_notice(f"more than {count(most, 'row')}: see the rest with --limit, --json or --csv")


def _csv(names: list[str], rows: Iterable[dict[str, Any]]) -> None:
    """Write CSV: to a terminal with control characters escaped, to a pipe or file exactly, in UTF-8."""
    is_terminal = sys.stdout.isatty()
    if not is_terminal and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # the locale's character set may lack characters of payloads
    writer = csv.writer(sys.stdout, lineterminator="\n")

    def write(fields: Iterable[str | float | None]) -> None:
        writer.writerow([safe(one) if is_terminal and isinstance(one, str) else one for one in fields])

    write(names)
    for row in rows:
        shown = [json_value(row[name]) for name in names]
        write(
            [one if isinstance(one, str | int | float | None) else msgspec.json.encode(one).decode() for one in shown]
        )
