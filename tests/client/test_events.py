"""The events of a client: each can be told apart, compared and shown."""

from __future__ import annotations

from typing import get_args

from godwit.client.events import ClientEvent, Ended, Offline, Online
from godwit.wire.control_base import Code


def test_events_are_frozen_values() -> None:
    assert Offline(Code.TIMEOUT, "silence", 0.5) == Offline(6, "silence", 0.5)
    assert Online(True, "a") != Online(False, "a")
    assert "silence" in repr(Ended(Code.TIMEOUT, "silence"))
    assert all(event.__struct_config__.frozen for event in get_args(ClientEvent))


def test_every_event_says_what_it_is() -> None:
    assert all(event.__doc__ for event in get_args(ClientEvent))
