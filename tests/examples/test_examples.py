"""Every example runs, ends by itself, and prints what its reader expects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

OUTPUT = {
    "two_endpoints.py": (
        "server: channel 1, record 0: 21.5\n"
        "server: channel 1, record 1: 21.6\n"
        "server: channel 1, record 2: 21.4\n"
        "client: the peer closed: thank you\n"
    ),
}


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(OUTPUT)


@pytest.mark.parametrize("name", sorted(OUTPUT))
def test_example(name: str) -> None:
    result = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, OUTPUT[name], "")


def test_the_readme_shows_the_example_as_it_is() -> None:
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    example = (EXAMPLES / "two_endpoints.py").read_text(encoding="utf-8")
    body = example.partition('"""\n\n')[2].strip()
    assert body in readme
    assert OUTPUT["two_endpoints.py"].strip() in readme
