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
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs, parquet
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from godwit.pipeline.problems import PipelineError
from godwit.pipeline.spans import Span, as_condition, as_filter, spans

FILES: Final = "files"
"""Below a table's folder: where Spark's files are, a folder for each attempt at a batch. A name that began with _ would
hide orphans from vacuum."""
LAKE_ERRORS: Final = (DeltaError, pa.ArrowException)
"""What the libraries raise where files of a table are damaged, gone, or not to be reached."""
COMPACT_EVERY: Final = 100
"""Transactions. Each adds a file or more to a table, and readers open all of them."""
_CONFIGURATION: Final = {"delta.logRetentionDuration": "interval 6 hours"}
"""A table may have a transaction a second, and each is a file."""
_BROKER: Final = "broker"
_OFFSET: Final = "offset"
_BEYOND: Final = 2**63 - 1
Marks: TypeAlias = Mapping[str, int]
"""Numbers that grow, by name, which are set in one transaction with rows: an offset, or the batch of a query."""
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
    """All tables below one address: a folder, or `s3://bucket/path`, whose keys are in the environment."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/") if "://" in address else str(Path(address).absolute())

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

    def append(self, frame: DataFrame, marks: Marks) -> bool:
        """Adds rows and sets the marks, in one transaction. False: they had been set before."""
        delta = self._made()
        if self.is_done(marks):
            return False
        folder = f"{FILES}/{uuid.uuid4().hex}"
        names = self.spec.schema.names
        frame.select(*names).write.parquet(f"{self.address}/{folder}")
        actions = self._actions(folder)
        delta.create_write_transaction(actions, "append", self.spec.schema, commit_properties=marking(marks))
        return True

    def append_arrow(self, rows: pa.Table, marks: Marks) -> bool:
        """The same for rows that are on the driver."""
        delta = self._made()
        if self.is_done(marks):
            return False
        write_deltalake(delta, self._cast(rows), mode="append", commit_properties=marking(marks))
        return True

    def upsert(self, rows: pa.Table, marks: Marks) -> bool:
        """Puts rows in the place of those with the same keys, and sets the marks. False: they had been set before."""
        delta = self._made()
        if self.is_done(marks):
            return False
        if not rows.num_rows:
            delta.create_write_transaction([], "append", self.spec.schema, commit_properties=marking(marks))
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
            commit_properties=marking(marks),
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        return True

    def is_done(self, marks: Marks) -> bool:
        """Whether it has all of them, or later ones."""
        return all((known := self.mark(name)) is not None and known >= mark for name, mark in marks.items())

    def mark(self, name: str) -> int | None:
        """As it was set last."""
        delta = self._found()
        return None if delta is None else delta.transaction_version(name)

    def first_offset(self, log: str) -> int | None:
        """The least that it has of a log, or less, by what the Delta log knows; None: it has nothing of it."""
        delta = self._found()
        files = [] if delta is None else pa.table(delta.get_add_actions(flatten=True)).to_pylist()
        known = [file.get(f"min.{_OFFSET}") or 0 for file in files if _may_have(file, log, 0, _BEYOND)]
        return min(known, default=None)

    def tidy(self, file_bytes: int | None, retention_hours: int) -> None:
        """Compacts and vacuums if it is time: once in a hundred transactions."""
        if (self.version or 0) % COMPACT_EVERY == 0:
            self.compact(file_bytes)
            self.vacuum(retention_hours)

    def compact(self, file_bytes: int | None = None) -> None:
        """Few large files in the place of many small ones; readers see the same rows."""
        delta = self._found()
        if delta is not None:
            delta.optimize.compact(target_size=file_bytes)

    def vacuum(self, retention_hours: int) -> int:
        """Removes files that no version of so many hours needs, orphans of failed batches among them. Not during an
        append."""
        delta = self._found()
        if delta is None:
            return 0
        removed = delta.vacuum(retention_hours, dry_run=False, enforce_retention_duration=False, full=True)
        if "://" not in self.address:
            _remove_empty_folders(Path(self.address) / FILES)
        return len(removed)

    # -- reading ------------------------------------------------------------------------------------------------------

    def frame(self, spark: SparkSession, ranges: Ranges | None = None) -> DataFrame:
        """The rows of one moment, all or those of some offsets; without any if nothing was written yet."""
        schema = from_arrow_schema(self.spec.schema)
        delta = self._found()
        files = [] if delta is None else self._files(delta, ranges)
        if not files:
            return spark.createDataFrame([], schema)
        frame = spark.read.schema(schema).parquet(*files)
        if ranges is None:
            return frame
        at = sf.col(_OFFSET)
        within = [(sf.col(_BROKER) == log) & (at >= begin) & (at < end) for log, (begin, end) in ranges.items()]
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
        wanted = self._cast(rows).select(keys).group_by(keys).aggregate([])
        # Piece by piece: of other keys there may be very many rows in the same files.
        pieces = [
            self._cast(pa.Table.from_batches([piece])).join(wanted, keys, join_type="left semi")
            for piece in delta.to_pyarrow_dataset().scanner(filter=where).to_batches()
        ]
        return pa.concat_tables([self.spec.schema.empty_table(), *pieces])

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
                delta = DeltaTable(self.address)
            except TableNotFoundError:
                return None
            self._check_columns([one.name for one in delta.schema().fields])
            self._delta = delta
        else:
            self._delta.update_incremental()
        return self._delta

    def _check_columns(self, names: list[str]) -> None:
        """PipelineError if another version of Godwit made the table."""
        if names != self.spec.schema.names:
            other = sorted(set(names) ^ set(self.spec.schema.names))
            raise PipelineError(
                f"the table {self.address} was made by another version of Godwit (it differs in {', '.join(other)}): "
                "begin a new lake with --lake, or use that version"
            )

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
            )
            found = self._found()
            assert found is not None
        return found

    def _files(self, delta: DeltaTable, ranges: Ranges | None) -> list[str]:
        """All, or those that may have rows of these offsets."""
        added = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
        return [
            f"{self.address}/{file['path']}"
            for file in added
            if ranges is None or any(_may_have(file, log, begin, end) for log, (begin, end) in ranges.items())
        ]

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


def marking(marks: Marks) -> CommitProperties:
    """For a transaction that sets them."""
    now_ms = int(time.time() * 1000)
    return CommitProperties(app_transactions=[Transaction(name, mark, now_ms) for name, mark in marks.items()])


def _remove_empty_folders(parent: Path) -> None:
    """There was one for each attempt at a batch."""
    for folder in parent.glob("*"):
        with suppress(OSError):  # it is not empty
            folder.rmdir()


def file_system(address: str) -> tuple[fs.FileSystem, str]:
    """Of a lake or something in it, and what it is called there."""
    if "://" not in address:
        return fs.LocalFileSystem(), address
    try:
        return fs.FileSystem.from_uri(address)  # type: ignore[no-any-return]
    except pa.ArrowException as error:
        raise PipelineError(f"{address} is no place for a lake: {error}") from None


def _facts(system: fs.FileSystem, path: str) -> dict[str, Any]:
    """What the Delta log should know of a file: how many rows it has, of which logs, and between which offsets."""
    with system.open_input_file(path) as file:
        found = parquet.ParquetFile(file).metadata
    facts: dict[str, Any] = {"numRecords": found.num_rows, "minValues": {}, "maxValues": {}}
    for column, name in enumerate(found.schema.names):
        if name in (_BROKER, _OFFSET):
            known = [found.row_group(group).column(column).statistics for group in range(found.num_row_groups)]
            if known and all(one is not None and one.has_min_max for one in known):
                facts["minValues"][name] = min(one.min for one in known)
                facts["maxValues"][name] = max(one.max for one in known)
    return facts


def _may_have(file: Mapping[str, Any], log: str, begin: int, end: int) -> bool:
    """Whether some of these offsets may be in a file, by what the Delta log knows of it."""
    names = (f"min.{_OFFSET}", f"max.{_OFFSET}", f"min.{_BROKER}", f"max.{_BROKER}")
    first, last, least, greatest = [file.get(name) for name in names]
    if first is not None and last is not None and (last < begin or first >= end):
        return False
    return least is None or greatest is None or least <= log <= greatest
