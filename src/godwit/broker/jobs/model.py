"""What the board knows: jobs, their tasks, the workers, and what happened to them."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from godwit.limits import MAX_HAD
from godwit.wire.jobs import JobState, Ref, TaskState

if TYPE_CHECKING:
    from godwit.broker.jobs.ready import Queue

SHARED_HAD: Final = 32
"""Beyond so many, sets of those who had a job are hardly ever the same, and long to compare."""
_NOBODY: Final[frozenset[str]] = frozenset()

Free: TypeAlias = tuple[float, int, int, "Worker"]
"""A worker's place among those with free capacity; the smallest comes first. The last number makes it unique."""


class Job:
    """What a controller asked for, and what became of it."""

    __slots__ = (
        "agreed", "begins_us", "controller", "deadline_us", "ended_us", "failed", "finished", "had", "is_stored", "key",
        "kind", "leased", "number", "passed_us", "payload", "payload_bytes", "priority", "queue", "ready", "reason",
        "result_bytes", "retries", "retry_delay_ms", "state", "submitted_us", "tag", "tasks", "text_bytes",
        "time_limit_ms", "workers",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        controller: str,
        key: str,
        queue: Queue,
        payload: bytes,
        workers: int,
        priority: int,
        submitted_us: int,
        begins_us: int,
        deadline_us: int | None,
        retries: int,
        retry_delay_ms: int,
        time_limit_ms: int | None,
    ) -> None:
        self.number = number
        self.controller = controller
        self.key = key
        """The controller's own word for it."""
        self.kind = queue.kind
        self.queue = queue
        self.payload = payload
        self.payload_bytes = len(payload)
        self.workers = workers
        """As asked for; 0: all."""
        self.priority = priority
        self.submitted_us = submitted_us
        self.begins_us = begins_us
        self.deadline_us = deadline_us
        self.retries = retries
        self.retry_delay_ms = retry_delay_ms
        self.time_limit_ms = time_limit_ms
        self.state: JobState = "waiting"
        self.agreed: int | None = None
        """How many tasks it has; None before it is settled."""
        self.ended_us: int | None = None
        self.reason = ""
        self.tasks: list[Task] = []
        self.finished = 0
        self.failed = 0
        self.leased = 0
        """How many of its tasks are in these states."""
        self.result_bytes = 0
        self.text_bytes = 0
        """Of the errors that its tasks keep."""
        self.is_stored = False
        """Whether it is in the log's state, and its submitter knows it. Set by those who write it down."""
        self.ready: list[Task] = []
        """Tasks that may be leased now; the last one comes first."""
        self.had: AbstractSet[str] = _NOBODY
        """Workers that have, or had, any of its tasks: see had_by."""
        self.passed_us = 0
        """Since when it waits for somebody who has not had it, if it does."""
        self.tag = 0
        """Its place in the order of its priority: see Queue."""

    def had_by(self, worker: Worker) -> None:
        """It gets a task. Small sets are frozen, and shared by jobs that are in the same hands; large ones grow."""
        had = self.had
        if not had:
            self.had = worker.alone
        elif worker.name in had:
            return
        elif len(had) > MAX_HAD * len(self.tasks):
            if len(self.tasks) == 1:  # as the task does, it remembers the last ones
                self.had = frozenset((*self.tasks[0].had, worker.name))
        elif isinstance(had, set):
            had.add(worker.name)
        else:
            self.had = had | worker.alone if len(had) < SHARED_HAD else {*had, worker.name}

    def __repr__(self) -> str:
        return f"<job {self.number} {self.kind} {self.state}>"


class Task:
    """One worker's share of a job."""

    __slots__ = (
        "begins_us", "error", "failures", "fence", "had", "instance", "job", "losses", "note", "number", "progress",
        "result", "returns", "since_us", "state", "worker",
    )  # fmt: skip

    def __init__(self, job: Job, number: int, now_us: int) -> None:
        self.job = job
        self.number = number
        """Counted from 0 within the job."""
        self.state: TaskState = "waiting"
        self.worker = ""
        """Who has it, or had it last."""
        self.instance = b""
        """Which run of the worker."""
        self.fence = 0
        """Counts its leases."""
        self.failures = 0
        self.losses = 0
        self.returns = 0
        """How often it was handed back in a row."""
        self.begins_us = now_us
        """Not leased before; while it is leased, when that began."""
        self.since_us = now_us
        """When it got into this state."""
        self.had: tuple[str, ...] = ()
        """Workers that had it before this one, the last one last; see MAX_HAD."""
        self.progress: float | None = None
        self.note = ""
        self.result = b""
        self.error = ""
        """Of the last attempt that failed."""

    @property
    def ref(self) -> Ref:
        """Its present or last lease."""
        return self.job.number, self.number, self.fence

    def __repr__(self) -> str:
        return f"<task {self.job.number}.{self.number} {self.state} fence {self.fence} {self.worker}>"


class Worker:
    """Somebody who volunteered, or still has tasks. A name is one worker."""

    __slots__ = (
        "alone", "capacity", "free", "heard_us", "instance", "is_connected", "is_silent", "kinds", "lease_us", "leases",
        "name", "queues", "served",
    )  # fmt: skip

    def __init__(self, name: str, instance: bytes, now_us: int) -> None:
        self.name = name
        self.alone = frozenset((name,))
        self.instance = instance
        self.kinds: tuple[str, ...] = ()
        """What it volunteered for."""
        self.capacity = 0
        self.leases: dict[Task, None] = {}
        self.lease_us = 0
        """It may be silent for so long: what it was told, or more."""
        self.heard_us = now_us
        self.is_connected = False
        self.is_silent = False
        """It is connected but reported nothing for too long: no volunteer until it does."""
        self.queues: list[Queue] = []
        """Where it counts as a volunteer at present: those of its kinds, or none."""
        self.served = 0
        """Grows with every lease of the board: who has the smallest waited longest."""
        self.free: Free | None = None
        """Its place in its queues, if it has any capacity left; others found there are old."""

    def __repr__(self) -> str:
        return f"<worker {self.name} {len(self.leases)}/{self.capacity}>"


class Happening(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What happened, as a message on `$jobs/<kind>` tells it in JSON."""

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
    """From when it could be leased until it was."""
    ran_us: int | None = None
    """From the lease until it ended."""
    failures: int = 0
    losses: int = 0
    error: str = ""
    reason: str = ""
