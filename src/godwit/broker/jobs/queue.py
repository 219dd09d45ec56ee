"""The queue of one kind of work: which job is next, and which workers may take it.

A worker that held a task of a job gets no other task of that job while there is a volunteer that held none. To decide
this without looking at every job and worker, jobs with ready tasks are put into *eligibility groups*: all jobs of a
group were tried by the same workers, so one check covers the whole group. Most jobs are in the group of untried jobs. A
worker that fails a thousand jobs fills one group, which is skipped as a whole when that worker has capacity again. Only
workers that are present count in a group's key, so groups do not multiply as workers come and go. A job whose previous
worker has come back moves to its proper group when it is next.

A group is *blocked* when no worker with free capacity may take from it. It is not examined again until an eligible
worker has capacity, the last eligible worker leaves, or its first job has waited long enough. The number of blocked
groups is limited (MAX_BLOCKED_LINES), because each worker that gets capacity examines all of them.

Within and between groups, jobs are ordered by priority, then by fairness between controllers (FairShare), then by age.

Heap entries may be outdated (jobs that ended, workers whose capacity changed). They are dropped when they reach the
top, or when they outnumber the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

from godwit.broker.jobs.model import FreeSlot, Job, PoolWorker
from godwit.limits import MAX_BLOCKED_LINES

JobKey: TypeAlias = tuple[int, int, int, Job]
"""Negative priority, fairness tag, number; the smallest comes first."""

MAX_CANDIDATES: Final = 64
"""The number of candidates remembered for a group that was blocked and that no worker takes from."""
SLACK: Final = 64
"""The number of outdated entries that is always tolerated."""


class FairShare:
    """Fairness between the controllers of one priority: start-time fair queueing.

    A job's tag is the larger of the virtual time and its controller's last tag, plus its number of tasks. The virtual
    time is the tag of the job leased last. So a controller that submits a thousand jobs comes after all controllers
    that submit one.
    """

    __slots__ = ("_tags", "time")

    def __init__(self) -> None:
        self.time = 0
        self._tags: dict[str, list[int]] = {}
        """For each controller with unended jobs: the last tag, and the number of these jobs."""

    def add_job(self, controller: str, tasks: int) -> int:
        """Return the tag of a new job with this number of tasks."""
        last = self._tags.get(controller)
        if last is None:
            last = self._tags[controller] = [0, 0]
        tag = last[0] = (last[0] if last[0] > self.time else self.time) + tasks
        last[1] += 1
        return tag

    def end_job(self, controller: str) -> None:
        """Forget the controller with its last unended job."""
        last = self._tags[controller]
        last[1] -= 1
        if not last[1]:
            del self._tags[controller]


class EligibilityGroup:
    """Jobs that were tried by the same workers."""

    __slots__ = ("eligible", "excluded_workers", "heap", "key", "queue", "stamp", "version")

    def __init__(self, queue: JobQueue, key: object, excluded_workers: AbstractSet[str]) -> None:
        self.queue = queue
        self.key = key
        self.excluded_workers = excluded_workers
        self.heap: list[JobKey] = []
        self.stamp = 0
        """Identifies its valid entry in the order of groups; entries with another stamp are outdated. 0: no entry."""
        self.eligible = 0
        """The number of volunteers, including busy ones, that tried none of its jobs ..."""
        self.version = -1
        """... as of this version of the queue's volunteers."""


