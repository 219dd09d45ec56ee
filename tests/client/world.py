"""Clients and a scripted broker in virtual time, and a network between them that a test can cut and thin out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Protocol, TypeVar

import msgspec

from godwit.client.config import ClientConfig
from godwit.client.events import ClientEvent
from godwit.client.message import Message
from godwit.client.protocol import ClientProtocol
from godwit.client.subscription import Subscription
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, ChannelConfirmed, Closed, Connected, Received, Train
from godwit.wire import control
from godwit.wire.batch import Batch, Route, decode_batches, encode_batch, encode_joinable
from godwit.wire.control import ControlMessage, PublishOpen, decode_control, encode_control, encode_in_band, make_proof
from godwit.wire.control_base import Code

BROKER: Address = ("198.51.100.7", 50000)
MAX_STEPS_AT_ONE_TIME = 3000
E = TypeVar("E")


class NetworkNode(Protocol):
    """Anything with the driver's contract."""

    def receive(self, train: Train, now: float) -> None: ...
    def handle_timers(self, now: float) -> None: ...
    def next_train(self, now: float) -> Train | None: ...
    def next_timer(self) -> float | None: ...


class Network:
    """Moves trains between nodes; `lossy` decides about each."""

    def __init__(self, seed: int = 1, *, delay_s: float = 0.005, start: float = 1000.0) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = start
        self.delay_s = delay_s
        self.nodes: dict[Address, NetworkNode] = {}
        self.lost: Callable[[Address, Address], bool] = lambda _source, _target: False
        self.after_step: list[Callable[[], None]] = []
        self._air: list[tuple[float, int, Address, Address, Train]] = []
        self._count = 0
        self._steps_now = 0

    @property
    def now_us(self) -> int:
        return int(self.now * 1e6) + 1_700_000_000_000_000

    def drain(self) -> None:
        for address, node in list(self.nodes.items()):
            while (train := node.next_train(self.now)) is not None:
                if not self.lost(address, train.address):
                    self._count += 1
                    heappush(self._air, (self.now + self.delay_s, self._count, address, train.address, train))

    def step(self, until: float) -> bool:
        self.drain()
        times = [time for node in self.nodes.values() if (time := node.next_timer()) is not None]
        if self._air:
            times.append(self._air[0][0])
        if not times or min(times) > until:
            self.now = max(self.now, until)
            return False
        self._steps_now = self._steps_now + 1 if min(times) <= self.now else 0
        assert self._steps_now < MAX_STEPS_AT_ONE_TIME, f"seed {self.seed}: time does not advance at {self.now}"
        self.now = max(self.now, min(times))
        while self._air and self._air[0][0] <= self.now:
            _, _, source, target, train = heappop(self._air)
            if target in self.nodes:
                self.nodes[target].receive(Train(source, train.data, train.segment_bytes), self.now)
        for node in list(self.nodes.values()):
            node.handle_timers(self.now)
        for act in self.after_step:
            act()
        return True

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.step(until):
            pass
        self.drain()

    def run_until(self, holds: Callable[[], bool], limit_s: float = 60.0) -> None:
        until = self.now + limit_s
        while not holds():
            if not self.step(until):
                assert holds(), f"seed {self.seed}: not within {limit_s:g} s"
                return


class User:
    """A client, and its events."""

    def __init__(
        self,
        network: Network,
        config: ClientConfig | None = None,
        *,
        number: int = 1,
        targets: Sequence[Address] = (BROKER,),
    ) -> None:
        self.network = network
        self.address: Address = ("192.0.2.1", 5000 + number)
        self.client = ClientProtocol(config or ClientConfig(), entropy=network.rng.randbytes, random=network.rng)
        self.log: list[ClientEvent] = []
        network.nodes[self.address] = self.client
        network.after_step.append(self.note)
        self.client.connect(targets, network.now)

    def note(self) -> None:
        self.log += self.client.events()

    def all(self, kind: type[E]) -> list[E]:
        self.note()
        return [event for event in self.log if isinstance(event, kind)]

    def until(self, state: str, limit_s: float = 60.0) -> None:
        self.network.run_until(lambda: self.client.state == state, limit_s)
        self.note()

    def take_all(self, subscription: Subscription) -> list[Message]:
        found = []
        while (messages := subscription.take()) is not None:
            found += messages
        return found


