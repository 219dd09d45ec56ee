"""The work of one task: reads a range of a log, decodes it, and writes files of bronze, silver and quarantine.

One pass over the messages makes the files of all three tables. After an interrupted step, a table that already has the
first messages of the range gets the others only. Memory is bounded by the row groups of the three files.

This module runs on executors, which have pyarrow and no godwit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from godwit.pipeline.files import TableFile, WrittenFile
from godwit.spark.reader import LogPartition, SourceReader

MESSAGES: Final = "messages"
READINGS: Final = "readings"
QUARANTINE: Final = "quarantine"
KINDS: Final = (MESSAGES, READINGS, QUARANTINE)
"""The three tables, in the order in which they are committed."""
Decode: TypeAlias = Callable[[pa.RecordBatch], tuple[pa.RecordBatch, pa.RecordBatch]]
TaskResult: TypeAlias = dict[str, Any]
"""`rows`: the messages read; `files`: by kind, the file written or None. Plain, see WrittenFile."""


@dataclass(frozen=True)
class TargetTable:
    """One of the three tables, as a task sees it."""

    address: str
    schema: pa.Schema
    begins: Mapping[str, int]
    """By log: the first offset that the table does not have yet."""


class RangeWriter:
    """Writes ranges of logs to files. It is sent to executors with the tasks of a step."""

    def __init__(
        self,
        reader: SourceReader,
        partitions: Sequence[LogPartition],
        targets: Mapping[str, TargetTable],
        decode: Decode,
    ) -> None:
        self._reader = reader
        self._partitions = partitions
        self._targets = targets
        self._decode = decode

    def __call__(self, number: int) -> TaskResult:
        """Write the partition of this number."""
        partition = self._partitions[number]
        files = {kind: TableFile(target.address, target.schema) for kind, target in self._targets.items()}
        begins = {kind: target.begins.get(partition.range.log, 0) for kind, target in self._targets.items()}
        rows = 0
        try:
            for batch in self._reader.read(partition):
                rows += batch.num_rows
                self._write(batch, files, begins)
            written: dict[str, WrittenFile | None] = {kind: file.close() for kind, file in files.items()}
        except BaseException:
            for file in files.values():
                file.abort()
            raise
        return {"rows": rows, "files": written}

    def _write(self, batch: pa.RecordBatch, files: Mapping[str, TableFile], begins: Mapping[str, int]) -> None:
        files[MESSAGES].write(_from(batch, begins[MESSAGES]))
        later = min(begins[READINGS], begins[QUARANTINE])
        readings, rejected = self._decode(_from(batch, later))
        files[READINGS].write(_from(readings, begins[READINGS]))
        files[QUARANTINE].write(_from(rejected, begins[QUARANTINE]))


def _from(rows: pa.RecordBatch, begin: int) -> pa.RecordBatch:
    """Return the rows at or above an offset."""
    if not rows.num_rows or pc.min(rows.column("offset")).as_py() >= begin:
        return rows
    return rows.filter(pc.greater_equal(rows.column("offset"), begin))
