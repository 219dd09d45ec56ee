"""A publisher: packs messages of one topic and QoS into batches, and keeps what the broker has not confirmed.

    send --> the open batch --full, or the transport is idle--> waiting --handed over--> sent --confirmed--> gone
                                                                   ^--the connection was lost--/

A batch once packed is never packed anew: after a reconnect the same bytes travel again, so a repeat can be recognised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from godwit.client.backlog import Backlog, Packed, cost_bytes
from godwit.client.packing import HEAD_BYTES, LENGTH_BYTES, Payload, pack_batch, to_bytes
from godwit.errors import ChannelError, ConnectionClosedError, RecordTooLargeError, SendBufferFullError, UsageError
from godwit.limits import KIB, MAX_BATCH_MESSAGES, MAX_UNRELIABLE_BYTES, RECORD_COST_BYTES
from godwit.transport.connection import Connection
from godwit.wire.control import PublishOpen, encode_control
from godwit.wire.control_base import Code, Qos

if TYPE_CHECKING:
    from godwit.client.outbox import Outbox

TOGETHER_US: Final = 1000
"""Messages of a batch that were published within this time share its time."""
MAX_DELTA_US: Final = 2**32 - 1
LARGEST_BATCH_BYTES: Final = LENGTH_BYTES * MAX_BATCH_MESSAGES
"""No more, however long a train is: so a batch of empty messages is full before there are too many of them."""
ROUTE_BYTES: Final = 32
"""A subscriber's head is longer by this at most: what fits one train on its way in fits one on its way out."""
FIRST_GRANT_BYTES: Final = 2 * KIB
"""What a batch takes of the buffer when it begins; then it takes in larger steps."""
GRANT_GROWTH: Final = 8
UNRELIABLE_AHEAD_BYTES: Final = 128 * KIB
"""Of QoS 0, no more is handed to the transport ahead of its time: it would drop the oldest when its queue is full."""
OFFLINE_UNRELIABLE_BYTES: Final = 64 * KIB
"""Of QoS 0, so much of the newest is kept for each publisher while there is no broker."""

Obstacle: TypeAlias = Literal["", "buffer", "ahead", "channels", "closed"]
"""What keeps a publisher from handing more to the transport; empty: nothing."""


