"""The board as a whole, whatever happens in whatever order: a machine of random steps, and a judge who keeps own books.

The judge knows who is connected, who had what, and what was written down. It never asks how the board finds things.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.broker.jobs.benches import START_US

from godwit.broker.jobs import model
from godwit.broker.jobs.board import Board
from godwit.broker.jobs.model import Job, Task
from godwit.broker.jobs.states import ENDED
from godwit.limits import MAX_LOSSES
from godwit.wire.changes import JobPayloadRow, JobRow, StoredState, TaskRow
from godwit.wire.jobs import Ref
from godwit.wire.work import Submission

KINDS = ("cut", "paint")
NAMES = ("anna", "bert", "cleo", "dora", "emil")
CONTROLLERS = ("x", "y", "z")
LEASE_US = 30_000_000
KEEP_US = 10**15
PATIENCE_US = LEASE_US
kinds = st.lists(st.sampled_from(KINDS), unique=True, max_size=2)
names = st.sampled_from(NAMES)


@dataclass
class Known:
    """What the judge knows of a worker."""

    instance: int = 1
    kinds: frozenset[str] = frozenset()
    capacity: int = 1
    is_connected: bool = False
    heard_us: int = 0


@dataclass
class Disk:
    """What those who write it down would have written."""

    jobs: dict[int, JobRow] = field(default_factory=dict)
    payloads: dict[int, bytes] = field(default_factory=dict)
    tasks: dict[tuple[int, int], TaskRow] = field(default_factory=dict)

    def take(self, board: Board) -> None:
        for job in (*board.new_jobs, *board.changed_jobs):
            self.jobs[job.number] = kept_job(job)
            self.payloads[job.number] = job.payload
        for task in board.changed_tasks:
            self.tasks[task.job.number, task.number] = kept_task(task)

    def state(self, next_job: int) -> StoredState:
        return StoredState(
            next_job=next_job,
            jobs=[self.jobs[number] for number in sorted(self.jobs)],
            payloads=[JobPayloadRow(number, self.payloads[number]) for number in sorted(self.payloads)],
            tasks=[self.tasks[key] for key in sorted(self.tasks)],
        )


def kept_job(job: Job) -> JobRow:
    return JobRow(
        job.number, job.controller, job.key, job.kind, job.workers, job.priority, job.submitted_us, job.begins_us,
        job.deadline_us, job.retries, job.retry_delay_ms, job.time_limit_ms, job.state, job.agreed, job.ended_us,
        job.reason,
    )  # fmt: skip


def kept_task(task: Task) -> TaskRow:
    return TaskRow(
        task.job.number, task.number, task.state, task.worker, task.instance, task.fence, task.failures, task.losses,
        task.begins_us, task.since_us, task.had, task.result, task.error,
    )  # fmt: skip


class Boards(RuleBasedStateMachine):
    """Anything may happen; see the rules."""

    def __init__(self) -> None:
        super().__init__()
        self.board = Board(lease_us=LEASE_US, keep_us=KEEP_US)
        self.now_us = START_US
        self.known = {name: Known() for name in NAMES}
        self.disk = Disk()
        self.had: dict[int, set[str]] = {}
        self.agreed: dict[int, int] = {}
        self.ended: dict[tuple[int, int], tuple[str, bytes]] = {}
        self.fences: dict[tuple[int, int], int] = {}
        self.old: list[tuple[str, Ref]] = []
        self.ready_us: dict[tuple[int, int], int] = {}
        self.keys = 0

    # -- what happens -------------------------------------------------------------------------------------------------

    @initialize(volunteers=st.lists(names, unique=True), capacity=st.integers(1, 2))
    def begin(self, volunteers: list[str], capacity: int) -> None:
        for name in volunteers:
            self.volunteer(name, list(KINDS), capacity)

    @rule(
        kind=st.sampled_from(KINDS),
        by=st.sampled_from(CONTROLLERS),
        count=st.integers(1, 4),
        workers=st.integers(0, 4),
        priority=st.integers(-1, 1),
        retries=st.integers(0, 3),
        retry_delay_ms=st.sampled_from((0, 1000)),
        delay_ms=st.sampled_from((0, 0, 5000)),
        deadline_ms=st.sampled_from((None, None, 40_000)),
        time_limit_ms=st.sampled_from((None, None, 20_000)),
    )
    def submit(self, kind: str, by: str, count: int, workers: int, priority: int, retries: int, retry_delay_ms: int,
               delay_ms: int, deadline_ms: int | None, time_limit_ms: int | None) -> None:  # fmt: skip
        volunteers = len(self.volunteers(kind))
        for _ in range(count):
            self.keys += 1
            job = self.board.submit(
                by,
                Submission(
                    key=f"key-{self.keys}", of_kind=kind, workers=workers, priority=priority, retries=retries,
                    retry_delay_ms=retry_delay_ms, delay_ms=delay_ms, deadline_ms=deadline_ms,
                    time_limit_ms=time_limit_ms,
                ),
                b"payload",
                self.now_us,
            )  # fmt: skip
            if delay_ms or not volunteers:
                assert (job.state, job.agreed) == ("waiting", None)
            else:
                assert (job.state, job.agreed) == ("running", min(workers, volunteers) if workers else volunteers)
        self.turn()

    @rule(name=names, kinds=kinds, capacity=st.integers(1, 3), is_new_link=st.booleans(), keeps=st.booleans())
    def volunteer_again(self, name: str, kinds: list[str], capacity: int, is_new_link: bool, keeps: bool) -> None:
        holding = [task.ref for task in self.held(name)][: None if keeps else 1]
        self.volunteer(name, kinds, capacity, holding, is_new_link=is_new_link)

    @rule(name=names)
    def come_as_another_run(self, name: str) -> None:
        self.known[name].instance += 1
        self.volunteer(name, list(KINDS), 1, is_new_link=True)
        assert not [task for task in self.held(name) if task.instance != b"%d" % self.known[name].instance]

    @rule(name=names)
    def heard(self, name: str) -> None:
        self.known[name].heard_us = self.now_us
        self.board.heard(name, self.now_us)
        self.turn()

    @rule(name=names)
    def away(self, name: str) -> None:
        self.known[name].is_connected = False
        self.board.away(name, self.now_us)
        self.turn()

    @rule(name=names)
    def leave(self, name: str) -> None:
        self.known[name].is_connected = False
        self.board.leave(name, self.now_us)
        assert not self.held(name)
        self.turn()

    @rule(name=names, kind=st.sampled_from(KINDS))
    def lose_the_right(self, name: str, kind: str) -> None:
        known = self.known[name]
        known.kinds -= {kind}
        self.board.withdraw(name, [kind], self.now_us)
        assert not [task for task in self.held(name) if task.job.kind == kind and known.is_connected and known.kinds]
        self.turn()

    @precondition(lambda self: self.leased())
    @rule(data=st.data(), how=st.sampled_from(("finish", "finish", "fail", "fail", "final", "give back", "step")))
    def report(self, data: st.DataObject, how: str) -> None:
        tasks = data.draw(st.lists(st.sampled_from(self.leased()), min_size=1, unique_by=id))
        for task in tasks:
            name, ref = task.worker, task.ref
            if how == "finish":
                assert self.board.finish(name, ref, b"result", self.now_us)
            elif how in ("fail", "final"):
                assert self.board.fail(name, ref, "broken", how == "final", self.now_us)
            elif how == "give back":
                assert self.board.give_back(name, ref, self.now_us)
            else:
                assert self.board.step(name, ref, 0.5, "half") is task
            self.old.append((name, ref))
        self.turn()

    @precondition(lambda self: self.old)
    @rule(data=st.data(), name=names)
    def report_late(self, data: st.DataObject, name: str) -> None:
        """Of a lease that has ended, or that somebody else has."""
        owner, ref = data.draw(st.sampled_from(self.old))
        present = {(task.worker, task.ref) for task in self.leased()}
        for who in {owner, name}:
            if (who, ref) not in present:
                assert not self.board.finish(who, ref, b"late", self.now_us)
                assert not self.board.fail(who, ref, "late", True, self.now_us)
                assert not self.board.give_back(who, ref, self.now_us)
                assert self.board.step(who, ref, 1.0, "late") is None
        self.turn()

    @precondition(lambda self: self.unended())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.unended()))
        self.board.cancel(job, "not needed", self.now_us)
        assert job.state == "cancelled"
        self.turn()

    @rule(seconds=st.sampled_from((0.1, 1, 5, 25, 40)))
    def wait(self, seconds: float) -> None:
        self.wait_until(self.now_us + int(seconds * 1e6))

    @rule()
    def restart(self) -> None:
        """The broker stops, and another one begins with what was written down."""
        before = self.board
        self.board = Board(lease_us=LEASE_US, keep_us=KEEP_US)
        self.board.restore(self.disk.state(before.next_job), self.now_us)
        assert {number: kept_job(job) for number, job in self.board.jobs.items()} == {
            number: kept_job(job) for number, job in before.jobs.items()
        }
        for number, job in before.jobs.items():
            again = self.board.jobs[number]
            assert (again.finished, again.failed, again.leased) == (job.finished, job.failed, job.leased)
            assert [(task.state, task.worker, task.fence) for task in again.tasks] == [
                (task.state, task.worker, task.fence) for task in job.tasks
            ]
        for known in self.known.values():
            known.is_connected = False
        self.turn()

    # -- how the judge sees it ----------------------------------------------------------------------------------------

    def volunteer(
        self, name: str, kinds: list[str], capacity: int, holding: list[Ref] | None = None, *, is_new_link: bool = False
    ) -> None:
        known = self.known[name]
        unknown = self.board.volunteer(
            name, b"%d" % known.instance, kinds, capacity, holding or [], self.now_us, is_new_link=is_new_link
        )
        assert not unknown
        if is_new_link and holding is not None:
            assert sorted(task.ref for task in self.held(name)) == sorted(holding)
        known.kinds = frozenset(kinds)
        known.capacity = capacity
        known.is_connected = True
        known.heard_us = self.now_us
        self.turn()

    def volunteers(self, kind: str) -> set[str]:
        """Connected, and not silent for too long."""
        return {
            name
            for name, known in self.known.items()
            if known.is_connected and kind in known.kinds and self.now_us < known.heard_us + LEASE_US
        }

    def leased(self) -> list[Task]:
        return [task for job in self.board.jobs.values() for task in job.tasks if task.state == "leased"]

    def held(self, name: str) -> list[Task]:
        return [task for task in self.leased() if task.worker == name]

    def unended(self) -> list[Job]:
        return [job for job in self.board.jobs.values() if job.state not in ENDED]

    def wait_until(self, end_us: int) -> None:
        """Timer for timer, as a broker would."""
        while True:
            at_us = self.board.next_timer_us
            self.now_us = end_us if at_us is None else max(min(at_us, end_us), self.now_us)
            self.board.on_time(self.now_us)
            at_us = self.board.next_timer_us
            assert at_us is None or at_us > self.now_us
            self.turn()
            if self.now_us == end_us:
                return

    def turn(self) -> None:
        for job in self.unended():
            self.ready_us.update({(job.number, task.number): task.begins_us for task in job.tasks})
        self.board.dispatch(self.now_us)
        for task in self.board.leased:
            self.judge_lease(task)
        self.judge_order()
        self.disk.take(self.board)
        for drained in (self.board.new_jobs, self.board.leased, self.board.revoked, self.board.silent):
            drained.clear()
        assert not self.board.gone
        for kept in (self.board.changed_jobs, self.board.changed_tasks, self.board.happened):
            kept.clear()

    def judge_lease(self, task: Task) -> None:
        """To somebody who volunteered, and nobody gets a job twice while another is there."""
        job = task.job
        volunteers = self.volunteers(job.kind)
        had = self.had.setdefault(job.number, set())
        assert task.worker in volunteers
        assert task.begins_us == task.since_us == self.now_us
        if task.worker in had and self.now_us < self.ready_us[job.number, task.number] + PATIENCE_US:
            assert volunteers <= had, f"{task.worker} has {job} again, and {volunteers - had} had none"
        had.add(task.worker)
        key = (job.number, task.number)
        assert task.fence == self.fences.get(key, 0) + 1
        self.fences[key] = task.fence

    def judge_order(self) -> None:
        """Nothing that somebody could take is left; nobody got something while more urgent work was there for him."""
        for job in self.unended():
            is_ready = any(task.state == "waiting" and task.begins_us <= self.now_us for task in job.tasks)
            if job.state != "running" or not is_ready:
                continue
            volunteers = self.volunteers(job.kind)
            had = self.had.get(job.number, set())
            may = volunteers - had or volunteers
            free = {name for name in may if len(self.held(name)) < self.known[name].capacity}
            assert not free, f"{free} could take of {job}"
            for task in self.board.leased:
                if task.job.kind == job.kind and task.job.priority < job.priority:
                    assert task.worker in had, f"{task.worker} got {task} before {job}"

    # -- what always holds --------------------------------------------------------------------------------------------

    @invariant()
    def leases_are_in_one_hand(self) -> None:
        tasks = self.leased()
        assert {id(task) for worker in self.board.workers.values() for task in worker.leases} == {
            id(task) for task in tasks
        }
        assert sum(len(worker.leases) for worker in self.board.workers.values()) == len(tasks)
        for name, worker in self.board.workers.items():
            assert all(task.worker == name for task in worker.leases)
            assert worker.leases or worker.kinds

    @invariant()
    def counts_are_right(self) -> None:
        for job in self.board.jobs.values():
            states = [task.state for task in job.tasks]
            counted = (states.count("finished"), states.count("failed"), states.count("leased"))
            assert (job.finished, job.failed, job.leased) == counted
            assert job.result_bytes == sum(len(task.result) for task in job.tasks)
            if job.agreed is None:
                assert not job.tasks
                continue
            assert len(job.tasks) == job.agreed == self.agreed.setdefault(job.number, job.agreed)
            assert (job.state == "done") == (states.count("finished") == job.agreed)
            assert (job.state in ENDED) == all(state in ENDED for state in states)
        assert self.board.unended == len(self.unended())
        assert self.board.unsettled == sum(job.state == "waiting" for job in self.unended())

    @invariant()
    def what_ended_stays(self) -> None:
        for job in self.board.jobs.values():
            for task in job.tasks:
                if task.state in ENDED:
                    ended = (task.state, task.result)
                    assert self.ended.setdefault((job.number, task.number), ended) == ended
                if task.state == "failed" and job.reason != "the deadline passed":
                    assert task.failures > job.retries or task.losses >= MAX_LOSSES or task.error == "broken"

    @invariant()
    def volunteers_are_known(self) -> None:
        for kind in KINDS:
            assert {
                worker.name for worker in self.board.workers.values() if kind in [queue.kind for queue in worker.queues]
            } == self.volunteers(kind)

    def teardown(self) -> None:
        """When all is calm, everything ends."""
        self.now_us += 1
        for name in NAMES:
            self.volunteer(name, list(KINDS), 2)
        for _ in range(1000):
            if not self.unended():
                break
            for task in self.leased():
                assert self.board.finish(task.worker, task.ref, b"at last", self.now_us)
            self.turn()
            for name in NAMES:
                self.heard(name)
            self.wait_until(self.now_us + 1_000_000)
        assert not self.unended()
        assert not [worker for worker in self.board.workers.values() if worker.leases]


class BoardsOfWideJobs(Boards):
    """As if two workers were many already: jobs have lines of their own much earlier."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(model, "SHARED_HAD", 1)
        super().__init__()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.patch.undo()


TestBoards = Boards.TestCase
TestBoards.settings = settings(max_examples=50, stateful_step_count=40)
TestBoardsOfWideJobs = BoardsOfWideJobs.TestCase
TestBoardsOfWideJobs.settings = settings(max_examples=50, stateful_step_count=40)
