"""The figures of a connection, gathered from its parts."""

from __future__ import annotations

from tests.transport.world import World, send_all

from godwit.transport.connection_state import Statistics


def test_the_figures_come_from_the_parts() -> None:
    world = World(loss=0.1)
    client, server = world.connect()
    send_all(world, client, [bytes(20_000)] * 5)
    world.run(5.0)
    sent, got = client.statistics, server.statistics
    assert sent.packets_sent > 100_000 // 1472
    assert sent.bytes_sent > 100_000
    assert 0 < sent.packets_lost < sent.packets_sent
    assert sent.fragments_resent > 0
    assert got.packets_received < sent.packets_sent
    assert 0.02 <= sent.shortest_trip_s <= sent.round_trip_s < 0.1
    assert sent.bandwidth_bytes_per_s > 0
    assert sent.window_bytes >= sent.datagram_bytes >= 1200
    assert sent.in_flight_bytes == 0
    assert sent.unreliable_dropped == 0


def test_nothing_is_known_at_first() -> None:
    world = World()
    assert world.client.endpoint.connect(world.server.address, world.now).statistics == Statistics()
