"""Hands the packets from the peer to the components of a connection.

Full data packets in order, which are most of the traffic, take a short way that creates no object except the copy of
their bytes. All others are decoded frame by frame.
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
from godwit.transport.connection_state import Components
from godwit.transport.recovery import SentRun
from godwit.transport.transmitter import FRAGMENT_HEAD, FULL_OVERHEAD_BYTES, Transmitter
from godwit.wire import packet as wire
from godwit.wire.bulk import decode_run
from godwit.wire.packet import (
    CHECKSUM,
    FIRST_BYTE,
    FRAGMENT_HEADER,
    HEADER,
    INTACT,
    SMALLEST_PACKET_BYTES,
    expand_number,
)

_MASK: Final = 0xFFFFFFFF
_PLAIN_HEADER: Final = struct.Struct(">BQIBIII")
"""The headers of a packet and of its first fragment."""
_KIND_AT: Final = HEADER.size
_PLAIN_FRAGMENTS: Final = frozenset((wire.DATA, wire.DATA | wire.LAST, wire.DATA | wire.LAST | wire.END))
"""Data frames without length and position, which end with their packet."""
_ID: Final = struct.Struct(">Q")
_NUMBER: Final = struct.Struct(">I")
_number: Final = attrgetter("number")
_NO_CHECKSUM: Final = bytes(CHECKSUM.size)
_NOT_ON_A_CONNECTION: Final = (
    wire.HelloFrame,
    wire.CookieFrame,
    wire.ConnectFrame,
    wire.AcceptFrame,
    wire.RefuseFrame,
    wire.ResetFrame,
    wire.CryptoFrame,
)
"""Frames of the handshake: a late repeat has no meaning on an open connection, and no packet number."""


class ReceivedFrames:
    """The content of a train for the application, which the connection turns into events."""

    __slots__ = ("close", "confirms", "records", "violation", "writable")

    def __init__(self) -> None:
        self.records: list[tuple[int, int, bytes, bool, bool]] = []
        """(channel, number, body, reliable, last)"""
        self.confirms: list[wire.ConfirmFrame] = []
        self.writable = False
        self.close: wire.CloseFrame | None = None
        self.violation: DecodeError | None = None
        """The protocol violation that ends the connection."""


class PacketReceiver:
    """Handles packets of one connection; their content for the application is added to a ReceivedFrames."""

    __slots__ = ("_components", "_is_sealed", "_packet_head", "_transmitter", "packets_lost")

    def __init__(self, components: Components, transmitter: Transmitter) -> None:
        self._components = components
        self._transmitter = transmitter
        self._is_sealed = components.protection is not None
        """Whether packets arrive opened, and so without a checksum."""
        self._packet_head = bytes((FIRST_BYTE,)) + _ID.pack(components.connection_id)
        """The first bytes of every packet for this connection."""
        self.packets_lost = 0

    def handle_packets(self, data: bytes, at: int, segment_bytes: int, now: float, received: ReceivedFrames) -> int:
        """Handle the packets from offset `at` on that are for this connection. Return the offset after them."""
        end = len(data)
        own_id = self._packet_head[1:]
        while at < end:
            at += self._append_run(data, at, segment_bytes, now) * segment_bytes
            if at >= end:
                break
            if data[at + 1 : at + 9] != own_id:
                break
            packet = data[at : at + segment_bytes]
            at += segment_bytes
            try:
                self._handle_packet(packet, now, received)
            except DecodeError as error:
                # The traceback refers to this frame, which refers to `received`.
                received.violation = error.with_traceback(None)
                break
        return min(at, end)

    def handle_opened(self, contents: list[bytes], number: int, now: float, received: ReceivedFrames) -> None:
        """Handle the frames of sealed packets of equal length, with consecutive numbers from `number` on."""
        at = 0
        count = len(contents)
        while True:
            if number + at == self._components.acknowledger.largest + 1:  # not after a packet that was dropped
                at += self._append_opened(contents[at:], now)
            if at >= count:
                break
            packet = b"".join((self._packet_head, _NUMBER.pack((number + at) & _MASK), contents[at], _NO_CHECKSUM))
            at += 1
            try:
                self._handle_packet(packet, now, received)
            except DecodeError as error:
                received.violation = error.with_traceback(None)
                break

    def _append_opened(self, contents: list[bytes], now: float) -> int:
        """Append the frames that are the next full packets of the current record, as _append_run does with packets."""
        if not contents or self._components.in_order is not None:
            return 0
        assembly = self._components.receive_channels.current
        body_bytes = len(contents[0]) - FRAGMENT_HEADER.size
        next_bytes = assembly.next_bytes
        if body_bytes <= 0 or assembly.allowed_bytes - next_bytes < body_bytes:
            return 0
        most = min(len(contents), (assembly.allowed_bytes - next_bytes) // body_bytes)
        starts = range(next_bytes, next_bytes + most * body_bytes, body_bytes)
        heads = map(FRAGMENT_HEAD.pack, repeat(assembly.frame_head), starts)
        same = sum(takewhile(bool, map(bytes.startswith, contents, heads)))
        if same:
            assembly.run.append(b"".join([frames[FRAGMENT_HEADER.size :] for frames in contents[:same]]))
            assembly.next_bytes = next_bytes + same * body_bytes
            assembly.compact()
            self._components.acknowledger.handle_run(same, now)
        return same

    def _append_run(self, data: bytes, at: int, segment_bytes: int, now: float) -> int:
        """Append the packets from `at` on that are the next full packets of the current record. Return their number.

        The expected headers are known, so they are compared, not decoded.
        """
        assembly = self._components.receive_channels.current
        body_bytes = segment_bytes - FULL_OVERHEAD_BYTES
        if body_bytes <= 0 or self._components.in_order is not None:
            return 0
        next_bytes = assembly.next_bytes
        most = min((len(data) - at) // segment_bytes, (assembly.allowed_bytes - next_bytes) // body_bytes)
        if most <= 0:
            return 0
        number = self._components.acknowledger.largest + 1
        bodies = decode_run(
            data,
            at,
            segment_bytes,
            most,
            self._packet_head,
            number,
            assembly.frame_head,
            next_bytes,
            not self._is_sealed,
        )
        if not bodies:
            return 0
        assembly.run.append(bodies)
        assembly.next_bytes = next_bytes + len(bodies)
        assembly.compact()
        count = len(bodies) // body_bytes
        self._components.acknowledger.handle_run(count, now)
        return count

    def _handle_packet(self, packet: bytes, now: float, received: ReceivedFrames) -> None:
        """Handle a packet that is not the next full one. Raises DecodeError for a protocol violation."""
        if len(packet) < SMALLEST_PACKET_BYTES:
            self._components.dropped["truncated"] += 1
        elif not self._is_sealed and crc32c(packet) != INTACT:
            self._components.dropped["checksum"] += 1
        elif packet[_KIND_AT] not in _PLAIN_FRAGMENTS or not self._handle_plain_fragment(packet, now, received):
            self._handle_frames(packet, now, received)

    def _handle_plain_fragment(self, packet: bytes, now: float, received: ReceivedFrames) -> bool:
        """Handle the first or last fragment of a long record, alone in its packet and in order, by its header alone.

        Return False if it is something else.
        """
        acknowledger = self._components.acknowledger
        number = acknowledger.largest + 1
        if len(packet) <= _PLAIN_HEADER.size + CHECKSUM.size:
            return False
        first, _, truncated, kind, channel, record, offset = _PLAIN_HEADER.unpack_from(packet)
        if first != FIRST_BYTE or truncated != number & _MASK or self._components.in_order is not None:
            return False
        acknowledger.handle_run(1, now)
        body = packet[_PLAIN_HEADER.size : -CHECKSUM.size]
        self._handle_fragment(channel, record, offset, body, kind, received)
        return True

    def _handle_frames(self, packet: bytes, now: float, received: ReceivedFrames) -> None:
        """Handle an intact packet frame by frame."""
        if packet[0] != FIRST_BYTE:
            self._components.dropped["version"] += 1
            return
        try:
            found = wire.decode_frames(packet[HEADER.size : -CHECKSUM.size])
        except DecodeError as error:
            self._components.dropped[error.reason] += 1
            return
        for frame in found:
            if isinstance(frame, _NOT_ON_A_CONNECTION):
                self._components.dropped["late_handshake"] += 1
                return
        acknowledger = self._components.acknowledger
        (truncated,) = _NUMBER.unpack_from(packet, 9)
        expected = acknowledger.largest + 1
        number = expand_number(truncated, expected)
        if not acknowledger.handle_packet(number, now):
            self._components.dropped["repeated"] += 1
            return
        eliciting = False
        for frame in found:
            eliciting |= self._handle_frame(frame, now, received)
        if eliciting:
            acknowledger.handle_eliciting(1, now, in_order=number == expected)
            if len(found) == 1 and isinstance(found[0], wire.PingFrame):
                acknowledger.handle_ping(now)

    def _handle_frame(self, frame: wire.Frame, now: float, received: ReceivedFrames) -> bool:
        """Handle one frame. Return whether it asks for an acknowledgement."""
        match frame:
            case wire.DataFrame():
                self._handle_data(frame, received)
            case wire.AckFrame():
                self._handle_ack(frame, now, received)
                return False
            case wire.ConfirmFrame():
                received.confirms.append(frame)
            case wire.CreditFrame():
                self._components.send_channels.handle_credit(frame.channel, frame.limit)
            case wire.BlockedFrame():
                self._components.receive_channels.handle_blocked(frame.channel)
            case wire.PathProbeFrame() if self._components.control_frames.has_response_room:
                mac = handshake.path_mac(self._components.key, self._components.role, frame.challenge)
                self._components.control_frames.respond(wire.encode_frame(wire.PathResponseFrame(frame.challenge, mac)))
            case wire.CloseFrame():
                mac = handshake.close_mac(self._components.key, self._components.peer_role, frame.code, frame.reason)
                if handshake.same(frame.mac, mac):
                    received.close = frame
                else:
                    self._components.dropped["forged_close"] += 1
                return False
            case wire.PathResponseFrame():
                self._components.dropped["unasked_path_response"] += 1
            case wire.TokenFrame():
                if self._components.reset_tokens is None:
                    self._components.dropped["unasked_token"] += 1
                else:
                    self._components.reset_tokens.add(self._components.connection_id, frame.token)
        return True

    def _handle_data(self, frame: wire.DataFrame, received: ReceivedFrames) -> None:
        flags = frame.flags
        if flags & wire.UNRELIABLE:
            if self._components.receive_channels.is_ended(frame.channel):
                self._components.dropped["ended_channel"] += 1
            else:
                received.records.append((frame.channel, frame.record, frame.body, False, False))
            return
        if self._components.in_order is not None:
            if frame.position is None:
                raise DecodeError("fragment", "a fragment without a position")
            if not self._components.in_order.accepts(expand_number(frame.position, self._components.in_order.expected)):
                self._components.dropped["out_of_order"] += 1
                return
        self._handle_fragment(frame.channel, frame.record, frame.offset, frame.body, flags, received)

    def _handle_fragment(
        self, channel_id: int, record: int, offset: int, body: bytes, flags: int, received: ReceivedFrames
    ) -> None:
        complete = self._components.receive_channels.handle_fragment(
            channel_id,
            record,
            offset,
            body,
            is_last=bool(flags & (wire.LAST | wire.WHOLE)),
            ends_channel=bool(flags & wire.END),
        )
        for channel, number, body, last in complete:
            received.records.append((channel, number, body, True, last))

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def _handle_ack(self, frame: wire.AckFrame, now: float, received: ReceivedFrames) -> None:
        """Handle an acknowledgement. Raises DecodeError if it covers a number that was skipped to detect forgery."""
        next_number = self._transmitter.next_number
        recovery = self._components.recovery
        ranges = []
        below = next_number
        for first, last in frame.ranges:
            full_last = expand_number(last, next_number)
            full_first = full_last - ((last - first) & _MASK)
            if full_last >= below or full_first > full_last or full_first < 0:
                # These packets were never sent, or the ranges are not in descending order.
                self._components.dropped["forged_ack"] += 1
                return
            if recovery.sent.skipped and recovery.sent.count_skipped(full_first, full_last):
                raise DecodeError("skipped_ack", "a packet is acknowledged whose number was never used")
            ranges.append((full_first, full_last))
            below = full_first
        if frame.next_position is not None and not self._components.send_channels.policy.is_possible(
            frame.next_position
        ):
            self._components.dropped["forged_ack"] += 1
            return
        was_largest = recovery.largest_acked
        acked, late = recovery.handle_ack(ranges)
        if acked:
            self._update_path(acked, frame, now, newly_largest=recovery.largest_acked > was_largest)
        arrived = acked + late
        completed = self._components.send_channels.policy.handle_ack(arrived, frame.next_position)
        for packet in arrived:
            if packet.packet_bytes > BASE_DATAGRAM_BYTES:
                self._components.mtu.handle_large_acked(packet.last)
            if packet.control_keys:
                self._components.control_frames.handle_acked(packet.control_keys)
            if packet.is_mtu_probe:
                self._components.mtu.handle_probe_acked(packet.size_bytes)
                self._components.congestion.handle_datagram_size(self._components.mtu.datagram_bytes)
        if completed and self._components.send_channels.handle_completed(completed):
            received.writable = True
        self.detect_losses(now)

    def _update_path(self, acked: list[SentRun], frame: wire.AckFrame, now: float, *, newly_largest: bool) -> None:
        """Update the round trip and the delivery rate from an acknowledgement."""
        newest = max(acked, key=_number)
        trip_s = None
        recovery = self._components.recovery
        if newly_largest and newest.last == recovery.largest_acked and newest.flight.sent_at >= recovery.began:
            trip_s = now - newest.flight.sent_at
            recovery.round_trip.sample(trip_s, frame.delay_us / 1e6, self._components.congestion.shortest_trip_s)
        acked_bytes = sum([run.size_bytes for run in acked])
        self._components.congestion.handle_delivered(now, acked_bytes, newest.flight, trip_s)

    def detect_losses(self, now: float) -> None:
        """Declare packets lost that are overdue, and have their content sent again."""
        lost = self._components.recovery.detect_losses(now)
        if not lost:
            return
        for packet in lost:
            if packet.is_mtu_probe:
                self._components.congestion.in_flight_bytes -= packet.size_bytes  # no sign of congestion (RFC 8899, 3)
                self._components.mtu.handle_probe_lost(packet.size_bytes)
                continue
            self._components.congestion.handle_lost(packet.size_bytes, packet.flight.sent_at)
            self.packets_lost += 1
            if packet.packet_bytes > BASE_DATAGRAM_BYTES and self._components.mtu.handle_large_lost(packet.number, now):
                self._components.congestion.handle_datagram_size(self._components.mtu.datagram_bytes)
            if packet.fragments:
                self._components.send_channels.policy.handle_lost(packet.number, packet.fragments)
            if packet.control_keys:
                self._components.control_frames.repeat(packet.control_keys)
