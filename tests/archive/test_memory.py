"""Memory that is freed and taken again costs no page faults."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
from random import Random
from godwit.archive.memory import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
rng = Random(1)
def work():
    return len([b"x" * rng.randrange(100_000, 1_000_000) for _ in range(16)])
for _ in range(5):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_pages_are_used_again() -> None:
    faults = {
        how: int(subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, check=True).stdout)
        for how in ("kept", "default")
    }
    print(faults)
    assert faults["kept"] < faults["default"] / 10
