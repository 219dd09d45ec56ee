"""MQTT packets of the server, values -> bytes. Their numbers and names are in godwit.mqtt.packets."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

from godwit.mqtt.packets import (
    BINARY,
    KINDS,
    NO_PACKET_PROPERTIES,
    PAIR,
    TEXT,
    V5,
    VARINT,
    PacketProperties,
    PacketType,
    Property,
)

_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
PINGRESP: Final = b"\xd0\x00"
PUBLISH_BITS: Final = 0x30
ACK_HEADS: Final = {
    int(kind): bytes((kind << 4 | (2 if kind == PacketType.PUBREL else 0), 2))
    for kind in (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP)
}


def encode_varint(value: int) -> bytes:
    """Return a number of up to 28 bits as 1 to 4 bytes."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21))


def encode_text(text: str) -> bytes:
    """Return a text with its length."""
    raw = text.encode()
    return _U16.pack(len(raw)) + raw


def _encode_value(kind: int, value: Any) -> bytes:
    if kind == TEXT:
        return encode_text(value)
    if kind == PAIR:
        return encode_text(value[0]) + encode_text(value[1])
    if kind == BINARY:
        return _U16.pack(len(value)) + bytes(value)
    if kind == VARINT:
        return encode_varint(value)
    return int(value).to_bytes((1, 2, 4)[kind], "big")


def encode_packet_properties(properties: PacketProperties) -> bytes:
    """Return properties with their length, in the order of the mapping."""
    parts: list[bytes] = []
    for number, value in properties.items():
        for one in value if isinstance(value, list) else (value,):
            parts.append(bytes((number,)) + _encode_value(KINDS[number], one))
    body = b"".join(parts)
    return encode_varint(len(body)) + body


def _packet(first: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes((first,)) + encode_varint(len(body)) + body


def encode_connack(
    version: int, *, session_present: bool, code: int, properties: PacketProperties = NO_PACKET_PROPERTIES
) -> bytes:
    """Return a CONNACK. `code`: a reason code of MQTT 5.0, or a return code of the older versions."""
    return _packet(
        PacketType.CONNACK << 4,
        bytes((session_present, code)),
        encode_packet_properties(properties) if version == V5 else b"",
    )


def encode_ack(version: int, kind: int, packet_id: int, code: int = 0, text: str = "") -> bytes:
    """Return a PUBACK, PUBREC, PUBREL or PUBCOMP. `text`: the reason string, with MQTT 5.0."""
    first = kind << 4 | (2 if kind == PacketType.PUBREL else 0)
    if version < V5 or not code:
        return bytes((first, 2)) + _U16.pack(packet_id)
    properties = encode_packet_properties({Property.REASON_STRING: text}) if text else b""
    return _packet(first, _U16.pack(packet_id), bytes((code,)), properties)


def encode_acks(kind: int, packet_ids: Sequence[int]) -> bytes:
    """Return several acknowledgements without a reason code."""
    head = ACK_HEADS[kind]
    if len(packet_ids) == 1:
        return head + packet_ids[0].to_bytes(2, "big")
    return head + head.join([_U16.pack(packet_id) for packet_id in packet_ids])


def encode_suback(version: int, packet_id: int, codes: Sequence[int], text: str = "") -> bytes:
    """Return a SUBACK."""
    properties = b""
    if version == V5:
        properties = encode_packet_properties({Property.REASON_STRING: text} if text else NO_PACKET_PROPERTIES)
    return _packet(PacketType.SUBACK << 4, _U16.pack(packet_id), properties, bytes(codes))


def encode_unsuback(version: int, packet_id: int, codes: Sequence[int]) -> bytes:
    """Return an UNSUBACK."""
    if version < V5:
        return _packet(PacketType.UNSUBACK << 4, _U16.pack(packet_id))
    return _packet(PacketType.UNSUBACK << 4, _U16.pack(packet_id), b"\0", bytes(codes))


def encode_disconnect(code: int, text: str = "") -> bytes:
    """Return a DISCONNECT, which only MQTT 5.0 has. `text`: the reason string."""
    return _packet(
        PacketType.DISCONNECT << 4,
        bytes((code,)),
        encode_packet_properties({Property.REASON_STRING: text}) if text else b"",
    )


def publish_front(flags: int, topic: bytes, properties_bytes: int, payload_bytes: int) -> bytes:
    """Return a PUBLISH up to the packet identifier, which only QoS 1 and 2 have. `topic`: with its length."""
    size = len(topic) + properties_bytes + payload_bytes + (2 if flags & 6 else 0)
    if size < 0x80:
        return bytes((PUBLISH_BITS | flags, size)) + topic
    return bytes((PUBLISH_BITS | flags,)) + encode_varint(size) + topic


def publish_head(flags: int, topic: bytes, packet_id: int, properties: bytes, payload_bytes: int) -> bytes:
    """Return a PUBLISH up to its payload. `topic`: with its length; `properties`: encoded, empty before MQTT 5.0."""
    front = publish_front(flags, topic, len(properties), payload_bytes)
    return front + _U16.pack(packet_id) + properties if flags & 6 else front + properties
