"""A real server, and peers that speak the protocol by hand: no client code, and no network in between.

A peer stands in the place of a connection: what the server sends on it, it takes apart at once with godwit.wire alone.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, TypeVar, get_args

import msgspec

from godwit.broker.effects import BrokerEvent, Notice
from godwit.broker.settings import Settings
from godwit.errors import ConnectionClosedError
from godwit.limits import RING_BYTES
from godwit.native.control_router import ListRequest
from godwit.server.direct_log import DirectLog
from godwit.server.memory_log import MemoryLog
from godwit.server.server import Server
from godwit.store.memory import MemoryStore
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.events import ChannelConfirmed, Closed, Connected, Event, Origin, Received
from godwit.wire import control as c
from godwit.wire.batch import Batch, decode_batches, encode_batch
from godwit.wire.control import (
    ControlMessage,
    UnknownKind,
    decode_control,
    decode_in_band,
    encode_control,
    is_in_band,
    make_proof,
)
from godwit.wire.control_base import Code
from godwit.wire.parameters import Arq
from godwit.wire.work import FromBroker, decode_from_broker

START_US = 1_763_200_000_000_000
LOG_ID = bytes(range(16))
M = TypeVar("M", bound=msgspec.Struct)


class Got(msgspec.Struct, frozen=True):
    """A message as a subscriber sees it."""

    topic: str
    payload: bytes
    publisher: str
    qos: int
    retain: bool
    offset: int
    published_us: int = 0
    received_us: int = 0
    live: bool = False
    extension: bytes | None = None


class Lane:
    """One channel towards the peer."""

    def __init__(self, feed: c.DeliveryOpen | c.Work) -> None:
        self.feed = feed
        self.topics: dict[int, str] = {}
        self.publishers: dict[int, str] = {}
        self.records = 1
        self.ended = False


class Peer(Connection):
    """A stand-in for a connection; compiled code accepts no object of another class.

    Feed: hello, login, ask, open, publish, subscribe, confirm, leave. Look: the rest.
    """

    is_admitted = False

    @property
    def arq(self) -> Arq:
        return "selective-repeat"

    def __init__(self, world: World, address: tuple[str, int]) -> None:
        self.world = world
        self.peer_address = address
        self.closed: tuple[int, str] | None = None
        self.said: list[ControlMessage] = []
        """On channel 0."""
        self.got: list[Got] = []
        self.gaps: list[c.Gap] = []
        self.order: list[Got | c.Gap] = []
        self.by_subscription: dict[int, list[Got | c.Gap]] = defaultdict(list)
        self.lanes: dict[int, Lane] = {}
        self.work: list[tuple[FromBroker, list[bytes]]] = []
        """Groups, with their payloads."""
        self.confirmed: dict[int, tuple[int, int]] = {}
        """By channel of the peer: record, reached."""
        self.consumed: dict[int, int] = defaultdict(int)
        self.confirms_itself = True
        self.answers_pings = True
        self.loses_unreliable = False
        self._confirmed_by_me: dict[int, int] = {}
        self._channels = 0  # opened by the server
        self._next_channel = 1
        self._records: dict[int, int] = defaultdict(int)
        self._request = 0

    # -- what the server calls, as on a Connection --------------------------------------------------------------------

    @property
    def binding(self) -> bytes:
        return bytes([self.peer_address[1] % 256]) * 32

    def admit(self) -> None:
        self.is_admitted = True

    def open_channel(self) -> int:
        self._require_open()
        self._channels += 1
        return self._channels

    def send(self, channel: int, body: bytes, *, reliable: bool = True, last: bool = False) -> bool:
        self._require_open()
        if channel == 0:
            message = decode_control(body)
            assert not isinstance(message, UnknownKind)
            self.said.append(message)
            if isinstance(message, c.Ping) and self.answers_pings:
                self.world.later(self, encode_control(c.Pong(request=message.request)))
        elif channel not in self.lanes:
            message = decode_control(body)
            assert isinstance(message, c.DeliveryOpen | c.Work)
            assert reliable
            self.lanes[channel] = Lane(message)
        elif reliable or not self.loses_unreliable:
            self._take(self.lanes[channel], body, reliable, last)
        return True

    def confirm(self, channel: int, sequence: int, reached: int) -> None:
        self._require_open()
        assert sequence > self.confirmed.get(channel, (-1, 0))[0]
        self.confirmed[channel] = sequence, reached

    def consume(self, channel: int, body_bytes: int) -> None:
        self.consumed[channel] += body_bytes

    def close(self, now: float, code: int = 0, reason: str = "") -> None:
        if self.closed is None:
            self.closed = code, reason
            self.world.feed(Closed(self, code, reason, "local"))

    def _require_open(self) -> None:
        if self.closed is not None:
            raise ConnectionClosedError(*self.closed)

    def _take(self, lane: Lane, body: bytes, reliable: bool, last: bool) -> None:
        assert not lane.ended
        lane.records += reliable
        lane.ended = last
        if not body:
            assert last
        elif isinstance(lane.feed, c.Work):
            assert reliable
            self.work.append(decode_from_broker(body))
        elif is_in_band(body):
            assert reliable
            self._take_in_band(lane, decode_in_band(body))
        else:
            for batch in decode_batches(body):
                self._take_batch(lane, batch)

    def _take_in_band(self, lane: Lane, message: ControlMessage | UnknownKind) -> None:
        match message:
            case c.Labels():
                if message.forget:
                    lane.topics.clear()
                    lane.publishers.clear()
                lane.topics.update(message.topics)
                lane.publishers.update(message.publishers)
            case c.Gap():
                self.gaps.append(message)
                self.order.append(message)
                assert isinstance(lane.feed, c.DeliveryOpen)
                self.by_subscription[lane.feed.subscription].append(message)
            case _:
                raise AssertionError(message)

    def _take_batch(self, lane: Lane, batch: Batch) -> None:
        route = batch.route
        assert route is not None
        assert isinstance(lane.feed, c.DeliveryOpen)
        assert batch.sequence is None
        for place, payload in enumerate(batch.payloads):
            delta_us = batch.deltas_us[place] if batch.deltas_us is not None else 0
            found = Got(
                lane.topics[route.topic],
                payload,
                lane.publishers[route.publisher],
                batch.qos,
                batch.retain,
                route.offset + place,
                batch.published_us + delta_us,
                route.received_us,
                lane.feed.live,
                batch.extension,
            )
            self.got.append(found)
            self.order.append(found)
            self.by_subscription[lane.feed.subscription].append(found)

    # -- what a client does -------------------------------------------------------------------------------------------

    def number(self) -> int:
        self._request += 1
        return self._request

    def receive(self, channel: int, record: int, body: bytes, *, reliable: bool = True, last: bool = False) -> None:
        self.world.feed(Received(self, channel, record, body, reliable, last))

    def say(self, message: ControlMessage) -> None:
        self.receive(0, self._records[0], encode_control(message))
        self._records[0] += 1

    def ask(self, message: ControlMessage) -> ControlMessage:
        """The reply to a request."""
        before = len(self.said)
        self.say(message)
        self.world.run()
        number = getattr(message, "request", None)
        replies = [one for one in self.said[before:] if getattr(one, "request", None) == number]
        if not replies and isinstance(message, get_args(ListRequest)):
            self.world.pass_s(0.1)  # lists wait for their budget of work
            replies = [one for one in self.said[before:] if getattr(one, "request", None) == number]
        (reply,) = replies
        return reply

    def expect(self, message: ControlMessage, kind: type[M]) -> M:
        reply = self.ask(message)
        assert isinstance(reply, kind), reply
        return reply

    def refusal(self, message: ControlMessage) -> Code:
        return Code(self.expect(message, c.Error).code)

    def login(self, name: str | None = None, *, secret: bytes = b"", instance: bytes = b"", **fields: Any) -> c.Welcome:
        proof = make_proof(secret, "client", self.binding, name or "") if secret else b""
        instance = instance or bytes([self.peer_address[1] % 256]) * 16
        login = c.Login(request=self.number(), name=name, instance=instance, proof=proof, **fields)
        return self.expect(login, c.Welcome)

    def try_login(self, name: str | None = None, **fields: Any) -> None:
        """One that may be refused, or must wait."""
        fields.setdefault("instance", bytes([self.peer_address[1] % 256]) * 16)
        self.say(c.Login(request=self.number(), name=name, **fields))
        self.world.run()

    def start(self, topic: str, qos: c.Qos = 1, **fields: Any) -> int:
        """Opens a channel and gives its number; what the broker says of it is in `said`."""
        channel = self._next_channel
        self._next_channel += 1
        self.record(channel, encode_control(c.PublishOpen(topic=topic, qos=qos, **fields)))
        self.world.run()
        return channel

    def open(self, topic: str, qos: c.Qos = 1, **fields: Any) -> int:
        channel = self.start(topic, qos, **fields)
        assert self.last(c.Opened).channel == channel
        return channel

    def refused_open(self, topic: str, qos: c.Qos = 1, **fields: Any) -> Code:
        channel = self.start(topic, qos, **fields)
        refused = self.last(c.PublishRefused)
        assert refused.channel == channel
        assert refused.text
        return Code(refused.code)

    def record(self, channel: int, body: bytes, *, reliable: bool = True, last: bool = False) -> int:
        number = self._records[channel]
        self.receive(channel, number, body, reliable=reliable, last=last)
        self._records[channel] += 1
        return number

    def publish(self, channel: int, *payloads: bytes, qos: int = 1, reliable: bool = True, **fields: Any) -> int:
        """Sends a batch as a record, and gives the record's number."""
        batch = Batch(list(payloads), fields.pop("published_us", self.world.now_us), qos=qos, **fields)
        number = self.record(channel, encode_batch(batch), reliable=reliable)
        self.world.run()
        return number

    def subscribe(self, *filters: str, number: int | None = None, **fields: Any) -> c.Subscribed:
        request = self.number()
        subscription = request if number is None else number
        return self.expect(
            c.Subscribe(request=request, subscription=subscription, filters=list(filters), **fields), c.Subscribed
        )

    def refused_subscribe(self, *filters: str, **fields: Any) -> Code:
        request = self.number()
        return self.refusal(c.Subscribe(request=request, subscription=request, filters=list(filters), **fields))

    def confirm_all(self) -> bool:
        """The application has taken everything that came. Gives whether that was news."""
        is_news = False
        for channel, lane in self.lanes.items():
            if lane.records - 1 > self._confirmed_by_me.get(channel, -1) and self.closed is None:
                self._confirmed_by_me[channel] = lane.records - 1
                self.world.feed(ChannelConfirmed(self, channel, lane.records - 1, 0))
                is_news = True
        return is_news

    def leave(self, code: int = Code.NORMAL, origin: Origin = "peer") -> None:
        """The connection ends: by the peer's goodbye, or otherwise."""
        if self.closed is None:
            self.closed = code, ""
            self.world.feed(Closed(self, code, "", origin))
            self.world.run()

    def die(self) -> None:
        self.leave(Code.TIMEOUT, "timeout")

    # -- look ---------------------------------------------------------------------------------------------------------

    @property
    def end(self) -> Code | None:
        """Why the connection was closed, if it was."""
        return Code(self.closed[0]) if self.closed is not None else None

    def all(self, kind: type[M]) -> list[M]:
        return [message for message in self.said if isinstance(message, kind)]

    def last(self, kind: type[M]) -> M:
        return self.all(kind)[-1]

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.got]