class Publisher:
    """Made by `Client.publisher`. One topic, one QoS; order holds within it."""

    __slots__ = (
        "__weakref__", "_backlog", "_before", "_deltas_us", "_filled_bytes", "_full_bytes", "_granted_bytes",
        "_head_bytes", "_is_closed", "_limit_bytes", "_outbox", "_payloads", "_retain", "_since_us", "_until_us",
        "channel", "confirmed_sequence", "dropped", "epoch", "identity", "qos", "reached", "subscribers", "topic",
    )  # fmt: skip

    def __init__(
        self, outbox: Outbox, topic: str, qos: Qos, identity: str | None = None, epoch: int = 0, sequence: int = 0
    ) -> None:
        self.topic = topic
        self.qos: Qos = qos
        self.identity = identity
        """Under which repeats are recognised (QoS 2)."""
        self.epoch = epoch
        self.confirmed_sequence = sequence
        """All messages below this are safe as promised, or were refused."""
        self.reached = 0
        """Connected subscriptions that the last confirmed record matched."""
        self.subscribers = 0
        """Connected subscriptions that matched the topic when its channel was opened."""
        self.dropped = 0
        """Messages of QoS 0 that were dropped while there was no broker."""
        self._outbox = outbox
        self._is_closed = False
        # The open batch.
        self._payloads: list[bytes] = []
        self._before = sequence - 1
        """The sequence of the message before the batch."""
        self._filled_bytes = 0
        self._limit_bytes = 0
        """Up to this the batch grows without further ado; 0 if each message is to be looked at."""
        self._granted_bytes = 0
        """What it has taken of the client's buffer."""
        self._full_bytes = 0
        self._since_us = 0
        self._until_us = 0
        """A message published from `since` until then shares the batch's time."""
        self._deltas_us: list[int] | None = None
        self._retain = False
        self._head_bytes = HEAD_BYTES - 8 if qos == 1 else HEAD_BYTES
        """With a sequence: at QoS 2 repeats are told by it, at QoS 0 what comes late."""
        # Packed batches.
        self._backlog = Backlog()
        self.channel: int | None = None
        """On the present connection."""

    # -- the application's calls --------------------------------------------------------------------------------------

    def send(self, payload: Payload, published_us: int, retain: bool = False) -> int:
        """Puts a message into the open batch, and gives its sequence. BufferFullError: wait for the Room event.

        The many messages that join a batch take this short way; the others are looked at in _send_with_care.
        """
        filled_bytes = self._filled_bytes + len(payload) + LENGTH_BYTES
        if (
            filled_bytes > self._limit_bytes
            or (published_us != self._since_us and not self._since_us < published_us <= self._until_us)
            or retain
            or type(payload) is not bytes
        ):
            return self._send_with_care(payload, published_us, retain)
        self._filled_bytes = filled_bytes
        payloads = self._payloads
        payloads.append(payload)
        return self._before + len(payloads)

    def make_quick_send(self, careful: Callable[[Payload], None]) -> Callable[[Payload], None]:
        """A `send` without time, flag and result, for those that send very many: only the short way.

        What cannot take it goes to `careful`, which calls `send`. What follows shares the time of that message until
        end_moment is called. A closure: it is called for every message, so nothing in it is looked up twice.
        """

        def send(payload: Payload) -> None:
            if payload.__class__ is bytes:
                filled_bytes = self._filled_bytes + len(payload) + LENGTH_BYTES
                if filled_bytes <= self._limit_bytes:
                    self._filled_bytes = filled_bytes
                    self._payloads.append(payload)
                    return
            careful(payload)

        return send

    def end_moment(self) -> None:
        """The next message is looked at: its time, and what the broker takes."""
        self._limit_bytes = 0

    def send_extended(self, payload: Payload, published_us: int, extension: bytes) -> int:
        """A message in a batch of its own, with an extension that the broker carries along unopened."""
        payload = self._checked(payload, len(extension))
        if self._payloads:
            self.cut()
        record_bytes = HEAD_BYTES + LENGTH_BYTES + len(extension) + len(payload) + RECORD_COST_BYTES
        self._outbox.take(self, record_bytes, record_bytes)
        self._outbox.use(self)
        sequence = self.next_sequence
        body = pack_batch(
            [payload],
            self.qos,
            published_us,
            retain=False,
            sequence=sequence if self.qos != 1 else None,
            extension=extension,
        )
        self._before = sequence
        self._outbox.give_back(record_bytes - len(body) - RECORD_COST_BYTES)
        self._queue((sequence, 1, body))
        self._outbox.on_full(self)
        return sequence

    def close(self) -> None:
        """No more messages. What was sent is still confirmed; then the broker forgets the channel."""
        if not self._is_closed:
            if self._payloads:
                self.cut()
            self._is_closed = True
            self._limit_bytes = 0
            self._outbox.on_closed(self)

    @property
    def next_sequence(self) -> int:
        """The sequence of the next message."""
        return self._before + len(self._payloads) + 1

    @property
    def is_idle(self) -> bool:
        """Everything is confirmed (QoS 0: handed to the transport)."""
        return not (self._payloads or self._backlog)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    # -- the open batch -----------------------------------------------------------------------------------------------

    def _send_with_care(self, payload: Payload, published_us: int, retain: bool) -> int:
        """The message that begins a batch, needs more of the buffer or another time, or is not as it should be."""
        payload = self._checked(payload)
        retain = bool(retain)
        is_cut = bool(self._payloads) and not self._may_join(len(payload), published_us, retain)
        if is_cut:
            self.cut()
        try:
            self._join(payload, published_us, retain)
            sequence = self._before + len(self._payloads)
            if self._filled_bytes + len(payload) + LENGTH_BYTES > self._full_bytes:
                # One more like it has no room. It goes now, so that the next batch begins with a fresh time.
                self.cut()
                is_cut = True
        finally:
            if is_cut:  # at the very end: whoever is told may call send again
                self._outbox.on_full(self)
        return sequence

    def _checked(self, payload: Payload, more_bytes: int = 0) -> bytes:
        if type(payload) is not bytes:
            payload = to_bytes(payload)
        outbox = self._outbox
        if self._is_closed or outbox.is_closed:
            raise UsageError(f"the publisher of {self.topic!r} is closed: make another one with client.publisher()")
        if len(payload) + more_bytes > outbox.max_message_bytes:
            raise RecordTooLargeError(
                f"a message of {len(payload)} bytes for {self.topic!r}: the broker takes {outbox.max_message_bytes}"
            )
        return payload

    def _cost_bytes(self, size: int, published_us: int) -> int:
        """What a message adds to the batch: with it every message may need a time of its own."""
        if self._deltas_us is not None:
            return size + 2 * LENGTH_BYTES
        if self._payloads and published_us - self._since_us > TOGETHER_US:
            return size + LENGTH_BYTES * (2 + len(self._payloads))
        return size + LENGTH_BYTES

    def _may_join(self, size: int, published_us: int, retain: bool) -> bool:
        return (
            retain is self._retain
            and 0 <= published_us - self._since_us <= MAX_DELTA_US
            and self._filled_bytes + self._cost_bytes(size, published_us) <= self._full_bytes
        )

    def _join(self, payload: bytes, published_us: int, retain: bool) -> None:
        payloads = self._payloads
        outbox = self._outbox
        if not payloads:
            self._filled_bytes = 0
            self._granted_bytes = 0
            most_bytes = MAX_UNRELIABLE_BYTES if self.qos == 0 else min(outbox.batch_bytes(), LARGEST_BATCH_BYTES)
            self._full_bytes = most_bytes - ROUTE_BYTES
            filled_bytes = self._head_bytes + LENGTH_BYTES + len(payload)
        else:
            filled_bytes = self._filled_bytes + self._cost_bytes(len(payload), published_us)
        if filled_bytes > self._granted_bytes:
            step_bytes = max(GRANT_GROWTH * self._granted_bytes, FIRST_GRANT_BYTES)
            wanted_bytes = max(filled_bytes, min(step_bytes, self._full_bytes))
            taken_bytes = outbox.take(self, filled_bytes - self._granted_bytes, wanted_bytes - self._granted_bytes)
            self._granted_bytes += taken_bytes
        if not payloads:
            self._since_us = published_us
            self._until_us = published_us + TOGETHER_US
            self._retain = retain
            self._deltas_us = None
        elif self._deltas_us is not None:
            self._deltas_us.append(published_us - self._since_us)
        elif published_us - self._since_us > TOGETHER_US:
            self._until_us = 0  # from here on every time is looked at
            self._deltas_us = [0] * len(payloads)
            self._deltas_us.append(published_us - self._since_us)
        payloads.append(payload)
        self._filled_bytes = filled_bytes
        if retain or self._deltas_us is not None or outbox.max_message_bytes < self._full_bytes:
            self._limit_bytes = 0
        else:  # the message that fills the batch up takes the long way too
            self._limit_bytes = min(self._granted_bytes, self._full_bytes - len(payload) - LENGTH_BYTES)
        if len(payloads) == 1:
            outbox.on_begun(self)

    def cut(self) -> None:
        """Packs the open batch, which has at least one message, and hands it to the transport if there is one."""
        payloads = self._payloads
        count = len(payloads)
        first = self._before + 1
        body = pack_batch(
            payloads,
            self.qos,
            self._since_us,
            retain=self._retain,
            sequence=first if self.qos != 1 else None,
            deltas_us=self._deltas_us,
        )
        granted_bytes = self._granted_bytes
        self._payloads = []
        self._before += count
        self._filled_bytes = self._limit_bytes = self._granted_bytes = 0
        self._deltas_us = None
        self._outbox.give_back(granted_bytes - len(body) - RECORD_COST_BYTES)
        self._queue((first, count, body))

    def _queue(self, packed: Packed) -> None:
        backlog = self._backlog
        backlog.add(packed)
        if self.qos == 0 and not self._outbox.is_online:
            dropped, freed_bytes = backlog.trim(OFFLINE_UNRELIABLE_BYTES)
            self.dropped += dropped
            self._outbox.give_back(freed_bytes)
        self._outbox.on_packed(self, len(packed[2]))

    # -- what the outbox does with it ---------------------------------------------------------------------------------

    def hand_over(self, connection: Connection) -> Obstacle:
        """Gives what waits to the transport, as far as it takes it."""
        try:
            if self._backlog.next_record == 0:
                self._open(connection)
            assert self.channel is not None
            if self.qos == 0:
                return self._hand_over_unreliable(connection, self.channel)
            return self._hand_over_reliable(connection, self.channel)
        except SendBufferFullError:
            return "buffer"
        except ConnectionClosedError:
            return "closed"  # the outbox will hear of it in a moment
        except ChannelError:
            return "channels"

    def _open(self, connection: Connection) -> None:
        if self.channel is None:
            self.channel = connection.open_channel()
            self._outbox.on_opened_channel(self, self.channel)
        message = PublishOpen(topic=self.topic, qos=self.qos, publisher=self.identity, epoch=self.epoch)
        connection.send(self.channel, encode_control(message))
        self._backlog.next_record = 1

    def _hand_over_reliable(self, connection: Connection, channel: int) -> Obstacle:
        backlog = self._backlog
        while (packed := backlog.first_waiting) is not None:
            try:
                self._check_alone(packed)
                connection.send(channel, packed[2])
            except RecordTooLargeError as error:
                self._drop_first(error)
            else:
                backlog.mark_sent()
        return ""

    def _check_alone(self, packed: Packed) -> None:
        """A long message that was packed before the broker said what it takes must not cost the others."""
        size, most_bytes = len(packed[2]) - self._head_bytes + LENGTH_BYTES, self._outbox.max_message_bytes
        if packed[1] == 1 and size > most_bytes:
            raise RecordTooLargeError(f"a message of {size} bytes for {self.topic!r}: the broker takes {most_bytes}")

    def _hand_over_unreliable(self, connection: Connection, channel: int) -> Obstacle:
        backlog = self._backlog
        try:
            while (packed := backlog.first_waiting) is not None:
                is_short = len(packed[2]) <= MAX_UNRELIABLE_BYTES
                if is_short and connection.unsent_bytes > UNRELIABLE_AHEAD_BYTES:
                    return "ahead"
                try:
                    self._check_alone(packed)
                    connection.send(channel, packed[2], reliable=not is_short)
                except RecordTooLargeError as error:
                    self._drop_first(error)
                else:
                    self._outbox.give_back(cost_bytes(backlog.take()))
        finally:
            self._settle()
        return ""

    def _settle(self) -> None:
        """Works out how far everything is done with, and says so."""
        oldest = self._backlog.first_sequence
        done = self._before + 1 if oldest is None else oldest
        if done > self.confirmed_sequence:
            self.confirmed_sequence = done
            self._outbox.on_progress(self)

    def _drop_first(self, error: RecordTooLargeError) -> None:
        packed = self._backlog.take()
        first, count, _ = packed
        self._outbox.give_back(cost_bytes(packed))
        self._outbox.on_failed(self, Code.TOO_LARGE, str(error), first, first + count)
        self._settle()

    def on_confirmed(self, record: int, reached: int) -> bool:
        """The broker has everything up to this record. False: it was never sent, so the broker is out of its mind."""
        if record >= self._backlog.next_record:
            return False
        freed_bytes = self._backlog.confirm(record)
        if freed_bytes:
            self.reached = reached
            self._outbox.give_back(freed_bytes)
            self._settle()
        return True

    def on_disconnected(self) -> None:
        """What was sent and not confirmed will be sent again."""
        self._backlog.on_disconnected()
        self.on_channel_ended()

    def on_channel_ended(self) -> None:
        self.channel = None
        self._backlog.next_record = 0

    def fail(self) -> tuple[int, int]:
        """Drops everything that is not confirmed; gives the first sequence, and that behind the last."""
        first = self.confirmed_sequence
        freed_bytes = self._granted_bytes + self._backlog.clear()
        self._before += len(self._payloads)
        self._payloads = []
        self._filled_bytes = self._limit_bytes = self._granted_bytes = 0
        self.confirmed_sequence = self._before + 1
        self._outbox.give_back(freed_bytes)
        return first, self.confirmed_sequence
