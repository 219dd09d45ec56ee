"""What an application asks of a client, where it is checked: the rest is tested with the parts that do it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.client.office import at_work

from godwit.client.client import Client
from godwit.errors import UsageError


def test_a_closed_client_takes_no_more_work() -> None:
    network, _, user = at_work()
    user.client.close(network.now)
    calls: list[Callable[[Client], object]] = [
        lambda client: client.submit("resize", b""),
        lambda client: client.watch(1),
        lambda client: client.volunteer(["resize"], 1),
        lambda client: client.withdraw(),
        lambda client: client.publisher("t"),
        lambda client: client.subscribe(["t"]),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="the client is closed"):
            call(user.client)


def test_who_drives_the_client_is_told_when_to_ask_for_trains() -> None:
    network, broker, user = at_work()
    told: list[str] = []
    user.client.on_sending(begun=lambda: told.append("begun"), full=lambda: told.append("full"))
    user.client.submit("resize", b"")
    user.client.submit("resize", b"")
    assert told == ["begun"]
    user.client.submit("resize", bytes(100_000))
    assert told == ["begun", "full"]
    network.run(0.1)
    told.clear()
    user.client.publisher("t").send(b"", network.now_us)
    assert told == ["begun"]
    network.run(0.1)
    assert sorted(broker.groups) == [1, 2]
