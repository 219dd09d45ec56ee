"""The phrases that the house style replaces do not come back."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.language import PATTERNS, ROOT, counts, files, occurrences

PRODUCT = ("src", "tools", "docs", "examples", "*.md")

# How often each phrase occurs, in the product and in its tests. A number may only fall: lower it here when it does.
COUNTS = {
    "nobody, somebody, whoever": (0, 0),
    "so many, so long, so much": (0, 0),
    "told": (0, 41),
    "says, said, heard": (0, 53),
    "what ... as a noun": (71, 164),
    "gives": (7, 28),
    "who, those that": (20, 23),
    "its place, goes on, stands": (19, 29),
    "cannot be, is no, is none": (62, 39),
    "personification": (0, 1),
}

counted = cache(counts)  # reading all files takes seconds


@pytest.mark.parametrize("phrase", PATTERNS)
def test_phrases_do_not_come_back(phrase: str) -> None:
    product, tests = COUNTS[phrase]
    assert (counted(*PRODUCT)[phrase], counted("tests")[phrase]) == (product, tests), (
        f"{phrase!r} occurs more often than in COUNTS (reword it: see `python tests/language.py PATH`), "
        "or less often (lower the number in COUNTS)"
    )


def test_phrases_are_found_in_comments_strings_and_pages(tmp_path: Path) -> None:
    program, page = tmp_path / "program.py", tmp_path / "page.md"
    program.write_text('nobody = 1  # somebody\n"""Whoever is told."""\n')
    page.write_text("It gives\n```\nnobody\n```\nso many.\n")
    found = [(name, path.name, line) for name, path, line, _ in occurrences([program, page])]
    assert found == [
        ("nobody, somebody, whoever", "program.py", 1),
        ("nobody, somebody, whoever", "program.py", 2),
        ("told", "program.py", 2),
        ("gives", "page.md", 1),
        ("so many, so long, so much", "page.md", 5),
    ]


def test_all_files_are_read() -> None:
    assert set(COUNTS) == set(PATTERNS)
    names = {path.relative_to(ROOT).as_posix() for path in files(*PRODUCT, "tests")}
    assert {"src/godwit/errors.py", "tools/godwit_sim/network.py", "docs/GUIDE.md", "README.md"} <= names
