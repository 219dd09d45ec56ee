"""Hostile input to sealed connections: bounded cost, counted, no exception, and other clients are not affected."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.transport.sealed import CLIENT, SERVER, RealSealer, SealedWorld, protection_of
from tests.transport.test_sealing import half_open, rewritten, with_parameters
from tests.transport.world import STRANGER, Flying, send_all

from godwit.limits import HALF_OPEN_TIMEOUT_S, MAX_CRYPTO_BYTES, MAX_SEALING, SEALING_TIMEOUT_S
from godwit.net.tls import AES_128_GCM, CHACHA20_POLY1305
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.events import Closed, Connected, ConnectionState, PathChanged
from godwit.transport.protection import DirectionKey, is_sealed
from godwit.wire import packet as wire
from godwit.wire.control_base import Code
from godwit.wire.packet import HEADER, encode_packet
from godwit_sim.sealing import CLEAR

Twist = Callable[[bytes, random.Random], bytes]


def is_crypto(flying: Flying) -> bool:
    return not is_sealed(flying.data) and flying.has(wire.CryptoFrame)


def with_body(flying: Flying, change: Callable[[bytes], bytes]) -> bytes:
    """A packet with other bytes of TLS, and a right checksum: any observer can make it."""
    return rewritten(flying, lambda frame: wire.CryptoFrame(frame.offset, frame.acknowledged, change(frame.body)))


def settle(world: SealedWorld, connection: Connection) -> None:
    world.run_until(lambda: connection.state is not ConnectionState.CONNECTING, limit_s=SEALING_TIMEOUT_S + 40.0)
    world.drain()


def check_others(world: SealedWorld) -> None:
    """Another client connects to the same server, and sends a record."""
    world.fate = world.usual_fate
    client, server = world.connect()
    send_all(world, client, [b"unaffected"])
    world.run(1.0)
    assert world.server.bodies()[-1] == b"unaffected"
    assert client.binding == server.binding


# -- flights ----------------------------------------------------------------------------------------------------------


def flipped(body: bytes, rng: random.Random) -> bytes:
    changed = bytearray(body)
    for _ in range(rng.randrange(1, 4)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(body: bytes, rng: random.Random) -> bytes:
    return body[: rng.randrange(len(body))]


def repeated(body: bytes, rng: random.Random) -> bytes:
    half = body[: len(body) // 2]
    return half + half


DAMAGE: dict[str, Twist] = {"flipped": flipped, "cut": cut, "repeated": repeated}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("source", [CLIENT, SERVER], ids=["of the client", "of the server"])
def test_a_damaged_flight_gives_no_connection_or_the_right_one(kind: str, source: tuple[str, int]) -> None:
    """TLS by OpenSSL. A repeat may repair a flight that was cut; otherwise both sides end, and nothing else happens."""
    for seed in range(8):
        rng = random.Random(f"{kind} {source} {seed}")
        world = SealedWorld(seed, sealer=RealSealer())
        left = rng.randrange(1, 3)

        def fate(flying: Flying, world: SealedWorld = world, rng: random.Random = rng) -> list[float]:
            nonlocal left
            if left and flying.source == source and is_crypto(flying):
                frame = flying.frames()[0]
                if isinstance(frame, wire.CryptoFrame) and frame.body:
                    left -= 1
                    data = with_body(flying, lambda body: DAMAGE[kind](body, rng))
                    world.launch(flying.source, flying.target, data, 0.01)
                    return []
            return [0.01]

        world.fate = fate
        client = world.client.endpoint.connect(SERVER, world.now)
        settle(world, client)
        world.run(HALF_OPEN_TIMEOUT_S + 1.0)
        servers = [event.connection for event in world.server.all(Connected)]
        if client.state is ConnectionState.OPEN:
            assert [one.binding for one in servers] == [client.binding], f"seed {seed}"
        else:
            assert not servers or kind != "flipped", f"seed {seed}: the server accepted a changed handshake"
            assert world.closed(world.client).code in (Code.SEALING, Code.TIMEOUT), f"seed {seed}"
        assert not world.server.endpoint._dials, f"seed {seed}"
        check_others(world)


def test_flights_that_are_always_cut_still_arrive() -> None:
    """Half of each frame arrives: the stream moves forward with each repeat."""
    world = SealedWorld(sealer=RealSealer())

    def fate(flying: Flying) -> list[float]:
        if is_crypto(flying):
            data = with_body(flying, lambda body: body[: (len(body) + 1) // 2])
            world.launch(flying.source, flying.target, data, 0.01)
            return []
        return [0.01]

    world.fate = fate
    client = world.client.endpoint.connect(SERVER, world.now)
    settle(world, client)
    assert client.state is ConnectionState.OPEN


def proven(world: SealedWorld) -> tuple[int, int]:
    """A client that has proven its address and is silent since. Return the ids of the client and the server."""
    world.fate = lambda flying: [] if is_crypto(flying) else [0.01]
    client = world.client.endpoint.connect(SERVER, world.now)
    world.run(0.2)
    (server_id,) = world.server.endpoint._dials
    return client.id, server_id


def test_an_endless_flight_ends_after_its_time_with_bounded_memory() -> None:
    """A TLS record of 16 KiB is announced, then a hello that never ends comes byte by byte, also out of order."""
    world = SealedWorld(sealer=RealSealer())
    _, server_id = proven(world)
    half = world.server.endpoint._dials[server_id]
    header = b"\x16\x03\x01\x40\x00\x01\x00\xff\xff\x03\x03"
    data = header + bytes(60_000)
    began = world.now
    at = 0
    steps = 0
    while server_id in world.server.endpoint._dials and steps < 20_000:
        steps += 1
        size = 1 if steps < 2000 else 700
        frame = wire.CryptoFrame(at, 0, data[at : at + size])
        for one in (frame, wire.CryptoFrame(at + 5000 + 7 * steps % 9000, 0, b"later"), frame):
            world.inject(world.server, encode_packet(server_id, 0, wire.encode_frame(one)), source=CLIENT)
        at = min(at + size, len(data) - size)
        world.now += 0.002
        world.server.endpoint.handle_timers(world.now)
        world.drain()
        assert len(half.waiting) <= MAX_CRYPTO_BYTES  # type: ignore[union-attr]
    assert world.now - began <= HALF_OPEN_TIMEOUT_S + 1.0
    assert not world.server.endpoint._dials
    assert not world.server.endpoint._tls_waiting
    assert world.server.endpoint.dropped["crypto"] > 0
    check_others(world)


def test_an_endless_flight_of_a_server_ends_the_client() -> None:
    world = SealedWorld(sealer=RealSealer())
    client_id, _ = proven(world)
    began = world.now
    at = 0
    while not world.client.all(Closed):
        frame = wire.CryptoFrame(at, 0, b"\x16\x03\x03\x40\x00\x0b\x00\xff\xff".ljust(1000, b"\0"))
        world.inject(world.client, encode_packet(client_id, 0, wire.encode_frame(frame)), source=SERVER)
        at += 1000
        world.run(0.05)
        assert world.now - began < SEALING_TIMEOUT_S + 5.0
    assert world.closed(world.client).code in (Code.SEALING, Code.TIMEOUT)


def test_a_flood_of_half_open_handshakes_from_10_000_addresses() -> None:
    world = SealedWorld(server=EndpointConfig(accepts=True, needs_admission=True))
    endpoint = world.server.endpoint
    for _ in range(20):
        half_open(world, hosts=500, each=1)
        world.now += 0.2
        endpoint.handle_timers(world.now)
        endpoint.trains(world.now)
        assert len(endpoint._dials) <= MAX_SEALING
        assert len(endpoint._timers) <= 4 * (MAX_SEALING + 1) + 128
    client, _ = world.connect()
    assert client.state is ConnectionState.OPEN
    world.run(HALF_OPEN_TIMEOUT_S + 1.0)
    assert not endpoint._dials
    assert not world.server.all(Closed)


# -- downgrades -------------------------------------------------------------------------------------------------------

DOWNGRADES: dict[str, tuple[type[wire.Frame], dict[str, Any]]] = {
    "no seal in connect": (wire.ConnectFrame, {"seal": msgspec.UNSET}),
    "no seal in accept": (wire.AcceptFrame, {"seal": msgspec.UNSET}),
    "a suite in accept that was not offered": (wire.AcceptFrame, {"seal": (7,)}),
    "two suites in accept": (wire.AcceptFrame, {"seal": (1, 2)}),
    "no suite in accept": (wire.AcceptFrame, {"seal": ()}),
    "the other suite in accept": (wire.AcceptFrame, {"seal": (2,)}),
    "the other suite in connect": (wire.ConnectFrame, {"seal": (2,)}),
}


@pytest.mark.parametrize("plain", ["", "sealed only"], ids=["plain allowed", "plain refused"])
@pytest.mark.parametrize("change", DOWNGRADES)
def test_downgrades_give_no_connection(change: str, plain: str) -> None:
    kind, values = DOWNGRADES[change]
    world = SealedWorld(suites=(AES_128_GCM, CHACHA20_POLY1305), server_sealer={"plain": plain})

    def fate(flying: Flying) -> list[float]:
        if not is_sealed(flying.data) and flying.has(kind):
            data = rewritten(flying, lambda frame: with_parameters(frame, **values))
            world.launch(flying.source, flying.target, data, 0.01)
            return []
        return [0.01]

    world.fate = fate
    client = world.client.endpoint.connect(SERVER, world.now)
    client.send(0, b"for a sealed connection only")
    settle(world, client)
    assert not world.client.all(Connected)
    assert world.closed(world.client).code in (Code.SEALING, Code.TIMEOUT)
    assert not world.server.bodies()
    assert not any(b"sealed connection only" in flying.data for flying in world.log)


# -- replays ----------------------------------------------------------------------------------------------------------


def test_a_whole_session_that_is_replayed_delivers_nothing() -> None:
    """During the session, after its end, and to the server after a restart; from the same and another address."""
    world = SealedWorld(sealer=RealSealer(), server=EndpointConfig(accepts=True, reset_key=b"k" * 32))
    client, _ = world.connect()
    send_all(world, client, [bytes([n]) * 500 for n in range(20)])
    world.run(1.0)

    def replay() -> None:
        for packet in recorded:
            for source in (CLIENT, STRANGER):
                world.inject(world.server, packet, source=source)
            world.run(0.02)
        world.run(HALF_OPEN_TIMEOUT_S + 1.0)

    recorded = [flying.data for flying in world.log if flying.source == CLIENT]
    delivered = world.server.bodies()
    assert len(delivered) == 20
    replay()
    assert client.state is ConnectionState.OPEN
    client.close(world.now, 0, "done")
    world.run(30.0)
    recorded = [flying.data for flying in world.log if flying.source == CLIENT]
    replay()
    assert not world.server.endpoint.connections
    world.seal(world.server, EndpointConfig(accepts=True, reset_key=b"k" * 32), (), {})
    replay()
    assert world.server.bodies() == delivered
    assert len(world.server.all(Connected)) == 1
    assert not world.server.all(PathChanged)
    assert not world.server.endpoint._dials


@pytest.mark.parametrize("source", [CLIENT, SERVER], ids=["of the client", "of the server"])
def test_the_flights_of_another_session_do_not_open_a_connection(source: tuple[str, int]) -> None:
    """The flights of one session in place of those of another: all of TLS is fresh, so that nothing fits."""
    first = SealedWorld(1, sealer=RealSealer())
    first.connect()
    waiting = [flying.frames()[0] for flying in first.log if flying.source == source and is_crypto(flying)]
    world = SealedWorld(2, sealer=RealSealer())

    def fate(flying: Flying) -> list[float]:
        if flying.source == source and is_crypto(flying) and waiting:
            data = rewritten(flying, lambda frame: waiting.pop(0))
            world.launch(flying.source, flying.target, data, 0.01)
            return []
        return [0.01]

    world.fate = fate
    client = world.client.endpoint.connect(SERVER, world.now)
    settle(world, client)
    assert client.state is not ConnectionState.OPEN
    assert not world.server.all(Connected)


# -- packets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suites", [(CLEAR,), (AES_128_GCM,)], ids=["stand-in", "AES-128-GCM"])
def test_tampering_with_each_header_byte_changes_nothing(suites: Any) -> None:
    """Each packet arrives in 13 x 255 changed forms before its own: only the right one counts."""
    world = SealedWorld(suites=suites)
    client, server = world.connect()
    world.run(0.5)
    changed = 0

    def fate(flying: Flying) -> list[float]:
        nonlocal changed
        if is_sealed(flying.data) and changed < 6:
            changed += 1
            target = world.routes[flying.target]
            for place in range(HEADER.size):
                for value in range(256):
                    if flying.data[place] != value:
                        data = flying.data[:place] + bytes((value,)) + flying.data[place + 1 :]
                        world.inject(target, data, source=flying.source)
        return [0.01]

    world.fate = fate
    bodies = [bytes([n]) * 300 for n in range(6)]
    send_all(world, client, bodies)
    send_all(world, server, bodies)
    world.run(3.0)
    assert changed == 6
    assert world.server.bodies() == world.client.bodies() == bodies
    assert client.state is server.state is ConnectionState.OPEN
    assert protection_of(client).updates == protection_of(server).updates == (0, 0)
    assert not world.server.all(PathChanged)
    assert world.server.endpoint.dropped["forged"] + world.client.endpoint.dropped["forged"] > 6 * 4 * 255


def test_packets_with_a_wrong_phase_are_dropped_and_change_no_key() -> None:
    world = SealedWorld(suites=(AES_128_GCM,))
    client, server = world.connect()
    world.run(0.5)
    world.fate = lambda flying: []
    send_all(world, client, [b"x" * 100] * 5)
    world.drain()
    packets = [flying.data for flying in world.log if flying.source == CLIENT][-5:]
    for packet in packets * 3:
        world.inject(world.server, bytes([packet[0] ^ 2]) + packet[1:], source=CLIENT)
    assert protection_of(server).updates == (0, 0)
    assert not world.server.bodies()
    world.fate = world.usual_fate
    world.run(3.0)
    assert world.server.bodies() == [b"x" * 100] * 5


def test_key_updates_in_a_loop_are_refused_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that replaces its key with each packet, without waiting for acknowledgements."""
    world = SealedWorld(suites=(AES_128_GCM,))
    client, server = world.connect()
    world.run(0.5)
    protection = protection_of(client)
    made = []

    def counting(self: DirectionKey, suite: Any) -> DirectionKey:
        made.append(self.number)
        return following(self, suite)

    following = DirectionKey.next
    key = protection._outbound
    number = protection._next_number
    packets = []
    for place in range(60):
        key = following(key, AES_128_GCM)
        header = HEADER.pack(key.first_byte, server.id, number + place)
        nonce = (int.from_bytes(key.salt, "big") << 64 | key.iv ^ (number + place)).to_bytes(12, "big")
        packets.append(header + key.encrypt(nonce, b"\x01", header))
    monkeypatch.setattr(DirectionKey, "next", counting)
    for packet in packets:
        world.inject(world.server, packet, source=CLIENT)
    assert protection_of(server).updates[1] == 1
    assert len(made) <= 2, "bounded work"
    assert server.state is ConnectionState.OPEN
    assert world.server.endpoint.dropped.total() >= 58
