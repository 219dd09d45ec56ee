"""One peer: the application's calls, the end of a connection in every way, silence, and moves to another address."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.transport.world import ARQS, CLIENT, SERVER, STRANGER, Flying, Side, World, packet_for, send_all

from godwit.errors import (
    ChannelError,
    ConnectionClosedError,
    RecordTooLargeError,
    SendBufferFullError,
    UsageError,
)
from godwit.limits import AMPLIFICATION, HANDSHAKE_TIMEOUT_S, MAX_UNRELIABLE_BYTES
from godwit.transport import handshake
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.events import (
    Address,
    ChannelConfirmed,
    Closed,
    Connected,
    ConnectionState,
    PathChanged,
    Received,
    Writable,
)
from godwit.wire import packet as wire
from godwit.wire.control_base import Code

# -- the application's calls ------------------------------------------------------------------------------------------


def test_channels_are_numbered_from_one_in_each_direction() -> None:
    world = World()
    client, server = world.connect()
    assert [client.open_channel() for _ in range(3)] == [1, 2, 3]
    assert [server.open_channel() for _ in range(2)] == [1, 2]


def test_records_arrive_whole_and_in_order_with_their_numbers() -> None:
    world = World()
    client, _ = world.connect()
    channel = client.open_channel()
    for body in (b"", b"one", bytes(100_000)):
        client.send(channel, body)
    client.send(channel, b"the end", last=True)
    world.run(1.0)
    assert [(one.channel, one.record, one.body, one.reliable, one.last) for one in world.server.records] == [
        (1, 0, b"", True, False),
        (1, 1, b"one", True, False),
        (1, 2, bytes(100_000), True, False),
        (1, 3, b"the end", True, True),
    ]
    with pytest.raises(ChannelError):
        client.send(channel, b"after the end")


def test_both_sides_share_a_binding_that_no_other_connection_has() -> None:
    world = World()
    dialling = world.client.endpoint.connect(SERVER, world.now)
    with pytest.raises(UsageError, match="Connected"):
        _ = dialling.binding
    world.run(0.2)
    one, other = dialling, world.server.connection
    assert one.binding == other.binding == handshake.login_binding(world.connection_key())
    assert len(one.binding) == 32
    assert world.connect()[0].binding != one.binding
    one.close(world.now)
    assert one.binding == other.binding


def test_what_waits_to_be_sent_for_the_first_time() -> None:
    world = World()
    client, _ = world.connect()
    world.run(0.2)
    channel = client.open_channel()
    client.send(channel, b"record")
    before = client.has_unsent, client.unsent_bytes
    world.drain()
    assert (before, client.has_unsent, client.unsent_bytes) == ((True, 7), False, 0)
    client.send(channel, b"follows", reliable=False)
    client.send(0, b"unreliable", reliable=False)
    assert client.unsent_bytes > 17
    world.run(1.0)
    assert client.unsent_bytes == 0
    assert [(one.body, one.reliable) for one in world.server.records] == [
        (b"record", True),
        (b"unreliable", False),
        (b"follows", True),
    ]


def test_unreliable_records_have_numbers_of_their_own() -> None:
    world = World()
    client, _ = world.connect()
    world.run(0.2)
    channel = client.open_channel()
    client.send(channel, b"reliable")
    world.run(0.1)
    for n in range(10):
        world.loss = 1.0 if n in (3, 7) else 0.0
        client.send(channel, b"%d" % n, reliable=False)
        world.run(0.1)
    world.run(1.0)
    got = [(one.record, one.body) for one in world.server.records if not one.reliable]
    assert got == [(n, b"%d" % n) for n in range(10) if n not in (3, 7)]


def test_what_send_refuses() -> None:
    world = World(server=EndpointConfig(accepts=True, max_record_bytes=5000, max_channels=2))
    client, _ = world.connect()
    channel = client.open_channel()
    with pytest.raises(RecordTooLargeError, match="5001"):
        client.send(channel, bytes(5001))
    with pytest.raises(RecordTooLargeError, match="unreliable"):
        client.send(channel, bytes(MAX_UNRELIABLE_BYTES + 1), reliable=False)
    with pytest.raises(ChannelError):
        client.send(99, b"")
    with pytest.raises(ChannelError):
        client.send(channel, b"", reliable=False, last=True)
    with pytest.raises(ChannelError):
        client.send(0, b"", last=True)
    client.open_channel()
    with pytest.raises(ChannelError, match="2 channels"):
        client.open_channel()
    client.send(channel, bytes(5000))
    client.send(channel, bytes(MAX_UNRELIABLE_BYTES), reliable=False)
    world.run(1.0)
    assert len(world.server.records) == 2


def test_a_full_send_buffer_and_the_word_that_there_is_room() -> None:
    world = World(client=EndpointConfig(send_buffer_bytes=20_000))
    client, _ = world.connect()
    channel = client.open_channel()
    for _ in range(19):
        client.send(channel, bytes(900))
    with pytest.raises(SendBufferFullError):
        client.send(channel, bytes(900))
    assert not world.client.all(Writable)
    world.run_until(lambda: bool(world.client.all(Writable)))
    assert client.buffered_bytes <= 10_000
    client.send(channel, bytes(900))
    world.run(1.0)
    assert len(world.client.all(Writable)) == 1
    assert len(world.server.records) == 20


def test_a_record_longer_than_the_send_buffer_goes_alone() -> None:
    world = World(client=EndpointConfig(send_buffer_bytes=5000))
    client, _ = world.connect()
    channel = send_all(world, client, [bytes(50_000)])
    with pytest.raises(SendBufferFullError):
        client.send(channel, b"")
    world.run(1.0)
    assert world.server.bodies() == [bytes(50_000)]


def test_the_longest_record_that_the_other_side_takes() -> None:
    world = World(delay_s=0.001)
    client, _ = world.connect()
    from godwit.limits import MAX_RECORD_BYTES

    channel = send_all(world, client, [bytes(MAX_RECORD_BYTES)])
    world.run_until(lambda: bool(world.server.bodies(channel)), 60.0)
    assert len(world.server.bodies(channel)[0]) == MAX_RECORD_BYTES


def test_what_was_queued_before_the_limits_were_known_ends_the_connection_clearly() -> None:
    for queue in ("record", "channels"):
        world = World(server=EndpointConfig(accepts=True, max_record_bytes=5000, max_channels=2))
        client = world.client.endpoint.connect(SERVER, world.now)
        if queue == "record":
            send_all(world, client, [bytes(5001)])
        else:
            for _ in range(3):
                client.open_channel()
        world.run(2.0)
        closed = world.closed(world.client)
        assert (closed.code, closed.origin) == (Code.LIMIT, "local")
        assert "the peer accepts at most" in closed.reason
        assert world.closed(world.server).origin == "peer"


def test_confirms_arrive_with_the_newest_value() -> None:
    world = World(loss=0.3, seed=3)
    client, server = world.connect()
    channel = send_all(world, client, [b"record"])
    world.run_until(lambda: bool(world.server.records))
    for sequence in range(1, 50):
        server.confirm(channel, sequence, 2 * sequence)
        world.run(0.005)
    world.run_until(lambda: any(event.sequence == 49 for event in world.client.all(ChannelConfirmed)))
    confirmed = world.client.all(ChannelConfirmed)
    assert [event.sequence for event in confirmed] == sorted({event.sequence for event in confirmed})
    assert all((event.channel, event.reached) == (channel, 2 * event.sequence) for event in confirmed)


def test_a_train_filling_record_is_sent_as_one_full_train() -> None:
    world = World(delay_s=0.0002)
    client, _ = world.connect()
    world.run(0.2)
    for _ in range(30):  # lets the rate grow
        send_all(world, client, [bytes(200_000)])
        world.run(0.05)
    before = len(world.log)
    size = client.train_payload_bytes
    send_all(world, client, [bytes(size)])
    world.run(0.05)
    sent = [flying for flying in world.log[before:] if flying.source == CLIENT and flying.has(wire.DataFrame)]
    assert {len(flying.data) for flying in sent} == {client.statistics.datagram_bytes}
    assert sum(len(flying.data) for flying in sent) <= 64_000


def test_the_size_of_a_train_is_not_known_before_the_connection_is_open() -> None:
    world = World()
    connection = world.client.endpoint.connect(SERVER, world.now)
    with pytest.raises(UsageError, match="Connected"):
        _ = connection.train_payload_bytes


def test_statistics_tell_of_the_path() -> None:
    world = World(loss=0.05)
    idle = world.client.endpoint.connect(STRANGER, world.now)
    assert idle.statistics.packets_sent == 0
    client, server = world.connect()
    send_all(world, client, [bytes(400_000)])
    world.run_until(lambda: bool(world.server.records))
    world.run(1.0)
    seen = client.statistics
    assert seen.packets_sent > 270
    assert 0 < seen.packets_lost < seen.packets_sent / 5
    assert seen.fragments_resent >= 1
    assert seen.bytes_sent > 400_000
    assert seen.round_trip_s == pytest.approx(0.02, rel=0.5)
    assert seen.shortest_trip_s == pytest.approx(0.02, rel=0.05)
    assert seen.bandwidth_bytes_per_s > 100_000
    assert seen.datagram_bytes == 1472
    assert seen.in_flight_bytes == 0
    assert server.statistics.packets_received > 260


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closer", ["client", "server"])
def test_close_with_a_reason(closer: str) -> None:
    world = World()
    client, server = world.connect()
    one, side, other = (client, world.client, world.server) if closer == "client" else (
        server, world.server, world.client
    )  # fmt: skip
    one.close(world.now, Code.SHUTDOWN, "going home \N{HOUSE BUILDING}")
    assert one.state is ConnectionState.CLOSING
    world.run(world.delay_s)
    assert [(event.code, event.reason, event.origin) for event in (world.closed(side), world.closed(other))] == [
        (Code.SHUTDOWN, "going home \N{HOUSE BUILDING}", "local"),
        (Code.SHUTDOWN, "going home \N{HOUSE BUILDING}", "peer"),
    ]
    assert other.connection.state is ConnectionState.DRAINING
    world.run(5.0)
    assert client.state is server.state is ConnectionState.CLOSED
    assert len(world.client.all(Closed)) == len(world.server.all(Closed)) == 1


def test_nothing_works_on_a_closed_connection() -> None:
    world = World()
    client, server = world.connect()
    channel = client.open_channel()
    client.close(world.now, 9, "done")
    calls: list[Callable[[], object]] = [
        client.open_channel,
        lambda: client.send(channel, b""),
        lambda: client.confirm(channel, 0, 0),
    ]
    for call in calls:
        with pytest.raises(ConnectionClosedError, match="done") as caught:
            call()
        assert (caught.value.code, caught.value.reason) == (9, "done")
    client.close(world.now, 10, "again")
    client.consume(channel, 10)
    world.run(1.0)
    assert world.closed(world.server).code == 9
    with pytest.raises(ConnectionClosedError):
        server.send(0, b"")


@pytest.mark.parametrize("code", [-1, 65_536])
def test_a_code_that_does_not_fit(code: int) -> None:
    world = World()
    client, _ = world.connect()
    with pytest.raises(UsageError, match="code"):
        client.close(world.now, code)
    assert client.state is ConnectionState.OPEN


def test_a_reason_that_is_too_long_is_cut_and_still_proved() -> None:
    world = World()
    client, _ = world.connect()
    client.close(world.now, 0, "\N{SNOWMAN}" * 1000 + "\udc80")
    world.run(1.0)
    assert world.closed(world.server).origin == "peer"
    assert set(world.closed(world.server).reason) == {"\N{SNOWMAN}"}


def test_records_before_the_close_are_delivered_first() -> None:
    world = World()
    client, _ = world.connect()
    world.run(0.2)
    send_all(world, client, [b"last words"])
    world.drain()
    client.close(world.now)
    world.run(1.0)
    assert [type(event) for event in world.server.events] == [Connected, Received, Closed]


def test_a_lost_close_is_said_again() -> None:
    world = World()
    client, _ = world.connect()
    world.run(0.2)
    lost: list[Flying] = []

    def fate(flying: Flying) -> list[float]:
        if flying.has(wire.CloseFrame) and len(lost) < 2:
            lost.append(flying)
            return []
        return [world.delay_s]

    world.fate = fate
    client.close(world.now, 5)
    world.run(2.0)
    assert len(lost) == 2
    assert world.closed(world.server).code == 5


def test_late_packets_are_answered_with_the_close_for_a_while() -> None:
    world = World()
    client, server = world.connect()
    world.run(0.2)
    world.fate = lambda flying: [] if flying.source == CLIENT else [world.delay_s]
    client.close(world.now, 5)
    send_all(world, server, [bytes(200)])
    world.run(0.012)
    closes = sum(flying.has(wire.CloseFrame) for flying in world.log)
    assert closes >= 2
    for n in range(100):
        world.inject(world.client, packet_for(client, 500 + n, wire.PingFrame()), source=SERVER)
        world.inject(world.client, packet_for(client, 500 + n, wire.PingFrame()), source=STRANGER)
        world.drain()
    assert closes < sum(flying.has(wire.CloseFrame) for flying in world.log) <= 25
    assert all(flying.target == SERVER for flying in world.log if flying.has(wire.CloseFrame))
    assert world.client.endpoint.dropped["closed_connection"] >= 200
    world.run(5.0)
    world.fate = world.usual_fate
    assert world.client.endpoint.connections == {}


def test_both_close_at_once() -> None:
    world = World()
    client, server = world.connect()
    client.close(world.now, 1)
    server.close(world.now, 2)
    world.run(5.0)
    assert world.closed(world.client).code == 1
    assert world.closed(world.server).code == 2
    assert not world.client.endpoint.connections
    assert not world.server.endpoint.connections
    assert sum(flying.has(wire.CloseFrame) for flying in world.log) < 50


def test_a_draining_connection_is_silent() -> None:
    world = World()
    client, server = world.connect()
    world.run(0.2)
    client.close(world.now)
    world.run(world.delay_s)
    assert server.state is ConnectionState.DRAINING
    before = len([flying for flying in world.log if flying.source == SERVER])
    for n in range(10):
        world.inject(world.server, packet_for(server, 500 + n, wire.PingFrame()), source=CLIENT)
    world.run(0.05)
    assert len([flying for flying in world.log if flying.source == SERVER]) == before


def test_a_forged_close_is_not_believed() -> None:
    world = World()
    client, server = world.connect()
    world.run(0.2)
    key = world.connection_key()
    mine = handshake.close_mac(key, "server", 0, "")  # as the server itself would prove it: not the client's word
    for n, mac in enumerate((bytes(16), b"\xff" * 16, mine, handshake.close_mac(bytes(32), "client", 0, ""))):
        world.smuggle(client, world.server, wire.CloseFrame(0, "", mac))
        assert world.server.endpoint.dropped["forged_close"] == n + 1
    other_code = handshake.close_mac(key, "client", 1, "")
    world.smuggle(client, world.server, wire.CloseFrame(0, "", other_code))
    assert world.server.endpoint.dropped["forged_close"] == 5
    assert server.state is ConnectionState.OPEN
    good = handshake.close_mac(key, "client", 3, "proved")
    world.inject(world.server, packet_for(server, 900, wire.CloseFrame(3, "proved", good)), source=CLIENT)
    world.drain()
    assert world.closed(world.server).reason == "proved"


# -- silence ----------------------------------------------------------------------------------------------------------


def test_keep_alive_keeps_an_idle_connection_open() -> None:
    world = World()
    client, server = world.connect()
    world.run(600.0)
    assert client.state is server.state is ConnectionState.OPEN
    pings = [flying for flying in world.log if flying.at > 105.0 and flying.source == CLIENT]
    assert 30 < len(pings) < 150
    send_all(world, client, [b"still here"])
    world.run(1.0)
    assert world.server.bodies() == [b"still here"]


@pytest.mark.parametrize("arq", ARQS)
def test_keep_alive_through_loss(arq: str) -> None:
    world = World(7, client=EndpointConfig(arq=arq), loss=0.3)  # type: ignore[arg-type]
    client, server = world.connect()
    world.run(300.0)
    assert client.state is server.state is ConnectionState.OPEN


def test_the_smaller_idle_time_out_counts_on_both_sides() -> None:
    world = World(client=EndpointConfig(idle_timeout_s=8.0), server=EndpointConfig(accepts=True, idle_timeout_s=100.0))
    world.connect()
    world.run(1.0)
    world.loss = 1.0
    start = world.now
    world.run_until(lambda: bool(world.client.all(Closed) and world.server.all(Closed)), 20.0)
    assert world.now - start < 9.0
    for side in world.sides:
        closed = world.closed(side)
        assert (closed.code, closed.origin) == (Code.TIMEOUT, "timeout")
        assert "nothing was received" in closed.reason
    world.run(10.0)
    assert not world.client.endpoint.connections
    assert not world.server.endpoint.connections
    assert world.client.endpoint.next_timer() is world.server.endpoint.next_timer() is None


def test_a_short_idle_time_out_is_kept_alive_too() -> None:
    world = World(client=EndpointConfig(idle_timeout_s=0.5))
    client, server = world.connect()
    world.run(10.0)
    assert client.state is server.state is ConnectionState.OPEN


def test_silence_while_something_waits_to_be_sent() -> None:
    world = World()
    client, _ = world.connect()
    world.run(1.0)
    world.loss = 1.0
    send_all(world, client, [bytes(100_000)])
    start = world.now
    before = len(world.log)
    world.run_until(lambda: bool(world.client.all(Closed)), 60.0)
    assert 25.0 < world.now - start < 35.0
    sent = [flying.at for flying in world.log[before:] if flying.source == CLIENT and flying.at > start + 0.5]
    assert 20 < len(sent) < 200  # it asks again with growing patience, for ever but not too often


def test_a_client_that_was_never_heard_after_its_connect_is_given_less_time() -> None:
    world = World()
    world.fate = lambda flying: [] if flying.has(wire.AcceptFrame) else [world.delay_s]
    world.client.endpoint.connect(SERVER, world.now)
    world.run_until(lambda: bool(world.server.all(Connected)))
    start = world.now
    world.loss = 1.0
    world.fate = world.usual_fate
    world.run_until(lambda: bool(world.server.all(Closed)), 60.0)
    assert world.now - start <= HANDSHAKE_TIMEOUT_S + 1.0


def test_a_partition_that_heals() -> None:
    world = World()
    client, _ = world.connect()
    world.run(1.0)
    for _ in range(3):
        channel = send_all(world, client, [bytes(100_000)])
        world.run(0.02)
        world.loss = 1.0
        world.run(20.0)
        world.loss = 0.0
        world.run_until(lambda channel=channel: bool(world.server.bodies(channel)), 3.0)  # type: ignore[misc]


# -- another address --------------------------------------------------------------------------------------------------

NEW_PORT: Address = ("192.0.2.1", 6001)
NEW_HOST: Address = ("192.0.2.222", 5000)


def move(world: World, address: Address, *, old_is_dead: bool = True) -> None:
    """From now on the client's packets come from this address, and only what is sent there reaches it."""
    if old_is_dead:
        world.routes.pop(world.client.address)
    world.client.address = address
    world.routes[address] = world.client


