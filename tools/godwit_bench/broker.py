"""`godwit bench pub`, `sub` and `latency`: measure a broker of the user's, over the network that leads to it.

Unlike the other benchmarks it has no peer and no ratio: the figures are those of one broker, one network and this
machine. `sub` receives what `pub` sends from another terminal or machine. All clients of a run are in one process.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from godwit.errors import BrokerUnreachableError, BufferFullError, GodwitError
from godwit.net.loop import run as run_loop
from godwit_bench.report import Report, Result, machine

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient
    from godwit.net.security import Security
    from godwit.transport.config import EndpointConfig

POLL_S: Final = 0.25
WAIT_S: Final = 60.0
"""Time without a message after which a subscriber ends."""


class BrokerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What to send to a broker, or to expect from it."""

    broker: str
    name: str | None = None
    secret: bytes = b""
    timeout_s: float | None = None
    """Longest time without a connection. None: no limit."""
    endpoint: EndpointConfig | None = None
    """Settings of the transport. None: the default."""
    security: Security | None = None
    """How connections are sealed. None: the default."""
    topic: str = "bench/load"
    clients: int = 1
    messages: int = 100_000
    """In all, by all clients together."""
    size: int = 100
    qos: int = 1

    def connect(self, number: int) -> Awaitable[AsyncClient]:
        """Return the connection of one client. Only the first one has the name."""
        from godwit.net.client import connect

        name = self.name if number == 0 else None
        secret = self.secret if number == 0 else b""
        return connect(
            self.broker,
            name=name,
            secret=secret,
            timeout_s=self.timeout_s,
            endpoint=self.endpoint,
            security=self.security,
        )


def publish(load: BrokerLoad, on_round: Callable[[str], None]) -> Report:
    """Publish as fast as the broker confirms, and return the rates."""
    on_round("publishing")
    elapsed_s = run_loop(_publish(load))
    return _rates("pub", load.messages, load.messages * load.size, elapsed_s)


def subscribe(load: BrokerLoad, on_round: Callable[[str], None]) -> Report:
    """Wait for messages, each subscriber for all of them, and return the rates from the first message on."""
    on_round(f"waiting for messages: godwit bench pub --topic {load.topic} --messages {load.messages}")
    received, size_bytes, elapsed_s = run_loop(_subscribe(load))
    return _rates("sub", received, size_bytes, elapsed_s)


def latency(load: BrokerLoad, rate: float, on_round: Callable[[str], None]) -> Report:
    """Publish at a fixed rate, and return the time from a publish to its arrival at a subscriber of this process."""
    on_round("measuring the latency")
    trips_s = sorted(run_loop(_latency(load, rate)))
    figures = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    # The smallest value that this part of the values does not exceed.
    at = {name: trips_s[math.ceil(len(trips_s) * part) - 1] for name, part in figures.items()}
    results = [Result(f"latency_{name}_ms", trip_s * 1000, "ms") for name, trip_s in at.items()]
    return Report("latency", machine(), results, [])


def _rates(bench: str, messages: int, size_bytes: int, elapsed_s: float) -> Report:
    rate = 1 / elapsed_s if elapsed_s > 0 else None  # all messages came at once, without a rate
    results = [
        Result("messages_per_s", None if rate is None else messages * rate, "messages/s"),
        Result("megabytes_per_s", None if rate is None else size_bytes * rate / 1e6, "MB/s"),
        Result("messages", messages, "messages"),
        Result("elapsed_s", elapsed_s, "s"),
    ]
    return Report(bench, machine(), results, [])


@asynccontextmanager
async def _connected(load: BrokerLoad, count: int) -> AsyncIterator[list[AsyncClient]]:
    """Yield clients that are online. After an error they end at once, without waiting for confirmations."""
    clients: list[AsyncClient] = []
    try:
        for number in range(count):
            clients.append(await load.connect(number))
        yield clients
    except BaseException:
        for client in clients:
            client.abort()
        raise
    finally:
        for client in clients:
            await client.close()


