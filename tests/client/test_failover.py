"""Clients with several brokers, in virtual time: a silent broker is suspected, others are tried beside it."""

from __future__ import annotations

import random

import pytest
from tests.broker.durable import KeepingStore
from tests.client.test_with_server import RealBroker
from tests.client.world import BROKER, FakeBroker, Network, User

from godwit.broker.access import Access
from godwit.broker.settings import Settings
from godwit.client.config import ClientConfig
from godwit.client.events import Ended, Missed, Offline, Online
from godwit.client.publisher import Publisher
from godwit.client.subscription import Membership, Start, Subscription
from godwit.server.direct_log import DirectLog
from godwit.transport.events import Address, ConnectionState, Train
from godwit.wire import control
from godwit.wire.batch import payloads_of
from godwit.wire.control import Will
from godwit.wire.control_base import Code

ADDRESSES: list[Address] = [("198.51.100.1", 50000), ("198.51.100.2", 50000), ("198.51.100.3", 50000)]


class Node(RealBroker):
    """One of several brokers, with a log of its own. It can be killed, paused and cut off."""

    def __init__(self, network: Network, number: int, settings: Settings | None = None) -> None:
        self.address = ADDRESSES[number]
        self.log_id = b"log of broker %d" % number
        self.is_running = False
        self.is_paused = False
        self._arrived: list[Train] = []
        super().__init__(network, settings)

    def start(self) -> None:
        """Start a process on the log that the former one had."""
        if not self.starts:
            self.keeping = KeepingStore()
            self.keeping.log_id = self.log_id
        self.starts += 1
        self.run(DirectLog(self.keeping), reset_key=self.log_id.ljust(32))
        del self.network.nodes[BROKER]
        self.network.nodes[self.address] = self
        self.is_running = True

    def stop(self) -> None:
        if self.is_running:
            del self.network.nodes[self.address]
            self.is_running = False
            self.is_paused = False
            self._arrived.clear()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        for train in self._arrived:
            super().receive(train, self.network.now)
        self._arrived.clear()

    def receive(self, train: Train, now: float) -> None:
        if self.is_paused:
            self._arrived.append(train)
        else:
            super().receive(train, now)

    def handle_timers(self, now: float) -> None:
        if not self.is_paused:
            super().handle_timers(now)

    def next_train(self, now: float) -> Train | None:
        return None if self.is_paused else super().next_train(now)

    def next_timer(self) -> float | None:
        return None if self.is_paused else super().next_timer()

    def payloads(self, topic: str) -> list[bytes]:
        """Return the messages of a topic in its log."""
        found = self.keeping.read(0, 1 << 30)
        return [payload for _, entry in found.entries if entry.topic == topic for payload in payloads_of(entry)]


class Plant:
    """Several brokers and clients that know all of them."""

    def __init__(self, count: int = 3, seed: int = 1, settings: Settings | None = None) -> None:
        self.network = Network(seed)
        self.brokers = [Node(self.network, number, settings) for number in range(count)]
        self._users = 0

    def user(self, config: ClientConfig | None = None) -> User:
        self._users += 1
        targets = [broker.address for broker in self.brokers]
        user = User(self.network, config, number=self._users, targets=targets)
        user.until("online")
        return user

    def broker_of(self, user: User) -> Node:
        connection = user.client._connection
        assert connection is not None
        return next(broker for broker in self.brokers if broker.address == connection.peer_address)

    def subscribe(self, user: User, *filters: str, start: Start = None) -> Subscription:
        subscription = user.client.subscribe(filters, start=start)
        self.network.run_until(lambda: subscription.state == "active")
        return subscription


def until_moved(plant: Plant, user: User, limit_s: float) -> None:
    """Wait until the client is online at another broker."""
    former = plant.broker_of(user)
    plant.network.run_until(lambda: user.client.state == "online" and plant.broker_of(user) is not former, limit_s)


def test_a_client_moves_from_a_silent_broker_after_three_seconds() -> None:
    plant = Plant()
    user = plant.user()
    plant.network.run(20)
    plant.broker_of(user).stop()
    publisher = user.client.publisher("t", qos=2)
    publisher.send(b"x", plant.network.now_us)
    begun = plant.network.now
    until_moved(plant, user, 3.5)
    assert plant.network.now - begun >= 3.0
    plant.network.run_until(lambda: publisher.is_idle, 1.0)
    assert plant.broker_of(user).payloads("t") == [b"x"]
    (offline,) = user.all(Offline)
    assert offline.code == Code.TIMEOUT
    assert "and another one has accepted the client" in offline.reason
    assert len(user.all(Online)) == 2