@pytest.mark.parametrize("address", [NEW_PORT, NEW_HOST])
@pytest.mark.parametrize("arq", ARQS)
@pytest.mark.parametrize("old_is_dead", [True, False])
def test_a_client_that_moves_goes_on(address: Address, arq: str, old_is_dead: bool) -> None:
    size = 4000 if arq == "stop-and-wait" else 20_000
    world = World(3, client=EndpointConfig(arq=arq), bytes_per_s=1.25e6)  # type: ignore[arg-type]
    client, server = world.connect()
    up = [world.rng.randbytes(size) for _ in range(30)]
    down = [world.rng.randbytes(size) for _ in range(30)]
    to_server, to_client = send_all(world, client, up), send_all(world, server, down)
    world.run(0.3)
    move(world, address, old_is_dead=old_is_dead)
    world.run_until(lambda: len(world.server.bodies()) == len(world.client.bodies()) == 30, 60.0)
    assert world.server.bodies(to_server) == up
    assert world.client.bodies(to_client) == down
    assert [event.address for event in world.server.all(PathChanged)] == [address]
    assert server.peer_address == address
    assert world.server.endpoint.dropped["unproven_path"] > 0


def test_a_client_that_moves_all_the_time() -> None:
    world = World(4, bytes_per_s=1.25e6)
    client, _ = world.connect()
    up = [world.rng.randbytes(20_000) for _ in range(100)]
    channel = send_all(world, client, up)
    for port in range(7001, 7011):
        world.run(0.25)
        move(world, ("192.0.2.1", port))
    world.run_until(lambda: len(world.server.bodies(channel)) == 100, 30.0)
    assert world.server.bodies(channel) == up
    assert len(world.server.all(PathChanged)) >= 5


