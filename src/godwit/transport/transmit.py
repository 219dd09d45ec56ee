"""Packets and trains: puts what the parts of a connection have to say into datagrams, when window and pacer allow.

A packet carries, in this order: the acknowledgement, announcements, data. All datagrams of a train have one size but
the last, because the kernel cuts a train into equal parts; so a packet that is not full ends its train.
"""

from __future__ import annotations

import struct
from itertools import chain, repeat
from typing import Final

from crc32c import crc32c

from godwit.limits import MAX_PACKET_GAP_THRESHOLD, MAX_SENT_PACKETS, MAX_TRAIN_BYTES, MAX_TRAIN_DATAGRAMS
from godwit.transport.congestion import Flight, train_limit_bytes
from godwit.transport.fragment import Fragment, UnreliableRecord
from godwit.transport.pacing import Pacer, train_bytes
from godwit.transport.parts import Parts
from godwit.transport.sent import Announcement, SentRun
from godwit.wire.frames import (
    DATA,
    DATA_HEADER,
    END,
    FRAGMENT_HEADER,
    LAST,
    PADDING,
    TOKEN_BYTES,
    U16,
    U32,
    Ping,
    Reset,
    encode_frame,
)
from godwit.wire.packet import CHECKSUM, FIRST_BYTE, HEADER, OVERHEAD_BYTES, encode_packet

_MASK: Final = 0xFFFFFFFF
SMALLEST_ROOM_BYTES: Final = 32
"""With less left of a packet it is not worth asking for more."""
SMALLEST_QUESTION_BYTES: Final = len(encode_frame(Reset(bytes(TOKEN_BYTES)))) + 1
"""A client's packet that only asks has at least this content: a server that forgot the connection answers with a reset,
but only to something longer than that."""

SKIP_INTERVAL: Final = 128
SKIP_SPREAD: Final = 1024
"""A number is skipped after at least SKIP_INTERVAL packets and up to SKIP_SPREAD more, at the start of a train."""
assert SKIP_INTERVAL > MAX_PACKET_GAP_THRESHOLD, "at most one skipped number matters to the detection of a loss"

FULL_HEADER: Final = struct.Struct(">9sI9sI")
"""The headers of a packet and of a fragment in one call: what stays the same in a run of packets is packed before."""
assert FULL_HEADER.size == HEADER.size + FRAGMENT_HEADER.size
FULL_OVERHEAD_BYTES: Final = FULL_HEADER.size + CHECKSUM.size


