"""The benchmark of Spark: its tasks see all rows, its delays exclude the warm-up, and a short real run."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.bench.test_spark_bare import bare_of
from tests.spark.archives import options, served

from godwit.errors import GodwitError
from godwit.pipeline.datasets import bronze
from godwit.pipeline.lake import Lake, LakeTable
from godwit_bench import spark
from godwit_bench.spark import TASKS, WARM_BATCHES, Source, percentile, watch
from godwit_bench.spark_bare import FORMAT, BareSource, rows_of


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


def batch(number: int, age_s: float) -> pa.Table:
    row = dict.fromkeys(bronze.SPEC.schema.names) | {"offset": number, "published": int((time.time() - age_s) * 1e6)}
    return pa.Table.from_pylist([row], bronze.SPEC.schema)


class Writer:
    """Add a row to the table at every other read."""

    def __init__(self, table: LakeTable) -> None:
        self.table = table
        self.looks = 0

    def __call__(self) -> None:
        self.looks += 1
        if self.looks % 2:
            number = self.looks // 2
            self.table.append_arrow(batch(number, 100.0 if number < WARM_BATCHES else 5.0), {"query": number})


def test_rows_are_timed_once_it_is_warm(tmp_path: Path) -> None:
    table = Lake(str(tmp_path)).table(bronze.SPEC)
    found = watch(table, 0.5, on_look=Writer(table))
    assert found
    assert 5.0 <= min(found) <= max(found) < 50.0
    assert len(found) <= table.rows - WARM_BATCHES


def test_a_pipeline_that_writes_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "LONGEST_S", 0.05)
    with pytest.raises(GodwitError, match="bronze got 0 batches"):
        watch(Lake(str(tmp_path)).table(bronze.SPEC), 0.05, on_look=lambda: None)


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert percentile(values, 0.5) == 50.0
    assert percentile(values, 0.95) == 95.0
    assert percentile([7.0], 0.95) == 7.0


@pytest.mark.java
@pytest.mark.soak
def test_a_short_run_measures_everything(tmp_path: Path) -> None:
    rounds: list[str] = []
    report = spark.run(folder=tmp_path, rounds=1, seconds=5, messages=20_000, on_round=rounds.append)
    assert report.bench == "spark"
    results = {result.name: result.value or 0.0 for result in report.results}
    assert list(results) == [
        "aggregate_godwit",
        "aggregate_bare",
        "parquet_godwit",
        "parquet_bare",
        "delay_p50_ms",
        "delay_p95_ms",
    ]
    assert rounds[-5:] == [*list(results)[:4], "delay"]
    assert all(results.values())
    assert results["delay_p50_ms"] <= results["delay_p95_ms"]
    assert {ratio.name: ratio.value for ratio in report.ratios} == {
        "aggregate_vs_bare": results["aggregate_godwit"] / results["aggregate_bare"],
        "parquet_vs_bare": results["parquet_godwit"] / results["parquet_bare"],
    }
    assert list(tmp_path.iterdir()) == []
