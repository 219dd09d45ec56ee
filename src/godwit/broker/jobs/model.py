"""Jobs, tasks, workers, the states they can have, and the output of one turn of the scheduler.

All state changes are in two tables, JOB_CHANGES and TASK_CHANGES. A change that is not in its table is a defect of the
broker and raises ForbiddenChangeError, so an impossible state is never reached, stored or sent. The diagrams in
docs/JOBS.md are generated from the tables:

    python -m godwit.broker.jobs.model
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

import msgspec

from godwit.limits import MAX_HAD
from godwit.wire.jobs import JobSpec, JobState, Ref, TaskState

if TYPE_CHECKING:
    from godwit.broker.jobs.queue import JobQueue

# -- states -----------------------------------------------------------------------------------------------------------

JobTrigger: TypeAlias = Literal["settled", "all finished", "all ended, one failed", "cancel", "deadline"]
TaskTrigger: TypeAlias = Literal[
    "lease", "result", "failure", "last failure", "return", "loss", "last loss", "cancel", "deadline"
]
State = TypeVar("State", bound=str)
Trigger = TypeVar("Trigger", bound=str)


class ForbiddenChangeError(Exception):
    """A trigger occurred that is impossible in the present state of a job or task: a defect of the broker."""


class Transitions(dict[Trigger, State]):
    """The next state for each trigger that is possible in one state; ForbiddenChangeError for any other trigger."""

    __slots__ = ("_subject",)

    def __init__(self, subject: str, changes: Mapping[Trigger, State]) -> None:
        super().__init__(changes)
        self._subject = subject

    def __missing__(self, trigger: Trigger) -> State:
        raise ForbiddenChangeError(f"the trigger {trigger!r} is impossible for a {self._subject}")


JOB_CHANGES: Final[dict[JobState, Transitions[JobTrigger, JobState]]] = {
    "waiting": Transitions("waiting job", {"settled": "running", "cancel": "cancelled", "deadline": "failed"}),
    "running": Transitions(
        "running job",
        {
            "all finished": "done",
            "all ended, one failed": "failed",
            "cancel": "cancelled",
            "deadline": "failed",
        },
    ),
    "done": Transitions("done job", {}),
    "failed": Transitions("failed job", {}),
    "cancelled": Transitions("cancelled job", {}),
}
TASK_CHANGES: Final[dict[TaskState, Transitions[TaskTrigger, TaskState]]] = {
    "waiting": Transitions("waiting task", {"lease": "leased", "cancel": "cancelled", "deadline": "failed"}),
    "leased": Transitions(
        "leased task",
        {
            "result": "finished",
            "failure": "waiting",
            "last failure": "failed",
            "return": "waiting",
            "loss": "waiting",
            "last loss": "failed",
            "cancel": "cancelled",
            "deadline": "failed",
        },
    ),
    "finished": Transitions("finished task", {}),
    "failed": Transitions("failed task", {}),
    "cancelled": Transitions("cancelled task", {}),
}
ENDED: Final = frozenset({"done", "finished", "failed", "cancelled"})


def state_diagrams() -> str:
    """Return both tables as Mermaid diagrams, as docs/JOBS.md shows them."""
    return f"A job:\n\n{_mermaid(JOB_CHANGES)}\n\nA task:\n\n{_mermaid(TASK_CHANGES)}\n"


def _mermaid(changes: Mapping[State, Mapping[Trigger, State]]) -> str:
    return "\n".join(["```mermaid", "stateDiagram-v2", *(f"    {line}" for line in _arrows(changes)), "```"])


def _arrows(changes: Mapping[State, Mapping[Trigger, State]]) -> Iterator[str]:
    """Yield one arrow for each pair of states, labelled with all its triggers."""
    yield f"[*] --> {next(iter(changes))}"
    for state, triggers in changes.items():
        for after in dict.fromkeys(triggers.values()):
            yield f"{state} --> {after}: {' / '.join(trigger for trigger in triggers if triggers[trigger] == after)}"
        if not triggers:
            yield f"{state} --> [*]"


# -- jobs, tasks and workers ------------------------------------------------------------------------------------------

MAX_SHARED_WORKERS: Final = 32
"""Sets of more workers than this are rarely equal for two jobs and slow to compare, so they are not shared."""
_NO_WORKERS: Final[frozenset[str]] = frozenset()

FreeSlot: TypeAlias = tuple[float, int, int, "PoolWorker"]
"""The heap key of a worker with free capacity: load, time of its last lease, a serial number that makes the key unique.
The smallest is served first."""


class Job:
    """What a controller asked for, and its present state."""

    __slots__ = (
        "agreed", "begins_us", "controller", "deadline_us", "ended_us", "failed", "finished", "is_stored", "kind",
        "leased", "number", "passed_us", "payload", "queue", "ready", "reason", "result_bytes", "spec", "state",
        "submitted_us", "tag", "tasks", "text_bytes", "tried_workers",
    )  # fmt: skip

    def __init__(
        self, number: int, controller: str, spec: JobSpec, queue: JobQueue, payload: bytes, submitted_us: int
    ) -> None:
        self.number = number
        self.controller = controller
        self.spec = spec
        """All options, as the controller sent them."""
        self.kind = spec.of_kind
        self.queue = queue
        self.payload = payload
        """Emptied when the job has ended; `spec.size` remains."""
        self.submitted_us = submitted_us
        self.begins_us = submitted_us + 1000 * spec.delay_ms
        """The earliest time at which its tasks can be leased."""
        self.deadline_us = None if spec.deadline_ms is None else submitted_us + 1000 * spec.deadline_ms
        self.state: JobState = "waiting"
        self.agreed: int | None = None
        """The number of its tasks; None before the job is settled."""
        self.ended_us: int | None = None
        self.reason = ""
        """Why it failed or was cancelled."""
        self.tasks: list[JobTask] = []
        self.finished = 0
        self.failed = 0
        self.leased = 0
        """The number of its tasks in each of these states."""
        self.result_bytes = 0
        self.text_bytes = 0
        """The size of the stored error texts of its tasks."""
        self.is_stored = False
        """Whether the log contains the job and its controller may know about it."""
        self.ready: list[JobTask] = []
        """Tasks that can be leased now; the last one is leased first."""
        self.tried_workers: AbstractSet[str] = _NO_WORKERS
        """Workers that hold or held one of its tasks: see add_tried_worker."""
        self.passed_us = 0
        """Since when a ready task has been waiting for a worker that has not tried this job."""
        self.tag = 0
        """Its position among the jobs of its priority: see FairShare."""

    def add_tried_worker(self, worker: PoolWorker) -> None:
        """Record that a worker got one of its tasks.

        Small sets are frozen, so that jobs tried by the same workers can share a group; large ones are changed in
        place.
        """
        tried = self.tried_workers
        if not tried:
            self.tried_workers = worker.name_set
        elif worker.name in tried:
            return
        elif len(tried) > MAX_HAD * len(self.tasks):
            if len(self.tasks) == 1:  # remember the most recent ones, as the task does
                self.tried_workers = frozenset((*self.tasks[0].previous_workers, worker.name))
        elif isinstance(tried, set):
            tried.add(worker.name)
        else:
            self.tried_workers = tried | worker.name_set if len(tried) < MAX_SHARED_WORKERS else {*tried, worker.name}

    def __repr__(self) -> str:
        return f"<job {self.number} {self.kind} {self.state}>"


class JobTask:
    """The part of a job that one worker does."""

    __slots__ = (
        "begins_us", "error", "failures", "fence", "instance", "job", "losses", "note", "number", "previous_workers",
        "progress", "result", "returns", "since_us", "state", "worker",
    )  # fmt: skip

    def __init__(self, job: Job, number: int, now_us: int) -> None:
        self.job = job
        self.number = number
        """Counted from 0 within the job."""
        self.state: TaskState = "waiting"
        self.worker = ""
        """The worker that holds the task, or held it last."""
        self.instance = b""
        """The instance (process run) of that worker."""
        self.fence = 0
        """The fencing number: counts the leases of this task."""
        self.failures = 0
        self.losses = 0
        self.returns = 0
        """How many times in succession it was returned undone."""
        self.begins_us = now_us
        """The earliest time of the next lease; for a leased task, the start of the lease."""
        self.since_us = now_us
        """When it entered its present state."""
        self.previous_workers: tuple[str, ...] = ()
        """Workers that held it before the present one, the latest last; at most MAX_HAD."""
        self.progress: float | None = None
        self.note = ""
        self.result = b""
        self.error = ""
        """The error of the last failed attempt."""

    @property
    def ref(self) -> Ref:
        """Its present or last lease."""
        return self.job.number, self.number, self.fence

    def __repr__(self) -> str:
        return f"<task {self.job.number}.{self.number} {self.state} fence {self.fence} {self.worker}>"


class PoolWorker:
    """A worker that has volunteered, or still holds leases. One name is one worker."""

    __slots__ = (
        "capacity", "free_slot", "heard_us", "instance", "is_connected", "is_stalled", "kinds", "last_lease",
        "lease_us", "leases", "name", "name_set", "queues",
    )  # fmt: skip

    def __init__(self, name: str, instance: bytes, now_us: int) -> None:
        self.name = name
        self.name_set = frozenset((name,))
        self.instance = instance
        self.kinds: tuple[str, ...] = ()
        """The kinds of work that it volunteered for."""
        self.capacity = 0
        self.leases: dict[JobTask, None] = {}
        self.lease_us = 0
        """It loses its leases after this time without a report: the time it was given, or a longer one set later."""
        self.heard_us = now_us
        """When it last reported."""
        self.is_connected = False
        self.is_stalled = False
        """It is connected but did not report in time: it gets no tasks until it reports again."""
        self.queues: list[JobQueue] = []
        """The queues where it can get tasks at present: those of its kinds, or none."""
        self.last_lease = 0
        """The serial number of its latest lease: the smallest has been waiting for longest."""
        self.free_slot: FreeSlot | None = None
        """Its entry in its queues while it has free capacity; any other entry found there is outdated."""

    def __repr__(self) -> str:
        return f"<worker {self.name} {len(self.leases)}/{self.capacity}>"


# -- output of a turn -------------------------------------------------------------------------------------------------


class JobEvent(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One event of a job, published as JSON on `$jobs/<kind>`."""

    event: str
    job: int
    controller: str
    at_us: int
    task: int | None = None
    worker: str = ""
    fence: int = 0
    agreed: int | None = None
    workers: int | None = None
    priority: int | None = None
    payload_bytes: int | None = None
    result_bytes: int | None = None
    waited_us: int | None = None
    """From when the task could be leased until it was leased."""
    ran_us: int | None = None
    """From the lease until its end."""
    failures: int = 0
    losses: int = 0
    error: str = ""
    reason: str = ""


