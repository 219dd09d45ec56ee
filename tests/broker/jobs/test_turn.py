"""What a turn brings: JSON that says no more than there is, by kind."""

from __future__ import annotations

import msgspec

from godwit.broker.jobs.model import Happening
from godwit.broker.jobs.turn import Turn


def test_what_happened_is_kept_by_kind_in_order() -> None:
    turn = Turn()
    events = [Happening("submitted", number, "carla", 5) for number in range(3)]
    for kind, event in zip(("cut", "paint", "cut"), events, strict=True):
        turn.tell(kind, event)
    assert turn.happened == {"cut": [events[0], events[2]], "paint": [events[1]]}


def test_an_event_says_only_what_applies() -> None:
    event = Happening("leased", 7, "carla", 5, 0, "anna", 1, waited_us=0)
    assert msgspec.json.decode(msgspec.json.encode(event)) == {
        "event": "leased", "job": 7, "controller": "carla", "at_us": 5, "task": 0, "worker": "anna", "fence": 1,
        "waited_us": 0,
    }  # fmt: skip
