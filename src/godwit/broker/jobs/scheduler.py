"""The scheduler: all jobs, tasks and workers, and every decision about them. It knows no connection, log or clock.

Call it with the time, then take the turn's changes from `output`. `next_timer_us` is when handle_timers is due. Tasks
are leased by `lease_tasks`, once at the end of a turn, so that the leases of a turn are sent in groups.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from godwit.broker.jobs.dispatch import Dispatcher, JobTimers, TimerOwner
from godwit.broker.jobs.job_table import JobTable, job_from_row
from godwit.broker.jobs.lifecycle import JobLifecycle, require_valid_kind
from godwit.broker.jobs.model import ENDED, Job, JobTask, PoolWorker, TurnOutput
from godwit.broker.jobs.queue import EligibilityGroup
from godwit.limits import MAX_DUE_AT_ONCE, PATIENCE_S, RESTART_GRACE_S
from godwit.wire.changes import StoredState, TaskRow
from godwit.wire.jobs import JobSpec, Ref

_GRACE_US: Final = int(RESTART_GRACE_S * 1_000_000)


@dataclass(eq=False)
class WorkerPool:
    """All workers, by name: connected volunteers, and holders of leases."""

    lease_us: int
    workers: dict[str, PoolWorker]
    _dispatcher: Dispatcher
    _lifecycle: JobLifecycle
    _timers: JobTimers[TimerOwner]
    _output: TurnOutput

    def set_lease_time(self, lease_us: int) -> None:
        """Change the lease time. A shorter one applies when a worker volunteers next: it knows the longer one."""
        self.lease_us = lease_us
        for worker in self.workers.values():
            worker.lease_us = max(worker.lease_us, lease_us)

    def volunteer(self, name: str, instance: bytes, kinds: Sequence[str], capacity: int, now_us: int) -> PoolWorker:
        """Let a worker do these kinds of work, and no others. RequestFailure if one of them is invalid."""
        for kind in kinds:
            if kind not in self._dispatcher.queues:
                require_valid_kind(kind)
        self.replace_instance(name, instance, now_us)
        worker = self.workers.get(name)
        if worker is None:
            worker = self.workers[name] = PoolWorker(name, instance, now_us)
        worker.is_connected = True
        worker.is_stalled = False
        worker.heard_us = now_us
        worker.capacity = capacity
        worker.kinds = tuple(dict.fromkeys(kinds))
        self._set_queues(worker, worker.kinds, now_us)
        self._dispatcher.update_capacity(worker)
        worker.lease_us = self.lease_us
        self._timers.set(worker, now_us + worker.lease_us)
        return worker

    def renew_leases(self, name: str, now_us: int) -> None:
        """Renew all leases of a worker that has reported."""
        worker = self.workers.get(name)
        if worker is None:
            return
        worker.heard_us = now_us
        if worker.is_stalled:
            worker.is_stalled = False
            self._set_queues(worker, worker.kinds, now_us)
            self._timers.set(worker, now_us + worker.lease_us)

    def remove_kinds(self, name: str, kinds: Collection[str], now_us: int) -> None:
        """Take kinds of work from a worker that lost the right to them, with its leases of these kinds."""
        worker = self.workers.get(name)
        if worker is None:
            return
        worker.kinds = tuple(kind for kind in worker.kinds if kind not in kinds)
        self._set_queues(worker, () if worker.is_stalled else worker.kinds, now_us)
        for task in [task for task in worker.leases if task.job.kind in kinds]:
            self._lifecycle.withdraw_lease(task, now_us, "it may not do this kind of work any more")
        self._lifecycle.forget_idle(worker)

    def disconnect(self, worker: PoolWorker, now_us: int) -> None:
        """Give a worker no more tasks. It holds its leases until their time ends."""
        worker.is_connected = False
        worker.kinds = ()
        self._set_queues(worker, (), now_us)
        self._lifecycle.forget_idle(worker)

    def leave(self, name: str, now_us: int) -> None:
        """Disconnect a worker and return its tasks."""
        worker = self.workers.get(name)
        if worker is not None:
            self.disconnect(worker, now_us)
            for task in list(worker.leases):
                self._lifecycle.return_task(task, now_us)

    def replace_instance(self, name: str, instance: bytes, now_us: int) -> None:
        """End the leases of any other instance of a worker: this one has connected."""
        worker = self.workers.get(name)
        if worker is not None and worker.instance != instance:
            self.disconnect(worker, now_us)
            for task in list(worker.leases):
                self._lifecycle.lose(task, "another instance of this worker has connected", now_us)

    def handle_lease_timer(self, worker: PoolWorker, now_us: int) -> None:
        """End the leases of a worker, if it has not reported since the timer was set."""
        due_us = worker.heard_us + worker.lease_us
        if due_us > now_us:
            self._timers.set(worker, due_us)
            return
        worker.is_stalled = True
        self._output.stalled.append(worker.name)
        self._set_queues(worker, (), now_us)
        for task in list(worker.leases):
            self._lifecycle.lose(task, "its worker reported nothing for too long", now_us)

    def restore_lease(self, task: JobTask, heard_us: int) -> None:
        """Add a lease that existed when the broker stopped."""
        worker = self.workers.get(task.worker)
        if worker is None:
            worker = self.workers[task.worker] = PoolWorker(task.worker, task.instance, heard_us)
            worker.lease_us = self.lease_us
            self._timers.set(worker, heard_us + worker.lease_us)
        worker.leases[task] = None

    def _set_queues(self, worker: PoolWorker, kinds: Sequence[str], now_us: int) -> None:
        """Make a worker a volunteer for these kinds, and no others."""
        for queue in [queue for queue in worker.queues if queue.kind not in kinds]:
            self._dispatcher.remove_volunteer(worker, queue)
        present = {queue.kind for queue in worker.queues}
        for kind in kinds:
            if kind not in present:
                queue = self._dispatcher.queue(kind)
                if not queue.volunteers:
                    self._lifecycle.settle_later(queue, now_us)
                self._dispatcher.add_volunteer(worker, queue)


class Scheduler:
    """All jobs and workers. Times are microseconds since the epoch and never decrease."""

    def __init__(self, *, lease_us: int, keep_us: int) -> None:
        """Create an empty scheduler.

        Args:
            lease_us: a worker that does not report for this time loses its tasks.
            keep_us: how long ended jobs are kept.
        """
        self.keep_us = keep_us
        self.next_job = 1
        self.output = TurnOutput()
        self.workers: dict[str, PoolWorker] = {}
        """By name: connected volunteers, and holders of leases."""
        self._table = JobTable()
        self.jobs = self._table.jobs
        """By number, including ended ones that are kept."""
        self.ended_as = self._table.ended_as
        """How many jobs have ended in each state since the start."""
        self._timers: JobTimers[TimerOwner] = JobTimers()
        self._dispatcher = Dispatcher(self.output, self._timers)
        self.lease_tasks = self._dispatcher.run
        """lease_tasks(now_us): lease all tasks that can be leased now."""
        self._lifecycle = JobLifecycle(self.output, self._dispatcher, self._table, self._timers, self.workers)
        self._pool = WorkerPool(lease_us, self.workers, self._dispatcher, self._lifecycle, self._timers, self.output)
        self.renew_leases = self._pool.renew_leases
        self._set_patience(lease_us)

    @property
    def lease_us(self) -> int:
        """A worker that does not report for this time loses its tasks."""
        return self._pool.lease_us

    @property
    def unended(self) -> int:
        """The number of unended jobs."""
        return self._table.unended

    @property
    def unsettled(self) -> int:
        """The number of unended jobs that wait for their delay or a first volunteer."""
        return self._table.unsettled

    def change_settings(self, *, lease_us: int, keep_us: int) -> None:
        """Change the lease time and the time for which ended jobs are kept."""
        self.keep_us = keep_us
        self._pool.set_lease_time(lease_us)
        self._set_patience(lease_us)

    def _set_patience(self, lease_us: int) -> None:
        self._dispatcher.patience_us = max(lease_us, int(PATIENCE_S * 1_000_000))

    # -- controllers --------------------------------------------------------------------------------------------------

    def submit(self, controller: str, spec: JobSpec, payload: bytes, now_us: int) -> Job:
        """Return a new job, or the one that this controller submitted with the same key.

        Raises:
            RequestFailure: the kind is invalid, or the job does not fit the limits.
        """
        known = self._table.keys.get((controller, spec.key))
        if known is not None:
            return known
        job = self._lifecycle.submit(self.next_job, controller, spec, payload, now_us)
        self.next_job += 1
        return job

    def find_key(self, controller: str, key: str) -> Job | None:
        """Return the job that a controller submitted with this key, if there is one."""
        return self._table.keys.get((controller, key))

    def cancel(self, job: Job, reason: str, now_us: int) -> None:
        """Cancel a job, unless it has ended."""
        if job.state not in ENDED:
            self._lifecycle.cancel(job, reason, now_us)

    def discard(self, job: Job) -> None:
        """Delete a job as if it had never been submitted: the log refused it, and no client knows of it."""
        self._lifecycle.discard(job)

    # -- workers ------------------------------------------------------------------------------------------------------

    def volunteer(
        self,
        name: str,
        instance: bytes,
        kinds: Sequence[str],
        capacity: int,
        holding: Collection[Ref],
        now_us: int,
        *,
        is_new_link: bool,
    ) -> list[Ref]:
        """Set the kinds of work and the capacity of a worker; without kinds it gets no more tasks.

        Args:
            name: the worker.
            instance: its instance; the leases of another instance are lost.
            kinds: all kinds of work that it does from now on.
            capacity: the number of tasks that it takes at once.
            holding: the leases that it believes to hold.
            now_us: the time.
            is_new_link: whether its connection is new. Leases that it does not know of were lost in transit then, and
                are returned.

        Returns:
            The leases in `holding` that it does not hold.

        Raises:
            RequestFailure: a kind is invalid.
        """
        worker = self._pool.volunteer(name, instance, kinds, capacity, now_us)
        unknown = [ref for ref in holding if self._leased_task(name, ref) is None and not self.has_result(ref, name)]
        if is_new_link:
            held = set(holding)
            for task in [task for task in worker.leases if task.ref not in held]:
                self._lifecycle.return_task(task, now_us)
        self._lifecycle.forget_idle(worker)
        return unknown

    def finish(self, name: str, ref: Ref, result: bytes, now_us: int) -> bool:
        """End a lease with a result. Return False, here and below, if the worker does not hold this lease."""
        task = self._leased_task(name, ref)
        if task is None:
            return False
        self._lifecycle.finish(task, result, now_us)
        return True

    def fail(self, name: str, ref: Ref, error: str, is_final: bool, now_us: int) -> bool:
        """End a lease with an error. With `is_final` the task is not tried again."""
        task = self._leased_task(name, ref)
        if task is None:
            return False
        self._lifecycle.fail(task, error, now_us, is_final=is_final)
        return True

    def return_task(self, name: str, ref: Ref, now_us: int) -> bool:
        """End a lease because the worker returns the task undone."""
        task = self._leased_task(name, ref)
        if task is None:
            return False
        self._lifecycle.return_task(task, now_us)
        return True

    def withdraw_lease(self, name: str, ref: Ref, now_us: int) -> bool:
        """End a lease that the worker does not know of yet."""
        task = self._leased_task(name, ref)
        if task is None:
            return False
        self._lifecycle.withdraw_lease(task, now_us)
        return True

    def set_progress(self, name: str, ref: Ref, progress: float | None, note: str) -> JobTask | None:
        """Store the progress of a task. Return the task, or None if the worker does not hold this lease."""
        task = self._leased_task(name, ref)
        if task is not None:
            task.progress = progress
            task.note = note
        return task

    def has_result(self, ref: Ref, name: str) -> bool:
        """Return whether the task's result came from this lease, so that a further report of it is a repeat."""
        job = self.jobs.get(ref[0])
        if job is None or ref[1] >= len(job.tasks):
            return False
        task = job.tasks[ref[1]]
        return task.state == "finished" and task.fence == ref[2] and task.worker == name

    def remove_kinds(self, name: str, kinds: Collection[str], now_us: int) -> None:
        """Take kinds of work from a worker that lost the right to them, with its leases of these kinds."""
        self._pool.remove_kinds(name, kinds, now_us)

    def disconnect(self, name: str, now_us: int) -> None:
        """Handle the loss of a worker's connection. It holds its leases until their time ends."""
        worker = self.workers.get(name)
        if worker is not None:
            self._pool.disconnect(worker, now_us)

    def leave(self, name: str, now_us: int) -> None:
        """Return the tasks of a worker that closed its connection properly or was kicked."""
        self._pool.leave(name, now_us)

    def replace_instance(self, name: str, instance: bytes, now_us: int) -> None:
        """End the leases of any other instance of a worker: this one has logged in."""
        self._pool.replace_instance(name, instance, now_us)

    def _leased_task(self, name: str, ref: Ref) -> JobTask | None:
        """Return the task if this is its present lease and this worker holds it."""
        job = self.jobs.get(ref[0])
        if job is None or ref[1] >= len(job.tasks):
            return None
        task = job.tasks[ref[1]]
        return task if task.state == "leased" and task.fence == ref[2] and task.worker == name else None

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def next_timer_us(self) -> int | None:
        """When handle_timers is due."""
        timer_us = self._timers.next_us()
        ended_us = self._table.first_end_us
        if ended_us is None:
            return timer_us
        delete_us = ended_us + self.keep_us
        return delete_us if timer_us is None or delete_us < timer_us else timer_us

    def handle_timers(self, now_us: int) -> None:
        """Handle the timers that are due, up to a limit; the others remain due."""
        for _ in range(MAX_DUE_AT_ONCE):
            owner = self._timers.pop_due(now_us)
            if owner is None:
                break
            if isinstance(owner, JobTask):
                if owner.state == "waiting":
                    self._dispatcher.add_ready(owner)  # the pause before its next attempt is over
                else:
                    self._lifecycle.fail_overdue(owner, now_us)
            elif isinstance(owner, Job):
                if owner.deadline_us is not None and owner.deadline_us <= now_us:
                    self._lifecycle.miss_deadline(owner, now_us)
                else:
                    self._lifecycle.handle_delay_end(owner, now_us)
            elif isinstance(owner, PoolWorker):
                self._pool.handle_lease_timer(owner, now_us)
            elif isinstance(owner, EligibilityGroup):
                self._dispatcher.handle_patience(owner)
            else:
                self._lifecycle.settle_queue(owner, now_us)
        self._table.remove_ended(now_us - self.keep_us, MAX_DUE_AT_ONCE, self.output.deleted)

    # -- restart ------------------------------------------------------------------------------------------------------

    def restore(self, state: StoredState, now_us: int) -> None:
        """Load the stored jobs and tasks into an empty scheduler.

        Workers still hold the leases that they held when the broker stopped, and get some time to come back. Fairness
        between controllers starts anew, by age.
        """
        self.next_job = state.next_job
        dispatcher, lifecycle, pool = self._dispatcher, self._lifecycle, self._pool
        payloads = {row.job: row.payload for row in state.payloads}
        task_rows: dict[int, list[TaskRow]] = {}
        for task_row in state.tasks:
            task_rows.setdefault(task_row.job, []).append(task_row)
        ended: list[Job] = []
        heard_us = now_us + max(pool.lease_us, _GRACE_US) - pool.lease_us
        for row in state.jobs:
            queue = dispatcher.queue(row.kind)
            job = job_from_row(row, payloads.get(row.job, b""), task_rows.get(row.job, []), queue)
            self._table.add(job)
            if job.state in ENDED:
                ended.append(job)
                dispatcher.drop_if_unused(queue)
                continue
            queue.jobs += 1
            lifecycle.start_waiting(job, now_us)
            if job.tasks:
                queue.add_job(job)
            for task in reversed(job.tasks):  # the task that becomes ready last is leased first
                if task.state == "leased":
                    pool.restore_lease(task, heard_us)
                    dispatcher.start_time_limit(task)
                elif task.state == "waiting" and task.begins_us > now_us:
                    self._timers.set(task, task.begins_us)
                elif task.state == "waiting":
                    dispatcher.add_ready(task)
                    job.passed_us = now_us  # workers that have not tried it have yet to connect
        for job in sorted(ended, key=lambda job: job.ended_us or 0):
            self._table.end(job)
