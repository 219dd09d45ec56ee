"""What filters mean: what matches, what covers, what overlaps."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.filter_strategies import filters, filters_with_topics, topics

from godwit.limits import MAX_TOPIC_LEVELS
from godwit.wire.filters import covers, matches, overlaps, split

# R4: a filter, what it gets, what it does not.
R4 = [
    (
        "home/bedroom/*",
        ["home/bedroom/fan", "home/bedroom/window/blind"],
        ["home/bedroom", "home/floor1/bedroom"],
    ),
    (
        "*/temperature",
        ["home/room1/temperature", "garage/temperature"],
        ["home/temperature/sensor", "temperature/sensor", "temperature"],
    ),
    (
        "home/*/temperature",
        ["home/anyroom/temperature", "home/floor1/room1/temperature"],
        ["home/room/temperature/sensor", "houses/home/room/temperature", "home/temperature"],
    ),
]
# MQTT 5.0, section 4.7, examples and rules.
MQTT = [
    (
        "sport/tennis/player1/#",
        ["sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/score/wimbledon"],
        ["sport/tennis", "sport/tennis/player10"],
    ),
    ("sport/#", ["sport", "sport/tennis"], ["sports", "a/sport"]),
    ("#", ["a", "a/b", "/", "/a"], ["$SYS", "$SYS/monitor/Clients"]),
    ("sport/tennis/+", ["sport/tennis/player1", "sport/tennis/player2"], ["sport/tennis/player1/ranking"]),
    ("sport/+", ["sport/", "sport/x"], ["sport"]),
    ("+", ["a"], ["a/b", "/a", "$SYS"]),
    ("+/tennis/#", ["a/tennis", "a/tennis/b", "/tennis"], ["tennis", "$a/tennis"]),
    ("sport/+/player1", ["sport/tennis/player1", "sport//player1"], ["sport/player1", "sport/a/b/player1"]),
    ("+/+", ["/finance", "a/b"], ["finance", "a/b/c"]),
    ("/+", ["/finance"], ["finance", "//"]),
    ("+/monitor/Clients", ["x/monitor/Clients"], ["$SYS/monitor/Clients"]),
    ("$SYS/#", ["$SYS", "$SYS/a"], ["SYS", "$sys"]),
    ("$SYS/monitor/+", ["$SYS/monitor/Clients"], ["$SYS/monitor"]),
    ("ACCOUNTS", ["ACCOUNTS"], ["Accounts", "ACCOUNTS/", "/ACCOUNTS"]),
    ("Accounts payable", ["Accounts payable"], ["Accountspayable"]),
]
OURS = [
    ("*", ["a", "a/b", "/"], ["$sys", "$sys/a"]),
    ("*/*", ["a/b", "a/b/c"], ["a", "$a/b"]),
    ("*/+", ["a/b", "a/b/c"], ["a"]),
    ("a/*/#", ["a/b", "a/b/c"], ["a"]),
    ("*/a/*", ["x/a/x", "a/a/a", "x/y/a/z/a/b"], ["a/x", "x/a", "a/a"]),
    ("*/a/*/a", ["x/a/x/a", "x/a/a/a", "a/a/a/a"], ["a/a/a", "x/a/a"]),
    ("$sys/*", ["$sys/a", "$sys/a/b"], ["$sys", "x/a"]),
    ("+/#", ["a", "a/b"], ["$sys", "$sys/a"]),
]
VECTORS = [
    (filter, topic, expected)
    for table in (R4, MQTT, OURS)
    for filter, hits, misses in table
    for topics_, expected in ((hits, True), (misses, False))
    for topic in topics_
]


def test_levels() -> None:
    assert split("/a//b") == ["", "a", "", "b"]


@pytest.mark.parametrize(("filter", "topic", "expected"), VECTORS)
def test_matching(filter: str, topic: str, expected: bool) -> None:
    assert matches(filter, topic) is expected


def by_definition(filter: list[str], topic: list[str]) -> bool:
    """The rules word for word, one level at a time."""
    if not filter:
        return not topic
    if filter == ["#"]:
        return True
    if not topic:
        return False
    if filter[0] == "*":
        return by_definition(filter[1:], topic[1:]) or by_definition(filter, topic[1:])
    return filter[0] in ("+", topic[0]) and by_definition(filter[1:], topic[1:])


@given(filters, topics)
def test_matching_is_as_defined(filter: str, topic: str) -> None:
    hidden = topic.startswith("$") and filter[0] in "+*#"
    assert matches(filter, topic) == (not hidden and by_definition(filter.split("/"), topic.split("/")))


@given(filters_with_topics())
def test_what_is_made_to_match_does(pair: tuple[str, str]) -> None:
    assert matches(*pair)


def test_many_wildcards_take_no_time() -> None:
    topic = "/".join(["a"] * MAX_TOPIC_LEVELS)
    assert matches("/".join(["*"] * MAX_TOPIC_LEVELS), topic)
    assert matches("/".join(["*", "a"] * (MAX_TOPIC_LEVELS // 2)), topic)
    assert not matches("/".join(["*", "a"] * (MAX_TOPIC_LEVELS // 2 - 1) + ["*", "b"]), topic)
    assert covers("/".join(["*", "a"] * (MAX_TOPIC_LEVELS // 2)), topic)


# -- covers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ("#", "a/+/#", True),
        ("#", "$sys/a", False),
        ("#", "$sys/#", False),
        ("$sys/#", "$sys/a/+", True),
        ("$sys/#", "#", False),
        ("+/#", "#", True),
        ("#", "+/#", True),
        ("home/#", "home", True),
        ("home/#", "home/*", True),
        ("home/*", "home/#", False),
        ("home/+", "home/*", False),
        ("home/*", "home/+", True),
        ("+/*", "*/+", True),
        ("+/*", "*/a", True),
        ("*/+/+", "+/a/*/b", True),
        ("*/temperature", "home/+/temperature", True),
        ("*/temperature", "home/#", False),
        ("home/*/temperature", "home/*/room1/temperature", True),
        ("*/a/*", "*/a/b/a/*", True),
        ("*/a/+/a/*", "+/a/*/a/+/a/+", True),
        ("*/a/+/a/*", "+/a/*/a/+", False),
        ("a/b", "a/b", True),
        ("a/b", "a/+", False),
        ("a", "a/#", False),
    ],
)
def test_covering(outer: str, inner: str, expected: bool) -> None:
    assert covers(outer, inner) is expected


@given(filters, filters_with_topics())
def test_what_covers_matches_everything_that_the_covered_one_does(outer: str, pair: tuple[str, str]) -> None:
    inner, topic = pair
    if covers(outer, inner):
        assert matches(outer, topic)


@given(filters_with_topics(), st.data())
def test_a_filter_covers_what_was_made_narrower(pair: tuple[str, str], data: st.DataObject) -> None:
    """Put some of a topic's levels in the place of wildcards that match them: this is always covered."""
    filter, topic = pair
    assert covers(filter, filter)
    assert covers(filter, topic)
    narrower = data.draw(st.sampled_from(["+", "*"]))
    levels = ["a" if level == "+" else narrower if level == "*" else level for level in filter.split("/")]
    assert covers(filter, "/".join(levels))


