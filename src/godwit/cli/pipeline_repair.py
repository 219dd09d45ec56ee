"""`godwit pipeline check`, `rebuild` and `requeue`: whether tables are right, and how they are put right."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

import typer

from godwit.cli.pipeline_spark import Spark, explained, open_lake, session, waiting
from godwit.cli.places import read_place
from godwit.cli.tables import Column, show_objects, show_table
from godwit.cli.text import count
from godwit.errors import GodwitError, UsageError


def run_check(spark: Spark, lake_address: str, *, as_json: bool) -> None:
    """Whether all holds."""
    lake = open_lake(lake_address, must_exist=True)
    from godwit.pipeline.checks import run_checks

    results = []
    with (
        explained(),
        waiting("starting") as status,
        session(spark, lake, status, purpose="godwit pipeline check") as found,
    ):
        for result in run_checks(found, lake):
            results.append(result)
            status.update(f"{count(len(results), 'check')} done, the last of {result.table}")
    if as_json:
        show_objects([asdict(result) for result in results])
    else:
        show_table(
            [Column("table", is_name=True), Column("what must hold", least_width=24), Column("wrong", right=True)],
            [(result.table, result.check, f"{result.wrong:,}") for result in results],
        )
    if broken := [result for result in results if result.wrong]:
        raise GodwitError(
            f"{count(len(broken), 'check')} of {len(results)} failed: look at the rows with godwit pipeline query; "
            "gold is made anew with godwit pipeline rebuild"
        )
    if not as_json:
        typer.echo(f"all {len(results)} hold")


def run_rebuild(spark: Spark, lake_address: str, start: str | None, stop: str | None) -> None:
    """Gold from silver and bronze."""
    begins, ends = time_of("--from", start), time_of("--to", stop)
    if begins is not None and ends is not None and ends <= begins:
        raise UsageError(f"--to {stop} does not lie after --from {start}; swap them")
    lake = open_lake(lake_address, must_exist=True)
    from godwit.pipeline.repair import rebuild

    with (
        explained(),
        waiting("starting") as status,
        session(spark, lake, status, purpose="godwit pipeline rebuild") as found,
    ):
        status.update("making gold anew")
        counts = rebuild(found, lake, begins, ends)
    for table, rows in counts.items():
        typer.echo(f"{table}: {count(rows, 'row')}")


def run_requeue(spark: Spark, lake_address: str) -> None:
    """Quarantine again."""
    lake = open_lake(lake_address, must_exist=True)
    from godwit.pipeline.repair import requeue

    with (
        explained(),
        waiting("starting") as status,
        session(spark, lake, status, purpose="godwit pipeline requeue") as found,
    ):
        status.update("reading quarantine again")
        moved, left = requeue(found, lake)
    typer.echo(f"{count(moved, 'message')} left quarantine, {left:,} stay")


def time_of(option: str, text: str | None) -> datetime | None:
    """What somebody means; None: no bound."""
    if text is None:
        return None
    found = read_place(text)
    if not isinstance(found, datetime):
        raise UsageError(f"{option} {text!r} is no time; write it as 2026-11-01T12:00")
    return found
