"""Packets as an MQTT client writes them, for tests. The broker's own code only reads these."""

from __future__ import annotations

from struct import pack
from typing import Any

from godwit.mqtt.encoding import encode_packet_properties, encode_text, encode_varint


def packet(first: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes((first,)) + encode_varint(len(body)) + body


def binary(data: bytes) -> bytes:
    return pack(">H", len(data)) + data


def properties(version: int, values: dict[int, Any] | None) -> bytes:
    return encode_packet_properties(values or {}) if version == 5 else b""


def connect(
    client_id: str = "c",
    version: int = 4,
    *,
    clean: bool = True,
    keep_alive_s: int = 60,
    user: str | None = None,
    password: bytes | None = None,
    will: tuple[str, bytes, int, bool] | None = None,
    will_values: dict[int, Any] | None = None,
    values: dict[int, Any] | None = None,
) -> bytes:
    bits = 2 * clean | 0x80 * (user is not None) | 0x40 * (password is not None)
    parts = [encode_text("MQIsdp" if version == 3 else "MQTT"), bytes((version,)), b"", pack(">H", keep_alive_s)]
    parts += [properties(version, values), encode_text(client_id)]
    if will is not None:
        topic, payload, qos, retain = will
        bits |= 4 | qos << 3 | 0x20 * retain
        parts += [properties(version, will_values), encode_text(topic), binary(payload)]
    if user is not None:
        parts.append(encode_text(user))
    if password is not None:
        parts.append(binary(password))
    parts[2] = bytes((bits,))
    return packet(0x10, *parts)


def publish(
    topic: str,
    payload: bytes = b"",
    *,
    qos: int = 0,
    packet_id: int = 0,
    retain: bool = False,
    dup: bool = False,
    version: int = 4,
    values: dict[int, Any] | None = None,
) -> bytes:
    identifier = pack(">H", packet_id) if qos else b""
    first = 0x30 | 8 * dup | qos << 1 | retain
    return packet(first, encode_text(topic), identifier, properties(version, values), payload)


def subscribe(
    packet_id: int, *filters: tuple[str, int], version: int = 4, values: dict[int, Any] | None = None
) -> bytes:
    body = b"".join(encode_text(text) + bytes((options,)) for text, options in filters)
    return packet(0x82, pack(">H", packet_id), properties(version, values), body)


def unsubscribe(packet_id: int, *filters: str, version: int = 4) -> bytes:
    return packet(0xA2, pack(">H", packet_id), properties(version, None), *map(encode_text, filters))


def ack(kind: int, packet_id: int, version: int = 4, code: int = 0) -> bytes:
    body = pack(">H", packet_id) + (bytes((code,)) if code else b"")
    return packet(kind << 4 | 2 * (kind == 6), body)


PING = b"\xc0\x00"
DISCONNECT = b"\xe0\x00"
