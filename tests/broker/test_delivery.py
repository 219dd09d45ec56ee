"""From the log to subscribers: forwarding, windows, catching up, losses."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.broker.durable import DurableWorld
from tests.broker.world import Got, Peer, World

from godwit.broker import delivery
from godwit.broker.delivery import READS_AT_ONCE
from godwit.broker.effects import Committed, Found, Losing, Read
from godwit.broker.settings import Settings
from godwit.limits import KIB, MAX_UNRELIABLE_BYTES
from godwit.native.subscriber_channel import NativeOutbound
from godwit.wire import control as c

WINDOW = 64 * KIB


def pair(world: World, *, qos: c.Qos = 1, pattern: str = "news") -> tuple[Peer, int, Peer]:
    """A publisher with its channel, and a subscriber that takes nothing by itself."""
    alice, bob = world.client("alice"), world.client("bob", session_expiry_s=1000)
    bob.confirms_itself = False
    bob.subscribe(pattern, number=1)
    bob.confirm_all()
    world.run()
    return alice, alice.open("news", qos), bob


def offsets(peer: Peer) -> list[int]:
    return [got.offset for got in peer.got]


# -- the window -------------------------------------------------------------------------------------------------------


def test_a_subscriber_that_takes_nothing_gets_its_window_and_no_more() -> None:
    world = World(Settings(client_window_bytes=WINDOW))
    alice, channel, bob = pair(world)
    for number in range(100):
        alice.publish(channel, b"%4d" % number + bytes(4 * KIB))
    assert alice.confirmed[channel][0] == 100  # the publisher does not feel it
    assert 10 < len(bob.got) < WINDOW // (4 * KIB) + 2
    bob.confirms_itself = True
    world.run()
    assert offsets(bob) == list(range(100))
    assert bob.gaps == []
    alice.publish(channel, b"live again")
    assert offsets(bob)[-1] == 100


def test_a_slow_subscriber_does_not_slow_the_others() -> None:
    world = World(Settings(client_window_bytes=WINDOW))
    alice, channel, _ = pair(world)
    quick = world.client("quick")
    quick.subscribe("news")
    for _ in range(100):
        alice.publish(channel, bytes(4 * KIB))
    assert len(quick.got) == 100


def test_the_window_is_that_of_a_client_and_not_of_a_subscription() -> None:
    world = World(Settings(client_window_bytes=WINDOW))
    alice, channel, bob = pair(world)
    for number in range(2, 12):
        bob.subscribe("news", cursor=str(number), number=number)
    for _ in range(40):
        alice.publish(channel, bytes(4 * KIB))
    assert sum(len(got.payload) for got in bob.got) <= WINDOW + 12 * 4 * KIB
    bob.confirms_itself = True
    world.run()
    assert len(bob.got) == 11 * 40
    assert all(offsets_of_lane == list(range(40)) for offsets_of_lane in _by_lane(bob))


def _by_lane(peer: Peer) -> list[list[int]]:
    """Offsets of each subscription: they all got the same, so every offset comes as often as there are of them."""
    counts: dict[int, int] = {}
    rows: list[list[int]] = []
    for offset in offsets(peer):
        place = counts.get(offset, 0)
        counts[offset] = place + 1
        if place == len(rows):
            rows.append([])
        rows[place].append(offset)
    return rows


def test_a_message_longer_than_the_window_comes_alone() -> None:
    world = World(Settings(client_window_bytes=WINDOW))
    alice, channel, bob = pair(world)
    for size in (10, 5 * WINDOW, 10):
        alice.publish(channel, bytes(size))
    bob.confirms_itself = True
    world.run()
    assert [len(got.payload) for got in bob.got] == [10, 5 * WINDOW, 10]


def test_small_batches_are_joined_to_few_records() -> None:
    world = World()
    _, _, bob = pair(world, pattern="#")
    clients = [world.client() for _ in range(50)]
    channels = [client.start(f"room/{number}") for number, client in enumerate(clients)]
    records = bob.lanes[1].records
    for client, channel in zip(clients, channels, strict=True):
        client.record(channel, b"\x41" + bytes(8) + b"21.5")
    world.run()
    assert len(bob.got) == 50
    assert bob.lanes[1].records - records <= 2  # the labels, and one record for all


# -- gaps -------------------------------------------------------------------------------------------------------------


def test_what_left_the_log_while_a_client_was_away_is_counted() -> None:
    world = World(ring_bytes=64 * KIB)
    alice, channel, bob = pair(world)
    other = alice.open("other")
    alice.publish(channel, b"taken")
    bob.confirm_all()
    world.run()
    bob.die()
    for _ in range(20):
        alice.publish(channel, bytes(4 * KIB), b"and a small one")
        alice.publish(other, bytes(4 * KIB))
    first = world.store.first_offset
    bob = world.client("bob", session_expiry_s=1000)
    bob.subscribe("news")
    (gap,) = bob.gaps
    assert bob.order[0] is gap
    assert gap.next_offset == first
    assert gap.count + len(bob.got) == 40  # those on the other topic are not counted
    assert all(offset >= first for offset in offsets(bob))


def test_a_gap_stands_in_its_place() -> None:
    world = World(Settings(client_window_bytes=WINDOW, hold_back_s=0), ring_bytes=2 * WINDOW)
    alice, channel, bob = pair(world)
    for _ in range(200):
        alice.publish(channel, bytes(4 * KIB))
    bob.confirms_itself = True
    world.run()
    (gap,) = bob.gaps
    place = bob.order.index(gap)
    before = [message.offset for message in bob.order[:place] if isinstance(message, Got)]
    behind = [message.offset for message in bob.order[place + 1 :] if isinstance(message, Got)]
    assert before == list(range(len(before)))
    assert behind == list(range(gap.next_offset, 200))
    assert gap.count == gap.next_offset - len(before)
    assert world.told("slow") == ["bob is too slow for news: it will miss messages"]


def test_a_start_before_the_log_begins_is_a_gap() -> None:
    world = World(ring_bytes=64 * KIB)
    alice = world.client("alice")
    channel = alice.open("news")
    for _ in range(40):
        alice.publish(channel, bytes(4 * KIB))
    bob = world.client("bob")
    bob.subscribe("news", start=0)
    first = world.store.first_offset
    assert bob.gaps == [c.Gap(count=first, next_offset=first)]
    assert offsets(bob) == list(range(first, 40))
    carol = world.client("carol")
    carol.subscribe("news", start="earliest")
    assert carol.gaps == []
    assert offsets(carol) == offsets(bob)


def test_a_gap_that_was_not_taken_is_told_again() -> None:
    """The program crashed before it heard of it; its next run does not know where it stood."""
    world = World(ring_bytes=64 * KIB)
    alice, channel, bob = pair(world)
    bob.die()
    for _ in range(40):
        alice.publish(channel, bytes(4 * KIB))
    for _ in range(2):
        bob = world.client("bob", session_expiry_s=1000)
        bob.confirms_itself = False
        bob.subscribe("news")
        assert [gap.count for gap in bob.gaps] == [world.store.first_offset]
        bob.die()


def test_a_gap_of_a_named_cursor_is_reported_until_a_commit_passes_it() -> None:
    """A consumer that received the report and stopped before it committed anything must get it in its next run."""
    world = World(ring_bytes=64 * KIB)
    alice, channel, bob = pair(world)
    bob.subscribe("news", cursor="billing", number=7)
    bob.die()
    for _ in range(40):
        alice.publish(channel, bytes(4 * KIB))
    missed = world.store.first_offset
    reported = c.Gap(count=missed, next_offset=missed)
    for _ in range(2):
        bob = world.client("bob", session_expiry_s=1000)
        bob.subscribe("news", cursor="billing", number=7)
        assert bob.gaps == [reported]
        bob.confirm_all()
        bob.die()
    bob = world.client("bob", session_expiry_s=1000)
    bob.subscribe("news", cursor="billing", number=7)
    assert bob.gaps == [reported]
    bob.expect(c.CursorCommit(request=50, subscription=7, offset=missed), c.Done)
    bob.die()
    bob = world.client("bob", session_expiry_s=1000)
    bob.subscribe("news", cursor="billing", number=7)
    assert bob.gaps == []


@pytest.mark.parametrize(("name", "start"), [(None, 0), (None, 3), ("bob", 0), ("bob", 3), ("bob", None)])
def test_a_gap_before_the_start_is_told_again_to_a_client_that_returns_to_its_start(
    name: str | None, start: int | None
) -> None:
    """Its connection ended before it took the gap, so it asks for the offset at which the broker said it begins."""
    world = World(ring_bytes=64 * KIB)
    alice, channel, bob = pair(world)
    bob.die()
    for _ in range(40):
        alice.publish(channel, bytes(4 * KIB))
    missed = world.store.first_offset - (start or 0)
    for _ in range(3):
        bob = world.client(name, session_expiry_s=1000)
        bob.confirms_itself = False
        start = bob.subscribe("news", start=start).next_offset
        assert bob.gaps == [c.Gap(count=missed, next_offset=world.store.first_offset)]
        bob.die()
    bob = world.client(name, session_expiry_s=1000)
    bob.subscribe("news", start=world.store.first_offset)
    assert bob.gaps == [], "it took the gap"


def test_a_client_that_returns_to_its_last_message_is_told_what_it_missed_and_not_what_was_for_others() -> None:
    world = World(ring_bytes=64 * KIB)
    alice, channel, bob = pair(world)
    other = alice.open("other")
    alice.publish(channel, b"taken")
    alice.publish(other, *[b"not for bob"] * 20)
    bob.confirm_all()
    world.run()
    bob.die()
    alice.publish(channel, b"missed", b"missed, too")
    for _ in range(40):
        alice.publish(other, bytes(4 * KIB))
    bob = world.client("bob", session_expiry_s=1000)
    bob.subscribe("news", start=1)
    assert bob.gaps == [c.Gap(count=2, next_offset=world.store.first_offset)]


def test_what_was_sent_and_not_taken_may_leave_the_log_and_is_told_then() -> None:
    """It was live, and everything was under way to it, when its connection broke."""
    world = World(Settings(hold_back_s=0), ring_bytes=64 * KIB)
    alice, channel, bob = pair(world)
    for _ in range(40):
        alice.publish(channel, bytes(4 * KIB))
    assert len(bob.got) == 40
    bob.die()
    bob = world.client("bob", session_expiry_s=1000)
    bob.subscribe("news")
    first = world.store.first_offset
    assert bob.gaps == [c.Gap(count=first, next_offset=first)]
    assert offsets(bob) == list(range(first, 40))


# -- the live channel -------------------------------------------------------------------------------------------------


def test_live_messages_are_numbered_so_that_losses_show() -> None:
    world = World()
    alice, channel, bob = pair(world, qos=0)
    alice.publish(channel, b"0", b"1", qos=0, reliable=False)
    bob.loses_unreliable = True
    alice.publish(channel, b"2", b"3", b"4", qos=0, reliable=False)
    bob.loses_unreliable = False
    alice.publish(channel, b"5", qos=0, reliable=False)
    assert [(got.payload, got.offset, got.live) for got in bob.got] == [
        (b"0", 0, True),
        (b"1", 1, True),
        (b"5", 5, True),
    ]


def test_what_the_broker_drops_is_counted_too() -> None:
    world = World(Settings(client_window_bytes=WINDOW))
    alice, channel, bob = pair(world, qos=0)
    for _ in range(50):
        alice.publish(channel, bytes(4 * KIB), qos=0)  # too long for a datagram, so it would have to be held
    sent = len(bob.got)
    assert 5 < sent < 30
    bob.confirm_all()
    world.run()
    alice.publish(channel, b"x", qos=0, reliable=False)
    assert bob.got[-1].offset == 50
    assert world.server.broker.figures()["messages/dropped"] == 50 - sent


def test_a_live_message_that_is_longer_than_the_window_goes_when_half_of_it_is_free() -> None:
    world = World(Settings(client_window_bytes=WINDOW))
    alice, channel, bob = pair(world, qos=0)
    alice.publish(channel, bytes(2 * WINDOW), qos=0)
    alice.publish(channel, bytes(2 * WINDOW), qos=0)
    assert [len(got.payload) for got in bob.got] == [2 * WINDOW]
    bob.confirm_all()
    world.run()
    alice.publish(channel, bytes(2 * WINDOW), qos=0)
    assert offsets(bob) == [0, 2]


def test_live_messages_come_with_their_labels_and_in_small_records() -> None:
    world = World()
    alice, channel, bob = pair(world, qos=0)
    for _ in range(20):
        alice.record(channel, b"\x01" + bytes(8) + bytes(100), reliable=False)
    world.run()
    assert len(bob.got) == 20
    assert MAX_UNRELIABLE_BYTES < 20 * 100


def test_live_and_logged_messages_do_not_mix_their_numbers() -> None:
    world = World()
    alice, channel, bob = pair(world)
    live = alice.open("news", 0)
    alice.publish(channel, b"logged")
    alice.publish(live, b"live", qos=0, reliable=False)
    assert [(got.payload, got.offset, got.live, got.qos) for got in bob.got] == [
        (b"logged", 0, False, 1),
        (b"live", 0, True, 0),
    ]


# -- labels -----------------------------------------------------------------------------------------------------------


def test_labels_are_forgotten_when_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.native.subscriber_channel.MAX_LABELS", 10)
    world = World()
    _, _, bob = pair(world, pattern="#")
    alice = world.client("many")
    for number in range(60):
        alice.publish(alice.open(f"room/{number}"), b"x")
        assert len(bob.lanes[1].topics) <= 11
    assert [got.topic for got in bob.got] == [f"room/{number}" for number in range(60)]


def test_a_subscription_that_is_not_taken_does_not_starve_the_others_of_its_client() -> None:
    world = World(Settings(client_window_bytes=64 * 1024))
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("unread")
    bob.subscribe("read")
    unread, read = alice.open("unread"), alice.open("read")
    bob.confirms_itself = False
    for _ in range(100):
        alice.publish(unread, bytes(4096))
    before = len(bob.got)
    wanted = [b"%d" % number + bytes(2000) for number in range(4)]  # together more than a message of the other leaves
    for payload in wanted:
        alice.publish(read, payload)
    assert [got.payload for got in bob.got[before:]] == wanted


# -- what the log is asked for ----------------------------------------------------------------------------------------


def behind(world: DurableWorld, subscriptions: int) -> Peer:
    """A client with many subscriptions that have the whole log before them, and a reader that takes its time."""
    alice, bob = world.client("alice"), world.client("bob")
    channel = alice.open("news")
    for number in range(40):
        alice.publish(channel, b"%2d" % number + bytes(4 * KIB))
    world.log.has_slow_reader = True
    for number in range(subscriptions):
        bob.subscribe("news", f"other/{number}", start="earliest")
    return bob


def test_a_client_has_few_reads_under_way_however_many_subscriptions_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "SHARED_OFFSETS", 0)
    world = DurableWorld()
    bob = behind(world, 20)
    assert len(world.log.questions) == READS_AT_ONCE
    other = world.client("other")
    other.subscribe("news", start="earliest")
    assert len(world.log.questions) == READS_AT_ONCE + 1
    asked = []
    while world.log.questions:
        asked.append(world.answer_one())
        assert len(world.log.questions) <= READS_AT_ONCE + 1
    firsts = [
        question.subscription
        for question in asked
        if isinstance(question, Read) and question.subscription.session.name == "bob"
    ]
    assert len(set(firsts[:20])) == 20  # each had its turn before any had a second one
    assert len(bob.got) == 20 * 40
    assert len(other.got) == 40
    alice = world.peers[0]
    alice.publish(alice.open("news"), b"live")
    assert len(bob.got) == 20 * 41


def test_a_subscription_to_the_present_waits_for_no_read() -> None:
    world = DurableWorld()
    bob = behind(world, 20)
    bob.subscribe("present")
    alice = world.client()
    alice.publish(alice.open("present"), b"now")
    assert bob.payloads == [b"now"]


def test_reads_of_subscriptions_that_ended_give_their_place_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "SHARED_OFFSETS", 0)
    world = DurableWorld()
    bob = behind(world, 20)
    gone = [world.log.questions.popleft() for _ in range(READS_AT_ONCE)]
    for question in gone:
        assert isinstance(question, Read)
        outbound = question.subscription.outbound
        assert isinstance(outbound, NativeOutbound)
        bob.expect(c.Unsubscribe(request=bob.number(), subscription=outbound.number), c.Done)
        assert question.subscription.reading is None
    assert len(world.log.questions) == READS_AT_ONCE
    world.log.questions.extendleft(gone)  # answers that are no longer needed
    while world.log.questions:
        world.answer_one()
    assert len(bob.got) == (20 - READS_AT_ONCE) * 40


def test_a_read_that_finds_no_room_lets_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "READS_AT_ONCE", 1)
    world = DurableWorld(Settings(client_window_bytes=WINDOW))
    alice, bob = world.client("alice"), world.client("bob")
    bob.confirms_itself = False
    full, free = alice.open("full"), alice.open("free")
    alice.publish(free, b"x")
    for _ in range(20):
        alice.publish(full, bytes(4 * KIB))
    world.log.has_slow_reader = True
    bob.subscribe("full", start="earliest")
    bob.subscribe("free", start="earliest")
    while world.log.questions:
        world.answer_one()
    assert b"x" in bob.payloads


# -- one read for many subscriptions ----------------------------------------------------------------------------------


def test_a_session_with_many_filters_reads_the_log_once() -> None:
    world = DurableWorld()
    alice, bob = world.client("alice"), world.client("bob")
    for number in range(100):
        alice.publish(alice.open(f"room/{number}"), b"%d" % number)
    world.log.has_slow_reader = True
    for number in reversed(range(100)):  # each begins before the one that was subscribed before it
        bob.subscribe(f"room/{number}", start=number)
    asked = []
    while world.log.questions:
        asked.append(world.answer_one())
    assert len(asked) <= READS_AT_ONCE + 1
    assert sorted(bob.payloads) == sorted(b"%d" % number for number in range(100))


def test_a_read_of_a_subscription_that_ended_is_repeated_for_those_that_waited_for_it() -> None:
    world = DurableWorld()
    bob = behind(world, 3)
    (question,) = world.log.questions
    assert isinstance(question, Read)
    outbound = question.subscription.outbound
    assert isinstance(outbound, NativeOutbound)
    bob.expect(c.Unsubscribe(request=bob.number(), subscription=outbound.number), c.Done)
    while world.log.questions:
        world.answer_one()
    assert len(bob.got) == 2 * 40


def test_a_subscription_far_behind_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "SHARED_OFFSETS", 10)
    monkeypatch.setattr(delivery, "LEAST_READ_BYTES", 1)
    monkeypatch.setattr(delivery, "READ_BYTES", 1)
    world = DurableWorld()
    alice, bob = world.client("alice"), world.client("bob")
    channel = alice.open("news")
    for number in range(60):
        alice.publish(channel, b"%d" % number)
    world.log.has_slow_reader = True
    bob.subscribe("news", "other", start=0)
    bob.subscribe("news", start=58)
    for _ in range(4):
        world.answer_one()
    assert b"59" in bob.payloads
    while world.log.questions:
        world.answer_one()
    assert len(bob.got) == 62


def catch_up(seed: int) -> dict[int, list[tuple[int, int]]]:
    """Return what each subscription of a client gets, by its number, see with_losses."""
    rng = random.Random(seed)
    world = DurableWorld(Settings(client_window_bytes=rng.choice((WINDOW, 8 * WINDOW))))
    alice, bob = world.client("alice"), world.client("bob")
    topics = [f"room/{number}" for number in range(6)]
    firsts = [0]
    for _ in range(120):
        payloads = [bytes(rng.randrange(1500)) for _ in range(rng.randrange(1, 4))]
        alice.publish(alice.open(rng.choice(topics)), *payloads)
        firsts.append(firsts[-1] + len(payloads))
    if rng.random() < 0.5:
        world.keeping.damaged = [(firsts[9], firsts[11]), (firsts[60], firsts[61])]
    if rng.random() < 0.5:
        world.server.broker.handle(world.keeping.thin("room/3", 60), world.now_us)
    filters = [[topic] for topic in topics] + [["#"], ["room/+"], ["room/1", "room/2"], ["none"], ["+/3", "*"]]
    bob.confirms_itself = False
    world.log.has_slow_reader = True
    for one in filters:
        bob.subscribe(*one, start=rng.choice(("earliest", rng.randrange(200))))
    for bob.confirms_itself in (False, True):
        world.run()
        while world.log.questions:
            world.answer_one()
            if rng.random() < 0.3:
                bob.confirm_all()
    alice.publish(alice.open("room/1"), b"the last one")
    return {number: with_losses(order) for number, order in bob.by_subscription.items()}


def with_losses(order: list[Got | c.Gap]) -> list[tuple[int, int]]:
    """Return each offset with the number of messages that were missed before it. Reports may come in several parts."""
    rows: list[tuple[int, int]] = []
    missed = 0
    for one in order:
        if isinstance(one, c.Gap):
            missed += one.count
        else:
            rows.append((one.offset, missed))
            missed = 0
    return [*rows, (-1, missed)]


@pytest.mark.parametrize("seed", range(20))
def test_a_shared_read_sends_what_a_read_for_each_subscription_sends(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "SHARED_OFFSETS", 0)
    alone = catch_up(seed)
    for offsets, matches, read_bytes in ((4096, 5000, 1 << 16), (4096, 30, 1 << 16), (50, 5000, 1000)):
        monkeypatch.setattr(delivery, "SHARED_OFFSETS", offsets)
        monkeypatch.setattr(delivery, "MATCHES_PER_TURN", matches)
        monkeypatch.setattr(delivery, "LEAST_READ_BYTES", read_bytes)
        assert catch_up(seed) == alone


# -- catching up ------------------------------------------------------------------------------------------------------


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
    assert told(reader(world, "news", name="bob")) == [c.Gap(count=3, next_offset=0, below=5), 6]
    assert told(reader(world, "other", name="carol")) == [1, 3, 5, 7]


def test_a_client_that_reconnects_is_told_what_retention_took_behind_its_position() -> None:
    """It asks for an offset at which nothing was for it, and all that was for it is behind that."""
    world, alice = a_log("")
    other, news = alice.open("other"), alice.open("news")
    alice.publish(news, b"x")
    bob = reader(world, "news", name="bob")
    alice.publish(news, b"x")
    alice.publish(other, b"x")
    assert offsets(bob) == [1]
    bob.leave()
    for _ in range(4):
        alice.publish(news, b"x")
    world.server.broker.handle(world.keeping.thin("news", 6), world.now_us)
    world.run()
    assert told(reader(world, "news", name="bob", start=2)) == [c.Gap(count=3, next_offset=3, below=6), 6]


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
