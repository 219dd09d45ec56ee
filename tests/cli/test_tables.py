"""Lists for people and for programs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from godwit.cli.tables import Column, fitted, show_objects, show_table


def test_a_row_is_a_line_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    long = "level/" * 60
    columns = [Column("topic", is_name=True), Column("messages", right=True)]
    show_table(columns, [[long, "1,000"], ["a\x1b[2J", "7"], ["日本", "0"]])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].split() == ["topic", "messages"]
    assert lines[1].split() == [long, "1,000"]
    assert lines[2].split() == ["a\\x1b[2J", "7"]
    assert {len(line) for line in lines[1:3]} == {len(long) + 2 + len("messages")}


def test_markup_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    show_table([Column("client")], [["[bold]x[/bold]"]])
    assert capsys.readouterr().out.splitlines()[1] == "[bold]x[/bold]"


def test_titles_may_come_from_data(capsys: pytest.CaptureFixture[str]) -> None:
    show_table([Column("[red]a\x1b[2J")], [["1"]])
    assert capsys.readouterr().out.splitlines() == ["[red]a\\x1b[2J", "1"]


COLUMNS = [
    Column("topic", is_name=True),
    Column("policy", drop=1),
    Column("subscribers", "subs", right=True, drop=2),
    Column("messages", right=True),
    Column("filters", least_width=10),
    Column("last", shorten=lambda text: text[5:]),
]
ROWS = [
    ["home/kitchen/temperature", "open", "12", "1,000", "a/b/c; d/e/f; g/h/i", "2025-03-01"],
    ["日本", "explicit", "3", "1", "", ""],
]


def shown(width: int, rows: list[list[str]] = ROWS) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(fitted(COLUMNS, [[Text(cell) for cell in row] for row in rows], width))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_terminal_of_any_width_shows_each_row_on_one_line() -> None:
    for width in range(1, 120):
        found = shown(width)
        assert len(found) == 3, width
        assert all(Text(line).cell_len <= width for line in found)


def test_first_it_gets_shorter_then_columns_go_and_then_names_are_cut() -> None:
    name = "home/kitchen/temperature"
    assert shown(100)[0].split() == ["topic", "policy", "subscribers", "messages", "filters", "last"]
    assert shown(100)[1].split()[-1] == "2025-03-01"
    assert shown(78)[0].split() == ["topic", "policy", "subs", "messages", "filters", "last"]
    assert shown(78)[1] == f"{name}  open        12     1,000  a/b/c; d/e/f; g/h/i  03-01"
    assert shown(72)[1] == f"{name}  open        12     1,000  a/b/c; d/e/f…  03-01"
    assert shown(60)[0].split() == ["topic", "subs", "messages", "filters", "last"]
    assert shown(54)[0].split() == ["topic", "messages", "filters", "last"]
    assert shown(54)[1].split()[0] == name
    assert shown(48)[1] == "home/kitchen/tempe…     1,000  a/b/c; d/…  03-01"
    assert shown(10) == ["topic", "home/kitc…", "日本"]


def test_objects(capsys: pytest.CaptureFixture[str]) -> None:
    show_objects([{"name": "a\x9b"}, {"name": "b"}])
    assert capsys.readouterr().out == '{"name":"a\\u009b"}\n{"name":"b"}\n'
