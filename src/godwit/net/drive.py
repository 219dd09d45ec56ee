"""The one shell around a sans-IO endpoint: moves trains, events and time between it, a socket and an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from godwit.limits import KIB
from godwit.net.timer import RESOLUTION_S, LoopTimer
from godwit.net.udp import UdpSocket
from godwit.transport.events import Train

TRAINS_A_TURN: Final = 256
BYTES_A_TURN: Final = 8 * 64 * KIB
"""What is taken from the socket before the loop has its turn. Eight full trains are about a millisecond's work. Lone
datagrams are many only where thousands of small senders wait in the queue: there the work of a turn is worth sharing
(with 64 a message cost the broker 48 us, with 400 43), and whoever waits, waits for the queue."""

E = TypeVar("E")


class SansIoEndpoint(Protocol[E]):
    """What the driver needs of godwit.transport.endpoint.Endpoint. `now` is monotonic seconds."""

    def receive(self, train: Train, now: float) -> None: ...
    def handle_timers(self, now: float) -> None: ...
    def events(self) -> list[E]: ...
    def next_train(self, now: float) -> Train | None: ...
    def next_timer(self) -> float | None: ...


class EndpointDriver(Generic[E]):
    """Runs an endpoint on a socket in the running event loop, and owns the socket.

    Whoever calls something on the endpoint or one of its connections calls `flush()` afterwards, or `schedule_flush()`
    to have it done once at the end of the loop's turn.
    """

    def __init__(
        self,
        endpoint: SansIoEndpoint[E],
        udp: UdpSocket,
        on_events: Callable[[list[E]], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = endpoint
        self.udp = udp
        self.clock = clock
        self._on_events = on_events
        self._loop = asyncio.get_running_loop()
        self._timer = LoopTimer(self._loop, self._on_timer)
        self._unsent: Train | None = None
        """What the kernel had no room for. While there is any, the endpoint is not asked for more."""
        self._undelivered: list[E] = []
        self._flush_scheduled = False
        self._delivering = False
        self._closed = False
        self._loop.add_reader(udp.fileno(), self._on_readable)
        self._transmit()

    def flush(self) -> None:
        """Delivers events, sends what may be sent, sets the timer. From inside `on_events` it is not needed."""
        if self._closed or self._delivering:
            return
        try:
            self._deliver()
        finally:  # also when the application's callback failed: the peers must not suffer from that
            if not self._closed:  # by the callback
                self._transmit()

    def schedule_flush(self) -> None:
        """A flush after everything else that is ready in this turn of the loop; many calls make one."""
        if not self._flush_scheduled and not self._closed:
            self._flush_scheduled = True
            self._loop.call_soon(self._scheduled_flush)

    def close(self) -> None:
        """Sends what is ready (a connection's goodbye), then stops for good and closes the socket. May be repeated."""
        if self._closed:
            return
        self._send_ready(self.clock())
        self._closed = True
        self._timer.cancel()
        self._loop.remove_reader(self.udp.fileno())
        self._loop.remove_writer(self.udp.fileno())
        self._unsent = None
        self.udp.close()

    def disown(self) -> None:
        """Stop for good, and leave socket and loop as they are: in a forked child they are the parent's too."""
        self._closed = True

    @property
    def closed(self) -> bool:
        return self._closed

    # -- what the loop calls ------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        if self._closed:  # a forked child that runs the loop of its parent
            return
        trains = self.udp.receive_trains(TRAINS_A_TURN, BYTES_A_TURN)
        now = self.clock()
        receive = self.endpoint.receive
        for train in trains:
            receive(train, now)
        self.flush()

    def _on_writable(self) -> None:
        if self._closed:
            return
        if self._unsent is not None:
            self._unsent = self.udp.send(self._unsent)
            if self._unsent is not None:
                return
        self._loop.remove_writer(self.udp.fileno())
        self.flush()

    def _on_timer(self) -> None:
        self.endpoint.handle_timers(self.clock())
        self.flush()

    def _scheduled_flush(self) -> None:
        self._flush_scheduled = False
        self.flush()

    # -- steps --------------------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        events = self._undelivered + self.endpoint.events()
        if events:
            self._undelivered = []
            self._delivering = True
            try:
                self._on_events(events)
            finally:
                self._delivering = False

    def _transmit(self) -> None:
        now = self.clock()
        self._send_ready(now)
        when = self.endpoint.next_timer()
        if self._unsent is not None and when is not None:
            # The pacer's time may have come while the kernel is full: the loop must not spin until it has room.
            when = max(when, now + RESOLUTION_S)
        self._timer.arm(when, now)
        # Sending, or what the callback did, may have brought events about. They come in the loop's next turn: an
        # application that answers each event with one more must not keep the loop here.
        self._undelivered += self.endpoint.events()
        if self._undelivered:
            self.schedule_flush()

    def _send_ready(self, now: float) -> None:
        if self._unsent is not None:
            return
        # One at a time: the receiver works on the first while the next is being made.
        while (train := self.endpoint.next_train(now)) is not None:
            self._unsent = self.udp.send(train)
            if self._unsent is not None:
                self._loop.add_writer(self.udp.fileno(), self._on_writable)
                return
