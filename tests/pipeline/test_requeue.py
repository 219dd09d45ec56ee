"""Quarantine read again, in a real session, also after an end in the middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.three_hours import MINUTES, readings_by_hour, three_hours

from godwit.pipeline.datasets import readings
from godwit.pipeline.problems import PipelineError
from godwit.pipeline.rebuild import rebuild
from godwit.pipeline.requeue import QUERY, requeue


def test_quarantine_is_read_again(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = three_hours(tmp_path, spark)
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
    silver.append(readings.good(read_more(quarantine.frame(spark))), {QUERY: 0})
    assert (silver.rows, quarantine.rows, readings_by_hour(lake)[12]) == (MINUTES - 1, 2, 59)
    with pytest.raises(PipelineError, match="finish it with godwit pipeline requeue"):
        rebuild(spark, lake, None, None)
    assert requeue(spark, lake) == (1, 1)
    assert (silver.rows, quarantine.rows, readings_by_hour(lake)[12]) == (MINUTES - 1, 1, 60)
    assert quarantine.arrow(["offset"])["offset"].to_pylist() == [100]
    assert requeue(spark, lake) == (0, 1)
    assert (silver.rows, readings_by_hour(lake)[12]) == (MINUTES - 1, 60)
