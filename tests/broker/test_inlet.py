"""A channel on which a client publishes: it counts for its topic for as long as it is in use, and is refused once."""

from __future__ import annotations

from tests.broker.world import World

from godwit.broker.effects import Effect
from godwit.wire import control as c
from godwit.wire.batch import Batch, encode_batch
from godwit.wire.control_base import Code


def publishers(world: World, topic: str) -> int:
    found = world.server.broker._catalogue.get(topic)
    assert found is not None
    return found.publishers


def test_a_channel_that_is_refused_with_its_last_record_is_over() -> None:
    world = World()
    alice = world.client("alice")
    old = alice.open("news", 2, publisher="p", epoch=1)
    alice.open("news", 2, publisher="p", epoch=2)
    link = world.server.broker._links[alice]  # type: ignore[index]
    alice.record(old, encode_batch(Batch([b"x"], 0, qos=2, sequence=0)), last=True)
    world.run()
    assert alice.last(c.PublishRefused).code == Code.STALE_EPOCH
    assert old not in link.inlets
    topic = world.server.broker._catalogue.get("news")
    assert topic is not None
    assert topic.publishers == 1


def test_it_is_refused_once_and_leaves_its_topic_once() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    channel = alice.open("news")
    bob.open("news")
    (inlet,) = world.server.broker._links[alice].inlets.values()  # type: ignore[index]
    assert publishers(world, "news") == 2
    effects: list[Effect] = []
    inlet.refuse(Code.STORAGE, "full", effects)
    inlet.refuse(Code.STORAGE, "full", effects)
    assert len(effects) == 1
    assert publishers(world, "news") == 1
    inlet.end()
    assert publishers(world, "news") == 1
    assert channel not in world.server.broker._links[alice].inlets  # type: ignore[index]


def test_one_that_never_was_in_use_counts_for_nothing() -> None:
    world = World()
    alice = world.client("alice")
    assert alice.refused_open("bad/+") is Code.BAD_TOPIC
    alice.leave()
    assert world.server.broker._catalogue.get("bad/+") is None
