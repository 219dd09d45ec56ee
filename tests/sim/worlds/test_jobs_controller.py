"""Controllers: they come back to their jobs, ask again, watch, lose interest and cancel."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.worlds.jobs_scene import QUIET, controller, jobs, quiet, run

from godwit.client.events import JobRefused, Leased, Reply
from godwit.client.jobs import JobView
from godwit.wire.control import Done
from godwit.wire.control_base import Code
from godwit_sim.checkers import ViolationError
from godwit_sim.trace import Trace
from godwit_sim.worlds.jobs import JobsWorld
from godwit_sim.worlds.jobs_plan import ActorFault

DEATH = (ActorFault(0.75, "dies", 3, 0.4),)


@pytest.mark.parametrize("remembers", ["keys", "numbers"])
def test_who_comes_back_finds_its_jobs(remembers: Any) -> None:
    world = run(quiet(controllers=(controller("boss", *jobs(), remembers=remembers),), faults=DEATH))
    assert len(world.jobs.chronicle.stories) == 12
    assert all(paper.is_over for paper in world.controllers[0]._papers)
    assert world.controllers[0].label == "boss0.2"


def test_without_a_name_it_is_somebody_else() -> None:
    world = run(quiet(controllers=(controller(None, *jobs()),), faults=DEATH))
    assert len({order.controller for order in world.jobs.ledger.orders.values()}) == 2
    assert len(world.controllers[0]._papers) < 12
    assert {story.state for story in world.jobs.chronicle.stories.values()} == {"done"}, "nobody follows them, they end"


def test_somebody_curious_sees_what_others_do() -> None:
    spy = controller("spy", is_curious=True)
    world = run(quiet(controllers=(controller("boss", *jobs()), spy)))
    views = [view for view in world.controllers[1]._views if view.is_ended]
    assert len(views) >= 3
    assert {view.state for view in views} == {"done"}


def test_who_loses_interest_hears_no_more() -> None:
    world = run(quiet(controllers=(controller("boss", *jobs(4, unwatch_after_s=0.05)),)))
    assert world.controllers[0]._views == {}
    assert {story.state for story in world.jobs.chronicle.stories.values()} == {"done"}


def test_a_refusal_needs_a_reason() -> None:
    world = JobsWorld(QUIET, Trace())
    world.start()
    world.network.run(0.5)
    boss = world.controllers[0]
    view = next(iter(boss._views))
    with pytest.raises(ViolationError, match="was refused: no"):
        boss.on_event(JobRefused(view, Code.STORAGE, "no"))
    boss.on_event(JobRefused(JobView("", ""), Code.STORAGE, "no"))
    with pytest.raises(ViolationError, match="was told"):
        boss.on_event(Leased)


def test_a_cancel_that_is_answered_too_soon_is_noticed() -> None:
    world = JobsWorld(quiet(controllers=(controller("boss", *jobs(1, takes_s=1.0)),)), Trace())
    world.start()
    world.network.run(0.4)
    boss = world.controllers[0]
    boss._cancel(boss._papers[0])
    (request,) = boss._cancels
    with pytest.raises(ViolationError, match="is over: it is job 1"):
        boss.on_event(Reply(request, Done(request=request)))
