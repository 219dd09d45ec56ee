"""A subscription's state: what it matches, and below which offset everything is done."""

from __future__ import annotations

from tests.broker.world import World

from godwit.broker.feed import Feed
from godwit.broker.session import Session


def test_it_matches_by_any_of_its_filters() -> None:
    feed = Feed(0, Session("bob", 1, is_remembered=True), ("a/+", "b"), None, 0)
    assert feed.matches("a/x")
    assert feed.matches("b")
    assert not feed.matches("a")


def test_what_is_done_follows_the_oldest_record_that_is_not_confirmed() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("news", number=1)
    channel = alice.open("news")
    (link,) = (link for link in world.server.broker._links.values() if link.session and link.session.name == "bob")
    (feed,) = link.feeds.values()
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
    assert feed.taken_below() == 3
    feed.lane.add(b"head", b"rest", 4, 3, 2)  # it waits for the end of the turn
    assert (feed.taken_below(), feed.done_below(6)) == (3, 4)
    feed.lane.cut()
    assert (feed.taken_below(), feed.done_below(6)) == (3, 4)


def test_what_it_would_get_from_an_offset_depends_on_what_is_lost() -> None:
    feed = Feed(0, Session("bob", 1, is_remembered=True), ("a",), "mine", 20)
    feed.quiet_from = 10
    assert [feed.is_resumed_from(offset, 50) for offset in (9, 10, 20, 21)] == [False, True, True, False]
    feed.lost = 3
    assert [feed.is_resumed_from(offset, 50) for offset in (9, 10, 19, 20, 30)] == [False, True, True, False, False]
    feed.counted_from, feed.resume_at = 15, 30
    assert [feed.is_resumed_from(offset, 50) for offset in (10, 14, 15, 30)] == [True, True, False, False]
