"""Lists for people and for programs."""

from __future__ import annotations

import pytest

from godwit.cli.tables import show_objects, show_table


def test_a_row_is_a_line_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    long = "level/" * 60
    show_table(["topic", "messages"], [[long, "1,000"], ["a\x1b[2J", "7"], ["日本", "0"]], right=["messages"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].split() == ["topic", "messages"]
    assert lines[1].split() == [long, "1,000"]
    assert lines[2].split() == ["a\\x1b[2J", "7"]
    assert {len(line) for line in lines[1:3]} == {len(long) + 2 + len("messages")}


def test_markup_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(["client"], [["[bold]x[/bold]"]])
    assert capsys.readouterr().out.splitlines()[1] == "[bold]x[/bold]"


def test_objects(capsys: pytest.CaptureFixture[str]) -> None:
    show_objects([{"name": "a\x9b"}, {"name": "b"}])
    assert capsys.readouterr().out == '{"name":"a\\u009b"}\n{"name":"b"}\n'
