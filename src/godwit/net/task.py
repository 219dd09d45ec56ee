"""A task as its handler sees it, what a handler may give back, and how a failure is told."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from godwit.client.batches import to_bytes
from godwit.client.worker import Lease
from godwit.errors import TaskFailedError, UsageError

TaskFailed = TaskFailedError
"""Raised by a handler: `raise TaskFailed("the picture is damaged", final=True)` is not tried again."""
_ROUNDING: Final = 1e-6
"""A sum of steps may be a little more than 1."""


class Steps(Protocol):
    """Who is told how far a task is: godwit.net.workbench.Workbench."""

    def on_progress(self, task: Task) -> None: ...


class Task:
    """One task of one job, leased to this worker. Made by the worker; its handler may use it from any thread."""

    __slots__ = (
        "_bench",
        "is_in_thread",
        "is_revoked",
        "is_told",
        "lease",
        "revoked_because",
        "runner",
        "step",
        "worker",
    )

    def __init__(self, bench: Steps, lease: Lease, worker: str) -> None:
        self.lease = lease
        self.worker = worker
        """The name of the worker that has it."""
        self.is_revoked = False
        """Nobody wants its result any more: a handler in a thread that runs for long should look, and return."""
        self.revoked_because = ""
        self.runner: asyncio.Task[None] | None = None
        """In which its async handler runs."""
        self.is_in_thread = False
        """Its plain handler has a thread, or waits for one."""
        self.step: tuple[float | None, str] = None, ""
        """The newest progress, and its note."""
        self.is_told = False
        """The step is on its way from the handler's thread to the event loop's."""
        self._bench = bench

    def __repr__(self) -> str:
        return f"<Task {self.number} of job {self.job}, {self.kind!r}, attempt {self.attempt}>"

    @property
    def job(self) -> int:
        """The job's number."""
        return self.lease.ref[0]

    @property
    def number(self) -> int:
        """Among the tasks of its job, from 0."""
        return self.lease.ref[1]

    @property
    def fence(self) -> int:
        """Counts the task's leases: whatever it writes to elsewhere can refuse an older one with this."""
        return self.lease.ref[2]

    @property
    def kind(self) -> str:
        return self.lease.kind

    @property
    def payload(self) -> bytes:
        """The job's."""
        return self.lease.payload

    @property
    def controller(self) -> str:
        """The name of the client that submitted the job."""
        return self.lease.controller

    @property
    def attempt(self) -> int:
        """1, and one more for each attempt before this one that failed."""
        return self.lease.failures + 1

    @property
    def agreed(self) -> int:
        """How many tasks the job has."""
        return self.lease.agreed

    def progress(self, fraction: float | None, note: str = "") -> None:
        """Tells the controller how far the task is, from 0 to 1. For any thread, and as often as it likes."""
        if fraction is not None:
            if not -_ROUNDING <= fraction <= 1 + _ROUNDING:
                raise UsageError(f"progress is {fraction!r}: it lies between 0 and 1")
            fraction = min(max(float(fraction), 0.0), 1.0)
        self.step = fraction, note
        self._bench.on_progress(self)


def to_result(result: object) -> bytes:
    """What a handler gave, as it travels. UsageError, in words for the controller too, if it cannot."""
    if result is None:
        return b""
    if not isinstance(result, bytes | bytearray | memoryview | str):
        raise UsageError(f"a result of type {type(result).__name__}: a handler gives bytes, a text or None")
    return to_bytes(result)


def failure_text(error: BaseException) -> str:
    """`ValueError: no such picture`, as the controller reads it. What a handler says with TaskFailed stands alone."""
    try:
        text = str(error)
    except Exception as second:  # an exception of the handler's own making whose text cannot be made
        text = f"its text cannot be shown: {type(second).__name__}"
    if not isinstance(error, TaskFailedError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text or "failed"
