"""Run a sans-IO endpoint in an event loop: move packet trains, events and timers between it, its sockets and the loop.

`EndpointDriver` uses one socket. `PairDriver` uses an IPv4 and an IPv6 socket at once, for a client whose broker's name
has addresses of both families.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from godwit.limits import KIB
from godwit.net.address import family_of
from godwit.net.udp import UdpSocket
from godwit.transport.events import Train

TRAINS_A_TURN: Final = 256
BYTES_A_TURN: Final = 8 * 64 * KIB
"""Limits of one turn: how much is read from the socket before other callbacks of the loop run. Eight full trains are
about a millisecond's work. Only thousands of small senders fill the queue with single datagrams. Then larger turns are
cheaper for each message: with 64 trains a turn a message cost the broker 48 us, with 400 it cost 43 us."""
FEW_TRAINS: Final = 4
"""Up to this many single datagrams are not a bulk transfer, which depends on early acknowledgements: a message and the
confirm of the one before arrive together."""
QUIET_S: Final = 20e-6
"""If a socket was readable for a single datagram, and is so again after a pause of at least this length, there is
probably no second one. Looking for it costs a system call and an exception, which is 2 to 4 us of a hop."""
BRISK_S: Final = 400e-6
"""A datagram that arrives within this time after the one before was handled, and not with many others, is brisk. It is
also how long to poll for the next one."""
BRISK_READS: Final = 64
"""How many brisk datagrams make the process poll, if none of them is late."""
LATE_READS: Final = 16
"""A single datagram that is late undoes this many of them. Of the round trips of three processes that sleep, some in a
hundred are late."""
CROWDED_S: Final = 200e-6
"""If one look takes longer, another process, thread or callback needs the processor."""
CROWDED_READS: Final = 500
"""Then this many brisk datagrams are read without polling, which takes about a tenth of a second."""
_yield_processor: Final[Callable[[], Any] | None] = getattr(os, "sched_yield", None)
"""None on Windows, which has no such call: there nothing is polled."""

E = TypeVar("E")


class SansIoEndpoint(Protocol[E]):
    """The interface of godwit.transport.endpoint.Endpoint that a driver uses. `now` is monotonic seconds."""

    def receive(self, train: Train, now: float) -> None: ...
    def handle_timers(self, now: float) -> None: ...
    def events(self) -> list[E]: ...
    def next_train(self, now: float) -> Train | None: ...
    def next_timer(self) -> float | None: ...

    @property
    def pending_events(self) -> Sequence[object]:
        """Not empty if `events` has something to do after a call of `next_train`. Always the same object."""


class BusyPolling:
    """Decides for one socket when to poll it instead of sleeping until a datagram arrives. `now` is monotonic seconds.

    To wake a process takes longer than everything that client or broker do for one message: its processor may have to
    leave a sleep state, and its code and data are no longer in the caches. In a *brisk exchange*, where datagrams come
    one by one and each soon after the one before, the process stays awake for a moment after each of them, and looks
    for the next one again and again. Between two looks it lets other processes run that are ready.

    Polling takes processor time that would be unused. So it begins only after many brisk datagrams with hardly a late
    one among them: messages that come at random, or less than some thousand times a second, never cause it. It stops
    if the processor is needed for something else.
    """

    __slots__ = ("_looked_at", "_reads", "_until")

    def __init__(self) -> None:
        self._reads = 0
        """How many brisk datagrams there were, without the undone ones; below 0 after polling was crowded."""
        self._until = 0.0
        self._looked_at = math.inf
        """When the last look began; infinite before the first one."""

    def handle_read(self, gap_s: float, is_few: bool) -> None:
        """Datagrams were read: a few or many, this long after the ones before were handled."""
        if is_few and gap_s < BRISK_S:
            if self._reads < BRISK_READS + LATE_READS:  # a single late one does not end it
                self._reads += 1
        elif self._reads > 0:
            self._reads = max(0, self._reads - LATE_READS) if is_few else 0

    def begin(self, now: float) -> bool:
        """Return whether to poll, now that the datagrams are handled."""
        self._looked_at = math.inf
        self._until = now + BRISK_S
        return self._reads >= BRISK_READS and _yield_processor is not None

    def look_again(self, now: float) -> bool:
        """Return whether to look for a datagram now, after other processes had a turn."""
        if now - self._looked_at > CROWDED_S:
            self._looked_at = math.inf
            self._reads = -CROWDED_READS
        if now >= self._until or self._reads < BRISK_READS or _yield_processor is None:
            return False
        self._looked_at = now
        _yield_processor()
        return True


class EndpointDriver(Generic[E]):
    """Run an endpoint on a socket in the running event loop. The driver owns the socket.

    After a call to the endpoint or one of its connections, call `flush()`, or `schedule_flush()` to flush once at the
    end of the loop's turn.
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
        """A train that the kernel had no room for. No other train is sent before it."""
        self._flush_scheduled = False
        self._delivering = False
        self._closed = False
        self._is_direct = False
        """Whether the loop is paused, and a caller's thread calls `receive_directly` and `send_directly`."""
        self._expects_one = False
        """Whether the last reading found a single datagram."""
        self._read_until = 0.0
        """When everything that was read had been handled."""
        self._polling = BusyPolling()
        self._is_polling = False
        """Whether the loop is kept awake to poll."""
        self._loop.add_reader(udp.fileno(), self._on_readable)
        self._transmit()

    def flush(self) -> None:
        """Deliver events, send all trains that may be sent now, and set the timer. Not needed inside `on_events`."""
        if self._closed or self._delivering:
            return
        try:
            events = self.endpoint.events()
            if events:
                self._delivering = True
                try:
                    self._on_events(events)
                finally:
                    self._delivering = False
        finally:  # also when the application's callback raised an error, which must not affect the peers
            if not self._closed:  # the callback may have closed it
                self._transmit()

    def schedule_flush(self) -> None:
        """Flush after all other callbacks that are ready in this turn of the loop. Several calls cause one flush."""
        if not self._flush_scheduled and not self._closed and not self._is_direct:
            self._flush_scheduled = True
            self._loop.call_soon(self._scheduled_flush)

    def close(self) -> None:
        """Send the packets that are ready (such as a close), then stop and close the socket. May be repeated."""
        if not self._closed:
            self.release().close()

    def release(self) -> UdpSocket:
        """Stop, and return the socket, which remains open, to the caller."""
        self._transmit()
        self._closed = True
        self._timer.cancel()
        self._loop.remove_reader(self.udp.fileno())
        self._loop.remove_writer(self.udp.fileno())
        self._unsent = None
        return self.udp

    def disown(self) -> None:
        """Stop without touching the socket or the loop, which a forked child shares with its parent."""
        self._closed = True

    @property
    def closed(self) -> bool:
        return self._closed

    # -- while the loop is paused, see godwit.net.direct --------------------------------------------------------------

    @property
    def sockets(self) -> list[UdpSocket]:
        """The sockets to wait for."""
        return [self.udp]

    def receive_directly(self, is_readable: bool) -> list[E]:
        """Handle arrived datagrams and due timers. Return the events, which are delivered already."""
        self._is_direct = True
        if self._closed:
            return []
        if is_readable:
            self._receive()
        now = self._read_until = self.clock()
        if is_readable:
            self._polling.begin(now)
        if (due_at := self.endpoint.next_timer()) is not None and due_at <= now:
            self.endpoint.handle_timers(now)
        return self._deliver_directly()

    def send_directly(self) -> list[E]:
        """Send all trains that may be sent now. Return the events that this caused, which are delivered already."""
        self._is_direct = True
        if self._closed:
            return []
        self._transmit()
        return self._deliver_directly() if self.endpoint.pending_events else []

    def _deliver_directly(self) -> list[E]:
        events = self.endpoint.events()
        if events:
            self._delivering = True
            try:
                self._on_events(events)
            finally:
                self._delivering = False
        return events

    def next_timer(self) -> float | None:
        """Return when `receive_directly` is needed if nothing arrives before."""
        return self.endpoint.next_timer()

    def look_again(self, now: float) -> bool:
        """Return whether to poll the socket once more rather than to wait for it."""
        return self._polling.look_again(now)

    @property
    def needs_loop(self) -> bool:
        """Whether only the loop can continue: it waits until the kernel has room, or the driver is closed."""
        return self._unsent is not None or self._closed

    def resume(self) -> None:
        """Continue in the loop."""
        self._is_direct = False
        self.flush()

    # -- called by the event loop -------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        if self._closed:  # a forked child that runs the loop of its parent
            return
        if self._receive():
            self._deliver_few()
        else:
            self.flush()
        now = self._read_until = self.clock()
        if self._polling.begin(now) and not self._is_polling:
            self._is_polling = True
            self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        """Keep the loop awake, which looks for datagrams, and for everything else, in each of its turns."""
        if not self._closed and not self._is_direct and self._polling.look_again(self.clock()):
            self._loop.call_soon(self._poll)
        else:
            self._is_polling = False

    def _receive(self) -> bool:
        """Hand arrived datagrams to the endpoint. Return whether they are few, so that a reply is worth waiting for."""
        now = self.clock()
        gap_s = now - self._read_until
        is_alone = self._expects_one and gap_s > QUIET_S
        trains = self.udp.receive_trains(1 if is_alone else TRAINS_A_TURN, BYTES_A_TURN)
        receive = self.endpoint.receive
        is_few = len(trains) <= FEW_TRAINS
        for train in trains:
            receive(train, now)
            if len(train.data) > train.segment_bytes:
                is_few = False
        self._expects_one = is_few and len(trains) == 1
        self._polling.handle_read(gap_s, is_few and bool(trains))
        return is_few

    def _deliver_few(self) -> None:
        """Deliver the events of a few datagrams. A reply of the application shares a packet with the acknowledgement:
        it is made by callbacks that the loop runs before the flush."""
        if self._delivering:
            return
        events = self.endpoint.events()
        if not events:
            self._transmit()
            return
        self._delivering = True
        try:
            self._on_events(events)
        finally:
            self._delivering = False
            self.schedule_flush()

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

    def _transmit(self) -> None:
        """Send all trains that may be sent now, and set the timer."""
        now = self.clock()
        endpoint = self.endpoint
        # One train at a time: the receiver processes the first one while the next is being built.
        while self._unsent is None and (train := endpoint.next_train(now)) is not None:
            self._unsent = self.udp.send(train)
            if self._unsent is not None:
                self._loop.add_writer(self.udp.fileno(), self._on_writable)
        when = endpoint.next_timer()
        if self._unsent is not None and when is not None:
            # The pacer may allow sending while the kernel is full: the loop must not spin until the kernel has room.
            when = max(when, now + RESOLUTION_S)
        if when is not None and when < self._timer.arms_before and not self._is_direct:
            self._timer.arm(when, now)
        # Sending, or the callback, may have caused events. They are delivered in the loop's next turn, because an
        # application that causes a new event for each event must not block the loop.
        if endpoint.pending_events:
            self.schedule_flush()