def test_a_change_of_host_does_not_upset_the_rate() -> None:
    """Packets sent before the move say nothing about the new path."""
    for seed in range(3):
        world = World(seed, bytes_per_s=1.25e6, delay_s=0.03, server=EndpointConfig(
            accepts=True, send_buffer_bytes=2**30
        ))  # fmt: skip
        client, server = world.connect()
        channel = send_all(world, server, [world.rng.randbytes(50_000) for _ in range(60)])
        send_all(world, client, [bytes(1000)] * 2000)
        world.run(1.0 + seed / 7)
        done = len(world.client.bodies(channel))
        move(world, NEW_HOST, old_is_dead=seed % 2 == 0)
        start = world.now
        world.run_until(lambda: len(world.client.bodies(channel)) == 60, 60.0)  # noqa: B023
        ideal_s = (60 - done) * 50_000 / 1.25e6
        assert world.now - start < 2 * ideal_s + 1.0, f"seed {seed}"
        assert server.statistics.bandwidth_bytes_per_s == pytest.approx(1.23e6, rel=0.2), f"seed {seed}"


def migration() -> tuple[World, Connection, Connection]:
    """A client that has just moved: the server's first challenge is under way and will not arrive."""
    world = World()
    client, server = world.connect()
    world.run(0.5)
    move(world, NEW_PORT)
    world.fate = lambda flying: [] if flying.source == SERVER else [world.delay_s]
    send_all(world, client, [b"from the new place"])
    world.run(world.delay_s)
    return world, client, server


