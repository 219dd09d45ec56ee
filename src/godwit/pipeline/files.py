"""Parquet files of the lake's tables, and their statistics in the Delta log.

All access goes through pyarrow: Spark itself has none to object stores without a connector from Maven.

Executors write the files, and the driver makes them visible in one transaction. Readers skip a file whose statistics
exclude a condition, and some of them (delta-rs, and DuckDB and pandas through it) also skip a file that has no
statistics of a column. Statistics are therefore complete: the number of nulls of each column, and the bounds of each
column whose values have an order in Delta, which binary ones have not.

This module runs on executors, which have pyarrow and no godwit.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs, parquet

from godwit.pipeline.errors import PipelineError

MEMORY_FACTOR: Final = 4
"""About how much larger rows are in memory than in a file."""
FILES: Final = "files"
"""Folder below a table's own for its files. Vacuum ignores names that begin with an underscore, and would leave
orphaned files there."""
ROW_GROUP_ROWS: Final = 128 * 1024
ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
"""Limits of a row group, which is also what a writer holds in memory."""
READ_ROWS: Final = 10_000
"""Rows that an executor passes to Spark at a time."""
MAX_STRING_LETTERS: Final = 64
"""Longer bounds are cut: the lower one to a prefix, the upper one to a prefix with the greatest letter behind it."""
_GREATEST_LETTER: Final = "\U0010ffff"
_GREATEST_FLOAT: Final = 1.7976931348623157e308
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
WrittenFile: TypeAlias = dict[str, Any]
"""A file that is complete: `path` within the table, `rows`, `bytes`, and `statistics` as JSON. A plain dictionary,
because executors cannot send objects of classes that they do not have."""


def file_system(address: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a lake or of a path in it, and the path there.

    Raise PipelineError if the address is not one of a file system.
    """
    if "://" not in address:
        return fs.LocalFileSystem(), address
    try:
        return fs.FileSystem.from_uri(address)  # type: ignore[no-any-return]
    except pa.ArrowException as error:
        raise PipelineError(f"{address} is not a valid address of a lake: {error}") from None


def make_folder(system: fs.FileSystem, path: str) -> None:
    """Create a folder for files. An object store has none, and would store an empty object instead."""
    if system.type_name in ("local", "hdfs"):
        system.create_dir(path, recursive=True)


