"""One name, one meaning: no two classes of the package share a name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "godwit"


def test_class_names_are_unique() -> None:
    modules = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(path.relative_to(SOURCE).as_posix())
    shared = [f"{name}: {', '.join(paths)}" for name, paths in modules.items() if len(paths) > 1]
    assert not shared, "\n" + "\n".join(shared)
