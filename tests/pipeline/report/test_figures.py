"""The data of the report: devices, quarantine, series, aggregates, axes and text."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow as pa
import pytest
from tests.pipeline.report.lakes import LOG, NOON, at, put, window

from godwit.pipeline.datasets import anomalies, devices, readings, traffic, windows
from godwit.pipeline.lake import Lake
from godwit.pipeline.report import figures
from godwit.pipeline.report.figures import Totals, greatest_of
from godwit.pipeline.report.markup import duration, plot_range, safe, safe_payload, series_plot, size, ticks, value
from godwit.pipeline.report.series import MAX_POINTS, MAX_SERIES, Point, Series, SeriesSummary, read_series


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


NO_ALARMS = figures.AlarmSummary(0, (), {})


def reading(topic: str, offset: int, second: float, number: float) -> dict[str, object]:
    return {
        "broker": LOG, "offset": offset, "topic": topic, "quantity": "temperature", "event_time": at(second),
        "value": number, "unit": "°C", "name": "", "received": at(second),
    }  # fmt: skip


def test_a_short_time_is_drawn_with_the_readings_themselves(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    put(lake, windows.SPEC, [window(topic, 0, length, count=25) for topic in ("few", "many") for length in (60, 3600)])
    put(lake, readings.SPEC, [reading("few", number, float(number), 20.0 + number % 5) for number in range(25)])
    many = [reading("many", 1000 + number, number / 100, math.sin(number / 100)) for number in range(2500)]
    put(lake, readings.SPEC, many, batch=1)
    found = read_series(lake, NO_ALARMS)
    few, many_series = found.shown
    assert (found.begin_us, found.count) == (int(NOON.timestamp() * 1e6), 2)
    assert 20e6 < found.end_us - found.begin_us < 30e6
    assert [number for _, number in few.dots] == [20.0 + number % 5 for number in range(25)]
    assert many_series.dots == ()
    assert len(many_series.points) == 120
    assert sum(point.count for point in many_series.points) == 2500
    assert {round(point.p50, 1) for point in many_series.points} > {-1.0, 0.0, 1.0}
    drawing = series_plot(few, found)
    assert drawing.count('class="reading"') == 25
    corners = series_plot(many_series, found).partition('class="median" d="')[2].partition('"')[0].split("L")
    assert len({corner.split()[1] for corner in corners}) > 20, "more than a rectangle"


def test_a_short_time_with_too_many_readings_is_drawn_with_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("godwit.pipeline.report.series.MAX_READINGS", 10)
    lake = Lake(str(tmp_path / "lake"))
    put(lake, windows.SPEC, [window("home", 0, length) for length in (60, 3600)])
    put(lake, readings.SPEC, [reading("home", number, float(number), 20.0) for number in range(25)])
    found = read_series(lake, NO_ALARMS)
    assert (found.step_us, len(found.shown[0].points)) == (60_000_000, 1)


def course_of(*numbers: float) -> tuple[Series, SeriesSummary]:
    """A series with a window a minute, each with this median, and its least and greatest value 0.5 away."""
    points = tuple(
        Point(minute * 60_000_000, 10, number, number, number - 0.5, number + 0.5)
        for minute, number in enumerate(numbers)
    )
    series = Series(LOG, "home", "temperature", "°C", 10 * len(numbers), points, ())
    return series, SeriesSummary(1, 10, 0, 0, len(numbers) * 60_000_000, 60_000_000, (series,))


def test_outliers_do_not_flatten_a_plot() -> None:
    usual = [20 + math.sin(minute / 10) for minute in range(100)]
    series, summary = course_of(*usual[:50], 800.0, *usual[50:70], -300.0, *usual[70:])
    shown = plot_range(series)
    assert 18.0 < shown.least < 19.0
    assert 21.0 < shown.greatest < 22.0
    assert shown.beyond == (-300.5, -299.5, 799.5, 800.5)
    drawing = series_plot(series, summary)
    assert drawing.count('class="beyond"') == 2
    assert "800.5 °C" in drawing
    assert "from -300.5 to 800.5 °C" in drawing
    heights = [
        float(corner.split()[1]) for corner in drawing.partition('class="median" d="M')[2].split('"')[0].split("L")
    ]
    ordinary = heights[: 2 * 50]
    assert max(ordinary) - min(ordinary) > 50, "the usual course takes up most of the height of 150"
    assert all(10 <= height <= 128 for height in heights), "nothing is drawn outside the plot"


def test_a_plot_shows_everything_where_nothing_is_an_outlier() -> None:
    for numbers in ([20.0] * 30 + [21.0], [20.0, 21.0, 900.0], [float(number) for number in range(100)]):
        series, _ = course_of(*numbers)
        shown = plot_range(series)
        assert shown.beyond == () or numbers[0] == numbers[1]
        if not shown.beyond:
            assert (shown.least, shown.greatest) == (min(numbers) - 0.5, max(numbers) + 0.5)
    flat = Series(LOG, "home", "state", "", 40, tuple(Point(n, 1, 0.0, 0.0, 0.0, n == 7) for n in range(40)), ())
    assert plot_range(flat).greatest == 1.0


def alarm(second: float, reason: str = "jump up", **more: object) -> figures.AlarmRow:
    row = {"value": 30.0, "expected": 20.0, "score": 0.5} | more
    return figures.AlarmRow(LOG, "home", "temperature", int(second * 1e6), reason=reason, **row)  # type: ignore[arg-type]


def test_repeated_alarms_of_one_event_are_one_row() -> None:
    repeated = [alarm(second, score=0.5 + second / 1000, value=30.0 + second) for second in range(0, 300, 30)]
    later = alarm(1000.0, end_us=int(1010e6))
    found = figures.joined_alarms([*repeated, later, alarm(15.0, "drift")])
    assert [(one.at_us // 10**6, one.reason, one.alarms) for one in found] == [
        (1000, "jump up", 1), (15, "drift", 1), (0, "jump up", 10),
    ]  # fmt: skip
    event = found[-1]
    assert (event.end_us, event.peak_value, event.value, event.score) == (270 * 10**6, 300.0, 30.0, 0.77)


def test_an_event_of_the_table_is_a_row_with_its_end_and_peak(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    row = {"broker": LOG, "quantity": "temperature", "topic": "home", "value": 30.0, "expected": 20.0, "name": ""}
    lasting = row | {"offset": 1, "event_time": at(0), "score": 0.4, "reason": "drift", "state": "worse"}
    ended = row | {"offset": 2, "event_time": at(100), "score": 0.9, "reason": "jump up", "state": "end"}
    put(lake, anomalies.SPEC, [lasting, ended | {"peak_time": at(110), "peak_value": 90.0, "end_time": at(130)}])
    found = figures.read_alarms(lake)
    assert found.count == 2
    newest, oldest = found.newest
    assert (newest.peak_value, newest.is_lasting, newest.end_us) == (90.0, False, int(at(130).timestamp() * 1e6))
    assert (oldest.is_lasting, oldest.end_us) == (True, None)


def test_the_messages_of_the_broker_itself_are_counted_apart(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    span: dict[str, object] = {"first_received": at(0), "last_received": at(60)}
    rows: list[dict[str, object]] = [
        {
            "broker": LOG,
            "publisher": name,
            "hour": at(0),
            "messages": messages,
            "payload_bytes": 10,
            "topics": 1,
            **span,
        }
        for name, messages in (("kitchen", 100), ("$broker", 40), (None, 7))
    ]
    put(lake, traffic.SPEC, rows)
    found = figures.read_traffic(lake)
    assert (found.publishers, found.messages, found.own_messages) == (2, 107, 40)
    assert [one.name for one in found.shown] == ["kitchen", ""]
    device: dict[str, object] = {"broker": LOG, "messages": 1, "longest_gap_s": 0.0, "gaps": 0, **span}
    put(lake, devices.SPEC, [{**device, "topic": topic} for topic in ("home", "$jobs/sum")])
    assert [one.topic for one in figures.read_devices(lake).shown] == ["home"]


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
