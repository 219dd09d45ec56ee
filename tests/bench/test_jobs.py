"""The benchmark of jobs: a fake system with known figures, Godwit, beanstalkd, and a short real run.

The tests check that jobs are completed and stored, never how fast.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import pytest

from godwit.errors import GodwitError
from godwit_bench import jobs, peers
from godwit_bench.jobs import (
    DATA_FOLDER,
    JOB_BYTES,
    Completed,
    JobSystem,
    Submitted,
    beanstalkd,
    beanstalkd_one_by_one,
    godwit_jobs,
    godwit_one_by_one,
    measure,
)
from godwit_bench.processes import READY, ProcessGroup


def broker(processes: ProcessGroup) -> str:
    return str(processes.folder.parent)


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
    assert measure(JobSystem(broker, submit, complete), tmp_path, 0.5) == 250.0
    assert measure(JobSystem(broker, submit, complete_early), tmp_path, 0.5) == 500.0
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_was_not_done_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GodwitError, match="1000 jobs were submitted, and 999 were done"):
        measure(JobSystem(broker, submit, lose), tmp_path, 0.5)


def test_jobs_are_done_godwit(tmp_path: Path) -> None:
    assert measure(godwit_jobs(), tmp_path, 0.1) > 0
    assert measure(godwit_one_by_one(), tmp_path, 0.1) > 0


def test_its_jobs_are_on_the_disk_that_is_measured(tmp_path: Path) -> None:
    with ProcessGroup(within=tmp_path) as processes:
        godwit_jobs().broker(processes)
        assert (processes.folder / DATA_FOLDER / "log.sqlite").is_file()


SERVER = peers.find("beanstalkd") or ""
pytestmark = pytest.mark.skipif(not SERVER, reason="needs the program beanstalkd")


@pytest.mark.parametrize("connections", [1, 3])
def test_jobs_are_done_beanstalkd(connections: int, tmp_path: Path) -> None:
    assert measure(beanstalkd(SERVER, connections), tmp_path, 0.1) > 0


def test_jobs_are_done_one_by_one(tmp_path: Path) -> None:
    assert measure(beanstalkd_one_by_one(SERVER), tmp_path, 0.1) > 0


def test_its_binlog_is_on_the_disk_that_is_measured(tmp_path: Path) -> None:
    import greenstalk

    with ProcessGroup(within=tmp_path) as processes:
        port = beanstalkd(SERVER, 1).broker(processes)
        with greenstalk.Client(("127.0.0.1", int(port)), encoding=None) as client:
            client.put(b"x" * JOB_BYTES)
        (binlog,) = [file for file in (processes.folder / DATA_FOLDER).iterdir() if file.name.startswith("binlog.")]
        assert b"x" * JOB_BYTES in binlog.read_bytes()


def test_unfinished_jobs_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "GIVE_UP_S", 0.01)
    here, there = multiprocessing.Pipe()
    here.send(7)
    without_connections = beanstalkd(SERVER, 0)
    with pytest.raises(GodwitError, match="handed out 0 of 7 jobs"):
        without_connections.worker(there, "0")


@pytest.mark.skipif(peers.find("beanstalkd") is None, reason="needs the program beanstalkd")
def test_a_short_run_measures_everything(tmp_path: Path) -> None:
    rounds: list[str] = []
    report = jobs.run(folder=tmp_path, rounds=1, seconds=0.2, on_round=rounds.append, on_install=pytest.fail)
    assert report.bench == "jobs"
    theirs = ["beanstalkd_1", "beanstalkd_4", "beanstalkd_16"]
    assert rounds == ["godwit", *theirs, "godwit_one_by_one", "beanstalkd_one_by_one"]
    results = {result.name: result.value or 0.0 for result in report.results}
    assert list(results) == rounds
    assert all(results.values())
    assert {ratio.name: ratio.value for ratio in report.ratios} == {
        "vs_beanstalkd": results["godwit"] / max(results[name] for name in theirs),
        "one_by_one_vs_beanstalkd": results["godwit_one_by_one"] / results["beanstalkd_one_by_one"],
    }
    assert list(tmp_path.iterdir()) == []
