"""The cost of other subscriptions: a broker with a single subscription against one with a hundred thousand more.

Publisher, server and subscriber run in one process, without sockets and in virtual time. Only the server's share is
measured, from an arriving train to the departing trains, so that nothing hides the cost of the subscriptions. The
others are connected, have confirmed all messages, and match other topics, many with the same prefix as the measured
one.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from typing import Final

from godwit.broker.settings import Settings
from godwit.errors import GodwitError
from godwit.native.effects import OpenChannel
from godwit.server.memory_log import MemoryLog
from godwit.server.server import Listener, Server, endpoint_config
from godwit.store.memory import MemoryStore
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, ChannelConfirmed, Closed, Connected, Received, Train
from godwit.wire.batch import Batch, encode_batch
from godwit.wire.control import (
    ControlMessage,
    Login,
    Opened,
    PublishOpen,
    Subscribe,
    Subscribed,
    Welcome,
    decode_control,
    encode_control,
)
from godwit_bench.processes import GIVE_UP_S, ProcessGroup, receive_reply

MANY: Final = 100_000
OF_ONE_CLIENT: Final = 1000
TOPIC: Final = "bench/site/room/temperature"
BATCH_MESSAGES: Final = 10
MESSAGE_BYTES: Final = 100
AT_ONCE: Final = 16
"""Batches sent to the server in one turn."""
BUFFER_BYTES: Final = 4 << 20
STEP_S: Final = 0.001
_SERVER: Final = ("192.0.2.1", 50000)
_LONG_S: Final = 10 * GIVE_UP_S


def compare(subscriptions: int, *, rounds: int, seconds: float) -> tuple[list[float], list[float]]:
    """Return the batches per second of each round: with one subscription, and with this number of others besides."""
    with ProcessGroup() as processes:
        few, many = receive_reply(processes.start(_compare, subscriptions, rounds, seconds), tuple, within_s=_LONG_S)
    return few, many


def _compare(pipe: Pipe, subscriptions: int, rounds: int, seconds: float) -> None:
    one, crowd = InProcessBroker(), InProcessBroker()
    gc.disable()  # the collector would visit the growing number of subscriptions again and again
    crowd.add_others(subscriptions)
    gc.enable()
    gc.collect()  # all at once, before the first round: it is due, and would count for whichever broker is measured
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for broker, figures in zip((one, crowd), rates, strict=True):
            figures.append(broker.forward(seconds))
    pipe.send(rates)


def filters(count: int) -> Iterator[str]:
    """Yield filters of other subscriptions: all kinds, none of which matches TOPIC."""
    kinds = ("bench/site/room/{}/+", "bench/+/{}/temperature", "bench/site/{}/#", "*/{}", "{}/+/room/temperature")
    for number in range(count):
        yield kinds[number % len(kinds)].format(f"x{number}")


class Client:
    """An endpoint with one connection, which acknowledges and counts received records."""

    def __init__(self, broker: InProcessBroker, number: int, request: ControlMessage) -> None:
        self.address: Address = ("192.0.2.2", number)
        self.endpoint = Endpoint(EndpointConfig(receive_buffer_bytes=BUFFER_BYTES), entropy=os.urandom)
        self.connection = self.endpoint.connect(_SERVER, broker.now)
        self.is_ready = False
        self.channel = 0
        self.records = 0
        self.confirmed = 0
        self._request = request
        self._number = number

    def handle_events(self) -> None:
        for event in self.endpoint.events():
            if isinstance(event, Connected):
                login = Login(request=0, name=f"client-{self._number}", instance=os.urandom(16))
                self.connection.send(0, encode_control(login))
            elif isinstance(event, Received) and event.channel == 0:
                self._on_reply(event)
            elif isinstance(event, Received):
                self.records += 1
                self.connection.consume(event.channel, len(event.body))
                self.connection.confirm(event.channel, event.record, 0)
            elif isinstance(event, ChannelConfirmed):
                self.confirmed = event.sequence
            elif isinstance(event, Closed):
                raise GodwitError(f"the server ended a connection: {event.reason} (code {event.code})")

    def _on_reply(self, event: Received) -> None:
        reply = decode_control(event.body)
        self.connection.consume(0, len(event.body))
        if isinstance(reply, Welcome):
            if isinstance(self._request, PublishOpen):
                self.channel = self.connection.open_channel()
            self.connection.send(self.channel, encode_control(self._request))
        elif isinstance(reply, Opened | Subscribed):
            self.is_ready = True


class InProcessBroker:
    """A server, a publisher and a subscriber, and the connections between them."""

    def __init__(self) -> None:
        self.now = 0.0
        # With the policy "open" a subscription to a plain name creates a topic, which is not to be measured.
        settings = Settings(max_subscriptions=OF_ONE_CLIENT, default_policy="publishers", max_datagram_bytes=1400)
        store = MemoryStore(settings.ring_bytes, log_id=os.urandom(16))
        self.server = Server(
            settings, MemoryLog(store), entropy=os.urandom, now=self.now, epoch_us=time.time_ns() // 1000
        )
        self._listener: Listener = self.server.listen(endpoint_config(settings, receive_buffer_bytes=BUFFER_BYTES))
        self.spent_s = 0.0
        """Processor time of the server's share, without other processes of the machine."""
        self.publisher = Client(self, 1, PublishOpen(topic=TOPIC))
        self.subscriber = Client(self, 2, Subscribe(request=1, subscription=1, filters=[TOPIC]))
        while not (self.publisher.is_ready and self.subscriber.is_ready):
            self.step()

    def step(self) -> None:
        """Pass the output of the clients to the server, and its output back."""
        self.now += STEP_S
        now = self.now
        clients = (self.publisher, self.subscriber)
        trains = []
        for client in clients:
            client.endpoint.handle_timers(now)
            for train in client.endpoint.trains(now):
                trains.append(Train(client.address, train.data, train.segment_bytes))
        listener = self._listener
        answers = []
        began = time.thread_time()
        listener.handle_timers(now)
        for train in trains:
            listener.receive(train, now)
        listener.events()
        while (answer := listener.next_train(now)) is not None:
            answers.append(answer)
        self.spent_s += time.thread_time() - began
        for answer in answers:
            client = next(client for client in clients if client.address == answer.address)
            client.endpoint.receive(Train(_SERVER, answer.data, answer.segment_bytes), now)
        for client in clients:
            client.handle_events()

    def forward(self, seconds: float) -> float:
        """Return the batches per second of the server's time, until it has worked for this time."""
        batch = encode_batch(Batch([bytes(MESSAGE_BYTES)] * BATCH_MESSAGES, time.time_ns() // 1000))
        publisher = self.publisher
        self.spent_s = 0.0
        first = publisher.confirmed
        while self.spent_s < seconds:
            if not publisher.connection.unsent_bytes:
                for _ in range(AT_ONCE):
                    publisher.connection.send(publisher.channel, batch)
            self.step()
        return (publisher.confirmed - first) / self.spent_s

    def add_others(self, count: int) -> None:
        """Add subscriptions directly to the broker, without the transport, to fill the broker's tables."""
        broker, native = self.server.broker, self.server.native
        dialer = Endpoint(EndpointConfig(), entropy=os.urandom)
        now_us = int(self.now * 1e6) + time.time_ns() // 1000
        connection: Connection | None = None
        for number, pattern in enumerate(filters(count)):
            now_us += 1000  # no faster than a client may ask
            if connection is None or number % OF_ONE_CLIENT == 0:
                connection = dialer.connect(_SERVER, 0.0)
                native.handle(Connected(connection, b""), now_us)
                login = Login(request=0, name=f"other-{number}", instance=os.urandom(16))
                native.handle(Received(connection, 0, 0, encode_control(login)), now_us)
            request = Subscribe(request=number, subscription=number, filters=[pattern])
            native.handle(Received(connection, 0, 1, encode_control(request)), now_us)
            for effect in broker.end_turn():
                if isinstance(effect, OpenChannel):
                    native.handle(ChannelConfirmed(connection, effect.channel, 0, 0), now_us)
        self.server.set_wall_clock(self.now, now_us)
