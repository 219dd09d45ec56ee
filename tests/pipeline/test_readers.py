"""The tables open unchanged in DuckDB, Polars and pandas, and filters on every column find all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.pipeline.lakes import three_hours

from godwit.pipeline.datasets import bronze, readings, windows
from godwit.pipeline.lake import Lake, TableSpec

SPECS = (bronze.SPEC, readings.SPEC, windows.SPEC)
Count = Callable[[str, str, Any], int]
"""Return the number of rows of a table (by its address) in which a column has a value."""


def count_pandas(address: str, column: str, value: Any) -> int:
    return len(DeltaTable(address).to_pandas(filters=[(column, "=", value)]))


def count_arrow(address: str, column: str, value: Any) -> int:
    found = DeltaTable(address).to_pyarrow_table(filters=[(column, "=", value)])
    return int(found.num_rows)


def count_polars(address: str, column: str, value: Any) -> int:
    return len(pl.scan_delta(address).filter(pl.col(column) == pl.lit(value)).collect())


def count_duckdb(address: str, column: str, value: Any) -> int:
    dataset = DeltaTable(address).to_pyarrow_dataset()
    with duckdb.connect() as database:
        database.register("rows", dataset)
        (row,) = database.execute(f'SELECT count(*) FROM "rows" WHERE "{column}" = ?', [value]).fetchall()
    return int(row[0])


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Lake:
    return three_hours(tmp_path_factory.mktemp("readers"), spark)


def cases() -> Iterator[tuple[TableSpec, str]]:
    for spec in SPECS:
        for one in spec.schema:
            if one.name not in ("payload", "sketch"):  # Delta has no minimum and maximum of binary columns
                yield spec, one.name


@pytest.mark.parametrize("count", [count_pandas, count_arrow, count_polars, count_duckdb])
def test_a_filter_on_each_column_finds_its_rows(lake: Lake, count: Count) -> None:
    for spec, column in cases():
        table = lake.table(spec)
        values = [one for one in table.arrow([column])[column].to_pylist() if one is not None]
        if values:
            value = values[len(values) // 2]
            assert count(table.address, column, value) == values.count(value), f"{spec.name}: {column}"


def test_types_are_the_same_in_polars(lake: Lake) -> None:
    for spec in SPECS:
        found = pl.scan_delta(lake.table(spec).address).collect()
        assert found.columns == spec.schema.names
        assert found.to_arrow().cast(spec.schema).num_rows == lake.table(spec).rows


def test_times_are_in_utc(lake: Lake) -> None:
    address = lake.table(bronze.SPEC).address
    first = min(lake.table(bronze.SPEC).arrow(["received"])["received"].to_pylist())
    assert first.tzinfo is not None
    assert DeltaTable(address).to_pandas()["received"].min() == first
    assert pl.scan_delta(address).select(pl.col("received").min()).collect().item() == first
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    with duckdb.connect() as database:
        database.register("messages", DeltaTable(address).to_pyarrow_dataset())
        (row,) = database.execute("SELECT epoch_us(min(received)) FROM messages").fetchall()
    assert row[0] == (first - epoch) // pa.scalar(1, pa.duration("us")).as_py()
