"""The border inside the job part: the core knows no wire message and no module of the native protocol."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import godwit.broker.jobs as package

FOLDER = Path(package.__file__).parent
CORE = ("dispatch", "job_commits", "job_table", "lifecycle", "model", "queue", "scheduler")
NATIVE = ("job_requests", "notifier", "service", "work_channel")
FORBIDDEN = ("godwit.wire.control", "godwit.wire.work", "godwit.transport")


def imports(module: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_every_module_is_on_one_side() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {*CORE, *NATIVE, "__init__"}


@pytest.mark.parametrize("module", CORE)
def test_the_core_knows_no_protocol(module: str) -> None:
    forbidden = {*FORBIDDEN, *(f"godwit.broker.jobs.{name}" for name in NATIVE)}
    assert not [name for name in imports(module) if any(f"{name}.".startswith(f"{each}.") for each in forbidden)]
