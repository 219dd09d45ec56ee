"""The client's side of the handshake: it repeats itself, gives up in time, and believes only its server."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from tests.transport.world import CLIENT, SERVER, STRANGER, Flying, World

from godwit.limits import BASE_DATAGRAM_BYTES, HANDSHAKE_RETRY_S, HANDSHAKE_TIMEOUT_S, MAX_HANDSHAKE_RETRY_S
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, Closed, Connected, ConnectionState
from godwit.wire import packet as wire
from godwit.wire.control_base import Code
from godwit.wire.packet import encode_packet
from godwit.wire.parameters import encode_parameters


def to_client(world: World, connection: Connection, frame: wire.Frame, source: Address = SERVER) -> None:
    world.inject(world.client, encode_packet(connection.id, 0, wire.encode_frame(frame)), source=source)


def control_keys(world: World, kind: type[wire.Frame]) -> list[Flying]:
    return [flying for flying in world.log if flying.source == CLIENT and flying.has(kind)]


def nonce_of(world: World) -> bytes:
    (hello, *_) = control_keys(world, wire.HelloFrame)[0].frames()
    assert isinstance(hello, wire.HelloFrame)
    return hello.nonce


def deaf() -> tuple[World, Connection]:
    """A client whose server never answers."""
    world = World()
    world.fate = lambda flying: []
    connection = world.client.endpoint.connect(SERVER, world.now)
    world.drain()
    return world, connection


def test_the_usual_way() -> None:
    world = World()
    client, server = world.connect(b"hi there")
    assert client.state is server.state is ConnectionState.OPEN
    assert [event.application for event in world.server.all(Connected)] == [b"hi there"]
    assert [event.application for event in world.client.all(Connected)] == [b""]
    (hello,) = control_keys(world, wire.HelloFrame)
    assert len(hello.data) == BASE_DATAGRAM_BYTES
    (connect,) = control_keys(world, wire.ConnectFrame)
    assert len(connect.data) <= BASE_DATAGRAM_BYTES
    assert client.statistics.round_trip_s == pytest.approx(2 * world.delay_s, rel=0.01)


def test_the_largest_application_data_fits_a_base_datagram() -> None:
    world = World(client=EndpointConfig(connection_window_bytes=2**40, channel_window_bytes=2**40))
    world.connect(b"x" * 700)
    (connect,) = control_keys(world, wire.ConnectFrame)
    assert len(connect.data) <= BASE_DATAGRAM_BYTES


def test_hello_is_repeated_with_growing_patience_until_it_gives_up() -> None:
    world, connection = deaf()
    start = world.now
    world.run(HANDSHAKE_TIMEOUT_S + 5)
    times = [flying.at - start for flying in control_keys(world, wire.HelloFrame)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times[0] == 0.0
    assert HANDSHAKE_RETRY_S <= gaps[0] < 1.5 * HANDSHAKE_RETRY_S
    assert gaps == sorted(gaps)
    assert MAX_HANDSHAKE_RETRY_S <= max(gaps) < 1.5 * MAX_HANDSHAKE_RETRY_S
    assert times[-1] < HANDSHAKE_TIMEOUT_S
    closed = world.closed(world.client)
    assert (closed.code, closed.origin) == (Code.TIMEOUT, "timeout")
    assert "hello" in closed.reason
    assert connection.state is ConnectionState.CLOSED
    assert world.client.endpoint.next_timer() is None


def test_connect_is_repeated_and_a_new_cookie_fetched_in_between() -> None:
    world = World()
    world.fate = lambda flying: [] if flying.has(wire.ConnectFrame) else [world.delay_s]
    world.client.endpoint.connect(SERVER, world.now)
    world.run(HANDSHAKE_TIMEOUT_S + 5)
    assert len(control_keys(world, wire.ConnectFrame)) >= 4
    assert len(control_keys(world, wire.HelloFrame)) >= 2
    assert world.closed(world.client).origin == "timeout"
    assert not world.server.endpoint.connections


def test_a_cookie_that_went_stale_is_replaced() -> None:
    """The client's address changes between hello and connect: the cookie is worth nothing there."""
    world = World()
    connection = world.client.endpoint.connect(SERVER, world.now)
    world.run(2 * world.delay_s)
    world.client.address = ("192.0.2.1", 5999)
    world.routes[world.client.address] = world.client
    world.run_until(lambda: connection.state is ConnectionState.OPEN, 5.0)
    assert world.server.endpoint.dropped["bad_cookie"] > 0
    assert world.server.connection.peer_address == world.client.address


