"""The sending half of a connection: channels of records, cut into fragments as credit and discipline allow.

It decides what goes next, never when: the connection asks for fragments while the congestion window and the pacer have
room. Order: what is to be sent again, then channel 0, then unreliable records, then the other channels in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

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
from godwit.transport.arq import SendPolicy
from godwit.transport.fragment import UNUSED, Fragment, OutgoingChannel, OutgoingRecord, UnreliableRecord
from godwit.wire.frames import DATA_HEADER, FRAGMENT_HEADER, U32
from godwit.wire.parameters import Parameters

SMALLEST_CUT_BYTES = 256
"""A record is not begun in what is left of a packet if less than this of it would fit."""


class SendHalf:
    """Feed: open_channel, send, on_credit. Drain: next_frame, and next_bulk for a run of full packets."""

    __slots__ = (
        "_begun", "_begun_has_turn", "_channel_window_bytes", "_channels", "_confirmed", "_connection_window_bytes",
        "_control", "_control_under_way", "_control_under_way_bytes", "_limit_bytes", "_max_channels",
        "_max_record_bytes", "_next_channel", "_ready", "_send_buffer_bytes", "_sent_bytes", "_unreliable_bytes",
        "blocked", "control_queue_bytes", "newly_blocked", "policy", "queued_bytes", "refused", "unreliable",
        "unreliable_dropped", "unsent_bytes",
    )  # fmt: skip

    def __init__(self, policy: SendPolicy, *, send_buffer_bytes: int, max_channels: int = MAX_CHANNELS) -> None:
        self.policy = policy
        self._send_buffer_bytes = send_buffer_bytes
        self.control_queue_bytes = CONTROL_QUEUE_BYTES
        self._control = OutgoingChannel(0, 0)
        self._channels: dict[int, OutgoingChannel] = {0: self._control}
        self._control_under_way: list[OutgoingRecord] = []
        """Of channel 0, from the oldest record that has not wholly arrived on: what the receiver may have to hold."""
        self._control_under_way_bytes = 0
        self._next_channel = 1
        self._ready: deque[OutgoingChannel] = UNUSED
        """Channels whose next record may begin, as far as is known."""
        self._begun: deque[OutgoingChannel] = UNUSED
        """Channels with a record that has begun: its credit is taken, it can always go on."""
        self._begun_has_turn = True
        self.unreliable: deque[UnreliableRecord] = UNUSED
        self._unreliable_bytes = 0
        # What the other side allows; set once the handshake has told it.
        self._channel_window_bytes = 0
        self._connection_window_bytes = 0
        self._limit_bytes = 0
        self._sent_bytes = 0
        self._max_record_bytes = 2**31
        self._max_channels = max_channels
        self.blocked: dict[int, int] = {}
        """Channels (0: the connection) that wait for credit, with the limit they ran into."""
        self.newly_blocked: dict[int, None] = {}
        """Those of which the other side has not been told."""
        self._confirmed: dict[int, int] = {}
        """The highest sequence that the other side has confirmed of each channel."""
        self.queued_bytes = 0
        """The cost of all records that are not wholly acknowledged."""
        self.unsent_bytes = 0
        """Of these, what was never sent."""
        self.refused = False
        """A send found the buffer full and nobody has been told of room since."""
        self.unreliable_dropped = 0

    # -- what the application does ------------------------------------------------------------------------------------

    def open_channel(self) -> int:
        if len(self._channels) > self._max_channels:
            raise ChannelError(f"{self._max_channels} channels are open, the other side takes no more: end one first")
        channel = self._next_channel
        self._next_channel += 1
        self._channels[channel] = OutgoingChannel(channel, self._channel_window_bytes)
        return channel

    def send(self, channel_id: int, body: bytes, *, reliable: bool, last: bool) -> bool:
        """Gives whether it goes reliably."""
        channel = self._channels.get(channel_id)
        if channel is None or channel.ended:
            raise ChannelError(f"channel {channel_id} is not open: open_channel gives one")
        if not reliable and self._send_unreliable(channel, body, last):
            return False
        most = self._max_record_bytes if channel_id else min(self._max_record_bytes, MAX_CONTROL_RECORD_BYTES)
        if len(body) > most:
            raise RecordTooLargeError(f"a record of {len(body)} bytes: the other side takes at most {most}")
        record = OutgoingRecord(channel, channel.next_record, body, last)
        if not self._has_room(channel, record.cost_bytes, reliable):
            self.unreliable_dropped += 1
            return False
        if last and not channel_id:
            raise ChannelError("channel 0 cannot end: close the connection instead")
        channel.next_record += 1
        channel.queued += 1
        if reliable:
            channel.last_firm = record.number
            channel.awaited = channel.queued
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
            self._ready.append(channel)  # with more it stands in a queue already, or waits for credit
        return True

    def _has_room(self, channel: OutgoingChannel, cost_bytes: int, must_have: bool) -> bool:
        """Channel 0 has a buffer of its own: data that waits for credit must not hold up what would give it."""
        control_bytes = self._control.queued_bytes
        if channel is self._control:
            queued_bytes, most_bytes = control_bytes, self.control_queue_bytes
        else:
            queued_bytes, most_bytes = self.queued_bytes - control_bytes, self._send_buffer_bytes
        if not queued_bytes or queued_bytes + cost_bytes <= most_bytes:
            return True
        if must_have:
            self.refused = True
            raise SendBufferFullError(f"{queued_bytes} bytes wait to be sent: send again after the Writable event")
        return False

    def _send_unreliable(self, channel: OutgoingChannel, body: bytes, last: bool) -> bool:
        """False when it has to go reliably: else it might overtake a record that the reader needs to understand it."""
        if len(body) > MAX_UNRELIABLE_BYTES:
            raise RecordTooLargeError(
                f"an unreliable record of {len(body)} bytes: send more than {MAX_UNRELIABLE_BYTES} reliably"
            )
        if last:
            raise ChannelError("an unreliable record cannot end a channel: it may get lost")
        if channel.awaited or channel.pending:
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
        """What was never sent, of both kinds; none of them counts as nothing."""
        return self.unsent_bytes + self._unreliable_bytes

    @property
    def buffered_bytes(self) -> int:
        """What waits to be sent or acknowledged."""
        return self.queued_bytes + self._unreliable_bytes

    def release(self) -> None:
        """Drop all records, because the connection has ended."""
        for channel in self._channels.values():
            channel.pending = UNUSED
        self._ready = self._begun = self.unreliable = UNUSED
        self._control_under_way.clear()
        self.queued_bytes = self.unsent_bytes = self._unreliable_bytes = 0
        self.policy.release()

    # -- what the other side says -------------------------------------------------------------------------------------

    def on_limits(self, peer: Parameters) -> str:
        """The handshake is done: the other side's limits are known. Gives what is beyond them already, or nothing."""
        self._channel_window_bytes = peer.channel_window_bytes
        self._connection_window_bytes = self._limit_bytes = peer.connection_window_bytes
        self._max_record_bytes = peer.max_record_bytes
        self._max_channels = min(peer.max_channels, self._max_channels)
        for channel in self._channels.values():
            channel.limit_bytes = peer.channel_window_bytes
        longest = max((len(each.body) for one in self._channels.values() for each in one.pending), default=0)
        if longest > peer.max_record_bytes:
            return f"a record of {longest} bytes was queued: the other side takes at most {peer.max_record_bytes}"
        if len(self._channels) - 1 > peer.max_channels:
            return f"{len(self._channels) - 1} channels were opened: the other side takes at most {peer.max_channels}"
        return ""

    def on_credit(self, channel_id: int, limit_bytes: int) -> None:
        """The other side allows more; an old word that arrives late changes nothing."""
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

    def on_confirm(self, channel_id: int, sequence: int) -> bool:
        """Whether a confirm is news: repeats and late ones are not, nor is one for a channel that never was."""
        if not 0 < channel_id < self._next_channel or sequence <= self._confirmed.get(channel_id, -1):
            return False
        self._confirmed[channel_id] = sequence
        if len(self._confirmed) > MAX_CHANNELS:
            del self._confirmed[next(iter(self._confirmed))]  # the channel that was confirmed first, long ended
        return True

    def on_completed(self, records: Sequence[OutgoingRecord]) -> bool:
        """These records have wholly arrived. True when a refused sender should hear of the room."""
        for record in records:
            self.queued_bytes -= record.cost_bytes
            channel = record.channel
            channel.queued_bytes -= record.cost_bytes
            channel.queued -= 1
            channel.awaited -= record.number <= channel.last_firm
            if channel.ended and not channel.queued_bytes:
                # Only now: the other side counts the channel as open until its last record has arrived.
                del self._channels[channel.id]
        under_way = self._control_under_way
        while under_way and not under_way[0].unsettled:
            self._control_under_way_bytes -= under_way.pop(0).cost_bytes
        if not self.refused or self._control.queued_bytes > CONTROL_QUEUE_BYTES // 2:
            return False
        self.refused = self.queued_bytes - self._control.queued_bytes > self._send_buffer_bytes // 2
        return not self.refused

    # -- what goes next -----------------------------------------------------------------------------------------------

    def has_frames(self) -> bool:
        """Whether next_frame would give one, given room."""
        policy = self.policy
        if policy.next_resend() is not None or self.unreliable:
            return True
        return policy.may_send_new() and (self._next_control() is not None or self._next_channel_record() is not None)

    def next_frame(self, room_bytes: int, *, packet_is_empty: bool) -> Fragment | UnreliableRecord | None:
        """The next thing that fits into so much of a packet; None if nothing does."""
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
            return self.take_unreliable()
        if policy.may_send_new():
            record = self._next_channel_record()
            if record is not None:
                return self._cut(record, room_bytes, packet_is_empty)
        return None

    def take_lone(self, most_bytes: int) -> OutgoingRecord | None:
        """The only record that waits, if it is so short, not of channel 0 and has the credit. It counts as sent."""
        ready = self._ready
        if len(ready) != 1 or self._begun or self._control.pending or len(ready[0].pending) != 1:
            return None
        channel = ready[0]
        record = channel.pending[0]
        cost = record.cost_bytes
        if (
            cost > most_bytes + RECORD_COST_BYTES
            or channel.sent_bytes + cost > channel.limit_bytes
            or self._sent_bytes + cost > self._limit_bytes
        ):
            return None
        ready.popleft()
        channel.pending.popleft()
        channel.sent_bytes += cost
        self._sent_bytes += cost
        record.cut_bytes = len(record.body)
        self.unsent_bytes -= len(record.body) + 1  # channels without credit may have more
        self._begun_has_turn = True
        return record

    def take_unreliable(self) -> UnreliableRecord:
        """The oldest unreliable record."""
        record = self.unreliable.popleft()
        self._unreliable_bytes -= len(record.body) + RECORD_COST_BYTES
        return record

    def next_bulk(self, body_bytes: int) -> OutgoingRecord | None:
        """A record with at least one packet full of it left, if it is that record's turn and nothing goes before it."""
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
            # The path carries less than when it was cut.
            middle = fragment.start + room_bytes - FRAGMENT_HEADER.size
            first = Fragment(fragment.record, fragment.start, middle)
            policy.replace_resend((first, Fragment(fragment.record, middle, fragment.stop)))
            fragment = first
        policy.take_resend()
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
        self.take_bulk(record, size)
        self.policy.on_new(fragment)
        return fragment

    def take_bulk(self, record: OutgoingRecord, more_bytes: int) -> None:
        """Count this many more bytes of the record, which next_bulk or one of the methods below returned, as cut."""
        channel = record.channel
        is_control = channel is self._control
        if record.cut_bytes == 0:
            # The whole cost is taken from the credit when it begins, so that what has begun can always end.
            channel.sent_bytes += record.cost_bytes
            if is_control:
                self._control_under_way.append(record)
                self._control_under_way_bytes += record.cost_bytes
            else:
                self._sent_bytes += record.cost_bytes
                self._ready.popleft()
                self._begun.appendleft(channel)
        # New records and begun ones take turns, so that a long one holds up no other channel.
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
        return record if self._control_under_way_bytes + record.cost_bytes <= CONTROL_WINDOW_BYTES else None

    def _next_channel_record(self) -> OutgoingRecord | None:
        begun = self._begun[0].pending[0] if self._begun else None
        if begun is not None and self._begun_has_turn:
            return begun
        return self._next_new_record() or begun

    def _next_new_record(self) -> OutgoingRecord | None:
        """One that has the credit to begin."""
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
