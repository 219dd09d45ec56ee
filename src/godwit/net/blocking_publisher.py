"""Publishers for threads: messages pass through a bounded queue to the loop's thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from godwit.client.batches import Payload, to_bytes
from godwit.client.properties import JsonBody
from godwit.errors import BrokerError, BufferFullError, GodwitError, ReplyTimeoutError, UsageError
from godwit.limits import KIB, MIB
from godwit.net.direct import CallerDriver
from godwit.net.loop import LoopThread, check_timeout
from godwit.net.publisher import AsyncPublisher, count_text

QUEUE_BYTES: Final = 1 * MIB
"""Size of the queue between the threads that call `BlockingPublisher.send` and the loop's thread."""
_MESSAGE_COST_BYTES: Final = 64
_MESSAGES_A_TURN: Final = 1000
"""Messages that the loop's thread takes from that queue at once."""
_FEW_BYTES: Final = 16 * KIB
"""Size of the messages that it takes without a task: a program that sends more does not wait for each of them."""


class BlockingPublisher:
    """Publish many messages to one topic with one QoS. Made by `BlockingClient.publisher`; usable by any thread.

    `send` puts messages into a bounded queue, from which the loop's thread passes them in groups to an AsyncPublisher.
    """

    def __init__(self, thread: LoopThread, inner: AsyncPublisher, driver: CallerDriver) -> None:
        self._thread = thread
        self._inner = inner
        self._driver = driver
        self._lock = threading.RLock()
        """Acquired by itself: a Condition that is interrupted by Ctrl-C while it is entered stays locked."""
        self._changed = threading.Condition(self._lock)
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        """Size of the messages that were queued and not passed to the client yet."""
        self._put = 0
        self._taken = 0
        self._is_pumping = False
        self._pump_task: asyncio.Task[None] | None = None
        self._failure: GodwitError | None = None

    def __repr__(self) -> str:
        return f"<BlockingPublisher to {self.topic!r}, QoS {self.qos}, {count_text(self.unconfirmed)} unconfirmed>"

    @property
    def topic(self) -> str:
        """The topic of all messages."""
        return self._inner.topic

    @property
    def qos(self) -> int:
        """The QoS of all messages."""
        return self._inner.qos

    @property
    def reached(self) -> int:
        """The number of connected subscriptions that matched the last confirmed messages."""
        return self._inner.reached

    @property
    def unconfirmed(self) -> int:
        """The number of messages that are not confirmed yet."""
        return self._put - self._taken + self._inner.unconfirmed

    def send(self, payload: Payload) -> None:
        """Send a message without waiting for the broker.

        Args:
            payload: bytes, or a str that is sent as UTF-8. A dict, list, int, float, bool or None is sent as JSON.

        Raises:
            BufferFull: The queue is full. Call `ready()`, then send again.
            GodwitError: An earlier message was refused or too large. This message was not sent.
        """
        body = to_bytes(payload)
        if isinstance(payload, dict | list):
            body = JsonBody(body)
        if self._thread.is_inherited:
            self._thread.require_own_process()
        with self._lock:
            self._raise_failure()
            # Counts are not changed: the message does not pass through the queue.
            if not self._is_pumping and not self._queue and self._driver.send(self._inner, body):
                return
            if not self._has_room():
                raise BufferFullError(
                    f"{self._put - self._taken} messages wait to be sent: call ready(), then send again"
                )
            cost_bytes = len(body) + _MESSAGE_COST_BYTES
            # Atomic: Python may raise KeyboardInterrupt after a call, and these lines contain none.
            self._put += 1
            self._queued_bytes += cost_bytes
            self._queue += (body,)
            if not self._is_pumping:
                self._start_pump()

    def ready(self, timeout_s: float | None = None) -> None:
        """Wait until there is room in the queue.

        Args:
            timeout_s: How long to wait; None waits for ever.

        Raises:
            ReplyTimeoutError: It took longer than `timeout_s` seconds.
            GodwitError: An earlier message was refused, or the client has ended.
        """
        check_timeout(timeout_s)
        if not self._has_room():  # then wait until half is free: each wait costs a change of threads
            self._wait_for(lambda: self._queued_bytes <= QUEUE_BYTES // 2, timeout_s)
        else:
            self._wait_for(self._has_room, timeout_s)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all messages sent so far are confirmed as their QoS promises (QoS 0: handed to the network).

        Args:
            timeout_s: How long to wait; None waits for ever. Messages are sent after a timeout nevertheless.

        Raises:
            ReplyTimeoutError: Some of them were not confirmed within `timeout_s`.
            GodwitError: A message was refused, or the client has ended.
        """
        check_timeout(timeout_s)
        put = self._put
        began = time.monotonic()
        self._wait_for(lambda: self._taken >= put, timeout_s)
        left_s = None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - began))
        self._thread.call(self._inner.flush(left_s))

    def _has_room(self) -> bool:
        return self._queued_bytes < QUEUE_BYTES

    def _wait_for(self, holds: Callable[[], bool], timeout_s: float | None) -> None:
        self._thread.require_own_process()
        with self._lock:
            if self._queue and not self._is_pumping:  # Ctrl-C came between queueing a message and the start
                self._start_pump()
            if not self._changed.wait_for(lambda: holds() or self._failure is not None, timeout_s):
                raise ReplyTimeoutError(
                    f"{count_text(self._put - self._taken)} not sent within {timeout_s:g} s: is the broker there?"
                )
            self._raise_failure()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _start_pump(self) -> None:
        """Let the loop's thread empty the queue; called with the lock held.

        Ctrl-C may come at any step here, so the flag is set last: a second start is harmless, a forgotten one is not.
        """
        if not self._thread.call_soon(self._begin_pump):
            self._fail(UsageError("the client is closed: connect again"))
            self._raise_failure()
        self._is_pumping = True

    # -- in the loop's thread -----------------------------------------------------------------------------------------

    def _begin_pump(self) -> None:
        if (self._pump_task is None or self._pump_task.done()) and not self._pump_few():
            self._pump_task = asyncio.get_running_loop().create_task(self._pump())

    def _pump_few(self) -> bool:
        """Pass on a few messages at once, without the turn of the loop that a task takes. Return whether the queue is
        empty then."""
        with self._lock:
            if self._queued_bytes > _FEW_BYTES:
                return False
            bodies = [*self._queue]
            self._queue.clear()
        taken = 0
        try:
            for body in bodies:
                try:
                    self._inner.send(body)
                except BufferFullError:
                    break
                except BrokerError as error:  # about earlier messages
                    self._set_failure(error)
                    break
                except GodwitError as error:  # about this one
                    self._set_failure(error)
                taken += 1
        finally:
            with self._lock:
                self._queue.extendleft(reversed(bodies[taken:]))
                self._note_taken(bodies[:taken])
                self._is_pumping = bool(self._queue)
        return not self._is_pumping

    def _note_taken(self, bodies: list[bytes]) -> None:
        self._taken += len(bodies)
        self._queued_bytes -= sum(map(len, bodies)) + len(bodies) * _MESSAGE_COST_BYTES
        self._changed.notify_all()

    async def _pump(self) -> None:
        try:
            while True:
                with self._lock:
                    bodies = [self._queue.popleft() for _ in range(min(_MESSAGES_A_TURN, len(self._queue)))]
                    if not bodies:
                        self._is_pumping = False
                        return
                for body in bodies:
                    await self._hand_over(body)
                with self._lock:
                    self._note_taken(bodies)
                await asyncio.sleep(0)  # let the loop process arrivals too
        except asyncio.CancelledError:
            self._fail(UsageError("the client was closed before everything was sent: connect again"))
            raise

    async def _hand_over(self, body: bytes) -> None:
        while True:
            try:
                self._inner.send(body)
                return
            except BufferFullError:
                try:
                    await self._inner.ready()
                except GodwitError as error:
                    self._set_failure(error)
            except BrokerError as error:  # about earlier messages
                self._set_failure(error)
            except GodwitError as error:  # about this one
                self._set_failure(error)
                return

    def _set_failure(self, error: GodwitError) -> None:
        with self._lock:
            self._failure = error
            self._changed.notify_all()

    def _fail(self, error: GodwitError) -> None:
        with self._lock:
            self._queue.clear()
            self._queued_bytes = 0
            self._taken = self._put
            self._is_pumping = False
            self._failure = error
            self._changed.notify_all()
