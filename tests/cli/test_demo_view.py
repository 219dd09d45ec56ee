"""The display of the demo, for snapshots made by hand."""

from __future__ import annotations

import io
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from rich.console import Console

from godwit.cli.demo_processes import (
    DELAYS_MS,
    DelayHistogram,
    RoomReport,
    RoomsReport,
    SentRoom,
    SubscriberReport,
    WorkReport,
    topic_of,
)
from godwit.cli.demo_run import SAMPLE_S, DemoSample, DemoSettings, DemoSnapshot, Phase, PipelineReport
from godwit.cli.demo_view import (
    SPARK_WIDTH,
    LiveView,
    PlainView,
    bar,
    course_events,
    demo_story,
    fault_counts,
    frame,
    joined,
    spark,
    summary,
    verdict,
    write_demo_report,
)
from godwit.cli.house import ROOMS

SETTINGS = DemoSettings(20.0, 0.05, 1000.0, 1)


def picture(
    *,
    elapsed_s: float = 4.0,
    seconds: float | None = 20.0,
    missing: int = 0,
    moved: int = 1,
    phase: Phase = "sending",
    confirmed: bool = True,
    killed: str | None = None,
) -> DemoSnapshot:
    rooms = tuple(
        RoomReport(room, 1_000 - missing, missing, 0, celsius, "ab")
        for room, celsius in (("kitchen", 21.5), ("cellar", 12.25))
    )
    counters = Counter(
        {"offered": 4_000, "lost": 200, "queue_full": 3, "corrupted": 20, "duplicated": 40, "reordered": 80}
    )
    retained = {topic_of(room): "cd" for room in ("kitchen", "cellar")}
    return DemoSnapshot(
        settings=DemoSettings(seconds, 0.05, 1000.0, 1),
        phase=phase,
        elapsed_s=elapsed_s,
        rooms=RoomsReport(
            rooms=(SentRoom("kitchen", 1_000, "ab"), SentRoom("cellar", 1_000, "ab")),
            resent=223,
            round_trip_s=0.034,
            last_digests=retained if confirmed else {},
        ),
        seen=SubscriberReport(
            at_s=elapsed_s,
            rooms=rooms,
            received_bytes=8_000_000,
            late=12,
            delays=DelayHistogram((0, 0, 1900, 0, 0, 88) + (0,) * (len(DELAYS_MS) - 6) + (12,), 0.3071),
            retained=retained,
        ),
        network={"to_target": counters, "to_client": Counter({"offered": 1_500, "lost": 70})},
        moved_at_s=(2.0,) * moved,
        recent_per_s=4987.3,
        work=WorkReport(submitted=40, done=40, replaced=2, by_worker={"anna": 10, "bert": 33}, is_complete=True),
        killed=killed,
        pipeline=None,
    )


@dataclass
class Screen:
    """A console that writes into a string."""

    terminal: bool
    file: io.StringIO = field(default_factory=io.StringIO)

    def console(self) -> Console:
        return Console(file=self.file, force_terminal=self.terminal, width=110, height=40, color_system=None)

    @property
    def text(self) -> str:
        return self.file.getvalue()


def test_lines_come_every_two_seconds_and_with_every_change_of_address() -> None:
    screen = Screen(terminal=False)
    lines = PlainView(screen.console(), SETTINGS)
    for tenth in range(1, 62):
        elapsed_s = tenth / 10
        lines.show(picture(elapsed_s=elapsed_s, moved=elapsed_s > 3.05, killed="anna" if elapsed_s > 4.5 else None))
    lines.show(picture(elapsed_s=9.0, phase="arriving"))
    for elapsed_s in (9.5, 20.0):
        lines.show(picture(elapsed_s=elapsed_s, phase="tables", killed="anna"))
    lines.close()
    shown = screen.text.splitlines()
    assert shown[0] == (
        "5 rooms -> broker -> subscriber, over a bad network: 20 Mbit/s a client, 15 ms each way, 5 % lost"
    )
    assert shown[1] == "   2.0 s      2,000 messages arrived, 4,987 per second; datagrams: 273 lost, 20 damaged"
    assert [line.split(" s ")[0].strip() for line in shown[1:]] == ["2.0", "2.0", "4.0", "4.6", "6.0", "9.5"]
    assert "assigns another address to every client" in shown[2]
    assert "the worker anna is killed" in shown[4]
    assert "Spark makes tables" in shown[6]


