"""Gets a connection to one of several addresses: a round of attempts, a pause, the next round.

Within a round the addresses are tried one after another with little time in between, and the first that answers is
taken: a host name often stands for several addresses of which not all lead to the broker. An attempt repeats its hello
twice a second for as long as the transport allows, so a client started before its broker gets through soon.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from godwit.client.backoff import Backoff
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address

NEXT_ADDRESS_S: Final = 0.25
"""So long one address is tried alone (RFC 8305 recommends this)."""


class Dialer:
    """Feed: set_addresses, retry, stop, on_connected, on_closed, handle_timers. Look: is_dialing, due_at."""

    def __init__(self, endpoint: Endpoint, backoff: Backoff) -> None:
        self.due_at: float | None = None
        """When handle_timers wants to be called."""
        self._endpoint = endpoint
        self._backoff = backoff
        self._addresses: deque[Address] = deque()
        self._untried: deque[Address] = deque()
        self._dials: dict[int, Connection] = {}

    @property
    def is_dialing(self) -> bool:
        return bool(self._dials)

    def set_addresses(self, addresses: Sequence[Address]) -> None:
        self._addresses = deque(addresses)

    def retry(self, now: float) -> float:
        """Begins a round after a pause, and gives its length."""
        wait_s = self._backoff.wait_s()
        self.due_at = now + wait_s
        return wait_s

    def begin(self, now: float) -> None:
        """Begins a round at once. The next one will begin with the next address."""
        self._untried = deque(self._addresses)
        self._addresses.rotate(-1)
        self._dial(now)

    def stop(self, now: float) -> None:
        """Gives up all attempts."""
        self.due_at = None
        self._untried.clear()
        dials = list(self._dials.values())
        self._dials.clear()
        for connection in dials:
            connection.close(now)

    def handle_timers(self, now: float) -> None:
        if self.due_at is not None and now >= self.due_at:
            self.due_at = None
            if self._untried:
                self._dial(now)
            elif not self._dials:
                self.begin(now)

    def on_connected(self, connection: Connection, now: float) -> bool:
        """Whether this is the one: the first of the round, and then the others are given up."""
        if self._dials.pop(connection.id, None) is None:
            return False
        self.stop(now)
        return True

    def on_closed(self, connection: Connection, now: float) -> bool:
        """Whether this was an attempt, and the last of its round."""
        if self._dials.pop(connection.id, None) is None:
            return False
        if self._untried:
            self._dial(now)
        return not self._dials

    def _dial(self, now: float) -> None:
        connection = self._endpoint.connect(self._untried.popleft(), now)
        self._dials[connection.id] = connection
        self.due_at = now + NEXT_ADDRESS_S if self._untried else None
