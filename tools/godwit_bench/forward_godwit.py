"""Godwit as a system under test: its broker in memory, and its client for asyncio, as programs use them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe

from godwit.broker.settings import Settings
from godwit.errors import BufferFullError, GodwitError
from godwit.net.client import connect
from godwit.net.loop import collect_garbage_rarely
from godwit.net.loop import run as run_loop
from godwit.net.service import Service
from godwit.server.configuration import Configuration
from godwit_bench import small_senders, small_senders_godwit
from godwit_bench.forward_pair import DATAGRAM_BYTES, MESSAGE_BYTES, TOPIC, Pair, bursts, count_in_loop, rest
from godwit_bench.small_senders import FILTER, tell_arrived
from godwit_bench.stage import HOST, Stage, hear


def godwit_pair() -> Pair:
    """One publisher, one subscriber, QoS 1."""
    return pair_with(lambda stage: f"{HOST}:{_broker(stage)}")


def pair_with(broker: Callable[[Stage], str]) -> Pair:
    """The same publisher and subscriber, with another broker of ours."""
    return Pair(broker, _publish, _subscribe)


def godwit_system() -> small_senders.System:
    """Many small senders, QoS 1."""
    return small_senders.System(_broker, _take_all, small_senders_godwit.connect)


def _broker(stage: Stage) -> int:
    return hear(stage.start(_serve), int)


def _serve(pipe: Pipe) -> None:
    run_loop(_serve_for_ever(pipe))


async def _serve_for_ever(pipe: Pipe) -> None:
    """Its datagrams are as long as an Ethernet's: both sides take the shorter size that one of them offers."""
    collect_garbage_rarely()  # as `godwit broker` does
    settings = Settings(max_datagram_bytes=DATAGRAM_BYTES)
    async with Service(Configuration(listen=[f"{HOST}:0"], settings=settings)) as service:
        pipe.send(service.addresses[0][1])
        await asyncio.Event().wait()


# -- one publisher, one subscriber ------------------------------------------------------------------------------------


def _subscribe(pipe: Pipe, address: str) -> None:
    run_loop(_count(pipe, address))


async def _count(pipe: Pipe, address: str) -> None:
    count = 0

    async def take() -> None:
        nonlocal count
        async for _ in messages:
            count += 1

    async with connect(address) as client, client.subscribe(TOPIC) as messages:
        first = messages.position
        taking = asyncio.create_task(take())
        await count_in_loop(pipe, lambda: count)
        taking.cancel()
        if messages.position != first + count:
            raise GodwitError(f"the subscriber was given {count} messages, and {messages.position - first} were logged")


def _publish(pipe: Pipe, address: str, seconds: float) -> None:
    run_loop(_publish_all(pipe, address, seconds))


async def _publish_all(pipe: Pipe, address: str, seconds: float) -> None:
    payload = bytes(MESSAGE_BYTES)
    messages = 0
    async with connect(address) as client:
        publisher = client.publisher(TOPIC, qos=1)
        send = publisher.send
        for burst in bursts(seconds):
            for _ in burst:
                try:
                    send(payload)
                except BufferFullError:
                    await publisher.ready()
                    send(payload)
            messages += len(burst)
        await publisher.flush()
        rest(pipe, messages)


# -- many small senders -----------------------------------------------------------------------------------------------


def _take_all(pipe: Pipe, port: int) -> None:
    run_loop(_take_from_all(pipe, port))


async def _take_from_all(pipe: Pipe, port: int) -> None:
    arrived = 0

    async def take() -> None:
        nonlocal arrived
        async for batch in messages.batches():
            arrived += len(batch)

    async with connect(f"{HOST}:{port}") as client, client.subscribe(FILTER) as messages:
        taking = asyncio.create_task(take())
        for pause_s in tell_arrived(pipe, lambda: arrived):
            await asyncio.sleep(pause_s)
        taking.cancel()
