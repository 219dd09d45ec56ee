"""SQL over the lake, and the checks of tables, in a real session."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.lakes import LOG, NOON, three_hours, write_checkpoint

from godwit.pipeline.checkpoints import TABLES
from godwit.pipeline.checks import run_checks
from godwit.pipeline.datasets import bronze, readings, windows
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.lake import Lake, TableSpec
from godwit.pipeline.query import iterate_rows, run_query

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


def wrong(spark: SparkSession, lake: Lake) -> dict[tuple[str, str], int]:
    return {(one.table, one.check): one.wrong for one in run_checks(spark, lake) if one.wrong}


def add(lake: Lake, spec: TableSpec, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Append a changed copy of the first row."""
    row = lake.table(spec).arrow().sort_by("offset").to_pylist()[0]
    rows = pa.Table.from_pylist([row | change(row)], spec.schema)
    lake.table(spec).append_arrow(rows, {"wrong": (lake.table(spec).version or 0) + 1})


@pytest.mark.soak
def test_errors_are_found(tmp_path: Path, spark: SparkSession) -> None:
    lake = three_hours(tmp_path, spark)
    assert wrong(spark, lake) == {}
    add(lake, bronze.SPEC, lambda row: {"offset": 1000, "qos": 7})
    add(lake, readings.SPEC, lambda row: {"value": float("nan")})
    bad = lake.table(windows.SPEC).arrow().to_pylist()[0]
    lake.table(windows.SPEC).upsert(pa.Table.from_pylist([bad | {"p95": -1.0}], windows.SPEC.schema), {"wrong": 0})
    assert wrong(spark, lake) == {
        ("bronze/messages", "its QoS is 0, 1 or 2"): 1,
        ("silver/readings", "its value is a number"): 1,
        ("silver/readings", "no two rows have the same broker, offset, quantity, position"): 1,
        ("silver/readings", "every message with readings or an error is in silver or in quarantine"): 1,
        ("gold/windows", "mean and percentiles lie between the least and the greatest"): 1,
        ("gold/windows", "windows of each length count every reading once"): 2,
        ("gold/devices", "devices count every message once, but the broker's own"): 1,
        ("gold/traffic", "publishers count every message once, in its hour"): 1,
    }


def test_an_incomplete_batch_is_an_error(tmp_path: Path, spark: SparkSession) -> None:
    lake = Lake(str(tmp_path))
    write_checkpoint(lake, TABLES, [f'{{"{LOG}": 1}}'], done=0)
    with pytest.raises(PipelineError, match="incomplete"):
        next(run_checks(spark, lake))


def test_an_empty_lake_is_right(tmp_path: Path, spark: SparkSession) -> None:
    found = list(run_checks(spark, Lake(str(tmp_path))))
    assert len(found) > 20
    assert not [one for one in found if one.wrong]
