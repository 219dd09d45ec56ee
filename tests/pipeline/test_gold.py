"""Gold tables: merging, the steps that follow bronze and silver, and the thread that runs them."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.lakes import LOG, Sent, day, lake_of_0_5_0, messages, readings_of, tables_at

from godwit.pipeline import checks, gold, repair, sketches, sql, supervisor
from godwit.pipeline.checks import run_checks
from godwit.pipeline.datasets import bronze, devices, job_statistics, readings, traffic, windows
from godwit.pipeline.datasets.catalog import ALL, GOLD_MERGES, GOLD_TABLES
from godwit.pipeline.gold import Gold, start_gold
from godwit.pipeline.gold_database import open_gold_database
from godwit.pipeline.gold_table import GoldColumn, GoldTable
from godwit.pipeline.lake import Lake, LakeTable
from godwit.pipeline.report.page import write_report
from godwit.pipeline.status import status_of
from godwit.pipeline.supervisor import StepQuery, StepResult

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# -- merging -----------------------------------------------------------------------------------------------------------


def merge(gold_table: GoldTable, table: LakeTable, rows: DataFrame, folder: Path) -> None:
    """Merge rows of bronze or silver into a gold table, as a step does."""
    source = Lake(str(folder)).table(gold_table.source)
    source.append(rows, {LOG: 10**6})
    with open_gold_database() as database:
        database.read(source, {LOG: (0, 10**6)})
        assert table.upsert(database.merged(gold_table, table), {str(folder): 0})


def by_key(gold_table: GoldTable, rows: pa.Table) -> dict[tuple[Any, ...], dict[str, Any]]:
    found = {tuple(row[key] for key in gold_table.spec.keys): row for row in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return found


def rounding(row: dict[str, Any], name: str) -> float:
    """Return the difference that rounding may cause: that of sums depends on the largest value, not on the result."""
    greatest = float(max(abs(row.get("min", 1.0)), abs(row.get("max", 1.0))))
    if name == "squares":
        return 1e-9 * greatest**2 * int(row["count"])
    return (1e-6 if name == "deviation" else 1e-9) * greatest


def assert_equal(
    gold_table: GoldTable, found: pa.Table, wanted: pa.Table, is_estimated: Callable[[dict[str, Any]], bool]
) -> None:
    """Compare rows. Percentiles are compared unless they are estimated, which another test does."""
    rows, expected = by_key(gold_table, found), by_key(gold_table, wanted)
    assert rows.keys() == expected.keys()
    for key, row in expected.items():
        for name, value in row.items():
            # The bytes of sketches may differ and still be equivalent.
            if not name.endswith("sketch") and not (name in PERCENTILES and is_estimated(row)):
                close = pytest.approx(value, rel=1e-9, abs=rounding(row, name)) if isinstance(value, float) else value
                assert rows[key][name] == close, (key, name)


@pytest.mark.parametrize(
    "gold_table",
    [windows.TABLE, devices.TABLE, traffic.TABLE, job_statistics.TABLE],
    ids=lambda one: one.spec.name,
)
def test_merged_in_parts_it_is_the_same_as_at_once(spark: SparkSession, tmp_path: Path, gold_table: GoldTable) -> None:
    """DuckDB merges the parts, and Spark computes the whole."""

    def rows_of(chosen: list[Sent]) -> DataFrame:
        return readings_of(spark, chosen) if gold_table is windows.TABLE else messages(spark, chosen)

    # Devices compare consecutive batches, so their parts are in order; the others accept any order.
    whole = day()
    parts = [whole[:400], whole[400:]] if gold_table is devices.TABLE else [whole[::2], whole[1::2]]
    table = Lake(str(tmp_path / "lake")).table(gold_table.spec)
    for number, part in enumerate(parts):
        merge(gold_table, table, rows_of(part), tmp_path / str(number))
    assert_equal(gold_table, table.arrow(), gold_table.compute(rows_of(whole)).toArrow(), lambda row: False)


PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
RANK_ERROR = 0.03
"""Of a KLL sketch, with a margin: it is 0.0133 on average."""


def random_readings(seed: int) -> pa.Table:
    """Return readings of several topics, names and brokers: some windows have one, some have hundreds."""
    rng = random.Random(seed)
    base = 1_800_000_000_000_000 + rng.randrange(3_600_000_000)
    rows = []
    for offset in range(4000):
        is_frequent = rng.random() < 0.5
        name = "" if is_frequent else rng.choice([None, "", "a", "b \N{GREEK SMALL LETTER MU}"])
        rows.append(
            {
                "broker": LOG,
                "offset": offset,
                "topic": "home/one" if is_frequent else rng.choice(["home/two", f"home/{rng.randrange(50)}"]),
                "quantity": "temperature" if is_frequent else rng.choice(["temperature", "humidity"]),
                "name": name,
                # Often on a boundary, sometimes long ago, also before 1970.
                "event_time": rng.choice(
                    [base + rng.randrange(100_000_000), base - base % 60_000_000, -rng.randrange(10**15), 60_000_000]
                ),
                "value": rng.choice([rng.gauss(20, 5), 1e15, -1e15, 0.0, 1e-300, float(rng.randrange(3))]),
                "unit": "x",
            }
        )
    return pa.Table.from_pylist(rows, readings.SPEC.schema)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_readings_have_the_same_windows_in_spark(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    rows = random_readings(seed)
    table = Lake(str(tmp_path / "lake")).table(windows.SPEC)
    for number, end in enumerate((10, 1500, 3000)):
        begin = (0, 10, 1500)[number]
        merge(windows.TABLE, table, spark.createDataFrame(rows.slice(begin, end - begin)), tmp_path / str(number))
    # Spark continues with the sketches of DuckDB, and DuckDB with those of Spark.
    windows.TABLE.merge_on_executors(table, spark.createDataFrame(rows.slice(3000, 500)), {"q": 1})
    merge(windows.TABLE, table, spark.createDataFrame(rows.slice(3500)), tmp_path / "last")
    wanted = windows.TABLE.compute(spark.createDataFrame(rows)).toArrow()
    assert_equal(windows.TABLE, table.arrow(), wanted, lambda row: bool(row["count"] > sketches.K))

    values: dict[tuple[Any, ...], list[float]] = {}
    for row in rows.to_pylist():
        at_us = (row["event_time"] - EPOCH) // timedelta(microseconds=1)
        for length_s in windows.LENGTHS_S:
            start = EPOCH + timedelta(seconds=at_us // (length_s * 1_000_000) * length_s)
            key = (row["broker"], row["topic"], row["quantity"], row["name"] or "", length_s, start)
            values.setdefault(key, []).append(row["value"])
    found = by_key(windows.TABLE, table.arrow())
    assert found.keys() == values.keys()
    assert any(len(one) > 2 * sketches.K for one in values.values())
    for key, group in values.items():
        group.sort()
        row = found[key]
        assert (row["count"], row["min"], row["max"]) == (len(group), group[0], group[-1])
        for name, rank in PERCENTILES.items():
            error = 0.0 if len(group) <= sketches.K else RANK_ERROR
            least = group[max(0, math.ceil((rank - error) * len(group) - 1e-9) - 1)]
            greatest = group[min(len(group) - 1, math.ceil((rank + error) * len(group) - 1e-9) - 1)]
            assert least <= row[name] <= greatest, (seed, key, name)


def random_messages(rng: random.Random) -> list[Sent]:
    """Return messages of many topics, some of which have one, with pauses of any length and equal times."""
    rows: list[Sent] = []
    at_s = 0.0
    for offset in range(600):
        at_s += rng.choice([0.0, 0.0, 1e-6, rng.random(), 30 * rng.random(), 3000 * (rng.random() < 0.05)])
        topic = rng.choice(["home/one", f"home/{rng.randrange(300)}", "$sys/x", f"alerts/{rng.randrange(5)}"])
        rows.append((offset, topic, f"gateway {rng.randrange(9)}", round(at_s, 6), bytes(rng.randrange(40))))
    return rows


@pytest.mark.parametrize("gold_table", [devices.TABLE, traffic.TABLE], ids=lambda one: one.spec.name)
def test_random_messages_give_the_same_in_spark(spark: SparkSession, tmp_path: Path, gold_table: GoldTable) -> None:
    """One step of DuckDB against the definition in Spark; and three steps, of a table that can be merged exactly."""
    for seed in (1, 2):
        sent = random_messages(random.Random(seed))
        wanted = gold_table.compute(messages(spark, sent)).toArrow()
        for cuts in ((600,), (200, 300, 600)) if gold_table is traffic.TABLE else ((600,),):
            folder = tmp_path / f"{seed} {len(cuts)}"
            table = Lake(str(folder / "lake")).table(gold_table.spec)
            for begin, end in zip((0, *cuts), cuts, strict=False):
                merge(gold_table, table, messages(spark, sent[begin:end]), folder / str(begin))
            assert_equal(gold_table, table.arrow(), wanted, lambda row: False)


def test_a_batch_without_such_rows_leaves_the_table_alone(spark: SparkSession, tmp_path: Path) -> None:
    table = Lake(str(tmp_path / "lake")).table(job_statistics.SPEC)
    merge(job_statistics.TABLE, table, messages(spark, [(0, "home/one", "a", 0.0, b"1")]), tmp_path / "source")
    assert table.rows == 0


def test_events_that_are_not_json_do_not_stop_the_statistics_of_jobs(spark: SparkSession, tmp_path: Path) -> None:
    payloads = [b"\xff", b"{", b"", b"[1]", b'{"event": 7}', b'{"event": "finished", "ran_us": "x"}']
    payloads += [b'{"event": "finished", "ran_us": 2000000}']
    sent: list[Sent] = [(number, "$jobs/x", "$broker", 0.0, payload) for number, payload in enumerate(payloads)]
    table = Lake(str(tmp_path / "lake")).table(job_statistics.SPEC)
    merge(job_statistics.TABLE, table, messages(spark, sent), tmp_path / "source")
    wanted = job_statistics.TABLE.compute(messages(spark, sent)).toArrow()
    assert_equal(job_statistics.TABLE, table.arrow(), wanted, lambda row: False)
    assert table.arrow(["tasks_finished", "run_s_max"]).to_pylist() == [{"tasks_finished": 2, "run_s_max": 2.0}]


# -- a lake of an older version ----------------------------------------------------------------------------------------

LARGEST = GoldColumn("largest", pa.int64(), aggregate="max(octet_length(payload))", combine="max(largest)")


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


def test_input_that_is_complete_during_a_step_is_merged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gold, "INTERVAL_S", 10 * PATIENCE_S)
    complete: list[bool] = []

    class Slow(FakeGold):
        def step(self, spark: Any) -> StepResult:
            found = super().step(spark)
            complete.append(True)
            return found

    found = follow(Slow(StepResult(3, 0), StepResult(2, 0)), lambda: bool(complete))
    until(lambda: not found.is_active)
    assert [batch.rows for batch in found.next_batches()] == [3, 2]


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
