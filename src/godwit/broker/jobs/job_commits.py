"""From the scheduler into the log: the changes of a turn are one append, and clients hear of them when it is stored.

    output --write_turn--> in flight --stored--> jobs are stored, leases are sent, watching clients are notified
                               ^    \\--failed--> new jobs are discarded, leases withdrawn; all else waits for a retry
                               \\------------------------------------------------------------/

Turns are numbered. A reply that depends on a turn is sent when `stored_turn` has reached its number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final

import msgspec

from godwit.broker.append_queue import AppendQueue, OnFailure, Pending
from godwit.broker.catalogue import BROKER_NAME, JOBS, Catalogue, PublisherNumbers
from godwit.broker.dirty_state import DirtyState
from godwit.broker.jobs.model import ENDED, Job, JobActivity, JobEvent, JobTask
from godwit.broker.jobs.scheduler import Scheduler
from godwit.wire.batch import make_entry

MESSAGES_PER_BATCH: Final = 1024
_encode: Final = msgspec.json.Encoder().encode


class JobEventPublisher:
    """Publishes job events as messages on `$jobs/<kind>`, in the same append as the changes themselves."""

    def __init__(self, catalogue: Catalogue, names: PublisherNumbers, commits: AppendQueue) -> None:
        self._catalogue = catalogue
        self._commits = commits
        self._number = names.number(BROKER_NAME)

    def publish(self, events: Mapping[str, list[JobEvent]], now_us: int) -> None:
        """Append the events of a turn, by kind, in one batch for each kind (or more if they are many)."""
        for kind, of_kind in events.items():
            topic = self._catalogue.adopt(JOBS + kind)
            payloads = [*map(_encode, of_kind)]
            entries = []
            for at in range(0, len(payloads), MESSAGES_PER_BATCH):
                part = payloads[at : at + MESSAGES_PER_BATCH]
                entries.append(make_entry(topic.name, BROKER_NAME, part, qos=1, now_us=now_us))
            topic.messages += len(payloads)
            topic.payload_bytes += sum(map(len, payloads))
            topic.last_us = now_us
            # After a failed append, JobCommits publishes them again, except for events of discarded jobs.
            self._commits.fresh.append(Pending(None, topic, self._number, 0, entries, OnFailure.DROPPED))


class JobListener:
    """A port: receives the changes that the log has stored. A protocol that serves jobs overrides the methods."""

    def job_changed(self, job: Job) -> None:
        """Handle a new state of a job."""

    def task_changed(self, task: JobTask) -> None:
        """Handle a new state, or new progress, of a task."""

    def task_leased(self, task: JobTask) -> None:
        """Handle the first lease of a task."""

    def send_lease(self, task: JobTask, fence: int) -> None:
        """Send a lease to the task's worker, if it is still valid."""

    def jobs_deleted(self, numbers: Iterable[int]) -> None:
        """Handle the deletion of ended jobs."""

    def job_discarded(self, number: int) -> None:
        """Forget a job that could not be stored."""


class CommitBatch:
    """The job changes of one append."""

    __slots__ = ("deleted", "events", "jobs", "leased", "new_jobs", "tasks", "turn")

    def __init__(self, turn: int, scheduler: Scheduler) -> None:
        """Take the output of the scheduler."""
        output = scheduler.output
        self.turn = turn
        self.new_jobs, output.new_jobs = output.new_jobs, []
        self.jobs, output.changed_jobs = output.changed_jobs, {}
        self.tasks, output.changed_tasks = output.changed_tasks, {}
        self.leased = [(task, task.fence) for task in output.leased]
        """Leased tasks with their fencing numbers."""
        output.leased = []
        self.deleted, output.deleted = output.deleted, []
        self.events, output.events = output.events, defaultdict(list)

    def __bool__(self) -> bool:
        return bool(self.new_jobs or self.jobs or self.tasks or self.deleted or self.events)

    def add(self, other: CommitBatch) -> None:
        """Append the changes of a later batch."""
        self.new_jobs += other.new_jobs
        self.jobs.update(other.jobs)
        self.tasks.update(other.tasks)
        self.leased += other.leased
        self.deleted += other.deleted
        for kind, events in other.events.items():
            self.events[kind] += events

    def remove_jobs(self, discarded: set[int]) -> None:
        """Remove all changes of discarded jobs."""
        self.new_jobs = [job for job in self.new_jobs if job.number not in discarded]
        self.jobs = {job: None for job in self.jobs if job.number not in discarded}
        self.tasks = {task: None for task in self.tasks if task.job.number not in discarded}
        self.leased = [(task, fence) for task, fence in self.leased if task.job.number not in discarded]
        self.deleted = [number for number in self.deleted if number not in discarded]
        remaining: defaultdict[str, list[JobEvent]] = defaultdict(list)
        for kind, events in self.events.items():
            if of_kind := [event for event in events if event.job not in discarded]:
                remaining[kind] = of_kind
        self.events = remaining


