"""`godwit pipeline run`: the streaming queries, and how they are doing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.status import Status

from godwit.cli.connecting import tell
from godwit.cli.pipeline_spark import Sources, Spark, explained, open_lake, session, waiting
from godwit.cli.text import count, safe

if TYPE_CHECKING:
    from godwit.pipeline.supervisor import BatchProgress


def run_pipeline(spark: Spark, lake_address: str, sources: Sources, *, is_once: bool, trigger_s: float) -> None:
    """Until all is read, or until Ctrl-C."""
    lake = open_lake(lake_address, must_exist=False)
    from godwit.pipeline.runner import RunConfig, run
    from godwit.pipeline.session import log_path
    from godwit.pipeline.status import check_options, find_logs

    options = sources.options()
    spark.settings()  # what is wrong with them is told before anybody waits
    with explained(), waiting(f"looking for the archive at {options['archive']}") as status:
        if warning := check_options(options).access.plain_token_warning():
            tell(warning)
        if not sys.stderr.isatty():
            tell(f"looking for the archive at {options['archive']}")
        logs = find_logs(options)
        with session(spark, lake, status, purpose="godwit pipeline run") as found:
            where = ", ".join(log.address for log in logs)
            status.stop()  # else its line and this one are one
            say(f"reading {where} into {lake.address}; Spark's own messages are in {log_path(lake)}")
            if sys.stderr.isatty():
                status.start()
            outcome = run(found, RunConfig(lake, options, is_once, trigger_s), _View(status, log_path(lake)))
    for query, batches in outcome.batches.items():
        say(f"{query}: {count(outcome.rows[query], 'message')} in {batches:,} batch{'' if batches == 1 else 'es'}")


def say(text: str) -> None:
    """At once, also where it is read by a program."""
    typer.echo(safe(text))
    sys.stdout.flush()


class _View:
    """One line on a terminal that changes with each batch; failures are told wherever."""

    def __init__(self, status: Status, log: Path) -> None:
        self._status = status
        self._log = log
        self._told: dict[str, str] = {}
        status.update("working on the first batch")

    def on_batch(self, batch: BatchProgress) -> None:
        speed = batch.rows / batch.took_s if batch.took_s else 0.0
        self._told[batch.query] = (
            f"{batch.query}: batch {batch.number}, {count(batch.rows, 'message')}, {speed:,.0f}/s, {batch.lag:,} behind"
        )
        self._status.update("   ".join(self._told.values()))

    def on_failure(self, query: str, sentence: str, pause_s: float) -> None:
        tell(f"the query {query} failed: {sentence}; it is started again in {pause_s:g} s (see {self._log})")
