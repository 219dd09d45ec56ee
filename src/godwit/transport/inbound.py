"""Packets from the peer into the parts of a connection: the receiving side's one loop.

Full data packets that come in order, the bulk of all traffic, take a short way that makes no object but the copy of
their bytes. Everything else is decoded frame by frame.
"""

from __future__ import annotations

import struct
from itertools import repeat, takewhile
from operator import attrgetter
from typing import Final

from crc32c import crc32c

from godwit.errors import DecodeError
from godwit.limits import BASE_DATAGRAM_BYTES
from godwit.transport import handshake
from godwit.transport.parts import Parts
from godwit.transport.sent import SentRun
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
_PLAIN_HEADER: Final = struct.Struct(">BQIBIII")
"""Of a packet and of the fragment that it begins with."""
_KIND_AT: Final = HEADER.size
_PLAIN_FRAGMENTS: Final = frozenset((wire.DATA, wire.DATA | wire.LAST, wire.DATA | wire.LAST | wire.END))
"""Data frames without length and position, which end with their packet."""
_ID: Final = struct.Struct(">Q")
_NUMBER: Final = struct.Struct(">I")
_number: Final = attrgetter("number")
_NOT_ON_A_CONNECTION: Final = (wire.Hello, wire.Cookie, wire.Connect, wire.Accept, wire.Refuse, wire.Reset)
"""These belong to the handshake: a repeat that arrives late is no news, and has no number of its own."""


class Delivery:
    """What a train brought for the application; the connection turns it into events."""

    __slots__ = ("close", "confirms", "records", "violation", "writable")

    def __init__(self) -> None:
        self.records: list[tuple[int, int, bytes, bool, bool]] = []
        """(channel, number, body, reliable, last)"""
        self.confirms: list[wire.Confirm] = []
        self.writable = False
        self.close: wire.Close | None = None
        self.violation: DecodeError | None = None
        """The peer broke the protocol in a way that ends the connection."""


