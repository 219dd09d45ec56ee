"""Gold tables: merging, the steps that follow bronze and silver, and the thread that runs them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.lakes import LOG, Sent, day, lake_of_0_5_0, messages, readings_of, tables_at

from godwit.pipeline import checks, gold, repair, sql, supervisor
from godwit.pipeline.checks import run_checks
from godwit.pipeline.datasets import bronze, devices, job_statistics, readings, traffic, windows
from godwit.pipeline.datasets.catalog import ALL, GOLD_MERGES, GOLD_TABLES
from godwit.pipeline.gold import Gold, start_gold
from godwit.pipeline.gold_table import GoldColumn, GoldTable
from godwit.pipeline.lake import Lake, LakeTable
from godwit.pipeline.report.page import write_report
from godwit.pipeline.status import status_of
from godwit.pipeline.supervisor import StepQuery, StepResult

# -- merging -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gold_table",
    [windows.TABLE, devices.TABLE, traffic.TABLE, job_statistics.TABLE],
    ids=lambda one: one.spec.name,
)
def test_merged_in_parts_it_is_the_same_as_at_once(spark: SparkSession, tmp_path: Path, gold_table: GoldTable) -> None:
    def rows_of(chosen: list[Sent]) -> DataFrame:
        return readings_of(spark, chosen) if gold_table is windows.TABLE else messages(spark, chosen)

    # Devices compare consecutive batches, so their parts are in order; the others accept any order.
    whole = day()
    parts = [whole[:400], whole[400:]] if gold_table is devices.TABLE else [whole[::2], whole[1::2]]
    table = Lake(str(tmp_path)).table(gold_table.spec)
    for number, part in enumerate(parts):
        assert gold_table.merge(table, rows_of(part), {"q": number})
        assert not gold_table.merge(table, rows_of(part), {"q": number})
    found = {tuple(row[key] for key in gold_table.spec.keys): row for row in table.arrow().to_pylist()}
    wanted = {
        tuple(row[key] for key in gold_table.spec.keys): row
        for row in gold_table.compute(rows_of(whole)).toArrow().to_pylist()
    }
    assert found.keys() == wanted.keys()
    for key, row in wanted.items():
        for name, value in row.items():
            if not name.endswith("sketch"):  # their bytes may differ and still be equivalent
                assert found[key][name] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), name


def test_a_batch_without_such_rows_leaves_the_table_alone(spark: SparkSession, tmp_path: Path) -> None:
    table = Lake(str(tmp_path)).table(job_statistics.SPEC)
    assert job_statistics.TABLE.merge(table, messages(spark, [(0, "home/one", "a", 0.0, b"1")]), {"q": 0})
    assert table.rows == 0


# -- a lake of an older version ----------------------------------------------------------------------------------------

LARGEST = GoldColumn("largest", pa.int64(), aggregate="max(length(payload))", combine="max(largest)")


def test_a_lake_of_0_5_0_gets_an_added_column(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lake has two hours of one topic, a message a minute, two of them in quarantine."""
    lake = lake_of_0_5_0(tmp_path)
    status = status_of(lake, {"archive": "127.0.0.1:9", "archiveTimeout": "0.1"})
    assert {one.table: one.rows for one in status.tables} == {
        "bronze/messages": 120, "silver/readings": 118, "silver/quarantine": 2, "silver/definitions": 0,
        "gold/windows": 120, "gold/devices": 1, "gold/traffic": 2, "gold/job_statistics": 0, "gold/anomalies": 0,
    }  # fmt: skip
    write_report(lake, tmp_path / "report.html")

    spec = replace(traffic.SPEC, columns=(*traffic.SPEC.columns[:4], LARGEST, *traffic.SPEC.columns[4:]))
    changed = replace(traffic.TABLE, spec=spec)
    monkeypatch.setattr(gold, "GOLD_MERGES", tuple(changed if one is traffic.TABLE else one for one in GOLD_MERGES))
    monkeypatch.setattr(repair, "GOLD_TABLES", (changed,))
    monkeypatch.setattr(checks, "GOLD_TABLES", tuple(changed if one is traffic.TABLE else one for one in GOLD_TABLES))
    for module in (checks, sql):
        monkeypatch.setattr(module, "ALL", tuple(spec if one is traffic.SPEC else one for one in ALL))

    def largest() -> dict[int, int | None]:
        return {row["hour"].hour: row["largest"] for row in lake.table(spec).arrow(["hour", "largest"]).to_pylist()}

    assert largest() == {12: None, 13: None}
    frame = messages(spark, [(120, "home/one", "a", 7200.0, b"12345"), (121, "home/one", "a", 7100.0, b"123")])
    lake.table(bronze.SPEC).append(frame, {LOG: 122})
    lake.table(readings.SPEC).append(readings.valid(readings.parse(frame)), {LOG: 122})
    lake.table(readings.QUARANTINE).append(readings.rejected(readings.parse(frame)), {LOG: 122})
    tables_at(lake, {LOG: 122})
    assert Gold(lake).step(spark) == StepResult(2, 0)
    assert largest() == {12: None, 13: 3, 14: 5}
    assert not [one for one in run_checks(lake) if one.wrong]
    assert repair.rebuild(spark, lake, None, None) == {"gold/traffic": 3}
    assert largest() == {12: 4, 13: 6, 14: 5}


# -- steps -------------------------------------------------------------------------------------------------------------


