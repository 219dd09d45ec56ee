"""Whatever comes from outside: nothing is raised, nothing grows, each bad thing is counted, the session goes on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.transport.world import ARQS, CLIENT, SERVER, STRANGER, Flying, Side, World, examples, packet_for, send_all
from tests.wire.strategies import frame_lists, join

from godwit.limits import BASE_DATAGRAM_BYTES, MAX_ACK_RANGES
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.events import ChannelConfirmed, Closed, Connected, ConnectionState, Received, Train
from godwit.wire import packet as wire
from godwit.wire.control_base import Code
from godwit.wire.packet import CHECKSUM, encode_packet

FAR = 1_000_000
"""A packet number that the real peer does not reach."""


def dropped(side: Side) -> int:
    return side.endpoint.dropped.total()


def finishes(world: World, client: Connection, server: Connection) -> None:
    """The session still carries records both ways, exactly."""
    up = [world.rng.randbytes(3000) for _ in range(5)]
    down = [world.rng.randbytes(3000) for _ in range(5)]
    to_server = send_all(world, client, up)
    to_client = send_all(world, server, down)
    world.run_until(lambda: len(world.server.bodies(to_server)) >= 5 and len(world.client.bodies(to_client)) >= 5)
    assert world.server.bodies(to_server) == up
    assert world.client.bodies(to_client) == down
    assert client.state is server.state is ConnectionState.OPEN


# -- bytes that are no packets of ours --------------------------------------------------------------------------------


@examples(0.4)
@given(st.lists(st.binary(min_size=1, max_size=80) | st.binary(min_size=1190, max_size=1480), min_size=1, max_size=20))
def test_random_bytes(datagrams: list[bytes]) -> None:
    world = World()
    client, server = world.connect()
    before = world.server.endpoint.buffered_bytes
    for side, peer in ((world.server, CLIENT), (world.client, SERVER)):
        already = dropped(side)
        world.inject(side, *datagrams, source=peer)
        world.inject(side, *datagrams, source=STRANGER)
        assert dropped(side) == already + 2 * len(datagrams)
        assert not side.endpoint.events()
    assert world.server.endpoint.buffered_bytes == before
    assert len(world.server.endpoint.connections) == 1
    finishes(world, client, server)


@given(st.binary(min_size=1, max_size=300), st.integers(1, 40))
def test_a_train_of_random_bytes_is_counted_datagram_by_datagram(data: bytes, segment_bytes: int) -> None:
    world = World()
    world.server.endpoint.receive(Train(STRANGER, data, segment_bytes), world.now)
    assert dropped(world.server) == -(-len(data) // segment_bytes)


def damage(world: World, flying: Flying) -> bytes:
    """One accident: cut short, or some bits flipped."""
    data = bytearray(flying.data)
    if world.rng.random() < 0.5:
        return bytes(data[: world.rng.randrange(1, len(data))])
    for at in world.rng.sample(range(len(data)), k=min(3, len(data))):
        data[at] ^= 1 << world.rng.randrange(8)
    return bytes(data)


@pytest.mark.parametrize("arq", ARQS)
@pytest.mark.parametrize("seed", range(3))
def test_truncated_and_flipped_datagrams_of_a_real_session(arq: Any, seed: int) -> None:
    world = World(seed, client=EndpointConfig(arq=arq))
    damaged = {CLIENT: 0, SERVER: 0}

    def fate(flying: Flying) -> Iterable[float]:
        damaged[flying.target] += 1
        world.launch(flying.source, flying.target, damage(world, flying), world.rng.uniform(0.001, 0.03))
        return [world.delay_s]

    world.fate = fate
    client, server = world.connect()
    finishes(world, client, server)
    world.fate = world.usual_fate
    world.run(1.0)
    for side in world.sides:
        counted = side.endpoint.dropped["checksum"] + side.endpoint.dropped["truncated"]
        assert counted == damaged[side.address], f"seed {seed}: {side.endpoint.dropped}"


@pytest.mark.parametrize("arq", ARQS)
@pytest.mark.parametrize("seed", range(3))
def test_replayed_datagrams_change_nothing(arq: Any, seed: int) -> None:
    """Every datagram arrives again and again, handshake, unreliable records and confirms among them."""
    world = World(seed, client=EndpointConfig(arq=arq))
    world.fate = lambda flying: [world.delay_s] + [world.rng.uniform(0.01, 2.0) for _ in range(3)]
    client, server = world.connect()
    beside = client.open_channel()
    for number in range(20):
        client.send(0, b"control %d" % number)
        client.send(beside, b"unreliable %d" % number, reliable=False)
    channel = send_all(world, client, [b"one"])
    world.run_until(lambda: bool(world.server.bodies(channel)))
    for sequence in range(10):
        server.confirm(channel, sequence, sequence)
        world.run(0.01)
    finishes(world, client, server)
    world.run(5.0)
    assert world.server.bodies(0) == [b"control %d" % number for number in range(20)]
    unreliable = world.server.bodies(beside, reliable=False)
    assert sorted(unreliable) == sorted({b"unreliable %d" % number for number in range(20)}), f"seed {seed}"
    sequences = [event.sequence for event in world.client.all(ChannelConfirmed)]
    assert sequences == sorted(set(sequences)), f"seed {seed}"
    assert sequences[-1] == 9
    assert world.server.endpoint.dropped["repeated"] > 0
    assert len(world.server.all(Connected)) == len(world.client.all(Connected)) == 1


def test_an_old_replay_is_not_taken_for_new_after_many_gaps() -> None:
    """An unreliable record is delivered at most once, however much was lost and reordered in between."""
    world = World()
    client, server = world.connect()
    record = wire.DataFrame(wire.WHOLE | wire.UNRELIABLE, 0, 0, 0, None, b"once")
    ping = wire.PingFrame()
    world.inject(world.server, packet_for(server, 1000, record), source=CLIENT)
    for number in range(1002, 1002 + 2 * 80, 2):
        world.inject(world.server, packet_for(server, number, ping), source=CLIENT)
    for number in range(1003 + 2 * 60, 1002 + 2 * 80, 2):
        world.inject(world.server, packet_for(server, number, ping), source=CLIENT)
    world.inject(world.server, packet_for(server, 1000, record), source=CLIENT)
    world.drain()
    assert world.server.bodies(reliable=False) == [b"once"]
    assert client.state is ConnectionState.OPEN


# -- packets that are intact but not for this -------------------------------------------------------------------------


@pytest.mark.parametrize("first_byte", [0x00, 0x11, 0x18, 0x20, 0xF0])
def test_another_version_or_unknown_flags_on_an_open_connection(first_byte: int) -> None:
    world = World()
    client, server = world.connect()
    good = packet_for(server, FAR, wire.DataFrame(wire.WHOLE | wire.UNRELIABLE, 0, 0, 0, None, b"never"))
    body = bytes((first_byte,)) + good[1 : -CHECKSUM.size]
    packet = with_checksum(body)
    world.inject(world.server, packet, source=CLIENT)
    assert dropped(world.server) == 1
    assert {"version", "flags"} & set(world.server.endpoint.dropped)
    assert not world.server.endpoint.events()
    finishes(world, client, server)


def with_checksum(body: bytes) -> bytes:
    from crc32c import crc32c

    return body + CHECKSUM.pack(crc32c(body))


def test_a_connection_id_that_nobody_has() -> None:
    world = World()
    client, server = world.connect()
    record = wire.DataFrame(wire.WHOLE, 1, 0, 0, None, b"for nobody")
    for side, peer in ((world.server, CLIENT), (world.client, SERVER)):
        for wrong in (1, server.id ^ 1, client.id ^ (1 << 63), 2**64 - 1):
            world.inject(side, encode_packet(wrong, 5, wire.encode_frame(record)), source=peer)
        assert side.endpoint.dropped["unknown_connection"] == 4
        assert not side.endpoint.events()
    finishes(world, client, server)


def test_a_datagram_too_short_for_an_id_ends_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection id that begins with a zero byte, and seven bytes that make the same number."""
    world = World()
    true_entropy = world.rng.randbytes
    world.server.endpoint._entropy = lambda size: b"\0" + true_entropy(7) if size == 8 else true_entropy(size)
    client, server = world.connect()
    assert server.id < 2**56
    calls = []
    true_receive = Connection.handle_packets

    def counting(*arguments: Any) -> int:
        calls.append(arguments)
        assert len(calls) < 10, "the same datagram is looked at for ever"
        return true_receive(*arguments)

    monkeypatch.setattr(Connection, "handle_packets", counting)
    world.inject(world.server, b"\x10" + server.id.to_bytes(8, "big")[1:], source=CLIENT)
    assert dropped(world.server) == 1
    monkeypatch.undo()
    finishes(world, client, server)


