"""Publishers: pack messages into batches, hand them to the transport, and keep them until the broker confirms.

    send --> open batch --full, or the transport is idle--> waiting --handed over--> sent --confirmed--> released
                                                               ^-----connection lost-----/

A batch is packed once: after a reconnect the same bytes are sent again, so the broker can recognise a repeat.

`Publishers` manages all publishers of a client, a `Publisher` handles one topic and QoS, and `SendState` is the state
that they share. Calls go one way, from the client to Publishers to a Publisher to SendState.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, Final, TypeAlias
from weakref import WeakValueDictionary

from godwit.client.batches import EncodedPayload, Payload, to_bytes
from godwit.client.events import BufferAvailable, ClientEvent, Confirmed, Expired, Refused
from godwit.errors import (
    BufferFullError,
    ChannelError,
    ConnectionClosedError,
    DecodeError,
    RecordTooLargeError,
    SendBufferFullError,
    UsageError,
)
from godwit.limits import KIB, MAX_BATCH_MESSAGES, MAX_MESSAGE_BYTES, MAX_UNRELIABLE_BYTES, RECORD_COST_BYTES
from godwit.transport.connection import Connection
from godwit.wire.batch import (
    LENGTH_BYTES,
    MAX_DELTA_US,
    MAX_PUBLISHED_HEAD_BYTES,
    SEQUENCE_BYTES,
    decode_head,
    longest_message,
    pack_batch,
)
from godwit.wire.control import PublishOpen, encode_control
from godwit.wire.control_base import Code, Qos
from godwit.wire.extension import limit_lifetime

TOGETHER_US: Final = 1000
"""Messages of a batch that were published within this time share its time."""
LARGEST_BATCH_BYTES: Final = LENGTH_BYTES * MAX_BATCH_MESSAGES
"""Limit for any length of train: a batch of empty messages is full before it has too many of them."""
OFFLINE_BATCH_BYTES: Final = 24 * KIB
"""Size of a batch while there is no connection whose train length is known."""
ROUTE_BYTES: Final = 32
"""A subscriber's head of a batch is at most this much longer: a batch fits one train in both directions."""
FIRST_GRANT_BYTES: Final = 2 * KIB
"""The part of the send buffer that a batch reserves when it begins; it grows by GRANT_GROWTH."""
GRANT_GROWTH: Final = 8
UNRELIABLE_AHEAD_BYTES: Final = 128 * KIB
"""At QoS 0, batches wait while the transport has more than this to send: it drops the oldest if its queue is full."""
OFFLINE_UNRELIABLE_BYTES: Final = 64 * KIB
"""At QoS 0, the newest messages that each publisher keeps while there is no connection."""
SMALLEST_TRAIN_BYTES: Final = 16 * KIB
"""Full batches of QoS 0 are flushed at once when there are this many bytes; fewer wait for the end of the turn."""
MAX_IDLE_CHANNELS: Final = 1024
"""With more channels than this, the least recently used idle ones are ended."""
IDLE_SEARCH_LIMIT: Final = 8
"""The number of least recently used publishers that are examined when there is one channel too many."""

PackedBatch: TypeAlias = tuple[int, int, bytes, float | None]
"""The sequence of its first message, the number of messages, the record, and when the messages expire."""


def _ignore() -> None:
    """Do nothing: the default of the callbacks."""


