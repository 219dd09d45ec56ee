"""A channel on which a client publishes: it counts for its topic while it is in use, and is refused once."""

from __future__ import annotations

from tests.broker.world import World

from godwit.native.publish_channel import PublishChannel
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
    peer = world.server.native._peers[alice]
    alice.record(old, encode_batch(Batch([b"x"], 0, qos=2, sequence=0)), last=True)
    world.run()
    assert alice.last(c.PublishRefused).code == Code.STALE_EPOCH
    assert old not in peer.publish_channels
    topic = world.server.broker._catalogue.get("news")
    assert topic is not None
    assert topic.publishers == 1


def test_it_is_refused_once_and_leaves_its_topic_once() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    channel = alice.open("news")
    bob.open("news")
    peer = world.server.native._peers[alice]
    (publish_channel,) = peer.publish_channels.values()
    assert isinstance(publish_channel, PublishChannel)
    assert publishers(world, "news") == 2
    publish_channel.refuse(Code.STORAGE, "full")
    publish_channel.refuse(Code.STORAGE, "full")
    assert len(world.server.broker.effects) == 1
    assert publishers(world, "news") == 1
    alice.record(channel, b"", last=True)
    world.run()
    assert publishers(world, "news") == 1
    assert channel not in peer.publish_channels


def test_one_that_never_was_in_use_counts_for_nothing() -> None:
    world = World()
    alice = world.client("alice")
    assert alice.refused_open("bad/+") is Code.BAD_TOPIC
    alice.leave()
    assert world.server.broker._catalogue.get("bad/+") is None
