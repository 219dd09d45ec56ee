"""Fast paths for single packets with one small record, one confirm, both, or only an acknowledgement.

A server with thousands of clients that each send a little sees hardly anything else. A confirm and a record together
come from a program that replies to a message. Such packets have their fields at
fixed offsets and touch few components, so no frame objects are created. Every other case (a gap, a loss, a second
frame) is left to PacketReceiver and Transmitter, which handle all cases. The effect is the same: a test compares both.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from godwit.limits import BASE_DATAGRAM_BYTES
from godwit.transport.arq import SelectiveRepeat
from godwit.transport.congestion import Flight
from godwit.transport.connection_state import Components
from godwit.transport.events import ChannelConfirmed, Event, Received, Writable
from godwit.transport.protection import TAG_BYTES
from godwit.transport.recovery import ControlFrameKey, SentRun
from godwit.transport.send_channels import Fragment
from godwit.transport.transmitter import SMALLEST_QUESTION_BYTES, Transmitter
from godwit.wire.packet import (
    ACK,
    CHECKSUM,
    CONFIRM,
    DATA,
    END,
    FIRST_BYTE,
    HEADER,
    INTACT,
    LAST,
    PADDING,
    PING,
    U32,
    UNRELIABLE,
    WHOLE,
)

if TYPE_CHECKING:
    from godwit.transport.connection import Connection

_MASK: Final = 0xFFFFFFFF
KIND_AT: Final = HEADER.size
"""The offset of the type of the first frame."""
_RELIABLE: Final = frozenset((DATA | WHOLE, DATA | WHOLE | LAST))
"""Data frames without length and position, which end with their packet and do not end their channel."""
_UNRELIABLE: Final = DATA | WHOLE | UNRELIABLE
_NOTHING: Final = -1
"""Used as the frame type of a packet that ends after its acknowledgement."""

_PING_CONTENTS: Final = (bytes((PING,)).ljust(SMALLEST_QUESTION_BYTES, bytes((PADDING,))), bytes((PING,)))
"""Of a keep-alive from a client and from a server."""

_RECEIVED_ACK: Final = struct.Struct(">BQIBIBII")
_RECEIVED_RECORD: Final = struct.Struct(">BQIBII")
_RECEIVED_ACK_AND_RECORD: Final = struct.Struct(">BQIBIBIIBII")
_SEQUENCE: Final = struct.Struct(">QI")
_RECEIVED_CONFIRM_AND_RECORD: Final = struct.Struct(">QIBII")
"""The fields behind the channel of a confirm, if a record follows it."""
_RECORD_BYTES: Final = _RECEIVED_RECORD.size + CHECKSUM.size
_ACK_BYTES: Final = _RECEIVED_ACK.size + CHECKSUM.size
_ACK_AND_RECORD_BYTES: Final = _RECEIVED_ACK_AND_RECORD.size + CHECKSUM.size
_CONFIRM_AND_RECORD_AT: Final = _RECEIVED_ACK_AND_RECORD.size - U32.size
_ACK_CONFIRM_AND_RECORD_BYTES: Final = _CONFIRM_AND_RECORD_AT + _RECEIVED_CONFIRM_AND_RECORD.size + CHECKSUM.size

_SENT_ACK: Final = struct.Struct(">9sIBIBII")
_SENT_CONFIRM: Final = struct.Struct(">9sIBIQI")
_SENT_PADDED_CONFIRM: Final = struct.Struct(">9sIBIQIx")
"""A client's packet that only asks for a reply is longer than a reset: see SMALLEST_QUESTION_BYTES."""
_SENT_ACK_AND_CONFIRM: Final = struct.Struct(">9sIBIBIIBIQI")
_SENT_RECORD: Final = struct.Struct(">9sIBII")
_SENT_ACK_AND_RECORD: Final = struct.Struct(">9sIBIBIIBII")
_SENT_ACK_CONFIRM_AND_RECORD: Final = struct.Struct(">9sIBIBIIBIQIBII")

MAX_FAST_RECORD_BYTES: Final = 1000
"""A longer record may not fit beside an acknowledgement and a confirm in a packet of the smallest size."""
MAX_FAST_IN_FLIGHT: Final = 64
"""The largest number of packets in flight: a peer that acknowledges nothing gets the complete handling."""
MAX_FAST_ACKED: Final = 4
"""The largest number of packets that are acknowledged at once. The replies to a message are one or two."""

