"""The series of the report: the most important ones, reduced to the points of a small plot.

A wrong clock may put a few readings years before the rest. The plots begin where almost all readings are, and earlier
readings are only counted. The plots of a short time are made of the readings themselves, because the windows of
gold/windows are a minute or longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from godwit.pipeline.datasets import readings, windows
from godwit.pipeline.lake import Lake, LakeTable
from godwit.pipeline.report.figures import AlarmRow, AlarmSummary, Totals, micros, named_quantities

MAX_SERIES: Final = 24
MAX_POINTS: Final = 240
MINUTES_UP_TO_S: Final = 24 * 3600
"""A longer time is drawn with the windows of an hour."""
READINGS_UP_TO_S: Final = 30 * 60
"""A shorter time is drawn with the readings themselves."""
MAX_READINGS: Final = 2_000_000
"""With more readings than that, a short time is drawn with the windows of a minute, too."""
SHORT_STEPS: Final = 120
READINGS_PER_STEP: Final = 3
"""With fewer readings per step, a plot of a short time has fewer steps."""
FAR_SHARE: Final = 0.005
"""The largest share of readings that the plots may leave out."""
_SHORT_S, _LONG_S = min(windows.LENGTHS_S), max(windows.LENGTHS_S)
_KEYS: Final = ("broker", "topic", "quantity")
SeriesKey: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True)
class Point:
    """One window, or several consecutive ones."""

    at_us: int
    count: int
    mean: float
    p50: float
    least: float
    greatest: float


@dataclass(frozen=True)
class Series:
    """One series: a quantity of a topic of a broker."""

    broker: str
    topic: str
    quantity: str
    unit: str
    readings: int
    points: tuple[Point, ...]
    alarms: tuple[AlarmRow, ...]
    dots: tuple[tuple[int, float], ...] = ()
    """Time and value of each reading, if these are few and the time is short."""


@dataclass(frozen=True)
class SeriesSummary:
    """All series, with the most important ones."""

    count: int
    """All series, shown or not."""
    readings: int
    before: int
    """Readings before the beginning of the plots."""
    begin_us: int
    end_us: int
    step_us: int
    """The time that a point covers."""
    shown: tuple[Series, ...]


def read_series(lake: Lake, alarms: AlarmSummary) -> SeriesSummary:
    """Return the number of series, and the MAX_SERIES most important with at most MAX_POINTS points each."""
    table = lake.table(windows.SPEC)
    totals, profile = _totals(table)
    if totals is None:
        return SeriesSummary(0, 0, 0, 0, 0, 0, ())
    chosen = _chosen(totals, alarms)
    begin_us, before = _begin(profile)
    end_us = max(start_us for start_us, _ in profile) + _LONG_S * 1_000_000
    length_s = _SHORT_S if end_us - begin_us <= MINUTES_UP_TO_S * 1_000_000 else _LONG_S
    windows_of_span = (end_us - begin_us) // (length_s * 1_000_000)
    step_us = -(-windows_of_span // MAX_POINTS) * length_s * 1_000_000
    points = _points(table, [row["topic"] for row in chosen], length_s, begin_us, step_us)
    if points:
        begin_us = min(point.at_us for mine in points.values() for point in mine)
        end_us = max(point.at_us for mine in points.values() for point in mine) + step_us
    dots: dict[SeriesKey, list[tuple[int, float]]] = {}
    if end_us - begin_us <= READINGS_UP_TO_S * 1_000_000 and (
        rows := _readings(lake, [row["topic"] for row in chosen], begin_us, end_us)
    ):
        begin_us, end_us, step_us = _steps(rows, len(chosen))
        points, dots = _short_points(rows, begin_us, step_us)
    by_series: dict[tuple[str, str, str], list[AlarmRow]] = {}
    for alarm in alarms.newest:
        if begin_us <= alarm.at_us < end_us:
            by_series.setdefault((alarm.broker, alarm.topic, alarm.quantity), []).append(alarm)
    shown = []
    for row in chosen:
        key = (row["broker"], row["topic"], row["quantity"])
        found = Series(
            *key,
            row["unit"] or "",
            row["count"],
            tuple(points.get(key, ())),
            tuple(by_series.get(key, ())[:MAX_POINTS]),
            tuple(dots.get(key, ())),
        )
        if found.points:
            shown.append(found)
    count = int(pc.sum(totals.column("count")).as_py())
    return SeriesSummary(totals.num_rows, count, before, begin_us, end_us, step_us, tuple(shown))


def _totals(table: LakeTable) -> tuple[pa.Table | None, list[tuple[int, int]]]:
    """Return the readings of each series, and of each hour as (begin of the hour, readings)."""
    by_series = Totals(_KEYS, {"count": "sum", "unit": "max"})
    by_hour = Totals(("window_start",), {"count": "sum"})
    columns = [*_KEYS, "name", "unit", "count", "window_start"]
    for rows in named_quantities(table.scan(columns, pc.field("window_s") == _LONG_S)):
        by_series.add(rows)
        by_hour.add(rows)
    hours = by_hour.table()
    if hours is None:
        return None, []
    starts = micros(hours.column("window_start")).to_pylist()
    return by_series.table(), sorted(zip(starts, hours.column("count").to_pylist(), strict=True))


def _chosen(totals: pa.Table, alarms: AlarmSummary) -> list[dict[str, Any]]:
    """Return the series with the most alarms, then those with the most readings, ordered by name."""
    alarmed = list(alarms.by_series)
    counts = pa.array([alarms.by_series[key] for key in alarmed], pa.int64())
    table = totals
    if alarmed:
        names = pa.table(
            {name: pa.array([key[index] for key in alarmed], pa.string()) for index, name in enumerate(_KEYS)}
        ).append_column("alarms", counts)
        table = totals.join(names, list(_KEYS), join_type="left outer")
        table = table.set_column(
            table.schema.get_field_index("alarms"), "alarms", pc.fill_null(table.column("alarms"), 0)
        )
    else:
        table = table.append_column("alarms", pa.repeat(pa.scalar(0, pa.int64()), table.num_rows))
    order = [("alarms", "descending"), ("count", "descending"), ("topic", "ascending"), ("quantity", "ascending")]
    best = table.take(pc.select_k_unstable(table, k=min(MAX_SERIES, table.num_rows), sort_keys=order))
    return sorted(best.to_pylist(), key=lambda row: (row["topic"], row["quantity"], row["broker"]))


def _begin(profile: list[tuple[int, int]]) -> tuple[int, int]:
    """Return where the plots begin, and the number of readings before: those ahead of a pause of half the time."""
    allowed = sum(count for _, count in profile) * FAR_SHARE
    half_us = (profile[-1][0] - profile[0][0]) / 2
    before = 0
    for (start_us, count), (next_us, _) in pairwise(profile):
        before += count
        if before > allowed:
            break
        if next_us - start_us >= half_us:
            return next_us, before
    return profile[0][0], 0


def _points(
    table: LakeTable, topics: list[str], length_s: int, begin_us: int, step_us: int
) -> dict[tuple[str, str, str], list[Point]]:
    functions = {"count": "sum", "means": "sum", "medians": "sum", "min": "min", "max": "max"}
    joined = Totals((*_KEYS, "step"), functions)
    begin = pa.scalar(begin_us, pa.timestamp("us", tz="UTC"))
    where = (pc.field("window_s") == length_s) & (pc.field("window_start") >= begin)
    columns = [*_KEYS, "name", "window_start", "count", "mean", "p50", "min", "max"]
    for rows in named_quantities(table.scan(columns, where)):
        # Not in `where`: pyarrow cannot compare strings with the file statistics of deltalake.
        rows = rows.filter(pc.is_in(rows.column("topic"), pa.array(topics, pa.string())))
        count = rows.column("count")
        rows = (
            rows.append_column("step", pc.divide(pc.subtract(micros(rows.column("window_start")), begin_us), step_us))
            .append_column("means", pc.multiply(rows.column("mean"), count))
            .append_column("medians", pc.multiply(rows.column("p50"), count))
        )
        joined.add(rows.select([*_KEYS, "step", *functions]))
    found: dict[tuple[str, str, str], list[Point]] = {}
    for plain in joined.rows():
        row: dict[str, Any] = dict(plain)
        point = Point(
            begin_us + row["step"] * step_us,
            row["count"],
            row["means"] / row["count"],
            row["medians"] / row["count"],
            row["min"],
            row["max"],
        )
        found.setdefault((row["broker"], row["topic"], row["quantity"]), []).append(point)
    for points in found.values():
        points.sort(key=lambda point: point.at_us)
    return found


# -- short times ------------------------------------------------------------------------------------------------------


def _readings(lake: Lake, topics: list[str], begin_us: int, end_us: int) -> pa.Table | None:
    """Return the readings of these topics from `begin_us` up to `end_us`, or None if there are none or too many."""
    begin, end = (pa.scalar(at_us, pa.timestamp("us", tz="UTC")) for at_us in (begin_us, end_us))
    where = (pc.field("event_time") >= begin) & (pc.field("event_time") < end)
    found: list[pa.Table] = []
    count = 0
    for rows in named_quantities(lake.table(readings.SPEC).scan([*_KEYS, "name", "event_time", "value"], where)):
        rows = rows.filter(pc.is_in(rows.column("topic"), pa.array(topics, pa.string())))
        found.append(rows.append_column("at_us", micros(rows.column("event_time"))).drop_columns(["event_time"]))
        count += rows.num_rows
        if count > MAX_READINGS:
            return None
    return pa.concat_tables(found) if count else None


def _steps(rows: pa.Table, series: int) -> tuple[int, int, int]:
    """Return begin, end and step of the plots for readings. Most steps have several readings."""
    begin_us, end_us = (find(rows.column("at_us")).as_py() for find in (pc.min, pc.max))
    count = min(max(rows.num_rows // (max(series, 1) * READINGS_PER_STEP), 1), SHORT_STEPS)
    step_us = (end_us - begin_us) // count + 1
    return begin_us, begin_us + count * step_us, step_us


def _short_points(
    rows: pa.Table, begin_us: int, step_us: int
) -> tuple[dict[SeriesKey, list[Point]], dict[SeriesKey, list[tuple[int, float]]]]:
    """Return the points of each series, and the single readings of each series that has few."""
    rows = rows.append_column("step", pc.divide(pc.subtract(rows.column("at_us"), begin_us), step_us))
    functions = ("count", "mean", "approximate_median", "min", "max")
    steps = rows.group_by([*_KEYS, "step"], use_threads=False).aggregate([("value", one) for one in functions])
    points: dict[SeriesKey, list[Point]] = {}
    for row in steps.sort_by("step").to_pylist():
        numbers = (row[f"value_{one}"] for one in functions)
        key = (row["broker"], row["topic"], row["quantity"])
        points.setdefault(key, []).append(Point(begin_us + row["step"] * step_us, *numbers))
    few = [key for key, mine in points.items() if sum(point.count for point in mine) <= MAX_POINTS]
    dots: dict[SeriesKey, list[tuple[int, float]]] = {key: [] for key in few}
    wanted = rows.filter(pc.is_in(rows.column("topic"), pa.array([key[1] for key in few], pa.string())))
    for row in wanted.sort_by("at_us").to_pylist():
        if (mine := dots.get((row["broker"], row["topic"], row["quantity"]))) is not None:
            mine.append((row["at_us"], row["value"]))
    return points, dots
