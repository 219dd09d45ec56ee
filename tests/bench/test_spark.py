"""The whole benchmark of Spark, run for real but briefly: what it reports, never how fast it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from godwit_bench import spark


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
