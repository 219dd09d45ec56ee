"""`godwit bench jobs`: jobs submitted, leased and completed on disk, against beanstalkd in one run.

Controller, broker and worker are a process each, and the broker's jobs are on the disk of one folder. Every system is
measured in the same way: the controller submits jobs for a while, as fast as its library allows, and the worker
completes them. A cycle is a job that was submitted, leased and completed, with all confirmed changes on the disk. The
time runs from the first submission until the last job is known to be completed. Measuring one job at a time shows the
time of a job without others: from its submission until the controller has its result.

Godwit runs as `godwit broker` does. The controller has several groups of jobs in progress, so that the broker has work
while it waits for the disk.

beanstalkd syncs its binlog after each change (`-f0`), as Godwit confirms nothing before it is on the disk. It syncs a
job twice, when it is put and when it is deleted; leases are not written. greenstalk has one command in progress per
connection, so more parallelism needs more connections, each in a thread: the server then has the next command when it
returns from the disk. It is measured with several numbers of connections, and each round is compared with the best.
beanstalkd has no results, so a controller that waits for one gets it as a job of another tube.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from godwit.errors import GodwitError
from godwit.net.client import AsyncClient, connect
from godwit.net.loop import run as run_loop
from godwit.net.tasks import Task
from godwit.net.worker import Worker
from godwit_bench import peers
from godwit_bench.log import durable_broker
from godwit_bench.processes import GIVE_UP_S, HOST, READY, ProcessGroup, free_port, receive_reply, wait_for_listener
from godwit_bench.report import Ratio, Report, Result, interleaved, machine, median_ratio

if TYPE_CHECKING:
    import greenstalk

JOB_BYTES: Final = 100
DATA_FOLDER: Final = "data"
"""The folder for the jobs of a system, in the folder of the process group."""


class JobSystem(msgspec.Struct, frozen=True):
    """A system under test."""

    broker: Callable[[ProcessGroup], str]
    """Start it, with its jobs in DATA_FOLDER; return its address once it is reachable."""
    controller: Callable[[Pipe, str, float], None]
    """Submit jobs of JOB_BYTES for this number of seconds, then send Submitted; runs in a process of its own."""
    worker: Callable[[Pipe, str], None]
    """Send READY, complete tasks, receive the number of jobs, send Completed; runs in a process of its own."""


class Submitted(msgspec.Struct, frozen=True):
    """The reply of a controller when all its jobs are durable. All processes share the monotonic clock of the times."""

    jobs: int
    began_s: float
    ended_s: float


class Completed(msgspec.Struct, frozen=True):
    """The reply of a worker when it has completed all jobs."""

    jobs: int
    ended_s: float


def measure(system: JobSystem, folder: Path, seconds: float) -> float:
    """Return the cycles per second, on the disk of this folder."""
    with ProcessGroup(within=folder) as processes:
        address = system.broker(processes)
        worker = processes.start(system.worker, address)
        receive_reply(worker, str)
        controller = processes.start(system.controller, address, seconds)
        submitted = receive_reply(controller, Submitted, within_s=GIVE_UP_S + seconds)
        worker.send(submitted.jobs)
        completed = receive_reply(worker, Completed, within_s=GIVE_UP_S + seconds)
    if completed.jobs != submitted.jobs:
        raise GodwitError(f"{submitted.jobs} jobs were submitted, and {completed.jobs} were done")
    return submitted.jobs / (max(submitted.ended_s, completed.ended_s) - submitted.began_s)


# -- Godwit -----------------------------------------------------------------------------------------------------------

KIND: Final = "bench/job"
RESULT: Final = b"done"
GROUP: Final = 256
GROUPS_UNDER_WAY: Final = 16
CAPACITY: Final = 2048
"""The worker's capacity: it has the next tasks while the reports of the last ones are written."""