RESOLUTION_S = 0.001
"""The resolution of event loops. A due time that moves by less does not get a new timer."""


class LoopTimer:
    """Call a function at an absolute time that keeps moving, or up to a few milliseconds later.

    A new timer costs the loop more than a needless call, so only an earlier due time makes one; after a later due time
    the function is still called at the former one. `now` and `when` are time.monotonic() seconds, because the loop's
    own clock may not advance during a turn (uvloop's does not).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self.arms_before = math.inf
        """`arm` makes a new timer only for a time before this one."""

    def arm(self, when: float | None, now: float) -> None:
        """Schedule a call at `when`, or none if it is None."""
        if when is None or when >= self.arms_before:
            return
        if self._handle is not None:
            self._handle.cancel()
        # A call that is due already happens in the loop's next turn. Other delays are rounded up to milliseconds:
        # uvloop rounds down, and would call early, several times, until the time has come.
        delay_s = math.ceil((when - now) / RESOLUTION_S) * RESOLUTION_S if when > now else 0.0
        self.arms_before = now + delay_s - RESOLUTION_S
        self._handle = self._loop.call_later(delay_s, self._fire)

    def cancel(self) -> None:
        """Cancel the scheduled call."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self.arms_before = math.inf

    def _fire(self) -> None:
        self._handle = None
        self.arms_before = math.inf
        self._callback()


