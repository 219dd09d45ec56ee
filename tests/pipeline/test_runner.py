"""The micro-batches of the pipeline, and whole runs in a real session against a real broker."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.cli.real import godwit
from tests.pipeline.lakes import LOG, RecordingListener, Sent, messages, write_checkpoint
from tests.spark.session import running_broker

from godwit.pipeline.checkpoints import TABLES
from godwit.pipeline.checks import run_checks
from godwit.pipeline.datasets import anomalies, bronze, devices, readings, windows
from godwit.pipeline.lake import Lake, TableSpec
from godwit.pipeline.report.page import write_report
from godwit.pipeline.runner import RunConfig, TablesWriter, run
from godwit.pipeline.session import _ROCKS
from godwit.pipeline.status import status_of
from godwit.pipeline.supervisor import RunStats


def offsets(lake: Lake, spec: TableSpec) -> list[int]:
    return sorted(lake.table(spec).arrow(["offset"])["offset"].to_pylist())


def test_a_batch_that_is_planned_again_resumes_at_the_watermarks(tmp_path: Path, spark: SparkSession) -> None:
    lake = Lake(str(tmp_path))
    sent: list[Sent] = [(at, "home/one", "a", float(at), b"warm" if at % 2 else b"21") for at in range(6)]

    def write(end: int) -> None:
        write_checkpoint(lake, TABLES, [f'{{"{LOG}": {end}}}'], done=0)
        TablesWriter(lake).write(messages(spark, sent[:end]), 0)

    write(2)
    write(2)  # as after kill -9 before the commit
    write(5)  # as after a power failure that lost the plan
    assert offsets(lake, bronze.SPEC) == [0, 1, 2, 3, 4]
    assert offsets(lake, readings.SPEC) == [0, 2, 4]
    assert offsets(lake, readings.QUARANTINE) == [1, 3]
    # Interrupted: bronze has the rest, the others do not.
    lake.table(bronze.SPEC).append(messages(spark, sent[5:]), {LOG: 6})
    write(6)
    assert offsets(lake, bronze.SPEC) == [0, 1, 2, 3, 4, 5]
    assert offsets(lake, readings.QUARANTINE) == [1, 3, 5]


def test_up_to_what_is_there_and_then_the_rest(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("godwit.pipeline.lake.COMPACT_EVERY", 1)
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKS)
    lake, listener = Lake(str(tmp_path / "lake")), RecordingListener()
    with running_broker(tmp_path / "data") as broker:

        def publish(*lines: str) -> None:
            text = "\n".join(lines).encode()
            assert godwit("pub", "--broker", broker.address, "home/x", "--lines", "-q", input=text).returncode == 0

        config = RunConfig(lake, {"archive": broker.archive}, is_once=True)
        began_s = int(time.time()) - 600  # ten minutes of readings
        publish(
            *[f'{{"temperature": {20 + number % 5}, "time": {began_s + 6 * number}}}' for number in range(100)], "warm"
        )
        stats = run(spark, config, listener)
        assert stats == RunStats(
            {"tables": 1, "anomalies": 1, "gold": 1}, dict.fromkeys(("tables", "anomalies", "gold"), 101)
        )
        assert {(batch.query, batch.number, batch.rows, batch.lag) for batch in listener.batches} == {
            ("tables", 0, 101, 0), ("anomalies", 0, 101, 0), ("gold", 0, 101, 0)
        }  # fmt: skip
        publish("21", "22")
        assert run(spark, config, listener).rows == {"tables": 2, "anomalies": 2, "gold": 2}
        assert [one.lag for one in status_of(lake, config.source).logs] == [0, 0, 0]
    assert not [one for one in run_checks(spark, lake) if one.wrong]
    rows = {spec.name: lake.table(spec).rows for spec in (bronze.SPEC, readings.SPEC, readings.QUARANTINE)}
    assert rows == {"bronze/messages": 103, "silver/readings": 102, "silver/quarantine": 1}
    counts = lake.table(windows.SPEC).arrow(["window_s", "count"]).to_pylist()
    assert sum(row["count"] for row in counts if row["window_s"] == 60) == 102
    assert [row["messages"] for row in lake.table(devices.SPEC).arrow().to_pylist()] == [103]
    assert lake.table(anomalies.SPEC).rows == 0
    assert len(counts) >= 10
    # Spark's limit of 10 s for a new Python worker is fixed: on a very busy machine a query restarts.
    assert [one for one in listener.failures if "Python worker failed to connect back" not in one[1]] == []
    write_report(lake, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "103 messages in " in page
    assert page.count('class="median"') >= 1  # a line through ten minutes
