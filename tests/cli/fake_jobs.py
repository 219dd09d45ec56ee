"""Jobs without a broker, for the tests of the command line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Literal, cast

from godwit.errors import GodwitError
from godwit.net.jobs import Update
from godwit.wire.jobs import JobInfo, TaskInfo

if TYPE_CHECKING:
    from godwit.net.jobs import AsyncJob


class FakeJob:
    """Yields the given updates, then the updates put into its queue."""

    def __init__(
        self,
        number: int = 7,
        updates: Sequence[Update] = (),
        *,
        kind: str = "resize",
        agreed: int | None = 2,
        state: str = "running",
        reason: str = "",
        begins_us: int = 0,
    ) -> None:
        self.begins_us = begins_us
        self.number = number
        self.key = f"key-{number}"
        self.kind = kind
        self.agreed = agreed
        self.state = state
        self.reason = reason
        self.queue: asyncio.Queue[Update | GodwitError] = asyncio.Queue()
        for update in updates:
            self.queue.put_nowait(update)

    @property
    def is_ended(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    def as_job(self) -> AsyncJob:
        return cast("AsyncJob", self)

    def end(self, state: Literal["done", "failed", "cancelled"], reason: str = "") -> None:
        self.state, self.reason = state, reason
        self.queue.put_nowait(Update(what=state, error=reason))

    async def __aiter__(self) -> AsyncIterator[Update]:
        while True:
            update = await self.queue.get()
            if isinstance(update, GodwitError):
                raise update
            yield update
            if update.what in ("done", "failed", "cancelled"):
                return


INFO = JobInfo(
    job=7,
    key="k-1",
    controller="boss",
    of_kind="resize",
    state="running",
    workers=3,
    agreed=3,
    finished=1,
    leased=1,
    priority=5,
    submitted_us=1_700_000_000_000_000,
    begins_us=1_700_000_000_000_000,
    payload_bytes=1500,
)
TASKS = [
    TaskInfo(task=0, state="finished", worker="anna", fence=1, since_us=1_700_000_001_000_000, result_bytes=12),
    TaskInfo(
        task=1,
        state="leased",
        worker="bert\x1b",
        fence=3,
        failures=1,
        losses=1,
        progress=0.5,
        note="half",
        error="no \x07",
    ),
    TaskInfo(task=2, state="waiting"),
]
