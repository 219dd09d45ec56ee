"""`godwit bench log`: confirmed publishes against JetStream, and bytes per second against the bare disk, in one run.

Publishers and broker are a process each, and the broker's log is on the disk of one folder. Every system is measured in
the same way: the publisher publishes for a while as fast as its library allows, then waits for the outstanding
confirms. The time runs from the first message to the last confirm, and the log must have as many messages as were
confirmed. Rounds are interleaved; ratios are computed per round.

With 100-byte messages Godwit (QoS 1, confirmed after fdatasync) is compared with JetStream (nats-server with its file
store and its defaults: one replica, a sync every two minutes). A confirm of JetStream guarantees less: a power cut
loses the messages confirmed in the last two minutes. Two publishers are measured: nats-py's own way for many confirmed
messages in flight, and a faster one that only counts the replies.

With 8 KiB messages Godwit is compared with a bare file that grows in pieces of 64 KiB, each synced before the next is
written, as a log does that syncs this often. No log with the same guarantee for each piece is faster; one that
collects more before a sync can. The log's writer thread alone, with prepared batches and no network, shows which share
of `godwit_8k` is the log's.
"""

from __future__ import annotations

import asyncio
import os
import statistics
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
from godwit.net.client import connect
from godwit.net.log_writer import Answer, LogWriter, PendingAppend
from godwit.net.loop import collect_garbage_rarely, switch_threads_quickly
from godwit.net.loop import run as run_loop
from godwit.net.publisher import AsyncPublisher
from godwit.net.service import Service
from godwit.server.configuration import ArchiveSection, Configuration
from godwit.store.sqlite import SqliteStore
from godwit.transport.config import EndpointConfig
from godwit.wire.batch import QOS_SHIFT, Entry, pack_rest
from godwit_bench import peers
from godwit_bench.pairs import bursts
from godwit_bench.processes import GIVE_UP_S, HOST, ProcessGroup, free_port, receive_reply, wait_for_listener
from godwit_bench.report import Ratio, Report, Result, interleaved, machine, median_ratio

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

TOPIC: Final = "bench/log"
LOG_FOLDER: Final = "data"
"""The folder for the log of a system, in the folder of the process group."""


class LogSystem(msgspec.Struct, frozen=True):
    """A system under test."""

    broker: Callable[[ProcessGroup], str]
    """Start it, with its log in LOG_FOLDER; return its address once it is reachable."""
    publish: Callable[[Pipe, str, float, int], None]
    """Publish messages of this size for this number of seconds, then send Outcome; runs in a process of its own."""


class Outcome(msgspec.Struct, frozen=True):
    """The reply of a publisher when all its messages are confirmed."""

    confirmed: int
    logged: int
    """The number of its messages in the broker's log."""
    elapsed_s: float


def measure(system: LogSystem, folder: Path, seconds: float, message_bytes: int) -> float:
    """Return the confirmed messages per second, on the disk of this folder."""
    with ProcessGroup(within=folder) as processes:
        address = system.broker(processes)
        publisher = processes.start(system.publish, address, seconds, message_bytes)
        outcome = receive_reply(publisher, Outcome, within_s=GIVE_UP_S + seconds)
    if outcome.logged != outcome.confirmed:
        raise GodwitError(f"{outcome.confirmed} messages were confirmed, and {outcome.logged} are in the log")
    return outcome.confirmed / outcome.elapsed_s


# -- Godwit -----------------------------------------------------------------------------------------------------------


def godwit_logger(publishers: int = 1, max_datagram_bytes: int = MAX_DATAGRAM_BYTES) -> LogSystem:
    """Return Godwit with QoS 1, confirmed when on disk. All publishers are in one process, a connection each."""
    return LogSystem(partial(_broker, max_datagram_bytes), partial(_godwit_publish, publishers, max_datagram_bytes))


def _broker(max_datagram_bytes: int, processes: ProcessGroup) -> str:
    address, _ = durable_broker(processes, processes.folder / LOG_FOLDER, max_datagram_bytes=max_datagram_bytes)
    return address


def durable_broker(
    processes: ProcessGroup, data: Path, *, with_archive: bool = False, max_datagram_bytes: int = MAX_DATAGRAM_BYTES
) -> tuple[str, str]:
    """Start a broker on this folder; return its URL and that of its archive, which is empty without one."""
    listening, archive = receive_reply(processes.start(_serve, str(data), with_archive, max_datagram_bytes), tuple)
    return listening, archive


def _serve(pipe: Pipe, data: str, with_archive: bool, max_datagram_bytes: int) -> None:
    run_loop(_serve_forever(pipe, data, with_archive, max_datagram_bytes))


async def _serve_forever(pipe: Pipe, data: str, with_archive: bool, max_datagram_bytes: int) -> None:
    collect_garbage_rarely()  # both as `godwit broker` does
    switch_threads_quickly()
    configuration = Configuration(
        listen=[f"{HOST}:0"],
        settings=Settings(max_datagram_bytes=max_datagram_bytes),
        data=Path(data),
        archive=ArchiveSection(is_on=with_archive, listen=f"{HOST}:0"),
    )
    urls = _Urls({"archive", "listening"} if with_archive else {"listening"})
    async with Service(configuration, notices=urls):
        await urls.are_complete.wait()
        pipe.send((urls.listening, urls.archive))
        await asyncio.Event().wait()


