"""One end of a connection whose peer has fallen silent: what comes next is written by hand."""

from __future__ import annotations

from typing import Any

from tests.transport.world import CLIENT, World, packet_for

from godwit.transport.config import EndpointConfig
from godwit.transport.events import Event
from godwit.wire import packet as wire

BODY = b"21.5"


class Server:
    """A connection as its server sees it, after record 0 on channel 1 of the client."""

    def __init__(self, **config: Any) -> None:
        self.world = World(server=EndpointConfig(accepts=True, **config))
        client, self.connection = self.world.connect()
        self.world.run(0.5)
        client.send(client.open_channel(), b"open")
        self.world.run(0.5)
        self.world.fate = lambda flying: []
        self.number = client.statistics.packets_sent
        """Of the client's next packet."""
        self.largest = self.connection.statistics.packets_sent - 1
        """The number of the server's newest packet."""
        self.record_number = 1
        """Of the client's next record on channel 1."""
        self.world.server.consumes = False

    def packet(self, *frames: wire.Frame) -> bytes:
        """The client's next packet."""
        self.number += 1
        return packet_for(self.connection, self.number - 1, *frames)

    def record(self, record: int, flags: int = 0, channel: int = 1) -> wire.DataFrame:
        return wire.DataFrame(wire.WHOLE | flags, channel, record, 0, None, BODY)

    def ack(self, first: int = 0, last: int | None = None) -> wire.AckFrame:
        """Of all that the server sent, unless said otherwise."""
        return wire.AckFrame(0, ((first & 0xFFFFFFFF, (self.largest if last is None else last) & 0xFFFFFFFF),))

    def comes(self, *frames: wire.Frame) -> None:
        """The client's next packet arrives."""
        self.world.inject(self.world.server, self.packet(*frames), source=CLIENT)

    def accepts(self, packet: bytes) -> bool:
        """Whether the short way in takes a packet."""
        short_way = self.connection._fast_receiver
        assert short_way is not None
        events: list[Event] = []
        return bool(short_way.handle_packet(packet, self.connection, self.world.now, events))

    def control_keys(self) -> list[list[wire.Frame]]:
        """What the server sends now."""
        before = len(self.world.log)
        self.world.drain()
        control_keys = [flying.frames() for flying in self.world.log[before:]]
        self.largest += len(control_keys)
        return control_keys