class Inbound:
    """Feed: receive. What it finds for the application is in the Delivery that it is given."""

    __slots__ = ("_packet_head", "_parts", "_transmitter", "packets_lost")

    def __init__(self, parts: Parts, transmitter: Transmitter) -> None:
        self._parts = parts
        self._transmitter = transmitter
        self._packet_head = bytes((FIRST_BYTE,)) + _ID.pack(parts.connection_id)
        """How every packet for this connection begins."""
        self.packets_lost = 0

    def receive(self, data: bytes, at: int, segment_bytes: int, now: float, delivery: Delivery) -> int:
        """Takes packets from `at` on while they are for this connection. Gives where it stopped."""
        view = memoryview(data)
        end = len(data)
        own_id = self._packet_head[1:]
        while at < end:
            at += self._take_run(data, view, at, segment_bytes, now) * segment_bytes
            if at >= end:
                break
            if data[at + 1 : at + 9] != own_id:
                break
            packet = data[at : at + segment_bytes]
            at += segment_bytes
            try:
                self._lone_packet(packet, now, delivery)
            except DecodeError as error:
                # The traceback refers to this frame, which refers to the delivery.
                delivery.violation = error.with_traceback(None)
                break
        return min(at, end)

    def _take_run(self, data: bytes, view: memoryview, at: int, segment_bytes: int, now: float) -> int:
        """The short way. Gives how many packets from `at` on are the next full ones of the record that came last.

        What they must look like is known, so their headers are compared, not read. As in Transmitter, each step is one
        call into C for all of them.
        """
        assembly = self._parts.receiving.current
        body_bytes = segment_bytes - FULL_HEADER.size - CHECKSUM.size
        if body_bytes <= 0 or self._parts.in_order is not None:
            return 0
        next_bytes = assembly.next_bytes
        most = min((len(data) - at) // segment_bytes, (assembly.allowed_bytes - next_bytes) // body_bytes)
        if most <= 0:
            return 0
        number = self._parts.acknowledger.largest + 1
        headers = map(
            FULL_HEADER.pack,
            repeat(self._packet_head),
            [place & _MASK for place in range(number, number + most)],
            repeat(assembly.frame_head),
            range(next_bytes, next_bytes + most * body_bytes, body_bytes),
        )
        places = range(at, at + most * segment_bytes, segment_bytes)
        same = sum(takewhile(bool, map(data.startswith, headers, places)))
        checksums = map(crc32c, [view[place : place + segment_bytes] for place in places[:same]])
        intact = sum(takewhile(bool, map(INTACT.__eq__, checksums)))
        if intact:
            first, last = FULL_HEADER.size, segment_bytes - CHECKSUM.size
            assembly.run.append(b"".join([view[place + first : place + last] for place in places[:intact]]))
            assembly.next_bytes = next_bytes + intact * body_bytes
            assembly.compact()
            self._parts.acknowledger.on_run(intact, now)
        return intact

    def _lone_packet(self, packet: bytes, now: float, delivery: Delivery) -> None:
        """A packet that is not the next full one. Raises DecodeError for what breaks the rules of the protocol."""
        if len(packet) < SMALLEST_PACKET_BYTES:
            self._parts.dropped["truncated"] += 1
        elif crc32c(packet) != INTACT:
            self._parts.dropped["checksum"] += 1
        elif packet[_KIND_AT] not in _PLAIN_FRAGMENTS or not self._plain_fragment(packet, now, delivery):
            self._packet(packet, now, delivery)

    def _plain_fragment(self, packet: bytes, now: float, delivery: Delivery) -> bool:
        """The first or last fragment of a long record, in a packet of its own that comes in order: no need to decode
        more than its header. False if it is something else."""
        acknowledger = self._parts.acknowledger
        number = acknowledger.largest + 1
        if len(packet) <= _PLAIN_HEADER.size + CHECKSUM.size:
            return False
        first, _, truncated, kind, channel, record, offset = _PLAIN_HEADER.unpack_from(packet)
        if first != FIRST_BYTE or truncated != number & _MASK or self._parts.in_order is not None:
            return False
        acknowledger.on_run(1, now)
        body = packet[_PLAIN_HEADER.size : -CHECKSUM.size]
        self._fragment(channel, record, offset, body, kind, delivery)
        return True

    def _packet(self, packet: bytes, now: float, delivery: Delivery) -> None:
        """An intact packet, frame by frame."""
        if packet[0] != FIRST_BYTE:
            self._parts.dropped["version"] += 1
            return
        try:
            found = wire.decode_frames(packet[HEADER.size : -CHECKSUM.size])
        except DecodeError as error:
            self._parts.dropped[error.reason] += 1
            return
        if any(isinstance(frame, _NOT_ON_A_CONNECTION) for frame in found):
            self._parts.dropped["late_handshake"] += 1
            return
        acknowledger = self._parts.acknowledger
        (truncated,) = _NUMBER.unpack_from(packet, 9)
        expected = acknowledger.largest + 1
        number = expand_number(truncated, expected)
        if not acknowledger.on_packet(number, now):
            self._parts.dropped["repeated"] += 1
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
                self._parts.receiving.on_blocked(frame.channel)
            case wire.PathProbe() if self._parts.announcements.takes_response:
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
        self._fragment(frame.channel, frame.record, frame.offset, frame.body, flags, delivery)

    def _fragment(self, channel_id: int, record: int, offset: int, body: bytes, flags: int, delivery: Delivery) -> None:
        complete = self._parts.receiving.on_fragment(
            channel_id,
            record,
            offset,
            body,
            is_last=bool(flags & (wire.LAST | wire.WHOLE)),
            ends_channel=bool(flags & wire.END),
        )
        for channel, number, body, last in complete:
            delivery.records.append((channel, number, body, True, last))

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def _ack(self, frame: wire.Ack, now: float, delivery: Delivery) -> None:
        """Raises DecodeError if a number is acknowledged that was skipped to notice just that."""
        next_number = self._transmitter.next_number
        recovery = self._parts.recovery
        ranges = []
        below = next_number
        for first, last in frame.ranges:
            full_last = expand_number(last, next_number)
            full_first = full_last - ((last - first) & _MASK)
            if full_last >= below or full_first > full_last or full_first < 0:
                self._parts.dropped["forged_ack"] += 1  # of packets that were never sent, or not in descending order
                return
            if recovery.sent.skipped and recovery.sent.count_skipped(full_first, full_last):
                raise DecodeError("skipped_ack", "a packet is acknowledged whose number was never used")
            ranges.append((full_first, full_last))
            below = full_first
        if frame.next_position is not None and not self._parts.sending.policy.is_possible(frame.next_position):
            self._parts.dropped["forged_ack"] += 1
            return
        was_largest = recovery.largest_acked
        acked, late = recovery.on_ack(ranges)
        if acked:
            self._acked(acked, frame, now, newly_largest=recovery.largest_acked > was_largest)
        arrived = acked + late
        completed = self._parts.sending.policy.on_ack(arrived, frame.next_position)
        for packet in arrived:
            if packet.packet_bytes > BASE_DATAGRAM_BYTES:
                self._parts.mtu.on_large_acked(packet.last)
            if packet.said:
                self._parts.announcements.on_acked(packet.said)
            if packet.is_mtu_probe:
                self._parts.mtu.on_probe_acked(packet.size_bytes)
                self._parts.congestion.on_datagram_size(self._parts.mtu.datagram_bytes)
        if completed and self._parts.sending.on_completed(completed):
            delivery.writable = True
        self.detect_losses(now)

    def _acked(self, acked: list[SentRun], frame: wire.Ack, now: float, *, newly_largest: bool) -> None:
        """The round trip and the delivery rate that an acknowledgement shows."""
        newest = max(acked, key=_number)
        trip_s = None
        recovery = self._parts.recovery
        if newly_largest and newest.last == recovery.largest_acked and newest.flight.sent_at >= recovery.began:
            trip_s = now - newest.flight.sent_at
            recovery.round_trip.sample(trip_s, frame.delay_us / 1e6, self._parts.congestion.shortest_trip_s)
        acked_bytes = sum([run.size_bytes for run in acked])
        self._parts.congestion.on_delivered(now, acked_bytes, newest.flight, trip_s)

    def detect_losses(self, now: float) -> None:
        """Gives up packets that are lost by now, and has their content sent again."""
        lost = self._parts.recovery.detect_losses(now)
        if not lost:
            return
        for packet in lost:
            if packet.is_mtu_probe:
                self._parts.congestion.in_flight_bytes -= packet.size_bytes  # no sign of congestion (RFC 8899, 3)
                self._parts.mtu.on_probe_lost(packet.size_bytes)
                continue
            self._parts.congestion.on_lost(packet.size_bytes, packet.flight.sent_at)
            self.packets_lost += 1
            if packet.packet_bytes > BASE_DATAGRAM_BYTES and self._parts.mtu.on_large_lost(packet.number, now):
                self._parts.congestion.on_datagram_size(self._parts.mtu.datagram_bytes)
            if packet.fragments:
                self._parts.sending.policy.on_lost(packet.number, packet.fragments)
            if packet.said:
                self._parts.announcements.repeat(packet.said)
