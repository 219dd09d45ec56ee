"""Work with real processes: the command line's workers and controllers, and a broker that comes, goes and is killed."""

from __future__ import annotations

import asyncio
import shlex
import signal
from pathlib import Path

import pytest
from tests.system.stage import Broker, Process, ReservedPort, Stage, needs_linux, run

import godwit

pytestmark = needs_linux
PATIENCE_S = 120.0
AT_ONCE_S = 10.0
"""Much less than a lease lasts, which is 30 s: what comes within this did not wait for one to end."""


async def worker(stage: Stage, address: str, name: str, *arguments: str) -> Process:
    """`godwit worker`, which has only just been started."""
    return await stage.godwit("worker", name, "--broker", address, "--kind", "reverse", *arguments)


def test_a_worker_started_before_its_broker_gets_through(tmp_path: Path) -> None:
    async def test() -> None:
        async with Stage() as stage:
            port = ReservedPort()
            anna = await worker(stage, port.address, "anna", "--exec", "rev")
            await port.knocked(1)
            port.give_up()
            await stage.broker(data=tmp_path, listen=(port.address,))
            controller = await stage.godwit("job", "submit", "reverse", "drawer", "--broker", port.address, "--wait")
            await controller.line("reward")
            assert await controller.ended() == 0, controller.said()
            assert anna.is_running

    run(test, within_s=240)


def test_a_worker_that_is_interrupted_hands_its_task_back_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=tmp_path)
            async with godwit.connect(broker.address, name="boss") as boss:
                lazy = await worker(stage, broker.address, "lazy", "--seconds", "600")
                job = await boss.submit("reverse", b"drawer")
                await until_leased_to(job, "lazy")
                quick = await worker(stage, broker.address, "quick", "--exec", "rev")
                await quick.line("volunteers")
                lazy.signal(signal.SIGINT)
                (result,) = await job.results(timeout_s=AT_ONCE_S)
                assert (result.worker, result.payload.strip()) == ("quick", b"reward")
                assert await lazy.ended() in (0, 130), lazy.said()
                assert job.tasks[0].losses == job.tasks[0].failures == 0

    run(test, within_s=240)


def test_the_task_of_a_worker_that_was_killed_goes_to_its_next_run_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=tmp_path)
            async with godwit.connect(broker.address, name="boss") as boss:
                first = await worker(stage, broker.address, "anna", "--seconds", "600")
                job = await boss.submit("reverse", b"drawer")
                await until_leased_to(job, "anna")
                await first.kill()
                again = await worker(stage, broker.address, "anna", "--exec", "rev")
                await again.line("volunteers")
                (result,) = await job.results(timeout_s=AT_ONCE_S)
                assert (result.worker, result.payload.strip()) == ("anna", b"reward")
                assert job.tasks[0].losses == 1

    run(test, within_s=240)


def test_a_controller_that_comes_back_finds_its_jobs_by_its_name(tmp_path: Path) -> None:
    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=tmp_path)
            boss = await godwit.connect(broker.address, name="boss")
            numbers = [(await boss.submit("reverse", payload)).number for payload in (b"drawer", b"stressed")]
            boss.abort()  # it dies without closing the connection
            await worker(stage, broker.address, "anna", "--exec", "rev")
            async with godwit.connect(broker.address, name="boss") as boss:
                assert {info.job for info in await boss.jobs(controller="boss")} == set(numbers)
                found = [await (await boss.job(number)).results(timeout_s=PATIENCE_S) for number in numbers]
                assert [[result.payload.strip() for result in results] for results in found] == [
                    [b"reward"],
                    [b"desserts"],
                ]
            async with godwit.connect(broker.address, name="stranger") as stranger:
                assert {info.controller for info in await stranger.jobs()} == {"boss"}  # it may read all events, too

    run(test, within_s=240)


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_jobs_wait_through_a_restart(tmp_path: Path, end: str) -> None:
    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=tmp_path)
            async with godwit.connect(broker.address, name="boss") as boss:
                job = await boss.submit("reverse", b"drawer", workers="all")
                assert job.state == "waiting"
                broker = await restart(stage, broker, end, tmp_path)
                for name in ("anna", "bert"):
                    await worker(stage, broker.address, name, "--exec", "rev")
                results = await job.results(timeout_s=PATIENCE_S)
                assert job.agreed == len(results) == len({result.worker for result in results})
                assert {result.payload.strip() for result in results} == {b"reward"}

    run(test, within_s=240)


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_task_goes_on_while_the_broker_restarts(tmp_path: Path, end: str) -> None:
    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=tmp_path)
            async with godwit.connect(broker.address, name="boss") as boss:
                go = tmp_path / "go"
                waits_for_go = shlex.join(["sh", "-c", f"while [ ! -e '{go}' ]; do sleep 0.05; done; rev"])
                anna = await worker(stage, broker.address, "anna", "--exec", waits_for_go)
                job = await boss.submit("reverse", b"drawer")
                await until_leased_to(job, "anna")
                broker = await restart(stage, broker, end, tmp_path)
                go.touch()
                (result,) = await job.results(timeout_s=PATIENCE_S)
                assert (result.worker, result.payload.strip()) == ("anna", b"reward")
                assert (job.tasks[0].fence, job.tasks[0].losses) == (1, 0)
                assert anna.is_running

    run(test, within_s=240)


async def restart(stage: Stage, broker: Broker, end: str, data: Path) -> Broker:
    """The next broker, on the same folder and port."""
    if end == "killed":
        broker.signal(signal.SIGKILL)
        await broker.ended()
    else:
        await broker.stop()
    return await stage.broker(data=data, listen=(broker.address,), name="next broker")


async def until_leased_to(job: godwit.AsyncJob, name: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not any(task.state == "leased" and task.worker == name for task in job.tasks.values()):
            await asyncio.sleep(0.02)
