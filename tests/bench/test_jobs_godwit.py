"""Godwit with its jobs on disk as a system under test, run briefly: that jobs are done and kept."""

from __future__ import annotations

from pathlib import Path

from godwit_bench.jobs_cycles import DATA_FOLDER, measure
from godwit_bench.jobs_godwit import godwit_jobs, godwit_one_by_one
from godwit_bench.stage import Stage


def test_jobs_are_done(tmp_path: Path) -> None:
    assert measure(godwit_jobs(), tmp_path, 0.1) > 10
    assert measure(godwit_one_by_one(), tmp_path, 0.1) > 1


def test_its_jobs_are_on_the_disk_that_is_measured(tmp_path: Path) -> None:
    with Stage(within=tmp_path) as stage:
        godwit_jobs().broker(stage)
        assert (stage.folder / DATA_FOLDER / "log.sqlite").is_file()
