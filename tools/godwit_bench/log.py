"""One publisher, one broker with a log on disk: how many messages a second are confirmed.

Every system is measured in the same way: the publisher publishes for a while as fast as its library lets it, then waits
for the confirms that are still due. What counts is the time from its first message to its last confirm; and the log
must hold as many messages as were confirmed.

Godwit with its log on disk as a system under test: the broker as `godwit broker` runs it, and its client.

JetStream as a system under test: nats-server with its file store, and nats-py on uvloop.

Its defaults are left alone: one replica, the file store syncs every two minutes. So a confirm means less than
Godwit's: what was confirmed in the last two minutes is lost when the power is. Two publishers are measured: nats-py's
own way for many confirmed messages in flight, and a quicker one past it that only counts the answers.

The log without a network before it: its writer thread, fed with batches that are ready, and nothing else.

It tells what of `godwit_8k` is the log's and what is the publisher's, the transport's and the broker's share.

The disk without anything: a file that grows piece by piece, each piece synced before the next is written.

A piece is what a log would write that syncs about as often as this: 64 KiB. No log that promises the same for each such
piece can be quicker; one that waits for more to come together can.

`godwit bench log`: confirmed publishes against JetStream, and bytes a second against the bare disk, in one run.

Publishers and broker, a process each, and the broker's log on the disk of one folder. With 100-byte messages
Godwit (QoS 1, confirmed after fdatasync) stands beside JetStream (file store, confirmed before it); with 8 KiB messages
beside a bare file that is synced every 64 KiB, and so does the log without a network. Rounds are interleaved; ratios
are taken round by round.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from godwit.broker.effects import Append, Committed, Failed
from godwit.broker.settings import Settings
from godwit.errors import BufferFullError, GodwitError
from godwit.limits import CHANNEL_WINDOW_BYTES, MAX_DATAGRAM_BYTES
from godwit.net.connect import connect
from godwit.net.log_writer import Answer, Job, LogWriter
from godwit.net.loop import collect_garbage_rarely, switch_threads_quickly
from godwit.net.loop import run as run_loop
from godwit.net.publishing import AsyncPublisher
from godwit.net.serve import Service
from godwit.server.configuration import Configuration
from godwit.server.log_sections import ArchiveSection
from godwit.store.sqlite import SqliteStore
from godwit.transport.config import EndpointConfig
from godwit.wire.batch import QOS_SHIFT
from godwit.wire.entry import Entry
from godwit_bench import peers
from godwit_bench.pairs import bursts
from godwit_bench.report import Ratio, Report, Result, interleaved, machine, median_ratio
from godwit_bench.stage import GIVE_UP_S, HOST, Stage, free_port, hear, wait_for_listener

TOPIC: Final = "bench/log"
LOG_FOLDER: Final = "data"
"""In the stage's folder: where a system keeps its log."""


class Logger(msgspec.Struct, frozen=True):
    """A system under test."""

    broker: Callable[[Stage], str]
    """Starts it, with its log in LOG_FOLDER of the stage's folder, and gives its address once it is reachable."""
    publish: Callable[[Pipe, str, float, int], None]
    """Publishes messages of so many bytes for so many seconds, says Outcome; in a process of its own."""


class Outcome(msgspec.Struct, frozen=True):
    """What a publisher says when all it has published is confirmed."""

    confirmed: int
    logged: int
    """What the broker's log has of it."""
    elapsed_s: float


def measure(logger: Logger, folder: Path, seconds: float, message_bytes: int) -> float:
    """Confirmed messages a second, on the disk of this folder."""
    with Stage(within=folder) as stage:
        address = logger.broker(stage)
        publisher = stage.start(logger.publish, address, seconds, message_bytes)
        outcome = hear(publisher, Outcome, within_s=GIVE_UP_S + seconds)
    if outcome.logged != outcome.confirmed:
        raise GodwitError(f"{outcome.confirmed} messages were confirmed, and {outcome.logged} are in the log")
    return outcome.confirmed / outcome.elapsed_s


def godwit_logger(publishers: int = 1, max_datagram_bytes: int = MAX_DATAGRAM_BYTES) -> Logger:
    """QoS 1; a confirm means that the disk has it. All publishers are in one process, a connection each."""
    return Logger(partial(_broker, max_datagram_bytes), partial(_godwit_publish, publishers, max_datagram_bytes))


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


