"""The broker's own figures on `$sys`."""

from __future__ import annotations

from tests.broker.world import World

from godwit import limits
from godwit.broker.settings import Settings


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
