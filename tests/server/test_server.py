"""Endpoints, broker and store as one machine: over a real transport, on several listeners at once."""

from __future__ import annotations

import random

import pytest

from godwit.broker.effects import Effect, Import, Imported
from godwit.broker.settings import Settings
from godwit.limits import CLIENT_WINDOW_BYTES, MAX_RECORD_BYTES, MAX_WORK_RECORD_BYTES, WORK_WINDOW_BYTES
from godwit.server.memory_log import MemoryLog
from godwit.server.server import Listener, Server, endpoint_config
from godwit.store.memory import MemoryStore
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, ChannelConfirmed, Closed, Connected, Received, Train
from godwit.wire import control as c
from godwit.wire.batch import Batch, Entry, decode_batches, encode_batch
from godwit.wire.control import ControlMessage, decode_control, encode_control, is_in_band
from godwit.wire.control_base import Code

START_US = 1_763_200_000_000_000


class Wire:
    """A server with two listeners, and clients' endpoints; a datagram takes no time, and every seventh is lost."""

    def __init__(self, settings: Settings | None = None, *, loses: bool = False) -> None:
        self.rng = random.Random(1)
        self.now = 50.0
        store = MemoryStore(log_id=bytes(16))
        self.server = Server(
            settings or Settings(), MemoryLog(store), entropy=self.rng.randbytes, now=self.now, epoch_us=START_US
        )
        config = endpoint_config(self.server.broker.settings, receive_buffer_bytes=212_992)
        self.listeners: dict[Address, Listener] = {
            ("192.0.2.1", 50_000): self.server.listen(config),
            ("2001:db8::1", 50_000): self.server.listen(config),
        }
        self.clients: list[End] = []
        self.loses = loses
        self.count = 0

    def client(self, place: int = 0) -> End:
        end = End(self, ("198.51.100.1", 40_000 + len(self.clients)), list(self.listeners)[place])
        self.clients.append(end)
        self.run(lambda: end.is_connected)
        return end

    def is_lost(self) -> bool:
        self.count += 1
        return self.loses and self.count % 7 == 0

    def run(self, happened: object = None, seconds: float = 30) -> None:
        """Until something has happened, or nothing moves any more."""
        end = self.now + seconds
        while self.now < end:
            if callable(happened) and happened():
                return
            if not self._move():
                if not callable(happened):
                    return
                self.now += 0.001
                machines: list[Listener | Endpoint] = [*self.listeners.values()]
                machines += [client.endpoint for client in self.clients]
                for machine in machines:
                    timer = machine.next_timer()
                    if timer is not None and timer <= self.now:
                        machine.handle_timers(self.now)
        if callable(happened):
            pytest.fail("it does not happen")

    def _move(self) -> bool:
        moved = False
        for listener in self.listeners.values():
            listener.events()
        for address, listener in self.listeners.items():
            while (train := listener.next_train(self.now)) is not None:
                moved = True
                for client in self.clients:
                    if client.address == train.address and client.server == address and not self.is_lost():
                        client.endpoint.receive(Train(address, train.data, train.segment_bytes), self.now)
        for client in self.clients:
            client.take_events()
            while (train := client.endpoint.next_train(self.now)) is not None:
                moved = True
                if not self.is_lost():
                    target = self.listeners[client.server]
                    target.receive(Train(client.address, train.data, train.segment_bytes), self.now)
        return moved


