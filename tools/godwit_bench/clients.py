"""`godwit bench clients`: many clients that are idle, many that reconnect at once, and a session with many filters.

The broker runs in a process of its own, and its processor time is counted apart from that of the clients. These share
one process, see godwit_bench.client_swarm. A publisher and a subscriber in a third process measure how long the others
delay a message.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Final

import msgspec

from godwit.broker.settings import Settings
from godwit.errors import GodwitError
from godwit.limits import KEEP_ALIVE_S
from godwit.net.client import AsyncClient, connect
from godwit.net.loop import collect_garbage_rarely, switch_threads_quickly
from godwit.net.loop import run as run_loop
from godwit.net.service import Service
from godwit.server.configuration import ArchiveSection, Configuration
from godwit_bench.client_swarm import Swarm
from godwit_bench.processes import GIVE_UP_S, HOST, READY, ProcessGroup, receive_reply
from godwit_bench.report import Report, Result, machine

FILTERS: Final = 256
MESSAGES: Final = 2000
MESSAGE_BYTES: Final = 100
RESUMES: Final = 3
"""Sessions that are resumed one after another, each at a fresh broker: the result is the median."""
PAIR_TOPIC: Final = "bench/pair"
PAIR_PAUSE_S: Final = 0.005
"""Between two messages of the pair."""
LONG_S: Final = 300.0
SEED: Final = 16
DATA_FOLDER: Final = "data"


def run(
    clients: int,
    seconds: float,
    folder: Path,
    on_round: Callable[[str], None],
) -> Report:
    """Measure, and return the results.

    Args:
        clients: The number of idle and of reconnecting clients.
        seconds: The duration of the measurement of idle clients.
        folder: Where the brokers store their logs.
        on_round: Called with the name of each measurement.

    Raises:
        GodwitError: A process failed, or did not end in time.
    """
    on_round("a session that resumes")
    resume_s = statistics.median(measure_resume(folder) for _ in range(RESUMES))
    on_round("idle clients")
    idle_percent = measure_idle(clients, seconds)
    on_round("clients that reconnect at once")
    storm = measure_storm(clients, folder)
    results = [
        Result("clients", clients, "clients"),
        Result("idle_cpu_percent_10k", idle_percent, "% of a core"),
        Result("storm_back_s_10k", storm.back_s, "s"),
        Result("storm_broker_cpu_s", storm.broker_cpu_s, "s"),
        Result("pair_longest_wait_ms", storm.longest_wait_ms, "ms"),
        Result("resume_256_filters_s", resume_s, "s"),
    ]
    return Report("clients", machine(), results, [])


# -- the broker -------------------------------------------------------------------------------------------------------

CPU: Final = "cpu"
STOP: Final = "stop"


def _start_broker(processes: ProcessGroup, data: Path | None = None, port: int = 0) -> tuple[Pipe, int]:
    """Start a broker, in memory or on this folder; return its pipe, which answers CPU and STOP, and its port."""
    pipe = processes.start(_serve, None if data is None else str(data), port)
    return pipe, receive_reply(pipe, int)


def _cpu_s(broker: Pipe) -> float:
    """Return the processor time that the broker has used so far."""
    broker.send(CPU)
    return receive_reply(broker, float)


def _serve(pipe: Pipe, data: str | None, port: int) -> None:
    run_loop(_serve_until_stopped(pipe, data, port))


async def _serve_until_stopped(pipe: Pipe, data: str | None, port: int) -> None:
    collect_garbage_rarely()  # both as `godwit broker` does
    switch_threads_quickly()
    configuration = Configuration(
        listen=[f"{HOST}:{port}"],
        settings=Settings(),
        data=None if data is None else Path(data),
        archive=ArchiveSection(is_on=False),
    )
    stopped = asyncio.Event()

    def on_request() -> None:
        if pipe.recv() == CPU:
            pipe.send(time.process_time())
        else:
            asyncio.get_running_loop().remove_reader(pipe.fileno())
            stopped.set()

    async with Service(configuration) as service:
        asyncio.get_running_loop().add_reader(pipe.fileno(), on_request)
        pipe.send(service.addresses[0][1])
        await stopped.wait()
    pipe.send(READY)


# -- idle clients -----------------------------------------------------------------------------------------------------


def measure_idle(clients: int, seconds: float) -> float:
    """Return the processor time of a broker with this number of idle clients, in percent of the elapsed time."""
    with ProcessGroup() as processes:
        broker, port = _start_broker(processes)
        swarm = processes.start(_be_idle, port, clients)
        receive_reply(swarm, str, within_s=LONG_S)
        # The first keep-alives follow the logins. From the second ones on each client is idle.
        time.sleep(min(seconds, KEEP_ALIVE_S))
        began, used_s = time.monotonic(), _cpu_s(broker)
        time.sleep(seconds)
        used_s = _cpu_s(broker) - used_s
        elapsed_s = time.monotonic() - began
        swarm.send(STOP)
        lost = receive_reply(swarm, int)
    if lost:
        raise GodwitError(f"{lost} idle clients lost their connections: run it again on a quieter machine")
    return 100 * used_s / elapsed_s


def _be_idle(pipe: Pipe, port: int, clients: int) -> None:
    with Swarm(port, clients, SEED) as swarm:
        swarm.connect_first(time.monotonic() + LONG_S)
        pipe.send(READY)
        swarm.run_until(pipe.poll, time.monotonic() + LONG_S)
        pipe.send(swarm.lost)


# -- clients that reconnect at once -----------------------------------------------------------------------------------


class StormFigures(msgspec.Struct, frozen=True):
    """How a broker handles the reconnects of all its clients at once."""

    back_s: float
    """From the moment when all may reconnect until the last has its subscription again."""
    broker_cpu_s: float
    longest_wait_ms: float
    """The longest time between a message of the pair and its confirm, or its arrival at the subscriber."""


def measure_storm(clients: int, folder: Path) -> StormFigures:
    """Restart a broker with this number of clients, and let all reconnect at once."""
    with ProcessGroup(folder) as processes:
        data = processes.folder / DATA_FOLDER
        broker, port = _start_broker(processes, data)
        swarm = processes.start(_reconnect, port, clients)
        receive_reply(swarm, str, within_s=LONG_S)
        broker.send(STOP)
        receive_reply(broker, str, within_s=LONG_S)
        receive_reply(swarm, str, within_s=LONG_S)  # all have noticed
        broker, _ = _start_broker(processes, data, port)
        pair = processes.start(_exchange, port)
        receive_reply(pair, str)
        used_s = _cpu_s(broker)
        swarm.send(READY)
        back_s = receive_reply(swarm, float, within_s=LONG_S)
        used_s = _cpu_s(broker) - used_s
        pair.send(STOP)
        longest_s = receive_reply(pair, float)
    return StormFigures(back_s, used_s, 1000 * longest_s)


def _reconnect(pipe: Pipe, port: int, clients: int) -> None:
    with Swarm(port, clients, SEED) as swarm:
        swarm.connect_first(time.monotonic() + LONG_S)
        swarm.is_held = True
        pipe.send(READY)
        swarm.run_until(lambda: swarm.online == 0, time.monotonic() + LONG_S)
        pipe.send(READY)
        swarm.run_until(pipe.poll, time.monotonic() + LONG_S)
        pipe.recv()
        began = time.monotonic()
        swarm.release()
        swarm.run_until(lambda: swarm.online == clients, began + LONG_S)
        pipe.send(time.monotonic() - began)
        swarm.run_until(pipe.poll, time.monotonic() + LONG_S)  # until this process is ended


def _exchange(pipe: Pipe, port: int) -> None:
    pipe.send(run_loop(_exchange_until_stopped(pipe, port)))


async def _exchange_until_stopped(pipe: Pipe, port: int) -> float:
    """Publish one message after another; return the longest time until one was confirmed and had arrived."""
    broker = f"{HOST}:{port}"
    longest_s = 0.0
    payload = bytes(MESSAGE_BYTES)
    async with (
        connect(broker) as subscriber,
        connect(broker) as publisher,
        subscriber.subscribe(PAIR_TOPIC) as messages,
    ):
        await asyncio.gather(publisher.publish(PAIR_TOPIC, payload), anext(messages))
        pipe.send(READY)
        while not pipe.poll():
            began = time.monotonic()
            await asyncio.gather(publisher.publish(PAIR_TOPIC, payload), anext(messages))
            longest_s = max(longest_s, time.monotonic() - began)
            await asyncio.sleep(PAIR_PAUSE_S)
    return longest_s


# -- a session with many filters --------------------------------------------------------------------------------------


def measure_resume(folder: Path) -> float:
    """Return how long a client with FILTERS subscriptions takes to get MESSAGES that it missed."""
    with ProcessGroup(folder) as processes:
        _, port = _start_broker(processes, processes.folder / DATA_FOLDER)
        return receive_reply(processes.start(_resume, port), float, within_s=LONG_S)


def _resume(pipe: Pipe, port: int) -> None:
    pipe.send(run_loop(_resume_session(port)))


async def _resume_session(port: int) -> float:
    broker = f"{HOST}:{port}"
    async with connect(broker, name="resuming") as client:
        await asyncio.gather(*(_take(client, number, 0) for number in range(FILTERS)))
    async with connect(broker) as client:
        publishers = [client.publisher(f"bench/resume/{number}/value", qos=1) for number in range(FILTERS)]
        for number in range(MESSAGES):
            publishers[number % FILTERS].send(bytes(MESSAGE_BYTES))
        for publisher in publishers:
            await publisher.flush()
    began = time.monotonic()
    async with connect(broker, name="resuming") as client, asyncio.timeout(GIVE_UP_S):
        expected = [len(range(number, MESSAGES, FILTERS)) for number in range(FILTERS)]
        ended = await asyncio.gather(*(_take(client, number, count) for number, count in enumerate(expected)))
    return max(ended) - began


async def _take(client: AsyncClient, number: int, count: int) -> float:
    """Receive this number of messages of a subscription; return when the last one arrived."""
    async with client.subscribe(f"bench/resume/{number}/+", keep=True) as messages:
        while count:
            await anext(messages)
            count -= 1
        return time.monotonic()
