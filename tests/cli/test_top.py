"""`godwit top`: rates, sort keys, hostile names, and one screen of a real broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.real import address_of, broker, error_of, godwit, running
from tests.cli.terminal import Terminal, terminal
from tests.ports import free_port

from godwit.cli.top import (
    SysFigures,
    TopKeys,
    TopReading,
    TopRow,
    add_rates,
    describe_state,
    find_problems,
    render,
    sorted_rows,
)

HOSTILE = "[bold]x[/bold]\x1b[31m\u202e<script>"


def reading(at: float, factor: int) -> TopReading:
    clients = [
        TopRow("a", "192.0.2.7:1", 10 * factor, 0, 5),
        TopRow("b", "away", 0, 30 * factor, 0),
        TopRow(HOSTILE, HOSTILE, 1, 1, 9),
    ]
    return TopReading(at, clients, [TopRow("t", "1 subscriber", 10 * factor, 10 * factor)])


def shown(
    found: TopReading,
    figures: SysFigures | None = None,
    *,
    key: str = "in",
    is_topics: bool = False,
    height: int = 50,
    banner: str = "",
) -> str:
    console = Console(width=100, record=True, color_system=None)
    with console.capture() as captured:
        console.print(
            render(found, figures or SysFigures(), key=key, is_topics=is_topics, height=height, banner=banner)
        )
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


def publication(figures: SysFigures, uptime_s: int, **more: object) -> None:
    """Add figures as one publication of a broker has them; `__` in a name is a slash."""
    for name, figure in {"uptime_s": uptime_s, **more}.items():
        figures.add(name.replace("__", "/"), str(figure).encode())


def test_rates_of_figures_are_those_between_two_publications() -> None:
    figures = SysFigures()
    publication(figures, 100, messages__out=50, log__retention="[]")
    assert figures.rate("messages/out") is None
    publication(figures, 110, messages__out=70)
    assert figures.rate("messages/out") == 2.0
    publication(figures, 120)  # only changed figures are published
    assert figures.rate("messages/out") == 0.0
    assert figures.get("messages/out") == 70
    publication(figures, 5, messages__out=3)  # the broker was restarted
    assert figures.rate("messages/out") is None
    assert figures.get("log/retention") is None


def test_the_state_of_the_broker() -> None:
    figures = SysFigures()
    assert describe_state(reading(1.0, 1), figures) == ["2 clients   1 topic   0 messages/s in"]
    names = ("messages__out", "bytes__in", "bytes__out", "network__packets__sent", "log__next_offset")
    publication(figures, 10, **dict.fromkeys(names, 0), network__packets__lost=0, network__fragments__resent=0)
    publication(
        figures, 20, **dict.fromkeys(names, 20_000), network__packets__lost=100, network__fragments__resent=5,
        network__round_trip_us__median=250, network__round_trip_us__p95=1500, log__commit_us__p99=2500,
        log__size_bytes=3_000_000,
    )  # fmt: skip
    first, second = describe_state(reading(1.0, 1), figures)
    assert "2,000 messages/s out" in first
    assert "/s in   " in first
    assert second.startswith("round trip 0.2 ms, p95 1.5 ms   loss 0.50 %   resent 0.5/s   commit p99 2.5 ms   log ")
    assert second.endswith("log +2,000 messages/s")


def test_problems_come_first() -> None:
    figures = SysFigures()
    drops = {"network__dropped__packet__checksum": 0, "network__dropped__packet__repeated_fragment": 0}
    publication(figures, 10, messages__dropped=0, logins__refused=0, **drops, cluster__node__two__state="standby")
    publication(figures, 15, network__dropped__packet__repeated_fragment=70)  # belongs to a network with losses
    assert find_problems(figures) == []
    publication(
        figures, 25, messages__dropped=10, network__dropped__packet__checksum=20, logins__refused=10, log__writable=0,
        cluster__node__two__state="away", cluster__node__one__state="active",
        cluster__node__two__problem="its disk is full", cluster__node__one__problem="its server does not answer",
        log__disk__free_bytes=5, log__disk__size_bytes=100, subscriptions__behind__connected=2,
        subscriptions__lag__connected=1234,
    )  # fmt: skip
    problems = find_problems(figures)
    assert problems[0] == "the log is not writable: messages are refused"
    assert "2 connected subscriptions behind, up to 1,234 messages" in problems
    assert "logins are refused: 1.0/s" in problems
    assert "packets are dropped: 2.0/s" in problems
    assert "nodes of the cluster are away: two" in problems
    assert "the node one is not ready: its server does not answer" in problems
    assert len(problems) == 8
    assert "1 of 2 nodes" in describe_state(reading(1.0, 1), figures)[0]
    text = shown(reading(1.0, 1), figures, banner="away since 12:00")
    assert text.index("away since") < text.index(problems[0]) < text.index("2 clients") < text.index("192.0.2.7")


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


def test_keys_in_a_terminal() -> None:
    with broker() as address:  # of its own: the screen has no room for the topics of all tests
        godwit("pub", "top/y", "1", "--broker", address)
        with terminal("top", "--interval", "0.2", "--broker", address, COLUMNS="100", LINES="30") as screen:
            screen.until("q quit")
            screen.insist("t", "top/y")
            screen.until("q quit")
            screen.type("q")
            assert screen.wait() == 0


def test_it_survives_the_broker(tmp_path: Path) -> None:
    """A banner appears while the broker is away, keys work, and the figures return with it."""
    data = str(tmp_path / "data")
    address = f"127.0.0.1:{free_port()}"
    arguments = ("broker", "--listen", address, "--data", data, "--archive", "none")
    with running(*arguments) as command:
        assert address_of(command) == address
        godwit("pub", "top/z", "1", "--broker", address)
        screen = Terminal("top", "--topics", "--interval", "0.2", "--broker", address, COLUMNS="100", LINES="30")
        try:
            screen.until("top/z")
        except BaseException:
            screen.close()
            raise
    try:
        screen.until("the broker has not answered since")
        screen.insist("c", "address")
        with running(*arguments) as command:
            assert address_of(command) == address
            screen.insist("t", "subscribers")
            godwit("pub", "top/later", "1", "--broker", address)
            screen.until("top/later")
            screen.type("q")
            assert screen.wait() == 0
    finally:
        screen.close()
