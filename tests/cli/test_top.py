"""`godwit top`: rates, sort keys, hostile names, and one screen of a real broker."""

from __future__ import annotations

import asyncio

import pytest
from rich.console import Console
from tests.cli.real import error_of, godwit
from tests.cli.terminal import terminal

from godwit.cli.top import TopKeys, TopReading, TopRow, add_rates, render, sorted_rows

HOSTILE = "[bold]x[/bold]\x1b[31m\u202e<script>"


def reading(at: float, factor: int) -> TopReading:
    clients = [
        TopRow("a", "192.0.2.7:1", 10 * factor, 0, 5),
        TopRow("b", "away", 0, 30 * factor, 0),
        TopRow(HOSTILE, HOSTILE, 1, 1, 9),
    ]
    return TopReading(at, clients, [TopRow("t", "1 subscriber", 10 * factor, 10 * factor)])


def shown(found: TopReading, *, key: str = "in", is_topics: bool = False, height: int = 50) -> str:
    console = Console(width=100, record=True, color_system=None)
    with console.capture() as captured:
        console.print(render(found, key=key, is_topics=is_topics, height=height))
    return captured.get()


def test_rates_are_those_between_two_readings() -> None:
    later = reading(12.0, 3)
    add_rates(later, reading(10.0, 1))
    assert [row.in_rate for row in later.clients] == [10.0, 0.0, 0.0]
    assert [row.out_rate for row in later.clients] == [0.0, 30.0, 0.0]
    restarted = reading(14.0, 1)
    add_rates(restarted, later)
    assert restarted.clients[0].in_rate == 0.0


@pytest.mark.parametrize(("key", "first"), [("in", "a"), ("out", "b"), ("lag", HOSTILE), ("name", HOSTILE)])
def test_sort_keys(key: str, first: str) -> None:
    later = reading(12.0, 3)
    add_rates(later, reading(10.0, 1))
    assert sorted_rows(later.clients, key)[0].name == first


def test_hostile_names_are_shown_and_do_nothing() -> None:
    text = shown(reading(1.0, 1))
    assert "[bold]x[/bold]" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_one_of_a_kind_is_not_a_plural() -> None:
    one = TopReading(1.0, [TopRow("a", "192.0.2.7:1", 0, 0)], [TopRow("t", "1 subscriber", 0, 0)], "1 worker")
    assert "1 client   1 topic   0 messages/s   1 worker" in shown(one)


def test_rows_beyond_the_screen_are_counted() -> None:
    text = shown(reading(1.0, 1), height=6)
    assert "1 more" in text


def test_keys() -> None:
    async def main() -> None:
        keys = TopKeys("in", is_topics=False)
        keys.press("x")
        assert not keys.changed.is_set()
        keys.press("l")
        assert keys.sort == "lag"
        keys.press("t")
        assert keys.is_topics
        keys.press("q")
        assert keys.is_over

    asyncio.run(main())


def test_one_screen(address: str) -> None:
    godwit("pub", "top/x", "1", "--broker", address)
    result = godwit("top", "--topics", "--once", "--interval", "0.1", "--sort", "name", "--broker", address)
    assert result.returncode == 0, result.stderr
    assert b"top/x" in result.stdout
    assert "--sort size is unknown" in error_of("top", "--sort", "size", "--broker", address)


def test_keys_in_a_terminal(address: str) -> None:
    godwit("pub", "top/y", "1", "--broker", address)
    with terminal("top", "--interval", "0.2", "--broker", address, COLUMNS="100", LINES="30") as screen:
        screen.until("q quit")
        screen.insist("t", "top/y")
        screen.until("q quit")
        screen.type("q")
        assert screen.wait() == 0