def test_a_broker_that_answers_again_keeps_the_client() -> None:
    """The attempts beside the connection end, and the other brokers have no connection of the client."""
    plant = Plant()
    user = plant.user()
    former = plant.broker_of(user)
    plant.network.lost = lambda source, _: source not in (user.address, former.address)  # no other broker answers
    former.pause()
    publisher = user.client.publisher("t")
    publisher.send(b"x", plant.network.now_us)
    plant.network.run(3.5)
    assert user.client._dialer.is_dialing
    former.resume()
    plant.network.run_until(lambda: publisher.is_idle, 1.0)
    dialer = user.client._dialer
    assert not dialer.is_dialing
    plant.network.lost = lambda _source, _target: False
    plant.network.run(20)
    assert plant.broker_of(user) is former
    assert user.all(Offline) == []
    assert [len(broker.listener.endpoint.connections) for broker in plant.brokers] == [1, 0, 0]


def test_a_slow_path_is_kept_while_others_are_tried() -> None:
    """On a path with a long round trip others are tried after three seconds, and the connection is kept for longer."""
    network = Network(delay_s=1.4)
    one = FakeBroker(network, address=ADDRESSES[0])
    user = User(network, targets=ADDRESSES[:2])
    user.until("online")
    network.run(60)
    one.stop()
    user.client.publisher("t").send(b"x", network.now_us)
    network.run(5)
    assert user.client.state == "online"
    assert user.client._suspected_at is not None
    one.start()
    network.run(60)
    assert user.client.state == "online"


def test_without_another_broker_that_answers_the_loss_is_reported_within_five_seconds() -> None:
    plant = Plant()
    user = plant.user()
    for broker in plant.brokers:
        broker.stop()
    user.client.publisher("t").send(b"x", plant.network.now_us)
    plant.network.run_until(lambda: bool(user.all(Offline)), 4.2)
    assert "although it was asked" in user.all(Offline)[0].reason
    assert user.client.state == "connecting"  # the attempts that began beside the connection go on
    plant.network.run(30)
    plant.brokers[2].start()
    user.until("online", 10)
    plant.network.run(1)
    assert plant.brokers[2].payloads("t") == [b"x"]


def test_a_report_of_the_network_ends_the_connection_and_keeps_the_attempts() -> None:
    plant = Plant(2)
    user = plant.user()
    plant.network.lost = lambda source, _: source == ADDRESSES[1]
    plant.broker_of(user).stop()
    user.client.publisher("t").send(b"x", plant.network.now_us)
    plant.network.run(3.5)
    assert user.client._dialer.is_dialing
    user.client.handle_unreachable(ADDRESSES[0], plant.network.now)
    assert user.client.state == "connecting"
    plant.network.lost = lambda _source, _target: False
    user.until("online", 2.0)
    assert plant.broker_of(user) is plant.brokers[1]


def test_a_refusal_beside_the_connection_does_not_end_the_client() -> None:
    """Two of three brokers refuse the login: the client asks again and keeps to the one that let it in."""
    plant = Plant()
    for broker in plant.brokers[1:]:
        broker.stop()
    user = plant.user(ClientConfig(name="me"))
    refusing = Access(secrets={"other": b"x" * 20}, allows_anonymous=False)
    for number in (1, 2):
        plant.brokers[number] = Node(plant.network, number, Settings(access=refusing))
    plant.brokers[0].pause()
    publisher = user.client.publisher("t")
    publisher.send(b"x", plant.network.now_us)
    plant.network.run(3.8)
    assert user.client.state == "online"
    plant.brokers[0].resume()
    plant.network.run_until(lambda: publisher.is_idle, 5.0)
    assert user.all(Ended) == []


def test_two_addresses_of_one_broker_do_not_take_the_client_from_itself() -> None:
    """The broker closes the former connection with TAKEN_OVER; that close must not end the client."""
    network = Network()
    broker = FakeBroker(network, address=ADDRESSES[0])
    network.nodes[ADDRESSES[1]] = other = FakeBroker(network, address=ADDRESSES[1])
    other.welcomes = False
    user = User(network, targets=ADDRESSES[:2])
    user.until("online")
    # Silence, then a login at the other address, then a close of the first connection.
    network.lost = lambda source, target: ADDRESSES[0] in (source, target)
    user.client.publisher("t").send(b"x", network.now_us)
    network.run_until(lambda: bool(other.links) and other.links[0].login is not None, 5.0)
    network.lost = lambda _source, _target: False
    broker.links[0].connection.close(network.now, Code.TAKEN_OVER, "the same client has connected again")
    network.run_until(lambda: bool(user.all(Offline)), 1.0)
    assert user.client.state == "connecting"
    other.welcome(other.links[0])
    user.until("online", 2.0)
    network.run(1)
    assert other.messages("t") == [b"x"]