def test_the_display_shows_rooms_network_and_messages() -> None:
    screen = Screen(terminal=True)
    display = LiveView(screen.console(), SETTINGS)
    for elapsed_s in (0.0, 0.1, 0.5, 1.0, 4.0):
        display.show(picture(elapsed_s=elapsed_s))
    display.close()
    for text in (
        "4.0 s of 20 s",
        "kitchen",
        "21.5 °C",
        "lost in a full queue",
        "4,987 per second",
        "12 took more than 250 ms",
        "223 fragments",
    ):
        assert text in screen.text, text


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (picture(seconds=None), "4 s, until Ctrl-C"),
        (picture(phase="arriving"), "the remaining messages are in transit"),
        (picture(phase="late subscriber"), "a late subscriber receives"),
        (picture(phase="tables"), "Spark makes tables and a report of the logged messages (4 s)"),
        (picture(killed="anna"), "40 of 40 done, anna was killed, 2 of its tasks taken over"),
    ],
)
def test_the_display_shows_its_phase(shown: DemoSnapshot, text: str) -> None:
    screen = Screen(terminal=True)
    display = LiveView(screen.console(), SETTINGS)
    display.show(shown)
    display.close()
    assert text in screen.text


def test_the_display_fits_a_small_terminal() -> None:
    assert len(frame(picture(), {})) + len(ROOMS) - 2 < 24  # with its heading, and all rooms


def test_the_summary() -> None:
    text = joined(summary(picture())).plain
    for fact in (
        "datagrams                        4,000             1,500",
        "lost                               200                70",
        "published        2,000 messages by 2 clients, all confirmed by the broker",
        "received         2,000 messages, 8.0 MB, their numbers and the SHA-256 of each\n" + " " * 17 + "room checked",
        "late             12 took more than 250 ms",
        "delay            half within 40 ms, 99 % within 100 ms, the longest 307 ms",
        "sent again       223 fragments, by the rooms",
        "address changes  1, of every client",
        "retained         2 of 2 last temperatures",
        "jobs             40 of 40 done; every result checked",
    ):
        assert fact in text, f"{fact!r} is not in\n{text}"
    assert all(len(line) < 80 for line in text.splitlines())


def test_the_verdict() -> None:
    assert verdict(picture()) == (True, "Every one of 2,000 messages arrived once and in order.")
    good, text = verdict(picture(missing=2))
    assert not good
    assert "kitchen: 998 of 1,000 messages arrived" in text
    good, text = verdict(picture(confirmed=False))
    assert not good
    assert "did not confirm everything" in text
    good, text = verdict(msgspec.structs.replace(picture(), work=WorkReport(submitted=3, done=1, wrong=1)))
    assert not good
    assert "1 of 3 jobs failed or had a wrong result; 1 of 3 jobs were not done in time" in text
    nothing = msgspec.structs.replace(picture(), rooms=RoomsReport(), seen=SubscriberReport())
    assert not verdict(nothing)[0]


@pytest.mark.parametrize(
    ("values", "bars"), [((), ""), ((3.0,), "▁"), ((1.0, 2.0), "▁█"), ((0.0, 3.5, 7.0), "▁▅█"), ((2.0, 2.0), "▁▁")]
)
def test_spark(values: tuple[float, ...], bars: str) -> None:
    assert spark(values) == bars


def test_a_long_spark_is_thinned_out_and_keeps_both_ends() -> None:
    bars = spark([float(value) for value in range(500)])
    assert len(bars) == SPARK_WIDTH
    assert (bars[0], bars[-1]) == ("▁", "█")


@pytest.mark.parametrize("share", [-1.0, 0.0, 0.3, 1.0, 2.0])
def test_a_bar_keeps_its_width(share: float) -> None:
    assert len(bar(share, "green").plain) == len(bar(0.5, "green").plain)


# -- the report -------------------------------------------------------------------------------------------------------


def course(messages: int = 2_000) -> DemoSnapshot:
    """The end of a demo of 20 s: addresses change and anna is killed at 10 s, bert takes over at 13.3 s."""
    samples = []
    received = faults = 0
    tasks = {"anna": 0, "bert": 0}
    for number in range(88):
        at_s = number * SAMPLE_S
        received += 0 if 10.0 <= at_s < 11.0 or at_s > 20.5 else messages // 80
        faults += 3
        tasks["anna"] += at_s < 10.0
        tasks["bert"] += at_s < 21.0
        samples.append(DemoSample(at_s, received, faults, dict(tasks)))
    whole = picture(killed="anna", phase="tables", elapsed_s=22.0)
    each = messages // 2
    rooms = msgspec.structs.replace(
        whole.rooms, rooms=tuple(SentRoom(one, each, "ab") for one in ("kitchen", "cellar"))
    )
    seen = msgspec.structs.replace(
        whole.seen,
        rooms=tuple(RoomReport(one, each, 0, 0, 20.0, "ab") for one in ("kitchen", "cellar")),
    )
    return msgspec.structs.replace(
        whole,
        rooms=rooms,
        seen=seen,
        moved_at_s=(10.0,),
        killed_at_s=10.02,
        replaced_at_s=13.3,
        sent_at_s=20.0,
        arrived_at_s=21.4,
        samples=samples,
    )


