"""Whole transfers in virtual time: three disciplines, both directions, loss; each record once, whole and in order."""

from __future__ import annotations

from typing import Any

import pytest
from tests.transport.world import ARQS, Flying, Side, World, send_all

from godwit.errors import SendBufferFullError
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.events import Closed, Connected, ConnectionState

LOSSES = [0.0, 0.05, 0.2]


def both_ways(world: World, up: dict[int, list[bytes]], down: dict[int, list[bytes]], limit_s: float) -> None:
    """Sends the records of each channel both ways, and checks that they arrive."""
    client, server = world.connect()
    jobs: list[tuple[Connection, Side, dict[int, list[bytes]]]] = [
        (client, world.server, up), (server, world.client, down),
    ]  # fmt: skip
    for connection, _, records in jobs:
        for channel, bodies in records.items():
            assert connection.open_channel() == channel
            for body in bodies:
                connection.send(channel, body)
    world.run_until(
        lambda: all(len(side.records) >= sum(map(len, records.values())) for _, side, records in jobs), limit_s
    )
    world.run(1.0)
    for connection, side, records in jobs:
        for channel, bodies in records.items():
            assert side.bodies(channel) == bodies, f"seed {world.seed}"
        assert connection.state is ConnectionState.OPEN
    world.run(20.0)
    assert world.client.endpoint.buffered_bytes == world.server.endpoint.buffered_bytes == 0, f"seed {world.seed}"
    assert client.statistics.in_flight_bytes == server.statistics.in_flight_bytes == 0, f"seed {world.seed}"


