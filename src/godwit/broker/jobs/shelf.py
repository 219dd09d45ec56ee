"""Which jobs are known, and how much room they take.

Ended jobs stay for a while, so that their controllers find them. They go early, the oldest first, when others need
their room. What counts is the number of tasks, and the bytes of payloads, results and errors.
"""

from __future__ import annotations

from collections import deque

from godwit.broker.jobs.model import Job
from godwit.broker.jobs.states import ENDED
from godwit.limits import MAX_JOBS_BYTES, MAX_TASKS


class Shelf:
    """All jobs, by number and by key."""

    __slots__ = ("_ended", "_ended_bytes", "_ended_tasks", "jobs", "keys", "task_count", "total_bytes", "unsettled")

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.keys: dict[tuple[str, str], Job] = {}
        """By controller and key."""
        self.task_count = 0
        """Of all jobs; one that has none counts as one."""
        self.total_bytes = 0
        self.unsettled = 0
        """Jobs that have no tasks yet."""
        self._ended: deque[Job] = deque()
        """The one that ended first comes first."""
        self._ended_tasks = 0
        self._ended_bytes = 0

    @property
    def unended(self) -> int:
        return len(self.jobs) - len(self._ended)

    @property
    def first_end_us(self) -> int | None:
        """When the first of the ended jobs ended."""
        return self._ended[0].ended_us if self._ended else None

    def put(self, job: Job) -> None:
        self.jobs[job.number] = job
        self.keys[job.controller, job.key] = job
        self.task_count += len(job.tasks) or 1
        self.unsettled += not job.tasks
        self.total_bytes += _bytes(job)

    def settle(self, tasks: int) -> None:
        """A job that had no tasks has so many."""
        self.task_count += tasks - 1
        self.unsettled -= 1

    def grow(self, size_bytes: int) -> None:
        """A job that has not ended has so much more."""
        self.total_bytes += size_bytes

    def end(self, job: Job) -> None:
        """Nobody gets its payload any more, so that need not stay."""
        if job.is_stored:
            self.total_bytes -= len(job.payload)
            job.payload = b""
        self._ended.append(job)
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
            self._ended.remove(job)
            self._ended_tasks -= tasks
            self._ended_bytes -= size_bytes
        else:
            self.unsettled -= not job.tasks

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

    def remove_ended(self, until_us: int, gone: list[int]) -> None:
        """Those that ended by then."""
        while (ended_us := self.first_end_us) is not None and ended_us <= until_us:
            self._remove_first(gone)

    def _remove_first(self, gone: list[int]) -> None:
        job = self._ended[0]
        self.remove(job)
        gone.append(job.number)
        job.tasks = []  # they know their job: else both would wait for the garbage collector, which comes rarely


def _bytes(job: Job) -> int:
    return len(job.payload) + job.result_bytes + job.text_bytes
