"""`godwit ping`: its statistics, and how a user meets it."""

from __future__ import annotations

import pytest
from tests.cli.real import error_of, godwit, lines, needs_posix, running

from godwit.cli.ping import statistics


@pytest.mark.parametrize(
    ("trips_ms", "line"),
    [
        ([1.0], "1 round trip: min 1.000 ms, avg 1.000 ms, p99 1.000 ms, max 1.000 ms"),
        ([3.0, 1.0, 2.0], "3 round trips: min 1.000 ms, avg 2.000 ms, p99 3.000 ms, max 3.000 ms"),
        (
            [float(number) for number in range(1000, 0, -1)],
            "1,000 round trips: min 1.000 ms, avg 500.500 ms, p99 990.000 ms, max 1000.000 ms",
        ),
    ],
)
def test_statistics(trips_ms: list[float], line: str) -> None:
    assert statistics([trip / 1000 for trip in trips_ms]) == line


def test_round_trips(address: str) -> None:
    result = godwit("ping", "--count", "5", "--interval", "0", "--broker", address)
    rows = lines(result.stdout)
    assert result.returncode == 0
    assert [row.partition(":")[0] for row in rows[:5]] == ["1", "2", "3", "4", "5"]
    assert all(row.endswith(f" ms from {address}") for row in rows[:5])
    assert rows[5].startswith("5 round trips: min ")
    quiet = godwit("ping", "-n", "2", "-i", "0", "-q", "--broker", address)
    assert [row.partition(":")[0] for row in lines(quiet.stdout)] == ["2 round trips"]


@needs_posix
def test_ctrl_c_shows_the_statistics(address: str) -> None:
    with running("ping", "--count", "0", "--interval", "0.01", "--broker", address) as ping:
        ping.out.until("3: ")
        assert ping.interrupt() == 130
        assert "round trips: min" in ping.out.until("min")
        assert ping.err.rest() == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--count", "-1"], "--count -1 cannot be"),
        (["--interval", "-1"], "--interval -1 cannot be"),
        (["--interval", "nan"], "--interval nan cannot be"),
        (["--broker", "127.0.0.1:9", "--timeout", "0.3"], "no broker answered"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], text: str) -> None:
    assert text in error_of("ping", *arguments)
