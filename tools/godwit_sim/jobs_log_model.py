"""A model of jobs: submissions, runs of tasks, and the expected state of each job by the log's `$jobs` messages.

Nothing here uses the broker or the library. Payloads and results are unique, so that a wrong one is noticed wherever it
appears. The meaning of the events is implemented a second time, from the specification, so that the broker's states are
compared with independent code.

JobLogModel checks that each event is allowed when it happens, and that the rows stored beside the log agree with the
events. It observes every durable append, also one that only becomes known after a restart. All notifications to workers
and controllers are compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from godwit.limits import MAX_LOSSES, MAX_RETRY_DELAY_S, MAX_RETURN_PAUSE_S, PATIENCE_S, RETURN_PAUSE_S
from godwit.wire.changes import JobRow, TaskRow
from godwit.wire.jobs import JobSpec, Ref
from godwit_sim.broker_restarts import JOB_ROWS, Rows
from godwit_sim.checkers import ViolationError
from godwit_sim.jobs_workers import WorkerModel

# -- requests and runs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class JobRequest:
    """One submission of a job."""

    submission: JobSpec
    payload: bytes
    asked_s: float


@dataclass(slots=True, eq=False)
class RequestedJob:
    """A job as its controller submitted it. A repeated submission with the same key is the same job, unchanged."""

    controller: str
    key: str
    requests: list[JobRequest] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """The job's numbers: one, unless it was deleted long after its end and then submitted again."""

    def __str__(self) -> str:
        return f"job {self.key!r} of {self.controller}"


@dataclass(slots=True, eq=False)
class TaskRun:
    """A lease of a task, as its worker sees it."""

    ref: Ref
    worker: str
    label: str
    """The run of the worker's process."""
    began_s: float
    result: bytes | None = None
    error: str | None = None
    is_final: bool = False
    is_returned: bool = False
    is_reported: bool = False
    """The library reported that the outcome is durable."""
    steps: list[tuple[float | None, str]] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.result is not None or self.error is not None or self.is_returned

    def __str__(self) -> str:
        job, task, fence = self.ref
        return f"task {task} of job {job} under fence {fence} at {self.label}"


class JobRecords:
    """All requests, cancels and task runs. The outcome of a run is stored in the run."""

    NAME: Final = "leases"

    def __init__(self) -> None:
        self.requested_jobs: dict[tuple[str, str], RequestedJob] = {}
        """By controller and key."""
        self.runs: dict[Ref, TaskRun] = {}
        self.cancels: set[int] = set()
        """Jobs for which a cancel was requested."""

    def request(self, controller: str, submission: JobSpec, payload: bytes, now: float) -> RequestedJob:
        """Record that a controller submits a job."""
        requested_job = self.requested_jobs.setdefault(
            (controller, submission.key), RequestedJob(controller, submission.key)
        )
        requested_job.requests.append(JobRequest(submission, payload, now))
        return requested_job

    def begin(self, ref: Ref, worker: str, label: str, now: float) -> TaskRun:
        """Record that a worker received this lease. Raises ViolationError if the lease was given before."""
        if (other := self.runs.get(ref)) is not None:
            raise ViolationError(self.NAME, f"{other} was given to {label} too")
        run = self.runs[ref] = TaskRun(ref, worker, label, now)
        return run


# -- expected states --------------------------------------------------------------------------------------------------

ENDED: Final = ("done", "failed", "cancelled")
TASK_ENDED: Final = ("finished", "failed", "cancelled")

TaskStatus: TypeAlias = tuple[str, str, int, int, int]
"""State, worker, fence, failures, losses."""
JobStatus: TypeAlias = tuple[str, int | None]
"""State and number of agreed tasks."""


class JobEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message on `$jobs/<kind>`."""

    event: str
    job: int
    controller: str
    at_us: int
    task: int | None = None
    worker: str = ""
    fence: int = 0
    agreed: int | None = None
    workers: int = 1
    priority: int = 0
    payload_bytes: int = 0
    result_bytes: int = 0
    waited_us: int = 0
    ran_us: int = 0
    failures: int = 0
    losses: int = 0
    error: str = ""
    reason: str = ""

    @property
    def ref(self) -> Ref:
        assert self.task is not None
        return self.job, self.task, self.fence


@dataclass(slots=True, eq=False)
class ExpectedTask:
    """The expected state of one task, and its history."""

    number: int
    ready_us: int
    """It may not be leased earlier."""
    returns: int = 0
    """The most times in a row that it may have been returned."""
    state: str = "waiting"
    worker: str = ""
    instance: bytes = b""
    """The run of the worker that has it."""
    fence: int = 0
    failures: int = 0
    losses: int = 0
    leased_us: int = 0
    has_failed_for_good: bool = False
    """Its last attempt reported that a retry is pointless."""
    errors: set[str] = field(default_factory=lambda: {""})
    result: bytes | None = None
    history: list[TaskStatus] = field(default_factory=list)

    @property
    def is_ended(self) -> bool:
        return self.state in TASK_ENDED

    @property
    def status(self) -> TaskStatus:
        return self.state, self.worker, self.fence, self.failures, self.losses

    @property
    def latest_ready_us(self) -> int:
        """Return the latest time at which it is ready: a task that is returned repeatedly is delayed."""
        pause_s = min(RETURN_PAUSE_S * 2 ** (self.returns - 2), MAX_RETURN_PAUSE_S) if self.returns > 1 else 0
        return self.ready_us + int(pause_s * 1e6)

    def note(self) -> None:
        """Append the present status to the history if it has changed."""
        if not self.history or self.history[-1] != self.status:
            self.history.append(self.status)


@dataclass(slots=True, eq=False)
class ExpectedJob:
    """The expected state of one job, and its history."""

    row: JobRow
    """The row as it was first stored; the requested options do not change."""
    requested_job: RequestedJob
    request: JobRequest
    state: str = "waiting"
    agreed: int | None = None
    ended_us: int | None = None
    last_us: int = 0
    """The time of the last event."""
    tasks: dict[int, ExpectedTask] = field(default_factory=dict)
    previous_workers: set[str] = field(default_factory=set)
    """Workers that have had any task of it."""
    history: list[JobStatus] = field(default_factory=list)
    is_removed: bool = False
    """It ended long ago and was deleted."""

    @property
    def number(self) -> int:
        return self.row.job

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED

    @property
    def status(self) -> JobStatus:
        return self.state, self.agreed

    def settle(self, agreed: int, at_us: int) -> None:
        """Create the agreed number of tasks."""
        self.state, self.agreed = "running", agreed
        self.tasks = {number: ExpectedTask(number, max(at_us, self.row.begins_us)) for number in range(agreed)}

    def end(self, state: str, at_us: int, task_state: str) -> None:
        """End the job, and every task of it that has not ended."""
        self.state, self.ended_us = state, at_us
        for task in self.tasks.values():
            if not task.is_ended:
                task.state = task_state

    def note(self) -> None:
        """Append the present status to the history if it has changed, for the job and its tasks."""
        if not self.history or self.history[-1] != self.status:
            self.history.append(self.status)
        for task in self.tasks.values():
            task.note()

    def __str__(self) -> str:
        return f"job {self.number} ({self.requested_job}, {self.row.kind!r}, {self.state})"


def read_event(payload: bytes) -> JobEvent:
    """Decode an event. Raises ViolationError if it is invalid or has undocumented fields."""
    try:
        return msgspec.json.decode(payload, type=JobEvent)
    except msgspec.DecodeError as error:
        raise ViolationError("events", f"{payload[:200]!r} is not an event: {error}") from None


# -- the checker of events --------------------------------------------------------------------------------------------

MARGIN_US: Final = 10
TIMER_LATE_US: Final = 100_000
"""How late a timer of the broker may be."""


class JobLogModel:
    """The checker of `$jobs` messages. Input is `learn`, after each append; all other methods are queries."""

    NAME = "job log"

    def __init__(self, records: JobRecords, workers: WorkerModel, *, epoch_us: int, keep_s: float) -> None:
        self.jobs: dict[int, ExpectedJob] = {}
        self.events = 0
        self.has_disk_failed = False
        """An append failed: a lease may have been undone before its worker was notified."""
        self._records = records
        self._workers = workers
        self._epoch_us = epoch_us
        self._keep_us = int(keep_s * 1e6)
        self._rows: Rows = {}
        self._handlers: dict[str, Callable[[ExpectedJob, JobEvent], None]] = {
            "settled": self._settled,
            "done": self._done,
            "job_failed": self._job_failed,
            "cancelled": self._cancelled,
        }
        self._task_handlers: dict[str, Callable[[ExpectedJob, ExpectedTask, JobEvent], None]] = {
            "leased": self._leased,
            "returned": self._returned,
            "lost": self._lost,
            "failed": self._failed,
            "finished": self._finished,
            "task_failed": self._task_failed,
        }

    # -- input --------------------------------------------------------------------------------------------------------

    def learn(self, messages: Sequence[tuple[str, bytes]], rows: Rows, now: float) -> None:
        """Check a durable append: its messages (kind and body), and the rows stored beside the log from now on."""
        newest = max(self.jobs, default=0)
        leased: list[JobEvent] = []
        times_us = set()
        for kind, payload in messages:
            event = read_event(payload)
            self.events += 1
            times_us.add(event.at_us)
            if event.event == "submitted":
                self._submitted(kind, event, rows, newest)
            else:
                self._happened(kind, event)
            if event.event == "leased":
                leased.append(event)
        if len(times_us) == 1:  # else it combines several turns, after a disk failure, in unknown order
            for event in leased:
                self._check_capacity(event)
        self._compare(rows, now)
        self._rows = rows

    def _happened(self, kind: str, event: JobEvent) -> None:
        job = self.jobs.get(event.job)
        if job is None:
            raise self._violation(event, "no job with this number was submitted")
        if (kind, event.controller) != (job.row.kind, job.row.controller):
            raise self._violation(event, f"of {kind!r} and {event.controller!r}, but it is {job}")
        if job.is_ended:
            raise self._violation(event, f"after its end: {job}")
        if event.at_us < job.last_us:
            raise self._violation(event, f"before the event at {job.last_us}")
        job.last_us = event.at_us
        if (on_task := self._task_handlers.get(event.event)) is not None:
            task = job.tasks.get(-1 if event.task is None else event.task)
            if task is None:
                raise self._violation(event, f"{job} has {len(job.tasks)} tasks")
            on_task(job, task, event)
        elif (handler := self._handlers.get(event.event)) is not None:
            handler(job, event)
        else:
            raise self._violation(event, "unknown event")
        job.note()

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _submitted(self, kind: str, event: JobEvent, rows: Rows, newest: int) -> None:
        row = rows.get(("job", event.job))
        if not isinstance(row, JobRow):
            raise self._violation(event, "it is not stored")
        if event.job <= newest:
            raise self._violation(event, f"there was a job {newest} already: a number was given twice")
        requested_job = self._records.requested_jobs.get((row.controller, row.key))
        if requested_job is None or kind != row.kind or event.controller != row.controller:
            raise self._violation(event, f"on {kind!r}, but {row} is stored, which was never submitted")
        for number in requested_job.numbers:
            if not self.jobs[number].is_removed and ("job", number) in rows:
                raise self._violation(event, f"the key is that of {self.jobs[number]}")
        request = self._find_request(requested_job, row, rows)
        if request is None:
            raise self._violation(
                event, f"{row} is stored, which is not one of {[one.submission for one in requested_job.requests]}"
            )
        reported = (event.workers, event.priority, event.payload_bytes)
        if reported != (row.workers, row.priority, len(request.payload)) or event.at_us != row.submitted_us:
            raise self._violation(event, f"does not match {row}, payload {len(request.payload)}")
        job = self.jobs[event.job] = ExpectedJob(row, requested_job, request, last_us=event.at_us)
        requested_job.numbers.append(event.job)
        if event.agreed is not None:
            self._settled(job, event)
        elif row.begins_us <= event.at_us and (
            certain_workers := self._workers.certain_workers(kind, self._s(event.at_us))
        ):
            raise self._violation(event, f"waits, though {certain_workers[0]} was there for it")
        job.note()

    def _find_request(self, requested_job: RequestedJob, row: JobRow, rows: Rows) -> JobRequest | None:
        """Return the request that the stored row comes from, or None."""
        payload = rows.get(("payload", row.job))
        for request in requested_job.requests:
            submission = request.submission
            delay_us = submission.delay_ms * 1000
            deadline_us = None if submission.deadline_ms is None else row.submitted_us + submission.deadline_ms * 1000
            if (
                payload is not None
                and payload.payload == request.payload
                and (row.kind, row.workers, row.priority)
                == (submission.of_kind, submission.workers, submission.priority)
                and (row.retries, row.retry_delay_ms) == (submission.retries, submission.retry_delay_ms)
                and (row.time_limit_ms, row.deadline_us) == (submission.time_limit_ms, deadline_us)
                and row.begins_us == row.submitted_us + delay_us
            ):
                return request
        return None

    def _settled(self, job: ExpectedJob, event: JobEvent) -> None:
        row = job.row
        agreed = event.agreed
        if agreed is None or agreed < 1 or job.agreed is not None:
            raise self._violation(event, f"agreed on {agreed}, it was {job.agreed}")
        if event.at_us < row.begins_us:
            raise self._violation(event, f"before it begins, at {row.begins_us}")
        least, most = self._workers.count(row.kind, self._s(event.at_us))
        if row.workers:
            least, most = min(row.workers, least), min(row.workers, most)
        if not least <= agreed <= most:
            raise self._violation(
                event, f"agreed on {agreed} of {row.workers or 'all'}, there were {least} to {most} volunteers"
            )
        job.settle(agreed, event.at_us)

    def _done(self, job: ExpectedJob, event: JobEvent) -> None:
        states = [task.state for task in job.tasks.values()]
        if job.state != "running" or states != ["finished"] * (job.agreed or 0):
            raise self._violation(event, f"its tasks are {states}, agreed was {job.agreed}")
        job.end("done", event.at_us, "finished")

    def _job_failed(self, job: ExpectedJob, event: JobEvent) -> None:
        states = [task.state for task in job.tasks.values()]
        is_over = job.state == "running" and all(task.is_ended for task in job.tasks.values())
        if not (is_over and "failed" in states) and not self._is_late(job, event.at_us):
            raise self._violation(event, f"its tasks are {states}, the deadline {job.row.deadline_us}")
        for task in job.tasks.values():
            if not task.is_ended:
                task.errors.add(event.reason)
        job.end("failed", event.at_us, "failed")

    def _cancelled(self, job: ExpectedJob, event: JobEvent) -> None:
        if event.job not in self._records.cancels:
            raise self._violation(event, "no cancel was requested")
        job.end("cancelled", event.at_us, "cancelled")

    @staticmethod
    def _is_late(job: ExpectedJob, at_us: int) -> bool:
        return job.row.deadline_us is not None and at_us >= job.row.deadline_us

    # -- tasks --------------------------------------------------------------------------------------------------------

    def _leased(self, job: ExpectedJob, task: ExpectedTask, event: JobEvent) -> None:
        row, now = job.row, self._s(event.at_us)
        if task.state != "waiting" or event.fence != task.fence + 1:
            raise self._violation(event, f"it is {task.state} under fence {task.fence}")
        if task.failures > row.retries or task.has_failed_for_good:
            raise self._violation(event, f"after {task.failures} failures with {row.retries} retries")
        if event.at_us < task.ready_us - MARGIN_US:
            raise self._violation(event, f"it was to wait until {task.ready_us}")
        if row.deadline_us is not None and event.at_us > row.deadline_us + TIMER_LATE_US:
            raise self._violation(event, f"its deadline was {row.deadline_us}")
        if not self._workers.capacity(event.worker, row.kind, now):
            raise self._violation(event, f"it did not volunteer for {row.kind!r}")
        patience_us = int(max(self._workers.lease_s, PATIENCE_S) * 1e6)
        if event.worker in job.previous_workers and event.at_us < task.ready_us + patience_us - MARGIN_US:
            fresh = [name for name in self._workers.certain_workers(row.kind, now) if name not in job.previous_workers]
            if fresh:
                raise self._violation(event, f"it had the job before, and {fresh[0]} had not")
        self._check_priority(job, event)
        job.previous_workers.add(event.worker)
        task.state, task.worker, task.fence, task.leased_us = "leased", event.worker, event.fence, event.at_us
        task.instance = b""

    def _check_priority(self, job: ExpectedJob, event: JobEvent) -> None:
        """Check that no task of the same kind that this worker could have had is more urgent."""
        for other in self.jobs.values():
            if (
                other.state == "running"
                and other.row.priority > job.row.priority
                and other.row.kind == job.row.kind
                and event.worker not in other.previous_workers
                and any(
                    task.state == "waiting" and task.latest_ready_us < event.at_us - MARGIN_US
                    for task in other.tasks.values()
                )
            ):
                raise self._violation(event, f"priority {job.row.priority}, while {other} waits")

    def _check_capacity(self, event: JobEvent) -> None:
        held = sum(
            task.state == "leased" and task.worker == event.worker
            for job in self.jobs.values()
            if not job.is_ended
            for task in job.tasks.values()
        )
        most = self._workers.capacity(event.worker, self.jobs[event.job].row.kind, self._s(event.at_us))
        if held > most:
            raise self._violation(event, f"it has {held} tasks, and takes {most}")

    def _require_lease(self, task: ExpectedTask, event: JobEvent) -> None:
        if (task.state, task.worker, task.fence) != ("leased", event.worker, event.fence):
            raise self._violation(event, f"it is {task.state}, by {task.worker!r} under fence {task.fence}")
        if abs(event.ran_us - (event.at_us - task.leased_us)) > MARGIN_US:
            raise self._violation(event, f"it was leased at {task.leased_us}")

    def _returned(self, job: ExpectedJob, task: ExpectedTask, event: JobEvent) -> None:
        self._require_lease(task, event)
        self._check_idle(task, event)
        was_never_sent = self.has_disk_failed and event.ref not in self._records.runs
        leased_s, now = self._s(task.leased_us), self._s(event.at_us)
        if not was_never_sent and not self._workers.may_return(event.worker, event.ref, leased_s, now):
            raise self._violation(event, "it never gave it up")
        task.returns += 1
        task.state, task.ready_us = "waiting", event.at_us

    def _lost(self, job: ExpectedJob, task: ExpectedTask, event: JobEvent) -> None:
        self._require_lease(task, event)
        leased_s, now = self._s(task.leased_us), self._s(event.at_us)
        if not self._workers.may_be_lost(event.worker, task.instance, leased_s, now):
            raise self._violation(event, "it was connected and active in time")
        task.losses += 1
        task.returns = 0
        task.state, task.ready_us = "waiting", event.at_us
        if event.losses != task.losses:
            raise self._violation(event, f"it was lost {task.losses} times")

    def _failed(self, job: ExpectedJob, task: ExpectedTask, event: JobEvent) -> None:
        self._require_lease(task, event)
        self._check_idle(task, event)
        reports = [one for one, _ in self._workers.outcomes(event.worker, event.ref) if one.error == event.error]
        limit_ms = job.row.time_limit_ms
        took_too_long = limit_ms is not None and event.at_us - task.leased_us >= limit_ms * 1000 - MARGIN_US
        if not reports and not took_too_long:
            raise self._violation(event, f"it did not report that, and its time limit is {limit_ms} ms")
        task.failures += 1
        task.returns = 0
        if event.failures != task.failures:
            raise self._violation(event, f"it failed {task.failures} times")
        task.has_failed_for_good = any(one.is_final for one in reports)
        pause_ms = min(job.row.retry_delay_ms * 2 ** (task.failures - 1), int(MAX_RETRY_DELAY_S * 1000))
        task.state, task.ready_us = "waiting", event.at_us + pause_ms * 1000
        task.errors.add(event.error)

    def _finished(self, job: ExpectedJob, task: ExpectedTask, event: JobEvent) -> None:
        self._require_lease(task, event)
        self._check_idle(task, event)
        self._check_time(job, task, event)
        reports = [payload for one, payload in self._workers.outcomes(event.worker, event.ref) if one.error is None]
        run = self._records.runs.get(event.ref)
        if not reports or run is None or run.result is None:
            raise self._violation(event, "it reported no result")
        if run.worker != event.worker or reports[0] != run.result or event.result_bytes != len(run.result):
            raise self._violation(event, f"{run} brought {len(run.result)} bytes, {len(reports[0])} came to the broker")
        task.state, task.result = "finished", run.result

    def _check_idle(self, task: ExpectedTask, event: JobEvent) -> None:
        """Check that a broker that was not restarted takes tasks away from an idle worker."""
        leased_s, now = self._s(task.leased_us), self._s(event.at_us)
        if self._workers.was_restarted(leased_s, now):
            return
        longest_idle_s = self._workers.longest_idle_s(event.worker, leased_s, now)
        if longest_idle_s > self._workers.lease_s + TIMER_LATE_US / 1e6:
            raise self._violation(event, f"it was idle for {longest_idle_s:.3f} s, and still had it")

    def _check_time(self, job: ExpectedJob, task: ExpectedTask, event: JobEvent) -> None:
        """Check that a broker that was not restarted enforces the time limit and the deadline."""
        if self._workers.was_restarted(self._s(task.leased_us), self._s(event.at_us)):
            return
        limit_ms, deadline_us = job.row.time_limit_ms, job.row.deadline_us
        if limit_ms is not None and event.at_us > task.leased_us + limit_ms * 1000 + TIMER_LATE_US:
            raise self._violation(event, f"it took longer than {limit_ms} ms")
        if deadline_us is not None and event.at_us > deadline_us + TIMER_LATE_US:
            raise self._violation(event, f"its deadline was {deadline_us}")

    def _task_failed(self, job: ExpectedJob, task: ExpectedTask, event: JobEvent) -> None:
        if task.is_ended or (task.state == "leased" and not self._is_late(job, event.at_us)):
            raise self._violation(event, f"it is {task.state}")
        is_due = (
            task.failures > job.row.retries
            or task.has_failed_for_good
            or task.losses >= MAX_LOSSES
            or self._is_late(job, event.at_us)
        )
        if not is_due:
            raise self._violation(
                event, f"after {task.failures} failures and {task.losses} losses, {job.row.retries} retries"
            )
        task.state = "failed"
        task.errors.add(event.error)

    # -- stored rows --------------------------------------------------------------------------------------------------

    def _compare(self, rows: Rows, now: float) -> None:
        """Compare the stored rows of each job with its expected state."""
        for job in self.jobs.values():
            if job.is_removed:
                continue
            if (row := rows.get(("job", job.number))) is None:
                self._forget(job, now)
                continue
            if (row.state, row.agreed, row.ended_us) != (job.state, job.agreed, job.ended_us):
                raise ViolationError(self.NAME, f"{job}, agreed {job.agreed}, but {row} is stored")
            for task in job.tasks.values():
                key = ("task", job.number, task.number)
                stored = rows.get(key)
                if stored is not self._rows.get(key) or _status_of(stored) != task.status:
                    self._compare_task(job, task, stored)
        for key in rows.keys() - self._rows.keys():
            if key[0] in JOB_ROWS:
                known = self.jobs.get(key[1])
                if known is None or known.is_removed or (key[0] == "task" and key[2] not in known.tasks):
                    raise ViolationError(self.NAME, f"{key} is stored without an event")

    def _forget(self, job: ExpectedJob, now: float) -> None:
        if not self.may_be_removed(job, now):
            raise ViolationError(self.NAME, f"{job}, ended at {job.ended_us}, is no longer stored")
        job.is_removed = True

    def _compare_task(self, job: ExpectedJob, task: ExpectedTask, stored: TaskRow | None) -> None:
        if _status_of(stored) != task.status:
            raise ViolationError(self.NAME, f"task {task.number} of {job} is {task.status}, but {stored} is stored")
        if stored is None:
            return
        if task.state == "finished" and stored.result != task.result:
            raise ViolationError(self.NAME, f"task {task.number} of {job} is stored with another result")
        if task.state == "leased":
            task.instance = stored.instance
            instances = self._workers.instances(task.worker, job.row.kind, self._s(task.leased_us))
            if stored.instance not in instances:
                raise ViolationError(self.NAME, f"task {task.number} of {job} is stored for a run not connected")

    # -- queries ------------------------------------------------------------------------------------------------------

    def unended(self) -> list[ExpectedJob]:
        return [job for job in self.jobs.values() if not job.is_ended]

    def may_be_removed(self, job: ExpectedJob, now: float) -> bool:
        """Return whether the job ended long enough ago to be deleted."""
        ended_us = job.ended_us
        return ended_us is not None and now >= self._s(ended_us + self._keep_us - MARGIN_US)

    def _s(self, at_us: int) -> float:
        return (at_us - self._epoch_us) / 1e6

    def _violation(self, event: JobEvent, text: str) -> ViolationError:
        task = "" if event.task is None else f" task {event.task} fence {event.fence} {event.worker}"
        return ViolationError(
            self.NAME,
            f"{event.event} job {event.job}{task} at {self._s(event.at_us):.6f}: {text}; event {event}",
        )


def _status_of(stored: TaskRow | None) -> TaskStatus:
    """Return the status of a stored task; a task that was never leased has no row."""
    if stored is None:
        return "waiting", "", 0, 0, 0
    return stored.state, stored.worker, stored.fence, stored.failures, stored.losses
