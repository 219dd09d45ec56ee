"""The lake: Delta tables in a folder or an object store, written by one process and read by any number.

Executors write Parquet files, and the driver makes them visible in one transaction of the Delta log, together with the
table's new watermarks. A step that is repeated therefore changes nothing, and files of a failed step are never visible;
`vacuum` deletes them. Rows are deleted in the same way: executors copy the other rows of a file, and one transaction
replaces it. Readers keep the files of their snapshot until they are vacuumed.

A watermark is a number that only grows, stored under a name in the same transaction as the rows: the offset below which
a table has every message of a log, or the number of the last batch of a query. (Spark's event-time watermark is
something else; the pipeline does not use it.)

Rows expire by the time in one column of the table, see `TableSpec.expires_by`. The time before which rows were deleted
is a watermark, too, so that checks and repairs know that rows before it are not missing.

A table of an older Godwit may lack columns. Reading returns null for them; the first write adds them to the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import (
    CommitProperties,
    DeltaTable,
    Field,
    PostCommitHookProperties,
    Schema,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from godwit.pipeline.errors import PipelineError
from godwit.pipeline.files import (
    FILES,
    WrittenFile,
    copy_rows_outside,
    file_system,
    has_order,
    read_rows,
    read_statistics,
    write_rows,
)
from godwit.pipeline.time_spans import STATISTICS_MS, TimeSpan, overlap, spans_condition, spans_filter, time_spans

LAKE_ERRORS: Final = (DeltaError, pa.ArrowException, OSError)
"""Errors of the libraries if files of a table are damaged, missing or unreachable: see errors.explained_store."""
COMPACT_EVERY: Final = 100
"""Transactions after which a table is compacted. Each adds at least one file, and readers open all files."""
SMALL_FILE_BYTES: Final = 1024 * 1024
COMPACTION_FACTOR: Final = 10
"""A compaction joins files up to SMALL_FILE_BYTES, every tenth up to ten times this size, and so on. Each row is
therefore copied a few times in all, however large the table is."""
FILE_BYTES: Final = 100 * 1024 * 1024
MERGED_FILE_BYTES: Final = 8 * 1024 * 1024
"""Size up to which files are joined. Those of merged tables are small: the change of a row rewrites its whole file."""
UNUSED_FILE_HOURS: Final = 24
MERGED_UNUSED_FILE_HOURS: Final = 1
"""For this time after a change, readers can still use the files of their snapshot."""
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
"""A table with new transactions is compacted at least once a day, and each table is vacuumed once a day. After a
compaction it is vacuumed sooner, at most once an hour. Rows expire once an hour."""
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
MAX_REPAIR_TASKS: Final = 64
_CONFIGURATION: Final = {"delta.logRetentionDuration": "interval 6 hours", "delta.checkpointInterval": "10"}
"""A table may have a transaction per second, and each is a file of the Delta log. Opening a table, and looking for its
watermarks, reads all of them since the last checkpoint."""
_PROBE: Final = "bronze/messages"
_PROBE_OPTIONS: Final = {"max_retries": "2", "retry_timeout": "10s", "timeout": "5s", "connect_timeout": "5s"}
"""Of deltalake, whose defaults would retry for minutes."""
_WRITTEN: Final = "path string, rows bigint, bytes bigint, statistics string"
_BROKER: Final = "broker"
_OFFSET: Final = "offset"
_TOPIC: Final = "topic"
_MAX_OFFSET: Final = 2**63 - 1
Watermarks: TypeAlias = Mapping[str, int]
"""By name, see the module's docstring."""
Ranges: TypeAlias = Mapping[str, tuple[int, int]]
"""By log: the first offset, and the offset behind the last."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EXPIRED: Final = "expired before"
_COMPACTIONS: Final = "compaction: number"
_COMPACTED_VERSION: Final = "compaction: version"
_COMPACTED: Final = "compaction: time"
_VACUUMED: Final = "vacuum: time"
"""Names of watermarks. Times are in microseconds since 1970."""


@dataclass(frozen=True)
class TableColumn:
    """A column of a table. All columns can be null."""

    name: str
    type: pa.DataType
    doc: str = ""
    """A phrase for docs/SPARK.md."""
    missing: str | None = None
    """For a key that an older version did not have: the value that its rows are taken to have."""


@dataclass(frozen=True)
class TableSpec:
    """The definition of a table."""

    name: str
    """For example "silver/readings": its folder in the lake."""
    grain: str
    """What one row stands for, in one line."""
    columns: Sequence[TableColumn]
    keys: tuple[str, ...]
    """The columns that identify a row."""
    checks: Mapping[str, str]
    """Conditions in SQL that hold for each row, by their description: see godwit.pipeline.checks."""
    time: str | None = None
    """A key column that grows with time: an upsert reads only files with similar times."""
    expires_by: str | None = None
    """The column of times by which rows expire; None if they are needed for ever."""
    is_merged: bool = False
    """Whether its rows are replaced by each step: its files are small, and unused ones are deleted soon."""

    @property
    def file_bytes(self) -> int:
        """The size up to which files are joined."""
        return MERGED_FILE_BYTES if self.is_merged else FILE_BYTES

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        return pa.schema([(one.name, one.type) for one in self.columns])


@dataclass(frozen=True)
class RowTimes:
    """The rows whose time in a column is in one of some spans."""

    column: str
    spans: tuple[tuple[datetime | None, datetime | None], ...]
    """Begin, included, and end, excluded; None for no bound. Without both, a row without a time is included, too."""


class ReplacedRows(NamedTuple):
    """The result of a replacement."""

    removed: int
    written: int


class Lake:
    """All tables below one address: a folder, or `s3://bucket/path` with credentials in the environment."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/") if "://" in address else str(Path(address).absolute())

    def table(self, spec: TableSpec) -> LakeTable:
        """Return a table. It is created by the first write."""
        return LakeTable(self, spec)

    def exists(self) -> bool:
        """Return whether there are files at the address.

        Raise one of LAKE_ERRORS within seconds if it is in an object store that cannot be used.
        """
        if "://" not in self.address:
            return Path(self.address).is_dir()
        with suppress(TableNotFoundError):  # any table: deltalake's errors, unlike pyarrow's, have the store's reason
            DeltaTable(f"{self.address}/{_PROBE}", storage_options=_PROBE_OPTIONS)
        system, path = file_system(self.address)
        return bool(system.get_file_info(fs.FileSelector(path, allow_not_found=True)))


