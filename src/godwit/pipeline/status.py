"""How far the pipeline has got: from checkpoints, tables and archives, without Spark, also while a run is under way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from godwit.pipeline.archives import Log, look
from godwit.pipeline.checkpoints import GOLD, QUERIES, TABLES, standing
from godwit.pipeline.datasets.catalog import ALL
from godwit.pipeline.gold import Gold
from godwit.pipeline.lake import Lake
from godwit.pipeline.problems import PipelineError
from godwit.spark.offsets import Offsets

PATIENCE_S: Final = 3.0
"""A broker that is away is worth no longer a wait: the rest can be told without it."""


@dataclass(frozen=True)
class LogStatus:
    """One query and one log."""

    query: str
    log: str
    archive: str | None
    """None: none of the archives that answer has this log."""
    offset: int
    lag: int | None
    """Messages that are not read yet; None where the end of the log is not known."""


@dataclass(frozen=True)
class QueryStatus:
    query: str
    batch: int
    done_us: int


@dataclass(frozen=True)
class TableStatus:
    table: str
    grain: str
    rows: int


@dataclass(frozen=True)
class Status:
    logs: list[LogStatus]
    queries: list[QueryStatus]
    tables: list[TableStatus]
    problem: str | None
    """Why lags are not known."""


def status_of(lake: Lake, source: Mapping[str, str]) -> Status:
    """Of a lake, and of the logs of these options of format("godwit")."""
    logs: list[Log] = []
    problem = None
    try:
        logs = look(source, PATIENCE_S)
    except PipelineError as error:
        problem = str(error)
    standings = {query: found for query in QUERIES if (found := standing(lake, query)) is not None}
    offsets = {query: found.offsets for query, found in standings.items()}
    if TABLES in offsets:
        offsets[GOLD] = Gold(lake).marks(offsets[TABLES])
    return Status(
        logs=[one for query, found in offsets.items() for one in _lags(query, found, logs)],
        queries=[QueryStatus(query, found.batch, found.done_us) for query, found in standings.items()],
        tables=[TableStatus(spec.name, spec.grain, lake.table(spec).rows) for spec in ALL],
        problem=problem,
    )


def _lags(query: str, found: Offsets, logs: list[Log]) -> list[LogStatus]:
    known = {log.id: log for log in logs}
    at = dict.fromkeys(known, 0) | found
    return [
        LogStatus(query, log, known[log].address, offset, max(known[log].next_offset - offset, 0))
        if log in known
        else LogStatus(query, log, None, offset, None)
        for log, offset in at.items()
    ]
