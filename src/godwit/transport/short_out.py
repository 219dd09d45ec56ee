"""The short way out: a lone packet with one small record, one confirm, or nothing but an acknowledgement.

The counterpart of short_in.py. What is to be said must be all that there is to say; whatever is not quite so is left to
Transmitter, which knows all cases: what is done here is what it would do.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import inf
from typing import Final

from crc32c import crc32c

from godwit.transport.arq import SelectiveRepeat
from godwit.transport.congestion import Flight
from godwit.transport.fragment import Fragment
from godwit.transport.parts import Parts
from godwit.transport.sent import Announcement, SentRun
from godwit.transport.transmit import Transmitter
from godwit.wire.frames import ACK, CONFIRM, DATA, END, LAST, UNRELIABLE, WHOLE
from godwit.wire.packet import CHECKSUM, FIRST_BYTE, HEADER

_MASK: Final = 0xFFFFFFFF
_ACK: Final = struct.Struct(">9sIBIBII")
_CONFIRM: Final = struct.Struct(">9sIBIQI")
_PADDED_CONFIRM: Final = struct.Struct(">9sIBIQIx")
"""A client's packet that only asks is longer than a reset: see Transmitter."""
_ACK_AND_CONFIRM: Final = struct.Struct(">9sIBIBIIBIQI")
_RECORD: Final = struct.Struct(">9sIBII")
_ACK_AND_RECORD: Final = struct.Struct(">9sIBIBIIBII")
MOST_BYTES: Final = 1000
"""Of a record. A longer one may not fit beside an acknowledgement, or fill a packet of the smallest size."""
MOST_UNDER_WAY: Final = 64
"""Packets. A peer that acknowledges nothing is not answered in haste."""


