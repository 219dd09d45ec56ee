"""`godwit topics` as a user sees it."""

from __future__ import annotations

import json

import pytest
from tests.cli.real import error_of, godwit, lines, running, subscribed


@pytest.fixture(scope="module")
def known(address: str) -> str:
    """An address whose broker has two topics."""
    godwit("pub", "topics/kitchen", "21.5", "--retain", "--broker", address)
    godwit("topics", "create", "topics/living room", "--broker", address)
    return address


def test_create(address: str) -> None:
    result = godwit("topics", "create", "topics/created", "--broker", address)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"created topics/created\n", b"")
    assert "topics/created" in error_of("topics", "create", "topics/created", "--broker", address)


def test_the_help_describes_the_figures() -> None:
    text = " ".join(godwit("topics", "list", "--help").stdout.decode().split())
    assert "with their figures since each was created" in text


def test_list(known: str) -> None:
    rows = lines(godwit("topics", "list", "topics/+", "--broker", known).stdout)
    assert rows[0].split() == [
        "topic", "policy", "subscribers", "publishers", "messages", "size", "retained", "last", "message", "(UTC)",
    ]  # fmt: skip
    kitchen = next(row for row in rows if row.startswith("topics/kitchen"))
    assert kitchen.split()[1:7] == ["open", "0", "0", "1", "4", "B"]
    assert "yes" in kitchen
    assert any(row.startswith("topics/living room  open") for row in rows)


def test_without_a_command_all_are_listed(known: str) -> None:
    for arguments in (["topics", "--broker", known], ["topics", "list", "--broker", known]):
        assert any(row.startswith("topics/kitchen") for row in lines(godwit(*arguments).stdout))


def test_options_before_the_command(known: str, nowhere: str) -> None:
    before = godwit("topics", "--broker", known, "show", "topics/kitchen", "--json", GODWIT_BROKER=nowhere)
    assert json.loads(before.stdout)["name"] == "topics/kitchen"
    behind = godwit("topics", "--broker", nowhere, "show", "topics/kitchen", "--json", "--broker", known)
    assert behind.stdout == before.stdout


def test_nothing_matches(known: str) -> None:
    result = godwit("topics", "list", "topics/nothing/#", "--broker", known)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"no topic matches topics/nothing/#\n")


def test_json(known: str) -> None:
    found = {
        topic["name"]: topic
        for topic in map(json.loads, lines(godwit("topics", "list", "topics/#", "--json", "--broker", known).stdout))
    }
    kitchen = found["topics/kitchen"]
    assert (kitchen["messages"], kitchen["payload_bytes"], kitchen["retained"]) == (1, 4, True)
    assert kitchen["last"].endswith("Z")
    assert found["topics/living room"]["last"] is None


def test_show_has_the_number_of_subscribers(known: str) -> None:
    """R1: a publisher can see how many subscribers its topic has now."""
    with running("sub", "topics/+", "--broker", known):
        subscribed(known, "topics/+")
        rows = lines(godwit("topics", "show", "topics/kitchen", "--broker", known).stdout)
    assert rows[:3] == ["topic         topics/kitchen", "policy        open", "subscribers   1"]
    assert "retained      a message" in rows
    rows = lines(godwit("topics", "show", "topics/living room", "--broker", known).stdout)
    assert "last message  none yet" in rows


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["show", "topics/nowhere"], "topic 'topics/nowhere' does not exist; see godwit topics list"),
        (["show", "topics/+"], "list all that match: godwit topics list 'topics/+'"),
        (["create", "topics/#"], "give the new topic a name without"),
        (["create", ""], "is empty"),
        (["create", "$sys/mine"], "$"),
        (["list", "a/#/b"], "'#' before its end"),
    ],
)
def test_bad_input_is_one_line(address: str, arguments: list[str], text: str) -> None:
    assert text in error_of("topics", *arguments, "--broker", address)


def test_no_broker(nowhere: str) -> None:
    assert "no broker answered" in error_of("topics", "--broker", nowhere, "--timeout", "0.3")


@pytest.mark.parametrize("command", ["list", "show", "create"])
def test_help_has_an_example(command: str) -> None:
    assert f"Example: godwit topics {command}" in godwit("topics", command, "--help").stdout.decode()


# -- delete -----------------------------------------------------------------------------------------------------------


def test_delete(address: str) -> None:
    godwit("pub", "deleted/topic", "x", "--retain", "-q", "--broker", address)
    result = godwit("topics", "delete", "deleted/topic", "--broker", address)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"deleted deleted/topic\n", b"")
    assert godwit("topics", "list", "deleted/#", "--broker", address).stdout == b""
    assert "does not exist; see godwit topics list" in error_of(
        "topics", "delete", "deleted/topic", "--broker", address
    )
    assert "contains a wildcard" in error_of("topics", "delete", "deleted/#", "--broker", address)


def test_a_topic_in_use_is_not_deleted(address: str) -> None:
    with running("sub", "deleted/used", "--broker", address):
        subscribed(address, "deleted/used")
        assert "is in use: end its publishers" in error_of("topics", "delete", "deleted/used", "--broker", address)
