"""What marks answer, and that the answer is safe whatever the rules are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.filter_strategies import filters, filters_with_topics

from godwit.wire.filters import matches
from godwit.wire.retention_floors import BROKER_WIDE, lost_below, rule_covers


@pytest.mark.parametrize(
    ("marks", "asked", "expected"),
    [
        ({}, ["#"], 0),
        ({BROKER_WIDE: 7}, ["a/#"], 7),
        ({BROKER_WIDE: 7}, ["$jobs/#"], 7),
        ({"a/#": 7}, ["b/#"], 0),
        ({"a/#": 7}, ["b/#", "a/x"], 7),
        ({"a/#": 7}, ["+/x"], 7),
        ({BROKER_WIDE: 9, "alarms/#": 2}, ["alarms/#"], 2),  # a narrower rule shields its topics
        ({BROKER_WIDE: 9, "alarms/#": 2}, ["alarms/fire"], 2),
        ({BROKER_WIDE: 9, "alarms/#": 2}, ["#"], 9),
        ({BROKER_WIDE: 2, "alarms/#": 9}, ["#"], 9),
        ({"a/#": 9, "a/b/#": 4, "a/b/c": 1}, ["a/b/c"], 1),
        ({"a/#": 9, "a/b/#": 4, "a/b/c": 1}, ["a/b/+"], 4),
        ({"a/+": 9, "+/b": 4}, ["a/b"], 9),  # neither is the narrower one
        ({BROKER_WIDE: 9}, [], 0),
    ],
)
def test_the_mark_of_filters(marks: dict[str, int], asked: list[str], expected: int) -> None:
    assert lost_below(marks, asked) == expected


@given(st.lists(filters, unique=True, max_size=5), st.lists(filters_with_topics(), min_size=1, max_size=8))
def test_no_deletion_is_hidden(rules: list[str], pairs: list[tuple[str, str]]) -> None:
    """Topics are deleted one after the other, each by its rule; a filter that matches one of them is told of it."""
    keys = [*rules, BROKER_WIDE]
    marks = dict.fromkeys(keys, 0)
    for floor, (_, topic) in enumerate(pairs, start=1):
        place = next(place for place, key in enumerate(keys) if key == BROKER_WIDE or matches(key, topic))
        for key in keys[place:]:
            if rule_covers(keys[place], key):
                marks[key] = floor
        for filter, name in pairs[:floor]:
            last = max(at for at, (_, other) in enumerate(pairs[:floor], start=1) if other == name)
            assert lost_below(marks, [filter]) >= last
            assert lost_below(marks, [name]) >= last
