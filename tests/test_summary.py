"""The last lines of `make test`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.summary import summary

TESTS = """
import pytest

def test_good(): pass

@pytest.mark.parametrize("number", range(3))
def test_without_java(number): pytest.skip("Spark needs Java,\\n or so")

@pytest.mark.skip
def test_without_reason(): pass

def test_bad(): assert False

@pytest.fixture
def broken(): raise OSError("no")

def test_error(broken): pass
"""


def test_runs_are_counted_together(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    results = [tmp_path / name for name in ("one.xml", "two.xml", "three.xml", "four.xml")]
    for path in results[:2]:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={path}", "-c", os.devnull]
        subprocess.run([*command, "--rootdir", tmp_path, tmp_path], check=False, capture_output=True)
    results[2].write_text("<testsuites><testsu")
    assert summary(results) == [
        "tests: 2 passed, 4 failed, 8 skipped",
        "  skipped 6: Spark needs Java, or so",
        "  skipped 2: unconditional skip",
        "  without a result, because a run did not come to its end: three, four",
        "  tests marked soak are not run here, but by make soak",
    ]
