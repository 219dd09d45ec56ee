"""What is timed: each task sees all rows of a source, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.bench.test_spark_bare import bare_of
from tests.spark.archives import options, served

from godwit_bench.spark_bare import FORMAT, BareSource, rows_of
from godwit_bench.spark_reading import TASKS, Source


@pytest.mark.soak
def test_each_task_sees_all_rows_of_both_sources(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(BareSource)
    with served(tmp_path / "log") as place:
        for topic in ("a", "b"):
            place.add(500, topic)
        with bare_of(rows_of(place.address)) as given:
            for source in (Source("godwit", options(place)), Source(FORMAT, given)):
                for task in TASKS.values():
                    assert task(spark, source, tmp_path) == 1000
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
