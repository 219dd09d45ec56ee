"""The applications of the broker world: their runs, expectations of a session, reads, publishes and violations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.sim.worlds.broker_world import PLAN, SENDER, client, messages, run

from godwit.client import events as client_events
from godwit.wire.control import Done, Error
from godwit_sim.broker_streams import Start
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Trace
from godwit_sim.worlds.broker import BrokerWorld
from godwit_sim.worlds.broker_clients import ClientApp, Reader
from godwit_sim.worlds.broker_plan import ClientPlan, Fault, ReadingPlan, SubscriptionPlan


def begun_reader(until_s: float = 0.5, **changes: Any) -> tuple[BrokerWorld, Reader]:
    """Return a reader with one subscription to everything."""
    reader: ClientPlan = client("reader", **({"subscriptions": (SubscriptionPlan(0.0, ("#",)),)} | changes))
    world = BrokerWorld(replace(PLAN, clients=(SENDER, reader)), Trace())
    world.start()
    world.network.run(until_s)
    return world, world.apps[1].reader


def test_a_new_subscription_is_new() -> None:
    _, reader = begun_reader()
    (sub,) = reader.subscriptions
    assert sub.is_new is True
    assert sub.stream.is_answered
    assert sub.stream.received > 0


def test_the_next_run_resumes() -> None:
    world, reader = begun_reader()
    before = reader.subscriptions[0].stream.resume_offset
    assert before
    world.apps[1].die()
    assert reader.subscriptions == []
    world.apps[1].begin()
    world.network.run(5.0)
    (sub,) = reader.subscriptions
    assert sub.is_new is False
    assert sub.stream.start == Start(0, before, is_approximate=True)


def test_a_run_without_a_reply_leaves_the_session_uncertain() -> None:
    world, reader = begun_reader(0.012)
    assert not reader.subscriptions[0].stream.is_answered
    world.apps[1].die()
    world.apps[1].begin()
    world.network.run(5.0)
    assert reader.subscriptions[0].is_new is True, "the first never got in"
    world, reader = begun_reader(0.032)
    assert not reader.subscriptions[0].stream.is_answered
    world.apps[1].die()
    world.apps[1].begin()
    world.network.run(5.0)
    assert reader.subscriptions[0].is_new is None


def test_a_new_session_knows_nothing() -> None:
    world, reader = begun_reader()
    world.apps[1].die()
    world.apps[1].begin(fresh=True)
    world.network.run(5.0)
    assert reader.subscriptions[0].is_new is True


def test_a_named_cursor_goes_on_at_its_last_commit() -> None:
    world, reader = begun_reader(1.0, subscriptions=(SubscriptionPlan(0.0, ("#",), cursor="c", commits_every=3),))
    sub = reader.subscriptions[0]
    assert sub.committed is not None
    assert sub.asked_to_commit is not None
    assert sub.resume_start() == Start(sub.committed, sub.asked_to_commit, is_approximate=True)
    world.network.run(1.2)
    assert reader.subscriptions[0].takes > 3


def test_a_cursor_that_was_never_committed_begins_again() -> None:
    _, reader = begun_reader(1.0, subscriptions=(SubscriptionPlan(0.0, ("#",), cursor="c", commits_every=1000),))
    sub = reader.subscriptions[0]
    assert sub.resume_start() == replace(sub.stream.start, is_approximate=True)


def test_a_pause_between_two_takes() -> None:
    _, eager = begun_reader(1.0)
    _, slow = begun_reader(1.0, reading=ReadingPlan(0.25))
    assert slow.subscriptions[0].takes < 5 < eager.subscriptions[0].takes
    slow.read_at_once()
    assert slow.subscriptions[0].takes > 5


def test_an_end_is_an_end() -> None:
    plan = SubscriptionPlan(0.0, ("#",), until_s=0.6)
    world, reader = begun_reader(0.5, subscriptions=(plan,))
    stream = reader.subscriptions[0].stream
    world.network.run(0.8)
    assert stream.is_over
    assert reader.subscriptions == []
    reader.subscribe(plan)
    assert reader.subscriptions == [], "its time is over"


@pytest.mark.parametrize("start", ["latest", "earliest", "offset", "time"])
def test_every_start(start: Any) -> None:
    subscription = SubscriptionPlan(0.9, ("home/#",), start)
    faults = (Fault(1.1, "client_dies", 1, 0.2),)
    world = run(replace(PLAN, clients=(SENDER, client("reader", subscriptions=(subscription,))), faults=faults))
    assert len(world.checkers.streams) == 2
    assert world.checkers.streams[0].received


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        (lambda one: client_events.SubscriptionEnded(one, 105, "a bad filter"), "refused"),
        (lambda one: client_events.Missed(one, None), "another log"),
        (lambda one: client_events.Missed(one, 3, next_offset=10**6), "3 messages"),
        (lambda one: client_events.Missed(one, 0, live=True), "0 messages"),
    ],
)
def test_forbidden_events_of_a_reader(event: Any, complaint: str) -> None:
    _, reader = begun_reader()
    with pytest.raises(ViolationError, match=complaint):
        reader.on_event(event(reader.subscriptions[0].subscription))


def test_a_commit_must_not_fail() -> None:
    _, reader = begun_reader()
    reader.subscriptions[0].commits[7] = 3
    reader.on_reply(client_events.Reply(8, Done(request=8)))
    with pytest.raises(ViolationError, match="the commit of 3"):
        reader.on_reply(client_events.Reply(7, Error(request=7, code=101, text="no")))


def test_events_of_ended_subscriptions_are_ignored() -> None:
    _, reader = begun_reader()
    sub = reader.subscriptions.pop()
    reader.on_event(client_events.Available(sub.subscription))


def begun_app() -> tuple[BrokerWorld, ClientApp]:
    """Return the sender of the quiet plan, half a second after the start."""
    world = BrokerWorld(PLAN, Trace())
    world.start()
    world.network.run(0.5)
    return world, world.apps[0]


def test_a_run_begins_and_ends() -> None:
    world, app = begun_app()
    first = app.client
    assert (app.label, app.base_label, app.is_online) == ("c0.1", "c0", True)
    app.begin()
    assert app.client is first, "it runs already"
    app.die()
    assert (app.client, app.host.alive, app.is_online) == (None, False, False)
    app.die()
    app.begin()
    assert app.label == "c0.2"
    assert app.client is not None
    assert first is not None
    assert app.client.instance != first.instance
    world.network.run(5.0)
    assert app.is_online


def test_a_close_is_sent_once() -> None:
    world, app = begun_app()
    app.close()
    app.close()
    world.network.run(1.0)
    assert app.is_closing
    assert app.client is not None
    assert app.client.state == "closed"
    assert [conn.name for conn in world.checkers.connections.records if conn.closed is not None] == ["sender"]


def test_remembered_messages_are_sent_again_until_confirmed() -> None:
    sender = client("sender", publications=tuple(messages("home/b", 2)), remembers=True)
    faults = (Fault(0.5025, "partition", 0, 0.3), Fault(0.52, "client_dies", 0, 0.4))
    world = run(replace(PLAN, clients=(sender, *PLAN.clients[1:]), faults=faults))
    positions = [one.position for one in world.checkers.log.messages if one.topic == "home/b"]
    assert positions == list(range(21))


def test_unconfirmed_messages_are_lost_if_not_remembered() -> None:
    sender = client("sender", publications=tuple(messages("home/b", 1)))
    faults = (Fault(0.4975, "partition", 0, 0.3), Fault(0.52, "client_dies", 0, 0.4))
    world = run(replace(PLAN, clients=(sender, *PLAN.clients[1:]), faults=faults))
    lost = [one for one in world.checkers.published.publications if not one.offsets]
    assert [one.confirmed_s for one in lost] == [None]


def test_who_has_no_room_waits_for_it() -> None:
    sender = client("sender", publications=tuple(messages("home/b", 1, 40, 900)), send_buffer_bytes=4096)
    world = run(replace(PLAN, clients=(sender, *PLAN.clients[1:])))
    assert world.apps[0].unconfirmed == 0
    assert len(world.checkers.log.messages) == 41


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        (lambda publisher: client_events.Confirmed(publisher, 0, 0), "brings nothing new"),
        (lambda publisher: client_events.Confirmed(publisher, 10**6, 0), "(not in the log|reached)"),
        (lambda publisher: client_events.Refused(publisher, 102, "no", 0, 1), "refused"),
        (lambda publisher: client_events.Ended(111, "kicked"), "ended with code 111"),
        (lambda publisher: client_events.Online(False, "another"), "welcomed as 'another'"),
        (lambda publisher: client_events.Online(True, "sender"), "resumed=True, it should be False"),
    ],
)
def test_forbidden_events_of_an_application(event: Any, complaint: str) -> None:
    _, app = begun_app()
    app.work()
    publisher = next(publisher for publisher in app._unconfirmed if publisher.qos)
    app._publish(messages(publisher.topic, publisher.qos, 1)[0])
    with pytest.raises(ViolationError, match=complaint):
        app._on_events([event(publisher)], 0.5)
