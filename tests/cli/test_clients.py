"""`godwit clients` as a user sees it."""

from __future__ import annotations

import json
import re

import pytest
from tests.cli.real import error_of, godwit, lines, needs_posix, running, subscribed

from godwit.cli.clients import kicked_text, statistics, subscriptions_text
from godwit.wire.control import ClientInfo

# -- clients ----------------------------------------------------------------------------------------------------------


def test_the_connected_clients(address: str) -> None:
    with running("sub", "clients/#", "other", "--name", "the display", "--broker", address):
        subscribed(address, "clients/#")
        rows = lines(godwit("clients", "--name", "me", "--broker", address).stdout)
        found = lines(godwit("clients", "--json", "--broker", address).stdout)
    assert rows[0].split() == [
        "client", "address", "since", "(UTC)", "messages", "in", "messages", "out", "subscriptions",
    ]  # fmt: skip
    assert any(row.startswith("me ") for row in rows)
    row = next(row for row in rows if re.match(r"the display +127\.0\.0\.1:", row))
    assert row.endswith("clients/# + other")
    display = next(client for client in map(json.loads, found) if client["name"] == "the display")
    assert display["subscriptions"] == [["clients/#", "other"]]
    assert display["since"].endswith("Z")
    broker = json.loads(found[-1])
    assert broker["name"] == "$broker"
    assert broker["dropped"]["kernel"] >= 0


def test_a_session_that_is_away(address: str) -> None:
    arguments = ("sub", "clients/away", "--name", "traveller", "--broker", address)
    with running(*arguments) as sub:
        subscribed(address, "clients/away")
        sub.interrupt()
    rows = lines(godwit("clients", "--broker", address).stdout)
    assert next(row for row in rows if row.startswith("traveller")).split()[1] == "away"


def test_subscriptions_text() -> None:
    assert subscriptions_text(ClientInfo(name="x", subscriptions=[["a", "b"], ["c"]])) == "a + b; c"
    assert subscriptions_text(ClientInfo(name="x")) == ""


def test_no_broker(nowhere: str) -> None:
    assert "no broker answered" in error_of("clients", "--broker", nowhere, "--timeout", "0.3")


# -- kick -------------------------------------------------------------------------------------------------------------


def test_a_subscription_then_the_client(address: str) -> None:
    with running("shell", "--name", "kick-me", "--broker", address) as victim:
        victim.write("sub kick/a\nsub kick/b\n")
        subscribed(address, "kick/b")
        result = godwit("kick", "kick-me", "kick/a", "--broker", address)
        assert (result.returncode, result.stdout) == (0, b"removed the subscription of kick-me to kick/a\n")
        assert victim.out.until("removed").startswith("You were removed from kick/a")
        error = error_of("kick", "kick-me", "kick/#", "--broker", address)
        assert "no subscription to exactly kick/#; godwit clients lists" in error
        result = godwit("kick", "kick-me", "--reason", "closing time", "--broker", address)
        assert (result.returncode, result.stdout) == (0, b"removed kick-me\n")
        assert "closing time" in victim.err.line()
        assert victim.wait() == 1


def test_a_client_that_keeps_its_session_returns_and_misses_nothing(address: str) -> None:
    with running("sub", "kick/keep", "--name", "keeper", "--payload-only", "--broker", address) as keeper:
        subscribed(address, "kick/keep")
        result = godwit("kick", "keeper", "--keep-session", "--reason", "a pause", "--broker", address)
        assert (result.returncode, result.stdout) == (0, b"disconnected keeper, its session is kept\n")
        assert godwit("pub", "kick/keep", "after", "--broker", address).returncode == 0
        assert keeper.out.line().strip() == "after"
        result = godwit("kick", "keeper", "--drop-session", "--broker", address)
        assert (result.returncode, result.stdout) == (0, b"removed keeper\n")
        assert keeper.wait() == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([""], "the name of the client is empty"),
        (["anna", "a/b", "--keep-session"], "--keep-session is for a whole client"),
        (["unknown"], "the client 'unknown' does not exist; godwit clients lists the names"),
        (["unknown", "a#"], "a wildcard"),
    ],
)
def test_bad_input_of_kick_is_one_line(address: str, arguments: list[str], text: str) -> None:
    assert text in error_of("kick", *arguments, "--broker", address)


def test_text() -> None:
    assert kicked_text("a\x1b", []) == "removed a\\x1b"
    assert kicked_text("a", ["b", "c"]) == "removed the subscription of a to b + c"


# -- ping -------------------------------------------------------------------------------------------------------------


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
        (["--count", "-1"], "--count -1 is out of range"),
        (["--interval", "-1"], "--interval -1 is out of range"),
        (["--interval", "nan"], "--interval nan is out of range"),
        (["--broker", "127.0.0.1:9", "--timeout", "0.3"], "no broker answered"),
    ],
)
def test_bad_input_of_ping_is_one_line(arguments: list[str], text: str) -> None:
    assert text in error_of("ping", *arguments)


# -- cursors and workers ----------------------------------------------------------------------------------------------


def test_cursors_show_position_and_lag(address: str) -> None:
    for number in range(3):
        godwit("pub", "cursors/a", str(number), "-q", "--broker", address)
    arguments = ("sub", "cursors/a", "--cursor", "bills", "--name", "cursor-test", "--from", "earliest", "-n", "1")
    assert godwit(*arguments, "--broker", address).returncode == 0
    options = ("--client", "cursor-test", "--broker", address)
    (found,) = map(json.loads, lines(godwit("cursors", "--json", *options).stdout))
    assert (found["client"], found["filters"], found["cursor"]) == ("cursor-test", ["cursors/a"], "bills")
    assert found["lag"] >= 2
    rows = lines(godwit("cursors", *options).stdout)
    assert rows[0].split() == ["client", "cursor", "subscription", "state", "position", "lag"]
    assert rows[1].split()[:4] == ["cursor-test", "bills", "cursors/a", "away"]
    assert rows[1].split()[-1] == f"{found['lag']:,}"
    assert "the client 'no-one' does not exist" in error_of("cursors", "--client", "no-one", "--broker", address)


def test_a_client_without_subscriptions(address: str) -> None:
    result = godwit("cursors", "--client", "lister", "--name", "lister", "--broker", address)
    assert (result.returncode, result.stderr) == (0, b"no subscriptions\n")


def test_workers_are_listed(address: str) -> None:
    arguments = ("worker", "list-anna", "--kind", "list/a", "--kind", "list/b", "--capacity", "4", "--seconds", "600")
    with running(*arguments, "--broker", address) as worker:
        worker.err.until("volunteers for")
        godwit("job", "submit", "list/a", "-q", "--broker", address)
        rows = lines(godwit("workers", "--kind", "list/b", "--broker", address).stdout)
        (found,) = map(json.loads, lines(godwit("workers", "--kind", "list/a", "--json", "--broker", address).stdout))
    assert rows[0].split() == ["worker", "state", "tasks", "capacity", "load", "last", "report", "(UTC)", "kinds"]
    assert rows[1].split()[:5] == ["list-anna", "ready", "1", "4", "25%"]
    assert rows[1].endswith("list/a, list/b")
    assert (found["name"], found["tasks"], found["load"], found["kinds"]) == (
        "list-anna", 1, 0.25, ["list/a", "list/b"]
    )  # fmt: skip
    result = godwit("workers", "--kind", "list/none", "--broker", address)
    assert (result.returncode, result.stderr) == (0, b"no worker volunteers for list/none\n")
