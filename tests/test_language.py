"""The phrases that the house style replaces do not come back."""

from __future__ import annotations

import pytest
from tests.language import PATTERNS, counts, occurrences
from tests.language import files as project_files

PRODUCT = ("src", "tools", "docs", "examples", "*.md")

# How often each phrase occurs, in the product and in its tests. A number may only fall: lower it here when it does.
COUNTS = {
    "nobody, somebody, whoever": (0, 0),
    "so many, so long, so much": (0, 0),
}


@pytest.mark.parametrize("phrase", PATTERNS)
def test_phrases_do_not_come_back(phrase: str) -> None:
    product, tests = COUNTS[phrase]
    assert (counts(*PRODUCT)[phrase], counts("tests")[phrase]) == (product, tests), (
        f"{phrase!r} occurs more often than in COUNTS (reword it: see `python tests/language.py PATH`), "
        "or less often (lower the number in COUNTS)"
    )


def test_each_phrase_is_found(tmp_path: object) -> None:
    assert set(COUNTS) == set(PATTERNS)
    assert project_files("src")
    assert list(occurrences(project_files("tests/language.py"))) == []
