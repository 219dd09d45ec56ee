"""A connection whose packets are sealed: opens each packet before anything else looks at it.

Sending needs no subclass: Transmitter and FastSender seal where they would add a checksum. Plain connections are not
affected by this module.
"""

from __future__ import annotations

from godwit.transport.connection import Connection
from godwit.transport.events import Address, Connected, ConnectionState, Train
from godwit.transport.protection import PacketProtection, is_sealed
from godwit.transport.receiver import ReceivedFrames
from godwit.wire.control_base import Code
from godwit.wire.packet import CHECKSUM, HEADER, encode_packet

__all__ = ["SealedConnection"]


class SealedConnection(Connection):
    """A sealed connection. Packets that do not open change nothing except the counts of dropped packets."""

    __slots__ = ()

    def handle_packets(self, data: bytes, at: int, segment_bytes: int, address: Address, now: float) -> int:
        """Open and handle the packets of a train from offset `at` on that are for this connection. Return the offset
        after them."""
        stop = min(at + segment_bytes, len(data))
        protection = self._components.protection
        if protection is None:  # it ended before it had keys
            self._components.dropped["closed_connection"] += 1
        elif not is_sealed(data[at:stop]):
            self._components.dropped["unsealed"] += 1
        elif address != self.peer_address or self.state is not ConnectionState.OPEN:
            self._handle_lone_elsewhere(protection, data[at:stop], address, now)
        else:
            stop = self._handle_train(protection, data, at, segment_bytes, now)
        return stop

    def _handle_train(self, protection: PacketProtection, data: bytes, at: int, segment_bytes: int, now: float) -> int:
        """Open and handle the packets from offset `at` on that have the id of the first. Return the offset after them.

        It ends before a packet that is not sealed.
        """
        own_id = data[at + 1 : at + 9]
        end = len(data)
        received = ReceivedFrames()
        has_opened = False
        while at < end and received.violation is None and data[at + 1 : at + 9] == own_id:
            expected = self._components.acknowledger.largest + 1
            contents = protection.open_run(data, at, segment_bytes, expected)
            if contents:
                at += len(contents) * segment_bytes
                has_opened = True
                self._receiver.handle_opened(contents, expected, now, received)
                continue
            packet = data[at : at + segment_bytes]
            if not is_sealed(packet):
                break
            at += segment_bytes
            opened = protection.open(packet, expected, now)
            if opened is not None:
                has_opened = True
                self._receiver.handle_packets(opened, 0, len(opened), now, received)
        if has_opened:
            self._announce()
            self._handle_received(received, now)
        return min(at, end)

    def handle_lone_packet(self, packet: bytes, address: Address, now: float) -> None:
        """Open and handle a train of one packet."""
        protection = self._components.protection
        if (
            protection is None
            or address != self.peer_address
            or self.state is not ConnectionState.OPEN
            or not is_sealed(packet)
        ):
            self.handle_packets(packet, 0, len(packet), address, now)
            return
        opened = protection.open(packet, self._components.acknowledger.largest + 1, now)
        if opened is not None:
            if self._unannounced is not None:
                self._announce()
            Connection.handle_lone_packet(self, opened, address, now)

    def _handle_lone_elsewhere(self, protection: PacketProtection, packet: bytes, address: Address, now: float) -> None:
        """Handle a packet from another address, or on a connection that is closing, if it opens."""
        opened = protection.open(packet, self._components.acknowledger.largest + 1, now)
        if opened is not None:
            self._announce()
            _, connection_id, number = HEADER.unpack_from(opened)
            # The modules behind this check the checksum of such packets, which are rare.
            plain = encode_packet(connection_id, number, opened[HEADER.size : -CHECKSUM.size])
            self._receive_elsewhere(plain, address, now)

    def _announce(self) -> None:
        """Tell the application of a server about the connection, when the first packet has opened."""
        if self._unannounced is not None and self.state is ConnectionState.OPEN:
            self._events.append(Connected(self, self._unannounced))
            self._unannounced = None

    def next_train(self, now: float) -> Train | None:
        """Return the next train to send, or None."""
        protection = self._components.protection
        if protection is not None and self.state is ConnectionState.OPEN:
            problem = protection.check(now)
            if problem:
                self.fail(now, Code.SEALING, problem, "local")
        return Connection.next_train(self, now)
