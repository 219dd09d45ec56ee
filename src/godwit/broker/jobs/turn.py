"""What a turn of the board has brought: for those who write it down and tell it, who take it and clear it."""

from __future__ import annotations

from typing import TypeAlias

from godwit.broker.jobs.model import Happening, Job, Task, Worker
from godwit.broker.jobs.ready import Line, Queue
from godwit.wire.jobs import Ref

TimerOwner: TypeAlias = Job | Task | Worker | Queue | Line
"""What waits for a time: a job for its delay or deadline, a task for its limit or next attempt, a worker that might
fall silent, a queue whose jobs settle, a line whose first job has waited for others long enough."""


class Turn:
    """Everything since it was last taken."""

    def __init__(self) -> None:
        self.new_jobs: list[Job] = []
        self.changed_jobs: dict[Job, None] = {}
        """Those whose state is another one."""
        self.changed_tasks: dict[Task, None] = {}
        """Those that were leased once, or ended, and of which more than the progress changed."""
        self.gone: list[int] = []
        """Jobs that are forgotten, after all else: one may have ended in this very turn."""
        self.leased: list[Task] = []
        """May have ended again, or been leased again, in the same turn: a task's state and fence tell."""
        self.revoked: list[tuple[str, Ref, str]] = []
        """Leases that ended without the worker's doing: its name, the lease, why. Only of connected ones."""
        self.silent: list[str] = []
        """Workers that reported nothing for too long."""
        self.happened: dict[str, list[Happening]] = {}
        """By the kind of work, which is the topic that tells it."""

    def tell(self, kind: str, happening: Happening) -> None:
        try:
            self.happened[kind].append(happening)
        except KeyError:
            self.happened[kind] = [happening]
