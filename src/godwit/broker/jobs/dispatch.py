"""Who gets what: tasks that are ready meet workers with free capacity, at the end of a turn.

The next job of a queue goes to the volunteer that has the fewest tasks for its capacity, then to the one that waited
longest. Who had a task of it is passed over while somebody is there who had none, even if that one is busy; but not for
longer than patience_us. Between queues with the same volunteers the higher priority comes first, then the kind that was
served longest ago. Only queues where something changed are looked at: a job became ready, or a volunteer has more
capacity than before.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

from godwit.broker.jobs.model import Free, Happening, Job, Task, Worker
from godwit.broker.jobs.ready import Line, Queue
from godwit.broker.jobs.states import task_after
from godwit.broker.jobs.timers import Timers
from godwit.broker.jobs.turn import TimerOwner, Turn
from godwit.limits import MAX_HAD, WEIGHED_CAPACITY


class Dispatch:
    """The queues of all kinds."""

    __slots__ = ("_moved", "_places", "_served", "_stirred", "_timers", "_turn", "patience_us", "queues")

    def __init__(self, turn: Turn, timers: Timers[TimerOwner]) -> None:
        self.queues: dict[str, Queue] = {}
        """Those with jobs that have not ended, or with volunteers."""
        self.patience_us = 0
        """So long a task waits for somebody busy who has not had its job."""
        self._turn = turn
        self._timers = timers
        self._moved: dict[Worker, None] = {}
        """Workers whose capacity changed; their queues do not know yet."""
        self._stirred: dict[Queue, None] = {}
        """Queues in which something might be leased."""
        self._served = 0
        self._places = 0

    def queue(self, kind: str) -> Queue:
        """Of a kind that is well written."""
        queue = self.queues.get(kind)
        if queue is None:
            queue = self.queues[kind] = Queue(kind)
        return queue

    def tidy(self, queue: Queue) -> None:
        """Forget it if nobody needs it."""
        if not queue.jobs and not queue.volunteers:
            self.queues.pop(queue.kind, None)
            self._stirred.pop(queue, None)

    # -- what changes -------------------------------------------------------------------------------------------------

    def join(self, worker: Worker, queue: Queue) -> None:
        """It is a volunteer from now on."""
        worker.queues.append(queue)
        queue.join(worker)
        self._moved[worker] = None

    def leave(self, worker: Worker, queue: Queue) -> None:
        """It is no volunteer for now."""
        worker.queues.remove(queue)
        queue.leave(worker)
        self._stirred[queue] = None  # what only it could have taken is for others now
        self.tidy(queue)

    def forget(self, worker: Worker) -> None:
        """It is in no queue, and never will be."""
        worker.free = None  # which knows its worker
        self._moved.pop(worker, None)

    def end(self, job: Job) -> None:
        """None of its tasks may be leased any more."""
        queue = job.queue
        queue.end(job)
        job.ready = []
        self.tidy(queue)

    def moved(self, worker: Worker) -> None:
        """Its capacity, or what it has, is another."""
        self._moved[worker] = None

    def ready(self, task: Task) -> None:
        """It may be leased from now on."""
        job = task.job
        if not job.ready:
            job.passed_us = task.begins_us
            job.queue.push(job)
        job.ready.append(task)
        self._stirred[job.queue] = None

    def begin(self, job: Job) -> None:
        """All its tasks may be leased; nobody had any of them yet."""
        job.queue.tag(job)
        job.ready = job.tasks[::-1]
        job.queue.push(job)
        self._stirred[job.queue] = None

    def on_patience(self, line: Line) -> None:
        """Its first job may have waited for somebody else long enough."""
        if line.queue.unblock(line):
            self._stirred[line.queue] = None

    # -- leasing ------------------------------------------------------------------------------------------------------

    def run(self, now_us: int) -> None:
        """Lease what can be leased."""
        self._place_moved()
        stirred = [(queue.urgency, queue.served, place, queue) for place, queue in enumerate(self._stirred)]
        self._stirred.clear()
        heapify(stirred)
        while stirred:
            queue = stirred[0][3]
            is_alone = len(stirred) == 1
            while (is_more := self._serve(queue, now_us)) and is_alone:
                pass
            if not is_more:
                heappop(stirred)
            else:
                self._place_moved()
                heapreplace(stirred, (queue.urgency, queue.served, stirred[0][2], queue))

    def _place_moved(self) -> None:
        if not self._moved:
            return
        for worker in self._moved:
            free = self._place(worker)
            for queue in worker.queues:
                if free is not None:
                    queue.offer(worker, free)
                    if queue.has_ready:
                        self._stirred[queue] = None
        self._moved.clear()

    def _place(self, worker: Worker) -> Free | None:
        capacity, held = worker.capacity, len(worker.leases)
        if held >= capacity:
            worker.free = None
            return None
        self._places += 1
        worker.free = (held / min(capacity, WEIGHED_CAPACITY), worker.served, self._places, worker)
        return worker.free

    def _serve(self, queue: Queue, now_us: int) -> bool:
        """Lease what can be leased of the next job. False: there is nothing more that can be done."""
        line = queue.first()
        if line is None or (worker := queue.first_free()) is None:
            return False
        job = line.heap[0][3]
        if len(job.ready) == 1 and line is queue.untouched:  # as most are: everything below comes to this
            self._lease(job.ready.pop(), worker, now_us)
            queue.served = self._served
            queue.took(line, 1)
            return True
        if queue.put_right(line):
            return True
        fresh, known = queue.fresh(line), len(job.had)
        picked = queue.pick(line, len(job.ready)) if fresh else []
        for better in picked:
            self._lease(job.ready.pop(), better, now_us)
        if picked:
            job.passed_us = now_us
        if fresh <= len(picked):  # all have had it
            while job.ready and (another := queue.first_free()) is not None:
                self._lease(job.ready.pop(), another, now_us)
        elif not picked:
            due_us = max(job.passed_us, job.ready[0].begins_us) + self.patience_us
            if due_us > now_us and queue.block(line):
                self._timers.set(line, due_us)
                return True
            self._lease(job.ready.pop(0), worker, now_us)
        queue.served = self._served
        queue.took(line, len(job.had) - known)
        return True

    def _lease(self, task: Task, worker: Worker, now_us: int) -> None:
        job = task.job
        turn = self._turn
        task.state = task_after(task.state, "lease")
        task.fence += 1
        name = worker.name
        if task.fence > 1 and task.worker not in task.had:
            task.had = (*task.had, task.worker)[-MAX_HAD:]
        job.had_by(worker)
        turn.tell(
            job.kind,
            Happening(
                "leased",
                job.number,
                job.controller,
                now_us,
                task.number,
                name,
                task.fence,
                waited_us=now_us - task.begins_us,
            ),
        )
        task.worker = name
        task.instance = worker.instance
        task.begins_us = task.since_us = now_us
        job.leased += 1
        worker.leases[task] = None
        self._served += 1
        worker.served = self._served
        if (free := self._place(worker)) is not None:
            job.queue.put_back(free)
        if len(worker.queues) > 1:
            self._moved[worker] = None
        if job.time_limit_ms is not None:
            self.limit(task)
        turn.changed_tasks[task] = None
        turn.leased.append(task)

    def limit(self, task: Task) -> None:
        """Watch over the time that this attempt takes, if its job has a limit."""
        if (limit_ms := task.job.time_limit_ms) is not None:
            self._timers.set(task, task.since_us + limit_ms * 1000)