class End:
    """A client's endpoint, spoken by hand."""

    def __init__(self, wire: Wire, address: Address, server: Address) -> None:
        self.wire = wire
        self.address = address
        self.server = server
        self.endpoint = Endpoint(EndpointConfig(), entropy=wire.rng.randbytes)
        self.connection: Connection = self.endpoint.connect(server, wire.now)
        self.is_connected = False
        self.said: list[ControlMessage] = []
        self.payloads: list[bytes] = []
        self.confirmed: list[tuple[int, int]] = []
        self.closed: Closed | None = None

    def take_events(self) -> None:
        for event in self.endpoint.events():
            match event:
                case Connected():
                    self.is_connected = True
                case Received(connection, channel, record, body, reliable):
                    if channel == 0:
                        self.said.append(decode_control(body))  # type: ignore[arg-type]
                    elif not reliable or (record and body and not is_in_band(body)):
                        self.payloads += [one for batch in decode_batches(body) for one in batch.payloads]
                    if reliable:
                        connection.consume(channel, len(body))
                        if channel:
                            connection.confirm(channel, record, 0)
                case ChannelConfirmed():
                    self.confirmed.append((event.sequence, event.reached))
                case Closed():
                    self.closed = event

    def say(self, message: ControlMessage, kind: type[ControlMessage]) -> None:
        """A request, and the wait for its reply."""
        self.connection.send(0, encode_control(message))
        self.wire.run(lambda: any(isinstance(one, kind) for one in self.said))


def log_in(end: End, name: str) -> None:
    end.say(c.Login(request=1, name=name, instance=bytes(16)), c.Welcome)


@pytest.mark.parametrize("loses", [False, True])
def test_from_one_listener_to_the_other(loses: bool) -> None:
    """Publisher and subscriber sit in two networks, and the broker is the only link between them."""
    wire = Wire(loses=loses)
    alice, bob = wire.client(0), wire.client(1)
    log_in(alice, "alice")
    log_in(bob, "bob")
    bob.say(c.Subscribe(request=2, subscription=1, filters=["news/#"]), c.Subscribed)
    channel = alice.connection.open_channel()
    alice.connection.send(channel, encode_control(c.PublishOpen(topic="news/today")))
    for number in range(200):
        alice.connection.send(channel, encode_batch(Batch([b"%d" % number * 200], 0)))
    wire.run(lambda: len(bob.payloads) == 200 and alice.confirmed[-1:] == [(200, 1)])
    assert bob.payloads == [b"%d" % number * 200 for number in range(200)]


def test_a_stopped_broker_tells_its_clients() -> None:
    wire = Wire()
    clients = [wire.client(0), wire.client(1)]
    wire.server.close(wire.now)
    wire.run(lambda: all(client.closed for client in clients))
    assert {(client.closed.code, client.closed.reason) for client in clients if client.closed} == {
        (Code.SHUTDOWN, "the broker is being stopped")
    }


def test_a_refused_login_closes_with_its_reason() -> None:
    wire = Wire()
    peer = wire.client()
    peer.connection.send(0, encode_control(c.Login(request=1, name="$x", instance=bytes(16))))
    wire.run(lambda: peer.closed)
    assert peer.closed is not None
    assert peer.closed.code == Code.BAD_NAME
    assert "'$x'" in peer.closed.reason


def test_there_are_only_so_many_clients() -> None:
    wire = Wire(Settings(max_clients=1))
    wire.client()
    second = End(wire, ("198.51.100.1", 41_000), ("192.0.2.1", 50_000))
    wire.clients.append(second)
    wire.run(lambda: second.closed)
    assert second.closed is not None
    assert (second.closed.code, second.closed.origin) == (Code.BUSY, "refused")


def test_before_the_login_nothing_is_taken_but_control_messages() -> None:
    wire = Wire()
    stranger, guest = wire.client(0), wire.client(1)
    assert not any(one.is_admitted for side in wire.server.listeners for one in side.endpoint.connections.values())
    stranger.connection.send(stranger.connection.open_channel(), bytes(16_000_000))
    wire.run(lambda: stranger.closed)
    assert stranger.closed is not None
    assert stranger.closed.code == Code.NOT_LOGGED_IN
    assert wire.server.buffered_bytes < 100_000
    log_in(guest, "guest")
    (connection,) = wire.server.listeners[1].endpoint.connections.values()
    assert connection.is_admitted


def test_all_listeners_have_one_bound_for_unfinished_records() -> None:
    wire = Wire()
    one, other = (listener.endpoint._budget for listener in wire.server.listeners)
    assert one is other