class Transmitter:
    """Drain: next_train until it gives None; then `paced_until` says when to ask again, if only the pacer held it."""

    __slots__ = (
        "_pacer", "_parts", "_skips_at", "bytes_sent", "fragments_resent", "next_number", "paced_until", "packets_sent",
        "probes_due",
    )  # fmt: skip

    def __init__(self, parts: Parts, now: float) -> None:
        self._parts = parts
        self._pacer = Pacer(now)
        self._skips_at = 0
        """The number from which on the next one is skipped. 0: not drawn yet."""
        self.next_number = 0
        """One more than the number of the newest packet sent."""
        self.probes_due = 0
        """Packets that may go whatever window and pacer say: the probe timer fired."""
        self.paced_until: float | None = None
        self.packets_sent = 0
        self.bytes_sent = 0
        self.fragments_resent = 0

    def datagram_bytes(self) -> int:
        most = self._parts.sending.policy.largest_datagram_bytes
        return self._parts.mtu.datagram_bytes if most is None else min(most, self._parts.mtu.datagram_bytes)

    def train_payload_bytes(self) -> int:
        """How much of one record fills the longest train that may go at once."""
        datagram_bytes = self.datagram_bytes()
        longest = train_limit_bytes(self._parts.peer.receive_buffer_bytes, datagram_bytes)
        return min(longest // datagram_bytes, MAX_TRAIN_DATAGRAMS) * (datagram_bytes - FULL_OVERHEAD_BYTES)

    def number(self) -> int:
        """Takes a packet number, for a packet that is made elsewhere."""
        number = self.next_number
        self.next_number = number + 1
        return number

    def next_train(self, now: float) -> tuple[bytes, int] | None:
        """The bytes of a train and the size of its datagrams, or None when there is nothing to send just now."""
        datagram_bytes = self.datagram_bytes()
        due_at = self._parts.acknowledger.due_at
        speaks = due_at is not None and due_at <= now
        if not speaks and self._parts.announcements.pending:
            speaks = self._parts.recovery.sent.packets < MAX_SENT_PACKETS
        allowed = self._allowed_datagrams(now, datagram_bytes)
        if not speaks and not allowed:
            return None
        if allowed > 1 and self.next_number >= self._skips_at and self._parts.sending.unsent_bytes > datagram_bytes:
            self._skip()
        flight = self._parts.congestion.begin_flight(now)
        parts: list[bytes] = []
        sent: list[SentRun] = []
        count = 0
        packet_bytes = first_bytes = 0
        most = max(allowed, 1)
        while count < most:
            if not speaks:
                bulk, packet_bytes = self._bulk(datagram_bytes, allowed - count, flight, parts, sent)
                if bulk:
                    count += bulk
                    first_bytes = datagram_bytes
                    if packet_bytes < datagram_bytes:
                        break
                    continue
            packet_bytes = self._mixed_packet(now, datagram_bytes, count < allowed, flight, parts, sent)
            if not packet_bytes:
                break
            speaks = False
            count += 1
            first_bytes = first_bytes or packet_bytes
            if packet_bytes < datagram_bytes:
                break
        if not count:
            return None
        return self._depart(now, parts, first_bytes, count, sent)

    def _skip(self) -> None:
        """Leave out a packet number now and then (RFC 9000, 21.4).

        A peer that acknowledges packets it has not received, so that more is sent to it than the path carries, does not
        know which numbers are missing. With no more than a packet to send there is nothing to be gained that way.
        """
        if self._skips_at:
            self._parts.recovery.sent.skip(self.next_number)
            self.next_number += 1
        drawn = int.from_bytes(self._parts.entropy(2), "big") % SKIP_SPREAD
        self._skips_at = self.next_number + SKIP_INTERVAL + drawn

    def allows_one(self, now: float) -> bool:
        """Whether window and pacer let one packet with data go, if there are no more to come."""
        congestion = self._parts.congestion
        datagram_bytes = self._parts.mtu.datagram_bytes
        if self.probes_due or congestion.window_bytes - congestion.in_flight_bytes < datagram_bytes:
            return False
        rate = congestion.rate_bytes_per_s
        limit = train_limit_bytes(self._parts.peer.receive_buffer_bytes, datagram_bytes)
        return self._pacer.room_bytes(now, rate, train_bytes(rate, datagram_bytes, limit)) >= datagram_bytes

    def on_sent_elsewhere(self, packet_bytes: int) -> None:
        """A packet with the next number was made elsewhere, and there was nothing else to send."""
        self.next_number += 1
        self.probes_due = 0
        self.paced_until = None
        self._pacer.on_sent(packet_bytes)
        self.packets_sent += 1
        self.bytes_sent += packet_bytes

    def on_nothing_to_send(self) -> None:
        """Nothing of data, that is."""
        self.probes_due = 0
        self.paced_until = None
        if self._parts.congestion.in_flight_bytes < self._parts.congestion.window_bytes:
            self._parts.congestion.on_idle()

    def mtu_probe(self, now: float) -> bytes | None:
        """A packet that tries a larger size, when one is due and the window has room."""
        size = self._parts.mtu.probe_bytes(now)
        congestion = self._parts.congestion
        if size is None or self._parts.sending.policy.largest_datagram_bytes is not None:
            return None
        if congestion.in_flight_bytes + size > congestion.window_bytes:
            return None
        number = self.number()
        frames = encode_frame(Ping()).ljust(size - OVERHEAD_BYTES, bytes((PADDING,)))
        packet = SentRun(number, size, congestion.begin_flight(now), is_mtu_probe=True)
        self._parts.mtu.on_probe_sent(size)
        self._account(now, [packet], size, 1)
        return encode_packet(self._parts.peer_id, number, frames)

    # -- how much -----------------------------------------------------------------------------------------------------

    def _allowed_datagrams(self, now: float, datagram_bytes: int) -> int:
        """How many datagrams with data may go in the next train."""
        self.paced_until = None
        sending = self._parts.sending
        if not sending.has_frames():
            self.on_nothing_to_send()
            return 0
        if self.probes_due:
            return min(self.probes_due, max(MAX_TRAIN_BYTES // datagram_bytes, 1))
        congestion = self._parts.congestion
        room_bytes = congestion.window_bytes - congestion.in_flight_bytes
        if room_bytes < datagram_bytes or self._parts.recovery.sent.packets >= MAX_SENT_PACKETS:
            return 0
        rate = congestion.rate_bytes_per_s
        limit = train_limit_bytes(self._parts.peer.receive_buffer_bytes, datagram_bytes)
        full_bytes = train_bytes(rate, datagram_bytes, limit)
        needed_bytes = min(full_bytes, max(sending.unsent_bytes, datagram_bytes), room_bytes)
        paced_bytes = self._pacer.room_bytes(now, rate, full_bytes)
        if paced_bytes < needed_bytes:
            self.paced_until = self._pacer.ready_at(rate, needed_bytes)
            return 0
        allowed = int(min(paced_bytes, room_bytes, full_bytes)) // datagram_bytes
        return min(max(allowed, 1), MAX_TRAIN_DATAGRAMS)

    # -- packets ------------------------------------------------------------------------------------------------------

    def _bulk(
        self, datagram_bytes: int, most: int, flight: Flight, parts: list[bytes], sent: list[SentRun]
    ) -> tuple[int, int]:
        """As many packets as possible of one long record: the hot path.

        All are full but perhaps the last, if the record ends with it. Gives their number, and the size of the last.
        """
        body_bytes = datagram_bytes - FULL_OVERHEAD_BYTES
        record = self._parts.sending.next_bulk(body_bytes)
        if record is None:
            return 0, 0
        body = memoryview(record.body)
        start = record.cut_bytes
        full = min(most, (len(body) - start) // body_bytes)
        stop = start + full * body_bytes
        left_bytes = len(body) - stop
        # What is left goes at once if it fills most of a packet; else it shares one with whatever comes next.
        takes_rest = full < most and 2 * left_bytes > body_bytes
        number = self.next_number
        sent.append(SentRun(number, datagram_bytes, flight, (Fragment(record, start, stop, number),), (), full))
        if takes_rest:
            rest = Fragment(record, stop, len(body), number + full)
            sent.append(SentRun(number + full, left_bytes + FULL_OVERHEAD_BYTES, flight, (rest,)))
            stop = len(body)
        self._parts.sending.take_bulk(record, stop - start)
        count = full + takes_rest
        packet_head = HEADER.pack(FIRST_BYTE, self._parts.peer_id, 0)[: -U32.size]
        kinds = [DATA] * count
        if stop == len(body):
            kinds[-1] |= LAST | END if record.ends_channel else LAST
        # All packets of the run step by step, each step one call into C for all of them.
        frame_heads = map(DATA_HEADER.pack, kinds, repeat(record.channel.id), repeat(record.number & _MASK))
        numbers = [place & _MASK for place in range(number, number + count)]
        starts = range(start, stop, body_bytes)
        headers = map(FULL_HEADER.pack, repeat(packet_head), numbers, frame_heads, starts)
        packets = [header + body[place : place + body_bytes] for header, place in zip(headers, starts, strict=True)]
        checksums = map(CHECKSUM.pack, map(crc32c, packets))
        parts += chain.from_iterable(zip(packets, checksums, strict=True))
        self.next_number = number + count
        return count, left_bytes + FULL_OVERHEAD_BYTES if takes_rest else datagram_bytes

    def _mixed_packet(
        self,
        now: float,
        datagram_bytes: int,
        with_data: bool,
        flight: Flight,
        parts: list[bytes],
        sent: list[SentRun],
    ) -> int:
        """One packet of whatever is due. Gives its size, 0 if there was nothing to put in."""
        room = datagram_bytes - OVERHEAD_BYTES
        number = self.next_number
        frames: list[bytes] = []
        said: list[Announcement] = []
        eliciting = False
        if self._parts.acknowledger.is_waiting:
            in_order = self._parts.in_order
            ack = self._parts.acknowledger.frame(now, None if in_order is None else in_order.expected)
            frames.append(encode_frame(ack))
            room -= len(frames[0])
        if self._parts.announcements.pending and self._parts.recovery.sent.packets < MAX_SENT_PACKETS:
            announced, said = self._parts.announcements.take(room)
            frames += announced
            room -= sum(map(len, announced))
            eliciting = bool(announced)
        items = self._data_items(room, not frames) if with_data else []
        fragments: list[Fragment] = []
        for place, item in enumerate(items):
            frames += item.encode(with_length=place < len(items) - 1)
            if isinstance(item, Fragment):
                self.fragments_resent += item.packet >= 0
                item.packet = number
                fragments.append(item)
        if not frames:
            return 0
        content = b"".join(frames)
        if eliciting and not items and self._parts.role == "client":
            content = content.ljust(SMALLEST_QUESTION_BYTES, bytes((PADDING,)))
        packet = encode_packet(self._parts.peer_id, number, content)
        parts.append(packet)
        self.next_number = number + 1
        if eliciting or items:
            sent.append(SentRun(number, len(packet), flight, fragments, said))
        return len(packet)

    def _data_items(self, room: int, packet_is_empty: bool) -> list[Fragment | UnreliableRecord]:
        """Records and fragments that fill the room; each but the last will be written with its length."""
        items: list[Fragment | UnreliableRecord] = []
        while room >= SMALLEST_ROOM_BYTES:
            item = self._parts.sending.next_frame(room, packet_is_empty=packet_is_empty)
            if item is None:
                break
            items.append(item)
            packet_is_empty = False
            room -= item.header_bytes() + item.body_bytes() + U16.size
        return items

    def _depart(
        self, now: float, parts: list[bytes], segment_bytes: int, count: int, sent: list[SentRun]
    ) -> tuple[bytes, int]:
        data = b"".join(parts)
        if count > 1:
            self._parts.mtu.is_wanted = True
        if sent:
            if self.probes_due:
                self.probes_due = max(self.probes_due - count, 0)
            self._account(now, sent, sum([run.size_bytes for run in sent]), count)
        else:
            self.packets_sent += count
            self.bytes_sent += len(data)
        return data, segment_bytes

    def _account(self, now: float, sent: list[SentRun], sent_bytes: int, count: int) -> None:
        self._parts.recovery.on_sent(sent, now)
        self._parts.congestion.on_sent(sent_bytes)
        self._pacer.on_sent(sent_bytes)
        self.packets_sent += count
        self.bytes_sent += sent_bytes
