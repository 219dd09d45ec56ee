"""Which jobs and tasks are to be written down: the part of godwit.broker.dirty_state that knows about work.

Marked are objects, as everywhere in the journal: what is written is how they stand at the end of the turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from godwit.wire.changes import Change, JobGone, JobKept, JobPayload, NextJob, TaskKept

if TYPE_CHECKING:
    from godwit.broker.jobs.model import Job, Task


class JobMarks:
    """Feed: add, forget, put_back. Drain: changes."""

    __slots__ = ("gone", "jobs", "next_job", "tasks")

    def __init__(self) -> None:
        self.jobs: dict[Job, None] = {}
        self.tasks: dict[Task, None] = {}
        self.gone: dict[int, None] = {}
        """By number: each is given once."""
        self.next_job = 0
        """0: no job is new."""

    def __bool__(self) -> bool:
        return bool(self.jobs or self.tasks or self.gone)

    def add(self, jobs: Iterable[Job], tasks: Iterable[Task], gone: Iterable[int], next_job: int) -> None:
        """These have changed, or are no more."""
        self.jobs.update(dict.fromkeys(jobs))
        self.tasks.update(dict.fromkeys(tasks))
        self.gone.update(dict.fromkeys(gone))
        self.next_job = max(next_job, self.next_job)

    def forget(self, job: Job) -> None:
        """It was never written, and will not be."""
        self.jobs.pop(job, None)
        for task in job.tasks:
            self.tasks.pop(task, None)

    def put_back(self, older: JobMarks) -> None:
        """What was taken before could not be written."""
        self.add(older.jobs, older.tasks, older.gone, older.next_job)

    def changes(self) -> list[Change]:
        """How all of them stand, those of one type together: a store writes runs quickly."""
        gone = self.gone
        jobs = [job for job in self.jobs if job.number not in gone]
        new = [job for job in jobs if not job.is_stored]
        changes: list[Change] = [NextJob(self.next_job)] if self.next_job else []
        changes += [_job(job) for job in jobs]
        changes += [JobPayload(job.number, job.payload) for job in new]
        changes += [_task(task) for task in self.tasks if task.job.number not in gone]
        changes += [JobGone(number) for number in gone]
        return changes


def _job(job: Job) -> JobKept:
    return JobKept(
        job.number,
        job.controller,
        job.key,
        job.kind,
        job.workers,
        job.priority,
        job.submitted_us,
        job.begins_us,
        job.deadline_us,
        job.retries,
        job.retry_delay_ms,
        job.time_limit_ms,
        job.state,
        job.agreed,
        job.ended_us,
        job.reason,
    )


def _task(task: Task) -> TaskKept:
    return TaskKept(
        task.job.number,
        task.number,
        task.state,
        task.worker,
        task.instance,
        task.fence,
        task.failures,
        task.losses,
        task.begins_us,
        task.since_us,
        tuple(task.had),
        task.result,
        task.error,
    )