@dataclass(eq=False)
class JobCommits:
    """Writes the scheduler's output to the log and notifies the listener when it is stored."""

    _scheduler: Scheduler
    _journal: DirtyState
    _commits: AppendQueue
    _publisher: JobEventPublisher
    _unstored: dict[Job | JobTask, int]
    """Shared with the protocol: for each job and task with changes that are not stored, the turn of the last one."""
    _activity: JobActivity
    """Is marked when the log has answered."""

    def __post_init__(self) -> None:
        self.listener = JobListener()
        """Is notified when changes are stored."""
        self.last_turn = 0
        """The last turn that was given to the log."""
        self.stored_turn = 0
        """The last turn that the log has stored, with all before it."""
        self.is_failing = False
        """Whether the last append failed. No task is leased then, because the lease could not be sent."""
        self.failure = ""
        """The text of that failure."""
        self._in_flight = 0
        self.retry: CommitBatch | None = None
        """Changes that could not be written and wait for another attempt."""
        self._now_us = 0
        self._discarded: set[int] = set()
        """Jobs discarded by the latest failures; the output that is not yet written may contain them, too."""

    def is_unstored(self, job: Job) -> bool:
        """Return whether the log does not contain the job's present state."""
        return job in self._unstored

    @property
    def retry_at_us(self) -> int:
        """When `retry` is due, if there is one."""
        return self._commits.retry_at_us

    def is_retry_due(self, now_us: int) -> bool:
        """Return whether `retry` is to be written now: it is due, or joins another append of this turn."""
        if self.retry is None:
            return False
        return now_us >= self._commits.retry_at_us or self._commits.is_filled(now_us)

    def write_turn(self, now_us: int) -> None:
        """Add the scheduler's output to the turn's append."""
        self._now_us = now_us
        batch = self._take_batch()
        if not batch:
            if self.is_failing and not self._in_flight:
                self._reach(self.last_turn)  # all failed changes were discarded
            return
        self._in_flight += 1
        turn = self.last_turn = batch.turn
        new_jobs, tasks, unstored = batch.new_jobs, batch.tasks, self._unstored
        for changed in (new_jobs, batch.jobs, tasks):
            unstored.update(dict.fromkeys(changed, turn))
        next_job = self._scheduler.next_job if new_jobs else 0
        self._journal.work(chain(new_jobs, batch.jobs), tasks, batch.deleted, next_job)
        self._publisher.publish(batch.events, now_us)
        self._commits.wait(partial(self._on_stored, batch), partial(self._on_failed, batch))

    def _take_batch(self) -> CommitBatch:
        batch = CommitBatch(self.last_turn + 1, self._scheduler)
        if self._discarded:
            batch.remove_jobs(self._discarded)
            self._discarded.clear()
        if self.retry is not None:
            retry, self.retry = self.retry, None
            retry.turn = batch.turn
            retry.add(batch)
            return retry
        return batch

    def _reach(self, turn: int) -> None:
        self.stored_turn = turn
        activity = self._activity
        activity.is_active = activity.has_commit_result = True
        if self.is_failing:
            self.is_failing = False
            activity.is_dirty = True  # tasks could not be leased meanwhile

    def _on_stored(self, batch: CommitBatch, first_offset: int) -> None:
        self._in_flight -= 1
        turn = batch.turn
        self._reach(turn)
        listener = self.listener
        unstored = self._unstored
        for job in batch.new_jobs:
            job.is_stored = True
            if unstored.get(job) == turn:  # else it has changed again
                del unstored[job]
                if job.state in ENDED:  # else the reply to the submission is sufficient
                    listener.job_changed(job)
        for job in batch.jobs:
            if unstored.get(job) == turn:
                del unstored[job]
                listener.job_changed(job)
        for task in batch.tasks:
            if unstored.get(task) == turn:
                del unstored[task]
                if task.fence == 1 and task.state == "leased":
                    listener.task_leased(task)
                else:
                    listener.task_changed(task)
        for task, fence in batch.leased:
            listener.send_lease(task, fence)
        if batch.deleted:
            listener.jobs_deleted(batch.deleted)

    def _on_failed(self, batch: CommitBatch, text: str) -> None:
        self._in_flight -= 1
        self._activity.is_active = self._activity.has_commit_result = self.is_failing = True
        self.failure = text
        for job in batch.new_jobs:
            self._discard(job)
        for task in batch.tasks:
            if task.job.number in self._discarded:
                self._unstored.pop(task, None)
        batch.remove_jobs(self._discarded)
        for task, fence in batch.leased:  # the workers do not know of them, and the disk may fail for a long time
            self._scheduler.withdraw_lease(task.worker, (task.job.number, task.number, fence), self._now_us)
        if self.retry is None:
            self.retry = batch
        else:
            self.retry.add(batch)

    def _discard(self, job: Job) -> None:
        number = job.number
        self._discarded.add(number)
        if self._scheduler.jobs.get(number) is job:
            self._scheduler.discard(job)
        self._journal.forget_job(job)
        self.listener.job_discarded(number)
        self._unstored.pop(job, None)
