"""From the board into the log: what changed in a turn is one append, and nothing of it is said before that is safe.

    board --seal--> under way --safe----> jobs are stored, leases given out, watchers told
                        ^    \\--failed--> new jobs are discarded, leases taken back; all else waits in memory
                        \\-----------------------------------------------------------------/

Turns are numbered. Whatever waits for one looks whether `safe` has come so far.
"""

from __future__ import annotations

from functools import partial
from itertools import chain

from godwit.broker.append_queue import AppendQueue
from godwit.broker.dirty_state import DirtyState
from godwit.broker.jobs.board import Board
from godwit.broker.jobs.model import Happening, Job, Task
from godwit.broker.jobs.party import Party
from godwit.broker.jobs.recording import Recording
from godwit.broker.jobs.states import ENDED
from godwit.broker.jobs.telling import Telling


class _Page:
    """What one append has of work."""

    __slots__ = ("gone", "happened", "jobs", "leased", "new_jobs", "number", "tasks")

    def __init__(self, number: int) -> None:
        self.number = number
        self.new_jobs: list[Job] = []
        self.jobs: dict[Job, None] = {}
        """That have changed."""
        self.tasks: dict[Task, None] = {}
        self.leased: list[tuple[Task, int]] = []
        """With their fencing numbers."""
        self.gone: list[int] = []
        self.happened: dict[str, list[Happening]] = {}
        """By kind."""

    def __bool__(self) -> bool:
        return bool(self.new_jobs or self.jobs or self.tasks or self.gone or self.happened)

    def fill(self, board: Board) -> None:
        """With all that the board has brought."""
        self.new_jobs, board.new_jobs = board.new_jobs, []
        self.jobs, board.changed_jobs = board.changed_jobs, {}
        self.tasks, board.changed_tasks = board.changed_tasks, {}
        self.leased = [(task, task.fence) for task in board.leased]
        self.gone, board.gone = board.gone, []
        self.happened, board.happened = board.happened, {}
        board.leased = []

    def add(self, other: _Page) -> None:
        self.new_jobs += other.new_jobs
        self.jobs.update(other.jobs)
        self.tasks.update(other.tasks)
        self.leased += other.leased
        self.gone += other.gone
        for kind, happenings in other.happened.items():
            self.happened.setdefault(kind, []).extend(happenings)

    def leave_out(self, discarded: set[int]) -> None:
        """These jobs never came about."""
        self.new_jobs = [job for job in self.new_jobs if job.number not in discarded]
        self.jobs = {job: None for job in self.jobs if job.number not in discarded}
        self.tasks = {task: None for task in self.tasks if task.job.number not in discarded}
        self.leased = [(task, fence) for task, fence in self.leased if task.job.number not in discarded]
        self.gone = [number for number in self.gone if number not in discarded]
        happened = {
            kind: [one for one in happenings if one.job not in discarded] for kind, happenings in self.happened.items()
        }
        self.happened = {kind: happenings for kind, happenings in happened.items() if happenings}