NOT_HANDLED: Final = 0
HANDLED: Final = 1
ONLY_ACK: Final = 2
"""The packet was handled and contained only an acknowledgement: no reply is needed."""


class FastReceiver:
    """Receives packets. NOT_HANDLED means that nothing was done: the packet must go to PacketReceiver."""

    __slots__ = (
        "_acknowledger", "_components", "_control_frames", "_is_sealed", "_policy", "_receive_channels",
        "_send_channels", "_transmitter",
    )  # fmt: skip

    def __init__(self, components: Components, transmitter: Transmitter, policy: SelectiveRepeat) -> None:
        self._components = components
        self._transmitter = transmitter
        self._policy = policy
        self._is_sealed = components.protection is not None
        """Whether packets arrive opened, and so without a checksum."""
        self._acknowledger = components.acknowledger
        self._receive_channels = components.receive_channels
        self._send_channels = components.send_channels
        self._control_frames = components.control_frames

    def handle_packet(self, packet: bytes, connection: Connection, now: float, events: list[Event]) -> int:
        """Handle a packet of an open connection. Return HANDLED, ONLY_ACK or NOT_HANDLED."""
        acked: list[SentRun] | None = None
        newest = -1
        size = len(packet)
        kind = packet[KIND_AT]
        if kind != ACK:
            if size < _RECORD_BYTES:
                return NOT_HANDLED
            first, _, number, _, channel, record = _RECEIVED_RECORD.unpack_from(packet)
            at = _RECEIVED_RECORD.size
        else:
            if size >= _ACK_AND_RECORD_BYTES:
                first, _, number, _, delay_us, ranges, low, high, kind, channel, record = (
                    _RECEIVED_ACK_AND_RECORD.unpack_from(packet)
                )
                at = _RECEIVED_ACK_AND_RECORD.size
            elif size == _ACK_BYTES:
                first, _, number, _, delay_us, ranges, low, high = _RECEIVED_ACK.unpack_from(packet)
                kind = _NOTHING
            else:
                return NOT_HANDLED
            newest = self._transmitter.next_number - 1
            if ranges != 1 or high != newest & _MASK or (acked := self._in_flight(low, newest)) is None:
                return NOT_HANDLED
        acknowledger = self._acknowledger
        if (
            first != FIRST_BYTE
            or number != (acknowledger.largest + 1) & _MASK
            or (not self._is_sealed and crc32c(packet) != INTACT)
        ):
            return NOT_HANDLED
        if kind in _RELIABLE:
            full_number = self._receive_channels.accept_whole(channel, record, size - at - CHECKSUM.size)
            if full_number < 0:
                return NOT_HANDLED
            events.append(Received(connection, channel, full_number, packet[at : -CHECKSUM.size]))
        elif kind == _NOTHING:
            acknowledger.handle_packet(acknowledger.largest + 1, now)
            self._handle_ack(newest, acked, delay_us, now, connection, events)
            return ONLY_ACK
        elif kind == CONFIRM and newest >= 0 and size >= _ACK_CONFIRM_AND_RECORD_BYTES:
            if not self._handle_confirm_and_record(channel, packet, connection, events):
                return NOT_HANDLED
        elif not self._handle_other(kind, channel, record, packet, at, connection, events):
            return NOT_HANDLED
        acknowledger.handle_next(now)
        if newest >= 0:
            self._handle_ack(newest, acked, delay_us, now, connection, events)
        return HANDLED

    def handle_ping(self, packet: bytes, now: float) -> int:
        """Handle a packet whose first frame is a ping: nearly all that a server receives from idle clients.

        Return HANDLED or NOT_HANDLED.
        """
        acknowledger = self._acknowledger
        first, _, number = HEADER.unpack_from(packet)
        if (
            packet[KIND_AT : -CHECKSUM.size] not in _PING_CONTENTS
            or first != FIRST_BYTE
            or number != (acknowledger.largest + 1) & _MASK
            or (not self._is_sealed and crc32c(packet) != INTACT)
        ):
            return NOT_HANDLED
        acknowledger.handle_next(now)
        acknowledger.handle_ping(now)
        return HANDLED

    def _handle_confirm_and_record(
        self, confirmed: int, packet: bytes, connection: Connection, events: list[Event]
    ) -> bool:
        """Handle a confirm of the channel `confirmed` with a record behind it. Return False if it is something else."""
        sequence, reached, kind, channel, record = _RECEIVED_CONFIRM_AND_RECORD.unpack_from(
            packet, _CONFIRM_AND_RECORD_AT
        )
        if kind not in _RELIABLE:
            return False
        body_bytes = len(packet) - _ACK_CONFIRM_AND_RECORD_BYTES
        full_number = self._receive_channels.accept_whole(channel, record, body_bytes)
        if full_number < 0:
            return False
        body = packet[_CONFIRM_AND_RECORD_AT + _RECEIVED_CONFIRM_AND_RECORD.size : -CHECKSUM.size]
        events.append(Received(connection, channel, full_number, body))
        if self._send_channels.handle_confirm(confirmed, sequence):
            events.append(ChannelConfirmed(connection, confirmed, sequence, reached))
        else:
            self._components.dropped["old_confirm"] += 1
        return True

    def _handle_other(
        self,
        kind: int,
        channel: int,
        record: int,
        packet: bytes,
        at: int,
        connection: Connection,
        events: list[Event],
    ) -> bool:
        """Handle a confirm or an unreliable record. Return False if it is something else."""
        if kind == _UNRELIABLE:
            if self._receive_channels.is_ended(channel):
                return False
            events.append(Received(connection, channel, record, packet[at : -CHECKSUM.size], False))
            return True
        if kind != CONFIRM:
            return False
        # In a confirm, the channel is followed by a sequence and a count.
        at -= U32.size
        end = at + _SEQUENCE.size + CHECKSUM.size
        if len(packet) != end and (len(packet) != end + 1 or packet[-CHECKSUM.size - 1] != PADDING):
            return False
        sequence, reached = _SEQUENCE.unpack_from(packet, at)
        if self._send_channels.handle_confirm(channel, sequence):
            events.append(ChannelConfirmed(connection, channel, sequence, reached))
        else:
            self._components.dropped["old_confirm"] += 1
        return True

    def _in_flight(self, low: int, newest: int) -> list[SentRun] | None:
        """Return the few packets in flight, if an acknowledgement covers `low` up to the newest packet sent.

        None: there are more of them or longer ones, or the acknowledgement does not cover them all.
        """
        recovery = self._components.recovery
        oldest = newest - ((newest - low) & _MASK)
        if oldest < 0:
            return None
        skipped = recovery.sent.skipped
        if skipped and skipped[-1] >= oldest:
            return None
        declared_lost = recovery.declared_lost.runs
        if declared_lost and declared_lost[-1].number >= oldest:
            return None
        runs = recovery.sent.runs
        if not runs:
            return runs
        if len(runs) > MAX_FAST_ACKED or runs[0].number < oldest:
            return None
        for run in runs:
            if run.count > 1 or run.packet_bytes > BASE_DATAGRAM_BYTES:
                return None
        return runs[:]

    def _handle_ack(
        self,
        newest: int,
        acked: list[SentRun] | None,
        delay_us: int,
        now: float,
        connection: Connection,
        events: list[Event],
    ) -> None:
        """Handle the acknowledgement of all packets in flight."""
        recovery = self._components.recovery
        if not acked:
            recovery.largest_acked = max(recovery.largest_acked, newest)
            return
        congestion = self._components.congestion
        run = acked[-1]
        trip_s = recovery.handle_all_acked(newest, run, now)
        if trip_s is not None:
            recovery.round_trip.sample(trip_s, delay_us / 1e6, congestion.shortest_trip_s)
        acked_bytes = run.packet_bytes if len(acked) == 1 else sum([one.packet_bytes for one in acked])
        congestion.handle_delivered(now, acked_bytes, run.flight, trip_s)
        has_fragments = False
        for one in acked:
            if one.control_keys:
                self._control_frames.handle_acked(one.control_keys)
            if one.fragments:
                has_fragments = True
        if has_fragments:
            completed = self._policy.handle_ack(acked, None)
            if completed and self._send_channels.handle_completed(completed):
                events.append(Writable(connection))


