"""A client without a network for the tests of the command line. Its messages come to its own subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from tests.cli.fake_jobs import INFO, TASKS, FakeJob

from godwit.broker.topics import check_filter, check_kind, check_topic
from godwit.client.message import Message
from godwit.errors import BrokerError, GodwitError, broker_error
from godwit.net.jobs import Update
from godwit.wire.control import ClientInfo, TopicInfo
from godwit.wire.control_base import Code
from godwit.wire.filters import matches
from godwit.wire.jobs import JobInfo, TaskInfo

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient


def message(topic: str, payload: bytes, *, qos: int = 1, offset: int | None = 0, publisher: str = "me") -> Message:
    return Message(topic, payload, publisher, 1_700_000_000_000_000, 1_700_000_000_000_001, qos, False, offset)


class FakeSubscription:
    def __init__(self, client: FakeClient, filters: tuple[str, ...], on_gap: Callable[[int | None], None]) -> None:
        self.filters = filters
        self.on_gap = on_gap
        self.queue: asyncio.Queue[list[Message] | GodwitError] = asyncio.Queue()
        self._client = client

    async def __aenter__(self) -> Self:
        for filter in self.filters:
            check_filter(filter)
            if "+" not in filter and self._client.policy == "publishers" and filter not in self._client.infos:
                raise broker_error(Code.NO_SUCH_TOPIC, f"there is no topic {filter}")
        self._client.subscriptions.append(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.subscriptions.remove(self)

    async def batches(self) -> AsyncIterator[list[Message]]:
        while True:
            found = await self.queue.get()
            if isinstance(found, GodwitError):
                raise found
            yield found


class FakeClient:
    def __init__(self, *, policy: str = "open") -> None:
        self.name = "me"
        self.state = "online"
        self.policy = policy
        self.infos: dict[str, TopicInfo] = {}
        self.others = [ClientInfo(name="me", address="127.0.0.1:1"), ClientInfo(name="the display")]
        self.subscriptions: list[FakeSubscription] = []
        self.published: list[tuple[str, bytes, int, bool]] = []
        self.kicked: list[tuple[str, tuple[str, ...], str]] = []
        self.submitted: list[tuple[str, bytes, int | str]] = []
        self.cancelled: list[tuple[int, str]] = []
        self.known_jobs: dict[int, FakeJob] = {}
        self.questions = 0
        self.job_copies = 1

    def as_client(self) -> AsyncClient:
        return cast("AsyncClient", self)

    async def publish(self, topic: str, payload: bytes, qos: int = 1, retain: bool = False) -> int | None:
        check_topic(topic)
        self.published.append((topic, payload, qos, retain))
        self.infos.setdefault(topic, TopicInfo(name=topic))
        reached = [one for one in self.subscriptions if any(matches(filter, topic) for filter in one.filters)]
        for subscription in reached:
            subscription.queue.put_nowait([message(topic, payload, qos=qos)])
        return len(reached) if qos else None

    def subscribe(self, *filters: str, on_gap: Callable[[int | None], None] = lambda _: None) -> FakeSubscription:
        return FakeSubscription(self, filters, on_gap)

    async def topics(self, filter: str | None = None) -> list[TopicInfo]:
        self.questions += 1
        return [info for name, info in sorted(self.infos.items()) if filter is None or matches(filter, name)]

    async def create_topic(self, name: str) -> None:
        check_topic(name)
        if name in self.infos:
            raise broker_error(Code.TOPIC_EXISTS, f"topic {name} exists already")
        self.infos[name] = TopicInfo(name=name)

    async def clients(self) -> list[ClientInfo]:
        self.questions += 1
        return self.others

    async def kick(self, client: str, *filters: str, reason: str = "") -> None:
        if client not in [other.name for other in self.others]:
            raise BrokerError(Code.NO_SUCH_CLIENT, f"there is no client {client}")
        self.kicked.append((client, filters, reason))

    async def submit(self, kind: str, payload: bytes, *, workers: int | str = 1) -> FakeJob:
        check_kind(kind)
        self.submitted.append((kind, payload, workers))
        job = FakeJob(len(self.submitted), [Update(what="accepted")], kind=kind)
        self.known_jobs[job.number] = job
        return job

    async def job(self, number: int) -> FakeJob:
        if number not in self.known_jobs:
            raise broker_error(Code.NO_SUCH_JOB, f"there is no job {number}")
        return self.known_jobs[number]

    async def jobs(
        self,
        *,
        kind: str | None = None,
        controller: str | None = None,
        states: list[str] | None = None,
        limit: int | None = None,
    ) -> list[JobInfo]:
        self.questions += 1
        return [INFO] * self.job_copies if kind in (None, INFO.of_kind) else []

    async def job_info(self, number: int) -> tuple[JobInfo, list[TaskInfo]]:
        return INFO, TASKS

    async def cancel_job(self, number: int, reason: str = "") -> None:
        self.cancelled.append((number, reason))
        self.known_jobs[number].end("cancelled", reason)
