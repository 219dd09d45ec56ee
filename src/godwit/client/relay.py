"""The edge's side of a bridge, sans-IO: which messages of the log are sent, and how far the hub has them.

    input     attach, detach, handle_opened, handle_refused, handle_confirmed, handle_timers, handle_read, set_sources
    output    wanted_read: the next range of the log to read; records are sent on the connection
    getters   state, position, confirmed, problem, figures

    offline --attach--> opening --relaying--> running --refused--> refused --pause--> opening
                                     \\--the hub's mark is of an unknown history--> stopped

The edge stores nothing. The hub's mark is the end of its copy, and `confirmed` follows it. A record covers a range
of offsets, also where no filter matches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from godwit.errors import ChannelError, ConnectionClosedError, DecodeError, SendBufferFullError
from godwit.limits import KIB, MAX_MESSAGE_BYTES, MAX_RECORD_BYTES, MAX_TOPIC_BYTES, MAX_TOPIC_LEVELS, MIB
from godwit.transport.connection import Connection
from godwit.wire.batch import Entry, cut_entry, decode_entry, longest_message
from godwit.wire.control import encode_control
from godwit.wire.epochs import MAX_EPOCHS_TOLD, Epoch, same_below
from godwit.wire.extension import expiry_of, shift_origin, shorten_lifetime
from godwit.wire.filters import RESERVED, matches
from godwit.wire.relay import (
    ENTRY_BYTES,
    MAX_NAMES,
    RECORD_BYTES,
    BridgeState,
    GapReason,
    RelayGap,
    RelayOpen,
    RelayOpened,
    encode_relay_record,
)

READ_BYTES: Final = 1 * MIB
"""How much of the log is read at once."""
TARGET_RECORD_BYTES: Final = 256 * KIB
WINDOW_BYTES: Final = 4 * MIB
"""How much is sent and not confirmed. Beyond that nothing is read."""
ADVANCE_S: Final = 1.0
"""How often the hub's mark is moved past messages that no filter matches."""
RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
"""Bounds of the pause after a refusal by the hub. It doubles with each."""
_ROOM_BYTES: Final = MAX_RECORD_BYTES - MAX_MESSAGE_BYTES
_MAX_KNOWN_TOPICS: Final = 50_000


def _ignore() -> None:
    """Do nothing."""


class LogPiece(msgspec.Struct, frozen=True):
    """A range of the log that was read."""

    offset: int
    """Where it begins."""
    entries: list[tuple[int, Entry]]
    next_offset: int
    damaged: list[tuple[int, int]] = []
    gone_below: int = 0
    """Below this offset, messages that match the filters may be deleted."""
    end: int = 0
    """The end of the log."""


class _Sent(msgspec.Struct, frozen=True, gc=False):
    """A record on its way."""

    end: int
    size_bytes: int
    messages: int