@pytest.mark.parametrize("kind", [wire.HelloFrame, wire.CookieFrame, wire.ConnectFrame, wire.AcceptFrame])
@pytest.mark.parametrize("times", [1, 3])
def test_each_step_may_get_lost(kind: type[wire.Frame], times: int) -> None:
    world = World()
    losses: list[Flying] = []

    def fate(flying: Flying) -> list[float]:
        if len(losses) < times and flying.has(kind):
            losses.append(flying)
            return []
        return [world.delay_s]

    world.fate = fate
    connection = world.client.endpoint.connect(SERVER, world.now)
    world.run_until(lambda: connection.state is ConnectionState.OPEN, HANDSHAKE_TIMEOUT_S)
    world.run(1.0)
    assert len(losses) == times
    assert len(world.server.endpoint.connections) == 1
    assert len(world.server.all(Connected)) == len(world.client.all(Connected)) == 1


def test_a_round_trip_is_measured_only_when_it_is_clear_which_packet_was_answered() -> None:
    world = World(delay_s=0.3)
    client, _ = world.connect()
    # Hello and connect were both repeated before their answers came.
    assert len(control_keys(world, wire.ConnectFrame)) > 1
    assert client.statistics.round_trip_s != pytest.approx(0.6, rel=0.2)
    world.run(3.0)
    assert client.statistics.round_trip_s == pytest.approx(0.6, rel=0.2)


@pytest.mark.parametrize(
    "make",
    [
        lambda world: wire.CookieFrame(bytes(20), b"x" * 16),
        lambda world: wire.RefuseFrame(b"x" * 16, Code.BUSY, "not from your server"),
        lambda world: wire.PingFrame(),
        lambda world: wire.CloseFrame(0, "", bytes(16)),
        lambda world: wire.DataFrame(wire.WHOLE, 1, 0, 0, None, b"early"),
        lambda world: wire.ResetFrame(bytes(16)),
        lambda world: wire.HelloFrame(5, bytes(16)),
    ],
)
def test_what_does_not_answer_it_is_dropped(make: Callable[[World], wire.Frame]) -> None:
    world, connection = deaf()
    to_client(world, connection, make(world))
    assert world.client.endpoint.dropped == {"unasked_handshake": 1}
    assert connection.state is ConnectionState.CONNECTING


@pytest.mark.parametrize("kind", ["cookie", "refuse", "accept"])
def test_answers_from_another_address_are_dropped(kind: str) -> None:
    world, connection = deaf()
    answers: dict[str, wire.Frame] = {
        "cookie": wire.CookieFrame(bytes(20), nonce_of(world)),
        "refuse": wire.RefuseFrame(nonce_of(world), Code.BUSY, ""),
        "accept": wire.AcceptFrame(5, bytes(16), bytes(16), encode_parameters(EndpointConfig().parameters(b""))),
    }
    to_client(world, connection, answers[kind], source=STRANGER)
    assert world.client.endpoint.dropped == {"wrong_address": 1}
    world.run(0.1)
    assert connection.state is ConnectionState.CONNECTING
    assert not control_keys(world, wire.ConnectFrame)


