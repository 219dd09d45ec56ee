"""Messages that expire: delivered to no subscriber from then on, live, late or retained."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.durable import DurableWorld
from tests.broker.world import Peer, World

from godwit.broker.settings import Settings
from godwit.wire import control as c
from godwit.wire.control_base import Code
from godwit.wire.extension import Properties, decode_properties, encode_properties


def expiring(lifetime_s: float, **more: object) -> bytes:
    return encode_properties(Properties(lifetime_us=int(lifetime_s * 1e6), **more))  # type: ignore[arg-type]


def remaining_s(peer: Peer) -> list[float | None]:
    found = [decode_properties(got.extension).lifetime_us for got in peer.got]
    return [None if one is None else one / 1e6 for one in found]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_live_message_carries_its_lifetime(qos: c.Qos) -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("news")
    channel = alice.open("news", qos)
    alice.publish(channel, b"x", b"y", qos=qos, sequence=0, extension=expiring(60, headers=(("a", "b"),)))
    assert bob.payloads == [b"x", b"y"]
    assert remaining_s(bob) == [60, 60]
    assert decode_properties(bob.got[0].extension).headers == (("a", "b"),)


@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_that_is_expired_on_arrival_reaches_nobody(qos: c.Qos) -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("news")
    channel = alice.open("news", qos)
    record = alice.publish(channel, b"x", qos=qos, sequence=0, extension=expiring(0))
    if qos:
        assert alice.confirmed[channel] == (record, 0)
    assert bob.got == []
    alice.publish(channel, b"y", qos=qos, sequence=1)
    assert bob.payloads == [b"y"]
    assert bob.gaps == []


def test_a_late_subscriber_gets_what_has_not_expired() -> None:
    world = World()
    alice = world.client("alice")
    channel = alice.open("news")
    alice.publish(channel, b"short", extension=expiring(10))
    alice.publish(channel, b"plain")
    alice.publish(channel, b"long", extension=expiring(100))
    world.pass_s(30)
    bob = world.client("bob")
    bob.subscribe("news", start="earliest")
    assert bob.payloads == [b"plain", b"long"]
    assert [got.offset for got in bob.got] == [1, 2]
    assert remaining_s(bob)[0] is None
    assert remaining_s(bob)[1] == pytest.approx(70, abs=1)
    assert bob.gaps == []


def test_several_subscriptions_of_a_client_that_share_a_read() -> None:
    world = World()
    alice = world.client("alice")
    bob = world.client("bob", session_expiry_s=1000)
    for number in range(3):
        bob.subscribe("news", cursor=str(number), number=number)
    world.run()
    bob.die()
    channel = alice.open("news")
    for number in range(20):
        alice.publish(channel, b"%d" % number, extension=expiring(10 if number % 2 else 100))
    world.pass_s(30)
    again = world.client("bob", session_expiry_s=1000)
    for number in range(3):
        again.subscribe("news", cursor=str(number), number=number)
    world.run()
    for number in range(3):
        payloads = [one.payload for one in again.by_subscription[number] if not isinstance(one, c.Gap)]
        assert payloads == [b"%d" % number for number in range(0, 20, 2)]
    assert again.gaps == []


def test_a_session_continues_behind_an_expired_message() -> None:
    world = World(Settings(client_window_bytes=64 * 1024))
    alice, bob = world.client("alice"), world.client("bob", session_expiry_s=1000)
    bob.subscribe("news", number=1)
    channel = alice.open("news")
    bob.die()
    alice.publish(channel, b"gone", extension=expiring(5))
    world.pass_s(10)
    again = world.client("bob", session_expiry_s=1000)
    again.subscribe("news", number=1)
    alice.publish(channel, b"next")
    assert again.payloads == [b"next"]
    assert again.gaps == []


@pytest.mark.parametrize("qos", [0, 1])
def test_a_retained_message_expires(qos: c.Qos) -> None:
    world = World()
    alice = world.client("alice")
    channel = alice.open("news", qos)
    alice.publish(channel, b"x", qos=qos, sequence=0, retain=True, extension=expiring(60))
    world.pass_s(20)
    early = world.client("early")
    early.subscribe("news")
    assert early.payloads == [b"x"]
    assert remaining_s(early)[0] == pytest.approx(40, abs=1)
    world.pass_s(41)
    late = world.client("late")
    late.subscribe("news")
    assert late.got == []
    (topic,) = late.expect(c.Topics(request=99), c.TopicList).topics
    assert not topic.retained


def test_a_replaced_retained_message_is_not_cleared_with_the_expired_one() -> None:
    world = World()
    alice = world.client("alice")
    channel = alice.open("news")
    alice.publish(channel, b"old", retain=True, extension=expiring(10))
    alice.publish(channel, b"new", retain=True)
    world.pass_s(20)
    bob = world.client("bob")
    bob.subscribe("news")
    assert bob.payloads == [b"new"]


def test_many_updates_of_a_retained_message_leave_few_times_behind() -> None:
    world = World()
    alice = world.client("alice")
    channel = alice.open("news")
    for number in range(5000):
        alice.publish(channel, b"%d" % number, retain=True, extension=expiring(10_000 + number))
    catalogue = world.server.broker._catalogue
    assert len(catalogue._expiring) <= 1003
    world.pass_s(10_000 + 4999)
    assert world.client("early").subscribe("news").is_new
    world.pass_s(2)
    bob = world.client("bob")
    bob.subscribe("news")
    assert bob.got == []
    assert catalogue._expiring == []


def test_an_expired_retained_message_does_not_come_back_after_a_restart() -> None:
    world = DurableWorld()
    alice = world.client("alice")
    alice.publish(alice.open("short"), b"x", retain=True, extension=expiring(10))
    alice.publish(alice.open("long"), b"y", retain=True, extension=expiring(1000))
    world.pass_s(5)
    world.restart()
    world.pass_s(20)
    bob = world.client("bob")
    bob.subscribe("#")
    assert bob.payloads == [b"y"]
    world.restart()
    again = world.client("again")
    again.subscribe("#")
    assert again.payloads == [b"y"]
    late = world.client("late")
    late.subscribe("#", start="earliest")
    assert late.payloads == [b"y"]  # the log has both


@pytest.mark.parametrize(
    ("extension", "more", "problem"),
    [
        (bytes.fromhex("a1000a"), {}, "EXPIRY must be the first key"),
        (bytes.fromhex("a102816161"), {}, "headers: not a list of names and values"),
        (bytes.fromhex("a10305"), {}, "the content type is not a text"),
        (expiring(5), {"deltas_us": (0, 1)}, "EXPIRY in a batch whose messages have times of their own"),
    ],
)
def test_malformed_properties_are_refused(extension: bytes, more: dict[str, Any], problem: str) -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("news")
    channel = alice.open("news")
    alice.publish(channel, b"x", b"y", extension=extension, **more)
    refused = alice.last(c.PublishRefused)
    assert (refused.channel, refused.code) == (channel, Code.MALFORMED)
    assert problem in refused.text
    assert bob.got == []
