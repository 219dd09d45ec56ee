"""The scheduler as a whole: a state machine of random steps, and a model that checks every step.

The model knows which workers are connected, which worker held which task, and the written rows. It never looks at how
the scheduler finds its answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.broker.jobs.driver import START_US, clear

from godwit.broker.jobs import model
from godwit.broker.jobs.model import ENDED, Job, JobTask, TurnOutput
from godwit.broker.jobs.scheduler import Scheduler
from godwit.limits import MAX_LOSSES
from godwit.wire.changes import JobPayloadRow, JobRow, StoredState, TaskRow
from godwit.wire.jobs import JobSpec, Ref

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
    """What the model knows of a worker."""

    instance: int = 1
    kinds: frozenset[str] = frozenset()
    capacity: int = 1
    is_connected: bool = False
    heard_us: int = 0


@dataclass
class Disk:
    """The rows that JobCommits would have written."""

    jobs: dict[int, JobRow] = field(default_factory=dict)
    payloads: dict[int, bytes] = field(default_factory=dict)
    tasks: dict[tuple[int, int], TaskRow] = field(default_factory=dict)

    def take(self, output: TurnOutput) -> None:
        for job in (*output.new_jobs, *output.changed_jobs):
            self.jobs[job.number] = job_row(job)
            self.payloads[job.number] = job.payload
        for task in output.changed_tasks:
            self.tasks[task.job.number, task.number] = task_row(task)

    def state(self, next_job: int) -> StoredState:
        return StoredState(
            next_job=next_job,
            jobs=[self.jobs[number] for number in sorted(self.jobs)],
            payloads=[JobPayloadRow(number, self.payloads[number]) for number in sorted(self.payloads)],
            tasks=[self.tasks[key] for key in sorted(self.tasks)],
        )


def job_row(job: Job) -> JobRow:
    spec = job.spec
    return JobRow(
        job.number, job.controller, spec.key, spec.of_kind, spec.workers, spec.priority, job.submitted_us,
        job.begins_us, job.deadline_us, spec.retries, spec.retry_delay_ms, spec.time_limit_ms, job.state, job.agreed,
        job.ended_us, job.reason,
    )  # fmt: skip


def task_row(task: JobTask) -> TaskRow:
    return TaskRow(
        task.job.number, task.number, task.state, task.worker, task.instance, task.fence, task.failures, task.losses,
        task.begins_us, task.since_us, task.previous_workers, task.result, task.error,
    )  # fmt: skip


class RandomSteps(RuleBasedStateMachine):
    """Random steps in any order; see the rules."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(lease_us=LEASE_US, keep_us=KEEP_US)
        self.now_us = START_US
        self.known = {name: Known() for name in NAMES}
        self.disk = Disk()
        self.tried: dict[int, set[str]] = {}
        self.agreed: dict[int, int] = {}
        self.ended: dict[tuple[int, int], tuple[str, bytes]] = {}
        self.fences: dict[tuple[int, int], int] = {}
        self.old: list[tuple[str, Ref]] = []
        self.ready_us: dict[tuple[int, int], int] = {}
        self.keys = 0

    # -- steps --------------------------------------------------------------------------------------------------------

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
            job = self.scheduler.submit(
                by,
                JobSpec(
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
    def report_empty(self, name: str) -> None:
        self.known[name].heard_us = self.now_us
        self.scheduler.renew_leases(name, self.now_us)
        self.turn()

    @rule(name=names)
    def disconnect(self, name: str) -> None:
        self.known[name].is_connected = False
        self.scheduler.disconnect(name, self.now_us)
        self.turn()

    @rule(name=names)
    def leave(self, name: str) -> None:
        self.known[name].is_connected = False
        self.scheduler.leave(name, self.now_us)
        assert not self.held(name)
        self.turn()

    @rule(name=names, kind=st.sampled_from(KINDS))
    def lose_the_right(self, name: str, kind: str) -> None:
        known = self.known[name]
        known.kinds -= {kind}
        self.scheduler.remove_kinds(name, [kind], self.now_us)
        assert not [task for task in self.held(name) if task.job.kind == kind and known.is_connected and known.kinds]
        self.turn()

    @precondition(lambda self: self.leased())
    @rule(data=st.data(), how=st.sampled_from(("finish", "finish", "fail", "fail", "final", "give back", "step")))
    def report(self, data: st.DataObject, how: str) -> None:
        tasks = data.draw(st.lists(st.sampled_from(self.leased()), min_size=1, unique_by=id))
        for task in tasks:
            name, ref = task.worker, task.ref
            if how == "finish":
                assert self.scheduler.finish(name, ref, b"result", self.now_us)
            elif how in ("fail", "final"):
                assert self.scheduler.fail(name, ref, "broken", how == "final", self.now_us)
            elif how == "give back":
                assert self.scheduler.return_task(name, ref, self.now_us)
            else:
                assert self.scheduler.set_progress(name, ref, 0.5, "half") is task
            self.old.append((name, ref))
        self.turn()

    @precondition(lambda self: self.old)
    @rule(data=st.data(), name=names)
    def report_late(self, data: st.DataObject, name: str) -> None:
        """Report a lease that has ended, or that another worker holds."""
        owner, ref = data.draw(st.sampled_from(self.old))
        present = {(task.worker, task.ref) for task in self.leased()}
        for who in {owner, name}:
            if (who, ref) not in present:
                assert not self.scheduler.finish(who, ref, b"late", self.now_us)
                assert not self.scheduler.fail(who, ref, "late", True, self.now_us)
                assert not self.scheduler.return_task(who, ref, self.now_us)
                assert self.scheduler.set_progress(who, ref, 1.0, "late") is None
        self.turn()

    @precondition(lambda self: self.unended())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.unended()))
        self.scheduler.cancel(job, "not needed", self.now_us)
        assert job.state == "cancelled"
        self.turn()

    @rule(seconds=st.sampled_from((0.1, 1, 5, 25, 40)))
    def wait(self, seconds: float) -> None:
        self.wait_until(self.now_us + int(seconds * 1e6))

    @rule()
    def restart(self) -> None:
        """Stop the broker and start another one with the written rows."""
        before = self.scheduler
        self.scheduler = Scheduler(lease_us=LEASE_US, keep_us=KEEP_US)
        self.scheduler.restore(self.disk.state(before.next_job), self.now_us)
        assert {number: job_row(job) for number, job in self.scheduler.jobs.items()} == {
            number: job_row(job) for number, job in before.jobs.items()
        }
        for number, job in before.jobs.items():
            again = self.scheduler.jobs[number]
            assert (again.finished, again.failed, again.leased) == (job.finished, job.failed, job.leased)
            assert [(task.state, task.worker, task.fence) for task in again.tasks] == [
                (task.state, task.worker, task.fence) for task in job.tasks
            ]
        for known in self.known.values():
            known.is_connected = False
        self.turn()

    # -- the model ----------------------------------------------------------------------------------------------------

    def volunteer(
        self, name: str, kinds: list[str], capacity: int, holding: list[Ref] | None = None, *, is_new_link: bool = False
    ) -> None:
        known = self.known[name]
        unknown = self.scheduler.volunteer(
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
        """Return the workers that are connected and have reported in time."""
        return {
            name
            for name, known in self.known.items()
            if known.is_connected and kind in known.kinds and self.now_us < known.heard_us + LEASE_US
        }

    def leased(self) -> list[JobTask]:
        return [task for job in self.scheduler.jobs.values() for task in job.tasks if task.state == "leased"]

    def held(self, name: str) -> list[JobTask]:
        return [task for task in self.leased() if task.worker == name]

    def unended(self) -> list[Job]:
        return [job for job in self.scheduler.jobs.values() if job.state not in ENDED]

    def wait_until(self, end_us: int) -> None:
        """Advance the time, timer by timer, as a broker would."""
        while True:
            at_us = self.scheduler.next_timer_us
            self.now_us = end_us if at_us is None else max(min(at_us, end_us), self.now_us)
            self.scheduler.handle_timers(self.now_us)
            at_us = self.scheduler.next_timer_us
            assert at_us is None or at_us > self.now_us
            self.turn()
            if self.now_us == end_us:
                return

    def turn(self) -> None:
        for job in self.unended():
            self.ready_us.update({(job.number, task.number): task.begins_us for task in job.tasks})
        self.scheduler.lease_tasks(self.now_us)
        for task in self.scheduler.output.leased:
            self.check_lease(task)
        self.check_order()
        self.disk.take(self.scheduler.output)
        assert not self.scheduler.output.deleted
        clear(self.scheduler.output)

    def check_lease(self, task: JobTask) -> None:
        """Check that the worker volunteered, and tried the job before only if no other worker is there."""
        job = task.job
        volunteers = self.volunteers(job.kind)
        tried = self.tried.setdefault(job.number, set())
        assert task.worker in volunteers
        assert task.begins_us == task.since_us == self.now_us
        if task.worker in tried and self.now_us < self.ready_us[job.number, task.number] + PATIENCE_US:
            assert volunteers <= tried, f"{task.worker} has {job} again, and {volunteers - tried} tried none"
        tried.add(task.worker)
        key = (job.number, task.number)
        assert task.fence == self.fences.get(key, 0) + 1
        self.fences[key] = task.fence

    def check_order(self) -> None:
        """Check that no leasable task is left, and that each worker got its most urgent task."""
        for job in self.unended():
            is_ready = any(task.state == "waiting" and task.begins_us <= self.now_us for task in job.tasks)
            if job.state != "running" or not is_ready:
                continue
            volunteers = self.volunteers(job.kind)
            tried = self.tried.get(job.number, set())
            may = volunteers - tried or volunteers
            free = {name for name in may if len(self.held(name)) < self.known[name].capacity}
            assert not free, f"{free} could take of {job}"
            for task in self.scheduler.output.leased:
                if task.job.kind == job.kind and task.job.spec.priority < job.spec.priority:
                    assert task.worker in tried, f"{task.worker} got {task} before {job}"

    # -- invariants ---------------------------------------------------------------------------------------------------

    @invariant()
    def each_lease_has_one_holder(self) -> None:
        tasks = self.leased()
        assert {id(task) for worker in self.scheduler.workers.values() for task in worker.leases} == {
            id(task) for task in tasks
        }
        assert sum(len(worker.leases) for worker in self.scheduler.workers.values()) == len(tasks)
        for name, worker in self.scheduler.workers.items():
            assert all(task.worker == name for task in worker.leases)
            assert worker.leases or worker.kinds

    @invariant()
    def counts_are_right(self) -> None:
        for job in self.scheduler.jobs.values():
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
        assert self.scheduler.unended == len(self.unended())
        assert self.scheduler.unsettled == sum(job.state == "waiting" for job in self.unended())

    @invariant()
    def ended_tasks_do_not_change(self) -> None:
        for job in self.scheduler.jobs.values():
            for task in job.tasks:
                if task.state in ENDED:
                    ended = (task.state, task.result)
                    assert self.ended.setdefault((job.number, task.number), ended) == ended
                if task.state == "failed" and job.reason != "the deadline passed":
                    assert task.failures > job.spec.retries or task.losses >= MAX_LOSSES or task.error == "broken"

    @invariant()
    def volunteers_are_known(self) -> None:
        for kind in KINDS:
            assert {
                worker.name
                for worker in self.scheduler.workers.values()
                if kind in [queue.kind for queue in worker.queues]
            } == self.volunteers(kind)

    def teardown(self) -> None:
        """Check that all jobs end when nothing disturbs them."""
        self.now_us += 1
        for name in NAMES:
            self.volunteer(name, list(KINDS), 2)
        for _ in range(1000):
            if not self.unended():
                break
            for task in self.leased():
                assert self.scheduler.finish(task.worker, task.ref, b"at last", self.now_us)
            self.turn()
            for name in NAMES:
                self.report_empty(name)
            self.wait_until(self.now_us + 1_000_000)
        assert not self.unended()
        assert not [worker for worker in self.scheduler.workers.values() if worker.leases]


class RandomStepsOfWideJobs(RandomSteps):
    """With a low limit of shared workers: jobs get groups of their own much earlier."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(model, "MAX_SHARED_WORKERS", 1)
        super().__init__()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.patch.undo()


TestBoards = RandomSteps.TestCase
TestBoards.settings = settings(max_examples=50, stateful_step_count=40)
TestBoardsOfWideJobs = RandomStepsOfWideJobs.TestCase
TestBoardsOfWideJobs.settings = settings(max_examples=50, stateful_step_count=40)
