"""Files of tables and their statistics: each reader finds the rows that it should, whichever column it filters by."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyarrow import parquet
from pyspark.sql import SparkSession
from tests.pipeline.lakes import lake_of_0_5_0

from godwit.pipeline import files
from godwit.pipeline.datasets import bronze, readings
from godwit.pipeline.datasets.catalog import ALL
from godwit.pipeline.files import FileStatistics, TableFile, has_order, read_statistics
from godwit.pipeline.lake import Lake, LakeTable, TableColumn, TableSpec

SEED = 4_117
FILE_ROWS = 20

# -- the rows of a table -----------------------------------------------------------------------------------------------


def values_of(kind: pa.DataType, file: int, rng: random.Random) -> list[Any]:
    """Return values of one file: ranges of two files overlap, the third one has nulls only."""
    if file == 2:
        return [None] * FILE_ROWS
    numbers = [rng.randrange(file * 3, file * 3 + 6) for _ in range(FILE_ROWS)]
    nulls = rng.sample(range(FILE_ROWS), 3 if file else 0)
    return [None if at in nulls else value_of(kind, file, number) for at, number in enumerate(numbers)]


def value_of(kind: pa.DataType, file: int, number: int) -> Any:
    if pa.types.is_string(kind):
        return ("ö" * 80 if number % 2 else "") + str(number)
    if pa.types.is_binary(kind):
        return bytes([number, 255])
    if pa.types.is_map(kind):
        return [("unit", str(number)), ("ö", "")]
    if pa.types.is_timestamp(kind):
        return datetime(2026, 11, 15, tzinfo=UTC) + timedelta(microseconds=number)
    if pa.types.is_boolean(kind):
        return file == 1
    return number / 7 - 0.3 if pa.types.is_floating(kind) else number - 3


def rows_of(spec: TableSpec, file: int, rng: random.Random) -> pa.RecordBatch:
    arrays = [pa.array(values_of(one.type, file, rng), one.type) for one in spec.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=spec.schema)


def write(table: LakeTable, rows: pa.RecordBatch, watermark: int) -> None:
    file = TableFile(table.address, table.spec.schema)
    file.write(rows)
    written = file.close()
    assert written is not None
    assert table.append_files([written], {"q": watermark})


# -- the readers -------------------------------------------------------------------------------------------------------

EQUAL, GREATER, NULL = "=", ">", "is null"


def by_delta(address: str, name: str, sign: str, value: Any) -> int:
    if sign == NULL:
        return by_arrow(address, name, sign, value)  # its filters have no such sign
    return len(DeltaTable(address).to_pandas(columns=[name], filters=[(name, sign, value)]))


def by_arrow(address: str, name: str, sign: str, value: Any) -> int:
    field = pc.field(name)
    where = field.is_null() if sign == NULL else field == value if sign == EQUAL else field > value
    return int(DeltaTable(address).to_pyarrow_dataset().count_rows(filter=where))


def by_duckdb(address: str, name: str, sign: str, value: Any) -> int:
    rows = DeltaTable(address).to_pyarrow_dataset()
    with duckdb.connect() as database:
        database.register("rows", rows)
        where, given = (f'"{name}" IS NULL', []) if sign == NULL else (f'"{name}" {sign} ?', [value])
        (found,) = database.execute(f"SELECT count(*) FROM rows WHERE {where}", given).fetchall()
    return int(found[0])


def by_polars(address: str, name: str, sign: str, value: Any) -> int:
    column = polars.col(name)
    literal = polars.lit(value)
    where = column.is_null() if sign == NULL else column == literal if sign == EQUAL else column > literal
    return int(polars.scan_delta(address).filter(where).select(polars.len()).collect().item())


READERS = [by_delta, by_arrow, by_duckdb, by_polars]


def check_column(table: LakeTable, rows: pa.Table, name: str, read: Callable[[str, str, str, Any], int]) -> None:
    """Compare the number of rows that a reader finds with a computation that skips no file."""
    known = rows.column(name).to_pylist()
    if pa.types.is_map(rows.column(name).type):  # readers do not compare maps
        assert read(table.address, name, NULL, None) == known.count(None), f"{name} is null"
        return
    present = sorted({value for value in known if value is not None})
    assert read(table.address, name, NULL, None) == known.count(None), f"{name} is null"
    for value in {*present[:2], *present[-2:]}:
        assert read(table.address, name, EQUAL, value) == known.count(value), f"{name} = {value!r}"
        if pa.types.is_binary(table.spec.schema.field(name).type):
            continue
        expected = sum(1 for one in known if one is not None and one > value)
        assert read(table.address, name, GREATER, value) == expected, f"{name} > {value!r}"


@pytest.mark.parametrize("read", READERS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("spec", [bronze.SPEC, readings.SPEC, readings.QUARANTINE], ids=lambda one: one.name)
def test_each_reader_finds_rows_by_each_column(
    tmp_path: Path, spec: TableSpec, read: Callable[[str, str, str, Any], int]
) -> None:
    rng, table = random.Random(SEED), Lake(str(tmp_path)).table(spec)
    batches = [rows_of(spec, file, rng) for file in range(3)]
    for number, batch in enumerate(batches):
        write(table, batch, number)
    for name in spec.schema.names:
        check_column(table, pa.Table.from_batches(batches), name, read)


@pytest.mark.parametrize("spec", ALL, ids=lambda one: one.name)
def test_rows_from_the_driver_have_complete_statistics(tmp_path: Path, spec: TableSpec) -> None:
    """Gold is written by delta-rs, whose statistics are its own."""
    rng, table = random.Random(SEED), Lake(str(tmp_path)).table(spec)
    batches = [rows_of(spec, file, rng) for file in range(3)]
    for number, batch in enumerate(batches):
        table.append_arrow(pa.Table.from_batches([batch]), {"q": number})
    assert all(table._has_statistics(file) for file in added(table))
    for name in spec.schema.names:
        check_column(table, pa.Table.from_batches(batches), name, by_arrow)
    table.compact()
    assert len(added(table)) == 1
    assert table._has_statistics(added(table)[0])


def added(table: LakeTable) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(DeltaTable(table.address).get_add_actions(flatten=True)).to_pylist()
    return found


# -- files of older versions -------------------------------------------------------------------------------------------


def test_a_lake_of_0_5_0_gets_complete_statistics(tmp_path: Path, spark: SparkSession) -> None:
    lake = lake_of_0_5_0(tmp_path)
    silver = lake.table(readings.SPEC)
    assert by_delta(silver.address, "quantity", EQUAL, "value") == 0  # wrong
    assert [lake.table(spec).bring_forward(spark) for spec in ALL] == [1, 1, 1, 0, 2, 0, 0, 0, 0]
    assert [lake.table(spec).bring_forward(spark) for spec in ALL] == [0] * len(ALL)
    for spec in ALL:
        table = lake.table(spec)
        if table.version is not None and added(table):
            rows = pa.concat_tables(parquet.read_table(f"{table.address}/{file['path']}") for file in added(table))
            rows = with_columns_of(table.spec, rows)
            for one in rows.schema:
                for read in READERS if has_order(one.type) else []:
                    check_column(table, rows, one.name, read)


def with_columns_of(spec: TableSpec, rows: pa.Table) -> pa.Table:
    """Older files have timestamps of another type, and lack the columns that were added since."""
    columns = {
        one.name: rows[one.name].cast(one.type) if one.name in rows.column_names else pa.nulls(len(rows), one.type)
        for one in spec.schema
    }
    return pa.table(columns, schema=spec.schema)


def test_files_without_an_added_column_get_its_nulls(tmp_path: Path, spark: SparkSession) -> None:
    rng, lake = random.Random(SEED), Lake(str(tmp_path))
    older = lake.table(bronze.SPEC)
    write(older, rows_of(bronze.SPEC, 0, rng), 0)
    columns = (*bronze.SPEC.columns, TableColumn("note", pa.string()))
    newer = lake.table(TableSpec(bronze.SPEC.name, "", columns, bronze.SPEC.keys, {}))
    assert newer.bring_forward(spark) == 1
    write(newer, rows_of(newer.spec, 1, rng), 1)
    for read in READERS:
        assert read(newer.address, "note", NULL, None) == FILE_ROWS + 3
        assert read(newer.address, "offset", GREATER, -100) == 2 * FILE_ROWS - 3


# -- statistics --------------------------------------------------------------------------------------------------------


def statistics_of(kind: pa.DataType, *values: Any) -> tuple[Any, Any, int]:
    found = FileStatistics(pa.schema([("x", kind)]))
    found.add(pa.RecordBatch.from_arrays([pa.array(values, kind)], ["x"]))
    read = json.loads(found.to_json())
    assert read["numRecords"] == len(values)
    return read["minValues"].get("x"), read["maxValues"].get("x"), read["nullCount"]["x"]


def test_bounds_of_each_type() -> None:
    assert statistics_of(pa.int64(), 3, None, -2) == (-2, 3, 1)
    assert statistics_of(pa.string(), None, None) == (None, None, 2)
    assert statistics_of(pa.bool_(), True, True) == (True, True, 0)
    assert statistics_of(pa.binary(), b"1", None) == (None, None, 1)
    assert statistics_of(pa.timestamp("us", tz="UTC"), 1, 1_500_000) == (
        "1970-01-01T00:00:00.000001Z",
        "1970-01-01T00:00:01.500000Z",
        0,
    )
    least, greatest, _ = statistics_of(pa.timestamp("us", tz="UTC"), -(2**62), 2**62)
    assert (least, greatest) == ("0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z")
    for odd in (math.nan, math.inf):
        assert statistics_of(pa.float64(), 1.0, odd) == (-1.7976931348623157e308, 1.7976931348623157e308, 0)


@pytest.mark.parametrize(
    "text", ["a" * 63, "a" * 64, "a" * 65, "ö" * 70, "a" * 64 + "\U0010ffff" * 2, "\U0010ffff" * 70]
)
def test_bounds_of_long_text_are_cut(text: str) -> None:
    least, greatest, _ = statistics_of(pa.string(), text)
    assert least.encode() <= text.encode() <= greatest.encode()
    assert text.startswith(least)
    assert len(least) <= 64


def test_a_file_has_row_groups_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_BYTES", 10_000)
    schema = pa.schema([("payload", pa.binary())])
    file = TableFile(str(tmp_path), schema)
    for _ in range(10):
        file.write(pa.RecordBatch.from_arrays([pa.array([b"x" * 1000] * 7)], schema=schema))
    written = file.close()
    assert written is not None
    content = parquet.ParquetFile(tmp_path / written["path"])
    assert (content.metadata.num_rows, content.metadata.num_row_groups) == (70, 5)
    assert written["bytes"] == (tmp_path / written["path"]).stat().st_size
    assert read_statistics(str(tmp_path), written["path"], schema) == written["statistics"]


def test_a_file_without_rows_is_not_created(tmp_path: Path) -> None:
    file = TableFile(str(tmp_path), bronze.SPEC.schema)
    assert file.close() is None
    assert not list(tmp_path.iterdir())
