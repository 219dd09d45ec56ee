"""A lake with three hours of one topic: a message a minute, two of them in quarantine, silver, and gold."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from tests.pipeline.rows import LOG, NOON
from tests.pipeline.test_checkpoints import write_checkpoint

from godwit.pipeline.checkpoints import TABLES
from godwit.pipeline.datasets import bronze, readings, windows
from godwit.pipeline.gold import Gold
from godwit.pipeline.lake import Lake

MINUTES = 180


def three_hours(folder: Path, spark: SparkSession) -> Lake:
    lake = Lake(str(folder))
    messages = [
        {
            "broker": LOG,
            "offset": minute,
            "topic": "home/one",
            "publisher": "a",
            "published": NOON + timedelta(minutes=minute),
            "received": NOON + timedelta(minutes=minute),
            "qos": 1,
            "retained": False,
            "payload": {30: b"warm", 100: b"warmer"}.get(minute, str(minute % 10).encode()),
        }
        for minute in range(MINUTES)
    ]
    lake.table(bronze.SPEC).append_arrow(pa.Table.from_pylist(messages, bronze.SPEC.schema), {LOG: MINUTES})
    both = readings.read(lake.table(bronze.SPEC).frame(spark)).localCheckpoint()
    lake.table(readings.SPEC).append(readings.good(both), {LOG: MINUTES})
    lake.table(readings.QUARANTINE).append(readings.bad(both), {LOG: MINUTES})
    write_checkpoint(lake, TABLES, [f'{{"{LOG}": {MINUTES}}}'], done=1)
    Gold(lake).catch_up(spark)
    return lake


def readings_by_hour(lake: Lake) -> dict[int, int]:
    """How many the windows of each hour have."""
    found = lake.table(windows.SPEC).arrow(["window_s", "window_start", "count"]).to_pylist()
    return {row["window_start"].hour: row["count"] for row in found if row["window_s"] == 3600}
