"""beanstalkd as a system under test, run briefly: that jobs are done and in its binlog, never how fast."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from godwit.errors import GodwitError
from godwit_bench import jobs_beanstalkd, peers
from godwit_bench.jobs_beanstalkd import beanstalkd, beanstalkd_one_by_one
from godwit_bench.jobs_cycles import DATA_FOLDER, JOB_BYTES, measure
from godwit_bench.stage import Stage

SERVER = peers.find("beanstalkd") or ""
pytestmark = pytest.mark.skipif(not SERVER, reason="needs the program beanstalkd")


@pytest.mark.parametrize("connections", [1, 3])
def test_jobs_are_done(connections: int, tmp_path: Path) -> None:
    assert measure(beanstalkd(SERVER, connections), tmp_path, 0.1) > 10


def test_jobs_are_done_one_by_one(tmp_path: Path) -> None:
    assert measure(beanstalkd_one_by_one(SERVER), tmp_path, 0.1) > 10


def test_its_binlog_is_on_the_disk_that_is_measured(tmp_path: Path) -> None:
    import greenstalk

    with Stage(within=tmp_path) as stage:
        port = beanstalkd(SERVER, 1).broker(stage)
        with greenstalk.Client(("127.0.0.1", int(port)), encoding=None) as client:
            client.put(b"x" * JOB_BYTES)
        (binlog,) = [file for file in (stage.folder / DATA_FOLDER).iterdir() if file.name.startswith("binlog.")]
        assert b"x" * JOB_BYTES in binlog.read_bytes()


def test_jobs_that_are_not_done_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_beanstalkd, "GIVE_UP_S", 0.01)
    here, there = multiprocessing.Pipe()
    here.send(7)
    without_connections = beanstalkd(SERVER, 0)
    with pytest.raises(GodwitError, match="handed out 0 of 7 jobs"):
        without_connections.worker(there, "0")
