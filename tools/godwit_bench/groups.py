"""`godwit bench groups`: messages of a consumer group against queue consumers of JetStream, in one run.

A number of messages is in the log, on disk. Then the members of a group, a process each, receive and acknowledge all of
them as fast as their libraries allow, message by message. The time runs from the start of the members to the last
message; each message must have been received once, and the group must have acknowledged all. Rounds are interleaved;
the ratio is computed per round.

JetStream (nats-server with its file store) has a durable consumer with explicit acknowledgement. It is measured in the
two ways that nats-py has: members that fetch batches (pull), and members of a queue group (push). The ratio is against
the faster one.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from godwit.errors import BufferFullError, GodwitError
from godwit.net.client import AsyncClient, connect
from godwit.net.loop import run as run_loop
from godwit_bench import peers
from godwit_bench.log import LOG_FOLDER, durable_broker
from godwit_bench.processes import GIVE_UP_S, HOST, READY, ProcessGroup, free_port, receive_reply, wait_for_listener
from godwit_bench.report import Ratio, Report, Result, interleaved, machine, median_ratio

if TYPE_CHECKING:
    from nats.js.client import JetStreamContext

TOPIC: Final = "bench/groups"
SUBJECT: Final = "bench.groups"
GROUP: Final = "bench"
MESSAGE_BYTES: Final = 100
MEMBERS: Final = 4
FETCHED: Final = 500
"""Messages that a member of JetStream fetches at once."""
MOST_UNACKNOWLEDGED: Final = 20_000
"""For all members of JetStream; its default is 1,000."""
PROGRESS_S: Final = 0.05
IDLE_S: Final = 0.5
"""How long a fetch of JetStream waits."""


class GroupSystem(msgspec.Struct, frozen=True):
    """A system under test."""

    broker: Callable[[ProcessGroup], str]
    """Start it; return its address."""
    fill: Callable[[str, int], Any]
    """Publish this number of messages; a coroutine function."""
    consume: Callable[[Pipe, str], None]
    """One member; runs in a process of its own. It sends READY, waits for any message, and sends Progress."""
    check: Callable[[str], Any]
    """Return how many messages are not acknowledged; a coroutine function."""


class Progress(msgspec.Struct, frozen=True):
    """The messages that a member has received so far, and when it received the last one."""

    messages: int
    at: float


def measure(system: GroupSystem, folder: Path, messages: int, members: int) -> float:
    """Return the messages per second that all members together receive and acknowledge."""
    with ProcessGroup(within=folder) as processes:
        address = system.broker(processes)
        run_loop(system.fill(address, messages))
        pipes = [processes.start(system.consume, address) for _ in range(members)]
        for pipe in pipes:
            receive_reply(pipe, str)
        began = time.perf_counter()
        for pipe in pipes:
            pipe.send(READY)
        progress = [Progress(0, began)] * members
        while sum(one.messages for one in progress) < messages:
            for index, pipe in enumerate(pipes):
                while pipe.poll(0):
                    progress[index] = receive_reply(pipe, Progress)
            if time.perf_counter() > began + GIVE_UP_S:
                raise GodwitError("the members of a group have not received all messages: run it again")
            time.sleep(PROGRESS_S / 2)
        received = sum(one.messages for one in progress)
        left = run_loop(_until_none(system.check, address))
        if received != messages or left:
            raise GodwitError(f"{received} of {messages} messages were received, and {left} are not acknowledged")
    return messages / (max(one.at for one in progress) - began)


async def _until_none(check: Callable[[str], Any], address: str) -> int:
    """Wait a few seconds until all is acknowledged; return the number of messages that are not."""
    for _ in range(50):
        left: int = await check(address)
        if not left:
            break
        await asyncio.sleep(0.1)
    return left


class _Counter:
    """Counts the messages of a member, and reports them from time to time."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._due = 0.0
        self.messages = 0

    async def report(self) -> None:
        """Report as long as messages come."""
        sent = 0
        while True:
            await asyncio.sleep(PROGRESS_S)
            if self.messages != sent:
                sent = self.messages
                self._pipe.send(Progress(sent, self._due))

    def add(self) -> None:
        self.messages += 1
        self._due = time.perf_counter()


async def _begin(pipe: Pipe) -> tuple[_Counter, asyncio.Task[None]]:
    """Report readiness, wait for the start, and return a counter."""
    pipe.send(READY)
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    counter = _Counter(pipe)
    return counter, asyncio.create_task(counter.report())


# -- Godwit -----------------------------------------------------------------------------------------------------------


def godwit_group() -> GroupSystem:
    """Return Godwit with messages of QoS 1."""
    return GroupSystem(_godwit_broker, _godwit_fill, _godwit_member, _godwit_left)


def _godwit_broker(processes: ProcessGroup) -> str:
    return durable_broker(processes, processes.folder / LOG_FOLDER)[0]


async def _godwit_fill(address: str, messages: int) -> None:
    async with connect(address) as client:
        # The group exists before its messages, so that the measurement begins with its first member.
        async with client.subscribe(TOPIC, group=GROUP):
            pass
        publisher = client.publisher(TOPIC)
        payload = bytes(MESSAGE_BYTES)
        for _ in range(messages):
            try:
                publisher.send(payload)
            except BufferFullError:
                await publisher.ready()
                publisher.send(payload)
        await publisher.flush()


