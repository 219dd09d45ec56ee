"""Packets from the peer into the parts of a connection: the receiving side's one loop.

Full data packets that come in order, the bulk of all traffic, take a short way that makes no object but the copy of
their bytes. Everything else is decoded frame by frame.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from godwit.errors import DecodeError
from godwit.transport import handshake
from godwit.transport.parts import Parts
from godwit.transport.recovery import SentPacket
from godwit.transport.transmit import FULL_HEADER, Transmitter
from godwit.wire import frames as wire
from godwit.wire.packet import (
    CHECKSUM,
    FIRST_BYTE,
    HEADER,
    INTACT,
    SMALLEST_PACKET_BYTES,
    expand_number,
)

_MASK: Final = 0xFFFFFFFF
_SMALLEST_FULL_BYTES: Final = FULL_HEADER.size + CHECKSUM.size
_ID_AND_NUMBER: Final = struct.Struct(">QI")
_NOT_ON_A_CONNECTION: Final = (wire.Hello, wire.Cookie, wire.Connect, wire.Accept, wire.Refuse, wire.Reset)
"""These belong to the handshake: a repeat that arrives late is no news, and has no number of its own."""


class Delivery:
    """What a train brought for the application; the connection turns it into events."""

    __slots__ = ("close", "confirms", "records", "writable")

    def __init__(self) -> None:
        self.records: list[tuple[int, int, bytes, bool, bool]] = []
        """(channel, number, body, reliable, last)"""
        self.confirms: list[wire.Confirm] = []
        self.writable = False
        self.close: wire.Close | None = None


class Inbound:
    """Feed: receive. What it finds for the application is in the Delivery that it is given."""

    def __init__(self, parts: Parts, transmitter: Transmitter) -> None:
        self._parts = parts
        self._transmitter = transmitter
        self.packets_lost = 0

    def receive(self, data: bytes, at: int, segment_bytes: int, now: float, delivery: Delivery) -> int:
        """Takes packets from `at` on while they are for this connection. Gives where it stopped.

        Raises DecodeError when the peer broke the protocol in a way that ends the connection.
        """
        view = memoryview(data)
        end = len(data)
        own_id = self._parts.connection_id
        acknowledger = self._parts.acknowledger
        receiving = self._parts.receiving
        unpack = FULL_HEADER.unpack_from
        assembly = receiving.current
        expected = (acknowledger.largest + 1) & _MASK
        run = 0  # packets that took the short way and are not yet in the account
        while at < end:
            stop = min(at + segment_bytes, end)
            if stop - at >= _SMALLEST_FULL_BYTES:
                first, connection_id, number, kind, channel, record, offset = unpack(data, at)
                if connection_id != own_id:
                    break
                if (
                    offset == assembly.next_bytes
                    and number == expected
                    and kind == wire.DATA
                    and record == assembly.record
                    and channel == assembly.channel_id
                    and first == FIRST_BYTE
                ):
                    body = data[at + FULL_HEADER.size : stop - CHECKSUM.size]
                    next_bytes = offset + len(body)
                    if body and next_bytes <= assembly.allowed_bytes and crc32c(view[at:stop]) == INTACT:
                        assembly.run.append(body)
                        assembly.next_bytes = next_bytes
                        expected = (expected + 1) & _MASK
                        run += 1
                        at = stop
                        continue
            elif data[at + 1 : at + 9] != own_id.to_bytes(8, "big"):
                break
            if run:
                acknowledger.on_run(run, now)
                run = 0
            self._packet(data[at:stop], now, delivery)
            assembly = receiving.current
            expected = (acknowledger.largest + 1) & _MASK
            at = stop
        if run:
            acknowledger.on_run(run, now)
        return at

    def _packet(self, packet: bytes, now: float, delivery: Delivery) -> None:
        if len(packet) < SMALLEST_PACKET_BYTES:
            self._parts.dropped["truncated"] += 1
            return
        if crc32c(packet) != INTACT:
            self._parts.dropped["checksum"] += 1
            return
        if packet[0] != FIRST_BYTE:
            self._parts.dropped["version"] += 1
            return
        try:
            found = wire.decode_frames(packet[HEADER.size : -CHECKSUM.size])
        except DecodeError as error:
            self._parts.dropped[error.reason] += 1
            return
        if isinstance(found[0], _NOT_ON_A_CONNECTION):
            self._parts.dropped["late_handshake"] += 1
            return
        acknowledger = self._parts.acknowledger
        _, truncated = _ID_AND_NUMBER.unpack_from(packet, 1)
        expected = acknowledger.largest + 1
        number = expand_number(truncated, expected)
        if not acknowledger.on_packet(number, now):
            self._parts.dropped["repeated"] += 1
            if any(isinstance(frame, wire.Data) for frame in found):
                # The sender did not hear the acknowledgement: it is said again at once.
                acknowledger.on_eliciting(1, now, in_order=False)
            return
        eliciting = False
        for frame in found:
            eliciting |= self._frame(frame, now, delivery)
        if eliciting:
            acknowledger.on_eliciting(1, now, in_order=number == expected)

    def _frame(self, frame: wire.Frame, now: float, delivery: Delivery) -> bool:
        """Handles one frame. True when it asks for an acknowledgement."""
        match frame:
            case wire.Data():
                self._data(frame, delivery)
            case wire.Ack():
                self._ack(frame, now, delivery)
                return False
            case wire.Confirm():
                delivery.confirms.append(frame)
            case wire.Credit():
                self._parts.sending.on_credit(frame.channel, frame.limit)
            case wire.Blocked():
                self._parts.receiving.repeat_grant(frame.channel)
            case wire.PathProbe():
                mac = handshake.path_mac(self._parts.key, self._parts.role, frame.challenge)
                self._parts.announcements.respond(wire.encode_frame(wire.PathResponse(frame.challenge, mac)))
            case wire.Close():
                mac = handshake.close_mac(self._parts.key, self._parts.peer_role, frame.code, frame.reason)
                if handshake.same(frame.mac, mac):
                    delivery.close = frame
                else:
                    self._parts.dropped["forged_close"] += 1
                return False
            case wire.PathResponse():
                self._parts.dropped["unasked_path_response"] += 1
        return True

    def _data(self, frame: wire.Data, delivery: Delivery) -> None:
        flags = frame.flags
        if flags & wire.UNRELIABLE:
            if self._parts.receiving.is_ended(frame.channel):
                self._parts.dropped["ended_channel"] += 1
            else:
                delivery.records.append((frame.channel, frame.record, frame.body, False, False))
            return
        if self._parts.in_order is not None:
            if frame.position is None:
                raise DecodeError("fragment", "a fragment without a position")
            if not self._parts.in_order.takes(expand_number(frame.position, self._parts.in_order.expected)):
                self._parts.dropped["out_of_order"] += 1
                return
        complete = self._parts.receiving.on_fragment(
            frame.channel,
            frame.record,
            frame.offset,
            frame.body,
            is_last=bool(flags & (wire.LAST | wire.WHOLE)),
            ends_channel=bool(flags & wire.END),
        )
        for channel, number, body, last in complete:
            delivery.records.append((channel, number, body, True, last))

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def _ack(self, frame: wire.Ack, now: float, delivery: Delivery) -> None:
        next_number = self._transmitter.next_number
        ranges = []
        below = next_number
        for first, last in frame.ranges:
            full_last = expand_number(last, next_number)
            full_first = full_last - ((last - first) & _MASK)
            if full_last >= below or full_first > full_last or full_first < 0:
                self._parts.dropped["forged_ack"] += 1  # of packets that were never sent, or not in descending order
                return
            ranges.append((full_first, full_last))
            below = full_first
        recovery = self._parts.recovery
        was_largest = recovery.largest_acked
        acked, late = recovery.on_ack(ranges)
        if acked:
            self._acked(acked, frame, now, newly_largest=recovery.largest_acked > was_largest)
        completed_bytes = 0
        policy = self._parts.sending.policy
        for packet in (*acked, *late):
            if packet.fragments:
                completed_bytes += policy.on_acked(packet.fragments)
            if packet.said:
                self._parts.announcements.on_acked(packet.said)
            if packet.is_mtu_probe:
                self._parts.mtu.on_probe_acked(packet.size_bytes)
                self._parts.congestion.on_datagram_size(self._parts.mtu.datagram_bytes)
        if frame.next_position is not None:
            position = expand_number(frame.next_position, policy.expected_position())
            completed_bytes += policy.on_next_position(position)
        if completed_bytes and self._parts.sending.on_completed(completed_bytes):
            delivery.writable = True
        self.detect_losses(now)

    def _acked(self, acked: list[SentPacket], frame: wire.Ack, now: float, *, newly_largest: bool) -> None:
        """The round trip and the delivery rate that an acknowledgement shows."""
        newest = acked[0]
        trip_s = None
        if newly_largest and newest.number == self._parts.recovery.largest_acked:
            trip_s = now - newest.flight.sent_at
            self._parts.recovery.round_trip.sample(trip_s, frame.delay_us / 1e6, self._parts.congestion.shortest_trip_s)
        acked_bytes = sum([packet.size_bytes for packet in acked])
        self._parts.congestion.on_delivered(now, acked_bytes, newest.flight, trip_s)

    def detect_losses(self, now: float) -> None:
        """Gives up packets that are lost by now, and has their content sent again."""
        lost = self._parts.recovery.detect_losses(now)
        if not lost:
            return
        self._parts.congestion.on_lost(sum(packet.size_bytes for packet in lost))
        for packet in lost:
            if packet.is_mtu_probe:
                self._parts.mtu.on_probe_lost(packet.size_bytes)
                continue
            self.packets_lost += 1
            if packet.fragments:
                self._parts.sending.policy.on_lost(packet.number, packet.fragments)
            if packet.said:
                self._parts.announcements.repeat(packet.said)
