"""Which jobs there are, a page at a time, and who may see them.

A job is for its controller, for those who work on it now, and for whoever may subscribe to what happens to its kind.
Those who only work on it cannot follow it: they would go on hearing what the others bring.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from godwit.broker.catalogue import JOBS, Catalogue
from godwit.broker.jobs.board import Board
from godwit.broker.jobs.model import Job, Task
from godwit.broker.jobs.party import who
from godwit.broker.ports import RequestFailure
from godwit.broker.session import Session
from godwit.wire import jobs as wire
from godwit.wire.control import Code

PAGE_BYTES: Final = 64 * 1024
"""What a page is filled up to: half of what a control message may have."""
JOBS_A_PAGE: Final = 1000
"""So many are looked at, also if the client may see none of them."""
ENTRY_STEPS: Final = 4
"""An entry of a page costs as much as this many jobs that are only looked at."""
COPIES_A_STEP: Final = 64
"""This many numbers of jobs are copied in the time of one look."""
ENTRY_BYTES: Final = 256
"""Of one entry of a page, besides its texts."""
CHARACTER_BYTES: Final = 4
"""A character has at most so many."""


class Listing:
    """Each method is one request; what cannot be done is a RequestFailure."""

    def __init__(self, board: Board, catalogue: Catalogue) -> None:
        self._board = board
        self._catalogue = catalogue

    def may_follow(self, session: Session, job: Job) -> bool:
        """Whether this client may hear what becomes of a job."""
        access = self._catalogue.settings.access
        return job.controller == who(session) or access.may(
            session.name, session.is_proved, "subscribe", JOBS + job.kind
        )

    def _works_on(self, session: Session) -> set[Job]:
        worker = self._board.workers.get(who(session))
        return set() if worker is None else {task.job for task in worker.leases}

    def find(self, session: Session, number: int) -> Job:
        """A job that this client may see."""
        job = self._board.jobs.get(number)
        is_seen = job is not None and (self.may_follow(session, job) or job in self._works_on(session))
        if job is None or not job.is_stored or not is_seen:
            raise RequestFailure(
                Code.NO_SUCH_JOB, f"there is no job {number}, or no longer, or it is not for {session.name} to see"
            )
        return job

    def jobs(self, session: Session, request: wire.Jobs) -> tuple[wire.JobList, int]:
        """Return a page of the jobs that fit the request, the newest first, and the steps that it cost."""
        numbers = list(self._board.jobs)  # they are in order: the board counts upwards
        at = len(numbers) if request.before is None else bisect_left(numbers, request.before)
        steps = len(numbers) // COPIES_A_STEP + min(at, JOBS_A_PAGE)
        found: list[wire.JobInfo] = []
        room = PAGE_BYTES
        works_on = self._works_on(session)
        for number in reversed(numbers[max(at - JOBS_A_PAGE, 0) : at]):
            job = self._board.jobs[number]
            is_seen = job.is_stored and _fits(job, request)
            if is_seen and (job in works_on or self.may_follow(session, job)):
                texts = len(job.key) + len(job.controller) + len(job.kind) + len(job.reason)
                room -= ENTRY_BYTES + CHARACTER_BYTES * texts
                if room < 0:
                    return wire.JobList(request=request.request, jobs=found, more=True, before=number + 1), steps
                found.append(job_info(job))
                steps += ENTRY_STEPS
        if at > JOBS_A_PAGE:
            before = numbers[at - JOBS_A_PAGE]
            return wire.JobList(request=request.request, jobs=found, more=True, before=before), steps
        return wire.JobList(request=request.request, jobs=found), steps

    def job(self, session: Session, request: wire.Job) -> tuple[wire.JobShown, int]:
        """Return one of them with a page of its tasks, and the steps that it cost."""
        job = self.find(session, request.job)
        info = job_info(job)
        tasks: list[wire.TaskInfo] = []
        room = PAGE_BYTES
        for task in job.tasks[request.first_task :]:
            room -= ENTRY_BYTES + CHARACTER_BYTES * (len(task.worker) + len(task.note) + len(task.error))
            if room < 0:
                shown = wire.JobShown(request=request.request, job=info, tasks=tasks, more=True)
                return shown, ENTRY_STEPS * len(tasks)
            tasks.append(_task_info(task))
        return wire.JobShown(request=request.request, job=info, tasks=tasks), ENTRY_STEPS * (1 + len(tasks))


def _fits(job: Job, request: wire.Jobs) -> bool:
    return (
        (request.of_kind is None or job.kind == request.of_kind)
        and (request.controller is None or job.controller == request.controller)
        and (request.states is None or job.state in request.states)
    )


def job_info(job: Job) -> wire.JobInfo:
    """What is told of a job."""
    return wire.JobInfo(
        job=job.number,
        key=job.key,
        controller=job.controller,
        of_kind=job.kind,
        state=job.state,
        workers=job.workers,
        agreed=job.agreed,
        finished=job.finished,
        failed=job.failed,
        leased=job.leased,
        priority=job.priority,
        submitted_us=job.submitted_us,
        begins_us=job.begins_us,
        deadline_us=job.deadline_us,
        ended_us=job.ended_us,
        payload_bytes=job.payload_bytes,
        reason=job.reason,
    )


def _task_info(task: Task) -> wire.TaskInfo:
    return wire.TaskInfo(
        task=task.number,
        state=task.state,
        worker=task.worker,
        fence=task.fence,
        failures=task.failures,
        losses=task.losses,
        progress=task.progress,
        note=task.note,
        error=task.error,
        since_us=task.since_us,
        result_bytes=len(task.result),
    )
