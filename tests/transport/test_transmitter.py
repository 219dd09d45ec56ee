"""Packets and trains: full where they can be, of one size but the last, within window, pacer and a train's limits."""

from __future__ import annotations

import pytest
from tests.transport.world import CLIENT, SERVER, World, send_all

from godwit.limits import MAX_SENT_PACKETS, MAX_TRAIN_BYTES, MAX_TRAIN_DATAGRAMS
from godwit.transport import transmitter as transmit_module
from godwit.transport.config import EndpointConfig
from godwit.transport.events import Train
from godwit.wire import packet as wire
from godwit.wire.packet import decode_packet


def quick(**config: int) -> World:
    """A path on which the rate grows high, so that trains get long."""
    return World(delay_s=0.0002, client=EndpointConfig(**config), server=EndpointConfig(accepts=True, **config))  # type: ignore[arg-type]


def test_trains_keep_their_limits_and_have_one_size() -> None:
    world = quick(receive_buffer_bytes=4_000_000)
    client, _ = world.connect()
    trains: list[Train] = []
    depart = world.depart

    def noting(side: object, train: Train) -> None:
        trains.append(train)
        depart(side, train)  # type: ignore[arg-type]

    world.depart = noting  # type: ignore[method-assign]
    for _ in range(20):
        send_all(world, client, [bytes(150_000), b"small", bytes(20_000)])
        world.run(0.02)
    assert max(len(train.data) for train in trains) > 50_000
    for train in trains:
        datagrams = list(train.datagrams())
        assert len(datagrams) <= MAX_TRAIN_DATAGRAMS
        assert len(train.data) <= MAX_TRAIN_BYTES
        assert all(len(datagram) == train.segment_bytes for datagram in datagrams[:-1])
        for datagram in datagrams:
            decode_packet(datagram)


def test_a_train_is_at_most_an_eighth_of_the_peers_buffer() -> None:
    world = quick(receive_buffer_bytes=40_000)
    client, _ = world.connect()
    longest = 0
    for _ in range(20):
        send_all(world, client, [bytes(100_000)])
        until = world.now + 0.02
        while world.now < until:
            for train in world.client.endpoint.trains(world.now):
                longest = max(longest, len(train.data))
                world.depart(world.client, train)
            world.step(until)
    assert 1472 < longest <= 5000


def test_small_records_share_a_packet() -> None:
    world = World()
    client, _ = world.connect()
    world.run(0.5)
    before = len(world.log)
    send_all(world, client, [b"x" * 20] * 20)
    client.send(0, b"control")
    client.send(0, b"unreliable", reliable=False)
    world.run(0.1)
    packets = [flying for flying in world.log[before:] if flying.source == CLIENT and flying.has(wire.DataFrame)]
    assert len(packets) == 1
    frames = packets[0].frames()
    assert [frame.body for frame in frames if isinstance(frame, wire.DataFrame)][:2] == [b"control", b"unreliable"]
    assert len(frames) == 22


def test_one_small_record_costs_few_bytes() -> None:
    """DESIGN: a one-message publication costs at most 40 bytes over its payload."""
    world = World()
    client, _ = world.connect()
    world.run(0.5)
    before = len(world.log)
    send_all(world, client, [b"x" * 100])
    world.run(0.1)
    (packet,) = [flying for flying in world.log[before:] if flying.source == CLIENT]
    assert len(packet.data) - 100 <= 40 - 9  # nine bytes are the batch's head


def test_acknowledgements_and_announcements_ride_with_data() -> None:
    world = World()
    client, server = world.connect()
    world.run(0.5)
    channel = send_all(world, client, [b"question"])
    world.run(world.delay_s + 0.001)
    before = len(world.log)
    server.confirm(channel, 1, 1)
    send_all(world, server, [b"answer"])
    world.run(0.001)
    (packet,) = [flying for flying in world.log[before:] if flying.source == SERVER]
    assert [type(frame) for frame in packet.frames()] == [wire.AckFrame, wire.ConfirmFrame, wire.DataFrame]