def _godwit_publish(
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
    run_loop(_jetstream_publish(pipe, address, _with_futures, seconds, message_bytes))


def _publish_and_count(pipe: Pipe, address: str, seconds: float, message_bytes: int) -> None:
    run_loop(_jetstream_publish(pipe, address, _counted, seconds, message_bytes))


async def _jetstream_publish(
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


BATCH_BYTES: Final = 60_000
"""About what one train carries, as from a publisher."""
_LOG_ID_BYTES: Final = 16
_QOS_1: Final = 1 << QOS_SHIFT


def write_and_commit(folder: Path, seconds: float, message_bytes: int) -> float:
    """Bytes of payload a second that are committed on the disk of this folder.

    As much waits to be committed as the broker would take of one publisher.
    """
    count = BATCH_BYTES // message_bytes
    rest = struct.pack(f">{count + 1}I", count, *[message_bytes] * count) + os.urandom(count * message_bytes)
    room = threading.Semaphore(CHANNEL_WINDOW_BYTES // len(rest))
    problems: list[str] = []

    def on_answers(answers: list[Answer]) -> None:
        problems.extend(answer.text for answer in answers if isinstance(answer, Failed))
        room.release(sum(isinstance(answer, Committed | Failed) for answer in answers))

    with tempfile.TemporaryDirectory(prefix="godwit-bench-", dir=folder) as data:
        log_id = os.urandom(_LOG_ID_BYTES)
        store = SqliteStore.open(Path(data) / "log.sqlite", new_log_id=log_id, now_us=time.time_ns() // 1000)
        writer = LogWriter(store, on_answers)
        writer.start()
        appends = 0
        began = time.perf_counter()
        while time.perf_counter() < began + seconds and not problems:
            now_us = time.time_ns() // 1000
            entry = Entry("bench/log", "publisher", _QOS_1, now_us, now_us, None, 0, count, rest)
            room.acquire()
            writer.append(Job(Append([entry], []), len(rest), 0))
            appends += 1
        for _ in range(CHANNEL_WINDOW_BYTES // len(rest)):  # when all its room is free again, all is committed
            room.acquire()
        elapsed_s = time.perf_counter() - began
        writer.end()
        writer.join()
    if problems:
        raise GodwitError(f"the log could not be written: {problems[0]}")
    return appends * count * message_bytes / elapsed_s


SYNC_BYTES: Final = 64 * 1024


def append_and_sync(folder: Path, seconds: float) -> float:
    """Bytes a second on the disk of this folder."""
    piece = os.urandom(SYNC_BYTES)
    written = 0
    with tempfile.NamedTemporaryFile(dir=folder, prefix="godwit-bench-", buffering=0) as file:
        began = now = time.perf_counter()
        while now < began + seconds:
            file.write(piece)
            _sync(file.fileno())
            written += SYNC_BYTES
            now = time.perf_counter()
    return written / (now - began)


_sync = getattr(os, "fdatasync", os.fsync)  # macOS and Windows have no fdatasync


SMALL_BYTES: Final = 100
LARGE_BYTES: Final = 8 * 1024
LARGE_PUBLISHERS: Final = 4
"""So many send the large ones, side by side: the disk is to be busy while one of them waits for a confirm."""
LARGE_DATAGRAM_BYTES: Final = 16_000
"""Of the large ones: a loopback takes far more than the 1472 bytes of an Ethernet, and its figure stands beside."""
MEGABYTE: Final = 1_000_000

OURS: Final = "godwit"
JETSTREAM: Final = "jetstream"
COUNTED: Final = "jetstream_counted"
OURS_LARGE: Final = "godwit_8k"
OURS_ETHERNET: Final = "godwit_8k_ethernet"
ALONE_LARGE: Final = "log_alone_8k"
RAW_DISK: Final = "raw_disk"


def run(
    *,
    folder: Path,
    rounds: int,
    seconds: float,
    on_round: Callable[[str], None],
    on_install: Callable[[str], None],
) -> Report:
    """Measures all, interleaved, and takes the medians. GodwitError if a peer is missing."""
    program = peers.require(on_install, programs=("nats-server",), modules=("nats",))["nats-server"]

    def confirmed_per_s(logger: Logger) -> Callable[[], float]:
        return lambda: measure(logger, folder, seconds, SMALL_BYTES)

    def large_mb_per_s(max_datagram_bytes: int) -> float:
        logger = godwit_logger(LARGE_PUBLISHERS, max_datagram_bytes)
        return measure(logger, folder, seconds, LARGE_BYTES) * LARGE_BYTES / MEGABYTE

    figures = interleaved(
        {
            OURS: confirmed_per_s(godwit_logger()),
            JETSTREAM: confirmed_per_s(jetstream(program)),
            COUNTED: confirmed_per_s(jetstream_counted(program)),
            OURS_LARGE: partial(large_mb_per_s, LARGE_DATAGRAM_BYTES),
            OURS_ETHERNET: partial(large_mb_per_s, MAX_DATAGRAM_BYTES),
            ALONE_LARGE: lambda: write_and_commit(folder, seconds, LARGE_BYTES) / MEGABYTE,
            RAW_DISK: lambda: append_and_sync(folder, seconds) / MEGABYTE,
        },
        rounds,
        on_round,
    )
    units = {
        OURS_LARGE: f"MB/s of payload, {LARGE_BYTES} B messages in datagrams of {LARGE_DATAGRAM_BYTES} B",
        OURS_ETHERNET: f"MB/s of payload, the same in datagrams of {MAX_DATAGRAM_BYTES} B",
        ALONE_LARGE: f"MB/s of payload, {LARGE_BYTES} B messages",
        RAW_DISK: f"MB/s, fdatasync after each {SYNC_BYTES} B",
    }
    confirmed = f"confirmed messages/s of {SMALL_BYTES} B"
    results = [Result(name, statistics.median(values), units.get(name, confirmed)) for name, values in figures.items()]
    ratios = [
        Ratio(
            "vs_jetstream", median_ratio(figures[OURS], figures[JETSTREAM]), "JetStream with nats-py's publish_async"
        ),
        Ratio("vs_jetstream_counted", median_ratio(figures[OURS], figures[COUNTED]), "JetStream, answers counted only"),
        Ratio("vs_raw_disk", median_ratio(figures[OURS_LARGE], figures[RAW_DISK]), "append and fdatasync of 64 KiB"),
        Ratio("ethernet_vs_raw_disk", median_ratio(figures[OURS_ETHERNET], figures[RAW_DISK]), "the same"),
        Ratio("log_alone_vs_raw_disk", median_ratio(figures[ALONE_LARGE], figures[RAW_DISK]), "the same"),
    ]
    return Report("log", machine(), results, ratios)