def test_it_follows_step_by_step(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, sent = Lake(str(tmp_path / "a lake, w\N{LATIN SMALL LETTER I WITH DIAERESIS}ld #1")), day()
    assert Gold(lake).step(spark) == StepResult(0, 0)
    ends = (300, 500, len(sent))
    frames = [messages(spark, sent[begin:end]) for begin, end in zip((0, *ends), ends, strict=False)]
    silver = [readings.valid(readings.parse(frame)).localCheckpoint() for frame in frames]
    for end, frame, good in zip(ends, frames, silver, strict=True):
        lake.table(bronze.SPEC).append(frame, {LOG: end})
        if end < len(sent):  # the third batch is incomplete
            lake.table(readings.SPEC).append(good, {LOG: end})
    tables_at(lake, {LOG: 500})
    monkeypatch.setattr(gold, "STEP_OFFSETS", 400)
    assert Gold(lake).step(spark) == StepResult(400, 100)
    assert sum(lake.table(traffic.SPEC).arrow()["messages"].to_pylist()) == 400

    # Interrupted after the first table of a step: that one is ahead, and merges nothing twice.
    upsert = LakeTable.upsert

    def once(*arguments: Any) -> None:
        upsert(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "upsert", once)
        with pytest.raises(KeyboardInterrupt):
            Gold(lake).step(spark)
    assert Gold(lake).watermarks([LOG]) == {LOG: 400}
    counts = lake.table(windows.SPEC).arrow(["window_s", "count"]).to_pylist()
    assert {length: sum(row["count"] for row in counts if row["window_s"] == length) for length in (60, 3600)} == {
        60: 500,
        3600: 400,
    }
    lake.table(readings.SPEC).append(silver[-1], {LOG: ends[-1]})
    lake.table(readings.QUARANTINE).append_files([], {LOG: ends[-1]})
    tables_at(lake, {LOG: ends[-1]})
    Gold(lake).catch_up(spark)
    assert Gold(lake).step(spark) == StepResult(0, 0)
    assert not [one for one in run_checks(lake) if one.wrong]


def test_a_log_that_begins_late_takes_one_step(tmp_path: Path, spark: SparkSession) -> None:
    lake = Lake(str(tmp_path))
    begin = 10**15
    frame = messages(spark, [(begin + number, "home/one", "a", float(number), b"1") for number in range(3)])
    other = "b" * 32  # without a message that matches the topics
    for spec, rows in ((bronze.SPEC, frame), (readings.SPEC, readings.valid(readings.parse(frame)))):
        lake.table(spec).append(rows, {LOG: begin + 3, other: 10**12})
    tables_at(lake, {LOG: begin + 3, other: 10**12})
    assert Gold(lake).step(spark) == StepResult(3, 0)
    assert lake.table(traffic.SPEC).arrow(["messages"]).to_pylist() == [{"messages": 3}]


# -- the thread --------------------------------------------------------------------------------------------------------


PATIENCE_S = 120.0


class FakeGold:
    """Returns these steps, one after another, then empty ones."""

    def __init__(self, *steps: StepResult | Exception) -> None:
        self._steps = list(steps)
        self.calls = 0

    def step(self, spark: Any) -> StepResult:
        self.calls += 1
        step = self._steps.pop(0) if self._steps else StepResult(0, 0)
        if isinstance(step, Exception):
            raise step
        return step


class FakeSession:
    """A session whose jobs can be cancelled."""

    def __init__(self) -> None:
        self.tags: list[str] = []
        self.sparkContext = SimpleNamespace(
            setLocalProperty=lambda name, value: None, addJobTag=self.tags.append, cancelJobsWithTag=self._cancel
        )

    def _cancel(self, tag: str) -> None:
        assert tag in self.tags


def follow(gold: FakeGold, is_complete: Callable[[], bool]) -> StepQuery:
    session: Any = FakeSession()
    made_up: Any = gold
    return start_gold(session, made_up, is_complete)


def until(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def _plain_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace Spark's threads, which belong to a session."""
    monkeypatch.setattr(supervisor, "InheritableThread", threading.Thread)


def test_it_ends_when_its_input_is_complete() -> None:
    gold = FakeGold(StepResult(10, 5), StepResult(5, 0))
    found = follow(gold, lambda: True)
    until(lambda: not found.is_active)
    assert [(batch.query, batch.number, batch.rows, batch.lag) for batch in found.next_batches()] == [
        ("gold", 0, 10, 5), ("gold", 1, 5, 0),
    ]  # fmt: skip
    assert (found.next_batches(), found.error(), gold.calls) == ([], None, 2)


def test_input_that_arrives_while_it_waits_is_merged_at_the_end() -> None:
    complete: list[bool] = []
    gold = FakeGold(StepResult(0, 0), StepResult(3, 0))
    found = follow(gold, lambda: bool(complete))
    until(lambda: gold.calls == 1)
    complete.append(True)
    until(lambda: not found.is_active)
    assert [batch.rows for batch in found.next_batches()] == [3]


def test_it_is_stopped() -> None:
    gold = FakeGold()
    found = follow(gold, lambda: False)
    until(lambda: gold.calls == 1)
    found.stop()
    assert not found.is_active
    assert (gold.calls, found.error()) == (1, None)


def test_its_error_is_reported() -> None:
    found = follow(FakeGold(OSError("no space left")), lambda: False)
    until(lambda: not found.is_active)
    assert str(found.error()) == "no space left"
