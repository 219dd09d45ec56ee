"""The receiving side of a connection: fragments into records, records into order, and credit for consumed records.

Credit pays for all memory here: a record costs its bytes and a fixed amount, and so does a fragment beyond a gap. A
peer
that exceeds its credit has violated the protocol.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from godwit.errors import DecodeError, UsageError
from godwit.limits import (
    ASSEMBLY_COST_BYTES,
    CONTROL_WINDOW_BYTES,
    MAX_CONTROL_RECORD_BYTES,
    PIECE_BYTES,
    PIECE_COST_BYTES,
    RECORD_COST_BYTES,
    UNADMITTED_BYTES,
)
from godwit.transport.acknowledgement import RangeSet
from godwit.transport.config import EndpointConfig
from godwit.wire.packet import DATA, DATA_HEADER, expand_number

_MASK: Final = 0xFFFFFFFF
COMPACT_PIECES: Final = 64


class Assembly:
    """A record that is being assembled. Fragments in order, the usual case, are only appended to `run`."""

    __slots__ = (
        "_compact", "allowed_bytes", "apart", "channel", "covered", "end_bytes", "ends_channel", "frame_head",
        "next_bytes", "number", "run", "settled_bytes",
    )  # fmt: skip

    def __init__(self, channel: IncomingChannel, number: int) -> None:
        self.channel = channel
        self.number = number
        self.frame_head = DATA_HEADER.pack(DATA, channel.id, number & _MASK)
        """The first bytes of the frame of every fragment except the last."""
        self.run: list[bytes] = []
        """The fragments from the start of the record up to the first gap."""
        self.next_bytes = 0
        """The length of the run."""
        self.settled_bytes = 0
        """The part of the run that has been counted against the credit."""
        self.allowed_bytes = 0
        """The length up to which the run may grow before the credit must be checked again."""
        self.apart: dict[int, bytes] = {}
        """Fragments beyond a gap, by offset, not overlapping."""
        self.covered: RangeSet | None = None
        """The received bytes, once there is a gap."""
        self.end_bytes: int | None = None
        self.ends_channel = False
        self._compact = 0
        """The number of fragments at the front of the run that need no joining."""

    def compact(self) -> None:
        """Join small fragments when they become many: otherwise a flood of them would cost many times its credit."""
        run = self.run
        if len(run) - self._compact >= COMPACT_PIECES:
            fresh = run[self._compact :]
            if sum(map(len, fresh)) < len(fresh) * PIECE_BYTES:
                run[self._compact :] = [b"".join(fresh)]
            self._compact = len(run)


class IncomingChannel:
    """One ordered channel of records."""

    __slots__ = (
        "consumed_bytes", "credit_due_at_bytes", "delivered_bytes", "expected", "held", "id", "max_held_bytes",
        "max_record_bytes", "received_bytes", "window_bytes",
    )  # fmt: skip

    def __init__(self, channel: int, window_bytes: int, max_record_bytes: int) -> None:
        self.id = channel
        self.window_bytes = window_bytes
        self.max_record_bytes = max_record_bytes
        """The length of the longest record."""
        self.max_held_bytes = window_bytes + max_record_bytes + RECORD_COST_BYTES
        """A record that is longer than the window may start when all before it was consumed: so the longest record may
        be
        held beyond the window."""
        self.credit_due_at_bytes = window_bytes // 4
        """When this much has been consumed, a new limit is sent to the peer."""
        self.received_bytes = 0
        self.delivered_bytes = 0
        self.consumed_bytes = 0
        self.expected = 0
        """The number of the record to deliver next."""
        self.held: dict[int, Assembly] = {}


MAX_GAPS: Final = 8192
"""The limit for one record; each gap costs a little work for every fragment. Half of a 16 MiB record's fragments."""


class LimitError(DecodeError):
    """The peer sent more than it was allowed to."""

    def __init__(self, detail: str) -> None:
        super().__init__("limit", detail)


class NotAdmittedError(DecodeError):
    """The peer opened a channel before the application admitted it."""

    def __init__(self, channel_id: int) -> None:
        super().__init__("not_admitted", f"channel {channel_id} was opened before the login")


