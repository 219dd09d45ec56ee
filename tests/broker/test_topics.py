"""Names and filters: what may be written, what matches, what covers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.strategies import filters, filters_with_topics, topics

from godwit.broker.topics import check_filter, check_topic, covers, is_pattern, matches, shown, split
from godwit.errors import BadFilterError, BadTopicError, UsageError
from godwit.limits import MAX_STARS, MAX_TOPIC_BYTES, MAX_TOPIC_LEVELS

GOOD_TOPICS = [
    "a",
    "home/room1/temperature",
    "Trinity/Hamilton/room1/temperature",
    "a topic with blanks/ and more ",
    "/a",
    "a/",
    "a//b",
    "/",
    "$sys/clients",
    "küche/温度/🌡",
    "é" * (MAX_TOPIC_BYTES // 2),
    "/" * (MAX_TOPIC_LEVELS - 1),
]
BAD_TOPICS = [
    ("", "topic '' is empty: give it at least one character"),
    (cast("str", b"a"), "topic b'a' is of the type bytes: give a text (str)"),
    ("a/+", "topic 'a/+' contains '+': wildcards are for subscriptions; publish under a name without + * #"),
    ("a#", "contains '#'"),
    ("*/b", "contains '*'"),
    ("a\0b", r"topic 'a\x00b' contains the control character U+0000: leave it out"),
    ("a\nb", "U+000A"),
    ("\x7f", "U+007F"),
    ("\ud800", r"topic '\ud800' is not valid Unicode"),
    ("é" * (MAX_TOPIC_BYTES // 2) + "x", f"is {MAX_TOPIC_BYTES + 1} bytes long: at most {MAX_TOPIC_BYTES} are allowed"),
    ("/" * MAX_TOPIC_LEVELS, f"has {MAX_TOPIC_LEVELS + 1} levels: at most {MAX_TOPIC_LEVELS} are allowed"),
]
GOOD_FILTERS = [
    *GOOD_TOPICS,
    "#",
    "+",
    "*",
    "a/#",
    "+/+",
    "*/*/#",
    "a/*/b",
    "/+",
    "+/",
    "$sys/#",
    "*/" * MAX_STARS + "#",
]
BAD_FILTERS = [
    ("", "filter '' is empty"),
    ("*/" * MAX_STARS + "*", "has more than 8 levels"),
    ("a/#/b", "filter 'a/#/b' has '#' before its end, where it cannot stand"),
    ("#/#", "'#' before its end"),
    ("a#", "filter 'a#' has '#' inside the level 'a#': a wildcard stands alone between slashes"),
    ("sport/tennis#", "inside the level 'tennis#'"),
    ("a/b+/c", "has '+' inside the level 'b+'"),
    ("home*", "has '*' inside the level 'home*'"),
    ("**", "has '*' inside the level '**'"),
    ("a\tb", "U+0009"),
    ("a/\udfff/#", "is not valid Unicode"),
    ("#" * (MAX_TOPIC_BYTES + 1), "bytes long"),
    ("+/" * MAX_TOPIC_LEVELS + "#", "levels"),
]

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


@pytest.mark.parametrize("name", GOOD_TOPICS)
def test_good_topics(name: str) -> None:
    check_topic(name)
    check_filter(name)
    assert not is_pattern(name)
    assert matches(name, name)


@pytest.mark.parametrize(("name", "complaint"), BAD_TOPICS)
def test_bad_topics_are_told_what_is_wrong(name: str, complaint: str) -> None:
    with pytest.raises(BadTopicError) as raised:
        check_topic(name)
    assert complaint in str(raised.value)
    assert isinstance(raised.value, UsageError)
    str(raised.value).encode()  # can be sent and printed whatever the name was


@pytest.mark.parametrize("text", GOOD_FILTERS)
def test_good_filters(text: str) -> None:
    check_filter(text)


@pytest.mark.parametrize(("text", "complaint"), BAD_FILTERS)
def test_bad_filters_are_told_what_is_wrong(text: str, complaint: str) -> None:
    with pytest.raises(BadFilterError) as raised:
        check_filter(text)
    assert complaint in str(raised.value)
    assert isinstance(raised.value, UsageError)
    str(raised.value).encode()


def refusal_of(check: Callable[[str], None], text: str) -> str:
    try:
        check(text)
    except (BadTopicError, BadFilterError) as error:
        return str(error)
    return ""


@given(st.text() | st.text(alphabet=st.characters(codec=None)))
def test_any_text_is_taken_or_refused_in_words_that_can_be_shown(text: str) -> None:
    for check in (check_topic, check_filter):
        refusal = refusal_of(check, text)
        assert refusal.isprintable()
        assert len(refusal) < 1200


def test_a_long_name_is_quoted_in_part() -> None:
    assert shown("short") == "'short'"
    assert len(shown("x" * 5000)) < 100
    assert "\x1b" not in shown("\x1b[2J")


def test_levels() -> None:
    assert split("/a//b") == ["", "a", "", "b"]


@pytest.mark.parametrize(("filter", "topic", "expected"), VECTORS)
def test_matching(filter: str, topic: str, expected: bool) -> None:
    check_filter(filter)
    check_topic(topic)
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


def test_covering_is_exact_for_short_filters() -> None:
    """Every pair of filters up to 4 levels, against every topic that could tell them apart."""
    known = [
        "/".join(levels)
        for length in range(5)
        for head in product("a+*", repeat=length)
        for levels in ([*head], [*head, "#"])
        if 0 < len(levels) <= 4
    ]
    names = ["/".join(levels) for length in range(1, 11) for levels in product("ax", repeat=length)]
    matched = {filter: {name for name in names if matches(filter, name)} for filter in known}
    wrong = [(a, b) for a, b in product(known, known) if covers(a, b) != (matched[b] <= matched[a])]
    assert wrong == []
