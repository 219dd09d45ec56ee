"""Checks find what is wrong, each in its own way, and nothing else; in a real session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.rows import LOG
from tests.pipeline.test_checkpoints import write_checkpoint
from tests.pipeline.three_hours import three_hours

from godwit.pipeline.checkpoints import TABLES
from godwit.pipeline.checks import checked
from godwit.pipeline.datasets import bronze, readings, windows
from godwit.pipeline.lake import Lake, TableSpec
from godwit.pipeline.problems import PipelineError


def wrong(spark: SparkSession, lake: Lake) -> dict[tuple[str, str], int]:
    return {(one.table, one.check): one.wrong for one in checked(spark, lake) if one.wrong}


def add(lake: Lake, spec: TableSpec, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """A row once more, changed."""
    row = lake.table(spec).arrow().sort_by("offset").to_pylist()[0]
    rows = pa.Table.from_pylist([row | change(row)], spec.schema)
    lake.table(spec).append_arrow(rows, {"wrong": (lake.table(spec).version or 0) + 1})


@pytest.mark.soak
def test_what_is_wrong_is_found(tmp_path: Path, spark: SparkSession) -> None:
    lake = three_hours(tmp_path, spark)
    assert wrong(spark, lake) == {}
    add(lake, bronze.SPEC, lambda row: {"offset": 1000, "qos": 7})
    add(lake, readings.SPEC, lambda row: {"value": float("nan")})
    bad = lake.table(windows.SPEC).arrow().to_pylist()[0]
    lake.table(windows.SPEC).upsert(pa.Table.from_pylist([bad | {"p95": -1.0}], windows.SPEC.schema), {"wrong": 0})
    assert wrong(spark, lake) == {
        ("bronze/messages", "its QoS is 0, 1 or 2"): 1,
        ("silver/readings", "its value is a number"): 1,
        ("silver/readings", "no two rows have the same broker, offset, quantity"): 1,
        ("silver/readings", "every message is in silver or in quarantine"): 1,
        ("gold/windows", "mean and percentiles lie between the least and the greatest"): 1,
        ("gold/windows", "windows of each length count every reading once"): 2,
        ("gold/devices", "devices count every message once, but the broker's own"): 1,
        ("gold/traffic", "publishers count every message once, in its hour"): 1,
    }


def test_in_the_middle_of_a_batch_nothing_can_be_said(tmp_path: Path, spark: SparkSession) -> None:
    lake = Lake(str(tmp_path))
    write_checkpoint(lake, TABLES, [f'{{"{LOG}": 1}}'], done=0)
    with pytest.raises(PipelineError, match="half done"):
        next(checked(spark, lake))


def test_an_empty_lake_is_right(tmp_path: Path, spark: SparkSession) -> None:
    found = list(checked(spark, Lake(str(tmp_path))))
    assert len(found) > 20
    assert not [one for one in found if one.wrong]
