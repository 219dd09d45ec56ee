"""`godwit groups` and `godwit sub --group` as a user sees them."""

from __future__ import annotations

import json

from tests.cli.real import error_of, godwit, lines


def received(address: str, group: str, filter: str, *options: str) -> list[str]:
    result = godwit("sub", filter, "--group", group, "--payload-only", *options, "--broker", address)
    assert result.returncode == 0, result.stderr
    return list(lines(result.stdout))


def test_a_group_continues_where_the_last_member_stopped(address: str) -> None:
    for number in range(6):
        godwit("pub", "groups/a", f"{number}", "--broker", address)
    assert received(address, "one", "groups/#", "--from", "earliest", "--count", "2") == ["0", "1"]
    assert received(address, "one", "groups/#", "--count", "1") == ["2"]
    (row,) = [row for row in lines(godwit("groups", "--broker", address).stdout) if row.startswith("one")]
    assert row.split()[:3] == ["one", "groups/#", "0"]
    assert received(address, "one", "groups/#", "--no-follow") == ["3", "4", "5"]
    found = [json.loads(line) for line in lines(godwit("groups", "list", "--json", "--broker", address).stdout)]
    (info,) = [one for one in found if one["name"] == "one"]
    assert (info["filters"], info["member_count"], info["lag"], info["in_flight"]) == (["groups/#"], 0, 0, 0)
    assert info["expires"]


def test_delete(address: str) -> None:
    received(address, "two", "groups/none", "--wait", "0.1")
    result = godwit("groups", "delete", "two", "groups/none", "--broker", address)
    assert (result.returncode, result.stdout) == (0, b"deleted two\n")
    assert "the group 'two' does not exist" in error_of("groups", "delete", "two", "--broker", address)


def test_options_that_exclude_each_other(nowhere: str) -> None:
    text = error_of("sub", "a", "--group", "g", "--cursor", "c", "--broker", nowhere)
    assert "a group has a position of its own" in text
