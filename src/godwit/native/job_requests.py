"""Control messages about jobs: volunteer, watch, unwatch, cancel, retry, jobs, job, workers; and the right to see jobs.

A job is visible to its controller, to the workers that hold its tasks, and to clients that may subscribe to the events
of its kind. A worker may not watch a job for that reason alone: it would receive the results of the other workers.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

import msgspec

from godwit.broker.catalogue import JOBS, Catalogue
from godwit.broker.effects import Effect, Notice
from godwit.broker.jobs.lifecycle import require_valid_kind
from godwit.broker.jobs.model import ENDED, Job, JobActivity, JobTask, PoolWorker
from godwit.broker.jobs.scheduler import Scheduler
from godwit.broker.jobs.service import job_name
from godwit.broker.ports import RequestFailure
from godwit.broker.session import Session, require_right
from godwit.native.job_notifier import MAX_WATCHED, JobNotifier
from godwit.native.peer import NativePeer
from godwit.native.work_channel import MAX_PENDING_REVOKES, NOT_HELD, JobPeer, job_peer, require_short_key
from godwit.wire import jobs as wire
from godwit.wire.control_base import Code

KINDS_SHOWN: Final = 3
"""The number of kinds of work that an event line lists."""
PAGE_BYTES: Final = 64 * 1024
"""The size limit of a page: half of that of a control message."""
JOBS_PER_PAGE: Final = 1000
"""The number of jobs that are examined for one page, whether the client may see them or not."""
ENTRY_STEPS: Final = 4
"""An entry of a page costs as much as examining this many jobs."""
COPIES_PER_STEP: Final = 64
"""Copying this many job numbers costs as much as examining one job."""
ENTRY_BYTES: Final = 256
"""The size of an entry without its texts, rounded up."""
CHARACTER_BYTES: Final = 4
"""The size of a character, at most."""


@dataclass(eq=False)
class JobRequests:
    """Each method handles one request, and raises RequestFailure if it cannot be fulfilled."""

    _catalogue: Catalogue
    _scheduler: Scheduler
    _notifier: JobNotifier
    _workers: dict[str, JobPeer]
    _activity: JobActivity
    _effects: list[Effect]

    def volunteer(
        self, link: NativePeer, session: Session, request: wire.Volunteer, now_us: int
    ) -> wire.VolunteerReply:
        """Set the kinds of work and the capacity of a worker."""
        settings = self._catalogue.settings
        kinds = tuple(dict.fromkeys(request.kinds))
        for kind in kinds:
            require_valid_kind(kind)
            require_right(settings.access, session, "work", kind, f"work on the kind {kind!r}")
        peer = job_peer(link, session, self._effects)
        if len(peer.revokes) > MAX_PENDING_REVOKES:
            raise RequestFailure(Code.TOO_MANY, f"{session.name} does not read its work channel: try again later")
        is_new_link, peer.is_worker = not peer.is_worker, True
        self._workers[peer.name] = peer
        known = self._scheduler.workers.get(peer.name)
        kinds_before = known.kinds if known is not None and not is_new_link else ()
        not_held = self._scheduler.volunteer(
            peer.name, session.instance, kinds, request.capacity, request.holding, now_us, is_new_link=is_new_link
        )
        self._activity.mark_dirty()
        for lease in not_held:
            self._notifier.revoke(peer, lease, NOT_HELD)
        if kinds != kinds_before:
            self._log_kinds(session, kinds, request.capacity)
        return wire.VolunteerReply(request=request.request, lease_ms=int(settings.lease_s * 1000))

    def _log_kinds(self, session: Session, kinds: tuple[str, ...], capacity: int) -> None:
        name = job_name(session)
        fields = session.fields(client=name, kinds=list(kinds), capacity=capacity)
        if kinds:
            more = f" and {len(kinds) - KINDS_SHOWN} more" if len(kinds) > KINDS_SHOWN else ""
            text = f"{name} volunteered for {', '.join(kinds[:KINDS_SHOWN])}{more}, {capacity} at once"
            self._effects.append(Notice("volunteered", text, fields))
        else:
            self._effects.append(Notice("withdrew", f"{name} withdrew: it takes no more tasks", fields))

    def watch(self, link: NativePeer, session: Session, request: wire.WatchJobs) -> wire.WatchReply:
        """Send a client the present state of jobs, and all later changes."""
        peer = job_peer(link, session, self._effects)
        unknown: list[int] = []
        for number in dict.fromkeys(request.jobs):
            job = self._scheduler.jobs.get(number)
            if job is None or not job.is_stored or not self.may_watch(session, job):
                unknown.append(number)
                continue
            if self._notifier.is_full(peer) and number not in peer.watched:
                raise RequestFailure(Code.TOO_MANY, f"{session.name} watches {MAX_WATCHED} jobs: unwatch some first")
            self._notifier.watch(peer, job)
            self._notifier.send_all(peer, job)
        return wire.WatchReply(request=request.request, unknown=unknown)

    def unwatch(self, link: NativePeer, request: wire.UnwatchJobs) -> None:
        """Send a client no more changes of jobs."""
        peer = link.job_peer
        if peer is not None:
            for number in request.jobs:
                self._notifier.unwatch(peer, number)

    def cancel(self, session: Session, request: wire.CancelJob, now_us: int) -> None:
        """Cancel a job, for its controller or a client with the right to kick."""
        job = self._find(session, request.job)
        name = job_name(session)
        if job.controller != name and not self._catalogue.settings.access.may(
            session.principal, session.is_proved, "kick"
        ):
            raise RequestFailure(
                Code.NOT_ALLOWED,
                f"job {job.number} belongs to {job.controller}: only its controller, or a client that may kick, "
                "can cancel it",
            )
        if job.state == "cancelled":
            return
        if job.state in ENDED:
            raise RequestFailure(Code.NO_SUCH_JOB, f"job {job.number} has ended already, it is {job.state}")
        self._scheduler.cancel(job, request.reason or f"cancelled by {name}", now_us)
        self._activity.mark_dirty()

    def retry(self, session: Session, request: wire.RetryJob, now_us: int) -> wire.RetryReply:
        """Submit a job that failed or was cancelled once more, as a job of this client with the same options."""
        name = job_name(session)
        require_short_key(request.key)
        known = self._scheduler.find_key(name, request.key)
        if known is not None:  # a repeated request
            return wire.RetryReply(request=request.request, job=known.number)
        job = self._find(session, request.job)
        access = self._catalogue.settings.access
        require_right(access, session, "submit", job.kind, f"submit jobs of the kind {job.kind!r}")
        if job.controller != name and not access.may(session.principal, session.is_proved, "kick"):
            raise RequestFailure(
                Code.NOT_ALLOWED,
                f"job {job.number} belongs to {job.controller}: only its controller, or a client that may kick, "
                "can retry it",
            )
        if job.state not in ("failed", "cancelled"):
            raise RequestFailure(
                Code.NO_SUCH_JOB, f"job {job.number} is {job.state}: only a failed or cancelled job can be retried"
            )
        spec = msgspec.structs.replace(job.spec, key=request.key, size=len(job.payload), delay_ms=0)
        new = self._scheduler.submit(name, spec, job.payload, now_us)
        self._activity.mark_dirty()
        return wire.RetryReply(request=request.request, job=new.number)

    def jobs(self, session: Session, request: wire.ListJobs) -> tuple[wire.JobList, int]:
        """Return a page of the visible jobs that match a request, the newest first, and its cost in steps."""
        all_jobs = self._scheduler.jobs
        numbers = list(all_jobs)  # ascending, because the scheduler counts upwards
        at = len(numbers) if request.before is None else bisect_left(numbers, request.before)
        steps = len(numbers) // COPIES_PER_STEP + min(at, JOBS_PER_PAGE)
        found: list[wire.JobInfo] = []
        room = PAGE_BYTES
        held_jobs = self._held_jobs(session)
        for number in reversed(numbers[max(at - JOBS_PER_PAGE, 0) : at]):
            job = all_jobs[number]
            is_candidate = job.is_stored and _matches(job, request)
            if is_candidate and (job in held_jobs or self.may_watch(session, job)):
                texts = len(job.spec.key) + len(job.controller) + len(job.kind) + len(job.reason)
                room -= ENTRY_BYTES + CHARACTER_BYTES * texts
                if room < 0:
                    return wire.JobList(request=request.request, jobs=found, more=True, before=number + 1), steps
                found.append(job_info(job))
                steps += ENTRY_STEPS
        if at > JOBS_PER_PAGE:
            before = numbers[at - JOBS_PER_PAGE]
            return wire.JobList(request=request.request, jobs=found, more=True, before=before), steps
        return wire.JobList(request=request.request, jobs=found), steps

    def job(self, session: Session, request: wire.ShowJob) -> tuple[wire.JobDetails, int]:
        """Return a job with a page of its tasks, and the cost in steps."""
        job = self._find(session, request.job)
        info = job_info(job)
        tasks: list[wire.TaskInfo] = []
        room = PAGE_BYTES
        for task in job.tasks[request.first_task :]:
            room -= ENTRY_BYTES + CHARACTER_BYTES * (len(task.worker) + len(task.note) + len(task.error))
            if room < 0:
                page = wire.JobDetails(request=request.request, job=info, tasks=tasks, more=True)
                return page, ENTRY_STEPS * len(tasks)
            tasks.append(_task_info(task))
        return wire.JobDetails(request=request.request, job=info, tasks=tasks), ENTRY_STEPS * (1 + len(tasks))

    def workers(self, session: Session, request: wire.ListWorkers) -> tuple[wire.WorkerList, int]:
        """Return a page of the workers in the order of their names, for a client that may kick, and its cost."""
        what = "list the workers: this needs the right to kick"
        require_right(self._catalogue.settings.access, session, "kick", "", what)
        known = self._scheduler.workers
        names = sorted(name for name in known if name > (request.after or ""))
        steps = len(known) // COPIES_PER_STEP
        found: list[wire.WorkerInfo] = []
        room = PAGE_BYTES
        for name in names:
            info, cost_bytes = _worker_info(known[name])
            room -= cost_bytes
            if room < 0 and found:
                return wire.WorkerList(request=request.request, workers=found, more=True), steps
            found.append(info)
            steps += ENTRY_STEPS
        return wire.WorkerList(request=request.request, workers=found), steps

    # -- visibility ---------------------------------------------------------------------------------------------------

    def may_watch(self, session: Session, job: Job) -> bool:
        """Return whether a client may receive the changes of a job."""
        access = self._catalogue.settings.access
        return job.controller == job_name(session) or access.may(
            session.principal, session.is_proved, "subscribe", JOBS + job.kind
        )

    def _held_jobs(self, session: Session) -> set[Job]:
        """Return the jobs of which a client holds tasks."""
        worker = self._scheduler.workers.get(job_name(session))
        return set() if worker is None else {task.job for task in worker.leases}

    def _find(self, session: Session, number: int) -> Job:
        """Return a job that is visible to a client."""
        job = self._scheduler.jobs.get(number)
        is_visible = job is not None and (self.may_watch(session, job) or job in self._held_jobs(session))
        if job is None or not job.is_stored or not is_visible:
            raise RequestFailure(
                Code.NO_SUCH_JOB, f"there is no job {number}, or it was deleted, or {session.name} may not see it"
            )
        return job


def _matches(job: Job, request: wire.ListJobs) -> bool:
    return (
        (request.of_kind is None or job.kind == request.of_kind)
        and (request.controller is None or job.controller == request.controller)
        and (request.states is None or job.state in request.states)
    )


def job_info(job: Job) -> wire.JobInfo:
    """Return the entry of a job in a reply."""
    spec = job.spec
    return wire.JobInfo(
        job=job.number,
        key=spec.key,
        controller=job.controller,
        of_kind=spec.of_kind,
        state=job.state,
        workers=spec.workers,
        agreed=job.agreed,
        finished=job.finished,
        failed=job.failed,
        leased=job.leased,
        priority=spec.priority,
        submitted_us=job.submitted_us,
        begins_us=job.begins_us,
        deadline_us=job.deadline_us,
        ended_us=job.ended_us,
        payload_bytes=spec.size,
        reason=job.reason,
    )


def _worker_info(worker: PoolWorker) -> tuple[wire.WorkerInfo, int]:
    """Return the entry of a worker, and its length in bytes at most."""
    cost_bytes = ENTRY_BYTES + CHARACTER_BYTES * len(worker.name)
    kinds: list[str] = []
    for kind in worker.kinds:
        cost_bytes += CHARACTER_BYTES * (len(kind) + 1)
        if cost_bytes > PAGE_BYTES:
            break
        kinds.append(kind)
    info = wire.WorkerInfo(
        name=worker.name,
        state="gone" if not worker.is_connected else "stalled" if worker.is_stalled else "ready",
        kinds=kinds,
        capacity=worker.capacity,
        tasks=len(worker.leases),
        heard_us=worker.heard_us,
    )
    return info, min(cost_bytes, PAGE_BYTES)


def _task_info(task: JobTask) -> wire.TaskInfo:
    return wire.TaskInfo(
        task=task.number,
        state=task.state,
        worker=task.worker,
        fence=task.fence,
        failures=task.failures,
        losses=task.losses,
        progress=task.progress,
        note=task.note,
        error=task.error,
        since_us=task.since_us,
        result_bytes=len(task.result),
    )
