"""Gold made anew from silver and bronze, for a range of time, in the place of what is there.

Windows go by event time, traffic and jobs by the time received; the range is widened to whole hours, the longest
window. A device is one row for all of its life, so devices are made from all messages, whatever the
range.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from godwit.pipeline.checkpoints import check_whole
from godwit.pipeline.datasets import bronze, devices, job_statistics, readings, traffic, windows
from godwit.pipeline.gold import Gold
from godwit.pipeline.lake import Lake
from godwit.pipeline.merging import Merging, rebuilt
from godwit.pipeline.replacing import between, replace
from godwit.pipeline.requeue import check_finished

HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class _Part:
    """One gold table: what it is made of, and by which times."""

    merging: Merging
    is_of_readings: bool
    source_time: str
    time: str | None
    """Which of its columns has that time in whole windows; None: it is made of everything."""


_PARTS = (
    _Part(windows.MERGING, True, "event_time", "window_start"),
    _Part(traffic.MERGING, False, "received", "hour"),
    _Part(job_statistics.MERGING, False, "received", "hour"),
    _Part(devices.MERGING, False, "received", None),
)


def rebuild(spark: SparkSession, lake: Lake, start: datetime | None, end: datetime | None) -> dict[str, int]:
    """From `start` on and before `end`; None: no bound. Gives how many rows each table got. The lake must be locked."""
    check_whole(lake)
    check_finished(lake)
    Gold(lake).catch_up(spark)  # else it would add what is in the rebuilt rows already
    start, end = whole_hours(start, end)
    counts = {}
    for part in _PARTS:
        spec = readings.SPEC if part.is_of_readings else bronze.SPEC
        rows = lake.table(spec).frame(spark)
        if part.time is not None:
            rows = _within(rows, part.source_time, start, end)
        found = rebuilt(part.merging, rows).select(*part.merging.spec.schema.names).toArrow()
        where = None if part.time is None else between(part.time, start, end)
        replace(lake.table(part.merging.spec), found, where)
        counts[part.merging.spec.name] = found.num_rows
    return counts


def whole_hours(start: datetime | None, end: datetime | None) -> tuple[datetime | None, datetime | None]:
    """The range made so much wider that it cuts no window."""
    if start is not None:
        start = _hour_of(start)
    if end is not None and _hour_of(end) != end:
        end = _hour_of(end) + HOUR
    return start, end


def _hour_of(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _within(rows: DataFrame, column: str, start: datetime | None, end: datetime | None) -> DataFrame:
    if start is not None:
        rows = rows.where(sf.col(column) >= sf.lit(start))
    if end is not None:
        rows = rows.where(sf.col(column) < sf.lit(end))
    return rows
