"""The readers of the broker world: what they expect of a session, how they read, and what they take for a violation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.sim.worlds.broker_scene import PLAN, SENDER, client, run

from godwit.client import events as told
from godwit.wire.control import Done, Error
from godwit_sim.broker_streams import Start
from godwit_sim.checkers import ViolationError
from godwit_sim.trace import Trace
from godwit_sim.worlds.broker import BrokerWorld
from godwit_sim.worlds.broker_plan import ClientPlan, Fault, ReadingPlan, SubscriptionPlan
from godwit_sim.worlds.broker_readers import Reader


def begun(until_s: float = 0.5, **changes: Any) -> tuple[BrokerWorld, Reader]:
    """A reader with one subscription to everything."""
    reader: ClientPlan = client("reader", **({"subscriptions": (SubscriptionPlan(0.0, ("#",)),)} | changes))
    world = BrokerWorld(replace(PLAN, clients=(SENDER, reader)), Trace())
    world.start()
    world.network.run(until_s)
    return world, world.persons[1].reader


def test_a_new_subscription_is_new() -> None:
    _, reader = begun()
    (desk,) = reader.desks
    assert desk.is_new is True
    assert desk.stream.is_answered
    assert desk.stream.received > 0


def test_the_next_life_goes_on() -> None:
    world, reader = begun()
    before = reader.desks[0].stream.goes_on_at
    assert before
    world.persons[1].die()
    assert reader.desks == []
    world.persons[1].begin()
    world.network.run(5.0)
    (desk,) = reader.desks
    assert desk.is_new is False
    assert desk.stream.start == Start(0, before, is_vague=True)


def test_a_life_that_nobody_answered_leaves_doubt() -> None:
    world, reader = begun(0.012)
    assert not reader.desks[0].stream.is_answered
    world.persons[1].die()
    world.persons[1].begin()
    world.network.run(5.0)
    assert reader.desks[0].is_new is True, "the first never got in"
    world, reader = begun(0.032)
    assert not reader.desks[0].stream.is_answered
    world.persons[1].die()
    world.persons[1].begin()
    world.network.run(5.0)
    assert reader.desks[0].is_new is None


def test_a_new_session_knows_nothing() -> None:
    world, reader = begun()
    world.persons[1].die()
    world.persons[1].begin(fresh=True)
    world.network.run(5.0)
    assert reader.desks[0].is_new is True


def test_a_named_cursor_goes_on_at_its_last_commit() -> None:
    world, reader = begun(1.0, subscriptions=(SubscriptionPlan(0.0, ("#",), cursor="c", commits_every=3),))
    desk = reader.desks[0]
    assert desk.committed is not None
    assert desk.asked_to_commit is not None
    assert desk.goes_on() == Start(desk.committed, desk.asked_to_commit, is_vague=True)
    world.network.run(1.2)
    assert reader.desks[0].takes > 3


def test_a_cursor_that_was_never_committed_begins_again() -> None:
    _, reader = begun(1.0, subscriptions=(SubscriptionPlan(0.0, ("#",), cursor="c", commits_every=1000),))
    desk = reader.desks[0]
    assert desk.goes_on() == replace(desk.stream.start, is_vague=True)


def test_a_pause_between_two_takes() -> None:
    _, eager = begun(1.0)
    _, slow = begun(1.0, reading=ReadingPlan(0.25))
    assert slow.desks[0].takes < 5 < eager.desks[0].takes
    slow.read_at_once()
    assert slow.desks[0].takes > 5


def test_an_end_is_an_end() -> None:
    plan = SubscriptionPlan(0.0, ("#",), until_s=0.6)
    world, reader = begun(0.5, subscriptions=(plan,))
    stream = reader.desks[0].stream
    world.network.run(0.8)
    assert stream.is_over
    assert reader.desks == []
    reader.subscribe(plan)
    assert reader.desks == [], "its time is over"


@pytest.mark.parametrize("start", ["latest", "earliest", "offset", "time"])
def test_every_start(start: Any) -> None:
    subscription = SubscriptionPlan(0.9, ("home/#",), start)
    faults = (Fault(1.1, "client_dies", 1, 0.2),)
    world = run(replace(PLAN, clients=(SENDER, client("reader", subscriptions=(subscription,))), faults=faults))
    assert len(world.books.streams) == 2
    assert world.books.streams[0].received


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        (lambda one: told.SubscriptionEnded(one, 105, "a bad filter"), "refused"),
        (lambda one: told.Missed(one, None), "another log"),
        (lambda one: told.Missed(one, 3, next_offset=10**6), "told that 3"),
        (lambda one: told.Missed(one, 0, live=True), "told that 0"),
    ],
)
def test_what_must_not_be_told(event: Any, complaint: str) -> None:
    _, reader = begun()
    with pytest.raises(ViolationError, match=complaint):
        reader.on_event(event(reader.desks[0].subscription))


def test_a_commit_must_not_fail() -> None:
    _, reader = begun()
    reader.desks[0].commits[7] = 3
    reader.on_reply(told.Reply(8, Done(request=8)))
    with pytest.raises(ViolationError, match="the commit of 3"):
        reader.on_reply(told.Reply(7, Error(request=7, code=101, text="no")))


def test_what_nobody_subscribed_to_is_passed_over() -> None:
    _, reader = begun()
    desk = reader.desks.pop()
    reader.on_event(told.Available(desk.subscription))
