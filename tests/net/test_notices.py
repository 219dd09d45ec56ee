"""One line an event, harmless on a terminal, and never in the broker's way."""

from __future__ import annotations

import io
import json
import os
import threading
from typing import Any

import pytest

from godwit.errors import MAX_LINE_CHARACTERS, printable
from godwit.net import notices
from godwit.net.notices import (
    ALL_LINES,
    CLIENT_LINES,
    HOST_LINES,
    MAX_FIELD_CHARACTERS,
    MAX_SUMMARIES,
    SUMMARY_US,
    NoticeLimit,
    NoticeWriter,
    json_line,
    text_line,
)

NOON = 1_700_000_000.25
PATIENCE_S = 120.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the thread that writes may need longer than a broker waits for it."""
    monkeypatch.setattr(notices, "CLOSE_TIMEOUT_S", PATIENCE_S)


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
    """A terminal that blocks until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.released = threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        assert self.released.wait(PATIENCE_S)
        return super().write(text)


def test_a_terminal_that_stands_still_costs_bounded_memory_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "MAX_LINES_WAITING", 10)
    stream = Stuck()
    writer = NoticeWriter(stream, clock=lambda: NOON)
    writer.write("listening", "first")
    assert stream.entered.wait(PATIENCE_S)
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
    monkeypatch.setattr(notices, "CLOSE_TIMEOUT_S", 0.01)
    stream = Stuck()
    writer = NoticeWriter(stream)
    writer.write("listening", "first")
    assert stream.entered.wait(PATIENCE_S)
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
            writer.write("listening", "not read")
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
    monkeypatch.setattr(notices, "POLL_S", 0.01)
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


SECOND_US = 1_000_000


def admitted(limit: NoticeLimit, count: int, now_us: int = 0, kind: str = "subscribed", **fields: Any) -> int:
    return sum([limit.admit(kind, fields, now_us) for _ in range(count)])


def test_a_client_has_a_burst_and_a_rate_for_each_kind() -> None:
    limit = NoticeLimit()
    per_s, burst = CLIENT_LINES
    assert admitted(limit, 1000, client="eve") == burst
    assert admitted(limit, 1000, 60 * SECOND_US, client="eve") == min(burst, 60 * per_s)
    assert admitted(limit, 1000, client="eve", kind="unsubscribed") == burst


def test_the_flood_of_one_client_does_not_suppress_the_lines_of_others() -> None:
    limit = NoticeLimit()
    admitted(limit, 100_000, client="eve", host="192.0.2.1")
    assert admitted(limit, 1, client="bob", host="192.0.2.1") == 1
    assert admitted(limit, 1, client="alice", host="192.0.2.2") == 1
    assert admitted(limit, 1, client="proved") == 1


def test_fresh_names_are_bounded_by_their_host() -> None:
    limit = NoticeLimit()
    lines = [limit.admit("connected", {"client": f"x{n}", "host": "192.0.2.1"}, n * 600) for n in range(108_572)]
    per_s, burst = HOST_LINES
    assert sum(lines) <= burst + 66 * per_s
    assert admitted(limit, 1, 108_572 * 600, kind="connected", client="bob", host="192.0.2.9") == 1
    ((text, fields),) = limit.summaries()
    assert text == f"{108_572 - sum(lines):,} lines 'connected' of host 192.0.2.1 were left out"
    assert fields["left_out"] == 108_572 - sum(lines)


def test_all_hosts_together_are_bounded_and_clients_that_proved_their_names_still_show() -> None:
    limit = NoticeLimit()
    count = 20_000
    lines = [limit.admit("refused", {"host": f"192.0.{n // 250}.{n % 250}"}, 0) for n in range(count)]
    assert sum(lines) == ALL_LINES[1]
    assert admitted(limit, 1, client="proved", kind="refused") == 1
    ((text, _),) = limit.summaries()
    assert "of clients that have not proved their names" in text


def test_what_the_broker_itself_has_to_say_is_not_limited() -> None:
    assert admitted(NoticeLimit(), 10_000, kind="warning") == 10_000


def test_every_line_that_is_left_out_is_counted_once() -> None:
    limit = NoticeLimit()
    shown = sum([admitted(limit, 80, client=f"client {n}") for n in range(3 * MAX_SUMMARIES)])
    assert limit.due_us == SUMMARY_US
    lines = limit.summaries()
    assert len(lines) == MAX_SUMMARIES
    assert sum(fields["left_out"] for _, fields in lines) + shown == 80 * 3 * MAX_SUMMARIES
    assert lines[-1][0].endswith(f"lines of {2 * MAX_SUMMARIES + 1} others were left out")
    assert limit.summaries() == []


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "MAX_BUCKETS", 100)
    limit = NoticeLimit()
    for number in range(1000):
        admitted(limit, 60, client=f"client {number}")
    assert len(limit._buckets) == 100
    assert len(limit._left_out) <= 101
    assert sum(fields["left_out"] for _, fields in limit.summaries()) == 10 * 1000
