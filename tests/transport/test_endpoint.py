"""One socket's worth of connections: told apart, opened once, forgotten in the end; resets and refusals."""

from __future__ import annotations

import random

import pytest
from tests.transport.test_bad_input import with_checksum
from tests.transport.world import CLIENT, SERVER, STRANGER, Flying, Side, World, packet_for, send_all

from godwit.errors import ConfigurationError, UsageError
from godwit.limits import (
    AMPLIFICATION,
    BASE_DATAGRAM_BYTES,
    COOKIE_LIFETIME_S,
    MAX_ANSWERS_WAITING,
    MAX_RESETS_PER_S,
)
from godwit.transport import handshake
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, Closed, Connected, ConnectionState, Received, Train
from godwit.wire import packet as wire
from godwit.wire.control_base import Code
from godwit.wire.packet import CHECKSUM, VERSION, decode_packet, encode_packet
from godwit.wire.parameters import encode_parameters

RESET_KEY = b"kept across restarts"


def hello(connection_id: int = 7, size: int = BASE_DATAGRAM_BYTES, nonce: bytes = b"n" * 16) -> bytes:
    frame = wire.encode_frame(wire.HelloFrame(connection_id, nonce))
    return encode_packet(0, 0, frame.ljust(size - 17, b"\0"))


def answer(side: Side, now: float, to: Address = STRANGER) -> wire.Frame | None:
    """The frame that is answered to an address, if any. (A probe of the path may come behind an accept.)"""
    trains = side.endpoint.trains(now)
    if not trains:
        return None
    train = trains[0]
    assert train.address == to
    (frame,) = wire.decode_frames(decode_packet(train.data)[2])
    return frame


def cookie_for(world: World, connection_id: int = 7, source: Address = STRANGER) -> bytes:
    world.inject(world.server, hello(connection_id), source=source)
    cookie = answer(world.server, world.now, source)
    assert isinstance(cookie, wire.CookieFrame)
    return cookie.cookie


def connect_packet(cookie: bytes, connection_id: int = 7, parameters: bytes | None = None) -> bytes:
    if parameters is None:
        parameters = encode_parameters(EndpointConfig().parameters(b""))
    return encode_packet(0, 0, wire.encode_frame(wire.ConnectFrame(connection_id, b"n" * 16, cookie, parameters)))


# -- feed and drain ---------------------------------------------------------------------------------------------------


def test_a_new_endpoint_has_nothing_to_do() -> None:
    endpoint = Endpoint(EndpointConfig(), entropy=random.Random(1).randbytes)
    assert endpoint.events() == []
    assert endpoint.trains(0.0) == []
    assert endpoint.next_timer() is None
    endpoint.handle_timers(1e9)
    assert endpoint.connections == {}
    assert endpoint.buffered_bytes == 0
    endpoint.receive(Train(STRANGER, b"", 1), 0.0)
    assert not endpoint.dropped


def test_drained_is_drained() -> None:
    world = World()
    endpoint = world.client.endpoint
    endpoint.connect(SERVER, world.now)
    assert len(endpoint.trains(world.now)) == 1
    assert endpoint.trains(world.now) == []
    world.server.endpoint.handle_timers(world.now)
    assert endpoint.events() == []


def test_many_connections_between_two_endpoints() -> None:
    world = World()
    pairs = [world.connect(b"%d" % n) for n in range(20)]
    assert len({client.id for client, _ in pairs} | {server.id for _, server in pairs}) == 40
    for n, (client, server) in enumerate(pairs):
        send_all(world, client, [b"up %d" % n])
        send_all(world, server, [b"down %d" % n])
    world.run(1.0)
    for side, word in ((world.server, b"up"), (world.client, b"down")):
        connections = [pair[side is world.server] for pair in pairs]
        got = {(record.connection.id, record.body) for record in side.records}
        assert got == {(one.id, b"%s %d" % (word, n)) for n, one in enumerate(connections)}


def settled(world: World, count: int) -> dict[int, Connection]:
    """Return connections of the server that have nothing to send, by the id in their packets."""
    connections = {client.id: server for client, server in [world.connect() for _ in range(count)]}
    world.run(20.0)
    assert not world.server.endpoint.awake
    return connections


def test_new_data_leaves_before_acknowledgements() -> None:
    world = World()
    connections = settled(world, 3)
    first, second, third = connections
    connections[first].ping()
    connections[second].ping()
    connections[third].send(0, b"data")
    left = [int.from_bytes(train.data[1:9], "big") for train in world.server.endpoint.trains(world.now)]
    assert left == [third, first, second]


