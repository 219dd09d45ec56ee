"""The MQTT codec: accepted packets, the codes of refused ones, and bytes that no client should send."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mqtt import client_packets as client
from tests.mqtt.reference import Sequence, checkout, load_sequences

from godwit.mqtt import encoding
from godwit.mqtt import packets as p
from godwit.mqtt.packets import PacketReader, Property, Reason


def read(data: bytes, version: int = 0, max_bytes: int = 1 << 20) -> tuple[list[p.Packet], PacketReader]:
    """Return the packets of a client whose CONNECT (unless `version` is 0) was accepted before."""
    reader = PacketReader()
    reader.version = version
    if version:
        reader.max_bytes = max_bytes
    packets = reader.feed(data)
    while more := reader.feed(b""):
        packets += more
    return packets, reader


def refused(data: bytes, version: int = 0, max_bytes: int = 1 << 20) -> int:
    packets, reader = read(data, version, max_bytes)
    assert reader.error is not None, packets
    return reader.error.code


def test_a_connect_of_each_version() -> None:
    will = ("w/t", b"gone", 2, True)
    data = client.connect("id", 5, user="u", password=b"p", will=will, will_values={Property.WILL_DELAY: 3})
    (packet,), reader = read(data)
    assert isinstance(packet, p.ConnectPacket)
    assert packet.will == p.WillMessage("w/t", b"gone", 2, True, {Property.WILL_DELAY: 3})
    assert (packet.user, packet.password, packet.client_id, packet.keep_alive_s) == ("u", b"p", "id", 60)
    assert reader.version == 5
    for version in (3, 4):
        (packet,), reader = read(client.connect("id", version))
        assert isinstance(packet, p.ConnectPacket)
        assert packet.version == reader.version == version


def test_a_bridge_is_recognized() -> None:
    data = bytearray(client.connect("id", 4))
    data[8] |= 0x80
    (packet,), _ = read(bytes(data))
    assert isinstance(packet, p.ConnectPacket)
    assert packet.is_bridge
    assert packet.version == 4


def test_properties_keep_their_order_and_must_be_allowed() -> None:
    values: dict[int, Any] = {Property.USER_PROPERTY: [("a", "1"), ("b", "2"), ("a", "1")], Property.TOPIC_ALIAS: 7}
    (packet,), _ = read(client.publish("t", b"x", version=5, values=values), 5)
    assert isinstance(packet, p.PublishPacket)
    assert packet.properties == values
    not_allowed = client.publish("t", b"x", version=5, values={Property.SESSION_EXPIRY: 1})
    assert refused(not_allowed, 5) == Reason.PROTOCOL
    assert refused(client.publish("t", version=5, values={Property.PAYLOAD_FORMAT: 2}), 5) == Reason.PROTOCOL
    assert refused(client.subscribe(1, ("t", 0), version=5, values={Property.SUBSCRIPTION_ID: 0}), 5) == Reason.PROTOCOL


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0b", "a\x7f", "\ufffe"])
def test_topics_that_are_refused(topic: str) -> None:
    assert refused(client.publish(topic), 4) == Reason.MALFORMED


@pytest.mark.parametrize("text", ["", "a/#/b", "a+/b", "#a", "$share/g", "$share//t", "$share/g/", "$share/+/t"])
def test_filters_that_are_refused(text: str) -> None:
    assert refused(client.subscribe(1, (text, 0)), 4) == Reason.MALFORMED
    assert refused(client.unsubscribe(1, text), 4) == Reason.MALFORMED


def test_a_length_is_only_a_claim() -> None:
    reader = PacketReader()
    reader.version = 4
    reader.max_bytes = p.MAX_REMAINING_BYTES + 5
    assert reader.feed(b"\x30\xff\xff\xff\x7f" + b"x" * 100) == []
    assert reader.error is None
    assert reader.held_bytes == 105
    assert refused(b"\x30\xff\xff\xff\x7f", 4) == Reason.TOO_LARGE
    assert refused(b"\x10\xff\xff\xff\x7f") == Reason.TOO_LARGE  # before the login the limit is small
    assert refused(b"\x30\xff\xff\xff\xff\x01", 4) == Reason.MALFORMED


def test_nothing_is_read_after_an_error() -> None:
    good, bad = client.publish("t", b"1"), b"\x36\x03\x00\x01t"
    packets, reader = read(good + bad + good, 4)
    assert len(packets) == 1
    assert reader.feed(good) == []


def test_the_reader_stops_behind_a_connect() -> None:
    """The login decides whether later packets are read at all."""
    reader = PacketReader()
    data = client.connect("id", 4) + client.PING
    assert [type(packet) for packet in reader.feed(data)] == [p.ConnectPacket]
    assert [type(packet) for packet in reader.feed(b"")] == [p.PingPacket]


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"]), max_size=20)
topics = texts.filter(lambda text: text and not set("+#") & set(text) and "\ufffe" not in text)
user_properties = st.lists(st.tuples(texts, texts), min_size=1, max_size=3)
message_values = st.fixed_dictionaries(
    {},
    optional={
        Property.PAYLOAD_FORMAT: st.integers(0, 1),
        Property.MESSAGE_EXPIRY: st.integers(0, 2**32 - 1),
        Property.CONTENT_TYPE: texts,
        Property.CORRELATION_DATA: st.binary(max_size=20),
        Property.USER_PROPERTY: user_properties,
    },
)
versions = st.sampled_from([3, 4, 5])


@st.composite
def client_packets(draw: st.DrawFn, version: int) -> bytes:
    kind = draw(st.integers(0, 4))
    packet_id = draw(st.integers(1, 65535))
    if kind == 0:
        values: Any = draw(message_values) if version == 5 else None
        qos = draw(st.integers(0, 2))
        return client.publish(
            draw(topics), draw(st.binary(max_size=200)), qos=qos, packet_id=packet_id, version=version, values=values
        )
    if kind == 1:
        filters = draw(st.lists(st.tuples(topics, st.integers(0, 2)), min_size=1, max_size=3))
        return client.subscribe(packet_id, *filters, version=version)
    if kind == 2:
        return client.unsubscribe(packet_id, draw(topics), version=version)
    return client.ack(draw(st.integers(4, 7)), packet_id, version) if kind == 3 else client.PING


def one_by_one(packets: list[p.Packet]) -> list[p.Packet]:
    """Return the packets with each run as its single packets."""
    found: list[p.Packet] = []
    for packet in packets:
        if isinstance(packet, p.PublishRun):
            ids = packet.packet_ids or [0] * len(packet.payloads)
            each = zip(packet.payloads, ids, strict=True)
            found += [p.PublishPacket(packet.topic, payload, packet.flags, number) for payload, number in each]
        elif isinstance(packet, p.AckRun):
            found += [p.AckPacket(4, number) for number in packet.packet_ids]
        else:
            found.append(packet)
    return found


def test_a_run_of_acknowledgements_may_be_cut() -> None:
    stream = client.ack(4, 1, 4) + client.ack(4, 2, 4)
    whole, _ = read(stream, 4)
    reader = PacketReader()
    reader.version = 4
    assert whole == [p.AckRun([1, 2])]
    assert reader.feed(stream[:6]) + reader.feed(stream[6:]) == one_by_one(whole)


@given(st.data(), versions)
@settings(max_examples=100)
def test_the_cuts_of_a_stream_do_not_matter(data: st.DataObject, version: int) -> None:
    stream = b"".join(data.draw(st.lists(client_packets(version), min_size=1, max_size=8)))
    whole, reader = read(stream, version)
    assert reader.error is None
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader = PacketReader()
    reader.version, reader.max_bytes = version, 1 << 20
    pieces = [reader.feed(stream[a:b]) for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert one_by_one([packet for packets in pieces for packet in packets]) == one_by_one(whole)
    assert reader.held_bytes == 0


@given(st.binary(max_size=300), st.sampled_from([0, 3, 4, 5]))
@settings(max_examples=300)
def test_any_bytes_are_read_or_refused(data: bytes, version: int) -> None:
    packets, reader = read(data, version, 1000)
    if reader.error is None:
        assert reader.held_bytes <= len(data)
        assert len(packets) <= len(data) // 2
    else:
        assert reader.error.code >= Reason.UNSPECIFIED


@given(st.data(), versions)
@settings(max_examples=200)
def test_changed_bytes_are_read_or_refused(data: st.DataObject, version: int) -> None:
    stream = bytearray(data.draw(client_packets(version)))
    for _ in range(data.draw(st.integers(1, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    read(bytes(stream), version)


@given(message_values, topics, st.binary(max_size=50), st.integers(0, 2), st.integers(1, 65535))
@settings(max_examples=100)
def test_a_publish_of_the_server_is_read_as_it_was_written(
    values: dict[int, Any], topic: str, payload: bytes, qos: int, packet_id: int
) -> None:
    head = encoding.publish_head(
        qos << 1, encoding.encode_text(topic), packet_id, encoding.encode_packet_properties(values), len(payload)
    )
    (packet,), _ = read(head + payload, 5)
    assert packet == p.PublishPacket(topic, payload, qos << 1, packet_id if qos else 0, values)


def test_packets_of_the_server() -> None:
    assert encoding.encode_connack(4, session_present=True, code=0) == b"\x20\x02\x01\x00"
    assert encoding.encode_connack(5, session_present=False, code=0x87) == b"\x20\x03\x00\x87\x00"
    assert encoding.encode_ack(4, p.PacketType.PUBACK, 258) == b"\x40\x02\x01\x02"
    assert encoding.encode_ack(5, p.PacketType.PUBREC, 1, 0x10) == b"\x50\x03\x00\x01\x10"
    assert encoding.encode_ack(5, p.PacketType.PUBREL, 1) == b"\x62\x02\x00\x01"
    assert encoding.encode_ack(5, p.PacketType.PUBACK, 1, 0x87, "no") == b"\x40\x09\x00\x01\x87\x05\x1f\x00\x02no"
    assert encoding.encode_acks(p.PacketType.PUBREL, [1, 2]) == b"\x62\x02\x00\x01\x62\x02\x00\x02"
    assert encoding.encode_suback(4, 1, [0, 0x80]) == b"\x90\x04\x00\x01\x00\x80"
    assert encoding.encode_suback(5, 1, [2]) == b"\x90\x04\x00\x01\x00\x02"
    assert encoding.encode_unsuback(3, 1, [0]) == b"\xb0\x02\x00\x01"
    assert encoding.encode_unsuback(5, 1, [0x11]) == b"\xb0\x04\x00\x01\x00\x11"
    assert encoding.encode_disconnect(0x8E) == b"\xe0\x01\x8e"
    for value in (0, 127, 128, 16383, 16384, 2097151, 2097152, p.MAX_REMAINING_BYTES):
        data = encoding.encode_varint(value)
        cursor = p._Cursor(data, 0, len(data))
        assert cursor.varint() == value
        cursor.require_end()


def _decision(sequence: Sequence) -> tuple[bool, int]:
    """Return whether the codec refuses a sequence, and with which code."""
    reader = PacketReader()
    if sequence.has_connect:
        reader.version, reader.max_bytes = sequence.version, 2_000_000
    for step in sequence.steps:
        if step["type"] == "send":
            packets = reader.feed(step["payload"])
            while packets:
                packets = reader.feed(b"")
    return reader.error is not None, 0 if reader.error is None else reader.error.code


OF_THE_SESSION = (
    "AUTH F0 long",
    "tiny max packet",
    "EXTENDED AUTH",
    "FLOW",
    "Dup flow*3",
    "topic alias",
    "topic-alias",
)
"""Parts of the names of sequences that only the state of a connection can refuse."""


def test_the_codec_agrees_with_the_reference_sequences(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.cache is not None
    folder = checkout(pytestconfig.cache.mkdir("reference"))
    wrong: list[str] = []
    for sequence in load_sequences(folder):
        is_refused, code = _decision(sequence)
        leaves = any(step["type"] == "send" and step["payload"][:1] == b"\xe0" for step in sequence.steps)
        if sequence.ends == is_refused or (sequence.ends and leaves and not is_refused):
            last = [step["payload"] for step in sequence.steps if step["type"] == "recv"][-1:] or [b""]
            expected = last[0][2:3] if last[0][:1] == b"\xe0" else last[0][3:4]
            older = {Reason.BAD_VERSION: 1, Reason.BAD_CLIENT_ID: 2}
            if is_refused and expected > b"\0" and expected[0] not in (code, older.get(Reason(code))):
                wrong.append(f"{sequence.name}: {code:#x}, expected {expected.hex()}")
        elif not any(part in sequence.name for part in OF_THE_SESSION):
            wrong.append(f"{sequence.name}: {'refused' if is_refused else 'accepted'}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1])
def test_equal_heads_in_a_row_are_one_run(version: int, qos: int) -> None:
    def message(number: int, payload: bytes, topic: str = "t") -> bytes:
        return client.publish(topic, payload, qos=qos, packet_id=number, version=version)

    data = b"".join(message(number + 1, b"%03d" % number) for number in range(300))
    ids = list(range(1, 301)) if qos else []
    for cut in (0, 5, 7, len(data) - 1):
        _, reader = read(b"", version)
        packets = reader.feed(data[:cut]) + reader.feed(data[cut:])
        payloads = [one.payload for one in one_by_one(packets) if isinstance(one, p.PublishPacket)]
        assert payloads == [b"%03d" % number for number in range(300)]
        assert len(packets) <= 3
        if not cut:
            assert packets == [p.PublishRun("t", payloads, qos << 1, ids)]
    for other in (message(9, b"1234"), message(9, b"123", "u"), client.PING):
        found, _ = read(message(1, b"abc") + message(2, b"def") + other + message(3, b"ghi"), version)
        assert [type(packet) for packet in found] == [p.PublishRun, type(found[1]), p.PublishPacket]
    if qos:
        found, reader = read(message(1, b"abc") + message(2, b"def") + message(0, b"ghi"), version)
        assert found == [p.PublishRun("t", [b"abc", b"def"], 2, [1, 2])]
        assert reader.error is not None
        assert reader.error.code == Reason.PROTOCOL
    if version == 5:
        with_property = client.publish("t", b"x", qos=qos, packet_id=3, version=5, values={Property.PAYLOAD_FORMAT: 1})
        found, _ = read(message(1, b"abc") + with_property, version)
        assert [type(packet) for packet in found] == [p.PublishPacket, p.PublishPacket]
        assert isinstance(found[1], p.PublishPacket)
        assert found[1].properties == {Property.PAYLOAD_FORMAT: 1}
