"""What the demo shows, for pictures made by hand."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass, field

import msgspec
import pytest
from rich.console import Console

from godwit.cli.demo_receive import Report, RoomReport
from godwit.cli.demo_run import Picture, SentRoom, Settings
from godwit.cli.demo_view import SPARK_WIDTH, Display, Lines, bar, joined, spark, summary, verdict
from godwit.transport.connection import Statistics


def picture(
    *, elapsed_s: float = 4.0, seconds: float | None = 20.0, missing: int = 0, moved: int = 1, found: int = 1
) -> Picture:
    rooms = tuple(
        RoomReport(room, 1_000 - missing, missing, 0, celsius, "ab", True)
        for room, celsius in (("kitchen", 21.5), ("cellar", 12.25))
    )
    counters = Counter(
        {"offered": 4_000, "lost": 200, "queue_full": 3, "corrupted": 20, "duplicated": 40, "reordered": 80}
    )
    return Picture(
        settings=Settings(seconds, 0.05, 1),
        elapsed_s=elapsed_s,
        finishing=False,
        rooms=(SentRoom("kitchen", 1_000, "ab"), SentRoom("cellar", 1_000, "ab")),
        report=Report(
            at_s=elapsed_s,
            rooms=rooms,
            received_bytes=8_000_000,
            records=20,
            active_s=4.0,
            longest_pause_s=0.107,
            moves=found,
            dropped={"checksum": 19, "repeated": 38, "closed_connection": 1},
        ),
        network={"to_target": counters, "to_client": Counter({"offered": 1_500, "lost": 70})},
        statistics=Statistics(packets_sent=4_000, fragments_resent=223, round_trip_s=0.0341, shortest_trip_s=0.0309),
        moved_at_s=(2.0,) * moved,
        recent_bits_per_s=17.2e6,
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
    lines = Lines(screen.console(), 0.05)
    for tenth in range(1, 62):
        elapsed_s = tenth / 10
        lines.show(picture(elapsed_s=elapsed_s, moved=elapsed_s > 3.05, found=elapsed_s > 3.15))
    lines.close()
    shown = screen.text.splitlines()
    assert shown[0] == "5 rooms send their temperatures over a bad network: 20 Mbit/s, 15 ms each way, 5 % lost"
    assert shown[1] == (
        "   2.0 s      2,000 messages arrived, 17.2 Mbit/s, round trip 34 ms; 273 lost, 20 damaged, 223 sent again"
    )
    assert [line.split(" s ")[0].strip() for line in shown[1:]] == ["2.0", "2.0", "3.2", "4.0", "6.0"]
    assert "another address" in shown[2]
    assert "checked the new address" in shown[3]


def test_the_display_shows_rooms_network_and_transport() -> None:
    screen = Screen(terminal=True)
    display = Display(screen.console(), 0.05)
    for elapsed_s in (0.0, 0.1, 0.5, 1.0, 4.0):
        display.show(picture(elapsed_s=elapsed_s, moved=0, found=0))
    display.close()
    for text in ("4.0 s of 20 s", "kitchen", "21.5 °C", "lost in a full queue", "34 ms", "86% of the line", "none yet"):
        assert text in screen.text, text


def test_the_display_says_when_the_new_address_is_still_being_checked() -> None:
    for found, text in ((0, "checks the new address"), (1, "survived")):
        screen = Screen(terminal=True)
        display = Display(screen.console(), 0.05)
        display.show(picture(found=found, seconds=None))
        display.close()
        assert text in screen.text
        assert "until Ctrl-C" in screen.text


def test_the_summary_says_what_happened() -> None:
    text = joined(summary(picture())).plain
    for fact in (
        "datagrams                        4,000             1,500",
        "lost                               200                70",
        "2,000 messages in batches of 100, 8.0 MB, on 2 channels",
        "223 fragments, in 4,000 packets",
        "19 damaged, 38 repeats",
        "address changes         1 of 1 survived",
        "longest pause           107 ms between two arrivals",
        "34 ms, the shortest 31 ms",
        "16.0 Mbit/s, 80% of the line's 20.0 Mbit/s",
    ):
        assert fact in text, f"{fact!r} is not in\n{text}"


def test_the_summary_of_a_run_that_was_too_short_for_a_change_of_address() -> None:
    assert "address changes         none" in joined(summary(picture(moved=0, found=0))).plain


def test_the_verdict() -> None:
    assert verdict(picture()) == (True, "Every one of 2,000 messages arrived once and in order.")
    good, text = verdict(picture(missing=2))
    assert not good
    assert "kitchen: 998 of 1,000 messages arrived" in text
    nothing = msgspec.structs.replace(picture(), rooms=(), report=Report())
    assert verdict(nothing) == (True, "Stopped before anything was sent.")


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
