"""Clients that send too much, too slowly or never read: memory and turns remain bounded, and others are not hurt."""

from __future__ import annotations

from typing import Any

import pytest
from tests.mqtt import client_packets as client
from tests.mqtt.world import Device, MqttWorld

from godwit.broker.access import Access, Rule
from godwit.broker.settings import Settings
from godwit.limits import KIB, MIB
from godwit.mqtt import packets as p
from godwit.mqtt.connection import MAX_FILTER_BURST, MAX_TURN_PACKETS, MAX_WAITING_BYTES
from godwit.mqtt.encoding import encode_varint
from godwit.mqtt.packets import PacketReader, Property, Reason
from godwit.mqtt.protocol import IncompletePackets
from godwit.mqtt.sender import RETAINED_IDENTIFIERS
from godwit.mqtt.websocket import WebSocketStream, encode_frame, unmask

PINGREQ = b"\xc0\x00"
PINGRESP = b"\xd0\x00"
WINDOW_BYTES = 64 * KIB


def small_window() -> Settings:
    return Settings(client_window_bytes=WINDOW_BYTES, max_message_bytes=1 * MIB)


def refusal(packet: bytes, version: int = 5) -> int:
    """Return the reason code with which a packet is refused."""
    reader = PacketReader()
    reader.version = version
    reader.max_bytes = p.MAX_REMAINING_BYTES
    assert reader.feed(packet) == []
    assert reader.error is not None
    return reader.error.code


# -- one packet -------------------------------------------------------------------------------------------------------


