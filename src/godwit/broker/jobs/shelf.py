"""Which jobs are known, and how much room they take.

Ended jobs stay for a while, so that their controllers find them. They go early, the oldest first, when others need
their room. What counts is the number of tasks, and the bytes of payloads, results and errors.

No controller may fill the shelf for the others: its jobs that have not ended have at most half of what theirs leave.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from godwit.broker.jobs.model import Job
from godwit.broker.jobs.states import ENDED
from godwit.limits import MAX_JOBS, MAX_JOBS_BYTES, MAX_SUBMITTED_BYTES, MAX_TASKS


class Share:
    """What the jobs of one controller that have not ended take."""

    __slots__ = ("jobs", "outcome_bytes", "payload_bytes", "tasks")

    def __init__(self) -> None:
        self.jobs = 0
        self.tasks = 0
        self.payload_bytes = 0
        self.outcome_bytes = 0
        """Of results and errors."""


class Shelf:
    """All jobs, by number and by key."""

    __slots__ = (
        "_ended", "_ended_bytes", "_ended_tasks", "_shares", "jobs", "keys", "task_count", "total_bytes", "unsettled",
    )  # fmt: skip

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.keys: dict[tuple[str, str], Job] = {}
        """By controller and key."""
        self.task_count = 0
        """Of all jobs; one that has none counts as one."""
        self.total_bytes = 0
        self.unsettled = 0
        """Jobs that have no tasks yet."""
        self._ended: OrderedDict[Job, None] = OrderedDict()
        """The one that ended first comes first."""
        self._shares: dict[str, Share] = {}
        """By controller."""
        self._ended_tasks = 0
        self._ended_bytes = 0

    @property
    def unended(self) -> int:
        return len(self.jobs) - len(self._ended)

    @property
    def first_end_us(self) -> int | None:
        """When the first of the ended jobs ended."""
        return next(iter(self._ended)).ended_us if self._ended else None

    def put(self, job: Job) -> None:
        self.jobs[job.number] = job
        self.keys[job.controller, job.key] = job
        self.task_count += len(job.tasks) or 1
        self.unsettled += not job.tasks
        self.total_bytes += _bytes(job)
        share = self._shares.get(job.controller)
        if share is None:
            share = self._shares[job.controller] = Share()
        share.jobs += 1
        share.tasks += len(job.tasks) or 1
        share.payload_bytes += len(job.payload)
        share.outcome_bytes += job.result_bytes + job.text_bytes

    def settle(self, job: Job, tasks: int) -> None:
        """It had no tasks, and has so many."""
        self.task_count += tasks - 1
        self.unsettled -= 1
        self._shares[job.controller].tasks += tasks - 1

    def grow(self, job: Job, size_bytes: int) -> None:
        """It has not ended, and has so much more."""
        self.total_bytes += size_bytes
        self._shares[job.controller].outcome_bytes += size_bytes

    def end(self, job: Job) -> None:
        """Nobody gets its payload any more, so that need not stay."""
        self._leave_share(job)
        if job.is_stored:
            self.total_bytes -= len(job.payload)
            job.payload = b""
        self._ended[job] = None
        self.unsettled -= not job.tasks
        self._ended_tasks += len(job.tasks) or 1
        self._ended_bytes += _bytes(job)

    def remove(self, job: Job) -> None:
        del self.jobs[job.number]
        del self.keys[job.controller, job.key]
        tasks, size_bytes = len(job.tasks) or 1, _bytes(job)
        self.task_count -= tasks
        self.total_bytes -= size_bytes
        if job.state in ENDED:
            del self._ended[job]
            self._ended_tasks -= tasks
            self._ended_bytes -= size_bytes
        else:
            self.unsettled -= not job.tasks
            self._leave_share(job)

    def may_submit(self, controller: str, tasks: int, payload_bytes: int) -> bool:
        """Whether its unended jobs may be one more: they have at most half of what those of others leave."""
        share = self._shares.get(controller)
        if share is None:
            share = _NOTHING
        own_bytes = share.payload_bytes + share.outcome_bytes
        return (
            self.unended + share.jobs + 2 <= MAX_JOBS
            and self.task_count - self._ended_tasks + share.tasks + 2 * tasks <= MAX_TASKS
            and self.total_bytes - self._ended_bytes + own_bytes + 2 * payload_bytes <= MAX_SUBMITTED_BYTES
        )

    def may_settle(self, controller: str, tasks: int) -> bool:
        """Whether one of them may have so many tasks more."""
        return self.task_count - self._ended_tasks + self._shares[controller].tasks + 2 * tasks <= MAX_TASKS

    def may_keep(self, controller: str, result_bytes: int) -> bool:
        """Whether one of them may have this result: all of them have at most half of what anything else leaves."""
        own_bytes = self._shares[controller].outcome_bytes
        return self.total_bytes - self._ended_bytes + own_bytes + 2 * result_bytes <= MAX_JOBS_BYTES

    def make_room(self, tasks: int, size_bytes: int, gone: list[int]) -> bool:
        """For so much more. False: all ended jobs together do not have it, and none had to go."""
        if (
            self.task_count - self._ended_tasks + tasks > MAX_TASKS
            or self.total_bytes - self._ended_bytes + size_bytes > MAX_JOBS_BYTES
        ):
            return False
        while self.task_count + tasks > MAX_TASKS or self.total_bytes + size_bytes > MAX_JOBS_BYTES:
            self._remove_first(gone)
        return True

    def remove_ended(self, until_us: int, most: int, gone: list[int]) -> None:
        """Those that ended by then, but not more than so many."""
        for _ in range(most):
            ended_us = self.first_end_us
            if ended_us is None or ended_us > until_us:
                return
            self._remove_first(gone)

    def _remove_first(self, gone: list[int]) -> None:
        job = next(iter(self._ended))
        self.remove(job)
        gone.append(job.number)
        job.tasks = []  # they know their job: else both would wait for the garbage collector, which comes rarely

    def _leave_share(self, job: Job) -> None:
        share = self._shares[job.controller]
        share.jobs -= 1
        share.tasks -= len(job.tasks) or 1
        share.payload_bytes -= len(job.payload)
        share.outcome_bytes -= job.result_bytes + job.text_bytes
        if not share.jobs:
            del self._shares[job.controller]


_NOTHING: Final = Share()


def _bytes(job: Job) -> int:
    return len(job.payload) + job.result_bytes + job.text_bytes
