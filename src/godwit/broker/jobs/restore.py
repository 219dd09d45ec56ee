"""The board after a restart, from what was kept.

Tasks that nobody ever had are not kept: they follow from the number that was agreed. Who had a task when the broker
stopped has it still, and a while to come back. The order between controllers begins anew, by age.
"""

from __future__ import annotations

from typing import Final, cast

from godwit.broker.jobs.crew import Crew
from godwit.broker.jobs.dispatch import Dispatch
from godwit.broker.jobs.model import SHARED_HAD, Job, Task
from godwit.broker.jobs.shelf import Shelf
from godwit.broker.jobs.starts import Starts
from godwit.broker.jobs.states import ENDED
from godwit.broker.jobs.timers import Timers
from godwit.broker.jobs.turn import TimerOwner
from godwit.limits import RESTART_GRACE_S
from godwit.wire.changes import JobRow, StoredState, TaskRow
from godwit.wire.jobs import JobState, TaskState

_GRACE_US: Final = int(RESTART_GRACE_S * 1_000_000)


def restore(
    state: StoredState,
    now_us: int,
    shelf: Shelf,
    dispatch: Dispatch,
    starts: Starts,
    crew: Crew,
    timers: Timers[TimerOwner],
) -> None:
    """Into parts that are empty."""
    payloads = {kept.job: kept.payload for kept in state.payloads}
    tasks: dict[int, list[TaskRow]] = {}
    for row in state.tasks:
        tasks.setdefault(row.job, []).append(row)
    ended: list[Job] = []
    heard_us = now_us + max(crew.lease_us, _GRACE_US) - crew.lease_us
    for kept in state.jobs:
        job = _job(kept, payloads.get(kept.job, b""), tasks.get(kept.job, []), dispatch)
        shelf.put(job)
        if job.state in ENDED:
            ended.append(job)
            dispatch.tidy(job.queue)
            continue
        job.queue.jobs += 1
        starts.wait(job, now_us)
        if job.tasks:
            job.queue.tag(job)
        for task in reversed(job.tasks):  # the last one that becomes ready comes first
            if task.state == "leased":
                crew.restore(task, heard_us)
                dispatch.limit(task)
            elif task.state == "waiting" and task.begins_us > now_us:
                timers.set(task, task.begins_us)
            elif task.state == "waiting":
                dispatch.ready(task)
                job.passed_us = now_us  # those whom it may wait for have yet to come
    for job in sorted(ended, key=lambda job: job.ended_us or 0):
        shelf.end(job)


def _job(kept: JobRow, payload: bytes, rows: list[TaskRow], dispatch: Dispatch) -> Job:
    job = Job(
        kept.job,
        kept.controller,
        kept.key,
        dispatch.queue(kept.kind),
        payload,
        kept.workers,
        kept.priority,
        kept.submitted_us,
        kept.begins_us,
        kept.deadline_us,
        kept.retries,
        kept.retry_delay_ms,
        kept.time_limit_ms,
    )
    job.state = cast(JobState, kept.state)
    job.agreed = kept.agreed
    job.ended_us = kept.ended_us
    job.reason = kept.reason
    job.is_stored = True
    job.tasks = [Task(job, number, kept.begins_us) for number in range(kept.agreed or 0)]
    for row in rows:
        _lay_over(job.tasks[row.number], row)
    had = {name for row in rows for name in (*row.previous_workers, row.worker) if name}
    job.had = had if len(had) > SHARED_HAD else frozenset(had)
    return job


def _lay_over(task: Task, row: TaskRow) -> None:
    task.state = cast(TaskState, row.state)
    task.worker = row.worker
    task.instance = row.instance
    task.fence = row.fence
    task.failures = row.failures
    task.losses = row.losses
    task.begins_us = row.begins_us
    task.since_us = row.since_us
    task.had = row.previous_workers
    task.result = row.result
    task.error = row.error
    job = task.job
    job.result_bytes += len(row.result)
    job.text_bytes += len(row.error)
    job.finished += task.state == "finished"
    job.failed += task.state == "failed"
    job.leased += task.state == "leased"
