"""Control messages to the broker: sent in order, within the broker's rate limit; requests repeat until answered."""

from __future__ import annotations

from collections import deque
from typing import Final

from godwit.errors import ConnectionClosedError, SendBufferFullError, UsageError
from godwit.limits import MAX_CONTROL_RECORD_BYTES, REQUESTS_PER_S, TIMER_GRANULARITY_S
from godwit.transport.connection import Connection
from godwit.wire.control import ControlMessage, encode_control

RATE_PER_S: Final = REQUESTS_PER_S / 2
"""Half of the rate at which a broker closes the connection."""
BURST: Final = REQUESTS_PER_S // 2
LAST_NUMBER: Final = 2**32 - 1


class RequestQueue:
    """The control messages of one client.

    Input: next_number, request, send, forget; attach, resend, detach, handle_answer. Output: pump, due_at.
    """

    def __init__(self) -> None:
        self.due_at: float | None = None
        """When to call pump."""
        self.unsent: deque[bytes] = deque()
        """Messages that pump has not handed to the transport yet."""
        self._next_number = 0
        self._pending: dict[int, bytes] = {}
        """Requests without an answer, in the order in which they were made."""
        self._connection: Connection | None = None
        self._tokens = float(BURST)
        self._counted_at: float | None = None

    def next_number(self) -> int:
        """Return a number that no pending request has."""
        while True:
            number = self._next_number
            self._next_number = number + 1 if number < LAST_NUMBER else 0
            if number not in self._pending:
                return number

    def request(self, number: int, message: ControlMessage) -> None:
        """Send a request, and again on each new connection until it is answered.

        Raises UsageError if its encoding is longer than a control record may be.
        """
        try:
            body = encode_control(message)
        except UnicodeEncodeError as error:
            raise UsageError(
                f"a text of a request has a character that UTF-8 does not have: {error}; remove it"
            ) from None
        if len(body) > MAX_CONTROL_RECORD_BYTES:
            raise UsageError(f"a request of {len(body)} bytes: it has at most {MAX_CONTROL_RECORD_BYTES}")
        self._pending[number] = body
        if self._connection is not None:
            self.unsent.append(body)

    def send(self, message: ControlMessage) -> None:
        """Send a message on the present connection only; without a connection it is dropped."""
        if self._connection is not None:
            self.unsent.append(encode_control(message))

    @property
    def is_waiting(self) -> bool:
        """Whether a request has no answer yet."""
        return bool(self._pending)

    def attach(self, connection: Connection) -> None:
        """Use a new connection. Call `resend` after the messages that must precede the pending requests."""
        self._connection = connection

    def resend(self) -> None:
        """Send all pending requests again."""
        self.unsent.extend(self._pending.values())

    def detach(self) -> None:
        """Drop all unsent messages: the connection is gone. Pending requests remain."""
        self._connection = None
        self.unsent.clear()
        self.due_at = None

    def handle_answer(self, number: int) -> bool:
        """Remove an answered request. Return whether it was pending."""
        return self._pending.pop(number, None) is not None

    def forget(self, number: int) -> None:
        """Do not send this request again; its answer is ignored."""
        self._pending.pop(number, None)

    def pump(self, now: float) -> None:
        """Hand unsent messages to the transport, as far as the rate limit and its send buffer allow."""
        connection = self._connection
        if connection is None or not self.unsent:
            self.due_at = None
            return
        if self._counted_at is not None:
            self._tokens = min(self._tokens + (now - self._counted_at) * RATE_PER_S, float(BURST))
        self._counted_at = now
        try:
            while self.unsent and self._tokens >= 1:
                connection.send(0, self.unsent[0])
                self.unsent.popleft()
                self._tokens -= 1
        except SendBufferFullError:
            self.due_at = None  # the event Writable leads to the next call
            return
        except ConnectionClosedError:
            self.detach()
            return
        self.due_at = now + max((1 - self._tokens) / RATE_PER_S, TIMER_GRANULARITY_S) if self.unsent else None
