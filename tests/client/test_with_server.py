"""Clients and the real server in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.client.world import BROKER, Network, User

from godwit.broker.access import Access
from godwit.broker.settings import Settings
from godwit.client.config import ClientConfig
from godwit.client.events import (
    Ended,
    Missed,
    Offline,
    Online,
    Refused,
    Reply,
    SubscriptionEnded,
    SubscriptionStarted,
)
from godwit.client.message import Message
from godwit.client.subscription import Start, Subscription
from godwit.limits import MIB
from godwit.server.direct_log import DirectLog
from godwit.server.memory_log import MemoryLog
from godwit.server.server import Listener, Server, endpoint_config
from godwit.store.memory import MemoryStore
from godwit.transport.events import Address, Train
from godwit.wire.control import (
    ClientList,
    Clients,
    Create,
    Done,
    Error,
    Kick,
    Ping,
    Pong,
    Progressed,
    ProgressQuery,
    TopicList,
    Topics,
    Will,
)
from godwit.wire.control_base import Code


class RealBroker:
    """A server on the network of the tests."""

    def __init__(self, network: Network, settings: Settings | None = None) -> None:
        self.network = network
        self.settings = settings or Settings()
        self.starts = 0
        self.start()

    def start(self) -> None:
        """A new process with an empty log."""
        self.starts += 1
        self.store = MemoryStore(self.settings.ring_bytes, log_id=b"log %d" % self.starts)
        self.run(MemoryLog(self.store))

    def run(self, log: DirectLog, reset_key: bytes = b"") -> None:
        network = self.network
        self.server = Server(
            self.settings, log, entropy=network.rng.randbytes, now=network.now, epoch_us=network.now_us
        )
        config = endpoint_config(self.settings, receive_buffer_bytes=1 << 20)
        self.listener: Listener = self.server.listen(replace(config, reset_key=reset_key))
        network.nodes[BROKER] = self

    def stop(self) -> None:
        del self.network.nodes[BROKER]

    def receive(self, train: Train, now: float) -> None:
        self.listener.receive(train, now)
        self.listener.events()

    def handle_timers(self, now: float) -> None:
        self.listener.handle_timers(now)
        self.listener.events()

    def next_train(self, now: float) -> Train | None:
        return self.listener.next_train(now)

    def next_timer(self) -> float | None:
        return self.listener.next_timer()

    def drop_connections(self) -> None:
        for connection in list(self.listener.endpoint.connections.values()):
            connection.close(self.network.now, Code.SHUTDOWN, "a test")


class Place:
    """A network with a real broker, and clients."""

    def __init__(self, seed: int = 1, settings: Settings | None = None, *, kind: type[RealBroker] = RealBroker) -> None:
        self.network = Network(seed)
        self.broker = kind(self.network, settings)
        self._users = 0

    def user(self, config: ClientConfig | None = None, *, online: bool = True) -> User:
        self._users += 1
        user = User(self.network, config, number=self._users)
        if online:
            user.until("online")
        return user

    def subscribe(self, user: User, *filters: str, start: Start = None, cursor: str | None = None) -> Subscription:
        subscription = user.client.subscribe(filters, start=start, cursor=cursor)
        self.network.run_until(lambda: subscription.state != "asking")
        return subscription

    def publish(self, user: User, topic: str, *payloads: bytes, qos: int = 1, retain: bool = False) -> None:
        publisher = user.client.publisher(topic, qos=qos)
        for payload in payloads:
            publisher.send(payload, self.network.now_us, retain)
        self.network.run_until(lambda: publisher.is_idle)

    def taken(self, user: User, subscription: Subscription, seconds: float = 1.0) -> list[Message]:
        self.network.run(seconds)
        return user.take_all(subscription)

    def ask(self, user: User, request: int) -> object:
        self.network.run(1)
        (reply,) = [reply for reply in user.all(Reply) if reply.request == request]
        return reply.message


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.payload for message in messages]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_from_a_publisher_to_subscribers(qos: int) -> None:
    place = Place()
    sender, one, other = place.user(ClientConfig(name="sensor-1")), place.user(), place.user()
    first, second = place.subscribe(one, "home/+/temperature"), place.subscribe(other, "#", "home/room1/temperature")
    payloads = [b"%d" % number for number in range(3000)]
    place.publish(sender, "home/room1/temperature", *payloads, qos=qos)
    for user, subscription in ((one, first), (other, second)):
        messages = place.taken(user, subscription)
        assert bodies(messages) == payloads
        assert {(message.topic, message.publisher, message.qos, message.retained) for message in messages} == {
            ("home/room1/temperature", "sensor-1", qos, False)
        }
        offsets = [message.offset for message in messages]
        assert offsets == ([None] * 3000 if qos == 0 else list(range(3000)))
    publisher = sender.client.publisher("home/room1/temperature", qos=qos)
    assert publisher.reached == (2 if qos else 0)
    place.network.run(30)
    assert place.broker.server.buffered_bytes < 1000


def test_retained_messages_come_to_new_subscriptions() -> None:
    place = Place()
    sender, user = place.user(), place.user()
    place.publish(sender, "a/1", b"old", b"new", retain=True)
    place.publish(sender, "a/2", b"live", qos=0, retain=True)
    subscription = place.subscribe(user, "a/#")
    messages = place.taken(user, subscription)
    assert {(message.topic, message.payload, message.retained) for message in messages} == {
        ("a/1", b"new", True),
        ("a/2", b"live", True),
    }
    place.publish(sender, "a/1", b"newer", retain=True)
    (message,) = place.taken(user, subscription)
    assert (message.payload, message.retained) == (b"newer", False)


def test_retained_messages_survive_a_break_before_they_came() -> None:
    place = Place()
    sender, user = place.user(), place.user()
    place.publish(sender, "a", b"kept", retain=True)
    subscription = user.client.subscribe(["a"])
    place.network.run_until(lambda: subscription.state == "active" or bool(subscription.held_bytes))
    is_cut = [True]
    place.network.lost = lambda source, target: is_cut[0] and user.address in (source, target)
    place.broker.drop_connections()
    place.network.run(40)
    is_cut[0] = False
    user.until("online", 15)
    assert bodies(place.taken(user, subscription)) == [b"kept"]


def test_history_runs_into_live_without_gap_or_repeat() -> None:
    place = Place()
    sender, user = place.user(), place.user()
    place.publish(sender, "t", *(b"%d" % number for number in range(500)))
    subscription = place.subscribe(user, "t", start="earliest")
    place.publish(sender, "t", *(b"%d" % number for number in range(500, 1000)))
    assert bodies(place.taken(user, subscription)) == [b"%d" % number for number in range(1000)]
    late = place.subscribe(user, "t", "u", start=998)
    assert bodies(place.taken(user, late)) == [b"998", b"999"]


def test_nothing_is_lost_or_repeated_over_reconnects() -> None:
    place = Place()
    sender, user = place.user(ClientConfig(name="s")), place.user(ClientConfig(name="r"))
    subscription = place.subscribe(user, "t")
    publisher = sender.client.publisher("t", qos=2)
    got: list[Message] = []
    for round_ in range(30):
        for number in range(20):
            publisher.send(b"%d" % (20 * round_ + number), place.network.now_us)
        place.network.run(place.network.rng.choice([0.001, 0.006, 0.02]))
        got += subscription.take() or []
        if round_ % 3 == 0:
            place.broker.drop_connections()
            place.network.run(place.network.rng.choice([0.0, 0.4]))
    place.network.run_until(lambda: publisher.is_idle)
    got += place.taken(user, subscription, 5)
    assert bodies(got) == [b"%d" % number for number in range(600)]
    assert user.all(Missed) == []
    assert all(online.resumed for online in user.all(Online)[1:])


def test_a_broker_that_lost_its_memory() -> None:
    place = Place()
    sender, user = place.user(), place.user()
    subscription = place.subscribe(user, "t")
    place.publish(sender, "t", *(b"%d" % number for number in range(100)))
    assert len(place.taken(user, subscription)) == 100
    place.broker.stop()
    place.network.run(1)
    place.broker.start()
    sender.until("online", 15)
    place.publish(sender, "t", b"first of the new log")
    user.until("online", 15)
    assert bodies(place.taken(user, subscription)) == [b"first of the new log"]
    (missed,) = user.all(Missed)
    assert missed.count is None
    place.publish(sender, "t", b"second")
    assert bodies(place.taken(user, subscription)) == [b"second"]


def test_a_subscriber_away_too_long_gets_the_number_of_lost_messages() -> None:
    place = Place(settings=Settings(ring_bytes=64 * 1024, hold_back_s=0))
    sender, user = place.user(), place.user(ClientConfig(name="r"))
    subscription = place.subscribe(user, "t")
    lost = [True]
    place.network.lost = lambda source, target: lost[0] and user.address in (source, target)
    for number in range(300):
        place.publish(sender, "t", b"%d " % number + bytes(990))
    place.network.run(40)
    lost[0] = False
    user.until("online", 15)
    messages = place.taken(user, subscription, 5)
    assert messages[-1].payload.startswith(b"299 ")
    assert subscription.missed + len(messages) == 300
    assert subscription.missed > 200


def test_a_named_cursor_moves_by_commits() -> None:
    place = Place()
    sender = place.user()
    reader = place.user(ClientConfig(name="r"))
    subscription = place.subscribe(reader, "t", cursor="mine")
    place.publish(sender, "t", *(b"%d" % number for number in range(10)))
    assert len(place.taken(reader, subscription)) == 10
    assert place.ask(reader, reader.client.commit(subscription, 4)) == Done(request=reader.all(Reply)[-1].request)
    reader.client.close(place.network.now)
    place.network.run(1)
    again = place.user(ClientConfig(name="r"))
    subscription = place.subscribe(again, "t", cursor="mine")
    assert bodies(place.taken(again, subscription)) == [b"%d" % number for number in range(4, 10)]
    request = again.client.unsubscribe(subscription, keep=True)
    assert place.ask(again, request) == Done(request=request)
    subscription = place.subscribe(again, "t", cursor="mine")
    assert len(place.taken(again, subscription)) == 6


def test_requests() -> None:
    place = Place()
    user, other = place.user(ClientConfig(name="admin")), place.user(ClientConfig(name="victim"))
    client = user.client
    created = place.ask(user, client.request(lambda number: Create(request=number, topic="new")))
    assert isinstance(created, Done)
    again = place.ask(user, client.request(lambda number: Create(request=number, topic="new")))
    assert isinstance(again, Error)
    assert again.code == Code.TOPIC_EXISTS
    listed = place.ask(user, client.request(lambda number: Topics(request=number)))
    assert isinstance(listed, TopicList)
    assert "new" in [topic.name for topic in listed.topics]
    clients = place.ask(user, client.request(lambda number: Clients(request=number)))
    assert isinstance(clients, ClientList)
    assert {one.name for one in clients.clients} == {"admin", "victim"}
    assert isinstance(place.ask(user, client.request(lambda number: Ping(request=number))), Pong)
    subscription = place.subscribe(other, "t")
    kick = client.request(lambda number: Kick(request=number, client="victim", filters=["t"], reason="enough"))
    assert isinstance(place.ask(user, kick), Done)
    (ended,) = other.all(SubscriptionEnded)
    assert (ended.subscription, ended.code) == (subscription, Code.KICKED)
    assert "enough" in ended.text
    place.ask(user, client.request(lambda number: Kick(request=number, client="victim")))
    other.until("closed")
    assert other.all(Ended)[0].code == Code.KICKED


def test_progress_of_a_publisher_across_its_runs() -> None:
    place = Place()
    first = place.user(ClientConfig(name="p"))
    publisher = first.client.publisher("t", qos=2, identity="job", epoch=3)
    for number in range(7):
        publisher.send(b"%d" % number, place.network.now_us)
    place.network.run_until(lambda: publisher.is_idle)
    first.client.close(place.network.now)
    second = place.user(ClientConfig(name="p"))
    asked = second.client.request(lambda number: ProgressQuery(request=number, topic="t", publisher="job"))
    progressed = place.ask(second, asked)
    assert isinstance(progressed, Progressed)
    assert (progressed.epoch, progressed.next_sequence) == (3, 7)
    again = second.client.publisher("t", qos=2, identity="job", epoch=3, sequence=5)
    reader = place.user()
    subscription = place.subscribe(reader, "t", start="earliest")
    for number in range(5, 9):
        again.send(b"%d" % number, place.network.now_us)
    place.network.run_until(lambda: again.is_idle)
    assert bodies(place.taken(reader, subscription)) == [b"%d" % number for number in range(9)]
    stale = second.client.publisher("t", qos=2, identity="job", epoch=2)
    stale.send(b"x", place.network.now_us)
    place.network.run(1)
    assert second.all(Refused)[0].code == Code.STALE_EPOCH


def test_a_second_run_of_a_named_client_is_no_repeat_of_the_first() -> None:
    place = Place()
    reader = place.user()
    subscription = place.subscribe(reader, "t")
    for run in range(3):
        user = place.user(ClientConfig(name="p"))
        place.publish(user, "t", b"%d" % run, qos=2)
        user.client.close(place.network.now)
        place.network.run(1)
    messages = place.taken(reader, subscription)
    assert bodies(messages) == [b"0", b"1", b"2"]
    assert {message.publisher for message in messages} == {"p"}


def test_rights_and_secrets() -> None:
    place = Place(settings=Settings(access=Access(secrets={"good": b"long enough secret"}, allows_anonymous=False)))
    place.user(ClientConfig(name="good", secret=b"long enough secret"))
    for config in (ClientConfig(name="good", secret=b"wrong"), ClientConfig(name="good"), ClientConfig()):
        user = place.user(config, online=False)
        user.until("closed")
        assert user.all(Ended)[0].code == Code.NOT_ALLOWED


def test_the_will_of_a_client_that_dies_and_none_after_a_close() -> None:
    place = Place()
    reader = place.user()
    subscription = place.subscribe(reader, "gone/+")
    will = [Will(topic=f"gone/{name}", payload=b"bye") for name in "ab"]
    polite, dying = (place.user(ClientConfig(name=name, will=one)) for name, one in zip("ab", will, strict=True))
    polite.client.close(place.network.now)
    del place.network.nodes[dying.address]
    assert [message.topic for message in place.taken(reader, subscription, 60)] == ["gone/b"]


def test_the_same_name_again() -> None:
    place = Place()
    first = place.user(ClientConfig(name="n"))
    second = place.user(ClientConfig(name="n"), online=False)
    second.until("closed")
    assert second.all(Ended)[0].code == Code.NAME_IN_USE
    assert first.client.state == "online"


def test_a_slow_reader_catches_up_from_the_log() -> None:
    place = Place(settings=Settings(client_window_bytes=256 * 1024))
    sender, user = place.user(), place.user()
    subscription = place.subscribe(user, "t")
    publisher = sender.client.publisher("t")
    for number in range(2000):
        publisher.send(b"%d " % number + bytes(990), place.network.now_us)
    place.network.run_until(lambda: publisher.is_idle)
    assert place.broker.server.buffered_bytes < MIB
    messages: list[Message] = []
    until = place.network.now + 60
    while len(messages) < 2000 and place.network.now < until:
        messages += subscription.take() or []
        place.network.run(0.01)
    assert [int(message.payload.split()[0]) for message in messages] == list(range(2000))


def test_everything_at_once_over_a_bad_network() -> None:
    """Loss in both directions and reconnects: QoS 1 arrives in order, at least once at the broker, once here."""
    place = Place(seed=7)
    network = place.network
    sender, user = place.user(ClientConfig(name="s")), place.user(ClientConfig(name="r"))
    subscription = place.subscribe(user, "t/#")

    def lost(_source: Address, _target: Address) -> bool:
        return network.rng.random() < 0.1

    network.lost = lost
    publishers = [sender.client.publisher(f"t/{qos}", qos=qos) for qos in (1, 2)]
    got: list[Message] = []
    for round_ in range(100):
        for publisher in publishers:
            publisher.send(b"%d" % round_, network.now_us)
        network.run(0.02)
        got += subscription.take() or []
        if round_ % 25 == 24:
            place.broker.drop_connections()
    network.run_until(lambda: all(publisher.is_idle for publisher in publishers))
    got += place.taken(user, subscription, 20)
    by_topic = {topic: [int(one.payload) for one in got if one.topic == topic] for topic in ("t/1", "t/2")}
    assert by_topic["t/2"] == list(range(100))
    assert list(dict.fromkeys(by_topic["t/1"])) == list(range(100))
    offsets = [message.offset for message in got]
    assert len(set(offsets)) == len(offsets)
    assert user.all(SubscriptionStarted) == [SubscriptionStarted(subscription, 0)]
    assert len(user.all(Offline)) >= 2  # a close may get lost, and a client may still be reconnecting


def test_many_clients_of_one_host_come_back_at_once_and_all_get_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """More clients than slots without a login. A client without a slot tries again, and its user does not notice."""
    monkeypatch.setattr("godwit.client.dialer.RESTART_SPREAD_S", 0.0)  # spread out, all of them find a slot
    place = Place(settings=Settings(max_clients=100))
    users = [place.user(online=False) for _ in range(90)]
    place.network.run_until(lambda: all(user.client.state == "online" for user in users), 5)
    busy = place.broker.listener.endpoint.dropped["busy"]
    assert busy > 0
    place.broker.drop_connections()
    place.network.run_until(lambda: all(len(user.all(Online)) == 2 for user in users), 5)
    assert place.broker.listener.endpoint.dropped["busy"] > busy
    assert not any(user.all(Ended) for user in users)
    assert place.broker.listener.endpoint.dropped["evicted"] == 0
