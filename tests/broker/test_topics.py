"""Names and filters: what may be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.broker.topics import check_filter, check_kind, check_topic, shown
from godwit.errors import BadFilterError, BadKindError, BadTopicError, UsageError
from godwit.limits import MAX_KIND_BYTES, MAX_STARS, MAX_TOPIC_BYTES, MAX_TOPIC_LEVELS
from godwit.wire.filters import is_pattern

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


@pytest.mark.parametrize("name", GOOD_TOPICS)
def test_good_topics(name: str) -> None:
    check_topic(name)
    check_filter(name)
    assert not is_pattern(name)


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


GOOD_KINDS = ["resize", "images/resize", "größe", "a b", "/", "é" * (MAX_KIND_BYTES // 2), "/" * (MAX_TOPIC_LEVELS - 2)]
BAD_KINDS = [
    ("", "the kind of work '' is empty: give it at least one character"),
    (cast("str", b"a"), "the kind of work b'a' is of the type bytes: give a text (str)"),
    ("a/+", "the kind of work 'a/+' contains a wildcard: leave out + * #"),
    ("a#", "contains a wildcard"),
    ("a\nb", "U+000A"),
    ("\ud800", "is not valid Unicode"),
    ("$jobs", "the kind of work '$jobs' begins with $, as only the broker's own names do: rename it"),
    ("é" * (MAX_KIND_BYTES // 2) + "x", f"is {MAX_KIND_BYTES + 1} bytes long: at most {MAX_KIND_BYTES} are allowed"),
    ("/" * (MAX_TOPIC_LEVELS - 1), f"has {MAX_TOPIC_LEVELS} levels: at most {MAX_TOPIC_LEVELS - 1} are allowed"),
]


@pytest.mark.parametrize("kind", GOOD_KINDS)
def test_good_kinds_of_work_and_the_topics_of_their_events(kind: str) -> None:
    check_kind(kind)
    check_topic(f"$jobs/{kind}")


@pytest.mark.parametrize(("kind", "complaint"), BAD_KINDS)
def test_bad_kinds_of_work_are_told_what_is_wrong(kind: str, complaint: str) -> None:
    with pytest.raises(BadKindError) as raised:
        check_kind(kind)
    assert complaint in str(raised.value)
    assert isinstance(raised.value, UsageError)
    str(raised.value).encode()


def refusal_of(check: Callable[[str], None], text: str) -> str:
    try:
        check(text)
    except (BadTopicError, BadFilterError, BadKindError) as error:
        return str(error)
    return ""


@given(st.text() | st.text(alphabet=st.characters(codec=None)))
def test_any_text_is_taken_or_refused_in_words_that_can_be_shown(text: str) -> None:
    for check in (check_topic, check_filter, check_kind):
        refusal = refusal_of(check, text)
        assert refusal.isprintable()
        assert len(refusal) < 1200


def test_a_long_name_is_quoted_in_part() -> None:
    assert shown("short") == "'short'"
    assert len(shown("x" * 5000)) < 100
    assert "\x1b" not in shown("\x1b[2J")
