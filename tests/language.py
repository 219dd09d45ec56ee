"""Count the words and phrases that the house style replaces, in comments, strings and pages of documentation.

python tests/language.py src/godwit/broker docs    # print each occurrence
python tests/language.py --counts                  # print the totals of the whole project
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

PATTERNS: Final = {
    "nobody, somebody, whoever": r"(nobody|somebody|whoever|whomever|anybody|everybody)\b",
    "so many, so long, so much": r"so (many|long|much)\b",
    "told": r"told\b",
    "says, said, heard": r"(says|said|heard|hears)\b",
    "what ... as a noun": r"what (is|was|were|are|has|had|can|may|must|it|they|[a-z]+(s|ed))\b",
    "gives": r"gives\b",
    "who, those that": r"(who\b|those (that|who)\b)",
    "its place, goes on, stands": r"(its place|goes? on|stands)\b",
    "cannot be, is no, is none": r"(cannot be\b(?! \w+(ed|en|t|wn|de)\b)|is (no|none)\b(?! longer))",
    "personification": r"(farewell|roaming|deeds?|in vain|out of its mind|means harm)\b",
}
_COMPILED: Final = {name: re.compile(rf"\b{pattern}", re.IGNORECASE) for name, pattern in PATTERNS.items()}

_FENCE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def files(*under: str) -> list[Path]:
    """Return the Python and Markdown files of the project under these paths.

    CHANGELOG.md is history, and docs/API.md repeats docstrings: both are left out.
    """
    found = {file for pattern in under for path in ROOT.glob(pattern) for file in (path, *path.rglob("*"))}
    left_out = {ROOT / name for name in ("CHANGELOG.md", "docs/API.md", "tests/language.py", "tests/test_language.py")}
    return sorted(
        file
        for file in found - left_out
        if file.suffix in (".py", ".md") and file.is_file() and ".venv" not in file.parts
    )


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that people read: comments and strings of a program, a page without its code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        text = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from enumerate(node.value.splitlines(), node.lineno)


def occurrences(paths: list[Path]) -> Iterator[tuple[str, Path, int, str]]:
    """Yield each occurrence: pattern, file, line number, line."""
    for path in paths:
        for number, line in prose(path):
            for name, pattern in _COMPILED.items():
                for _ in pattern.finditer(line):
                    yield name, path, number, line.strip()


def counts(*under: str) -> Counter[str]:
    """Return how often each pattern occurs in the files under these paths."""
    return Counter(name for name, *_ in occurrences(files(*under)))


def main(arguments: list[str]) -> None:
    if arguments == ["--counts"]:
        for name in PATTERNS:
            print(f"{counts('src', 'tools', 'docs', 'examples', '*.md')[name]:6} {counts('tests')[name]:6}  {name}")
        return
    for name, path, number, line in occurrences(files(*arguments)):
        print(f"{path.relative_to(ROOT)}:{number}: [{name}] {line}")


if __name__ == "__main__":
    main(sys.argv[1:])
