"""SQL from the files beside this module: the statements by their names, and the steps from one schema to the next."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent
_NAME: Final = "-- name: "


def parse_queries(text: str) -> dict[str, str]:
    """The statements of a file in which each follows a line `-- name: ...`."""
    found: dict[str, str] = {}
    for part in text.split(f"\n{_NAME}")[1:]:
        name, _, statement = part.partition("\n")
        if name in found:
            raise ValueError(f"two statements are named {name}")
        found[name] = statement.strip()
    return found


def load_migrations(folder: Path) -> tuple[str, ...]:
    """The scripts schema_1.sql, schema_2.sql, ...: each makes its version of the one before, the first of nothing."""
    scripts: list[str] = []
    while (path := folder / f"schema_{len(scripts) + 1}.sql").exists():
        scripts.append(path.read_text(encoding="utf-8"))
    return tuple(scripts)


QUERIES: Final = parse_queries((_FOLDER / "queries.sql").read_text(encoding="utf-8"))
MIGRATIONS: Final = load_migrations(_FOLDER)
