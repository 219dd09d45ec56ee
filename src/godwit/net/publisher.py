"""Publishers for asyncio, and the waits for confirmations and room.

`send` of an asyncio publisher never waits and is the fast path: it appends to the open batch of the sans-IO publisher
(godwit.client.publisher). The objects here are needed only to wait: for a confirmation, for room in the send buffer, or
for the end of the client.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from godwit.client.arguments import check_flag
from godwit.client.batches import Payload, to_bytes
from godwit.client.events import BufferAvailable, Confirmed, Expired, Refused
from godwit.client.properties import JsonBody, extension_for
from godwit.client.protocol import ClientProtocol
from godwit.client.publisher import Publisher
from godwit.errors import (
    BrokerError,
    BufferFullError,
    GodwitError,
    MessageExpiredError,
    ReplyTimeoutError,
    broker_error,
)
from godwit.net.loop import TimeLimit, check_timeout
from godwit.wire.extension import NO_PROPERTIES, Properties

BufferFull = BufferFullError
"""Raised by `send` when the client's buffer is full: `await publisher.ready()`, then send again."""


class SendTurn:
    """One turn of the event loop: messages sent in it share a publish time and a flush at its end.

    `send` is fast mainly because the clock is read and the loop is woken once a turn instead of once a message. A batch
    that is full is flushed before the end of the turn.
    """

    __slots__ = ("_flush", "_loop", "_senders", "is_direct", "now_us")

    def __init__(self, flush: Callable[[], None]) -> None:
        self.now_us = 0
        """The time of this turn; 0 if no message was sent in it yet."""
        self.is_direct = False
        """Whether a caller's thread sends one message while the loop is paused: no turn begins."""
        self._flush = flush
        self._senders: set[Publisher] = set()
        self._loop = asyncio.get_running_loop()

    def begin(self, sender: Publisher | None = None) -> int:
        """Return the publish time of a message sent now. The turn ends with `sender.end_time_sharing()`."""
        if self.is_direct:
            return time.time_ns() // 1000
        if not self.now_us:
            self._loop.call_soon(self._end)
            self.now_us = time.time_ns() // 1000
        if sender is not None:
            self._senders.add(sender)
        return self.now_us

    def _end(self) -> None:
        self.now_us = 0
        for sender in self._senders:
            sender.end_time_sharing()
        self._senders.clear()

    def on_batch_full(self) -> None:
        self._flush()
        if self.now_us:  # keeps the time right in a loop of sends that never lets the event loop run
            self.now_us = time.time_ns() // 1000


