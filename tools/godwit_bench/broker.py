"""`godwit bench pub`, `sub` and `latency`: measure a broker of the user's, over the network that leads to it.

Unlike the other benchmarks it has no peer and no ratio: the figures are those of one broker, one network and this
machine. `sub` receives what `pub` sends from another terminal or machine. All clients of a run are in one process.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec

from godwit.errors import BufferFullError, GodwitError
from godwit.net.loop import run as run_loop
from godwit_bench.report import Report, Result, machine

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient

CONNECT_TIMEOUT_S: Final = 10.0
WAIT_S: Final = 60.0
"""Time without a message after which a subscriber ends."""


class BrokerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What to send to a broker, or to expect from it."""

    broker: str
    name: str | None = None
    secret: bytes = b""
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
        return connect(self.broker, name=name, secret=secret, timeout_s=CONNECT_TIMEOUT_S)


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


async def _publish(load: BrokerLoad) -> float:
    clients = [await load.connect(number) for number in range(load.clients)]
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

    try:
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for client, count in zip(clients, shares, strict=True):
                group.create_task(send(client, count))
        return time.perf_counter() - began
    finally:
        for client in clients:
            await client.close()


async def _subscribe(load: BrokerLoad) -> tuple[int, int, float]:
    clients = [await load.connect(number) for number in range(load.clients)]
    first, last = 0.0, 0.0
    received = size_bytes = 0

    async def receive(client: AsyncClient) -> None:
        nonlocal first, last, received, size_bytes
        left = load.messages
        async with client.subscribe(load.topic) as messages:
            batches = messages.batches()
            while left > 0:
                async with asyncio.timeout(WAIT_S):
                    batch = await anext(batches)
                last = time.perf_counter()
                first = first or last
                left -= len(batch)
                received += len(batch)
                size_bytes += sum(len(message.payload) for message in batch)

    try:
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(receive(client))
    except* TimeoutError:
        expected = load.messages * load.clients
        raise GodwitError(
            f"{received:,} of {expected:,} messages on {load.topic} arrived, then none for {WAIT_S:g} s: start godwit "
            "bench pub with the same --topic and --messages"
        ) from None
    finally:
        for client in clients:
            await client.close()
    return received, size_bytes, last - first


async def _latency(load: BrokerLoad, rate: float) -> list[float]:
    trips_s: list[float] = []
    padding = bytes(max(load.size - 8, 0))
    publishing, subscribing = await load.connect(0), await load.connect(1)
    now = time.perf_counter
    try:
        async with subscribing.subscribe(load.topic) as messages:
            publisher = publishing.publisher(load.topic, qos=load.qos)

            async def receive() -> None:
                async for message in messages:
                    trips_s.append(now() - int.from_bytes(message.payload[:8]) / 1e9)
                    if len(trips_s) == load.messages:
                        return

            receiving = asyncio.create_task(receive())
            due = now()
            for _ in range(load.messages):
                due += 1 / rate
                await asyncio.sleep(max(due - now(), 0))
                publisher.send(int(now() * 1e9).to_bytes(8) + padding)
            await publisher.flush()
            try:
                async with asyncio.timeout(WAIT_S):
                    await receiving
            except TimeoutError:
                raise GodwitError(
                    f"{len(trips_s):,} of {load.messages:,} messages arrived: the topic {load.topic} lost the others"
                ) from None
    finally:
        await publishing.close()
        await subscribing.close()
    return trips_s
