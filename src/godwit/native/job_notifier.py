"""Records for clients about jobs: replies to submissions, leases, revoked leases, and updates of watched jobs.

A watching client gets states, not events: its JobPeer only notes which jobs and tasks have changed, and their state is
looked up when the window has room. So a slow client costs one reference for each task, and still receives the latest
state of everything.

The first lease of a task is reported with a short delay: most tasks are finished by then, and reported once.

Nothing is sent before it is stored. A task that has changed again, with the change not yet stored, is skipped: it is
noted again when it is stored. A job's own changes are few, so all updates of a job wait for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from godwit.broker.effects import Effect
from godwit.broker.jobs.job_commits import JobListener
from godwit.broker.jobs.model import ENDED, Job, JobActivity, JobTask
from godwit.limits import (
    MAX_CLIENT_NAME_BYTES,
    MAX_GROUP,
    MAX_JOB_PAYLOAD_BYTES,
    MAX_WATCHED_AT_ONCE,
    MAX_WORK_HEAD_BYTES,
)
from godwit.native.effects import ReturnCredit, SendRecord
from godwit.native.work_channel import AllTasks, JobPeer
from godwit.wire.control import encode_control
from godwit.wire.jobs import UNASKED, JobState, Ref, WatchReply
from godwit.wire.work import (
    JobUpdate,
    LeasedTask,
    LeaseGroup,
    RevokeGroup,
    SubmitReply,
    SubmitReplyGroup,
    TaskUpdate,
    UpdateGroup,
)

LEASE_UPDATE_DELAY_US: Final = 300_000
"""The first lease of a task is reported to watching clients after this delay, if it has not ended by then."""
MAX_WATCHED: Final = 100_000
"""The number of jobs that one client watches, including its own."""
RECORD_BYTES: Final = 60_000
"""Groups end at about this size, which fits one packet train. A long payload has a record of its own."""
REPLY_BYTES: Final = 48
LEASED_BYTES: Final = 136
JOB_BYTES: Final = 64
TASK_BYTES: Final = 112
"""The size of each item in a group's head, rounded up, without its texts ..."""
CHARACTER_BYTES: Final = 4
"""... which have at most this many bytes per character."""
LONGEST_ITEM_BYTES: Final = LEASED_BYTES + CHARACTER_BYTES * (2 * 1024 + MAX_CLIENT_NAME_BYTES)
"""With a note, an error and a name."""
assert RECORD_BYTES + 2 * LONGEST_ITEM_BYTES < MAX_WORK_HEAD_BYTES
assert RECORD_BYTES < MAX_JOB_PAYLOAD_BYTES


