"""Packet numbers that are left out: no losses to an honest peer, and the end of one that claims to have them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.transport.world import ARQS, CLIENT, Flying, World, packet_for, send_all

from godwit.transport import transmitter as transmit_module
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.events import ConnectionState
from godwit.wire import packet as wire
from godwit.wire.control_base import Code
from godwit.wire.packet import decode_packet
from godwit.wire.parameters import Arq


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that every transfer of a test has some."""
    monkeypatch.setattr(transmit_module, "SKIP_INTERVAL", 8)
    monkeypatch.setattr(transmit_module, "SKIP_SPREAD", 16)


def numbers(world: World, source: tuple[object, ...]) -> list[int]:
    sent = [decode_packet(flying.data)[:2] for flying in world.log if flying.source == source]
    return sorted(number for connection_id, number in sent if connection_id)


def skipped(connection: Connection) -> list[int]:
    return connection._components.recovery.sent.skipped


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("arq", ARQS)
def test_an_honest_peer_sees_no_losses(arq: Arq) -> None:
    world = World(client=EndpointConfig(arq=arq))
    client, server = world.connect()
    for sender, receiver, side in ((client, server, world.server), (server, client, world.client)):
        channel = send_all(world, sender, [bytes(100_000), b"short", bytes(100_000)])
        world.run_until(lambda side=side, channel=channel: len(side.bodies(channel)) == 3)  # type: ignore[misc]
        world.run(0.5)
        assert skipped(sender)
        assert (sender.statistics.packets_lost, sender.statistics.fragments_resent) == (0, 0)
        assert sender.statistics.in_flight_bytes == 0
        assert not sender._components.recovery.sent
        assert receiver.state is ConnectionState.OPEN
    sent = numbers(world, CLIENT)
    assert len(sent) == len(set(sent))
    assert not set(skipped(client)) & set(sent)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("arq", ARQS)
@pytest.mark.parametrize("seed", range(5))
def test_all_arrives_over_a_path_that_loses_and_reorders(arq: Arq, seed: int) -> None:
    world = World(seed, client=EndpointConfig(arq=arq), loss=0.1)

    def fate(flying: Flying) -> list[float]:
        delays = world.usual_fate(flying)
        return [delay_s + world.rng.random() * 0.02 for delay_s in delays]

    world.fate = fate
    client, server = world.connect()
    bodies = [world.rng.randbytes(30_000) for _ in range(4)]
    up = send_all(world, client, bodies)
    down = send_all(world, server, bodies)
    world.run_until(lambda: world.server.bodies(up) == bodies and world.client.bodies(down) == bodies, 300)
    assert skipped(client)
    assert skipped(server)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("is_lone", [True, False])
def test_a_peer_that_acknowledges_what_was_never_sent_is_closed(is_lone: bool) -> None:
    """It claims everything up to the newest packet, to be sent more than the path carries."""
    world = World()
    client, server = world.connect()
    world.run(0.5)
    send_all(world, server, [bytes(100_000)])
    while not skipped(server):
        world.step(world.now + 1)
    world.drain()
    newest = server._transmitter.next_number - 1
    claim = wire.AckFrame(0, ((0, newest),))
    if is_lone:  # the layout that the short way in takes
        packet = packet_for(server, client._transmitter.next_number, claim)
    else:
        packet = packet_for(server, client._transmitter.next_number, claim, wire.PingFrame())
    before = server.statistics
    world.inject(world.server, packet, source=CLIENT)
    assert server.state is ConnectionState.CLOSING
    world.drain()
    assert world.server.endpoint.dropped["skipped_ack"] == 1
    closed = world.closed(world.server)
    assert (closed.code, closed.reason) == (
        Code.PROTOCOL,
        "skipped_ack: a packet is acknowledged whose number was never used",
    )
    assert server.statistics.window_bytes == before.window_bytes


def test_a_connection_that_sends_little_skips_nothing() -> None:
    world = World()
    client, server = world.connect()
    channel = client.open_channel()
    for _ in range(2500):
        client.send(channel, b"21.5")
        server.confirm(channel, 0, 1)
        world.run(0.02)
    assert len(world.server.bodies(channel)) == 2500
    assert (skipped(client), skipped(server)) == ([], [])
    sent = numbers(world, CLIENT)
    assert sent == list(range(len(sent)))


def test_numbers_are_skipped_at_unpredictable_places() -> None:
    places = []
    for seed in range(4):
        world = World(seed)
        client, _ = world.connect()
        channel = send_all(world, client, [bytes(2_000_000)])
        found: list[int] = []
        while not world.server.bodies(channel):
            world.step(world.now + 1)
            found += [number for number in skipped(client) if number not in found]
        places.append(found)
        gaps = [later - earlier for earlier, later in pairwise(found)]
        assert all(gap > transmit_module.SKIP_INTERVAL for gap in gaps)
    assert all(places)
    assert len({tuple(found) for found in places}) == 4
