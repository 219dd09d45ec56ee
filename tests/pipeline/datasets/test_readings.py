"""Silver and quarantine of messages, in a real Spark session."""

from __future__ import annotations

import json
from datetime import timedelta

from pyspark.sql import SparkSession
from tests.pipeline.rows import NOON, local, messages

from godwit.pipeline.datasets import readings


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
    assert good[2].event_time == local(NOON + timedelta(seconds=1))
    assert good[3].event_time == local(NOON + timedelta(minutes=4))
    bad = readings.bad(both).orderBy("offset").collect()
    assert [(row.offset, row.reason) for row in bad] == [(2, "not text"), (3, "time in the future")]
    assert bytes(bad[0].payload) == b"\xff"
