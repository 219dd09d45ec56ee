"""Jobs without asyncio."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.net.running import broker_in_thread

from godwit.errors import JobCancelledError, JobError, UsageError
from godwit.net.blocking import connect
from godwit.net.task import Task
from godwit.net.worker import Worker

DEADLINE_S = 30.0


@contextmanager
def worker_in_thread(url: str) -> Iterator[Worker]:
    worker = Worker(url, name="anna", capacity=4)

    @worker.handles("count")
    def count(task: Task) -> str:
        task.progress(0.5, "half")
        return str(len(task.payload))

    thread = threading.Thread(target=worker.run_forever)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_a_job_from_its_submission_to_its_result() -> None:
    with broker_in_thread() as url, worker_in_thread(url), connect(url, name="chief") as client:
        job = client.submit("count", b"seven 7", workers="all")
        (result,) = job.results(timeout_s=DEADLINE_S)
        assert (result.worker, result.payload) == ("anna", b"7")
        whats = [update.what for update in job]
        assert (whats[0], whats[-2:]) == ("accepted", ["result", "done"])
        assert (job.number, job.kind, job.agreed, job.state) == (1, "count", 1, "done")
        assert (job.is_ended, job.reason, job.tasks[0].state) == (True, "", "finished")
        assert job.begins_us == 0, "it had no delay"
        assert repr(job) == "<BlockingJob 1, 'count', done>"
        many = client.submit_many([("count", "x" * number) for number in range(5)])
        assert [job.results()[0].payload for job in many] == [b"0", b"1", b"2", b"3", b"4"]


def test_looking_after_jobs() -> None:
    with broker_in_thread() as url, connect(url, name="chief") as client:
        job = client.submit("count", key="mine")
        assert job.key == "mine"
        with pytest.raises(TimeoutError, match=r"has not ended within 0\.01 s"):
            job.results(timeout_s=0.01)
        assert [info.job for info in client.jobs(kind="count", controller="chief", states=["waiting"])] == [job.number]
        assert client.job_info(job.number)[0].state == "waiting"
        found = client.job(job.number)
        found.cancel("enough")
        for view in (job, found):
            with pytest.raises(JobCancelledError, match="enough"):
                view.results(timeout_s=DEADLINE_S)
            assert [update.what for update in view] == ["accepted", "cancelled"]
        another = client.submit("count").number
        client.cancel_job(another, "this too")
        assert [info.job for info in client.jobs(limit=1)] == [another]
        with pytest.raises(JobError):
            client.job(4711)
        with pytest.raises(UsageError, match="workers"):
            client.submit("count", workers=0)


def test_a_worker_in_a_thread_is_stopped_from_another() -> None:
    with broker_in_thread() as url, worker_in_thread(url) as worker, connect(url) as client:
        assert client.submit("count", b"x").results(timeout_s=DEADLINE_S)
        worker.stop(finish=True)
        worker.stop()
