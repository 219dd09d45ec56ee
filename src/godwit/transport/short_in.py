"""The short way in: a lone packet with one small record, one confirm, or nothing but an acknowledgement.

A server with thousands of clients that say a little now and then sees hardly anything else. Such packets have their
fields in fixed places and concern few parts of a connection, so no frames are made of them. Whatever is not quite so (a
gap, a loss, a second thing in the packet) is left to Inbound, which knows all cases: what is done here is what it would
do.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Literal

from crc32c import crc32c

from godwit.limits import BASE_DATAGRAM_BYTES
from godwit.transport.arq import SelectiveRepeat
from godwit.transport.events import Confirmed, Event, Received, Writable
from godwit.transport.parts import Parts
from godwit.transport.sent import SentRun
from godwit.transport.transmit import Transmitter
from godwit.wire.frames import ACK, CONFIRM, DATA, LAST, PADDING, U32, UNRELIABLE, WHOLE
from godwit.wire.packet import CHECKSUM, FIRST_BYTE, HEADER, INTACT

if TYPE_CHECKING:
    from godwit.transport.connection import Connection

_MASK: Final = 0xFFFFFFFF
_KIND_AT: Final = HEADER.size
_RELIABLE: Final = frozenset((DATA | WHOLE, DATA | WHOLE | LAST))
"""Data frames without length and position, which end with their packet and do not end their channel."""
_UNRELIABLE: Final = DATA | WHOLE | UNRELIABLE
_NOTHING: Final = -1
"""In the place of a kind: the packet ends behind the acknowledgement."""

_ACK: Final = struct.Struct(">BQIBIBII")
_RECORD: Final = struct.Struct(">BQIBII")
_ACK_AND_RECORD: Final = struct.Struct(">BQIBIBIIBII")
_SEQUENCE: Final = struct.Struct(">QI")
_RECORD_BYTES: Final = _RECORD.size + CHECKSUM.size
_ACK_BYTES: Final = _ACK.size + CHECKSUM.size
_ACK_AND_RECORD_BYTES: Final = _ACK_AND_RECORD.size + CHECKSUM.size

NOT_TAKEN: Final = 0
TAKEN: Final = 1
ONLY_ACK: Final = 2
"""Taken, and it was nothing but an acknowledgement: there is nothing to answer."""


class ShortInbound:
    """Feed: receive. NOT_TAKEN says that nothing was done: the packet has to go the long way."""

    __slots__ = (
        "_acknowledger", "_announcements", "_parts", "_policy", "_receiving", "_sending", "_transmitter",
    )  # fmt: skip

    def __init__(self, parts: Parts, transmitter: Transmitter, policy: SelectiveRepeat) -> None:
        self._parts = parts
        self._transmitter = transmitter
        self._policy = policy
        self._acknowledger = parts.acknowledger
        self._receiving = parts.receiving
        self._sending = parts.sending
        self._announcements = parts.announcements

    def receive(self, packet: bytes, connection: Connection, now: float, events: list[Event]) -> int:
        """A packet for this connection, which is open. Gives one of the three words above."""
        run: SentRun | Literal[False] | None = None
        newest = -1
        size = len(packet)
        kind = packet[_KIND_AT]
        if kind != ACK:
            if size < _RECORD_BYTES:
                return NOT_TAKEN
            first, _, number, _, channel, record = _RECORD.unpack_from(packet)
            at = _RECORD.size
        else:
            if size >= _ACK_AND_RECORD_BYTES:
                first, _, number, _, delay_us, ranges, low, high, kind, channel, record = _ACK_AND_RECORD.unpack_from(
                    packet
                )
                at = _ACK_AND_RECORD.size
            elif size == _ACK_BYTES:
                first, _, number, _, delay_us, ranges, low, high = _ACK.unpack_from(packet)
                kind = _NOTHING
            else:
                return NOT_TAKEN
            newest = self._transmitter.next_number - 1
            if ranges != 1 or high != newest & _MASK or (run := self._under_way(low, newest)) is False:
                return NOT_TAKEN
        if first != FIRST_BYTE or number != (self._acknowledger.largest + 1) & _MASK or crc32c(packet) != INTACT:
            return NOT_TAKEN
        if kind in _RELIABLE:
            full_number = self._receiving.take_whole(channel, record, size - at - CHECKSUM.size)
            if full_number < 0:
                return NOT_TAKEN
            events.append(Received(connection, channel, full_number, packet[at : -CHECKSUM.size]))
        elif kind == _NOTHING:
            self._acknowledger.on_packet(self._acknowledger.largest + 1, now)
            self._on_ack(newest, run or None, delay_us, now, connection, events)
            return ONLY_ACK
        elif not self._take_other(kind, channel, record, packet, at, connection, events):
            return NOT_TAKEN
        self._acknowledger.on_next(now)
        if newest >= 0:
            self._on_ack(newest, run or None, delay_us, now, connection, events)
        return TAKEN

    def _take_other(
        self,
        kind: int,
        channel: int,
        record: int,
        packet: bytes,
        at: int,
        connection: Connection,
        events: list[Event],
    ) -> bool:
        """A confirm or an unreliable record."""
        if kind == _UNRELIABLE:
            if self._receiving.is_ended(channel):
                return False
            events.append(Received(connection, channel, record, packet[at : -CHECKSUM.size], False))
            return True
        if kind != CONFIRM:
            return False
        # What follows its channel is not a record but a sequence and a count.
        at -= U32.size
        end = at + _SEQUENCE.size + CHECKSUM.size
        if len(packet) != end and (len(packet) != end + 1 or packet[-CHECKSUM.size - 1] != PADDING):
            return False
        sequence, reached = _SEQUENCE.unpack_from(packet, at)
        if self._sending.on_confirm(channel, sequence):
            events.append(Confirmed(connection, channel, sequence, reached))
        else:
            self._parts.dropped["old_confirm"] += 1
        return True

    def _under_way(self, low: int, newest: int) -> SentRun | Literal[False] | None:
        """What is under way if packets up to the newest one have arrived, the first of them ending in `low`: one
        packet, or none. False: it is not so simple."""
        recovery = self._parts.recovery
        oldest = newest - ((newest - low) & _MASK)
        if oldest < 0:
            return False
        skipped = recovery.sent.skipped
        if skipped and skipped[-1] >= oldest:
            return False
        given_up = recovery.given_up.runs
        if given_up and given_up[-1].number >= oldest:
            return False
        runs = recovery.sent.runs
        if not runs:
            return None
        run = runs[0]
        if len(runs) > 1 or run.number < oldest or run.count > 1 or run.packet_bytes > BASE_DATAGRAM_BYTES:
            return False
        return run

    def _on_ack(
        self,
        newest: int,
        run: SentRun | None,
        delay_us: int,
        now: float,
        connection: Connection,
        events: list[Event],
    ) -> None:
        """All that was under way has arrived."""
        recovery = self._parts.recovery
        if run is None:
            recovery.largest_acked = max(recovery.largest_acked, newest)
            return
        congestion = self._parts.congestion
        trip_s = recovery.on_all_acked(newest, run, now)
        if trip_s is not None:
            recovery.round_trip.sample(trip_s, delay_us / 1e6, congestion.shortest_trip_s)
        congestion.on_delivered(now, run.packet_bytes, run.flight, trip_s)
        if run.said:
            self._announcements.on_acked(run.said)
        if run.fragments:
            completed = self._policy.on_ack((run,), None)
            if completed and self._sending.on_completed(completed):
                events.append(Writable(connection))
