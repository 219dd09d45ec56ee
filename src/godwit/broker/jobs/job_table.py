"""All known jobs, the limits on the memory they take, and their rows in the log's state.

Ended jobs are kept for some time, so that their controllers find them. When others need the room they are deleted
early, the oldest first. Limited are the number of tasks, and the bytes of payloads, results and errors.

No controller can take all the room: its unended jobs take at most half of what those of the others leave.

DirtyJobs is the part of godwit.broker.dirty_state for jobs. It refers to objects, so a written row shows their
state at the end of the turn. A job with one task and a short payload, as most are, is one row: each row costs the store
much more than its bytes. Tasks that were never leased have no row: their number follows from the job's row.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Final, cast

from godwit.broker.jobs.model import ENDED, MAX_SHARED_WORKERS, Job, JobTask
from godwit.broker.jobs.queue import JobQueue
from godwit.limits import KIB, MAX_JOBS, MAX_JOBS_BYTES, MAX_SUBMITTED_BYTES, MAX_TASKS
from godwit.wire.changes import Change, JobDeleted, JobPayloadRow, JobRow, NextJobRow, TaskRow
from godwit.wire.jobs import JobSpec, JobState, TaskState

SHORT_PAYLOAD_BYTES: Final = KIB
"""A payload up to this length is written again with each change of its job, a longer one once."""


class ControllerUsage:
    """The room that the unended jobs of one controller take."""

    __slots__ = ("jobs", "outcome_bytes", "payload_bytes", "tasks")

    def __init__(self) -> None:
        self.jobs = 0
        self.tasks = 0
        self.payload_bytes = 0
        self.outcome_bytes = 0
        """The size of results and errors."""


_NO_USAGE: Final = ControllerUsage()


class JobTable:
    """All jobs, by number and by key."""

    __slots__ = (
        "_ended", "_ended_bytes", "_ended_tasks", "_usage", "ended_as", "jobs", "keys", "task_count", "total_bytes",
        "unsettled",
    )  # fmt: skip

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.ended_as: Counter[str] = Counter()
        """How many jobs have ended in each state since the start."""
        self.keys: dict[tuple[str, str], Job] = {}
        """By controller and key."""
        self.task_count = 0
        """The tasks of all jobs; a job without tasks counts as one."""
        self.total_bytes = 0
        self.unsettled = 0
        """The number of jobs that have no tasks yet."""
        self._ended: OrderedDict[Job, None] = OrderedDict()
        """In the order of their ends."""
        self._usage: dict[str, ControllerUsage] = {}
        """By controller."""
        self._ended_tasks = 0
        self._ended_bytes = 0

    @property
    def unended(self) -> int:
        """The number of unended jobs."""
        return len(self.jobs) - len(self._ended)

    @property
    def first_end_us(self) -> int | None:
        """When the first of the ended jobs ended."""
        return next(iter(self._ended)).ended_us if self._ended else None

    def add(self, job: Job) -> None:
        """Add a job, new or restored."""
        tasks = len(job.tasks) or 1
        payload_bytes = len(job.payload)
        outcome_bytes = job.result_bytes + job.text_bytes
        self.jobs[job.number] = job
        self.keys[job.controller, job.spec.key] = job
        self.task_count += tasks
        self.unsettled += not job.tasks
        self.total_bytes += payload_bytes + outcome_bytes
        usage = self._usage.get(job.controller)
        if usage is None:
            usage = self._usage[job.controller] = ControllerUsage()
        usage.jobs += 1
        usage.tasks += tasks
        usage.payload_bytes += payload_bytes
        usage.outcome_bytes += outcome_bytes

    def settle(self, job: Job, tasks: int) -> None:
        """Count the tasks of a job that had none."""
        self.task_count += tasks - 1
        self.unsettled -= 1
        self._usage[job.controller].tasks += tasks - 1

    def grow(self, job: Job, size_bytes: int) -> None:
        """Count further result or error bytes of an unended job."""
        self.total_bytes += size_bytes
        self._usage[job.controller].outcome_bytes += size_bytes

    def end(self, job: Job) -> None:
        """Count a job as ended. Free its payload if it is done; else a client may have it done once more."""
        self._release_usage(job)
        if job.is_stored and job.state == "done":
            self.total_bytes -= len(job.payload)
            job.payload = b""
        self._ended[job] = None
        self.unsettled -= not job.tasks
        self._ended_tasks += len(job.tasks) or 1
        self._ended_bytes += len(job.payload) + job.result_bytes + job.text_bytes

    def remove(self, job: Job) -> None:
        """Delete a job."""
        del self.jobs[job.number]
        del self.keys[job.controller, job.spec.key]
        tasks, size_bytes = len(job.tasks) or 1, len(job.payload) + job.result_bytes + job.text_bytes
        self.task_count -= tasks
        self.total_bytes -= size_bytes
        if job.state in ENDED:
            del self._ended[job]
            self._ended_tasks -= tasks
            self._ended_bytes -= size_bytes
        else:
            self.unsettled -= not job.tasks
            self._release_usage(job)

    def may_submit(self, controller: str, tasks: int, payload_bytes: int) -> bool:
        """Return whether a controller may have one more job: it gets at most half of what the others leave."""
        usage = self._usage.get(controller, _NO_USAGE)
        own_bytes = usage.payload_bytes + usage.outcome_bytes
        return (
            len(self.jobs) - len(self._ended) + usage.jobs + 2 <= MAX_JOBS
            and self.task_count - self._ended_tasks + usage.tasks + 2 * tasks <= MAX_TASKS
            and self.total_bytes - self._ended_bytes + own_bytes + 2 * payload_bytes <= MAX_SUBMITTED_BYTES
        )

    def may_settle(self, controller: str, tasks: int) -> bool:
        """Return whether a job of a controller may have this number of tasks more."""
        return self.task_count - self._ended_tasks + self._usage[controller].tasks + 2 * tasks <= MAX_TASKS

    def may_store(self, controller: str, result_bytes: int) -> bool:
        """Return whether a job may have this result: results get at most half of what everything else leaves."""
        own_bytes = self._usage[controller].outcome_bytes
        return self.total_bytes - self._ended_bytes + own_bytes + 2 * result_bytes <= MAX_JOBS_BYTES

    def make_room(self, tasks: int, size_bytes: int, deleted: list[int]) -> bool:
        """Delete as many ended jobs as needed for further tasks and bytes.

        Args:
            tasks: the number of tasks to come.
            size_bytes: the size of payloads and results to come.
            deleted: gets the numbers of the deleted jobs.

        Returns:
            False if there is not enough room without all ended jobs; none is deleted then.
        """
        if (
            self.task_count - self._ended_tasks + tasks > MAX_TASKS
            or self.total_bytes - self._ended_bytes + size_bytes > MAX_JOBS_BYTES
        ):
            return False
        while self.task_count + tasks > MAX_TASKS or self.total_bytes + size_bytes > MAX_JOBS_BYTES:
            self._remove_first(deleted)
        return True

    def remove_ended(self, until_us: int, limit: int, deleted: list[int]) -> None:
        """Delete up to `limit` jobs that ended at `until_us` or before, and add their numbers to `deleted`."""
        for _ in range(limit):
            ended_us = self.first_end_us
            if ended_us is None or ended_us > until_us:
                return
            self._remove_first(deleted)

    def _remove_first(self, deleted: list[int]) -> None:
        job = next(iter(self._ended))
        self.remove(job)
        deleted.append(job.number)
        job.tasks = []  # breaks the reference cycle, which only the garbage collector would free

    def _release_usage(self, job: Job) -> None:
        usage = self._usage[job.controller]
        usage.jobs -= 1
        usage.tasks -= len(job.tasks) or 1
        usage.payload_bytes -= len(job.payload)
        usage.outcome_bytes -= job.result_bytes + job.text_bytes
        if not usage.jobs:
            del self._usage[job.controller]


# -- rows -------------------------------------------------------------------------------------------------------------


class DirtyJobs:
    """Jobs and tasks whose rows must be written."""

    __slots__ = ("deleted", "jobs", "next_job", "tasks")

    def __init__(self) -> None:
        self.jobs: dict[Job, None] = {}
        self.tasks: dict[JobTask, None] = {}
        self.deleted: dict[int, None] = {}
        """By number, which is never used again."""
        self.next_job = 0
        """The number of the next job; 0 if no job is new."""

    def __bool__(self) -> bool:
        return bool(self.jobs or self.tasks or self.deleted)

    def add(self, jobs: Iterable[Job], tasks: Iterable[JobTask], deleted: Iterable[int], next_job: int) -> None:
        """Mark changed jobs and tasks, and deleted jobs."""
        dirty_jobs, dirty_tasks = self.jobs, self.tasks
        for job in jobs:
            dirty_jobs[job] = None
        for task in tasks:
            job = task.job
            if job.agreed == 1:  # the job's row contains it
                dirty_jobs[job] = None
            else:
                dirty_tasks[task] = None
        self.deleted.update(dict.fromkeys(deleted))
        if next_job > self.next_job:
            self.next_job = next_job

    def forget(self, job: Job) -> None:
        """Unmark a job that was never written and will not be."""
        self.jobs.pop(job, None)
        for task in job.tasks:
            self.tasks.pop(task, None)

    def put_back(self, older: DirtyJobs) -> None:
        """Mark again what could not be written."""
        self.add(older.jobs, older.tasks, older.deleted, older.next_job)

    def changes(self) -> list[Change]:
        """Return the rows to write. Those of one type are adjacent, because the store writes such runs faster."""
        deleted = self.deleted
        changes: list[Change] = [NextJobRow(self.next_job)] if self.next_job else []
        payloads: list[Change] = []
        for job in self.jobs:
            if job.number not in deleted:
                changes.append(job_row(job))
                if not job.is_stored and len(job.payload) > SHORT_PAYLOAD_BYTES:
                    payloads.append(JobPayloadRow(job.number, job.payload))
        changes += payloads
        for task in self.tasks:
            if task.job.number not in deleted:
                changes.append(task_row(task))
        changes += map(JobDeleted, deleted)
        return changes


def job_row(job: Job) -> JobRow:
    """Return the row of a job in its present state."""
    spec = job.spec
    payload = job.payload
    only_task: TaskRow | None = None
    if job.agreed == 1:
        task = job.tasks[0]
        if task.fence or task.state != "waiting":
            only_task = task_row(task)
    return JobRow(
        job.number,
        job.controller,
        spec.key,
        spec.of_kind,
        spec.workers,
        spec.priority,
        job.submitted_us,
        job.begins_us,
        job.deadline_us,
        spec.retries,
        spec.retry_delay_ms,
        spec.time_limit_ms,
        job.state,
        job.agreed,
        job.ended_us,
        job.reason,
        spec.size,
        payload if len(payload) <= SHORT_PAYLOAD_BYTES else None,
        only_task,
    )


def task_row(task: JobTask) -> TaskRow:
    """Return the row of a task in its present state."""
    return TaskRow(
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
        task.previous_workers,
        task.result,
        task.error,
    )


def job_from_row(row: JobRow, payload: bytes, task_rows: list[TaskRow], queue: JobQueue) -> Job:
    """Return the job that a row and the rows of its tasks describe."""
    spec = JobSpec(
        key=row.key,
        of_kind=row.kind,
        size=len(payload) if row.payload_bytes is None else row.payload_bytes,
        workers=row.workers,
        priority=row.priority,
        delay_ms=(row.begins_us - row.submitted_us) // 1000,
        deadline_ms=None if row.deadline_us is None else (row.deadline_us - row.submitted_us) // 1000,
        retries=row.retries,
        retry_delay_ms=row.retry_delay_ms,
        time_limit_ms=row.time_limit_ms,
    )
    job = Job(row.job, row.controller, spec, queue, payload, row.submitted_us)
    job.begins_us = row.begins_us
    job.deadline_us = row.deadline_us
    job.state = cast(JobState, row.state)
    job.agreed = row.agreed
    job.ended_us = row.ended_us
    job.reason = row.reason
    job.is_stored = True
    job.tasks = [JobTask(job, number, row.begins_us) for number in range(row.agreed or 0)]
    for each in task_rows:
        apply_task_row(job.tasks[each.number], each)
    tried = {name for each in task_rows for name in (*each.previous_workers, each.worker) if name}
    job.tried_workers = tried if len(tried) > MAX_SHARED_WORKERS else frozenset(tried)
    return job


def apply_task_row(task: JobTask, row: TaskRow) -> None:
    """Set a new task to the state of its row, and count it in its job."""
    task.state = cast(TaskState, row.state)
    task.worker = row.worker
    task.instance = row.instance
    task.fence = row.fence
    task.failures = row.failures
    task.losses = row.losses
    task.begins_us = row.begins_us
    task.since_us = row.since_us
    task.previous_workers = row.previous_workers
    task.result = row.result
    task.error = row.error
    job = task.job
    job.result_bytes += len(row.result)
    job.text_bytes += len(row.error)
    job.finished += task.state == "finished"
    job.failed += task.state == "failed"
    job.leased += task.state == "leased"
