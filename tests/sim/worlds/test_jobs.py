"""The jobs world: good seeds pass, runs of a seed are equal, and each planted fault is caught."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.sim.worlds.jobs_world import QUIET, controller, jobs, quiet, run, storm, worker

from godwit.broker.append_queue import AppendQueue
from godwit.broker.dirty_state import DirtyState
from godwit.broker.jobs import job_table, lifecycle
from godwit.broker.jobs.dispatch import Dispatcher
from godwit.broker.jobs.job_table import JobTable
from godwit.broker.jobs.lifecycle import JobLifecycle
from godwit.broker.jobs.queue import JobQueue
from godwit.broker.jobs.scheduler import Scheduler, WorkerPool
from godwit.client import jobs as client_jobs
from godwit.client.worker import Leases
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Trace
from godwit_sim.worlds import WORLDS, run_seed
from godwit_sim.worlds.durable import Death, DiskFault
from godwit_sim.worlds.jobs import JobsWorld, run_jobs
from godwit_sim.worlds.jobs_plan import ActorFault, JobsPlan

SEEDS = range(24)
PATIENCE_S = 100.0
"""Longer than a worker has to reconnect after a restart."""


@pytest.mark.parametrize("seed", SEEDS)
def test_seeds_pass(seed: int) -> None:
    assert run_seed("jobs", seed).violation is None


def test_the_same_seed_is_the_same_world_in_any_process() -> None:
    code = "from godwit_sim.worlds import run_seed; print(*(run_seed('jobs', seed).digest for seed in (1, 7)))"
    here = [run_seed("jobs", seed).digest for seed in (1, 7)]
    assert here[0] != here[1]
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "1"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == here


def test_a_violation_shows_the_events_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "_leased_task", held_by_any_worker)
    violation = next(violation for seed in range(10, 40) if (violation := run_seed("jobs", seed).violation))
    assert re.search(r"job log: finished job (\d+) .*(?s:.*)before that:(?s:.*)\"job\":\1", violation)


def test_the_registry() -> None:
    assert WORLDS["jobs"] is run_jobs


# -- small plans ------------------------------------------------------------------------------------------------------


def states(plan: JobsPlan) -> list[str]:
    return [job.state for job in run(plan).jobs.log_model.jobs.values()]


def test_a_quiet_run() -> None:
    world = run(QUIET)
    jobs = world.jobs.log_model.jobs.values()
    assert {job.state for job in jobs} == {"done"}
    assert {job.agreed for job in jobs} == {1, 2, 3}
    assert len(world.jobs.records.runs) == sum(job.agreed or 0 for job in jobs), "each task ran once"
    assert f"{len(jobs)} jobs {{'done': {len(jobs)}" in world.summary()
    (audit,) = world.checkers.streams
    assert audit.received == world.checkers.log.next_offset, "the auditor sees all events"


def test_storms() -> None:
    again = 0
    for seed in range(4):
        world = run(storm(seed))
        assert world.deaths > 2
        jobs = world.jobs.log_model.jobs.values()
        again += len(world.jobs.records.runs) - sum(job.agreed or 0 for job in jobs)
        assert {job.state for job in jobs} == {"done"}
    assert again > 0, "now and then a task has to be done again"


def test_tasks_that_always_fail_end_their_jobs() -> None:
    boss = controller("boss", *jobs(6, fails=1.0, retries=2, retry_delay_ms=50))
    world = run(quiet(controllers=(boss,)))
    assert {job.state for job in world.jobs.log_model.jobs.values()} == {"failed"}
    runs = world.jobs.records.runs
    tasks = {ref[:2] for ref in runs}
    assert len(runs) == 3 * len(tasks)


def test_time_limits_and_deadlines_end_tasks() -> None:
    assert set(states(quiet(controllers=(controller("boss", *jobs(6, deadline_ms=20)),)))) == {"failed"}
    limited = controller("boss", *jobs(6, time_limit_ms=10, retries=1, retry_delay_ms=0))
    assert "failed" in states(quiet(controllers=(limited,)))


def test_cancelled_at_any_moment() -> None:
    for after_s in (0.0, 0.1, 0.2):
        assert "cancelled" in states(quiet(controllers=(controller("boss", *jobs(6, cancel_after_s=after_s)),)))


def test_a_stalled_worker_s_result_comes_too_late() -> None:
    """It is paused for longer than a lease, and reports as soon as it runs again."""
    slow = controller("boss", *jobs(4))
    plan = quiet(controllers=(slow,), workers=(worker("anna", capacity=5), worker("berta", start_s=1.0)))
    world = run(replace(plan, faults=(ActorFault(0.45, "pauses", 0, 1.6),)))
    late = [run_ for run_ in world.jobs.records.runs.values() if run_.worker == "anna" and run_.is_over]
    tasks = world.jobs.log_model.jobs
    ignored = [one for one in late if tasks[one.ref[0]].tasks[one.ref[1]].fence > one.ref[2]]
    assert ignored, "it did the work, and another worker had the task by then"
    assert {job.state for job in tasks.values()} == {"done"}


def test_jobs_wait_for_the_first_volunteer() -> None:
    world = run(quiet(workers=(worker("anna", start_s=2.0), worker("berta", start_s=2.3))))
    jobs = world.jobs.log_model.jobs.values()
    assert {job.history[0] for job in jobs} == {("waiting", None)}
    assert {job.agreed for job in jobs} == {1, 2}


def test_equal_keys_of_two_controllers_are_two_jobs_and_the_same_key_again_is_one() -> None:
    wishes = jobs(3, key="key", again_after_s=0.1)[:1]
    world = run(quiet(controllers=(controller("boss", *wishes), controller("chief", *wishes))))
    assert len(world.jobs.log_model.jobs) == 2
    assert [len(requested_job.requests) for requested_job in world.jobs.records.requested_jobs.values()] == [2, 2]


def test_a_job_that_was_forgotten_can_be_asked_for_again() -> None:
    wishes = jobs(1, key="key", again_after_s=2.0)
    world = run(quiet(controllers=(controller("boss", *wishes),), keep_s=0.5))
    (requested_job,) = world.jobs.records.requested_jobs.values()
    assert len(requested_job.numbers) == 2


def test_a_full_disk_is_reported_and_later_work_succeeds() -> None:
    plan = quiet(commit_s=0.02)
    for trouble in ("full", "write", "sync"):
        durable = replace(plan.durable, disk_faults=(DiskFault(0.5, 0.5, trouble),))
        lines: list[str] = []
        world = run(replace(plan, durable=durable), Trace(lines.append))
        assert {job.state for job in world.jobs.log_model.jobs.values()} == {"done"}
        assert any("JobRefused" in line and "code=117" in line for line in lines), trouble


# -- planted faults ---------------------------------------------------------------------------------------------------


def assert_caught(text: str, plan: Callable[[int], JobsPlan]) -> None:
    """Assert that one of the first seeds reports a violation with this text."""
    found: list[str] = []
    for seed in range(6):
        try:
            run(plan(seed))
        except ViolationError as error:
            found.append(str(error))
            if re.match(text, found[-1]):
                return
    raise AssertionError(f"caught was {found}")


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def stalls(seed: int) -> JobsPlan:
    return quiet(
        seed,
        controllers=(controller("boss", *jobs(takes_s=0.4)),),
        workers=(worker("anna", capacity=5), worker("berta", start_s=0.5)),
        faults=(ActorFault(0.45 + 0.1 * seed, "pauses", 0, 1.6),),
    )


def vanishes(seed: int) -> JobsPlan:
    """Return a plan with a controller without a name, which has a new identity in each run."""
    return quiet(
        seed,
        workers=(worker(None, capacity=5), worker("berta", start_s=0.5)),
        faults=(ActorFault(0.45 + 0.1 * seed, "dies", 0, 0.3),),
    )


def quits(seed: int) -> JobsPlan:
    return quiet(seed, workers=tuple(replace(one, returns=0.5) for one in QUIET.workers))


def deaf(seed: int) -> JobsPlan:
    return replace(stalls(seed), workers=tuple(replace(one, ignores_revokes=True) for one in stalls(seed).workers))


def fails(seed: int) -> JobsPlan:
    wishes = jobs(8, fails=0.7, retries=2, retry_delay_ms=200)
    return quiet(seed, controllers=(controller("boss", *wishes),))


def limited(seed: int) -> JobsPlan:
    return quiet(seed, controllers=(controller("boss", *jobs(8, time_limit_ms=100, takes_s=0.3)),))


def late(seed: int) -> JobsPlan:
    return quiet(seed, controllers=(controller("boss", *jobs(8, deadline_ms=100, takes_s=0.3)),))


def waits(seed: int) -> JobsPlan:
    return quiet(seed, workers=(worker("anna", start_s=1.0 + 0.1 * seed),))


def cancels(seed: int) -> JobsPlan:
    return quiet(seed, controllers=(controller("boss", *jobs(8, cancel_after_s=0.05 * seed)),))


def mixed(seed: int) -> JobsPlan:
    urgent = tuple(replace(job, priority=number % 3) for number, job in enumerate(jobs(12)))
    return quiet(seed, controllers=(controller("boss", *urgent),), workers=(worker("anna", capacity=1),))


def restarts(seed: int) -> JobsPlan:
    """Return a plan with every job submitted twice with the same key, and a power cut in between."""
    wishes = jobs(8, again_after_s=1.5)
    plan = quiet(seed, controllers=(controller("boss", *wishes),))
    return replace(plan, durable=replace(plan.durable, deaths=(Death(1.2 + 0.05 * seed, loses_power=True),)))


def slow(seed: int) -> JobsPlan:
    return quiet(seed, commit_s=0.2)


def held_by_any_worker(self: Any, name: str, ref: Any) -> Any:
    """Accept reports of any worker and fence."""
    job = self.jobs.get(ref[0])
    task = None if job is None or ref[1] >= len(job.tasks) else job.tasks[ref[1]]
    return task if task is not None and task.state == "leased" else None


def forgets_agreed(job: Any, made: Any = job_table.job_row) -> Any:
    return msgspec.structs.replace(made(job), agreed=None)


def forgets_results(task: Any, row: Any, lay_over: Any = job_table.apply_task_row) -> None:
    """Repeat finished tasks."""
    lay_over(task, row)
    if task.state == "finished" and task.job.state == "running":
        task.state = "waiting"
        task.job.finished -= 1


def forgets_keys(self: Any, job: Any, put: Any = JobTable.add) -> None:
    put(self, job)
    self.keys.clear()


def confirms_at_once(self: Any, on_safe: Any, on_failed: Any) -> None:
    on_safe(0)


def counts_from_one(self: Any, *state_and_time: Any, restored: Any = Scheduler.restore) -> None:
    restored(self, *state_and_time)
    self.next_job = 1


def takes_more(self: Any, *arguments: Any, volunteer: Any = WorkerPool.volunteer) -> Any:
    name, instance, kinds, capacity, now_us = arguments
    return volunteer(self, name, instance, kinds, capacity + 3, now_us)


def by_age_alone(self: Any, job: Any, push: Any = JobQueue.push) -> None:
    spec, job.spec = job.spec, msgspec.structs.replace(job.spec, priority=0)
    push(self, job)
    job.spec = spec


def tries_for_ever(self: Any, task: Any, *why: Any, fail: Any = JobLifecycle.fail, **how: Any) -> None:
    task.job.spec = msgspec.structs.replace(task.job.spec, retries=99)
    fail(self, task, *why, **how)


@pytest.mark.parametrize(
    ("plan", "where", "name", "wrong", "text"),
    [
        (
            stalls,
            Scheduler,
            "_leased_task",
            held_by_any_worker,
            "job log: finished .*it is leased|notification: .*never reported",
        ),
        (deaf, Scheduler, "_leased_task", held_by_any_worker, "job log: finished .*(reported no result|it is leased)"),
        (storm, job_table, "job_row", forgets_agreed, "job log: .*agreed"),
        (storm, job_table, "apply_task_row", forgets_results, "job log: .*it is finished"),
        (quits, JobQueue, "eligible_count", lambda *_: 0, "job log: leased .*had the job before"),
        (quits, WorkerPool, "volunteer", takes_more, "job log: leased .*and takes"),
        (mixed, JobQueue, "push", by_age_alone, "job log: leased .*priority [01], while"),
        (restarts, JobTable, "add", forgets_keys, "job log: submitted .*the key is that of"),
        (storm, Scheduler, "restore", counts_from_one, "job log: submitted .*(given twice|is stored)"),
        (slow, AppendQueue, "wait", confirms_at_once, "notification: .*not durable"),
        (slow, WorkerPool, "renew_leases", nothing, "job log: lost .*active in time"),
        (fails, lifecycle, "_MAX_RETRY_DELAY_MS", 0, "job log: leased .*it was to wait until"),
        (fails, JobLifecycle, "fail", tries_for_ever, "job log: leased .*with 2 retries"),
        (limited, Dispatcher, "start_time_limit", nothing, "job log: finished .*longer than 100 ms"),
        (late, JobLifecycle, "miss_deadline", nothing, "job log: (finished|leased) .*its deadline"),
        (stalls, WorkerPool, "handle_lease_timer", nothing, "job log: .*it was idle for"),
        (vanishes, WorkerPool, "handle_lease_timer", nothing, "liveness: .*has not ended"),
        (waits, JobLifecycle, "settle_queue", nothing, "liveness: .*has not ended"),
        (cancels, JobLifecycle, "cancel", nothing, "notification: .*is over"),
        (storm, DirtyState, "work", nothing, "job log: submitted .*it is not stored"),
        (storm, Leases, "on_reported", nothing, "liveness: .*is not over"),
        (storm, client_jobs.JobTracker, "attach", nothing, "liveness: .*(follows|is not over)"),
    ],
)
def test_a_broken_part_is_caught(
    plan: Callable[[int], JobsPlan], where: Any, name: str, wrong: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, wrong)
    monkeypatch.setattr(JobsWorld, "_patience_s", lambda _: PATIENCE_S)
    assert_caught(text, plan)
