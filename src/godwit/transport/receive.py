"""The receiving half of a connection: fragments into records, records into order, and credit for what was taken.

All memory here is paid for by credit that was given: a record costs its bytes and a fixed amount, and so does a
fragment that waits for its neighbours. Who takes more than it was given has broken the protocol.
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
from godwit.transport.assembly import Assembly, IncomingChannel
from godwit.transport.config import EndpointConfig
from godwit.transport.ranges import RangeSet
from godwit.wire.packet import expand_number

_MASK: Final = 0xFFFFFFFF
MAX_GAPS: Final = 8192
"""In one record; each costs a little work for every fragment that comes. Half of a 16 MiB record's fragments."""


class LimitError(DecodeError):
    """The other side sent more than it was allowed to."""

    def __init__(self, detail: str) -> None:
        super().__init__("limit", detail)


class NotAdmittedError(DecodeError):
    """The other side opened a channel before the application admitted it."""

    def __init__(self, channel_id: int) -> None:
        super().__init__("not_admitted", f"channel {channel_id} was opened before the login")


class ReceiveHalf:
    """Feed: on_fragment, consume, on_blocked, repeat_grant. Drain: what on_fragment gives, and take_grants."""

    __slots__ = (
        "_channels", "_config", "_consumed_bytes", "_control", "_delivered_bytes", "_dropped", "_ended",
        "_grants", "_grants_at_bytes", "_most_held_bytes", "_most_pieces", "_none", "_pieces", "_received_bytes",
        "_waited_for", "current", "is_admitted", "unfinished_bytes",
    )  # fmt: skip

    def __init__(self, config: EndpointConfig, dropped: Counter[str]) -> None:
        self._config = config
        self.is_admitted = True
        """False: only channel 0 is open, and no more than UNADMITTED_BYTES are held."""
        self.unfinished_bytes = 0
        """What the records that are not delivered take of memory."""
        self._dropped = dropped
        self._control = IncomingChannel(0, CONTROL_WINDOW_BYTES, min(config.max_record_bytes, MAX_CONTROL_RECORD_BYTES))
        self._channels: dict[int, IncomingChannel] = {0: self._control}
        self._ended = RangeSet()
        self._received_bytes = 0
        self._delivered_bytes = 0
        self._consumed_bytes = 0
        self._grants_at_bytes = config.connection_window_bytes // 4
        self._pieces = 0
        """Fragments beyond a gap, in all channels."""
        most_held = config.connection_window_bytes + config.max_record_bytes
        self._most_pieces = max(most_held // PIECE_BYTES, 64)
        self._most_held_bytes = most_held + RECORD_COST_BYTES
        self._grants: dict[int, None] = {}
        """Channels (0: the connection) whose limit is to be told."""
        self._waited_for: dict[int, None] = {}
        """Those whose sender has run out of credit."""
        self._none = Assembly(self._control, -1)
        self.current = self._none
        """The assembly that took the last fragment, or is expected next. Inbound appends to its run directly while
        fragments come in order and stay within `allowed_bytes`; every other way in settles the account first."""

    @property
    def held_bytes(self) -> int:
        """What was received and not consumed."""
        self.settle()
        control = self._control.received_bytes - self._control.consumed_bytes
        return self._received_bytes - self._consumed_bytes + control

    def on_fragment(
        self, channel_id: int, record: int, offset: int, body: bytes, *, is_last: bool, ends_channel: bool
    ) -> list[tuple[int, int, bytes, bool]]:
        """A fragment of a reliable record. Gives the records that are complete and in order now.

        Each is (channel, number, body, whether it ends the channel). Raises DecodeError for what cannot be.
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
        if stop > channel.most_bytes:
            raise LimitError(f"a record of more than {channel.most_bytes} bytes on channel {channel_id}")
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
            raise DecodeError("fragment", f"record {number} of channel {channel_id} goes on after its end")
        if assembly.next_bytes != assembly.end_bytes:
            self._make_current(assembly)
            return []
        if number != channel.expected:
            return []
        delivered = self._deliver(channel)
        if offset and channel.id in self._channels and channel.expected not in channel.held:
            # After a long record most often comes another: it can take the short way from its first fragment on.
            self._make_current(Assembly(channel, channel.expected))
        return delivered

    def take_whole(self, channel_id: int, record: int, body_bytes: int) -> int:
        """A whole record that ends nothing. Gives its number if it is just the next of an open channel and within the
        credit, so that it is delivered at once; else -1, and on_fragment has to see to it."""
        channel = self._channels.get(channel_id)
        if channel is None or channel.held or channel_id == 0 or self.current is not self._none:
            return -1
        number = channel.expected
        cost = body_bytes + RECORD_COST_BYTES
        received_bytes = channel.received_bytes + cost
        all_received_bytes = self._received_bytes + cost
        if (
            record != number & _MASK
            or body_bytes > channel.most_bytes
            or received_bytes - channel.consumed_bytes > channel.most_held_bytes
            or all_received_bytes - self._consumed_bytes > self._most_held_bytes
        ):
            return -1
        channel.expected = number + 1
        channel.received_bytes = received_bytes
        channel.delivered_bytes += cost
        self._received_bytes = all_received_bytes
        self._delivered_bytes += cost
        return number

    def consume(self, channel_id: int, body_bytes: int) -> bool:
        """The application has taken a record: its credit is given back, in larger steps. True when there is a grant to
        be told."""
        if channel_id == 0:
            return False  # outside credit: see _deliver
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
        if all_consumed_bytes >= self._grants_at_bytes:
            self._waited_for.pop(0, None)
            self._grants[0] = None
        if channel is not None:
            channel.consumed_bytes = consumed_bytes
            if consumed_bytes >= channel.grants_at_bytes:
                self._waited_for.pop(channel_id, None)
                self._grants[channel_id] = None
        return bool(self._grants)

    def on_blocked(self, channel_id: int) -> None:
        """The other side waits for credit: it gets what there is, and what comes next at once, in steps of any size."""
        if channel_id == 0 or channel_id in self._channels:
            self._grants[channel_id] = None
            self._waited_for[channel_id] = None

    def repeat_grant(self, channel_id: int) -> None:
        """The other side may have missed what it was granted: it is said again."""
        if channel_id == 0 or channel_id in self._channels:
            self._grants[channel_id] = None

    @property
    def has_grants(self) -> bool:
        return bool(self._grants)

    def take_grants(self, most: int) -> list[tuple[int, int]]:
        """Channels (0: the connection) and their new limits, to be told."""
        taken: list[tuple[int, int]] = []
        while self._grants and len(taken) < most:
            channel_id = next(iter(self._grants))
            del self._grants[channel_id]
            is_waited_for = channel_id in self._waited_for
            if channel_id == 0:
                window_bytes = self._config.connection_window_bytes
                taken.append((0, self._consumed_bytes + window_bytes))
                self._grants_at_bytes = 0 if is_waited_for else self._consumed_bytes + window_bytes // 4
            elif (channel := self._channels.get(channel_id)) is not None:
                taken.append((channel_id, channel.consumed_bytes + channel.window_bytes))
                channel.grants_at_bytes = 0 if is_waited_for else channel.consumed_bytes + channel.window_bytes // 4
        return taken

    def is_ended(self, channel_id: int) -> bool:
        return channel_id in self._ended

    def release(self) -> None:
        """Drop what was received and not consumed, because the connection has ended."""
        for channel in self._channels.values():
            channel.held.clear()
        self.current = self._none
        self.unfinished_bytes = 0
        self._consumed_bytes = self._received_bytes
        self._control.consumed_bytes = self._control.received_bytes

    # -- the parts ----------------------------------------------------------------------------------------------------

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
        """Puts the bytes that are new where they belong."""
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
        if self._pieces > self._most_pieces:
            raise LimitError(f"more than {self._most_pieces} fragments wait for their neighbours")
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
        """Count what was appended to the current assembly directly."""
        current = self.current
        if current.next_bytes > current.settled_bytes:
            if current.settled_bytes == 0 and current.number not in current.channel.held:
                current.channel.held[current.number] = current  # it was only expected so far
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
        assembly.allowed_bytes = min(assembly.next_bytes + room, channel.most_bytes)

    def _room(self, channel: IncomingChannel) -> int:
        """How much more the channel may bring before its sender has broken the protocol."""
        room = channel.most_held_bytes - (channel.received_bytes - channel.consumed_bytes)
        if channel is self._control:
            return room if self.is_admitted else min(room, UNADMITTED_BYTES - self.unfinished_bytes)
        return min(room, self._most_held_bytes - (self._received_bytes - self._consumed_bytes))

    def _count(self, channel: IncomingChannel, more_bytes: int) -> None:
        if more_bytes > self._room(channel):
            raise LimitError(f"channel {channel.id} brought more than its credit")
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
                # Its sender is bounded by what is acknowledged, so a delivered record is done with.
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
            raise DecodeError("fragment", f"channel {channel.id} ends, but goes on")
        del self._channels[channel.id]
        self._grants.pop(channel.id, None)
        self._waited_for.pop(channel.id, None)
        self._ended.add(channel.id, channel.id + 1)
        if len(self._ended) > self._config.max_channels + 1:
            raise LimitError("channels are not numbered one after another")
