"""A UDP relay between clients and one target that impairs traffic as a bad network does, for tests and the demo."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Literal, Protocol, TypeAlias

from godwit.errors import SocketError
from godwit.limits import MIB
from godwit.net.address import resolve
from godwit.net.driver import LoopTimer
from godwit.net.udp import UdpSocket
from godwit.transport.events import Address, Train

Direction: TypeAlias = Literal["to_target", "to_client"]

_QUEUE_ENTRY_BYTES: Final = 300
"""Estimated memory of a queued datagram beside its bytes; it limits the number of tiny ones."""
_DELIVERIES_A_TURN: Final = 256
"""Limits the length of a turn of the event loop when many deliveries are due."""


class Impairment(Protocol):
    """One direction of one client's path."""

    def offer(self, datagram: bytes, now: float) -> list[tuple[float, bytes]]:
        """Return when which datagrams arrive at the other end: none, one or several."""


class _Passing:
    def offer(self, datagram: bytes, now: float) -> list[tuple[float, bytes]]:
        return [(now, datagram)]


def passing(direction: Direction, client: Address) -> Impairment:
    """Return an impairment that passes everything at once."""
    return _Passing()


class _RelayClient:
    """One client of the relay, with its own port towards the target, as behind a NAT."""

    __slots__ = ("active_at", "address", "to_client", "to_target", "upstream")

    def __init__(self, address: Address, upstream: UdpSocket, to_target: Impairment, to_client: Impairment) -> None:
        self.address = address
        self.upstream = upstream
        self.to_target = to_target
        self.to_client = to_client
        self.active_at = 0.0