class ShortOutbound:
    """Drain: packet. None says that nothing was done: there is nothing to send, or it has to go the long way."""

    __slots__ = (
        "_acknowledger", "_announcements", "_confirm_layout", "_packet_head", "_parts", "_policy", "_sending",
        "_transmitter", "rests_until",
    )  # fmt: skip

    def __init__(self, parts: Parts, transmitter: Transmitter, policy: SelectiveRepeat) -> None:
        self._parts = parts
        self._transmitter = transmitter
        self._policy = policy
        self._acknowledger = parts.acknowledger
        self._sending = parts.sending
        self._announcements = parts.announcements
        self._packet_head = HEADER.pack(FIRST_BYTE, parts.peer_id, 0)[:9]
        self._confirm_layout = _PADDED_CONFIRM if parts.role == "client" else _CONFIRM
        self.rests_until = 0.0
        """After a packet, and after rests: when it has to be asked again, if nothing else happens. Less than now: the
        timers know. 0, after a packet: there may be more to send."""

    def packet(self, now: float) -> bytes | None:
        """The next packet, if one is all that there is to send."""
        acknowledger = self._acknowledger
        sending = self._sending
        announcements = self._announcements
        if self._policy.lost or acknowledger.has_gaps or self._parts.recovery.sent.packets >= MOST_UNDER_WAY:
            return None
        if sending.unsent_bytes:
            if sending.unreliable or announcements.pending:
                return None
            return self._reliable(now)
        if sending.unreliable:
            if announcements.pending:
                return None
            return self._unreliable(now)
        confirm = announcements.take_lone()
        if confirm is not None:
            return self._confirm(now, *confirm)
        if acknowledger.due_at is not None and acknowledger.due_at <= now and not announcements.pending:
            return self._ack(now)
        return None

    def rests(self, now: float) -> bool:
        """Whether there is nothing to send now. Timers apart, it need not be asked for trains then."""
        sending = self._sending
        due_at = self._acknowledger.due_at
        if (
            sending.unsent_bytes
            or sending.unreliable
            or self._policy.lost
            or (due_at is not None and due_at <= now)
            or self._announcements.pending
            or self._is_probe_due(now)
        ):
            return False
        self._transmitter.on_nothing_to_send()
        # With nothing under way, an acknowledgement that waits is the first thing to be due.
        self.rests_until = due_at if due_at is not None and not self._parts.recovery.sent.runs else 0.0
        return True

    def _is_probe_due(self, now: float) -> bool:
        mtu = self._parts.mtu
        return mtu.is_wanted and mtu.probe_bytes(now) is not None

    # -- the kinds ----------------------------------------------------------------------------------------------------

    def _confirm(self, now: float, channel: int, sequence: int, reached: int) -> bytes:
        number = self._transmitter.next_number
        if self._acknowledger.due_at is None:
            packet = self._confirm_layout.pack(self._packet_head, number & _MASK, CONFIRM, channel, sequence, reached)
        else:
            delay_us, first, last = self._acknowledger.take_range(now)
            packet = _ACK_AND_CONFIRM.pack(
                self._packet_head, number & _MASK, ACK, delay_us, 1, first & _MASK, last & _MASK,
                CONFIRM, channel, sequence, reached,
            )  # fmt: skip
        size = len(packet) + CHECKSUM.size
        flight = self._parts.congestion.begin_idle_flight(now, size)
        return self._depart(packet, size, flight, (), (("confirm", channel, sequence),), now)

    def _reliable(self, now: float) -> bytes | None:
        if not self._transmitter.allows_one(now):
            return None
        record = self._sending.take_lone(MOST_BYTES)
        if record is None:
            return None
        kind = DATA | WHOLE | LAST | END if record.ends_channel else DATA | WHOLE | LAST
        body = record.body
        packet = self._head(kind, record.channel.id, record.number, now) + body
        fragment = Fragment(record, 0, len(body), self._transmitter.next_number)
        return self._record(packet, (fragment,), now)

    def _unreliable(self, now: float) -> bytes | None:
        unreliable = self._sending.unreliable
        if len(unreliable) > 1 or len(unreliable[0].body) > MOST_BYTES or not self._transmitter.allows_one(now):
            return None
        record = self._sending.take_unreliable()
        packet = self._head(DATA | WHOLE | UNRELIABLE, record.channel, record.number, now) + record.body
        return self._record(packet, (), now)

    def _head(self, kind: int, channel: int, record: int, now: float) -> bytes:
        """The headers of a packet with a record, and the acknowledgement if one waits."""
        number = self._transmitter.next_number & _MASK
        if self._acknowledger.due_at is None:
            return _RECORD.pack(self._packet_head, number, kind, channel, record & _MASK)
        delay_us, first, last = self._acknowledger.take_range(now)
        return _ACK_AND_RECORD.pack(
            self._packet_head, number, ACK, delay_us, 1, first & _MASK, last & _MASK, kind, channel, record & _MASK
        )

    def _record(self, packet: bytes, fragments: Sequence[Fragment], now: float) -> bytes:
        size = len(packet) + CHECKSUM.size
        congestion = self._parts.congestion
        flight = congestion.begin_flight(now)
        congestion.on_sent(size)
        if congestion.in_flight_bytes < congestion.window_bytes:
            congestion.on_idle()
        return self._depart(packet, size, flight, fragments, (), now)

    def _depart(
        self,
        packet: bytes,
        size: int,
        flight: Flight,
        fragments: Sequence[Fragment],
        said: Sequence[Announcement],
        now: float,
    ) -> bytes:
        transmitter = self._transmitter
        recovery = self._parts.recovery
        recovery.on_sent_one(SentRun(transmitter.next_number, size, flight, fragments, said), now)
        transmitter.on_sent_elsewhere(size)
        if recovery.loss_timer is not None or self._is_probe_due(now):
            self.rests_until = 0.0
        else:
            self.rests_until = now + recovery.round_trip.probe_timeout_s()
        return packet + CHECKSUM.pack(crc32c(packet))

    def _ack(self, now: float) -> bytes:
        """It asks for no answer, so nothing is kept of it."""
        transmitter = self._transmitter
        transmitter.on_nothing_to_send()
        self._parts.congestion.begin_flight(now)
        delay_us, first, last = self._acknowledger.take_range(now)
        packet = _ACK.pack(
            self._packet_head, transmitter.next_number & _MASK, ACK, delay_us, 1, first & _MASK, last & _MASK
        )
        transmitter.next_number += 1
        transmitter.packets_sent += 1
        transmitter.bytes_sent += len(packet) + CHECKSUM.size
        self.rests_until = 0.0 if self._is_probe_due(now) else -inf
        return packet + CHECKSUM.pack(crc32c(packet))
