"""Delta tables: each micro-batch once, one snapshot for a reader, nothing of a failed batch to be seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from godwit.pipeline.lake import FILES, Lake, Table, TableSpec

SPEC = TableSpec(
    "silver/numbers",
    "one row per number",
    pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("value", pa.float64())]),
    keys=("id",),
    checks={},
)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Lake(str(tmp_path)).table(SPEC)


def numbers(spark: SparkSession, begin: int, end: int) -> DataFrame:
    return spark.range(begin, end, 1, 2).selectExpr("id", "timestamp_micros(id) at", "cast(id as double) value")


def arrow(ids: list[int], value: float) -> pa.Table:
    times = pa.array(ids, pa.timestamp("us", tz="UTC"))
    return pa.table({"value": [value] * len(ids), "id": ids, "at": times})  # in another order, as it may come


def ids(table: Table) -> list[int]:
    return sorted(table.arrow(["id"]).column("id").to_pylist())


def test_a_table_that_nobody_has_written(spark: SparkSession, table: Table) -> None:
    assert (table.rows, table.version, table.is_done({"q": 0})) == (0, None, False)
    assert table.frame(spark).columns == SPEC.schema.names
    assert table.frame(spark).count() == 0
    assert table.arrow(["id"]).schema.names == ["id"]
    table.compact()
    assert table.vacuum(0) == 0


def test_a_batch_is_there_once_whatever_is_tried_again(spark: SparkSession, table: Table) -> None:
    assert table.append(numbers(spark, 0, 5), {"q": 0})
    assert not table.append(numbers(spark, 0, 5), {"q": 0})
    assert table.append(numbers(spark, 5, 8), {"q": 3})  # numbers may leave some out
    assert not table.append(numbers(spark, 8, 9), {"q": 2})
    assert table.append(numbers(spark, 8, 9), {"another": 0})
    assert ids(table) == list(range(9))
    assert [row.id for row in table.frame(spark).orderBy("id").collect()] == list(range(9))
    again = table.lake.table(SPEC)
    assert again.is_done({"q": 3})
    assert not again.is_done({"q": 4})
    assert again.append_arrow(arrow([20], 1.0), {"q": 4})
    assert not again.append_arrow(arrow([20], 1.0), {"q": 4})
    assert table.rows == 10


def test_nothing_of_a_failed_batch_is_seen(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    table.append(numbers(spark, 0, 5), {"q": 0})
    broken = numbers(spark, 0, 5).selectExpr("id", "at", "if(id = 4, raise_error('on purpose'), value) value")
    with pytest.raises(PySparkException, match="on purpose"):
        table.append(broken, {"q": 1})
    orphan = tmp_path / SPEC.name / FILES / "q-2-0" / "part-0.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"of a driver that was killed before it could commit")
    assert ids(table) == list(range(5))
    table.vacuum(0)
    assert not orphan.exists()
    assert ids(table) == list(range(5))


def test_upserts_replace_rows_by_their_keys(table: Table) -> None:
    assert table.upsert(arrow([1, 2], 1.0), {"q": 0})
    assert table.upsert(arrow([2, 3], 2.0), {"q": 1})
    assert not table.upsert(arrow([1], 9.0), {"q": 1})
    found = {row["id"]: row["value"] for row in table.arrow().to_pylist()}
    assert found == {1: 1.0, 2: 2.0, 3: 2.0}


def test_rows_with_the_same_keys(tmp_path: Path) -> None:
    table = Lake(str(tmp_path)).table(replace(SPEC, keys=("id", "at"), time="at"))
    assert table.matching(arrow([1], 0.0)).num_rows == 0
    for batch, number in enumerate((1, 1_000, 2_000_000)):
        table.upsert(arrow([number, number + 1], 1.0), {"q": batch})
    assert table.matching(arrow([1_000, 2_000, 2_000_001], 0.0)).sort_by("id").column("id").to_pylist() == [
        1_000,
        2_000_001,
    ]
    files = set(tmp_path.glob("silver/numbers/*.parquet"))
    table.upsert(arrow([1_000, 999_999], 2.0), {"q": 3})
    assert {row["id"]: row["value"] for row in table.arrow().to_pylist()} == {
        1: 1.0, 2: 1.0, 1_000: 2.0, 1_001: 1.0, 999_999: 2.0, 2_000_000: 1.0, 2_000_001: 1.0,
    }  # fmt: skip
    used = {Path(uri) for uri in DeltaTable(table.address).file_uris()}
    assert len(files & used) == 2  # those of other times are as they were


def test_few_files_in_the_place_of_many(spark: SparkSession, table: Table) -> None:
    for batch in range(4):
        table.append_arrow(arrow([batch], 1.0), {"q": batch})
    reader = table.frame(spark)
    table.compact()
    assert len(table.frame(spark).inputFiles()) == 1
    assert ids(table) == [0, 1, 2, 3]
    assert reader.count() == 4  # files of its snapshot are there until they are vacuumed
