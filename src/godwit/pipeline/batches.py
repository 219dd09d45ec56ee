"""What the query `tables` does with a micro-batch: bronze, silver and quarantine.

Each table knows up to which offset of each log it has everything, as marks of the same transaction. So a batch takes
each message once, whatever happens in between: if it is done again, also with other bounds, it goes on from there.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from godwit.pipeline.checkpoints import TABLES, planned
from godwit.pipeline.datasets import bronze, readings
from godwit.pipeline.lake import Lake, Marks, Table

RETENTION_HOURS: Final = 24
"""So long a reader may stay with the files that it has begun to read."""


class Tables:
    """All that one query writes."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._messages, self._readings, self._quarantine = [
            lake.table(spec) for spec in (bronze.SPEC, readings.SPEC, readings.QUARANTINE)
        ]

    def write(self, messages: DataFrame, batch: int) -> None:
        """For foreachBatch."""
        ends = planned(self._lake, TABLES, batch)
        messages = messages.persist(StorageLevel.MEMORY_AND_DISK)
        both = readings.read(messages).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            _append(self._messages, messages, ends)
            _append(self._readings, readings.good(both), ends)
            _append(self._quarantine, readings.bad(both), ends)
        finally:
            both.unpersist()
            messages.unpersist()


def _append(table: Table, frame: DataFrame, ends: Marks) -> None:
    """What the table does not have yet."""
    known = {log: table.mark(log) or 0 for log in ends}
    news = {log: end for log, end in ends.items() if end > known[log]}
    if news:
        is_new = [(sf.col("broker") == log) & (sf.col("offset") >= known[log]) for log in news]
        table.append(frame.where(reduce(Column.__or__, is_new)), news)
        table.tidy(None, RETENTION_HOURS)
