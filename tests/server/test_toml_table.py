"""Values of the wanted type, or an error that names the key and repeats nothing secret."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from godwit.errors import ConfigurationError
from godwit.server.toml_table import Table

TEXT = """
word = "blue"
words = ["blue", "red"]
none = []
mixed = ["blue", 3]
whole = 3
part = 2.5
yes = true
date = 2024-01-01
hidden = "hunter2"
[inner]
deep = 1
[[list]]
name = "first"
[[list]]
name = 5
"""
COLOURS = ["blue", "red", "green"]


@pytest.fixture
def top() -> Table:
    return Table("", tomllib.loads(TEXT))


def test_values_of_each_type(top: Table) -> None:
    assert "word" in top
    assert "nothing" not in top
    assert top.text("word") == "blue"
    assert top.text("nothing", "red") == "red"
    assert top.texts("words") == ["blue", "red"]
    assert top.texts("nothing", ["x"]) == ["x"]
    assert top.flag("yes", False) is True
    assert top.flag("nothing", False) is False
    assert top.number("whole") == 3
    assert top.number("whole", fraction=True) == 3
    assert top.number("part", fraction=True) == 2.5
    assert top.choice("word", COLOURS) == "blue"
    assert top.choice("nothing", COLOURS, "red") == "red"
    assert top.choices("words", COLOURS) == ["blue", "red"]
    assert top.table("inner").number("deep") == 1
    assert "deep" not in top.table("nothing")
    assert top.tables("nothing") == []
    assert [table.label() for table in top.tables("list")] == ["list number 1", "list number 2"]
    assert top.tables("list")[0].text("name") == "first"


@pytest.mark.parametrize(
    ("read", "complaint"),
    [
        (lambda top: top.text("nothing"), "nothing is missing: it must be text in quotes"),
        (lambda top: top.text("whole"), "whole is a whole number: it must be text in quotes"),
        (lambda top: top.number("word"), "word is text in quotes: it must be a whole number"),
        (lambda top: top.number("yes"), "yes is true or false: it must be a whole number"),
        (lambda top: top.number("yes", fraction=True), "yes is true or false: it must be a number"),
        (lambda top: top.number("part"), "part is a number: it must be a whole number"),
        (lambda top: top.number("date"), "date is a date or a time: it must be a whole number"),
        (lambda top: top.flag("whole", False), "whole is a whole number: it must be true or false"),
        (lambda top: top.texts("word"), "word is text in quotes: it must be a list"),
        (lambda top: top.texts("mixed"), "mixed contains a whole number: it must be a list of texts"),
        (lambda top: top.table("word"), "word is text in quotes: it must be a table"),
        (lambda top: top.tables("inner"), "inner is a table: begin each with a line [[inner]]"),
        (lambda top: top.table("inner").text("deep"), "inner.deep is a whole number"),
        (lambda top: top.tables("list")[1].text("name"), "list number 2: name is a whole number"),
        (lambda top: top.choice("word", ["blu"]), "word is 'blue': did you mean blu? choose from blu"),
        (lambda top: top.choice("word", ["x"]), "word is 'blue': choose from x"),
        (lambda top: top.choices("none", COLOURS), "none is empty: choose from blue, red, green"),
        (lambda top: top.number("hidden"), "hidden is text in quotes"),
    ],
)
def test_errors_name_the_key(top: Table, read: Callable[[Table], Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(top)
    assert str(raised.value).startswith(complaint)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "key", "complaint"),
    [
        ("", "client", "client is not a known key; did you mean clients?"),
        ("limits", "clints", "limits.clints is not a known key; did you mean clients?"),
        ("list number 2", "zzz", "list number 2: zzz is not a known key; known here: clients, topics"),
        ("", "a\nb\x1b", "'a\\nb\\x1b' is not a known key"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(name: str, key: str, complaint: str) -> None:
    Table(name, {"clients": 1}).expect("clients", "topics")
    with pytest.raises(ConfigurationError) as raised:
        Table(name, {key: 1}).expect("clients", "topics")
    assert str(raised.value).startswith(complaint)
