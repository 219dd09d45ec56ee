"""Who may do what: what no rule allows is forbidden, and no rule is read too generously."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.filter_strategies import filters, filters_with_topics

from godwit.broker.access import ACTIONS, Access, Action, Rule, is_like, secret_in
from godwit.errors import ConfigurationError
from godwit.limits import MAX_CLIENT_NAME_BYTES, MAX_SECRET_BYTES
from godwit.wire.filters import matches

SECRET = b"0123456789abcdef"
NAMES = ["sensor-1", "sensor-2", "operator", "a/b", "+", "$sys", "x*"]


def rule(clients: str, allow: str, *topics: str) -> Rule:
    actions: Any = allow.split()
    return Rule(clients=tuple(clients.split()), allow=frozenset(actions), topics=topics)


def access(*rules: Rule, **changes: Any) -> Access:
    return Access(secrets=dict.fromkeys(NAMES, SECRET), rules=rules, **changes)


@pytest.mark.parametrize("action", ACTIONS)
def test_an_open_broker_allows_everything(action: Action) -> None:
    found = Access.open()
    assert found.is_open
    assert found.allows_anonymous
    assert found.secret_of("anybody") is None
    assert found.may(None, False, action, "$sys/#")
    assert found.may("anybody", False, action, "a")


@pytest.mark.parametrize("action", ACTIONS)
def test_without_rules_nothing_is_allowed(action: Action) -> None:
    found = access()
    assert not found.may("sensor-1", True, action, "a")
    assert not found.may(None, False, action, "a")
    assert not Access().may(None, False, action, "a")
    assert Access().allows_anonymous


def test_secrets_are_known_and_not_shown() -> None:
    found = access()
    assert found.secret_of("sensor-1") == SECRET
    assert found.secret_of("sensor-9") is None
    assert "0123456789abcdef" not in repr(found)


def test_a_rule_is_for_its_clients_actions_and_topics() -> None:
    found = access(rule("sensor-*", "publish create", "home/#", "garage/door"))
    assert found.may("sensor-1", True, "publish", "home/room1/temperature")
    assert found.may("sensor-2", True, "create", "home")
    assert found.may("sensor-1", True, "publish", "garage/door")
    assert not found.may("sensor-1", True, "subscribe", "home/room1")
    assert not found.may("sensor-1", True, "publish", "garage/window")
    assert not found.may("operator", True, "publish", "home/room1")
    assert not found.may("sensor-1", True, "kick")


def test_a_listed_name_that_is_not_proved_may_nothing() -> None:
    found = access(rule("*", "publish subscribe create kick", "#"))
    assert not any(found.may("sensor-1", False, action, "a") for action in ACTIONS)


@pytest.mark.parametrize("name", [None, "sensor-9", "", "*", "guest"])
@pytest.mark.parametrize("proved", [False, True])
def test_everybody_else_is_anonymous_whatever_the_name(name: str | None, proved: bool) -> None:
    found = access(
        rule("sensor-* guest ? ** ?*", "publish kick", "#"),
        rule("operator *", "subscribe", "public/#"),
        rule("*", "publish", "home/{client}"),
    )
    assert found.may(name, proved, "subscribe", "public/a")
    assert not found.may(name, proved, "publish", "public/a")
    assert not found.may(name, proved, "publish", f"home/{name}")
    assert not found.may(name, proved, "kick")


def test_to_kick_no_topic_is_needed() -> None:
    found = access(rule("operator", "kick"), rule("sensor-1", "kick", "home/#"))
    assert found.may("operator", True, "kick")
    assert found.may("operator", True, "kick", "any/filter/#")
    assert found.may("sensor-1", True, "kick", "elsewhere")


def test_a_subscription_must_be_covered_as_a_whole() -> None:
    found = access(rule("*", "subscribe", "home/+/temperature", "plant/#"))
    assert found.may(None, False, "subscribe", "home/+/temperature")
    assert found.may(None, False, "subscribe", "home/room1/temperature")
    assert found.may(None, False, "subscribe", "plant/*/speed")
    for filter in ("#", "home/#", "home/+/+", "home/*/temperature", "+/room1/temperature", "*"):
        assert not found.may(None, False, "subscribe", filter), filter


def test_the_brokers_own_topics_must_be_named() -> None:
    found = access(rule("sensor-1", "subscribe", "#"), rule("operator", "subscribe", "#", "$sys/#"))
    assert found.may("sensor-1", True, "subscribe", "#")
    assert not found.may("sensor-1", True, "subscribe", "$sys/clients")
    assert found.may("operator", True, "subscribe", "$sys/+")
    assert not found.may("operator", True, "subscribe", "$jobs/#")


def test_to_submit_and_to_work_are_rights_on_kinds() -> None:
    """A kind is matched as a topic is; one right gives no other."""
    found = access(rule("operator", "submit", "#"), rule("sensor-*", "work", "images/#", "own/{client}"))
    assert found.may("operator", True, "submit", "images/resize")
    assert not found.may("operator", True, "work", "images/resize")
    assert not found.may("operator", True, "publish", "images/resize")
    assert found.may("sensor-1", True, "work", "images/resize")
    assert found.may("sensor-1", True, "work", "own/sensor-1")
    assert not found.may("sensor-1", True, "work", "own/sensor-2")
    assert not found.may("sensor-1", True, "submit", "images/resize")
    assert not found.may("sensor-1", True, "work", "sounds/resize")
    assert not found.may(None, False, "work", "images/resize")


def test_the_clients_name_is_one_level() -> None:
    found = access(rule("*", "publish subscribe", "home/{client}/#", "{client}", "{client}/in"))
    assert found.may("sensor-1", True, "publish", "home/sensor-1/temperature")
    assert found.may("sensor-1", True, "subscribe", "home/sensor-1/+")
    assert found.may("sensor-1", True, "publish", "sensor-1")
    assert not found.may("sensor-1", True, "publish", "home/sensor-2/temperature")
    assert not found.may("sensor-1", True, "subscribe", "home/+/temperature")
    assert not found.may("sensor-1", True, "publish", "home/{client}/temperature")


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("a/b", "home/a/b/c"),
        ("+", "home/x/c"),
        ("+", "home/+/c"),
        ("x*", "home/x*"),
        ("$sys", "$sys"),
        ("$sys", "$sys/in"),
    ],
)
def test_a_name_that_would_change_the_filter_gets_nothing_by_it(name: str, topic: str) -> None:
    found = access(rule("*", "publish subscribe", "home/{client}/#", "{client}", "{client}/in"))
    assert not found.may(name, True, "publish", topic)
    assert not found.may(name, True, "subscribe", topic)


@given(st.sampled_from(NAMES), filters, filters_with_topics())
def test_whoever_may_subscribe_gets_only_what_the_rule_names(name: str, allowed: str, asked: tuple[str, str]) -> None:
    found = access(rule("*", "subscribe publish", allowed))
    filter, topic = asked
    if found.may(name, True, "subscribe", filter):
        assert matches(allowed, topic)
    assert found.may(name, True, "publish", topic) == matches(allowed, topic)


@pytest.mark.parametrize(
    ("glob", "name", "expected"),
    [
        ("*", "", True),
        ("sensor-*", "sensor-1", True),
        ("sensor-*", "Sensor-1", False),
        ("sensor-?", "sensor-12", False),
        ("a[12]", "a1", False),
        ("a[12]", "a[12]", True),
        ("a.b", "axb", False),
        ("x*", "x\ny", True),
    ],
)
def test_globs(glob: str, name: str, expected: bool) -> None:
    assert is_like(name, glob) is expected


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"clients": ()}, "a rule names no client"),
        ({"clients": ("a", "")}, "a rule names no client"),
        (
            {"allow": frozenset(("read",))},
            "a rule allows 'read': choose from publish, subscribe, create, submit, work, kick",
        ),
        ({"topics": ()}, "a rule allows publish on no topic: give filters"),
        ({"topics": ("a/#/b",)}, "in a rule: filter 'a/#/b' has '#' before its end"),
        ({"topics": ("a/x{client}",)}, "has {client} inside the level 'x{client}': it stands alone"),
    ],
)
def test_a_bad_rule_is_told_what_is_wrong(changes: dict[str, Any], complaint: str) -> None:
    fields: dict[str, Any] = {"clients": ("*",), "allow": frozenset(("publish",)), "topics": ("a",)}
    with pytest.raises(ConfigurationError) as raised:
        Rule(**fields | changes)
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("name", "secret", "complaint"),
    [
        ("", SECRET, "the client name '' is 0 bytes long"),
        ("x" * (MAX_CLIENT_NAME_BYTES + 1), SECRET, f"is {MAX_CLIENT_NAME_BYTES + 1} bytes long"),
        ("me", b"", "the secret of client 'me' is 0 bytes long"),
        ("me", b"hidden" * MAX_SECRET_BYTES, f"the secret of client 'me' is {6 * MAX_SECRET_BYTES} bytes long"),
    ],
)
def test_a_bad_name_or_secret_is_told_what_is_wrong(name: str, secret: bytes, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Access(secrets={name: secret})
    assert complaint in str(raised.value)
    assert "hidden" not in str(raised.value)


def test_later_changes_of_the_secrets_given_change_nothing() -> None:
    secrets = {"me": SECRET}
    found = Access(secrets=secrets)
    secrets.clear()
    assert found.secret_of("me") == SECRET


@pytest.mark.parametrize(("data", "secret"), [(b"abc\n", b"abc"), (b"abc\r\n", b"abc"), (b" a\nb ", b" a\nb ")])
def test_a_secret_in_a_file_ends_before_its_line_end(data: bytes, secret: bytes) -> None:
    assert secret_in(data) == secret