async def _run_all(load: BrokerLoad, client: AsyncClient, *parts: Coroutine[Any, Any, None]) -> None:
    """Run all parts to their end. The first error ends them, and so does the loss of the broker.

    Raises:
        BrokerUnreachableError: A client has had no connection for longer than the timeout of the load.
    """
    working = asyncio.gather(*parts)
    watching = asyncio.create_task(_watch(load, client))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        await working
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _watch(load: BrokerLoad, client: AsyncClient) -> NoReturn:
    lost_at = math.inf
    while True:
        await asyncio.sleep(POLL_S)
        now = time.monotonic()
        lost_at = math.inf if client.state == "online" else min(lost_at, now)
        if load.timeout_s is not None and now - lost_at >= load.timeout_s:
            client.require_open()  # raises the reason if the broker removed the client
            raise BrokerUnreachableError(
                f"the broker at {load.broker} was lost ({client.last_reason}) and did not come back within "
                f"{load.timeout_s:g} s: check that it runs, then try again"
            )


async def _publish(load: BrokerLoad) -> float:
    payload = bytes(load.size)
    shares = [load.messages // load.clients + (number < load.messages % load.clients) for number in range(load.clients)]

    async def send(client: AsyncClient, count: int) -> None:
        publisher = client.publisher(load.topic, qos=load.qos)
        for _ in range(count):
            while True:
                try:
                    publisher.send(payload)
                    break
                except BufferFullError:
                    await publisher.ready()
        await publisher.flush()

    async with _connected(load, load.clients) as clients:
        began = time.perf_counter()
        await _run_all(load, clients[0], *(send(*one) for one in zip(clients, shares, strict=True)))
        return time.perf_counter() - began


async def _subscribe(load: BrokerLoad) -> tuple[int, int, float]:
    first, last = 0.0, 0.0
    received = size_bytes = 0

    async def receive(client: AsyncClient) -> None:
        nonlocal first, last, received, size_bytes
        left = load.messages
        async with client.subscribe(load.topic) as messages:
            batches = messages.batches()
            while left > 0:
                try:
                    async with asyncio.timeout(WAIT_S):
                        batch = await anext(batches)
                except TimeoutError:
                    raise GodwitError(
                        f"{received:,} of {load.messages * load.clients:,} messages on {load.topic} arrived, then "
                        f"none for {WAIT_S:g} s: start godwit bench pub with the same --topic and --messages"
                    ) from None
                last = time.perf_counter()
                first = first or last
                left -= len(batch)
                received += len(batch)
                size_bytes += sum(len(message.payload) for message in batch)

    async with _connected(load, load.clients) as clients:
        await _run_all(load, clients[0], *map(receive, clients))
    return received, size_bytes, last - first


async def _latency(load: BrokerLoad, rate: float) -> list[float]:
    trips_s: list[float] = []
    padding = bytes(max(load.size - 8, 0))
    now = time.perf_counter

    async def measure(publishing: AsyncClient, subscribing: AsyncClient) -> None:
        async with subscribing.subscribe(load.topic) as messages:
            publisher = publishing.publisher(load.topic, qos=load.qos)

            async def receive() -> None:
                async for message in messages:
                    trips_s.append(now() - int.from_bytes(message.payload[:8]) / 1e9)
                    if len(trips_s) == load.messages:
                        return

            async def send() -> None:
                due = now()
                for _ in range(load.messages):
                    due += 1 / rate
                    await asyncio.sleep(max(due - now(), 0))
                    publisher.send(int(now() * 1e9).to_bytes(8) + padding)
                await publisher.flush()
                await asyncio.sleep(WAIT_S)
                raise GodwitError(
                    f"{len(trips_s):,} of {load.messages:,} messages arrived: the topic {load.topic} lost the others"
                )

            sending = asyncio.create_task(send())
            receiving = asyncio.create_task(receive())
            try:
                await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
                if not receiving.done():
                    sending.result()
                await receiving
            finally:
                sending.cancel()
                receiving.cancel()
                await asyncio.gather(sending, receiving, return_exceptions=True)

    async with _connected(load, 2) as (publishing, subscribing):
        await _run_all(load, publishing, measure(publishing, subscribing))
    return trips_s
