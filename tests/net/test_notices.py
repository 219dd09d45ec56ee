"""One line an event, harmless on a terminal, and never in the broker's way."""

from __future__ import annotations

import io
import json
import os
import threading

import pytest

from godwit.net import notices
from godwit.net.notice_limit import CLIENT_LINES
from godwit.net.notices import (
    MAX_FIELD_CHARACTERS,
    MAX_LINE_CHARACTERS,
    NoticeWriter,
    json_line,
    printable,
    text_line,
)

NOON = 1_700_000_000.25


def test_a_line_has_a_time_and_a_text() -> None:
    line = text_line("connected", "sensor-1 connected", {"client": "sensor-1"}, NOON)
    assert line.endswith(" sensor-1 connected")
    assert line[4] == line[7] == "-"
    assert line[10] == " "


def test_a_warning_is_loud_and_the_ready_line_stands_alone() -> None:
    assert " WARNING: open" in text_line("warning", "open to all", {}, NOON)
    assert text_line("listening", "listening on udp://[::1]:50000", {}, NOON) == "listening on udp://[::1]:50000"


def test_json_has_the_fields_beside_the_text() -> None:
    line = json_line("connected", "x\ny connected", {"client": "x\ny", "n": 3, "raw": b"\x00", "odd": {1, 2}}, NOON)
    assert "\n" not in line
    assert json.loads(line) == {
        "client": "x\ny", "n": 3, "raw": "AA==", "odd": [1, 2],
        "time": "2023-11-14T22:13:20.250000Z", "kind": "connected", "text": "x\ny connected",
    }  # fmt: skip
    assert json.loads(json_line("a", "\ud800", {"path": "\udcff"}, NOON))["path"] == "\udcff"
    assert json_line("a", "\x9b", {}, NOON).isascii()  # a terminal would take it for the beginning of a command
    long = json_line("a", "b" * 100_000, {"filters": ["c" * 1000] * 1000}, NOON)
    assert len(long) < 100_000
    assert json.loads(long)["kind"] == "a"
    assert json.loads(json_line("a", "b", {"kind": "forged", "error": OSError("x")}, NOON))["kind"] == "a"


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("plain ünïcode", "plain ünïcode"),
        ("a\nb", "a\\nb"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\u202e", "\\u202e"),
        ("\ud800", "\\ud800"),
    ],
)
def test_names_from_the_network_move_no_cursor(hostile: str, shown: str) -> None:
    assert printable(hostile) == shown


def test_a_line_is_bounded() -> None:
    assert len(printable("x" * 100_000)) == MAX_LINE_CHARACTERS + 3


def test_lines_come_in_order_and_are_flushed_at_the_end() -> None:
    stream = io.StringIO()
    writer = NoticeWriter(stream, clock=lambda: NOON)
    for number in range(100):
        writer.write("listening", f"line {number}")
    writer.close()
    writer.close()
    assert stream.getvalue().splitlines() == [f"line {number}" for number in range(100)]


def test_json_by_choice() -> None:
    stream = io.StringIO()
    writer = NoticeWriter(stream, "json", clock=lambda: NOON)
    writer.write("listening", "listening on udp://127.0.0.1:1", {"port": 1})
    writer.close()
    assert json.loads(stream.getvalue())["port"] == 1


class Stuck(io.StringIO):
    """A terminal that stands still until told."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.released = threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        assert self.released.wait(10)
        return super().write(text)


def test_a_terminal_that_stands_still_costs_bounded_memory_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "MAX_LINES_WAITING", 10)
    stream = Stuck()
    writer = NoticeWriter(stream, clock=lambda: NOON)
    writer.write("listening", "first")
    assert stream.entered.wait(10)
    for number in range(100):
        writer.write("listening", f"line {number}")
    stream.released.set()
    while writer._queue.qsize():
        pass
    writer.write("listening", "last")
    writer.close()
    lines = stream.getvalue().splitlines()
    assert lines[:11] == ["first", *(f"line {number}" for number in range(10))]
    assert lines[11].endswith("90 lines were left out here")
    assert lines[12:] == ["last"]


def test_a_terminal_that_never_moves_again_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "MAX_LINES_WAITING", 1)
    monkeypatch.setattr(notices, "CLOSE_PATIENCE_S", 0.01)
    stream = Stuck()
    writer = NoticeWriter(stream)
    writer.write("listening", "first")
    assert stream.entered.wait(10)
    writer.close()
    writer.write("listening", "second")
    writer.close()
    stream.released.set()


def test_a_reader_that_left_does_not_stop_the_broker() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        writer = NoticeWriter(stream)
        for _ in range(100):
            writer.write("listening", "nobody reads this")
        writer.close()
        assert not writer._thread.is_alive()
        with pytest.raises(BrokenPipeError):
            stream.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # so that closing it does not complain


def test_a_flood_of_one_client_is_cut_and_reported_at_the_end() -> None:
    stream = io.StringIO()
    writer = NoticeWriter(stream, clock=lambda: NOON)
    for number in range(1000):
        writer.write("subscribed", f"eve subscribed to {number}", {"client": "eve", "host": "192.0.2.1"})
    writer.write("subscribed", "bob subscribed to news", {"client": "bob", "host": "192.0.2.1"})
    writer.close()
    *lines, bob, summary = stream.getvalue().splitlines()
    assert len(lines) == CLIENT_LINES[1]
    assert bob.endswith("bob subscribed to news")
    assert summary.endswith("950 lines 'subscribed' of eve were left out")


def test_lines_that_were_left_out_are_reported_while_nothing_else_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "LOOK_S", 0.01)
    now = NOON
    reading, writing = os.pipe()
    with os.fdopen(reading) as lines, os.fdopen(writing, "w") as stream:
        writer = NoticeWriter(stream, "json", clock=lambda: now)
        for number in range(60):
            writer.write("subscribed", f"eve subscribed to {number}", {"client": "eve"})
        for _ in range(50):
            assert json.loads(lines.readline())["kind"] == "subscribed"
        now += 11
        summary = json.loads(lines.readline())
        assert (summary["kind"], summary["left_out"], summary["source"]) == ("left_out", 10, "eve")
        writer.write("subscribed", "eve subscribed again", {"client": "eve"})
        assert json.loads(lines.readline())["text"] == "eve subscribed again"
        writer.close()


def test_texts_from_outside_are_cut() -> None:
    fields = {"client": "c" * 5000, "filters": ["f" * 5000] * 64, "n": 7}
    line = json_line("kicked", "t" * 100_000, fields, NOON)
    assert len(line) < 8000
    found = json.loads(line)
    assert found["client"] == "c" * MAX_FIELD_CHARACTERS + "..."
    assert found["filters"][-1] == "and 48 more"
    assert (len(found["filters"]), found["n"]) == (17, 7)