@dataclass(eq=False)
class JobNotifier(JobListener):
    """Collects the output for clients. `send_pending`, at the end of a turn, sends as much as fits their windows."""

    _unstored: Mapping[Job | JobTask, int]
    """The table of JobCommits: jobs and tasks with changes that are not in the log yet."""
    _workers: Mapping[str, JobPeer]
    """The connections of workers by name, to which leases are sent."""
    _activity: JobActivity
    """Is marked when there is something to send."""
    _effects: list[Effect]
    """Gets the records."""

    def __post_init__(self) -> None:
        self._watchers: dict[int, dict[JobPeer, None]] = {}
        """By job number."""
        self._dirty: dict[JobPeer, None] = {}
        """Connections that may have something to send."""
        self._deleted: list[int] = []
        """Watched jobs that were deleted in this turn."""
        self._leased: list[tuple[JobPeer, int]] = []
        """Delayed updates of this turn: connection and job number."""
        self.delayed: deque[tuple[int, JobPeer, int]] = deque()
        """Delayed updates of earlier turns: the time when each is due (ascending), connection and job number."""

    # -- input --------------------------------------------------------------------------------------------------------

    def mark_dirty(self, peer: JobPeer) -> None:
        """Note that a connection has something to send, or room again."""
        self._dirty[peer] = None
        self._activity.is_active = True

    def send_lease(self, task: JobTask, fence: int) -> None:
        """Send a lease to the task's worker, if it is connected."""
        peer = self._workers.get(task.worker)
        if peer is not None:
            peer.leases.append((task, fence))
            self._dirty[peer] = None
            self._activity.is_active = True

    def revoke(self, peer: JobPeer, lease: Ref, reason: str) -> None:
        """Notify a worker that a lease has ended."""
        peer.revokes.append((lease, reason))
        self.mark_dirty(peer)

    def revoke_all(self, revoked: Iterable[tuple[str, Ref, str]]) -> None:
        """Notify workers of leases that have ended: worker name, lease, reason."""
        for name, lease, reason in revoked:
            peer = self._workers.get(name)
            if peer is not None:
                self.revoke(peer, lease, reason)

    def job_changed(self, job: Job) -> None:
        """Handle a stored change of a job's own state."""
        for peer in self._watchers.get(job.number, ()):
            self._note(peer, job)

    def task_changed(self, task: JobTask) -> None:
        """Handle a stored change of a task, or new progress."""
        job = task.job
        for peer in self._watchers.get(job.number, ()):
            self._note(peer, job)[task] = None

    def task_leased(self, task: JobTask) -> None:
        """Handle the stored first lease of a task: add it to a pending update, or to a delayed one."""
        job = task.job
        number = job.number
        for peer in self._watchers.get(number, ()):
            update = peer.updates.get(number) or peer.delayed_updates.get(number)
            if update is None:
                update = peer.delayed_updates[number] = job, {}
                self._leased.append((peer, number))
                self._activity.is_active = True
            update[1][task] = None

    def job_discarded(self, number: int) -> None:
        """Forget a job that could not be stored; no client knows of it."""
        for peer in list(self._watchers.get(number, ())):
            self.unwatch(peer, number)

    def jobs_deleted(self, numbers: Iterable[int]) -> None:
        """Handle the deletion of ended jobs."""
        self._deleted += [number for number in numbers if number in self._watchers]
        self._activity.is_active = True

    def _note(self, peer: JobPeer, job: Job) -> dict[JobTask, None]:
        """Return the tasks of the pending update of a job; create the update if necessary."""
        number = job.number
        update = peer.updates.get(number)
        if update is None:
            update = peer.held_updates.pop(number, None) or (job, {})
            peer.updates[number] = update
            self._dirty[peer] = None
            self._activity.is_active = True
        if peer.delayed_updates and (delayed := peer.delayed_updates.pop(number, None)) is not None:
            update[1].update(delayed[1])
        return update[1]

    # -- watched jobs -------------------------------------------------------------------------------------------------

    def watch(self, peer: JobPeer, job: Job) -> None:
        """Send a client the changes of a job from now on."""
        number = job.number
        watchers = self._watchers.get(number)
        if watchers is None:
            self._watchers[number] = {peer: None}
        else:
            watchers[peer] = None
        peer.watched[number] = None

    def is_full(self, peer: JobPeer) -> bool:
        """Return whether a client watches as many jobs as allowed, including deleted ones whose end it has not read."""
        return len(peer.watched) + len(peer.ended_updates) >= MAX_WATCHED

    def send_all(self, peer: JobPeer, job: Job) -> None:
        """Send the state of a job, with all tasks that were ever leased or have ended."""
        peer.held_updates.pop(job.number, None)
        peer.delayed_updates.pop(job.number, None)
        peer.updates[job.number] = job, AllTasks()
        self.mark_dirty(peer)

    def unwatch(self, peer: JobPeer, number: int) -> None:
        """Send a client no more changes of a job."""
        if number in peer.watched:
            del peer.watched[number]
            peer.updates.pop(number, None)
            peer.held_updates.pop(number, None)
            peer.delayed_updates.pop(number, None)
            watchers = self._watchers[number]
            del watchers[peer]
            if not watchers:
                del self._watchers[number]

    def hide(self, peer: JobPeer, numbers: list[int]) -> None:
        """Stop the updates of jobs that a client may no longer see, and notify it."""
        for number in numbers:
            self.unwatch(peer, number)
        for at in range(0, len(numbers), MAX_WATCHED_AT_ONCE):
            notice = WatchReply(request=UNASKED, unknown=numbers[at : at + MAX_WATCHED_AT_ONCE])
            self._effects.append(SendRecord(peer.link.connection, 0, encode_control(notice)))

    def remove_peer(self, peer: JobPeer) -> None:
        """Forget a closed connection."""
        for number in list(peer.watched):
            self.unwatch(peer, number)
        self._dirty.pop(peer, None)

    # -- output -------------------------------------------------------------------------------------------------------

    def send_pending(self, now_us: int) -> None:
        """Send all clients as much as fits their windows."""
        if self._leased or self.delayed:
            self._release_delayed(now_us)
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for peer in dirty:
                if peer.link.is_open:
                    self._send_to(peer)
        if self._deleted:
            self._end_deleted()

    def _release_delayed(self, now_us: int) -> None:
        """Move delayed updates that are due to the pending ones; drop entries that were sent with other changes."""
        delayed = self.delayed
        for peer, number in self._leased:
            delayed.append((now_us + LEASE_UPDATE_DELAY_US, peer, number))
        self._leased.clear()
        while delayed:
            due_us, peer, number = delayed[0]
            update = peer.delayed_updates.get(number)
            if update is not None:
                if due_us > now_us:
                    break
                self._note(peer, update[0])
            delayed.popleft()

    def _end_deleted(self) -> None:
        """Reduce the unsent updates of deleted jobs to the end of the job, without the results of its tasks."""
        for number in self._deleted:
            for peer in self._watchers.pop(number, ()):
                del peer.watched[number]
                peer.delayed_updates.pop(number, None)
                job, _ = peer.updates.pop(number) if number in peer.updates else peer.held_updates.pop(number)
                update = JobUpdate(job=number, state=job.state, agreed=job.agreed, reason=job.reason)
                peer.ended_updates.append(update)
        self._deleted.clear()

    def _send_to(self, peer: JobPeer) -> None:
        channel = peer.work_channel
        while (peer.replies or peer.revokes or peer.leases or peer.updates or peer.ended_updates) and channel.has_room:
            if peer.replies:  # first: the reply to a submission precedes all updates of its job
                channel.send(_take_replies(peer))
            elif peer.revokes:
                channel.send(_take_revokes(peer))
            elif peer.leases:
                _send_leases(peer)
            else:
                self._send_updates(peer)
        if peer.credit_due and not peer.replies and not peer.revokes:
            connection = peer.link.connection
            for body_bytes in peer.credit_due:
                self._effects.append(ReturnCredit(connection, peer.channel, body_bytes))
            peer.credit_due.clear()

    def _send_updates(self, peer: JobPeer) -> None:
        room = RECORD_BYTES
        jobs: list[JobUpdate] = []
        payloads: list[bytes] = []
        while peer.ended_updates and room > 0 and len(jobs) < MAX_GROUP:
            ended = peer.ended_updates.popleft()
            room -= JOB_BYTES + CHARACTER_BYTES * len(ended.reason)
            jobs.append(ended)
        updates = peer.updates
        items = len(jobs)
        while updates and room > 0 and items < MAX_GROUP:
            number, (job, tasks) = updates.popitem(last=False)
            if job in self._unstored:
                peer.held_updates[number] = job, tasks
                continue
            if type(tasks) is AllTasks:
                tasks = dict.fromkeys([task for task in job.tasks if task.fence or task.state != "waiting"])
            room -= JOB_BYTES + CHARACTER_BYTES * len(job.reason)
            sent, examined, cost_bytes = self._task_updates(tasks, room, MAX_GROUP - items, payloads, is_first=not jobs)
            room -= cost_bytes
            items += 1 + len(sent)
            state: JobState = job.state
            if examined < len(tasks):
                updates[number] = job, dict.fromkeys(islice(tasks, examined, None))
                updates.move_to_end(number, last=False)
                if not sent:
                    break  # the next task is too long for this record
                if state in ENDED:
                    state = "running"  # the end is sent with the last of its tasks
            elif tasks and not sent:
                continue  # all of them have changed again: the update comes back with them
            elif state in ENDED:
                self.unwatch(peer, number)
            jobs.append(JobUpdate(job=number, state=state, agreed=job.agreed, reason=job.reason, tasks=sent))
        if jobs:
            peer.work_channel.send(UpdateGroup(jobs=jobs), payloads)

    def _task_updates(
        self, tasks: dict[JobTask, None], room: int, limit: int, payloads: list[bytes], *, is_first: bool
    ) -> tuple[list[TaskUpdate], int, int]:
        """Return the updates of the tasks that fit, the number of tasks examined, and the size of the updates.

        The first task of a record (`is_first`) always fits. Results are added to `payloads`.
        """
        updates: list[TaskUpdate] = []
        cost_bytes = examined = 0
        for task in tasks:
            if task not in self._unstored:
                result = task.result
                size = len(result)
                texts = len(task.worker) + len(task.note) + len(task.error)
                cost_bytes += TASK_BYTES + CHARACTER_BYTES * texts + size
                if cost_bytes > room and (updates or not is_first):
                    break
                if len(updates) == limit:
                    break
                if size:
                    payloads.append(result)
                updates.append(
                    TaskUpdate(
                        task=task.number,
                        state=task.state,
                        worker=task.worker,
                        fence=task.fence,
                        failures=task.failures,
                        losses=task.losses,
                        progress=task.progress,
                        note=task.note,
                        error=task.error,
                        size=size,
                    )
                )
            examined += 1
        return updates, examined, cost_bytes