def godwit_jobs(group: int = GROUP, groups_under_way: int = GROUPS_UNDER_WAY) -> JobSystem:
    """Return Godwit with jobs in groups of this size, and this number of groups in progress."""
    return JobSystem(_godwit_broker, partial(_godwit_submit, group, groups_under_way), _godwit_complete)


def godwit_one_by_one() -> JobSystem:
    """Return Godwit with one job at a time: the next is submitted when the result of the last has arrived."""
    return godwit_jobs(group=1, groups_under_way=1)


def _godwit_broker(processes: ProcessGroup) -> str:
    address, _ = durable_broker(processes, processes.folder / DATA_FOLDER)
    return address


def _godwit_submit(group: int, groups_under_way: int, pipe: Pipe, address: str, seconds: float) -> None:
    run_loop(_submit_all(group, groups_under_way, pipe, address, seconds))


async def _submit_all(group: int, groups_under_way: int, pipe: Pipe, address: str, seconds: float) -> None:
    async with connect(address, name="controller") as client:
        began = time.monotonic()
        senders = [_submit_groups(client, group, began + seconds) for _ in range(groups_under_way)]
        jobs = sum(await asyncio.gather(*senders))
        pipe.send(Submitted(jobs, began, time.monotonic()))


async def _submit_groups(client: AsyncClient, group: int, ends: float) -> int:
    """Submit one group after another; return the number of jobs, all with their results."""
    wanted = [(KIND, bytes(JOB_BYTES))] * group
    done = 0
    while time.monotonic() < ends:
        jobs = await client.submit_many(wanted)
        for job in jobs:
            (result,) = await job.results()
            if result.payload != RESULT:
                raise GodwitError(f"a worker sent {RESULT!r}, and {result.payload!r} came")
        done += group
    return done


def _godwit_complete(pipe: Pipe, address: str) -> None:
    run_loop(_complete_all(pipe, address))


async def _complete_all(pipe: Pipe, address: str) -> None:
    count = 0
    ended = 0.0
    worker = Worker(address, name="worker", capacity=CAPACITY)

    @worker.handles(KIND)
    async def complete(_: Task) -> bytes:
        nonlocal count, ended
        count += 1
        ended = time.monotonic()
        return RESULT

    async with asyncio.TaskGroup() as group:
        running = group.create_task(worker.run())
        await worker.ready()
        pipe.send(READY)
        jobs = await asyncio.to_thread(pipe.recv)
        while count < jobs:
            await asyncio.sleep(0.002)
        pipe.send(Completed(count, ended))
        running.cancel()


# -- beanstalkd -------------------------------------------------------------------------------------------------------

JOBS: Final = "jobs"
RESULTS: Final = "results"
LOOK_S: Final = 0.002


def beanstalkd(program: str, connections: int) -> JobSystem:
    """Return the beanstalkd at this path, with this number of connections for the controller and for the worker."""
    return JobSystem(
        partial(_beanstalkd_broker, program),
        partial(_beanstalkd_submit, connections, False),
        partial(_beanstalkd_complete, connections, False),
    )


def beanstalkd_one_by_one(program: str) -> JobSystem:
    """Return beanstalkd with one job at a time: the next is put when the result of the last has arrived."""
    return JobSystem(
        partial(_beanstalkd_broker, program),
        partial(_beanstalkd_submit, 1, True),
        partial(_beanstalkd_complete, 1, True),
    )


def _beanstalkd_broker(program: str, processes: ProcessGroup) -> str:
    port = free_port()
    data = processes.folder / DATA_FOLDER
    data.mkdir()
    log = processes.run(program, "-l", HOST, "-p", str(port), "-b", str(data), "-f0")
    wait_for_listener(port, log)
    return str(port)


def _connect(port: str, *, use: str, watch: str) -> greenstalk.Client[bytes]:
    import greenstalk

    return greenstalk.Client((HOST, int(port)), encoding=None, use=use, watch=watch)


