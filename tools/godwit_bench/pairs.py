"""One publisher, one broker, one subscriber, a process each: the messages per second from end to end.

Every system is measured in the same way: the publisher publishes for a while as fast as its library allows, and then
waits; the subscriber counts the messages that its library delivers, until all have arrived. The time runs from the
first to the last at the subscriber. The systems: Godwit (its broker in memory, and its client for asyncio), NATS
(nats-server, and nats-py on uvloop), Zenoh (its router over TCP, and its client for Python, both with their core in
Rust).
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection as Pipe
from typing import TYPE_CHECKING, Any, Final

import msgspec

from godwit.broker.settings import Settings
from godwit.errors import BufferFullError, GodwitError
from godwit.net.client import connect
from godwit.net.loop import collect_garbage_rarely
from godwit.net.loop import run as run_loop
from godwit.net.service import Service
from godwit.server.configuration import Configuration
from godwit_bench import small_senders
from godwit_bench.processes import GIVE_UP_S, HOST, READY, ProcessGroup, free_port, receive_reply, wait_for_listener
from godwit_bench.small_senders import FILTER, report_arrived

if TYPE_CHECKING:
    import zenoh

MESSAGE_BYTES: Final = 100
DATAGRAM_BYTES: Final = 1400
TOPIC: Final = "bench/topic"
LOOK_S: Final = 0.002
"""How often a subscriber checks its count: a check per message would cost as much as the message."""
PATIENCE_S: Final = 3.0
"""The time without a message after which no more are expected."""
BURST: Final = 100
"""The messages published between two checks of the clock."""


class Pair(msgspec.Struct, frozen=True):
    """A system under test."""

    broker: Callable[[ProcessGroup], str]
    """Start it; return its address once it is reachable."""
    publish: Callable[[Pipe, str, float], None]
    """Publish for this number of seconds, then send the number of messages; runs in a process of its own."""
    subscribe: Callable[[Pipe, str], None]
    """Send READY, receive the number of messages, send the count that arrived; runs in a process of its own."""
    may_lose: bool = False
    """It guarantees at most once. Lost messages are not counted, and are not a failure."""


def measure(pair: Pair, seconds: float) -> float:
    """Return the messages per second."""
    with ProcessGroup() as processes:
        address = pair.broker(processes)
        subscriber = processes.start(pair.subscribe, address)
        receive_reply(subscriber, str)
        published = receive_reply(processes.start(pair.publish, address, seconds), int)
        subscriber.send(published)
        arrived, elapsed_s = receive_reply(subscriber, tuple)
    if arrived != published and not (pair.may_lose and arrived):
        raise GodwitError(f"{published} messages were published, and {arrived} arrived")
    return float(arrived / elapsed_s)


# -- for the publishers -----------------------------------------------------------------------------------------------


def bursts(seconds: float, most: float = float("inf")) -> Iterator[range]:
    """Yield ranges, with a message to publish for each number, until the time is up."""
    sent = 0
    ends = time.perf_counter() + seconds
    while sent < most and time.perf_counter() < ends:
        yield range(BURST)
        sent += BURST


def report_and_wait(pipe: Pipe, messages: int) -> None:
    """Send the number of messages and stay: the last ones might be lost with the client."""
    pipe.send(messages)
    pipe.poll(GIVE_UP_S)


# -- for the subscribers ----------------------------------------------------------------------------------------------


def counted(pipe: Pipe, count: Callable[[], int], patience_s: float = PATIENCE_S) -> Iterator[float]:
    """Yield the pause before the next call; at the end, send how many messages arrived in which time."""
    pipe.send(READY)
    arrived = 0
    began = ended = heard_at = now = time.perf_counter()
    expected: int | None = None
    while expected is None or (arrived < expected and now < heard_at + patience_s):
        yield LOOK_S
        now = time.perf_counter()
        latest = count()
        if latest != arrived:
            arrived = latest
            ended = heard_at = now
        elif not arrived:
            began = now
        if expected is None and pipe.poll():
            expected = pipe.recv()
            heard_at = now
    pipe.send((arrived, ended - began))


async def count_in_loop(pipe: Pipe, count: Callable[[], int]) -> None:
    for pause_s in counted(pipe, count):
        await asyncio.sleep(pause_s)


def count_in_thread(pipe: Pipe, count: Callable[[], int]) -> None:
    """Count for a library that calls back from its own threads."""
    for pause_s in counted(pipe, count):
        time.sleep(pause_s)


# -- Godwit -----------------------------------------------------------------------------------------------------------


def godwit_pair() -> Pair:
    """Return Godwit with one publisher, one subscriber, QoS 1."""
    return pair_with(lambda processes: f"{HOST}:{_godwit_broker(processes)}")


def pair_with(broker: Callable[[ProcessGroup], str]) -> Pair:
    """Return the same publisher and subscriber, with another Godwit broker."""
    return Pair(broker, _godwit_publish, _godwit_subscribe)


def sealed_pair() -> Pair:
    """Return Godwit with one publisher, one subscriber, QoS 1, on sealed connections."""
    return pair_with(lambda processes: receive_reply(processes.start(_serve_sealed), str))


def godwit_system() -> small_senders.System:
    """Return Godwit with many small senders, QoS 1."""
    return small_senders.System(_godwit_broker, _take_all, small_senders.connect)


def sealed_system() -> small_senders.System:
    """Return Godwit with many small senders, QoS 1, on sealed connections; its subscriber's is plain."""
    return small_senders.System(_godwit_broker, _take_all, small_senders.connect_sealed)


def _godwit_broker(processes: ProcessGroup) -> int:
    return receive_reply(processes.start(_serve), int)


