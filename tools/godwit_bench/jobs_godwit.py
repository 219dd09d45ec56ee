"""Godwit with its jobs on disk as a system under test: the broker as `godwit broker` runs it, and its client library.

The controller is told of each job when it is taken and when its result is there; all that it is told is on the disk.
It has several groups of jobs under way, so that the broker has something to do while it waits for the disk.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Final

from godwit.errors import GodwitError
from godwit.net.client import AsyncClient, connect
from godwit.net.loop import run as run_loop
from godwit.net.tasks import Task
from godwit.net.worker import Worker
from godwit_bench.jobs_cycles import DATA_FOLDER, JOB_BYTES, Completed, Dispatcher, Submitted
from godwit_bench.log_godwit import durable_broker
from godwit_bench.stage import READY, Stage

KIND: Final = "bench/job"
RESULT: Final = b"done"
GROUP: Final = 256
GROUPS_UNDER_WAY: Final = 16
CAPACITY: Final = 2048
"""Of the worker: it has the next tasks while the reports of the last ones are written down."""


def godwit_jobs(group: int = GROUP, groups_under_way: int = GROUPS_UNDER_WAY) -> Dispatcher:
    """Jobs in groups of so many, and so many groups at once."""
    return Dispatcher(_broker, partial(_submit, group, groups_under_way), _complete)


def godwit_one_by_one() -> Dispatcher:
    """One job at a time: the next one is submitted when the result of the last one has come."""
    return godwit_jobs(group=1, groups_under_way=1)


def _broker(stage: Stage) -> str:
    address, _ = durable_broker(stage, stage.folder / DATA_FOLDER)
    return address


def _submit(group: int, groups_under_way: int, pipe: Pipe, address: str, seconds: float) -> None:
    run_loop(_submit_all(group, groups_under_way, pipe, address, seconds))


async def _submit_all(group: int, groups_under_way: int, pipe: Pipe, address: str, seconds: float) -> None:
    async with connect(address, name="controller") as client:
        began = time.monotonic()
        lanes = [_submit_groups(client, group, began + seconds) for _ in range(groups_under_way)]
        jobs = sum(await asyncio.gather(*lanes))
        pipe.send(Submitted(jobs, began, time.monotonic()))


async def _submit_groups(client: AsyncClient, group: int, ends: float) -> int:
    """One group after another; gives how many jobs it were, all with their results."""
    wanted = [(KIND, bytes(JOB_BYTES))] * group
    done = 0
    while time.monotonic() < ends:
        jobs = await client.submit_many(wanted)
        for job in jobs:
            (result,) = await job.results()
            if result.payload != RESULT:
                raise GodwitError(f"a worker said {RESULT!r}, and {result.payload!r} came")
        done += group
    return done


def _complete(pipe: Pipe, address: str) -> None:
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
