"""Match ready tasks with workers that have free capacity, at the end of a turn; and the timers of the job part.

The next job of a queue goes to the volunteer with the lowest load, then to the one that has waited longest. A worker
that held a task of the job is skipped while a volunteer is connected that held none, even if that one is busy, but not
for longer than patience_us. Between queues with the same volunteers, the higher priority comes first, then the kind
that was served longest ago. Only queues with changes are examined: a job became ready, or a volunteer has more capacity
than before.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, Generic, TypeAlias, TypeVar

from godwit.broker.jobs.model import TASK_CHANGES, FreeSlot, Job, JobEvent, JobTask, PoolWorker, TurnOutput
from godwit.broker.jobs.queue import EligibilityGroup, JobQueue
from godwit.limits import MAX_HAD, WEIGHED_CAPACITY

TimerOwner: TypeAlias = Job | JobTask | PoolWorker | JobQueue | EligibilityGroup
"""A job waits for its delay or deadline, a task for its time limit or next attempt, a worker for the end of its lease
time, a queue for more volunteers before its jobs settle, a blocked group for the end of its patience."""
T = TypeVar("T")

_SLACK: Final = 64
"""The number of outdated timers that is always tolerated."""


class JobTimers(Generic[T]):
    """At most one timer for each owner.

    A stopped or changed timer remains in the heap until it reaches the top, or until outdated entries outnumber the
    others: so a deadline in a year does not keep an ended job in memory.
    """

    __slots__ = ("_at_us", "_count", "_heap")

    def __init__(self) -> None:
        self._at_us: dict[T, int] = {}
        self._heap: list[tuple[int, int, T]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._at_us)

    def __contains__(self, owner: T) -> bool:
        return owner in self._at_us

    def set(self, owner: T, at_us: int) -> None:
        """Set the timer of an owner, replacing the one it had."""
        if self._at_us.get(owner) == at_us:
            return
        self._at_us[owner] = at_us
        self._count += 1  # makes entries unique, and their order the same in every run
        heappush(self._heap, (at_us, self._count, owner))
        self._drop_outdated()

    def stop(self, owner: T) -> None:
        """Remove the timer of an owner, if it has one."""
        if self._at_us.pop(owner, None) is not None:
            self._drop_outdated()

    def next_us(self) -> int | None:
        """Return the time of the earliest timer."""
        heap = self._heap
        while heap:
            at_us, _, owner = heap[0]
            if self._at_us.get(owner) == at_us:
                return at_us
            heappop(heap)
        return None

    def pop_due(self, now_us: int) -> T | None:
        """Remove and return an owner whose time has come, or None."""
        at_us = self.next_us()
        if at_us is None or at_us > now_us:
            return None
        owner = heappop(self._heap)[2]
        del self._at_us[owner]
        return owner

    def _drop_outdated(self) -> None:
        if len(self._heap) > 2 * len(self._at_us) + _SLACK:
            self._heap = [entry for entry in self._heap if self._at_us.get(entry[2]) == entry[0]]
            heapify(self._heap)


class Dispatcher:
    """The queues of all kinds of work, and the leasing of their tasks."""

    __slots__ = ("_changed_queues", "_changed_workers", "_leases", "_output", "_slots", "_timers", "patience_us",
                 "queues")  # fmt: skip

    def __init__(self, output: TurnOutput, timers: JobTimers[TimerOwner]) -> None:
        self.queues: dict[str, JobQueue] = {}
        """By kind: those with unended jobs or with volunteers."""
        self.patience_us = 0
        """How long a task waits for a busy worker that has not tried its job."""
        self._output = output
        self._timers = timers
        self._changed_workers: dict[PoolWorker, None] = {}
        """Workers whose free capacity has changed; their queues are updated by the next run."""
        self._changed_queues: dict[JobQueue, None] = {}
        """Queues in which tasks might be leased."""
        self._leases = 0
        self._slots = 0

    def queue(self, kind: str) -> JobQueue:
        """Return the queue of a valid kind; create it if necessary."""
        queue = self.queues.get(kind)
        if queue is None:
            queue = self.queues[kind] = JobQueue(kind)
        return queue

    def drop_if_unused(self, queue: JobQueue) -> None:
        """Delete a queue that has neither jobs nor volunteers."""
        if not queue.jobs and not queue.volunteers:
            self.queues.pop(queue.kind, None)
            self._changed_queues.pop(queue, None)

    # -- changes ------------------------------------------------------------------------------------------------------

    def add_volunteer(self, worker: PoolWorker, queue: JobQueue) -> None:
        """Let a worker get tasks from a queue."""
        worker.queues.append(queue)
        queue.add_volunteer(worker)
        self._changed_workers[worker] = None

    def remove_volunteer(self, worker: PoolWorker, queue: JobQueue) -> None:
        """Stop giving a worker tasks from a queue."""
        worker.queues.remove(queue)
        queue.remove_volunteer(worker)
        self._changed_queues[queue] = None  # jobs that only it was eligible for can go to others now
        self.drop_if_unused(queue)

    def forget_worker(self, worker: PoolWorker) -> None:
        """Drop all references to a worker that is in no queue."""
        worker.free_slot = None  # it refers to the worker
        self._changed_workers.pop(worker, None)

    def update_capacity(self, worker: PoolWorker) -> None:
        """Note that the capacity or the leases of a worker have changed."""
        self._changed_workers[worker] = None

    def add_ready(self, task: JobTask) -> None:
        """Let a task be leased from now on."""
        job = task.job
        if not job.ready:
            job.passed_us = task.begins_us
            job.queue.push(job)
        job.ready.append(task)
        self._changed_queues[job.queue] = None

    def start_job(self, job: Job) -> None:
        """Let all tasks of a new job be leased."""
        queue = job.queue
        queue.add_job(job)
        job.ready = job.tasks[::-1]
        queue.push(job)
        self._changed_queues[queue] = None

    def end_job(self, job: Job) -> None:
        """Let none of a job's tasks be leased any more."""
        queue = job.queue
        queue.end_job(job)
        job.ready = []
        if not queue.jobs:
            self.drop_if_unused(queue)

    def handle_patience(self, group: EligibilityGroup) -> None:
        """Examine a group whose first job may have waited long enough for another worker."""
        if group.queue.unblock(group):
            self._changed_queues[group.queue] = None

    # -- leasing ------------------------------------------------------------------------------------------------------

    def run(self, now_us: int) -> None:
        """Lease all tasks that can be leased now."""
        if self._changed_workers:
            self._offer_capacity()
        if not self._changed_queues:
            return
        changed = [(queue.urgency, queue.last_lease, index, queue) for index, queue in enumerate(self._changed_queues)]
        self._changed_queues.clear()
        heapify(changed)
        while changed:
            queue = changed[0][3]
            is_alone = len(changed) == 1
            while (is_more := self._serve(queue, now_us)) and is_alone:
                pass
            if not is_more:
                heappop(changed)
            else:
                if self._changed_workers:
                    self._offer_capacity()
                heapreplace(changed, (queue.urgency, queue.last_lease, changed[0][2], queue))

    def _offer_capacity(self) -> None:
        """Update the queues of workers whose free capacity has changed."""
        for worker in self._changed_workers:
            free_slot = self._update_slot(worker)
            if free_slot is not None:
                for queue in worker.queues:
                    queue.offer(worker, free_slot)
                    if queue.has_ready:
                        self._changed_queues[queue] = None
        self._changed_workers.clear()

    def _update_slot(self, worker: PoolWorker) -> FreeSlot | None:
        capacity, held = worker.capacity, len(worker.leases)
        if held >= capacity:
            worker.free_slot = None
            return None
        self._slots += 1
        load = held / (capacity if capacity < WEIGHED_CAPACITY else WEIGHED_CAPACITY)
        worker.free_slot = (load, worker.last_lease, self._slots, worker)
        return worker.free_slot

    def _serve(self, queue: JobQueue, now_us: int) -> bool:
        """Lease tasks of the next job of a queue; return False if nothing more can be leased from the queue."""
        group = queue.first_group()
        if group is None or (worker := queue.first_free()) is None:
            return False
        job = group.heap[0][3]
        if len(job.ready) == 1 and group is queue.untried:  # the usual case; the general code below has the same effect
            self._lease(job.ready.pop(), worker, now_us)
            queue.last_lease = self._leases
            queue.update_leased(group, 1)
            return True
        if queue.regroup_first(group):
            return True
        eligible, tried = queue.eligible_count(group), len(job.tried_workers)
        picked = queue.pick(group, len(job.ready)) if eligible else []
        for better in picked:
            self._lease(job.ready.pop(), better, now_us)
        if picked:
            job.passed_us = now_us
        if eligible <= len(picked):  # all volunteers have tried the job
            while job.ready and (another := queue.first_free()) is not None:
                self._lease(job.ready.pop(), another, now_us)
        elif not picked:
            due_us = max(job.passed_us, job.ready[0].begins_us) + self.patience_us
            if due_us > now_us and queue.block(group):
                self._timers.set(group, due_us)
                return True
            self._lease(job.ready.pop(0), worker, now_us)
        queue.last_lease = self._leases
        queue.update_leased(group, len(job.tried_workers) - tried)
        return True

    def _lease(self, task: JobTask, worker: PoolWorker, now_us: int) -> None:
        job = task.job
        output = self._output
        task.state = TASK_CHANGES[task.state]["lease"]
        task.fence += 1
        name = worker.name
        if task.fence > 1 and task.worker not in task.previous_workers:
            task.previous_workers = (*task.previous_workers, task.worker)[-MAX_HAD:]
        job.add_tried_worker(worker)
        output.events[job.kind].append(
            JobEvent(
                "leased",
                job.number,
                job.controller,
                now_us,
                task.number,
                name,
                task.fence,
                waited_us=now_us - task.begins_us,
            )
        )
        task.worker = name
        task.instance = worker.instance
        task.begins_us = task.since_us = now_us
        job.leased += 1
        worker.leases[task] = None
        self._leases += 1
        worker.last_lease = self._leases
        if (free_slot := self._update_slot(worker)) is not None:
            job.queue.put_back(free_slot)
        if len(worker.queues) > 1:
            self._changed_workers[worker] = None
        if job.spec.time_limit_ms is not None:
            self.start_time_limit(task)
        output.changed_tasks[task] = None
        output.leased.append(task)

    def start_time_limit(self, task: JobTask) -> None:
        """Start the timer of a leased task, if its job has a time limit for one attempt."""
        if (limit_ms := task.job.spec.time_limit_ms) is not None:
            self._timers.set(task, task.since_us + limit_ms * 1000)
