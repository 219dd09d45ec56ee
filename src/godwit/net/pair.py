"""One endpoint on an IPv4 and an IPv6 socket at once, for a client whose broker's name has addresses of both."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from godwit.net.address import family_of
from godwit.net.drive import EndpointDriver, SansIoEndpoint
from godwit.net.udp import UdpSocket
from godwit.transport.events import Train

ANY_HOST: Final = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}
_MAX_WAITING: Final = 64
"""Trains for a socket that has no room; more of them are lost, as in a network."""

E = TypeVar("E")


class _Side(Generic[E]):
    """The endpoint as one of the two sockets sees it: it sends what is for its family and leaves the rest aside."""

    def __init__(self, endpoint: SansIoEndpoint[E], family: socket.AddressFamily) -> None:
        self.waiting: deque[Train] = deque(maxlen=_MAX_WAITING)
        self.other: _Side[E]
        self.wake: Callable[[], None] = lambda: None
        self._family = family
        self._next_train = endpoint.next_train
        self.receive = endpoint.receive
        self.handle_timers = endpoint.handle_timers
        self.events = endpoint.events
        self.next_timer = endpoint.next_timer

    def next_train(self, now: float) -> Train | None:
        if self.waiting:
            return self.waiting.popleft()
        while (train := self._next_train(now)) is not None:
            if family_of(train.address) == self._family:
                return train
            self.other.waiting.append(train)
            self.other.wake()
        return None


class PairDriver(Generic[E]):
    """As an EndpointDriver, with two sockets."""

    def __init__(
        self,
        endpoint: SansIoEndpoint[E],
        sockets: tuple[UdpSocket, UdpSocket],
        on_events: Callable[[list[E]], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._on_events = on_events
        self._delivering = False
        first, second = (_Side(endpoint, family_of(udp.local_address)) for udp in sockets)
        first.other, second.other = second, first
        self._first = EndpointDriver(first, sockets[0], self._deliver, clock=clock)
        self._second = EndpointDriver(second, sockets[1], self._deliver, clock=clock)
        first.wake = self._first.schedule_flush
        second.wake = self._second.schedule_flush
        if second.waiting:  # from before it could be woken
            self._second.schedule_flush()

    def _deliver(self, events: list[E]) -> None:
        self._delivering = True
        try:
            self._on_events(events)
        finally:
            self._delivering = False

    def flush(self) -> None:
        """Delivers events, sends what may be sent. From inside `on_events` it is done at the end of the turn."""
        if self._delivering:  # by the other driver, which would not know
            self._first.schedule_flush()
        else:
            self._first.flush()

    def schedule_flush(self) -> None:
        self._first.schedule_flush()

    def close(self) -> None:
        self._first.close()
        self._second.close()

    def disown(self) -> None:
        self._first.disown()
        self._second.disown()

    @property
    def closed(self) -> bool:
        return self._first.closed


def open_driver(
    endpoint: SansIoEndpoint[E],
    sockets: Iterable[UdpSocket],
    on_events: Callable[[list[E]], None],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> EndpointDriver[E] | PairDriver[E]:
    """A driver on one socket, or on one of each family."""
    first, *rest = sockets
    if rest:
        return PairDriver(endpoint, (first, rest[0]), on_events, clock=clock)
    return EndpointDriver(endpoint, first, on_events, clock=clock)
