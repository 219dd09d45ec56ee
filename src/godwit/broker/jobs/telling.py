"""What clients are told of work: answers to submissions, leases, revoked leases, and what became of jobs they watch.

A watcher is told states, not events: its party only notes which jobs and tasks have changed, and how they stand is
looked up when its window has room. So a slow one costs no more than a reference for each task, and misses nothing that
still matters.

That a task was leased for the first time can wait a moment: most are done by then, and told once.

Nothing is told before it is safe. A task that has changed again, and not safely yet, is passed over: it is noted anew
when it is. A job's own changes are few, so all of a job waits for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from godwit.broker.effects import Effect
from godwit.broker.jobs.model import Job, Task
from godwit.broker.jobs.party import AllTasks, Party
from godwit.broker.jobs.states import ENDED
from godwit.limits import MAX_CLIENT_NAME_BYTES, MAX_GROUP, MAX_JOB_PAYLOAD_BYTES, MAX_WORK_HEAD_BYTES
from godwit.native.effects import ReturnCredit
from godwit.wire.jobs import JobState, Ref
from godwit.wire.work import JobUpdate, Lease, LeasedTask, Revoke, Taken, TakenJob, TaskUpdate, Update

LATER_US: Final = 300_000
"""So much later watchers hear that a task was leased for the first time, if it is not done by then."""
MAX_WATCHED: Final = 100_000
"""Jobs that one client watches, with those that it submitted."""
RECORD_BYTES: Final = 60_000
"""Groups are cut at about this, which is what one train carries. A long payload has a record of its own."""
TAKEN_BYTES: Final = 48
LEASED_BYTES: Final = 136
JOB_BYTES: Final = 64
TASK_BYTES: Final = 112
"""What these have in a group's head, rounded up, besides their texts ..."""
CHARACTER_BYTES: Final = 4
"""... of which a character has at most so many."""
LONGEST_PART_BYTES: Final = LEASED_BYTES + CHARACTER_BYTES * (2 * 1024 + MAX_CLIENT_NAME_BYTES)
"""With a note, an error and a name."""
assert RECORD_BYTES + 2 * LONGEST_PART_BYTES < MAX_WORK_HEAD_BYTES
assert RECORD_BYTES < MAX_JOB_PAYLOAD_BYTES


