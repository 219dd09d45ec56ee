"""Rows and lakes for tests: a day of messages, a lake with three hours of one topic, checkpoints, and a listener."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from godwit.pipeline.checkpoints import TABLES, checkpoint_address, write_checkpoint
from godwit.pipeline.datasets import bronze, readings, windows
from godwit.pipeline.gold import Gold
from godwit.pipeline.lake import Lake
from godwit.pipeline.supervisor import BatchProgress
from godwit.spark.offsets import Position

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
LOG = "a" * 32
DATA = Path(__file__).parent / "data"
Sent: TypeAlias = tuple[int, str, str, float, bytes]
"""Offset, topic, publisher, seconds after noon, payload."""


NO_PROPERTIES = (None,) * 7


def lake_of_0_5_0(folder: Path) -> Lake:
    """Unpack a lake that 0.5.0 wrote: two hours of one topic, a message a minute, two of them in quarantine."""
    with tarfile.open(DATA / "lake-0.5.0.tar.gz") as archive:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
    return Lake(str(folder / "lake"))


def local(moment: datetime) -> datetime:
    """Return a time as rows of Spark have it: local time without a zone."""
    return moment.astimezone().replace(tzinfo=None)


def messages(spark: SparkSession, sent: Sequence[Sent]) -> DataFrame:
    """Return messages as rows of bronze."""
    full = [
        (LOG, offset, topic, publisher, _after(at_s), _after(at_s), 1, False, payload, *NO_PROPERTIES)
        for offset, topic, publisher, at_s, payload in sent
    ]
    return spark.createDataFrame(full, from_arrow_schema(bronze.SPEC.schema))


def readings_of(spark: SparkSession, sent: Sequence[Sent]) -> DataFrame:
    """Return the readings of messages."""
    return readings.valid(readings.parse(messages(spark, sent)))


def day() -> list[Sent]:
    """Return two rooms for two hours with a job every ten minutes; one room has a gap."""
    rows: list[Sent] = []
    for second in range(0, 7200, 20):
        if not 3000 <= second < 4000:
            rows.append((len(rows), "home/one", "a", float(second), str(20 + second % 7).encode()))
        rows.append((len(rows), "home/two", "b", second + 0.5, b'{"value": 1000000.25}'))
    for number, second in enumerate(range(0, 7200, 600)):
        for event, more in (
            ("submitted", {}),
            ("leased", {"waited_us": 500_000}),
            ("finished", {"ran_us": number * 10**6}),
        ):
            event_row = {"event": event, "job": number, "at_us": 0, "controller": "c", **more}
            rows.append((len(rows), "$jobs/resize", "$broker", second + 0.7, json.dumps(event_row).encode()))
    return rows


def _after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


MINUTES = 180


def three_hours(folder: Path, spark: SparkSession) -> Lake:
    """Return a lake with a message a minute for three hours, two of them in quarantine, and gold."""
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
    parsed = readings.parse(lake.table(bronze.SPEC).frame(spark)).localCheckpoint()
    lake.table(readings.SPEC).append(readings.valid(parsed), {LOG: MINUTES})
    lake.table(readings.QUARANTINE).append(readings.rejected(parsed), {LOG: MINUTES})
    tables_at(lake, {LOG: MINUTES})
    Gold(lake).catch_up(spark)
    return lake


def readings_by_hour(lake: Lake) -> dict[int, int]:
    """Return the number of readings in the windows of each hour."""
    found = lake.table(windows.SPEC).arrow(["window_s", "window_start", "count"]).to_pylist()
    return {row["window_start"].hour: row["count"] for row in found if row["window_s"] == 3600}


class RecordingListener:
    """A RunListener that stores the events of a run."""

    def __init__(self) -> None:
        self.batches: list[BatchProgress] = []
        self.failures: list[tuple[str, str, float]] = []

    def on_batch(self, batch: BatchProgress) -> None:
        self.batches.append(batch)

    def on_failure(self, query: str, sentence: str, pause_s: float) -> None:
        self.failures.append((query, sentence, pause_s))


def tables_at(lake: Lake, offsets: dict[str, int]) -> None:
    """Write the position file of the query `tables`, after its first batch."""
    write_checkpoint(lake, TABLES, 0, Position(offsets, {}, {}), dict.fromkeys(offsets, 0))


def write_spark_checkpoint(lake: Lake, query: str, planned: list[str], done: int, at_s: int = 1_800_000_000) -> None:
    """Write a checkpoint as Spark did up to Godwit 0.5.0: the offsets of each batch, the first `done` complete."""
    folder = Path(checkpoint_address(lake, query))
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text('{"id":"2393b5ad"}')
    for number, offsets in enumerate(planned):
        (folder / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{offsets}')
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
        if number < done:
            commit = folder / "commits" / str(number)
            commit.write_text('v1\n{"nextBatchWatermarkMs":0}')
            os.utime(commit, (at_s + number, at_s + number))
