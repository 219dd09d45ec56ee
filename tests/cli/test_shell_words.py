"""How a line of the shell is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.cli.shell_words import first_word, quoted, topic_and_message, words
from godwit.errors import UsageError


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("", []),
        ("  sub   home/# ", ["sub", "home/#"]),
        ('kick "the display" home/+', ["kick", "the display", "home/+"]),
        ("a 'b c'", ["a", "b c"]),
        ('a ""', ["a", ""]),
        ("it's", ["it's"]),
    ],
)
def test_words(line: str, found: list[str]) -> None:
    assert words(line) == found


@pytest.mark.parametrize(
    ("line", "topic", "message"),
    [
        ("a hello", "a", "hello"),
        ("a  two  words ", "a", "two  words"),
        ('"living room/temperature" 21.5', "living room/temperature", "21.5"),
        ('a "in quotes"', "a", "in quotes"),
        ('a {"celsius": 21.5}', "a", '{"celsius": 21.5}'),
        ('a "x" and "y"', "a", '"x" and "y"'),
        ("a", "a", ""),
        ('a ""', "a", ""),
        ("a '", "a", "'"),
    ],
)
def test_topic_and_message(line: str, topic: str, message: str) -> None:
    assert topic_and_message(line) == (topic, message)


def test_a_quote_that_is_not_closed() -> None:
    with pytest.raises(UsageError, match="is not closed"):
        first_word('"living room')


@given(st.text(alphabet="ab/ '+#", min_size=1))
def test_what_is_quoted_is_read_as_it_was(name: str) -> None:
    assert words(quoted(name)) == [name]


def test_quotes_only_where_needed() -> None:
    assert quoted("home/kitchen") == "home/kitchen"
    assert quoted("living room") == '"living room"'
    assert quoted('12" tube') == "'12\" tube'"
