"""What became of jobs, hour by hour, in a real Spark session."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.rows import day, messages

from godwit.pipeline.datasets import job_statistics
from godwit.pipeline.merging import rebuilt


def test_jobs_of_each_hour(spark: SparkSession) -> None:
    hours = rebuilt(job_statistics.MERGING, messages(spark, day())).orderBy("hour").collect()
    assert [(row.kind, row.jobs_submitted, row.tasks_finished, row.run_s_max) for row in hours] == [
        ("resize", 6, 6, 5.0), ("resize", 6, 6, 11.0),
    ]  # fmt: skip
    assert hours[0].run_s_mean == pytest.approx(2.5)
    assert hours[0].wait_s_p95 == pytest.approx(0.5)