@given(filters, topics)
def test_covering_a_plain_topic_is_matching_it(filter: str, topic: str) -> None:
    assert covers(filter, topic) == matches(filter, topic)


def short_filters(literals: str, max_levels: int) -> list[str]:
    return [
        "/".join(levels)
        for length in range(max_levels + 1)
        for head in product(f"{literals}+*", repeat=length)
        for levels in ([*head], [*head, "#"])
        if 0 < len(levels) <= max_levels
    ]


def test_covering_is_exact_for_short_filters() -> None:
    """Every pair of filters up to 4 levels, against every topic that could tell them apart."""
    known = short_filters("a", 4)
    names = ["/".join(levels) for length in range(1, 11) for levels in product("ax", repeat=length)]
    matched = {filter: {name for name in names if matches(filter, name)} for filter in known}
    wrong = [(a, b) for a, b in product(known, known) if covers(a, b) != (matched[b] <= matched[a])]
    assert wrong == []


# -- overlaps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/c", False),
        ("a/+", "+/b", True),
        ("a/+", "+/+/+", False),
        ("a/#", "a", True),
        ("a/#", "b/#", False),
        ("a/*", "a", False),
        ("*/b", "a/*", True),
        ("*/b", "a/+/+", True),
        ("a/*/c", "+/b/#", True),
        ("#", "$sys/a", False),
        ("$sys/#", "+/a", False),
        ("$sys/#", "$sys/+", True),
        ("#", "+", True),
        ("", "#", True),
    ],
)
def test_overlapping(one: str, other: str, expected: bool) -> None:
    assert overlaps(one, other) is expected
    assert overlaps(other, one) is expected


@given(filters, filters_with_topics())
def test_filters_that_match_one_topic_overlap(one: str, pair: tuple[str, str]) -> None:
    other, topic = pair
    assert overlaps(other, topic)
    assert overlaps(one, topic) == matches(one, topic)
    if matches(one, topic):
        assert overlaps(one, other)


def test_overlapping_is_exact_for_short_filters() -> None:
    """Every pair of filters up to 3 levels: a topic of at most 6 levels matches both, or none does."""
    known = short_filters("ab", 3)
    names = ["/".join(levels) for length in range(1, 7) for levels in product("abx", repeat=length)]
    matched = {filter: {name for name in names if matches(filter, name)} for filter in known}
    wrong = [(a, b) for a, b in product(known, known) if overlaps(a, b) == matched[a].isdisjoint(matched[b])]
    assert wrong == []