def _take_replies(peer: JobPeer) -> SubmitReplyGroup:
    room = RECORD_BYTES
    jobs: list[SubmitReply] = []
    while peer.replies and room > 0 and len(jobs) < MAX_GROUP:
        job = peer.replies.popleft()
        room -= REPLY_BYTES + CHARACTER_BYTES * (len(job.key) + len(job.text))
        jobs.append(job)
    return SubmitReplyGroup(jobs=jobs)


def _take_revokes(peer: JobPeer) -> RevokeGroup:
    """Return the next revoked leases that have the same reason."""
    reason = peer.revokes[0][1]
    leases: list[Ref] = []
    while peer.revokes and peer.revokes[0][1] == reason and len(leases) < MAX_GROUP:
        leases.append(peer.revokes.popleft()[0])
    return RevokeGroup(tasks=leases, reason=reason)


def _send_leases(peer: JobPeer) -> None:
    room = RECORD_BYTES
    tasks: list[LeasedTask] = []
    payloads: list[bytes] = []
    leases = peer.leases
    while leases and len(tasks) < MAX_GROUP:
        task, fence = leases[0]
        if task.fence == fence and task.state == "leased" and task.worker == peer.name:
            job = task.job
            spec = job.spec
            size = len(job.payload)
            room -= LEASED_BYTES + CHARACTER_BYTES * (len(job.kind) + len(job.controller)) + size
            if room < 0 and tasks:
                break
            if size:
                payloads.append(job.payload)
            tasks.append(
                LeasedTask(
                    task=(job.number, task.number, fence),
                    of_kind=job.kind,
                    controller=job.controller,
                    size=size,
                    agreed=job.agreed or 1,
                    failures=task.failures,
                    time_limit_ms=spec.time_limit_ms,
                    deadline_us=job.deadline_us,
                )
            )
        leases.popleft()
    if tasks:
        peer.work_channel.send(LeaseGroup(tasks=tasks), payloads)
