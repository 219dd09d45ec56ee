"""Settings are checked when they are made."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from godwit.broker.access import Access
from godwit.broker.settings import BOUNDS, Settings
from godwit.errors import ConfigurationError


def test_the_defaults_are_an_open_broker() -> None:
    settings = Settings()
    assert settings.access == Access.open()
    assert settings.policy_of("any/topic") == "open"
    assert settings.messages_per_s is None


def test_the_first_rule_that_matches_a_topic_decides() -> None:
    settings = Settings(
        default_policy="publishers",
        policies=(("plant/line1/#", "open"), ("plant/#", "explicit"), ("#", "publishers")),
    )
    assert settings.policy_of("plant/line1/speed") == "open"
    assert settings.policy_of("plant") == "explicit"
    assert settings.policy_of("home") == "publishers"
    assert settings.policy_of("$sys/clients") == "publishers"


def test_every_number_has_bounds() -> None:
    numbers = {field.name for field in fields(Settings)} - {"topics", "policies", "default_policy", "logged", "access"}
    assert numbers == set(BOUNDS)


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_numbers_within_their_bounds(name: str) -> None:
    low, high = BOUNDS[name]
    for value in (low, high):
        changes: dict[str, Any] = {name: value}
        assert getattr(Settings(**changes), name) == value
    for value in (low - 1, high + 1, float("nan")):
        changes = {name: value}
        with pytest.raises(ConfigurationError, match=rf"^{name} is .*: it must lie between "):
            Settings(**changes)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"default_policy": "closed"}, "the policy 'closed' does not exist: choose one of open, publishers, explicit"),
        ({"policies": (("a", "shut"),)}, "the policy 'shut' does not exist"),
        ({"policies": (("a/#/b", "open"),)}, "in the rules for topics: filter 'a/#/b'"),
        ({"topics": ("a/+",)}, "in the topics to create: topic 'a/+' contains '+'"),
        ({"topics": ("$sys/mine",)}, "topic '$sys/mine' cannot be created"),
        ({"topics": ("a", "b", "c"), "max_topics": 2}, "3 topics are to be created and max_topics is 2"),
    ],
)
def test_what_cannot_be_is_told(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Settings(**changes)
    assert complaint in str(raised.value)