def test_answers_for_another_id_are_dropped() -> None:
    world, connection = deaf()
    frame = wire.RefuseFrame(nonce_of(world), Code.BUSY, "")
    world.inject(world.client, encode_packet(connection.id ^ 1, 0, wire.encode_frame(frame)), source=SERVER)
    assert world.client.endpoint.dropped == {"unknown_connection": 1}
    assert connection.state is ConnectionState.CONNECTING


def test_a_second_cookie_changes_nothing() -> None:
    world, connection = deaf()
    for fill in (b"1", b"2"):
        to_client(world, connection, wire.CookieFrame(fill * 20, nonce_of(world)))
    assert world.client.endpoint.dropped == {"late_handshake": 1}
    world.run(0.01)
    (connect,) = control_keys(world, wire.ConnectFrame)[0].frames()
    assert isinstance(connect, wire.ConnectFrame)
    assert connect.cookie == b"1" * 20


@pytest.mark.parametrize("parameters", [b"", b"\xff", b"\xa0", b"\x00", b"x" * 100])
def test_an_accept_with_bad_parameters_is_dropped(parameters: bytes) -> None:
    world, connection = deaf()
    to_client(world, connection, wire.CookieFrame(bytes(20), nonce_of(world)))
    to_client(world, connection, wire.AcceptFrame(5, bytes(16), bytes(16), parameters))
    assert world.client.endpoint.dropped == {"control": 1}
    assert connection.state is ConnectionState.CONNECTING


def test_refused() -> None:
    world, connection = deaf()
    to_client(world, connection, wire.RefuseFrame(nonce_of(world), Code.BUSY, "come back later"))
    world.run(20.0)
    closed = world.closed(world.client)
    assert (closed.code, closed.reason, closed.origin) == (Code.BUSY, "come back later", "refused")
    assert connection.state is ConnectionState.CLOSED
    assert len(control_keys(world, wire.HelloFrame)) == 1


def test_nothing_opens_a_connection_that_has_ended() -> None:
    """An accept that comes in the same turn as a refusal, or as the application's own close, is too late."""
    for end in ("refuse", "close"):
        world, connection = deaf()
        to_client(world, connection, wire.CookieFrame(bytes(20), nonce_of(world)))
        if end == "refuse":
            to_client(world, connection, wire.RefuseFrame(nonce_of(world), Code.BUSY, ""))
        else:
            connection.close(world.now)
        parameters = encode_parameters(EndpointConfig().parameters(b""))
        to_client(world, connection, wire.AcceptFrame(5, bytes(16), bytes(16), parameters))
        world.run(1.0)
        assert [type(event) for event in world.client.events] == [Closed]
        assert connection.state is ConnectionState.CLOSED


def test_closed_by_its_own_application_before_it_is_open() -> None:
    world, connection = deaf()
    connection.close(world.now, 7, "changed my mind")
    world.run(20.0)
    closed = world.closed(world.client)
    assert (closed.code, closed.reason, closed.origin) == (7, "changed my mind", "local")
    assert len(control_keys(world, wire.HelloFrame)) == 1
    assert world.client.endpoint.next_timer() is None


def test_records_wait_for_the_connection_to_open() -> None:
    world = World()
    connection = world.client.endpoint.connect(SERVER, world.now)
    channel = connection.open_channel()
    connection.send(channel, b"early bird")
    connection.send(0, b"control")
    connection.send(connection.open_channel(), b"unreliable", reliable=False)
    assert world.client.endpoint.buffered_bytes > 0
    world.run_until(lambda: len(world.server.records) == 3)
    assert sorted(world.server.bodies()) == [b"control", b"early bird"]
    assert world.server.bodies(reliable=False) == [b"unreliable"]


def test_a_connection_that_was_closed_while_dialling_says_nothing_more() -> None:
    endpoint = Endpoint(EndpointConfig(), entropy=random.Random(1).randbytes)
    connection = endpoint.connect(("server", 1), 0.0)
    connection.close(0.0)
    assert endpoint.trains(0.0) == []
    assert endpoint.trains(5.0) == []