def test_the_clock_on_the_wall_never_goes_backwards() -> None:
    wire = Wire()
    server = wire.server
    before_us = server.now_us
    server.set_wall_clock(wire.now, START_US - 10**9)
    assert server.now_us == before_us
    server.set_wall_clock(wire.now, START_US + 10**9)
    assert server.now_us == START_US + 10**9


def test_a_listener_offers_what_the_settings_say() -> None:
    config = endpoint_config(Settings(max_datagram_bytes=1400), receive_buffer_bytes=1_000_000)
    assert config.accepts
    assert config.max_record_bytes == MAX_RECORD_BYTES
    assert config.connection_window_bytes == CLIENT_WINDOW_BYTES
    work_bytes = WORK_WINDOW_BYTES + MAX_WORK_RECORD_BYTES
    assert config.send_buffer_bytes >= CLIENT_WINDOW_BYTES + MAX_RECORD_BYTES + work_bytes
    small = endpoint_config(
        Settings(max_message_bytes=1000, client_window_bytes=65_536, max_datagram_bytes=1200),
        receive_buffer_bytes=65_536,
    )
    assert (config.max_datagram_bytes, small.max_datagram_bytes) == (1400, 1200)
    assert small.max_record_bytes < 100_000
    assert small.channel_window_bytes == 65_536


# -- what the archive brings ------------------------------------------------------------------------------------------


def test_staged_messages_are_appended_once_and_answered() -> None:
    wire = Wire()
    whole = encode_batch(Batch([b"x"], 1))
    entries = [
        Entry(topic="news", publisher="spark", flags=whole[0], published_us=1, received_us=0, count=1, rest=whole[9:])
    ] * 3
    for key in (7, 8):
        wire.server.import_staged(Import(key, "query", 1, entries))
        wire.server.run_turn()
    assert wire.server.imported == [Imported(7, first_offset=0, count=3), Imported(8, was_known=True)]
    assert wire.server.log.next_offset == 3


def test_a_turn_without_work_does_not_run_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire()
    log_in(wire.client(), "alice")
    wire.run()
    turns: list[str] = []
    true_end_turn = wire.server.broker.end_turn

    def end_turn() -> list[Effect]:
        turns.append("turn")
        return true_end_turn()

    monkeypatch.setattr(wire.server.broker, "end_turn", end_turn)
    wire.server.run_turn()
    assert turns == []
    wire.server.change_settings(Settings(max_clients=5))
    wire.server.run_turn()
    assert turns
    turns.clear()
    wire.server.run_turn()
    assert turns == []
    wire.clients[0].connection.send(0, encode_control(c.Ping(request=7)))
    wire.run()
    assert turns
    assert c.Pong(request=7) in wire.clients[0].said
    turns.clear()
    wire.server.listeners[0].handle_timers(wire.server.next_timer())
    wire.server.run_turn()  # the figures are published
    assert turns


def test_messages_are_sent_before_confirms() -> None:
    wire = Wire()
    alice, bob = wire.client(), wire.client()
    log_in(alice, "alice")
    log_in(bob, "bob")
    bob.say(c.Subscribe(request=2, subscription=1, filters=["news/#"]), c.Subscribed)
    channel = alice.connection.open_channel()
    alice.connection.send(channel, encode_control(c.PublishOpen(topic="news/today")))
    wire.run(lambda: any(isinstance(one, c.Opened) for one in alice.said))
    wire.run()
    alice.connection.send(channel, encode_batch(Batch([b"one"], 0)))
    listener = wire.listeners[alice.server]
    train = alice.endpoint.next_train(wire.now)
    assert train is not None
    listener.receive(Train(alice.address, train.data, train.segment_bytes), wire.now)
    listener.events()
    sent = [train.address for train in iter(lambda: listener.next_train(wire.now), None)]
    assert sent == [bob.address, alice.address]
