"""The job part of the broker, as the other parts see it. It knows jobs, tasks and workers, and no protocol.

    input     handle_login, handle_disconnect, handle_leave, handle_settings, handle_timer; a protocol that serves jobs
              attaches itself and calls `scheduler`
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
from godwit.broker.jobs.job_commits import JobCommits, JobEventPublisher, JobListener
from godwit.broker.jobs.model import Job, JobActivity, JobTask
from godwit.broker.jobs.scheduler import Scheduler
from godwit.broker.ports import Peer
from godwit.broker.session import Session, made_name
from godwit.wire.changes import StoredState
from godwit.wire.jobs import Ref


class JobProtocol:
    """A port: the protocol through which clients submit jobs and work on them. It overrides the methods.

    The protocol calls JobService.scheduler, and marks JobService.activity when it has changed something. It is notified
    of stored changes through its JobListener.
    """

    def remove_worker(self, name: str, session: Session) -> bool:
        """A worker leaves: forget its connection. Return False if another session works under this name."""
        return True

    def handle_disconnect(self, peer: Peer, now_us: int) -> None:
        """A connection has ended. A worker that has not left may come back to its tasks."""

    def handle_settings(self, now_us: int) -> None:
        """Access rules have changed: take leases and updates from the clients that lost a right."""

    def revoke_leases(self, revoked: Iterable[tuple[str, Ref, str]]) -> None:
        """Notify workers of leases that have ended: worker name, lease, reason."""

    def handle_written(self) -> None:
        """The changes of the turn were given to the log: JobCommits.last_turn is the turn that replies wait for."""

    def send_output(self, now_us: int) -> int | None:
        """Send clients the replies, leases and updates whose changes are stored. Return when to send delayed ones."""
        return None


class JobService:
    """Connects the scheduler with the log and with the protocol of the clients."""

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
        self.catalogue = catalogue
        self._effects = effects
        settings = catalogue.settings
        self.scheduler = scheduler = Scheduler(
            lease_us=int(settings.lease_s * 1e6), keep_us=int(settings.job_keep_s * 1e6)
        )
        self.unstored: dict[Job | JobTask, int] = {}
        """Jobs and tasks with changes that are not stored, with the turn of the last one; see JobCommits."""
        publisher = JobEventPublisher(catalogue, names, commits)
        self.commits = JobCommits(scheduler, journal, commits, publisher, self.unstored, activity)
        self._protocol = JobProtocol()

    def attach(self, protocol: JobProtocol, listener: JobListener) -> None:
        """Serve the clients of this protocol; its listener is notified of stored changes."""
        self._protocol = protocol
        self.commits.listener = listener

    def restore(self, state: StoredState, now_us: int) -> None:
        """Load the jobs that were stored when the broker stopped."""
        self.scheduler.restore(state, now_us)
        self.activity.mark_dirty()
        self.due_us = now_us

    # -- connections --------------------------------------------------------------------------------------------------

    def handle_login(self, session: Session, now_us: int) -> None:
        """Handle the login of a client, which may be a new instance of a worker with leases."""
        name = job_name(session)
        if name in self.scheduler.workers:
            self.scheduler.replace_instance(name, session.instance, now_us)
            self.activity.mark_dirty()

    def handle_disconnect(self, peer: Peer, now_us: int) -> None:
        """Handle the end of a connection. A worker that has not left may come back to its tasks."""
        self._protocol.handle_disconnect(peer, now_us)

    def handle_leave(self, session: Session, now_us: int) -> None:
        """Return the tasks of a client that closed its connection properly or was kicked."""
        name = job_name(session)
        if name in self.scheduler.workers and self._protocol.remove_worker(name, session):
            self.scheduler.leave(name, now_us)
            self.activity.mark_dirty()

    def handle_settings(self, now_us: int) -> None:
        """Apply new settings: clients that lost a right lose leases and updates. Submitted jobs are not affected."""
        settings = self.catalogue.settings
        self.scheduler.change_settings(lease_us=int(settings.lease_s * 1e6), keep_us=int(settings.job_keep_s * 1e6))
        self.activity.mark_dirty()
        self.due_us = now_us
        self._protocol.handle_settings(now_us)

    def figures(self) -> dict[str, int | str]:
        """Return the figures for `$sys/`."""
        scheduler = self.scheduler
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
        at_us = self.scheduler.next_timer_us
        if at_us is not None and at_us <= now_us:
            self.scheduler.handle_timers(now_us)
            self.activity.is_dirty = True
            self._log_stalled()

    def _log_stalled(self) -> None:
        stalled = self.scheduler.output.stalled
        for name in stalled:
            text = f"{name} reported nothing for {self.catalogue.settings.lease_s:g} s: its tasks go to others"
            self._effects.append(Notice("silent", text, {"client": name}))
        stalled.clear()

    def finish_turn(self, now_us: int) -> None:
        """Lease tasks, and add the changes of the turn to its append."""
        activity, commits = self.activity, self.commits
        if not activity.is_dirty and (commits.retry is None or not commits.is_retry_due(now_us)):
            return
        activity.is_dirty = False
        scheduler = self.scheduler
        if not commits.is_failing:
            scheduler.lease_tasks(now_us)
        if revoked := scheduler.output.revoked:
            self._protocol.revoke_leases(revoked)  # not delayed: after a crash these leases would end all the same
            revoked.clear()
        commits.write_turn(now_us)
        self._protocol.handle_written()
        activity.has_commit_result = True  # records of this turn may need no append

    def send_output(self, now_us: int) -> None:
        """Send clients the replies, leases and updates whose changes are stored."""
        activity, commits = self.activity, self.commits
        delayed_us = self._protocol.send_output(now_us)
        activity.is_active = activity.is_dirty
        if activity.is_dirty:
            self.due_us = now_us
            return
        due_us = self.scheduler.next_timer_us
        if delayed_us is not None and (due_us is None or delayed_us < due_us):
            due_us = delayed_us
        if commits.retry is not None:
            activity.is_active = True  # any later append may take it along
            if due_us is None or commits.retry_at_us < due_us:
                due_us = commits.retry_at_us
        self.due_us = due_us


def job_name(session: Session) -> str:
    """Return the name of a controller or worker. A client without a name gets one that outlives its connections."""
    return session.name if session.is_remembered else made_name(session.instance)
