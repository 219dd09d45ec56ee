"""All publishers of a client: the buffer they share, their channels on the present connection, who waits for what."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final
from weakref import WeakValueDictionary

from godwit.client.events import ClientEvent, Confirmed, Refused, Room
from godwit.client.publisher import Obstacle, Publisher
from godwit.errors import BufferFullError, ConnectionClosedError, DecodeError, SendBufferFullError
from godwit.limits import KIB, MAX_MESSAGE_BYTES
from godwit.transport.connection import Connection
from godwit.wire.control_base import Qos

OFFLINE_BATCH_BYTES: Final = 24 * KIB
"""How large a batch becomes while nobody knows what a train will carry."""
SMALLEST_TRAIN_BYTES: Final = 16 * KIB
"""With less of QoS 0 to send, the end of the turn is soon enough."""
MAX_IDLE_CHANNELS: Final = 1024
"""Beyond it the channels that were not used for longest are ended: a client may publish to very many topics."""
LOOKS_FOR_IDLE: Final = 8
"""So many of the oldest channels are looked at when one too many is opened."""


def _nothing() -> None:
    """Nobody wants to be told."""


class Outbox:
    """Feed: take, give_back and on_... from the publishers; attach, detach and on_... from the client."""

    def __init__(self, send_buffer_bytes: int, events: list[ClientEvent], run: str) -> None:
        self.max_message_bytes = MAX_MESSAGE_BYTES
        """What the broker takes, once it has said so."""
        self.is_closed = False
        self.on_batch_begun: Callable[[], None] = _nothing
        """Called when a batch has its first message: trains should be asked for before long."""
        self.on_batch_full: Callable[[], None] = _nothing
        """Called when a full batch was handed to the transport: trains should be asked for now."""
        self._events = events
        self._run = run
        """The identity of publishers at QoS 2 that were given none: another one for each run of the client."""
        self._limit_bytes = send_buffer_bytes
        self._held_bytes = 0
        self._connection: Connection | None = None
        self._known: WeakValueDictionary[tuple[str, Qos], Publisher] = WeakValueDictionary()
        self._progress: dict[str, tuple[str, int]] = {}
        """By topic, the identity and the sequence with which a publisher of QoS 2 that is made again goes on."""
        self._left = 0
        """How many publishers of QoS 2 were closed before all of theirs was confirmed."""
        self._busy: dict[Publisher, None] = {}
        """Those with a channel or something to send, the longest unused first. Others live while somebody has them."""
        self._by_channel: dict[int, Publisher] = {}
        self._begun: dict[Publisher, None] = {}
        self._kept_by: dict[Obstacle, dict[Publisher, None]] = {"buffer": {}, "ahead": {}, "channels": {}}
        self._to_end: list[int] = []
        """Channels whose end the transport had no room for."""
        self._starved: dict[Publisher, None] = {}
        self._is_filling = False
        self._untold_bytes = 0
        """Packed since the caller was last told of full batches."""

    # -- look ---------------------------------------------------------------------------------------------------------

    @property
    def is_online(self) -> bool:
        return self._connection is not None

    @property
    def is_full(self) -> bool:
        return self._held_bytes >= self._limit_bytes

    @property
    def held_bytes(self) -> int:
        """What all publishers hold that is not confirmed."""
        return self._held_bytes

    @property
    def has_begun(self) -> bool:
        """Whether a batch is open that should go as soon as the transport has nothing better to do.

        Not in the middle of a run of sends that just filled a batch: the next one is about to fill too.
        """
        return bool(self._begun) and not self._is_filling

    @property
    def has_kept(self) -> bool:
        """Whether anybody waits for the transport's time or for a channel."""
        return bool(self._kept_by["ahead"] or self._kept_by["channels"])

    def batch_bytes(self) -> int:
        """How large a batch should become: what one train carries."""
        return OFFLINE_BATCH_BYTES if self._connection is None else self._connection.train_payload_bytes

    # -- publishers come and go ---------------------------------------------------------------------------------------

    def publisher(self, topic: str, qos: Qos, identity: str | None, epoch: int, sequence: int) -> Publisher:
        """The publisher of this topic and QoS; with an identity a new one each time."""
        if identity is not None:
            return Publisher(self, topic, qos, identity, epoch, sequence)
        key = (topic, qos)
        publisher = self._known.get(key)
        if publisher is None:
            if qos == 2:
                identity, next_sequence = self._progress.get(topic, (self._run, 0))
                sequence = max(sequence, next_sequence)
            publisher = self._known[key] = Publisher(self, topic, qos, identity, epoch, sequence)
        return publisher

    def on_closed(self, publisher: Publisher) -> None:
        is_idle = publisher.is_idle
        if is_idle:
            self._end(publisher)
        key = (publisher.topic, publisher.qos)
        if self._known.get(key) is publisher:
            del self._known[key]
            if publisher.qos == 2 and not is_idle:
                # Some of it may still be under way: the next one must not be taken for it, nor it for the next one.
                self._left += 1
                self._progress[publisher.topic] = f"{self._run}-{self._left}", 0

    def use(self, publisher: Publisher) -> None:
        self._busy.pop(publisher, None)
        self._busy[publisher] = None

    def _end(self, publisher: Publisher) -> None:
        """Its channel is ended, and it is forgotten unless somebody else holds it."""
        channel = publisher.channel
        if channel is not None:
            del self._by_channel[channel]
            publisher.on_channel_ended()
            self._end_channel(channel)
        self._busy.pop(publisher, None)
        if publisher.qos == 2 and publisher.identity and self._known.get((publisher.topic, 2)) is publisher:
            self._progress[publisher.topic] = publisher.identity, publisher.next_sequence

    def _end_channel(self, channel: int) -> None:
        assert self._connection is not None
        try:
            self._connection.send(channel, b"", last=True)
        except SendBufferFullError:
            self._to_end.append(channel)
        except ConnectionClosedError:
            pass  # with the connection all its channels have ended

    def _end_idle(self, excess: int, looks: int) -> None:
        """Ends so many channels, if among those that were not used for longest so many are idle."""
        for publisher in list(islice(self._busy, looks)):
            if excess > 0 and publisher.is_idle and publisher.channel is not None:
                self._end(publisher)
                excess -= 1

    # -- what publishers tell -----------------------------------------------------------------------------------------

    def take(self, publisher: Publisher, needed_bytes: int, wanted_bytes: int) -> int:
        """Gives so much of the buffer to a publisher, at least what it needs; a message for itself always fits."""
        room_bytes = self._limit_bytes - self._held_bytes
        if needed_bytes > room_bytes and self._held_bytes > 0:
            self._starved[publisher] = None
            raise BufferFullError(
                f"{self._held_bytes} bytes of this client are not confirmed yet, it may hold {self._limit_bytes}: "
                "wait for room, then send again"
            )
        taken_bytes = max(needed_bytes, min(wanted_bytes, room_bytes))
        self._held_bytes += taken_bytes
        return taken_bytes

    def give_back(self, freed_bytes: int) -> None:
        self._held_bytes -= freed_bytes
        if self._starved and 2 * self._held_bytes <= self._limit_bytes:
            self._events += [Room(publisher) for publisher in self._starved]
            self._starved.clear()

    def on_begun(self, publisher: Publisher) -> None:
        self._begun[publisher] = None
        self.use(publisher)
        self.on_batch_begun()

    def on_full(self, publisher: Publisher) -> None:
        """A batch was full: it goes before the next one is filled. The small ones of QoS 0 make a train together."""
        if self._connection is not None and (publisher.qos or self._untold_bytes >= SMALLEST_TRAIN_BYTES):
            self._untold_bytes = 0
            self._is_filling = True
            try:
                self.on_batch_full()
            finally:
                self._is_filling = False

    def on_packed(self, publisher: Publisher, record_bytes: int) -> None:
        self._begun.pop(publisher, None)
        self._untold_bytes += record_bytes
        if self._connection is not None:
            self._hand_over(publisher, self._connection)

    def on_opened_channel(self, publisher: Publisher, channel: int) -> None:
        self._by_channel[channel] = publisher
        self._end_idle(len(self._by_channel) - MAX_IDLE_CHANNELS, LOOKS_FOR_IDLE)

    def on_progress(self, publisher: Publisher) -> None:
        """More of it is confirmed (QoS 0: handed over)."""
        events = self._events
        if events and isinstance(last := events[-1], Confirmed) and last.publisher is publisher:
            events.pop()  # nobody has seen it yet, and the new one says more
        events.append(Confirmed(publisher, publisher.confirmed_sequence, publisher.reached))
        if publisher.is_closed and publisher.is_idle:
            self._end(publisher)

    def on_failed(self, publisher: Publisher, code: int, text: str, first: int, sequence: int) -> None:
        self._events.append(Refused(publisher, code, text, first, sequence))

    # -- what the client tells ----------------------------------------------------------------------------------------

    def attach(self, connection: Connection, max_message_bytes: int) -> None:
        """There is a broker: all that waits goes to it."""
        self._connection = connection
        self.max_message_bytes = min(max_message_bytes, MAX_MESSAGE_BYTES)
        for publisher in list(self._busy):
            publisher.end_moment()
            self._hand_over(publisher, connection)

    def detach(self) -> None:
        """There is none any more."""
        self._connection = None
        self._by_channel.clear()
        self._to_end.clear()
        for kept in self._kept_by.values():
            kept.clear()
        for publisher in list(self._busy):
            publisher.on_disconnected()
            if publisher.is_idle:
                self._end(publisher)

    def close(self) -> None:
        self.is_closed = True
        self.detach()

    def cut_begun(self) -> None:
        """The transport has nothing to send: batches need not wait until they are full."""
        for publisher in list(self._begun):
            publisher.cut()

    def go_on(self) -> None:
        """Something may have changed: those who wait for the transport's time or for a channel try again."""
        self._retry("ahead")
        self._retry("channels")

    def on_writable(self) -> None:
        to_end, self._to_end = self._to_end, []
        for channel in to_end:
            self._end_channel(channel)
        self._retry("buffer")

    def on_confirmed(self, channel: int, record: int, reached: int) -> None:
        publisher = self._by_channel.get(channel)
        if publisher is not None and not publisher.on_confirmed(record, reached):
            raise DecodeError("confirm", f"of record {record} on channel {channel}, which was not sent")

    def on_opened(self, channel: int, subscribers: int) -> None:
        publisher = self._by_channel.get(channel)
        if publisher is not None:
            publisher.subscribers = subscribers

    def on_refused(self, channel: int, code: int, text: str) -> None:
        """The broker does not want what is on this channel."""
        publisher = self._by_channel.get(channel)
        if publisher is None:
            return
        first, sequence = publisher.fail()
        for waiting in (self._begun, *self._kept_by.values()):
            waiting.pop(publisher, None)
        self._end(publisher)
        self.on_failed(publisher, code, text, first, sequence)

    def _hand_over(self, publisher: Publisher, connection: Connection) -> None:
        obstacle = publisher.hand_over(connection)
        if obstacle in self._kept_by:
            self._kept_by[obstacle][publisher] = None
            if obstacle == "channels":
                self._end_idle(LOOKS_FOR_IDLE, len(self._busy))

    def _retry(self, obstacle: Obstacle) -> None:
        waiting = self._kept_by[obstacle]
        while waiting and self._connection is not None:
            publisher = next(iter(waiting))
            del waiting[publisher]
            self._hand_over(publisher, self._connection)
            if publisher in waiting:
                return
