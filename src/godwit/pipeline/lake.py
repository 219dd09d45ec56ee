"""Tables that many may read while one writes: Delta tables in a folder or an object store, behind one small port.

Spark writes Parquet files, and the driver makes them visible in one transaction of the Delta log, together with the
number of the micro-batch that they came from. So a batch that is done again changes nothing, and files of a batch that
failed are never seen by anybody; `vacuum` removes them.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs, parquet
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from godwit.pipeline.spans import Span, as_condition, as_filter, spans

FILES: Final = "files"
"""Below a table's folder: where Spark's files are, a folder for each attempt at a batch. A name that began with _ would
hide orphans from vacuum."""
COMPACT_EVERY: Final = 100
"""Transactions. Each adds a file or more to a table, and readers open all of them."""
_CONFIGURATION: Final = {"delta.logRetentionDuration": "interval 6 hours"}
"""A table may have a transaction a second, and each is a file."""
_OFFSET: Final = "offset"
Ranges: TypeAlias = Mapping[str, tuple[int, int]]
"""By log: from this offset on, and before that one."""


@dataclass(frozen=True)
class TableSpec:
    """What a table is."""

    name: str
    """As in "silver/readings": its folder in the lake."""
    grain: str
    """What one row is, in one line."""
    schema: pa.Schema
    keys: tuple[str, ...]
    """The columns that tell its rows apart: no two rows are alike in all of them."""
    checks: Mapping[str, str]
    """What holds of each row, in words, and as a condition in SQL: see godwit.pipeline.checks."""
    time: str | None = None
    """One of the keys that grows with time: an upsert need not look at files of other times."""


class Lake:
    """All tables below one address: a folder, or `s3://bucket/path` with what the store wants to know."""

    def __init__(self, address: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.address = address.rstrip("/") if "://" in address else str(Path(address).absolute())
        self.storage_options = dict(storage_options or {})

    def table(self, spec: TableSpec) -> Table:
        """It is made when something is first written to it."""
        return Table(self, spec)


@dataclass
class Table:
    """One table of a lake. Only one process writes at a time, see godwit.pipeline.lock."""

    lake: Lake
    spec: TableSpec
    _delta: DeltaTable | None = field(default=None, init=False, repr=False)

    @property
    def address(self) -> str:
        return f"{self.lake.address}/{self.spec.name}"

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(self, frame: DataFrame, query: str, batch: int) -> bool:
        """Adds the rows of a micro-batch, once. False: that had been done before."""
        delta = self._made()
        if self.is_done(query, batch):
            return False
        folder = f"{FILES}/{query}-{batch}-{uuid.uuid4().hex}"
        names = self.spec.schema.names
        frame.select(*names).write.parquet(f"{self.address}/{folder}")
        actions = self._actions(folder)
        if actions:
            done = _marking({query: batch})
            delta.create_write_transaction(actions, "append", self.spec.schema, commit_properties=done)
        return True

    def append_arrow(self, rows: pa.Table, query: str, batch: int) -> bool:
        """The same for rows that are on the driver."""
        delta = self._made()
        if self.is_done(query, batch):
            return False
        if rows.num_rows:
            write_deltalake(delta, self._cast(rows), mode="append", commit_properties=_marking({query: batch}))
        return True

    def upsert(self, rows: pa.Table, marks: Mapping[str, int]) -> bool:
        """Puts rows in the place of those with the same keys, and sets the marks. False: they had been set before."""
        delta = self._made()
        if all(self.is_done(name, mark) for name, mark in marks.items()):
            return False
        done = _marking(marks)
        if not rows.num_rows:
            delta.create_write_transaction([], "append", self.spec.schema, commit_properties=done)
            return True
        rows = self._cast(rows)
        same = [f'target."{key}" = source."{key}"' for key in self.spec.keys]
        if self.spec.time is not None:
            same.append(as_condition(f'target."{self.spec.time}"', self._spans(rows)))
        merge = delta.merge(
            rows,
            predicate=" AND ".join(same),
            source_alias="source",
            target_alias="target",
            commit_properties=done,
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        return True

    def is_done(self, query: str, batch: int) -> bool:
        """Whether the table has what this micro-batch brought."""
        mark = self.mark(query)
        return mark is not None and mark >= batch

    def mark(self, name: str) -> int | None:
        """A number that was written in one transaction with rows: the last micro-batch of a query, or an offset."""
        delta = self._found()
        return None if delta is None else delta.transaction_version(name)

    def compact(self, file_bytes: int | None = None) -> None:
        """Few large files in the place of many small ones; readers see the same rows."""
        delta = self._found()
        if delta is not None:
            delta.optimize.compact(target_size=file_bytes)

    def vacuum(self, retention_hours: int) -> int:
        """Removes files that no version of so many hours needs, orphans of failed batches among them."""
        delta = self._found()
        if delta is None:
            return 0
        removed = delta.vacuum(retention_hours, dry_run=False, enforce_retention_duration=False, full=True)
        return len(removed)

    # -- reading ------------------------------------------------------------------------------------------------------

    def frame(self, spark: SparkSession, ranges: Ranges | None = None) -> DataFrame:
        """The rows of one moment, all or those of some offsets; without any if nothing was written yet."""
        schema = from_arrow_schema(self.spec.schema)
        delta = self._found()
        files = [] if delta is None else delta.file_uris() if ranges is None else self._files(delta, ranges)
        if not files:
            return spark.createDataFrame([], schema)
        frame = spark.read.schema(schema).parquet(*files)
        if ranges is None:
            return frame
        at = sf.col(_OFFSET)
        within = [(sf.col("broker") == log) & (at >= begin) & (at < end) for log, (begin, end) in ranges.items()]
        return frame.where(reduce(Column.__or__, within))

    def arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The same on the driver, for tables that are small."""
        delta = self._found()
        if delta is None:
            empty = self.spec.schema.empty_table()
            return empty if columns is None else empty.select(list(columns))
        return delta.to_pyarrow_table(columns=None if columns is None else list(columns))

    def matching(self, rows: pa.Table) -> pa.Table:
        """What the table has with the same keys as these rows, on the driver."""
        delta = self._found()
        if delta is None:
            return self.spec.schema.empty_table()
        where = None if self.spec.time is None else as_filter(self.spec.time, self._spans(rows))
        keys = list(self.spec.keys)
        found = self._cast(delta.to_pyarrow_dataset().to_table(filter=where))
        return found.join(self._cast(rows).select(keys).group_by(keys).aggregate([]), keys, join_type="left semi")

    def scan(self, columns: Sequence[str], where: pc.Expression | None = None) -> Iterator[pa.Table]:
        """The same piece by piece, for tables of any size."""
        delta = self._found()
        if delta is not None:
            scanner = delta.to_pyarrow_dataset().scanner(columns=list(columns), filter=where)
            for batch in scanner.to_batches():
                yield pa.Table.from_batches([batch])

    @property
    def rows(self) -> int:
        delta = self._found()
        return 0 if delta is None else int(delta.count())

    @property
    def version(self) -> int | None:
        """How often it was written to; None: never."""
        delta = self._found()
        return None if delta is None else delta.version()

    # -- small parts --------------------------------------------------------------------------------------------------

    def _found(self) -> DeltaTable | None:
        """As it stands now, if it is there."""
        if self._delta is None:
            try:
                self._delta = DeltaTable(self.address, storage_options=self.lake.storage_options)
            except TableNotFoundError:
                return None
        else:
            self._delta.update_incremental()
        return self._delta

    def _made(self) -> DeltaTable:
        found = self._found()
        if found is None:
            DeltaTable.create(
                self.address,
                self.spec.schema,
                mode="ignore",
                name=self.spec.name,
                description=self.spec.grain,
                configuration=_CONFIGURATION,
                storage_options=self.lake.storage_options,
            )
            found = self._found()
            assert found is not None
        return found

    def _files(self, delta: DeltaTable, ranges: Ranges) -> list[str]:
        """Those that may have rows of these offsets."""
        added = pa.table(delta.get_add_actions(flatten=True))
        first = min(begin for begin, _ in ranges.values())
        if "max.offset" in added.column_names:
            newest = added.column("max.offset")
            added = added.filter(pc.or_kleene(pc.is_null(newest), pc.greater_equal(newest, first)))
        return [f"{self.address}/{path}" for path in added.column("path").to_pylist()]

    def _actions(self, folder: str) -> list[AddAction | RemoveAction]:
        """Of the files that Spark has written."""
        system, path = file_system(self.address)
        found = system.get_file_info(fs.FileSelector(f"{path}/{folder}", allow_not_found=True))
        now_ms = int(time.time() * 1000)
        return [
            AddAction(f"{folder}/{one.base_name}", one.size, {}, now_ms, True, json.dumps(facts))
            for one in found
            if one.is_file and one.extension == "parquet" and (facts := _facts(system, one.path))["numRecords"]
        ]

    def _spans(self, rows: pa.Table) -> list[Span]:
        """In which times they lie."""
        return spans(pc.unique(rows.column(self.spec.time)).to_pylist())

    def _cast(self, rows: pa.Table) -> pa.Table:
        return rows.select(self.spec.schema.names).cast(self.spec.schema)


def _marking(marks: Mapping[str, int]) -> CommitProperties:
    now_ms = int(time.time() * 1000)
    return CommitProperties(app_transactions=[Transaction(name, mark, now_ms) for name, mark in marks.items()])


def file_system(address: str) -> tuple[fs.FileSystem, str]:
    """Of a lake or something in it, and what it is called there."""
    return (fs.LocalFileSystem(), address) if "://" not in address else fs.FileSystem.from_uri(address)


def _facts(system: fs.FileSystem, path: str) -> dict[str, Any]:
    """What the Delta log should know of a file: how many rows it has, and between which offsets they lie."""
    with system.open_input_file(path) as file:
        found = parquet.ParquetFile(file).metadata
    facts: dict[str, Any] = {"numRecords": found.num_rows}
    column = found.schema.names.index(_OFFSET) if _OFFSET in found.schema.names else None
    if column is not None and found.num_rows:
        known = [found.row_group(group).column(column).statistics for group in range(found.num_row_groups)]
        if all(one is not None and one.has_min_max for one in known):
            facts["minValues"] = {_OFFSET: min(one.min for one in known)}
            facts["maxValues"] = {_OFFSET: max(one.max for one in known)}
    return facts
