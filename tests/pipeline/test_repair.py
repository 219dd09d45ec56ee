"""Repairs in a real session: gold computed again, and quarantine parsed again, also after an interruption."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.lakes import LOG, MINUTES, NOON, readings_by_hour, three_hours

from godwit.pipeline.datasets import bronze, devices, readings, traffic, windows
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.lake import Lake
from godwit.pipeline.repair import REQUEUE, rebuild, requeue, whole_hours


def break_windows(lake: Lake) -> None:
    """Make every window count too many readings, and add one in an hour without readings."""
    wrong = lake.table(windows.SPEC).arrow().to_pylist()
    for row in wrong:
        row["count"] += 1000
    wrong.append(wrong[0] | {"window_start": NOON + timedelta(hours=2, minutes=1), "topic": "home/ghost"})
    lake.table(windows.SPEC).upsert(pa.Table.from_pylist(wrong, windows.SPEC.schema), {"wrong": 0})


def test_gold_is_computed_again_for_a_range(tmp_path: Path, spark: SparkSession) -> None:
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
    lake.table(bronze.SPEC).append_files([], {LOG: MINUTES + 1})  # a batch that the other tables do not have
    with pytest.raises(PipelineError, match="incomplete"):
        rebuild(spark, lake, None, None)


def test_ranges_are_widened_to_hours() -> None:
    at = NOON + timedelta(minutes=1)
    assert whole_hours(at, at) == (NOON, NOON + timedelta(hours=1))
    assert whole_hours(NOON, NOON + timedelta(hours=1)) == (NOON, NOON + timedelta(hours=1))
    assert whole_hours(None, None) == (None, None)


def test_quarantine_is_parsed_again(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = three_hours(tmp_path, spark)
    silver, quarantine = lake.table(readings.SPEC), lake.table(readings.QUARANTINE)
    assert requeue(spark, lake) == (0, 2)
    # As after an update that can parse one of them.
    parse = readings.parse

    def parse_more(messages: Any) -> Any:
        rows = messages.where("payload = cast('warm' AS binary)").drop("payload")
        rows = rows.selectExpr("*", "cast('25' AS binary) AS payload")
        return parse(rows.unionByName(messages.where("payload != cast('warm' AS binary)")))

    monkeypatch.setattr(readings, "parse", parse_more)
    # Interrupted: silver has the message, windows and quarantine have not changed yet.
    silver.append(readings.valid(parse_more(quarantine.frame(spark))), {REQUEUE: 0})
    assert (silver.rows, quarantine.rows, readings_by_hour(lake)[12]) == (MINUTES - 1, 2, 59)
    with pytest.raises(PipelineError, match="finish it with godwit pipeline requeue"):
        rebuild(spark, lake, None, None)
    assert requeue(spark, lake) == (1, 1)
    assert (silver.rows, quarantine.rows, readings_by_hour(lake)[12]) == (MINUTES - 1, 1, 60)
    assert quarantine.arrow(["offset"])["offset"].to_pylist() == [100]
    assert requeue(spark, lake) == (0, 1)
    assert (silver.rows, readings_by_hour(lake)[12]) == (MINUTES - 1, 60)