# -- hostile frames in intact packets ---------------------------------------------------------------------------------


def test_acks_of_packets_never_sent_and_ranges_out_of_order() -> None:
    world = World()
    client, server = world.connect()
    world.run(1.0)
    sent = server.statistics.packets_sent + 100
    hostile = [
        wire.AckFrame(0, ((sent, sent),)),
        wire.AckFrame(0, ((0, sent),)),
        wire.AckFrame(0, ((0, 2**31),)),
        wire.AckFrame(0, ((2**31, 2**32 - 1),)),
        wire.AckFrame(0, ((0, 2**32 - 1),)),
        wire.AckFrame(2**32 - 1, ((1, 0),)),
        wire.AckFrame(0, ((0, 0), (1, 1))),
        wire.AckFrame(0, ((0, 1), (0, 1))),
        wire.AckFrame(0, tuple((n, n) for n in range(MAX_ACK_RANGES))),
        wire.AckFrame(0, ((0, sent),), next_position=2**32 - 1),
    ]
    before = server.statistics
    for number, ack in enumerate(hostile):
        world.smuggle(client, world.server, ack)
        assert world.server.endpoint.dropped["forged_ack"] == number + 1
    assert server.statistics.in_flight_bytes == before.in_flight_bytes
    assert server.statistics.round_trip_s == pytest.approx(before.round_trip_s, rel=0.01)
    finishes(world, client, server)


