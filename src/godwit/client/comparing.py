"""How a job stands, as far as this client knows, and what happened when it stands differently.

The broker tells states, not events: what lies between two of them may be skipped, and after a break the whole state
comes again. So what happened is worked out by comparing, and is told once, however often the state was.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from godwit.errors import DecodeError
from godwit.limits import MAX_TASKS_OF_JOB
from godwit.wire.jobs import JobSpec, JobState, TaskState
from godwit.wire.work import JobUpdate, TaskUpdate

ViewState: TypeAlias = JobState | Literal["sending", "refused", "unknown"]
What: TypeAlias = Literal[
    "settled", "leased", "progress", "failure", "reassigned", "result", "task_failed", "ended"
]  # fmt: skip

ENDED: Final = frozenset(("done", "failed", "cancelled"))
_ENDED_VIEW: Final = ENDED | {"refused", "unknown"}
_ENDED_TASK: Final = frozenset(("finished", "failed", "cancelled"))


class TaskView(msgspec.Struct, frozen=True, gc=False):
    """How a task stands."""

    state: TaskState
    worker: str
    """Who has it, or had it last."""
    fence: int
    """Counts its leases, from 1."""
    progress: float | None
    note: str
    failures: int
    losses: int
    error: str
    """Of the last attempt that failed."""
    result: bytes | None
    """None: it has not finished."""


class Change(NamedTuple):
    """What happened to a job or one of its tasks.

    settled       it is known how many workers do the job
    leased        a worker has begun with the task
    progress      of the task
    failure       an attempt failed; the task will be tried again
    reassigned    another lease of the task has begun, with another worker or once more with the same
    result        the task has one
    task_failed   for good
    ended         the job; its state says how
    """

    what: What
    task: int | None = None
    """Its number."""
    view: TaskView | None = None
    """The task as it stood then: the job's view may have gone on when this is read."""


class JobView(msgspec.Struct, eq=False, weakref=True):
    """A job as this client knows it. Each is itself: equal to no other, also not to another one of the same job."""

    key: str
    """The controller's word for it; empty for a job that is only watched."""
    kind: str
    """Empty for a job that is only watched, for it is not told."""
    workers: int = 0
    """As asked for; 0: all."""
    number: int | None = None
    """The broker's, once it has taken the job."""
    state: ViewState = "sending"
    """sending: nothing was heard of it yet. refused, or unknown to the broker (any more): these are ends too."""
    agreed: int | None = None
    reason: str = ""
    """Why it was refused, was cancelled, or failed."""
    tasks: dict[int, TaskView] = {}
    """As many as were agreed, numbered from 0."""
    owner: Any = None
    """For the layer above, which may put there what it likes."""
    submission: JobSpec | None = None
    payload: bytes = b""
    """Kept until the broker has answered."""
    mark: int | None = None
    """Of a job with a key of the application's: how many requests to unwatch were made before it was submitted. -1: one
    of them was not answered yet."""
    is_unwanted: bool = False
    """Nobody wants to know what becomes of it."""
    twin: JobView | None = None
    """Another view of the same job."""

    @property
    def is_ended(self) -> bool:
        return self.state in _ENDED_VIEW

    def settle(self, agreed: int) -> None:
        """So many workers will do it; DecodeError if that cannot be."""
        if not 0 < agreed <= MAX_TASKS_OF_JOB:
            raise DecodeError("work", f"a job with {agreed} tasks")
        self.agreed = agreed
        self.tasks = dict.fromkeys(range(agreed), UNTOUCHED)


UNTOUCHED: Final = TaskView("waiting", "", 0, None, "", 0, 0, "", None)
"""A task that no worker has had: nothing is told of it."""
SETTLED: Final = Change("settled")
JOB_ENDED: Final = Change("ended")


def apply(view: JobView, update: JobUpdate, payloads: list[bytes], at: int) -> list[Change]:
    """Brings the view up to date, and tells what happened. `payloads` has those of the update's tasks from `at` on.

    What has ended stays as it is, whatever the broker says of it later.
    """
    changes: list[Change] = []
    agreed = update.agreed
    if agreed is not None and view.agreed is None:
        view.settle(agreed)
        changes.append(SETTLED)
    tasks = view.tasks
    for place, task in enumerate(update.tasks, at):
        old = tasks.get(task.task)
        if old is None:
            raise DecodeError("work", f"task {task.task} of job {update.job}, for which {view.agreed} were agreed")
        if old.state not in _ENDED_TASK and task.fence >= old.fence:
            tasks[task.task] = _compare(old, task, payloads[place], changes)
    if update.state != "waiting" or view.state == "sending":
        view.state = update.state
    if update.reason:
        view.reason = update.reason
    if update.state in ENDED:
        changes.append(JOB_ENDED)
    return changes


def catch_up(view: JobView, known: JobView) -> list[Change]:
    """Brings a view that has heard nothing of its tasks to where another one of the same job stands."""
    changes: list[Change] = []
    if view.agreed is None and known.agreed is not None:
        changes.append(SETTLED)
    view.agreed, view.state, view.reason = known.agreed, known.state, known.reason
    view.tasks = known.tasks.copy()
    for number, task in view.tasks.items():
        _tell(number, UNTOUCHED, task, changes)
    return changes


def _compare(old: TaskView, new: TaskUpdate, result: bytes, changes: list[Change]) -> TaskView:
    progress, note = new.progress, new.note
    if progress is None:
        if not note and new.fence == old.fence:  # a broker that was restarted has forgotten it
            progress, note = old.progress, old.note
    elif not 0 <= progress <= 1:
        raise DecodeError("work", f"a task that is {progress} done")
    view = TaskView(
        new.state,
        new.worker,
        new.fence,
        progress,
        note,
        new.failures,
        new.losses,
        new.error,
        result if new.state == "finished" else None,
    )
    _tell(new.task, old, view, changes)
    return view


def _tell(number: int, old: TaskView, new: TaskView, changes: list[Change]) -> None:
    state, fence = new.state, new.fence
    if new.failures > old.failures and state != "failed":
        changes.append(Change("failure", number, new))
    if fence > old.fence:
        if fence > 1:
            changes.append(Change("reassigned", number, new))
        elif state == "leased":
            changes.append(Change("leased", number, new))
        old = UNTOUCHED
    if state == "leased":
        if new.progress != old.progress or new.note != old.note:
            changes.append(Change("progress", number, new))
    elif state == "finished":
        changes.append(Change("result", number, new))
    elif state == "failed":
        changes.append(Change("task_failed", number, new))
