"""A real server with MQTT clients that write and read packets by hand: no client code, and no network in between."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.broker.durable import DurableWorld
from tests.mqtt import client_packets as client

from godwit.broker.settings import Settings
from godwit.mqtt.connection import MqttConnection, MqttSettings
from godwit.mqtt.packets import PacketReader, PacketType, _Cursor
from godwit.mqtt.protocol import MqttProtocol

KEY = b"a key of the broker"


class Message(msgspec.Struct, frozen=True):
    """A PUBLISH as a client reads it."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: dict[int, Any] = {}


class Device:
    """One MQTT client. Bytes to it are split into packets: `acks` by type, and `messages`."""

    def __init__(self, world: MqttWorld, version: int, certified_user: str | None = None) -> None:
        self.world = world
        self.version = version
        self.raw = b""
        self.packets: list[bytes] = []
        """All but PUBLISH."""
        self.messages: list[Message] = []
        self.is_closed = False
        self.is_reading = True
        self.unsent = 0
        self.answers = True
        """Whether it acknowledges messages by itself."""
        self.connection: MqttConnection = world.mqtt.connect(self, "192.0.2.9:5000", "192.0.2.9", certified_user)

    # -- MqttTransport ------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.raw += data
        while len(self.raw) >= 2:
            cursor = _Cursor(self.raw, 1, len(self.raw))
            size = cursor.varint()
            if cursor.at + size > len(self.raw):
                break
            packet, self.raw = self.raw[: cursor.at + size], self.raw[cursor.at + size :]
            if packet[0] >> 4 == PacketType.PUBLISH:
                self._read_publish(packet)
            else:
                self.packets.append(packet)
                if packet[0] >> 4 == PacketType.PUBREL and self.answers:
                    self.world.later_mqtt(self, client.ack(7, int.from_bytes(packet[2:4], "big"), self.version))

    def _read_publish(self, packet: bytes) -> None:
        cursor = _Cursor(packet, 1, len(packet))
        cursor.varint()
        flags = packet[0] & 15
        topic = cursor.text()
        qos = flags >> 1 & 3
        packet_id = cursor.short() if qos else 0
        properties: dict[int, Any] = {}
        if self.version == 5:
            properties = read_properties(cursor)
        payload = packet[cursor.at :]
        self.messages.append(Message(topic, payload, qos, bool(flags & 1), bool(flags & 8), packet_id, properties))
        if qos and self.answers:
            self.world.later_mqtt(self, client.ack(4 if qos == 1 else 5, packet_id, self.version))

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.connection.handle_lost()

    def set_reading(self, is_reading: bool) -> None:
        self.is_reading = is_reading

    def unsent_bytes(self) -> int:
        return self.unsent

    # -- the client ---------------------------------------------------------------------------------------------------

    def send(self, *packets: bytes) -> list[bytes]:
        """Send packets; return the packets that come then, except PUBLISH."""
        before = len(self.packets)
        self.connection.receive(b"".join(packets))
        self.world.run()
        return self.packets[before:]

    def subscribe(self, *filters: tuple[str, int], values: dict[int, Any] | None = None) -> list[int]:
        """Return the codes of the SUBACK."""
        (suback,) = self.send(client.subscribe(1, *filters, version=self.version, values=values))
        return list(suback[-len(filters) :])

    def publish(self, topic: str, payload: bytes = b"", **options: Any) -> list[bytes]:
        return self.send(client.publish(topic, payload, version=self.version, **options))

    def got(self) -> list[tuple[str, bytes]]:
        return [(message.topic, message.payload) for message in self.messages]

    def vanish(self) -> None:
        """The connection is lost without a DISCONNECT."""
        self.is_closed = True
        self.connection.handle_lost("reset")
        self.world.run()


def read_properties(cursor: _Cursor) -> dict[int, Any]:
    """Return the properties of a PUBLISH of the server, which may have subscription identifiers."""
    from godwit.mqtt.packets import _READERS, KINDS

    stop = cursor.varint() + cursor.at
    found: dict[int, Any] = {}
    while cursor.at < stop:
        number = cursor.varint()
        value = _READERS[KINDS[number]](cursor)
        if number in (0x0B, 0x26):
            found.setdefault(number, []).append(value)
        else:
            found[number] = value
    return found


class MqttWorld(DurableWorld):
    """A durable broker for MQTT and native clients."""

    def __init__(self, settings: Settings | None = None, **mqtt: Any) -> None:
        self.mqtt_settings = MqttSettings(**mqtt)
        self._later_mqtt: list[tuple[Device, bytes]] = []
        super().__init__(settings)

    def start(self, log: Any) -> None:
        super().start(log)
        self.mqtt = MqttProtocol(self.server.broker, self.mqtt_settings, key=KEY, entropy=self._bytes)
        self.server.add_protocol(self.mqtt)

    def later_mqtt(self, device: Device, data: bytes) -> None:
        self._later_mqtt.append((device, data))

    def run(self) -> None:
        super().run()
        while self._later_mqtt:
            later, self._later_mqtt = self._later_mqtt, []
            for device, data in later:
                if not device.is_closed:
                    device.connection.receive(data)
            super().run()

    def device(self, client_id: str = "c", version: int = 4, **options: Any) -> Device:
        """A client that is connected. `device.packets[0]` is the CONNACK."""
        device = Device(self, version)
        device.send(client.connect(client_id, version, **options))
        return device

    def restart(self, *, after_s: float = 0.0) -> None:
        self._later_mqtt.clear()
        super().restart(after_s=after_s)


def read_packets(data: bytes, version: int) -> list[Any]:
    reader = PacketReader()
    reader.version = version
    return list(reader.feed(data))
