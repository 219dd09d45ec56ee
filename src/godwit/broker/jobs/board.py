"""The board: all jobs, tasks and workers, and every decision about them. It knows no link, no log and no clock.

Feed it (a call, with the time), then drain it: what a turn brought is in the attributes of Turn, and next_timer_us says
when on_time is due. Tasks are leased by `dispatch`, once at the end of a turn, so that a turn's work goes in groups.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from godwit.broker.jobs.crew import Crew
from godwit.broker.jobs.dispatch import Dispatch
from godwit.broker.jobs.ends import Ends
from godwit.broker.jobs.model import Job, Task, Worker
from godwit.broker.jobs.ready import Line
from godwit.broker.jobs.restore import restore
from godwit.broker.jobs.shelf import Shelf
from godwit.broker.jobs.starts import Starts
from godwit.broker.jobs.states import ENDED
from godwit.broker.jobs.timers import Timers
from godwit.broker.jobs.turn import TimerOwner, Turn
from godwit.limits import MAX_DUE_AT_ONCE, PATIENCE_S
from godwit.wire.changes import StoredState
from godwit.wire.jobs import Ref
from godwit.wire.work import Submission


class Board(Turn):
    """Times are microseconds since the epoch, which never go backwards."""

    def __init__(self, *, lease_us: int, keep_us: int) -> None:
        super().__init__()
        self.keep_us = keep_us
        """An ended job is remembered for so long."""
        self.next_job = 1
        self.workers: dict[str, Worker] = {}
        """By name: who volunteered and is connected, and who has leases."""
        self._shelf = Shelf()
        self.jobs = self._shelf.jobs
        """By number, also those that ended and are remembered."""
        self._timers: Timers[TimerOwner] = Timers()
        self._dispatch = Dispatch(self, self._timers)
        self._starts = Starts(self, self._dispatch, self._shelf, self._timers)
        self._ends = Ends(self, self._dispatch, self._shelf, self._timers, self.workers)
        self._be_patient(lease_us)
        self._crew = Crew(lease_us, self.workers, self._dispatch, self._starts, self._ends, self._timers, self)

    @property
    def lease_us(self) -> int:
        """A worker that reports nothing for so long loses its tasks."""
        return self._crew.lease_us

    @property
    def unended(self) -> int:
        """How many jobs have not ended."""
        return self._shelf.unended

    @property
    def unsettled(self) -> int:
        """How many of those wait for their time or a first volunteer."""
        return self._shelf.unsettled

    def change(self, *, lease_us: int, keep_us: int) -> None:
        self.keep_us = keep_us
        self._crew.change(lease_us)
        self._be_patient(lease_us)

    def _be_patient(self, lease_us: int) -> None:
        self._dispatch.patience_us = max(lease_us, int(PATIENCE_S * 1_000_000))

    # -- controllers --------------------------------------------------------------------------------------------------

    def submit(self, controller: str, submission: Submission, payload: bytes, now_us: int) -> Job:
        """The new job, or the one that this controller knows by this key; RequestFailure if it cannot be."""
        known = self._shelf.keys.get((controller, submission.key))
        if known is not None:
            return known
        job = self._starts.submit(self.next_job, controller, submission, payload, now_us)
        self.next_job += 1
        return job

    def cancel(self, job: Job, reason: str, now_us: int) -> None:
        """One that has ended stays as it is."""
        if job.state not in ENDED:
            self._ends.cancel(job, reason, now_us)

    def discard(self, job: Job) -> None:
        """As if it had never been submitted: the log refused it, and nobody was told of it."""
        self._ends.discard(job)

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
        """What it does from now on; no kinds: nothing new. RequestFailure if a kind cannot be.

        Returns which of the leases that it believes to have it does not have. On a new link, what it does not know of
        was lost on the way and goes back.
        """
        worker = self._crew.volunteer(name, instance, kinds, capacity, now_us)
        unknown = [ref for ref in holding if self._held(name, ref) is None and not self.is_repeat(ref, name)]
        if is_new_link:
            held = set(holding)
            for task in [task for task in worker.leases if task.ref not in held]:
                self._ends.give_back(task, now_us)
        self._ends.forget_idle(worker)
        return unknown

    def heard(self, name: str, now_us: int) -> None:
        """It reported something, which renews all its leases."""
        self._crew.heard(name, now_us)

    def finish(self, name: str, ref: Ref, result: bytes, now_us: int) -> bool:
        """False, here and below: it does not have this lease."""
        task = self._held(name, ref)
        if task is None:
            return False
        self._ends.finish(task, result, now_us)
        return True

    def fail(self, name: str, ref: Ref, error: str, is_final: bool, now_us: int) -> bool:
        task = self._held(name, ref)
        if task is None:
            return False
        self._ends.fail(task, error, now_us, is_final=is_final)
        return True

    def give_back(self, name: str, ref: Ref, now_us: int) -> bool:
        task = self._held(name, ref)
        if task is None:
            return False
        self._ends.give_back(task, now_us)
        return True

    def take_back(self, name: str, ref: Ref, now_us: int) -> bool:
        """As if it had been handed back, but the worker never heard of it."""
        task = self._held(name, ref)
        if task is None:
            return False
        self._ends.take_back(task, now_us)
        return True

    def step(self, name: str, ref: Ref, progress: float | None, note: str) -> Task | None:
        """How far it is. None: it does not have this lease."""
        task = self._held(name, ref)
        if task is not None:
            task.progress = progress
            task.note = note
        return task

    def is_repeat(self, ref: Ref, name: str) -> bool:
        """Whether this very lease brought the task's result: what is reported of it was reported before."""
        job = self.jobs.get(ref[0])
        if job is None or ref[1] >= len(job.tasks):
            return False
        task = job.tasks[ref[1]]
        return task.state == "finished" and task.fence == ref[2] and task.worker == name

    def withdraw(self, name: str, kinds_lost: Collection[str] | None, now_us: int) -> None:
        """It does no more of any kind; or may do no more of these, and what it has of them is taken from it."""
        self._crew.withdraw(name, kinds_lost, now_us)

    def away(self, name: str, now_us: int) -> None:
        """Its connection was lost. What it has stays with it until it was silent for too long."""
        worker = self.workers.get(name)
        if worker is not None:
            self._crew.disconnect(worker, now_us)

    def leave(self, name: str, now_us: int) -> None:
        """It said goodbye, or was kicked: what it has goes back."""
        self._crew.leave(name, now_us)

    def logged_in(self, name: str, instance: bytes, now_us: int) -> None:
        """This run of it is there: what another one had is lost."""
        self._crew.displace(name, instance, now_us)

    def _held(self, name: str, ref: Ref) -> Task | None:
        """The task, if this is its present lease and this worker has it."""
        job = self.jobs.get(ref[0])
        if job is None or ref[1] >= len(job.tasks):
            return None
        task = job.tasks[ref[1]]
        return task if task.state == "leased" and task.fence == ref[2] and task.worker == name else None

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def next_timer_us(self) -> int | None:
        timer_us = self._timers.next_us()
        ended_us = self._shelf.first_end_us
        if ended_us is None:
            return timer_us
        gone_us = ended_us + self.keep_us
        return gone_us if timer_us is None else min(timer_us, gone_us)

    def on_time(self, now_us: int) -> None:
        """Do what is due by now. If that is a lot, the rest is left, and still due."""
        for _ in range(MAX_DUE_AT_ONCE):
            owner = self._timers.due(now_us)
            if owner is None:
                break
            if isinstance(owner, Task):
                self._on_task_time(owner, now_us)
            elif isinstance(owner, Job):
                self._on_job_time(owner, now_us)
            elif isinstance(owner, Worker):
                self._crew.on_silence(owner, now_us)
            elif isinstance(owner, Line):
                self._dispatch.on_patience(owner)
            else:
                self._starts.settle(owner, now_us)
        self._shelf.remove_ended(now_us - self.keep_us, MAX_DUE_AT_ONCE, self.gone)

    def dispatch(self, now_us: int) -> None:
        """Lease what can be leased now."""
        self._dispatch.run(now_us)

    def restore(self, state: StoredState, now_us: int) -> None:
        """How things stood when the broker stopped. It is empty before."""
        self.next_job = state.next_job
        restore(state, now_us, self._shelf, self._dispatch, self._starts, self._crew, self._timers)

    def _on_task_time(self, task: Task, now_us: int) -> None:
        if task.state == "waiting":
            self._dispatch.ready(task)  # the pause after a failure is over
        else:
            self._ends.overrun(task, now_us)

    def _on_job_time(self, job: Job, now_us: int) -> None:
        if job.deadline_us is not None and job.deadline_us <= now_us:
            self._ends.miss_deadline(job, now_us)
        else:
            self._starts.on_delay(job, now_us)