@dataclass
class LakeTable:
    """One table of a lake. Only one process may write at a time, see godwit.pipeline.lock.

    All methods raise PipelineError if the table has unknown columns or other types, that is if it was written by an
    incompatible version of Godwit.
    """

    lake: Lake
    spec: TableSpec
    _delta: DeltaTable | None = field(default=None, init=False, repr=False)
    _first_offsets: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    """By log. Rows are never added before them, so they remain lower bounds."""
    _watermarks: dict[str, int | None] = field(default_factory=dict, init=False, repr=False)
    _watermarks_of: int = field(default=-1, init=False, repr=False)
    """Watermarks that were read, and the version of the table that has them."""
    _next_expiry: datetime = field(default=_EPOCH, init=False, repr=False)
    _next_idle: datetime = field(default=_EPOCH, init=False, repr=False)

    @property
    def address(self) -> str:
        """The folder of the table."""
        return f"{self.lake.address}/{self.spec.name}"

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(self, frame: DataFrame, watermarks: Watermarks) -> bool:
        """Append rows and set the watermarks in one transaction.

        Return False, and write nothing, if all watermarks had been reached before.
        """
        return self._write(frame, watermarks, "append")

    def _write(self, frame: DataFrame, watermarks: Watermarks, mode: Literal["append", "overwrite"]) -> bool:
        self._open_for_writing()
        if self.has_reached(watermarks):
            return False
        return self.append_files(self._write_files(frame), watermarks, mode)

    def _write_files(self, frame: DataFrame) -> list[WrittenFile]:
        """Write rows to files, on executors. They are not visible yet."""
        write = partial(write_rows, self.address, self.spec.schema, self.spec.file_bytes)
        files = frame.select(*self.spec.schema.names).mapInArrow(write, _WRITTEN).collect()
        return [file.asDict() for file in files]

    def append_files(
        self, files: Sequence[WrittenFile], watermarks: Watermarks, mode: Literal["append", "overwrite"] = "append"
    ) -> bool:
        """Append the rows of complete files, or replace all rows by them, and set the watermarks in one transaction.

        Return False, and leave the files invisible, if all watermarks had been reached before.
        """
        delta = self._open_for_writing()
        if self.has_reached(watermarks):
            return False
        self._commit(delta, _added_files(files), watermarks, mode, rows=sum(file["rows"] for file in files))
        return True

    def overwrite(self, frame: DataFrame, watermarks: Watermarks) -> bool:
        """Replace all rows by these, and set the watermarks, in one transaction.

        Return False, and write nothing, if all watermarks had been reached before.
        """
        return self._write(frame, watermarks, "overwrite")

    def append_arrow(self, rows: pa.Table, watermarks: Watermarks) -> bool:
        """Do the same as `append` with rows that are on the driver."""
        delta = self._open_for_writing()
        if self.has_reached(watermarks):
            return False
        if rows.num_rows:
            with self._transaction(delta, watermarks) as properties:
                write_deltalake(delta, self._cast(rows), mode="append", **properties)
        else:
            self._commit(delta, [], watermarks)
        return True

    def upsert(self, rows: pa.Table, watermarks: Watermarks) -> bool:
        """Insert rows, replace rows that have the same keys, and set the watermarks, in one transaction.

        Rows that would have expired are left out: others with these keys were deleted.

        Return False, and write nothing, if all watermarks had been reached before.
        """
        delta = self._open_for_writing()
        if self.has_reached(watermarks):
            return False
        before_us = self._watermark(delta, _EXPIRED)
        if before_us is not None and rows.num_rows:
            assert self.spec.expires_by is not None
            rows = rows.filter(pc.greater_equal(rows.column(self.spec.expires_by), pa.scalar(before_us, TIMESTAMP)))
        if not rows.num_rows:
            self._commit(delta, [], watermarks)
            return True
        rows = self._cast(rows)
        conditions = [self._equal(key) for key in self.spec.keys]
        if self.spec.time is not None:
            conditions.append(spans_condition(f'target."{self.spec.time}"', self._spans(rows)))
        with self._transaction(delta, watermarks) as properties:
            merge = delta.merge(
                rows,
                predicate=" AND ".join(conditions),
                source_alias="source",
                target_alias="target",
                **properties,
            )
            merge.when_matched_update_all().when_not_matched_insert_all().execute()
        return True

    def replace(self, rows: pa.Table) -> None:
        """Replace all rows by rows that are on the driver, in one transaction."""
        if rows.num_rows or self.version is not None:
            write_deltalake(self._open_for_writing(), self._cast(rows), mode="overwrite")

    def remove(self, rows: pa.Table, watermarks: Watermarks) -> bool:
        """Delete the rows that are equal in all columns of `rows`, and set the watermarks, in one transaction.

        Return False, and delete nothing, if there is no table or all watermarks had been reached before.
        """
        if self.version is None or self.has_reached(watermarks):
            return False
        merge = self._open_for_writing().merge(
            rows,
            predicate=" AND ".join(f'target."{name}" = source."{name}"' for name in rows.column_names),
            source_alias="source",
            target_alias="target",
            commit_properties=_commit_properties(watermarks),
        )
        merge.when_matched_delete().execute()
        return True

    def replace_times(
        self, spark: SparkSession, times: RowTimes, frame: DataFrame | None, watermarks: Watermarks
    ) -> ReplacedRows:
        """Replace the rows of some times by others, and set the watermarks, in one transaction.

        Executors write the new rows, and copy the other rows of files that have some to remove; files that have no
        others are not read. Change nothing if there are watermarks, and all had been reached before.
        """
        if (watermarks and self.has_reached(watermarks)) or (frame is None and self.version is None):
            return ReplacedRows(0, 0)
        delta = self._open_for_writing()
        if frame is not None and self.spec.time is not None:
            frame = frame.orderBy(self.spec.time)  # so that upserts change few files
        files = [] if frame is None else self._write_files(frame)
        actions, removed = self._removal(spark, times, pa.table(delta.get_add_actions(flatten=True)).to_pylist())
        if files or actions or watermarks:
            self._commit(delta, [*actions, *_added_files(files)], watermarks)
        return ReplacedRows(removed, sum(one["rows"] for one in files))

    def expire(self, spark: SparkSession, before: datetime, unread: Ranges | None = None) -> int:
        """Delete the rows from before a time, by the column `expires_by`. Return their number.

        A file that has only such rows is removed without being read. Of a file that has others, too, the others are
        copied, but not before its oldest row has been expired for a day: so each day copies few files.

        `unread` are ranges of offsets that other tables still need; nothing is deleted from their oldest time on.
        """
        column = self.spec.expires_by
        if column is None or self.version is None:
            return 0
        delta = self._open_for_writing()
        files = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
        before = _hour_of(before)
        for file in files:
            if any(_may_contain(file, log, begin, end) for log, (begin, end) in (unread or {}).items()):
                before = min(before, _hour_of(file.get(f"min.{column}") or _EPOCH))
        due = [
            file
            for file in files
            if (first := file.get(f"min.{column}")) is not None
            and (first < before - DAY or file[f"max.{column}"] + STATISTICS_MS < before)
        ]
        actions, removed = self._removal(spark, RowTimes(column, ((None, before),)), due)
        if removed:
            self._commit(delta, actions, {_EXPIRED: _micros(before)})
        return removed

    def _removal(
        self, spark: SparkSession, times: RowTimes, files: Sequence[Mapping[str, Any]]
    ) -> tuple[list[AddAction | RemoveAction], int]:
        """Return the actions that remove rows of some times, and the number of rows."""
        overlaps = [(file, overlap(file, times.column, times.spans)) for file in files]
        whole = [file for file, overlap in overlaps if overlap == "whole"]
        partly = {file["path"]: file for file, overlap in overlaps if overlap == "partly"}
        copies: list[tuple[str, int, WrittenFile | None]] = []
        if partly:
            spans = [
                (None if begin is None else _micros(begin), None if end is None else _micros(end))
                for begin, end in times.spans
            ]
            copy = partial(copy_rows_outside, self.address, self.spec.schema, times.column, spans)
            paths = spark.sparkContext.parallelize(list(partly), min(len(partly), MAX_REPAIR_TASKS))
            copies = [one for one in paths.map(copy).collect() if one[1]]
        now_ms = int(time.time() * 1000)
        gone = [*whole, *[partly[path] for path, *_ in copies]]
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(file["path"], True, now_ms, file["size_bytes"], {}) for file in gone
        ]
        actions += _added_files([file for *_, file in copies if file is not None])
        return actions, sum(file["num_records"] for file in whole) + sum(count for _, count, _ in copies)

    # -- maintenance --------------------------------------------------------------------------------------------------

    def maintain(
        self,
        spark: SparkSession,
        keep: timedelta | None = None,
        unread: Callable[[], Ranges] = dict,
        *,
        is_idle: bool = False,
        is_last: bool = False,
    ) -> None:
        """Expire rows, compact, vacuum, and delete expired files of the Delta log, as far as each is due.

        Called after each transaction; with `is_idle` in place of one, which has an effect once an hour; and with
        `is_last` at the end of a run, when rows expire at once. Rows are kept for `keep`; None is for ever.
        """
        now = datetime.now(UTC)
        delta = None if is_idle and now < self._next_idle else self._open()
        if delta is None:
            return
        self._next_idle = now + HOUR
        if keep is not None and (is_last or now >= self._next_expiry):
            self._next_expiry = now + HOUR
            self.expire(spark, now - keep, unread())
        last, number = [self._watermark(delta, name) or 0 for name in (_COMPACTED_VERSION, _COMPACTIONS)]
        commits = delta.version() - last
        created_us = 1000 * (delta.metadata().created_time or 0)
        compacted, vacuumed = [
            _EPOCH + timedelta(microseconds=self._watermark(delta, name) or created_us)
            for name in (_COMPACTED, _VACUUMED)
        ]
        is_many = commits >= COMPACT_EVERY
        a_day = DAY - HOUR  # a run that is started once a day may begin earlier than the last one
        done: dict[str, int] = {}
        if is_many or (commits > 0 and now - compacted >= a_day):
            self.compact(min(self.spec.file_bytes, _tier_bytes(number + 1)))
            delta.cleanup_metadata()
            done = {_COMPACTIONS: number + 1, _COMPACTED: _micros(now)}
        if now - vacuumed >= a_day or (is_many and now - vacuumed >= HOUR):
            self.vacuum(MERGED_UNUSED_FILE_HOURS if self.spec.is_merged else UNUSED_FILE_HOURS)
            done[_VACUUMED] = _micros(now)
        if done:
            delta = self._open_for_writing()
            if _COMPACTED in done or not commits:  # the transactions of maintenance itself do not count
                done[_COMPACTED_VERSION] = delta.version() + 1
            self._commit(delta, [], done)

    def _time_of(self, name: str) -> datetime | None:
        at_us = self.watermark(name)
        return None if at_us is None else _EPOCH + timedelta(microseconds=at_us)

    def compact(self, file_bytes: int | None = None) -> None:
        """Replace many small files by few large ones with the same rows."""
        delta = self._open()
        if delta is not None:
            delta.optimize.compact(target_size=file_bytes)

    def vacuum(self, retention_hours: int) -> int:
        """Delete files that no version of the last `retention_hours` uses, orphans of failed batches included.

        Return the number of files. Must not run during an append.
        """
        delta = self._open()
        if delta is None:
            return 0
        removed = delta.vacuum(retention_hours, dry_run=False, enforce_retention_duration=False, full=True)
        if "://" not in self.address:
            _remove_empty_folders(Path(self.address) / FILES)
        return len(removed)

    def bring_forward(self, spark: SparkSession) -> int:
        """Add columns and properties that the table lacks, and statistics that its files lack.

        Return the number of such files.

        Files of Godwit 0.5.0 have statistics of two columns only, and older files have none of a column that was added.
        """
        if self.version is None:
            return 0
        delta = self._open_for_writing()
        if missing := _CONFIGURATION.items() - delta.metadata().configuration.items():
            delta.alter.set_table_properties(dict(missing))
        added = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
        files = {file["path"]: file for file in added if not self._has_statistics(file)}
        if files:
            schema = self.spec.schema
            paths = spark.sparkContext.parallelize(list(files), min(len(files), MAX_REPAIR_TASKS))
            found = paths.map(partial(_path_and_statistics, self.address, schema)).collect()
            self._commit(delta, [_same_file(files[path], statistics) for path, statistics in found], {})
        return len(files)

    # -- state --------------------------------------------------------------------------------------------------------

    def has_reached(self, watermarks: Watermarks) -> bool:
        """Return whether each of these watermarks, or a later one, is set."""
        return all((known := self.watermark(name)) is not None and known >= at for name, at in watermarks.items())

    def watermark(self, name: str) -> int | None:
        """Return the watermark of this name, or None if it was never set."""
        delta = self._open()
        return None if delta is None else self._watermark(delta, name)

    def first_offset(self, log: str) -> int | None:
        """Return a lower bound of the offsets of a log, from the Delta log's statistics; None without such rows."""
        if log not in self._first_offsets:
            delta = self._open()
            files = [] if delta is None else _added(delta)
            known = [file.get(f"min.{_OFFSET}") or 0 for file in files if _may_contain(file, log, 0, _MAX_OFFSET)]
            if not known:
                return None
            self._first_offsets[log] = min(known)
        return self._first_offsets[log]

    @property
    def expired_before(self) -> datetime | None:
        """The time before which rows have expired; None if none ever did."""
        return self._time_of(_EXPIRED)

    @property
    def compacted(self) -> datetime | None:
        """The time of the last compaction."""
        return self._time_of(_COMPACTED)

    @property
    def vacuumed(self) -> datetime | None:
        """When unused files were last deleted."""
        return self._time_of(_VACUUMED)

    @property
    def file_sizes(self) -> list[int]:
        """The size of each file in bytes."""
        delta = self._open()
        return [] if delta is None else pa.table(delta.get_add_actions(flatten=True))["size_bytes"].to_pylist()

    @property
    def rows(self) -> int:
        """The number of rows."""
        delta = self._open()
        return 0 if delta is None else int(delta.count())

    @property
    def version(self) -> int | None:
        """The number of the last transaction; None if the table does not exist."""
        delta = self._open()
        return None if delta is None else delta.version()

    # -- reading ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> DeltaTable | None:
        """Return the table as deltalake reads it, at its latest version; None if it does not exist."""
        return self._open()

    def frame(self, spark: SparkSession, ranges: Ranges | None = None) -> DataFrame:
        """Return a snapshot of the rows for Spark, all or those of some ranges of offsets."""
        schema = from_arrow_schema(self.spec.schema)
        files = self.file_addresses(ranges)
        if not files:
            return spark.createDataFrame([], schema)
        if "://" in self.address:  # Spark itself has no access to object stores
            addresses = spark.createDataFrame(pa.table({"address": files}))
            frame = addresses.mapInArrow(partial(read_rows, self.spec.schema), schema)
        else:
            frame = spark.read.schema(schema).parquet(*files)
        if ranges is None:
            return frame
        at = sf.col(_OFFSET)
        within = [(sf.col(_BROKER) == log) & (at >= begin) & (at < end) for log, (begin, end) in ranges.items()]
        return frame.where(reduce(Column.__or__, within))

    def file_addresses(self, ranges: Ranges | None = None) -> list[str]:
        """Return the addresses of all files, or of the files that may contain rows of some ranges of offsets."""
        delta = self._open()
        return [
            f"{self.address}/{file['path']}"
            for file in ([] if delta is None else _added(delta))
            if ranges is None or any(_may_contain(file, log, begin, end) for log, (begin, end) in ranges.items())
        ]

    def may_have_topics(self, ranges: Ranges, prefix: str) -> bool:
        """Return False if no file with rows of these ranges has a topic with this prefix, by their statistics."""
        delta = self._open()
        for file in [] if delta is None else _added(delta):
            if any(_may_contain(file, log, begin, end) for log, (begin, end) in ranges.items()):
                least, greatest = file.get(f"min.{_TOPIC}"), file.get(f"max.{_TOPIC}")
                if least is None or greatest is None or (least[: len(prefix)] <= prefix <= greatest):
                    return True
        return False

    def arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a snapshot of the rows on the driver, for small tables."""
        names = self.spec.schema.names if columns is None else list(columns)
        delta = self._open()
        if delta is None:
            return self.spec.schema.empty_table().select(names)
        return delta.to_pyarrow_dataset(schema=self.spec.schema).to_table(names)

    def matching(self, rows: pa.Table) -> pa.Table:
        """Return, on the driver, the stored rows that have the same keys as one of these rows."""
        delta = self._open()
        if delta is None:
            return self.spec.schema.empty_table()
        where = None if self.spec.time is None else spans_filter(self.spec.time, self._spans(rows))
        keys = list(self.spec.keys)
        wanted = self._cast(rows).select(keys).group_by(keys).aggregate([])
        # Batch by batch: the same files may hold a very large number of rows with other keys.
        batches = delta.to_pyarrow_dataset(schema=self.spec.schema).scanner(filter=where).to_batches()
        tables = (self._complete(self._cast(pa.Table.from_batches([one]))) for one in batches)
        found = [one.join(wanted, keys, join_type="left semi") for one in tables]
        return pa.concat_tables([self.spec.schema.empty_table(), *found])

    def scan(self, columns: Sequence[str], where: pc.Expression | None = None) -> Iterator[pa.Table]:
        """Yield the rows of a snapshot in batches, for tables of any size."""
        delta = self._open()
        if delta is not None:
            dataset = delta.to_pyarrow_dataset(schema=self.spec.schema)
            for batch in dataset.scanner(columns=list(columns), filter=where).to_batches():
                yield pa.Table.from_batches([batch])

    # -- small parts --------------------------------------------------------------------------------------------------

    def _open(self) -> DeltaTable | None:
        """Return the latest version of the table, or None if it does not exist."""
        if self._delta is None:
            try:
                delta = DeltaTable(self.address)
            except TableNotFoundError:
                return None
            self._check_columns(delta)
            self._delta = delta
        elif "://" in self.address or Path(_log_path(self.address, self._delta.version() + 1)).exists():
            self._delta.update_incremental()
        return self._delta

    def _watermark(self, delta: DeltaTable, name: str) -> int | None:
        """Return the watermark of this name. deltalake reads the Delta log for each, so they are kept."""
        if self._watermarks_of != delta.version():
            self._watermarks, self._watermarks_of = {}, delta.version()
        if name not in self._watermarks:
            self._watermarks[name] = delta.transaction_version(name)
        return self._watermarks[name]

    @contextmanager
    def _transaction(
        self, delta: DeltaTable, watermarks: Watermarks, rows: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield arguments for a transaction that sets watermarks, and is committed in the block.

        `maintain` deletes expired files of the Delta log: to list them with each checkpoint would take longer and
        longer.
        """
        before = delta.version()
        hooks = PostCommitHookProperties(cleanup_expired_logs=False)
        yield {"commit_properties": _commit_properties(watermarks, rows), "post_commithook_properties": hooks}
        if self._watermarks_of == before and delta.version() == before + 1:  # no other transaction came between
            self._watermarks |= watermarks
            self._watermarks_of = delta.version()

    def _open_for_writing(self) -> DeltaTable:
        """Return the latest version of the table. Create it if needed, and add columns that it lacks."""
        delta = self._open()
        if delta is None:
            DeltaTable.create(
                self.address,
                self.spec.schema,
                mode="ignore",
                name=self.spec.name,
                description=self.spec.grain,
                configuration=_CONFIGURATION,
            )
            delta = self._open()
            assert delta is not None
        known = {one.name for one in delta.schema().fields}
        if missing := [one for one in self._fields() if one.name not in known]:
            delta.alter.add_columns(missing)
        return delta

    def _check_columns(self, delta: DeltaTable) -> None:
        """Raise PipelineError if the table has a column that is unknown here, or has another type here."""
        expected = {one.name: one.type for one in self._fields()}
        found = {one.name: one.type for one in delta.schema().fields}
        wrong = [f"the column {name} is unknown" for name in found if name not in expected]
        wrong += [
            f"the column {name} has the type {_type_name(found[name])}, not {_type_name(expected[name])}"
            for name in expected
            if name in found and found[name] != expected[name]
        ]
        if wrong:
            raise PipelineError(
                f"the table {self.address} was written by an incompatible version of Godwit ({'; '.join(wrong)}): "
                "use that version, or start a new lake with --lake"
            )

    def _fields(self) -> list[Field]:
        return Schema.from_arrow(self.spec.schema).fields

    def _has_statistics(self, file: Mapping[str, Any]) -> bool:
        """Return whether the Delta log has the nulls and the bounds of each column of a file."""
        for one in self.spec.schema:
            nulls = file.get(f"null_count.{one.name}")
            is_bounded = file.get(f"min.{one.name}") is not None and file.get(f"max.{one.name}") is not None
            if has_order(one.type) and (nulls is None or (nulls < file["num_records"] and not is_bounded)):
                return False
        return True

    def _commit(
        self,
        delta: DeltaTable,
        actions: Sequence[AddAction | RemoveAction],
        watermarks: Watermarks,
        mode: Literal["append", "overwrite"] = "append",
        rows: int | None = None,
    ) -> None:
        with self._transaction(delta, watermarks, rows) as properties:
            delta.create_write_transaction(list(actions), mode, delta.schema(), **properties)

    def _spans(self, rows: pa.Table) -> list[TimeSpan]:
        return time_spans(pc.unique(rows.column(self.spec.time)).to_pylist())

    def _equal(self, key: str) -> str:
        """Return the SQL condition that two rows have the same value of a key."""
        missing = next(one.missing for one in self.spec.columns if one.name == key)
        if missing is None:
            return f'target."{key}" = source."{key}"'
        return f"""coalesce(target."{key}", '{missing}') = coalesce(source."{key}", '{missing}')"""

    def _complete(self, rows: pa.Table) -> pa.Table:
        """Return rows with the values of keys that an older version did not have."""
        for index, one in enumerate(self.spec.columns):
            if one.missing is not None and rows.column(index).null_count:
                rows = rows.set_column(index, rows.field(index), pc.fill_null(rows.column(index), one.missing))
        return rows

    def _cast(self, rows: pa.Table) -> pa.Table:
        return rows.select(self.spec.schema.names).cast(self.spec.schema)


