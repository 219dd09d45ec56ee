"""A scripted broker with work: it accepts jobs and reports, and sends the groups that a test asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.client.world import FakeBroker, Link, Network, User

from godwit.client.config import ClientConfig
from godwit.transport.events import Received
from godwit.wire import jobs as wire
from godwit.wire.control import ControlMessage, Done, Work, decode_control, encode_control
from godwit.wire.jobs import JobSpec, Ref
from godwit.wire.work import (
    FromBroker,
    JobUpdate,
    LeasedTask,
    LeaseGroup,
    ProgressReport,
    RevokeGroup,
    SubmitGroup,
    SubmitReply,
    SubmitReplyGroup,
    TaskOutcome,
    TaskUpdate,
    UpdateGroup,
    decode_from_client,
    encode_group,
)


def spec(kind: str, **options: Any) -> JobSpec:
    """Return a job to submit."""
    return JobSpec(**{"key": "", "of_kind": kind, **options})


class WorkBroker(FakeBroker):
    """Collects jobs and reports over all connections; each reaction can be turned off."""

    def __init__(self, network: Network) -> None:
        self.takes = True
        self.volunteers = True
        self.lease_ms = 30_000
        self.unknown: set[int] = set()
        self.numbers: dict[str, int] = {}
        self.submitted: list[tuple[JobSpec, bytes]] = []
        self.groups: list[int] = []
        """How many jobs came in each record."""
        self.outcomes: list[tuple[TaskOutcome, bytes]] = []
        self.steps: list[ProgressReport] = []
        self.step_times: list[float] = []
        self.returned: list[Ref] = []
        self.report_times: list[float] = []
        self._in: dict[Link, int] = {}
        self._out: dict[Link, int] = {}
        super().__init__(network)

    def _on_control(self, link: Link, message: ControlMessage) -> None:
        super()._on_control(link, message)
        if isinstance(message, wire.Volunteer) and self.volunteers:
            link.send(wire.VolunteerReply(request=message.request, lease_ms=self.lease_ms))
        elif isinstance(message, wire.WatchJobs) and self.answers:
            unknown = [number for number in message.jobs if number in self.unknown]
            link.send(wire.WatchReply(request=message.request, unknown=unknown))
        elif isinstance(message, wire.UnwatchJobs) and self.answers:
            link.send(Done(request=message.request))

    def _on_record(self, link: Link, event: Received) -> None:
        if event.record == 0 and isinstance(decode_control(event.body), Work):
            assert link not in self._in, "one channel of work"
            self._in[link] = event.channel
        elif event.channel == self._in.get(link):
            self._on_work(link, event)
        else:
            super()._on_record(link, event)

    def _on_work(self, link: Link, event: Received) -> None:
        head, payloads = decode_from_client(event.body)
        if isinstance(head, SubmitGroup):
            self.groups.append(len(head.jobs))
            self.submitted += zip(head.jobs, payloads, strict=True)
            if self.takes:
                self.take(link, *[job.key for job in head.jobs])
        else:
            self.report_times.append(self.network.now)
            self.outcomes += zip(head.outcomes, payloads, strict=True)
            self.steps += head.steps
            self.step_times += [self.network.now] * bool(head.steps)
            self.returned += head.returned
        if self.confirms:
            link.connection.confirm(event.channel, event.record, 0)

    # -- output -------------------------------------------------------------------------------------------------------

    def send_group(self, head: FromBroker, payloads: Sequence[bytes] = ()) -> None:
        self.send_bytes(encode_group(head, payloads))

    def send_bytes(self, body: bytes, *, reliable: bool = True, last: bool = False) -> None:
        link = self.link
        if link not in self._out:
            self._out[link] = link.connection.open_channel()
            link.connection.send(self._out[link], encode_control(Work()))
        link.connection.send(self._out[link], body, reliable=reliable, last=last)

    def take(self, link: Link, *keys: str, agreed: int | None = 1) -> None:
        """Accept jobs: assign a number to each, and the same one again for the same key."""
        assert link is self.link
        jobs = [
            SubmitReply(key=key, job=self.numbers.setdefault(key, len(self.numbers) + 1), agreed=agreed) for key in keys
        ]
        self.send_group(SubmitReplyGroup(jobs=jobs))

    def update(
        self, job: int, state: wire.JobState, *tasks: TaskUpdate, agreed: int | None = 1, reason: str = ""
    ) -> None:
        """Tasks that are finished have their worker's name as their result."""
        updates = [
            TaskUpdate(
                task=task.task,
                state=task.state,
                worker=task.worker,
                fence=task.fence,
                failures=task.failures,
                progress=task.progress,
                note=task.note,
                error=task.error,
                size=len(task.worker) if task.state == "finished" else 0,
            )
            for task in tasks
        ]
        payloads = [task.worker.encode() for task in tasks if task.state == "finished"]
        self.send_group(
            UpdateGroup(jobs=[JobUpdate(job=job, state=state, agreed=agreed, reason=reason, tasks=updates)]), payloads
        )

    def lease(self, *refs: Ref, kind: str = "resize", payload: bytes = b"do it") -> None:
        tasks = [LeasedTask(task=ref, of_kind=kind, controller="boss", size=len(payload)) for ref in refs]
        self.send_group(LeaseGroup(tasks=tasks), [payload] * len(refs))

    def revoke(self, *refs: Ref, reason: str = "") -> None:
        self.send_group(RevokeGroup(tasks=list(refs), reason=reason))


def at_work(config: ClientConfig | None = None, seed: int = 1) -> tuple[Network, WorkBroker, User]:
    """A client that its broker has welcomed."""
    network = Network(seed)
    broker = WorkBroker(network)
    user = User(network, config)
    user.until("online")
    return network, broker, user


def break_connection(network: Network, broker: WorkBroker, user: User, code: int = 1) -> None:
    """And wait for the next."""
    link = broker.link
    link.connection.close(network.now, code, "a test")
    network.run_until(lambda: broker.link is not link and user.client.state == "online")
    user.note()
