"""The memory of a connection that has ended is free without the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
from tests.transport.sealed import RealSealer, SealedWorld, protection_of
from tests.transport.world import ARQS, CLIENT, SERVER, World, packet_for, send_all

from godwit.net.tls import TlsHandshake, ordered_suites
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.connection_state import Components
from godwit.transport.events import ConnectionState
from godwit.transport.protection import DirectionKey, PacketProtection
from godwit.transport.receive_channels import Assembly, IncomingChannel, ReceiveChannels
from godwit.transport.receiver import PacketReceiver
from godwit.transport.recovery import Recovery
from godwit.transport.sealed_connection import SealedConnection
from godwit.transport.sealing import CryptoStream, HalfOpen, SealingHandshake
from godwit.transport.send_channels import OutgoingChannel, OutgoingRecord, SendChannels
from godwit.wire import packet as wire
from godwit.wire.control_base import Code
from godwit.wire.parameters import Arq
from godwit_sim.sealing import StandInSession

PER_CONNECTION = frozenset(
    (
        Assembly, Connection, PacketReceiver, IncomingChannel, OutgoingChannel, OutgoingRecord, Components,
        ReceiveChannels, Recovery, SendChannels, SealedConnection, PacketProtection, DirectionKey, SealingHandshake,
        HalfOpen, CryptoStream, StandInSession, TlsHandshake,
    )
)  # fmt: skip
RECORD = bytes(3000)


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> list[object]:
    return [one for one in gc.get_objects() if type(one) in PER_CONNECTION]


def close(world: World, client: Connection, server: Connection) -> None:
    client.close(world.now)


def close_by_server(world: World, client: Connection, server: Connection) -> None:
    server.close(world.now, Code.KICKED, "removed")


def fall_silent(world: World, client: Connection, server: Connection) -> None:
    world.fate = lambda flying: []


def reset(world: World, client: Connection, server: Connection) -> None:
    server.fail(world.now, Code.RESET, "lost", "reset")


def break_the_protocol(world: World, client: Connection, server: Connection) -> None:
    frame = wire.DataFrame(wire.LAST, 9, 0, 20_000_000, None, b"beyond the longest record")
    packet = packet_for(server, 10_000, frame)
    if isinstance(client, SealedConnection):
        protection = protection_of(client)
        following = protection._next_number
        packet = protection.seal(packet[: -wire.CHECKSUM.size], 10_000)
        protection._next_number = following  # the client continues with its own numbers
    world.inject(world.server, packet, source=CLIENT)
    assert server.state is not ConnectionState.OPEN


def use_up_the_keys(world: World, client: Connection, server: Connection) -> None:
    protection_of(server).forged = 2**62


ENDS = [close, close_by_server, fall_silent, reset, break_the_protocol]
KINDS: dict[str, Callable[..., World]] = {
    "plain": World,
    "sealed": SealedWorld,
    "TLS": lambda **options: SealedWorld(sealer=RealSealer(), suites=ordered_suites(), **options),
}


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("arq", ARQS)
@pytest.mark.parametrize(
    ("kind", "end"),
    [*((kind, end) for kind in KINDS for end in ENDS), ("sealed", use_up_the_keys), ("TLS", use_up_the_keys)],
)
def test_a_connection_that_has_ended_leaves_nothing_behind(
    end: Callable[[World, Connection, Connection], None], arq: Arq, kind: str
) -> None:
    world = KINDS[kind](client=EndpointConfig(arq=arq), server=EndpointConfig(accepts=True))
    world.server.consumes = world.client.consumes = False
    before = len(alive())
    pair = world.connect()
    # Both sides have records that wait for credit or for an acknowledgement, and half a record that was received.
    world.fate = lambda flying: [0.01] if flying.count % 5 else []
    for connection in pair:
        send_all(world, connection, [RECORD] * 200)
        connection.send(0, RECORD)
    world.run(0.1)
    assert len(alive()) > before + 400
    assert kind == "plain" or all(isinstance(connection, SealedConnection) for connection in pair)
    end(world, *pair)
    del pair, connection
    world.run(100)
    assert not world.server.endpoint.connections
    assert not world.client.endpoint.connections
    world.client.events.clear()
    world.server.events.clear()
    assert len(alive()) == before


@pytest.mark.usefixtures("without_collector")
def test_records_are_free_at_once_while_the_connection_still_answers_stray_packets() -> None:
    world = World()
    client, server = world.connect()
    before = len(alive())
    world.fate = lambda flying: [0.01] if flying.count % 5 else []
    send_all(world, client, [RECORD] * 200)
    world.server.consumes = False
    world.run(0.03)
    assert server.buffered_bytes > 0
    server.close(world.now, Code.LIMIT)
    client.close(world.now)
    assert (client.buffered_bytes, server.buffered_bytes, client.unsent_bytes) == (0, 0, 0)
    world.server.events.clear()
    assert len(alive()) <= before + 2  # the two channels
    assert server.id in world.server.endpoint.connections
    assert client.statistics.packets_sent > 0


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("kind", KINDS)
def test_an_attempt_that_nobody_answers_leaves_nothing_behind(kind: str) -> None:
    world = KINDS[kind]()
    before = len(alive())
    world.fate = lambda flying: []
    send_all(world, world.client.endpoint.connect(("198.51.100.7", 7000), world.now), [RECORD] * 200)
    world.run(30)
    world.client.events.clear()
    assert len(alive()) == before


def lose_all_packets(world: SealedWorld, client: Connection) -> None:
    world.fate = lambda flying: []


def send_garbage(world: SealedWorld, client: Connection) -> None:
    """The server receives a malformed part of a TLS handshake."""
    half_open = next(iter(world.server.endpoint._dials))
    packet = wire.encode_packet(half_open, 0, wire.encode_frame(wire.CryptoFrame(0, 0, bytes(200))))
    world.inject(world.server, packet, source=CLIENT)


def give_up(world: SealedWorld, client: Connection) -> None:
    client.close(world.now)


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("end", [lose_all_packets, send_garbage, give_up])
@pytest.mark.parametrize("kind", ["sealed", "TLS"])
def test_a_handshake_that_fails_leaves_nothing_behind(
    kind: str, end: Callable[[SealedWorld, Connection], None]
) -> None:
    world = KINDS[kind]()
    assert isinstance(world, SealedWorld)
    before = len(alive())
    client = world.client.endpoint.connect(SERVER, world.now)
    send_all(world, client, [RECORD] * 200)
    world.run_until(lambda: bool(world.server.endpoint._dials))
    end(world, client)
    del client
    world.run(100)
    assert not world.server.endpoint._dials
    world.client.events.clear()
    world.server.events.clear()
    assert len(alive()) == before
