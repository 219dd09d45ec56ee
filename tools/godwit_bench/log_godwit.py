"""Godwit with its log on disk as a system under test: the broker as `godwit broker` runs it, and its client."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from godwit.broker.settings import Settings
from godwit.errors import BufferFullError
from godwit.limits import MAX_DATAGRAM_BYTES
from godwit.net.client import connect
from godwit.net.loop import collect_garbage_rarely, switch_threads_quickly
from godwit.net.loop import run as run_loop
from godwit.net.publisher import AsyncPublisher
from godwit.net.service import Service
from godwit.server.configuration import ArchiveSection, Configuration
from godwit.transport.config import EndpointConfig
from godwit_bench.forward_pair import bursts
from godwit_bench.log_publishing import LOG_FOLDER, TOPIC, Logger, Outcome
from godwit_bench.stage import HOST, Stage, hear


def godwit_logger(publishers: int = 1, max_datagram_bytes: int = MAX_DATAGRAM_BYTES) -> Logger:
    """QoS 1; a confirm means that the disk has it. All publishers are in one process, a connection each."""
    return Logger(partial(_broker, max_datagram_bytes), partial(_publish, publishers, max_datagram_bytes))


def _broker(max_datagram_bytes: int, stage: Stage) -> str:
    address, _ = durable_broker(stage, stage.folder / LOG_FOLDER, max_datagram_bytes=max_datagram_bytes)
    return address


def durable_broker(
    stage: Stage, data: Path, *, with_archive: bool = False, max_datagram_bytes: int = MAX_DATAGRAM_BYTES
) -> tuple[str, str]:
    """Starts one on this folder; gives its URL and its archive's, which is empty without one."""
    listening, archive = hear(stage.start(_serve, str(data), with_archive, max_datagram_bytes), tuple)
    return listening, archive


def _serve(pipe: Pipe, data: str, with_archive: bool, max_datagram_bytes: int) -> None:
    run_loop(_serve_for_ever(pipe, data, with_archive, max_datagram_bytes))


async def _serve_for_ever(pipe: Pipe, data: str, with_archive: bool, max_datagram_bytes: int) -> None:
    collect_garbage_rarely()  # both as `godwit broker` does
    switch_threads_quickly()
    configuration = Configuration(
        listen=[f"{HOST}:0"],
        settings=Settings(max_datagram_bytes=max_datagram_bytes),
        data=Path(data),
        archive=ArchiveSection(is_on=with_archive, listen=f"{HOST}:0"),
    )
    urls = _Urls()
    async with Service(configuration, notices=urls):
        await urls.are_complete.wait()
        pipe.send((urls.listening, urls.archive))
        await asyncio.Event().wait()


class _Urls:
    """Hears where the broker and its archive are to be found; the broker says its own last."""

    def __init__(self) -> None:
        self.listening = ""
        self.archive = ""
        self.are_complete = asyncio.Event()

    def write(self, kind: str, text: str, fields: dict[str, Any]) -> None:
        if kind == "archive":
            self.archive = fields["url"]
        elif kind == "listening":
            self.listening = fields["url"]
            self.are_complete.set()


def _publish(
    publishers: int, max_datagram_bytes: int, pipe: Pipe, address: str, seconds: float, message_bytes: int
) -> None:
    endpoint = EndpointConfig(max_datagram_bytes=max_datagram_bytes)
    run_loop(_publish_all(publishers, endpoint, pipe, address, seconds, bytes(message_bytes)))


async def _publish_all(
    publishers: int, endpoint: EndpointConfig, pipe: Pipe, address: str, seconds: float, payload: bytes
) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(address, endpoint=endpoint)) for _ in range(publishers)]
        began = time.perf_counter()
        counts = await asyncio.gather(*[_pour(client.publisher(TOPIC, qos=1), seconds, payload) for client in clients])
        elapsed_s = time.perf_counter() - began
        (topic,) = await clients[0].topics(TOPIC)
    pipe.send(Outcome(sum(counts), topic.messages, elapsed_s))


async def _pour(publisher: AsyncPublisher, seconds: float, payload: bytes) -> int:
    """Gives how many it was; all of them are confirmed."""
    messages = 0
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
    return messages
