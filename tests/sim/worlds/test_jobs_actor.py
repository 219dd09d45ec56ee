"""What workers and controllers share: lives, what is done later, and who may have the name."""

from __future__ import annotations

import pytest
from tests.sim.worlds.jobs_scene import QUIET, quiet, run, worker

from godwit.broker.session import made_name
from godwit.client.events import Ended, Leased, Online
from godwit.client.worker import Lease
from godwit.wire.control_base import Code
from godwit_sim.checkers import ViolationError
from godwit_sim.trace import Trace
from godwit_sim.worlds.jobs import JobsWorld
from godwit_sim.worlds.jobs_actor import Actor, describe


def world() -> JobsWorld:
    made = JobsWorld(QUIET, Trace())
    made.start()
    made.network.run(0.2)
    return made


def anna(made: JobsWorld) -> Actor:
    return made.workers[0]


def test_lives() -> None:
    made = world()
    actor = anna(made)
    assert (actor.label, actor.is_online, actor.unsettled()) == ("worker0.1", True, "")
    actor.begin()
    assert actor.label == "worker0.1", "it runs already"
    first = actor.client.instance
    actor.die()
    assert actor.unsettled() == "worker0.1 is not online"
    actor.come_back()
    assert not actor.host.alive, "only who has closed comes back by itself"
    actor.begin()
    assert actor.label == "worker0.2"
    assert actor.client.instance != first
    actor.close()
    actor.come_back()
    assert (actor.label, actor.is_closing) == ("worker0.3", False)
    actor.retire()
    actor.come_back()
    assert not actor.host.alive
    assert actor.unsettled() == ""


def test_what_is_to_be_done_later_is_done_in_the_same_life_or_not_at_all() -> None:
    made = world()
    actor = anna(made)
    done: list[str] = []
    actor.later(0.01, done.append, "now")
    made.network.run(0.25)
    actor.later(0.01, done.append, "after the pause")
    made.network.pause(actor.host, 0.5)
    made.network.run(0.4)
    assert done == ["now"]
    made.network.run(0.6)
    assert done == ["now", "after the pause"]
    actor.later(0.01, done.append, "never")
    actor.die()
    actor.begin()
    made.network.run(0.8)
    assert done == ["now", "after the pause"]


def test_an_end_has_a_reason() -> None:
    actor = anna(world())
    with pytest.raises(ViolationError, match="ended with code"):
        actor._on_events([Ended(Code.TAKEN_OVER, "somebody else")], 0.2)
    with pytest.raises(ViolationError, match="welcomed as 'otto'"):
        actor._on_events([Online(False, "otto")], 0.2)


def test_twins_take_each_other_s_name_and_one_of_them_stays() -> None:
    made = run(quiet(workers=(worker("anna"), worker("anna", start_s=1.0))))
    assert [actor.is_retired for actor in made.workers] == [False, True]
    assert made.workers[0].is_retired is False
    assert {one.worker for one in made.jobs.ledger.runs.values()} == {"anna"}


def test_nameless_ones_are_called_by_their_instance() -> None:
    made = run(quiet(workers=(worker(None),)))
    (name,) = {one.worker for one in made.jobs.ledger.runs.values()}
    assert name == made_name(made.workers[0].client.instance)


def test_events_are_described() -> None:
    lease = Lease((1, 0, 2), "mail", "boss", b"x", 1, 0, None, None)
    assert describe(Leased(lease)) == "Leased (1, 0, 2) mail of boss running"
    assert describe(Online(True, "anna")) == "Online resumed=True name=anna"
