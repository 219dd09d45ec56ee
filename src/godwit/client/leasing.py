"""A lease: one task that the broker has given to this client, and what became of it here."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from godwit.wire.jobs import Ref
from godwit.wire.work import TaskOutcome

LeaseState: TypeAlias = Literal["running", "reported", "ended"]


class Lease(msgspec.Struct, eq=False, weakref=True):
    """Told by the event Leased. Each is itself: equal to no other."""

    ref: Ref
    """The job's number, the task's, and the fencing number."""
    kind: str
    controller: str
    payload: bytes
    agreed: int
    """How many tasks the job has."""
    failures: int
    """Attempts before this one that failed."""
    time_limit_ms: int | None
    deadline_us: int | None
    state: LeaseState = "running"
    """reported: the broker has not confirmed how it ended. ended: it has, or the lease was revoked."""
    outcome: TaskOutcome | None = None
    """How it was reported; None: it runs, or was handed back."""
    result: bytes = b""
    is_known: bool = True
    """Whether the application heard of it. Not if it came when the client had just withdrawn."""
    owner: Any = None
    """For the layer above, which may put there what it likes."""

    @property
    def job(self) -> int:
        return self.ref[0]

    @property
    def task(self) -> int:
        return self.ref[1]

    @property
    def fence(self) -> int:
        return self.ref[2]
