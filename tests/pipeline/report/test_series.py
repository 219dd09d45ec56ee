"""Which series a report shows, and how they are thinned out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.pipeline.report.lakes import LOG, NOON, put, window

from godwit.pipeline.datasets import windows
from godwit.pipeline.lake import Lake
from godwit.pipeline.report import figures
from godwit.pipeline.report.series import MAX_POINTS, MAX_SERIES, read_series


def test_of_very_many_series_the_most_important_are_drawn_and_thinned_out(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    days = [window("home/long", 3600 * hour, 3600, float(hour % 24)) for hour in range(24 * 30)]
    others = [window(f"home/{number}", 0, 3600, count=1) for number in range(100)]
    lost_clock = window("home/long", -20 * 365 * 86_400, 3600, count=1)
    put(lake, windows.SPEC, [*days, *others, lost_clock])
    alarm = figures.Alarm(LOG, "home/77", "temperature", 0, 1.0, None, None, "")
    alarms = figures.Alarms(1, (alarm,), {(LOG, "home/77", "temperature"): 1})
    found = read_series(lake, alarms)
    assert (found.count, found.before, len(found.shown)) == (101, 1, MAX_SERIES)
    topics = [series.topic for series in found.shown]
    assert {"home/long", "home/77"} <= set(topics)
    assert topics == sorted(topics)
    long = found.shown[topics.index("home/long")]
    assert len(long.points) <= MAX_POINTS
    assert sum(point.count for point in long.points) == 60 * len(days)
    first = long.points[0]
    assert (first.at_us, found.step_us) == (int(NOON.timestamp() * 1e6), 3 * 3600 * 10**6)
    assert (first.least, first.greatest) == (-1.0, 3.0)
    assert first.mean == pytest.approx(1.0)