def challenges(world: World, to: Address = NEW_PORT) -> list[Flying]:
    return [flying for flying in world.log if flying.target == to and flying.has(wire.PathProbeFrame)]


def challenge(world: World) -> bytes:
    (probe,) = challenges(world)[-1].frames()
    assert isinstance(probe, wire.PathProbeFrame)
    return probe.challenge


def test_nothing_is_taken_from_an_unproven_address() -> None:
    world, _, server = migration()
    assert world.server.records == []
    assert server.peer_address == CLIENT
    assert world.server.endpoint.dropped["unproven_path"] >= 1
    mac = handshake.path_mac(world.connection_key(), "client", challenge(world))
    world.inject(world.server, packet_for(server, 700, wire.PathResponseFrame(challenge(world), mac)), source=NEW_PORT)
    world.drain()
    assert server.peer_address == NEW_PORT
    assert [event.address for event in world.server.all(PathChanged)] == [NEW_PORT]
    world.fate = world.usual_fate
    world.run(2.0)
    assert world.server.bodies() == [b"from the new place"]


@pytest.mark.parametrize("wrong", ["mac", "sender", "challenge", "address"])
def test_a_wrong_path_response_moves_nothing(wrong: str) -> None:
    world, _, server = migration()
    asked = challenge(world)
    if wrong == "challenge":
        asked = bytes(8)
    mac = handshake.path_mac(world.connection_key(), "server" if wrong == "sender" else "client", asked)
    if wrong == "mac":
        mac = bytes(16)
    source = STRANGER if wrong == "address" else NEW_PORT
    world.inject(world.server, packet_for(server, 700, wire.PathResponseFrame(asked, mac)), source=source)
    world.drain()
    assert server.peer_address == CLIENT
    assert not world.server.all(PathChanged)
    if wrong in ("mac", "sender"):
        assert world.server.endpoint.dropped["forged_path_response"] == 1


