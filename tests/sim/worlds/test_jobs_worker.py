"""Workers: they do what they are given, hand back, fail, stop wanting, and some have bad manners."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.sim.worlds.jobs_scene import QUIET, controller, jobs, quiet, run, worker

from godwit.client.events import VolunteerRefused, WorkBufferAvailable
from godwit_sim.checkers import ViolationError
from godwit_sim.trace import Trace
from godwit_sim.worlds.jobs import JobsWorld
from godwit_sim.worlds.jobs_plan import ActorFault

BOSS = (controller("boss", *jobs(6)),)


def test_some_hand_back_what_they_have() -> None:
    world = run(quiet(controllers=BOSS, workers=(worker("anna", returns=0.5), worker("berta"))))
    runs = world.jobs.ledger.runs.values()
    assert any(one.is_returned for one in runs)
    assert sum(one.result is not None for one in runs) == len({one.ref[:2] for one in runs})


def test_failures_say_why() -> None:
    wishes = jobs(6, fails=0.6, fails_for_good=0.5, retry_delay_ms=50)
    world = run(quiet(controllers=(controller("boss", *wishes),)))
    errors = [one.error for one in world.jobs.ledger.runs.values() if one.error]
    assert any(error.startswith("no luck") for error in errors)
    assert any(error.startswith("no hope") for error in errors)


def test_who_withdraws_gets_nothing_until_it_wants_again() -> None:
    plan = quiet(
        controllers=BOSS, workers=(worker("anna", returns=0.1),), faults=(ActorFault(0.45, "withdraws", 0, 1.0),)
    )
    begun = [one.began_s for one in run(plan).jobs.ledger.runs.values()]
    assert not [at_s for at_s in begun if 0.5 < at_s < 1.45]
    assert max(begun) > 1.45


def test_who_changes_does_something_else() -> None:
    plan = quiet(controllers=BOSS, workers=(worker("anna"),), faults=(ActorFault(0.45, "changes", 0),))
    world = JobsWorld(plan, Trace())
    world.start()
    world.network.run(1.0)
    assert world.workers[0]._kinds != world.workers[0].plan.kinds
    world.workers[0].calm_down()
    assert world.workers[0]._kinds == world.workers[0].plan.kinds


def test_bad_manners_change_nothing() -> None:
    """What was revoked is reported, and what others have is claimed."""
    workers = (worker("anna", capacity=5, is_deaf=True), worker("berta", is_deaf=True, start_s=0.5))
    lines: list[str] = []
    plan = quiet(controllers=BOSS, workers=workers, faults=(ActorFault(0.45, "pauses", 0, 1.6),))
    world = run(plan, Trace(lines.append))
    assert any(one._claims for one in world.workers)
    assert any("Revoked" in line for line in lines)
    assert {story.state for story in world.jobs.chronicle.stories.values()} == {"done"}


def test_what_a_worker_is_not_told() -> None:
    world = JobsWorld(QUIET, Trace())
    world.start()
    with pytest.raises(ViolationError, match="may not work: no"):
        world.workers[0].on_event(VolunteerRefused(1, "no"))
    with pytest.raises(ViolationError, match="was told"):
        world.workers[0].on_event(WorkBufferAvailable())


def test_a_full_buffer_is_waited_for() -> None:
    """The library holds few results at once; the others come when there is room."""
    wishes = tuple(replace(job, at_s=0.3, result_bytes=5000, takes_s=0.0, workers=1) for job in jobs(12))
    plan = quiet(controllers=(controller("boss", *wishes),), workers=(worker("anna", capacity=12),))
    world = JobsWorld(plan, Trace())
    world.start()
    world.network.run(0.1)
    world.workers[0].client._work.channel._limit_bytes = 12_000
    world.network.run(3.0)
    assert {story.state for story in world.jobs.chronicle.stories.values()} == {"done"}
