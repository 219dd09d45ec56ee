"""The workers and controllers of the jobs world, including misbehaving workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.sim.worlds.jobs_world import QUIET, controller, jobs, quiet, run, worker

from godwit.client.events import JobRefused, Leased, Reply, VolunteerRefused, WorkBufferAvailable
from godwit.client.jobs import JobView
from godwit.wire.control import Done
from godwit.wire.control_base import Code
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Trace
from godwit_sim.worlds.jobs import JobsWorld
from godwit_sim.worlds.jobs_plan import ActorFault

BOSS = (controller("boss", *jobs(6)),)


def test_some_workers_return_their_tasks() -> None:
    world = run(quiet(controllers=BOSS, workers=(worker("anna", returns=0.5), worker("berta"))))
    runs = world.jobs.records.runs.values()
    assert any(one.is_returned for one in runs)
    assert sum(one.result is not None for one in runs) == len({one.ref[:2] for one in runs})


def test_failures_have_a_reason() -> None:
    wishes = jobs(6, fails=0.6, fails_for_good=0.5, retry_delay_ms=50)
    world = run(quiet(controllers=(controller("boss", *wishes),)))
    errors = [one.error for one in world.jobs.records.runs.values() if one.error]
    assert any(error.startswith("no luck") for error in errors)
    assert any(error.startswith("no hope") for error in errors)


def test_who_withdraws_gets_nothing_until_it_wants_again() -> None:
    plan = quiet(
        controllers=BOSS, workers=(worker("anna", returns=0.1),), faults=(ActorFault(0.45, "withdraws", 0, 1.0),)
    )
    begun = [one.began_s for one in run(plan).jobs.records.runs.values()]
    assert not [at_s for at_s in begun if 0.5 < at_s < 1.45]
    assert max(begun) > 1.45


def test_who_changes_does_something_else() -> None:
    plan = quiet(controllers=BOSS, workers=(worker("anna"),), faults=(ActorFault(0.45, "changes", 0),))
    world = JobsWorld(plan, Trace())
    world.start()
    world.network.run(1.0)
    assert world.workers[0]._kinds != world.workers[0].plan.kinds
    world.workers[0].end_faults()
    assert world.workers[0]._kinds == world.workers[0].plan.kinds


def test_bad_manners_change_nothing() -> None:
    """Revoked leases are reported, and tasks of other workers."""
    workers = (worker("anna", capacity=5, ignores_revokes=True), worker("berta", ignores_revokes=True, start_s=0.5))
    lines: list[str] = []
    plan = quiet(controllers=BOSS, workers=workers, faults=(ActorFault(0.45, "pauses", 0, 1.6),))
    world = run(plan, Trace(lines.append))
    assert any(one._claims for one in world.workers)
    assert any("Revoked" in line for line in lines)
    assert {job.state for job in world.jobs.log_model.jobs.values()} == {"done"}


def test_unexpected_events_of_a_worker() -> None:
    world = JobsWorld(QUIET, Trace())
    world.start()
    with pytest.raises(ViolationError, match="may not work: no"):
        world.workers[0].on_event(VolunteerRefused(1, "no"))
    with pytest.raises(ViolationError, match="received an unexpected"):
        world.workers[0].on_event(WorkBufferAvailable())


def test_a_full_buffer_is_waited_for() -> None:
    """The library holds few results at once; the others follow when there is room."""
    wishes = tuple(replace(job, at_s=0.3, result_bytes=5000, takes_s=0.0, workers=1) for job in jobs(12))
    plan = quiet(controllers=(controller("boss", *wishes),), workers=(worker("anna", capacity=12),))
    world = JobsWorld(plan, Trace())
    world.start()
    world.network.run(0.1)
    world.workers[0].client._work.channel._limit_bytes = 12_000
    world.network.run(3.0)
    assert {job.state for job in world.jobs.log_model.jobs.values()} == {"done"}


DEATH = (ActorFault(0.75, "dies", 3, 0.4),)


@pytest.mark.parametrize("remembers", ["keys", "numbers"])
def test_who_comes_back_finds_its_jobs(remembers: Any) -> None:
    world = run(quiet(controllers=(controller("boss", *jobs(), remembers=remembers),), faults=DEATH))
    assert len(world.jobs.log_model.jobs) == 12
    assert all(own_job.is_over for own_job in world.controllers[0]._own_jobs)
    assert world.controllers[0].label == "boss0.2"


def test_without_a_name_each_run_is_a_new_controller() -> None:
    world = run(quiet(controllers=(controller(None, *jobs()),), faults=DEATH))
    assert len({requested_job.controller for requested_job in world.jobs.records.requested_jobs.values()}) == 2
    assert len(world.controllers[0]._own_jobs) < 12
    assert {job.state for job in world.jobs.log_model.jobs.values()} == {"done"}, "they end without a follower"


def test_a_curious_controller_sees_jobs_of_others() -> None:
    spy = controller("spy", is_curious=True)
    world = run(quiet(controllers=(controller("boss", *jobs()), spy)))
    views = [view for view in world.controllers[1]._views if view.is_ended]
    assert len(views) >= 3
    assert {view.state for view in views} == {"done"}


def test_an_unwatched_job_sends_no_events() -> None:
    world = run(quiet(controllers=(controller("boss", *jobs(4, unwatch_after_s=0.05)),)))
    assert world.controllers[0]._views == {}
    assert {job.state for job in world.jobs.log_model.jobs.values()} == {"done"}


def test_a_refusal_needs_a_reason() -> None:
    world = JobsWorld(QUIET, Trace())
    world.start()
    world.network.run(0.5)
    boss = world.controllers[0]
    view = next(iter(boss._views))
    with pytest.raises(ViolationError, match="was refused: no"):
        boss.on_event(JobRefused(view, Code.STORAGE, "no"))
    boss.on_event(JobRefused(JobView("", ""), Code.STORAGE, "no"))
    with pytest.raises(ViolationError, match="received an unexpected"):
        boss.on_event(Leased)


def test_a_cancel_that_is_answered_too_soon_is_noticed() -> None:
    world = JobsWorld(quiet(controllers=(controller("boss", *jobs(1, takes_s=1.0)),)), Trace())
    world.start()
    world.network.run(0.4)
    boss = world.controllers[0]
    boss._cancel(boss._own_jobs[0])
    (request,) = boss._cancels
    with pytest.raises(ViolationError, match="is over: it is job 1"):
        boss.on_event(Reply(request, Done(request=request)))