def test_packet_numbers_are_never_used_twice() -> None:
    world = World(2, loss=0.2)
    client, server = world.connect()
    send_all(world, client, [bytes(50_000)])
    send_all(world, server, [bytes(50_000)])
    world.run(5.0)
    client.close(world.now)
    world.run(5.0)
    for connection in (client, server):
        numbers = [
            decode_packet(flying.data)[1] for flying in world.log
            if int.from_bytes(flying.data[1:9], "big") == connection.id and not flying.has(wire.CookieFrame)
            and not flying.has(wire.AcceptFrame)
        ]  # fmt: skip
        assert numbers == sorted(set(numbers))
        assert numbers[0] == 0


def test_never_more_in_flight_than_the_window() -> None:
    world = World(bytes_per_s=1.25e6)
    client, _ = world.connect()
    send_all(world, client, [bytes(500_000)])
    while not world.server.records:
        before = client.statistics
        world.drain()
        after = client.statistics
        # (When the window shrinks, what is in flight already stays; and a probe or announcement may go beyond it.)
        if after.in_flight_bytes > before.in_flight_bytes + 200:
            assert after.in_flight_bytes <= after.window_bytes + 200
        world.step(world.now + 1.0)


def test_the_rate_is_paced() -> None:
    """On a slow path with a deep queue, what is sent in any tenth of a second stays near the rate."""
    world = World(bytes_per_s=125_000, queue_bytes=10**6)
    client, _ = world.connect()
    channel = send_all(world, client, [bytes(50_000)] * 8)
    world.run_until(lambda: len(world.server.bodies(channel)) == 8, 20.0)
    sent = [(flying.at, len(flying.data)) for flying in world.log if flying.source == CLIENT and flying.at > 101.5]
    for start in [101.6 + n / 10 for n in range(8)]:
        burst = sum(size for at, size in sent if start <= at < start + 0.1)
        assert burst < 0.1 * 125_000 * 1.25 * 1.2 + 3000


def test_a_bounded_number_of_packets_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transmit_module, "MAX_SENT_PACKETS", 20)
    world = World()
    client, _ = world.connect()
    world.run(0.5)
    channel = send_all(world, client, [bytes(1)] * 5 + [bytes(100_000)])
    most = 0
    while len(world.server.bodies(channel)) < 6:
        world.step(world.now + 1.0)
        most = max(most, client.statistics.in_flight_bytes)
    assert most <= 20 * 1472 + 10 * 1472
    assert MAX_SENT_PACKETS > 20


def test_announcements_wait_too_when_far_too_much_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transmit_module, "MAX_SENT_PACKETS", 0)
    world = World()
    connection = world.client.endpoint.connect(SERVER, world.now)
    world.run(2.0)
    connection.confirm(1, 1, 1)
    world.run(0.2)
    assert not any(flying.has(wire.ConfirmFrame) for flying in world.log if flying.source == CLIENT)


def test_the_probe_timer_sends_two_packets_whatever_the_window_says() -> None:
    world = World()
    client, _ = world.connect()
    world.run(0.5)
    channel = send_all(world, client, [bytes(200_000)])
    world.run(0.03)
    world.fate = lambda flying: []
    world.run(0.5)
    late = [flying for flying in world.log if flying.source == CLIENT and flying.at > world.now - 0.4]
    moments: dict[float, int] = {}
    for flying in late:
        moments[flying.at] = moments.get(flying.at, 0) + 1
    assert moments
    assert max(moments.values()) <= 3
    world.fate = world.usual_fate
    world.run_until(lambda: bool(world.server.bodies(channel)))


def test_a_lone_probe_repeats_the_oldest_packet() -> None:
    world = World()
    client, _ = world.connect()
    world.run(0.5)
    world.loss = 1.0
    channel = send_all(world, client, [b"only once"])
    world.run(0.02)
    world.loss = 0.0
    world.run(0.5)
    assert world.server.bodies(channel) == [b"only once"]
    assert client.statistics.fragments_resent >= 1


def test_packets_that_only_ask_are_long_enough_to_be_answered_with_a_reset() -> None:
    world = World()
    client, _ = world.connect()
    world.run(0.5)
    world.fate = lambda flying: [] if flying.source == SERVER and flying.has(wire.PingFrame) else [world.delay_s]
    reset_bytes = 17 + 17
    before = len(world.log)
    world.run(15.0)
    asked = [flying for flying in world.log[before:] if flying.source == CLIENT and flying.has(wire.PingFrame)]
    assert asked
    assert all(len(flying.data) > reset_bytes for flying in asked)
    assert client.statistics.packets_lost == 0