def test_an_unproven_address_gets_at_most_three_times_what_came_from_it() -> None:
    world, _, server = migration()
    received = sum(len(flying.data) for flying in world.log if flying.source == NEW_PORT)
    assert received > 0
    world.fate = lambda flying: []
    world.run(8.0)
    sent = sum(len(flying.data) for flying in world.log if flying.target == NEW_PORT)
    assert 0 < sent <= AMPLIFICATION * received
    assert 2 <= len(challenges(world)) <= 5
    small = packet_for(server, 800, wire.PingFrame())
    for n in range(3):
        victim = ("203.0.113.77", n)
        world.inject(world.server, small, source=victim)
        world.run(4.0)
        sent = sum(len(flying.data) for flying in world.log if flying.target == victim)
        assert 0 < sent <= AMPLIFICATION * len(small)


def test_an_old_packet_from_elsewhere_starts_no_check() -> None:
    """A replayed packet with an old number is no sign of a move."""
    world = World()
    client, server = world.connect()
    send_all(world, client, [bytes(3000)])
    world.run(0.5)
    recorded = [flying.data for flying in world.log if flying.source == CLIENT and flying.at > 100.03]
    before = len(world.log)
    world.inject(world.server, *recorded, source=STRANGER)
    world.run(1.0)
    assert not [flying for flying in world.log[before:] if flying.target == STRANGER]
    assert world.server.endpoint.dropped["unproven_path"] == len(recorded)
    assert server.peer_address == CLIENT