# -- files ------------------------------------------------------------------------------------------------------------


def _added_files(files: Iterable[WrittenFile]) -> list[AddAction]:
    now_ms = int(time.time() * 1000)
    return [AddAction(one["path"], one["bytes"], {}, now_ms, True, one["statistics"]) for one in files]


def _tier_bytes(number: int) -> int:
    """Return the size up to which the compaction of this number joins files."""
    found = SMALL_FILE_BYTES
    while number % COMPACTION_FACTOR == 0:
        number //= COMPACTION_FACTOR
        found *= COMPACTION_FACTOR
    return found


def _path_and_statistics(address: str, schema: pa.Schema, path: str) -> tuple[str, str]:
    return path, read_statistics(address, path, schema)


def _same_file(file: Mapping[str, Any], statistics: str) -> AddAction:
    """Return the action that replaces a file's entry in the Delta log by one with these statistics."""
    return AddAction(file["path"], file["size_bytes"], {}, file["modification_time"], False, statistics)


def _commit_properties(watermarks: Watermarks, rows: int | None = None) -> CommitProperties:
    now_ms = int(time.time() * 1000)
    shown = None if rows is None else {"num_added_rows": str(rows)}  # in the history of the table
    return CommitProperties(shown, app_transactions=[Transaction(name, at, now_ms) for name, at in watermarks.items()])


