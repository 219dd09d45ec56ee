"""Publishers for asyncio: a fast way that never waits, and what waits for confirms and for room."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Any
from weakref import WeakValueDictionary

from godwit.client.batches import Payload, to_bytes
from godwit.client.events import BufferAvailable, Confirmed, Refused
from godwit.client.protocol import ClientProtocol
from godwit.client.publisher import Publisher
from godwit.errors import BrokerError, BufferFullError, GodwitError, broker_error

BufferFull = BufferFullError
"""Raised by `send` when the client holds as much as it may: `await publisher.ready()`, then send again."""


class Turn:
    """One turn of the event loop: messages sent in it share a time, and leave at its end or when a batch is full.

    Reading the clock and waking the loop once a turn, not once a message, is most of what makes `send` fast.
    """

    __slots__ = ("_flush", "_loop", "_schedule_flush", "_senders", "now_us")

    def __init__(self, flush: Callable[[], None], schedule_flush: Callable[[], None]) -> None:
        self.now_us = 0
        """What time it is in this turn; 0: no message was sent in it yet."""
        self._flush = flush
        self._schedule_flush = schedule_flush
        self._senders: set[Publisher] = set()
        self._loop = asyncio.get_running_loop()

    def begin(self, sender: Publisher | None = None) -> int:
        """What time it is for a message. A sender is told when that time is over."""
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

    def on_batch_begun(self) -> None:
        self._schedule_flush()

    def on_batch_full(self) -> None:
        self._flush()
        if self.now_us:  # a loop of sends that never lets the event loop run still gets the time right
            self.now_us = time.time_ns() // 1000


class Lane:
    """Who waits for what of one publisher."""

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
        """Why the client is over, once it is: nothing will be confirmed any more."""
        self.failure: GodwitError | None = None
        """What became of messages that nobody waited for: told to the next call."""
        self.first_refused: int | None = None
        """The sequence of the first message that the broker did not take."""
        self.has_senders = False
        """Whether somebody sends without waiting."""
        self.is_starved = False
        """The buffer was full; the client is told when it is half empty."""
        self._waiting_for_room: list[asyncio.Future[None]] = []
        self._waiting: deque[tuple[int, asyncio.Future[int]]] = deque()
        self._loop = asyncio.get_running_loop()

    async def confirmed(self, sequence: int) -> int:
        """Waits until everything below `sequence` is safe; gives how many the last record reached."""
        if self.core.confirmed_sequence >= sequence:
            return self.core.reached
        self.require_open()
        future: asyncio.Future[int] = self._loop.create_future()
        self._waiting.append((sequence, future))
        return await future

    async def room(self) -> None:
        """Waits for the next word about room."""
        self.require_open()
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting_for_room.append(future)
        await future

    def require_open(self) -> None:
        """Raises why the client is over, if it is."""
        if self.ended is not None:
            raise copy(self.ended)

    def raise_failure(self) -> None:
        """Raises what became of earlier messages, once."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    # -- what the client tells ----------------------------------------------------------------------------------------

    def on_confirmed(self, sequence: int, reached: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= sequence:
            _, future = waiting.popleft()
            if not future.done():
                future.set_result(reached)

    def on_room(self) -> None:
        self.is_starved = False
        self.wake()

    def wake(self) -> None:
        """Whoever waits for room looks again."""
        waiting, self._waiting_for_room = self._waiting_for_room, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def on_refused(self, code: int, text: str, first: int, sequence: int) -> None:
        """Messages from `first` on and below `sequence` were dropped: whoever waits for one of them is told."""
        error = broker_error(code, text)
        self.first_refused = first if self.first_refused is None else min(first, self.first_refused)
        self.failure = error if self.has_senders else None
        for wanted, future in self._waiting:
            if first < wanted and not future.done():
                future.set_exception(copy(error))
        self._waiting = deque(entry for entry in self._waiting if not entry[1].done())
        self.wake()

    def on_ended(self, error: GodwitError) -> None:
        self.ended = error
        self.core.end_time_sharing()  # the next send is checked, and refused
        futures: list[asyncio.Future[Any]] = [future for _, future in self._waiting]
        for future in futures + list(self._waiting_for_room):
            if not future.done():
                future.set_exception(copy(error))
        self._waiting.clear()
        self._waiting_for_room = []


class Publishing:
    """What all publishers of a client share, and the ways to publish."""

    def __init__(self, core: ClientProtocol, flush: Callable[[], None], schedule_flush: Callable[[], None]) -> None:
        self.schedule_flush = schedule_flush
        self._core = core
        self._turn = Turn(flush, schedule_flush)
        core.on_sending(begun=self._turn.on_batch_begun, full=self._turn.on_batch_full)
        self._crowd_bytes = core.config.send_buffer_bytes * 3 // 4
        self._lanes: WeakValueDictionary[Publisher, Lane] = WeakValueDictionary()  # while somebody uses them
        self._ended: GodwitError | None = None
        self._crowd: list[Lane] = []
        self._drained: list[asyncio.Future[None]] = []
        self.handlers: dict[type[Any], Callable[[Any], None]] = {
            Confirmed: self._on_confirmed,
            BufferAvailable: self._on_room,
            Refused: self._on_refused,
        }

    def publisher(
        self, topic: str, *, qos: int, identity: str | None, epoch: int, sequence: int, retain: bool
    ) -> AsyncPublisher:
        core = self._core.publisher(topic, qos=qos, identity=identity, epoch=epoch, sequence=sequence)
        return AsyncPublisher(self, self._lane(core), self._turn, retain=retain)

    async def publish(self, topic: str, payload: Payload, *, qos: int, retain: bool) -> int | None:
        """Returns when it is confirmed; at QoS 0 when it is on its way."""
        body = to_bytes(payload)
        lane = self._lane(self._core.publisher(topic, qos=qos))
        sequence = await self.send(lane, lane.core.send, body, retain)
        if qos == 0:
            await asyncio.sleep(0)  # so that a loop that publishes lets the event loop run
            return None
        return await lane.confirmed(sequence + 1)

    def chunk_lane(self, topic: str, identity: str, *, epoch: int, sequence: int) -> Lane:
        """For a file: QoS 2, under an identity that outlives this program."""
        return self._lane(self._core.publisher(topic, qos=2, identity=identity, epoch=epoch, sequence=sequence))

    async def send_chunk(self, lane: Lane, payload: bytes, extension: bytes) -> None:
        """Waits for room if there is none."""
        lane.raise_failure()
        await self.send(lane, lane.core.send_extended, payload, extension)
        self.schedule_flush()

    async def send(self, lane: Lane, core_send: Callable[..., int], payload: bytes, more: bool | bytes) -> int:
        """Sends as soon as there is room, and gives the message's sequence."""
        while True:
            lane.require_open()
            try:
                return core_send(payload, self._turn.begin(lane.core), more)
            except BufferFullError:
                lane.is_starved = True
                await lane.room()

    @property
    def is_crowded(self) -> bool:
        """More than three quarters of the buffer are in use."""
        return self._core.held_bytes > self._crowd_bytes

    async def room(self, lane: Lane) -> None:
        """Waits for the next confirm, or word of room."""
        self._crowd.append(lane)
        await lane.room()

    async def drained(self) -> None:
        """Waits until nothing is unconfirmed, or nothing will be confirmed any more."""
        while self._core.held_bytes > 0 and self._ended is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._drained.append(future)
            await future

    def _lane(self, core: Publisher) -> Lane:
        lane = self._lanes.get(core)
        if lane is None:
            lane = self._lanes[core] = Lane(core)
            lane.ended = self._ended
        return lane

    # -- what the client tells ----------------------------------------------------------------------------------------

    def _on_confirmed(self, event: Confirmed) -> None:
        lane = self._lanes.get(event.publisher)
        if lane is not None:
            lane.on_confirmed(event.sequence, event.reached)
        self._on_progress()

    def _on_room(self, event: BufferAvailable) -> None:
        lane = self._lanes.get(event.publisher)
        if lane is not None:
            lane.on_room()

    def _on_refused(self, event: Refused) -> None:
        lane = self._lanes.get(event.publisher)
        if lane is not None:
            lane.on_refused(event.code, event.text, event.first_sequence, event.sequence)
        self._on_progress()

    def _on_progress(self) -> None:
        if self._crowd and not self.is_crowded:
            crowd, self._crowd = self._crowd, []
            for lane in crowd:
                lane.wake()
        if self._drained and (self._core.held_bytes == 0 or self._ended is not None):
            drained, self._drained = self._drained, []
            for future in drained:
                if not future.done():
                    future.set_result(None)

    def on_ended(self, error: GodwitError) -> None:
        self._ended = error
        for lane in list(self._lanes.values()):
            lane.on_ended(error)
        self._on_progress()


class AsyncPublisher:
    """The fast way to publish: one topic, one QoS. Made by `AsyncClient.publisher`.

        for payload in payloads:
            try:
                publisher.send(payload)
            except BufferFull:
                await publisher.ready()
                publisher.send(payload)
        await publisher.flush()

    What the broker refuses is raised by ready, flush or one of the next sends (at the latest when a batch is full).
    """

    __slots__ = ("_lane", "_publishing", "send")

    send: Callable[[Payload], None]
    """Puts a message on its way: no await. Raises BufferFull when the client holds as much as it may."""

    def __init__(self, publishing: Publishing, lane: Lane, turn: Turn, *, retain: bool) -> None:
        lane.has_senders = True
        self._publishing = publishing
        self._lane = lane
        self.send = _make_send(lane, turn, retain)

    @property
    def topic(self) -> str:
        return self._lane.core.topic

    @property
    def qos(self) -> int:
        return self._lane.core.qos

    @property
    def reached(self) -> int:
        """Connected subscriptions that the last confirmed messages matched."""
        return self._lane.core.reached

    @property
    def subscribers(self) -> int:
        """Connected subscriptions that matched the topic when the broker began to take its messages."""
        return self._lane.core.subscribers

    @property
    def unconfirmed(self) -> int:
        """Messages that are not safe yet."""
        core = self._lane.core
        return core.next_sequence - core.confirmed_sequence

    @property
    def confirmed_sequence(self) -> int:
        """All messages below this one are safe as their QoS promises. One that was refused keeps it where it is."""
        confirmed, refused = self._lane.core.confirmed_sequence, self._lane.first_refused
        return confirmed if refused is None else min(confirmed, refused)

    @property
    def next_sequence(self) -> int:
        """The number of the next message; with `epoch`, what to pass after a crash to go on without repeats."""
        return self._lane.core.next_sequence

    async def ready(self) -> None:
        """Waits until there is room again; at once if there is. At least a quarter of the buffer is free then."""
        self._lane.raise_failure()
        while self._lane.is_starved or self._publishing.is_crowded:
            await self._publishing.room(self._lane)
            self._lane.raise_failure()

    async def flush(self) -> None:
        """Waits until everything that was sent so far is safe as its QoS promises (QoS 0: on its way)."""
        lane = self._lane
        lane.raise_failure()
        self._publishing.schedule_flush()
        try:
            await lane.confirmed(lane.core.next_sequence)
        except BrokerError:
            lane.failure = None  # told now
            raise

    def close(self) -> None:
        """No more messages; what was sent is still confirmed. Other publishers of the same topic and QoS end too."""
        self._lane.core.close()
        self._publishing.schedule_flush()


def _make_send(lane: Lane, turn: Turn, retain: bool) -> Callable[[Payload], None]:
    """What AsyncPublisher.send is: the core's short way, and here what it cannot take."""
    core = lane.core

    def send_with_care(payload: Payload) -> None:
        lane.require_open()
        if lane.failure is not None:
            lane.raise_failure()
        try:
            core.send(to_bytes(payload), turn.begin(core), retain)
        except BufferFullError:
            lane.is_starved = True
            raise

    return send_with_care if retain else core.make_quick_send(send_with_care)