def test_positions_never_sent_are_not_believed() -> None:
    """With go-back-n, a next expected position beyond all that was sent settles nothing."""
    world = World(client=EndpointConfig(arq="go-back-n"))
    client, server = world.connect()
    world.run(0.5)
    world.fate = lambda flying: [] if flying.target == CLIENT else [world.delay_s]
    channel = send_all(world, server, [bytes(5000)])
    world.drain()
    waiting = server.buffered_bytes
    assert waiting > 5000
    world.smuggle(client, world.server, wire.AckFrame(0, ((0, 0),), next_position=1000))
    assert server.buffered_bytes == waiting
    world.fate = world.usual_fate
    world.run_until(lambda: world.client.bodies(channel) == [bytes(5000)])
    finishes(world, client, server)


@pytest.mark.parametrize("kind", [0x10, 0x3F, 0x80, 0xC1, 0xFF])
def test_unknown_frames(kind: int) -> None:
    world = World()
    client, server = world.connect()
    record = wire.encode_frame(wire.DataFrame(wire.WHOLE | wire.UNRELIABLE | wire.HAS_LENGTH, 0, 0, 0, None, b"no"))
    world.inject(world.server, encode_packet(server.id, FAR, record + bytes((kind,)) + b"xyz"), source=CLIENT)
    assert world.server.endpoint.dropped == {"frame": 1}
    assert not world.server.endpoint.events()
    finishes(world, client, server)


