"""Which job is next, and for whom: the queue of one kind of work.

Jobs with tasks that could be leased stand in *lines*. All jobs of a line were had by the same workers, so one look at a
line tells whether anybody may take from it: nobody who had a job gets another task of it while there is a volunteer
that had none. Most jobs stand in the line of those that nobody had yet. A worker that fails a thousand jobs fills one
line, which is passed over as a whole when that worker asks for more. So no lease looks at all jobs or all workers.
Only workers that are there count, so that lines do not multiply with those that come and go. A job whose former worker
is back goes to its right line when it is next.

A line from which nobody with free capacity may take is *blocked*. It is not looked at again before a worker that may
take from it has capacity, the last such worker is gone, or its first job has waited long enough. There are few of them
at a time (MAX_BLOCKED_LINES), because every worker that gets capacity looks at all.

Within and between lines the highest priority comes first, then what is fair between controllers (see Level), then age.

What stands in a heap may be out of date (jobs that ended, workers whose capacity changed). It is dropped when it comes
to the top, or when there is more of it than of the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

from godwit.broker.jobs.levels import Level
from godwit.broker.jobs.model import Free, Job, Worker
from godwit.limits import MAX_BLOCKED_LINES

Place: TypeAlias = tuple[int, int, int, Job]
"""Priority (negative), tag, number: the smallest comes first."""

MAX_CANDIDATES: Final = 64
"""So many are remembered for a line that was blocked, if nobody takes from it."""
SLACK: Final = 64
"""So much that is out of date is always borne with."""


class Line:
    """Jobs that the same workers had."""

    __slots__ = ("fresh", "had", "heap", "key", "queue", "stamp", "version")

    def __init__(self, queue: Queue, key: object, had: AbstractSet[str]) -> None:
        self.queue = queue
        self.key = key
        self.had = had
        self.heap: list[Place] = []
        self.stamp = 0
        """Of its place in the order of the lines; others found there are old. 0: it has none."""
        self.fresh = 0
        """Volunteers, busy ones too, that had none of its jobs ..."""
        self.version = -1
        """... as of this version of the queue's volunteers."""


