"""What goes in and comes out: each kind is handled by the broker, or carried out by the server."""

from __future__ import annotations

from typing import get_args

from tests.broker.world import World

from godwit.broker.effects import BrokerEvent, Effect, Notice


def test_the_broker_knows_every_event_and_the_server_every_effect() -> None:
    world = World()
    assert set(world.server.broker._handlers) == set(get_args(BrokerEvent))
    assert set(world.server._apply) == set(get_args(Effect))


def test_a_notice_has_fields_of_its_own() -> None:
    assert Notice("a", "b").fields == {}
    assert Notice("a", "b").fields is not Notice("a", "b").fields
