"""The whole pipeline in a real session against a real broker."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.cli.real import godwit
from tests.pipeline.heard import Heard
from tests.spark.session import running_broker

from godwit.pipeline.checks import checked
from godwit.pipeline.datasets import anomalies, bronze, devices, readings, windows
from godwit.pipeline.lake import Lake
from godwit.pipeline.report.page import write_report
from godwit.pipeline.runner import Order, run
from godwit.pipeline.session import _ROCKS
from godwit.pipeline.status import status_of
from godwit.pipeline.watching import Outcome


def test_up_to_what_is_there_and_then_the_rest(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("godwit.pipeline.lake.COMPACT_EVERY", 1)
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKS)
    lake, heard = Lake(str(tmp_path / "lake")), Heard()
    with running_broker(tmp_path / "data") as broker:

        def publish(*lines: str) -> None:
            text = "\n".join(lines).encode()
            assert godwit("pub", "--broker", broker.address, "home/t", "--lines", "-q", input=text).returncode == 0

        order = Order(lake, {"archive": broker.archive}, is_once=True)
        began_s = int(time.time()) - 600  # ten minutes of readings
        publish(*[f'{{"t": {20 + number % 5}, "time": {began_s + 6 * number}}}' for number in range(100)], "warm")
        outcome = run(spark, order, heard)
        assert outcome == Outcome(
            {"tables": 1, "anomalies": 1, "gold": 1}, dict.fromkeys(("tables", "anomalies", "gold"), 101)
        )
        assert {(batch.query, batch.number, batch.rows, batch.lag) for batch in heard.batches} == {
            ("tables", 0, 101, 0), ("anomalies", 0, 101, 0), ("gold", 0, 101, 0)
        }  # fmt: skip
        publish("21", "22")
        assert run(spark, order, heard).rows == {"tables": 2, "anomalies": 2, "gold": 2}
        assert [one.lag for one in status_of(lake, order.source).logs] == [0, 0, 0]
    assert not [one for one in checked(spark, lake) if one.wrong]
    rows = {spec.name: lake.table(spec).rows for spec in (bronze.SPEC, readings.SPEC, readings.QUARANTINE)}
    assert rows == {"bronze/messages": 103, "silver/readings": 102, "silver/quarantine": 1}
    counts = lake.table(windows.SPEC).arrow(["window_s", "count"]).to_pylist()
    assert sum(row["count"] for row in counts if row["window_s"] == 60) == 102
    assert [row["messages"] for row in lake.table(devices.SPEC).arrow().to_pylist()] == [103]
    assert lake.table(anomalies.SPEC).rows == 0
    assert len(counts) >= 10
    # Spark gives a new Python worker 10 s, which cannot be changed: on a very busy machine a query starts again.
    assert [one for one in heard.failures if "Python worker failed to connect back" not in one[1]] == []
    write_report(lake, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "103 messages in " in page
    assert page.count('class="median"') >= 1  # a line through ten minutes
