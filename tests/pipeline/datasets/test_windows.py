"""Windows against Python's own statistics, in a real Spark session."""

from __future__ import annotations

import statistics

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.rows import NOON, day, local, silver

from godwit.pipeline.datasets import windows
from godwit.pipeline.merging import rebuilt


def test_windows_are_what_statistics_say(spark: SparkSession) -> None:
    sent = day()
    hours = rebuilt(windows.MERGING, silver(spark, sent)).where("window_s = 3600").orderBy("topic", "window_start")
    first, _, constant, _ = hours.collect()
    values = [float(payload) for _, topic, _, at_s, payload in sent if topic == "home/one" and at_s < 3600]
    assert (first.topic, first.window_start) == ("home/one", local(NOON))
    assert (first["count"], first.min, first.max) == (len(values), min(values), max(values))
    assert first["mean"] == pytest.approx(statistics.fmean(values))
    assert first.deviation == pytest.approx(statistics.pstdev(values))
    assert first.p50 == statistics.median_low(values)
    assert constant.topic == "home/two"
    assert constant.deviation == pytest.approx(0.0, abs=1e-6)
