"""What goes in and comes out: each kind is handled by the broker, or carried out by the server."""

from __future__ import annotations

from typing import get_args

from tests.broker.world import World

from godwit.broker.effects import Append, BrokerEvent, Imported, Locate, Notice, Read
from godwit.native import effects as native


def test_the_broker_knows_every_event_and_the_server_every_effect() -> None:
    world = World()
    assert set(world.server.broker._handlers) == set(get_args(BrokerEvent))
    own = {Append, Imported, Locate, Notice, Read}
    of_native = {kind for kind in vars(native).values() if getattr(kind, "__module__", "") == native.__name__}
    assert set(world.server._apply) == own | of_native


def test_a_notice_has_fields_of_its_own() -> None:
    assert Notice("a", "b").fields == {}
    assert Notice("a", "b").fields is not Notice("a", "b").fields
