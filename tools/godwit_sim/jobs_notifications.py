"""The checker of what workers and controllers are told: nothing that is not safe in the log, and never back in time.

A client may miss how a job stood for a while, for states are told, not events. But whatever it is told, the job or the
task must have stood like that, and not before what the client knew already. A result, once told, is the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from godwit.client.comparing import JobView
from godwit.client.leasing import Lease
from godwit.wire.jobs import JobInfo, TaskInfo
from godwit_sim.checkers import ViolationError
from godwit_sim.jobs_log_model import Chronicle, JobLedger, Order, Run, Story, TaskStory


@dataclass(slots=True, eq=False)
class Following:
    """A job in the eyes of one client, in one of its lives."""

    label: str
    order: Order | None
    """None: somebody else's job, that is watched."""
    stood: int = 0
    """How far in the job's history the client is."""
    tasks_stood: dict[int, int] = field(default_factory=dict)


class TellingChecker:
    """Feed: everything that clients are told of jobs and leases."""

    NAME: Final = "told"

    def __init__(self, ledger: JobLedger, chronicle: Chronicle) -> None:
        self._ledger = ledger
        self._chronicle = chronicle

    # -- controllers --------------------------------------------------------------------------------------------------

    def taken(self, following: Following, view: JobView) -> None:
        """The job has a number."""
        story = self._story(following, view)
        if story.order is not following.order:
            raise self._violation(following, f"its {following.order} is {story}")
        if view.agreed not in {agreed for _, agreed in story.history}:
            raise self._violation(following, f"{story} agreed on {view.agreed}, which it never did")

    def changed(self, following: Following, view: JobView, now: float) -> None:
        """The job stands like this. Who hears of its end long after it may not get the results any more."""
        story = self._story(following, view)
        following.stood = self._find(following, story, story.history, (view.state, view.agreed), following.stood)
        for number, seen in view.tasks.items():
            task = story.tasks.get(number)
            if task is None:
                raise self._violation(following, f"{story} has no task {number}")
            stand = (seen.state, seen.worker, seen.fence, seen.failures, seen.losses)
            stood = following.tasks_stood.get(number, 0)
            following.tasks_stood[number] = self._find(following, story, task.history, stand, stood, number)
            self._check_task(following, story, task, seen)
            is_late = seen.result is None and self._chronicle.may_be_gone(story, now)
            if seen.state == "finished" and seen.result != task.result and not is_late:
                raise self._violation(following, f"task {number} of {story} brought another result than it did")

    def _find(
        self, following: Following, story: Story, history: list[Any], stand: Any, since: int, task: int | None = None
    ) -> int:
        try:
            return history.index(stand, since)
        except ValueError:
            what = "" if task is None else f"task {task} of "
            when = "never again" if stand in history else "never"
            raise self._violation(
                following, f"{what}{story} is {stand}, but {when} was since {history[since]}; it was {history}"
            ) from None

    def _check_task(self, following: Following, story: Story, task: TaskStory, seen: Any) -> None:
        where = f"task {task.number} of {story}"
        if seen.error not in task.errors:
            raise self._violation(following, f"{where} failed with {seen.error!r}, not one of {sorted(task.errors)}")
        if seen.progress is not None or seen.note:
            run = self._ledger.runs.get((story.number, task.number, seen.fence))
            if run is None or (seen.progress, seen.note) not in run.steps:
                raise self._violation(following, f"{where} is at {seen.progress} {seen.note!r}, which nobody said")

    def ended(self, following: Following, view: JobView, now: float) -> None:
        """The client will hear no more of it: what it knows is the end. Who is very late may not hear of all tasks."""
        story = self._story(following, view)
        tasks = {number: task.state for number, task in story.tasks.items()}
        if not story.is_ended or (view.state, view.agreed) != story.stand:
            raise self._violation(following, f"it ended {view.state}, {view.agreed}; it is {story}, {story.agreed}")
        is_late = self._chronicle.may_be_gone(story, now)
        if tasks != {number: task.state for number, task in view.tasks.items()} and not is_late:
            raise self._violation(following, f"{story} ended with {view.tasks}, its tasks are {tasks}")

    def unknown(self, following: Following, number: int, now: float) -> None:
        """The broker does not know the job (any more)."""
        story = self._chronicle.stories.get(number)
        if story is not None and not self._chronicle.may_be_gone(story, now):
            raise self._violation(following, f"{story} is not known, but it is there")

    def listed(self, label: str, info: JobInfo, tasks: Sequence[TaskInfo] = ()) -> None:
        """Somebody looked at the job, and perhaps at its tasks."""
        story = self._chronicle.stories.get(info.job)
        if story is None or (info.state, info.agreed) not in story.history:
            raise ViolationError(self.NAME, f"{label} was shown {info}, but it is {story}")
        kept = story.kept
        shown = (info.controller, info.key, info.of_kind, info.workers, info.priority, info.deadline_us)
        if shown != (kept.controller, kept.key, kept.kind, kept.workers, kept.priority, kept.deadline_us):
            raise ViolationError(self.NAME, f"{label} was shown {info}, but {kept} was asked for")
        for task in tasks:
            stand = (task.state, task.worker, task.fence, task.failures, task.losses)
            if task.task not in story.tasks or stand not in story.tasks[task.task].history:
                raise ViolationError(self.NAME, f"{label} was shown {task} of {story}, it never was so")

    def over(self, label: str, number: int) -> None:
        """The broker has answered that the job is cancelled, or had ended before."""
        story = self._chronicle.stories.get(number)
        if story is None or not story.is_ended:
            raise ViolationError(self.NAME, f"{label} was told that job {number} is over: it is {story}")

    def _story(self, following: Following, view: JobView) -> Story:
        story = self._chronicle.stories.get(view.number or 0)
        if story is None:
            raise self._violation(following, f"of job {view.number}, which is not safe")
        return story

    # -- workers ------------------------------------------------------------------------------------------------------

    def leased(self, run: Run, lease: Lease) -> None:
        """A worker has got a task."""
        number, task_number, fence = lease.ref
        story = self._chronicle.stories.get(number)
        task = None if story is None else story.tasks.get(task_number)
        if story is None or task is None:
            raise ViolationError(self.NAME, f"{run}: it is not safe that there is such a task")
        stand = ("leased", run.worker, fence, lease.failures)
        if stand not in {known[:4] for known in task.history}:
            raise ViolationError(self.NAME, f"{run}: given as {stand}, it was {task.history}")
        kept = story.kept
        told = (lease.kind, lease.controller, lease.agreed, lease.time_limit_ms, lease.deadline_us)
        if told != (kept.kind, kept.controller, story.agreed, kept.time_limit_ms, kept.deadline_us):
            raise ViolationError(self.NAME, f"{run}: of {told}, but it is {kept}")
        if lease.payload != story.ask.payload:
            raise ViolationError(self.NAME, f"{run}: {len(lease.payload)} bytes that are not those of the job")

    def reported(self, run: Run) -> None:
        """A worker was told that its outcome is safe, or that the lease had ended before."""
        number, task_number, fence = run.ref
        task = self._chronicle.stories[number].tasks[task_number]
        if not run.is_over:
            raise ViolationError(self.NAME, f"{run}: confirmed, but it was not reported")
        if task.state == "leased" and task.fence == fence:
            raise ViolationError(self.NAME, f"{run}: its outcome was confirmed, by the log it still has the task")
        run.is_reported = True

    def _violation(self, following: Following, text: str) -> ViolationError:
        return ViolationError(self.NAME, f"{following.label} was told: {text}")