def _beanstalkd_submit(connections: int, waits_for_results: bool, pipe: Pipe, port: str, seconds: float) -> None:
    clients = [_connect(port, use=JOBS, watch=RESULTS) for _ in range(connections)]
    counts = [0] * connections
    began = time.monotonic()

    def submit(number: int) -> None:
        put, reserve, delete = clients[number].put, clients[number].reserve, clients[number].delete
        payload = bytes(JOB_BYTES)
        while time.monotonic() < began + seconds:
            put(payload)
            if waits_for_results:
                delete(reserve())
            counts[number] += 1

    for thread in _threads(connections, submit):
        thread.join()
    pipe.send(Submitted(sum(counts), began, time.monotonic()))


def _beanstalkd_complete(connections: int, gives_results: bool, pipe: Pipe, port: str) -> None:
    clients = [_connect(port, use=RESULTS, watch=JOBS) for _ in range(connections)]
    counts = [0] * connections
    ended = [0.0] * connections

    def complete(number: int) -> None:
        put, reserve, delete = clients[number].put, clients[number].reserve, clients[number].delete
        while True:
            job = reserve()
            if gives_results:
                put(b"done")
            delete(job)
            counts[number] += 1
            ended[number] = time.monotonic()

    _threads(connections, complete)
    pipe.send(READY)
    jobs = pipe.recv()
    gives_up = time.monotonic() + GIVE_UP_S
    while sum(counts) < jobs:
        if time.monotonic() > gives_up:
            raise GodwitError(f"beanstalkd handed out {sum(counts)} of {jobs} jobs and then no more")
        time.sleep(LOOK_S)
    pipe.send(Completed(sum(counts), max(ended)))


def _threads(connections: int, target: Callable[[int], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=target, args=(number,), daemon=True) for number in range(connections)]
    for thread in threads:
        thread.start()
    return threads


# -- the benchmark ----------------------------------------------------------------------------------------------------

CONNECTIONS: Final = (1, 4, 16)
"""Connections of beanstalkd's controller, and of its worker. More do not make it faster."""
OURS: Final = "godwit"
THEIRS: Final = [f"beanstalkd_{connections}" for connections in CONNECTIONS]
OURS_SINGLE: Final = "godwit_one_by_one"
THEIRS_SINGLE: Final = "beanstalkd_one_by_one"


def run(
    *,
    folder: Path,
    rounds: int,
    seconds: float,
    on_round: Callable[[str], None],
    on_install: Callable[[str], None],
) -> Report:
    """Measure everything, interleaved, and return the medians. Raises GodwitError if the peer is missing."""
    program = peers.require(on_install, programs=("beanstalkd",), modules=("greenstalk",))["beanstalkd"]

    def cycles_per_s(system: JobSystem) -> Callable[[], float]:
        return lambda: measure(system, folder, seconds)

    figures = interleaved(
        {
            OURS: cycles_per_s(godwit_jobs()),
            **{
                name: cycles_per_s(beanstalkd(program, connections))
                for name, connections in zip(THEIRS, CONNECTIONS, strict=True)
            },
            OURS_SINGLE: cycles_per_s(godwit_one_by_one()),
            THEIRS_SINGLE: cycles_per_s(beanstalkd_one_by_one(program)),
        },
        rounds,
        on_round,
    )
    units = dict.fromkeys((OURS_SINGLE, THEIRS_SINGLE), "jobs/s with their results, one at a time")
    cycles = f"cycles/s, jobs of {JOB_BYTES} B"
    results = [Result(name, statistics.median(values), units.get(name, cycles)) for name, values in figures.items()]
    best = [max(values) for values in zip(*(figures[name] for name in THEIRS), strict=True)]
    ratios = [
        Ratio("vs_beanstalkd", median_ratio(figures[OURS], best), "beanstalkd -f0, the best of each round"),
        Ratio(
            "one_by_one_vs_beanstalkd",
            median_ratio(figures[OURS_SINGLE], figures[THEIRS_SINGLE]),
            "beanstalkd -f0, results as jobs of another tube",
        ),
    ]
    return Report("jobs", machine(), results, ratios)
