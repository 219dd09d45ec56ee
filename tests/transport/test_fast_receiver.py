"""The short way in takes what is its own, leaves the rest to the long way, and does what that would do."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c
from tests.transport.by_hand import BODY, Server
from tests.transport.world import CLIENT, World, packet_for

from godwit.transport.config import EndpointConfig
from godwit.transport.events import ChannelConfirmed, ConnectionState, Received, Writable
from godwit.transport.fast_path import MAX_FAST_ACKED, NOT_HANDLED, FastReceiver, FastSender
from godwit.transport.transmitter import SMALLEST_QUESTION_BYTES
from godwit.wire import packet as wire
from godwit.wire.packet import encode_packet


def test_it_takes_the_next_record_with_and_without_an_acknowledgement() -> None:
    server = Server()
    assert server.accepts(server.packet(server.ack(), server.record(1)))
    assert server.accepts(server.packet(server.record(2, wire.LAST)))
    again = server.packet(server.record(3))
    assert server.accepts(again)
    assert not server.accepts(again)  # that number has come


def test_it_takes_unreliable_records_confirms_and_acknowledgements_alone() -> None:
    server = Server()
    channel = server.connection.open_channel()
    for frames in (
        [server.record(0, wire.UNRELIABLE)],
        [server.ack(), server.record(7, wire.UNRELIABLE, channel=5)],
        [wire.ConfirmFrame(channel, 3, 2)],
        [server.ack(), wire.ConfirmFrame(channel, 4, 1)],
        [server.ack()],
    ):
        assert server.accepts(server.packet(*frames)), frames
    number = server.number
    padded = encode_packet(server.connection.id, number, wire.encode_frame(wire.ConfirmFrame(channel, 5, 1)) + b"\0")
    assert server.accepts(padded)


def padded_ping(server: Server, content: bytes = b"\1".ljust(SMALLEST_QUESTION_BYTES, b"\0")) -> bytes:
    """Return the next packet of an idle client."""
    return encode_packet(server.connection.id, server.number, content)


def test_a_keep_alive_is_acknowledged_at_once_on_both_ways() -> None:
    replies = []
    for is_fast in (True, False):
        server = Server()
        server.control_keys()
        server.world.now += 10.0
        if not is_fast:
            server.connection._fast_receiver = None
        before = len(server.world.log)
        server.world.inject(server.world.server, padded_ping(server), source=CLIENT)
        server.world.drain()
        replies.append([flying.data[13:-4] for flying in server.world.log[before:]])
    assert len(replies[0]) == 1
    assert replies[0] == replies[1]


def test_it_takes_keep_alives_and_nothing_like_them() -> None:
    server = Server()
    short_way = server.connection._fast_receiver
    assert short_way is not None
    now = server.world.now
    good = padded_ping(server)
    for other in (
        padded_ping(server, b"\1\1"),
        padded_ping(server, b"\1" + bytes(40)),
        good[:-1] + bytes((good[-1] ^ 1,)),
        encode_packet(server.connection.id, server.number + 1, good[13:-4]),
    ):
        assert short_way.handle_ping(other, now) == NOT_HANDLED
    assert short_way.handle_ping(good, now) != NOT_HANDLED
    assert short_way.handle_ping(good, now) == NOT_HANDLED  # that number has come
    assert short_way.handle_ping(padded_ping(server, b"\1"), now) == NOT_HANDLED


def test_what_it_tells_the_application() -> None:
    server = Server()
    channel = server.connection.open_channel()
    server.control_keys()
    server.world.server.events.clear()
    server.comes(server.ack(), server.record(1))
    server.comes(server.record(9, wire.UNRELIABLE))
    server.comes(wire.ConfirmFrame(channel, 3, 2))
    server.comes(wire.ConfirmFrame(channel, 3, 2))
    server.comes(server.ack())
    server.world.server.note_events()
    assert server.world.server.events == [
        Received(server.connection, 1, 1, BODY),
        Received(server.connection, 1, 9, BODY, False),
        ChannelConfirmed(server.connection, channel, 3, 2),
    ]
    assert server.world.server.endpoint.dropped == {"old_confirm": 1}


@pytest.mark.parametrize(
    "flags",
    [wire.END, wire.HAS_LENGTH, wire.END | wire.LAST, wire.HAS_LENGTH | wire.LAST, wire.UNRELIABLE | wire.LAST],
)
def test_other_kinds_of_records_go_the_long_way(flags: int) -> None:
    server = Server()
    assert not server.accepts(server.packet(server.record(1, flags)))


def test_records_out_of_order_and_on_new_channels_go_the_long_way() -> None:
    server = Server()
    number = server.number
    for record, channel in ((2, 1), (0, 1), (0, 7), (1, 0)):
        assert not server.accepts(packet_for(server.connection, number, server.record(record, channel=channel)))
    assert not server.accepts(packet_for(server.connection, number + 1, server.record(1)))
    assert server.accepts(packet_for(server.connection, number, server.record(1)))


def test_several_frames_in_a_packet_go_the_long_way() -> None:
    server = Server()
    number = server.number
    for frames in (
        [wire.PingFrame()],
        [server.ack(), wire.PingFrame()],
        [server.ack(), wire.PingFrame(), server.record(1)],
        [wire.ConfirmFrame(1, 1, 1), wire.ConfirmFrame(2, 1, 1)],
        [wire.ConfirmFrame(1, 1, 1), wire.PingFrame()],
        [server.ack(), wire.CreditFrame(0, 2**30)],
        [wire.AckFrame(0, ((2, 2), (0, 0))), server.record(1)],
        [wire.AckFrame(0, ((0, 0),), 1), server.record(1)],
    ):
        assert not server.accepts(packet_for(server.connection, number, *frames)), frames


def test_unreliable_records_of_an_ended_channel_go_the_long_way() -> None:
    server = Server()
    server.comes(server.record(1, wire.END))
    assert not server.accepts(packet_for(server.connection, server.number, server.record(0, wire.UNRELIABLE)))


def test_damaged_and_foreign_packets_go_the_long_way() -> None:
    server = Server()
    good = server.packet(server.ack(), server.record(1))
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 0x10
        assert not server.accepts(bytes(bad)), place
    for length in range(18, len(good)):
        assert not server.accepts(good[:length]), length
    other_version = bytearray(good[:-4])
    other_version[0] = 0x20
    assert not server.accepts(bytes(other_version) + crc32c(other_version).to_bytes(4, "little"))
    assert server.accepts(good)


@pytest.mark.parametrize("kind", [wire.ACK, wire.CONFIRM, wire.DATA | wire.WHOLE, wire.PING, wire.CLOSE])
def test_short_packets_do_not_raise(kind: int) -> None:
    """Everything that is long enough to be a packet may come here."""
    server = Server()
    for size in range(1, 60):
        packet = encode_packet(server.connection.id, server.number, bytes((kind,)) + bytes(size - 1))
        server.number += server.accepts(packet)


def test_strange_acknowledgements_go_the_long_way() -> None:
    server = Server()
    largest = server.largest
    for ack in (
        server.ack(last=largest + 1),  # never sent
        server.ack(last=largest - 1),  # not the newest
        server.ack(-1),  # before the first
        server.ack(largest + 1),  # they do not ascend
        server.ack(2**31, largest),
    ):
        assert not server.accepts(packet_for(server.connection, server.number, ack, server.record(1)))
        assert not server.accepts(packet_for(server.connection, server.number, ack))


def test_an_acknowledgement_that_leaves_out_what_is_under_way_goes_the_long_way() -> None:
    server = Server()
    server.connection.confirm(1, 0, 1)
    server.control_keys()
    channel = server.connection.open_channel()
    server.connection.send(channel, b"two")
    server.control_keys()
    number = server.number
    assert not server.accepts(packet_for(server.connection, number, server.ack(server.largest)))
    assert server.accepts(packet_for(server.connection, number, server.ack()))


def test_a_few_packets_are_acknowledged_at_once_and_more_go_the_long_way() -> None:
    server = Server()
    server.comes(server.ack())
    channel = server.connection.open_channel()
    for number in range(MAX_FAST_ACKED + 1):
        server.connection.send(channel, b"one")
        server.control_keys()
        if number == MAX_FAST_ACKED - 1:
            few = packet_for(server.connection, server.number, server.ack())
    assert not server.accepts(packet_for(server.connection, server.number, server.ack()))
    assert not server.accepts(few)  # it leaves out the newest one
    server.comes(server.ack())
    assert server.connection.statistics.in_flight_bytes == 0
    for _ in range(MAX_FAST_ACKED):
        server.connection.send(channel, b"one")
        server.control_keys()
    assert server.connection.statistics.in_flight_bytes > 0
    assert server.accepts(packet_for(server.connection, server.number, server.ack()))
    assert server.connection.statistics.in_flight_bytes == 0


def test_it_takes_a_confirm_with_a_record_behind_it() -> None:
    server = Server()
    channel = server.connection.open_channel()
    server.control_keys()
    server.world.server.events.clear()
    number = server.number
    rejected: list[list[wire.Frame]] = [
        [wire.ConfirmFrame(channel, 3, 2), server.record(1)],  # without an acknowledgement
        [server.ack(), wire.ConfirmFrame(channel, 3, 2), server.record(1, wire.UNRELIABLE)],
        [server.ack(), wire.ConfirmFrame(channel, 3, 2), server.record(2)],  # not the next record
        [server.ack(), wire.ConfirmFrame(channel, 3, 2), wire.ConfirmFrame(channel, 4, 2)],
    ]
    for frames in rejected:
        assert not server.accepts(packet_for(server.connection, number, *frames)), frames
    assert server.accepts(server.packet(server.ack(), wire.ConfirmFrame(channel, 3, 2), server.record(1)))
    server.comes(server.ack(), wire.ConfirmFrame(channel, 4, 1), server.record(2))
    server.world.server.note_events()
    assert server.world.server.events == [
        Received(server.connection, 1, 2, BODY),
        ChannelConfirmed(server.connection, channel, 4, 1),
    ]


def test_an_acknowledgement_alone_is_taken_and_answered_with_nothing() -> None:
    server = Server()
    server.comes(server.record(1))
    server.connection.confirm(1, 1, 1)
    server.control_keys()
    assert server.connection.statistics.in_flight_bytes > 0
    sent = server.connection.statistics.packets_sent
    server.comes(server.ack())
    server.world.run(1.0)
    assert server.connection.statistics.in_flight_bytes == 0
    assert server.connection.statistics.packets_sent == sent
    assert server.connection.statistics.packets_received == server.number


def test_credit_is_kept() -> None:
    server = Server(channel_window_bytes=2000, connection_window_bytes=2000, max_record_bytes=2000)
    taken = 0
    while server.accepts(server.packet(server.record(1 + taken))):
        taken += 1
    assert 20 < taken < 4128 // 132 + 1
    server.connection.consume(1, len(BODY))
    server.number -= 1
    assert server.accepts(server.packet(server.record(1 + taken)))


def test_room_in_the_send_buffer_is_told() -> None:
    world = World(client=EndpointConfig(send_buffer_bytes=1300))
    client, _ = world.connect()
    world.run(0.2)
    channel = client.open_channel()
    client.send(channel, bytes(900))
    with pytest.raises(Exception, match="Writable"):
        client.send(channel, bytes(900))
    world.run(0.2)
    assert len(world.client.all(Writable)) == 1


# -- whatever comes ---------------------------------------------------------------------------------------------------


def strange_frames(rng: random.Random, server: Server) -> list[wire.Frame]:
    """Something like what a client says, and something a hostile one might."""
    near = rng.choice((0, 0, 0, -1, 1, -5, 1000, 2**31))
    ack = server.ack(rng.choice((0, 0, 0, server.largest - 1, near)), server.largest + rng.choice((0, 0, 0, 0, near)))
    flags = rng.choice((0, wire.LAST, wire.LAST, wire.UNRELIABLE, wire.END | wire.LAST if rng.random() < 0.1 else 0))
    data = wire.DataFrame(
        wire.WHOLE | flags, rng.choice((1, 1, 1, 2, 0)), server.record_number + rng.choice((0, 0, 0, 1, -1)), 0, None,
        bytes(rng.choice((0, 4, 100, 1100))),
    )  # fmt: skip
    confirm = wire.ConfirmFrame(rng.choice((1, 1, 2, 0, 9)), rng.choice((rng.randrange(30), 2**63)), rng.randrange(3))
    frames: list[wire.Frame] = []
    if rng.random() < 0.7:
        frames.append(ack)
    if rng.random() < 0.2:
        frames.append(confirm)
    if rng.random() < 0.8 or not frames:
        frames.append(rng.choice((data, data, data, confirm, wire.PingFrame(), wire.BlockedFrame(1, 0))))
    if rng.random() < 0.05:
        frames.append(wire.PingFrame())
    return frames


def hostile_session(seed: int) -> list[object]:
    """Everything that the server said, told, counted and dropped while a strange client spoke to it."""
    rng = random.Random(seed)
    server = Server(channel_window_bytes=5000, connection_window_bytes=5000, max_record_bytes=2000)
    connection = server.connection
    server.world.server.events.clear()
    seen: list[object] = []
    channel = connection.open_channel()
    for _ in range(80):
        packet = packet_for(
            connection, server.number + rng.choice((0, 0, 0, 0, 0, 1, -1)), *strange_frames(rng, server)
        )
        if rng.random() < 0.02:
            packet = packet[:-1] + bytes((packet[-1] ^ 1,))
        server.number += 1
        server.world.inject(server.world.server, packet, source=CLIENT)
        server.world.server.note_events()
        for event in server.world.server.events:
            seen.append([getattr(event, name) for name in event.__struct_fields__ if name != "connection"])
            if isinstance(event, Received) and event.reliable and connection.state is ConnectionState.OPEN:
                server.record_number = event.record + 1
                if rng.random() < 0.7:
                    connection.consume(event.channel, len(event.body))
                if rng.random() < 0.7 and event.channel:
                    connection.confirm(event.channel, event.record, 1)
        server.world.server.events.clear()
        seen.append(server.control_keys())
        if connection.state is ConnectionState.OPEN and rng.random() < 0.2:
            connection.send(channel, b"answer", reliable=rng.random() < 0.8)
        seen.append(server.control_keys())
        server.world.now += rng.choice((0.0, 0.001, 0.01, 0.3))
        server.world.server.endpoint.handle_timers(server.world.now)
        seen += [server.control_keys(), connection.statistics, connection.state, connection.buffered_bytes]
    return [*seen, server.world.server.endpoint.dropped]


@pytest.mark.parametrize("seeds", [range(first, first + 20) for first in (0, 20, 40)], ids=str)
def test_a_strange_client_sees_no_difference(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    by_the_short_way = [hostile_session(seed) for seed in seeds]
    monkeypatch.setattr(FastReceiver, "handle_packet", lambda *_: NOT_HANDLED)
    monkeypatch.setattr(FastSender, "next_packet", lambda *_: None)
    monkeypatch.setattr(FastSender, "is_idle", lambda *_: False)
    for seed, one in zip(seeds, by_the_short_way, strict=True):
        for mine, yours in zip(one, hostile_session(seed), strict=True):
            assert mine == yours, f"seed {seed}"
