"""The persons of the broker world: lives, what they publish and resend, and what they take for a violation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.sim.worlds.broker_scene import PLAN, client, messages, run

from godwit.client import events as told
from godwit.sim.checkers import ViolationError
from godwit.sim.trace import Trace
from godwit.sim.worlds.broker import BrokerWorld
from godwit.sim.worlds.broker_ends import Person
from godwit.sim.worlds.broker_plan import Fault


def begun() -> tuple[BrokerWorld, Person]:
    """The sender of the quiet plan, half a second after the start."""
    world = BrokerWorld(PLAN, Trace())
    world.start()
    world.network.run(0.5)
    return world, world.persons[0]


def test_a_life_begins_and_ends() -> None:
    world, person = begun()
    first = person.client
    assert (person.label, person.whole, person.is_online) == ("c0.1", "c0", True)
    person.begin()
    assert person.client is first, "it runs already"
    person.die()
    assert (person.client, person.host.alive, person.is_online) == (None, False, False)
    person.die()
    person.begin()
    assert person.label == "c0.2"
    assert person.client is not None
    assert first is not None
    assert person.client.instance != first.instance
    world.network.run(5.0)
    assert person.is_online


def test_a_close_says_goodbye_once() -> None:
    world, person = begun()
    person.close()
    person.close()
    world.network.run(1.0)
    assert person.is_closing
    assert person.client is not None
    assert person.client.state == "closed"
    assert [seat.name for seat in world.books.roster.seats if seat.closed is not None] == ["sender"]


def test_who_remembers_sends_again_what_was_not_confirmed() -> None:
    sender = client("sender", publications=tuple(messages("home/b", 2)), remembers=True)
    faults = (Fault(0.5025, "partition", 0, 0.3), Fault(0.52, "client_dies", 0, 0.4))
    world = run(replace(PLAN, clients=(sender, *PLAN.clients[1:]), faults=faults))
    places = [one.place for one in world.books.log.messages if one.topic == "home/b"]
    assert places == list(range(21))


def test_who_does_not_remember_loses_what_was_not_confirmed() -> None:
    sender = client("sender", publications=tuple(messages("home/b", 1)))
    faults = (Fault(0.4975, "partition", 0, 0.3), Fault(0.52, "client_dies", 0, 0.4))
    world = run(replace(PLAN, clients=(sender, *PLAN.clients[1:]), faults=faults))
    lost = [one for one in world.books.ledger.publications if not one.offsets]
    assert [one.confirmed_s for one in lost] == [None]


def test_who_has_no_room_waits_for_it() -> None:
    sender = client("sender", publications=tuple(messages("home/b", 1, 40, 900)), send_buffer_bytes=4096)
    world = run(replace(PLAN, clients=(sender, *PLAN.clients[1:])))
    assert world.persons[0].unconfirmed == 0
    assert len(world.books.log.messages) == 41


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        (lambda publisher: told.Confirmed(publisher, 0, 0), "brings nothing new"),
        (lambda publisher: told.Confirmed(publisher, 10**6, 0), "(not in the log|reached)"),
        (lambda publisher: told.Refused(publisher, 102, "no", 0, 1), "refused"),
        (lambda publisher: told.Ended(111, "kicked"), "ended with code 111"),
        (lambda publisher: told.Online(False, "somebody else"), "welcomed as 'somebody else'"),
        (lambda publisher: told.Online(True, "sender"), "resumed=True, it should be False"),
    ],
)
def test_what_must_not_be_told(event: Any, complaint: str) -> None:
    _, person = begun()
    person.work()
    publisher = next(publisher for publisher in person._unconfirmed if publisher.qos)
    person._publish(messages(publisher.topic, publisher.qos, 1)[0])
    with pytest.raises(ViolationError, match=complaint):
        person._on_events([event(publisher)], 0.5)
