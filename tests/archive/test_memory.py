"""Memory that is freed and taken again costs no page faults; and there is an end to it."""

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


BOUNDED = """
from godwit.archive.memory import bound_memory
bound_memory(500 * 2**20)
held = bytearray(100 * 2**20)
try:
    bytearray(500 * 2**20)
except MemoryError:
    print("refused")
bound_memory(200 * 2**20)
try:
    bytearray(300 * 2**20)
except MemoryError:
    print("refused")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the bound is not about mapped memory")
def test_more_than_the_bound_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", BOUNDED], capture_output=True, check=True, text=True)
    assert done.stdout.split() == ["refused"] * 2
