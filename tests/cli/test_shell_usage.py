"""What the shell's commands take."""

from __future__ import annotations

import pytest

from godwit.cli.shell_usage import HELP, USAGE_WIDTH, arguments, leading_options, missing
from godwit.cli.text import hanging
from godwit.errors import UsageError


def test_arguments() -> None:
    assert arguments("list", "", 0, 1) == []
    assert arguments("kick", '"the display" home/#', 1, None) == ["the display", "home/#"]
    for rest, error in (("", "something is missing: create TOPIC"), ("a b", "more than create takes"), ('""', "empty")):
        with pytest.raises(UsageError, match=error):
            arguments("create", rest, 1, 1)


def test_what_is_missing_is_named() -> None:
    assert str(missing("job show")) == "something is missing: job show JOB"


def test_options_before_the_arguments() -> None:
    options = ["--workers", "--seconds"]
    assert leading_options("x", "resize --workers 3", options) == ({}, "resize --workers 3")
    assert leading_options("x", "--workers 3 --seconds 2 resize a b", options) == (
        {"--workers": "3", "--seconds": "2"},
        "resize a b",
    )
    with pytest.raises(UsageError, match="x has no option --fast; there is --workers and --seconds"):
        leading_options("x", "--fast resize", options)
    with pytest.raises(UsageError, match="the option --workers needs a value"):
        leading_options("x", "--workers", options)


def test_every_line_of_the_help_begins_with_its_command() -> None:
    assert all(usage.startswith(name) for name, (usage, _) in HELP.items())


def test_in_the_help_there_is_room_behind_every_command() -> None:
    for usage, what in HELP.values():
        first, *rest = hanging(usage, what, title_width=USAGE_WIDTH)
        assert first.startswith(f"{usage}  ")
        assert all(len(line) < 80 for line in [first, *rest])
