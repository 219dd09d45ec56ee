"""NATS as a system under test: nats-server, and nats-py on uvloop."""

from __future__ import annotations

from multiprocessing.connection import Connection as Pipe
from typing import Final

from godwit.net.loop import run as run_loop
from godwit_bench.forward_pair import MESSAGE_BYTES, TOPIC, Pair, bursts, count_in_loop, rest
from godwit_bench.stage import HOST, Stage, free_port, wait_for_listener

SUBJECT: Final = TOPIC.replace("/", ".")
MOST_MESSAGES: Final = 300_000
"""The server drops a subscriber for which 64 MB wait, and publishers do not wait for subscribers."""


def nats_pair(program: str) -> Pair:
    """With the nats-server at this path."""

    def broker(stage: Stage) -> str:
        port = free_port()
        log = stage.run(program, "--addr", HOST, "--port", str(port))
        wait_for_listener(port, log)
        return f"nats://{HOST}:{port}"

    return Pair(broker, _publish, _subscribe, may_lose=True)


def _subscribe(pipe: Pipe, address: str) -> None:
    run_loop(_count(pipe, address))


async def _count(pipe: Pipe, address: str) -> None:
    import nats
    from nats.aio.msg import Msg

    count = 0

    async def on_message(_: Msg) -> None:
        nonlocal count
        count += 1

    client = await nats.connect(address)
    # No limit here: what waits in the client must not be dropped.
    await client.subscribe(SUBJECT, cb=on_message, pending_msgs_limit=-1, pending_bytes_limit=-1)
    await client.flush()
    await count_in_loop(pipe, lambda: count)


def _publish(pipe: Pipe, address: str, seconds: float) -> None:
    run_loop(_publish_all(pipe, address, seconds))


async def _publish_all(pipe: Pipe, address: str, seconds: float) -> None:
    import nats

    client = await nats.connect(address)
    payload = bytes(MESSAGE_BYTES)
    messages = 0
    for burst in bursts(seconds, MOST_MESSAGES):
        for _ in burst:
            await client.publish(SUBJECT, payload)
        messages += len(burst)
    await client.flush()
    rest(pipe, messages)