def _godwit_member(pipe: Pipe, address: str) -> None:
    run_loop(_godwit_consume(pipe, address))


async def _godwit_consume(pipe: Pipe, address: str) -> None:
    async with connect(address) as client:
        counter, _report = await _begin(pipe)
        async with client.subscribe(TOPIC, group=GROUP) as messages:
            async for _ in messages:
                counter.add()


async def _godwit_left(address: str) -> int:
    async with connect(address) as client:
        return await _lag(client)


async def _lag(client: AsyncClient) -> int:
    return sum([group.lag for group in await client.groups() if group.name == GROUP])


# -- JetStream --------------------------------------------------------------------------------------------------------


def jetstream_pull(program: str) -> GroupSystem:
    """Return the nats-server at this path with members that fetch."""
    return GroupSystem(partial(_nats_broker, program), partial(_nats_fill, False), _nats_pull_member, _nats_left)


def jetstream_push(program: str) -> GroupSystem:
    """Return the same server with members of a queue group."""
    return GroupSystem(partial(_nats_broker, program), partial(_nats_fill, True), _nats_push_member, _nats_left)


def _nats_broker(program: str, processes: ProcessGroup) -> str:
    port = free_port()
    store = str(processes.folder / LOG_FOLDER)
    log = processes.run(program, "--addr", HOST, "--port", str(port), "--jetstream", "--store_dir", store)
    wait_for_listener(port, log)
    return f"nats://{HOST}:{port}"


async def _nats_fill(is_push: bool, address: str, messages: int) -> None:
    import nats
    from nats.js.api import AckPolicy, ConsumerConfig

    client = await nats.connect(address)
    context = client.jetstream(publish_async_max_pending=4000)
    await context.add_stream(name=GROUP, subjects=[SUBJECT])
    payload = bytes(MESSAGE_BYTES)
    for _ in range(messages):
        await context.publish_async(SUBJECT, payload)
    await asyncio.wait_for(context.publish_async_completed(), GIVE_UP_S)
    config = ConsumerConfig(
        durable_name=GROUP,
        ack_policy=AckPolicy.EXPLICIT,
        max_ack_pending=MOST_UNACKNOWLEDGED,
        deliver_subject="deliver.bench" if is_push else None,
        deliver_group=GROUP if is_push else None,
    )
    await context.add_consumer(GROUP, config)
    await client.close()


def _nats_pull_member(pipe: Pipe, address: str) -> None:
    run_loop(_nats_pull(pipe, address))


async def _nats_pull(pipe: Pipe, address: str) -> None:
    import nats
    from nats.errors import TimeoutError as NothingError

    client = await nats.connect(address)
    context: JetStreamContext = client.jetstream()
    counter, _report = await _begin(pipe)
    subscription = await context.pull_subscribe_bind(GROUP, GROUP)
    while True:
        try:
            found = await subscription.fetch(FETCHED, timeout=IDLE_S)
        except NothingError:
            continue
        for message in found:
            await message.ack()
            counter.add()


def _nats_push_member(pipe: Pipe, address: str) -> None:
    run_loop(_nats_push(pipe, address))


async def _nats_push(pipe: Pipe, address: str) -> None:
    import nats
    from nats.js.api import ConsumerConfig

    client = await nats.connect(address)
    context: JetStreamContext = client.jetstream()
    counter, _report = await _begin(pipe)

    async def handle(message: Any) -> None:
        await message.ack()
        counter.add()

    config = ConsumerConfig(deliver_subject="deliver.bench", deliver_group=GROUP, durable_name=GROUP)
    await context.subscribe_bind(
        GROUP, config, GROUP, cb=handle, manual_ack=True, pending_msgs_limit=-1, pending_bytes_limit=-1
    )
    await asyncio.Event().wait()


async def _nats_left(address: str) -> int:
    import nats

    client = await nats.connect(address)
    info = await client.jetstream().consumer_info(GROUP, GROUP)
    await client.close()
    return int(info.num_pending or 0) + int(info.num_ack_pending or 0)


# -- the report -------------------------------------------------------------------------------------------------------


def run(
    *,
    folder: Path,
    rounds: int,
    messages: int,
    members: int = MEMBERS,
    on_round: Callable[[str], None] = lambda name: None,
    on_install: Callable[[str], None] = lambda command: None,
) -> Report:
    """Measure all systems on the disk of this folder, `messages` for Godwit and a quarter for JetStream."""
    program = peers.require(on_install, programs=("nats-server",), modules=("nats",))["nats-server"]
    few = max(messages // 4, 1)
    figures = interleaved(
        {
            "godwit": lambda: measure(godwit_group(), folder, messages, members),
            "jetstream_pull": lambda: measure(jetstream_pull(program), folder, few, members),
            "jetstream_push": lambda: measure(jetstream_push(program), folder, few, members),
        },
        rounds,
        on_round,
    )
    best = [max(pair) for pair in zip(figures["jetstream_pull"], figures["jetstream_push"], strict=True)]
    results = [Result(name, statistics.median(values), "messages/s") for name, values in figures.items()]
    ratio = Ratio("vs_jetstream", median_ratio(figures["godwit"], best), "the faster queue consumer of JetStream")
    return Report("groups", machine(), results, [ratio])
