"""Silver and gold in a real Spark session: rows worked out by hand, and merging in pieces against all at once."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from godwit.pipeline import bronze, devices, job_statistics, readings, traffic, windows
from godwit.pipeline.lake import Lake
from godwit.pipeline.merging import Merging, merge, rebuilt

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
LOG = "a" * 32


def messages(spark: SparkSession, rows: Sequence[tuple[int, str, str, float, bytes]]) -> DataFrame:
    """Of (offset, topic, publisher, seconds after noon, payload)."""
    full = [
        (
            LOG,
            offset,
            topic,
            publisher,
            NOON + timedelta(seconds=at_s),
            NOON + timedelta(seconds=at_s),
            1,
            False,
            payload,
        )
        for offset, topic, publisher, at_s, payload in rows
    ]
    return spark.createDataFrame(full, from_arrow_schema(bronze.SPEC.schema))


def test_readings_and_what_is_none(spark: SparkSession) -> None:
    late = (NOON + timedelta(minutes=6)).isoformat()
    soon = (NOON + timedelta(minutes=4)).isoformat()
    frame = messages(
        spark,
        [
            (0, "home/temperature", "one", 0, b'{"t": 21.5, "humidity": 40, "x_y": 1}'),
            (1, "home/temperature", "one", 1, b"12C"),
            (2, "home/temperature", "one", 2, b"\xff"),
            (3, "home/temperature", "one", 0, json.dumps({"t": 1, "time": late}).encode()),
            (4, "home/temperature", "one", 0, json.dumps({"t": 1, "time": soon}).encode()),
            (5, "$jobs/resize", "$broker", 0, b'{"event": "done"}'),
            (6, "alerts/home/temperature", "spark", 0, b"99"),
        ],
    )
    both = readings.read(frame).localCheckpoint()
    good = readings.good(both).orderBy("offset", "quantity").collect()
    assert [(row.offset, row.quantity, row.value, row.unit) for row in good] == [
        (0, "humidity", 40.0, "%"), (0, "temperature", 21.5, "°C"), (1, "temperature", 12.0, "°C"),
        (4, "temperature", 1.0, "°C"),
    ]  # fmt: skip
    assert good[0].extra == '{"x_y": 1}'
    assert good[2].event_time == (NOON + timedelta(seconds=1)).replace(tzinfo=None)
    assert good[3].event_time == (NOON + timedelta(minutes=4)).replace(tzinfo=None)
    bad = readings.bad(both).orderBy("offset").collect()
    assert [(row.offset, row.reason) for row in bad] == [(2, "not text"), (3, "time in the future")]
    assert bytes(bad[0].payload) == b"\xff"


def pieces(rows: list[Any], count: int) -> list[list[Any]]:
    return [rows[index::count] for index in range(count)]


@pytest.fixture(scope="module")
def day(spark: SparkSession) -> list[tuple[int, str, str, float, bytes]]:
    """Two rooms for two hours, and a job now and then; one room is silent for a while."""
    rows: list[tuple[int, str, str, float, bytes]] = []
    for second in range(0, 7200, 20):
        if not 3000 <= second < 4000:
            rows.append((len(rows), "home/one", "a", float(second), str(20 + second % 7).encode()))
        rows.append((len(rows), "home/two", "b", second + 0.5, b'{"t": 1000000.25}'))
    for number, second in enumerate(range(0, 7200, 600)):
        for event, more in (
            ("submitted", {}),
            ("leased", {"waited_us": 500_000}),
            ("finished", {"ran_us": number * 10**6}),
        ):
            told = {"event": event, "job": number, "at_us": 0, "controller": "c", **more}
            rows.append((len(rows), "$jobs/resize", "$broker", second + 0.7, json.dumps(told).encode()))
    return rows


@pytest.mark.soak
@pytest.mark.parametrize(
    "merging",
    [windows.MERGING, devices.MERGING, traffic.MERGING, job_statistics.MERGING],
    ids=lambda one: one.spec.name,
)
def test_merged_in_pieces_it_is_the_same_as_at_once(
    spark: SparkSession, tmp_path: Path, day: list[tuple[int, str, str, float, bytes]], merging: Merging
) -> None:
    def rows_of(chosen: list[tuple[int, str, str, float, bytes]]) -> DataFrame:
        frame = messages(spark, chosen)
        return readings.good(readings.read(frame)) if merging is windows.MERGING else frame

    # Devices learn pauses between batches, so theirs are one after another; for the others any order will do.
    parts = [day[:400], day[400:]] if merging is devices.MERGING else pieces(day, 2)
    table = Lake(str(tmp_path)).table(merging.spec)
    for number, part in enumerate(parts):
        assert merge(table, merging, rows_of(part), "q", number)
        assert not merge(table, merging, rows_of(part), "q", number)
    found = {tuple(row[key] for key in merging.spec.keys): row for row in table.arrow().to_pylist()}
    whole = {
        tuple(row[key] for key in merging.spec.keys): row
        for row in rebuilt(merging, rows_of(day)).toArrow().to_pylist()
    }
    assert found.keys() == whole.keys()
    for key, row in whole.items():
        for name, value in row.items():
            if not name.endswith("sketch"):  # their bytes may differ in what does not matter
                assert found[key][name] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), name


def test_windows_are_what_statistics_say(spark: SparkSession, day: list[tuple[int, str, str, float, bytes]]) -> None:
    frame = rebuilt(windows.MERGING, readings.good(readings.read(messages(spark, day))))
    rows = frame.where("window_s = 3600 AND topic = 'home/one'").orderBy("window_start").collect()
    values = [float(payload) for _, topic, _, at_s, payload in day if topic == "home/one" and at_s < 3600]
    first = rows[0]
    assert first.window_start == NOON.replace(tzinfo=None)
    assert (first["count"], first.min, first.max) == (len(values), min(values), max(values))
    assert first["mean"] == pytest.approx(statistics.fmean(values))
    assert first.deviation == pytest.approx(statistics.pstdev(values))
    assert first.p50 == statistics.median_low(values)
    constant = frame.where("window_s = 3600 AND topic = 'home/two'").first()
    assert constant is not None
    assert constant.deviation == pytest.approx(0.0, abs=1e-6)


def test_devices_and_jobs(spark: SparkSession, day: list[tuple[int, str, str, float, bytes]]) -> None:
    found = {row.topic: row for row in rebuilt(devices.MERGING, messages(spark, day)).collect()}
    assert found.keys() == {"home/one", "home/two"}
    assert (found["home/one"].gaps, found["home/two"].gaps) == (1, 0)
    assert found["home/one"].longest_gap_s == pytest.approx(1020.0)
    assert found["home/two"].interval_s == pytest.approx(20.0)
    hours = rebuilt(job_statistics.MERGING, messages(spark, day)).orderBy("hour").collect()
    assert [(row.kind, row.jobs_submitted, row.tasks_finished, row.run_s_max) for row in hours] == [
        ("resize", 6, 6, 5.0), ("resize", 6, 6, 11.0),
    ]  # fmt: skip
    assert hours[0].run_s_mean == pytest.approx(2.5)
    assert hours[0].wait_s_p95 == pytest.approx(0.5)