@pytest.mark.parametrize(
    "frame",
    [
        wire.HelloFrame(77, bytes(16)),
        wire.CookieFrame(bytes(20), bytes(16)),
        wire.ConnectFrame(77, bytes(16), bytes(20), b""),
        wire.AcceptFrame(77, bytes(16), bytes(16), b""),
        wire.RefuseFrame(bytes(16), Code.BUSY, "go away"),
        wire.ResetFrame(bytes(16)),
    ],
    ids=lambda frame: type(frame).__name__,
)
@pytest.mark.parametrize("first", [True, False])
def test_handshake_frames_on_an_open_connection(frame: wire.Frame, first: bool) -> None:
    world = World()
    client, server = world.connect()
    world.run(0.5)
    frames = (frame,) if first else (wire.PingFrame(), frame)
    world.smuggle(client, world.server, *frames, lost=True)
    assert dropped(world.server) == 1
    world.smuggle(server, world.client, *frames, lost=True)
    assert dropped(world.client) == 1
    finishes(world, client, server)


def data(
    flags: int, channel: int, record: int, offset: int, body: bytes, position: int | None = None
) -> wire.DataFrame:
    return wire.DataFrame(flags, channel, record, offset, position, body)


SMALL = EndpointConfig(
    accepts=True, max_record_bytes=2000, channel_window_bytes=4000, connection_window_bytes=8000, max_channels=8
)
A = b"a" * 100
BREAKS: dict[str, tuple[Code, list[wire.DataFrame]]] = {
    "beyond the longest record": (Code.LIMIT, [data(0, 1, 0, 1950, A)]),
    "far beyond the longest record": (Code.LIMIT, [data(0, 1, 0, 2**31 - 200, A)]),
    "beyond the longest control record": (Code.LIMIT, [data(0, 0, 0, 2000, A)]),
    "after the end": (Code.PROTOCOL, [data(wire.LAST, 1, 0, 300, A), data(0, 1, 0, 400, A)]),
    "before an end that comes too early": (Code.PROTOCOL, [data(0, 1, 0, 400, A), data(wire.LAST, 1, 0, 300, A)]),
    "ends twice": (Code.PROTOCOL, [data(wire.LAST, 1, 0, 300, A), data(wire.LAST, 1, 0, 700, A)]),
    "ends twice, empty": (Code.PROTOCOL, [data(wire.LAST, 1, 0, 300, A), data(wire.LAST, 1, 0, 200, b"")]),
    "channel 0 ends": (Code.PROTOCOL, [data(wire.WHOLE | wire.END, 0, 0, 0, A)]),
    "goes on after the channel's end": (
        Code.PROTOCOL,
        [data(wire.WHOLE, 1, 1, 0, A), data(wire.WHOLE | wire.END, 1, 0, 0, A)],
    ),
    "more channels than allowed": (Code.LIMIT, [data(wire.WHOLE, channel, 0, 0, A) for channel in range(1, 12)]),
    "more records than the channel's credit": (Code.LIMIT, [data(wire.WHOLE, 1, n, 0, A) for n in range(1, 60)]),
    "more empty records than the credit": (Code.LIMIT, [data(wire.WHOLE, 1, n, 0, b"") for n in range(1, 80)]),
    "more than the connection's credit": (
        Code.LIMIT,
        [data(wire.WHOLE, n % 8 + 1, n // 8 + 1, 0, A) for n in range(100)],
    ),
    "one-byte fragments beyond gaps": (Code.LIMIT, [data(0, 1, 0, n, b"x") for n in range(1, 2000, 2)]),
}


@pytest.mark.parametrize("name", BREAKS)
def test_who_breaks_the_rules_is_closed_out(name: str) -> None:
    code, frames = BREAKS[name]
    world = World(server=SMALL)
    client, server = world.connect()
    for number, frame in enumerate(frames):
        world.inject(world.server, packet_for(server, FAR + number, frame), source=CLIENT)
    assert server.state is ConnectionState.CLOSING
    assert world.server.endpoint.dropped["limit" if code is Code.LIMIT else "fragment"] == 1
    world.run(5.0)
    for side in world.sides:
        assert world.closed(side).code == code
    assert world.closed(world.client).origin == "peer"
    assert world.closed(world.client).reason
    assert client.state is ConnectionState.CLOSED
    assert not world.server.endpoint.connections
    assert world.server.endpoint.buffered_bytes == 0


def test_a_fragment_without_a_position_where_positions_rule() -> None:
    world = World(client=EndpointConfig(arq="go-back-n"))
    _, server = world.connect()
    world.inject(world.server, packet_for(server, FAR, data(wire.WHOLE, 1, 0, 0, A)), source=CLIENT)
    world.run(1.0)
    assert world.closed(world.client).code == Code.PROTOCOL


@pytest.mark.parametrize("position", [5, 2**31, 2**32 - 1])
def test_positions_out_of_order_are_dropped_and_answered(position: int) -> None:
    world = World(client=EndpointConfig(arq="go-back-n"))
    client, server = world.connect()
    world.run(0.5)
    flags = wire.WHOLE | wire.HAS_POSITION | wire.HAS_LENGTH
    world.smuggle(client, world.server, data(flags, 1, 0, 0, A, position))
    assert world.server.endpoint.dropped == {"out_of_order": 1}
    answers = [frame for flying in world.log if flying.target == CLIENT for frame in flying.frames()]
    assert isinstance(answers[-1], wire.AckFrame)
    assert answers[-1].next_position == 0
    finishes(world, client, server)


def test_credit_confirms_and_blocked_for_channels_that_never_were() -> None:
    world = World()
    client, server = world.connect()
    world.run(0.5)
    for channel in (0, 1, 77, 2**32 - 1):
        frames = (
            wire.CreditFrame(channel, 0),
            wire.ConfirmFrame(channel, 2**64 - 1, 2**32 - 1),
            wire.BlockedFrame(channel, 2**64 - 1),
            wire.PathResponseFrame(bytes(8), bytes(16)),
        )
        world.smuggle(client, world.server, *frames)
    assert not world.server.all(ChannelConfirmed)
    assert world.server.endpoint.dropped["old_confirm"] == 4
    assert world.server.endpoint.dropped["unasked_path_response"] == 4
    finishes(world, client, server)


def test_a_flood_of_path_probes_is_answered_a_few_times() -> None:
    world = World()
    client, server = world.connect()
    world.run(0.5)
    world.smuggle(client, world.server, *[wire.PathProbeFrame(bytes((n,)) * 8) for n in range(100)])
    assert 1 <= sum(flying.has(wire.PathResponseFrame) for flying in world.log) <= 8
    finishes(world, client, server)


def test_more_than_the_connections_credit_by_one_hostile_train() -> None:
    """A limit that breaks inside a train leaves the rest of it alone, and no exception escapes."""
    world = World(server=SMALL)
    _, server = world.connect()
    packets = [packet_for(server, FAR + n, data(wire.WHOLE, 1, n + 1, 0, A)) for n in range(64)]
    world.server.endpoint.receive(Train(CLIENT, b"".join(packets), len(packets[0])), world.now)
    world.run(1.0)
    assert world.closed(world.client).code == Code.LIMIT


def test_another_connections_packets_in_the_train_of_one_that_broke_the_rules() -> None:
    world = World(server=SMALL)
    _, bad = world.connect()
    client, good = world.connect()
    breaks = packet_for(bad, FAR, data(0, 1, 0, 1950, A))
    record = packet_for(good, FAR, data(wire.WHOLE, 1, 0, 0, bytes(len(A) + 4)))
    assert len(breaks) == len(record)
    world.server.endpoint.receive(Train(CLIENT, breaks + record, len(record)), world.now)
    world.drain()
    assert world.server.bodies() == [bytes(len(A) + 4)]
    assert bad.state is ConnectionState.CLOSING
    assert client.state is ConnectionState.OPEN


# -- anything at all --------------------------------------------------------------------------------------------------

small_data = st.builds(
    lambda flags, channel, record, offset, body, position: wire.DataFrame(
        flags | wire.HAS_LENGTH,
        channel,
        record,
        0 if flags & wire.WHOLE else offset,
        position if flags & wire.HAS_POSITION else None,
        body or b"!",
    ),
    st.sampled_from(
        [shape | position for shape in (0, wire.LAST, wire.WHOLE, wire.LAST | wire.END) for position in (0, 8)]
        + [wire.WHOLE | wire.UNRELIABLE]
    ),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 40),
    st.binary(max_size=30),
    st.integers(0, 5),
)
likely_frames = st.lists(
    small_data
    | st.builds(wire.AckFrame, st.integers(0, 9), st.just(((0, 0),)), st.none() | st.integers(0, 5))
    | st.builds(wire.CreditFrame, st.integers(0, 3), st.integers(0, 10**7))
    | st.builds(wire.ConfirmFrame, st.integers(0, 3), st.integers(0, 5), st.integers(0, 5))
    | st.builds(wire.BlockedFrame, st.integers(0, 3), st.integers(0, 10**7)),
    min_size=1,
    max_size=4,
)
packets = st.lists(
    st.tuples(frame_lists() | likely_frames, st.integers(0, 40) | st.integers(0, 2**32 - 1), st.sampled_from("ppps")),
    min_size=1,
    max_size=25,
)


@examples(1.5)
@given(st.sampled_from(ARQS), packets, st.booleans(), st.randoms(use_true_random=False))
def test_arbitrary_frames_on_an_open_connection(arq: Any, hostile: Any, to_server: bool, chance: Any) -> None:
    world = World(client=EndpointConfig(arq=arq), server=SMALL)
    client, server = world.connect()
    side, victim, peer = (world.server, server, CLIENT) if to_server else (world.client, client, SERVER)
    channel = send_all(world, victim, [bytes(300), bytes(1500)])
    for found, number, source in hostile:
        packet = encode_packet(victim.id, number, join(found))
        world.inject(side, packet, source=peer if source == "p" else STRANGER)
        if chance.random() < 0.5:
            world.drain()
        if chance.random() < 0.2:
            world.run(chance.choice((0.001, 0.02, 0.5)))
    world.run(3.0)
    assert victim.buffered_bytes < 300_000
    for one in world.sides:
        check_history(one)
    assert channel == 1


def check_history(side: Side) -> None:
    """Connected first, Closed last and once; reliable records in order and once on each channel."""
    kinds = [type(event) for event in side.events]
    assert kinds.count(Closed) <= 1
    assert Closed not in kinds[:-1]
    expected: dict[int, int] = {}
    for event in side.events:
        if isinstance(event, Received) and event.reliable:
            assert event.record == expected.get(event.channel, 0)
            expected[event.channel] = event.record + 1


@examples(0.6)
@given(st.lists(st.tuples(frame_lists(), st.booleans(), st.booleans()), min_size=1, max_size=15))
def test_arbitrary_frames_at_a_client_that_is_connecting(hostile: Any) -> None:
    world = World()
    world.fate = lambda flying: []
    client = world.client.endpoint.connect(SERVER, world.now)
    for found, from_server, right_id in hostile:
        packet = encode_packet(client.id if right_id else 0, 0, join(found))
        world.inject(world.client, packet, source=SERVER if from_server else STRANGER)
        world.run(0.1)
    world.run(60.0)
    check_history(world.client)
    assert len(world.client.all(Closed)) == 1


@examples(0.6)
@given(st.lists(st.tuples(frame_lists(), st.integers(0, 1), st.integers(0, 1300)), min_size=1, max_size=15))
def test_arbitrary_frames_at_a_server_without_connections(hostile: Any) -> None:
    world = World()
    for found, connection_id, size in hostile:
        closed_ones = [
            frame for frame in found if not isinstance(frame, wire.DataFrame) or frame.flags & wire.HAS_LENGTH
        ]
        packet = encode_packet(connection_id, 0, (join(closed_ones) or b"\x01").ljust(size, b"\0"))
        world.inject(world.server, packet, source=STRANGER)
        for train in world.server.endpoint.trains(world.now):
            assert train.address == STRANGER
            assert len(train.data) <= 3 * len(packet)
            assert len(train.data) <= BASE_DATAGRAM_BYTES
    assert not world.server.endpoint.connections
    assert not world.server.endpoint.events()
    assert world.server.endpoint.next_timer() is None