def test_a_full_socket_starves_no_connection() -> None:
    """The socket accepts 60 trains a turn. 100 connections have a record each turn, and 5 others something else."""
    world = World()
    connections = settled(world, 105)
    server, client = world.server.endpoint, world.client.endpoint
    sending = list(connections)[5:]
    channels = {number: connections[number].open_channel() for number in sending}
    served = dict.fromkeys(connections, 0)
    for turn in range(60):
        world.now += 0.005
        server.handle_timers(world.now)
        for number, connection in connections.items():
            if number in channels:
                connection.send(channels[number], bytes(100))
            else:
                connection.ping()
        for _ in range(60):
            train = server.next_train(world.now)
            if train is None:
                break
            served[int.from_bytes(train.data[1:9], "big")] = turn
            client.receive(Train(SERVER, train.data, train.segment_bytes), world.now)
        client.handle_timers(world.now)
        for event in client.events():
            if isinstance(event, Received):
                event.connection.consume(event.channel, len(event.body))
        for train in client.trains(world.now):
            server.receive(Train(CLIENT, train.data, train.segment_bytes), world.now)
        server.events()
        waiting = {number: turn - last for number, last in served.items() if turn - last > 4}
        assert not waiting, f"turn {turn}: turns without a train, by connection: {waiting}"


