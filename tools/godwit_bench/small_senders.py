"""Many small senders: a thousand connections, each with one QoS 1 message in flight, and one subscriber to all.

The senders of both systems are one process with a socket for each connection, packets that are ready but for a few
bytes, and the same loop around them, so that it is the broker that is measured and not the clients.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection as Pipe
from typing import Final, Protocol, TypeAlias

import msgspec

from godwit.errors import GodwitError
from godwit_bench.stage import GIVE_UP_S, READY, Stage, hear

CONNECTIONS: Final = 1000
MESSAGE_BYTES: Final = 100
FILTER: Final = "bench/#"
WARM_UP_S: Final = 0.3
STALLED_S: Final = 0.3
"""A sender that hears nothing for so long sends again: a datagram may get lost even here."""
POLL_S: Final = 0.05
RECEIVE_BYTES: Final = 4096
LOOK_S: Final = 0.02
SETTLE_S: Final = 5.0
"""So long after the last confirm the subscriber may still receive."""
_SPARE_FILES: Final = 100


class Lane(Protocol):
    """One sender: its socket, and the packets that it sends."""

    socket: socket.socket
    confirmed: int
    """How many of its messages are."""

    def first(self) -> bytes:
        """The first message."""

    def on_answer(self, data: bytes) -> bytes | None:
        """The next message if the answer confirms the one in flight."""

    def again(self) -> bytes | None:
        """The one in flight once more, or None if the network sees to that."""


class System(msgspec.Struct, frozen=True):
    """A system under test."""

    broker: Callable[[Stage], int]
    """Starts it and gives its port once it is reachable."""
    subscribe: Callable[[Pipe, int], None]
    """Does what tell_arrived does, while it takes what matches FILTER; in a process of its own."""
    connect: Callable[[int, int], Sequence[Lane]]
    """So many lanes to that port, each logged in; in a process of its own."""


Sent: TypeAlias = tuple[int, float, int]
"""Confirmed in the window, the window's seconds, confirmed in all."""


def measure(system: System, connections: int, seconds: float) -> float:
    """Confirmed messages a second. All of them must also have reached the subscriber."""
    with Stage() as stage:
        port = system.broker(stage)
        subscriber = stage.start(system.subscribe, port)
        hear(subscriber, str)
        confirmed, elapsed_s, in_all = hear(
            stage.start(_send, system.connect, port, connections, seconds), tuple, within_s=GIVE_UP_S + seconds
        )
        subscriber.send(in_all)
        arrived = hear(subscriber, int)
        if arrived < in_all:
            raise GodwitError(f"{in_all} messages were confirmed, but only {arrived} reached the subscriber")
    return float(confirmed / elapsed_s)


def allow_files(connections: int) -> None:
    """Raises this process's limit of open files, which its children inherit, to what so many sockets need."""
    import resource

    needed = 2 * connections + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return
    if hard < needed:
        raise GodwitError(
            f"{needed} open files are needed and the system allows {hard}: run `ulimit -n {needed}` first, as root, "
            "or ask for fewer connections"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _send(pipe: Pipe, connect: Callable[[int, int], Sequence[Lane]], port: int, count: int, seconds: float) -> None:
    pipe.send(send_all(connect(port, count), seconds))


def send_all(lanes: Sequence[Lane], seconds: float) -> Sent:
    """Keeps one message of each lane in flight for the time."""
    with select.epoll() as epoll:
        for lane in lanes:
            lane.socket.setblocking(False)
            epoll.register(lane.socket.fileno(), select.EPOLLIN)
        return _send_in_turns(epoll, lanes, seconds)


def _send_in_turns(epoll: select.epoll, lanes: Sequence[Lane], seconds: float) -> Sent:
    by_file = {lane.socket.fileno(): (lane.socket.recv, lane.socket.send, lane.on_answer) for lane in lanes}
    clock = time.perf_counter
    seen = [0] * len(lanes)
    for lane in lanes:
        lane.socket.send(lane.first())
    confirmed = before = 0
    now = began = clock()
    starts = began + WARM_UP_S
    ends = starts + seconds
    look_at = began + STALLED_S
    while now < ends:
        for file, _ in epoll.poll(POLL_S):
            receive, send, on_answer = by_file[file]
            packet = on_answer(receive(RECEIVE_BYTES))
            if packet is not None:
                confirmed += 1
                send(packet)
        now = clock()
        if now < starts:
            before, began = confirmed, now
        if now >= look_at:
            look_at = now + STALLED_S
            seen = _send_stalled(lanes, seen)
    return confirmed - before, now - began, confirmed


def _send_stalled(lanes: Sequence[Lane], seen: list[int]) -> list[int]:
    """Sends again where nothing was confirmed since the last look; gives what each lane has confirmed by now."""
    for lane, confirmed in zip(lanes, seen, strict=True):
        if lane.confirmed == confirmed and (packet := lane.again()) is not None:
            lane.socket.send(packet)
    return [lane.confirmed for lane in lanes]


def tell_arrived(pipe: Pipe, arrived: Callable[[], int]) -> Iterator[float]:
    """For subscribers: says READY, waits for what is expected, says what has arrived. Gives how long to pause."""
    pipe.send(READY)
    while not pipe.poll():
        yield LOOK_S
    expected: int = pipe.recv()
    ends = time.perf_counter() + SETTLE_S
    while arrived() < expected and time.perf_counter() < ends:
        yield LOOK_S
    pipe.send(arrived())