class Queue:
    """One kind: its volunteers, and its jobs that have not ended."""

    __slots__ = (
        "_bound", "_candidates", "_changes", "_free", "_levels", "_lines", "_order", "_stale", "_stamps", "_standing",
        "jobs", "kind", "served", "untouched", "version", "volunteers", "waiting",
    )  # fmt: skip

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.jobs = 0
        """That have not ended."""
        self.waiting: dict[Job, None] = {}
        """Those of them that wait for a first volunteer."""
        self.volunteers: dict[str, Worker] = {}
        self.version = 0
        """Changes with the volunteers."""
        self._changes: deque[tuple[str, int]] = deque(maxlen=SLACK)
        """How they changed last: who, and 1 or -1."""
        self.served = 0
        """When it was leased from last, as in Worker.served."""
        self.untouched = Line(self, None, frozenset())
        """The line of those that nobody had yet."""
        self._lines: dict[object, Line] = {}
        """The others, by who had their jobs, or by the one job in it."""
        self._bound = SLACK
        """With more lines, it is looked whether there need to be so many."""
        self._order: list[tuple[int, int, int, int, Line]] = []
        """A heap of them, by the first job of each: priority, tag, number; stamp."""
        self._candidates: dict[Line, dict[Worker, None]] = {}
        """Of lines that were blocked: all who got capacity since then and had none of its jobs."""
        self._stamps = 0
        self._standing = 0
        """How many jobs are in all lines, with ..."""
        self._stale = 0
        """... those that have ended."""
        self._free: list[Free] = []
        """A heap of the volunteers that have capacity left."""
        self._levels: dict[int, Level] = {}

    # -- volunteers ---------------------------------------------------------------------------------------------------

    def join(self, worker: Worker) -> None:
        self.volunteers[worker.name] = worker
        self._count(worker, 1)

    def leave(self, worker: Worker) -> None:
        del self.volunteers[worker.name]
        self._count(worker, -1)
        for line in self._candidates:
            if not line.stamp and not self.fresh(line):
                self._rank(line)

    def offer(self, worker: Worker, free: Free) -> None:
        """A volunteer has more capacity than before."""
        self.put_back(free)
        many = []
        for line, candidates in self._candidates.items():
            if worker.name in line.had:
                continue
            candidates[worker] = None
            if not line.stamp:
                self._rank(line)
            elif len(candidates) > MAX_CANDIDATES:
                many.append(line)
        for line in many:  # whoever looks for somebody finds one soon
            del self._candidates[line]

    def put_back(self, free: Free) -> None:
        """A volunteer still has capacity, not more than before."""
        heappush(self._free, free)
        if len(self._free) > 2 * len(self.volunteers) + SLACK:
            self._free = [place for place in self._free if place is place[-1].free and self._has(place[-1])]
            heapify(self._free)

    def first_free(self) -> Worker | None:
        free = self._free
        while free:
            worker = free[0][-1]
            if free[0] is worker.free and self._has(worker):
                return worker
            heappop(free)
        return None

    def fresh(self, line: Line) -> int:
        """How many volunteers, busy ones too, had none of its jobs."""
        behind = self.version - line.version
        if not behind:
            return line.fresh
        had, volunteers = line.had, self.volunteers
        if line.version >= 0 and behind <= len(self._changes):
            for number in range(-behind, 0):
                name, change = self._changes[number]
                if name not in had:
                    line.fresh += change
        else:
            few, many = (had, volunteers) if len(had) < len(volunteers) else (volunteers, had)
            line.fresh = len(volunteers) - sum(name in many for name in few)
        line.version = self.version
        return line.fresh

    def _count(self, worker: Worker, change: int) -> None:
        """The volunteers have changed. Lines know it when they are asked."""
        self.version += 1
        self._changes.append((worker.name, change))

    def pick(self, line: Line, count: int) -> list[Worker]:
        """The best volunteers that have capacity and had none of its jobs."""
        candidates = self._candidates.get(line)
        if candidates is not None:
            candidates = self._candidates[line] = {
                worker: None
                for worker in candidates
                if worker.free is not None and self._has(worker) and worker.name not in line.had
            }
            return sorted(candidates, key=_place)[:count]
        picked: list[Worker] = []
        passed: list[Free] = []
        while len(picked) < count and (worker := self.first_free()) is not None:
            place = heappop(self._free)
            if worker.name in line.had:
                passed.append(place)
            else:
                picked.append(worker)
        for place in passed:
            heappush(self._free, place)
        return picked

    def _has(self, worker: Worker) -> bool:
        return self.volunteers.get(worker.name) is worker

    # -- jobs ---------------------------------------------------------------------------------------------------------

    @property
    def has_ready(self) -> bool:
        """Whether somebody with capacity might find something."""
        return bool(self.untouched.heap or self._order)

    @property
    def urgency(self) -> int:
        """The smaller, the higher the priority of what is next."""
        line = self.first()
        return 0 if line is None else line.heap[0][0]

    def tag(self, job: Job) -> None:
        """Give it its place in the order, which it keeps."""
        level = self._levels.get(job.priority)
        if level is None:
            level = self._levels[job.priority] = Level()
        job.tag = level.tag(job.controller, len(job.tasks))

    def push(self, job: Job) -> None:
        """It has tasks that may be leased now, and had none before."""
        self._standing += 1
        place = (-job.priority, job.tag, job.number, job)
        had = job.had
        if not had:
            heappush(self.untouched.heap, place)
            return
        key: Job | frozenset[str] = self._present(had) if isinstance(had, frozenset) else job
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= self._bound:
                self._merge()
                self._bound = 2 * len(self._lines) + SLACK
            line = self._lines.setdefault(key, Line(self, key, key if isinstance(key, frozenset) else had))
        heappush(line.heap, place)
        if line.heap[0] is place and (line.stamp or line not in self._candidates):  # else it is blocked
            self._rank(line)

    def first(self) -> Line | None:
        """The line whose first job is the next one, of those that are not known to be blocked."""
        heap = self.untouched.heap
        while heap and heap[0][3].state != "running":
            self._pop(self.untouched)
        order = self._order
        while order:
            line = order[0][4]
            if order[0][3] != line.stamp:
                heappop(order)
            elif line.heap[0][3].state != "running":
                self._pop(line)
            elif heap and heap[0][:3] < order[0][:3]:
                break
            else:
                return line
        return self.untouched if heap else None

    def put_right(self, line: Line) -> bool:
        """Whether its first job belongs into another line, where it is now: somebody who had it has come back."""
        job = line.heap[0][3]
        if len(line.had) == len(job.had) or line is self.untouched or line.key is job:
            return False
        if all(name in line.had or name not in self.volunteers for name in job.had):
            return False
        self._pop(line)
        self.push(job)
        return True

    def took(self, line: Line, picked: int) -> None:
        """Tasks of its first job were leased; so many workers more have had it."""
        job = line.heap[0][3]
        level = self._levels[job.priority]
        level.time = max(level.time, job.tag)
        if line.key is job:
            line.fresh -= picked
            if job.ready:
                return
        self._pop(line)
        if job.ready:
            self.push(job)

    def block(self, line: Line) -> bool:
        """Nobody who may take from it has capacity. False: too many lines wait already."""
        if len(self._candidates) >= MAX_BLOCKED_LINES and line not in self._candidates:
            return False
        line.stamp = 0
        self._candidates[line] = {}
        return True

    def unblock(self, line: Line) -> bool:
        """Its first job has waited for long enough, perhaps. False: it does not wait any more."""
        if line.stamp or line not in self._candidates:
            return False
        self._rank(line)
        return True

    def end(self, job: Job) -> None:
        """It has ended, or is as if it had never been."""
        self.jobs -= 1
        self.waiting.pop(job, None)
        if job.tag:
            self._levels[job.priority].end(job.controller)
        if isinstance(job.had, set) and (line := self._lines.get(job)) is not None:  # it has a line of its own
            self._standing -= len(line.heap)
            self._close(line)
        elif job.ready:
            self._stale += 1
            if self._stale > self._standing // 2 + SLACK:
                self._clean()

    def _pop(self, line: Line) -> None:
        if heappop(line.heap)[3].state != "running":
            self._stale -= 1
        self._standing -= 1
        if line is self.untouched:
            return
        if line.heap:
            self._rank(line)
        elif isinstance(line.key, Job):  # it may come back, and who had it is known
            self._vacate(line)
        else:
            self._close(line)

    def _rank(self, line: Line) -> None:
        """Its first job has changed, or it is no longer blocked."""
        self._stamps += 1
        line.stamp = self._stamps
        heappush(self._order, (*line.heap[0][:3], line.stamp, line))
        if len(self._order) > 2 * len(self._lines) + SLACK:
            self._order = [place for place in self._order if place[3] == place[4].stamp]
            heapify(self._order)

    def _vacate(self, line: Line) -> None:
        """It has no jobs at present."""
        line.stamp = 0
        self._candidates.pop(line, None)

    def _close(self, line: Line) -> None:
        self._vacate(line)
        del self._lines[line.key]

    def _present(self, had: AbstractSet[str]) -> frozenset[str]:
        """Those of them who are there."""
        present = self.volunteers.keys() & had
        return had if len(present) == len(had) and isinstance(had, frozenset) else frozenset(present)

    def _merge(self) -> None:
        """Lines that differ only by workers that are gone become one."""
        for line in list(self._lines.values()):
            if isinstance(line.key, Job) or len(key := self._present(line.had)) == len(line.had):
                continue
            del self._lines[line.key]
            other = self._lines.setdefault(key, line)
            if other is line:
                line.key = line.had = key
                line.version = -1
                continue
            few, other.heap = sorted((line.heap, other.heap), key=len)
            for place in few:
                heappush(other.heap, place)
            is_blocked = not other.stamp and other in self._candidates and not line.stamp and line in self._candidates
            self._vacate(line)
            if not is_blocked:
                self._rank(other)

    def _clean(self) -> None:
        """Drop all jobs that have ended."""
        self._stale = 0
        self._standing = 0
        for line in (self.untouched, *self._lines.values()):
            line.heap = [place for place in line.heap if place[3].state == "running"]
            heapify(line.heap)
            self._standing += len(line.heap)
            if line is self.untouched:
                continue
            if not line.heap:
                self._close(line)
            elif line.stamp:
                self._rank(line)


def _place(worker: Worker) -> Free:
    assert worker.free is not None
    return worker.free
