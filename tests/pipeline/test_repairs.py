"""A lake put right afterwards, in a real session: gold made anew, quarantine read again, questions in SQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.test_checkpoints import write_checkpoint

from godwit.pipeline import bronze, devices, readings, traffic, windows
from godwit.pipeline.checkpoints import TABLES
from godwit.pipeline.lake import Lake, TableSpec
from godwit.pipeline.merging import merge
from godwit.pipeline.problems import PipelineError
from godwit.pipeline.query import all_rows, ask
from godwit.pipeline.rebuild import rebuild, whole_hours
from godwit.pipeline.requeue import QUERY, requeue

LOG = "a" * 32
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
MINUTES = 180


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Lake:
    """Three hours with a message a minute; silver and gold of it, and two messages in quarantine."""
    found = Lake(str(tmp_path))
    messages = [
        {
            "broker": LOG,
            "offset": minute,
            "topic": "home/one",
            "publisher": "a",
            "published": NOON + timedelta(minutes=minute),
            "received": NOON + timedelta(minutes=minute),
            "qos": 1,
            "retained": False,
            "payload": {30: b"warm", 100: b"warmer"}.get(minute, str(minute % 10).encode()),
        }
        for minute in range(MINUTES)
    ]
    append(found, bronze.SPEC, messages)
    both = readings.read(found.table(bronze.SPEC).frame(spark)).localCheckpoint()
    found.table(readings.SPEC).append(readings.good(both), "q", 0)
    found.table(readings.QUARANTINE).append(readings.bad(both), "q", 0)
    merge(found.table(windows.SPEC), windows.MERGING, readings.good(both), "q", 0)
    return found


def append(lake: Lake, spec: TableSpec, rows: list[dict[str, Any]]) -> None:
    lake.table(spec).append_arrow(pa.Table.from_pylist(rows, spec.schema), "q", 0)


def hours(lake: Lake) -> dict[int, int]:
    """How many readings the windows of each hour have."""
    found = lake.table(windows.SPEC).arrow(["window_s", "window_start", "count"]).to_pylist()
    return {row["window_start"].hour: row["count"] for row in found if row["window_s"] == 3600}


def break_windows(lake: Lake) -> None:
    """Every window counts too much, and one is of an hour in which nothing was."""
    wrong = lake.table(windows.SPEC).arrow().to_pylist()
    for row in wrong:
        row["count"] += 1000
    wrong.append(wrong[0] | {"window_start": NOON + timedelta(hours=2, minutes=1), "topic": "home/ghost"})
    lake.table(windows.SPEC).upsert(pa.Table.from_pylist(wrong, windows.SPEC.schema), "wrong", 0)


@pytest.mark.soak
def test_gold_is_made_anew_for_a_range(lake: Lake, spark: SparkSession) -> None:
    assert hours(lake) == {12: 59, 13: 59, 14: 60}
    break_windows(lake)
    counts = rebuild(spark, lake, NOON + timedelta(hours=1, minutes=5), NOON + timedelta(hours=2, minutes=30))
    assert hours(lake) == {12: 1059, 13: 59, 14: 60}
    assert counts[windows.SPEC.name] == 2 + 59 + 60
    assert "home/ghost" not in lake.table(windows.SPEC).arrow(["topic"])["topic"].to_pylist()
    (device,) = lake.table(devices.SPEC).arrow().to_pylist()
    assert device["messages"] == MINUTES
    assert [row["messages"] for row in lake.table(traffic.SPEC).arrow().to_pylist()] == [60, 60]
    rebuild(spark, lake, None, None)
    assert hours(lake) == {12: 59, 13: 59, 14: 60}
    write_checkpoint(lake, TABLES, [f'{{"{LOG}": 1}}'], done=0)
    with pytest.raises(PipelineError, match="half done"):
        rebuild(spark, lake, None, None)


def test_ranges_are_widened_to_hours() -> None:
    at = NOON + timedelta(minutes=1)
    assert whole_hours(at, at) == (NOON, NOON + timedelta(hours=1))
    assert whole_hours(NOON, NOON + timedelta(hours=1)) == (NOON, NOON + timedelta(hours=1))
    assert whole_hours(None, None) == (None, None)


@pytest.mark.soak
def test_quarantine_is_read_again(lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    silver, quarantine = lake.table(readings.SPEC), lake.table(readings.QUARANTINE)
    assert requeue(spark, lake) == (0, 2)
    # As after an update that can read one of them.
    usual = readings.read

    def read_more(messages: Any) -> Any:
        rows = messages.where("payload = cast('warm' AS binary)").drop("payload")
        rows = rows.selectExpr("*", "cast('25' AS binary) AS payload")
        return usual(rows.unionByName(messages.where("payload != cast('warm' AS binary)")))

    monkeypatch.setattr(readings, "read", read_more)
    # Ended in the middle: silver has it, windows and quarantine do not know yet.
    silver.append(readings.good(read_more(quarantine.frame(spark))), QUERY, 0)
    assert (silver.rows, quarantine.rows, hours(lake)[12]) == (MINUTES - 1, 2, 59)
    assert requeue(spark, lake) == (1, 1)
    assert (silver.rows, quarantine.rows, hours(lake)[12]) == (MINUTES - 1, 1, 60)
    assert quarantine.arrow(["offset"])["offset"].to_pylist() == [100]
    assert requeue(spark, lake) == (0, 1)
    assert (silver.rows, hours(lake)[12]) == (MINUTES - 1, 60)


@pytest.mark.soak
def test_questions(lake: Lake, spark: SparkSession) -> None:
    answer = ask(spark, lake, "SELECT reason, count(*) AS n FROM silver_quarantine GROUP BY reason")
    assert list(all_rows(answer)) == [{"reason": "no number", "n": 2}]
    assert list(all_rows(ask(spark, lake, "SELECT * FROM gold_anomalies"))) == []
    with pytest.raises(PipelineError, match="`nothing` cannot be found: choose from bronze_messages, silver_readings"):
        ask(spark, lake, "SELECT * FROM nothing")
    with pytest.raises(PipelineError, match="Syntax error at or near 'selekt'"):
        ask(spark, lake, "selekt")
    with pytest.raises(PipelineError, match="DIVIDE_BY_ZERO"):
        list(all_rows(ask(spark, lake, "SELECT 1 / (offset - offset) FROM bronze_messages")))
