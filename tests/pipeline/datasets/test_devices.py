"""Devices, their pauses and their gaps, in a real Spark session."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.rows import day, messages

from godwit.pipeline.datasets import devices
from godwit.pipeline.merging import rebuilt


def test_pauses_and_gaps(spark: SparkSession) -> None:
    found = {row.topic: row for row in rebuilt(devices.MERGING, messages(spark, day())).collect()}
    assert found.keys() == {"home/one", "home/two"}
    assert (found["home/one"].gaps, found["home/two"].gaps) == (1, 0)
    assert found["home/one"].longest_gap_s == pytest.approx(1020.0)
    assert found["home/two"].interval_s == pytest.approx(20.0)
    assert (found["home/two"].publisher, found["home/two"].messages) == ("b", 360)