class PublishedChannel(msgspec.Struct):
    """A channel of a publisher, as the broker sees it."""

    open: PublishOpen
    records: list[bytes] = []
    ended: bool = False


class SubscriberChannels(msgspec.Struct):
    """A subscription, as the broker sees it."""

    ask: control.Subscribe
    feed: int
    live: int
    number: int = 0


class Link:
    """One connection of a client."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.login: control.Login | None = None
        self.published: dict[int, PublishedChannel] = {}
        self.subscribed: dict[int, SubscriberChannels] = {}
        self.received: list[ControlMessage] = []
        """The messages of the client on channel 0."""
        self.confirmed: list[tuple[int, int]] = []
        self.closed: Closed | None = None

    def send(self, message: ControlMessage) -> None:
        self.connection.send(0, encode_control(message))

    def all(self, kind: type[E]) -> list[E]:
        return [message for message in self.received if isinstance(message, kind)]


class FakeBroker:
    """Does what a broker does as far as a client can see it; each reaction can be turned off or replaced."""

    def __init__(self, network: Network, *, address: Address = BROKER, config: EndpointConfig | None = None) -> None:
        self.network = network
        self.address = address
        self.config = config or EndpointConfig(accepts=True)
        self.secrets: dict[str, bytes] = {}
        self.welcomes = True
        self.confirms = True
        self.consumes = True
        self.answers = True
        self.max_message_bytes = 16 * 1024 * 1024
        self.resumed = False
        self.next_offset = 0
        self.refuses: dict[str, tuple[int, str]] = {}
        """Topics that may not be published to."""
        self.links: list[Link] = []
        self.stored: list[tuple[str, int, Batch]] = []
        """Batches in the order of their coming: topic, QoS."""
        self.start()

    def start(self) -> None:
        """A new process: it knows nothing of older connections."""
        self.endpoint = Endpoint(self.config, entropy=self.network.rng.randbytes)
        self.network.nodes[self.address] = self

    def stop(self) -> None:
        """Dead without a word."""
        del self.network.nodes[self.address]

    @property
    def link(self) -> Link:
        return self.links[-1]

    def messages(self, topic: str, qos: int | None = None) -> list[bytes]:
        """Return the messages published to the topic, with repeats."""
        return [
            payload
            for name, level, batch in self.stored
            if name == topic and qos in (None, level)
            for payload in batch.payloads
        ]

    # -- the driver's contract ----------------------------------------------------------------------------------------

    def receive(self, train: Train, now: float) -> None:
        self.endpoint.receive(train, now)
        self._react()

    def handle_timers(self, now: float) -> None:
        self.endpoint.handle_timers(now)
        self._react()

    def next_train(self, now: float) -> Train | None:
        return self.endpoint.next_train(now)

    def next_timer(self) -> float | None:
        return self.endpoint.next_timer()

    # -- reactions ----------------------------------------------------------------------------------------------------

    def _react(self) -> None:
        for event in self.endpoint.events():
            if isinstance(event, Connected):
                self.links.append(Link(event.connection))
                continue
            link = next(link for link in self.links if link.connection is event.connection)
            if isinstance(event, Closed):
                link.closed = event
            elif isinstance(event, ChannelConfirmed):
                link.confirmed.append((event.channel, event.sequence))
            elif isinstance(event, Received):
                if event.reliable and self.consumes:
                    event.connection.consume(event.channel, len(event.body))
                if event.connection.state.value != "open":
                    continue
                if event.channel == 0:
                    message = decode_control(event.body)
                    assert not isinstance(message, control.UnknownKind)
                    link.received.append(message)
                    self._on_control(link, message)
                else:
                    self._on_record(link, event)

    def _on_control(self, link: Link, message: ControlMessage) -> None:
        if isinstance(message, control.Login):
            assert link.login is None
            link.login = message
            if self.welcomes:
                self.welcome(link)
        assert link.login is not None
        if not self.answers:
            return
        if isinstance(message, control.Subscribe):
            start = message.start if isinstance(message.start, int) else self.next_offset
            start = 0 if message.start == "earliest" else min(start, self.next_offset)
            self.attach(link, message)
            link.send(control.Subscribed(request=message.request, subscription=message.subscription, next_offset=start))
        elif isinstance(message, control.Unsubscribe | control.CursorCommit | control.Create | control.Kick):
            link.send(control.Done(request=message.request))
        elif isinstance(message, control.Ping):
            link.send(control.Pong(request=message.request))
        elif isinstance(message, control.Topics):
            link.send(control.TopicList(request=message.request))

    def welcome(self, link: Link) -> None:
        assert link.login is not None
        name = link.login.name or "nameless"
        secret = self.secrets.get(name)
        proof = make_proof(secret, "server", link.connection.binding, name) if secret else b""
        link.send(
            control.Welcome(
                request=link.login.request,
                name=name,
                resumed=self.resumed,
                proof=proof,
                max_message_bytes=self.max_message_bytes,
            )
        )

    def _on_record(self, link: Link, event: Received) -> None:
        inlet = link.published.get(event.channel)
        if inlet is None:
            assert event.record == 0
            message = decode_control(event.body)
            assert isinstance(message, PublishOpen)
            link.published[event.channel] = PublishedChannel(message)
            if message.topic in self.refuses:
                code, text = self.refuses[message.topic]
                link.send(control.PublishRefused(channel=event.channel, code=code, text=text))
            else:
                link.send(control.Opened(channel=event.channel, subscribers=3))
            return
        if event.last:
            assert event.body == b""
            inlet.ended = True
            return
        if inlet.open.topic in self.refuses:
            return
        inlet.records.append(event.body)
        for batch in decode_batches(event.body):
            assert batch.qos == inlet.open.qos
            assert (batch.sequence is None) == (batch.qos == 1)
            self.stored.append((inlet.open.topic, inlet.open.qos, batch))
        if self.confirms and inlet.open.qos:
            link.connection.confirm(event.channel, event.record, 2)

    # -- towards subscribers ------------------------------------------------------------------------------------------

    def attach(self, link: Link, ask: control.Subscribe) -> SubscriberChannels:
        channels = []
        for live in (False, True):
            channel = link.connection.open_channel()
            link.connection.send(
                channel, encode_control(control.DeliveryOpen(subscription=ask.subscription, live=live))
            )
            channels.append(channel)
        outlet = link.subscribed[ask.subscription] = SubscriberChannels(ask, *channels)
        labels = control.Labels(topics=[(1, "a/b"), (2, "c")], publishers=[(1, "someone"), (2, "other")])
        for channel in channels:
            link.connection.send(channel, encode_in_band(labels))
        return outlet

    def push(
        self,
        link: Link,
        payloads: list[bytes],
        offset: int,
        *,
        number: int = 0,
        qos: int = 1,
        retain: bool = False,
        topic: int = 1,
    ) -> None:
        """A batch on the channel of the log."""
        batch = self.batch(payloads, offset, qos=qos, retain=retain, topic=topic)
        link.connection.send(link.subscribed[number].feed, encode_joinable(batch))
        self.next_offset = max(self.next_offset, offset + len(payloads))

    def push_live(self, link: Link, payloads: list[bytes], *, number: int = 0, lost: bool = False) -> None:
        """A batch of QoS 0."""
        outlet = link.subscribed[number]
        batch = self.batch(payloads, outlet.number, qos=0)
        outlet.number += len(payloads)
        if not lost:
            link.connection.send(outlet.live, encode_batch(batch), reliable=False)

    @staticmethod
    def batch(payloads: list[bytes], offset: int, *, qos: int = 1, retain: bool = False, topic: int = 1) -> Batch:
        return Batch(payloads, 1_000_000, qos, retain, None, Route(topic, 1, offset, 2_000_000))


def online(seed: int = 1, config: ClientConfig | None = None) -> tuple[Network, FakeBroker, User]:
    """A client that its broker has welcomed."""
    network = Network(seed)
    broker = FakeBroker(network)
    user = User(network, config)
    user.until("online")
    return network, broker, user


def numbered(count: int, prefix: str = "") -> Iterator[bytes]:
    for place in range(count):
        yield f"{prefix}{place}".encode()


__all__ = ["BROKER", "Code", "FakeBroker", "Link", "Network", "User", "numbered", "online"]