class SendState:
    """The state that all publishers of a client share. Its methods call no publisher."""

    __slots__ = (
        "active", "by_channel", "by_topic", "connection", "ending_channels", "events", "expiring", "held_bytes",
        "is_closed", "is_filling", "limit_bytes", "max_message_bytes", "now", "on_batch_begun", "on_batch_full",
        "open_batches", "replaced_publishers", "resume_at", "run", "starved", "unflushed_bytes", "waiting_for_buffer",
        "waiting_for_channel", "waiting_for_transport",
    )  # fmt: skip

    def __init__(self, limit_bytes: int, events: list[ClientEvent], run: str) -> None:
        self.events = events
        self.connection: Connection | None = None
        """The present connection, once the broker has accepted the login."""
        self.max_message_bytes = MAX_MESSAGE_BYTES
        """The limit of the broker, once it is known."""
        self.is_closed = False
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        """The part of the send buffer that is in use: open, waiting and unconfirmed batches."""
        self.starved: dict[Publisher, None] = {}
        """Publishers with a BufferFullError that have had no BufferAvailable since."""
        self.on_batch_begun: Callable[[], None] = _ignore
        """Called when a batch gets its first message: poll for trains soon."""
        self.on_batch_full: Callable[[], None] = _ignore
        """Called when a full batch was handed to the transport: poll for trains now."""
        self.is_filling = False
        """Whether on_batch_full runs: the next batch is about to fill too, so open batches are not cut."""
        self.unflushed_bytes = 0
        """Bytes packed since the last on_batch_full."""
        self.active: dict[Publisher, None] = {}
        """Publishers with a channel or unconfirmed messages, least recently used first. Others exist only as long as
        the application refers to them."""
        self.open_batches: dict[Publisher, None] = {}
        self.by_channel: dict[int, Publisher] = {}
        self.waiting_for_buffer: dict[Publisher, None] = {}
        """Publishers that the transport's send buffer had no room for."""
        self.waiting_for_transport: dict[Publisher, None] = {}
        """Publishers of QoS 0 that wait until the transport has less to send."""
        self.waiting_for_channel: dict[Publisher, None] = {}
        """Publishers that found all channels in use."""
        self.ending_channels: list[int] = []
        """Channels whose last record did not fit the transport's send buffer."""
        self.by_topic: WeakValueDictionary[tuple[str, Qos], SharedPublisher] = WeakValueDictionary()
        """Publishers without an identity given by the application."""
        self.run = run
        """The identity of QoS 2 publishers without one of their own; new for each run of the client."""
        self.resume_at: dict[str, tuple[str, int]] = {}
        """By topic, the identity and sequence for the next QoS 2 publisher without an identity of its own."""
        self.replaced_publishers = 0
        """The number of QoS 2 publishers that were closed with unconfirmed messages."""
        self.now = 0.0
        """The time of the last input or poll of the client."""
        self.expiring: dict[Publisher, float] = {}
        """Publishers with queued messages that expire, and when the first of them does; never later than that."""

    def reserve(self, publisher: Publisher, needed_bytes: int, wanted_bytes: int) -> int:
        """Reserve part of the buffer: between `needed_bytes` and `wanted_bytes`. Return the reserved size.

        An empty buffer accepts a message of any size. Raises BufferFullError if there is too little room.
        """
        room_bytes = self.limit_bytes - self.held_bytes
        if needed_bytes > room_bytes and self.held_bytes > 0:
            self.starved[publisher] = None
            raise BufferFullError(
                f"{self.held_bytes} bytes of this client are not confirmed yet, it may hold {self.limit_bytes}: "
                "wait for room, then send again"
            )
        reserved_bytes = max(needed_bytes, min(wanted_bytes, room_bytes))
        self.held_bytes += reserved_bytes
        return reserved_bytes

    def release(self, freed_bytes: int) -> None:
        """Release part of the buffer, and report to starved publishers when half of it is free."""
        self.held_bytes -= freed_bytes
        if self.starved and 2 * self.held_bytes <= self.limit_bytes:
            self.events += [BufferAvailable(publisher) for publisher in self.starved]
            self.starved.clear()

    def flush_full(self, qos: Qos) -> None:
        """Ask the caller to send a full batch now. The small batches of QoS 0 are collected to a train first."""
        if self.connection is not None and (qos or self.unflushed_bytes >= SMALLEST_TRAIN_BYTES):
            self.unflushed_bytes = 0
            self.is_filling = True
            try:
                self.on_batch_full()
            finally:
                self.is_filling = False

    def end_channel(self, channel: int) -> None:
        """Send the last record of a channel, or remember to do so when the transport has room."""
        assert self.connection is not None
        try:
            self.connection.send(channel, b"", last=True)
        except SendBufferFullError:
            self.ending_channels.append(channel)
        except ConnectionClosedError:
            pass  # its channels have ended with it


