"""`godwit clients` as a user meets it."""

from __future__ import annotations

import json
import re

from tests.cli.real import error_of, godwit, lines, running, subscribed

from godwit.cli.clients import subscriptions_text
from godwit.wire.control import ClientInfo


def test_who_is_there(address: str) -> None:
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