def _serve(pipe: Pipe) -> None:
    run_loop(_serve_forever(pipe))


def _serve_sealed(pipe: Pipe) -> None:
    run_loop(_serve_forever(pipe, is_sealed=True))


async def _serve_forever(pipe: Pipe, *, is_sealed: bool = False) -> None:
    """Run the broker with datagrams of Ethernet size: both sides use the smaller size that one of them offers."""
    collect_garbage_rarely()  # as `godwit broker` does
    settings = Settings(max_datagram_bytes=DATAGRAM_BYTES)
    async with Service(Configuration(listen=[f"{HOST}:0"], settings=settings)) as service:
        port = service.addresses[0][1]
        pipe.send(f"udps://{HOST}:{port}#{service.security.sealer().identity.fingerprint}" if is_sealed else port)
        await asyncio.Event().wait()


# -- Godwit: one publisher, one subscriber ----------------------------------------------------------------------------


def _godwit_subscribe(pipe: Pipe, address: str) -> None:
    run_loop(_godwit_count(pipe, address))


async def _godwit_count(pipe: Pipe, address: str) -> None:
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


def _godwit_publish(pipe: Pipe, address: str, seconds: float) -> None:
    run_loop(_godwit_publish_all(pipe, address, seconds))


async def _godwit_publish_all(pipe: Pipe, address: str, seconds: float) -> None:
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
        report_and_wait(pipe, messages)


# -- Godwit: many small senders ---------------------------------------------------------------------------------------


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
        for pause_s in report_arrived(pipe, lambda: arrived):
            await asyncio.sleep(pause_s)
        taking.cancel()


# -- NATS -------------------------------------------------------------------------------------------------------------

SUBJECT: Final = TOPIC.replace("/", ".")
MOST_MESSAGES: Final = 300_000
"""The server drops a subscriber with 64 MB waiting, and publishers do not wait for subscribers."""


def nats_pair(program: str) -> Pair:
    """Return the nats-server at this path."""

    def broker(processes: ProcessGroup) -> str:
        port = free_port()
        log = processes.run(program, "--addr", HOST, "--port", str(port))
        wait_for_listener(port, log)
        return f"nats://{HOST}:{port}"

    return Pair(broker, _nats_publish, _nats_subscribe, may_lose=True)


def _nats_subscribe(pipe: Pipe, address: str) -> None:
    run_loop(_nats_count(pipe, address))


async def _nats_count(pipe: Pipe, address: str) -> None:
    import nats
    from nats.aio.msg import Msg

    count = 0

    async def on_message(_: Msg) -> None:
        nonlocal count
        count += 1

    client = await nats.connect(address)
    # No limit here: messages that wait in the client must not be dropped.
    await client.subscribe(SUBJECT, cb=on_message, pending_msgs_limit=-1, pending_bytes_limit=-1)
    await client.flush()
    await count_in_loop(pipe, lambda: count)


def _nats_publish(pipe: Pipe, address: str, seconds: float) -> None:
    run_loop(_nats_publish_all(pipe, address, seconds))


async def _nats_publish_all(pipe: Pipe, address: str, seconds: float) -> None:
    import nats

    client = await nats.connect(address)
    payload = bytes(MESSAGE_BYTES)
    messages = 0
    for burst in bursts(seconds, MOST_MESSAGES):
        for _ in burst:
            await client.publish(SUBJECT, payload)
        messages += len(burst)
    await client.flush()
    report_and_wait(pipe, messages)


# -- Zenoh ------------------------------------------------------------------------------------------------------------


def zenoh_pair() -> Pair:
    return Pair(_zenoh_broker, _zenoh_publish, _zenoh_subscribe, may_lose=True)


def _zenoh_broker(processes: ProcessGroup) -> str:
    address = f"tcp/{HOST}:{free_port()}"
    receive_reply(processes.start(_route, address), str)
    return address


def _route(pipe: Pipe, address: str) -> None:
    """Run the router of Zenoh's Python package: no Python code runs in it while it forwards."""
    import zenoh

    with zenoh.open(zenoh_config("router", "listen", address)):
        pipe.send(READY)
        threading.Event().wait()


def _zenoh_subscribe(pipe: Pipe, address: str) -> None:
    import zenoh

    count = 0

    def on_sample(_: zenoh.Sample) -> None:
        nonlocal count
        count += 1

    with zenoh.open(zenoh_config("client", "connect", address)) as session:
        session.declare_subscriber(TOPIC, on_sample)
        count_in_thread(pipe, lambda: count)


def _zenoh_publish(pipe: Pipe, address: str, seconds: float) -> None:
    import zenoh

    payload = bytes(MESSAGE_BYTES)
    messages = 0
    with zenoh.open(zenoh_config("client", "connect", address)) as session:
        # It waits where it would lose messages otherwise.
        publisher = session.declare_publisher(TOPIC, congestion_control=zenoh.CongestionControl.BLOCK)
        while not _is_wanted(publisher):
            time.sleep(0.001)
        for burst in bursts(seconds):
            for _ in burst:
                publisher.put(payload)
            messages += len(burst)
        report_and_wait(pipe, messages)


def _is_wanted(publisher: zenoh.Publisher) -> bool:
    """Return whether the publisher knows of the subscriber; it publishes nothing before that."""
    status: Any = publisher.matching_status  # not a bool as annotated
    return bool(status.matching)


def zenoh_config(mode: str, side: str, address: str) -> zenoh.Config:
    import zenoh

    config = zenoh.Config()
    config.insert_json5("mode", json.dumps(mode))
    config.insert_json5(f"{side}/endpoints", json.dumps([address]))
    config.insert_json5("scouting/multicast/enabled", "false")
    return config
