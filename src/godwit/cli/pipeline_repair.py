"""`godwit pipeline rebuild` and `requeue`: tables put right afterwards."""

from __future__ import annotations

from datetime import datetime

import typer

from godwit.cli.pipeline_spark import Spark, explained, open_lake, session, waiting
from godwit.cli.places import read_place
from godwit.cli.text import count
from godwit.errors import UsageError


def run_rebuild(spark: Spark, lake_address: str, start: str | None, stop: str | None) -> None:
    """Gold from silver and bronze."""
    begins, ends = time_of("--from", start), time_of("--to", stop)
    if begins is not None and ends is not None and ends <= begins:
        raise UsageError(f"--to {stop} does not lie after --from {start}; swap them")
    lake = open_lake(lake_address, must_exist=True)
    from godwit.pipeline.rebuild import rebuild

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
    from godwit.pipeline.requeue import requeue

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
