"""The broker as a whole: connections come and go, rules change, hostile records stay without effect on others."""

from __future__ import annotations

import random

import pytest
from tests.broker.world import World

from godwit.broker.access import Access, Rule
from godwit.broker.settings import Settings
from godwit.transport.events import PathChanged
from godwit.wire import control as c
from godwit.wire.batch import Batch, encode_batch
from godwit.wire.control import encode_control
from godwit.wire.control_base import Code

SECRET = b"correct horse battery staple"


def test_events_of_a_connection_that_is_gone_are_ignored() -> None:
    world = World()
    alice = world.client("alice")
    channel = alice.open("news")
    alice.die()
    alice.record(channel, encode_batch(Batch([b"late"], 0)))
    alice.say(c.Ping(request=1))
    world.run()
    assert world.store.next_offset == 0


def test_what_was_received_before_the_end_is_kept() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("news")
    channel = alice.open("news")
    alice.record(channel, encode_batch(Batch([b"last words"], 0)))
    alice.die()
    assert bob.payloads == [b"last words"]
    assert channel not in alice.confirmed  # nobody is there to hear it


def test_a_client_that_moves_is_listed_at_its_new_address() -> None:
    world = World()
    alice = world.client("alice")
    alice.peer_address = ("2001:db8::1", 5)
    world.feed(PathChanged(alice, alice.peer_address))  # type: ignore[arg-type]
    (info,) = alice.expect(c.Clients(request=50), c.ClientList).clients
    assert info.address == "[2001:db8::1]:5"


def test_new_rules_close_those_who_may_not_be_here_any_more() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    rule = Rule(clients=("*",), allow=frozenset({"publish"}), topics=("#",))
    world.server.change_settings(Settings(access=Access(secrets={"alice": SECRET}, rules=(rule,))))
    world.run()
    assert alice.end == Code.NOT_ALLOWED  # her name has a secret now
    assert bob.closed is None
    world.server.change_settings(Settings(access=Access(secrets={"alice": SECRET}, allows_anonymous=False)))
    world.run()
    assert bob.end == Code.NOT_ALLOWED


@pytest.mark.parametrize("seed", range(10))
def test_random_records_hurt_only_their_sender(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    good, bad = world.client("good"), world.client("bad")
    good.subscribe("#")
    channel = good.open("news")
    for number in range(100):
        if bad.closed is not None:
            bad = world.client(f"bad-{seed}-{number}")
        body = bytearray(
            rng.choice(
                (
                    encode_control(c.PublishOpen(topic="bad")),
                    encode_control(c.Subscribe(request=1, subscription=number, filters=["x"])),
                    encode_batch(Batch([b"bad", b"worse"], 5)),
                    rng.randbytes(30),
                )
            )
        )
        if rng.random() < 0.5:
            body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        target = rng.choice((0, 1, 2, 3))
        bad.record(target, bytes(body), reliable=rng.random() < 0.8, last=rng.random() < 0.1)
        good.publish(channel, b"%d" % number)
    assert good.closed is None
    assert [got.payload for got in good.got if got.topic == "news"] == [b"%d" % number for number in range(100)]
