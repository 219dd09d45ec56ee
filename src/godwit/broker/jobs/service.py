"""The job part of the broker, as the other parts see it.

    input     handle_open, handle_record, handle_confirm, `requests`; handle_login, handle_disconnect, handle_leave,
              handle_settings, handle_timer
    output    finish_turn before the turn's append, send_output after it; both only if `activity.is_active`
    getters   due_us, figures

The submissions and reports of a turn are handled one group after another. Tasks are leased once, at its end.
"""

from __future__ import annotations

from collections.abc import Iterable

from godwit.broker.append_queue import AppendQueue
from godwit.broker.catalogue import Catalogue, PublisherNumbers
from godwit.broker.dirty_state import DirtyState
from godwit.broker.effects import Effect, Notice
from godwit.broker.jobs.job_commits import JobCommits, JobEventPublisher
from godwit.broker.jobs.job_requests import JobRequests
from godwit.broker.jobs.model import Job, JobActivity, JobTask
from godwit.broker.jobs.notifier import JobNotifier
from godwit.broker.jobs.scheduler import Scheduler
from godwit.broker.jobs.work_channel import JobPeer, WorkReceiver, job_name, job_peer
from godwit.broker.session import Session
from godwit.errors import DecodeError
from godwit.native.peer import NativePeer
from godwit.wire.changes import StoredState


