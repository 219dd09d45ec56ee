"""Updates gold from bronze and silver, in steps that do not delay the micro-batches.

Each gold table stores the offset of each log below which it has merged every message, as a watermark in the same
transaction as the rows. A repeated step resumes there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from pyspark.sql import SparkSession

from godwit.pipeline.checkpoints import GOLD, TABLES, read_checkpoint
from godwit.pipeline.datasets import readings
from godwit.pipeline.datasets.catalog import GOLD_MERGES
from godwit.pipeline.gold_database import open_gold_database
from godwit.pipeline.gold_table import GoldTable
from godwit.pipeline.lake import HOUR, Lake, LakeTable, Ranges, TableSpec
from godwit.pipeline.supervisor import StepQuery, StepResult

STEP_OFFSETS: Final = 500_000
"""Offsets of each log in one step, whose results pass through the driver."""
INTERVAL_S: Final = 10.0
"""From the end of a step to the next one: each rewrites the rows of the current windows, however few messages came."""
_Target: TypeAlias = tuple[LakeTable, GoldTable]


class Gold:
    """The gold tables of a lake that are merged. Only one instance may write at a time."""

    def __init__(self, lake: Lake, retention: Mapping[str, timedelta] | None = None) -> None:
        """`retention` is for how long tables keep their rows, by name; tables that are not in it keep them for ever."""
        self._lake = lake
        self._retention = retention or {}
        targets: dict[str, list[_Target]] = {}
        for gold in GOLD_MERGES:
            targets.setdefault(gold.source.name, []).append((lake.table(gold.spec), gold))
        self._sources = [(lake.table(group[0][1].source), group) for group in targets.values()]

    def step(self, spark: SparkSession) -> StepResult:
        """Merge new rows of bronze and silver, at most STEP_OFFSETS of each log.

        The result counts offsets from the first that bronze has, in all logs.
        """
        logs = self._logs()
        before, ends = self.watermarks(logs), self._source_ends(logs)
        begins = dict.fromkeys(logs, 0)
        for source, targets in self._sources:
            bounds = {log: _bounds(source, log) for log in logs}
            begins = {log: begin for log, (begin, _) in bounds.items()}
            self._merge_all(spark, source, targets, bounds)
            for table, _ in targets:
                table.maintain(spark, self._retention.get(table.spec.name), is_idle=True)
        after = self.watermarks(logs)
        return StepResult(
            messages=sum(max(after[log] - max(before[log], begins[log]), 0) for log in logs),
            behind=sum(max(ends[log] - after[log], 0) for log in logs),
        )

    def catch_up(self, spark: SparkSession) -> None:
        """Merge everything that bronze and silver have."""
        while self.step(spark).behind:
            pass

    def watermarks(self, logs: Iterable[str], source: TableSpec | None = None) -> dict[str, int]:
        """Return, for each log, the offset below which all tables, or those of a source, have merged every message."""
        targets = [one for _, targets in self._sources for one in targets if source is None or one[1].source is source]
        return {log: min(_watermark(table, gold, log) for table, gold in targets) for log in logs}

    def _logs(self) -> list[str]:
        found = read_checkpoint(self._lake, TABLES)
        return [] if found is None else list(found.offsets)

    def _source_ends(self, logs: Iterable[str]) -> dict[str, int]:
        """Return, for each log, the offset below which all sources have every message."""
        return {log: min(source.watermark(log) or 0 for source, _ in self._sources) for log in logs}

    def _merge_all(self, spark: SparkSession, source: LakeTable, targets: Sequence[_Target], bounds: Ranges) -> None:
        """Merge into each table. Tables with equal watermarks, usually all, share one read of the source."""
        groups: dict[tuple[tuple[str, tuple[int, int]], ...], list[_Target]] = {}
        for table, gold in targets:
            ranges = tuple(_next_ranges(bounds, {log: _watermark(table, gold, log) for log in bounds}).items())
            if ranges:
                groups.setdefault(ranges, []).append((table, gold))
        for ranges, group in groups.items():
            self._merge_group(spark, source, dict(ranges), group)

    def _merge_group(self, spark: SparkSession, source: LakeTable, ranges: Ranges, group: Sequence[_Target]) -> None:
        """Merge the source's rows of these ranges into tables."""
        with open_gold_database() as database:
            database.read(source, ranges)
            for table, gold in group:
                watermarks = {_watermark_name(gold, log): end for log, (_, end) in ranges.items()}
                if gold.topics_from and not source.may_have_topics(ranges, gold.topics_from):
                    rows = gold.spec.schema.empty_table()
                else:
                    rows = database.merged(gold, table)
                table.upsert(rows, watermarks)
                table.maintain(spark, self._retention.get(table.spec.name))


def _bounds(source: LakeTable, log: str) -> tuple[int, int]:
    """Return the offsets between which a source has messages of a log."""
    end, first = source.watermark(log) or 0, source.first_offset(log)
    return (end if first is None else first, end)


def _next_ranges(bounds: Ranges, watermarks: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the range of each log that a step merges next."""
    found = {}
    for log, (first, end) in bounds.items():
        begin = max(first, watermarks[log])
        if watermarks[log] < end:
            found[log] = (begin, min(end, begin + STEP_OFFSETS))
    return found


def _watermark(table: LakeTable, gold: GoldTable, log: str) -> int:
    return table.watermark(_watermark_name(gold, log)) or 0


def _watermark_name(gold: GoldTable, log: str) -> str:
    return f"{gold.name}: {log}"


def start_gold(spark: SparkSession, gold: Gold, is_input_complete: Callable[[], bool]) -> StepQuery:
    """Start the query that updates gold.

    `is_input_complete` returns whether bronze and silver have everything that they will ever get.
    """
    return StepQuery(GOLD, spark, lambda: gold.step(spark), is_input_complete, pause_s=INTERVAL_S)


def complete_since(lake: Lake, gold: GoldTable) -> datetime | None:
    """Return the hour from which on a gold table and its source have all of their rows; None if none expired.

    Rows of silver expire by the time of receipt, and windows have event times, which may be MAX_AHEAD_US later.
    """
    table, source = lake.table(gold.spec), lake.table(gold.source)
    before = source.expired_before
    if before is not None:
        if gold.source_time != gold.source.expires_by:
            before += timedelta(microseconds=readings.MAX_AHEAD_US)
        before = _next_hour(before)
    own = table.expired_before
    if own is None or before is None:
        return before if own is None else own
    return max(before, own)


def _next_hour(at: datetime) -> datetime:
    begin = at.replace(minute=0, second=0, microsecond=0)
    return begin if begin == at else begin + HOUR
