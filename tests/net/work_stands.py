"""A client's core that only records calls about work, and leases for it: for tests without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from tests.net.running import turns

from godwit.client.events import Leased, Revoked
from godwit.client.jobs import JobView, check_payload
from godwit.client.protocol import ClientProtocol
from godwit.client.worker import RESULT, Lease
from godwit.errors import BufferFullError
from godwit.limits import MAX_JOB_PAYLOAD_BYTES
from godwit.net.tasks import TaskExecutor
from godwit.net.worker import Handlers
from godwit.wire.jobs import JobSpec


class Core:
    """Reports as tuples, in order. `room`: results that it takes before it is full."""

    name = "anna"
    max_payload_bytes = MAX_JOB_PAYLOAD_BYTES

    def __init__(self, room: int = 1000) -> None:
        self.room = room
        self.work_held = 0
        self.said: list[tuple[Any, ...]] = []

    def volunteer(self, kinds: Sequence[str], capacity: int) -> None:
        self.said.append(("volunteer", list(kinds), capacity))

    def withdraw(self) -> None:
        self.said.append(("withdraw",))

    def finish(self, lease: Lease, result: bytes) -> None:
        check_payload(RESULT, result, self.max_payload_bytes)
        if not self.room:
            raise BufferFullError("full")
        self.room -= 1
        self.said.append(("finish", lease.job, result))

    def fail(self, lease: Lease, error: str, is_final: bool = False) -> None:
        self.said.append(("fail", lease.job, error, is_final))

    def give_back(self, lease: Lease) -> None:
        self.said.append(("give back", lease.job))

    def step(self, lease: Lease, progress: float | None, note: str = "") -> None:
        self.said.append(("step", lease.job, progress, note))

    def submit(self, spec: JobSpec, payload: bytes) -> JobView:
        if not self.room:
            raise BufferFullError("full")
        self.room -= 1
        self.said.append(("submit", spec, payload))
        return JobView(spec.key or f"key-{len(self.said)}", spec.of_kind)

    def watch(self, number: int) -> JobView:
        self.said.append(("watch", number))
        return JobView("", "", number=number)

    @property
    def reports(self) -> list[tuple[Any, ...]]:
        """The recorded calls, without those about volunteering."""
        return [said for said in self.said if said[0] not in ("volunteer", "withdraw")]


def as_client(core: Core) -> ClientProtocol:
    return cast(ClientProtocol, core)


def lease(job: int = 1, *, kind: str = "work", payload: bytes = b"", failures: int = 0) -> Lease:
    return Lease((job, 0, 1), kind, "controller", payload, 1, failures, None, None)


class Bench:
    """A workbench with a core of paper."""

    def __init__(
        self,
        *,
        room: int = 1000,
        capacity: int = 100,
        on_ready: Callable[[], None] = lambda: None,
        **handlers: Any,
    ) -> None:
        self.core = Core(room)
        chosen = Handlers()
        for kind, handler in handlers.items():
            chosen.add(kind, handler)
        self.bench = TaskExecutor(as_client(self.core), lambda: None, chosen.by_kind, capacity, on_ready)
        self.leases: dict[int, Lease] = {}

    def give(self, *jobs: int, kind: str = "work", payload: bytes = b"") -> None:
        for job in jobs:
            self.leases[job] = lease(job, kind=kind, payload=payload)
            self.bench.on_event(Leased(self.leases[job]))

    def revoke(self, job: int, reason: str = "") -> None:
        self.bench.on_event(Revoked(self.leases[job], reason))

    @property
    def reports(self) -> list[tuple[Any, ...]]:
        return self.core.reports

    async def until(self, count: int) -> list[tuple[Any, ...]]:
        """Wait until there are `count` reports."""
        while len(self.reports) < count:
            await asyncio.sleep(0.001)
        await turns()
        return self.reports
