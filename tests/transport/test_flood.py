"""A peer that floods with questions and acknowledges nothing: bounded memory."""

from __future__ import annotations

import pytest
from tests.transport.world import World

from godwit.transport import transmitter as transmit_module
from godwit.transport.events import Train
from godwit.wire import packet as wire
from godwit.wire.packet import encode_packet


def test_questions_without_acknowledgements_fill_no_more_than_the_log_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transmit_module, "MAX_SENT_PACKETS", 50)
    world = World()
    _, server = world.connect()
    probe = wire.encode_frame(wire.PathProbeFrame(b"question"))
    for n in range(500):
        # Every second number is left out, so that each packet wants to be acknowledged at once.
        packet = encode_packet(server.id, 1000 + 2 * n, probe)
        world.server.endpoint.receive(Train(client_address(world), packet, len(packet)), world.now)
        world.server.endpoint.trains(world.now)
    assert server._components.recovery.sent.packets <= 50


def client_address(world: World) -> tuple[object, ...]:
    (connection,) = world.server.endpoint.connections.values()
    return connection.peer_address
