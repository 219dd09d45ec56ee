"""Publishers wait for a connected subscriber that the ring would overrun, for a limited time."""

from __future__ import annotations

import pytest
from tests.broker.world import Peer, World

from godwit.broker.settings import Settings
from godwit.limits import KIB

RING = 128 * KIB


def held(hold_back_s: float = 10) -> tuple[World, Peer, int, Peer]:
    """A publisher that has filled the ring, before a connected subscriber that takes nothing."""
    world = World(Settings(hold_back_s=hold_back_s, client_window_bytes=RING // 2), ring_bytes=RING)
    alice, bob = world.client("alice"), world.client("bob")
    bob.confirms_itself = False
    bob.subscribe("news")
    channel = alice.open("news")
    while alice.publish(channel, bytes(4 * KIB)) == alice.confirmed[channel][0]:
        assert alice.confirmed[channel][0] < 100
    return world, alice, channel, bob


def test_a_full_ring_confirms_no_more_while_somebody_needs_it() -> None:
    world, alice, channel, _ = held()
    assert world.store.first_offset == 0
    confirmed = alice.confirmed[channel]
    alice.publish(channel, b"more")
    world.pass_s(9)
    assert alice.confirmed[channel] == confirmed
    assert world.server.buffered_bytes > 4 * KIB


def test_when_it_was_taken_publishers_go_on_and_nothing_is_lost() -> None:
    world, alice, channel, bob = held()
    alice.publish(channel, b"more")
    world.pass_s(5)
    bob.confirms_itself = True
    world.run()
    count = alice.confirmed[channel][0]
    assert [got.offset for got in bob.got] == list(range(count))
    assert bob.payloads[-1] == b"more"
    assert bob.gaps == []
    assert world.server.log.held_bytes == 0


def test_after_a_while_publishers_wait_no_longer_and_the_slow_subscriber_is_notified() -> None:
    world, alice, channel, bob = held()
    world.pass_s(11)
    assert world.told("slow") == ["bob is too slow for news: it will miss messages"]
    for _ in range(100):
        record = alice.publish(channel, bytes(4 * KIB))
        assert alice.confirmed[channel][0] == record  # not held back again and again
    bob.confirms_itself = True
    world.run()
    (gap,) = bob.gaps
    assert len(bob.got) + gap.count == alice.confirmed[channel][0]


def test_one_that_has_caught_up_is_waited_for_again() -> None:
    world, alice, channel, bob = held()
    world.pass_s(11)
    bob.confirms_itself = True
    world.run()
    bob.confirms_itself = False
    alice.publish(channel, b"x")
    held_back = False
    for _ in range(100):
        held_back |= alice.publish(channel, bytes(4 * KIB)) > alice.confirmed[channel][0]
    assert held_back


def test_one_that_is_away_is_not_waited_for() -> None:
    world = World(ring_bytes=RING)
    alice, bob = world.client("alice"), world.client("bob", session_expiry_s=100)
    bob.subscribe("news")
    bob.die()
    channel = alice.open("news")
    for _ in range(100):
        assert alice.publish(channel, bytes(4 * KIB)) == alice.confirmed[channel][0]


def test_one_that_leaves_is_waited_for_no_more() -> None:
    world, alice, channel, bob = held()
    alice.publish(channel, b"more")
    bob.die()
    assert alice.publish(channel, b"and more") == alice.confirmed[channel][0]
    assert world.now < 1010


def test_other_topics_wait_too_but_qos_0_does_not() -> None:
    world, alice, _, bob = held()
    carol = world.client("carol")
    carol.subscribe("other")
    other = alice.open("other")
    alice.publish(other, bytes(4 * KIB))
    assert other not in alice.confirmed  # there is one log
    live = alice.open("other", 0)
    alice.publish(live, b"now", qos=0, reliable=False)
    assert carol.payloads == [b"now"]
    assert bob.closed is None


def test_publishers_that_come_and_go_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.server.memory_log.LEAST_HELD_BYTES", 0)
    monkeypatch.setattr("godwit.server.memory_log.MOST_HELD_RINGS", 4)
    settings = Settings(client_window_bytes=64 * KIB, ring_bytes=RING)
    world = World(settings, ring_bytes=RING)
    bob = world.client("bob")
    bob.confirms_itself = False
    bob.subscribe("news")
    for _ in range(100):
        mallory = world.client()
        mallory.publish(mallory.open("news"), bytes(32 * KIB))
        mallory.leave()
        assert world.server.log.held_bytes < 6 * RING
    assert world.now < 1010


def held_by_pretenders(seconds: float, *, leaves_early: bool) -> float:
    """How long a publisher is held back while one subscriber after another confirms nothing, each under a new name."""
    world, alice, channel, pretender = held()
    held_s = 0.0
    end = world.now + seconds
    while world.now < end:
        record = alice.publish(channel, bytes(4 * KIB))
        began = world.now
        while alice.confirmed[channel][0] < record:
            world.pass_s(min(world.server.next_timer() - world.now, 2))
            if leaves_early and world.now - began >= 2:
                pretender.die()
        held_s += world.now - began
        if pretender.closed is not None or world.told("slow"):
            pretender.die()
            world.notices.clear()
            pretender = world.client(f"pretender at {world.now}")
            pretender.confirms_itself = False
            pretender.subscribe("news", start="earliest")
        world.pass_s(0.5)
    return held_s


@pytest.mark.parametrize("leaves_early", [False, True])
def test_pretenders_one_after_another_hold_publishers_back_for_20_s_in_10_minutes(leaves_early: bool) -> None:
    assert 10 <= held_by_pretenders(600, leaves_early=leaves_early) <= 20.5


def test_a_steady_subscriber_is_waited_for_even_if_a_pretender_used_up_the_reserve() -> None:
    world, alice, channel, pretender = held()
    bob = world.client("steady")
    bob.confirms_itself = False
    bob.subscribe("news", start="earliest")
    for _ in range(6):  # it becomes steady
        alice.publish(channel, bytes(4 * KIB))
        world.pass_s(0.2)
        pretender.confirm_all()
        bob.confirm_all()
        world.run()
    for _ in range(400):
        record = alice.publish(channel, bytes(4 * KIB))
        waited_s = 0.0
        while alice.confirmed[channel][0] < record:
            world.pass_s(0.5)
            bob.confirm_all()
            world.run()
            waited_s += 0.5
            assert waited_s < 20
    assert [text for text in world.told("slow") if text.startswith("steady")] == []
    bob.confirms_itself = True
    world.run()
    assert bob.gaps == []
    assert [got.offset for got in bob.got] == list(range(alice.confirmed[channel][0]))


def test_a_steady_subscriber_that_stops_is_given_up_after_one_step() -> None:
    world, alice, channel, bob = held()
    for _ in range(40):
        record = alice.publish(channel, bytes(4 * KIB))
        while alice.confirmed[channel][0] < record:
            world.pass_s(0.9)
            bob.confirm_all()
            world.run()
    while alice.publish(channel, bytes(4 * KIB)) == alice.confirmed[channel][0]:
        assert alice.confirmed[channel][0] < 300
    world.pass_s(11)  # it confirms nothing more, and the reserve is used up
    assert len(world.told("slow")) == 1
    bob.confirm_all()
    world.run()
    for _ in range(100):
        record = alice.publish(channel, bytes(4 * KIB))
        if alice.confirmed[channel][0] < record:
            world.pass_s(1)
        assert alice.confirmed[channel][0] == record, "not for another 10 s"


def test_one_that_takes_steadily_is_waited_for_as_long_as_need_be() -> None:
    world, alice, channel, bob = held()
    for _ in range(400):
        record = alice.publish(channel, bytes(4 * KIB))
        waited_s = 0.0
        while alice.confirmed[channel][0] < record:
            bob.confirm_all()
            world.pass_s(0.5)
            waited_s += 0.5
            assert waited_s < 60
    bob.confirms_itself = True
    world.run()
    assert bob.gaps == []
    assert [got.offset for got in bob.got] == list(range(alice.confirmed[channel][0]))
