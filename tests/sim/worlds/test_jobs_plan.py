"""Plans of the world of jobs: the same for the same seed, within their bounds, and of many kinds."""

from __future__ import annotations

from typing import get_args

from godwit_sim.worlds.jobs_plan import KINDS, MAX_JOBS, ActorFaultKind, draw_jobs_plan

PLANS = [draw_jobs_plan(seed) for seed in range(200)]


def test_the_same_seed_is_the_same_plan() -> None:
    assert draw_jobs_plan(7) == PLANS[7]
    assert draw_jobs_plan(8) != PLANS[7]
    assert [plan.seed for plan in PLANS] == list(range(200))


def test_everything_happens_in_time() -> None:
    assert {fault.kind for plan in PLANS for fault in plan.faults} == set(get_args(ActorFaultKind))
    for plan in PLANS:
        end_s = plan.durable.broker.faults_end_s + 1e-9
        assert all(fault.at_s + fault.lasts_s <= end_s for fault in plan.faults)
        assert all(job.at_s <= end_s for job in plan.jobs)
        assert all(actor.start_s <= end_s for actor in plan.actors)


def test_who_is_there() -> None:
    assert {len(plan.controllers) for plan in PLANS} == {1, 2, 3, 4}
    assert {len(plan.workers) for plan in PLANS} >= {1, 2, 3, 4, 5, 6}
    assert all(0 < len(plan.jobs) <= MAX_JOBS + 8 for plan in PLANS)
    for plan in PLANS:
        kinds = {job.kind for job in plan.jobs}
        assert kinds <= set(KINDS)
        assert kinds <= set(plan.workers[0].kinds), "each kind has a worker"
        faults = [fault for fault in plan.faults if fault.kind in ("withdraws", "changes")]
        assert all(fault.actor < len(plan.workers) for fault in faults)


def test_every_kind_of_wish_is_there() -> None:
    jobs = [job for plan in PLANS for job in plan.jobs]
    assert {job.workers for job in jobs} == {0, 1, 2, 3, 9}
    for name in ("key", "deadline_ms", "time_limit_ms", "cancel_after_s", "unwatch_after_s", "again_after_s"):
        assert {getattr(job, name) is None for job in jobs} == {True, False}, name
    assert any(job.fails == 1.0 for job in jobs), "some never succeed"
    assert {controller.remembers for plan in PLANS for controller in plan.controllers} == {"keys", "numbers"}


def test_two_controllers_have_equal_keys_and_two_workers_one_name() -> None:
    keys = [[{job.key for job in one.jobs} - {None} for one in plan.controllers] for plan in PLANS]
    assert any(len(sets) > 1 and sets[0] & sets[1] for sets in keys)
    names = [[worker.actor.name for worker in plan.workers] for plan in PLANS]
    assert any(len(set(one)) < len(one) and None not in one for one in names)


def test_the_server_has_its_troubles_too() -> None:
    assert {bool(plan.durable.deaths) for plan in PLANS} == {True, False}
    assert {bool(plan.durable.disk_faults) for plan in PLANS} == {True, False}
    assert {bool(plan.commit_s) for plan in PLANS} == {True, False}
    assert all(plan.durable.rots == 0.0 for plan in PLANS), "a corrupted event could not be checked"
