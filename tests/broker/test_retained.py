"""Retained messages: the last one with the flag is kept for those who come later."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.world import Peer, World

from godwit.broker.catalogue import RetainedMessage
from godwit.broker.entries import last_message
from godwit.broker.settings import Settings
from godwit.limits import KIB
from godwit.wire import control as c
from godwit.wire.batch import Batch, decode_head, encode_batch
from godwit.wire.control import Code
from godwit.wire.entry import Entry


def entry_of(batch: Batch) -> Entry:
    record = encode_batch(batch)
    head = decode_head(record)
    return Entry("t", "p", head.flags, head.published_us, 9, None, 0, head.count, record[head.rest_at :])


@pytest.mark.parametrize(
    ("batch", "last"),
    [
        (Batch([b"only"], 5), (b"only", 5)),
        (Batch([b"only"], 5, extension=b"xyz"), (b"only", 5)),
        (Batch([b"first", b"last"], 5), (b"last", 5)),
        (Batch([b"first", b"last"], 5, deltas_us=(1, 20)), (b"last", 25)),
        (Batch([b"first", b"last"], 5, deltas_us=(1, 20), extension=b""), (b"last", 25)),
        (Batch([b"first", b""], 5), (b"", 5)),
        (Batch([b""], 5), (b"", 5)),
    ],
)
def test_the_last_message_of_a_batch(batch: Batch, last: tuple[bytes, int]) -> None:
    assert last_message(entry_of(batch)) == last


def test_an_empty_one_is_not_kept() -> None:
    assert RetainedMessage.of(entry_of(Batch([b"x", b""], 5)), 3, 1) is None
    kept = RetainedMessage.of(entry_of(Batch([b"x"], 5)), 3, 1)
    assert kept is not None
    assert (kept.payload, kept.offset, kept.qos) == (b"x", 3, 1)


# -- through the broker -----------------------------------------------------------------------------------------------


def publish(peer: Peer, topic: str, *payloads: bytes, qos: c.Qos = 1) -> None:
    sequence = 0 if qos == 2 else None
    peer.publish(peer.open(topic, qos), *payloads, qos=qos, retain=True, sequence=sequence)


def kept_for(world: World, *filters: str, **fields: Any) -> list[tuple[str, bytes]]:
    """What a newcomer gets at once."""
    peer = world.client()
    peer.subscribe(*filters, **fields)
    assert all(got.retain for got in peer.got)
    assert not any(got.live for got in peer.got)
    peer.leave()
    return sorted((got.topic, got.payload) for got in peer.got)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_newcomer_gets_the_last_message_with_the_flag(qos: c.Qos) -> None:
    world = World()
    alice = world.client("alice")
    publish(alice, "door", b"open", qos=qos)
    publish(alice, "door", b"ajar", b"closed", qos=qos) if qos < 2 else None
    alice.publish(alice.open("door"), b"not retained")
    bob = world.client("bob")
    bob.subscribe("door")
    (got,) = bob.got
    assert (got.payload, got.publisher, got.qos, got.retain) == (b"closed" if qos < 2 else b"open", "alice", qos, True)
    assert got.offset == {0: 0, 1: 2, 2: 0}[qos]


def test_also_by_wildcards_and_each_once() -> None:
    world = World()
    alice = world.client("alice")
    for room in ("1", "2"):
        publish(alice, f"home/{room}/light", b"on")
    publish(alice, "home/light", b"off")
    both = [("home/1/light", b"on"), ("home/2/light", b"on")]
    assert kept_for(world, "home/+/light") == both
    assert kept_for(world, "home/*/light", "home/1/#") == both
    assert kept_for(world, "#") == sorted([*both, ("home/light", b"off")])
    assert kept_for(world, "home/3/light") == []


def test_those_who_are_there_see_no_flag() -> None:
    world = World()
    bob = world.client("bob")
    bob.subscribe("door")
    publish(world.client("alice"), "door", b"open")
    assert [(got.payload, got.retain) for got in bob.got] == [(b"open", False)]


def test_an_empty_message_clears_it_and_is_delivered() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    publish(alice, "door", b"open")
    bob.subscribe("door")
    publish(alice, "door", b"")
    assert [(got.payload, got.retain) for got in bob.got] == [(b"open", True), (b"", False)]
    assert kept_for(world, "door") == []
    publish(alice, "door", b"shut")
    assert kept_for(world, "door") == [("door", b"shut")]


def test_only_a_subscription_that_begins_at_the_end_gets_them() -> None:
    world = World()
    alice = world.client("alice")
    publish(alice, "door", b"open")
    assert kept_for(world, "door", start="latest") == [("door", b"open")]
    for start in ({"start": "earliest"}, {"start": 0}, {"since_us": 0}):
        peer = world.client()
        peer.subscribe("door", **start)
        assert [(got.payload, got.retain) for got in peer.got] == [(b"open", False)], start
        peer.leave()


def test_a_resumed_subscription_does_not_get_them_again() -> None:
    world = World()
    publish(world.client("alice"), "door", b"open")
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("door")
    assert len(bob.got) == 1
    bob.die()
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("door")
    assert bob.got == []


def test_a_resumed_subscription_can_ask_for_them() -> None:
    """Its connection broke before they had all come."""
    world = World()
    publish(world.client("alice"), "door", b"open")
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("door")
    bob.die()
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("door", start=1, retained=True)
    assert [(got.payload, got.retain) for got in bob.got] == [(b"open", True)]


def test_very_many_come_as_the_client_takes_them() -> None:
    world = World(Settings(client_window_bytes=64 * KIB))
    alice = world.client("alice")
    for number in range(100):
        publish(alice, f"room/{number}", bytes(4 * KIB))
    bob = world.client("bob")
    bob.confirms_itself = False
    bob.subscribe("room/#")
    assert len(bob.got) < 20
    bob.confirms_itself = True
    world.run()
    assert sorted(got.topic for got in bob.got) == sorted(f"room/{number}" for number in range(100))
    alice.publish(alice.open("room/1"), b"new")
    assert bob.payloads[-1] == b"new"


def test_a_message_that_replaces_it_meanwhile_is_not_told_twice() -> None:
    world = World(Settings(client_window_bytes=64 * KIB))
    alice = world.client("alice")
    for number in range(60):
        publish(alice, f"room/{number:02}", bytes(4 * KIB))
    bob = world.client("bob")
    bob.confirms_itself = False
    bob.subscribe("room/#")
    for number in range(60):
        publish(alice, f"room/{number:02}", b"new %02d" % number)
    bob.confirms_itself = True
    world.run()
    news = [got for got in bob.got if got.payload.startswith(b"new")]
    assert [got.payload for got in news] == [b"new %02d" % number for number in range(60)]
    assert not any(got.retain for got in news)


def test_a_live_message_that_replaces_it_meanwhile_is_not_told_twice() -> None:
    world = World(Settings(client_window_bytes=64 * KIB))
    alice = world.client("alice")
    for number in range(60):
        publish(alice, f"room/{number:02}", bytes(4 * KIB))
    bob = world.client("bob")
    bob.confirms_itself = False
    bob.subscribe("room/#")
    for number in range(60):
        publish(alice, f"room/{number:02}", b"new %02d" % number, qos=0)
    bob.confirms_itself = True
    world.run()
    news = [got.payload for got in bob.got if got.payload.startswith(b"new")]
    assert sorted(news) == [b"new %02d" % number for number in range(60)]


def test_all_retained_messages_together_are_bounded() -> None:
    world = World(Settings(max_retained_bytes=2000))
    alice = world.client("alice")
    first = alice.open("a")
    alice.publish(first, bytes(1000), retain=True)
    alice.publish(first, bytes(1500), retain=True)  # takes the place of the former
    second = alice.open("b")
    alice.publish(second, bytes(1000), retain=True)
    assert alice.last(c.Refused).code == Code.TOO_MANY
    unkept = alice.open("c", qos=0)
    alice.publish(unkept, bytes(1000), qos=0, retain=True)
    bob = world.client("bob")
    bob.subscribe("#")
    assert [(got.topic, len(got.payload)) for got in bob.got] == [("a", 1500)]
    alice.publish(first, b"", retain=True)
    third = alice.open("d")
    alice.publish(third, bytes(1000), retain=True)
    carol = world.client("carol")
    carol.subscribe("#")
    assert [(got.topic, len(got.payload)) for got in carol.got] == [("d", 1000)]
