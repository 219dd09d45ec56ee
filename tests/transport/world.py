"""Two endpoints in virtual time, and a network between them that a test can program.

`World.fate` decides about each datagram: it gives the delays after which copies of it arrive, none if it is lost.
Every train is checked against the limits of a train, and a timer that stands still is a failure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import TypeVar

import msgspec
from hypothesis import settings

from godwit.limits import MAX_TRAIN_BYTES, MAX_TRAIN_DATAGRAMS
from godwit.transport import handshake
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, Closed, Connected, ConnectionState, Event, Received, Train
from godwit.wire import packet as wire
from godwit.wire.packet import decode_packet, encode_packet
from godwit.wire.parameters import Arq

CLIENT: Address = ("192.0.2.1", 5000)
SERVER: Address = ("198.51.100.7", 7000)
STRANGER: Address = ("203.0.113.9", 6666)

ARQS: tuple[Arq, ...] = ("selective-repeat", "go-back-n", "stop-and-wait")
MAX_STEPS_AT_ONE_TIME = 2000
"""More steps without any time passing: a timer is due for ever."""

E = TypeVar("E")


class Flying(msgspec.Struct, frozen=True):
    """A datagram that has just left."""

    source: Address
    target: Address
    data: bytes
    at: float
    count: int
    """How many left the same side before it."""

    def frames(self) -> list[wire.Frame]:
        return wire.decode_frames(decode_packet(self.data)[2])

    def has(self, kind: type[wire.Frame]) -> bool:
        return any(isinstance(frame, kind) for frame in self.frames())


class Side:
    """One endpoint and what has happened at it."""

    def __init__(self, config: EndpointConfig, address: Address, entropy: Callable[[int], bytes]) -> None:
        self.endpoint = Endpoint(config, entropy=entropy)
        self.address = address
        self.events: list[Event] = []
        self.consumes = True
        """Whether it takes each record at once."""
        self.sends = 0

    def all(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def records(self) -> list[Received]:
        return self.all(Received)

    def bodies(self, channel: int | None = None, *, reliable: bool = True) -> list[bytes]:
        return [
            one.body for one in self.records if one.reliable is reliable and (channel is None or one.channel == channel)
        ]

    @property
    def connection(self) -> Connection:
        """The connection that was opened last."""
        return self.all(Connected)[-1].connection

    def note_events(self) -> None:
        for event in self.endpoint.events():
            self.events.append(event)
            if isinstance(event, Received) and event.reliable and self.consumes:
                event.connection.consume(event.channel, len(event.body))


class World:
    """A client, a server, and what lies between them. `seed` decides all."""

    def __init__(
        self,
        seed: int = 1,
        *,
        client: EndpointConfig | None = None,
        server: EndpointConfig | None = None,
        delay_s: float = 0.01,
        loss: float = 0.0,
        bytes_per_s: float | None = None,
        queue_bytes: int = 40_000,
        mtu_bytes: int | None = None,
        start: float = 100.0,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = start
        self.client = Side(client or EndpointConfig(), CLIENT, self.rng.randbytes)
        self.server = Side(server or EndpointConfig(accepts=True), SERVER, self.rng.randbytes)
        self.sides = (self.client, self.server)
        self.routes: dict[Address, Side] = {CLIENT: self.client, SERVER: self.server}
        self.delay_s = delay_s
        self.loss = loss
        self.bytes_per_s = bytes_per_s
        self.queue_bytes = queue_bytes
        self.mtu_bytes = mtu_bytes
        self.fate: Callable[[Flying], Iterable[float]] = self.usual_fate
        self.log: list[Flying] = []
        """Every datagram that left either side."""
        self.overflowed = 0
        """Datagrams that found the queue full."""
        self._smuggled: dict[Side, bytes] = {}
        self._link_free_at = {CLIENT: start, SERVER: start}
        self._in_the_air: list[tuple[float, int, Address, Address, bytes]] = []
        self._launched = 0
        self._steps_at_one_time = 0

    # -- the network --------------------------------------------------------------------------------------------------

    def usual_fate(self, flying: Flying) -> list[float]:
        """Loss by chance, by a full queue, or because the path does not carry the size."""
        if self.mtu_bytes is not None and len(flying.data) > self.mtu_bytes:
            return []
        waits_s = 0.0
        if self.bytes_per_s is not None:
            at = SERVER if flying.target == SERVER else CLIENT
            free_at = max(self._link_free_at[at], self.now)
            if (free_at - self.now) * self.bytes_per_s > self.queue_bytes:
                self.overflowed += 1
                return []
            self._link_free_at[at] = free_at + (len(flying.data) + 28) / self.bytes_per_s
            waits_s = self._link_free_at[at] - self.now
        return [] if self.rng.random() < self.loss else [waits_s + self.delay_s]

    def launch(self, source: Address, target: Address, data: bytes, delay_s: float) -> None:
        """Send a datagram, of any origin."""
        self._launched += 1
        heappush(self._in_the_air, (self.now + delay_s, self._launched, source, target, data))

    def depart(self, side: Side, train: Train) -> None:
        datagrams = list(train.datagrams())
        assert datagrams, "an empty train"
        assert len(datagrams) <= MAX_TRAIN_DATAGRAMS, f"seed {self.seed}: a train of {len(datagrams)} datagrams"
        assert len(train.data) <= MAX_TRAIN_BYTES, f"seed {self.seed}: a train of {len(train.data)} bytes"
        for data in datagrams:
            data = self._with_smuggled(self.routes.get(train.address), data)
            flying = Flying(side.address, train.address, data, self.now, side.sends)
            side.sends += 1
            self.log.append(flying)
            for delay_s in self.fate(flying):
                self.launch(side.address, train.address, data, delay_s)

    def _with_smuggled(self, target: Side | None, data: bytes) -> bytes:
        if target is None or target not in self._smuggled or data[1:9] == bytes(8):
            return data
        connection_id, number, content = decode_packet(data)
        return encode_packet(connection_id, number, self._smuggled.pop(target) + content)

    def _arrivals(self) -> list[tuple[Address, Train]]:
        """What arrives now, as the trains that a kernel would make of it."""
        trains: list[tuple[Address, list[bytes], Address]] = []
        while self._in_the_air and self._in_the_air[0][0] <= self.now:
            _, _, source, target, data = heappop(self._in_the_air)
            if trains and trains[-1][0] == target and trains[-1][2] == source:
                group = trains[-1][1]
                if len(group[-1]) == len(group[0]) >= len(data) and len(group) < MAX_TRAIN_DATAGRAMS:
                    group.append(data)
                    continue
            trains.append((target, [data], source))
        return [(target, Train(source, b"".join(group), len(group[0]))) for target, group, source in trains]

    # -- time ---------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        for side in self.sides:
            side.note_events()
            for train in side.endpoint.trains(self.now):
                self.depart(side, train)

    def next_time(self) -> float | None:
        times = [time for side in self.sides if (time := side.endpoint.next_timer()) is not None]
        if self._in_the_air:
            times.append(self._in_the_air[0][0])
        return min(times) if times else None

    def step(self, until: float) -> bool:
        """To the next thing that happens, at the latest `until`. False when nothing is left to happen by then."""
        self.drain()
        then = self.next_time()
        if then is None or then > until:
            self.now = max(self.now, until)
            return False
        self._steps_at_one_time = self._steps_at_one_time + 1 if then <= self.now else 0
        assert self._steps_at_one_time < MAX_STEPS_AT_ONE_TIME, f"seed {self.seed}: time stands still at {self.now}"
        self.now = max(self.now, then)
        for target, train in self._arrivals():
            side = self.routes.get(target)
            if side is not None:
                side.endpoint.receive(train, self.now)
        for side in self.sides:
            side.endpoint.handle_timers(self.now)
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
                self.drain()
                assert holds(), f"seed {self.seed}: not within {limit_s:g} s; {self.describe()}"
                return

    def describe(self) -> str:
        parts = []
        for name, side in (("client", self.client), ("server", self.server)):
            parts.append(f"{name}: {dict(side.endpoint.dropped)}, {len(side.records)} records")
            parts += [f"{one.state} {one.statistics}" for one in side.endpoint.connections.values()]
        return "; ".join(parts)

    # -- what tests ask for -------------------------------------------------------------------------------------------

    def connect(self, application: bytes = b"") -> tuple[Connection, Connection]:
        """An open connection, as the client and as the server see it."""
        before = len(self.server.all(Connected))
        connection = self.client.endpoint.connect(SERVER, self.now, application=application)
        self.run_until(lambda: connection.state is ConnectionState.OPEN and len(self.server.all(Connected)) > before)
        self.drain()
        return connection, self.server.connection

    def closed(self, side: Side) -> Closed:
        """The one Closed event of the side."""
        found = side.all(Closed)
        assert len(found) == 1, found
        return found[0]

    def inject(self, side: Side, *datagrams: bytes, source: Address) -> None:
        """Hands datagrams to a side at once, each as a train of its own."""
        for data in datagrams:
            side.endpoint.receive(Train(source, data, max(len(data), 1)), self.now)
        while side.endpoint.waiting_handshakes:
            side.endpoint.handle_timers(self.now)

    def smuggle(self, sender: Connection, target: Side, *frames: wire.Frame, lost: bool = False) -> None:
        """Puts frames before those of the next packet to the target, as a hostile implementation might.

        (Injected as a packet of its own, it would be acknowledged to a peer that never sent it, which breaks a session
        by itself.) The packet carries an unreliable record on channel 0, so that there is one.
        """
        self._smuggled[target] = b"".join(map(wire.encode_frame, frames))
        before = len(target.records)
        sender.send(0, b"carrier", reliable=False)
        self.run(10 * self.delay_s)
        assert target not in self._smuggled
        assert (len(target.records) == before) is lost

    def connection_key(self) -> bytes:
        """The key of the newest connection, as any observer of its handshake can compute it."""
        connect = accept = None
        for flying in self.log:
            for frame in flying.frames():
                if isinstance(frame, wire.ConnectFrame):
                    connect = frame
                elif isinstance(frame, wire.AcceptFrame):
                    accept = frame
        assert connect is not None
        assert accept is not None
        return handshake.connection_key(connect.nonce, accept.nonce)


def examples(share: float) -> settings:
    """A multiple of the examples of the active profile: a soak searches long here too."""
    return settings(max_examples=max(int(settings().max_examples * share), 1))


def packet_for(connection: Connection, number: int, *frames: wire.Frame) -> bytes:
    """An intact packet that the connection takes for one of its peer's."""
    return encode_packet(connection.id, number, b"".join(map(wire.encode_frame, frames)))


def send_all(world: World, connection: Connection, bodies: Sequence[bytes], *, reliable: bool = True) -> int:
    """Sends the records on a new channel; gives its number."""
    channel = connection.open_channel()
    for body in bodies:
        connection.send(channel, body, reliable=reliable)
    return channel
