"""The states of a connection as a peer and an application see them."""

from __future__ import annotations

from tests.transport.world import World

from godwit.transport.events import ConnectionState


def test_from_connecting_to_closed() -> None:
    world = World()
    connection = world.client.endpoint.connect(world.server.address, world.now)
    seen = [connection.state]
    world.run_until(lambda: connection.state is ConnectionState.OPEN)
    seen.append(connection.state)
    world.run(0.1)
    (server,) = world.server.endpoint.connections.values()
    connection.close(world.now)
    seen.append(connection.state)
    world.run_until(lambda: server.state is not ConnectionState.OPEN)
    there = [server.state]
    world.run(10)
    assert [*seen, connection.state] == [
        ConnectionState.CONNECTING,
        ConnectionState.OPEN,
        ConnectionState.CLOSING,
        ConnectionState.CLOSED,
    ]
    assert [*there, server.state] == [ConnectionState.DRAINING, ConnectionState.CLOSED]
