"""Controllers and workers that send single records, on the peers of tests/broker/world.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.broker.world import M, Peer, World

from godwit.broker.jobs.service import JobService
from godwit.native.job_notifier import JobNotifier
from godwit.native.peer import NativePeer
from godwit.native.work_channel import JobPeer
from godwit.wire import jobs as j
from godwit.wire import work as w
from godwit.wire.control import Work, encode_control
from godwit.wire.jobs import Ref


def job_service(world: World) -> JobService:
    """Return the job part of a broker."""
    return world.server.broker.jobs


def job_notifier(world: World) -> JobNotifier:
    """Return the part of the native protocol that collects the output about jobs."""
    return world.server.native._jobs._notifier


def peer_of(world: World, name: str) -> JobPeer:
    """Return the part that a connected client takes in jobs."""
    link = world.server.broker.sessions[name].peer
    assert isinstance(link, NativePeer)
    assert link.job_peer is not None
    return link.job_peer


class JobClient:
    """One connection that takes part in jobs."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.channel = peer._next_channel
        peer._next_channel += 1
        peer.record(self.channel, encode_control(Work()))
        peer.world.run()

    @classmethod
    def of(cls, world: World, name: str | None = None, **fields: Any) -> JobClient:
        """Connect a new client."""
        return cls(world.client(name, **fields))

    # -- requests -----------------------------------------------------------------------------------------------------

    def send(self, head: w.SubmitGroup | w.ReportGroup, payloads: Iterable[bytes] = (), *, run: bool = True) -> int:
        """Send a group as a record; return its number."""
        number = self.peer.record(self.channel, w.encode_group(head, list(payloads)))
        if run:
            self.peer.world.run()
        return number

    def submit(self, kind: str, *payloads: bytes, keys: Iterable[str] = (), run: bool = True, **fields: Any) -> int:
        """Submit one job for each payload; the keys are the payloads as text, unless given."""
        names = list(keys) or [payload.decode() for payload in payloads]
        jobs = [
            j.JobSpec(key=key, of_kind=kind, size=len(payload), **fields)
            for key, payload in zip(names, payloads, strict=True)
        ]
        return self.send(w.SubmitGroup(jobs=jobs), payloads, run=run)

    def volunteer(self, *kinds: str, capacity: int = 1, holding: Iterable[Ref] = ()) -> j.VolunteerReply:
        request = j.Volunteer(request=self.peer.number(), kinds=list(kinds), capacity=capacity, holding=list(holding))
        return self.peer.expect(request, j.VolunteerReply)

    def report(self, *, run: bool = True, **fields: Any) -> int:
        return self.send(w.ReportGroup(**fields), run=run)

    def finish(self, *leases: Ref, result: bytes = b"ok", run: bool = True) -> int:
        outcomes = [w.TaskOutcome(task=lease, size=len(result)) for lease in leases]
        return self.send(w.ReportGroup(outcomes=outcomes), [result] * len(leases), run=run)

    def fail(self, *leases: Ref, error: str = "no", is_final: bool = False) -> int:
        return self.report(outcomes=[w.TaskOutcome(task=lease, error=error, is_final=is_final) for lease in leases])

    def watch(self, *numbers: int) -> list[int]:
        """Return the unknown ones."""
        return self.peer.expect(j.WatchJobs(request=self.peer.number(), jobs=list(numbers)), j.WatchReply).unknown

    # -- received -----------------------------------------------------------------------------------------------------

    def groups(self, kind: type[M]) -> list[M]:
        return [head for head, _ in self.peer.work if isinstance(head, kind)]

    @property
    def taken(self) -> list[w.SubmitReply]:
        return [job for head in self.groups(w.SubmitReplyGroup) for job in head.jobs]

    @property
    def numbers(self) -> list[int]:
        """The numbers of its accepted jobs."""
        return [job.job for job in self.taken if job.job]

    @property
    def leases(self) -> list[Ref]:
        return [task.task for head in self.groups(w.LeaseGroup) for task in head.tasks]

    @property
    def payloads(self) -> list[bytes]:
        """The payloads of its leases."""
        return [payload for head, payloads in self.peer.work if isinstance(head, w.LeaseGroup) for payload in payloads]

    @property
    def revoked(self) -> list[Ref]:
        return [lease for head in self.groups(w.RevokeGroup) for lease in head.tasks]

    @property
    def updates(self) -> list[w.JobUpdate]:
        return [job for head in self.groups(w.UpdateGroup) for job in head.jobs]

    @property
    def states(self) -> list[tuple[int, str]]:
        """The job states of all updates, in order."""
        return [(update.job, update.state) for update in self.updates]

    @property
    def results(self) -> dict[tuple[int, int], bytes]:
        """The results of finished tasks, by job and task."""
        found: dict[tuple[int, int], bytes] = {}
        for head, payloads in self.peer.work:
            if isinstance(head, w.UpdateGroup):
                places = [(job.job, task) for job in head.jobs for task in job.tasks]
                for (job, task), payload in zip(places, payloads, strict=True):
                    if task.state == "finished":
                        found[job, task.task] = payload
        return found

    @property
    def confirmed(self) -> int:
        """The last of its records that was confirmed, or -1."""
        return self.peer.confirmed.get(self.channel, (-1, 0))[0]
