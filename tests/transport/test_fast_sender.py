"""The short way out sends what the long way would send, byte for byte, in both directions."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.transport.by_hand import Server
from tests.transport.world import Side, World

from godwit.limits import MAX_ACK_DELAY_S
from godwit.transport import fast_path
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.connection_state import Statistics
from godwit.transport.events import Event
from godwit.transport.fast_path import MAX_FAST_RECORD_BYTES, NOT_HANDLED, FastReceiver, FastSender
from godwit.wire import packet as wire

# -- the same as the long way -----------------------------------------------------------------------------------------


class Session:
    """Small records, confirms and now and then something else, in one direction or both. `seed` decides all."""

    def __init__(self, seed: int, loss: float) -> None:
        self.world = World(seed, loss=loss, delay_s=0.004)
        self.rng = random.Random(seed)
        client, server = self.world.connect()
        self.ends = [(client, self.world.server), (server, self.world.client)]
        """Who sends, and who gets it."""
        self.channels = {one: [one.open_channel() for _ in range(2)] for one, _ in self.ends}
        self.confirmed: dict[tuple[Connection, int], int] = {}
        self.confirms = self.rng.choice((0.3, 1.0))
        self.unreliable = self.rng.choice((0.0, 0.1, 0.5))
        self.large = self.rng.choice((0.0, 0.02))
        self.senders = self.ends[: self.rng.choice((1, 2))]
        self.replies = seed % 2 == 1

    def run(self) -> None:
        for number in range(100):
            for sender, _ in self.senders:
                self._send(sender, number)
            self.world.run(self.rng.choice((0.001, 0.008, 0.012, 0.03)))
            for sender, receiver in self.ends:
                self._confirm(sender, receiver)
            for sender, _ in self.senders:
                if self.replies and self.rng.random() < 0.5:  # in the packet of the confirm
                    sender.send(self.channels[sender][0], b"reply")
            self.world.drain()
            if self.rng.random() < 0.3:
                self.world.run(0.02)
        self.world.run(1.0)

    def _send(self, sender: Connection, number: int) -> None:
        rng = self.rng
        for channel in self.channels[sender][: rng.choice((0, 1, 1, 1, 2))]:
            sender.send(channel, b"%d" % number * rng.randrange(20), reliable=rng.random() >= self.unreliable)
        if rng.random() < 0.05:
            sender.send(0, b"control")
        if rng.random() < self.large:
            sender.send(
                self.channels[sender][0],
                bytes(rng.choice((MAX_FAST_RECORD_BYTES, MAX_FAST_RECORD_BYTES + 1, 1160, 1170, 5000))),
            )

    def _confirm(self, sender: Connection, receiver: Side) -> None:
        """Who got it confirms it, now or some time later."""
        newest = {one.channel: one.record for one in receiver.records if one.reliable and one.channel}
        for channel, record in newest.items():
            if self.confirmed.get((sender, channel)) != record and self.rng.random() < self.confirms:
                self.confirmed[sender, channel] = record
                receiver.connection.confirm(channel, record, record % 3)

    def seen(self) -> tuple[list[tuple[float, bytes]], list[list[tuple[Any, ...]]], list[Statistics], list[Any]]:
        """All that was said, told, counted and dropped."""
        told = [
            [
                (type(event), *(getattr(event, name) for name in event.__struct_fields__ if name != "connection"))
                for event in side.events
            ]
            for side in self.world.sides
        ]
        control_keys = [(flying.at, flying.data) for flying in self.world.log]
        dropped = [side.endpoint.dropped for side in self.world.sides]
        return control_keys, told, [one.statistics for one, _ in self.ends], dropped


@pytest.mark.parametrize("loss", [0.0, 0.03, 0.2])
@pytest.mark.parametrize("seed", range(8))
def test_the_short_way_does_what_the_long_way_does(seed: int, loss: float, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {"in": 0, "out": 0, "is_idle": 0}
    true_receive, true_packet, true_rests = FastReceiver.handle_packet, FastSender.next_packet, FastSender.is_idle

    def receive(self: FastReceiver, packet: bytes, connection: Connection, now: float, events: list[Event]) -> int:
        found = true_receive(self, packet, connection, now, events)
        taken["in"] += found is not NOT_HANDLED
        return found

    def packet(self: FastSender, now: float) -> bytes | None:
        found = true_packet(self, now)
        taken["out"] += found is not None
        return found

    def is_idle(self: FastSender, now: float) -> bool:
        found = true_rests(self, now)
        taken["is_idle"] += found
        return found

    monkeypatch.setattr(FastReceiver, "handle_packet", receive)
    monkeypatch.setattr(FastSender, "next_packet", packet)
    monkeypatch.setattr(FastSender, "is_idle", is_idle)
    by_the_short_way = Session(seed, loss)
    by_the_short_way.run()
    assert min(taken.values()) > (50 if loss < 0.1 else 0), f"seed {seed}: {taken}"
    monkeypatch.setattr(FastReceiver, "handle_packet", lambda *_: NOT_HANDLED)
    monkeypatch.setattr(FastSender, "next_packet", lambda *_: None)
    monkeypatch.setattr(FastSender, "is_idle", lambda *_: False)
    by_the_long_way = Session(seed, loss)
    by_the_long_way.run()
    one, other = by_the_short_way.seen(), by_the_long_way.seen()
    for mine, yours in zip(one[0], other[0], strict=False):
        assert mine == yours, f"seed {seed}: at {mine[0]}"
    assert one == other, f"seed {seed}"


# -- one by one -------------------------------------------------------------------------------------------------------


def test_one_packet_comes_back_for_a_record_that_is_confirmed_at_once() -> None:
    server = Server()
    server.control_keys()
    for record in range(1, 50):
        server.comes(server.ack(), server.record(record))
        server.connection.confirm(1, record, 1)
        assert server.control_keys() == [[wire.AckFrame(0, ((0, server.number - 1),)), wire.ConfirmFrame(1, record, 1)]]
        server.world.now += 0.01
    assert server.connection.statistics.packets_lost == 0


def test_a_late_confirm_goes_alone() -> None:
    server = Server()
    server.comes(server.record(1))
    server.world.run(2 * MAX_ACK_DELAY_S)
    server.connection.confirm(1, 1, 4)
    assert server.control_keys() == [[wire.ConfirmFrame(1, 1, 4)]]


def test_an_acknowledgement_that_found_nothing_to_ride_with_goes_alone() -> None:
    server = Server()
    server.comes(server.record(1))
    assert server.control_keys() == []
    server.world.now += MAX_ACK_DELAY_S
    server.world.server.endpoint.handle_timers(server.world.now)
    (frames,) = server.control_keys()
    assert [type(frame) for frame in frames] == [wire.AckFrame]
    assert server.connection.statistics.in_flight_bytes == 0


def test_a_clients_confirm_alone_is_longer_than_a_reset() -> None:
    world = World()
    client, server = world.connect()
    world.run(0.2)
    server.send(server.open_channel(), b"record")
    world.run(0.2)
    before = len(world.log)
    client.confirm(1, 0, 0)
    world.drain()
    (flying,) = world.log[before:]
    assert flying.frames() == [wire.ConfirmFrame(1, 0, 0)]
    assert len(flying.data) == 13 + 17 + 1 + 4
    world.run(0.2)
    assert client.statistics.in_flight_bytes == 0


def test_a_record_goes_with_the_acknowledgement_that_waits() -> None:
    server = Server()
    channel = server.connection.open_channel()
    server.comes(server.record(1))
    server.connection.send(channel, b"answer", last=True)
    assert server.control_keys() == [
        [
            wire.AckFrame(0, ((0, server.number - 1),)),
            wire.DataFrame(wire.WHOLE | wire.LAST | wire.END, channel, 0, 0, None, b"answer"),
        ]
    ]
    server.comes(server.ack())
    server.control_keys()
    assert server.connection.buffered_bytes == len(server.record(1).body) + 128  # what was not consumed
    server.connection.send(server.connection.open_channel(), b"u", reliable=False)
    assert server.control_keys() == [[wire.DataFrame(wire.WHOLE | wire.UNRELIABLE, channel + 1, 0, 0, None, b"u")]]


def test_a_reply_goes_with_the_confirm_and_the_acknowledgement() -> None:
    server = Server()
    channel = server.connection.open_channel()
    server.comes(server.ack(), server.record(1))
    server.connection.confirm(1, 1, 3)
    server.connection.send(channel, b"reply")
    fast_sender = server.connection._fast_sender
    assert fast_sender is not None
    packet = fast_sender.next_packet(server.world.now)
    assert packet is not None
    _, _, content = wire.decode_packet(packet)
    assert list(wire.decode_frames(content)) == [
        wire.AckFrame(0, ((0, server.number - 1),)),
        wire.ConfirmFrame(1, 1, 3),
        wire.DataFrame(wire.WHOLE | wire.LAST, channel, 0, 0, None, b"reply"),
    ]
    assert fast_sender.next_packet(server.world.now) is None


def test_two_things_to_say_share_a_packet() -> None:
    server = Server()
    connection = server.connection
    one, other = connection.open_channel(), connection.open_channel()
    connection.confirm(1, 0, 1)
    connection.confirm(2, 0, 1)
    assert server.control_keys() == [[wire.ConfirmFrame(1, 0, 1), wire.ConfirmFrame(2, 0, 1)]]
    for number, (channel, body) in enumerate(((other, b"2"), (one, b"2"), (0, b"2"))):
        server.comes(server.ack())
        connection.send(one, b"1")
        connection.send(channel, body)
        (frames,) = server.control_keys()
        assert len(frames) >= 2, number
    for sequence, reliable in ((1, True), (2, False)):
        server.comes(server.ack())
        server.control_keys()
        connection.send(one, b"1", reliable=reliable)
        connection.confirm(1, sequence, 1)
        (frames,) = server.control_keys()
        assert [type(frame) for frame in frames] == [wire.ConfirmFrame, wire.DataFrame]


def test_a_record_without_credit_waits() -> None:
    world = World(client=EndpointConfig(channel_window_bytes=2000, connection_window_bytes=2000))
    _, server = world.connect()
    world.run(0.2)
    world.client.consumes = False
    channel = server.open_channel()
    for _ in range(20):
        server.send(channel, bytes(100))
        world.run(0.05)
    assert len(world.client.bodies(channel)) == 2000 // 228
    for event in world.client.records:
        event.connection.consume(event.channel, len(event.body))
    world.client.consumes = True
    world.run(3.0)
    assert len(world.client.bodies(channel)) == 20


def test_a_confirm_that_nobody_acknowledges_is_said_again() -> None:
    server = Server()
    server.connection.confirm(1, 0, 1)
    before = len(server.world.log)
    server.world.run(1.0)
    control_keys = [
        one for flying in server.world.log[before:] for one in flying.frames() if isinstance(one, wire.ConfirmFrame)
    ]
    assert len(control_keys) >= 3
    assert set(control_keys) == {wire.ConfirmFrame(1, 0, 1)}


def test_a_peer_that_acknowledges_nothing_is_not_answered_in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path, "MAX_FAST_IN_FLIGHT", 3)
    server = Server()
    short_way = server.connection._fast_sender
    assert short_way is not None
    given = []
    for sequence in range(5):
        server.connection.confirm(1, sequence, 0)
        given.append(short_way.next_packet(server.world.now) is not None)
    assert given == [True, True, True, False, False]
