"""The report: one page from the tables, also of nothing, of very much, and of names that mean harm."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest

from godwit.pipeline import anomalies, bronze, devices, job_statistics, readings, report_figures, traffic, windows
from godwit.pipeline.lake import Lake, TableSpec
from godwit.pipeline.problems import PipelineError
from godwit.pipeline.report import write_report
from godwit.pipeline.report_scans import Totals, greatest_of
from godwit.pipeline.report_series import MAX_POINTS, MAX_SERIES, read_series
from godwit.pipeline.report_svg import ticks
from godwit.pipeline.report_text import duration, safe, safe_payload, size, value

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
LOG = "0f" * 16
HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=y>\u202e\x00&amp;"
VOID = {"meta", "br", "img"}


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def put(lake: Lake, spec: TableSpec, rows: list[dict[str, Any]], batch: int = 0) -> None:
    """Rows with nulls for what they leave out."""
    columns = {one.name: pa.array([row.get(one.name) for row in rows], one.type) for one in spec.schema}
    table = lake.table(spec)
    write = table.upsert if spec.keys else table.append_arrow
    assert write(pa.table(columns, schema=spec.schema), "test", batch)


def window(topic: str, start_s: float, window_s: int, number: float = 20.0, **more: Any) -> dict[str, Any]:
    shape = {"count": 60, "mean": number, "min": number - 1, "max": number + 1, "p50": number - 0.1}
    keys = {"broker": LOG, "topic": topic, "quantity": "temperature", "window_s": window_s, "window_start": at(start_s)}
    return {**keys, "unit": "°C", "squares": 1.0, "deviation": 0.1, **shape, **more}


def fill(lake: Lake, topic: str = "home/attic", publisher: str = "attic", payload: bytes = b"no number") -> None:
    """Two hours of one topic with a gap, an alarm, a job and something in quarantine."""
    heard = [second for second in range(0, 7200, 60) if not 3000 <= second < 4200]
    put(
        lake,
        bronze.SPEC,
        [
            {"broker": LOG, "offset": number, "topic": topic, "publisher": publisher, "received": at(second)}
            for number, second in enumerate(heard)
        ],
    )
    minutes = [window(topic, second, 60, 20 + math.sin(second / 900)) for second in heard]
    put(lake, windows.SPEC, [*minutes, window(topic, 0, 3600), window(topic, 3600, 3600)])
    keys = {"broker": LOG, "topic": topic, "publisher": publisher}
    span = {"first_received": at(0), "last_received": at(7140)}
    put(lake, devices.SPEC, [{**keys, **span, "messages": 100, "interval_s": 60.0, "longest_gap_s": 1260.0, "gaps": 1}])
    put(
        lake,
        traffic.SPEC,
        [{**keys, **span, "hour": at(0), "messages": 100, "payload_bytes": 5_000, "topics": 1}],
    )
    put(
        lake,
        anomalies.SPEC,
        [
            {"broker": LOG, "offset": 7, "quantity": "temperature", "topic": topic, "event_time": at(600)}
            | {"value": 35.0, "unit": "°C", "expected": 20.5, "score": 3.0, "reason": publisher}
        ],
    )
    counts = dict.fromkeys(job_statistics.COUNTED, 0) | {"jobs_submitted": 4, "jobs_done": 3, "jobs_failed": 1}
    times = {"run_s_mean": 0.5, "run_s_p95": 0.9, "run_s_max": 1.5}
    put(
        lake,
        job_statistics.SPEC,
        [{"broker": LOG, "kind": topic, "hour": at(0), **counts, "tasks_finished": 3, **times}],
    )
    bad = {**keys, "offset": 9, "published": at(1), "received": at(1), "schema_version": 1}
    put(lake, readings.QUARANTINE, [{**bad, "reason": "no number", "detail": publisher, "payload": payload}])


class Page(HTMLParser):
    """What a browser would find."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)


def written(lake: Lake, tmp_path: Path) -> tuple[str, Page]:
    path = tmp_path / "report.html"
    write_report(lake, path)
    text = path.read_text(encoding="utf-8")
    return text, Page(text)


