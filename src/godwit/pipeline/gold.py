"""Gold follows bronze and silver at a pace of its own: it is merged from what they have, step by step.

So a message is in bronze long before its window is written anew, and gold agrees with silver whatever has changed in
the meantime. Each gold table knows up to which offset of each log it has taken everything in, as a mark of the same
transaction: a step that is done again begins there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import SparkSession

from godwit.pipeline.checkpoints import TABLES, standing
from godwit.pipeline.datasets import bronze, readings
from godwit.pipeline.datasets.catalog import OF_MESSAGES, OF_READINGS
from godwit.pipeline.lake import Lake, Ranges, Table
from godwit.pipeline.merging import Merging, merge

STEP_OFFSETS: Final = 200_000
"""Of each log, at once: what such a step makes passes through the driver."""
FILE_BYTES: Final = 8 * 1024 * 1024
"""A row that changes makes its whole file be written anew, so that files are small."""
RETENTION_HOURS: Final = 1
"""So long a reader may stay with the files that it has begun to read: with each step there are new ones."""
_SOURCES: Final = ((readings.SPEC, OF_READINGS), (bronze.SPEC, OF_MESSAGES))


@dataclass(frozen=True)
class Step:
    """What one has brought."""

    messages: int
    """Offsets that it went on, in all logs, from the first that bronze has; 0: there was nothing to do."""
    behind: int
    """Offsets that are left of those that were there when it began."""


class Gold:
    """All gold tables that are merged. One at a time on a lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._sources = [
            (lake.table(source), [(lake.table(merging.spec), merging) for merging in mergings])
            for source, mergings in _SOURCES
        ]

    def step(self, spark: SparkSession) -> Step:
        """Takes in what bronze and silver have, up to a bound."""
        logs = self._logs()
        before, ends = self.marks(logs), self._ends(logs)
        begins = dict.fromkeys(logs, 0)
        for source, targets in self._sources:
            bounds = {log: _bounds(source, log) for log in logs}
            begins = {log: begin for log, (begin, _) in bounds.items()}
            self._take_all(spark, source, targets, bounds)
        after = self.marks(logs)
        return Step(
            messages=sum(max(after[log] - max(before[log], begins[log]), 0) for log in logs),
            behind=sum(max(ends[log] - after[log], 0) for log in logs),
        )

    def catch_up(self, spark: SparkSession) -> None:
        """Until it has all that bronze and silver have."""
        while self.step(spark).behind:
            pass

    def marks(self, logs: Iterable[str]) -> dict[str, int]:
        """How far all tables are, in these logs."""
        targets = [target for _, targets in self._sources for target in targets]
        return {log: min(_mark(table, merging, log) for table, merging in targets) for log in logs}

    def _logs(self) -> list[str]:
        found = standing(self._lake, TABLES)
        return [] if found is None else list(found.offsets)

    def _ends(self, logs: Iterable[str]) -> dict[str, int]:
        """How far all sources are."""
        return {log: min(source.mark(log) or 0 for source, _ in self._sources) for log in logs}

    def _take_all(
        self, spark: SparkSession, source: Table, targets: Sequence[tuple[Table, Merging]], bounds: Ranges
    ) -> None:
        """Those that are equally far, and most of the time all are, take their rows from one reading of them."""
        groups: dict[tuple[tuple[str, tuple[int, int]], ...], list[tuple[Table, Merging]]] = {}
        for table, merging in targets:
            ranges = tuple(_next(bounds, {log: _mark(table, merging, log) for log in bounds}).items())
            if ranges:
                groups.setdefault(ranges, []).append((table, merging))
        for ranges, equals in groups.items():
            rows = source.frame(spark, dict(ranges)).persist(StorageLevel.MEMORY_AND_DISK)
            try:
                for table, merging in equals:
                    merge(table, merging, rows, {_name(merging, log): end for log, (_, end) in ranges})
                    table.tidy(FILE_BYTES, RETENTION_HOURS)
            finally:
                rows.unpersist()


def _bounds(source: Table, log: str) -> tuple[int, int]:
    """From where to where it has something of a log."""
    end, first = source.mark(log) or 0, source.first_offset(log)
    return (end if first is None else first, end)


def _next(bounds: Ranges, marks: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """What comes next, of each log."""
    found = {}
    for log, (first, end) in bounds.items():
        begin = max(first, marks[log])
        if marks[log] < end:
            found[log] = (begin, min(end, begin + STEP_OFFSETS))
    return found


def _mark(table: Table, merging: Merging, log: str) -> int:
    return table.mark(_name(merging, log)) or 0


def _name(merging: Merging, log: str) -> str:
    """Of a mark."""
    return f"{merging.name}: {log}"