ANY_HOST: Final = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}
_MAX_WAITING: Final = 64
"""Maximum of trains that wait for a full socket. Further ones replace the oldest, which are lost as in a network."""


class _Side(Generic[E]):
    """The endpoint as the driver of one socket sees it: trains of the other family are passed to the other side."""

    def __init__(self, endpoint: SansIoEndpoint[E], family: socket.AddressFamily) -> None:
        self.waiting: deque[Train] = deque(maxlen=_MAX_WAITING)
        self.other: _Side[E]
        self.wake: Callable[[], None] = lambda: None
        self._family = family
        self._next_train = endpoint.next_train
        self.receive = endpoint.receive
        self.handle_timers = endpoint.handle_timers
        self.events = endpoint.events
        self.pending_events = endpoint.pending_events
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
    """Run an endpoint on an IPv4 and an IPv6 socket. The methods are those of EndpointDriver."""

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
        if second.waiting:  # passed to it before `wake` was set
            self._second.schedule_flush()

    def _deliver(self, events: list[E]) -> None:
        self._delivering = True
        try:
            self._on_events(events)
        finally:
            self._delivering = False

    def flush(self) -> None:
        """Deliver events and send all trains that may be sent now; inside `on_events`, at the end of the turn."""
        if self._delivering:  # perhaps by the other driver, of which the first one does not know
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

    @property
    def sockets(self) -> list[UdpSocket]:
        return [self._first.udp, self._second.udp]

    def receive_directly(self, is_readable: bool) -> list[E]:
        return self._first.receive_directly(is_readable) + self._second.receive_directly(is_readable)

    def send_directly(self) -> list[E]:
        return self._first.send_directly() + self._second.send_directly()

    def next_timer(self) -> float | None:
        return self._first.next_timer()

    def look_again(self, now: float) -> bool:
        return self._first.look_again(now) or self._second.look_again(now)

    @property
    def needs_loop(self) -> bool:
        return self._first.needs_loop or self._second.needs_loop

    def resume(self) -> None:
        self._first.resume()
        self._second.resume()


def open_driver(
    endpoint: SansIoEndpoint[E],
    sockets: Iterable[UdpSocket],
    on_events: Callable[[list[E]], None],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> EndpointDriver[E] | PairDriver[E]:
    """Return a driver for one socket, or for one socket of each address family."""
    first, *rest = sockets
    if rest:
        return PairDriver(endpoint, (first, rest[0]), on_events, clock=clock)
    return EndpointDriver(endpoint, first, on_events, clock=clock)
