"""The page of the report, also for an empty lake and for hostile names."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.pipeline.report.lakes import LOG, at, put, window

from godwit.pipeline.datasets import anomalies, bronze, devices, job_statistics, readings, traffic, windows
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.lake import Lake
from godwit.pipeline.report import figures
from godwit.pipeline.report.markup import ReportStory
from godwit.pipeline.report.page import write_report

HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=y>\u202e\x00&amp;"
VOID = {"meta", "br", "img", "wbr"}


def fill(lake: Lake, topic: str = "home/attic", publisher: str = "attic", payload: bytes = b"no number") -> None:
    """Two hours of one topic with a gap, an alarm, a job and something in quarantine."""
    seconds = [second for second in range(0, 7200, 60) if not 3000 <= second < 4200]
    put(
        lake,
        bronze.SPEC,
        [
            {"broker": LOG, "offset": number, "topic": topic, "publisher": publisher, "received": at(second)}
            for number, second in enumerate(seconds)
        ],
    )
    minutes = [window(topic, second, 60, 20 + math.sin(second / 900)) for second in seconds]
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
    counts = {one.name: 0 for one in job_statistics.COUNTS} | {"jobs_submitted": 4, "jobs_done": 3, "jobs_failed": 1}
    times = {"run_s_mean": 0.5, "run_s_p95": 0.9, "run_s_max": 1.5}
    put(
        lake,
        job_statistics.SPEC,
        [{"broker": LOG, "kind": topic, "hour": at(0), **counts, "tasks_finished": 3, **times}],
    )
    bad = {**keys, "offset": 9, "published": at(1), "received": at(1), "schema_version": 1}
    put(lake, readings.QUARANTINE, [{**bad, "reason": "no number", "detail": publisher, "payload": payload}])


class Page(HTMLParser):
    """The elements, attributes and text of a page."""

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


def test_a_page_that_is_self_contained(tmp_path: Path) -> None:
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
    assert words.count("Look ") == 6, "each section points to the important parts"
    assert "Readings are drawn at their event time, by the clocks of the devices." in words
    drawings = [ElementTree.fromstring(one) for one in re.findall(r"<svg.*?</svg>", text)]
    assert len(drawings) == 3  # activity, one series, one device
    series = drawings[1]
    assert len(series.findall("*[@class='band']")) == 2  # before the gap and after it
    assert len(series.findall("*[@class='alarm']")) == 1
    active = drawings[2].findall("*[@class='active']")
    assert len(active) > 1
    assert sum(float(one.attrib["width"]) for one in active) < figures.BINS


def test_hostile_names_are_shown_and_have_no_effect(tmp_path: Path) -> None:
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


def test_an_empty_lake_and_empty_tables(tmp_path: Path) -> None:
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


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"cannot write the report to .*: No such file or directory; choose"):
        write_report(Lake(str(tmp_path / "lake")), tmp_path / "missing" / "report.html")


def test_a_story_is_on_the_first_screen(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    fill(lake)
    links = (("result", "Result"),)
    story = ReportStory(
        "All arrived", "<p>in spite of it</p>", '<h2 id="result">Result</h2>', links, "Clocks run fast."
    )
    path = tmp_path / "page.html"
    write_report(lake, path, story)
    text = path.read_text(encoding="utf-8")
    places = [text.index(one) for one in ("<h1>All arrived</h1>", "in spite of it", 'id="result"', 'id="tables"')]
    assert places == sorted(places)
    assert text.index('id="tables"') < text.index("100</b><span>messages") < text.index('id="readings"')
    assert "Clocks run fast." in text
    assert set(re.findall(r'href="#([^"]*)"', text)) == set(re.findall(r' id="([^"]*)"', text))
    empty = Lake(str(tmp_path / "empty"))
    write_report(empty, path, story)
    assert "The lake is empty." in path.read_text(encoding="utf-8")
