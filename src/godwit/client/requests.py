"""Control messages to the broker: in order, no faster than it takes them; requests again until they are answered."""

from __future__ import annotations

from collections import deque
from typing import Final

from godwit.errors import ConnectionClosedError, SendBufferFullError, UsageError
from godwit.limits import MAX_CONTROL_RECORD_BYTES, REQUESTS_PER_S, TIMER_GRANULARITY_S
from godwit.transport.connection import Connection
from godwit.wire.control import ControlMessage, encode_control

RATE_PER_S: Final = REQUESTS_PER_S / 2
"""A broker closes the connection of a client that asks more than REQUESTS_PER_S."""
BURST: Final = REQUESTS_PER_S // 2
LAST_NUMBER: Final = 2**32 - 1


class Requests:
    """Feed: number, ask, say, attach, detach, on_answer. Drain: pump, due_at."""

    def __init__(self) -> None:
        self.due_at: float | None = None
        """When pump wants to be called."""
        self._next_number = 0
        self._pending: dict[int, bytes] = {}
        """Not answered yet, in the order in which they were asked."""
        self._unsent: deque[bytes] = deque()
        self._connection: Connection | None = None
        self._tokens = float(BURST)
        self._counted_at: float | None = None

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def number(self) -> int:
        """A number for a request that nobody uses now."""
        while True:
            number = self._next_number
            self._next_number = number + 1 if number < LAST_NUMBER else 0
            if number not in self._pending:
                return number

    def ask(self, number: int, message: ControlMessage) -> None:
        """Sends a request, and again after each reconnect until it is answered."""
        body = encode_control(message)
        if len(body) > MAX_CONTROL_RECORD_BYTES:
            raise UsageError(f"a request of {len(body)} bytes: it has at most {MAX_CONTROL_RECORD_BYTES}")
        self._pending[number] = body
        if self._connection is not None:
            self._unsent.append(body)

    def say(self, message: ControlMessage) -> None:
        """Sends a message on the present connection, if there is one; behind what waits."""
        if self._connection is not None:
            self._unsent.append(encode_control(message))

    def attach(self, connection: Connection) -> None:
        """There is a broker. What is said from here on goes first, then `resend` brings the old requests."""
        self._connection = connection

    def resend(self) -> None:
        self._unsent.extend(self._pending.values())

    def detach(self) -> None:
        self._connection = None
        self._unsent.clear()
        self.due_at = None

    def on_answer(self, number: int) -> bool:
        """Whether it is the answer to a request that waited for it."""
        return self._pending.pop(number, None) is not None

    def forget(self, number: int) -> None:
        """Nobody waits for the answer any more: it is not asked again."""
        self._pending.pop(number, None)

    def pump(self, now: float) -> None:
        """Sends what the broker's patience and the transport's queue allow."""
        connection = self._connection
        if connection is None or not self._unsent:
            self.due_at = None
            return
        if self._counted_at is not None:
            self._tokens = min(self._tokens + (now - self._counted_at) * RATE_PER_S, float(BURST))
        self._counted_at = now
        try:
            while self._unsent and self._tokens >= 1:
                connection.send(0, self._unsent[0])
                self._unsent.popleft()
                self._tokens -= 1
        except SendBufferFullError:
            self.due_at = None  # Writable brings it back
            return
        except ConnectionClosedError:
            self.detach()
            return
        self.due_at = now + max((1 - self._tokens) / RATE_PER_S, TIMER_GRANULARITY_S) if self._unsent else None
