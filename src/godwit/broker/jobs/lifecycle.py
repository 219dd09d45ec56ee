"""How jobs and tasks start and end: every state change except the lease itself.

A job is submitted, waits for its delay or for a first volunteer, and is divided into tasks ("settled"). A lease ends
with a result, a failure, a return, a loss, or with its job.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Final

from godwit.broker.jobs.dispatch import Dispatcher, JobTimers, TimerOwner
from godwit.broker.jobs.job_table import JobTable
from godwit.broker.jobs.model import (
    ENDED,
    JOB_CHANGES,
    TASK_CHANGES,
    Job,
    JobEvent,
    JobTask,
    JobTrigger,
    PoolWorker,
    TaskTrigger,
    TurnOutput,
)
from godwit.broker.jobs.queue import JobQueue
from godwit.broker.ports import RequestFailure
from godwit.broker.topics import check_kind
from godwit.errors import BadKindError
from godwit.limits import (
    MAX_DUE_AT_ONCE,
    MAX_LOSSES,
    MAX_RETRY_DELAY_S,
    MAX_RETURN_PAUSE_S,
    MAX_TASKS_OF_JOB,
    RETURN_PAUSE_S,
    SETTLE_S,
)
from godwit.wire.control_base import Code
from godwit.wire.jobs import JobSpec

SETTLE_US: Final = int(SETTLE_S * 1_000_000)
DEADLINE_PASSED: Final = "the deadline passed"
NO_ROOM: Final = "no room for its result"
_MAX_DOUBLINGS: Final = 32
_MAX_RETRY_DELAY_MS: Final = int(MAX_RETRY_DELAY_S * 1000)
_RETURN_PAUSE_MS: Final = int(RETURN_PAUSE_S * 1000)
_MAX_RETURN_PAUSE_MS: Final = int(MAX_RETURN_PAUSE_S * 1000)


@dataclass(eq=False)
class JobLifecycle:
    """Starts and ends jobs, tasks and leases, and records it in the turn's output.

    `workers` is the table of the WorkerPool, by name.
    """

    _output: TurnOutput
    _dispatcher: Dispatcher
    _table: JobTable
    _timers: JobTimers[TimerOwner]
    _workers: dict[str, PoolWorker]

    # -- starts of jobs -----------------------------------------------------------------------------------------------

    def submit(self, number: int, controller: str, spec: JobSpec, payload: bytes, now_us: int) -> Job:
        """Create a job; it has its tasks at once if there are volunteers and it has no delay.

        Raises:
            RequestFailure: the kind is invalid, or the job does not fit the limits.
        """
        kind = spec.of_kind
        dispatcher, output, table = self._dispatcher, self._output, self._table
        queue = dispatcher.queues.get(kind)
        if queue is None:
            require_valid_kind(kind)
            queue = dispatcher.queue(kind)
        agreed = 0 if spec.delay_ms else _task_count(spec.workers, queue)
        payload_bytes = len(payload)
        if not table.may_submit(controller, agreed or 1, payload_bytes) or not table.make_room(
            agreed or 1, payload_bytes, output.deleted
        ):
            dispatcher.drop_if_unused(queue)
            raise RequestFailure(
                Code.TOO_MANY,
                "no room for the job: the unended jobs of a controller may take half of what those of the others leave;"
                " submit it again when some have ended",
            )
        job = Job(number, controller, spec, queue, payload, now_us)
        queue.jobs += 1
        if agreed:
            self._create_tasks(job, agreed, now_us)
        table.add(job)
        output.new_jobs.append(job)
        output.events[kind].append(
            JobEvent(
                "submitted",
                number,
                controller,
                now_us,
                agreed=job.agreed,
                workers=spec.workers,
                priority=spec.priority,
                payload_bytes=payload_bytes,
            )
        )
        if not agreed or spec.deadline_ms is not None:
            self.start_waiting(job, now_us)
        return job

    def start_waiting(self, job: Job, now_us: int) -> None:
        """Let an unended job wait for its delay or a volunteer, if it has no tasks, and for its deadline."""
        deadline_us = job.deadline_us
        if job.state == "waiting" and job.begins_us > now_us:
            self._timers.set(job, job.begins_us if deadline_us is None else min(job.begins_us, deadline_us))
            return
        if job.state == "waiting":
            job.queue.waiting[job] = None
        if deadline_us is not None:
            self._timers.set(job, deadline_us)

    def handle_delay_end(self, job: Job, now_us: int) -> None:
        """Settle a job whose delay is over, if there are volunteers."""
        self.start_waiting(job, now_us)
        if job.queue.volunteers:
            self._settle(job, now_us)

    def settle_later(self, queue: JobQueue, now_us: int) -> None:
        """Settle the waiting jobs of a queue soon: its first volunteer has come, and others may follow."""
        if queue.waiting and queue not in self._timers:  # a worker that comes and goes must not postpone it for ever
            self._timers.set(queue, now_us + SETTLE_US)

    def settle_queue(self, queue: JobQueue, now_us: int) -> None:
        """Settle the jobs of a queue that wait for volunteers, if there are any."""
        if not queue.volunteers:
            return
        for job in list(islice(queue.waiting, MAX_DUE_AT_ONCE)):
            if not self._settle(job, now_us):  # try the others first: they may need less room
                del queue.waiting[job]
                queue.waiting[job] = None
        if queue.waiting and queue not in self._timers:  # they were too many for one turn
            self._timers.set(queue, now_us + 1)

    def _settle(self, job: Job, now_us: int) -> bool:
        """Divide a job into tasks; return False if they do not fit the limits and the job has to wait on."""
        queue = job.queue
        agreed = _task_count(job.spec.workers, queue)
        table = self._table
        if not table.may_settle(job.controller, agreed - 1) or not table.make_room(agreed - 1, 0, self._output.deleted):
            self.settle_later(queue, now_us)
            return False
        table.settle(job, agreed)
        del queue.waiting[job]
        self._create_tasks(job, agreed, now_us)
        self._output.changed_jobs[job] = None
        self._output.events[job.kind].append(
            JobEvent("settled", job.number, job.controller, now_us, agreed=agreed, workers=job.spec.workers)
        )
        return True

    def _create_tasks(self, job: Job, agreed: int, now_us: int) -> None:
        job.state = JOB_CHANGES[job.state]["settled"]
        job.agreed = agreed
        job.tasks = [JobTask(job, 0, now_us)] if agreed == 1 else [JobTask(job, n, now_us) for n in range(agreed)]
        self._dispatcher.start_job(job)

    # -- ends of leases -----------------------------------------------------------------------------------------------

    def finish(self, task: JobTask, result: bytes, now_us: int) -> None:
        """End a lease with a result. The task fails if it does not fit the limits."""
        job = task.job
        output, table = self._output, self._table
        result_bytes = len(result)
        if not table.may_store(job.controller, result_bytes) or not table.make_room(0, result_bytes, output.deleted):
            self.fail(task, NO_ROOM, now_us, is_final=True)
            return
        ran_us = now_us - task.since_us
        self._end_lease(task, "result", now_us)
        task.result = result
        job.result_bytes += result_bytes
        table.grow(job, result_bytes)
        job.finished += 1
        output.events[job.kind].append(
            JobEvent(
                "finished",
                job.number,
                job.controller,
                now_us,
                task.number,
                task.worker,
                task.fence,
                result_bytes=result_bytes,
                ran_us=ran_us,
            )
        )
        if job.finished + job.failed == job.agreed:
            self._end_completed(job, now_us)

    def fail(self, task: JobTask, error: str, now_us: int, *, is_final: bool = False) -> None:
        """End a lease with an error. The task is tried again, unless `is_final` or its retries are used up."""
        spec = task.job.spec
        task.failures += 1
        is_last = is_final or task.failures > spec.retries
        ran_us = now_us - task.since_us
        self._end_lease(task, "last failure" if is_last else "failure", now_us)
        self._store_error(task, error)
        self._add_event(task, "failed", now_us, ran_us, error)
        if is_last:
            self._fail_finally(task, now_us)
            return
        task.returns = 0
        self._pause(task, min(spec.retry_delay_ms << min(task.failures - 1, _MAX_DOUBLINGS), _MAX_RETRY_DELAY_MS))

    def fail_overdue(self, task: JobTask, now_us: int) -> None:
        """End an attempt that took longer than its job allows, as a failure."""
        error = f"took longer than {(task.job.spec.time_limit_ms or 0) / 1000:g} s"
        self._revoke(task, error)
        self.fail(task, error, now_us)

    def return_task(self, task: JobTask, now_us: int) -> None:
        """End a lease because its worker returns the task undone.

        It does not count as a failure. The first time the task can be leased again at once; repeated returns delay it.
        """
        if now_us - task.since_us >= _MAX_RETURN_PAUSE_MS * 1000:
            task.returns = 0
        self._end_returned(task, now_us)
        doublings = min(task.returns - 1, _MAX_DOUBLINGS)
        task.returns += 1
        self._pause(task, min(_RETURN_PAUSE_MS << doublings, _MAX_RETURN_PAUSE_MS) if doublings >= 0 else 0)

    def withdraw_lease(self, task: JobTask, now_us: int, reason: str = "") -> None:
        """End a lease for a reason outside the worker; without a reason, the worker never knew of it."""
        if reason:
            self._revoke(task, reason)
        self._end_returned(task, now_us)
        self._dispatcher.add_ready(task)

    def _end_returned(self, task: JobTask, now_us: int) -> None:
        ran_us = now_us - task.since_us
        self._end_lease(task, "return", now_us)
        self._add_event(task, "returned", now_us, ran_us)

    def _pause(self, task: JobTask, pause_ms: int) -> None:
        """Let a task whose lease has just ended be leased again after a pause."""
        if pause_ms:
            task.begins_us = task.since_us + pause_ms * 1000
            self._timers.set(task, task.begins_us)
        else:
            self._dispatcher.add_ready(task)

    def lose(self, task: JobTask, reason: str, now_us: int) -> None:
        """End a lease whose worker died or stalled."""
        self._revoke(task, reason)
        task.losses += 1
        task.returns = 0
        is_last = task.losses >= MAX_LOSSES
        ran_us = now_us - task.since_us
        self._end_lease(task, "last loss" if is_last else "loss", now_us)
        self._add_event(task, "lost", now_us, ran_us, reason=reason)
        if is_last:
            self._store_error(task, f"{task.losses} workers were lost while they held it")
            self._fail_finally(task, now_us)
        else:
            self._dispatcher.add_ready(task)

    def _revoke(self, task: JobTask, reason: str) -> None:
        """Notify the worker, if it is connected, that its lease has ended."""
        if self._workers[task.worker].is_connected:
            self._output.revoked.append((task.worker, task.ref, reason))

    def _end_lease(self, task: JobTask, trigger: TaskTrigger, now_us: int) -> None:
        job = task.job
        worker = self._workers[task.worker]
        task.state = TASK_CHANGES[task.state][trigger]
        task.since_us = task.begins_us = now_us
        task.progress = None
        task.note = ""
        del worker.leases[task]
        job.leased -= 1
        if job.spec.time_limit_ms is not None:
            self._timers.stop(task)
        self._dispatcher.update_capacity(worker)
        self._output.changed_tasks[task] = None
        if not worker.leases and not worker.queues:
            self.forget_idle(worker)

    def forget_idle(self, worker: PoolWorker) -> None:
        """Delete a worker that has neither leases nor kinds of work."""
        if not worker.leases and not worker.kinds and worker.name in self._workers:
            self._dispatcher.forget_worker(worker)
            self._timers.stop(worker)
            del self._workers[worker.name]

    def _store_error(self, task: JobTask, error: str) -> None:
        growth = len(error) - len(task.error)
        task.error = error
        task.job.text_bytes += growth
        self._table.grow(task.job, growth)

    def _fail_finally(self, task: JobTask, now_us: int) -> None:
        job = task.job
        job.failed += 1
        self._add_event(task, "task_failed", now_us, None, task.error)
        if job.finished + job.failed == job.agreed:
            self._end_completed(job, now_us)

    def _add_event(
        self, task: JobTask, event: str, now_us: int, ran_us: int | None, error: str = "", reason: str = ""
    ) -> None:
        job = task.job
        self._output.events[job.kind].append(
            JobEvent(
                event,
                job.number,
                job.controller,
                now_us,
                task.number,
                task.worker,
                task.fence,
                ran_us=ran_us,
                failures=task.failures,
                losses=task.losses,
                error=error,
                reason=reason,
            )
        )

    # -- ends of jobs -------------------------------------------------------------------------------------------------

    def cancel(self, job: Job, reason: str, now_us: int) -> None:
        """End an unended job and all its tasks because a client asked for it."""
        self._end_tasks(job, "cancel", f"cancelled: {reason}" if reason else "cancelled", now_us)
        self._end_job(job, "cancel", "cancelled", reason, now_us)

    def miss_deadline(self, job: Job, now_us: int) -> None:
        """End an unended job and all its tasks because its deadline has passed."""
        self._end_tasks(job, "deadline", DEADLINE_PASSED, now_us)
        self._end_job(job, "deadline", "job_failed", DEADLINE_PASSED, now_us)

    def discard(self, job: Job) -> None:
        """Delete a job as if it had never been submitted. No client knows of it, so none is notified."""
        output = self._output
        for task in job.tasks:
            if task.state == "leased":
                worker = self._workers[task.worker]
                del worker.leases[task]
                self._dispatcher.update_capacity(worker)
                self.forget_idle(worker)
            if task.state not in ENDED:  # it may be in output.leased
                task.state = TASK_CHANGES[task.state]["cancel"]
            self._timers.stop(task)
            output.changed_tasks.pop(task, None)
        output.changed_jobs.pop(job, None)
        self._table.remove(job)
        if job.state not in ENDED:
            job.state = JOB_CHANGES[job.state]["cancel"]
            self._timers.stop(job)
            self._dispatcher.end_job(job)

    def _end_tasks(self, job: Job, trigger: TaskTrigger, reason: str, now_us: int) -> None:
        """End all unended tasks of a job."""
        for task in job.tasks:
            if task.state == "leased":
                self._revoke(task, reason)
                self._end_lease(task, trigger, now_us)
            elif task.state == "waiting":
                task.state = TASK_CHANGES[task.state][trigger]
                task.since_us = now_us
                self._timers.stop(task)
                self._output.changed_tasks[task] = None
            else:
                continue
            if task.state == "failed":
                job.failed += 1
                self._store_error(task, reason)
                self._add_event(task, "task_failed", now_us, None, reason)

    def _end_completed(self, job: Job, now_us: int) -> None:
        """End a job whose tasks have all ended."""
        if job.failed:
            reason = f"{job.failed} of {job.agreed} tasks failed" if job.agreed != 1 else "its task failed"
            self._end_job(job, "all ended, one failed", "job_failed", reason, now_us)
        else:
            self._end_job(job, "all finished", "done", "", now_us)

    def _end_job(self, job: Job, trigger: JobTrigger, event: str, reason: str, now_us: int) -> None:
        job.state = JOB_CHANGES[job.state][trigger]
        job.ended_us = now_us
        job.reason = reason
        self._dispatcher.end_job(job)
        self._timers.stop(job)
        self._table.ended_as[job.state] += 1
        self._table.end(job)
        self._output.changed_jobs[job] = None
        self._output.events[job.kind].append(
            JobEvent(event, job.number, job.controller, now_us, agreed=job.agreed, reason=reason)
        )


def require_valid_kind(kind: str) -> None:
    """Raise RequestFailure if the name of a kind of work is invalid."""
    try:
        check_kind(kind)
    except BadKindError as error:
        raise RequestFailure(Code.BAD_KIND, str(error)) from None


def _task_count(workers: int, queue: JobQueue) -> int:
    """Return the number of tasks for a job that asks for `workers` (0: all), with the volunteers present now."""
    volunteers = len(queue.volunteers)
    if volunteers > MAX_TASKS_OF_JOB:
        volunteers = MAX_TASKS_OF_JOB
    return workers if 0 < workers < volunteers else volunteers
