"""Publishers beyond their rate get their credit back later."""

from __future__ import annotations

from tests.broker.world import World

from godwit.broker.settings import Settings
from godwit.wire import control as c
from godwit.wire.control import encode_control


def test_a_client_above_its_rate_gets_its_credit_later() -> None:
    world = World(Settings(messages_per_s=10))
    alice, bob = world.client("alice"), world.client("bob")
    channel = alice.open("news")
    for _ in range(25):
        alice.publish(channel, b"x")
    paid = alice.consumed[channel]
    assert alice.confirmed[channel][0] == 25  # safe all the same
    world.pass_s(2)
    assert alice.consumed[channel] > paid
    other = bob.open("news")
    bob.publish(other, b"x")
    assert bob.consumed[other] == len(encode_control(c.Open(topic="news"))) + 10


def test_above_the_rate_what_may_be_lost_is_dropped() -> None:
    world = World(Settings(messages_per_s=10))
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("news")
    channel = alice.open("news", 0)
    for _ in range(25):
        alice.publish(channel, b"x", qos=0, reliable=False)
    assert len(bob.got) == 10
    assert world.server.broker.figures()["messages/dropped"] == 15


def test_a_live_publisher_beyond_its_rate_gets_its_credit_back_without_help_of_others() -> None:
    world = World(Settings(messages_per_s=10))
    alice = world.client("alice")
    channel = alice.open("news", 0)
    before = alice.consumed[channel]
    for _ in range(30):
        alice.publish(channel, b"x" * 20, qos=0)
    assert alice.consumed[channel] - before < 30 * 29
    world.pass_s(10)
    assert alice.consumed[channel] - before == 30 * 29


def test_who_is_gone_is_owed_nothing() -> None:
    world = World(Settings(messages_per_s=10))
    alice = world.client("alice")
    channel = alice.open("news")
    for _ in range(30):
        alice.publish(channel, b"x")
    paid = alice.consumed[channel]
    owing = [bool(world.server.broker.deferred_credit.waiting)]
    alice.leave()
    world.pass_s(10)
    assert [*owing, bool(world.server.broker.deferred_credit.waiting)] == [True, False]
    assert alice.consumed[channel] == paid
