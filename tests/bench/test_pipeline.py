"""The benchmark of the pipeline: both jobs have the same messages and make the same readings, and a short real run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.archives import options
from tests.spark.session import running_broker

from godwit.pipeline.datasets import bronze, readings
from godwit.pipeline.lake import Lake
from godwit.pipeline.runner import RunConfig, TablesWriter
from godwit.store.folder import DataFolder
from godwit.store.sqlite import SqliteStore
from godwit.wire.batch import make_entry
from godwit_bench import pipeline, pipeline_plain
from godwit_bench.pipeline import _memory, _peak_memory, fill

MESSAGES = 150


def test_the_log_and_the_lines_have_the_same_messages(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "data", tmp_path / "lines", 0, MESSAGES, MESSAGES)
    fill(tmp_path / "data", None, MESSAGES, 5, MESSAGES + 5)
    lines = [json.loads(line) for path in (tmp_path / "lines").iterdir() for line in path.read_text().splitlines()]
    assert sorted(line["offset"] for line in lines) == list(range(MESSAGES))
    lake = Lake(str(tmp_path / "lake"))
    with running_broker(tmp_path / "data") as broker:
        assert TablesWriter(spark, RunConfig(lake, options(broker.archive))).step().messages == MESSAGES + 5
    payloads = {row["offset"]: row["payload"].decode() for row in lake.table(bronze.SPEC).arrow().to_pylist()}
    assert {line["offset"]: line["payload"] for line in lines} == {at: payloads[at] for at in range(MESSAGES)}

    assert pipeline_plain.run(spark, str(tmp_path / "lines"), str(tmp_path / "plain")) == MESSAGES
    names = ["offset", "quantity", "value", "unit", "device", "event_time"]
    plain = spark.read.parquet(str(tmp_path / "plain" / "silver")).select(names).toArrow().to_pylist()
    ours = lake.table(readings.SPEC).arrow(names).to_pylist()
    assert len(ours) == 2 * (MESSAGES + 5)
    assert sorted(map(repr, plain)) == sorted(repr(row) for row in ours if row["offset"] < MESSAGES)


def test_alerts_of_an_earlier_run_count_as_messages_of_the_log(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert fill(data, None, 0, MESSAGES, MESSAGES) == MESSAGES
    folder = DataFolder(data)
    folder.open()
    store = SqliteStore.open(folder.log_path, new_log_id=bytes(16), now_us=1)
    store.append([make_entry("alerts/room", "pipeline", [b"too warm"], qos=1, now_us=1)], ())
    store.close()
    folder.close()
    assert fill(data, None, MESSAGES, 5, MESSAGES + 5) == MESSAGES + 1 + 5


def test_memory_is_sampled() -> None:
    with _peak_memory(os.getpid()) as peak:
        while not peak[0]:
            pass
    assert peak[0] >= _memory(os.getpid()) // 2 > 0


@pytest.mark.soak
def test_a_short_run(tmp_path: Path) -> None:
    report = pipeline.run(folder=tmp_path, rounds=1, seconds=2.0, messages=2_000, steps=100, on_round=lambda name: None)
    assert {one.name for one in report.results} >= {"second_run_s", "delay_p50_ms", "delay_p95_ms", "memory_mb"}
    assert {one.name for one in report.ratios} == {"once_vs_plain", "run_1000_vs_first", "memory_vs_tenth"}
    assert all(one.value for one in report.results)
    assert all(one.value for one in report.ratios)
