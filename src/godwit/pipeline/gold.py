"""Gold follows bronze and silver at a pace of its own: it is merged from what they have, step by step.

So a message is in bronze long before its window is written anew, and gold agrees with silver whatever has changed in
the meantime. Each gold table knows up to which offset of each log it has taken everything in, as a mark of the same
transaction: a step that is done again begins there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from godwit.pipeline.checkpoints import TABLES, standing
from godwit.pipeline.datasets import bronze, readings
from godwit.pipeline.datasets.catalog import OF_MESSAGES, OF_READINGS
from godwit.pipeline.lake import COMPACT_EVERY, Lake, Ranges, Table
from godwit.pipeline.merging import Merging, merge
from godwit.spark.offsets import Offsets

STEP_OFFSETS: Final = 500_000
"""Of each log, at once: what such a step makes passes through the driver."""
FILE_BYTES: Final = 32 * 1024 * 1024
"""A row that changes makes its whole file be written anew, so that files are small."""
RETENTION_HOURS: Final = 1
"""So long a reader may stay with the files that it has begun to read: with each step there are new ones."""
_SOURCES: Final = ((readings.SPEC, OF_READINGS), (bronze.SPEC, OF_MESSAGES))


@dataclass(frozen=True)
class Step:
    """What one has brought."""

    messages: int
    """Offsets that it went on, in all logs; 0: there was nothing to do."""
    behind: int
    """Offsets that are left."""


class Gold:
    """All gold tables that are merged. One at a time on a lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._sources = [
            (lake.table(source), [(lake.table(merging.spec), merging) for merging in mergings])
            for source, mergings in _SOURCES
        ]
        self._steps = 0

    def step(self, spark: SparkSession) -> Step:
        """Takes in what bronze and silver have, up to a bound."""
        found = standing(self._lake, TABLES)
        if found is None:
            return Step(0, 0)
        before = self.marks(found.offsets)
        for source, targets in self._sources:
            for table, merging in targets:
                self._take(spark, source, table, merging, found.offsets)
        after = self.marks(found.offsets)
        step = Step(
            messages=sum(after[log] - before[log] for log in after),
            behind=sum(end - after[log] for log, end in found.offsets.items()),
        )
        if step.messages:
            self._tidy()
        return step

    def catch_up(self, spark: SparkSession) -> None:
        """Until it has all that bronze and silver have."""
        while self.step(spark).messages:
            pass

    def marks(self, ends: Offsets) -> dict[str, int]:
        """How far all tables are, in these logs."""
        tables = [table for _, targets in self._sources for table, _ in targets]
        return {log: min(_mark(table, log) for table in tables) for log in ends}

    def _take(self, spark: SparkSession, source: Table, table: Table, merging: Merging, ends: Offsets) -> None:
        ranges: Ranges = {
            log: (begin, min(end, begin + STEP_OFFSETS))
            for log, end in ends.items()
            if (begin := _mark(table, log)) < end
        }
        if ranges:
            marks = {_name(log): end for log, (_, end) in ranges.items()}
            merge(table, merging, source.frame(spark, ranges), marks)

    def _tidy(self) -> None:
        self._steps += 1
        if self._steps % COMPACT_EVERY == 0:
            for _, targets in self._sources:
                for table, _ in targets:
                    table.compact(FILE_BYTES)
                    table.vacuum(RETENTION_HOURS)


def _mark(table: Table, log: str) -> int:
    mark = table.mark(_name(log))
    return 0 if mark is None else mark


def _name(log: str) -> str:
    """Of a log's mark."""
    return f"gold {log}"
