"""SQL over the lake, and the checks of tables, in a real session."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession
from tests.pipeline.lakes import LOG, NOON, tables_at, three_hours

from godwit.pipeline.checks import ALL_READ, STATE, changed_ranges, gold_is_behind, run_checks
from godwit.pipeline.datasets import bronze, readings, windows
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.lake import Lake, TableSpec
from godwit.pipeline.sql import iterate_rows, run_query

# -- queries -----------------------------------------------------------------------------------------------------------


def test_queries(tmp_path: Path, spark: SparkSession) -> None:
    lake = Lake(str(tmp_path))
    bad = [
        {"broker": LOG, "offset": offset, "topic": "home/one", "received": NOON + timedelta(seconds=offset)}
        | {"reason": "no number", "detail": "", "payload": b"warm", "schema_version": 1}
        for offset in range(2)
    ]
    lake.table(readings.QUARANTINE).append_arrow(pa.Table.from_pylist(bad, readings.QUARANTINE.schema), {"q": 0})
    result = run_query(spark, lake, "SELECT reason, count(*) AS n FROM silver_quarantine GROUP BY reason")
    assert list(iterate_rows(result)) == [{"reason": "no number", "n": 2}]
    assert list(iterate_rows(run_query(spark, lake, "SELECT * FROM gold_anomalies"))) == []
    with pytest.raises(PipelineError, match="`nothing` cannot be found: choose from bronze_messages, silver_readings"):
        run_query(spark, lake, "SELECT * FROM nothing")
    with pytest.raises(PipelineError, match="Syntax error at or near 'selekt'"):
        run_query(spark, lake, "selekt")
    for statement in (
        "INSERT OVERWRITE silver_quarantine SELECT * FROM silver_quarantine",
        "drop VIEW silver_quarantine",
    ):
        with pytest.raises(PipelineError, match=r"(INSERT|DROP) is not a query: use SELECT, WITH, SHOW or DESCRIBE"):
            run_query(spark, lake, statement)
    assert "silver_quarantine" in {row["tableName"] for row in iterate_rows(run_query(spark, lake, "SHOW TABLES"))}
    with pytest.raises(PipelineError, match="DIVIDE_BY_ZERO"):
        list(iterate_rows(run_query(spark, lake, "SELECT 1 / (offset - offset) FROM silver_quarantine")))


# -- checks ------------------------------------------------------------------------------------------------------------


def wrong(lake: Lake, *, is_complete: bool = False) -> dict[tuple[str, str], int]:
    return {(one.table, one.check): one.wrong for one in run_checks(lake, is_complete=is_complete) if one.wrong}


def add(lake: Lake, spec: TableSpec, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Append a changed copy of the first row."""
    row = lake.table(spec).arrow().sort_by("offset").to_pylist()[0]
    rows = pa.Table.from_pylist([row | change(row)], spec.schema)
    lake.table(spec).append_arrow(rows, {"wrong": (lake.table(spec).version or 0) + 1})


@pytest.mark.parametrize("is_first_right", [False, True])
def test_errors_are_found(tmp_path: Path, spark: SparkSession, is_first_right: bool) -> None:
    """Also if the last check was right, and only changes are examined."""
    lake = three_hours(tmp_path, spark)
    assert not gold_is_behind(lake)
    if is_first_right:
        assert wrong(lake) == {}
    add(lake, bronze.SPEC, lambda row: {"offset": 1000, "qos": 7})
    add(lake, readings.SPEC, lambda row: {"value": float("nan")})
    bad = lake.table(windows.SPEC).arrow().to_pylist()[0]
    lake.table(windows.SPEC).upsert(pa.Table.from_pylist([bad | {"p95": -1.0}], windows.SPEC.schema), {"wrong": 0})
    expected = {
        ("bronze/messages", "its QoS is 0, 1 or 2"): 1,
        ("silver/readings", "its value is a number"): 1,
        ("silver/readings", "no two rows have the same broker, offset, quantity, position"): 1,
        ("silver/readings", "every message with readings or an error is in silver or in quarantine"): 1,
        ("gold/windows", "mean and percentiles lie between the least and the greatest"): 1,
        ("gold/windows", "windows of each length count every reading once"): 2,
        ("gold/devices", "devices count every message once, but the broker's own"): 1,
        ("gold/traffic", "publishers count every message once, in its hour"): 1,
    }
    assert wrong(lake) == expected
    assert wrong(lake) == expected  # it is not recorded as right


def test_only_changes_are_examined(tmp_path: Path, spark: SparkSession) -> None:
    lake = three_hours(tmp_path, spark)
    assert wrong(lake) == {}
    (path, *_) = (tmp_path / "bronze" / "messages").glob("*.parquet")
    rows = parquet.read_table(path)
    bad = pa.array([9] * len(rows), pa.int8())
    parquet.write_table(rows.set_column(rows.column_names.index("qos"), "qos", bad), path)
    assert wrong(lake) == {}  # the file has the same name
    assert wrong(lake, is_complete=True) == {("bronze/messages", "its QoS is 0, 1 or 2"): len(rows)}
    (tmp_path / STATE).write_text("{")
    assert wrong(lake) == {("bronze/messages", "its QoS is 0, 1 or 2"): len(rows)}


def test_a_message_that_left_silver_is_missed(tmp_path: Path, spark: SparkSession) -> None:
    lake = three_hours(tmp_path, spark)
    assert wrong(lake) == {}
    table = lake.table(readings.SPEC)
    table.remove(table.arrow().select(["broker", "offset"]).slice(0, 1), {"wrong": 1})
    assert wrong(lake)[("silver/readings", ALL_READ)] == 1


def test_changed_ranges() -> None:
    def state(*files: tuple[str, int | None, int | None]) -> dict[str, list[list[Any]]]:
        return {"bronze/messages": [list(one) for one in files]}

    one, two, three = ("a", 0, 9), ("b", 10, 19), ("c", 40, 49)
    assert changed_ranges(state(one, two), state(one, two)) == []
    assert changed_ranges(state(one), state(one, two, three)) == [(10, 19), (40, 49)]
    assert changed_ranges(state(one, two), state(("d", 0, 19))) == [(0, 19)]
    assert changed_ranges(state(one), state(one, ("e", None, None))) is None
    many = [(str(number), 10 * number, 10 * number) for number in range(100)]
    assert changed_ranges(state(), state(*many)) == [(0, 990)]


def test_an_incomplete_batch_is_an_error(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    tables_at(lake, {LOG: 0})
    lake.table(bronze.SPEC).append_files([], {LOG: 1})
    with pytest.raises(PipelineError, match="incomplete"):
        next(run_checks(lake))


def test_an_empty_lake_is_right(tmp_path: Path) -> None:
    for _ in range(2):
        found = list(run_checks(Lake(str(tmp_path))))
        assert len(found) > 20
        assert not [one for one in found if one.wrong]


def test_gold_is_behind_until_it_has_merged(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    assert not gold_is_behind(lake)
    tables_at(lake, {LOG: 1})
    for spec in (bronze.SPEC, readings.SPEC):
        lake.table(spec).append_files([], {LOG: 1})
    assert gold_is_behind(lake)
