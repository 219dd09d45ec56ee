"""The rows of the tables, in a real Spark session."""

from __future__ import annotations

import json
import statistics
from datetime import timedelta

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from tests.pipeline.lakes import NOON, day, local, messages, readings_of

from godwit.pipeline import declarative
from godwit.pipeline.datasets import devices, job_statistics, readings, traffic, windows

# -- silver ------------------------------------------------------------------------------------------------------------


def test_readings_and_rejected_messages(spark: SparkSession) -> None:
    late = (NOON + timedelta(minutes=6)).isoformat()
    soon = (NOON + timedelta(minutes=4)).isoformat()
    frame = messages(
        spark,
        [
            (0, "home/temperature", "one", 0, b'{"temperature": 21.5, "humidity": 40, "x_y": 1}'),
            (1, "home/temperature", "one", 1, b"12C"),
            (2, "home/temperature", "one", 2, b"\xff"),
            (3, "home/temperature", "one", 0, json.dumps({"temperature": 1, "time": late}).encode()),
            (4, "home/temperature", "one", 0, json.dumps({"temperature": 1, "time": soon}).encode()),
            (5, "$jobs/resize", "$broker", 0, b'{"event": "done"}'),
            (6, "alerts/home/temperature", "spark", 0, b"99"),
        ],
    )
    parsed = readings.parse(frame).localCheckpoint()
    good = readings.valid(parsed).orderBy("offset", "quantity").collect()
    assert [(row.offset, row.quantity, row.value, row.unit) for row in good] == [
        (0, "humidity", 40.0, "%"), (0, "temperature", 21.5, "°C"), (1, "temperature", 12.0, "°C"),
        (4, "temperature", 1.0, "°C"),
    ]  # fmt: skip
    assert good[0].extra == '{"x_y": 1}'
    assert good[2].event_time == local(NOON + timedelta(seconds=1))
    assert good[3].event_time == local(NOON + timedelta(minutes=4))
    bad = readings.rejected(parsed).orderBy("offset").collect()
    assert [(row.offset, row.reason) for row in bad] == [(2, "not text"), (3, "time in the future")]
    assert bytes(bad[0].payload) == b"\xff"
    assert [(row.name, row.position, row.decoder, row.unit_source, row.schema_version) for row in good[:3]] == [
        ("", 1, "json", "default", 2), ("", 0, "json", "default", 2), ("", 0, "number", "payload", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("content_type", [None, "text/csv"])
def test_declarative_pipelines_parse_the_same_rows(spark: SparkSession, content_type: str | None) -> None:
    frame = messages(
        spark,
        [
            (0, "home/temperature", "one", 0, b'{"temperature": 21.5, "humidity": 40, "x_y": 1}'),
            (1, "home/temperature", "one", 1, b"12C"),
            (2, "home/temperature", "one", 2, b"\xff"),
            (3, "$jobs/resize", "$broker", 0, b'{"event": "done"}'),
            (4, "home/temperature", "one", 3, b"temperature,humidity\n20,41\n"),
        ],
    )
    if content_type is not None:
        frame = frame.withColumn("content_type", sf.lit(content_type))
    parsed = readings.parse(frame).localCheckpoint()
    has_type = content_type is not None
    good = declarative.silver_readings(frame, has_content_type=has_type).orderBy("offset", "quantity").collect()
    assert good == readings.valid(parsed).orderBy("offset", "quantity").collect()
    assert {row.offset for row in good} >= {0, 1}
    bad = declarative.silver_quarantine(frame, has_content_type=has_type).orderBy("offset").collect()
    assert bad == readings.rejected(parsed).orderBy("offset").collect()
    assert {2} <= {row.offset for row in bad}


def test_sensors_of_one_message_are_not_mixed(spark: SparkSession) -> None:
    payload = b'{"a": {"temperature": 20}, "b": {"temperature": 30}}'
    found = windows.TABLE.compute(readings_of(spark, [(0, "home", "one", 0, payload), (1, "home", "one", 1, payload)]))
    rows = found.where("window_s = 60").orderBy("name").collect()
    assert [(row.name, row["count"], row["mean"]) for row in rows] == [
        ("a.temperature", 2, 20.0),
        ("b.temperature", 2, 30.0),
    ]


# -- gold --------------------------------------------------------------------------------------------------------------


def test_windows_agree_with_the_statistics_module(spark: SparkSession) -> None:
    sent = day()
    hours = windows.TABLE.compute(readings_of(spark, sent)).where("window_s = 3600").orderBy("topic", "window_start")
    first, _, constant, _ = hours.collect()
    values = [float(payload) for _, topic, _, at_s, payload in sent if topic == "home/one" and at_s < 3600]
    assert (first.topic, first.window_start) == ("home/one", local(NOON))
    assert (first["count"], first.min, first.max) == (len(values), min(values), max(values))
    assert first["mean"] == pytest.approx(statistics.fmean(values))
    assert first.deviation == pytest.approx(statistics.pstdev(values))
    assert first.p50 == statistics.median_low(values)
    assert constant.topic == "home/two"
    assert constant.deviation == pytest.approx(0.0, abs=1e-6)


def test_pauses_and_gaps(spark: SparkSession) -> None:
    found = {row.topic: row for row in devices.TABLE.compute(messages(spark, day())).collect()}
    assert found.keys() == {"home/one", "home/two"}
    assert (found["home/one"].gaps, found["home/two"].gaps) == (1, 0)
    assert found["home/one"].longest_gap_s == pytest.approx(1020.0)
    assert found["home/two"].interval_s == pytest.approx(20.0)
    assert (found["home/two"].publisher, found["home/two"].messages) == ("b", 360)


def test_traffic_of_each_hour(spark: SparkSession) -> None:
    sent = [*day(), (10_000, "home/three", "b", 7199.0, b"12345")]
    found = traffic.TABLE.compute(messages(spark, sent)).orderBy("publisher", "hour").collect()
    second = local(NOON + timedelta(hours=1))
    of_b = [row for row in found if row.publisher == "b"]
    assert [(row.messages, row.topics, row.payload_bytes) for row in of_b] == [
        (180, 1, 180 * len(b'{"value": 1000000.25}')), (181, 2, 180 * len(b'{"value": 1000000.25}') + 5),
    ]  # fmt: skip
    assert (of_b[1].hour, of_b[1].last_received - second) == (second, timedelta(seconds=3599))
    assert {row.publisher: row.messages for row in found if row.hour == second} == {"$broker": 18, "a": 160, "b": 181}


def test_jobs_of_each_hour(spark: SparkSession) -> None:
    hours = job_statistics.TABLE.compute(messages(spark, day())).orderBy("hour").collect()
    assert [(row.kind, row.jobs_submitted, row.tasks_finished, row.run_s_max) for row in hours] == [
        ("resize", 6, 6, 5.0), ("resize", 6, 6, 11.0),
    ]  # fmt: skip
    assert hours[0].run_s_mean == pytest.approx(2.5)
    assert hours[0].wait_s_p95 == pytest.approx(0.5)
