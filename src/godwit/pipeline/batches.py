"""What the query `tables` does with a micro-batch: bronze, silver and quarantine.

Each table takes a batch once, whatever happens in between: a batch that is done again goes on where it was.
"""

from __future__ import annotations

from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from godwit.pipeline.datasets import bronze, readings
from godwit.pipeline.lake import COMPACT_EVERY, Lake

VACUUM_EVERY: Final = 1_000
RETENTION_HOURS: Final = 24
"""So long a reader may stay with the files that it has begun to read."""
_QUERY_PROPERTY: Final = "sql.streaming.queryId"


class Tables:
    """All that one query writes."""

    def __init__(self, lake: Lake) -> None:
        self._tables = {spec.name: lake.table(spec) for spec in (bronze.SPEC, readings.SPEC, readings.QUARANTINE)}

    def write(self, messages: DataFrame, batch: int) -> None:
        """For foreachBatch."""
        query = messages.sparkSession.sparkContext.getLocalProperty(_QUERY_PROPERTY)
        assert query is not None, "micro-batches are those of a streaming query"
        messages = messages.persist(StorageLevel.MEMORY_AND_DISK)
        both = readings.read(messages).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            self._tables[bronze.SPEC.name].append(messages, query, batch)
            self._tables[readings.SPEC.name].append(readings.good(both), query, batch)
            self._tables[readings.QUARANTINE.name].append(readings.bad(both), query, batch)
        finally:
            both.unpersist()
            messages.unpersist()
        self._tidy(batch)

    def _tidy(self, batch: int) -> None:
        if batch % COMPACT_EVERY == COMPACT_EVERY - 1:
            for table in self._tables.values():
                table.compact()
        if batch % VACUUM_EVERY == VACUUM_EVERY - 1:
            for table in self._tables.values():
                table.vacuum(RETENTION_HOURS)
