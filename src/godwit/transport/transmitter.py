"""Packs the output of a connection's components into packets and trains, as window and pacer allow.

A packet carries, in this order: the acknowledgement, control frames, data. All datagrams of a train except the last
have one size, because the kernel cuts a train into equal parts; so a packet that is not full ends its train.
"""

from __future__ import annotations

import struct
from typing import Final

from godwit.limits import MAX_PACKET_GAP_THRESHOLD, MAX_SENT_PACKETS, MAX_TRAIN_BYTES, MAX_TRAIN_DATAGRAMS
from godwit.transport.congestion import Flight, Pacer, train_bytes, train_limit_bytes
from godwit.transport.connection_state import Components
from godwit.transport.protection import EXTRA_BYTES
from godwit.transport.recovery import ControlFrameKey, SentRun
from godwit.transport.send_channels import Fragment, UnreliableRecord
from godwit.wire.bulk import encode_run
from godwit.wire.packet import (
    CHECKSUM,
    DATA,
    DATA_HEADER,
    END,
    FIRST_BYTE,
    FRAGMENT_HEADER,
    HEADER,
    LAST,
    OVERHEAD_BYTES,
    PADDING,
    TOKEN_BYTES,
    U16,
    U32,
    PingFrame,
    ResetFrame,
    encode_frame,
    encode_packet,
)

_MASK: Final = 0xFFFFFFFF
SMALLEST_ROOM_BYTES: Final = 32
"""If less is left of a packet, it is not filled further."""
SMALLEST_QUESTION_BYTES: Final = len(encode_frame(ResetFrame(bytes(TOKEN_BYTES)))) + 1
"""The shortest content of a client's packet that only asks for a reply: a server that does not know the connection
replies with a reset, but only to a longer packet."""

SKIP_INTERVAL: Final = 128
SKIP_SPREAD: Final = 1024
"""A number is skipped after at least SKIP_INTERVAL packets and up to SKIP_SPREAD more, at the start of a train."""
assert SKIP_INTERVAL > MAX_PACKET_GAP_THRESHOLD, "at most one skipped number matters to the detection of a loss"

FRAGMENT_HEAD: Final = struct.Struct(">9sI")
"""The header of a fragment in one call; all but its offset is packed before for a run of packets."""
FULL_OVERHEAD_BYTES: Final = HEADER.size + FRAGMENT_HEADER.size + CHECKSUM.size
"""The bytes of a full packet of a long record that are not its body."""