def test_a_page_that_needs_nothing_else(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    fill(lake)
    text, page = written(lake, tmp_path)
    words = " ".join(page.words)
    for wanted in (
        "100 messages in 1 h 59 min", "From 2026-11-15 12:00 to 2026-11-15 14:00 UTC",
        "home/attic", "temperature, °C", "1 gap, longest 21 min", "every 1 min",
        "3 done, 1 failed", "500 ms · 900 ms · 1.5 s", "no number", "5 KB", "expected",
    ):  # fmt: skip
        assert wanted in words
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "srcset")]
    assert {link for name, link in page.attributes if name == "href" and link} == {
        f"#{link}" for name, link in page.attributes if name == "id"
    }
    assert not re.search(r"https?://|url\(|@import", text)
    assert "prefers-color-scheme: dark" in text
    drawings = [ElementTree.fromstring(one) for one in re.findall(r"<svg.*?</svg>", text)]
    assert len(drawings) == 3  # activity, one series, one device
    series = drawings[1]
    assert len(series.findall("*[@class='band']")) == 2  # before the gap and after it
    assert len(series.findall("*[@class='alarm']")) == 1
    heard = drawings[2].findall("*[@class='heard']")
    assert len(heard) > 1
    assert sum(float(one.attrib["width"]) for one in heard) < report_figures.BINS


def test_names_that_mean_harm_are_shown_and_do_nothing(tmp_path: Path) -> None:
    harmless, harmful = Lake(str(tmp_path / "one")), Lake(str(tmp_path / "two"))
    fill(harmless)
    fill(harmful, topic=HOSTILE, publisher=HOSTILE, payload=HOSTILE.encode())
    _, wanted = written(harmless, tmp_path)
    text, page = written(harmful, tmp_path)
    assert page.tags == wanted.tags
    assert [name for name, _ in page.attributes] == [name for name, _ in wanted.attributes]
    assert "<script>alert('x')</script>" in "".join(page.words)
    assert "\u202e" not in text
    assert "\x00" not in text


def test_an_empty_lake_and_empty_tables_are_told_in_sentences(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    _, page = written(lake, tmp_path)
    assert "The lake is empty." in " ".join(page.words)
    assert "svg" not in page.tags
    row = {"broker": LOG, "publisher": "", "hour": at(0), "messages": 1, "payload_bytes": 0, "topics": 1}
    put(lake, traffic.SPEC, [{**row, "first_received": at(0), "last_received": at(0)}])
    text, page = written(lake, tmp_path)
    assert "svg" not in page.tags
    assert "<em>without a name</em>" in text
    assert text.count('class="nothing"') == 5


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"cannot write the report to .*: No such file or directory; choose"):
        write_report(Lake(str(tmp_path / "lake")), tmp_path / "missing" / "report.html")


def test_of_very_many_series_the_most_important_are_drawn_and_thinned_out(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    days = [window("home/long", 3600 * hour, 3600, float(hour % 24)) for hour in range(24 * 30)]
    others = [window(f"home/{number}", 0, 3600, count=1) for number in range(100)]
    lost_clock = window("home/long", -20 * 365 * 86_400, 3600, count=1)
    put(lake, windows.SPEC, [*days, *others, lost_clock])
    alarm = report_figures.Alarm(LOG, "home/77", "temperature", 0, 1.0, None, None, "")
    alarms = report_figures.Alarms(1, (alarm,), {(LOG, "home/77", "temperature"): 1})
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
            ("b" * 32, "other broker", 100.0, 1.0, 0),  # all of it ended then: that is no silence of the device
        )
    ]
    put(lake, devices.SPEC, rows)
    found = report_figures.read_devices(lake)
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
    found = {reason.name: reason for reason in report_figures.read_quarantine(lake)}
    assert {name: reason.count for name, reason in found.items()} == {"no number": 90, "bad JSON": 10}
    assert [one.payload for one in found["no number"].examples] == [b"99", b"98", b"97"]
    assert [one.payload for one in found["bad JSON"].examples] == [b"90", b"80", b"70"]


def test_sums_of_pieces_are_sums_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.pipeline.report_scans.FOLD_ROWS", 3)
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