class Ledger:
    """Feed: seal, at the end of a turn; the log's answers come by themselves. Look: the rest."""

    def __init__(
        self,
        board: Board,
        journal: DirtyState,
        commits: AppendQueue,
        recording: Recording,
        telling: Telling,
        workers: dict[str, Party],
        unsafe: dict[Job | Task, int],
    ) -> None:
        self._board = board
        self._journal = journal
        self._commits = commits
        self._recording = recording
        self._telling = telling
        self._workers = workers
        self._unsafe = unsafe
        """In which turn they changed last, of those that are not safe."""
        self.is_stirred = False
        """Whether the board may have something to do, or to write, at the end of the turn."""
        self.given = 0
        """The last turn that went to the log."""
        self.safe = 0
        """The last one that the log has, and so all before it."""
        self.has_moved = False
        """Whether the log has answered since somebody looked."""
        self.is_failing = False
        """The log could not be written the last time. No task is leased then, because nobody could be told."""
        self.failure = ""
        self._under_way = 0
        self._again: _Page | None = None
        """What could not be written."""
        self._now_us = 0
        self._discarded: set[int] = set()
        """Of the turns that failed last; the one that is not sealed yet may know them, too."""

    def is_unsafe(self, job: Job) -> bool:
        """Whether its own state is not in the log as it stands."""
        return job in self._unsafe

    @property
    def due_us(self) -> int | None:
        """When that is tried again which could not be written."""
        return self._commits.retry_at_us if self._again is not None else None

    def is_due(self, now_us: int) -> bool:
        """Whether that is to be tried again now. It goes with whatever else is appended, because part of it will."""
        if self._again is None:
            return False
        return now_us >= self._commits.retry_at_us or self._commits.is_filled(now_us)

    def seal(self, now_us: int) -> None:
        """What the board has to write goes to the log."""
        self._now_us = now_us
        page = self._take()
        if not page:
            if self.is_failing and not self._under_way:
                self._reach(self.given)  # all that failed was discarded
            return
        self._under_way += 1
        number = self.given = page.number
        for changed in (page.new_jobs, page.jobs, page.tasks):
            self._unsafe.update(dict.fromkeys(changed, number))
        next_job = self._board.next_job if page.new_jobs else 0
        self._journal.work(chain(page.new_jobs, page.jobs), page.tasks, page.gone, next_job)
        self._recording.record(page.happened, now_us)
        self._commits.wait(partial(self._on_safe, page), partial(self._on_failed, page))

    def _take(self) -> _Page:
        page = _Page(self.given + 1)
        page.fill(self._board)
        if self._discarded:
            page.leave_out(self._discarded)
            self._discarded.clear()
        if self._again is not None:
            again, self._again = self._again, None
            again.number = page.number
            again.add(page)
            return again
        return page

    def _reach(self, number: int) -> None:
        """All is safe up to this turn."""
        self.safe = number
        self.has_moved = True
        if self.is_failing:
            self.is_failing = False
            self.is_stirred = True  # there may be something to lease, which was put off

    def _on_safe(self, page: _Page, first_offset: int) -> None:
        self._under_way -= 1
        number = page.number
        self._reach(number)
        telling = self._telling
        unsafe = self._unsafe
        for job in page.new_jobs:
            job.is_stored = True
            if unsafe.get(job) == number:  # else it has changed again
                del unsafe[job]
                if job.state in ENDED:  # else `taken` says enough
                    telling.job_changed(job)
        for job in page.jobs:
            if unsafe.get(job) == number:
                del unsafe[job]
                telling.job_changed(job)
        for task in page.tasks:
            if unsafe.get(task) == number:
                del unsafe[task]
                if task.fence == 1 and task.state == "leased":
                    telling.task_leased(task)
                else:
                    telling.task_changed(task)
        for task, fence in page.leased:
            party = self._workers.get(task.worker)
            if party is not None:
                telling.lease(party, task, fence)
        if page.gone:
            telling.gone(page.gone)

    def _on_failed(self, page: _Page, text: str) -> None:
        self._under_way -= 1
        self.has_moved = self.is_failing = True
        self.failure = text
        for job in page.new_jobs:
            self._discard(job)
        for task in page.tasks:
            if task.job.number in self._discarded:
                self._unsafe.pop(task, None)
        page.leave_out(self._discarded)
        for task, fence in page.leased:  # nobody was told: else their time would run, and the disk may fail for long
            self._board.take_back(task.worker, (task.job.number, task.number, fence), self._now_us)
        if self._again is None:
            self._again = page
        else:
            self._again.add(page)

    def _discard(self, job: Job) -> None:
        number = job.number
        self._discarded.add(number)
        if self._board.jobs.get(number) is job:
            self._board.discard(job)
        self._journal.forget_job(job)
        self._telling.discard(number)
        self._unsafe.pop(job, None)