class ReceiveChannels:
    """The incoming channels of a connection."""

    __slots__ = (
        "_blocked_senders", "_channels", "_config", "_consumed_bytes", "_control", "_credit_due_at_bytes",
        "_delivered_bytes", "_dropped", "_ended", "_max_held_bytes", "_max_pieces", "_none", "_pieces",
        "_received_bytes", "current", "is_admitted", "pending_credits", "unfinished_bytes",
    )  # fmt: skip

    def __init__(self, config: EndpointConfig, dropped: Counter[str]) -> None:
        self._config = config
        self.is_admitted = True
        """If False, only channel 0 is open, and at most UNADMITTED_BYTES are held."""
        self.unfinished_bytes = 0
        """The memory that undelivered records take."""
        self._dropped = dropped
        self._control = IncomingChannel(0, CONTROL_WINDOW_BYTES, min(config.max_record_bytes, MAX_CONTROL_RECORD_BYTES))
        self._channels: dict[int, IncomingChannel] = {0: self._control}
        self._ended = RangeSet()
        self._received_bytes = 0
        self._delivered_bytes = 0
        self._consumed_bytes = 0
        self._credit_due_at_bytes = config.connection_window_bytes // 4
        self._pieces = 0
        """The number of fragments beyond a gap, in all channels."""
        most_held = config.connection_window_bytes + config.max_record_bytes
        self._max_pieces = max(most_held // PIECE_BYTES, 64)
        self._max_held_bytes = most_held + RECORD_COST_BYTES
        self.pending_credits: dict[int, None] = {}
        """Channels (0: the connection) whose new limit is to be sent."""
        self._blocked_senders: dict[int, None] = {}
        """Channels (0: the connection) whose sender has run out of credit."""
        self._none = Assembly(self._control, -1)
        self.current = self._none
        """The assembly that received the last fragment, or that is expected next. PacketReceiver appends to its run
        directly
        while fragments are in order and within `allowed_bytes`; every other method calls settle first."""

    @property
    def held_bytes(self) -> int:
        """The bytes that were received and not consumed."""
        self.settle()
        control = self._control.received_bytes - self._control.consumed_bytes
        return self._received_bytes - self._consumed_bytes + control

    def handle_fragment(
        self, channel_id: int, record: int, offset: int, body: bytes, *, is_last: bool, ends_channel: bool
    ) -> list[tuple[int, int, bytes, bool]]:
        """Add a fragment of a reliable record. Return the records that are now complete and in order.

        Each is (channel, number, body, whether it ends the channel). Raises DecodeError for a protocol violation.
        """
        self.settle()
        self.current = self._none
        channel = self._channel(channel_id)
        if channel is None:
            self._dropped["ended_channel"] += 1
            return []
        number = expand_number(record, channel.expected)
        known = channel.held.get(number)
        if number < channel.expected or (known is not None and known.next_bytes == known.end_bytes):
            self._dropped["repeated_fragment"] += 1
            return []
        stop = offset + len(body)
        if stop > channel.max_record_bytes:
            raise LimitError(f"a record of more than {channel.max_record_bytes} bytes on channel {channel_id}")
        assembly = known
        if assembly is None:
            assembly = channel.held[number] = Assembly(channel, number)
            self._count(channel, RECORD_COST_BYTES)
            self.unfinished_bytes += ASSEMBLY_COST_BYTES
        self._place(assembly, offset, body)
        if is_last:
            if assembly.end_bytes not in (None, stop):
                raise DecodeError("fragment", f"record {number} of channel {channel_id} ends twice")
            assembly.end_bytes = stop
            assembly.ends_channel = ends_channel
        reach = assembly.covered.stops[-1] if assembly.covered is not None else assembly.next_bytes
        if assembly.end_bytes is not None and reach > assembly.end_bytes:
            raise DecodeError("fragment", f"record {number} of channel {channel_id} continues after its end")
        if assembly.next_bytes != assembly.end_bytes:
            self._make_current(assembly)
            return []
        if number != channel.expected:
            return []
        delivered = self._deliver(channel)
        if offset and channel.id in self._channels and channel.expected not in channel.held:
            # A long record is usually followed by another, which can take the short way from its first fragment on.
            self._make_current(Assembly(channel, channel.expected))
        return delivered

    def accept_whole(self, channel_id: int, record: int, body_bytes: int) -> int:
        """Accept a whole record that does not end its channel and return its number, if it can be delivered
        immediately.

        Return -1 if it is not the next record of an open channel, or exceeds the credit: then call handle_fragment.
        """
        channel = self._channels.get(channel_id)
        if channel is None or channel.held or channel_id == 0 or self.current is not self._none:
            return -1
        number = channel.expected
        cost = body_bytes + RECORD_COST_BYTES
        received_bytes = channel.received_bytes + cost
        all_received_bytes = self._received_bytes + cost
        if (
            record != number & _MASK
            or body_bytes > channel.max_record_bytes
            or received_bytes - channel.consumed_bytes > channel.max_held_bytes
            or all_received_bytes - self._consumed_bytes > self._max_held_bytes
        ):
            return -1
        channel.expected = number + 1
        channel.received_bytes = received_bytes
        channel.delivered_bytes += cost
        self._received_bytes = all_received_bytes
        self._delivered_bytes += cost
        return number

    def consume(self, channel_id: int, body_bytes: int) -> bool:
        """Return the credit of a consumed record, in larger steps. Return whether a new limit is to be sent.

        Raises UsageError if no such record was delivered, or if it was consumed before.
        """
        if channel_id == 0:
            return False  # without credit: see _deliver
        cost = body_bytes + RECORD_COST_BYTES
        all_consumed_bytes = self._consumed_bytes + cost
        channel = self._channels.get(channel_id)
        consumed_bytes = 0 if channel is None else channel.consumed_bytes + cost
        if all_consumed_bytes > self._delivered_bytes or (channel and consumed_bytes > channel.delivered_bytes):
            raise UsageError(
                f"{body_bytes} bytes of channel {channel_id} were not received reliably, or consumed before: "
                "consume each reliable record once"
            )
        self._consumed_bytes = all_consumed_bytes
        if all_consumed_bytes >= self._credit_due_at_bytes:
            self._blocked_senders.pop(0, None)
            self.pending_credits[0] = None
        if channel is not None:
            channel.consumed_bytes = consumed_bytes
            if consumed_bytes >= channel.credit_due_at_bytes:
                self._blocked_senders.pop(channel_id, None)
                self.pending_credits[channel_id] = None
        return bool(self.pending_credits)

    def handle_blocked(self, channel_id: int) -> None:
        """Send the current limit to a blocked sender, and every later one immediately, whatever its size."""
        if channel_id == 0 or channel_id in self._channels:
            self.pending_credits[channel_id] = None
            self._blocked_senders[channel_id] = None

    def repeat_credit(self, channel_id: int) -> None:
        """Send the limit again: the packet that carried it is lost."""
        if channel_id == 0 or channel_id in self._channels:
            self.pending_credits[channel_id] = None

    def next_credits(self, most: int) -> list[tuple[int, int]]:
        """Return channels (0: the connection) and their new limits, at most `most` of them."""
        taken: list[tuple[int, int]] = []
        while self.pending_credits and len(taken) < most:
            channel_id = next(iter(self.pending_credits))
            del self.pending_credits[channel_id]
            is_waited_for = channel_id in self._blocked_senders
            if channel_id == 0:
                window_bytes = self._config.connection_window_bytes
                taken.append((0, self._consumed_bytes + window_bytes))
                self._credit_due_at_bytes = 0 if is_waited_for else self._consumed_bytes + window_bytes // 4
            elif (channel := self._channels.get(channel_id)) is not None:
                taken.append((channel_id, channel.consumed_bytes + channel.window_bytes))
                channel.credit_due_at_bytes = 0 if is_waited_for else channel.consumed_bytes + channel.window_bytes // 4
        return taken

    def is_ended(self, channel_id: int) -> bool:
        return channel_id in self._ended

    def release(self) -> None:
        """Drop all unconsumed records, because the connection has ended."""
        for channel in self._channels.values():
            channel.held.clear()
        self.current = self._none
        self.unfinished_bytes = 0
        self._consumed_bytes = self._received_bytes
        self._control.consumed_bytes = self._control.received_bytes

    # -- assembling ---------------------------------------------------------------------------------------------------

    def _channel(self, channel_id: int) -> IncomingChannel | None:
        channel = self._channels.get(channel_id)
        if channel is None:
            if channel_id in self._ended:
                return None
            if not self.is_admitted:
                raise NotAdmittedError(channel_id)
            if len(self._channels) > self._config.max_channels:
                raise LimitError(f"more than {self._config.max_channels} open channels")
            channel = IncomingChannel(channel_id, self._config.channel_window_bytes, self._config.max_record_bytes)
            self._channels[channel_id] = channel
        return channel

    def _place(self, assembly: Assembly, offset: int, body: bytes) -> None:
        """Store the bytes that are new at their offset."""
        stop = offset + len(body)
        covered = assembly.covered
        if covered is None:
            if offset == assembly.next_bytes:
                assembly.run.append(body)
                assembly.compact()
                self._grow(assembly, stop)
                return
            covered = assembly.covered = RangeSet()
            if assembly.next_bytes:
                covered.add(0, assembly.next_bytes)
        gaps = covered.missing(offset, stop)
        covered.add(offset, stop)
        for start, end in gaps:
            assembly.apart[start] = body[start - offset : end - offset]
            self._count(assembly.channel, end - start)
            self._pieces += 1
            self.unfinished_bytes += PIECE_COST_BYTES
        if len(covered) > MAX_GAPS:
            raise LimitError(f"a record with more than {MAX_GAPS} gaps")
        if self._pieces > self._max_pieces:
            raise LimitError(f"more than {self._max_pieces} fragments are stored beyond gaps")
        while piece := assembly.apart.pop(assembly.next_bytes, b""):
            self._pieces -= 1
            self.unfinished_bytes -= PIECE_COST_BYTES
            assembly.run.append(piece)
            assembly.next_bytes = assembly.settled_bytes = assembly.next_bytes + len(piece)
            assembly.compact()

    def _grow(self, assembly: Assembly, next_bytes: int) -> None:
        self._count(assembly.channel, next_bytes - assembly.settled_bytes)
        assembly.next_bytes = assembly.settled_bytes = next_bytes

    def settle(self) -> None:
        """Count the bytes that were appended to the current assembly directly."""
        current = self.current
        if current.next_bytes > current.settled_bytes:
            if current.settled_bytes == 0 and current.number not in current.channel.held:
                current.channel.held[current.number] = current  # until now it was only expected
                self._count(current.channel, RECORD_COST_BYTES)
                self.unfinished_bytes += ASSEMBLY_COST_BYTES
            self._grow(current, current.next_bytes)

    def _make_current(self, assembly: Assembly) -> None:
        self.current = assembly
        channel = assembly.channel
        if assembly.covered is not None or assembly.end_bytes is not None:
            assembly.allowed_bytes = 0
            return
        room = self._room(channel) - RECORD_COST_BYTES
        assembly.allowed_bytes = min(assembly.next_bytes + room, channel.max_record_bytes)

    def _room(self, channel: IncomingChannel) -> int:
        """Return how many more bytes the channel may receive before the peer violates the protocol."""
        room = channel.max_held_bytes - (channel.received_bytes - channel.consumed_bytes)
        if channel is self._control:
            return room if self.is_admitted else min(room, UNADMITTED_BYTES - self.unfinished_bytes)
        return min(room, self._max_held_bytes - (self._received_bytes - self._consumed_bytes))

    def _count(self, channel: IncomingChannel, more_bytes: int) -> None:
        if more_bytes > self._room(channel):
            raise LimitError(f"channel {channel.id} exceeded its credit")
        channel.received_bytes += more_bytes
        self.unfinished_bytes += more_bytes
        if channel is not self._control:
            self._received_bytes += more_bytes

    def _deliver(self, channel: IncomingChannel) -> list[tuple[int, int, bytes, bool]]:
        delivered = []
        held = channel.held
        while (assembly := held.get(channel.expected)) is not None and assembly.next_bytes == assembly.end_bytes:
            run = assembly.run
            body = run[0] if len(run) == 1 else b"".join(run)
            self.unfinished_bytes -= len(body) + RECORD_COST_BYTES + ASSEMBLY_COST_BYTES
            delivered.append((channel.id, channel.expected, body, assembly.ends_channel))
            if channel is self._control:
                # Channel 0 is bounded by unacknowledged bytes, so a delivered record is consumed.
                channel.consumed_bytes += len(body) + RECORD_COST_BYTES
            else:
                channel.delivered_bytes += len(body) + RECORD_COST_BYTES
                self._delivered_bytes += len(body) + RECORD_COST_BYTES
            del held[channel.expected]
            channel.expected += 1
            if assembly.ends_channel:
                self._end(channel)
                break
        return delivered

    def _end(self, channel: IncomingChannel) -> None:
        if channel is self._control or channel.held:
            raise DecodeError("fragment", f"channel {channel.id} must not end yet")
        del self._channels[channel.id]
        self.pending_credits.pop(channel.id, None)
        self._blocked_senders.pop(channel.id, None)
        self._ended.add(channel.id, channel.id + 1)
        if len(self._ended) > self._config.max_channels + 1:
            raise LimitError("channel numbers are not consecutive")
