"""Rows for tests of the tables: messages as bronze has them, and a made-up day of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from godwit.pipeline.datasets import bronze, readings

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
LOG = "a" * 32
Sent: TypeAlias = tuple[int, str, str, float, bytes]
"""Offset, topic, publisher, seconds after noon, payload."""


def local(moment: datetime) -> datetime:
    """Return a time as rows of Spark have it: without a zone, in that of this machine."""
    return moment.astimezone().replace(tzinfo=None)


def messages(spark: SparkSession, sent: Sequence[Sent]) -> DataFrame:
    """As bronze has them."""
    full = [
        (LOG, offset, topic, publisher, _after(at_s), _after(at_s), 1, False, payload)
        for offset, topic, publisher, at_s, payload in sent
    ]
    return spark.createDataFrame(full, from_arrow_schema(bronze.SPEC.schema))


def silver(spark: SparkSession, sent: Sequence[Sent]) -> DataFrame:
    """The readings in them."""
    return readings.good(readings.read(messages(spark, sent)))


def day() -> list[Sent]:
    """Two rooms for two hours, and a job now and then; one room is silent for a while."""
    rows: list[Sent] = []
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


def _after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)