class _Urls:
    """Collect the addresses of the broker and its archive, in whichever order they come."""

    def __init__(self, awaited: set[str]) -> None:
        self._awaited = awaited
        self.listening = ""
        self.archive = ""
        self.are_complete = asyncio.Event()

    def write(self, kind: str, text: str, fields: dict[str, Any]) -> None:
        if kind == "archive":
            self.archive = fields["url"]
        elif kind == "listening":
            self.listening = fields["url"]
        self._awaited.discard(kind)
        if not self._awaited:
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
        counts = await asyncio.gather(
            *[_publish_for(client.publisher(TOPIC, qos=1), seconds, payload) for client in clients]
        )
        elapsed_s = time.perf_counter() - began
        (topic,) = await clients[0].topics(TOPIC)
    pipe.send(Outcome(sum(counts), topic.messages, elapsed_s))


async def _publish_for(publisher: AsyncPublisher, seconds: float, payload: bytes) -> int:
    """Publish for this time; return the number of messages, all confirmed."""
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


# -- JetStream --------------------------------------------------------------------------------------------------------

STREAM: Final = "bench"
SUBJECT: Final = TOPIC.replace("/", ".")
ANSWERS: Final = "_INBOX.bench"
MOST_IN_FLIGHT: Final = 4000
"""The default limit of nats-py."""
PATIENCE_S: Final = 30.0


def jetstream(program: str) -> LogSystem:
    """Return the nats-server at this path with `publish_async`: a future for each message."""
    return _logger(program, _publish_with_futures)


def jetstream_counted(program: str) -> LogSystem:
    """Return the same server with replies that are counted, but neither matched with their messages nor decoded."""
    return _logger(program, _publish_and_count)


def _logger(program: str, publish: Callable[[Pipe, str, float, int], None]) -> LogSystem:
    def broker(processes: ProcessGroup) -> str:
        port = free_port()
        store = str(processes.folder / LOG_FOLDER)
        log = processes.run(program, "--addr", HOST, "--port", str(port), "--jetstream", "--store_dir", store)
        wait_for_listener(port, log)
        return f"nats://{HOST}:{port}"

    return LogSystem(broker, publish)


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
    """Publish as the documentation shows. An error reply remains in its future, and is missing in the stream."""
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

    # No limit here: a reply that waits in the client must not be dropped.
    await client.subscribe(ANSWERS, cb=on_answer, pending_msgs_limit=-1, pending_bytes_limit=-1)
    for burst in bursts(seconds):
        for _ in burst:
            await client.publish(SUBJECT, payload, reply=ANSWERS)
        messages += len(burst)
        await wait_for(messages - MOST_IN_FLIGHT)
    await wait_for(messages)
    return messages


# -- the log alone ----------------------------------------------------------------------------------------------------

BATCH_BYTES: Final = 60_000
"""About the content of one train, as from a publisher."""
_LOG_ID_BYTES: Final = 16
_QOS_1: Final = 1 << QOS_SHIFT


def write_and_commit(folder: Path, seconds: float, message_bytes: int) -> float:
    """Return the bytes of payload per second that are committed on the disk of this folder.

    As much waits to be committed as the broker would accept from one publisher.
    """
    count = BATCH_BYTES // message_bytes
    shape, body = pack_rest([os.urandom(message_bytes) for _ in range(count)])
    room = threading.Semaphore(CHANNEL_WINDOW_BYTES // len(body))
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
            entry = Entry(
                topic="bench/log",
                publisher="publisher",
                flags=shape | _QOS_1,
                published_us=now_us,
                received_us=now_us,
                count=count,
                rest=body,
            )
            room.acquire()
            writer.append(PendingAppend(Append([entry], []), len(body), 0))
            appends += 1
        for _ in range(CHANNEL_WINDOW_BYTES // len(body)):  # when all its room is free again, all is committed
            room.acquire()
        elapsed_s = time.perf_counter() - began
        writer.end()
        writer.join()
    if problems:
        raise GodwitError(f"the log could not be written: {problems[0]}")
    return appends * count * message_bytes / elapsed_s


# -- the bare disk ----------------------------------------------------------------------------------------------------

SYNC_BYTES: Final = 64 * 1024


def append_and_sync(folder: Path, seconds: float) -> float:
    """Return the bytes per second on the disk of this folder."""
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


# -- the benchmark ----------------------------------------------------------------------------------------------------

SMALL_BYTES: Final = 100
LARGE_BYTES: Final = 8 * 1024
LARGE_PUBLISHERS: Final = 4
"""Publishers of large messages: the disk must be busy while one of them waits for a confirm."""
LARGE_DATAGRAM_BYTES: Final = 16_000
"""For the large messages: a loopback carries far more than the 1472 bytes of an Ethernet, which is measured too."""
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
    """Measure everything, interleaved, and return the medians. Raises GodwitError if a peer is missing."""
    program = peers.require(on_install, programs=("nats-server",), modules=("nats",))["nats-server"]

    def confirmed_per_s(system: LogSystem) -> Callable[[], float]:
        return lambda: measure(system, folder, seconds, SMALL_BYTES)

    def large_mb_per_s(max_datagram_bytes: int) -> float:
        system = godwit_logger(LARGE_PUBLISHERS, max_datagram_bytes)
        return measure(system, folder, seconds, LARGE_BYTES) * LARGE_BYTES / MEGABYTE

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
