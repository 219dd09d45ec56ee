"""The simulated network: hosts, addresses and links in virtual time, with one totally ordered queue of events.

A host runs at most one node (an endpoint, for example). The network passes input to it, then drains it until it has no
more output, as a real driver would:

    datagrams arrive -> inbox -> wake-up -> node.receive(train) -> events to the application, trains to the links
    its timer is due -> node.handle_timers -> the same

Time moves only from event to event. Events at equal times run in the order in which they were scheduled. Nothing here
depends on hash order or on a clock, so one seed has one sequence of events.

A Trace records the events as a digest and, if requested, as lines of text. Two runs of one seed must have equal
digests; a difference means that the run depends on more than the seed.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from godwit.errors import DecodeError
from godwit.impairment import ImpairedLink
from godwit.limits import MAX_TRAIN_BYTES, MAX_TRAIN_DATAGRAMS
from godwit.transport.events import Address, Train
from godwit.wire import packet as f
from godwit.wire.packet import decode_packet
from godwit_sim.sealing import sealed_content

# -- traces -----------------------------------------------------------------------------------------------------------


class Trace:
    """Record events. `sink` receives each event as a line, at the cost of formatting it."""

    def __init__(self, sink: Callable[[str], None] | None = None) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self._sink = sink
        self.notes = 0

    @property
    def readable(self) -> bool:
        """Return whether there is a sink: only then are datagrams described."""
        return self._sink is not None

    def note(self, now: float, what: str) -> None:
        self.notes += 1
        self._digest.update(f"{now!r} {what}\n".encode())
        if self._sink is not None:
            self._sink(f"{now:12.6f}  {what}")

    def comment(self, now: float, what: str) -> None:
        """Write a line to the sink that is not part of the digest."""
        if self._sink is not None:
            self._sink(f"{now:12.6f}  {what}")

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


# -- inspection of datagrams ------------------------------------------------------------------------------------------


def frames_of(datagram: bytes) -> list[f.Frame]:
    """Return the frames of an intact packet; an empty list for anything else."""
    try:
        return f.decode_frames(_content(datagram)[2])
    except DecodeError:
        return []


def _first_frame(datagram: bytes) -> list[f.Frame]:
    """Return the first frame of a packet with other bytes after it, because a server decodes no more of a connect."""
    try:
        return [f.decode_first_frame(_content(datagram)[2])]
    except DecodeError:
        return []


def _content(datagram: bytes) -> tuple[int, int, bytes]:
    """Return connection id, number and frames of a packet. If it is sealed, by the stand-in, the key is not checked."""
    sealed = sealed_content(datagram)
    return decode_packet(datagram) if sealed is None else sealed


def addressed_to(datagram: bytes) -> tuple[int, int] | None:
    """Return the connection id and the truncated packet number of an intact packet."""
    try:
        connection_id, number, _ = _content(datagram)
    except DecodeError:
        return None
    return connection_id, number


def is_crypto(datagram: bytes) -> bool:
    """Return whether a packet belongs to the TLS handshake, which does not count as one of its connection."""
    return datagram[:1] == bytes((f.FIRST_BYTE,)) and datagram[f.HEADER.size] in (f.CRYPTO, f.REFUSE)


def challenges(datagram: bytes) -> list[bytes]:
    """Return the cookies and path challenges in a datagram, which only its receiver can know."""
    found = []
    for frame in frames_of(datagram):
        if isinstance(frame, f.CookieFrame):
            found.append(frame.cookie)
        elif isinstance(frame, f.PathProbeFrame):
            found.append(frame.challenge)
    return found


def answers(datagram: bytes) -> list[bytes]:
    """Return the challenges that this datagram returns."""
    found = []
    for frame in frames_of(datagram) or _first_frame(datagram):
        if isinstance(frame, f.ConnectFrame):
            found.append(frame.cookie)
        elif isinstance(frame, f.PathResponseFrame):
            found.append(frame.challenge)
    return found


def describe(datagram: bytes) -> str:
    """Return a description of a datagram in one line."""
    try:
        connection_id, number, body = _content(datagram)
        found = f.decode_frames(body)
    except DecodeError as error:
        return f"{len(datagram)} B, no packet ({error.reason})"
    words = ", ".join(_describe_frame(frame) for frame in found)
    return f"{len(datagram)} B #{number} for {connection_id:016x}: {words}"


def _describe_frame(frame: f.Frame) -> str:
    match frame:
        case f.DataFrame(flags, channel, record, offset, position, body):
            mode = "unreliable" if flags & f.UNRELIABLE else "data"
            marks = ("." if flags & (f.WHOLE | f.LAST) else "") + (" end" if flags & f.END else "")
            place = "" if position is None else f" position {position}"
            return f"{mode} {channel}/{record}+{offset}:{offset + len(body)}{marks}{place}"
        case f.AckFrame(_, ranges, next_position):
            spans = " ".join(f"{first}-{last}" if first != last else f"{first}" for first, last in ranges[:4])
            more = f" and {len(ranges) - 4} more" if len(ranges) > 4 else ""
            return f"ack {spans}{more}" + ("" if next_position is None else f" next {next_position}")
        case f.CreditFrame(channel, limit):
            return f"credit {channel} to {limit}"
        case f.BlockedFrame(channel, limit):
            return f"blocked {channel} at {limit}"
        case f.ConfirmFrame(channel, sequence, reached):
            return f"confirm {channel} up to {sequence} reached {reached}"
        case f.CloseFrame(code, reason):
            return f"close {code} {reason!r}"
    return type(frame).__name__.removesuffix("Frame").lower()


# -- hosts and the network --------------------------------------------------------------------------------------------

MAX_DRAINS = 2000
"""The most drains at one instant; a node that still has output after them never stops."""


class Node(Protocol):
    """The node on a host: the sans-IO interface of an endpoint."""

    def receive(self, train: Train, now: float) -> None: ...
    def handle_timers(self, now: float) -> None: ...
    def events(self) -> Sequence[Any]: ...
    def trains(self, now: float) -> Sequence[Train]: ...
    def next_timer(self) -> float | None: ...


Application = Callable[[Sequence[Any], float], None]


class LivelockError(Exception):
    """A node kept producing output at one instant of time."""


class Observer:
    """Observe all that passes between hosts and the network. Checkers override the methods that they need."""

    def started(self, host: Host, now: float) -> None: ...
    def stopped(self, host: Host, now: float) -> None: ...
    def sent(self, host: Host, source: Address, destination: Address, datagram: bytes, now: float) -> None: ...
    def arrived(self, host: Host, source: Address, datagram: bytes, now: float) -> None: ...
    def fired(self, host: Host, due: float, now: float) -> None: ...
    def drained(self, host: Host, now: float) -> None: ...


class Host:
    """A machine: an address that may change, and a process that may die and be started again.

    `joins`: equal datagrams of one flow that wait together arrive as one train, as with UDP_GRO. `wake_delay_s`: the
    time until the process reads its socket. `timer_step_s`: its timers fire on this grid, as those of an event loop do.
    `epoch_s`: its clock at the start of the simulation. `inbox_bytes`: the socket's receive buffer; further datagrams
    are dropped.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        *,
        joins: bool = True,
        wake_delay_s: float = 0.0,
        timer_step_s: float = 0.0,
        epoch_s: float = 0.0,
        inbox_bytes: int = 212_992,
    ) -> None:
        self.name = name
        self.address = address
        self.joins = joins
        self.wake_delay_s = wake_delay_s
        self.timer_step_s = timer_step_s
        self.inbox_bytes = inbox_bytes
        self._epoch_s = epoch_s
        self._clock_s = 0.0
        self.node: Node | None = None
        self.application: Application | None = None
        self.lives = 0
        self.paused_until = 0.0
        self.timer_due: float | None = None
        self.inbox: list[tuple[Address, bytes]] = []
        self.inbox_used_bytes = 0
        self.wakes = False

    @property
    def alive(self) -> bool:
        return self.node is not None

    def clock(self, now: float, at_least_s: float = 0.0) -> float:
        """Return the host's own monotonic time, which has its own origin."""
        self._clock_s = max(self._clock_s, now + self._epoch_s, at_least_s)
        return self._clock_s

    def world_time(self, clock_s: float) -> float:
        """Return the simulation's time when the host's clock shows this."""
        return clock_s - self._epoch_s