class Publisher:
    """A publisher of one topic and QoS, made by `ClientProtocol.publisher`. Order holds within it."""

    __slots__ = (
        "_before", "_deltas_us", "_expires_at", "_extension", "_filled_bytes", "_full_bytes",
        "_granted_bytes", "_head_bytes", "_limit_bytes", "_next_record", "_payloads", "_retain", "_sent", "_since_us",
        "_state", "_until_us", "_waiting", "_waiting_bytes", "channel", "confirmed_sequence", "dropped", "epoch",
        "expired", "identity", "is_closed", "qos", "reached", "subscribers", "topic",
    )  # fmt: skip

    def __init__(
        self, state: SendState, topic: str, qos: Qos, identity: str | None = None, epoch: int = 0, sequence: int = 0
    ) -> None:
        self.topic = topic
        self.qos: Qos = qos
        self.identity = identity
        """The name under which the broker recognises repeats (QoS 2)."""
        self.epoch = epoch
        self.confirmed_sequence = sequence
        """All messages below this sequence are confirmed as their QoS requires, or were refused."""
        self.reached = 0
        """Connected subscriptions that the last confirmed record matched."""
        self.subscribers = 0
        """Connected subscriptions that matched the topic when its channel was opened."""
        self.dropped = 0
        """Messages of QoS 0 that were dropped while there was no connection."""
        self.expired = 0
        """Messages that were dropped from the queue because they had expired."""
        self.is_closed = False
        self.channel: int | None = None
        """Its channel on the present connection."""
        self._state = state
        # The open batch.
        self._payloads: list[bytes] = []
        self._before = sequence - 1
        """The sequence of the message before the open batch."""
        self._filled_bytes = 0
        self._limit_bytes = 0
        """The batch may grow to this size without checks; 0 if each message must be checked."""
        self._granted_bytes = 0
        """The part of the send buffer that is reserved for the open batch."""
        self._full_bytes = 0
        self._since_us = 0
        self._until_us = 0
        """Messages published from `_since_us` to `_until_us` share the batch's time."""
        self._deltas_us: list[int] | None = None
        self._retain = False
        self._extension = b""
        self._expires_at: float | None = None
        self._head_bytes = MAX_PUBLISHED_HEAD_BYTES - (SEQUENCE_BYTES if qos == 1 else 0)
        """With a sequence at QoS 2, which identifies repeats, and at QoS 0, where it identifies late batches."""
        # Packed batches, in the order of their sequences: those in `_sent` precede those in `_waiting`.
        self._waiting: deque[PackedBatch] = deque()
        self._waiting_bytes = 0
        self._sent: deque[tuple[int, PackedBatch]] = deque()
        """Sent and not confirmed, with their record numbers on the present channel."""
        self._next_record = 0

    # -- application calls --------------------------------------------------------------------------------------------

    def send(
        self,
        payload: EncodedPayload,
        published_us: int,
        retain: bool = False,
        extension: bytes = b"",
        expires_at: float | None = None,
    ) -> int:
        """Add a message to the open batch. Messages with the same flag and extension share a batch.

        Args:
            payload: bytes, or a text, which is sent as UTF-8.
            published_us: the time of publishing, in microseconds since the epoch.
            retain: whether the broker stores the message for new subscriptions.
            extension: its properties, see godwit.wire.extension.
            expires_at: when the message is dropped from the queue; the lifetime in the extension counted from now.

        Returns the sequence of the message.

        Raises BufferFullError if the send buffer is full (wait for the event BufferAvailable), RecordTooLargeError for
        a message longer than the broker accepts, UsageError for another type or if the publisher is closed.
        """
        # Most messages join the open batch here. Its limit of 0 sends all others to _send_checked.
        filled_bytes = self._filled_bytes + len(payload) + LENGTH_BYTES
        if (
            filled_bytes > self._limit_bytes
            or (published_us != self._since_us and not self._since_us < published_us <= self._until_us)
            or retain
            or extension
            or type(payload) is not bytes
        ):
            return self._send_checked(payload, published_us, retain, extension, expires_at)
        self._filled_bytes = filled_bytes
        payloads = self._payloads
        payloads.append(payload)
        return self._before + len(payloads)

    def quick_send(self, careful: Callable[[Any], None], payload: object) -> None:
        """Send without time, flag and result, for very many messages. They share a time until end_time_sharing.

        A message that cannot join the open batch goes to `careful`, which calls `send`.
        """
        if type(payload) is bytes:
            filled_bytes = self._filled_bytes + len(payload) + LENGTH_BYTES
            if filled_bytes <= self._limit_bytes:
                self._filled_bytes = filled_bytes
                self._payloads.append(payload)
                return
        careful(payload)

    def end_time_sharing(self) -> None:
        """Check the time and size of the next message, which may not share the time of the one before."""
        self._limit_bytes = 0

    def close(self) -> None:
        """Accept no more messages. The channel ends when all messages are confirmed. May be repeated."""
        if self.is_closed:
            return
        if self._payloads:
            self.cut()
        self.is_closed = True
        self._limit_bytes = 0
        is_idle = self.is_idle
        if is_idle:
            self._end()
        state, key = self._state, (self.topic, self.qos)
        if state.by_topic.get(key) is self:
            del state.by_topic[key]
            if self.qos == 2 and not is_idle:
                # Unconfirmed messages may still arrive. The next publisher of this topic gets another identity, so
                # that the broker does not mistake messages of one for repeats of the other.
                state.replaced_publishers += 1
                state.resume_at[self.topic] = f"{state.run}-{state.replaced_publishers}", 0

    @property
    def next_sequence(self) -> int:
        """The sequence of the next message."""
        return self._before + len(self._payloads) + 1

    @property
    def is_idle(self) -> bool:
        """Whether all messages are confirmed (QoS 0: handed to the transport)."""
        return not (self._payloads or self._sent or self._waiting)

    # -- the open batch -----------------------------------------------------------------------------------------------

    def _send_checked(
        self, payload: Payload, published_us: int, retain: bool, extension: bytes, expires_at: float | None
    ) -> int:
        """Add a message that begins a batch, needs more of the buffer or a time of its own, or may be invalid."""
        state = self._state
        if type(payload) is not bytes or len(payload) > state.max_message_bytes or self.is_closed or state.is_closed:
            payload = self._checked(payload)
        retain = bool(retain)
        is_cut = bool(self._payloads) and not (
            extension == self._extension and self._may_join(len(payload), published_us, retain)
        )
        if is_cut:
            self.cut()
        try:
            self._join(payload, published_us, retain, extension, expires_at)
            sequence = self._before + len(self._payloads)
            if self._filled_bytes + len(payload) + LENGTH_BYTES > self._full_bytes:
                # There is no room for another message of this size: cut now, so that the next batch has a new time.
                self.cut()
                is_cut = True
        finally:
            if is_cut:  # last, because the callback may call send again
                state.flush_full(self.qos)
        return sequence

    def _checked(self, payload: Payload) -> bytes:
        if type(payload) is not bytes:
            payload = to_bytes(payload)
        state = self._state
        if self.is_closed or state.is_closed:
            raise UsageError(f"the publisher of {self.topic!r} is closed: make another one with client.publisher()")
        if len(payload) > state.max_message_bytes:
            raise self._too_large(len(payload))
        return payload

    def _too_large(self, size_bytes: int) -> RecordTooLargeError:
        most_bytes = self._state.max_message_bytes
        return RecordTooLargeError(
            f"a message of {size_bytes} bytes for {self.topic!r}: the broker accepts at most {most_bytes}"
        )

    def _added_bytes(self, size_bytes: int, published_us: int) -> int:
        """Return the growth of the batch by a message. Because of it, each message may need a time of its own."""
        if self._deltas_us is not None:
            return size_bytes + 2 * LENGTH_BYTES
        if self._payloads and published_us - self._since_us > TOGETHER_US:
            return size_bytes + LENGTH_BYTES * (2 + len(self._payloads))
        return size_bytes + LENGTH_BYTES

    def _may_join(self, size_bytes: int, published_us: int, retain: bool) -> bool:
        return (
            retain is self._retain
            and 0 <= published_us - self._since_us <= (MAX_DELTA_US if self._expires_at is None else TOGETHER_US)
            and self._filled_bytes + self._added_bytes(size_bytes, published_us) <= self._full_bytes
        )

    def _join(
        self, payload: bytes, published_us: int, retain: bool, extension: bytes, expires_at: float | None
    ) -> None:
        """Add a checked message to the open batch, or begin a batch with it."""
        payloads = self._payloads
        state = self._state
        if not payloads:
            self._granted_bytes = 0
            if self.qos == 0:
                most_bytes = MAX_UNRELIABLE_BYTES
            elif state.connection is None:
                most_bytes = OFFLINE_BATCH_BYTES
            else:
                most_bytes = min(state.connection.train_payload_bytes, LARGEST_BATCH_BYTES)
            self._full_bytes = most_bytes - ROUTE_BYTES
            filled_bytes = self._head_bytes + LENGTH_BYTES + len(payload)
            if extension:
                filled_bytes += LENGTH_BYTES + len(extension)
        else:
            filled_bytes = self._filled_bytes + self._added_bytes(len(payload), published_us)
        if filled_bytes > self._granted_bytes:
            step_bytes = max(GRANT_GROWTH * self._granted_bytes, FIRST_GRANT_BYTES)
            wanted_bytes = max(filled_bytes, min(step_bytes, self._full_bytes))
            self._granted_bytes += state.reserve(
                self, filled_bytes - self._granted_bytes, wanted_bytes - self._granted_bytes
            )
        if not payloads:
            self._since_us = published_us
            self._until_us = published_us + TOGETHER_US
            self._retain = retain
            self._extension = extension
            self._expires_at = expires_at
            if expires_at is not None:
                state.expiring[self] = min(expires_at, state.expiring.get(self, expires_at))
            self._deltas_us = None
        elif self._deltas_us is not None:
            self._deltas_us.append(published_us - self._since_us)
        elif published_us - self._since_us > TOGETHER_US:
            self._until_us = 0  # from here on each message has a time of its own
            self._deltas_us = [0] * len(payloads)
            self._deltas_us.append(published_us - self._since_us)
        payloads.append(payload)
        self._filled_bytes = filled_bytes
        if retain or extension or self._deltas_us is not None or state.max_message_bytes < self._full_bytes:
            self._limit_bytes = 0
        else:  # the message that fills the batch up must be checked too
            self._limit_bytes = min(self._granted_bytes, self._full_bytes - len(payload) - LENGTH_BYTES)
        if len(payloads) == 1:
            state.open_batches[self] = None
            state.active.pop(self, None)
            state.active[self] = None
            state.on_batch_begun()

    def cut(self) -> None:
        """Pack the open batch, which has at least one message, and hand it to the transport if there is one."""
        payloads = self._payloads
        count = len(payloads)
        first = self._before + 1
        body = pack_batch(
            payloads,
            self._since_us,
            qos=self.qos,
            retain=self._retain,
            sequence=first if self.qos != 1 else None,
            deltas_us=self._deltas_us,
            extension=self._extension or None,
        )
        granted_bytes = self._granted_bytes
        self._payloads = []
        self._before += count
        self._filled_bytes = self._limit_bytes = self._granted_bytes = 0
        self._deltas_us = None
        self._state.open_batches.pop(self, None)
        self._queue((first, count, body, self._expires_at), granted_bytes)

    def _queue(self, packed: PackedBatch, reserved_bytes: int) -> None:
        """Add a packed batch, correct its reservation in the send buffer to its size, and hand it to the transport."""
        state = self._state
        size_bytes = len(packed[2])
        freed_bytes = reserved_bytes - size_bytes - RECORD_COST_BYTES
        self._waiting.append(packed)
        self._waiting_bytes += size_bytes
        connection = state.connection
        if connection is None and self.qos == 0:
            freed_bytes += self._drop_oldest()
        state.release(freed_bytes)
        state.unflushed_bytes += size_bytes
        if connection is not None:
            self.hand_over(connection)
            if state.expiring and not self._waiting:
                state.expiring.pop(self, None)

    def _drop_oldest(self) -> int:
        """Drop old batches of QoS 0, but for the newest, down to the limit while offline. Return the freed bytes."""
        freed_bytes = 0
        while self._waiting_bytes > OFFLINE_UNRELIABLE_BYTES and len(self._waiting) > 1:
            _, count, body, _ = self._waiting.popleft()
            self._waiting_bytes -= len(body)
            self.dropped += count
            freed_bytes += len(body) + RECORD_COST_BYTES
        return freed_bytes

    # -- input from Publishers ----------------------------------------------------------------------------------------

    def hand_over(self, connection: Connection) -> None:
        """Hand waiting batches to the transport. If it accepts no more, wait for the cause to go away."""
        state = self._state
        try:
            if self._next_record == 0:
                self._open_channel(connection)
            assert self.channel is not None
            if self.qos == 0:
                self._hand_over_unreliable(connection, self.channel)
                return
            waiting = self._waiting
            while waiting:
                packed = waiting[0]
                body = packed[2]
                if packed[3] is not None:
                    if packed[3] <= state.now:
                        self.drop_expired(state.now)
                        continue
                    body = limit_lifetime(body, packed[3] - state.now)
                try:
                    if packed[1] == 1 and len(body) > state.max_message_bytes:
                        self._check_size(body)
                    connection.send(self.channel, body)
                except RecordTooLargeError as error:
                    self._drop_first(error)
                else:
                    self._sent.append((self._next_record, packed))
                    self._next_record += 1
                    waiting.popleft()
                    self._waiting_bytes -= len(body)
        except SendBufferFullError:
            state.waiting_for_buffer[self] = None
        except ConnectionClosedError:
            pass  # the event Closed follows
        except ChannelError:
            state.waiting_for_channel[self] = None
            _end_idle_channels(state, IDLE_SEARCH_LIMIT, len(state.active))

    def _hand_over_unreliable(self, connection: Connection, channel: int) -> None:
        state = self._state
        waiting = self._waiting
        try:
            while waiting:
                body = waiting[0][2]
                if (expires_at := waiting[0][3]) is not None:
                    if expires_at <= state.now:
                        self.drop_expired(state.now)
                        continue
                    body = limit_lifetime(body, expires_at - state.now)
                is_short = len(body) <= MAX_UNRELIABLE_BYTES
                if is_short and connection.unsent_bytes > UNRELIABLE_AHEAD_BYTES:
                    state.waiting_for_transport[self] = None
                    return
                try:
                    if waiting[0][1] == 1 and len(body) > state.max_message_bytes:
                        self._check_size(body)
                    connection.send(channel, body, reliable=not is_short)
                except RecordTooLargeError as error:
                    self._drop_first(error)
                else:
                    waiting.popleft()
                    self._waiting_bytes -= len(body)
                    state.release(len(body) + RECORD_COST_BYTES)
        finally:
            self._report_progress()

    def _open_channel(self, connection: Connection) -> None:
        state = self._state
        if self.channel is None:
            self.channel = connection.open_channel()
            state.by_channel[self.channel] = self
            _end_idle_channels(state, len(state.by_channel) - MAX_IDLE_CHANNELS, IDLE_SEARCH_LIMIT)
        message = PublishOpen(topic=self.topic, qos=self.qos, publisher=self.identity, epoch=self.epoch)
        connection.send(self.channel, encode_control(message))
        self._next_record = 1

    def _check_size(self, body: bytes) -> None:
        """Raise RecordTooLargeError for a single message that was packed before the broker's limit was known.

        Without the check the broker would close the channel, and messages behind it would be lost.
        """
        head = decode_head(body)
        size_bytes = longest_message(head.flags, head.count, body[head.rest_at :])
        if size_bytes > self._state.max_message_bytes:
            raise self._too_large(size_bytes)

    def _drop_first(self, error: RecordTooLargeError) -> None:
        first, count, body, _ = self._waiting.popleft()
        self._waiting_bytes -= len(body)
        self._state.release(len(body) + RECORD_COST_BYTES)
        self._state.events.append(Refused(self, Code.TOO_LARGE, str(error), first, first + count))
        self._report_progress()

    def drop_expired(self, now: float) -> None:
        """Drop the messages in the queue that have expired, and report them. Sent ones are not withdrawn."""
        if self._payloads and self._expires_at is not None and self._expires_at <= now:
            self.cut()
        state = self._state
        kept: list[PackedBatch] = []
        freed_bytes = 0
        next_at = self._expires_at if self._payloads else None
        for packed in self._waiting:
            first, count, body, expires_at = packed
            if expires_at is None or expires_at > now:
                kept.append(packed)
                if expires_at is not None:
                    next_at = expires_at if next_at is None else min(expires_at, next_at)
                continue
            self._waiting_bytes -= len(body)
            freed_bytes += len(body) + RECORD_COST_BYTES
            self.expired += count
            state.events.append(Expired(self, first, first + count))
        if next_at is None:
            state.expiring.pop(self, None)
        else:
            state.expiring[self] = next_at
        if freed_bytes:
            self._waiting.clear()
            self._waiting += kept
            state.release(freed_bytes)
            self._report_progress()

    def _report_progress(self) -> None:
        """Update confirmed_sequence, and report a change as an event. End a closed publisher that is idle now."""
        oldest = self._sent[0][1] if self._sent else self._waiting[0] if self._waiting else None
        done = self._before + 1 if oldest is None else oldest[0]
        if done <= self.confirmed_sequence:
            return
        self.confirmed_sequence = done
        events = self._state.events
        if events and isinstance(last := events[-1], Confirmed) and last.publisher is self:
            events.pop()  # not fetched yet, and the new one includes it
        events.append(Confirmed(self, done, self.reached))
        if self.is_closed and self.is_idle:
            self._end()

    def handle_confirmed(self, record: int, reached: int) -> bool:
        """Release all batches up to this record.

        Return False if the record was never sent (a protocol violation by the broker).
        """
        if record >= self._next_record:
            return False
        sent = self._sent
        freed_bytes = 0
        while sent and sent[0][0] <= record:
            freed_bytes += len(sent.popleft()[1][2]) + RECORD_COST_BYTES
        if freed_bytes:
            self.reached = reached
            self._state.release(freed_bytes)
            self._report_progress()
        return True

    def handle_disconnected(self) -> None:
        """Make sent batches wait again, in order. End the publisher if it is idle."""
        while self._sent:
            packed = self._sent.pop()[1]
            self._waiting.appendleft(packed)
            self._waiting_bytes += len(packed[2])
            if packed[3] is not None:
                expiring = self._state.expiring
                expiring[self] = min(packed[3], expiring.get(self, packed[3]))
        self.channel = None
        self._next_record = 0
        if self.is_idle:
            self._end()

    def handle_refused(self, code: int, text: str) -> None:
        """Drop all unconfirmed messages and end the channel."""
        state = self._state
        first = self.confirmed_sequence
        unconfirmed = [*self._waiting, *(packed for _, packed in self._sent)]
        freed_bytes = self._granted_bytes + sum(len(body) + RECORD_COST_BYTES for _, _, body, _ in unconfirmed)
        self._waiting.clear()
        self._sent.clear()
        self._before += len(self._payloads)
        self._payloads = []
        self._waiting_bytes = self._filled_bytes = self._limit_bytes = self._granted_bytes = 0
        self.confirmed_sequence = self._before + 1
        state.release(freed_bytes)
        state.expiring.pop(self, None)
        waiting = (state.waiting_for_buffer, state.waiting_for_transport, state.waiting_for_channel)
        for publishers in (state.open_batches, *waiting):
            publishers.pop(self, None)
        self._end()
        state.events.append(Refused(self, code, text, first, self.confirmed_sequence))

    def _end(self) -> None:
        """End the channel, and forget the publisher unless the application refers to it."""
        state = self._state
        channel = self.channel
        if channel is not None:
            del state.by_channel[channel]
            self.channel = None
            self._next_record = 0
            state.end_channel(channel)
        state.active.pop(self, None)
        if self.qos == 2 and self.identity and state.by_topic.get((self.topic, 2)) is self:
            state.resume_at[self.topic] = self.identity, self.next_sequence


