"""The layout of a batch is known by wire/batch.py alone; the format of a block is known by store/block.py."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWNERS = {
    ROOT / "src/godwit/wire/batch.py",
    ROOT / "src/godwit/store/block.py",
    ROOT / "src/godwit/wire/relay.py",  # its structs are the record of a bridge, in which batches are opaque
    ROOT / "tools/godwit_sim/worlds/cluster.py",  # its struct is the head of a record of a cluster
    ROOT / "tools/godwit_bench/small_senders.py",  # its structs are a frame of the transport and a field of MQTT
}
LAYOUT = {"LONE", "HAS_DELTAS", "HAS_SEQUENCE"}


def imported_names(tree: ast.Module) -> set[str]:
    return {
        name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "godwit.wire.batch"
        for name in node.names
    }


def struct_calls(tree: ast.Module) -> set[str]:
    return {
        f"struct.{node.attr} in line {node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "struct"
    }


@pytest.mark.parametrize("folder", ["src/godwit", "tools"])
def test_users_of_batches_do_not_know_their_layout(folder: str) -> None:
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = imported_names(tree)
        if not names or path in OWNERS:
            continue
        known = sorted(names & LAYOUT) + sorted(call for call in struct_calls(tree) if "struct.error" not in call)
        if known:
            found.append(f"{path.relative_to(ROOT)}: {', '.join(known)}")
    assert not found, "\n" + "\n".join(found)
