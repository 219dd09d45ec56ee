"""The data of the report: devices, quarantine, series, aggregates, axes and text."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow as pa
import pytest
from tests.pipeline.report.lakes import LOG, NOON, at, put, window

from godwit.pipeline.datasets import devices, readings, windows
from godwit.pipeline.lake import Lake
from godwit.pipeline.report import figures
from godwit.pipeline.report.figures import Totals, greatest_of
from godwit.pipeline.report.markup import duration, safe, safe_payload, size, ticks, value
from godwit.pipeline.report.series import MAX_POINTS, MAX_SERIES, read_series


def test_devices_that_fell_silent_come_first(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    rows = [
        {"broker": broker, "topic": topic, "publisher": "p", "messages": 100, "first_received": at(0)}
        | {"last_received": at(last_s), "interval_s": interval_s, "longest_gap_s": 1.0, "gaps": gaps}
        for broker, topic, last_s, interval_s, gaps in (
            ("a" * 32, "quick", 7200.0, 1.0, 0),
            ("a" * 32, "quiet", 7100.0, 1.0, 0),
            ("a" * 32, "rare", 6000.0, 600.0, 0),
            ("a" * 32, "holes", 7195.0, 1.0, 3),
            ("b" * 32, "other broker", 100.0, 1.0, 0),  # all topics of this broker ended then: the device is not silent
        )
    ]
    put(lake, devices.SPEC, rows)
    found = figures.read_devices(lake)
    assert (found.count, found.silent, found.with_gaps) == (5, 1, 1)
    assert [device.topic for device in found.shown[:2]] == ["quiet", "holes"]
    assert [device.is_silent for device in found.shown] == [True, False, False, False, False]


def test_quarantine_has_the_newest_of_each_reason(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    rows = [
        {"broker": LOG, "offset": number, "topic": "t", "received": at(number), "detail": str(number)}
        | {"reason": "no number" if number % 10 else "bad JSON", "payload": json.dumps(number).encode()}
        for number in range(100)
    ]
    put(lake, readings.QUARANTINE, rows[:60])
    put(lake, readings.QUARANTINE, rows[60:], batch=1)
    found = {reason.name: reason for reason in figures.read_quarantine(lake)}
    assert {name: reason.count for name, reason in found.items()} == {"no number": 90, "bad JSON": 10}
    assert [one.payload for one in found["no number"].examples] == [b"99", b"98", b"97"]
    assert [one.payload for one in found["bad JSON"].examples] == [b"90", b"80", b"70"]


def test_of_very_many_series_the_most_important_are_drawn_and_thinned_out(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    days = [window("home/long", 3600 * hour, 3600, float(hour % 24)) for hour in range(24 * 30)]
    others = [window(f"home/{number}", 0, 3600, count=1) for number in range(100)]
    lost_clock = window("home/long", -20 * 365 * 86_400, 3600, count=1)
    put(lake, windows.SPEC, [*days, *others, lost_clock])
    alarm = figures.AlarmRow(LOG, "home/77", "temperature", 0, 1.0, None, None, "")
    alarms = figures.AlarmSummary(1, (alarm,), {(LOG, "home/77", "temperature"): 1})
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


def test_sums_of_pieces_are_sums_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.pipeline.report.figures.FOLD_ROWS", 3)
    totals = Totals(("key",), {"n": "sum", "most": "max"})
    pieces = [pa.table({"key": ["a", "b", "a"], "n": [1, 2, 3], "most": [turn, 0, -turn]}) for turn in range(5)]
    for piece in pieces:
        totals.add(piece)
    assert totals.rows("n") == [{"key": "a", "n": 20, "most": 4}, {"key": "b", "n": 10, "most": 0}]
    best = greatest_of(iter(pieces), "most", 2)
    assert best is not None
    assert best.column("most").to_pylist() == [4, 3]
    assert Totals(("key",), {"n": "sum"}).rows() == []


@pytest.mark.parametrize(
    ("least", "greatest", "wanted"),
    [
        (0.0, 10.0, [0, 5, 10]),
        (19.2, 22.9, [19, 20, 21, 22, 23]),
        (5.0, 5.0, None),
        (0.0, 0.0, None),
        (-1e15, 1e15, None),
    ],
)
def test_ticks_are_round_and_hold_all(least: float, greatest: float, wanted: list[float] | None) -> None:
    found = ticks(least, greatest)
    assert found[0] <= least
    assert found[-1] >= greatest
    assert 2 <= len(found) <= 7
    assert wanted is None or found == pytest.approx(wanted)


def test_words_and_numbers() -> None:
    assert safe("a" * 200) == "a" * 96 + "…"
    assert safe('<&">\x07\u2066') == "&lt;&amp;&quot;&gt;\\u0007\\u2066"
    assert safe_payload(b"\xff\x00") == "0xff00"
    assert safe_payload(b" ") == "<em>empty</em>"
    assert safe_payload("°".encode() * 500) == "°" * 96 + "…"
    assert [duration(one) for one in (0.0015, 59.0, 60.0, 3660.0, 90_000.0, None)] == [
        "1.5 ms", "59 s", "1 min", "1 h 1 min", "1 d 1 h", "\N{EN DASH}",
    ]  # fmt: skip
    assert [size(one) for one in (0, 999, 1500, 2.5e9, 7e15)] == ["0 B", "999 B", "1.5 KB", "2.5 GB", "7e+03 TB"]
    assert [value(one) for one in (21.456789, 12345.6, 1e9, math.nan)] == ["21.46", "12,346", "1e+09", "\N{EN DASH}"]
