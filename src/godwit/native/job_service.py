"""Jobs in the native protocol: joins the work channels and requests of clients with the job part of the core.

input     handle_open, handle_record, handle_confirm, `requests`; the calls of the core (JobProtocol)
output    records towards clients, as effects
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from godwit.broker.effects import Effect, Notice
from godwit.broker.jobs.service import JobProtocol, JobService
from godwit.broker.ports import Peer
from godwit.broker.session import Session
from godwit.errors import DecodeError
from godwit.native.job_notifier import JobNotifier
from godwit.native.job_requests import JobRequests
from godwit.native.peer import NativePeer
from godwit.native.work_channel import JobPeer, WorkReceiver, job_peer
from godwit.transport.connection import Connection
from godwit.wire.jobs import Ref


class NativeJobs(JobProtocol):
    """The connections that take part in jobs, and their work channels.

    Args:
        jobs: the job part of the core, which it attaches itself to.
        peers: all connections of the protocol.
        effects: gets records and notices.
    """

    def __init__(self, jobs: JobService, peers: Mapping[Connection, NativePeer], effects: list[Effect]) -> None:
        self._jobs = jobs
        self._peers = peers
        self._effects = effects
        self._activity = activity = jobs.activity
        self._workers: dict[str, JobPeer] = {}
        """By name: the connections to which leases are sent."""
        self._notifier = notifier = JobNotifier(jobs.unstored, self._workers, activity, effects)
        self._receiver = WorkReceiver(jobs.catalogue, jobs.scheduler, jobs.commits, notifier, activity, effects)
        self.handle_record = self._receiver.handle_record
        """handle_record(peer, event, now_us): handle a record on a client's work channel."""
        self.requests = JobRequests(jobs.catalogue, jobs.scheduler, notifier, self._workers, activity, effects)
        jobs.attach(self, notifier)

    # -- work channels ------------------------------------------------------------------------------------------------

    def handle_open(self, link: NativePeer, session: Session, channel: int) -> None:
        """Handle a new work channel of a client. DecodeError if it has one already."""
        peer = job_peer(link, session, self._effects)
        if peer.channel:
            raise DecodeError("work", f"a second channel for work: there is {peer.channel}")
        peer.channel = channel

    def handle_confirm(self, peer: JobPeer, record: int) -> None:
        """Handle the confirmation of all records up to this one on the work channel towards a client."""
        peer.work_channel.handle_confirm(record)
        if peer.replies or peer.revokes or peer.leases or peer.updates or peer.ended_updates or peer.credit_due:
            self._notifier.mark_dirty(peer)

    # -- called by the core -------------------------------------------------------------------------------------------

    def remove_worker(self, name: str, session: Session) -> bool:
        peer = self._workers.get(name)
        if peer is not None and peer.session is not session:
            return False
        self._workers.pop(name, None)
        return True

    def handle_disconnect(self, peer: Peer, now_us: int) -> None:
        if not isinstance(peer, NativePeer) or peer.job_peer is None:
            return
        ended, peer.job_peer = peer.job_peer, None
        self._notifier.remove_peer(ended)
        self._receiver.remove_peer(ended)
        self._activity.mark_dirty()
        if self._workers.get(ended.name) is ended:
            del self._workers[ended.name]
            self._jobs.scheduler.disconnect(ended.name, now_us)

    def handle_settings(self, now_us: int) -> None:
        for link in self._peers.values():
            peer = link.job_peer
            if peer is None:
                continue
            if self._workers.get(peer.name) is peer:
                self._remove_kinds(peer, now_us)
            jobs = [job for number in peer.watched if (job := self._jobs.scheduler.jobs.get(number)) is not None]
            hidden = [job.number for job in jobs if not self.requests.may_watch(peer.session, job)]
            self._notifier.hide(peer, hidden)

    def _remove_kinds(self, peer: JobPeer, now_us: int) -> None:
        """Take from a worker the kinds of work that it has no right to any more."""
        session = peer.session
        scheduler = self._jobs.scheduler
        access = self._jobs.catalogue.settings.access
        worker = scheduler.workers.get(peer.name)
        kinds = worker.kinds if worker is not None else ()
        lost = [kind for kind in kinds if not access.may(session.principal, session.is_proved, "work", kind)]
        if lost:
            scheduler.remove_kinds(peer.name, lost, now_us)
            text = f"{peer.name} may no longer work on {', '.join(lost)}"
            self._effects.append(Notice("withdrew", text, session.fields(client=peer.name, kinds=lost)))

    def revoke_leases(self, revoked: Iterable[tuple[str, Ref, str]]) -> None:
        self._notifier.revoke_all(revoked)

    def handle_written(self) -> None:
        self._receiver.finish_turn()

    def send_output(self, now_us: int) -> int | None:
        activity = self._activity
        if activity.has_commit_result:
            activity.has_commit_result = False
            self._receiver.confirm_stored()
        notifier = self._notifier
        notifier.send_pending(now_us)
        return notifier.delayed[0][0] if notifier.delayed else None
