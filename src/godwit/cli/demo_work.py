"""The processes of `godwit demo` that work: two workers, and a controller who checks every result.

A job is a list of numbers, its result their sum: little, but enough to see that nothing is lost, done wrong or done
twice when a worker is killed in the middle of it.
"""

from __future__ import annotations

import asyncio
import time
from multiprocessing.connection import Connection as Pipe
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from godwit.cli.demo_processes import TICK_S, Line, run_child

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient
    from godwit.net.tasks import Task

KIND: Final = "sum"
WORKERS: Final = ("anna", "bert")
CAPACITY: Final = 2
TASK_S: Final = 0.1
"""How long a task takes."""
SUBMIT_EVERY_S: Final = 0.15
FOR_ALL_EVERY: Final = 10
"""Of so many jobs one is for all workers."""
NUMBERS: Final = 50


class WorkReport(msgspec.Struct, frozen=True):
    """What became of the jobs so far."""

    submitted: int = 0
    done: int = 0
    wrong: int = 0
    """Failed, or with a result that is not right."""
    replaced: int = 0
    """Tasks that another worker took over."""
    by_worker: dict[str, int] = {}
    """Tasks done, by the name of the worker."""
    is_complete: bool = False
    """No more jobs come, and all have ended."""


# -- a worker ---------------------------------------------------------------------------------------------------------


def worker_main(pipe: Pipe, broker: str, name: str) -> None:
    """Of the process: says when it is ready, and works until nobody listens any more."""
    run_child(pipe, lambda line: volunteer(line, broker, name))


async def volunteer(line: Line, broker: str, name: str) -> None:
    from godwit.net.worker import Worker

    worker = Worker(broker, name=name, capacity=CAPACITY)

    @worker.handles(KIND)
    async def add(task: Task) -> bytes:
        await asyncio.sleep(TASK_S)
        return msgspec.json.encode(sum(msgspec.json.decode(task.payload, type=list[int])))

    running = asyncio.create_task(worker.run())
    try:
        await worker.ready()
        line.say("ready")
        await line.is_cut()
    finally:
        running.cancel()


# -- the controller ---------------------------------------------------------------------------------------------------


def controller_main(pipe: Pipe, broker: str, seed: int) -> None:
    """Of the process: connects, submits from `go` to `finish`, reports all the time."""
    run_child(pipe, lambda line: control(line, broker, seed))


async def control(line: Line, broker: str, seed: int) -> None:
    from godwit.net.client import connect

    async with connect(broker, name="controller") as client:
        jobs = Jobs(client, Random(f"{seed} jobs"))
        line.say(jobs.report())
        await line.hears("go")
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while not line.has_heard("finish"):
                if time.monotonic() >= began + jobs.submitted * SUBMIT_EVERY_S:
                    group.create_task(jobs.give())
                line.say(jobs.report())
                await asyncio.sleep(max(TICK_S, SUBMIT_EVERY_S / 2))
            reporting = asyncio.create_task(_report_on(line, jobs))
        reporting.cancel()
        line.say(jobs.report(is_complete=True))
        await line.is_cut()


async def _report_on(line: Line, jobs: Jobs) -> None:
    while True:
        line.say(jobs.report())
        await asyncio.sleep(SUBMIT_EVERY_S)


class Jobs:
    """All jobs of the demo, from their numbers to their sums."""

    def __init__(self, client: AsyncClient, rng: Random) -> None:
        self.submitted = 0
        self._client = client
        self._rng = rng
        self._done = self._wrong = self._replaced = 0
        self._by_worker: dict[str, int] = {}

    async def give(self) -> None:
        """One more job, until it has ended."""
        self.submitted += 1
        numbers = [self._rng.randrange(1_000) for _ in range(NUMBERS)]
        workers = "all" if self.submitted % FOR_ALL_EVERY == 0 else 1
        job = await self._client.submit(KIND, msgspec.json.encode(numbers), workers=workers)  # type: ignore[arg-type]
        is_right = True
        async for update in job:
            if update.what == "reassigned":
                self._replaced += 1
            elif update.what == "result":
                is_right &= update.result == msgspec.json.encode(sum(numbers))
                name = update.worker or ""
                self._by_worker[name] = self._by_worker.get(name, 0) + 1
        self._done += job.state == "done"
        self._wrong += job.state != "done" or not is_right

    def report(self, *, is_complete: bool = False) -> WorkReport:
        return WorkReport(self.submitted, self._done, self._wrong, self._replaced, dict(self._by_worker), is_complete)


def problems(work: WorkReport) -> list[str]:
    """What is wrong with the work; empty when every job was done, and its results are right."""
    found = []
    if work.wrong:
        found.append(f"{work.wrong:,} of {work.submitted:,} jobs failed or had a wrong result")
    if work.done + work.wrong < work.submitted or not work.is_complete:
        found.append(f"{work.submitted - work.done - work.wrong:,} of {work.submitted:,} jobs were not done in time")
    return found