@pytest.mark.parametrize("arq", ARQS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("seed", range(2))
def test_many_small_records(arq: Any, loss: float, seed: int) -> None:
    world = World(seed, client=EndpointConfig(arq=arq), loss=loss)

    def bodies() -> list[bytes]:
        return [world.rng.randbytes(world.rng.randrange(200)) for _ in range(100)]

    both_ways(world, {1: bodies(), 2: bodies(), 3: bodies()}, {1: bodies(), 2: bodies()}, 120.0)


@pytest.mark.parametrize("arq", ARQS)
@pytest.mark.parametrize("loss", LOSSES)
def test_big_records(arq: Any, loss: float) -> None:
    world = World(11, client=EndpointConfig(arq=arq), loss=loss)
    size = 30_000 if arq == "stop-and-wait" else 150_000
    up = {1: [world.rng.randbytes(size) for _ in range(2)], 2: [world.rng.randbytes(size)]}
    both_ways(world, up, {1: [world.rng.randbytes(size)]}, 300.0)


@pytest.mark.parametrize("arq", ARQS)
@pytest.mark.parametrize("seed", range(3))
def test_a_bad_network(arq: Any, seed: int) -> None:
    """Loss, duplication, reordering and a bottleneck at once."""
    world = World(seed, client=EndpointConfig(arq=arq), loss=0.05, bytes_per_s=500_000)

    def fate(flying: Flying) -> list[float]:
        delays = list(world.usual_fate(flying))
        if delays and world.rng.random() < 0.1:
            delays.append(delays[0] + world.rng.uniform(0.0, 0.05))
        return [delay + (world.rng.uniform(0.0, 0.03) if world.rng.random() < 0.1 else 0.0) for delay in delays]

    world.fate = fate
    size = 500 if arq == "stop-and-wait" else 5000
    up = {channel: [world.rng.randbytes(world.rng.randrange(size)) for _ in range(20)] for channel in range(1, 4)}
    both_ways(world, up, {1: [world.rng.randbytes(size) for _ in range(20)]}, 300.0)


@pytest.mark.parametrize("arq", ARQS)
@pytest.mark.parametrize("loss", LOSSES)
def test_unreliable_records_arrive_at_most_once_beside_reliable_ones(arq: Any, loss: float) -> None:
    world = World(5, client=EndpointConfig(arq=arq), loss=loss)
    client, _ = world.connect()
    channel, beside = client.open_channel(), client.open_channel()
    for n in range(400):
        client.send(channel, b"%d" % n, reliable=False)
        if n % 10 == 0:
            client.send(beside, b"reliable %d" % n)
        world.run(0.005)
    world.run(5.0)
    got = [int(body) for body in world.server.bodies(channel, reliable=False)]
    assert len(got) == len(set(got))
    assert len(got) >= 400 * (1 - loss) * 0.85
    assert (len(got) == 400) or loss > 0
    numbers = [record.record for record in world.server.records if not record.reliable]
    assert numbers == got  # their numbers show what was dropped
    assert world.server.bodies(beside) == [b"reliable %d" % n for n in range(0, 400, 10)]


@pytest.mark.parametrize("loss", [0.0, 0.2])
@pytest.mark.parametrize("arq", ARQS)
def test_an_unreliable_record_never_overtakes_a_reliable_one_of_its_channel(arq: Any, loss: float) -> None:
    world = World(7, client=EndpointConfig(arq=arq), loss=loss)
    client, _ = world.connect()
    channel = client.open_channel()
    for n in range(400):
        client.send(channel, b"%d" % n, reliable=n % 20 == 0)
        world.run(0.004)
    world.run(30.0)
    got = [int(record.body) for record in world.server.records]
    assert len(got) == len(set(got))
    assert set(range(0, 400, 20)) <= set(got)
    assert (len(got) == 400) or loss > 0
    if arq != "stop-and-wait":  # it does not keep up, so that all go reliably
        assert any(not record.reliable for record in world.server.records)
    for place, n in enumerate(got):
        assert all(m in got[:place] for m in range(0, n, 20)), n
    assert got == sorted(got) or loss > 0


def test_an_application_that_waits_for_room() -> None:
    world = World(6, client=EndpointConfig(send_buffer_bytes=50_000), loss=0.02, bytes_per_s=1.25e6)
    client, _ = world.connect()
    channel = client.open_channel()
    bodies = [world.rng.randbytes(world.rng.randrange(8000)) for _ in range(200)]
    at = 0
    until = world.now + 60.0
    while at < len(bodies):
        try:
            while at < len(bodies):
                client.send(channel, bodies[at])
                at += 1
        except SendBufferFullError:
            assert client.buffered_bytes <= 50_000
        assert world.step(until)
    world.run_until(lambda: len(world.server.bodies(channel)) == 200)
    assert world.server.bodies(channel) == bodies


def test_a_slow_application_holds_its_sender_back() -> None:
    """A receiver that takes a record now and then holds never more than its window and a record."""
    config = EndpointConfig(
        accepts=True, channel_window_bytes=20_000, connection_window_bytes=30_000, max_record_bytes=10_000
    )
    world = World(7, server=config, loss=0.05)
    client, server = world.connect()
    world.server.consumes = False
    bodies = [world.rng.randbytes(world.rng.randrange(5000)) for _ in range(60)]
    channel = send_all(world, client, bodies)
    taken = 0
    while taken < 60:
        world.run_until(lambda: len(world.server.records) > taken)  # noqa: B023
        assert server.buffered_bytes <= 30_000 + 10_000 + 128
        server.consume(channel, len(world.server.records[taken].body))
        taken += 1
        world.run(0.01)
    assert world.server.bodies(channel) == bodies


@pytest.mark.parametrize(("loss", "least"), [(0.0, 0.85), (0.02, 0.8)])
def test_the_link_is_used_well(loss: float, least: float) -> None:
    """10 Mbit/s, 15 ms one way, a queue of 25 packets, selective repeat."""
    shares = []
    for seed in range(3):
        world = World(
            seed, client=EndpointConfig(send_buffer_bytes=2**30), loss=loss, delay_s=0.015, bytes_per_s=1.25e6,
            queue_bytes=25 * 1500,
        )  # fmt: skip
        client, _ = world.connect()
        start = world.now
        channel = send_all(world, client, [bytes(50_000)] * 40)
        world.run_until(lambda: len(world.server.bodies(channel)) == 40)  # noqa: B023
        shares.append(2_000_000 / (world.now - start) / 1.25e6)
    assert sum(shares) / len(shares) >= least, shares


def test_the_disciplines_stand_in_the_order_of_the_theory() -> None:
    times = []
    for arq in ARQS:
        world = World(3, client=EndpointConfig(arq=arq), loss=0.05)
        client, _ = world.connect()
        start = world.now
        channel = send_all(world, client, [bytes(1000)] * 200)
        world.run_until(lambda: len(world.server.bodies(channel)) == 200, 120.0)  # noqa: B023
        times.append(world.now - start)
    assert times == sorted(times)


def test_a_handshake_under_heavy_loss() -> None:
    for seed in range(20):
        world = World(seed, loss=0.3)
        client = world.client.endpoint.connect(("198.51.100.7", 7000), world.now)
        send_all(world, client, [bytes(1000)])
        world.run_until(lambda: len(world.server.records) == 1 or bool(world.client.all(Closed)), 60.0)  # noqa: B023
        assert world.server.bodies() == [bytes(1000)], f"seed {seed}"
        assert len(world.server.all(Connected)) == 1


def test_a_black_hole_now_and_then() -> None:
    world = World(8, client=EndpointConfig(send_buffer_bytes=2**30), bytes_per_s=1.25e6)
    client, _ = world.connect()
    channel = send_all(world, client, [bytes(50_000)] * 100)
    for _ in range(3):
        world.run(1.0)
        world.loss = 1.0
        world.run(2.0)
        world.loss = 0.0
    world.run_until(lambda: len(world.server.bodies(channel)) == 100, 20.0)
    assert client.state is ConnectionState.OPEN


def test_the_same_seed_gives_the_same_world() -> None:
    histories = []
    for _ in range(2):
        world = World(9, loss=0.1)
        client, _ = world.connect()
        send_all(world, client, [bytes(20_000)])
        world.run(3.0)
        histories.append([(flying.at, flying.data) for flying in world.log])
    assert histories[0] == histories[1]


def test_a_very_long_path() -> None:
    world = World(client=EndpointConfig(idle_timeout_s=60.0), delay_s=0.75)
    client, _ = world.connect()
    channel = send_all(world, client, [bytes(300_000)])
    world.run_until(lambda: bool(world.server.bodies(channel)), 30.0)
    assert client.statistics.packets_spuriously_lost == 0