def _log_path(address: str, version: int) -> str:
    """Return the path of a transaction in the Delta log of a table in a folder."""
    return f"{address}/_delta_log/{version:020}.json"


def _type_name(kind: Any) -> str:
    """Return the name of a type of Delta: long, double, timestamp."""
    return str(getattr(kind, "type", kind))


def _remove_empty_folders(parent: Path) -> None:
    for folder in parent.glob("*"):
        with suppress(OSError):  # it is not empty
            folder.rmdir()


def _added(delta: DeltaTable) -> list[dict[str, Any]]:
    """Return the files of a table, with the statistics by which ranges of offsets are found."""
    wanted = ["path", *[f"{bound}.{name}" for bound in ("min", "max") for name in (_BROKER, _OFFSET, _TOPIC)]]
    found = pa.table(delta.get_add_actions(flatten=True))
    return found.select([name for name in wanted if name in found.column_names]).to_pylist()  # type: ignore[no-any-return]


def _may_contain(file: Mapping[str, Any], log: str, begin: int, end: int) -> bool:
    """Return False if a file has no rows of this range, according to its statistics."""
    names = (f"min.{_OFFSET}", f"max.{_OFFSET}", f"min.{_BROKER}", f"max.{_BROKER}")
    first, last, least, greatest = [file.get(name) for name in names]
    if first is not None and last is not None and (last < begin or first >= end):
        return False
    return least is None or greatest is None or least <= log <= greatest


# -- times ------------------------------------------------------------------------------------------------------------


def _hour_of(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)
