"""Questions in SQL, in a real session."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.rows import LOG, NOON

from godwit.pipeline.datasets import readings
from godwit.pipeline.lake import Lake
from godwit.pipeline.problems import PipelineError
from godwit.pipeline.query import all_rows, ask


def test_questions(tmp_path: Path, spark: SparkSession) -> None:
    lake = Lake(str(tmp_path))
    bad = [
        {"broker": LOG, "offset": offset, "topic": "home/one", "received": NOON + timedelta(seconds=offset)}
        | {"reason": "no number", "detail": "", "payload": b"warm", "schema_version": 1}
        for offset in range(2)
    ]
    lake.table(readings.QUARANTINE).append_arrow(pa.Table.from_pylist(bad, readings.QUARANTINE.schema), {"q": 0})
    answer = ask(spark, lake, "SELECT reason, count(*) AS n FROM silver_quarantine GROUP BY reason")
    assert list(all_rows(answer)) == [{"reason": "no number", "n": 2}]
    assert list(all_rows(ask(spark, lake, "SELECT * FROM gold_anomalies"))) == []
    with pytest.raises(PipelineError, match="`nothing` cannot be found: choose from bronze_messages, silver_readings"):
        ask(spark, lake, "SELECT * FROM nothing")
    with pytest.raises(PipelineError, match="Syntax error at or near 'selekt'"):
        ask(spark, lake, "selekt")
    for order in ("INSERT OVERWRITE silver_quarantine SELECT * FROM silver_quarantine", "drop VIEW silver_quarantine"):
        with pytest.raises(PipelineError, match=r"changes nothing: (INSERT|DROP) is no question"):
            ask(spark, lake, order)
    assert "silver_quarantine" in {row["tableName"] for row in all_rows(ask(spark, lake, "SHOW TABLES"))}
    with pytest.raises(PipelineError, match="DIVIDE_BY_ZERO"):
        list(all_rows(ask(spark, lake, "SELECT 1 / (offset - offset) FROM silver_quarantine")))
