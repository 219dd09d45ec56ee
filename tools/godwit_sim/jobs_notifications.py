"""The checker of notifications to workers and controllers: only durable states, and never an older one.

Notifications carry states, not events, so a client may miss intermediate ones. But each state that it receives must
have existed, and not before the state that the client already knew. A result never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from godwit.client.jobs import JobView
from godwit.client.worker import Lease
from godwit.wire.jobs import JobInfo, TaskInfo
from godwit_sim.checkers import ViolationError
from godwit_sim.jobs_log_model import ExpectedJob, ExpectedTask, JobLogModel, JobRecords, RequestedJob, TaskRun


@dataclass(slots=True, eq=False)
class JobObservation:
    """A job as one run of a client sees it."""

    label: str
    requested_job: RequestedJob | None
    """None for another controller's job, which is only watched."""
    position: int = 0
    """The client's position in the job's history."""
    task_positions: dict[int, int] = field(default_factory=dict)


class NotificationChecker:
    """Check all notifications about jobs and leases."""

    NAME: Final = "notification"

    def __init__(self, records: JobRecords, log_model: JobLogModel) -> None:
        self._records = records
        self._log_model = log_model

    # -- controllers --------------------------------------------------------------------------------------------------

    def taken(self, observation: JobObservation, view: JobView) -> None:
        """Check the notification that the job was accepted and has a number."""
        job = self._job(observation, view)
        if job.requested_job is not observation.requested_job:
            raise self._violation(observation, f"its {observation.requested_job} is {job}")
        if view.agreed not in {agreed for _, agreed in job.history}:
            raise self._violation(observation, f"{job} agreed on {view.agreed}, which it never did")

    def changed(self, observation: JobObservation, view: JobView, now: float) -> None:
        """Check a state of the job. A client that learns of the end very late may not get the results any more."""
        job = self._job(observation, view)
        observation.position = self._find(
            observation, job, job.history, (view.state, view.agreed), observation.position
        )
        for number, seen in view.tasks.items():
            task = job.tasks.get(number)
            if task is None:
                raise self._violation(observation, f"{job} has no task {number}")
            status = (seen.state, seen.worker, seen.fence, seen.failures, seen.losses)
            position = observation.task_positions.get(number, 0)
            observation.task_positions[number] = self._find(observation, job, task.history, status, position, number)
            self._check_task(observation, job, task, seen)
            is_late = seen.result is None and self._log_model.may_be_removed(job, now)
            if seen.state == "finished" and seen.result != task.result and not is_late:
                raise self._violation(observation, f"task {number} of {job} brought another result than it did")

    def _find(
        self,
        observation: JobObservation,
        job: ExpectedJob,
        history: list[Any],
        status: Any,
        since: int,
        task: int | None = None,
    ) -> int:
        try:
            return history.index(status, since)
        except ValueError:
            what = "" if task is None else f"task {task} of "
            when = "never again" if status in history else "never"
            raise self._violation(
                observation, f"{what}{job} is {status}, but {when} was since {history[since]}; it was {history}"
            ) from None

    def _check_task(self, observation: JobObservation, job: ExpectedJob, task: ExpectedTask, seen: Any) -> None:
        where = f"task {task.number} of {job}"
        if seen.error not in task.errors:
            raise self._violation(observation, f"{where} failed with {seen.error!r}, not one of {sorted(task.errors)}")
        if seen.progress is not None or seen.note:
            run = self._records.runs.get((job.number, task.number, seen.fence))
            if run is None or (seen.progress, seen.note) not in run.steps:
                raise self._violation(observation, f"{where} is at {seen.progress} {seen.note!r}, never reported")

    def ended(self, observation: JobObservation, view: JobView, now: float) -> None:
        """Check the final state of the job. A client that is very late may not learn of all tasks."""
        job = self._job(observation, view)
        tasks = {number: task.state for number, task in job.tasks.items()}
        if not job.is_ended or (view.state, view.agreed) != job.status:
            raise self._violation(observation, f"it ended {view.state}, {view.agreed}; it is {job}, {job.agreed}")
        is_late = self._log_model.may_be_removed(job, now)
        if tasks != {number: task.state for number, task in view.tasks.items()} and not is_late:
            raise self._violation(observation, f"{job} ended with {view.tasks}, its tasks are {tasks}")

    def unknown(self, observation: JobObservation, number: int, now: float) -> None:
        """Check the reply that the broker does not know the job."""
        job = self._log_model.jobs.get(number)
        if job is not None and not self._log_model.may_be_removed(job, now):
            raise self._violation(observation, f"{job} is not known, but it is there")

    def listed(self, label: str, info: JobInfo, tasks: Sequence[TaskInfo] = ()) -> None:
        """Check a listed job, and its tasks if they are given."""
        job = self._log_model.jobs.get(info.job)
        if job is None or (info.state, info.agreed) not in job.history:
            raise ViolationError(self.NAME, f"{label} was shown {info}, but it is {job}")
        row = job.row
        shown = (info.controller, info.key, info.of_kind, info.workers, info.priority, info.deadline_us)
        if shown != (row.controller, row.key, row.kind, row.workers, row.priority, row.deadline_us):
            raise ViolationError(self.NAME, f"{label} was shown {info}, but {row} was asked for")
        for task in tasks:
            status = (task.state, task.worker, task.fence, task.failures, task.losses)
            if task.task not in job.tasks or status not in job.tasks[task.task].history:
                raise ViolationError(self.NAME, f"{label} was shown {task} of {job}, which was never its state")

    def over(self, label: str, number: int) -> None:
        """Check the reply that the job is cancelled, or had ended before."""
        job = self._log_model.jobs.get(number)
        if job is None or not job.is_ended:
            raise ViolationError(self.NAME, f"{label} was notified that job {number} is over: it is {job}")

    def _job(self, observation: JobObservation, view: JobView) -> ExpectedJob:
        job = self._log_model.jobs.get(view.number or 0)
        if job is None:
            raise self._violation(observation, f"of job {view.number}, which is not durable")
        return job

    # -- workers ------------------------------------------------------------------------------------------------------

    def leased(self, run: TaskRun, lease: Lease) -> None:
        """Check a task that a worker received."""
        number, task_number, fence = lease.ref
        job = self._log_model.jobs.get(number)
        task = None if job is None else job.tasks.get(task_number)
        if job is None or task is None:
            raise ViolationError(self.NAME, f"{run}: this task is not durable")
        status = ("leased", run.worker, fence, lease.failures)
        if status not in {known[:4] for known in task.history}:
            raise ViolationError(self.NAME, f"{run}: given as {status}, it was {task.history}")
        row = job.row
        reported = (lease.kind, lease.controller, lease.agreed, lease.time_limit_ms, lease.deadline_us)
        if reported != (row.kind, row.controller, job.agreed, row.time_limit_ms, row.deadline_us):
            raise ViolationError(self.NAME, f"{run}: of {reported}, but it is {row}")
        if lease.payload != job.request.payload:
            raise ViolationError(self.NAME, f"{run}: {len(lease.payload)} bytes that are not those of the job")

    def reported(self, run: TaskRun) -> None:
        """Check the notification that the outcome is durable, or that the lease had ended before."""
        number, task_number, fence = run.ref
        task = self._log_model.jobs[number].tasks[task_number]
        if not run.is_over:
            raise ViolationError(self.NAME, f"{run}: confirmed, but it was not reported")
        if task.state == "leased" and task.fence == fence:
            raise ViolationError(self.NAME, f"{run}: its outcome was confirmed, by the log it still has the task")
        run.is_reported = True

    def _violation(self, observation: JobObservation, text: str) -> ViolationError:
        return ViolationError(self.NAME, f"{observation.label} was notified: {text}")