def test_a_login_beside_the_connection_that_gets_no_answer_is_given_up() -> None:
    network = Network(delay_s=0.8)
    FakeBroker(network, address=ADDRESSES[0])
    mute = FakeBroker(network, address=ADDRESSES[1])
    mute.welcomes = False
    user = User(network, targets=ADDRESSES[:1])
    user.until("online")
    user.client.connect(ADDRESSES[:2], network.now)
    network.run(10)
    network.lost = lambda source, target: ADDRESSES[0] in (source, target)
    user.client.publisher("t").send(b"x", network.now_us)
    network.run_until(lambda: bool(user.all(Offline)), 60)
    mute.welcomes = True
    user.until("online", 60)
    network.run(5)
    assert mute.messages("t") == [b"x"]


def test_the_client_that_ends_closes_both_connections() -> None:
    network = Network()
    FakeBroker(network, address=ADDRESSES[0])
    other = FakeBroker(network, address=ADDRESSES[1])
    other.welcomes = False
    user = User(network, targets=ADDRESSES[:2])
    user.until("online")
    network.lost = lambda source, target: ADDRESSES[0] in (source, target)
    user.client.publisher("t").send(b"x", network.now_us)
    network.run_until(lambda: bool(other.links) and other.links[0].login is not None, 5.0)
    user.client.close(network.now)
    network.run(1)
    assert other.links[0].closed is not None
    assert other.links[0].closed.code == Code.NORMAL


def test_a_broker_that_returns_publishes_no_will_of_a_client_that_has_moved() -> None:
    plant = Plant(2)
    user = plant.user(ClientConfig(name="me", will=Will(topic="gone", payload=b"bye")))
    former = plant.broker_of(user)
    former.pause()
    user.client.publisher("t").send(b"x", plant.network.now_us)
    until_moved(plant, user, 3.5)
    former.resume()
    plant.network.run(120)
    assert former.payloads("gone") == []
    assert not former.listener.endpoint.connections


# -- another log ------------------------------------------------------------------------------------------------------


def test_messages_of_another_log_are_preceded_by_a_gap() -> None:
    plant = Plant(2)
    other = User(plant.network, number=9, targets=ADDRESSES[1:2])
    other.until("online")
    other.client.publisher("t").send(b"there", plant.network.now_us)
    plant.network.run(1)
    user = plant.user()
    subscription = plant.subscribe(user, "t", start="earliest")
    user.client.publisher("t").send(b"here", plant.network.now_us)
    plant.network.run(1)
    assert [message.payload for message in user.take_all(subscription)] == [b"here"]
    plant.broker_of(user).stop()
    user.client.publisher("u").send(b"x", plant.network.now_us)
    until_moved(plant, user, 3.5)
    plant.network.run(1)
    (missed,) = user.all(Missed)
    assert missed.subscription is subscription
    assert missed.count is None
    assert [message.payload for message in user.take_all(subscription)] == [b"there"]


def test_a_member_of_a_group_is_notified_of_another_log() -> None:
    """The group of the other broker has another position; without a notice, messages would be missing silently."""
    plant = Plant(2)
    user = plant.user(ClientConfig(name="me"))
    subscription = user.client.subscribe(["t"], membership=Membership("g"))
    plant.network.run_until(lambda: subscription.state == "active")
    for number in range(5):
        user.client.publisher("t").send(b"%d" % number, plant.network.now_us)
    plant.network.run(1)
    assert len(user.take_all(subscription)) == 5
    former = plant.broker_of(user)
    plant.brokers[1].stop()
    former.stop()
    former.start()
    user.client.publisher("u").send(b"x", plant.network.now_us)
    plant.network.run_until(lambda: len(user.all(Online)) == 2, 10)
    plant.network.run(1)
    assert user.all(Missed) == []  # the same log
    plant.brokers[1].start()
    former.stop()
    plant.network.run_until(lambda: len(user.all(Online)) == 3, 30)
    plant.network.run(1)
    (missed,) = user.all(Missed)
    assert missed.subscription is subscription
    assert subscription.position == 0


# -- many faults ------------------------------------------------------------------------------------------------------


