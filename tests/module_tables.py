"""The tables of modules in docs/ARCHITECTURE.md, made from the first line of each module's docstring.

python tests/module_tables.py    # write the tables into the page
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "ARCHITECTURE.md"
_TABLE: Final = re.compile(r"<!-- modules: (\S+) -->\n.*?<!-- /modules -->", re.DOTALL)


def table(folder: str) -> str:
    """Return the table of the modules in a folder of src/godwit or tools."""
    path = next(base / folder for base in (ROOT / "src" / "godwit", ROOT / "tools") if (base / folder).is_dir())
    rows = []
    for module in sorted(path.glob("*.py")):
        if module.name != "__init__.py":
            text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
            subject = text.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")
            rows.append(f"| `{module.name}` | {subject} |")
    return "\n".join([f"<!-- modules: {folder} -->", "| module | subject |", "|---|---|", *rows, "<!-- /modules -->"])


def with_tables(page: str) -> str:
    """Return the page with its tables made anew."""
    return _TABLE.sub(lambda match: table(match[1]), page)


def folders(page: str) -> set[str]:
    """Return the folders that have a table in the page."""
    return {match[1] for match in _TABLE.finditer(page)}


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
