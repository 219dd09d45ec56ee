"""Publishers without asyncio: messages cross to the event loop's thread in bunches, with back-pressure."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from godwit.client.batches import Payload, to_bytes
from godwit.errors import BrokerError, BufferFullError, GodwitError, UsageError
from godwit.limits import MIB
from godwit.net.publishing import AsyncPublisher
from godwit.net.thread import LoopThread

QUEUE_BYTES: Final = 1 * MIB
"""What `send` may put aside for the loop's thread to take, beside the client's own buffer."""
_MESSAGE_COST_BYTES: Final = 64
_TAKE: Final = 1000
"""Messages that the loop's thread takes over at once."""


class BlockingPublisher:
    """Sends without waiting for the broker; the loop's thread takes the messages over. For any number of threads."""

    def __init__(self, thread: LoopThread, inner: AsyncPublisher) -> None:
        self._thread = thread
        self._inner = inner
        self._lock = threading.RLock()
        """Entered by itself: if Ctrl-C comes while a Condition is entered, that stays locked, and the loop stops."""
        self._changed = threading.Condition(self._lock)
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        """Of what was put in and is not with the client yet."""
        self._put = 0
        self._taken = 0
        self._is_pumping = False
        self._pump_task: asyncio.Task[None] | None = None
        self._failure: GodwitError | None = None

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def qos(self) -> int:
        return self._inner.qos

    @property
    def reached(self) -> int:
        """Connected subscriptions that the last confirmed messages matched."""
        return self._inner.reached

    @property
    def unconfirmed(self) -> int:
        """Messages that are not safe yet."""
        return self._put - self._taken + self._inner.unconfirmed

    def send(self, payload: Payload) -> None:
        """Puts a message on its way. Raises BufferFull when there is no room: `ready()` waits for it.

        What became of earlier messages (refused, too large) is raised by the next send, ready or flush.
        """
        body = to_bytes(payload)
        if self._thread.is_inherited:
            self._thread.require_own_process()
        with self._lock:
            self._raise_failure()
            if not self._has_room():
                raise BufferFullError(
                    f"{self._put - self._taken} messages wait to be sent: call ready(), then send again"
                )
            cost_bytes = len(body) + _MESSAGE_COST_BYTES
            # All of it or nothing: Python may raise KeyboardInterrupt after a call, so there is none in these lines.
            self._put += 1
            self._queued_bytes += cost_bytes
            self._queue += (body,)
            if not self._is_pumping:
                self._start_pump()

    def ready(self, timeout_s: float | None = None) -> None:
        """Waits until there is room; TimeoutError if it takes longer."""
        if not self._has_room():  # then for a good deal of it: each wait costs a change of threads
            self._wait_for(lambda: self._queued_bytes <= QUEUE_BYTES // 2, timeout_s)
        else:
            self._wait_for(self._has_room, timeout_s)

    def flush(self, timeout_s: float | None = None) -> None:
        """Waits until everything that was sent so far is safe as its QoS promises (QoS 0: on its way)."""
        put = self._put
        began = time.monotonic()
        self._wait_for(lambda: self._taken >= put, timeout_s)
        left_s = None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - began))
        self._thread.call(self._inner.flush(), left_s)

    def _has_room(self) -> bool:
        return self._queued_bytes < QUEUE_BYTES

    def _wait_for(self, holds: Callable[[], bool], timeout_s: float | None) -> None:
        self._thread.require_own_process()
        with self._lock:
            if self._queue and not self._is_pumping:  # Ctrl-C came between putting a message in and the start
                self._start_pump()
            if not self._changed.wait_for(lambda: holds() or self._failure is not None, timeout_s):
                raise TimeoutError(f"{self._put - self._taken} messages could not be sent yet: is the broker there?")
            self._raise_failure()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _start_pump(self) -> None:
        """Have the loop's thread take messages over; called with the lock held.

        Ctrl-C may come at any step here, so the flag is set last: a second start is harmless, a forgotten one is not.
        """
        if not self._thread.call_soon(self._begin_pump):
            self._fail(UsageError("the client is closed: connect anew"))
            self._raise_failure()
        self._is_pumping = True

    # -- in the loop's thread -----------------------------------------------------------------------------------------

    def _begin_pump(self) -> None:
        if self._pump_task is None or self._pump_task.done():
            self._pump_task = asyncio.get_running_loop().create_task(self._pump())

    async def _pump(self) -> None:
        try:
            while True:
                with self._lock:
                    bodies = [self._queue.popleft() for _ in range(min(_TAKE, len(self._queue)))]
                    if not bodies:
                        self._is_pumping = False
                        return
                for body in bodies:
                    await self._hand_over(body)
                with self._lock:
                    self._taken += len(bodies)
                    self._queued_bytes -= sum(map(len, bodies)) + len(bodies) * _MESSAGE_COST_BYTES
                    self._changed.notify_all()
                await asyncio.sleep(0)  # what arrives has its turn too
        except asyncio.CancelledError:
            self._fail(UsageError("the client was closed before everything was sent: connect anew"))
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
                    self._note(error)
            except BrokerError as error:  # about earlier messages
                self._note(error)
            except GodwitError as error:  # about this one
                self._note(error)
                return

    def _note(self, error: GodwitError) -> None:
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