def test_broken_packets_from_elsewhere_are_counted() -> None:
    world = World()
    _, server = world.connect()
    good = packet_for(server, 900, wire.PingFrame())
    world.inject(world.server, good[:-1] + b"!", packet_for(server, 900)[:-4] + good[-4:], source=STRANGER)
    assert world.server.endpoint.dropped.total() == 2
    assert "unproven_path" not in world.server.endpoint.dropped


def test_a_client_stays_with_its_server() -> None:
    """A server does not roam: what comes from elsewhere is dropped."""
    world = World()
    client, server = world.connect()
    frame = wire.DataFrame(wire.WHOLE | wire.UNRELIABLE, 0, 0, 0, None, b"trust me")
    world.inject(world.client, packet_for(client, 900, frame), source=STRANGER)
    world.drain()
    assert world.client.endpoint.dropped == {"wrong_address": 1}
    assert not world.client.records
    assert client.peer_address == SERVER
    assert server.state is ConnectionState.OPEN


def test_a_download_finds_the_client_again_soon_after_its_nat_forgot_it() -> None:
    world = World(5, bytes_per_s=1.25e6)
    _, server = world.connect()
    channel = send_all(world, server, [bytes(50_000) for _ in range(40)])
    world.run(0.5)
    move(world, NEW_PORT)
    world.run_until(lambda: len(world.client.bodies(channel)) == 40, 6.0)


def closes(side: Side) -> int:
    return len(side.all(Closed))


def test_a_close_from_a_new_address_proves_itself() -> None:
    world, client, server = migration()
    client.close(world.now)
    world.run(0.1)
    assert server.state is not ConnectionState.OPEN
    (closed,) = world.server.all(Closed)
    assert (closed.code, closed.origin) == (Code.NORMAL, "peer")
    assert closes(world.client) == 1
