"""Many light clients in one process: each has a login and a subscription, and reconnects as clients of the library do.

A client here is a connection of the transport and a few fields, so that ten thousand of them use little memory and
processor time. They share a few sockets; the broker sees as many connections as there are clients.
"""

from __future__ import annotations

import os
import random
import select
import time
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from types import TracebackType
from typing import Final

from godwit.client.config import ClientConfig
from godwit.client.dialer import RESTART_SPREAD_S, Backoff
from godwit.errors import ConnectionClosedError, GodwitError
from godwit.net.udp import UdpSocket
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, Closed, Connected, Event, Received
from godwit.wire.control import (
    ControlMessage,
    Error,
    Login,
    Subscribe,
    Subscribed,
    Welcome,
    decode_control,
    encode_control,
)
from godwit.wire.control_base import Code
from godwit_bench.processes import HOST

SOCKETS: Final = 8
AT_ONCE: Final = 256
"""Clients that connect at a time when they connect for the first time."""
SESSION_EXPIRY_S: Final = 600
POLL_S: Final = 0.02
_INSTANCE_BYTES: Final = 16


class SwarmClient:
    """One client: its name, and how far it has come on its present connection."""

    __slots__ = ("backoff", "instance", "is_online", "name")

    def __init__(self, name: str, backoff: Backoff) -> None:
        self.name = name
        self.instance = os.urandom(_INSTANCE_BYTES)
        self.backoff = backoff
        self.is_online = False

    def request(self) -> ControlMessage:
        """Return the request for its subscription, which resumes after a reconnect."""
        return Subscribe(request=1, subscription=1, filters=[f"bench/idle/{self.name}"])


class _Side:
    """One socket with the connections of its clients."""

    def __init__(self, swarm: Swarm, address: Address, most: int) -> None:
        self.udp = UdpSocket(HOST, 0)
        config = EndpointConfig(max_connections=most, receive_buffer_bytes=self.udp.receive_buffer_bytes)
        self.endpoint = Endpoint(config, entropy=os.urandom)
        self.clients: dict[Connection, SwarmClient] = {}
        self._swarm = swarm
        self._address = address

    def dial(self, client: SwarmClient, now: float) -> None:
        self.clients[self.endpoint.connect(self._address, now)] = client

    def receive(self, now: float) -> None:
        for train in self.udp.receive_trains(256):
            self.endpoint.receive(train, now)

    def run(self, now: float) -> None:
        """Handle due timers and all events, and send all packets that are ready."""
        endpoint = self.endpoint
        due = endpoint.next_timer()
        if due is not None and due <= now:
            endpoint.handle_timers(now)
        if endpoint.pending_events:
            for event in endpoint.events():
                with suppress(ConnectionClosedError):  # its Closed event follows
                    self._handle(event, now)
        while (train := endpoint.next_train(now)) is not None:
            self.udp.send(train)  # a full buffer is a loss, as in a network

    def _handle(self, event: Event, now: float) -> None:
        client = self.clients.get(event.connection)
        if client is None:
            return
        connection = event.connection
        if isinstance(event, Connected):
            login = Login(request=0, name=client.name, instance=client.instance, session_expiry_s=SESSION_EXPIRY_S)
            connection.send(0, encode_control(login))
        elif isinstance(event, Received):
            connection.consume(event.channel, len(event.body))
            if event.channel:
                connection.confirm(event.channel, event.record, 0)
                return
            match decode_control(event.body):
                case Welcome():
                    connection.send(0, encode_control(client.request()))
                case Subscribed():
                    client.is_online = True
                    self._swarm.online += 1
                case Error(code=code, text=text):
                    raise GodwitError(f"the broker refused a client: {text} (code {code})")
        elif isinstance(event, Closed):
            del self.clients[connection]
            self._swarm.on_lost(self, client, now, is_restart=event.code in (Code.SHUTDOWN, Code.RESET))


class Swarm:
    """A number of clients of the broker on a port of this machine. `run_until` drives them.

    Its sockets are closed at the end of its `with` block.
    """

    def __init__(self, port: int, count: int, seed: int) -> None:
        """`seed`: of the pauses before clients reconnect."""
        self.online = 0
        self.is_held = False
        """While it is set, clients that have lost their connection do not reconnect."""
        self.lost = 0
        """Connections that have ended."""
        self._random = random.Random(seed)
        config = ClientConfig()
        self._sides = [_Side(self, (HOST, port), count) for _ in range(min(SOCKETS, count))]
        self._clients = [
            SwarmClient(f"idle-{number}", Backoff(config.retry_min_s, config.retry_max_s, self._random))
            for number in range(count)
        ]
        self._due: list[tuple[float, int, _Side, SwarmClient]] = []
        """A heap of the times when clients connect again."""
        self._held: list[tuple[_Side, SwarmClient]] = []
        self._serial = 0
        self._epoll = select.epoll()
        for side in self._sides:
            self._epoll.register(side.udp.fileno(), select.EPOLLIN)
        self._by_file = {side.udp.fileno(): side for side in self._sides}

    def __enter__(self) -> Swarm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._epoll.close()
        for side in self._sides:
            side.udp.close()

    def connect_first(self, give_up_at: float) -> None:
        """Connect all clients, a few at a time."""
        waiting = list(enumerate(self._clients))[::-1]
        dialled = 0

        def step() -> bool:
            nonlocal dialled
            while waiting and dialled - self.online < AT_ONCE:
                number, client = waiting.pop()
                self._sides[number % len(self._sides)].dial(client, time.monotonic())
                dialled += 1
            return self.online == len(self._clients)

        self.run_until(step, give_up_at)

    def release(self) -> None:
        """Let all clients that were held reconnect, each after the pause of its back-off."""
        self.is_held = False
        now = time.monotonic()
        for side, client in self._held:
            self._schedule(side, client, now, is_restart=True)
        self._held.clear()

    def run_until(self, is_done: Callable[[], bool], give_up_at: float) -> None:
        """Drive the clients until a condition holds, which is examined many times a second.

        Raises GodwitError if that takes too long.
        """
        while not is_done():
            now = time.monotonic()
            if now > give_up_at:
                raise GodwitError(
                    f"{self.online:,} of {len(self._clients):,} clients are connected, and the time is over: "
                    "run it again on a quieter machine"
                )
            ready = self._epoll.poll(self._pause_s(now))
            now = time.monotonic()
            for file, _ in ready:
                self._by_file[file].receive(now)
            while self._due and self._due[0][0] <= now:
                _, _, side, client = heappop(self._due)
                side.dial(client, now)
            for side in self._sides:
                side.run(now)

    def on_lost(self, side: _Side, client: SwarmClient, now: float, *, is_restart: bool) -> None:
        """A connection has ended, or could not be opened. `is_restart`: because the broker was stopped."""
        if client.is_online:
            client.is_online = False
            self.online -= 1
            self.lost += 1
        if self.is_held:
            self._held.append((side, client))
        else:
            self._schedule(side, client, now, is_restart=is_restart)

    def _schedule(self, side: _Side, client: SwarmClient, now: float, *, is_restart: bool) -> None:
        self._serial += 1
        pause_s = client.backoff.next_pause_s(spread_s=RESTART_SPREAD_S if is_restart else 0.0)
        heappush(self._due, (now + pause_s, self._serial, side, client))

    def _pause_s(self, now: float) -> float:
        due = [self._due[0][0]] if self._due else []
        for side in self._sides:
            timer = side.endpoint.next_timer()
            if timer is not None:
                due.append(timer)
        return max(min(min(due, default=now + POLL_S) - now, POLL_S), 0.0)