class Account:
    """The messages that a client has published and received, and the gaps that were reported to it."""

    def __init__(self, plant: Plant, number: int) -> None:
        self.plant = plant
        self.topic = f"from/{number}"
        self.user = plant.user(ClientConfig(name=f"client{number}"))
        self.publishers: dict[int, Publisher] = {
            qos: self.user.client.publisher(f"{self.topic}/{qos}", qos=qos) for qos in (1, 2)
        }
        self.sent = {1: 0, 2: 0}
        self.subscription = plant.subscribe(self.user, "from/#", start="earliest")
        self.received: list[tuple[bytes, int | None]] = []
        """Log and offset of each message."""
        self.gaps = 0

    def send(self) -> None:
        for qos, publisher in self.publishers.items():
            publisher.send(b"%d" % self.sent[qos], self.plant.network.now_us)
            self.sent[qos] += 1

    def read(self) -> None:
        """Take messages. Each change of the log is preceded by a gap, and offsets of one log rise by one."""
        gaps = len(self.user.all(Missed))
        for message in self.user.take_all(self.subscription):
            log = self.subscription.log
            before = self.received[-1] if self.received else (b"", None)
            is_next = before[0] == log and before[1] is not None and message.offset == before[1] + 1
            if self.received and not is_next:
                assert gaps > self.gaps, f"{before} -> {log!r} {message.offset} without a gap"
                assert before[0] != log, f"{before} -> {message.offset}: a gap within one log"
            self.gaps = gaps
            self.received.append((log, message.offset))


def disturb(plant: Plant, accounts: list[Account], rng: random.Random) -> None:
    """Kill, pause and cut off brokers while all clients publish and read. In the end everything works."""
    network = plant.network
    cut: set[tuple[Address, Address]] = set()
    network.lost = lambda source, target: rng.random() < 0.02 or (source, target) in cut or (target, source) in cut
    for _ in range(25):
        fault = rng.choice(["kill", "pause", "cut", "none"])
        broker = rng.choice(plant.brokers)
        pair = (rng.choice(accounts).user.address, broker.address)
        if fault == "kill" and sum(one.is_running for one in plant.brokers) > 1:
            broker.stop()
        elif fault == "pause" and broker.is_running:
            broker.pause()
        elif fault == "cut":
            cut.add(pair)
        until = network.now + rng.uniform(0.5, 9.0)
        while network.now < until:
            for account in accounts:
                account.send()
            network.run(0.25)
            for account in accounts:
                account.read()
        for one in plant.brokers:
            if one.is_paused:
                one.resume()
            elif not one.is_running and rng.random() < 0.6:
                one.start()
        cut.discard(pair)
    network.lost = lambda _source, _target: False
    for one in plant.brokers:
        if not one.is_running:
            one.start()


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(6, 200))])
def test_brokers_that_die_pause_and_are_cut_off(seed: int) -> None:
    """Every confirmed message is in a log, QoS 2 at most once in each, and no subscriber changes its log silently."""
    rng = random.Random(seed)
    plant = Plant(3, seed)
    network = plant.network
    accounts = [Account(plant, number) for number in range(3)]
    disturb(plant, accounts, rng)
    network.run_until(lambda: all(publisher.is_idle for one in accounts for publisher in one.publishers.values()), 60)
    network.run(5)
    for account in accounts:
        account.read()
        assert account.user.all(Ended) == []
        for qos, sent in account.sent.items():
            logs = [broker.payloads(f"{account.topic}/{qos}") for broker in plant.brokers]
            assert {payload for log in logs for payload in log} == {b"%d" % number for number in range(sent)}
            if qos == 2:
                assert all(len(set(log)) == len(log) for log in logs), f"seed {seed}: repeated in one log"
        connections = account.user.client.endpoint.connections.values()
        assert sum(one.state is ConnectionState.OPEN for one in connections) == 1
    moves = sum(len(account.user.all(Online)) - 1 for account in accounts)
    assert moves > 0, f"seed {seed}: no client has moved"


def test_the_present_broker_that_shuts_down_while_others_are_tried() -> None:
    """A close of the present connection turns the attempts beside it into the present ones."""
    network = Network()
    one = FakeBroker(network, address=ADDRESSES[0])
    other = FakeBroker(network, address=ADDRESSES[1])
    other.welcomes = False
    user = User(network, targets=ADDRESSES[:2])
    user.until("online")
    network.lost = lambda source, target: ADDRESSES[0] in (source, target)
    user.client.publisher("t").send(b"x", network.now_us)
    network.run_until(lambda: bool(other.links) and other.links[0].login is not None, 5.0)
    network.lost = lambda _source, _target: False
    one.links[0].connection.close(network.now, Code.SHUTDOWN, "stopped")
    network.run_until(lambda: bool(user.all(Offline)), 1.0)
    other.links[0].send(control.Welcome(request=other.links[0].login.request, name="n", max_message_bytes=1 << 20))  # type: ignore[union-attr]
    user.until("online", 1.0)