class World:
    """One server, with a clock that a test moves."""

    def __init__(
        self, settings: Settings | None = None, *, ring_bytes: int = RING_BYTES, log: DirectLog | None = None
    ) -> None:
        self.now = 1000.0
        self.settings = settings or Settings()
        self._entropy = 0
        self.store = MemoryStore(ring_bytes, log_id=LOG_ID)
        self.start(log or MemoryLog(self.store))
        self.peers: list[Peer] = []
        self.notices: list[Notice] = []
        self._fed: list[Event | BrokerEvent] = []
        self._later: list[tuple[Peer, bytes]] = []

    def start(self, log: DirectLog) -> None:
        self.server = Server(self.settings, log, entropy=self._bytes, now=self.now, epoch_us=self.now_us)
        self._clock = self.server.listen(EndpointConfig(accepts=True))
        """No client connects to it: it only gives the server the time."""
        self._clock.handle_timers(self.now)

    def _bytes(self, count: int) -> bytes:
        self._entropy += 1
        return self._entropy.to_bytes(count, "big")

    @property
    def now_us(self) -> int:
        return START_US + round((self.now - 1000.0) * 1e6)

    def feed(self, event: Event | BrokerEvent) -> None:
        self._fed.append(event)

    def later(self, peer: Peer, body: bytes) -> None:
        self._later.append((peer, body))

    def handle_fed(self) -> None:
        """Hand everything that was fed to the server, without a turn."""
        fed, self._fed = self._fed, []
        for event in fed:
            if isinstance(event, BrokerEvent):
                self.server.broker.handle(event, self.now_us)
            else:
                self.server.native.handle(event, self.now_us)

    def run(self) -> None:
        """Everything that was fed, and what follows from it, until nothing happens any more."""
        for _ in range(10_000):
            self.handle_fed()
            self.notices += self.server.run_turn()
            later, self._later = self._later, []
            for peer, body in later:
                if peer.closed is None:
                    peer.receive(0, peer._records[0], body)
            taken = [peer.confirm_all() for peer in self.peers if peer.confirms_itself]
            if not self._fed and not any(taken) and self.server.next_timer() > self.now:
                return
        raise AssertionError("it does not come to rest")

    def pass_s(self, seconds: float) -> None:
        """Time passes, with all timers that fall due on the way."""
        end = self.now + seconds
        while (timer := self.server.next_timer()) <= end:
            self.now = max(self.now, timer)
            self._clock.handle_timers(self.now)
            self.run()
        self.now = end
        self._clock.handle_timers(self.now)
        self.run()

    def peer(self, host: str = "192.0.2.1") -> Peer:
        """A connection that has not logged in."""
        peer = Peer(self, (host, 40_000 + len(self.peers)))
        self.peers.append(peer)
        self.feed(Connected(peer, b""))
        self.run()
        return peer

    def client(self, name: str | None = None, **fields: Any) -> Peer:
        """One that has."""
        peer = self.peer()
        peer.login(name, **fields)
        return peer

    def told(self, kind: str) -> list[str]:
        """The texts of the notices of a kind."""
        return [notice.text for notice in self.notices if notice.kind == kind]