class RelaySender:
    """One bridge to a hub; see the module's documentation."""

    def __init__(self, filters: Sequence[str], prefix: str, log: bytes, epochs: Sequence[Epoch]) -> None:
        """`filters` and `prefix` as in the configuration. `log` and `epochs` are those of the log that is read."""
        self.state: BridgeState = "connecting"
        self.position = 0
        """Where the log is read next."""
        self.confirmed: int | None = None
        """The hub has everything below this offset; None while that is unknown."""
        self.end = 0
        """The end of the log, as far as it is known."""
        self.problem = ""
        self.messages = self.missed = 0
        self.channel: int | None = None
        self.due_at: float | None = None
        """When to call handle_timers."""
        self.on_change: Callable[[], None] = _ignore
        """Called when `state` or the result of `wanted_read` may have changed."""
        self._filters = tuple(filters)
        self._prefix = prefix
        self._log = log
        self._epochs = tuple(epochs)
        self._sources: tuple[bytes, ...] = ()
        self._connection: Connection | None = None
        self._max_message_bytes = MAX_MESSAGE_BYTES
        self._known: dict[str, bool | None] = {}
        """For each topic whether it is sent; None if its name is too long with the prefix."""
        self._begin = 0
        """The end of the last record."""
        self._is_first = False
        """The hub has nothing of this log: messages that were deleted before are not missed."""
        self._replaced: RelayGap | None = None
        """Reported with the next record, which rewinds the hub's mark."""
        self._gaps: list[RelayGap] = []
        self._unsent: deque[tuple[bytes, _Sent]] = deque()
        self._sent: deque[_Sent] = deque()
        self._first_record = 1
        """The number of the oldest record in `_sent`."""
        self._held_bytes = 0
        self._advanced_at = 0.0
        self._retry_s = RETRY_MIN_S
        self._now = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether the hub owes an answer."""
        return bool(self._sent or self._unsent) or (self.channel is not None and self.state == "connecting")

    # -- the connection -----------------------------------------------------------------------------------------------

    def attach(self, connection: Connection, max_message_bytes: int, now: float) -> None:
        """Open the bridge on a new connection, whose hub accepts messages of this size."""
        self._connection = connection
        self._max_message_bytes = min(max_message_bytes, MAX_MESSAGE_BYTES)
        if self.state != "stopped":
            self._open(now)

    def detach(self) -> None:
        """The connection is gone."""
        self._connection = self.channel = self.due_at = None
        self._forget()
        if self.state != "stopped":
            self.state = "connecting"
        self.on_change()

    def set_sources(self, sources: Sequence[bytes], now: float) -> None:
        """Report other logs whose messages flow into this one: the bridge is opened again."""
        if tuple(sources) != self._sources:
            self._sources = tuple(sources)
            if self._connection is not None and self.channel is not None and self.state != "stopped":
                self._open(now)

    def _forget(self) -> None:
        self._unsent.clear()
        self._sent.clear()
        self._gaps.clear()
        self._held_bytes = 0
        self._replaced = None

    def _open(self, now: float) -> None:
        connection = self._connection
        assert connection is not None
        self._forget()
        self.state = "connecting"
        self.due_at = None
        request = RelayOpen(
            log=self._log,
            epochs=list(self._epochs[-MAX_EPOCHS_TOLD:]),
            filters=[self._prefix + text for text in self._filters],
            sources=list(self._sources),
        )
        try:
            if self.channel is not None:
                connection.send(self.channel, b"", last=True)
            self.channel = connection.open_channel()
            connection.send(self.channel, encode_control(request))
        except (ConnectionClosedError, ChannelError, SendBufferFullError):
            self.channel = None
            self.due_at = now + RETRY_MIN_S
        self._first_record = 1

    # -- input from the hub -------------------------------------------------------------------------------------------

    def handle_opened(self, message: RelayOpened, now: float) -> None:
        """Begin to send where the hub's mark is."""
        if message.channel != self.channel:
            return
        self._now = now
        offset = message.offset
        self._is_first = offset is None
        self.position = self._begin = offset or 0
        if offset:
            same = same_below(message.epochs, self._epochs, self.end) if self._epochs else offset
            if same == 0:
                self._stop(offset)
                return
            if same < offset:
                # The log was replaced by an older copy of itself, which has other messages from there on.
                self.position = self._begin = same
                self._replaced = RelayGap(GapReason.REPLACED, same, offset, offset - same)
        self.confirmed = self._begin if offset is not None else 0
        self.state = "running"
        self.problem = ""
        self._advanced_at = now
        self.on_change()

    def _stop(self, offset: int) -> None:
        self.state = "stopped"
        self.due_at = None
        self.problem = (
            f"the hub has messages of this log up to offset {offset}, of a time that the log has no record of; "
            "give the bridge another name to send all messages again"
        )
        self.on_change()

    def handle_refused(self, channel: int, code: int, text: str, now: float) -> bool:
        """Open the bridge again after a pause. Return whether this is its channel."""
        if channel != self.channel:
            return False
        self._forget()
        self.channel = None
        self.state = "refused"
        self.problem = text
        self.due_at = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
        self.on_change()
        return True

    def handle_confirmed(self, record: int) -> None:
        """The hub has stored all records up to this one. Raises DecodeError if it was never sent."""
        if record >= self._first_record + len(self._sent):
            raise DecodeError("confirm", f"of record {record} of a bridge, which was not sent")
        while self._sent and self._first_record <= record:
            sent = self._sent.popleft()
            self._first_record += 1
            self._held_bytes -= sent.size_bytes
            self.confirmed = sent.end
            self.messages += sent.messages
            self._retry_s = RETRY_MIN_S
        self.on_change()

    def handle_timers(self, now: float) -> None:
        """Open the bridge again, or move the hub's mark, if that is due."""
        self._now = now
        if self.due_at is None or now < self.due_at:
            return
        self.due_at = None
        if self._connection is not None and self.channel is None and self.state != "stopped":
            self._open(now)
        elif self.state == "running":
            self._advance(now)

    # -- the log ------------------------------------------------------------------------------------------------------

    def wanted_read(self) -> tuple[int, int] | None:
        """Return the offset and the number of bytes to read, or None if nothing is to be read now."""
        if self.state != "running" or self._unsent or self._held_bytes >= WINDOW_BYTES:
            return None
        return self.position, READ_BYTES

    def handle_read(self, piece: LogPiece, now: float, now_us: int) -> None:
        """Send the messages of a range of the log. A range that is not wanted any more is ignored."""
        self._now = now
        self.end = max(self.end, piece.end, piece.next_offset)  # a commit may have been reported since it was read
        if self.state != "running" or piece.offset != self.position or piece.next_offset <= self.position:
            return
        self._note_gaps(piece)
        record = _RecordDraft()
        for offset, entry in piece.entries:
            if offset + entry.count <= piece.offset:
                continue
            for at, part in self._parts(max(offset, piece.offset), offset, entry, now_us):
                size_bytes = ENTRY_BYTES + len(part.rest) + len(part.topic) + len(part.publisher)
                is_full = record.size_bytes + size_bytes > self._target_bytes or len(record.entries) >= MAX_NAMES // 2
                if record.entries and is_full:
                    self._send(record, at)
                    record = _RecordDraft()
                record.entries.append((at, part))
                record.size_bytes += size_bytes
        self.position = piece.next_offset
        if record.entries or self._gaps or self._replaced is not None:
            self._send(record, self.position)
        elif self._begin < self.position and self.due_at is None:
            self.due_at = max(self._advanced_at + ADVANCE_S, now)
        self.pump()

    @property
    def _target_bytes(self) -> int:
        return min(TARGET_RECORD_BYTES, self._max_message_bytes + _ROOM_BYTES // 2)

    def _note_gaps(self, piece: LogPiece) -> None:
        """Note which messages of a range are missing, except at the very beginning of the bridge."""
        end = min(piece.gone_below, piece.next_offset)
        if piece.offset < end and not self._is_first:
            there = sum(
                [
                    max(0, min(offset + entry.count, end) - max(offset, piece.offset))
                    for offset, entry in piece.entries
                    if offset < end
                ]
            )
            count = end - piece.offset - there
            if count:
                self._miss(GapReason.DELETED, piece.offset, end, count)
        for first, stop in piece.damaged:
            if first < stop:
                self._miss(GapReason.DAMAGED, first, stop, stop - first)
        if piece.next_offset > piece.gone_below:
            self._is_first = False

    def _miss(self, reason: GapReason, first: int, end: int, count: int) -> None:
        self.missed += count
        last = self._gaps[-1] if self._gaps else None
        if last is not None and last.reason == reason == GapReason.TOO_LONG:
            self._gaps[-1] = RelayGap(reason, last.first, end, last.count + count)
        else:
            self._gaps.append(RelayGap(reason, first, end, count))

    def _parts(self, begin: int, offset: int, entry: Entry, now_us: int) -> list[tuple[int, Entry]]:
        """Return the messages of a batch from an offset on: none, the batch, or parts that fit the hub's records."""
        is_wanted = self._is_wanted(entry.topic)
        if not is_wanted:
            if is_wanted is None:
                self._miss(GapReason.TOO_LONG, begin, offset + entry.count, offset + entry.count - begin)
            return []
        expires_us = expiry_of(entry)
        if expires_us is not None:
            if expires_us <= now_us:
                return []
            entry = shorten_lifetime(entry, expires_us - now_us)
        max_bytes = self._max_message_bytes
        is_long = len(entry.rest) > max_bytes and longest_message(entry.flags, entry.count, entry.rest) > max_bytes
        if begin == offset and not is_long and len(entry.rest) <= max(self._target_bytes, max_bytes):
            return [(offset, entry)]
        return self._cut(begin - offset, offset, entry)

    def _cut(self, first: int, offset: int, entry: Entry) -> list[tuple[int, Entry]]:
        """Return the messages from a place in a batch on, in parts, except messages that the hub does not accept."""
        batch = decode_entry(entry)
        parts: list[tuple[int, Entry]] = []
        begin, size_bytes = first, 0
        for place in range(first, entry.count + 1):
            length = len(batch.payloads[place]) + 8 if place < entry.count else 0
            is_over = place == entry.count
            is_too_long = length - 8 > self._max_message_bytes
            if begin < place and (is_over or is_too_long or size_bytes + length > self._target_bytes):
                part = cut_entry(entry, batch, begin, place)
                parts.append((offset + begin, shift_origin(part, begin) if begin else part))
                begin, size_bytes = place, 0
            if is_too_long:
                self._miss(GapReason.TOO_LONG, offset + place, offset + place + 1, 1)
                begin, length = place + 1, 0
            size_bytes += length
        return parts

    def _is_wanted(self, topic: str) -> bool | None:
        if topic in self._known:
            return self._known[topic]
        if len(self._known) >= _MAX_KNOWN_TOPICS:
            self._known.clear()
        known: bool | None = not topic.startswith(RESERVED) and any(matches(text, topic) for text in self._filters)
        if known:
            name = self._prefix + topic
            if len(name.encode()) > MAX_TOPIC_BYTES or name.count("/") >= MAX_TOPIC_LEVELS:
                known = None
        self._known[topic] = known
        return known

    def _send(self, record: _RecordDraft, end: int) -> None:
        """Send the messages up to an offset, with the gaps that were found."""
        # All gaps, even if they end later: a report must not wait for a record that may never be sent.
        gaps = ([] if self._replaced is None else [self._replaced]) + self._gaps
        body = encode_relay_record(
            self._begin, end, record.entries, gaps, prefix=self._prefix, is_rewind=self._replaced is not None
        )
        self._gaps = []
        self._replaced = None
        self._begin = end
        self._held_bytes += len(body)
        self._unsent.append((body, _Sent(end, len(body), sum([entry.count for _, entry in record.entries]))))
        self._advanced_at = self._now
        self.due_at = None

    def _advance(self, now: float) -> None:
        if self._begin < self.position and not self._unsent:
            self._send(_RecordDraft(), self.position)
            self.pump()

    def pump(self) -> None:
        """Hand records to the transport, as far as it accepts them."""
        connection, channel = self._connection, self.channel
        if connection is None or channel is None:
            return
        while self._unsent:
            body, sent = self._unsent[0]
            try:
                connection.send(channel, body)
            except (SendBufferFullError, ConnectionClosedError):
                return  # the event Writable, or the end of the connection, follows
            self._unsent.popleft()
            self._sent.append(sent)
        self.on_change()


class _RecordDraft:
    """The messages of a record that is not complete yet."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, Entry]] = []
        self.size_bytes = RECORD_BYTES
