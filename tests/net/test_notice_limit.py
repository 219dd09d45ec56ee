"""Event lines are bounded for each client, each host and all together, and none is left out silently."""

from __future__ import annotations

from typing import Any

import pytest

from godwit.net import notice_limit
from godwit.net.notice_limit import ALL_LINES, CLIENT_LINES, HOST_LINES, MAX_SUMMARIES, SUMMARY_US, NoticeLimit

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
    monkeypatch.setattr(notice_limit, "MAX_BUCKETS", 100)
    limit = NoticeLimit()
    for number in range(1000):
        admitted(limit, 60, client=f"client {number}")
    assert len(limit._buckets) == 100
    assert len(limit._left_out) <= 101
    assert sum(fields["left_out"] for _, fields in limit.summaries()) == 10 * 1000