class Network:
    """All hosts, the links between them, and the time."""

    def __init__(self, trace: Trace | None = None) -> None:
        self.now = 0.0
        self.trace = trace or Trace()
        self.hosts: dict[str, Host] = {}
        self.links: dict[tuple[str, str], ImpairedLink] = {}
        self.observers: list[Observer] = []
        self.vanished: Counter[str] = Counter()
        """Datagrams that no link dropped and no node received, by reason."""
        self._by_address: dict[Address, Host] = {}
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    # -- building -----------------------------------------------------------------------------------------------------

    def add_host(self, host: Host) -> Host:
        """Add a host without a process."""
        self.hosts[host.name] = host
        self._by_address[host.address] = host
        return host

    def join(self, source: Host, destination: Host, link: ImpairedLink) -> None:
        """Send datagrams from source to destination over this link. Several pairs may share one link."""
        self.links[source.name, destination.name] = link

    def at(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call the action at that time (now at the earliest)."""
        self._count += 1
        heapq.heappush(self._heap, (max(when, self.now), self._count, action, arguments))

    # -- faults and processes -----------------------------------------------------------------------------------------

    def start(self, host: Host, node: Node, application: Application) -> None:
        """Start a process on the host."""
        host.node, host.application = node, application
        host.lives += 1
        host.timer_due = None
        self.trace.note(self.now, f"start {host.name}")
        for observer in self.observers:
            observer.started(host, self.now)
        self.pump(host)

    def kill(self, host: Host) -> None:
        """End the process with all its state, without a notification."""
        host.node = host.application = None
        host.timer_due = None
        host.inbox.clear()
        host.inbox_used_bytes = 0
        self.trace.note(self.now, f"kill {host.name}")
        for observer in self.observers:
            observer.stopped(host, self.now)

    def rebind(self, host: Host, address: Address) -> None:
        """Change the address under which the host is seen (as by a NAT); the old one becomes unreachable."""
        del self._by_address[host.address]
        host.address = address
        self._by_address[address] = host
        self.trace.note(self.now, f"rebind {host.name} to {address}")

    def pause(self, host: Host, until: float) -> None:
        """Stop the process until then: its socket fills, its timers are late."""
        host.paused_until = max(host.paused_until, until)
        self.trace.note(self.now, f"pause {host.name} until {until!r}")

    def partition(self, one: Host, other: Host, *, both_ways: bool = True) -> None:
        self._switch(one, other, both_ways, up=False)

    def heal(self, one: Host, other: Host) -> None:
        self._switch(one, other, both_ways=True, up=True)

    def _switch(self, one: Host, other: Host, both_ways: bool, *, up: bool) -> None:
        self.trace.note(self.now, f"{'heal' if up else 'partition'} {one.name} {other.name}")
        for pair in ((one.name, other.name), (other.name, one.name))[: 2 if both_ways else 1]:
            self.links[pair].up = up

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, until: float, done: Callable[[], bool] | None = None) -> bool:
        """Run until that time, or until `done` returns True after an event; return whether it did."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            when, _, action, arguments = heapq.heappop(heap)
            self.now = when
            action(*arguments)
            if done is not None and done():
                return True
        self.now = max(self.now, until)
        return done is not None and done()

    def pump(self, host: Host) -> None:
        """Drain the host's node. Call this after calling the node from outside the event loop."""
        node = host.node
        if node is None or host.application is None:
            return
        now = self.now
        clock_s = host.clock(now)
        for _ in range(MAX_DRAINS):
            events = node.events()
            if events:
                host.application(events, now)
                if host.node is not node:
                    return  # the application ended the process
            trains = node.trains(clock_s)
            for train in trains:
                for datagram in train.datagrams():
                    self.inject(host, host.address, train.address, datagram)
            if not events and not trains:
                break
        else:
            raise LivelockError(f"{host.name} still produces events or trains after {MAX_DRAINS} drains at one instant")
        for observer in self.observers:
            observer.drained(host, now)
        self._arm(host, node.next_timer())

    def inject(self, via: Host, source: Address, destination: Address, datagram: bytes) -> None:
        """Put a datagram on the link of `via`, with any source address."""
        now = self.now
        trace = self.trace
        trace.note(now, f"> {via.name} {destination} {len(datagram)} {zlib.crc32(datagram):08x}")
        if trace.readable:
            trace.comment(now, f"  {describe(datagram)}")
        for observer in self.observers:
            observer.sent(via, source, destination, datagram, now)
        target = self._by_address.get(destination)
        link = self.links.get((via.name, target.name)) if target is not None else None
        if link is None:
            self.vanished["no_route"] += 1
            return
        for arrives_at, received in link.offer(datagram, now):
            self._count += 1
            heapq.heappush(self._heap, (arrives_at, self._count, self._arrive, (source, destination, received)))

    def _arrive(self, source: Address, destination: Address, datagram: bytes) -> None:
        host = self._by_address.get(destination)
        if host is None or host.node is None:
            self.vanished["no_host" if host is None else "no_process"] += 1
            return
        if host.inbox_used_bytes + len(datagram) > host.inbox_bytes:
            self.vanished["inbox_full"] += 1
            return
        host.inbox.append((source, datagram))
        host.inbox_used_bytes += len(datagram)
        if not host.wakes:
            host.wakes = True
            self.at(self.now + host.wake_delay_s, self._wake, host)

    def _wake(self, host: Host) -> None:
        if self.now < host.paused_until:
            self.at(host.paused_until, self._wake, host)
            return
        host.wakes = False
        node = host.node
        inbox, host.inbox, host.inbox_used_bytes = host.inbox, [], 0
        if node is None:
            return
        now = self.now
        for source, datagram in inbox:
            self.trace.note(now, f"< {host.name} {source} {len(datagram)} {zlib.crc32(datagram):08x}")
            for observer in self.observers:
                observer.arrived(host, source, datagram, now)
        for train in join_datagrams(inbox) if host.joins else map(_single, inbox):
            node.receive(train, host.clock(now))
        self.pump(host)

    def _arm(self, host: Host, due: float | None) -> None:
        if due is None or due == math.inf:
            host.timer_due = None
            return
        if due == host.timer_due:
            return  # an event for it is already scheduled
        host.timer_due = due
        rings_at = host.world_time(due)
        if host.timer_step_s:
            rings_at = max(rings_at, math.ceil(rings_at / host.timer_step_s) * host.timer_step_s)
        self.at(rings_at, self._ring, host, due, host.lives)

    def _ring(self, host: Host, due: float, life: int) -> None:
        if host.node is None or host.timer_due != due or host.lives != life:
            return  # the timer has moved since
        if self.now < host.paused_until:
            self.at(host.paused_until, self._ring, host, due, life)
            return
        host.timer_due = None
        self.trace.note(self.now, f"timer {host.name}")
        host.node.handle_timers(host.clock(self.now, due))  # never early by a rounding error
        for observer in self.observers:
            observer.fired(host, due, self.now)
        self.pump(host)


def _single(arrival: tuple[Address, bytes]) -> Train:
    source, datagram = arrival
    return Train(source, datagram, max(1, len(datagram)))


def join_datagrams(inbox: Sequence[tuple[Address, bytes]]) -> list[Train]:
    """Join adjacent datagrams of one source and size to a train, as UDP_GRO does; a shorter one may end a train."""
    trains: list[Train] = []
    parts: list[bytes] = []
    size = used = 0
    address: Address = ()
    for source, datagram in inbox:
        length = len(datagram)
        matches_filter = (
            parts
            and source == address
            and 0 < length <= size
            and len(parts[-1]) == size
            and len(parts) < MAX_TRAIN_DATAGRAMS
            and used + length <= MAX_TRAIN_BYTES
        )
        if not matches_filter:
            if parts:
                trains.append(Train(address, b"".join(parts), max(1, size)))
            parts, size, used, address = [], length, 0, source
        parts.append(datagram)
        used += length
    if parts:
        trains.append(Train(address, b"".join(parts), max(1, size)))
    return trains