class Relay:
    """Forward datagrams, each direction of each client through an impairment. Open it with `Relay.open`."""

    def __init__(
        self,
        listener: UdpSocket,
        target: Address,
        *,
        impair: Callable[[Direction, Address], Impairment],
        max_clients: int,
        idle_timeout_s: float,
        max_queued_bytes: int,
    ) -> None:
        self.passed: Counter[str] = Counter()
        """Forwarded datagrams by direction; a duplicated one counts twice."""
        self.dropped: Counter[str] = Counter()
        """Dropped datagrams by direction and reason: impairment, queue full, kernel full, client gone, no room,
        stranger."""
        self._listener = listener
        self._target = target
        self._impair = impair
        self._max_clients = max_clients
        self._idle_timeout_s = idle_timeout_s
        self._max_queued_bytes = max_queued_bytes
        self._clients: OrderedDict[Address, _RelayClient] = OrderedDict()  # least recently active first
        self._queue: list[tuple[float, int, Direction, _RelayClient, bytes]] = []
        self._queued_bytes = 0
        self._order = itertools.count()
        self._loop = asyncio.get_running_loop()
        self._timer = LoopTimer(self._loop, self._advance)
        self._loop.add_reader(listener.fileno(), self._from_clients)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        listen: tuple[str, int],
        target: Address,
        *,
        impair: Callable[[Direction, Address], Impairment] = passing,
        max_clients: int = 256,
        idle_timeout_s: float = 120.0,
        max_queued_bytes: int = 64 * MIB,
    ) -> AsyncIterator[Relay]:
        """Run a relay until the end of the block.

        Args:
            listen: Host and port for clients; port 0 for any free one.
            target: Where to forward to.
            impair: Called for each new client and direction; returns the impairment.
            max_clients: Datagrams of further clients are dropped.
            idle_timeout_s: A client is forgotten after this time without a datagram.
            max_queued_bytes: Limit for datagrams that are being delayed.

        Raises:
            AddressError: A host cannot be resolved.
            SocketError: The system refused the socket.
        """
        relay = cls(
            UdpSocket(*listen),
            resolve(*target) if len(target) == 2 else target,
            impair=impair,
            max_clients=max_clients,
            idle_timeout_s=idle_timeout_s,
            max_queued_bytes=max_queued_bytes,
        )
        try:
            yield relay
        finally:
            relay.close()

    @property
    def address(self) -> Address:
        """The address for clients."""
        return self._listener.local_address

    @property
    def clients(self) -> list[Address]:
        """The addresses of the present clients."""
        return list(self._clients)

    @property
    def queued_bytes(self) -> int:
        """The size of all delayed datagrams, with their overhead."""
        return self._queued_bytes

    def rebind(self, client: Address | None = None) -> None:
        """Give a client (None: all) another port towards the target, like a NAT that lost its mapping.

        Datagrams that the target still sends to the old port are lost.
        """
        for each in [self._clients[client]] if client is not None else list(self._clients.values()):
            new = self._open_upstream()
            self._close_upstream(each)
            each.upstream = new
            self._loop.add_reader(new.fileno(), self._from_target, each)

    def close(self) -> None:
        """End the relay. Delayed datagrams are lost. May be repeated."""
        self._timer.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
        for client in self._clients.values():
            self._close_upstream(client)
        self._clients.clear()
        self._queue.clear()
        self._queued_bytes = 0

    # -- in -----------------------------------------------------------------------------------------------------------

    def _from_clients(self) -> None:
        now = time.monotonic()
        for train in self._listener.receive_trains():
            client = self._clients.get(train.address) or self._new_client(train.address, now)
            if client is None:
                self.dropped["to_target no room"] += len(list(train.datagrams()))
            else:
                self._impair_train(train, "to_target", client, client.to_target, now)
        self._advance()

    def _from_target(self, client: _RelayClient) -> None:
        now = time.monotonic()
        for train in client.upstream.receive_trains():
            if train.address == self._target:
                self._impair_train(train, "to_client", client, client.to_client, now)
            else:
                self.dropped["to_client stranger"] += len(list(train.datagrams()))
        self._advance()

    def _impair_train(
        self, train: Train, direction: Direction, client: _RelayClient, impairment: Impairment, now: float
    ) -> None:
        client.active_at = now
        self._clients.move_to_end(client.address)
        for datagram in train.datagrams():
            deliveries = impairment.offer(datagram, now)
            if not deliveries:
                self.dropped[f"{direction} impairment"] += 1
            for when, delivered in deliveries:
                cost_bytes = len(delivered) + _QUEUE_ENTRY_BYTES
                if self._queued_bytes + cost_bytes > self._max_queued_bytes:
                    self.dropped[f"{direction} queue full"] += 1
                    continue
                self._queued_bytes += cost_bytes
                # The counter keeps the order of datagrams that are due at the same time.
                heapq.heappush(self._queue, (when, next(self._order), direction, client, delivered))

    # -- out ----------------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Forget idle clients, deliver datagrams that are due, and set the timer."""
        now = time.monotonic()
        self._forget_idle(now)
        queue = self._queue
        for _ in range(_DELIVERIES_A_TURN):
            if not queue or queue[0][0] > now:
                break
            _, _, direction, client, datagram = heapq.heappop(queue)
            self._queued_bytes -= len(datagram) + _QUEUE_ENTRY_BYTES
            self._deliver(direction, client, datagram)
        if queue:
            self._timer.arm(queue[0][0], now)
        if self._clients:
            self._timer.arm(next(iter(self._clients.values())).active_at + self._idle_timeout_s, now)

    def _deliver(self, direction: Direction, client: _RelayClient, datagram: bytes) -> None:
        if self._clients.get(client.address) is not client:
            self.dropped[f"{direction} client gone"] += 1
            return
        if direction == "to_target":
            rest = client.upstream.send(Train(self._target, datagram, len(datagram)))
        else:
            rest = self._listener.send(Train(client.address, datagram, len(datagram)))
        if rest is None:
            self.passed[direction] += 1
        else:  # dropped, as in a network
            self.dropped[f"{direction} kernel full"] += 1

    # -- clients ------------------------------------------------------------------------------------------------------

    def _new_client(self, address: Address, now: float) -> _RelayClient | None:
        self._forget_idle(now)
        if len(self._clients) >= self._max_clients:
            return None
        try:
            upstream = self._open_upstream()
        except SocketError:  # out of file descriptors: handled as one client too many
            return None
        client = _RelayClient(address, upstream, self._impair("to_target", address), self._impair("to_client", address))
        self._clients[address] = client
        self._loop.add_reader(upstream.fileno(), self._from_target, client)
        return client

    def _forget_idle(self, now: float) -> None:
        while self._clients:
            address, client = next(iter(self._clients.items()))
            if client.active_at + self._idle_timeout_s > now:
                return
            self._close_upstream(client)
            del self._clients[address]

    def _open_upstream(self) -> UdpSocket:
        return UdpSocket("0.0.0.0" if len(self._target) == 2 else "::", 0)

    def _close_upstream(self, client: _RelayClient) -> None:
        self._loop.remove_reader(client.upstream.fileno())
        client.upstream.close()
