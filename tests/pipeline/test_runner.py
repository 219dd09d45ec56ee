"""Both queries in a real session against a real broker; and how they are watched, without either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.cli.real import godwit
from tests.spark.session import running_broker

from godwit.pipeline import runner
from godwit.pipeline.datasets import anomalies, bronze, devices, readings, windows
from godwit.pipeline.lake import Lake
from godwit.pipeline.problems import PipelineError
from godwit.pipeline.runner import Batch, Order, Outcome, run
from godwit.pipeline.session import _ROCKS
from godwit.pipeline.status import status_of


class Heard:
    """What an observer is told."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.failures: list[tuple[str, str, float]] = []

    def on_batch(self, batch: Batch) -> None:
        self.batches.append(batch)

    def on_failure(self, query: str, sentence: str, pause_s: float) -> None:
        self.failures.append((query, sentence, pause_s))


def test_up_to_what_is_there_and_then_the_rest(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("godwit.pipeline.batches.COMPACT_EVERY", 1)
    monkeypatch.setattr("godwit.pipeline.batches.VACUUM_EVERY", 1)
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKS)
    lake, heard = Lake(str(tmp_path / "lake")), Heard()
    with running_broker(tmp_path / "data") as broker:

        def publish(*lines: str) -> None:
            text = "\n".join(lines).encode()
            assert godwit("pub", "--broker", broker.address, "home/t", "--lines", "-q", input=text).returncode == 0

        order = Order(lake, {"archive": broker.archive}, is_once=True)
        publish(*[str(20 + number % 5) for number in range(100)], "warm")
        outcome = run(spark, order, heard)
        assert outcome == Outcome({"tables": 1, "anomalies": 1}, {"tables": 101, "anomalies": 101})
        assert {(batch.query, batch.number, batch.rows, batch.lag) for batch in heard.batches} == {
            ("tables", 0, 101, 0), ("anomalies", 0, 101, 0)
        }  # fmt: skip
        publish("21", "22")
        assert run(spark, order, heard).rows == {"tables": 2, "anomalies": 2}
        assert [one.lag for one in status_of(lake, order.source).logs] == [0, 0]
    rows = {spec.name: lake.table(spec).rows for spec in (bronze.SPEC, readings.SPEC, readings.QUARANTINE)}
    assert rows == {"bronze/messages": 103, "silver/readings": 102, "silver/quarantine": 1}
    counts = lake.table(windows.SPEC).arrow(["window_s", "count"]).to_pylist()
    assert sum(row["count"] for row in counts if row["window_s"] == 60) == 102
    assert [row["messages"] for row in lake.table(devices.SPEC).arrow().to_pylist()] == [103]
    assert lake.table(anomalies.SPEC).rows == 0
    assert heard.failures == []


class FakeQuery:
    """One that fails, or ends well."""

    lastProgress = None  # noqa: N815  # Spark's names
    isActive = False  # noqa: N815

    def __init__(self, error: str | None) -> None:
        self._error = error

    def exception(self) -> PySparkException | None:
        return None if self._error is None else PySparkException(self._error)


def watch(monkeypatch: pytest.MonkeyPatch, errors: list[str | None], heard: Heard, *, is_once: bool) -> None:
    now = [0.0]
    monkeypatch.setattr("godwit.pipeline.runner.time.monotonic", lambda: now[0])
    monkeypatch.setattr("godwit.pipeline.runner.time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(runner, "check_checkpoints", lambda lake: None)
    started = iter(errors)
    monkeypatch.setattr(runner, "_starts", lambda spark, order: [("tables", lambda: FakeQuery(next(started)))])
    session: Any = None
    run(session, Order(Lake("/lake"), {}, is_once), heard)


def test_a_query_that_fails_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    away = "x\ngodwit.spark.archive.UnreachableError: nobody there\n"
    watch(monkeypatch, [away] * 8 + [None], heard, is_once=False)
    assert heard.failures == [("tables", "nobody there", pause_s) for pause_s in (1, 2, 4, 8, 16, 32, 60, 60)]


def test_what_cannot_get_better_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    gone = "x\ngodwit.spark.archive.DataLossError: messages are gone\n"
    with pytest.raises(PipelineError, match="the query tables failed: messages are gone"):
        watch(monkeypatch, [gone], heard, is_once=False)
    with pytest.raises(PipelineError, match="OutOfMemoryError"):
        watch(monkeypatch, ["java.lang.OutOfMemoryError"] * 5, heard, is_once=True)
    assert len(heard.failures) == 4


def test_a_java_process_that_died_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> FakeQuery:
        raise ConnectionRefusedError

    with pytest.raises(PipelineError, match="Java process has ended by itself"):
        runner._Watched("tables", refused, False, Heard(), Outcome()).look()  # type: ignore[arg-type]
