"""Clients and a server that is killed and resumes from its log: no message is lost or repeated."""

from __future__ import annotations

import pytest
from tests.broker.durable import FULL, KeepingStore
from tests.client.test_with_server import Place, RealBroker, bodies

from godwit.client.config import ClientConfig
from godwit.client.events import Missed, Offline, Online, Refused
from godwit.client.message import Message
from godwit.client.subscription import Start
from godwit.server.direct_log import DirectLog
from godwit.wire.control import Done
from godwit.wire.control_base import Code


class DurableBroker(RealBroker):
    """One whose log and reset key outlive it."""

    def start(self) -> None:
        if not self.starts:
            self.keeping = KeepingStore()
        self.starts += 1
        self.run(DirectLog(self.keeping), reset_key=bytes(range(32)))


@pytest.mark.parametrize("seed", range(8))
def test_a_broker_that_was_killed_and_remembers(seed: int) -> None:
    """Nothing is lost, and what the application has had is not given to it again."""
    place = Place(seed, kind=DurableBroker)
    sender, user = place.user(ClientConfig(name="s")), place.user(ClientConfig(name="r"))
    subscription, nameless = place.subscribe(user, "t"), place.user()
    other = place.subscribe(nameless, "t")
    publisher = sender.client.publisher("t", qos=2)
    got: list[Message] = []
    got_by_other: list[Message] = []
    for round_ in range(20):
        for number in range(20):
            publisher.send(b"%d" % (20 * round_ + number), place.network.now_us)
        place.network.run(place.network.rng.choice([0.001, 0.006, 0.02]))
        got += subscription.take() or []
        got_by_other += other.take() or []
        if round_ % 4 == 0:
            place.broker.stop()
            place.network.run(place.network.rng.choice([0.0, 0.4]))
            place.broker.start()
            place.network.run(place.network.rng.choice([0.0, 0.4, 3]))
    place.network.run_until(lambda: publisher.is_idle)
    got += place.taken(user, subscription, 15)  # a pure subscriber detects it by its keep-alive
    got_by_other += place.taken(nameless, other, 5)
    assert bodies(got) == bodies(got_by_other) == [b"%d" % number for number in range(400)]
    assert user.all(Missed) == nameless.all(Missed) == []
    assert all(online.resumed for online in user.all(Online)[1:])


def test_a_killed_broker_is_noticed_at_once_and_knows_cursors_and_retained_messages() -> None:
    place = Place(kind=DurableBroker)
    sender, user = place.user(), place.user(ClientConfig(name="r"))
    subscription = place.subscribe(user, "t", cursor="mine")
    state = place.subscribe(user, "state")
    place.publish(sender, "t", *(b"%d" % number for number in range(10)))
    place.publish(sender, "state", b"on", retain=True)
    assert len(place.taken(user, subscription)) == 10
    assert bodies(place.taken(user, state)) == [b"on"]
    assert isinstance(place.ask(user, user.client.commit(subscription, 4)), Done)
    place.broker.stop()
    place.broker.start()
    place.network.run(12)  # a keep-alive finds out; the idle time-out would take 30 s
    (offline,) = user.all(Offline)
    assert offline.code == Code.RESET
    assert user.client.state == "online"
    assert place.taken(user, subscription) == place.taken(user, state) == []
    late = place.user()
    assert bodies(place.taken(late, place.subscribe(late, "state"))) == [b"on"]
    user.client.close(place.network.now)
    again = place.user(ClientConfig(name="r"))
    subscription = place.subscribe(again, "t", cursor="mine")
    assert bodies(place.taken(again, subscription)) == [b"%d" % number for number in range(4, 10)]


@pytest.mark.parametrize("start", [None, "latest"])
def test_retained_messages_come_although_the_broker_was_killed_before_its_reply(start: Start) -> None:
    """The subscription is stored and the client does not know it: the repeated request resumes it."""
    place = Place(kind=DurableBroker)
    sender, user = place.user(), place.user(ClientConfig(name="r"))
    place.publish(sender, "state", b"on", retain=True)
    user.until("online")
    broker = place.broker
    assert isinstance(broker, DurableBroker)
    place.network.lost = lambda source, target: target == user.address
    subscription = user.client.subscribe(["state"], start=start)
    place.network.run_until(lambda: bool(broker.keeping.of("feed")))
    broker.stop()
    place.network.lost = lambda source, target: False
    assert subscription.state == "asking"
    broker.start()
    assert bodies(place.taken(user, subscription, 20)) == [b"on"]
    assert user.all(Online)[-1].resumed


def test_a_full_disk_is_reported_to_publishers_and_later_messages_arrive() -> None:
    place = Place(kind=DurableBroker)
    sender, user = place.user(), place.user()
    subscription = place.subscribe(user, "t")
    broker = place.broker
    assert isinstance(broker, DurableBroker)
    broker.keeping.is_full = True
    publisher = sender.client.publisher("t", qos=2)
    publisher.send(b"lost", place.network.now_us)
    place.network.run(1)
    (refused,) = sender.all(Refused)
    assert (refused.code, refused.text, refused.first_sequence, refused.sequence) == (Code.STORAGE, FULL, 0, 1)
    broker.keeping.is_full = False
    publisher.send(b"kept", place.network.now_us)
    place.network.run_until(lambda: publisher.is_idle)
    assert bodies(place.taken(user, subscription)) == [b"kept"]
