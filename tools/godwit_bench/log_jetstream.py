"""JetStream as a system under test: nats-server with its file store, and nats-py on uvloop.

Its defaults are left alone: one replica, the file store syncs every two minutes. So a confirm means less than
Godwit's: what was confirmed in the last two minutes is lost when the power is. Two publishers are measured: nats-py's
own way for many confirmed messages in flight, and a quicker one past it that only counts the answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection as Pipe
from typing import TYPE_CHECKING, Final

from godwit.net.loop import run as run_loop
from godwit_bench.forward_pair import bursts
from godwit_bench.log_publishing import LOG_FOLDER, TOPIC, Logger, Outcome
from godwit_bench.stage import HOST, Stage, free_port, wait_for_listener

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

STREAM: Final = "bench"
SUBJECT: Final = TOPIC.replace("/", ".")
ANSWERS: Final = "_INBOX.bench"
MOST_IN_FLIGHT: Final = 4000
"""What nats-py allows by default."""
PATIENCE_S: Final = 30.0


def jetstream(program: str) -> Logger:
    """With the nats-server at this path, and `publish_async`: a future for each message."""
    return _logger(program, _publish_with_futures)


def jetstream_counted(program: str) -> Logger:
    """The same server with answers that are counted, but neither matched with their messages nor decoded."""
    return _logger(program, _publish_and_count)


def _logger(program: str, publish: Callable[[Pipe, str, float, int], None]) -> Logger:
    def broker(stage: Stage) -> str:
        port = free_port()
        store = str(stage.folder / LOG_FOLDER)
        log = stage.run(program, "--addr", HOST, "--port", str(port), "--jetstream", "--store_dir", store)
        wait_for_listener(port, log)
        return f"nats://{HOST}:{port}"

    return Logger(broker, publish)


def _publish_with_futures(pipe: Pipe, address: str, seconds: float, message_bytes: int) -> None:
    run_loop(_publish(pipe, address, _with_futures, seconds, message_bytes))


def _publish_and_count(pipe: Pipe, address: str, seconds: float, message_bytes: int) -> None:
    run_loop(_publish(pipe, address, _counted, seconds, message_bytes))


async def _publish(
    pipe: Pipe,
    address: str,
    publish_all: Callable[[Client, float, bytes], Awaitable[int]],
    seconds: float,
    message_bytes: int,
) -> None:
    import nats

    client = await nats.connect(address)
    context = client.jetstream()
    await context.add_stream(name=STREAM, subjects=[SUBJECT])
    began = time.perf_counter()
    confirmed = await publish_all(client, seconds, bytes(message_bytes))
    elapsed_s = time.perf_counter() - began
    logged = (await context.stream_info(STREAM)).state.messages
    await client.close()
    pipe.send(Outcome(confirmed, logged, elapsed_s))


async def _with_futures(client: Client, seconds: float, payload: bytes) -> int:
    """As its documentation shows it. An answer that is an error stays in its future, and is missing in the stream."""
    context = client.jetstream(publish_async_max_pending=MOST_IN_FLIGHT)
    messages = 0
    for burst in bursts(seconds):
        for _ in burst:
            await context.publish_async(SUBJECT, payload)
        messages += len(burst)
    await asyncio.wait_for(context.publish_async_completed(), PATIENCE_S)
    return messages


async def _counted(client: Client, seconds: float, payload: bytes) -> int:
    messages = answered = wanted = 0
    enough = asyncio.Event()

    async def on_answer(_: Msg) -> None:  # a refusal counts here too, but then the message is missing in the stream
        nonlocal answered
        answered += 1
        if answered >= wanted:
            enough.set()

    async def wait_for(count: int) -> None:
        nonlocal wanted
        wanted = count
        if answered < wanted:
            enough.clear()
            await asyncio.wait_for(enough.wait(), PATIENCE_S)

    # No limit here: an answer that waits in the client must not be dropped.
    await client.subscribe(ANSWERS, cb=on_answer, pending_msgs_limit=-1, pending_bytes_limit=-1)
    for burst in bursts(seconds):
        for _ in burst:
            await client.publish(SUBJECT, payload, reply=ANSWERS)
        messages += len(burst)
        await wait_for(messages - MOST_IN_FLIGHT)
    await wait_for(messages)
    return messages