def test_a_packet_cannot_have_so_many_properties_that_reading_them_takes_seconds() -> None:
    pair = b"\x26\x00\x01a\x00\x00"
    long = pair * (p.MAX_PROPERTIES_BYTES // len(pair) + 1)
    assert refusal(client.packet(0x30, b"\0\x01t", encode_varint(len(long)), long)) == Reason.TOO_LARGE
    many = pair * (p.MAX_USER_PROPERTIES + 1)
    assert refusal(client.packet(0x30, b"\0\x01t", encode_varint(len(many)), many)) == Reason.QUOTA


def test_a_packet_cannot_have_so_many_filters_that_reading_them_takes_seconds() -> None:
    subscribe = [b"\0\x04%04x\0" % number for number in range(p.MAX_PACKET_FILTERS + 1)]
    assert refusal(client.packet(0x82, b"\0\x01", *subscribe), 4) == Reason.QUOTA
    unsubscribe = [b"\0\x04%04x" % number for number in range(p.MAX_PACKET_FILTERS + 1)]
    assert refusal(client.packet(0xA2, b"\0\x01", *unsubscribe), 4) == Reason.QUOTA
    # It is refused at its header already.
    assert refusal(b"\x82" + encode_varint(p.MAX_CONTROL_PACKET_BYTES + 1), 4) == Reason.TOO_LARGE


def test_thousands_of_filters_are_not_sorted_one_by_one() -> None:
    world = MqttWorld()
    device = world.device()
    filters = [(f"{number:04x}", 0) for number in range(4000)]
    assert device.subscribe(*filters) == [0] * 4000
    table = device.connection.table
    before = table.filters
    assert list(before) == sorted(text for text, _ in filters)
    assert table.filters is before
    device.send(client.unsubscribe(2, "0000"))
    assert table.filters == before[1:]


def test_long_topics_are_not_remembered() -> None:
    world = MqttWorld()
    device = world.device()
    for number in range(100):
        device.publish(f"{number}" + "x" * 60_000)
        device.publish(f"short/{number}")
    assert len(world.mqtt.topics) == 100
    assert all(len(topic) <= p.MAX_CACHED_TOPIC_BYTES for topic in world.mqtt.topics)
    other = world.device("other")
    other.publish("short/1")
    assert len(world.mqtt.topics) == 100  # one table for all


# -- clients that do not read -----------------------------------------------------------------------------------------


def test_a_client_that_sends_and_never_reads_is_not_read_either() -> None:
    world = MqttWorld(small_window())
    device = world.device()
    device.unsent = 3 * WINDOW_BYTES
    assert device.send(PINGREQ * 10) == []
    reading = [device.is_reading]
    device.send(PINGREQ * MAX_WAITING_BYTES)
    reading.append(device.is_reading)
    assert reading == [True, False]
    device.unsent = 0
    device.connection.handle_drained()
    world.run()
    assert device.is_reading
    assert device.packets.count(PINGRESP) == 10 + MAX_WAITING_BYTES


def test_the_packets_of_one_client_are_handled_in_several_turns() -> None:
    world = MqttWorld()
    device = world.device()
    device.connection.receive(PINGREQ * (3 * MAX_TURN_PACKETS + 1))
    turns = []
    write = device.write

    def count(data: bytes) -> None:
        turns.append(len(data) // len(PINGRESP))
        write(data)

    device.write = count  # type: ignore[method-assign]
    world.run()
    assert turns == [MAX_TURN_PACKETS] * 3 + [1]


def test_messages_that_wait_continue_when_the_stream_took_everything_at_once() -> None:
    """The stream of the test never reports that it has drained, as a socket with a large buffer."""
    world = MqttWorld(small_window())
    publisher = world.device("publisher")
    for number in range(10):
        publisher.publish(f"big/{number}", b"x" * 30_000, qos=1, packet_id=1, retain=True)
    device = world.device("device")
    device.answers = False
    assert device.subscribe(("big/#", 1)) == [1]
    assert len(device.messages) == 10


def test_a_message_of_qos_0_may_be_longer_than_the_window() -> None:
    world = MqttWorld(small_window())
    device = world.device("device")
    device.subscribe(("t", 0))
    world.device("publisher").publish("t", b"x" * 3 * WINDOW_BYTES)
    assert [len(message.payload) for message in device.messages] == [3 * WINDOW_BYTES]
    device.unsent = WINDOW_BYTES
    world.device("publisher").publish("t", b"y")
    assert len(device.messages) == 1


@pytest.mark.parametrize("is_stuck", [False, True])
def test_retained_messages_are_repeated_at_the_pace_of_the_client(is_stuck: bool) -> None:
    world = MqttWorld(small_window())
    world.device("publisher").publish("big", b"x" * 20_000, qos=1, packet_id=1, retain=True)
    options: dict[str, Any] = {"clean": False, "values": {Property.SESSION_EXPIRY: 60}}
    device = world.device("device", 5, **options)
    device.answers = False
    for _ in range(50):
        device.subscribe(("big", 1))
    assert len(device.messages) == 50
    device.vanish()
    again = Device(world, 5)
    again.answers = False
    write = again.write

    def keep(data: bytes) -> None:
        again.unsent += len(data) * is_stuck
        write(data)

    again.write = keep  # type: ignore[method-assign]
    again.send(client.connect("device", 5, **options))
    assert all(message.dup for message in again.messages)
    if is_stuck:
        assert again.unsent <= 2 * WINDOW_BYTES
    else:
        assert len(again.messages) == 50


def test_all_packet_identifiers_of_retained_messages_in_flight() -> None:
    world = MqttWorld()
    world.device("publisher").publish("t", b"x", qos=1, packet_id=1, retain=True)
    device = world.device("device", 5, values={Property.RECEIVE_MAXIMUM: 65_535})
    device.answers = False
    device.subscribe(("t", 1))
    numbers = device.connection.table.numbers
    (first,) = numbers.not_logged.values()
    for packet_id in range(65_536 - RETAINED_IDENTIFIERS, 65_536):
        numbers.not_logged.setdefault(packet_id, first)
    device.subscribe(("t", 1))
    assert len(device.messages) == 1, "no identifier is free"
    device.send(client.ack(4, 65_535, 5))
    assert device.messages[1].packet_id == 65_535


def test_requests_for_retained_messages_do_not_add_up() -> None:
    world = MqttWorld()
    world.device("publisher").publish("t", b"x", qos=1, packet_id=1, retain=True)
    device = world.device("device", 5, values={Property.RECEIVE_MAXIMUM: 1})
    device.answers = False
    for _ in range(100):
        device.subscribe(("t", 1), ("u", 1))
    assert len(device.connection.table.retained_pending) <= 3


# -- clients that never end a packet ----------------------------------------------------------------------------------

PART = b"\x30\xa0\x8d\x06" + b"x" * 10_000  # of 100,000 bytes


def test_the_oldest_incomplete_packets_are_dropped() -> None:
    world = MqttWorld()
    pool = world.mqtt.incomplete[True]
    pool._max_bytes = 25_000
    devices = [world.device(name) for name in "abc"]
    for device in devices:
        device.send(PART)
    assert [device.is_closed for device in devices] == [True, False, False]
    assert pool.held_bytes == 2 * len(PART)
    devices[1].vanish()
    assert pool.held_bytes == len(PART)


def test_a_client_that_ends_its_packets_is_not_dropped_for_others() -> None:
    world = MqttWorld()
    pool = world.mqtt.incomplete[True]
    pool._max_bytes = 25_000
    busy = world.device("busy")
    slow = [world.device(f"slow-{number}") for number in range(4)]
    whole = PART + b"x" * 90_000
    busy.send(PART)
    for device in slow:
        busy.send(whole[len(PART) :] + PART)  # it always has a part of the next one
        device.send(PART)
    assert not busy.is_closed
    assert [device.is_closed for device in slow].count(True) >= 3


def test_connections_without_a_login_share_a_small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    world = MqttWorld()
    monkeypatch.setattr(world.mqtt.incomplete[False], "_max_bytes", 25_000)
    known = world.device("known")
    known.send(PART)
    silent = [Device(world, 4) for _ in range(4)]
    connect = client.packet(0x10, b"\0\x04MQTT\x04\x02\0\0", bytes(50_000))
    for device in silent:
        device.send(connect[:10_000])
    assert [device.is_closed for device in silent] == [True, True, False, False]
    assert not known.is_closed
    pool: IncompletePackets = world.mqtt.incomplete[True]
    assert pool.held_bytes == len(PART)


def test_a_connection_that_has_ended_holds_nothing() -> None:
    world = MqttWorld(small_window())
    device = world.device("device", keep_alive_s=60_000)  # its timer remains for hours
    device.subscribe(("t", 1))
    device.answers = False
    publisher = world.device("publisher")
    for number in range(200):
        publisher.publish("t", b"x" * 1000, qos=1, packet_id=number + 1)
    device.send(PART)
    waiting = [device.connection.outbound.has_waiting]
    device.vanish()
    waiting.append(device.connection.outbound.has_waiting)
    assert waiting == [True, False]
    assert not device.connection._reader.held_bytes
    assert not device.connection._inbox


# -- rates and times --------------------------------------------------------------------------------------------------


def test_a_client_that_changes_its_subscriptions_all_the_time_is_closed() -> None:
    world = MqttWorld()
    device = world.device("device", 5)
    one = client.subscribe(1, ("t", 0), version=5) + client.unsubscribe(2, "t", version=5)
    packets = device.send(one * (MAX_FILTER_BURST // 2 + 1000))
    assert device.is_closed
    assert packets[-1][:3] == bytes((0xE0, packets[-1][1], Reason.RATE))


def test_the_keep_alive_does_not_end_while_the_broker_does_not_read() -> None:
    world = MqttWorld(small_window())
    device = world.device("device", keep_alive_s=10)
    world.hold()
    for number in range(600):
        device.publish(f"t/{number % 2}", b"x", qos=1, packet_id=number + 1)
    assert len(device.connection.receiver.slots) < 200  # short messages take memory, too
    assert device.connection.waits_for_broker
    world.pass_s(60.0)
    assert not device.is_closed
    world.commit()
    assert len(device.packets) == 601
    world.pass_s(16.0)
    assert device.is_closed


def test_reason_strings_are_no_longer_than_the_client_accepts() -> None:
    rule = Rule(clients=("*",), allow=frozenset(("publish", "subscribe")), topics=("open/#",))
    world = MqttWorld(Settings(access=Access(rules=(rule,))))
    topic = "closed/" + "x" * 150
    for max_bytes in (100, 1000):
        device = world.device("device", 5, values={Property.MAXIMUM_PACKET_SIZE: max_bytes})
        (suback,) = device.send(client.subscribe(7, (topic, 0), version=5))
        assert (len(suback) > 100) == (max_bytes == 1000)
        assert suback[-1] == Reason.NOT_AUTHORIZED
        (puback,) = device.publish(topic, qos=1, packet_id=258)
        assert (len(puback) > 100) == (max_bytes == 1000)
        at = 3 if puback[1] & 0x80 else 2
        assert puback[at : at + 3] == bytes((1, 2, Reason.NOT_AUTHORIZED))
        device.send(client.packet(0xE0))


def test_a_keep_alive_is_reported_only_if_it_differs() -> None:
    world = MqttWorld(max_keep_alive_s=60)
    for asked, reported in ((30, False), (60, False), (61, True), (0, True)):
        device = world.device(f"device-{asked}", 5, keep_alive_s=asked)
        assert (b"\x13\x00\x3c" in device.packets[0]) == reported


def test_an_alias_is_used_only_after_the_client_has_received_it() -> None:
    world = MqttWorld()
    values = {Property.RECEIVE_MAXIMUM: 1, Property.TOPIC_ALIAS_MAXIMUM: 5, Property.MAXIMUM_PACKET_SIZE: 100}
    device = world.device("device", 5, values=values)
    device.subscribe(("#", 1))
    publisher = world.device("publisher")
    publisher.publish("long", b"x" * 200, qos=0)  # the client does not accept it
    publisher.publish("long", b"1", qos=0)
    publisher.publish("long", b"2", qos=0)
    device.answers = False
    publisher.send(
        client.publish("a", b"3", qos=1, packet_id=1),
        client.publish("b", b"4", qos=1, packet_id=2),  # it waits for the quota
    )
    device.answers = True
    device.send(client.ack(4, device.messages[-1].packet_id, 5))
    publisher.publish("b", b"5", qos=1, packet_id=3)
    aliases: dict[int, str] = {}
    found = []
    for message in device.messages:
        alias = message.properties[Property.TOPIC_ALIAS]
        if message.topic:
            aliases[alias] = message.topic
        found.append((aliases[alias], message.payload))
    assert found == [("long", b"1"), ("long", b"2"), ("a", b"3"), ("b", b"4"), ("b", b"5")]


def test_one_message_without_an_acknowledgement_costs_little() -> None:
    world = MqttWorld(max_in_flight=10)
    device = world.device("device")
    device.subscribe(("t", 1))
    device.answers = False
    publisher = world.device("publisher")
    publisher.publish("t", b"first", qos=1, packet_id=1)
    device.answers = True
    sizes = []
    for number in range(2, 400):
        publisher.publish("t", b"x", qos=1, packet_id=number)
        sizes.append(device.connection.outbound._prune_above)
    assert len(device.messages) == 399
    assert len(set(sizes)) < 10  # it is searched rarely, not after each message


# -- WebSocket --------------------------------------------------------------------------------------------------------

REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)


def open_websocket() -> WebSocketStream:
    stream = WebSocketStream("/mqtt", 16 * MIB)
    assert stream.receive(REQUEST) == b""
    stream.output.clear()
    return stream


@pytest.mark.parametrize("size", [1, 2, 3, 5, 126, 70_000])
def test_a_frame_is_passed_on_as_it_arrives(size: int) -> None:
    stream = open_websocket()
    body = bytes(range(256)) * 400
    mask = b"\x01\x80\x7f\xaa"
    head = bytearray(encode_frame(2, body))
    head[1] |= 0x80
    head_bytes = len(head) - len(body)
    data = bytes(head[:head_bytes]) + mask + unmask(body, mask)
    found = b""
    for at in range(0, len(data), size):
        piece = data[at : at + size]
        found += stream.receive(piece)
        assert len(stream._buffer) < 14
    assert found == body


def test_one_pong_answers_many_pings() -> None:
    stream = open_websocket()
    ping = b"\x89\x82\0\0\0\0"
    stream.receive(b"".join(ping + b"%02d" % number for number in range(100)))
    assert stream.output == [encode_frame(10, b"99")]
