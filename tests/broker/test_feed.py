"""The state of a subscription: what it matches, and below which offset everything is processed."""

from __future__ import annotations

from tests.broker.world import World

from godwit.broker.session import Session
from godwit.broker.subscription import BrokerSubscription


def test_it_matches_by_any_of_its_filters() -> None:
    feed = BrokerSubscription(0, Session("bob", 1, is_remembered=True), ("a/+", "b"), None, 0)
    assert feed.matches("a/x")
    assert feed.matches("b")
    assert not feed.matches("a")


def test_what_is_processed_follows_the_oldest_message_that_is_not_acknowledged() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("news", number=1)
    channel = alice.open("news")
    (feed,) = world.server.broker.sessions["bob"].subscriptions.values()
    assert feed.is_live
    alice.publish(alice.open("other"), b"x")
    assert feed.done_below(world.store.next_offset) == 1  # nothing is under way: what was not for it counts as done
    bob.confirms_itself = False
    alice.publish(channel, b"1")
    alice.publish(channel, b"2")
    assert feed.done_below(world.store.next_offset) == 1
    bob.confirms_itself = True
    world.run()
    assert feed.done_below(world.store.next_offset) == 3
    assert feed.restart_position(3) == (3, 3, 0)
    feed.note_sent(4, 6)
    feed.note_sent(6, 7)
    feed.note_sent(9, 10)
    assert list(feed.sent) == [[4, 7], [9, 10]]
    assert feed.restart_position(20) == (4, 3, 0)
    world.server.broker.acknowledge(feed, 5)  # in the middle of a batch
    assert feed.restart_position(20) == (5, 5, 0)
    world.server.broker.acknowledge(feed, 7)
    assert feed.restart_position(20) == (9, 7, 0)
    world.server.broker.acknowledge(feed, 10)
    assert feed.restart_position(20) == (20, 10, 0)


def test_what_it_would_get_from_an_offset_depends_on_what_is_lost() -> None:
    feed = BrokerSubscription(0, Session("bob", 1, is_remembered=True), ("a",), "mine", 20)
    feed.quiet_from = 10
    assert [feed.is_resumed_from(offset, 50) for offset in (9, 10, 20, 21)] == [False, True, True, False]
    feed.lost = 3
    assert [feed.is_resumed_from(offset, 50) for offset in (9, 10, 19, 20, 30)] == [False, True, True, False, False]
    feed.counted_from, feed.resume_at = 15, 30
    assert [feed.is_resumed_from(offset, 50) for offset in (10, 14, 15, 30)] == [True, True, False, False]
