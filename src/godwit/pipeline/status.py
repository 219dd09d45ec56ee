"""The state of archives and of the lake: which logs there are, and how far the pipeline is, also during a run.

All of it works without Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from godwit.pipeline.checkpoints import GOLD, QUERIES, TABLES, read_checkpoint
from godwit.pipeline.datasets.catalog import ALL
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.gold import Gold
from godwit.pipeline.lake import Lake, LakeTable
from godwit.spark.archive import ArchiveError
from godwit.spark.offsets import Offsets
from godwit.spark.options import OptionError, ReadOptions, read_options
from godwit.spark.replicas import open_archive

CONTACT_TIMEOUT_S: Final = 10.0
"""For the first contact with an archive, which a user waits for."""
STATUS_TIMEOUT_S: Final = 3.0
"""Shorter, because most of the status is known without the archives."""


@dataclass(frozen=True)
class ArchivedLog:
    """The log of one broker."""

    id: str
    address: str
    """The address of its archive."""
    next_offset: int


def check_options(source: Mapping[str, str]) -> ReadOptions:
    """Parse options of format("godwit"). Raise PipelineError if they are invalid."""
    try:
        return read_options(source, is_stream=True)
    except OptionError as error:
        raise PipelineError(str(error)) from None


def find_logs(source: Mapping[str, str], timeout_s: float = CONTACT_TIMEOUT_S) -> list[ArchivedLog]:
    """Return the logs that options of format("godwit") name.

    Raise PipelineError if the options are invalid, or if an archive does not answer or refuses them.
    """
    options = check_options(source)
    access = replace(options.access, timeout_s=min(options.access.timeout_s, timeout_s))
    found: dict[str, ArchivedLog] = {}
    for address in access.addresses:
        archive = open_archive(address, access)
        try:
            info = archive.info()
            log = ArchivedLog(info["log_id"], address, int(info["next_offset"]))
            archive.ask("measure", {"start": 0, "end": 0, "filters": list(options.topics)})  # are the filters valid?
        except (ArchiveError, OptionError) as error:
            raise PipelineError(str(error)) from None
        if log.id in found:
            raise PipelineError(
                f"the archives at {found[log.id].address} and {address} are of one broker: name one, or separate "
                "replicas of one log by |"
            )
        found[log.id] = log
    return list(found.values())


@dataclass(frozen=True)
class LogStatus:
    """The progress of one query in one log."""

    query: str
    log: str
    archive: str | None
    """None if no archive that answers has this log."""
    offset: int
    lag: int | None
    """Messages that are not read yet; None if the end of the log is unknown."""


@dataclass(frozen=True)
class QueryStatus:
    """The last complete batch of a query."""

    query: str
    batch: int
    done_us: int


@dataclass(frozen=True)
class TableStatus:
    """The size of a table, and its maintenance."""

    table: str
    grain: str
    rows: int
    files: int
    bytes: int
    expired_before_us: int | None
    """The time before which rows have expired; None if none ever did."""
    compacted_us: int | None
    vacuumed_us: int | None
    """When unused files were last deleted."""


@dataclass(frozen=True)
class Status:
    """The state of a lake."""

    logs: list[LogStatus]
    queries: list[QueryStatus]
    tables: list[TableStatus]
    problem: str | None
    """Why lags are unknown."""


def status_of(lake: Lake, source: Mapping[str, str]) -> Status:
    """Return the state of a lake, with the lag behind the logs that options of format("godwit") name."""
    logs: list[ArchivedLog] = []
    problem = None
    try:
        logs = find_logs(source, STATUS_TIMEOUT_S)
    except PipelineError as error:
        problem = str(error)
    checkpoints = {query: found for query in QUERIES if (found := read_checkpoint(lake, query)) is not None}
    offsets = {query: found.offsets for query, found in checkpoints.items()}
    if TABLES in offsets:
        offsets[GOLD] = Gold(lake).watermarks(offsets[TABLES])
    return Status(
        logs=[one for query, found in offsets.items() for one in _log_statuses(query, found, logs)],
        queries=[QueryStatus(query, found.batch, found.done_us) for query, found in checkpoints.items()],
        tables=[_table_status(lake.table(spec)) for spec in ALL],
        problem=problem,
    )


def _table_status(table: LakeTable) -> TableStatus:
    sizes = table.file_sizes
    times = [
        None if at is None else int(at.timestamp() * 1e6)
        for at in (table.expired_before, table.compacted, table.vacuumed)
    ]
    return TableStatus(table.spec.name, table.spec.grain, table.rows, len(sizes), sum(sizes), *times)


def _log_statuses(query: str, offsets: Offsets, logs: list[ArchivedLog]) -> list[LogStatus]:
    known = {log.id: log for log in logs}
    return [
        LogStatus(query, log, known[log].address, offset, max(known[log].next_offset - offset, 0))
        if log in known
        else LogStatus(query, log, None, offset, None)
        for log, offset in (dict.fromkeys(known, 0) | offsets).items()
    ]
