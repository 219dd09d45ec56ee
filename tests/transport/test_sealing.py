"""The TLS handshake of sealed connections, between endpoints in virtual time."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.transport.sealed import CLIENT, SERVER, RealSealer, SealedWorld, protection_of
from tests.transport.world import STRANGER, Flying, World, examples, send_all

from godwit.errors import DecodeError
from godwit.limits import (
    AMPLIFICATION,
    HALF_OPEN_TIMEOUT_S,
    MAX_CRYPTO_BYTES,
    MAX_CRYPTO_PIECES,
    MAX_SEALING,
    SEALING_TIMEOUT_S,
)
from godwit.transport.config import EndpointConfig
from godwit.transport.events import Closed, Connected, ConnectionState, Train
from godwit.transport.protection import PacketProtection, is_sealed
from godwit.transport.sealing import CRYPTO_ROOM_BYTES, CryptoStream
from godwit.wire import packet as wire
from godwit.wire.control_base import Code
from godwit.wire.packet import decode_packet, encode_packet
from godwit.wire.parameters import Parameters, decode_parameters, encode_parameters
from godwit_sim.sealing import StandInSession


def test_records_travel_both_ways_on_a_sealed_connection() -> None:
    world = SealedWorld()
    client, server = world.connect()
    bodies = [bytes([n]) * (n * 700) for n in range(40)]
    send_all(world, client, bodies)
    send_all(world, server, bodies)
    world.run_until(lambda: len(world.server.bodies()) == 40 and len(world.client.bodies()) == 40)
    assert world.server.bodies() == world.client.bodies() == bodies
    assert client.binding == server.binding
    assert protection_of(client).forged == protection_of(server).forged == 0
    after = [flying for flying in world.log if not is_sealed(flying.data)]
    kinds = {type(frame) for flying in after for frame in flying.frames()}
    handshake = {wire.HelloFrame, wire.CookieFrame, wire.ConnectFrame, wire.AcceptFrame, wire.CryptoFrame}
    assert kinds == handshake, "all other frames are sealed"


def test_the_handshake_takes_four_round_trips() -> None:
    """The application of the server learns of the connection with the first packet that opens."""
    world = SealedWorld(delay_s=0.02)
    began = world.now
    client = world.client.endpoint.connect(SERVER, world.now)
    client.send(0, b"first")
    world.run_until(lambda: client.state is ConnectionState.OPEN)
    assert world.now - began == pytest.approx(4 * 2 * 0.02)
    assert not world.server.all(Connected)
    world.run_until(lambda: bool(world.server.bodies()))
    assert world.now - began < 5 * 2 * 0.02
    assert [type(event).__name__ for event in world.server.events[:2]] == ["Connected", "Received"]


def test_a_changed_connect_is_not_shown_to_the_application_of_the_server() -> None:
    """TLS succeeds, but the keys differ: the server must not act on parameters that nothing has proven."""
    world = SealedWorld()

    def fate(flying: Flying) -> list[float]:
        if not is_sealed(flying.data) and flying.has(wire.ConnectFrame):
            data = rewritten(flying, lambda frame: with_parameters(frame, application=b"admin"))
            world.launch(flying.source, flying.target, data, 0.01)
            return []
        return [0.01]

    world.fate = fate
    world.client.endpoint.connect(SERVER, world.now, application=b"guest")
    world.run(100.0)
    assert world.server.events == []
    assert not world.server.endpoint.connections


@pytest.mark.parametrize(("is_client_sealed", "is_server_sealed"), [(False, True), (False, False)])
def test_a_plain_client_connects_where_plain_packets_are_allowed(
    is_client_sealed: bool, is_server_sealed: bool
) -> None:
    world = SealedWorld(is_client_sealed=is_client_sealed, is_server_sealed=is_server_sealed)
    client, _ = world.connect()
    send_all(world, client, [b"plain"])
    world.run(1.0)
    assert world.server.bodies() == [b"plain"]
    assert not any(is_sealed(flying.data) for flying in world.log)


def test_a_plain_client_is_refused_with_the_reason() -> None:
    world = SealedWorld(is_client_sealed=False, server_sealer={"plain": "seal your packets"})
    world.client.endpoint.connect(SERVER, world.now)
    world.run(1.0)
    closed = world.closed(world.client)
    assert (closed.code, closed.reason, closed.origin) == (Code.SEALING, "seal your packets", "refused")
    assert world.server.endpoint.dropped["plain_refused"] == 1
    assert not world.server.all(Connected)


def test_a_sealed_client_never_falls_back_to_a_plain_server() -> None:
    world = SealedWorld(is_server_sealed=False)
    world.client.endpoint.connect(SERVER, world.now)
    world.run(1.0)
    closed = world.closed(world.client)
    assert closed.code == Code.SEALING
    assert "does not seal" in closed.reason
    assert not world.client.all(Connected)


def rewritten(flying: Flying, change: Any) -> bytes:
    """A handshake packet with its first frame changed, and a right checksum."""
    connection_id, number, content = decode_packet(flying.data)
    frame = change(wire.decode_first_frame(content))
    return encode_packet(connection_id, number, wire.encode_frame(frame))


def with_parameters(frame: Any, **changes: Any) -> Any:
    import msgspec

    parameters = msgspec.structs.replace(decode_parameters(frame.parameters), **changes)
    return msgspec.structs.replace(frame, parameters=encode_parameters(parameters))


CHANGES: dict[str, tuple[type[wire.Frame], dict[str, Any]]] = {
    "window in connect": (wire.ConnectFrame, {"channel_window_bytes": 2**20}),
    "suites in connect": (wire.ConnectFrame, {"seal": (99, 7)}),
    "record size in accept": (wire.AcceptFrame, {"max_record_bytes": 2**20}),
    "idle timeout in accept": (wire.AcceptFrame, {"idle_timeout_ms": 1234}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_handshake_gives_no_connection(change: str) -> None:
    """The keys depend on every byte of connect and accept: a change on the way leads to different keys."""
    kind, values = CHANGES[change]
    world = SealedWorld()

    def fate(flying: Flying) -> list[float]:
        if not is_sealed(flying.data) and flying.has(kind):
            data = rewritten(flying, lambda frame: with_parameters(frame, **values))
            world.launch(flying.source, flying.target, data, 0.01)
            return []
        return [0.01]

    world.fate = fate
    world.client.endpoint.connect(SERVER, world.now)
    world.run(SEALING_TIMEOUT_S + 5.0)
    assert not world.client.all(Connected)
    assert world.closed(world.client).code == Code.TIMEOUT
    assert world.client.endpoint.dropped["forged"] > 0


def test_removing_seal_from_the_accept_is_no_downgrade() -> None:
    import msgspec

    world = SealedWorld()

    def fate(flying: Flying) -> list[float]:
        if not is_sealed(flying.data) and flying.has(wire.AcceptFrame):
            data = rewritten(flying, lambda frame: with_parameters(frame, seal=msgspec.UNSET))
            world.launch(flying.source, flying.target, data, 0.01)
            return []
        return [0.01]

    world.fate = fate
    world.client.endpoint.connect(SERVER, world.now)
    world.run(1.0)
    assert world.closed(world.client).code == Code.SEALING
    assert not world.client.all(Connected)


def test_a_client_that_does_not_accept_the_certificate_tells_the_server() -> None:
    world = SealedWorld(client_sealer={"problem": "another key"})
    world.client.endpoint.connect(SERVER, world.now)
    world.run(1.0)
    closed = world.closed(world.client)
    assert (closed.code, closed.reason) == (Code.SEALING, "another key")
    assert not world.server.all(Connected)
    assert world.server.endpoint.dropped["client_refused"] == 1
    assert not world.server.endpoint._dials
    assert not any(is_sealed(flying.data) for flying in world.log), "nothing for a broker that is not trusted"


def test_a_server_refuses_a_client_whose_tls_fails() -> None:
    world = SealedWorld(server_sealer={"problem": "no such client"})
    world.client.endpoint.connect(SERVER, world.now)
    world.run(1.0)
    assert world.closed(world.client).reason == "no such client"
    assert world.server.endpoint.dropped["tls_failed"] == 1
    assert not world.server.endpoint._dials


def test_a_forged_refusal_does_not_carry_a_code_that_ends_clients() -> None:
    world = SealedWorld()
    connection = world.client.endpoint.connect(SERVER, world.now)
    world.drain()
    hello = world.log[-1].frames()[0]
    assert isinstance(hello, wire.HelloFrame)
    refusal = wire.encode_frame(wire.RefuseFrame(hello.nonce, Code.NOT_ALLOWED, "go away"))
    world.inject(world.client, encode_packet(connection.id, 0, refusal), source=SERVER)
    world.drain()
    assert world.closed(world.client).code == Code.SEALING


@pytest.mark.parametrize("sealer", [None, RealSealer()], ids=["stand-in", "OpenSSL"])
@pytest.mark.parametrize("loss", [0.1, 0.3])
def test_handshakes_complete_under_loss(loss: float, sealer: RealSealer | None) -> None:
    """30 % loss each way: 50 of 50."""
    for seed in range(50):
        world = SealedWorld(seed, loss=loss, sealer=sealer)
        client = world.client.endpoint.connect(SERVER, world.now)
        world.run_until(lambda client=client: client.state is not ConnectionState.CONNECTING, limit_s=40.0)  # type: ignore[misc]
        assert client.state is ConnectionState.OPEN, f"seed {seed}: {world.describe()}"


def test_handshakes_survive_repeats_and_reordering() -> None:
    for seed in range(30):
        world = SealedWorld(seed)
        rng = random.Random(seed)

        def fate(flying: Flying, rng: random.Random = rng) -> list[float]:
            return [rng.uniform(0.005, 0.2) for _ in range(rng.randrange(4))]

        world.fate = fate
        client = world.client.endpoint.connect(SERVER, world.now)
        world.run_until(lambda client=client: client.state is not ConnectionState.CONNECTING, limit_s=40.0)  # type: ignore[misc]
        assert client.state is ConnectionState.OPEN, f"seed {seed}: {world.describe()}"
        world.run(2.0)
        assert len(world.server.all(Connected)) == 1, f"seed {seed}"


def test_an_address_gets_at_most_three_times_its_bytes_before_the_cookie_returns() -> None:
    world = SealedWorld()
    sent = received = 0
    world.connect()
    for flying in world.log:
        if not is_sealed(flying.data) and flying.has(wire.ConnectFrame):
            break
        if flying.source == CLIENT:
            received += len(flying.data)
        else:
            sent += len(flying.data)
    assert sent <= AMPLIFICATION * received


def test_the_reset_token_is_not_visible_and_works_after_a_restart() -> None:
    key = b"k" * 32
    world = SealedWorld(server=EndpointConfig(accepts=True, reset_key=key))
    client, server = world.connect()
    world.run(1.0)
    accept = next(
        frame
        for flying in world.log
        if not is_sealed(flying.data)
        for frame in flying.frames()
        if isinstance(frame, wire.AcceptFrame)
    )
    assert accept.token == bytes(16)
    world.seal(world.server, EndpointConfig(accepts=True, reset_key=key), world.client.endpoint._sealer.suites(), {})  # type: ignore[union-attr]
    client.ping()
    world.run(1.0)
    closed = world.closed(world.client)
    assert (closed.code, closed.origin) == (Code.RESET, "reset")
    assert server.state is ConnectionState.OPEN, "of the endpoint before the restart"


def test_a_forged_reset_does_nothing() -> None:
    world = SealedWorld()
    client, _ = world.connect()
    world.run(1.0)
    for token in (bytes(16), b"x" * 16):
        reset = encode_packet(0, 0, wire.encode_frame(wire.ResetFrame(token)))
        world.inject(world.client, reset, source=SERVER)
    assert client.state is ConnectionState.OPEN
    assert world.client.endpoint.dropped["forged_reset"] == 2


# -- limits of a server -----------------------------------------------------------------------------------------------


def half_open(world: SealedWorld, hosts: int, each: int) -> None:
    """Clients that prove their address, and send nothing after the accept."""
    for host in range(hosts):
        for port in range(each):
            address = (f"10.{host >> 16}.{host >> 8 & 255}.{host & 255}", 1000 + port)
            nonce = world.rng.randbytes(16)
            connection_id = 1 + world.rng.getrandbits(60)
            hello = wire.encode_frame(wire.HelloFrame(connection_id, nonce)).ljust(1200 - 17, b"\0")
            world.inject(world.server, encode_packet(0, 0, hello), source=address)
            cookie = None
            for train in world.server.endpoint.trains(world.now):
                frame = wire.decode_first_frame(decode_packet(train.data)[2])
                if isinstance(frame, wire.CookieFrame) and train.address == address:
                    cookie = frame.cookie
            assert cookie is not None
            parameters = encode_parameters(
                Parameters(
                    max_datagram_bytes=1472,
                    receive_buffer_bytes=10**6,
                    channel_window_bytes=10**6,
                    connection_window_bytes=10**6,
                    max_record_bytes=10**6,
                    max_channels=10,
                    idle_timeout_ms=10_000,
                    seal=(99,),
                )
            )
            connect = wire.encode_frame(wire.ConnectFrame(connection_id, nonce, cookie, parameters))
            world.server.endpoint.receive(Train(address, encode_packet(0, 0, connect), 1400), world.now)


def test_half_open_handshakes_are_bounded_and_a_client_still_gets_in() -> None:
    world = SealedWorld(server=EndpointConfig(accepts=True, needs_admission=True))
    half_open(world, hosts=MAX_SEALING + 100, each=1)
    world.now += 3.0
    world.server.endpoint.handle_timers(world.now)
    half_open(world, hosts=40, each=2)
    assert len(world.server.endpoint._dials) <= MAX_SEALING
    client, _ = world.connect()
    assert client.state is ConnectionState.OPEN
    world.run(HALF_OPEN_TIMEOUT_S + 1.0)
    assert not world.server.endpoint._dials
    assert len(world.server.endpoint._sealing) == 0
    assert not world.server.all(Closed), "the application never saw them"


def test_tls_takes_turns_with_open_connections() -> None:
    world = SealedWorld(server=EndpointConfig(accepts=True))
    for _ in range(40):
        world.client.endpoint.connect(SERVER, world.now)
    world.run_until(lambda: len(world.client.all(Connected)) == len(world.server.all(Connected)) == 40)


def test_garbage_in_crypto_frames_ends_one_handshake_only() -> None:
    world = SealedWorld()
    poisoned: list[bytes] = []

    def fate(flying: Flying) -> list[float]:
        if flying.source == CLIENT and not is_sealed(flying.data) and not poisoned and flying.has(wire.CryptoFrame):
            poisoned.append(rewritten(flying, lambda frame: wire.CryptoFrame(0, 0, bytes(len(frame.body)))))
            world.launch(flying.source, flying.target, poisoned[0], 0.001)
        return [0.01]

    world.fate = fate
    world.client.endpoint.connect(SERVER, world.now)
    world.run(SEALING_TIMEOUT_S + 5.0)
    assert len(world.client.all(Closed)) == 1
    world.client.events.clear()
    client, _ = world.connect()
    assert client.state is ConnectionState.OPEN


# -- the stream -------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32))
@examples(0.5)
def test_a_stream_arrives_whole_over_any_path(seed: int) -> None:
    rng = random.Random(seed)
    ends = [CryptoStream(None), CryptoStream(0.01)]
    written = [rng.randbytes(rng.randrange(9000)) for _ in ends]
    got = [b"", b""]
    for stream, data in zip(ends, written, strict=True):
        stream.write(data, 0.0)
    now = 0.0
    air: list[tuple[int, wire.CryptoFrame]] = []
    for _ in range(400):
        for number, stream in enumerate(ends):
            air += [(1 - number, frame) for frame in stream.next_frames(now)]
        rng.shuffle(air)
        for _ in range(rng.randrange(len(air) + 1)):
            target, frame = air.pop()
            if rng.random() < 0.7:
                got[target] += ends[target].handle_frame(frame, now)
        if got == written[::-1]:
            break
        now += 0.3
    assert got == written[::-1], f"seed {seed}"


def test_a_stream_repeats_only_what_is_not_acknowledged() -> None:
    stream = CryptoStream(0.1)
    data = bytes(range(256)) * 12
    stream.write(data, 0.0)
    first = stream.next_frames(0.0)
    assert [len(frame.body) for frame in first] == [
        CRYPTO_ROOM_BYTES,
        CRYPTO_ROOM_BYTES,
        len(data) - 2 * CRYPTO_ROOM_BYTES,
    ]
    assert stream.next_frames(0.1) == []
    stream.handle_frame(wire.CryptoFrame(0, CRYPTO_ROOM_BYTES, b""), 0.2)
    again = stream.next_frames(0.31)
    assert again == first[1:]
    stream.handle_frame(wire.CryptoFrame(0, len(data), b""), 0.4)
    assert stream.next_frames(9.0) == []
    assert stream.next_timer() is None


def test_a_stream_is_bounded() -> None:
    stream = CryptoStream(None)
    with pytest.raises(DecodeError, match="more than 65536 bytes"):
        stream.handle_frame(wire.CryptoFrame(MAX_CRYPTO_BYTES, 0, b"x"), 0.0)
    for place in range(MAX_CRYPTO_PIECES):
        assert stream.handle_frame(wire.CryptoFrame(2 + 2 * place, 0, b"x"), 0.0) == b""
    with pytest.raises(DecodeError, match="parts wait"):
        stream.handle_frame(wire.CryptoFrame(1000, 0, b"x"), 0.0)
    with pytest.raises(DecodeError, match="never sent"):
        stream.handle_frame(wire.CryptoFrame(0, 1, b""), 0.0)


def test_an_unsealed_or_foreign_packet_changes_nothing() -> None:
    world = SealedWorld()
    client, server = world.connect()
    world.run(1.0)
    before = server.statistics.packets_received
    close = wire.encode_frame(wire.CloseFrame(0, "", bytes(16)))
    world.inject(world.server, encode_packet(server.id, before, close), source=CLIENT)
    world.inject(world.server, encode_packet(server.id, before, b"\x01"), source=STRANGER)
    assert world.server.endpoint.dropped["unsealed"] == 2
    assert server.statistics.packets_received == before
    assert server.state is ConnectionState.OPEN
    assert client.state is ConnectionState.OPEN


def test_the_stand_in_for_tls_notices_changes() -> None:
    rng = random.Random(1)
    client, server = StandInSession("client", rng.randbytes), StandInSession("server", rng.randbytes)
    finished = client.receive(server.receive(client.start()))
    server.receive(finished)
    assert client.is_done()
    assert server.is_done()
    assert client.export(b"label", 32, b"c") == server.export(b"label", 32, b"c") != client.export(b"label", 32, b"d")


def test_a_plain_world_has_no_seal_in_its_parameters() -> None:
    """Connect and accept of plain connections are the same bytes as in 0.5."""
    world = World()
    world.connect()
    for flying in world.log:
        for frame in flying.frames():
            if isinstance(frame, wire.ConnectFrame | wire.AcceptFrame):
                assert b"seal" not in frame.parameters


def test_nothing_remains_of_a_sealed_connection() -> None:
    """In the compiled form, too: see SUBCLASSED in hatch_build.py."""

    def protections() -> int:
        gc.collect()
        return sum(type(one) is PacketProtection for one in gc.get_objects())

    SealedWorld().connect()
    before = protections()
    for _ in range(5):
        SealedWorld().connect()
    assert protections() == before
