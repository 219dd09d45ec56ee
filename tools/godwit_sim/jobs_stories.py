"""The story of each job, as the log's `$jobs` messages tell it: what they look like, and how jobs and tasks stand.

The meaning of the events is written down here once more, from the specification, so that the broker's own states are
checked against something else than themselves. Whether something may happen is the matter of jobs_chronicle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from godwit.limits import MAX_RETURN_PAUSE_S, RETURN_PAUSE_S
from godwit.wire.changes import JobRow
from godwit.wire.jobs import Ref
from godwit_sim.checkers import ViolationError
from godwit_sim.jobs_ledger import Ask, Order

ENDED: Final = ("done", "failed", "cancelled")
TASK_ENDED: Final = ("finished", "failed", "cancelled")

TaskStand: TypeAlias = tuple[str, str, int, int, int]
"""State, worker, fence, failures, losses."""
JobStand: TypeAlias = tuple[str, int | None]
"""State and agreed."""


class JobEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message on `$jobs/<kind>`."""

    event: str
    job: int
    controller: str
    at_us: int
    task: int | None = None
    worker: str = ""
    fence: int = 0
    agreed: int | None = None
    workers: int = 1
    priority: int = 0
    payload_bytes: int = 0
    result_bytes: int = 0
    waited_us: int = 0
    ran_us: int = 0
    failures: int = 0
    losses: int = 0
    error: str = ""
    reason: str = ""

    @property
    def ref(self) -> Ref:
        assert self.task is not None
        return self.job, self.task, self.fence


@dataclass(slots=True, eq=False)
class TaskStory:
    """One task, and every way it ever stood."""

    number: int
    ready_us: int
    """It is not leased before."""
    returns: int = 0
    """How often it was handed back in a row, at the most."""
    state: str = "waiting"
    worker: str = ""
    instance: bytes = b""
    """Which run of the worker has it."""
    fence: int = 0
    failures: int = 0
    losses: int = 0
    leased_us: int = 0
    has_failed_for_good: bool = False
    """Its last attempt said that another one would not help."""
    errors: set[str] = field(default_factory=lambda: {""})
    result: bytes | None = None
    history: list[TaskStand] = field(default_factory=list)

    @property
    def is_ended(self) -> bool:
        return self.state in TASK_ENDED

    @property
    def stand(self) -> TaskStand:
        return self.state, self.worker, self.fence, self.failures, self.losses

    @property
    def surely_ready_us(self) -> int:
        """A task that was handed back again and again waits a while, but not for longer than that."""
        pause_s = min(RETURN_PAUSE_S * 2 ** (self.returns - 2), MAX_RETURN_PAUSE_S) if self.returns > 1 else 0
        return self.ready_us + int(pause_s * 1e6)

    def note(self) -> None:
        """It may have changed."""
        if not self.history or self.history[-1] != self.stand:
            self.history.append(self.stand)


@dataclass(slots=True, eq=False)
class Story:
    """One job, and every way it ever stood."""

    kept: JobRow
    """As it was written first: what was asked for does not change."""
    order: Order
    ask: Ask
    state: str = "waiting"
    agreed: int | None = None
    ended_us: int | None = None
    last_us: int = 0
    """When the last event happened."""
    tasks: dict[int, TaskStory] = field(default_factory=dict)
    had: set[str] = field(default_factory=set)
    """Workers that have had any task of it."""
    history: list[JobStand] = field(default_factory=list)
    is_gone: bool = False
    """It ended long ago and was removed."""

    @property
    def number(self) -> int:
        return self.kept.job

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED

    @property
    def stand(self) -> JobStand:
        return self.state, self.agreed

    def settle(self, agreed: int, at_us: int) -> None:
        """So many tasks are made."""
        self.state, self.agreed = "running", agreed
        self.tasks = {number: TaskStory(number, max(at_us, self.kept.begins_us)) for number in range(agreed)}

    def end(self, state: str, at_us: int, task_state: str) -> None:
        """It is over, and with it every task that is not."""
        self.state, self.ended_us = state, at_us
        for task in self.tasks.values():
            if not task.is_ended:
                task.state = task_state

    def note(self) -> None:
        """It may have changed."""
        if not self.history or self.history[-1] != self.stand:
            self.history.append(self.stand)
        for task in self.tasks.values():
            task.note()

    def __str__(self) -> str:
        return f"job {self.number} ({self.order}, {self.kept.kind!r}, {self.state})"


def read_event(payload: bytes) -> JobEvent:
    """A violation if it cannot be read, or says more than is written down."""
    try:
        return msgspec.json.decode(payload, type=JobEvent)
    except msgspec.DecodeError as error:
        raise ViolationError("events", f"{payload[:200]!r} is no event: {error}") from None