class JobService:
    """Connects the scheduler with the log and with the clients' connections."""

    def __init__(
        self,
        catalogue: Catalogue,
        names: PublisherNumbers,
        journal: DirtyState,
        commits: AppendQueue,
        effects: list[Effect],
    ) -> None:
        self.activity = activity = JobActivity()
        """The broker skips finish_turn and send_output while `activity.is_active` is False."""
        self.due_us: int | None = None
        """When handle_timer is due. Updated at the end of each turn in which the job part was active."""
        self._catalogue = catalogue
        self._effects = effects
        settings = catalogue.settings
        self._scheduler = scheduler = Scheduler(
            lease_us=int(settings.lease_s * 1e6), keep_us=int(settings.job_keep_s * 1e6)
        )
        self._workers: dict[str, JobPeer] = {}
        """By name: the connections to which leases are sent."""
        unstored: dict[Job | JobTask, int] = {}
        self._notifier = notifier = JobNotifier(unstored, self._workers, activity, effects)
        publisher = JobEventPublisher(catalogue, names, commits)
        self._commits = JobCommits(scheduler, journal, commits, publisher, notifier, unstored, activity)
        self._receiver = WorkReceiver(catalogue, scheduler, self._commits, notifier, activity, effects)
        self.handle_record = self._receiver.handle_record
        """handle_record(peer, event, now_us): handle a record on a client's work channel."""
        self.requests = JobRequests(catalogue, scheduler, notifier, self._workers, activity, effects)

    def restore(self, state: StoredState, now_us: int) -> None:
        """Load the jobs that were stored when the broker stopped."""
        self._scheduler.restore(state, now_us)
        self.activity.mark_dirty()
        self.due_us = now_us

    # -- connections --------------------------------------------------------------------------------------------------

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

    def handle_login(self, session: Session, now_us: int) -> None:
        """Handle the login of a client, which may be a new instance of a worker with leases."""
        name = job_name(session)
        if name in self._scheduler.workers:
            self._scheduler.replace_instance(name, session.instance, now_us)
            self.activity.mark_dirty()

    def handle_disconnect(self, link: NativePeer, now_us: int) -> None:
        """Handle the end of a connection. A worker that has not left may come back to its tasks."""
        peer, link.party = link.party, None
        if peer is None:
            return
        self._notifier.remove_peer(peer)
        self._receiver.remove_peer(peer)
        self.activity.mark_dirty()
        if self._workers.get(peer.name) is peer:
            del self._workers[peer.name]
            self._scheduler.disconnect(peer.name, now_us)

    def handle_leave(self, session: Session, now_us: int) -> None:
        """Return the tasks of a client that closed its connection properly or was kicked."""
        name = job_name(session)
        peer = self._workers.get(name)
        if name in self._scheduler.workers and (peer is None or peer.session is session):
            self._workers.pop(name, None)
            self._scheduler.leave(name, now_us)
            self.activity.mark_dirty()

    def handle_settings(self, links: Iterable[NativePeer], now_us: int) -> None:
        """Apply new settings: clients that lost a right lose leases and updates. Submitted jobs are not affected."""
        settings = self._catalogue.settings
        self._scheduler.change_settings(lease_us=int(settings.lease_s * 1e6), keep_us=int(settings.job_keep_s * 1e6))
        self.activity.mark_dirty()
        self.due_us = now_us
        for link in links:
            peer = link.party
            if peer is None:
                continue
            if self._workers.get(peer.name) is peer:
                self._remove_kinds(peer, now_us)
            jobs = [job for number in peer.watched if (job := self._scheduler.jobs.get(number)) is not None]
            hidden = [job.number for job in jobs if not self.requests.may_watch(peer.session, job)]
            self._notifier.hide(peer, hidden)

    def _remove_kinds(self, peer: JobPeer, now_us: int) -> None:
        """Take from a worker the kinds of work that it has no right to any more."""
        session = peer.session
        access = self._catalogue.settings.access
        worker = self._scheduler.workers.get(peer.name)
        kinds = worker.kinds if worker is not None else ()
        lost = [kind for kind in kinds if not access.may(session.name, session.is_proved, "work", kind)]
        if lost:
            self._scheduler.remove_kinds(peer.name, lost, now_us)
            text = f"{peer.name} may no longer work on {', '.join(lost)}"
            self._effects.append(Notice("withdrew", text, session.fields(client=peer.name, kinds=lost)))

    def figures(self) -> dict[str, int | str]:
        """Return the figures for `$sys/`."""
        scheduler = self._scheduler
        workers = scheduler.workers.values()
        return {
            "jobs/waiting": scheduler.unsettled,
            "jobs/running": scheduler.unended - scheduler.unsettled,
            "tasks/leased": sum([len(worker.leases) for worker in workers]),
            "workers": sum([bool(worker.queues) for worker in workers]),
        }

    # -- time, and the end of a turn ----------------------------------------------------------------------------------

    def handle_timer(self, now_us: int) -> None:
        """Handle the timers that are due."""
        if self.due_us is None or self.due_us > now_us:
            return
        self.activity.is_active = True
        at_us = self._scheduler.next_timer_us
        if at_us is not None and at_us <= now_us:
            self._scheduler.handle_timers(now_us)
            self.activity.is_dirty = True
            self._log_stalled()

    def _log_stalled(self) -> None:
        stalled = self._scheduler.output.stalled
        for name in stalled:
            text = f"{name} reported nothing for {self._catalogue.settings.lease_s:g} s: its tasks go to others"
            self._effects.append(Notice("silent", text, {"client": name}))
        stalled.clear()

    def finish_turn(self, now_us: int) -> None:
        """Lease tasks, and add the changes of the turn to its append."""
        activity, commits = self.activity, self._commits
        if not activity.is_dirty and (commits.retry is None or not commits.is_retry_due(now_us)):
            return
        activity.is_dirty = False
        scheduler = self._scheduler
        if not commits.is_failing:
            scheduler.lease_tasks(now_us)
        if revoked := scheduler.output.revoked:
            self._notifier.revoke_all(revoked)  # not delayed: after a crash these leases would end all the same
            revoked.clear()
        commits.write_turn(now_us)
        self._receiver.finish_turn()
        activity.has_commit_result = True  # records of this turn may need no append

    def send_output(self, now_us: int) -> None:
        """Send clients the replies, leases and updates whose changes are stored."""
        activity, commits, notifier = self.activity, self._commits, self._notifier
        if activity.has_commit_result:
            activity.has_commit_result = False
            self._receiver.confirm_stored()
        notifier.send_pending(now_us)
        activity.is_active = activity.is_dirty
        if activity.is_dirty:
            self.due_us = now_us
            return
        due_us = self._scheduler.next_timer_us
        if notifier.delayed and (due_us is None or notifier.delayed[0][0] < due_us):
            due_us = notifier.delayed[0][0]
        if commits.retry is not None:
            activity.is_active = True  # any later append may take it along
            if due_us is None or commits.retry_at_us < due_us:
                due_us = commits.retry_at_us
        self.due_us = due_us
