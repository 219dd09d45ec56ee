"""Folders of sessions: gone with them, and those of killed ones with the next."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from godwit.pipeline.scratch import PREFIX, scratch_folder

KILLED = """
import os, signal
from godwit.pipeline.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "library.so").write_bytes(b"native")
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_one_left_goes_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    others = tmp_path / f"{PREFIX}0"
    others.mkdir()
    command, place = [sys.executable, "-c", KILLED], {"TMPDIR": str(tmp_path)}
    killed = subprocess.run(command, check=False, stdout=subprocess.PIPE, env=place)
    left = Path(killed.stdout.decode().strip())
    assert (left / "library.so").exists()
    with scratch_folder() as first, scratch_folder() as second:
        assert not left.exists()
        assert {first, second, others} == set(tmp_path.iterdir())  # one in use stays, and what is none of ours
    assert list(tmp_path.iterdir()) == [others]
