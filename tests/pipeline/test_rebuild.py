"""Gold made anew, in a real session."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.rows import LOG, NOON
from tests.pipeline.test_checkpoints import write_checkpoint
from tests.pipeline.three_hours import MINUTES, readings_by_hour, three_hours

from godwit.pipeline.checkpoints import TABLES
from godwit.pipeline.datasets import devices, traffic, windows
from godwit.pipeline.lake import Lake
from godwit.pipeline.problems import PipelineError
from godwit.pipeline.rebuild import rebuild, whole_hours


def break_windows(lake: Lake) -> None:
    """Every window counts too much, and one is of an hour in which nothing was."""
    wrong = lake.table(windows.SPEC).arrow().to_pylist()
    for row in wrong:
        row["count"] += 1000
    wrong.append(wrong[0] | {"window_start": NOON + timedelta(hours=2, minutes=1), "topic": "home/ghost"})
    lake.table(windows.SPEC).upsert(pa.Table.from_pylist(wrong, windows.SPEC.schema), {"wrong": 0})


def test_gold_is_made_anew_for_a_range(tmp_path: Path, spark: SparkSession) -> None:
    lake = three_hours(tmp_path, spark)
    assert readings_by_hour(lake) == {12: 59, 13: 59, 14: 60}
    break_windows(lake)
    counts = rebuild(spark, lake, NOON + timedelta(hours=1, minutes=5), NOON + timedelta(hours=2, minutes=30))
    assert readings_by_hour(lake) == {12: 1059, 13: 59, 14: 60}
    assert counts[windows.SPEC.name] == 2 + 59 + 60
    assert "home/ghost" not in lake.table(windows.SPEC).arrow(["topic"])["topic"].to_pylist()
    (device,) = lake.table(devices.SPEC).arrow().to_pylist()
    assert device["messages"] == MINUTES
    assert [row["messages"] for row in lake.table(traffic.SPEC).arrow().to_pylist()] == [60, 60, 60]
    rebuild(spark, lake, None, None)
    assert readings_by_hour(lake) == {12: 59, 13: 59, 14: 60}
    write_checkpoint(lake, TABLES, [f'{{"{LOG}": {end}}}' for end in (MINUTES, MINUTES + 1)], done=1)
    with pytest.raises(PipelineError, match="half done"):
        rebuild(spark, lake, None, None)


def test_ranges_are_widened_to_hours() -> None:
    at = NOON + timedelta(minutes=1)
    assert whole_hours(at, at) == (NOON, NOON + timedelta(hours=1))
    assert whole_hours(NOON, NOON + timedelta(hours=1)) == (NOON, NOON + timedelta(hours=1))
    assert whole_hours(None, None) == (None, None)