class TurnOutput:
    """What the scheduler changed since JobCommits last took it."""

    __slots__ = ("changed_jobs", "changed_tasks", "deleted", "events", "leased", "new_jobs", "revoked", "stalled")

    def __init__(self) -> None:
        self.new_jobs: list[Job] = []
        self.changed_jobs: dict[Job, None] = {}
        """Jobs with a new state."""
        self.changed_tasks: dict[JobTask, None] = {}
        """Tasks that were leased or ended, or changed in more than their progress."""
        self.deleted: list[int] = []
        """Numbers of deleted jobs. Written last: a job may have ended in this very turn."""
        self.leased: list[JobTask] = []
        """A task in it may have ended, or been leased again, in the same turn: compare its state and fence."""
        self.revoked: list[tuple[str, Ref, str]] = []
        """Leases that the broker ended, of connected workers: worker name, lease, reason."""
        self.stalled: list[str] = []
        """Names of workers that did not report in time."""
        self.events: defaultdict[str, list[JobEvent]] = defaultdict(list)
        """By kind of work, which determines the topic."""


class JobActivity:
    """Whether the job part has anything to do at the end of a turn. Its parts share one object.

    The broker tests `is_active` and skips the job part while it is False.
    """

    __slots__ = ("has_commit_result", "is_active", "is_dirty")

    def __init__(self) -> None:
        self.is_active = False
        """Whether JobService.finish_turn or send_output has anything to do."""
        self.is_dirty = False
        """Whether the scheduler may have tasks to lease or changes to write."""
        self.has_commit_result = False
        """Whether the log has answered an append since WorkReceiver last looked."""

    def mark_dirty(self) -> None:
        """Run the scheduler at the end of this turn."""
        self.is_active = self.is_dirty = True


if __name__ == "__main__":
    print(state_diagrams(), end="")
