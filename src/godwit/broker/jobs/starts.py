"""How jobs begin: they are submitted, wait for their time or for a first volunteer, and are cut into tasks."""

from __future__ import annotations

from itertools import islice
from typing import Final

from godwit.broker.jobs.dispatch import Dispatch
from godwit.broker.jobs.model import Happening, Job, Task
from godwit.broker.jobs.ready import Queue
from godwit.broker.jobs.shelf import Shelf
from godwit.broker.jobs.states import job_after
from godwit.broker.jobs.timers import Timers
from godwit.broker.jobs.turn import TimerOwner, Turn
from godwit.broker.ports import RequestFailure
from godwit.broker.topics import check_kind
from godwit.errors import BadKindError
from godwit.limits import MAX_DUE_AT_ONCE, MAX_TASKS_OF_JOB, SETTLE_S
from godwit.wire.codes import Code
from godwit.wire.work import Submission

SETTLE_US: Final = int(SETTLE_S * 1_000_000)


class Starts:
    """Begins jobs, and says so in the turn."""

    __slots__ = ("_dispatch", "_shelf", "_timers", "_turn")

    def __init__(self, turn: Turn, dispatch: Dispatch, shelf: Shelf, timers: Timers[TimerOwner]) -> None:
        self._turn = turn
        self._dispatch = dispatch
        self._shelf = shelf
        self._timers = timers

    def submit(self, number: int, controller: str, submission: Submission, payload: bytes, now_us: int) -> Job:
        """RequestFailure if it cannot be."""
        kind = submission.of_kind
        queue = self._dispatch.queues.get(kind)
        if queue is None:
            check(kind)
            queue = self._dispatch.queue(kind)
        delay_ms = submission.delay_ms
        agreed = 0 if delay_ms else _agreed(submission.workers, queue)
        shelf = self._shelf
        if not shelf.may_submit(controller, agreed or 1, len(payload)) or not shelf.make_room(
            agreed or 1, len(payload), self._turn.gone
        ):
            self._dispatch.tidy(queue)
            raise RequestFailure(
                Code.TOO_MANY,
                "you have as many jobs as the others' leave room for, or the broker as many as it can hold:"
                " submit it again when some have ended",
            )
        deadline_ms = submission.deadline_ms
        job = Job(
            number,
            controller,
            submission.key,
            queue,
            payload,
            submission.workers,
            submission.priority,
            now_us,
            now_us + delay_ms * 1000 if delay_ms else now_us,
            None if deadline_ms is None else now_us + deadline_ms * 1000,
            submission.retries,
            submission.retry_delay_ms,
            submission.time_limit_ms,
        )
        queue.jobs += 1
        if agreed:
            self._agree(job, agreed, now_us)
        self._shelf.put(job)
        self._turn.new_jobs.append(job)
        self._turn.tell(
            kind,
            Happening(
                "submitted",
                number,
                controller,
                now_us,
                agreed=job.agreed,
                workers=job.workers,
                priority=job.priority,
                payload_bytes=job.payload_bytes,
            ),
        )
        if not agreed or deadline_ms is not None:
            self.wait(job, now_us)
        return job

    def wait(self, job: Job, now_us: int) -> None:
        """For its delay or a volunteer, if it has not begun; for its deadline."""
        deadline_us = job.deadline_us
        if job.state == "waiting" and job.begins_us > now_us:
            self._timers.set(job, job.begins_us if deadline_us is None else min(job.begins_us, deadline_us))
            return
        if job.state == "waiting":
            job.queue.waiting[job] = None
        if deadline_us is not None:
            self._timers.set(job, deadline_us)

    def on_delay(self, job: Job, now_us: int) -> None:
        """It is over."""
        self.wait(job, now_us)
        if job.queue.volunteers:
            self._settle_one(job, now_us)

    def settle_later(self, queue: Queue, now_us: int) -> None:
        """Its first volunteer has come; others may follow."""
        if queue.waiting and queue not in self._timers:  # else one that comes and goes would put it off for ever
            self._timers.set(queue, now_us + SETTLE_US)

    def settle(self, queue: Queue, now_us: int) -> None:
        """Its jobs that waited for volunteers begin, if there are any now."""
        if not queue.volunteers:
            return
        for job in list(islice(queue.waiting, MAX_DUE_AT_ONCE)):
            if not self._settle_one(job, now_us):  # others need less room, perhaps
                del queue.waiting[job]
                queue.waiting[job] = None
        if queue.waiting and queue not in self._timers:  # they were too many for one turn
            self._timers.set(queue, now_us + 1)

    def _settle_one(self, job: Job, now_us: int) -> bool:
        """False: there is no room for its tasks. It waits on."""
        queue = job.queue
        agreed = _agreed(job.workers, queue)
        shelf = self._shelf
        if not shelf.may_settle(job.controller, agreed - 1) or not shelf.make_room(agreed - 1, 0, self._turn.gone):
            self.settle_later(queue, now_us)
            return False
        shelf.settle(job, agreed)
        del queue.waiting[job]
        self._agree(job, agreed, now_us)
        self._turn.changed_jobs[job] = None
        self._turn.tell(
            job.kind, Happening("settled", job.number, job.controller, now_us, agreed=agreed, workers=job.workers)
        )
        return True

    def _agree(self, job: Job, agreed: int, now_us: int) -> None:
        job.state = job_after(job.state, "settled")
        job.agreed = agreed
        job.tasks = [Task(job, 0, now_us)] if agreed == 1 else [Task(job, number, now_us) for number in range(agreed)]
        self._dispatch.begin(job)


def check(kind: str) -> None:
    """RequestFailure if no kind of work can be called so."""
    try:
        check_kind(kind)
    except BadKindError as error:
        raise RequestFailure(Code.BAD_KIND, str(error)) from None


def _agreed(workers: int, queue: Queue) -> int:
    """How many do it, as things are; 0: nobody is there."""
    volunteers = min(len(queue.volunteers), MAX_TASKS_OF_JOB)
    return min(workers, volunteers) if workers else volunteers