class SharedPublisher(Publisher):
    """The publisher of a topic for all callers without an identity. mypyc cannot compile weak references to it."""

    __slots__ = ("__weakref__",)


def _end_idle_channels(state: SendState, excess: int, limit: int) -> None:
    """End up to `excess` idle channels, looking only at the `limit` least recently used publishers."""
    if excess <= 0:
        return
    for publisher in list(islice(state.active, limit)):
        if excess > 0 and publisher.is_idle and publisher.channel is not None:
            publisher._end()
            excess -= 1


class Publishers:
    """All publishers of a client: creates them, and passes on the events of the connection and the broker.

    Input: publisher; attach, detach, close, cut_open_batches, retry_blocked, handle_*. Output: events.
    """

    def __init__(self, send_buffer_bytes: int, events: list[ClientEvent], run: str) -> None:
        self.state = SendState(send_buffer_bytes, events, run)

    def publisher(self, topic: str, qos: Qos, identity: str | None, epoch: int, sequence: int) -> Publisher:
        """Return the publisher of this topic and QoS; with an identity, a new one each time."""
        state = self.state
        if identity is not None:
            return Publisher(state, topic, qos, identity, epoch, sequence)
        key = (topic, qos)
        publisher = state.by_topic.get(key)
        if publisher is None:
            if qos == 2:
                identity, next_sequence = state.resume_at.get(topic, (state.run, 0))
                sequence = max(sequence, next_sequence)
            publisher = state.by_topic[key] = SharedPublisher(state, topic, qos, identity, epoch, sequence)
        return publisher

    # -- the connection -----------------------------------------------------------------------------------------------

    def attach(self, connection: Connection, max_message_bytes: int) -> None:
        """Send all waiting batches on a new connection whose broker accepts messages of this size."""
        state = self.state
        state.connection = connection
        state.max_message_bytes = min(max_message_bytes, MAX_MESSAGE_BYTES)
        for publisher in list(state.active):
            publisher.end_time_sharing()
            publisher.hand_over(connection)

    def detach(self) -> None:
        """Prepare all unconfirmed batches for the next connection: this one is gone."""
        state = self.state
        state.connection = None
        state.by_channel.clear()
        state.ending_channels.clear()
        state.waiting_for_buffer.clear()
        state.waiting_for_transport.clear()
        state.waiting_for_channel.clear()
        for publisher in list(state.active):
            publisher.handle_disconnected()

    def close(self) -> None:
        """Refuse all further messages."""
        self.state.is_closed = True
        self.detach()

    def handle_timer(self, now: float) -> None:
        """Drop queued messages that have expired."""
        for publisher, expires_at in list(self.state.expiring.items()):
            if expires_at <= now:
                publisher.drop_expired(now)

    def cut_open_batches(self) -> None:
        """Pack all open batches: the transport is idle, so they need not wait until they are full."""
        for publisher in list(self.state.open_batches):
            publisher.cut()

    def retry_blocked(self) -> None:
        """Try again to hand over the batches that wait for the transport or for a channel."""
        self._retry(self.state.waiting_for_transport)
        self._retry(self.state.waiting_for_channel)

    def handle_writable(self) -> None:
        """Continue after the transport's send buffer was full."""
        state = self.state
        ending, state.ending_channels = state.ending_channels, []
        for channel in ending:
            state.end_channel(channel)
        self._retry(state.waiting_for_buffer)

    def _retry(self, waiting: dict[Publisher, None]) -> None:
        while waiting and self.state.connection is not None:
            publisher = next(iter(waiting))
            del waiting[publisher]
            publisher.hand_over(self.state.connection)
            if publisher in waiting:
                return

    # -- messages from the broker -------------------------------------------------------------------------------------

    def handle_confirmed(self, channel: int, record: int, reached: int) -> None:
        """Pass a confirm on. Raises DecodeError for a record that was never sent."""
        publisher = self.state.by_channel.get(channel)
        if publisher is not None and not publisher.handle_confirmed(record, reached):
            raise DecodeError("confirm", f"of record {record} on channel {channel}, which was not sent")

    def handle_opened(self, channel: int, subscribers: int) -> None:
        """Store the number of subscriptions that the broker reported when the channel was opened."""
        publisher = self.state.by_channel.get(channel)
        if publisher is not None:
            publisher.subscribers = subscribers

    def handle_refused(self, channel: int, code: int, text: str) -> None:
        """Pass on that the broker rejects all messages on this channel."""
        publisher = self.state.by_channel.get(channel)
        if publisher is not None:
            publisher.handle_refused(code, text)