class JobQueue:
    """The volunteers and the unended jobs of one kind of work."""

    __slots__ = (
        "_candidates", "_changes", "_free", "_group_limit", "_groups", "_order", "_shares", "_size", "_stale",
        "_stamps", "jobs", "kind", "last_lease", "untried", "version", "volunteers", "waiting",
    )  # fmt: skip

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.jobs = 0
        """The number of unended jobs."""
        self.waiting: dict[Job, None] = {}
        """Jobs that wait for a first volunteer."""
        self.volunteers: dict[str, PoolWorker] = {}
        self.version = 0
        """Changes whenever the volunteers change."""
        self._changes: deque[tuple[str, int]] = deque(maxlen=SLACK)
        """The latest changes of the volunteers: name, and 1 or -1."""
        self.last_lease = 0
        """The serial number of the latest lease from this queue, as in PoolWorker."""
        self.untried = EligibilityGroup(self, None, frozenset())
        """The group of jobs that no worker has tried."""
        self._groups: dict[object, EligibilityGroup] = {}
        """All other groups, by the names of the workers that tried their jobs, or by the only job in the group."""
        self._group_limit = SLACK
        """With more groups than this, groups that have become equal are merged."""
        self._order: list[tuple[int, int, int, int, EligibilityGroup]] = []
        """A heap of these groups: the key of the first job of each, and the stamp."""
        self._candidates: dict[EligibilityGroup, dict[PoolWorker, None]] = {}
        """For groups that were blocked: the eligible workers that have got capacity since."""
        self._stamps = 0
        self._size = 0
        """The number of entries in all groups ..."""
        self._stale = 0
        """... including this number of ended jobs."""
        self._free: list[FreeSlot] = []
        """A heap of the volunteers with free capacity."""
        self._shares: dict[int, FairShare] = {}
        """By priority."""

    # -- volunteers ---------------------------------------------------------------------------------------------------

    def add_volunteer(self, worker: PoolWorker) -> None:
        """Add a worker; its free capacity is announced with offer."""
        self.volunteers[worker.name] = worker
        self._record_change(worker, 1)

    def remove_volunteer(self, worker: PoolWorker) -> None:
        """Remove a worker, and unblock the groups for which it was the last eligible one."""
        del self.volunteers[worker.name]
        self._record_change(worker, -1)
        for group in self._candidates:
            if not group.stamp and not self.eligible_count(group):
                self._rank(group)

    def offer(self, worker: PoolWorker, free_slot: FreeSlot) -> None:
        """Add the free capacity of a volunteer that has more of it than before."""
        self.put_back(free_slot)
        overfull = []
        for group, candidates in self._candidates.items():
            if worker.name in group.excluded_workers:
                continue
            candidates[worker] = None
            if not group.stamp:
                self._rank(group)
            elif len(candidates) > MAX_CANDIDATES:
                overfull.append(group)
        for group in overfull:  # with this many candidates, a plain search finds one quickly
            del self._candidates[group]

    def put_back(self, free_slot: FreeSlot) -> None:
        """Add the free capacity of a volunteer that has no more of it than before."""
        heappush(self._free, free_slot)
        if len(self._free) > 2 * len(self.volunteers) + SLACK:
            self._free = [slot for slot in self._free if slot == slot[-1].free_slot and self._has(slot[-1])]
            heapify(self._free)

    def first_free(self) -> PoolWorker | None:
        """Return the volunteer that is served next, or None if all are busy."""
        free = self._free
        while free:
            worker = free[0][-1]
            if free[0] == worker.free_slot and self.volunteers.get(worker.name) is worker:
                return worker
            heappop(free)
        return None

    def eligible_count(self, group: EligibilityGroup) -> int:
        """Return the number of volunteers, including busy ones, that tried none of a group's jobs."""
        behind = self.version - group.version
        if not behind:
            return group.eligible
        excluded, volunteers = group.excluded_workers, self.volunteers
        if group.version >= 0 and behind <= len(self._changes):
            for number in range(-behind, 0):
                name, change = self._changes[number]
                if name not in excluded:
                    group.eligible += change
        else:
            few, many = (excluded, volunteers) if len(excluded) < len(volunteers) else (volunteers, excluded)
            group.eligible = len(volunteers) - sum(name in many for name in few)
        group.version = self.version
        return group.eligible

    def _record_change(self, worker: PoolWorker, change: int) -> None:
        """Record a change of the volunteers; groups apply it when their count is needed."""
        self.version += 1
        self._changes.append((worker.name, change))

    def pick(self, group: EligibilityGroup, count: int) -> list[PoolWorker]:
        """Return up to `count` eligible volunteers with free capacity, the best first."""
        candidates = self._candidates.get(group)
        if candidates is not None:
            candidates = self._candidates[group] = {
                worker: None
                for worker in candidates
                if worker.free_slot is not None and self._has(worker) and worker.name not in group.excluded_workers
            }
            return sorted(candidates, key=_free_slot)[:count]
        picked: list[PoolWorker] = []
        skipped: list[FreeSlot] = []
        while len(picked) < count and (worker := self.first_free()) is not None:
            slot = heappop(self._free)
            if worker.name in group.excluded_workers:
                skipped.append(slot)
            else:
                picked.append(worker)
        for slot in skipped:
            heappush(self._free, slot)
        return picked

    def _has(self, worker: PoolWorker) -> bool:
        return self.volunteers.get(worker.name) is worker

    # -- jobs ---------------------------------------------------------------------------------------------------------

    @property
    def has_ready(self) -> bool:
        """Whether a worker with free capacity might find a task."""
        return bool(self.untried.heap or self._order)

    @property
    def urgency(self) -> int:
        """The negative priority of the next job: the smaller, the more urgent."""
        group = self.first_group()
        return 0 if group is None else group.heap[0][0]

    def add_job(self, job: Job) -> None:
        """Give a job that has just got its tasks its position in the order, which it keeps."""
        priority = job.spec.priority
        share = self._shares.get(priority)
        if share is None:
            share = self._shares[priority] = FairShare()
        job.tag = share.add_job(job.controller, len(job.tasks))

    def push(self, job: Job) -> None:
        """Add a job that has ready tasks and had none before."""
        self._size += 1
        entry = (-job.spec.priority, job.tag, job.number, job)
        tried = job.tried_workers
        if not tried:
            heappush(self.untried.heap, entry)
            return
        key: Job | frozenset[str] = self._present(tried) if isinstance(tried, frozenset) else job
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= self._group_limit:
                self._merge_groups()
                self._group_limit = 2 * len(self._groups) + SLACK
            excluded = key if isinstance(key, frozenset) else tried
            group = self._groups.setdefault(key, EligibilityGroup(self, key, excluded))
        heappush(group.heap, entry)
        if group.heap[0] == entry and (group.stamp or group not in self._candidates):  # else the group is blocked
            self._rank(group)

    def first_group(self) -> EligibilityGroup | None:
        """Return the group whose first job is next, except for groups known to be blocked."""
        heap = self.untried.heap
        while heap and heap[0][3].state != "running":
            self._pop(self.untried)
        order = self._order
        while order:
            group = order[0][4]
            if order[0][3] != group.stamp:
                heappop(order)
            elif group.heap[0][3].state != "running":
                self._pop(group)
            elif heap and heap[0][:3] < order[0][:3]:
                break
            else:
                return group
        return self.untried if heap else None

    def regroup_first(self, group: EligibilityGroup) -> bool:
        """Move the first job of a group to another one, if a worker that tried it has come back.

        Return whether it was moved.
        """
        job = group.heap[0][3]
        excluded = group.excluded_workers
        if len(excluded) == len(job.tried_workers) or group is self.untried or group.key is job:
            return False
        if all(name in excluded or name not in self.volunteers for name in job.tried_workers):
            return False
        self._pop(group)
        self.push(job)
        return True

    def update_leased(self, group: EligibilityGroup, picked: int) -> None:
        """Reorder a group after tasks of its first job were leased to `picked` workers that had not tried it."""
        job = group.heap[0][3]
        share = self._shares[job.spec.priority]
        if job.tag > share.time:
            share.time = job.tag
        if group.key is job:
            group.eligible -= picked
            if job.ready:
                return
        self._pop(group)
        if job.ready:
            self.push(job)

    def block(self, group: EligibilityGroup) -> bool:
        """Block a group that no worker with free capacity may take from; return False if too many are blocked."""
        if len(self._candidates) >= MAX_BLOCKED_LINES and group not in self._candidates:
            return False
        group.stamp = 0
        self._candidates[group] = {}
        return True

    def unblock(self, group: EligibilityGroup) -> bool:
        """Examine a blocked group again; return False if it is not blocked any more."""
        if group.stamp or group not in self._candidates:
            return False
        self._rank(group)
        return True

    def end_job(self, job: Job) -> None:
        """Remove a job that has ended or was discarded."""
        self.jobs -= 1
        self.waiting.pop(job, None)
        if job.tag:
            self._shares[job.spec.priority].end_job(job.controller)
        if isinstance(job.tried_workers, set) and (group := self._groups.get(job)) is not None:
            self._size -= len(group.heap)
            self._remove_group(group)
        elif job.ready:
            self._stale += 1
            if self._stale > self._size // 2 + SLACK:
                self._drop_stale()

    def _pop(self, group: EligibilityGroup) -> None:
        if heappop(group.heap)[3].state != "running":
            self._stale -= 1
        self._size -= 1
        if group is self.untried:
            return
        if group.heap:
            self._rank(group)
        elif isinstance(group.key, Job):  # the job may come back: keep the count of its eligible workers
            self._clear_group(group)
        else:
            self._remove_group(group)

    def _rank(self, group: EligibilityGroup) -> None:
        """Put a group into the order: its first job has changed, or it is no longer blocked."""
        self._stamps += 1
        group.stamp = self._stamps
        heappush(self._order, (*group.heap[0][:3], group.stamp, group))
        if len(self._order) > 2 * len(self._groups) + SLACK:
            self._order = [entry for entry in self._order if entry[3] == entry[4].stamp]
            heapify(self._order)

    def _clear_group(self, group: EligibilityGroup) -> None:
        """Take a group without jobs out of the order."""
        group.stamp = 0
        self._candidates.pop(group, None)

    def _remove_group(self, group: EligibilityGroup) -> None:
        self._clear_group(group)
        del self._groups[group.key]

    def _present(self, names: AbstractSet[str]) -> frozenset[str]:
        """Return those of the workers that are volunteers now."""
        present = self.volunteers.keys() & names
        return names if len(present) == len(names) and isinstance(names, frozenset) else frozenset(present)

    def _merge_groups(self) -> None:
        """Merge groups that differ only by workers that have left."""
        for group in list(self._groups.values()):
            if isinstance(group.key, Job):
                continue
            key = self._present(group.excluded_workers)
            if len(key) == len(group.excluded_workers):
                continue
            del self._groups[group.key]
            other = self._groups.setdefault(key, group)
            if other is group:
                group.key = group.excluded_workers = key
                group.version = -1
                continue
            few, other.heap = sorted((group.heap, other.heap), key=len)
            for entry in few:
                heappush(other.heap, entry)
            is_blocked = not other.stamp and other in self._candidates and not group.stamp and group in self._candidates
            self._clear_group(group)
            if not is_blocked:
                self._rank(other)

    def _drop_stale(self) -> None:
        """Drop the entries of all jobs that have ended."""
        self._stale = 0
        self._size = 0
        for group in (self.untried, *self._groups.values()):
            group.heap = [entry for entry in group.heap if entry[3].state == "running"]
            heapify(group.heap)
            self._size += len(group.heap)
            if group is self.untried:
                continue
            if not group.heap:
                self._remove_group(group)
            elif group.stamp:
                self._rank(group)


def _free_slot(worker: PoolWorker) -> FreeSlot:
    assert worker.free_slot is not None
    return worker.free_slot
