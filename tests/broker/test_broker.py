"""The broker as a whole: events and effects, timers, figures, failures."""

from __future__ import annotations

import random
from typing import get_args

import pytest
from tests.broker.world import World

from godwit import limits
from godwit.broker.access import Access, Rule
from godwit.broker.effects import Append, BrokerEvent, Imported, Locate, Notice, Read
from godwit.broker.ports import RequestFailure
from godwit.broker.settings import Settings
from godwit.native import effects as native
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
    assert channel not in alice.confirmed  # no client is connected


def test_a_client_that_moves_is_listed_at_its_new_address() -> None:
    world = World()
    alice = world.client("alice")
    alice.peer_address = ("2001:db8::1", 5)
    world.feed(PathChanged(alice, alice.peer_address))
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


# -- effects ----------------------------------------------------------------------------------------------------------


def test_the_broker_knows_every_event_and_the_server_every_effect() -> None:
    world = World()
    assert set(world.server.broker._handlers) == set(get_args(BrokerEvent))
    own = {Append, Imported, Locate, Notice, Read}
    of_native = {kind for kind in vars(native).values() if getattr(kind, "__module__", "") == native.__name__}
    assert set(world.server._apply) == own | of_native


def test_a_notice_has_fields_of_its_own() -> None:
    assert Notice("a", "b").fields == {}
    assert Notice("a", "b").fields is not Notice("a", "b").fields


# -- failure ----------------------------------------------------------------------------------------------------------


def test_it_has_code_and_text() -> None:
    failure = RequestFailure(Code.BAD_TOPIC, "no")
    assert (failure.code, failure.text, str(failure)) == (Code.BAD_TOPIC, "no", "no")


# -- figures ----------------------------------------------------------------------------------------------------------


def test_figures_are_retained_and_come_as_they_change() -> None:
    world = World(Settings(sys_interval_s=5))
    world.pass_s(1)
    bob = world.client("bob")
    bob.subscribe("$sys/#")
    first = {got.topic: got.payload for got in bob.got}
    assert set(first) == {f"$sys/{name}" for name in world.server.broker.figures()}
    assert first["$sys/clients/connected"] == b"0"  # as of the last time
    assert all((got.retain, got.qos, got.publisher) == (True, 0, "$broker") for got in bob.got)
    bob.got.clear()
    world.pass_s(5)
    changed = {got.topic: got.payload for got in bob.got}
    assert changed["$sys/clients/connected"] == b"1"
    assert changed["$sys/uptime_s"] == b"5"
    assert "$sys/messages/in" not in changed
    assert not any(got.retain for got in bob.got)


def test_they_are_not_in_the_log_and_no_wildcard_sees_them() -> None:
    world = World()
    bob = world.client("bob")
    bob.subscribe("#")
    bob.subscribe("+/uptime_s")
    world.pass_s(3 * limits.SYS_INTERVAL_S)
    assert bob.got == []
    assert world.store.next_offset == 0


def test_the_figures_count() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob", session_expiry_s=10)
    bob.subscribe("news")
    alice.publish(alice.open("news"), b"1", b"2", retain=True)
    bob.die()
    figures = world.server.broker.figures()
    assert figures["clients/connected"] == 1
    assert figures["clients/sessions"] == 2
    assert figures["subscriptions"] == 1
    assert figures["messages/in"] == figures["messages/out"] == figures["log/next_offset"] == 2
    assert int(figures["bytes/in"]) > 2