class Telling:
    """Drain: flush, at the end of a turn. Feed: all the others.

    `unsafe` is the office's own table: jobs and tasks with changes that are not in the log yet.
    """

    def __init__(self, unsafe: Mapping[Job | Task, int], effects: list[Effect]) -> None:
        self._unsafe = unsafe
        self._effects = effects
        self._watchers: dict[int, dict[Party, None]] = {}
        self._stirred: dict[Party, None] = {}
        """Those to whom something may be said at the end of the turn."""
        self._gone: list[int] = []
        self._leased: list[tuple[Party, int]] = []
        """Who is to hear later, of which jobs, that tasks were leased in this turn."""
        self._later: deque[tuple[int, Party, int]] = deque()
        """The same of the turns before, and when."""

    # -- what there is to say -----------------------------------------------------------------------------------------

    @property
    def is_stirred(self) -> bool:
        return bool(self._stirred or self._gone or self._leased or self._later)

    @property
    def due_us(self) -> int | None:
        """When something is to be told though nothing happens."""
        return self._later[0][0] if self._later else None

    def stir(self, party: Party) -> None:
        """It has room again, or something to be given back."""
        self._stirred[party] = None

    def taken(self, party: Party, jobs: Iterable[TakenJob]) -> None:
        party.taken.extend(jobs)
        self._stirred[party] = None

    def lease(self, party: Party, task: Task, fence: int) -> None:
        party.leases.append((task, fence))
        self._stirred[party] = None

    def revoke(self, party: Party, lease: Ref, reason: str) -> None:
        party.revokes.append((lease, reason))
        self._stirred[party] = None

    # -- who watches what ---------------------------------------------------------------------------------------------

    def watch(self, party: Party, job: Job) -> None:
        """Tell it what becomes of the job from now on. Each of its changes will come through job_changed."""
        number = job.number
        watchers = self._watchers.get(number)
        if watchers is None:
            self._watchers[number] = {party: None}
        else:
            watchers[party] = None
        party.watched[number] = None

    def is_full(self, party: Party) -> bool:
        """Whether it watches as many jobs as it may, those counted that have ended without its taking it."""
        return len(party.watched) + len(party.farewells) >= MAX_WATCHED

    def tell_all(self, party: Party, job: Job) -> None:
        """How it stands, with all tasks that anybody ever had or that have ended."""
        party.held.pop(job.number, None)
        party.later.pop(job.number, None)
        party.updates[job.number] = job, AllTasks()
        self._stirred[party] = None

    def unwatch(self, party: Party, number: int) -> None:
        if number in party.watched:
            del party.watched[number]
            party.updates.pop(number, None)
            party.held.pop(number, None)
            party.later.pop(number, None)
            watchers = self._watchers[number]
            del watchers[party]
            if not watchers:
                del self._watchers[number]

    def leave(self, party: Party) -> None:
        """Its connection is over."""
        for number in list(party.watched):
            self.unwatch(party, number)
        self._stirred.pop(party, None)

    def job_changed(self, job: Job) -> None:
        """Its own state, safely."""
        for party in self._watchers.get(job.number, ()):
            self._note(party, job)

    def task_changed(self, task: Task) -> None:
        """Safely, or only how far it is."""
        job = task.job
        for party in self._watchers.get(job.number, ()):
            self._note(party, job)[task] = None

    def task_leased(self, task: Task) -> None:
        """Safely, for the first time. Whoever hears of its job anyway hears it now, all others a little later."""
        job = task.job
        number = job.number
        for party in self._watchers.get(number, ()):
            update = party.updates.get(number) or party.later.get(number)
            if update is None:
                update = party.later[number] = job, {}
                self._leased.append((party, number))
            update[1][task] = None

    def discard(self, number: int) -> None:
        """A job that never came about: nobody hears of it."""
        for party in list(self._watchers.get(number, ())):
            self.unwatch(party, number)

    def gone(self, numbers: Iterable[int]) -> None:
        """Jobs that ended are forgotten."""
        self._gone += [number for number in numbers if number in self._watchers]

    def _note(self, party: Party, job: Job) -> dict[Task, None]:
        number = job.number
        update = party.updates.get(number)
        if update is None:
            update = party.held.pop(number, None) or (job, {})
            party.updates[number] = update
            self._stirred[party] = None
        if party.later and (later := party.later.pop(number, None)) is not None:
            update[1].update(later[1])
        return update[1]

    # -- saying it ----------------------------------------------------------------------------------------------------

    def flush(self, now_us: int) -> None:
        """Everybody is told what fits its window."""
        self._flush_later(now_us)
        stirred, self._stirred = self._stirred, {}
        for party in stirred:
            if party.link.is_open:
                self._flush(party)
        if self._gone:
            self._say_farewell()

    def _flush_later(self, now_us: int) -> None:
        later = self._later
        later.extend([(now_us + LATER_US, party, number) for party, number in self._leased])
        self._leased.clear()
        while later:
            due_us, party, number = later[0]
            update = party.later.get(number)
            if update is not None:
                if due_us > now_us:
                    break
                self._note(party, update[0])
            later.popleft()

    def _say_farewell(self) -> None:
        """Who has no room now to hear of a job that is forgotten will hear its end, without what the tasks brought."""
        for number in self._gone:
            for party in self._watchers.pop(number, ()):
                del party.watched[number]
                party.later.pop(number, None)
                job, _ = party.updates.pop(number) if number in party.updates else party.held.pop(number)
                party.farewells.append(JobUpdate(job=number, state=job.state, agreed=job.agreed, reason=job.reason))
        self._gone.clear()

    def _flush(self, party: Party) -> None:
        outlet = party.outlet
        while outlet.has_room:
            if party.taken:  # first: a job is taken before anything else is told of it
                outlet.send(_taken(party))
            elif party.revokes:
                outlet.send(_revoke(party))
            elif party.leases:
                _send_leases(party)
            elif party.updates or party.farewells:
                self._send_updates(party)
            else:
                break
        if party.owed and not party.taken and not party.revokes:
            connection = party.link.connection
            self._effects += [ReturnCredit(connection, party.channel, body_bytes) for body_bytes in party.owed]
            party.owed.clear()

    def _send_updates(self, party: Party) -> None:
        room = RECORD_BYTES
        jobs: list[JobUpdate] = []
        payloads: list[bytes] = []
        while party.farewells and room > 0 and len(jobs) < MAX_GROUP:
            farewell = party.farewells.popleft()
            room -= JOB_BYTES + CHARACTER_BYTES * len(farewell.reason)
            jobs.append(farewell)
        updates = party.updates
        parts = len(jobs)
        while updates and room > 0 and parts < MAX_GROUP:
            number, (job, tasks) = updates.popitem(last=False)
            if job in self._unsafe:
                party.held[number] = job, tasks
                continue
            if type(tasks) is AllTasks:
                tasks = dict.fromkeys([task for task in job.tasks if task.fence or task.state != "waiting"])
            room -= JOB_BYTES + CHARACTER_BYTES * len(job.reason)
            told, looked_at, cost_bytes = self._tasks(tasks, room, MAX_GROUP - parts, payloads, is_first=not jobs)
            room -= cost_bytes
            parts += 1 + len(told)
            state: JobState = job.state
            if looked_at < len(tasks):
                updates[number] = job, dict.fromkeys(islice(tasks, looked_at, None))
                updates.move_to_end(number, last=False)
                if not told:
                    break  # the next record is for what is too long for this one
                if state in ENDED:
                    state = "running"  # the end is told with the last of its tasks
            elif tasks and not told:
                continue  # all of them have changed again: it comes back with them
            elif state in ENDED:
                self.unwatch(party, number)
            jobs.append(JobUpdate(job=number, state=state, agreed=job.agreed, reason=job.reason, tasks=told))
        if jobs:
            party.outlet.send(Update(jobs=jobs), payloads)

    def _tasks(
        self, tasks: dict[Task, None], room: int, parts: int, payloads: list[bytes], *, is_first: bool
    ) -> tuple[list[TaskUpdate], int, int]:
        """Those that fit, how many were looked at, and their bytes. The very first of a record always fits."""
        told: list[TaskUpdate] = []
        cost_bytes = looked_at = 0
        for task in tasks:
            if task not in self._unsafe:
                result = task.result
                size = len(result)
                texts = len(task.worker) + len(task.note) + len(task.error)
                cost_bytes += TASK_BYTES + CHARACTER_BYTES * texts + size
                if cost_bytes > room and (told or not is_first):
                    break
                if len(told) == parts:
                    break
                if size:
                    payloads.append(result)
                told.append(
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
            looked_at += 1
        return told, looked_at, cost_bytes


def _taken(party: Party) -> Taken:
    room = RECORD_BYTES
    jobs: list[TakenJob] = []
    while party.taken and room > 0 and len(jobs) < MAX_GROUP:
        job = party.taken.popleft()
        room -= TAKEN_BYTES + CHARACTER_BYTES * (len(job.key) + len(job.text))
        jobs.append(job)
    return Taken(jobs=jobs)


def _revoke(party: Party) -> Revoke:
    """Those with the same reason, next to each other."""
    reason = party.revokes[0][1]
    leases: list[Ref] = []
    while party.revokes and party.revokes[0][1] == reason and len(leases) < MAX_GROUP:
        leases.append(party.revokes.popleft()[0])
    return Revoke(tasks=leases, reason=reason)


def _send_leases(party: Party) -> None:
    room = RECORD_BYTES
    tasks: list[LeasedTask] = []
    payloads: list[bytes] = []
    leases = party.leases
    while leases and len(tasks) < MAX_GROUP:
        task, fence = leases[0]
        if task.fence == fence and task.state == "leased" and task.worker == party.name:
            job = task.job
            size = job.payload_bytes
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
                    time_limit_ms=job.time_limit_ms,
                    deadline_us=job.deadline_us,
                )
            )
        leases.popleft()
    if tasks:
        party.outlet.send(Lease(tasks=tasks), payloads)