class FastSender:
    """Sends packets. None means that nothing was done: there is nothing to send, or Transmitter must send it."""

    __slots__ = (
        "_acknowledger", "_components", "_confirm_layout", "_control_frames", "_packet_head", "_policy",
        "_protection", "_receive_channels", "_send_channels", "_trailer_bytes", "_transmitter", "idle_until",
    )  # fmt: skip

    def __init__(self, components: Components, transmitter: Transmitter, policy: SelectiveRepeat) -> None:
        self._components = components
        self._transmitter = transmitter
        self._policy = policy
        self._acknowledger = components.acknowledger
        self._send_channels = components.send_channels
        self._control_frames = components.control_frames
        self._receive_channels = components.receive_channels
        self._packet_head = HEADER.pack(FIRST_BYTE, components.peer_id, 0)[:9]
        self._protection = components.protection
        self._trailer_bytes = CHECKSUM.size if self._protection is None else TAG_BYTES
        self._confirm_layout = _SENT_PADDED_CONFIRM if components.role == "client" else _SENT_CONFIRM
        self.idle_until = 0.0
        """Set by next_packet and is_idle: when to ask again if nothing else happens. A past time: the timers decide.
        0 after a packet: there may be more to send."""

    def next_packet(self, now: float) -> bytes | None:
        """Return the next packet if it is the only one to send, else None."""
        acknowledger = self._acknowledger
        send_channels = self._send_channels
        due_at = acknowledger.due_at
        if (
            self._policy.lost
            or self._components.recovery.sent.packets >= MAX_FAST_IN_FLIGHT
            or (due_at is not None and acknowledger.has_gaps)
        ):
            return None
        if self._control_frames.has_others or self._receive_channels.pending_credits:
            if send_channels.unreliable:
                return None
            if send_channels.unsent_bytes:
                return None if due_at is None else self._confirm_and_record(now)
            confirm = self._control_frames.next_lone()
            return None if confirm is None else self._confirm(now, *confirm)
        if send_channels.unsent_bytes:
            return None if send_channels.unreliable else self._reliable(now)
        if send_channels.unreliable:
            return self._unreliable(now)
        if due_at is not None and due_at <= now:
            return self._ack(now)
        return None

    def is_idle(self, now: float) -> bool:
        """Return whether there is nothing to send now, so that only a timer can change that."""
        send_channels = self._send_channels
        due_at = self._acknowledger.due_at
        mtu = self._components.mtu
        if (
            send_channels.unsent_bytes
            or send_channels.unreliable
            or self._policy.lost
            or (due_at is not None and due_at <= now)
            or self._control_frames.has_others
            or self._receive_channels.pending_credits
            or (mtu.is_wanted and mtu.probe_bytes(now) is not None)
        ):
            return False
        self._transmitter.probes_due = 0
        self._transmitter.paced_until = None
        self._components.congestion.handle_idle()
        # With nothing in flight, a pending acknowledgement is the first timer.
        self.idle_until = due_at if due_at is not None and not self._components.recovery.sent.runs else 0.0
        return True

    # -- the kinds of packets -----------------------------------------------------------------------------------------

    def _confirm(self, now: float, channel: int, sequence: int, reached: int) -> bytes:
        number = self._transmitter.next_number
        if self._acknowledger.due_at is None:
            packet = self._confirm_layout.pack(self._packet_head, number & _MASK, CONFIRM, channel, sequence, reached)
        else:
            delay_us, first, last = self._acknowledger.next_range(now)
            packet = _SENT_ACK_AND_CONFIRM.pack(
                self._packet_head, number & _MASK, ACK, delay_us, 1, first & _MASK, last & _MASK,
                CONFIRM, channel, sequence, reached,
            )  # fmt: skip
        size = len(packet) + self._trailer_bytes
        flight = self._components.congestion.begin_lone_flight(now, size, was_idle=True)
        return self._depart(packet, size, flight, (), (("confirm", channel, sequence),), now)

    def _reliable(self, now: float) -> bytes | None:
        if not self._transmitter.allows_one(now):
            return None
        record = self._send_channels.next_lone(MAX_FAST_RECORD_BYTES)
        if record is None:
            return None
        kind = DATA | WHOLE | LAST | END if record.ends_channel else DATA | WHOLE | LAST
        body = record.body
        packet = self._head(kind, record.channel.id, record.number, now) + body
        fragment = Fragment(record, 0, len(body), self._transmitter.next_number)
        return self._record(packet, (fragment,), now)

    def _confirm_and_record(self, now: float) -> bytes | None:
        """Return a packet with the pending acknowledgement, confirm and record, if there is one of each."""
        if not self._control_frames.has_lone or not self._transmitter.allows_one(now):
            return None
        record = self._send_channels.next_lone(MAX_FAST_RECORD_BYTES)
        if record is None:
            return None
        confirm = self._control_frames.next_lone()
        assert confirm is not None, "has_lone"
        channel, sequence, reached = confirm
        kind = DATA | WHOLE | LAST | END if record.ends_channel else DATA | WHOLE | LAST
        number = self._transmitter.next_number
        delay_us, first, last = self._acknowledger.next_range(now)
        packet = _SENT_ACK_CONFIRM_AND_RECORD.pack(
            self._packet_head, number & _MASK, ACK, delay_us, 1, first & _MASK, last & _MASK,
            CONFIRM, channel, sequence, reached, kind, record.channel.id, record.number & _MASK,
        ) + record.body  # fmt: skip
        fragment = Fragment(record, 0, len(record.body), number)
        return self._record(packet, (fragment,), now, (("confirm", channel, sequence),))

    def _unreliable(self, now: float) -> bytes | None:
        unreliable = self._send_channels.unreliable
        if (
            len(unreliable) > 1
            or len(unreliable[0].body) > MAX_FAST_RECORD_BYTES
            or not self._transmitter.allows_one(now)
        ):
            return None
        record = self._send_channels.pop_unreliable()
        packet = self._head(DATA | WHOLE | UNRELIABLE, record.channel, record.number, now) + record.body
        return self._record(packet, (), now)

    def _head(self, kind: int, channel: int, record: int, now: float) -> bytes:
        """Return the headers of a packet with a record, with the acknowledgement if one is pending."""
        number = self._transmitter.next_number & _MASK
        if self._acknowledger.due_at is None:
            return _SENT_RECORD.pack(self._packet_head, number, kind, channel, record & _MASK)
        delay_us, first, last = self._acknowledger.next_range(now)
        return _SENT_ACK_AND_RECORD.pack(
            self._packet_head, number, ACK, delay_us, 1, first & _MASK, last & _MASK, kind, channel, record & _MASK
        )

    def _record(
        self,
        packet: bytes,
        fragments: Sequence[Fragment],
        now: float,
        control_keys: Sequence[ControlFrameKey] = (),
    ) -> bytes:
        size = len(packet) + self._trailer_bytes
        flight = self._components.congestion.begin_lone_flight(now, size)
        return self._depart(packet, size, flight, fragments, control_keys, now)

    def _depart(
        self,
        packet: bytes,
        size: int,
        flight: Flight,
        fragments: Sequence[Fragment],
        control_keys: Sequence[ControlFrameKey],
        now: float,
    ) -> bytes:
        transmitter = self._transmitter
        recovery = self._components.recovery
        mtu = self._components.mtu
        number = transmitter.next_number
        recovery.handle_sent_one(SentRun(number, size, flight, fragments, control_keys), now)
        transmitter.handle_sent_elsewhere(size)
        if recovery.loss_timer is not None or (mtu.is_wanted and mtu.probe_bytes(now) is not None):
            self.idle_until = 0.0
        else:
            self.idle_until = now + recovery.round_trip.probe_timeout_s
        if self._protection is not None:
            return self._protection.seal(packet, number)
        return packet + CHECKSUM.pack(crc32c(packet))

    def _ack(self, now: float) -> bytes:
        """Return a packet with only an acknowledgement. It is not acknowledged itself, so it is not stored."""
        transmitter = self._transmitter
        transmitter.probes_due = 0
        transmitter.paced_until = None
        self._components.congestion.handle_idle()
        self._components.congestion.begin_flight(now)
        delay_us, first, last = self._acknowledger.next_range(now)
        packet = _SENT_ACK.pack(
            self._packet_head, transmitter.next_number & _MASK, ACK, delay_us, 1, first & _MASK, last & _MASK
        )
        number = transmitter.next_number
        transmitter.next_number = number + 1
        transmitter.packets_sent += 1
        transmitter.bytes_sent += len(packet) + self._trailer_bytes
        mtu = self._components.mtu
        self.idle_until = 0.0 if mtu.is_wanted and mtu.probe_bytes(now) is not None else -inf
        if self._protection is not None:
            return self._protection.seal(packet, number)
        return packet + CHECKSUM.pack(crc32c(packet))
