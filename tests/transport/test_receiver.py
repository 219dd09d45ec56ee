"""The receiving loop: the short way and the long way agree, whatever order, mixture or damage a train has."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.transport.world import CLIENT, SERVER, Flying, World, examples, packet_for, send_all

from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.events import Received, Train
from godwit.wire import packet as wire
from godwit.wire.packet import encode_packet


def opened(server: EndpointConfig | None = None) -> tuple[World, Connection, int]:
    """A connection, and the next packet number that the server expects."""
    world = World(server=server)
    _, connection = world.connect()
    world.run(0.5)
    world.fate = lambda flying: []
    world.log.clear()
    numbers = World(server=server)
    _, twin = numbers.connect()
    numbers.run(0.5)
    assert twin.id == connection.id  # the same seed: the same world
    sent = [flying for flying in numbers.log if flying.target == SERVER and flying.data[1:9] != bytes(8)]
    return world, connection, int.from_bytes(sent[-1].data[9:13], "big") + 1


def fragments(connection: Connection, number: int, body: bytes, step: int, record: int = 0) -> list[bytes]:
    """The packets of one record on channel 1, as a sender makes them of a long one."""
    packets: list[bytes] = []
    for at in range(0, len(body), step):
        flags = wire.LAST if at + step >= len(body) else 0
        frame = wire.DataFrame(flags, 1, record, at, None, body[at : at + step])
        packets.append(packet_for(connection, number + len(packets), frame))
    return packets


def feed(world: World, packets: list[bytes]) -> list[Received]:
    """As trains: packets of one size together, a shorter one at the end of its train."""
    train: list[bytes] = []
    for packet in packets:
        if train and (len(packet) > len(train[0]) or len(train[-1]) < len(train[0])):
            world.server.endpoint.receive(Train(CLIENT, b"".join(train), len(train[0])), world.now)
            train = []
        train.append(packet)
    world.server.endpoint.receive(Train(CLIENT, b"".join(train), len(train[0])), world.now)
    world.drain()
    return world.server.records


BODY = random.Random(1).randbytes(30_000)


@pytest.mark.parametrize("step", [100, 1151, 1438, 30_000])
def test_a_record_in_one_train(step: int) -> None:
    world, connection, number = opened()
    (record,) = feed(world, fragments(connection, number, BODY, step))
    assert record.body == BODY
    assert not world.server.endpoint.dropped
    assert connection.statistics.packets_received >= 30_000 // step


@examples(0.6)
@given(st.randoms(use_true_random=False), st.integers(200, 1400), st.integers(0, 30))
def test_a_disturbed_train_gives_the_same_record(chance: random.Random, step: int, disturbances: int) -> None:
    """Packets change places, come twice, and others come in between."""
    world, connection, number = opened()
    packets = fragments(connection, number, BODY[:8000], step)
    ping = number + 1000
    for _ in range(disturbances):
        at, other = chance.randrange(len(packets)), chance.randrange(len(packets))
        match chance.choice(("swap", "repeat", "ping", "damage")):
            case "swap":
                packets[at], packets[other] = packets[other], packets[at]
            case "repeat":
                packets.insert(at, packets[other])
            case "ping":
                packets.insert(at, packet_for(connection, ping, wire.PingFrame()))
                ping += 1
            case "damage":
                broken = bytearray(packets[other])
                broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
                packets.insert(at, bytes(broken))
    (record,) = feed(world, packets)
    assert record.body == BODY[:8000]


@pytest.mark.parametrize("field", ["version", "id", "number", "kind", "channel", "record", "offset", "checksum"])
def test_a_packet_that_is_not_quite_the_next(field: str) -> None:
    """In the middle of a train that takes the short way; each field that the way compares is wrong once."""
    world, connection, number = opened()
    before = fragments(connection, number, BODY, 1000)[:5]
    after = fragments(connection, number + 1, BODY, 1000)[5:]
    data = {"flags": 0, "channel": 1, "record": 0, "offset": 5000}
    own_number, own_id = number + 5, connection.id
    match field:
        case "number":
            own_number = number + 700
        case "id":
            own_id ^= 1
        case "kind":
            data["flags"] = wire.HAS_LENGTH
        case "channel" | "record":
            data[field] += 1
        case "offset":
            data["offset"] = 4990
    start = data["offset"]
    frame = wire.DataFrame(data["flags"], data["channel"], data["record"], start, None, BODY[start : start + 1000])
    strange = encode_packet(own_id, own_number, wire.encode_frame(frame))
    if field == "version":
        strange = b"\x20" + strange[1:]
    elif field == "checksum":
        strange = strange[:-1] + bytes((strange[-1] ^ 1,))
    records = feed(world, [*before, strange, *after])
    assert [record.body for record in records] == [BODY]
    assert world.server.endpoint.dropped.total() == (field in ("version", "id", "checksum"))


def test_the_short_way_stops_at_the_longest_record() -> None:
    world, connection, number = opened(EndpointConfig(accepts=True, max_record_bytes=10_000))
    feed(world, fragments(connection, number, BODY, 1000))
    assert world.closed(world.server).reason.endswith("more than 10000 bytes on channel 1")
    assert connection.buffered_bytes <= 10_128


def test_the_short_way_stops_at_the_credit() -> None:
    config = EndpointConfig(
        accepts=True, max_record_bytes=8_000, channel_window_bytes=2_000, connection_window_bytes=3_000
    )
    world, connection, number = opened(config)
    world.server.consumes = False
    packets: list[bytes] = []
    for record in range(4):
        packets += fragments(connection, number + len(packets), bytes(7_000), 1000, record)
    feed(world, packets)
    assert "credit" in world.closed(world.server).reason
    assert len(world.server.records) == 1
    assert connection.buffered_bytes <= 3_000 + 8_000 + 128


@pytest.mark.parametrize("together", [1, 64])
def test_tiny_packets_in_order_cost_little_more_than_their_bytes(together: int) -> None:
    world, connection, number = opened()
    size = 20_000
    packets = fragments(connection, number, BODY[:size], 2)[:-1]
    trains = [b"".join(packets[at : at + together]) for at in range(0, len(packets), together)]
    tracemalloc.start()
    for data in trains:
        world.server.endpoint.receive(Train(CLIENT, data, len(packets[0])), world.now)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 5 * size


def test_a_train_that_ends_in_the_middle_of_a_packet() -> None:
    world, connection, number = opened()
    ping = packet_for(connection, number, wire.PingFrame())
    world.server.endpoint.receive(Train(CLIENT, ping + ping[:12], len(ping)), world.now)
    world.server.endpoint.receive(Train(CLIENT, ping + ping[:5], len(ping)), world.now)
    assert world.server.endpoint.dropped == {"truncated": 2, "repeated": 1}


def test_unreliable_records_on_an_ended_channel_are_dropped() -> None:
    world, connection, number = opened()
    end = wire.DataFrame(wire.WHOLE | wire.END, 1, 0, 0, None, b"end")
    late = wire.DataFrame(wire.WHOLE | wire.UNRELIABLE, 1, 0, 0, None, b"late")
    feed(world, [packet_for(connection, number, end), packet_for(connection, number + 1, late)])
    assert world.server.bodies() == [b"end"]
    assert world.server.bodies(reliable=False) == []
    assert world.server.endpoint.dropped == {"ended_channel": 1}


def test_packets_after_the_violation_are_for_a_closed_connection() -> None:
    world, connection, number = opened(EndpointConfig(accepts=True, max_record_bytes=2000))
    bad = packet_for(connection, number, wire.DataFrame(0, 1, 0, 1990, None, bytes(100)))
    good = packet_for(connection, number + 1, wire.DataFrame(0, 1, 0, 0, None, bytes(100)))
    feed(world, [bad, good, good])
    assert world.server.endpoint.dropped == {"limit": 1, "closed_connection": 2}


def test_the_largest_packet_numbers() -> None:
    """Numbers travel truncated: a jump of less than half their range is followed."""
    world, connection, number = opened()
    steps = [number, number + 2**31 - 10, number + 2**32 - 20, number + 2**32 + 2**31 - 30]
    for n, one in enumerate(steps):
        frame = wire.DataFrame(wire.WHOLE, 1, n, 0, None, b"%d" % n)
        world.inject(world.server, packet_for(connection, one & 0xFFFFFFFF, frame), source=CLIENT)
    world.drain()
    assert world.server.bodies() == [b"%d" % n for n in range(4)]


def test_acks_ride_with_data_and_are_said_in_time() -> None:
    world = World()
    client, _ = world.connect()
    world.run(0.5)
    before = len(world.log)
    send_all(world, client, [b"one packet"])
    world.run(0.1)
    answers = [flying for flying in world.log[before:] if flying.source == SERVER]
    assert len(answers) == 1
    assert answers[0].at - world.log[before].at == pytest.approx(world.delay_s + 0.005, abs=1e-4)


def test_a_probe_of_the_path_is_answered_with_its_proof() -> None:
    world = World()
    client, server = world.connect()
    world.run(0.5)
    world.smuggle(server, world.client, wire.PathProbeFrame(b"12345678"))
    responses = [
        frame for flying in world.log for frame in flying.frames() if isinstance(frame, wire.PathResponseFrame)
    ]
    assert [one.challenge for one in responses] == [b"12345678"]
    assert world.server.endpoint.dropped == {"unasked_path_response": 1}
    assert client.state is server.state


def test_lost_packets_are_counted_once() -> None:
    world = World()
    client, _ = world.connect()
    world.run(0.5)
    lost: list[Flying] = []

    def fate(flying: Flying) -> list[float]:
        if flying.source == CLIENT and flying.count % 10 == 0 and len(lost) < 20:
            lost.append(flying)
            return []
        return [world.delay_s]

    world.fate = fate
    channel = send_all(world, client, [bytes(400_000)])
    world.run_until(lambda: bool(world.server.bodies(channel)))
    world.run(1.0)
    assert client.statistics.packets_lost == len(lost) == 20
    assert client.statistics.packets_spuriously_lost == 0
    assert client.statistics.fragments_resent == 20


def test_late_packets_are_noticed() -> None:
    world = World(3)
    client, _ = world.connect()
    world.run(0.5)
    world.fate = lambda flying: [world.delay_s + (0.05 if flying.source == CLIENT and flying.count % 20 == 0 else 0)]
    channel = send_all(world, client, [bytes(400_000)])
    world.run_until(lambda: bool(world.server.bodies(channel)))
    world.run(1.0)
    assert client.statistics.packets_spuriously_lost > 0
    assert client.buffered_bytes == 0
