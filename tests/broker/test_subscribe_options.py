"""Options of native subscriptions (retained messages, no_local), inboxes, and wills with a delay and properties."""

from __future__ import annotations

import pytest
from tests.broker.durable import DurableWorld
from tests.broker.world import Peer, World

from godwit.wire import control as c
from godwit.wire.control_base import Code
from godwit.wire.extension import Properties, decode_properties, encode_properties

INBOX = "$reply/" + "0123456789abcdef" * 2


def retained_world() -> tuple[World, Peer]:
    world = World()
    alice = world.client("alice")
    alice.publish(alice.open("news"), b"kept", retain=True)
    alice.publish(alice.open("news"), b"logged")
    return world, alice


@pytest.mark.parametrize(
    ("handling", "first", "again"),
    [(None, 1, 0), ("if new", 1, 0), ("always", 1, 1), ("never", 0, 0)],
)
def test_when_retained_messages_are_sent(handling: c.RetainHandling | None, first: int, again: int) -> None:
    world, _ = retained_world()
    for expected in (first, again):
        bob = world.client("bob", session_expiry_s=1000)
        bob.subscribe("news", retain_handling=handling)
        assert [got.payload for got in bob.got if got.retain] == [b"kept"] * expected
        bob.die()


@pytest.mark.parametrize(("handling", "expected"), [(None, 0), ("if new", 1), ("always", 1), ("never", 0)])
def test_retained_messages_before_those_of_the_log(handling: c.RetainHandling | None, expected: int) -> None:
    world, _ = retained_world()
    bob = world.client("bob")
    bob.subscribe("news", start=1, retain_handling=handling)
    assert bob.payloads == [b"kept"] * expected + [b"logged"]
    carol = world.client("carol")
    carol.subscribe("news", start="earliest", retain_handling=handling)
    assert carol.payloads == [b"kept", b"logged"]  # it comes from the log


def test_the_repeat_of_a_broken_subscribe_gets_retained_messages() -> None:
    world, _ = retained_world()
    carol = world.client("carol", session_expiry_s=1000)
    carol.subscribe("news", retain_handling="if new")
    carol.die()
    again = world.client("carol", session_expiry_s=1000)
    again.subscribe("news", retain_handling="if new", retained=True)
    assert again.payloads == [b"kept"]


@pytest.mark.parametrize("qos", [0, 1])
def test_no_local_leaves_out_own_messages(qos: c.Qos) -> None:
    world = World()
    alice, bob = world.client("alice", session_expiry_s=1000), world.client("bob")
    bob.publish(bob.open("news", qos), b"of bob", qos=qos, sequence=0, retain=True)
    alice.publish(alice.open("mine", qos), b"kept", qos=qos, sequence=0, retain=True)
    alice.subscribe("#", no_local=True, number=1)
    assert alice.payloads == [b"of bob"]
    channel = alice.open("news", qos)
    record = alice.publish(channel, b"own", qos=qos, sequence=0)
    bob.publish(bob.open("news", qos), b"other", qos=qos, sequence=1)
    assert alice.payloads == [b"of bob", b"other"]
    if qos:
        assert alice.confirmed[channel] == (record, 0)
        alice.die()
        again = world.client("alice", session_expiry_s=1000)
        again.publish(again.open("news"), b"away")
        again.subscribe("#", no_local=True, start="earliest", number=1)
        assert again.payloads == [b"of bob", b"other"]
        assert again.gaps == []
        several = world.client("alice2")
        for number in range(3):
            several.subscribe("#", cursor=str(number), no_local=number == 1, start="earliest", number=number)


def test_an_inbox_ends_with_its_connection_and_is_not_stored() -> None:
    world = DurableWorld()
    alice, bob = world.client("alice", session_expiry_s=1000), world.client("bob")
    alice.subscribe("news", number=1)
    alice.subscribe(INBOX, number=2)
    channel = bob.open(INBOX)
    record = bob.publish(channel, b"reply")
    assert bob.confirmed[channel] == (record, 1)
    assert [(got.payload, got.live, got.qos) for got in alice.got] == [(b"reply", True, 1)]
    alice.loses_unreliable = True
    bob.publish(channel, b"again")
    assert alice.payloads == [b"reply", b"again"]  # a reply with QoS 1 is sent reliably
    alice.die()
    assert bob.refused_open(INBOX) == Code.NO_SUCH_TOPIC
    world.restart()
    carol = world.client("carol")
    assert carol.refused_open(INBOX) == Code.NO_SUCH_TOPIC
    carol.subscribe(INBOX)  # free again
    (session,) = [one for one in world.server.broker.sessions.values() if one.name == "alice"]
    assert [one.filters for one in session.subscriptions.values()] == [("news",)]


def test_a_native_will_has_a_delay_and_properties() -> None:
    world = World()
    extension = encode_properties(Properties(headers=(("site", "7"),), lifetime_us=60_000_000))
    will = c.Will(topic="state", payload=b"gone", retain=True, delay_s=10, extension=extension)
    bob = world.client("bob")
    bob.subscribe("state")
    alice = world.client("alice", session_expiry_s=1000, will=will)
    alice.die()
    world.pass_s(5)
    assert bob.got == []
    back = world.client("alice", session_expiry_s=1000, will=will)
    world.pass_s(20)
    assert bob.got == []  # it came back in time
    back.die()
    world.pass_s(11)
    assert bob.payloads == [b"gone"]
    found = decode_properties(bob.got[0].extension)
    assert (found.headers, found.lifetime_us) == ((("site", "7"),), 60_000_000)
    late = world.client("late")
    late.subscribe("state")
    assert decode_properties(late.got[0].extension).headers == (("site", "7"),)


def test_a_will_that_waits_outlives_a_restart() -> None:
    world = DurableWorld()
    extension = encode_properties(Properties(headers=(("site", "7"),)))
    will = c.Will(topic="state", payload=b"gone", delay_s=100, extension=extension)
    world.client("alice", session_expiry_s=1000, will=will).die()
    world.restart()
    bob = world.client("bob")
    bob.subscribe("state")
    world.pass_s(101)
    assert [decode_properties(got.extension).headers for got in bob.got] == [(("site", "7"),)]


def test_a_malformed_will_is_refused() -> None:
    world = World()
    peer = world.peer()
    will = c.Will(topic="state", payload=b"gone", extension=b"\xa1\x03\x05")
    login = c.Login(request=1, name="x", instance=bytes(16), will=will)
    error = peer.expect(login, c.Error)
    assert error.code == Code.MALFORMED
    assert "the will is not accepted" in error.text


def test_an_older_will_and_subscribe_have_the_same_bytes() -> None:
    """A peer of 0.5.0 sees none of the new fields unless they are used."""
    plain = c.encode_control(c.Subscribe(request=1, subscription=1, filters=["a"]))
    assert b"retain_handling" not in plain
    assert b"no_local" not in plain
    login = c.Login(request=1, instance=bytes(16), will=c.Will(topic="t", payload=b""))
    assert b"extension" not in c.encode_control(login)
    assert b"delay" not in c.encode_control(login)
