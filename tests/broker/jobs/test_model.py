"""Jobs, tasks and workers by themselves."""

from __future__ import annotations

from godwit.broker.jobs.model import SHARED_HAD, Job, Task, Worker
from godwit.broker.jobs.ready import Queue
from godwit.limits import MAX_HAD


def make_job(tasks: int) -> Job:
    job = Job(7, "carla", "key", Queue("cut"), b"four", tasks, 0, 0, 0, None, 3, 1000, None)
    job.tasks = [Task(job, number, 0) for number in range(tasks)]
    return job


def test_jobs_in_the_same_hands_share_the_set_of_those() -> None:
    jobs = [make_job(1), make_job(1)]
    worker = Worker("anna", b"", 0)
    for job in jobs:
        job.had_by(worker)
        job.had_by(worker)
    assert jobs[0].had is jobs[1].had
    assert jobs[0].had == {"anna"}


def test_a_job_remembers_who_had_it_up_to_a_bound() -> None:
    job = make_job(6)
    names = [f"worker {number}" for number in range(7 * MAX_HAD)]
    for count, name in enumerate(names, start=1):
        job.had_by(Worker(name, b"", 0))
        assert job.had == set(names[: min(count, 6 * MAX_HAD + 1)])
        assert isinstance(job.had, frozenset) == (count <= SHARED_HAD)


def test_they_say_what_they_are() -> None:
    job = make_job(1)
    task = job.tasks[0]
    task.fence = 3
    worker = Worker("anna", b"", 0)
    worker.capacity = 2
    assert task.ref == (7, 0, 3)
    assert job.payload_bytes == 4
    assert [repr(job), repr(task), repr(worker)] == [
        "<job 7 cut waiting>", "<task 7.0 waiting fence 3 >", "<worker anna 0/2>",
    ]  # fmt: skip