class Transmitter:
    """Call next_train until it returns None; then `paced_until` is when to try again, if only the pacer prevented
    it."""

    __slots__ = (
        "_components", "_full_overhead_bytes", "_overhead_bytes", "_pacer", "_protection", "_skips_at",
        "bytes_sent", "fragments_resent", "next_number", "paced_until",
        "packets_sent", "probes_due",
    )  # fmt: skip

    def __init__(self, components: Components, now: float) -> None:
        self._components = components
        self._protection = components.protection
        self._overhead_bytes = OVERHEAD_BYTES
        self._full_overhead_bytes = FULL_OVERHEAD_BYTES
        if self._protection is not None:
            self._overhead_bytes += EXTRA_BYTES
            self._full_overhead_bytes += EXTRA_BYTES
        self._pacer = Pacer(now)
        self._skips_at = 0
        """The packet number from which on the next one is skipped. 0: not drawn yet."""
        self.next_number = 0
        """One more than the number of the newest packet sent."""
        self.probes_due = 0
        """Packets that may be sent regardless of window and pacer, because the probe timer fired."""
        self.paced_until: float | None = None
        self.packets_sent = 0
        self.bytes_sent = 0
        self.fragments_resent = 0

    def datagram_bytes(self) -> int:
        most = self._components.send_channels.policy.largest_datagram_bytes
        return self._components.mtu.datagram_bytes if most is None else min(most, self._components.mtu.datagram_bytes)

    def train_payload_bytes(self) -> int:
        """Return how many bytes of one record fill the longest train that may be sent at once."""
        datagram_bytes = self.datagram_bytes()
        longest = train_limit_bytes(self._components.peer.receive_buffer_bytes, datagram_bytes)
        return min(longest // datagram_bytes, MAX_TRAIN_DATAGRAMS) * (datagram_bytes - self._full_overhead_bytes)

    def number(self) -> int:
        """Return the next packet number, for a packet that is built elsewhere."""
        number = self.next_number
        self.next_number = number + 1
        return number

    def next_train(self, now: float) -> tuple[bytes, int] | None:
        """Return the bytes of a train and the size of its datagrams, or None if there is nothing to send now."""
        datagram_bytes = self.datagram_bytes()
        due_at = self._components.acknowledger.due_at
        has_control = due_at is not None and due_at <= now
        if not has_control and self._components.control_frames.pending:
            has_control = self._components.recovery.sent.packets < MAX_SENT_PACKETS
        allowed = self._allowed_datagrams(now, datagram_bytes)
        if not has_control and not allowed:
            return None
        if (
            allowed > 1
            and self.next_number >= self._skips_at
            and self._components.send_channels.unsent_bytes > datagram_bytes
        ):
            self._skip()
        flight = self._components.congestion.begin_flight(now)
        chunks: list[bytes] = []
        sent: list[SentRun] = []
        count = 0
        packet_bytes = first_bytes = 0
        most = max(allowed, 1)
        while count < most:
            if not has_control:
                bulk, packet_bytes = self._bulk(datagram_bytes, allowed - count, flight, chunks, sent)
                if bulk:
                    count += bulk
                    first_bytes = datagram_bytes
                    if packet_bytes < datagram_bytes:
                        break
                    continue
            packet_bytes = self._mixed_packet(now, datagram_bytes, count < allowed, flight, chunks, sent)
            if not packet_bytes:
                break
            has_control = False
            count += 1
            first_bytes = first_bytes or packet_bytes
            if packet_bytes < datagram_bytes:
                break
        if not count:
            return None
        return self._depart(now, chunks, first_bytes, count, sent)

    def _skip(self) -> None:
        """Skip a packet number at random intervals (RFC 9000, 21.4).

        A peer that acknowledges packets it has not received, to make the sender exceed what the path carries, does not
        know
        which numbers were skipped. With at most one packet to send, nothing can be gained that way.
        """
        if self._skips_at:
            self._components.recovery.sent.skip(self.next_number)
            self.next_number += 1
        drawn = int.from_bytes(self._components.entropy(2), "big") % SKIP_SPREAD
        self._skips_at = self.next_number + SKIP_INTERVAL + drawn

    def allows_one(self, now: float) -> bool:
        """Return whether window and pacer allow one packet with data, if no more follow."""
        congestion = self._components.congestion
        datagram_bytes = self._components.mtu.datagram_bytes
        if self.probes_due or congestion.window_bytes - congestion.in_flight_bytes < datagram_bytes:
            return False
        rate = congestion.rate_bytes_per_s
        limit = train_limit_bytes(self._components.peer.receive_buffer_bytes, datagram_bytes)
        return self._pacer.room_bytes(now, rate, train_bytes(rate, datagram_bytes, limit)) >= datagram_bytes

    def handle_sent_elsewhere(self, packet_bytes: int) -> None:
        """Account for a packet with the next number that FastSender has built, with nothing else to send."""
        self.next_number += 1
        self.probes_due = 0
        self.paced_until = None
        self._pacer.bucket_bytes -= packet_bytes
        self.packets_sent += 1
        self.bytes_sent += packet_bytes

    def mtu_probe(self, now: float) -> bytes | None:
        """Return a packet that probes a larger datagram size, if one is due and the window has room."""
        size = self._components.mtu.probe_bytes(now)
        congestion = self._components.congestion
        if size is None or self._components.send_channels.policy.largest_datagram_bytes is not None:
            return None
        if congestion.in_flight_bytes + size > congestion.window_bytes:
            return None
        number = self.number()
        frames = encode_frame(PingFrame()).ljust(size - self._overhead_bytes, bytes((PADDING,)))
        packet = SentRun(number, size, congestion.begin_flight(now), is_mtu_probe=True)
        self._components.mtu.handle_probe_sent(size)
        self._account(now, [packet], size, 1)
        return self._packet(frames, number)

    # -- how much -----------------------------------------------------------------------------------------------------

    def _allowed_datagrams(self, now: float, datagram_bytes: int) -> int:
        """Return how many datagrams with data may be in the next train."""
        self.paced_until = None
        send_channels = self._components.send_channels
        if not send_channels.has_frames():
            self.probes_due = 0
            self._components.congestion.handle_idle()
            return 0
        if self.probes_due:
            return min(self.probes_due, max(MAX_TRAIN_BYTES // datagram_bytes, 1))
        congestion = self._components.congestion
        room_bytes = congestion.window_bytes - congestion.in_flight_bytes
        if room_bytes < datagram_bytes or self._components.recovery.sent.packets >= MAX_SENT_PACKETS:
            return 0
        rate = congestion.rate_bytes_per_s
        limit = train_limit_bytes(self._components.peer.receive_buffer_bytes, datagram_bytes)
        full_bytes = train_bytes(rate, datagram_bytes, limit)
        needed_bytes = min(full_bytes, max(send_channels.unsent_bytes, datagram_bytes), room_bytes)
        paced_bytes = self._pacer.room_bytes(now, rate, full_bytes)
        if paced_bytes < needed_bytes:
            self.paced_until = self._pacer.ready_at(rate, needed_bytes)
            return 0
        allowed = int(min(paced_bytes, room_bytes, full_bytes)) // datagram_bytes
        return min(max(allowed, 1), MAX_TRAIN_DATAGRAMS)

    # -- packets ------------------------------------------------------------------------------------------------------

    def _bulk(
        self, datagram_bytes: int, most: int, flight: Flight, chunks: list[bytes], sent: list[SentRun]
    ) -> tuple[int, int]:
        """Append as many packets as possible of one long record: the hot path.

        All are full, except the last if the record ends in it. Return their number, and the size of the last.
        """
        body_bytes = datagram_bytes - self._full_overhead_bytes
        record = self._components.send_channels.next_bulk(body_bytes)
        if record is None:
            return 0, 0
        body = record.body
        start = record.cut_bytes
        full = min(most, (len(body) - start) // body_bytes)
        stop = start + full * body_bytes
        left_bytes = len(body) - stop
        # The remainder is sent now if it fills most of a packet; otherwise it shares one with the next record.
        takes_rest = full < most and 2 * left_bytes > body_bytes
        number = self.next_number
        sent.append(SentRun(number, datagram_bytes, flight, (Fragment(record, start, stop, number),), (), full))
        if takes_rest:
            rest = Fragment(record, stop, len(body), number + full)
            sent.append(SentRun(number + full, left_bytes + self._full_overhead_bytes, flight, (rest,)))
            stop = len(body)
        self._components.send_channels.mark_cut(record, stop - start)
        count = full + takes_rest
        head = DATA_HEADER.pack(DATA, record.channel.id, record.number & _MASK)
        last_head = head
        if stop == len(body):
            kind = DATA | LAST | END if record.ends_channel else DATA | LAST
            last_head = DATA_HEADER.pack(kind, record.channel.id, record.number & _MASK)
        if self._protection is not None:
            chunks += self._protection.seal_run(_fragments(body, start, stop, body_bytes, head, last_head), number)
        else:
            packet_head = HEADER.pack(FIRST_BYTE, self._components.peer_id, 0)[: -U32.size]
            chunks.append(encode_run(body, start, stop, body_bytes, packet_head, number, head, last_head))
        self.next_number = number + count
        return count, left_bytes + self._full_overhead_bytes if takes_rest else datagram_bytes

    def _packet(self, frames: bytes, number: int) -> bytes:
        """Return a packet with these frames."""
        if self._protection is None:
            return encode_packet(self._components.peer_id, number, frames)
        return self._protection.seal_frames(frames, number)

    def _mixed_packet(
        self,
        now: float,
        datagram_bytes: int,
        with_data: bool,
        flight: Flight,
        chunks: list[bytes],
        sent: list[SentRun],
    ) -> int:
        """Append one packet of everything that is due. Return its size, or 0 if there was nothing to send."""
        room = datagram_bytes - self._overhead_bytes
        number = self.next_number
        frames: list[bytes] = []
        control_keys: list[ControlFrameKey] = []
        eliciting = False
        if self._components.acknowledger.is_waiting:
            in_order = self._components.in_order
            ack = self._components.acknowledger.next_frame(now, None if in_order is None else in_order.expected)
            frames.append(encode_frame(ack))
            room -= len(frames[0])
        if self._components.control_frames.pending and self._components.recovery.sent.packets < MAX_SENT_PACKETS:
            control, control_keys = self._components.control_frames.next_frames(room)
            frames += control
            room -= sum(map(len, control))
            eliciting = bool(control)
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
        if eliciting and not items and self._components.role == "client":
            content = content.ljust(SMALLEST_QUESTION_BYTES, bytes((PADDING,)))
        if self._protection is None:
            packet = encode_packet(self._components.peer_id, number, content)
        else:
            packet = self._protection.seal_frames(content, number)
        chunks.append(packet)
        self.next_number = number + 1
        if eliciting or items:
            sent.append(SentRun(number, len(packet), flight, fragments, control_keys))
        return len(packet)

    def _data_items(self, room: int, packet_is_empty: bool) -> list[Fragment | UnreliableRecord]:
        """Return the records and fragments that fill the room; each except the last is encoded with its length."""
        items: list[Fragment | UnreliableRecord] = []
        while room >= SMALLEST_ROOM_BYTES:
            item = self._components.send_channels.next_frame(room, packet_is_empty=packet_is_empty)
            if item is None:
                break
            items.append(item)
            packet_is_empty = False
            room -= item.header_bytes() + item.body_bytes() + U16.size
        return items

    def _depart(
        self, now: float, chunks: list[bytes], segment_bytes: int, count: int, sent: list[SentRun]
    ) -> tuple[bytes, int]:
        data = b"".join(chunks)
        if count > 1:
            self._components.mtu.is_wanted = True
        if sent:
            if self.probes_due:
                self.probes_due = max(self.probes_due - count, 0)
            self._account(now, sent, sum([run.size_bytes for run in sent]), count)
        else:
            self.packets_sent += count
            self.bytes_sent += len(data)
        return data, segment_bytes

    def _account(self, now: float, sent: list[SentRun], sent_bytes: int, count: int) -> None:
        self._components.recovery.handle_sent(sent, now)
        self._components.congestion.handle_sent(sent_bytes)
        self._pacer.bucket_bytes -= sent_bytes
        self.packets_sent += count
        self.bytes_sent += sent_bytes


def _fragments(body: bytes, start: int, stop: int, body_bytes: int, head: bytes, last_head: bytes) -> list[bytes]:
    """Return the frames of a run of packets: what encode_run puts into packets."""
    view = memoryview(body)[:stop]
    starts = range(start, stop, body_bytes)
    heads = [head] * len(starts)
    heads[-1] = last_head
    packed = map(FRAGMENT_HEAD.pack, heads, starts)
    return [one + view[place : place + body_bytes] for one, place in zip(packed, starts, strict=True)]