def test_packets_of_several_connections_in_one_train() -> None:
    world = World()
    pairs = [world.connect() for _ in range(3)]
    frame = wire.DataFrame(wire.WHOLE | wire.UNRELIABLE, 0, 0, 0, None, b"hello")
    packets = [packet_for(server, 100 + n // 3, frame) for n in range(9) for server in [pairs[n % 3][1]]]
    stray = encode_packet(12345, 0, wire.encode_frame(frame))
    data = b"".join(packets[:4]) + stray + b"".join(packets[4:]) + packets[0][:-3]
    world.server.endpoint.receive(Train(CLIENT, data, len(stray)), world.now)
    world.drain()
    assert len(world.server.records) == 9
    assert world.server.endpoint.dropped == {"unknown_connection": 1, "checksum": 1}


def test_a_server_can_be_a_client_of_another() -> None:
    world = World(client=EndpointConfig(accepts=True))
    there, _ = world.connect()
    back = world.server.endpoint.connect(CLIENT, world.now)
    world.run_until(lambda: back.state is ConnectionState.OPEN)
    world.run(0.5)
    assert there.role == back.role == "client"
    assert len(world.client.endpoint.connections) == len(world.server.endpoint.connections) == 2
    send_all(world, back, [b"backwards"])
    world.run(0.5)
    assert world.client.bodies() == [b"backwards"]


def test_an_endpoint_that_does_not_accept_answers_nobody() -> None:
    world = World()
    for packet in (hello(), connect_packet(bytes(20)), encode_packet(99, 1, b"\x01" * 100)):
        world.inject(world.client, packet, source=STRANGER)
    assert world.client.endpoint.trains(world.now) == []
    assert world.client.endpoint.dropped == {"unasked_handshake": 2, "unknown_connection": 1}


def test_as_many_connections_as_the_client_may_have() -> None:
    world = World(client=EndpointConfig(max_connections=2))
    world.connect()
    world.client.endpoint.connect(STRANGER, world.now)
    with pytest.raises(UsageError, match="max_connections"):
        world.client.endpoint.connect(SERVER, world.now)


def test_too_much_application_data() -> None:
    world = World()
    with pytest.raises(ConfigurationError, match="application"):
        world.client.endpoint.connect(SERVER, world.now, application=bytes(701))


def test_buffered_bytes_counts_both_directions_of_all_connections() -> None:
    world = World()
    world.server.consumes = False
    client, server = world.connect()
    other, _ = world.connect()
    world.run(0.5)
    assert world.client.endpoint.buffered_bytes == world.server.endpoint.buffered_bytes == 0
    channel = send_all(world, client, [bytes(1000)])
    send_all(world, other, [bytes(500)])
    assert 1500 < world.client.endpoint.buffered_bytes < 2000
    world.run(0.5)
    assert world.client.endpoint.buffered_bytes == 0
    assert 1500 < world.server.endpoint.buffered_bytes < 2000
    server.consume(channel, 1000)
    assert 500 < world.server.endpoint.buffered_bytes < 1000


def test_timers_do_not_pile_up() -> None:
    """After much traffic an idle connection wakes its endpoint as seldom as if there had been none."""
    world = World()
    client, _ = world.connect()
    channel = client.open_channel()
    for _ in range(300):
        client.send(channel, b"x")
        world.run(0.03)
    world.run(1.0)
    steps = 0
    until = world.now + 9.0
    while world.step(until):
        steps += 1
    assert steps < 30


def test_overtaken_timers_are_swept_out() -> None:
    """Each message leaves a far timer behind that nearer ones overtook; with always a near one before it, it stays."""
    world = World()
    clients = [world.connect()[0] for _ in range(10)]
    channels = [client.open_channel() for client in clients]
    longest = 0
    for n in range(500):
        clients[n % 10].send(channels[n % 10], b"x")
        world.run(0.002)
        longest = max(longest, len(world.server.endpoint._timers))
    world.run(1.0)
    assert len(world.server.records) == 500
    assert longest <= 4 * 10 + 64


@pytest.mark.parametrize("seed", range(12))
def test_no_connection_sleeps_beyond_its_next_timer(seed: int) -> None:
    """Whatever has arrived, and whichever path has handled it: a connection that is not awake has a timer in time."""
    world = World(seed, loss=0.1 if seed % 2 else 0.0)
    rng = world.rng
    connections = [connection for _ in range(3) for connection in world.connect()]
    channels = {connection: connection.open_channel() for connection in connections}
    until = world.now + 400.0
    checked = 0
    while world.now < until:
        for connection in connections:
            draw = rng.random()
            if draw < 0.2:
                connection.send(channels[connection], bytes(rng.choice([4, 4, 900, 5000])))
            elif draw < 0.25:
                connection.send(channels[connection], b"now", reliable=False)
            elif draw < 0.3:
                connection.ping()
        pause_until = world.now + rng.choice([0.0, 0.005, 0.03, 0.5, 3.0, 12.0, 16.0])
        while True:
            world.drain()
            for connection in connections:
                assert connection.state is ConnectionState.OPEN
                due = connection.next_timer()
                assert due is not None
                assert connection.scheduled_at is not None
                assert connection.scheduled_at <= max(due, world.now), f"seed {seed}: {connection.role}"
                checked += 1
            if not world.step(pause_until):
                break
    assert checked > 2000
    world.run(5.0)
    assert all(not connection.has_unsent for connection in connections)


def test_a_timer_that_is_asked_for_is_of_use() -> None:
    """next_timer names the time of the first thing to do, whatever was due before it."""
    world = World()
    client, _ = world.connect()
    for _ in range(50):
        world.run(0.01)
        send_all(world, client, [b"x"])
        world.drain()
        due_at = world.client.endpoint.next_timer()
        assert due_at is not None
        assert world.now <= due_at <= world.now + 1.0


# -- the handshake ----------------------------------------------------------------------------------------------------


def test_nothing_is_remembered_before_the_cookie_returns() -> None:
    world = World()
    for n in range(1, 2000):
        world.inject(world.server, hello(n), source=("203.0.113.1", n))
        for train in world.server.endpoint.trains(world.now):
            assert len(train.data) * AMPLIFICATION < BASE_DATAGRAM_BYTES
    assert not world.server.endpoint.connections
    assert world.server.endpoint.next_timer() is None
    assert world.server.endpoint.events() == []
    assert not world.server.endpoint.dropped


def test_a_short_hello_is_ignored() -> None:
    world = World()
    world.inject(world.server, hello(size=BASE_DATAGRAM_BYTES - 1), source=STRANGER)
    assert answer(world.server, world.now) is None
    assert world.server.endpoint.dropped == {"short_hello": 1}


def test_a_cookie_is_good_only_where_and_for_what_it_was_given() -> None:
    world = World()
    cookie = cookie_for(world)
    tampered = cookie[:10] + bytes((cookie[10] ^ 1,)) + cookie[11:]
    for packet, source in (
        (connect_packet(tampered), STRANGER),
        (connect_packet(bytes(20)), STRANGER),
        (connect_packet(cookie, connection_id=8), STRANGER),
        (connect_packet(cookie, connection_id=0), STRANGER),
        (connect_packet(cookie), ("203.0.113.9", 6667)),
    ):
        world.inject(world.server, packet, source=source)
        assert world.server.endpoint.trains(world.now) == []
    assert world.server.endpoint.dropped == {"bad_cookie": 5}
    world.now += COOKIE_LIFETIME_S + 1
    world.inject(world.server, connect_packet(cookie), source=STRANGER)
    assert world.server.endpoint.dropped == {"bad_cookie": 6}
    assert not world.server.endpoint.connections
    assert world.server.endpoint.events() == []


def test_a_repeated_connect_gets_the_same_accept_and_one_connection() -> None:
    world = World()
    packet = connect_packet(cookie_for(world))
    answers = []
    for _ in range(5):
        world.inject(world.server, packet, source=STRANGER)
        answers.append(answer(world.server, world.now))
    assert isinstance(answers[0], wire.AcceptFrame)
    assert len({str(one) for one in answers}) == 1
    assert len(world.server.endpoint.connections) == 1
    assert [type(event) for event in world.server.endpoint.events()] == [Connected]
    assert world.server.endpoint.dropped == {"repeated_connect": 4}


def test_a_replayed_connect_after_the_end_opens_nothing() -> None:
    world = World()
    client, _ = world.connect()
    recorded = [flying.data for flying in world.log if flying.source == CLIENT]
    client.close(world.now)
    world.run(5.0)
    assert not world.server.endpoint.connections
    before = len(world.server.events)
    for _ in range(20):
        world.inject(world.server, *recorded, source=CLIENT)
        world.server.endpoint.trains(world.now)
        world.run(1.0)
        assert not world.server.endpoint.connections
    assert len(world.server.events) == before


def test_a_client_that_never_confirms_its_accept_is_forgotten() -> None:
    world = World()
    world.inject(world.server, connect_packet(cookie_for(world)), source=STRANGER)
    assert isinstance(answer(world.server, world.now), wire.AcceptFrame)
    world.fate = lambda flying: []
    world.run(60.0)
    assert world.closed(world.server).origin == "timeout"
    assert not world.server.endpoint.connections


def test_a_full_server_refuses() -> None:
    world = World(server=EndpointConfig(accepts=True, max_connections=1))
    first, _ = world.connect()
    second = world.client.endpoint.connect(SERVER, world.now)
    world.run(1.0)
    closed = world.closed(world.client)
    assert closed.connection is second
    assert (closed.code, closed.origin) == (Code.BUSY, "refused")
    assert "try again" in closed.reason
    assert world.server.endpoint.dropped["busy"] == 1
    first.close(world.now)
    world.run(5.0)
    third = world.client.endpoint.connect(SERVER, world.now)
    world.run_until(lambda: third.state is ConnectionState.OPEN)


def test_the_addresses_of_an_ipv6_network_are_one_host() -> None:
    world = World(server=EndpointConfig(accepts=True, max_connections_per_host=2))
    kinds = []
    for number, host in enumerate(("2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"), 7):
        source: Address = (host, 5000)
        world.inject(world.server, connect_packet(cookie_for(world, number, source), number), source=source)
        kinds.append(type(answer(world.server, world.now, source)))
    assert kinds == [wire.AcceptFrame, wire.AcceptFrame, wire.RefuseFrame, wire.AcceptFrame]


def test_a_host_with_too_many_connections_is_refused() -> None:
    world = World(server=EndpointConfig(accepts=True, max_connections_per_host=2))
    first, _ = world.connect()
    world.connect()
    world.client.endpoint.connect(SERVER, world.now)
    world.run(1.0)
    closed = world.closed(world.client)
    assert (closed.code, closed.origin) == (Code.BUSY, "refused")
    assert f"2 connections from {CLIENT[0]}" in closed.reason
    assert world.server.endpoint.dropped["busy"] == 1
    world.inject(world.server, connect_packet(cookie_for(world)), source=STRANGER)
    assert isinstance(answer(world.server, world.now), wire.AcceptFrame)
    first.close(world.now)
    world.run(5.0)
    third = world.client.endpoint.connect(SERVER, world.now)
    world.run_until(lambda: third.state is ConnectionState.OPEN)
    for connection in list(world.client.endpoint.connections.values()):
        connection.close(world.now)
    world.run(15.0)
    assert not world.server.endpoint.connections
    assert not world.server.endpoint._from_host


def test_a_host_has_no_limit_of_its_own_unless_one_is_set() -> None:
    world = World(server=EndpointConfig(accepts=True, max_connections=3))
    for _ in range(3):
        world.connect()
    assert len(world.server.endpoint.connections) == 3


def test_a_refused_connect_stays_refused() -> None:
    """A repeat of it that is under way must not open a connection that no client holds."""
    world = World(server=EndpointConfig(accepts=True, max_connections=1))
    first, _ = world.connect()
    packet = connect_packet(cookie_for(world))
    world.inject(world.server, packet, source=STRANGER)
    assert isinstance(answer(world.server, world.now), wire.RefuseFrame)
    first.close(world.now)
    world.run(5.0)
    world.inject(world.server, packet, source=STRANGER)
    assert isinstance(answer(world.server, world.now), wire.RefuseFrame)
    assert not world.server.endpoint.connections


@pytest.mark.parametrize("parameters", [b"", b"\xff", b"\xa0", b"x" * 200])
def test_bad_parameters_are_refused(parameters: bytes) -> None:
    world = World()
    world.inject(world.server, connect_packet(cookie_for(world), parameters=parameters), source=STRANGER)
    refuse = answer(world.server, world.now)
    assert isinstance(refuse, wire.RefuseFrame)
    assert refuse.code == Code.PROTOCOL
    assert refuse.nonce == b"n" * 16
    assert world.server.endpoint.dropped == {"control": 1}
    assert not world.server.endpoint.connections


@pytest.mark.parametrize("version", [0, 2, 15])
def test_another_version_is_refused_in_our_own(version: int) -> None:
    world = World()
    packet = with_checksum(bytes((version << 4,)) + hello()[1 : -CHECKSUM.size])
    world.inject(world.server, packet, source=STRANGER)
    refuse = answer(world.server, world.now)
    assert isinstance(refuse, wire.RefuseFrame)
    assert (refuse.code, refuse.nonce) == (Code.VERSION, b"n" * 16)
    assert f"version {VERSION}" in refuse.reason
    assert world.server.endpoint.dropped == {"version": 1}


def test_other_packets_of_another_version_are_not_answered() -> None:
    world = World()
    for packet in (hello(size=BASE_DATAGRAM_BYTES - 1), connect_packet(bytes(20)), encode_packet(0, 0, b"\x3f" * 1300)):
        foreign = with_checksum(bytes((0x20,)) + packet[1 : -CHECKSUM.size])
        world.inject(world.server, foreign, source=STRANGER)
        world.inject(world.client, foreign, source=STRANGER)
    assert world.server.endpoint.trains(world.now) == world.client.endpoint.trains(world.now) == []
    assert world.server.endpoint.dropped == world.client.endpoint.dropped == {"version": 3}


@pytest.mark.parametrize(
    "frame", [wire.PingFrame(), wire.AcceptFrame(1, bytes(16), bytes(16), b""), wire.CookieFrame(bytes(20), bytes(16))]
)
def test_strange_frames_without_an_id(frame: wire.Frame) -> None:
    world = World()
    world.inject(world.server, encode_packet(0, 0, wire.encode_frame(frame)), source=STRANGER)
    assert world.server.endpoint.trains(world.now) == []
    assert world.server.endpoint.dropped == {"unasked_handshake": 1}


# -- resets -----------------------------------------------------------------------------------------------------------


def restarted(world: World, reset_key: bytes = RESET_KEY) -> Endpoint:
    """The server's process died and came back: its connections are gone."""
    config = EndpointConfig(accepts=True, reset_key=reset_key)
    world.server.endpoint = Endpoint(config, entropy=world.rng.randbytes)
    return world.server.endpoint


def before_restart() -> tuple[World, Connection]:
    world = World(server=EndpointConfig(accepts=True, reset_key=RESET_KEY))
    client, _ = world.connect()
    world.run(0.5)
    return world, client


def test_a_restarted_server_proves_its_reset() -> None:
    world, client = before_restart()
    restarted(world)
    send_all(world, client, [bytes(100)])
    world.run(0.1)
    closed = world.closed(world.client)
    assert (closed.code, closed.origin) == (Code.RESET, "reset")
    assert client.state is ConnectionState.DRAINING
    assert world.server.endpoint.dropped["unknown_connection"] >= 1
    world.run(2.0)
    assert client.is_over
    assert not world.client.endpoint.connections


def test_a_restarted_server_with_another_key_is_not_believed() -> None:
    world, client = before_restart()
    restarted(world, b"quite another key")
    send_all(world, client, [bytes(100)])
    world.run(5.0)
    assert client.state is ConnectionState.OPEN
    assert world.client.endpoint.dropped["forged_reset"] >= 1
    world.run(60.0)
    assert world.closed(world.client).origin == "timeout"


def test_a_reset_is_believed_from_the_servers_address_only() -> None:
    world, client = before_restart()
    token = handshake.reset_token(RESET_KEY, world.server.connection.id)
    good = encode_packet(0, 0, wire.encode_frame(wire.ResetFrame(token)))
    forged = encode_packet(0, 0, wire.encode_frame(wire.ResetFrame(bytes(16))))
    elsewhere = encode_packet(99, 0, wire.encode_frame(wire.ResetFrame(token)))
    world.inject(world.client, good, source=STRANGER)
    world.inject(world.client, forged, source=SERVER)
    assert world.client.endpoint.dropped == {"forged_reset": 2}
    world.inject(world.client, elsewhere, source=SERVER)
    assert world.client.endpoint.dropped["unknown_connection"] == 1
    assert client.state is ConnectionState.OPEN
    world.inject(world.client, good, good, source=SERVER)
    world.drain()
    assert world.closed(world.client).origin == "reset"


def test_resets_are_never_longer_than_what_they_answer_and_bounded() -> None:
    world = World()
    answered = 0
    for n in range(6000):
        packet = encode_packet(1000 + n, 0, b"\x01" * (n % 40 + 1))
        world.inject(world.server, packet, source=STRANGER)
        trains = world.server.endpoint.trains(world.now)
        assert sum(len(train.data) for train in trains) < len(packet)
        answered += len(trains)
    assert answered == MAX_RESETS_PER_S
    assert world.server.endpoint.dropped == {"unknown_connection": 6000}


def test_answers_that_nobody_fetches_are_bounded() -> None:
    """A flood of hellos while the socket is blocked."""
    world = World()
    for n in range(1, MAX_ANSWERS_WAITING + 101):
        world.inject(world.server, hello(n), source=STRANGER)
    assert world.server.endpoint.dropped == {"answer_overflow": 100}
    assert len(world.server.endpoint.trains(world.now)) == MAX_ANSWERS_WAITING


def test_a_server_that_gives_the_same_token_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "reset_token", lambda key, connection_id: bytes(16))
    world = World()
    one, _ = world.connect()
    other, _ = world.connect()
    one.close(world.now)
    world.run(5.0)
    other.close(world.now)
    world.run(5.0)
    assert not world.client.endpoint.connections
    assert len(world.client.all(Closed)) == 2


# -- forgetting -------------------------------------------------------------------------------------------------------


def test_ended_connections_are_forgotten() -> None:
    world = World()
    for n in range(10):
        client, _ = world.connect()
        send_all(world, client, [b"%d" % n])
        world.run(0.2)
        client.close(world.now)
        world.run(3.0)
    assert not world.client.endpoint.connections
    assert not world.server.endpoint.connections
    assert world.client.endpoint.next_timer() is None
    assert world.server.endpoint.next_timer() is None
    assert world.client.endpoint.buffered_bytes == world.server.endpoint.buffered_bytes == 0


def test_calls_on_a_forgotten_connection_do_no_harm() -> None:
    world = World()
    client, _ = world.connect()
    client.close(world.now)
    world.run(5.0)
    client.consume(1, 10**7)  # returns credit, which has no use any more
    client.close(world.now)
    world.run(1.0)
    assert client.next_timer() is None
    assert len(world.client.all(Closed)) == 1


def test_a_lost_close_is_made_good_by_a_reset() -> None:
    """The server forgot the connection after its close got lost; the client's next word is answered with a reset."""
    world, client = before_restart()
    world.fate = lambda flying: [] if flying.source == SERVER else [world.delay_s]
    world.server.connection.close(world.now, Code.SHUTDOWN)
    world.run(5.0)
    assert not world.server.endpoint.connections
    assert client.state is ConnectionState.OPEN
    world.fate = world.usual_fate
    send_all(world, client, [bytes(100)])
    world.run(1.0)
    assert world.closed(world.client).origin == "reset"


def test_every_answer_to_a_stranger_keeps_the_three_times_rule() -> None:
    world = World(server=EndpointConfig(accepts=True, max_connections=1), loss=0.3, seed=5)
    received: dict[Address, int] = {}
    sent: dict[Address, int] = {}

    def fate(flying: Flying) -> list[float]:
        if flying.source == SERVER and not world.server.endpoint.connections:
            sent[flying.target] = sent.get(flying.target, 0) + len(flying.data)
            assert sent[flying.target] <= AMPLIFICATION * received.get(flying.target, 0)
        fates = world.usual_fate(flying)
        if flying.target == SERVER:
            received[flying.source] = received.get(flying.source, 0) + len(flying.data) * bool(fates)
        return fates

    world.fate = fate
    client, _ = world.connect()
    send_all(world, client, [bytes(5000)])
    world.run_until(lambda: len(world.server.records) == 1)
