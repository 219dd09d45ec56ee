"""What is read from the log: everything once, in order, with gaps where something is gone."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.broker.durable import DurableWorld
from tests.broker.test_delivery import WINDOW, offsets, pair
from tests.broker.world import Peer, World

from godwit.broker.effects import Committed, Found, Losing
from godwit.broker.settings import Settings
from godwit.wire import control as c

LONG = {"session_expiry_s": 1000}


@pytest.mark.parametrize("seed", range(5))
def test_catching_up_loses_and_repeats_nothing(seed: int) -> None:
    """Publishers, a subscriber that takes now and then, and one that comes and goes: every offset once, in order."""
    rng = random.Random(seed)
    world = World(Settings(client_window_bytes=WINDOW))
    alice, channel, bob = pair(world)
    other = alice.open("other")
    wanted: list[int] = []
    next_offset = 0
    for _ in range(300):
        match rng.randrange(8):
            case 0:
                bob.confirm_all()
            case 1:
                alice.publish(other, *[bytes(rng.randrange(2000))] * (count := rng.randrange(1, 4)))
                next_offset += count
            case _:
                count = rng.randrange(1, 6)
                alice.publish(channel, *[bytes(rng.randrange(4000))] * count)
                wanted += range(next_offset, next_offset + count)
                next_offset += count
    bob.confirms_itself = True
    world.run()
    assert offsets(bob) == wanted
    assert bob.gaps == []


def test_filters_without_end_are_laid_over_topics_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.broker.delivery.MATCHES_PER_TURN", 20)
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    topics = [f"a/b/c/{number}" for number in range(50)]
    for topic in topics:
        alice.publish(alice.open(topic), b"x", retain=True)
    filters = ("+/b/c/+", "a/+/c/+", "a/b/+/+", "none")
    bob.subscribe(*filters)
    assert sorted(got.topic for got in bob.got) == sorted(topics)
    assert all(got.retain for got in bob.got)
    carol = world.client("carol")
    carol.subscribe(*filters, start="earliest")
    assert [(got.topic, got.retain) for got in carol.got] == [(topic, False) for topic in topics]


def test_an_answer_of_the_log_to_what_was_asked_before_a_break_is_not_taken() -> None:
    """It begins further on: what lies between would count as gone, though the log has it."""
    world = World()
    alice, bob = world.client("alice"), world.client("bob", session_expiry_s=1000)
    channel = alice.open("news")
    for number in range(10):
        alice.publish(channel, b"%d" % number)
    for request, start in ((50, 8), (52, 2)):  # all of it in one turn, before the log has answered anything
        bob.say(c.Subscribe(request=request, subscription=request, filters=["news"], start=start))
        if request == 50:
            bob.say(c.Unsubscribe(request=51, subscription=50, keep=True))
    world.run()
    assert bob.gaps == []
    assert offsets(bob) == list(range(2, 10))


def test_the_log_may_have_more_than_was_forwarded_yet() -> None:
    """It is read in another thread: a commit may be on disk before the broker hears of it."""
    world = DurableWorld()
    alice, bob = world.client("alice"), world.client("bob")
    channel = alice.open("news")
    alice.publish(channel, b"0")
    world.hold()
    alice.publish(channel, b"1")
    bob.say(c.Subscribe(request=70, subscription=1, filters=["news"], start=0))
    world.handle_fed()
    (read,) = [effect for effect in world.server.broker.end_turn() if type(effect).__name__ == "Read"]
    effect = world.log.waiting.popleft()
    offset = world.keeping.append(effect.entries, effect.changes)
    found = world.keeping.read(0, 9999)
    assert len(found.entries) == 2
    world.server.broker.handle(Found(read, found.entries, found.next_offset), world.now_us)
    feed = read.subscription
    assert feed.position == 1
    world.server.broker.handle(Committed(offset), world.now_us)
    assert feed.sent_below == 2


# -- damage and retention ---------------------------------------------------------------------------------------------


def a_log(topics: str = "nononono") -> tuple[DurableWorld, Peer]:
    """One message for each letter: n for news, o for other."""
    world = DurableWorld()
    alice = world.client("alice")
    channels = {"n": alice.open("news"), "o": alice.open("other")}
    for number, letter in enumerate(topics):
        alice.publish(channels[letter], b"%d" % number)
    return world, alice


def told(peer: Peer) -> list[object]:
    """Offsets and gaps as they came."""
    return [one if isinstance(one, c.Gap) else one.offset for one in peer.order]


def reader(world: World, pattern: str = "news", *, name: str | None = None, **fields: Any) -> Peer:
    peer = world.client(name, **LONG)
    peer.subscribe(pattern, **fields)
    return peer


def test_damage_is_a_gap_in_its_place() -> None:
    world, _ = a_log()
    world.keeping.damaged = [(2, 4), (7, 8)]
    gaps = [c.Gap(count=2, next_offset=4), c.Gap(count=1, next_offset=8)]
    assert told(reader(world, start=0)) == [0, gaps[0], 4, 6, gaps[1]]
    assert told(reader(world, start=3)) == [c.Gap(count=1, next_offset=4), 4, 6, gaps[1]]
    assert told(reader(world, start="earliest")) == [0, gaps[0], 4, 6, gaps[1]]


def test_a_start_below_the_mark_of_a_rule_is_a_gap() -> None:
    world, _ = a_log()
    world.server.broker.handle(world.keeping.thin("news", 5), world.now_us)
    gaps = [c.Gap(count=1, next_offset=place) for place in (1, 3, 5)]
    everything = [gaps[0], 1, gaps[1], 3, gaps[2], 5, 6, 7]
    for _ in range(2):
        assert told(reader(world, "#", start=0)) == everything
        assert told(reader(world, "other", start=0)) == [1, 3, 5, 7]  # no rule of its topics has deleted anything
        assert told(reader(world, "#", start="earliest")) == [1, 3, 5, 6, 7]  # it asked for whatever there is
        assert told(reader(world, "#", start=5)) == [5, 6, 7]
        world.restart()


def test_what_retention_takes_from_an_absent_subscription_is_counted() -> None:
    world, alice = a_log("")
    bob, carol = reader(world, "news", name="bob"), reader(world, "other", name="carol")
    bob.leave()
    carol.leave()
    channels = [alice.open("news"), alice.open("other")]
    for number in range(8):
        alice.publish(channels[number % 2], b"x")
    world.server.broker.handle(world.keeping.thin("news", 5), world.now_us)
    world.run()
    assert told(reader(world, "news", name="bob")) == [c.Gap(count=3, next_offset=0), 6]
    assert told(reader(world, "other", name="carol")) == [1, 3, 5, 7]


@pytest.mark.parametrize("is_told", [False, True])
def test_it_is_told_after_a_restart_too(is_told: bool) -> None:
    """Whether the broker died before it heard of it, or after. How many were for it is not known any more."""
    world, alice = a_log("")
    reader(world, "news", name="bob").leave()
    channel = alice.open("news")
    for _ in range(4):
        alice.publish(channel, b"x")
    losing = world.keeping.thin("news", 3)
    if is_told:
        world.server.broker.handle(losing, world.now_us)
        world.pass_s(2)
    world.restart()
    bob = reader(world, "news", name="bob")
    assert told(bob)[-1] == 3
    assert sum(gap.count for gap in bob.gaps) >= 3


def test_what_was_under_way_and_is_deleted_is_told_after_a_reconnect() -> None:
    world, alice = a_log("")
    bob = reader(world, "news", name="bob")
    bob.confirms_itself = False
    channel = alice.open("news")
    for _ in range(4):
        alice.publish(channel, b"x")
    assert offsets(bob) == [0, 1, 2, 3]
    world.server.broker.handle(world.keeping.thin("news", 3), world.now_us)
    bob.die()
    assert told(reader(world, "news", name="bob")) == [c.Gap(count=3, next_offset=3), 3]


@pytest.mark.parametrize("start", [None, 2])
def test_a_subscription_that_is_behind_misses_what_is_deleted_before_it(start: int | None) -> None:
    world = DurableWorld(Settings(client_window_bytes=WINDOW))
    alice, channel, bob = pair(world)
    other = alice.open("other")
    if start is not None:
        bob = world.client("carol")
        bob.confirms_itself = False
    for number in range(60):
        alice.publish(channel if number % 2 else other, bytes(8000))
    if start is not None:
        bob.subscribe("news", start=start)
    taken = len(bob.got)
    assert 0 < taken < 30
    world.server.broker.handle(world.keeping.thin("news", 50), world.now_us)
    bob.confirms_itself = True
    world.run()
    (gap,) = bob.gaps
    wanted = range(1 if start is None else 3, 60, 2)
    assert gap.count + len(bob.got) >= len(wanted)
    assert set(offsets(bob)) >= set(wanted[-5:])
    assert offsets(bob) == sorted(set(offsets(bob)))


@pytest.mark.parametrize("is_whole", [False, True])
def test_retention_goes_on_before_one_that_reads_where_it_has_been(is_whole: bool) -> None:
    """What was deleted before it came there is not known, so everything that is missing counts, and nothing twice."""
    world = DurableWorld(Settings(client_window_bytes=WINDOW))
    alice, carol = world.client("alice"), world.client("carol")
    channel = alice.open("news")
    for _ in range(60):
        alice.publish(channel, bytes(8000))
    world.server.broker.handle(world.keeping.thin("news", 40), world.now_us)
    late = world.client("late")
    late.confirms_itself = False
    late.subscribe("news", start=5)
    carol.subscribe("news", start=39)
    losing = world.keeping.thin("news", 50)
    world.server.broker.handle(Losing(losing.entries, 50) if is_whole else losing, world.now_us)
    late.confirms_itself = True
    world.run()
    assert offsets(late)[-10:] == list(range(50, 60))
    assert sum(gap.count for gap in late.gaps) + len(late.got) == 55
    assert sum(gap.count for gap in carol.gaps) + len(carol.got) == 21


def test_the_log_as_a_whole_begins_later() -> None:
    world, alice = a_log("")
    reader(world, "news", name="bob").leave()
    alice.publish(alice.open("news"), *[b"x"] * 5)
    (entry,) = world.keeping.read(0, 9999).entries
    world.keeping.thinned.add(0)
    world.server.broker.handle(Losing([entry], 5), world.now_us)
    world.run()
    assert told(reader(world, "news", name="bob")) == [c.Gap(count=5, next_offset=5)]
    assert world.server.broker.figures()["log/first_offset"] == 5
