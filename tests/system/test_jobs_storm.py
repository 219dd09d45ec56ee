"""Workers and the broker are killed again and again while there is work: all of it is done, each result counts once."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.system.book import READ_BYTES
from tests.system.labour import KIND
from tests.system.stage import Broker, Stage, Worker, needs_linux, run, until

import godwit
from godwit.cli.log_content import messages_of
from godwit.net.client import AsyncClient
from godwit.store.reader import LogReader

SEED = 5_805
WORKERS = 8
CAPACITY = 8
GROUP = 25
"""Jobs that are submitted at once."""
GROUPS_UNDER_WAY = 8
MOST_WORKERS = 4
"""That a job asks for."""
RETRY_S = 0.02
RETRIES = 20
"""A task fails now and then, and is tried again; so often that it never fails for good."""


class Storm(NamedTuple):
    """How bad it gets."""

    tasks: int
    broker_kills: int
    worker_kills: int


@needs_linux
@pytest.mark.parametrize(
    "storm",
    [
        Storm(tasks=1000, broker_kills=1, worker_kills=4),
        pytest.param(Storm(tasks=20_000, broker_kills=5, worker_kills=60), marks=pytest.mark.soak),
    ],
    ids=lambda storm: f"{storm.tasks} tasks",
)
def test_all_work_is_done_and_counted_once(tmp_path: Path, storm: Storm) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}")

    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=tmp_path / "data")
            crew = Crew(stage, broker.address)
            await crew.start()
            async with godwit.connect(broker.address, name="controller") as client:
                office = Office(client, rng)
                async with asyncio.TaskGroup() as group:
                    group.create_task(office.work(storm.tasks))
                    for kill in kills(storm, rng):
                        await office.has_done(kill.after_tasks)
                        if kill.is_of_broker:
                            broker = await restart(stage, broker, tmp_path / "data")
                        else:
                            await crew.replace_one(rng)
                print(f"{office.tasks} tasks of {len(office.done)} jobs")
            await broker.stop()
        check_log(tmp_path / "data" / "log.sqlite", office.done)

    run(test, within_s=240 + storm.tasks / 50)


# -- the storm --------------------------------------------------------------------------------------------------------


class Kill(NamedTuple):
    """Kill a process when `after_tasks` tasks are done."""

    after_tasks: int
    is_of_broker: bool


def kills(storm: Storm, rng: random.Random) -> list[Kill]:
    """At random moments, the last one well before the end."""
    victims = [True] * storm.broker_kills + [False] * storm.worker_kills
    return sorted(Kill(rng.randrange(int(storm.tasks * 0.9)), is_of_broker) for is_of_broker in victims)


async def restart(stage: Stage, broker: Broker, data: Path) -> Broker:
    broker.signal(signal.SIGKILL)
    await broker.ended()
    return await stage.broker(data=data, listen=(broker.address,), name="next broker")


class Crew:
    """The workers. One that is killed is replaced by another of the same name."""

    def __init__(self, stage: Stage, address: str) -> None:
        self._stage = stage
        self._address = address
        self._workers: dict[str, Worker] = {}
        self._started = 0

    async def start(self) -> None:
        names = [f"worker-{number}" for number in range(WORKERS)]
        await asyncio.gather(*[self._employ(name) for name in names])
        for worker in self._workers.values():
            await worker.hear("ready")

    async def replace_one(self, rng: random.Random) -> None:
        name = rng.choice(sorted(self._workers))
        await self._workers[name].kill()
        await self._employ(name)

    async def _employ(self, name: str) -> None:
        self._started += 1
        self._workers[name] = await self._stage.worker(
            "labour", name, broker=self._address, capacity=CAPACITY, seed=self._started
        )


# -- the work ---------------------------------------------------------------------------------------------------------


class Office:
    """The controller: submits jobs for one to some workers, and collects what they give."""

    def __init__(self, client: AsyncClient, rng: random.Random) -> None:
        self.done: dict[int, int] = {}
        """Job number -> how many tasks it had."""
        self.tasks = 0
        """With a result."""
        self._client = client
        self._rng = rng

    async def work(self, tasks: int) -> None:
        """Submit jobs until at least `tasks` tasks are done."""
        async with asyncio.TaskGroup() as group:
            for _ in range(GROUPS_UNDER_WAY):
                group.create_task(self._work(tasks))

    async def _work(self, tasks: int) -> None:
        while self.tasks < tasks:
            await asyncio.gather(*[self._one_job() for _ in range(GROUP)])

    async def _one_job(self) -> None:
        payload = self._rng.randbytes(16)
        workers = self._rng.randint(1, MOST_WORKERS)
        job = await self._client.submit(KIND, payload, workers=workers, retries=RETRIES, retry_delay_s=RETRY_S)
        results = await job.results()
        # What is agreed holds: as many results as tasks, never more than asked for, each of another task.
        assert job.number is not None
        assert job.number not in self.done
        assert [result.task for result in results] == list(range(job.agreed or 0))
        assert 1 <= len(results) <= workers
        assert {result.payload for result in results} == {payload[::-1]}
        self.done[job.number] = len(results)
        self.tasks += len(results)

    async def has_done(self, tasks: int) -> None:
        await until(lambda: self.tasks >= tasks, f"{tasks} tasks are done")


def check_log(path: Path, done: dict[int, int]) -> None:
    """Its events say the same as the controller was told: every task finished once, every job done once."""
    finished: Counter[tuple[int, int]] = Counter()
    ended: Counter[int] = Counter()
    others: Counter[str] = Counter()
    for event in events_in(path):
        if event["event"] == "finished":
            finished[event["job"], event["task"]] += 1
        elif event["event"] == "done":
            ended[event["job"]] += 1
        else:
            others[event["event"]] += 1
    print(f"events: {finished.total()} finished, {ended.total()} done, {dict(others)}")
    assert ended == dict.fromkeys(done, 1)
    assert finished == {(job, task): 1 for job, tasks in done.items() for task in range(tasks)}
    assert not others["task_failed"]
    assert not others["job_failed"]
    assert others["lost"]
    assert others["failed"]


def events_in(path: Path) -> Iterator[dict[str, Any]]:
    reader = LogReader.open(path)
    try:
        offset, end = 0, reader.next_offset()
        while offset < end:
            piece = reader.read(offset, READ_BYTES)
            assert not piece.damaged
            for at, entry in piece.entries:
                assert (at, entry.topic) == (offset, f"$jobs/{KIND}")
                for message in messages_of(at, entry):
                    yield json.loads(message.payload)
                offset += entry.count
    finally:
        reader.close()
