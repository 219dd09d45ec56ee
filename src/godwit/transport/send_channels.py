"""The sending side of a connection: channels of records, cut into fragments as credit and retransmission scheme allow.

It decides which record is next, not when it is sent: the transmitter asks for fragments while the congestion window and
the pacer have room. The order is: fragments to be sent again, channel 0, unreliable records, the other channels in
turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from godwit.errors import ChannelError, RecordTooLargeError, SendBufferFullError
from godwit.limits import (
    CONTROL_QUEUE_BYTES,
    CONTROL_WINDOW_BYTES,
    MAX_CHANNELS,
    MAX_CONTROL_RECORD_BYTES,
    MAX_UNRELIABLE_BYTES,
    RECORD_COST_BYTES,
    UNRELIABLE_QUEUE_BYTES,
)
from godwit.wire.packet import (
    DATA,
    DATA_HEADER,
    END,
    FRAGMENT_HEADER,
    HAS_LENGTH,
    HAS_POSITION,
    LAST,
    U16,
    U32,
    UNRELIABLE,
    WHOLE,
)
from godwit.wire.parameters import Parameters

if TYPE_CHECKING:
    from godwit.transport.arq import SendPolicy

UNUSED: Final[Any] = ()
"""The value of a queue that was never used: an empty deque takes 0.7 kB, and a server has many thousands. Replace it
before the first append."""


class OutgoingChannel:
    """One ordered channel of records."""

    __slots__ = (
        "ended", "id", "last_reliable", "limit_bytes", "next_record", "next_unreliable", "pending", "queued",
        "queued_bytes", "sent_bytes", "unacked_reliable",
    )  # fmt: skip

    def __init__(self, channel: int, limit_bytes: int) -> None:
        self.id = channel
        self.limit_bytes = limit_bytes
        self.sent_bytes = 0
        """The cost of the records started so far, which `limit_bytes` bounds."""
        self.queued_bytes = 0
        """The cost of the records that are not completely acknowledged."""
        self.queued = 0
        """The number of these records."""
        self.last_reliable = -1
        """The newest record that the application sent as reliable."""
        self.unacked_reliable = 0
        """The number of records up to that one that are not completely acknowledged, so it may not be delivered yet."""
        self.next_record = 0
        self.next_unreliable = 0
        self.pending: deque[OutgoingRecord] = UNUSED
        self.ended = False


class OutgoingRecord:
    """A record, stored until every byte of it is acknowledged."""

    __slots__ = ("body", "channel", "cost_bytes", "cut_bytes", "ends_channel", "number", "unsettled")

    def __init__(self, channel: OutgoingChannel, number: int, body: bytes, ends_channel: bool) -> None:
        self.channel = channel
        self.number = number
        self.body = body
        self.ends_channel = ends_channel
        self.cost_bytes = len(body) + RECORD_COST_BYTES
        self.cut_bytes = 0
        """The number of bytes that have been cut into fragments."""
        self.unsettled = len(body) + 1
        """The number of unacknowledged bytes, and one for the end of the record, so that an empty record has one
        too."""


class Fragment(msgspec.Struct, gc=False):
    """A part of a record that was, or will be, sent in one packet."""

    record: OutgoingRecord
    start: int
    stop: int
    packet: int = -1
    """The number of the packet that carried it last."""
    position: int = -1
    settled: bool = False
    """Whether it was acknowledged, or replaced by smaller fragments."""

    @property
    def is_last(self) -> bool:
        return self.stop == len(self.record.body)

    def settle(self) -> bool:
        """Mark it as received. Return whether it was the last missing part of its record."""
        if self.settled:
            return False
        self.settled = True
        record = self.record
        record.unsettled -= self.stop - self.start + (self.stop == len(record.body))
        return not record.unsettled

    def header_bytes(self) -> int:
        """Return the length of its frame header, without the optional length field."""
        whole = self.start == 0 and self.is_last
        return (DATA_HEADER.size if whole else FRAGMENT_HEADER.size) + (U32.size if self.position >= 0 else 0)

    def body_bytes(self) -> int:
        return self.stop - self.start

    def encode(self, *, with_length: bool) -> tuple[bytes, bytes]:
        """Return its frame as header and body. With a length field, another frame may follow it."""
        record = self.record
        kind = DATA
        if self.is_last:
            kind |= LAST | END if record.ends_channel else LAST
        if with_length:
            kind |= HAS_LENGTH
        if self.position >= 0:
            kind |= HAS_POSITION
        number = record.number & 0xFFFFFFFF
        if self.start == 0 and self.is_last:
            header = DATA_HEADER.pack(kind | WHOLE, record.channel.id, number)
        else:
            header = FRAGMENT_HEADER.pack(kind, record.channel.id, number, self.start)
        if self.position >= 0:
            header += U32.pack(self.position & 0xFFFFFFFF)
        if with_length:
            header += U16.pack(self.stop - self.start)
        return header, record.body[self.start : self.stop]


class UnreliableRecord(msgspec.Struct, gc=False, frozen=True):
    """A record that is sent once."""

    channel: int
    number: int
    body: bytes

    def header_bytes(self) -> int:
        return DATA_HEADER.size

    def body_bytes(self) -> int:
        return len(self.body)

    def encode(self, *, with_length: bool) -> tuple[bytes, bytes]:
        kind = DATA | WHOLE | UNRELIABLE | (HAS_LENGTH if with_length else 0)
        header = DATA_HEADER.pack(kind, self.channel, self.number & 0xFFFFFFFF)
        return (header + U16.pack(len(self.body)) if with_length else header), self.body


SMALLEST_CUT_BYTES = 256
"""A record is not started in the remainder of a packet if less than this of it would fit."""


class SendChannels:
    """The outgoing channels of a connection."""

    __slots__ = (
        "_begun", "_begun_has_turn", "_channel_window_bytes", "_channels", "_confirmed", "_connection_window_bytes",
        "_control", "_control_in_flight", "_control_in_flight_bytes", "_limit_bytes", "_max_channels",
        "_max_record_bytes", "_next_channel", "_ready", "_send_buffer_bytes", "_sent_bytes", "_unreliable_bytes",
        "blocked", "control_queue_bytes", "newly_blocked", "policy", "queued_bytes", "unreliable", "unreliable_dropped",
        "unsent_bytes", "wants_writable",
    )  # fmt: skip

    def __init__(self, policy: SendPolicy, *, send_buffer_bytes: int, max_channels: int = MAX_CHANNELS) -> None:
        self.policy = policy
        self._send_buffer_bytes = send_buffer_bytes
        self.control_queue_bytes = CONTROL_QUEUE_BYTES
        self._control = OutgoingChannel(0, 0)
        self._channels: dict[int, OutgoingChannel] = {0: self._control}
        self._control_in_flight: list[OutgoingRecord] = []
        """The records of channel 0 from the oldest incomplete one on, which the receiver may have to hold."""
        self._control_in_flight_bytes = 0
        self._next_channel = 1
        self._ready: deque[OutgoingChannel] = UNUSED
        """Channels whose next record may be started, as far as is known."""
        self._begun: deque[OutgoingChannel] = UNUSED
        """Channels with a started record: its credit is reserved, so it can always be completed."""
        self._begun_has_turn = True
        self.unreliable: deque[UnreliableRecord] = UNUSED
        self._unreliable_bytes = 0
        # The peer's limits, set by handle_limits.
        self._channel_window_bytes = 0
        self._connection_window_bytes = 0
        self._limit_bytes = 0
        self._sent_bytes = 0
        self._max_record_bytes = 2**31
        self._max_channels = max_channels
        self.blocked: dict[int, int] = {}
        """Channels (0: the connection) without credit, and the limit of each."""
        self.newly_blocked: dict[int, None] = {}
        """The blocked channels that the peer has not been notified of."""
        self._confirmed: dict[int, int] = {}
        """The highest sequence that the peer has confirmed, by channel."""
        self.queued_bytes = 0
        """The cost of all records that are not completely acknowledged."""
        self.unsent_bytes = 0
        """The part of them that was never sent; an empty record counts as one byte."""
        self.wants_writable = False
        """Whether a send found the buffer full, and no Writable event has followed."""
        self.unreliable_dropped = 0

    # -- the application's calls --------------------------------------------------------------------------------------

    def open_channel(self) -> int:
        if len(self._channels) > self._max_channels:
            raise ChannelError(f"{self._max_channels} channels are open, the peer accepts no more: end one first")
        channel = self._next_channel
        self._next_channel += 1
        self._channels[channel] = OutgoingChannel(channel, self._channel_window_bytes)
        return channel

    def send(self, channel_id: int, body: bytes, *, reliable: bool, last: bool) -> bool:
        """Queue a record. Return whether it is sent reliably."""
        channel = self._channels.get(channel_id)
        if channel is None or channel.ended:
            raise ChannelError(f"channel {channel_id} is not open: open one with open_channel")
        if not reliable and self._send_unreliable(channel, body, last):
            return False
        most = self._max_record_bytes if channel_id else min(self._max_record_bytes, MAX_CONTROL_RECORD_BYTES)
        if len(body) > most:
            raise RecordTooLargeError(f"a record of {len(body)} bytes: the peer accepts at most {most}")
        record = OutgoingRecord(channel, channel.next_record, body, last)
        if not self._has_room(channel, record.cost_bytes, reliable):
            self.unreliable_dropped += 1
            return False
        if last and not channel_id:
            raise ChannelError("channel 0 cannot end: close the connection instead")
        channel.next_record += 1
        channel.queued += 1
        if reliable:
            channel.last_reliable = record.number
            channel.unacked_reliable = channel.queued
        channel.ended = last
        if channel.pending is UNUSED:
            channel.pending = deque()
        channel.pending.append(record)
        channel.queued_bytes += record.cost_bytes
        self.queued_bytes += record.cost_bytes
        self.unsent_bytes += len(body) + 1
        if channel is not self._control and len(channel.pending) == 1:
            if self._ready is UNUSED:
                self._ready, self._begun = deque(), deque()
            self._ready.append(channel)  # with more it is in a queue already, or blocked
        return True

    def _has_room(self, channel: OutgoingChannel, cost_bytes: int, must_have: bool) -> bool:
        """Return whether the send buffer has room. Channel 0 has its own: blocked data must not delay the credit for
        it."""
        control_bytes = self._control.queued_bytes
        if channel is self._control:
            queued_bytes, max_record_bytes = control_bytes, self.control_queue_bytes
        else:
            queued_bytes, max_record_bytes = self.queued_bytes - control_bytes, self._send_buffer_bytes
        if not queued_bytes or queued_bytes + cost_bytes <= max_record_bytes:
            return True
        if must_have:
            self.wants_writable = True
            raise SendBufferFullError(f"{queued_bytes} bytes wait to be sent: send again after the Writable event")
        return False

    def _send_unreliable(self, channel: OutgoingChannel, body: bytes, last: bool) -> bool:
        """Queue an unreliable record. Return False if it must be reliable, or it might overtake one that it depends
        on."""
        if len(body) > MAX_UNRELIABLE_BYTES:
            raise RecordTooLargeError(
                f"an unreliable record of {len(body)} bytes: send more than {MAX_UNRELIABLE_BYTES} reliably"
            )
        if last:
            raise ChannelError("an unreliable record cannot end a channel: it may get lost")
        if channel.unacked_reliable or channel.pending:
            return False
        if self.unreliable is UNUSED:
            self.unreliable = deque()
        self.unreliable.append(UnreliableRecord(channel.id, channel.next_unreliable, body))
        channel.next_unreliable += 1
        self._unreliable_bytes += len(body) + RECORD_COST_BYTES
        while self._unreliable_bytes > UNRELIABLE_QUEUE_BYTES:
            self._unreliable_bytes -= len(self.unreliable.popleft().body) + RECORD_COST_BYTES
            self.unreliable_dropped += 1
        return True

    @property
    def waiting_bytes(self) -> int:
        """The bytes that were never sent, reliable and unreliable; an empty reliable record counts as one."""
        return self.unsent_bytes + self._unreliable_bytes

    @property
    def buffered_bytes(self) -> int:
        """The bytes that are queued or unacknowledged."""
        return self.queued_bytes + self._unreliable_bytes

    def release(self) -> None:
        """Drop all records, because the connection has ended."""
        for channel in self._channels.values():
            channel.pending = UNUSED
        self._ready = self._begun = self.unreliable = UNUSED
        self._control_in_flight.clear()
        self.queued_bytes = self.unsent_bytes = self._unreliable_bytes = 0
        self.policy.release()

    # -- input from the peer ------------------------------------------------------------------------------------------

    def handle_limits(self, peer: Parameters) -> str:
        """Store the peer's limits from the handshake. Return why queued records exceed them, or an empty string."""
        self._channel_window_bytes = peer.channel_window_bytes
        self._connection_window_bytes = self._limit_bytes = peer.connection_window_bytes
        self._max_record_bytes = peer.max_record_bytes
        self._max_channels = min(peer.max_channels, self._max_channels)
        for channel in self._channels.values():
            channel.limit_bytes = peer.channel_window_bytes
        longest = max((len(each.body) for one in self._channels.values() for each in one.pending), default=0)
        if longest > peer.max_record_bytes:
            return f"a record of {longest} bytes was queued: the peer accepts at most {peer.max_record_bytes}"
        if len(self._channels) - 1 > peer.max_channels:
            return f"{len(self._channels) - 1} channels were opened: the peer accepts at most {peer.max_channels}"
        return ""

    def handle_credit(self, channel_id: int, limit_bytes: int) -> None:
        """Raise the limit of a channel (0: the connection); a late, lower limit is ignored."""
        if channel_id == 0:
            if limit_bytes > self._limit_bytes:
                self._limit_bytes = limit_bytes
                self.blocked.pop(0, None)
            return
        channel = self._channels.get(channel_id)
        if channel is not None and limit_bytes > channel.limit_bytes:
            channel.limit_bytes = limit_bytes
            if self.blocked.pop(channel_id, None) is not None:
                self._ready.append(channel)

    def handle_confirm(self, channel_id: int, sequence: int) -> bool:
        """Return whether a confirm is new: not a repeat, not late, and for a channel that was opened."""
        if not 0 < channel_id < self._next_channel or sequence <= self._confirmed.get(channel_id, -1):
            return False
        self._confirmed[channel_id] = sequence
        if len(self._confirmed) > MAX_CHANNELS:
            del self._confirmed[next(iter(self._confirmed))]  # of a channel that ended long ago
        return True

    def handle_completed(self, records: Sequence[OutgoingRecord]) -> bool:
        """Remove records that arrived completely. Return whether to send a Writable event."""
        for record in records:
            self.queued_bytes -= record.cost_bytes
            channel = record.channel
            channel.queued_bytes -= record.cost_bytes
            channel.queued -= 1
            channel.unacked_reliable -= record.number <= channel.last_reliable
            if channel.ended and not channel.queued_bytes:
                # Not earlier, because the peer counts the channel as open until its last record has arrived.
                del self._channels[channel.id]
        in_flight = self._control_in_flight
        while in_flight and not in_flight[0].unsettled:
            self._control_in_flight_bytes -= in_flight.pop(0).cost_bytes
        if not self.wants_writable or self._control.queued_bytes > CONTROL_QUEUE_BYTES // 2:
            return False
        self.wants_writable = self.queued_bytes - self._control.queued_bytes > self._send_buffer_bytes // 2
        return not self.wants_writable

    # -- the order of sending -----------------------------------------------------------------------------------------

    def has_frames(self) -> bool:
        """Return whether next_frame would return a frame, given room."""
        policy = self.policy
        if policy.next_resend() is not None or self.unreliable:
            return True
        return policy.may_send_new() and (self._next_control() is not None or self._next_channel_record() is not None)

    def next_frame(self, room_bytes: int, *, packet_is_empty: bool) -> Fragment | UnreliableRecord | None:
        """Return the next fragment or record that fits into `room_bytes` of a packet, or None."""
        policy = self.policy
        resend = policy.next_resend()
        if resend is not None:
            return self._resend(resend, room_bytes, packet_is_empty)
        if policy.may_send_new():
            record = self._next_control()
            if record is not None:
                return self._cut(record, room_bytes, packet_is_empty)
        if self.unreliable:
            if DATA_HEADER.size + len(self.unreliable[0].body) > room_bytes:
                return None
            return self.pop_unreliable()
        if policy.may_send_new():
            record = self._next_channel_record()
            if record is not None:
                return self._cut(record, room_bytes, packet_is_empty)
        return None

    def next_lone(self, max_record_bytes: int) -> OutgoingRecord | None:
        """Return the only pending record and count it as sent, if it is short, has credit and is not of channel 0."""
        ready = self._ready
        if len(ready) != 1 or self._begun or self._control.pending or len(ready[0].pending) != 1:
            return None
        channel = ready[0]
        record = channel.pending[0]
        cost = record.cost_bytes
        if (
            cost > max_record_bytes + RECORD_COST_BYTES
            or channel.sent_bytes + cost > channel.limit_bytes
            or self._sent_bytes + cost > self._limit_bytes
        ):
            return None
        ready.popleft()
        channel.pending.popleft()
        channel.sent_bytes += cost
        self._sent_bytes += cost
        record.cut_bytes = len(record.body)
        self.unsent_bytes -= len(record.body) + 1  # blocked channels may have more
        self._begun_has_turn = True
        return record

    def pop_unreliable(self) -> UnreliableRecord:
        """Remove and return the oldest unreliable record."""
        record = self.unreliable.popleft()
        self._unreliable_bytes -= len(record.body) + RECORD_COST_BYTES
        return record

    def next_bulk(self, body_bytes: int) -> OutgoingRecord | None:
        """Return a record of which at least one full packet is left, if it is next and nothing precedes it."""
        policy = self.policy
        if (
            policy.largest_datagram_bytes is not None
            or self._control.pending
            or self.unreliable
            or policy.next_resend() is not None
        ):
            return None
        record = self._next_channel_record()
        if record is None or len(record.body) - record.cut_bytes < body_bytes:
            return None
        return record

    def _resend(self, fragment: Fragment, room_bytes: int, packet_is_empty: bool) -> Fragment | None:
        policy = self.policy
        size = fragment.stop - fragment.start
        if fragment.header_bytes() + size > room_bytes:
            if not packet_is_empty:
                return None
            # The path carries less than when the fragment was cut.
            middle = fragment.start + room_bytes - FRAGMENT_HEADER.size
            first = Fragment(fragment.record, fragment.start, middle)
            policy.replace_resend((first, Fragment(fragment.record, middle, fragment.stop)))
            fragment = first
        policy.mark_resent()
        return fragment

    def _cut(self, record: OutgoingRecord, room_bytes: int, packet_is_empty: bool) -> Fragment | None:
        left = len(record.body) - record.cut_bytes
        position_bytes = U32.size if self.policy.largest_datagram_bytes is not None else 0
        whole_fits = record.cut_bytes == 0 and DATA_HEADER.size + position_bytes + left <= room_bytes
        size = left if whole_fits else min(left, room_bytes - FRAGMENT_HEADER.size - position_bytes)
        if size < left and not packet_is_empty and size < SMALLEST_CUT_BYTES:
            return None
        if size < 0 or (size == 0 and left > 0):
            return None
        fragment = Fragment(record, record.cut_bytes, record.cut_bytes + size)
        self.mark_cut(record, size)
        self.policy.handle_new(fragment)
        return fragment

    def mark_cut(self, record: OutgoingRecord, more_bytes: int) -> None:
        """Count `more_bytes` of a record that next_bulk or one of the methods below returned as cut."""
        channel = record.channel
        is_control = channel is self._control
        if record.cut_bytes == 0:
            # The whole cost is reserved when a record starts, so that a started record can always be completed.
            channel.sent_bytes += record.cost_bytes
            if is_control:
                self._control_in_flight.append(record)
                self._control_in_flight_bytes += record.cost_bytes
            else:
                self._sent_bytes += record.cost_bytes
                self._ready.popleft()
                self._begun.appendleft(channel)
        # New and started records alternate, so that a long record does not delay other channels.
        self._begun_has_turn = record.cut_bytes == 0
        record.cut_bytes += more_bytes
        self.unsent_bytes -= more_bytes
        if record.cut_bytes < len(record.body):
            if not is_control:
                self._begun.rotate(-1)
            return
        channel.pending.popleft()
        self.unsent_bytes -= 1
        if is_control:
            return
        self._begun.popleft()
        if channel.pending:
            self._ready.append(channel)

    def _next_control(self) -> OutgoingRecord | None:
        pending = self._control.pending
        if not pending:
            return None
        record = pending[0]
        if record.cut_bytes:
            return record
        return record if self._control_in_flight_bytes + record.cost_bytes <= CONTROL_WINDOW_BYTES else None

    def _next_channel_record(self) -> OutgoingRecord | None:
        begun = self._begun[0].pending[0] if self._begun else None
        if begun is not None and self._begun_has_turn:
            return begun
        return self._next_new_record() or begun

    def _next_new_record(self) -> OutgoingRecord | None:
        """Return the next record that has the credit to start."""
        ready = self._ready
        while ready:
            channel = ready[0]
            record = channel.pending[0]
            cost = record.cost_bytes
            if channel.sent_bytes + min(cost, self._channel_window_bytes) > channel.limit_bytes:
                self.blocked[channel.id] = channel.limit_bytes
                self.newly_blocked[channel.id] = None
                ready.popleft()
            elif self._sent_bytes + min(cost, self._connection_window_bytes) > self._limit_bytes:
                if self.blocked.get(0) != self._limit_bytes:
                    self.blocked[0] = self._limit_bytes
                    self.newly_blocked[0] = None
                return None
            else:
                return record
        return None