class PublishWaiters:
    """The futures that wait for confirmations, or for room, of one sans-IO publisher, and its pending error."""

    __slots__ = (
        "__weakref__",
        "_loop",
        "_waiting",
        "_waiting_for_room",
        "core",
        "ended",
        "failure",
        "first_refused",
        "has_senders",
        "is_starved",
    )

    def __init__(self, core: Publisher) -> None:
        self.core = core
        self.ended: GodwitError | None = None
        """Why the client has ended. Nothing is confirmed any more then."""
        self.failure: GodwitError | None = None
        """The refusal of messages that no call waited for. The next call raises it."""
        self.first_refused: int | None = None
        """The sequence of the first message that the broker refused."""
        self.has_senders = False
        """Whether an AsyncPublisher uses it, whose messages are sent without waiting."""
        self.is_starved = False
        """Whether the buffer was full, and the event Room has not come since."""
        self._waiting_for_room: list[asyncio.Future[None]] = []
        self._waiting: deque[tuple[int, int | None, asyncio.Future[int]]] = deque()
        """The sequence to wait for, and that of the one message whose expiry fails the wait."""
        self._loop = asyncio.get_running_loop()

    async def confirmed(self, sequence: int, *, message: int | None = None) -> int:
        """Wait until all messages below `sequence` are confirmed. Return how many subscribers the last record reached.

        Raises:
            BrokerError: The broker refused one of them.
            MessageExpiredError: The message with the sequence `message` has expired in the queue.
            GodwitError: The client has ended.
        """
        if self.core.confirmed_sequence >= sequence:
            return self.core.reached
        self.require_open()
        future: asyncio.Future[int] = self._loop.create_future()
        self._waiting.append((sequence, message, future))
        return await future

    async def room(self, *, until: float | None = None) -> None:
        """Wait until the amount of free buffer may have changed, or until this time (time.monotonic)."""
        self.require_open()
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting_for_room.append(future)
        if until is None:
            await future
        else:
            await asyncio.wait([future], timeout=max(until - time.monotonic(), 0.0))
            if future.done():
                future.result()

    def require_open(self) -> None:
        """Raise the error with which the client ended, if it has ended."""
        if self.ended is not None:
            raise copy(self.ended)

    def raise_failure(self) -> None:
        """Raise the refusal of earlier messages, once."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    # -- events of the client -----------------------------------------------------------------------------------------

    def on_confirmed(self, sequence: int, reached: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= sequence:
            _, _, future = waiting.popleft()
            if not future.done():
                future.set_result(reached)

    def on_room(self) -> None:
        self.is_starved = False
        self.wake()

    def wake(self) -> None:
        """Let all calls that wait for room check again."""
        waiting, self._waiting_for_room = self._waiting_for_room, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def on_refused(self, code: int, text: str, first: int, sequence: int) -> None:
        """Fail all waits for messages from `first` on: those below `sequence` were dropped."""
        error = broker_error(code, text)
        self.first_refused = first if self.first_refused is None else min(first, self.first_refused)
        self.failure = error if self.has_senders else None
        for wanted, _, future in self._waiting:
            if first < wanted and not future.done():
                future.set_exception(copy(error))
        self._waiting = deque(entry for entry in self._waiting if not entry[2].done())
        self.wake()

    def on_expired(self, first: int, sequence: int) -> None:
        """Fail the waits for single messages from `first` on, below `sequence`, which were dropped."""
        for _, message, future in self._waiting:
            if message is not None and first <= message < sequence and not future.done():
                future.set_exception(
                    MessageExpiredError(
                        f"the message for {self.core.topic!r} expired before the broker confirmed it: it was dropped "
                        "from the client's queue, and no subscriber that was not reached before gets it"
                    )
                )

    def on_ended(self, error: GodwitError) -> None:
        self.ended = error
        self.core.end_time_sharing()  # so that the next send is checked, and refused
        futures: list[asyncio.Future[Any]] = [future for _, _, future in self._waiting]
        for future in futures + list(self._waiting_for_room):
            if not future.done():
                future.set_exception(copy(error))
        self._waiting.clear()
        self._waiting_for_room = []


class ClientPublishers:
    """All publishers of one client: sending with and without waiting, room in the shared buffer, and draining it."""

    def __init__(self, core: ClientProtocol, flush: Callable[[], None], schedule_flush: Callable[[], None]) -> None:
        self.schedule_flush = schedule_flush
        self._core = core
        self.turn = SendTurn(flush)
        core.on_sending(begun=schedule_flush, full=self.turn.on_batch_full)
        self._crowded_bytes = core.config.send_buffer_bytes * 3 // 4
        self._waiters: WeakValueDictionary[Publisher, PublishWaiters] = WeakValueDictionary()  # while in use
        self._ended: GodwitError | None = None
        self._waiting_for_confirms: list[PublishWaiters] = []
        self._drained: list[asyncio.Future[None]] = []
        self.handlers: dict[type[Any], Callable[[Any], None]] = {
            Confirmed: self._on_confirmed,
            BufferAvailable: self._on_room,
            Refused: self._on_refused,
            Expired: self._on_expired,
        }

    def publisher(
        self,
        topic: str,
        *,
        qos: int,
        identity: str | None,
        epoch: int,
        sequence: int,
        retain: bool,
        properties: Properties = NO_PROPERTIES,
    ) -> AsyncPublisher:
        """Return a publisher, see AsyncClient.publisher."""
        check_flag("retain", retain)
        core = self._core.publisher(topic, qos=qos, identity=identity, epoch=epoch, sequence=sequence)
        return AsyncPublisher(self, self._waiters_of(core), self.turn, retain=retain, properties=properties)

    async def publish_within(
        self, timeout_s: float, topic: str, payload: Payload, *, qos: int, retain: bool, properties: Properties
    ) -> int | None:
        """Publish a message as `publish` does, within a time limit.

        Raises:
            ReplyTimeoutError: It took longer. The text tells whether the message is in the send buffer.
        """
        check_timeout(timeout_s)
        sequences: list[int] = []
        try:
            async with TimeLimit(timeout_s) as limit:
                return await self.publish(
                    topic, payload, qos=qos, retain=retain, properties=properties, on_accepted=sequences.append
                )
        except TimeoutError:
            if not limit.expired():
                raise
        if not sequences:
            raise ReplyTimeoutError(
                f"the client's send buffer had no room for the message for {topic!r} within {timeout_s:g} s: the "
                "message was not accepted and will not be sent; publish it again when the broker answers"
            )
        raise ReplyTimeoutError(
            f"the message for {topic!r} was not confirmed within {timeout_s:g} s: it is still in the client's buffer, "
            "and is sent when the broker answers"
        )

    async def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        qos: int,
        retain: bool,
        properties: Properties = NO_PROPERTIES,
        on_accepted: Callable[[int], None] | None = None,
    ) -> int | None:
        """Send a message, and wait until it is confirmed; at QoS 0, until it is in the send buffer.

        `on_accepted` is called with the message's sequence as soon as it is in the send buffer.
        """
        if self._ended is not None:
            raise copy(self._ended)
        check_flag("retain", retain)
        body = to_bytes(payload)
        is_plain = body is payload and properties is NO_PROPERTIES
        extension = b"" if is_plain else extension_for(payload, properties)
        expires_at = None
        if properties.lifetime_us is not None:
            expires_at = time.monotonic() + properties.lifetime_us / 1e6
        waiters = self._waiters_of(self._core.publisher(topic, qos=qos))
        sequence = await self.send(waiters, body, retain=retain, extension=extension, expires_at=expires_at)
        if on_accepted is not None:
            on_accepted(sequence)
        if qos == 0:
            await asyncio.sleep(0)  # so that a loop of publish calls lets the event loop run
            return None
        return await waiters.confirmed(sequence + 1, message=sequence)

    def chunk_waiters(self, topic: str, identity: str, *, epoch: int, sequence: int) -> PublishWaiters:
        """Return the waiters of a publisher for the chunks of a file: QoS 2, with an identity that outlives the run."""
        return self._waiters_of(self._core.publisher(topic, qos=2, identity=identity, epoch=epoch, sequence=sequence))

    async def send_chunk(self, waiters: PublishWaiters, payload: bytes, extension: bytes) -> None:
        """Send one chunk of a file, once there is room for it."""
        waiters.raise_failure()
        await self.send(waiters, payload, extension=extension)
        self.schedule_flush()

    async def send(
        self,
        waiters: PublishWaiters,
        payload: bytes,
        *,
        retain: bool = False,
        extension: bytes = b"",
        expires_at: float | None = None,
    ) -> int:
        """Send a message once there is room for it. Return its sequence."""
        core = waiters.core
        while True:
            waiters.require_open()
            if expires_at is not None and time.monotonic() >= expires_at:
                raise MessageExpiredError(
                    f"the message for {core.topic!r} expired before the client's send buffer had room for it: it was "
                    "not sent; publish less, or give it more time"
                )
            try:
                return core.send(payload, self.turn.begin(core), retain, extension, expires_at)
            except BufferFullError:
                waiters.is_starved = True
                await waiters.room(until=expires_at)

    @property
    def is_crowded(self) -> bool:
        """Whether more than three quarters of the buffer are in use."""
        return self._core.held_bytes > self._crowded_bytes

    async def room(self, waiters: PublishWaiters) -> None:
        """Wait until a confirmation or the event Room may have made room."""
        self._waiting_for_confirms.append(waiters)
        await waiters.room()

    async def drained(self) -> None:
        """Wait until all messages are confirmed, or the client has ended."""
        while self._core.held_bytes > 0 and self._ended is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._drained.append(future)
            await future

    def _waiters_of(self, core: Publisher) -> PublishWaiters:
        waiters = self._waiters.get(core)
        if waiters is None:
            waiters = self._waiters[core] = PublishWaiters(core)
            waiters.ended = self._ended
        return waiters

    # -- events of the client -----------------------------------------------------------------------------------------

    def _on_confirmed(self, event: Confirmed) -> None:
        waiters = self._waiters.get(event.publisher)
        if waiters is not None:
            waiters.on_confirmed(event.sequence, event.reached)
        self._on_progress()

    def _on_room(self, event: BufferAvailable) -> None:
        waiters = self._waiters.get(event.publisher)
        if waiters is not None:
            waiters.on_room()

    def _on_refused(self, event: Refused) -> None:
        waiters = self._waiters.get(event.publisher)
        if waiters is not None:
            waiters.on_refused(event.code, event.text, event.first_sequence, event.sequence)
        self._on_progress()

    def _on_expired(self, event: Expired) -> None:
        waiters = self._waiters.get(event.publisher)
        if waiters is not None:
            waiters.on_expired(event.first_sequence, event.sequence)
        self._on_progress()

    def _on_progress(self) -> None:
        if self._waiting_for_confirms and not self.is_crowded:
            waiting, self._waiting_for_confirms = self._waiting_for_confirms, []
            for waiters in waiting:
                waiters.wake()
        if self._drained and (self._core.held_bytes == 0 or self._ended is not None):
            drained, self._drained = self._drained, []
            for future in drained:
                if not future.done():
                    future.set_result(None)

    def on_ended(self, error: GodwitError) -> None:
        self._ended = error
        for waiters in list(self._waiters.values()):
            waiters.on_ended(error)
        self._on_progress()


def count_text(number: int) -> str:
    """Return a number of messages as a text."""
    return f"{number:,} message{'' if number == 1 else 's'}"


class AsyncPublisher:
    """Publish many messages to one topic with one QoS, without waiting for each. Made by `AsyncClient.publisher`.

        for payload in payloads:
            try:
                publisher.send(payload)
            except godwit.BufferFull:
                await publisher.ready()
                publisher.send(payload)
        await publisher.flush()

    If the broker refuses messages, `ready`, `flush` or one of the next sends raises the BrokerError: at the latest the
    send that fills a batch.
    """

    __slots__ = ("_publishers", "_waiters", "send")

    send: Callable[[Payload], None]
    """Send a message without waiting.

    Args:
        payload: bytes, or a str that is sent as UTF-8. A dict, list, int, float, bool or None is sent as JSON.

    Raises:
        BufferFull: The client's send buffer is full. Await `ready()`, then send again.
        BrokerError: The broker refused earlier messages of this publisher. This message was not sent.
        UsageError: The payload is too large or has a wrong type, or the client is closed.
    """

    def __init__(
        self,
        publishers: ClientPublishers,
        waiters: PublishWaiters,
        turn: SendTurn,
        *,
        retain: bool,
        properties: Properties,
    ) -> None:
        waiters.has_senders = True
        self._publishers = publishers
        self._waiters = waiters
        self.send = _make_send(waiters, turn, retain, properties)

    def __repr__(self) -> str:
        return f"<AsyncPublisher to {self.topic!r}, QoS {self.qos}, {count_text(self.unconfirmed)} unconfirmed>"

    @property
    def topic(self) -> str:
        """The topic of all messages."""
        return self._waiters.core.topic

    @property
    def qos(self) -> int:
        """The QoS of all messages."""
        return self._waiters.core.qos

    @property
    def reached(self) -> int:
        """The number of connected subscriptions that matched the last confirmed messages."""
        return self._waiters.core.reached

    @property
    def subscribers(self) -> int:
        """The number of connected subscriptions that matched the topic when the broker opened the publisher."""
        return self._waiters.core.subscribers

    @property
    def unconfirmed(self) -> int:
        """The number of messages that are not confirmed yet."""
        core = self._waiters.core
        return core.next_sequence - core.confirmed_sequence

    @property
    def expired(self) -> int:
        """The number of messages that expired before they were sent, and were dropped from the client's queue."""
        return self._waiters.core.expired

    @property
    def confirmed_sequence(self) -> int:
        """All messages below this sequence are confirmed. A refused message stops it at that message."""
        confirmed, refused = self._waiters.core.confirmed_sequence, self._waiters.first_refused
        return confirmed if refused is None else min(confirmed, refused)

    @property
    def next_sequence(self) -> int:
        """The sequence of the next message. Pass it with the `epoch` after a crash to continue without duplicates."""
        return self._waiters.core.next_sequence

    async def ready(self) -> None:
        """Wait until at least a quarter of the send buffer is free.

        Raises:
            BrokerError: The broker refused earlier messages.
            GodwitError: The client has ended.
        """
        self._waiters.raise_failure()
        while self._waiters.is_starved or self._publishers.is_crowded:
            await self._publishers.room(self._waiters)
            self._waiters.raise_failure()

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all messages sent so far are confirmed as their QoS promises (QoS 0: handed to the network).

        Args:
            timeout_s: How long to wait; None waits for ever. Messages stay in the client's buffer after a timeout.

        Raises:
            BrokerError: The broker refused some of them.
            ReplyTimeoutError: Some of them were not confirmed within `timeout_s`.
            GodwitError: The client has ended.
        """
        if timeout_s is None:
            await self._flush()
            return
        check_timeout(timeout_s)
        try:
            async with TimeLimit(timeout_s) as limit:
                await self._flush()
        except TimeoutError:
            if not limit.expired():
                raise
            raise ReplyTimeoutError(
                f"{count_text(self.unconfirmed)} for {self.topic!r} not confirmed within {timeout_s:g} s: still in the "
                "client's buffer, and sent when the broker answers"
            ) from None

    def _send_directly(self, payload: Payload) -> bool:
        """Send a message in a caller's thread while the loop is paused. Return False if the buffer is full."""
        turn = self._publishers.turn
        turn.is_direct = True
        try:
            self.send(payload)
        except BufferFullError:
            return False
        finally:
            turn.is_direct = False
            self._waiters.core.end_time_sharing()
        return True

    async def _flush(self) -> None:
        waiters = self._waiters
        waiters.raise_failure()
        self._publishers.schedule_flush()
        try:
            await waiters.confirmed(waiters.core.next_sequence)
        except BrokerError:
            waiters.failure = None  # raised now
            raise

    def close(self) -> None:
        """Accept no more messages; sent ones are still confirmed. Closes all publishers of this topic and QoS."""
        self._waiters.core.close()
        self._publishers.schedule_flush()


def _make_send(
    waiters: PublishWaiters, turn: SendTurn, retain: bool, properties: Properties
) -> Callable[[Payload], None]:
    """Return AsyncPublisher.send: the fast path of the core, with this function for all cases that it leaves out."""
    core = waiters.core
    extension = extension_for(b"", properties)
    json_extension = extension_for({}, properties)
    lifetime_us = properties.lifetime_us

    def send_with_checks(payload: Payload) -> None:
        waiters.require_open()
        if waiters.failure is not None:
            waiters.raise_failure()
        used = json_extension if isinstance(payload, dict | list | JsonBody) else extension
        expires_at = None if lifetime_us is None else time.monotonic() + lifetime_us / 1e6
        try:
            core.send(to_bytes(payload), turn.begin(core), retain, used, expires_at)
        except BufferFullError:
            waiters.is_starved = True
            raise

    return send_with_checks if retain or extension else partial(core.quick_send, send_with_checks)
