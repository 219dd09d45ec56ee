"""Measuring cycles of jobs: with a made-up system whose figures are known."""

from __future__ import annotations

from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import pytest

from godwit.errors import GodwitError
from godwit_bench.jobs_cycles import Completed, Dispatcher, Submitted, measure
from godwit_bench.stage import READY, Stage


def broker(stage: Stage) -> str:
    return str(stage.folder.parent)


def submit(pipe: Pipe, address: str, seconds: float) -> None:
    assert seconds == 0.5
    assert Path(address).is_dir()
    pipe.send(Submitted(jobs=1000, began_s=10.0, ended_s=12.0))


def complete(pipe: Pipe, _: str) -> None:
    pipe.send(READY)
    pipe.send(Completed(jobs=pipe.recv(), ended_s=14.0))


def complete_early(pipe: Pipe, _: str) -> None:
    pipe.send(READY)
    pipe.send(Completed(jobs=pipe.recv(), ended_s=11.0))


def lose(pipe: Pipe, _: str) -> None:
    pipe.send(READY)
    pipe.send(Completed(jobs=pipe.recv() - 1, ended_s=14.0))


def test_cycles_a_second_until_the_last_is_known_to_be_done(tmp_path: Path) -> None:
    assert measure(Dispatcher(broker, submit, complete), tmp_path, 0.5) == 250.0
    assert measure(Dispatcher(broker, submit, complete_early), tmp_path, 0.5) == 500.0
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_was_not_done_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GodwitError, match="1000 jobs were submitted, and 999 were done"):
        measure(Dispatcher(broker, submit, lose), tmp_path, 0.5)