def words_of(page: str) -> str:
    """The text of a page, each run of white space as one space."""
    return " ".join(re.sub(r"<style>.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL).split())


def test_the_report_tells_the_story_of_the_demo(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    shown = msgspec.structs.replace(course(), pipeline=PipelineReport(True, "It has no tables: Java is missing."))
    write_demo_report(shown, path, None)
    page = path.read_text(encoding="utf-8")
    text = words_of(page)
    for wanted in (
        "Every one of 2,000 messages arrived once and in order.",
        "lost 273 of 5,500 datagrams (5.0 %), damaged 20, repeated 40 and let others overtake 80",
        "1. 10.0 s The network assigns another address to every client.",
        "2. 10.0 s The worker anna is killed during its work.",
        "3. 13.3 s The broker has had no report of anna for 3 s: bert takes over 2 tasks.",
        "4. 20.0 s The rooms send their last messages.",
        "5. 21.4 s The last message has arrived, and the last job has been done.",
        "up to 40 ms 1,900 messages",
        "It has no tables: Java is missing.",
    ):
        assert wanted in text, f"{wanted!r} is not in\n{text}"
    assert ">1, 2</b>" in page, "events at the same time share a mark"
    # One after the other, each with a sentence about what to look at.
    places = [page.index(f'id="{name}"') for name in ("result", "course", "delays")]
    assert places == sorted(places)
    assert text.count("Look at") >= 3
    assert set(re.findall(r'href="#([^"]*)"', page)) == set(re.findall(r' id="([^"]*)"', page))


def test_the_numbers_of_the_report_are_those_of_the_terminal(tmp_path: Path) -> None:
    shown = course()
    path = tmp_path / "page.html"
    write_demo_report(shown, path, None)
    page = path.read_text(encoding="utf-8")
    rows = [re.sub(r"<[^>]*>", " ", row).split() for row in re.findall(r"<tr>.*?</tr>", page)]
    printed = " ".join(joined(summary(shown)).plain.split())
    assert len(rows) > len(fault_counts(shown)) + 5
    for row in rows:
        if row != ["to", "the", "broker", "from", "the", "broker"]:
            assert " ".join(row) in printed, row
    assert verdict(shown)[1] in words_of(page)


def test_the_course_shows_the_pause_and_the_killed_worker() -> None:
    story = demo_story(course())
    drawings = [ElementTree.fromstring(one) for one in re.findall(r"<svg.*?</svg>", story.body)]
    assert [one.attrib["aria-label"] for one in drawings] == [
        "messages that arrived",
        "datagrams lost or damaged",
        "tasks of anna, killed",
        "tasks of bert",
    ]
    for drawing in drawings:
        assert len(drawing.findall("*[@class='mark']")) == 5
    heights = [_heights(one) for one in drawings]
    end = len(heights[0])
    pause = slice(round(10.25 / SAMPLE_S), round(10.75 / SAMPLE_S))
    assert set(heights[0][pause]) == {100.0}, "no message arrived"
    assert min(heights[0][: pause.start]) < 100.0 > min(heights[0][pause.stop :])
    assert set(heights[2][end * 3 // 4 :]) == {100.0}, "anna does nothing any more"
    assert min(heights[3][end * 3 // 4 :]) < 100.0


def _heights(drawing: ElementTree.Element) -> list[float]:
    """The height of each step of an area: 100 is the ground."""
    corners = re.findall(r"[ML]([\d.]+) ([\d.]+)", drawing[0].attrib["d"])
    return [float(y) for _, y in corners[1:-1:2]]


def test_a_failed_demo_says_so_in_its_report(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_demo_report(picture(missing=2), path, None)
    page = path.read_text(encoding="utf-8")
    assert '<h1><span class="bad">FAILED: kitchen: 998 of 1,000 messages arrived' in page
    assert "No samples were taken." in page
    assert course_events(picture(moved=0)) == []


def test_the_clocks_are_explained() -> None:
    clocks = demo_story(course()).clocks
    assert "each reading is one second after the one before, and a room sends 1,000 of them per second" in clocks
    assert "So 20 s of the demo are about 5 h 33 min of readings." in clocks
    assert "by the clock of the broker" in clocks