def read_rows(schema: pa.Schema, addresses: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files, on an executor. The first column of `addresses` has their addresses.

    A column that a file lacks is null.
    """
    for batch in addresses:
        for address in batch.column(0).to_pylist():
            system, path = file_system(address)
            with system.open_input_file(path) as file:
                content = parquet.ParquetFile(file, coerce_int96_timestamp_unit="us")
                names = [name for name in schema.names if name in content.schema_arrow.names]
                for rows in content.iter_batches(READ_ROWS, columns=names):
                    yield _with_all_columns(rows, schema)


def _with_all_columns(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    found = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns = [
        found[one.name].cast(one.type) if one.name in found else pa.nulls(rows.num_rows, one.type) for one in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class TableFile:
    """A file of a table while it is written. The first rows create it."""

    def __init__(self, table_address: str, schema: pa.Schema) -> None:
        self._address = table_address
        self._schema = schema
        self._path = f"{FILES}/{uuid.uuid4().hex}.parquet"  # unique for each attempt at a task
        self._statistics = FileStatistics(schema)
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._output: Any = None
        self._writer: parquet.ParquetWriter | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows, whose columns are those of the table in its order."""
        if not rows.num_rows:
            return
        self._statistics.add(rows)
        self._pending.append(rows)
        self._pending_rows += rows.num_rows
        self._pending_bytes += rows.nbytes
        if self._pending_rows >= ROW_GROUP_ROWS or self._pending_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> WrittenFile | None:
        """Complete the file. Return its description, or None without rows."""
        self._flush()
        if self._writer is None:
            return None
        self._writer.close()
        size = int(self._output.tell())
        self._output.close()
        rows, statistics = self._statistics.rows, self._statistics.to_json()
        return {"path": self._path, "rows": rows, "bytes": size, "statistics": statistics}

    def abort(self) -> None:
        """Close the file after an error. It is not visible, and vacuum deletes it."""
        for one in (self._writer, self._output):
            if one is not None:
                with suppress(OSError, pa.ArrowException):
                    one.close()

    def _flush(self) -> None:
        if self._pending:
            if self._writer is None:
                self._open()
            assert self._writer is not None
            self._writer.write_table(pa.Table.from_batches(self._pending, self._schema), row_group_size=ROW_GROUP_ROWS)
            self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def _open(self) -> None:
        system, folder = file_system(self._address)
        path = f"{folder}/{self._path}"
        make_folder(system, path.rpartition("/")[0])
        self._output = system.open_output_stream(path)
        # Other columns have too many different values for a dictionary.
        repeated = [one.name for one in self._schema if pa.types.is_string(one.type)]
        self._writer = parquet.ParquetWriter(self._output, self._schema, compression="zstd", use_dictionary=repeated)


def write_rows(
    address: str, schema: pa.Schema, file_bytes: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a partition to files of about this size, on an executor. Yield their descriptions."""
    file, size = TableFile(address, schema), 0
    try:
        for batch in batches:
            for rows in pa.Table.from_batches([batch]).cast(schema).to_batches():
                file.write(rows)
                size += rows.nbytes
            if size >= MEMORY_FACTOR * file_bytes:
                yield pa.RecordBatch.from_pylist([file.close()])
                file, size = TableFile(address, schema), 0
        written = file.close()
    except BaseException:
        file.abort()
        raise
    if written is not None:
        yield pa.RecordBatch.from_pylist([written])


def copy_rows_outside(
    table_address: str,
    schema: pa.Schema,
    column: str,
    spans: Sequence[tuple[int | None, int | None]],
    path: str,
) -> tuple[str, int, WrittenFile | None]:
    """Copy the rows of a file whose time is in none of the spans to a new file.

    A span is in microseconds since 1970: begin, included, and end, excluded; None for no bound. Rows without a time are
    copied.

    Return the path, the number of rows that were left out, and the new file. It is None if no row was left out,
    or no row remains.
    """
    left_out = rows = 0
    for batch in _read_batches(table_address, path, pa.schema([schema.field(column)])):
        rows += batch.num_rows
        left_out += pc.sum(_is_within(batch.column(column), spans)).as_py() or 0
    if left_out in (0, rows):
        return path, left_out, None
    file = TableFile(table_address, schema)
    try:
        for batch in _read_batches(table_address, path, schema):
            file.write(batch.filter(pc.invert(_is_within(batch.column(column), spans))))
        return path, left_out, file.close()
    except BaseException:
        file.abort()
        raise


def _is_within(times: pa.Array, spans: Sequence[tuple[int | None, int | None]]) -> pa.Array:
    at = times.cast(pa.int64())
    found = pa.repeat(False, len(at))
    for begin, end in spans:
        one = pc.is_valid(at)
        if begin is not None:
            one = pc.and_(one, pc.fill_null(pc.greater_equal(at, begin), False))
        if end is not None:
            one = pc.and_(one, pc.fill_null(pc.less(at, end), False))
        found = pc.or_(found, one)
    return found


def _read_batches(table_address: str, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file of a table in these columns. A column that it lacks is null."""
    system, folder = file_system(table_address)
    with system.open_input_file(f"{folder}/{unquote(path)}") as file:
        content = parquet.ParquetFile(file, coerce_int96_timestamp_unit="us")
        names = [name for name in schema.names if name in content.schema_arrow.names]
        for batch in content.iter_batches(columns=names):
            columns = [
                batch.column(one.name).cast(one.type) if one.name in names else pa.nulls(batch.num_rows, one.type)
                for one in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


# -- statistics -------------------------------------------------------------------------------------------------------


class FileStatistics:
    """Number of rows, and bounds and nulls of each column, of the rows that were added."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows = 0
        self._types = {one.name: one.type for one in schema}
        self._nulls = dict.fromkeys(schema.names, 0)
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows with all columns, in the types of the schema."""
        self.rows += rows.num_rows
        for name in self._types:
            self.add_column(name, rows.column(name))

    def add_column(self, name: str, values: pa.Array) -> None:
        """Add values of one column."""
        self._nulls[name] += values.null_count
        kind = self._types[name]
        if not has_order(kind) or values.null_count == len(values):
            return
        least, greatest = _bounds(values, kind)
        self._least[name] = least if name not in self._least else min(self._least[name], least)
        self._greatest[name] = greatest if name not in self._greatest else max(self._greatest[name], greatest)

    def add_nulls(self, name: str, count: int) -> None:
        """Add this number of nulls to one column."""
        self._nulls[name] += count

    def to_json(self) -> str:
        """Return the statistics in the form of the Delta protocol."""
        found = {
            "numRecords": self.rows,
            "minValues": {name: _lower_bound(value, self._types[name]) for name, value in self._least.items()},
            "maxValues": {name: _upper_bound(value, self._types[name]) for name, value in self._greatest.items()},
            "nullCount": self._nulls,
        }
        return json.dumps(found, ensure_ascii=False)


def has_order(kind: pa.DataType) -> bool:
    """Return whether Delta defines bounds for columns of this type."""
    return not (pa.types.is_binary(kind) or pa.types.is_nested(kind))


def _bounds(values: pa.Array, kind: pa.DataType) -> tuple[Any, Any]:
    """Return the least and the greatest value; of times, in microseconds since 1970."""
    found = pc.min_max(values.cast(pa.int64()) if pa.types.is_timestamp(kind) else values).as_py()
    least, greatest = found["min"], found["max"]
    if pa.types.is_floating(kind) and not (math.isfinite(least) and math.isfinite(greatest) and not _has_nan(values)):
        return -_GREATEST_FLOAT, _GREATEST_FLOAT  # JSON has no other numbers
    return least, greatest


def _has_nan(values: pa.Array) -> bool:
    return bool(pc.any(pc.is_nan(values)).as_py())


def _lower_bound(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        return _iso(value)
    return value[:MAX_STRING_LETTERS] if isinstance(value, str) else value


def _upper_bound(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        return _iso(value)
    if not isinstance(value, str):
        return value
    end = MAX_STRING_LETTERS
    while value[end : end + 1] == _GREATEST_LETTER:
        end += 1
    return value if len(value) <= end else value[:end] + _GREATEST_LETTER


def _iso(time_us: int) -> str:
    """Return a time as text. A time beyond the years of ISO 8601 becomes the nearest one within."""
    try:
        at = _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        at = (datetime.min if time_us < 0 else datetime.max).replace(tzinfo=UTC)
    return at.strftime("%Y").zfill(4) + at.strftime("-%m-%dT%H:%M:%S.%fZ")


def read_statistics(table_address: str, path: str, schema: pa.Schema) -> str:
    """Return the statistics of a file that is in a table, from its content. A column that it lacks has nulls only."""
    system, folder = file_system(table_address)
    statistics = FileStatistics(schema)
    with system.open_input_file(f"{folder}/{path}") as file:
        content = parquet.ParquetFile(file, coerce_int96_timestamp_unit="us")
        statistics.rows = content.metadata.num_rows
        names = content.schema_arrow.names
        for one in schema:
            if one.name not in names:
                statistics.add_nulls(one.name, statistics.rows)
            else:
                for batch in content.iter_batches(columns=[one.name]):
                    values = batch.column(0)
                    statistics.add_column(one.name, values.cast(one.type) if has_order(one.type) else values)
    return statistics.to_json()
