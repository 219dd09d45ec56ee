"""Jobs with a real broker, from their submission to their results, and after."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.net.running import both_loops, configuration, restarted, run, service, turns
from tests.net.test_worker import ALL, at_work, echo, until_leased, worker

from godwit.broker.access import Access, Rule
from godwit.errors import AccessError, BadKindError, JobCancelledError, JobError, JobFailedError, UsageError
from godwit.limits import MAX_JOB_PAYLOAD_BYTES, MAX_KIND_BYTES, MAX_TASKS_OF_JOB
from godwit.net.client import connect
from godwit.net.jobs import TaskResult
from godwit.net.service import Service
from godwit.net.tasks import Task


async def hang(task: Task) -> None:
    await asyncio.sleep(30)


# -- submit -----------------------------------------------------------------------------------------------------------


@both_loops
def test_a_job_from_its_submission_to_its_result(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test() -> None:
        is_seen = asyncio.Event()

        async def resize(task: Task) -> bytes:
            task.progress(0.5, "half")
            await is_seen.wait()  # else a slow machine reports progress and result at once
            return b"small " + task.payload

        async with (
            service() as broker,
            connect(broker.urls[0], name="chief") as client,
            at_work(worker(broker, resize=resize)),
        ):
            job = await client.submit("resize", "picture")
            assert (job.number, job.kind, job.agreed, job.state) == (1, "resize", 1, "running")
            updates = []
            async for update in job:
                updates.append(update)
                if update.what == "progress":
                    is_seen.set()
            assert [update.what for update in updates] == ["accepted", "progress", "result", "done"]
            assert (updates[1].progress, updates[1].note, updates[1].worker) == (0.5, "half", "anna")
            assert updates[2].result == b"small picture"
            assert await job.results() == [TaskResult(0, "anna", b"small picture")]
            assert (job.state, job.is_ended, job.tasks[0].state) == ("done", True, "finished")

    run(test, loop)


def test_workers_are_as_many_as_there_are_or_as_wanted() -> None:
    async def who(task: Task) -> str:
        return f"{task.number} {task.worker}"

    async def test() -> None:
        async with service() as broker, connect(broker.urls[0]) as client:
            names = ("anna", "bert", "cora")
            async with (
                at_work(worker(broker, names[0], work=who)),
                at_work(worker(broker, names[1], work=who)),
                at_work(worker(broker, names[2], work=who)),
            ):
                for wanted, agreed in ((1, 1), (2, 2), ("all", 3), (5, 3)):
                    options: Any = {"workers": wanted}
                    job = await client.submit("work", **options)
                    results = await job.results()
                    assert job.agreed == agreed
                    assert [result.task for result in results] == list(range(agreed))
                    assert len({result.worker for result in results}) == agreed
                    assert all(result.payload.decode() == f"{result.task} {result.worker}" for result in results)

    run(test)


def test_a_job_waits_for_its_first_worker() -> None:
    async def test() -> None:
        async with service() as broker, connect(broker.urls[0]) as client:
            job = await client.submit("work", b"x", workers=3)
            assert (job.agreed, job.state) == (None, "waiting")
            following = asyncio.ensure_future(_whats(job))
            async with at_work(worker(broker, work=echo)):
                assert len(await job.results()) == 1
            assert job.agreed == 1
            assert await following == ["accepted", "settled", "result", "done"]

    run(test)


async def _whats(job: Any) -> list[str]:
    return [update.what async for update in job]


def test_the_same_key_is_the_same_job() -> None:
    async def test() -> None:
        async with service() as broker:
            async with connect(broker.urls[0], name="chief") as client:
                first = await client.submit("work", b"one", key="order-7")
                again = await client.submit("work", b"two", key="order-7")
                assert (again.number, again.key) == (first.number, "order-7")
                many = await client.submit_many(
                    [("work", b"one", "order-7"), ("work", b"new", "order-8"), ("work", b"")]
                )
                assert [job.number - first.number for job in many] == [0, 1, 2]
                assert [job.key for job in many][:2] == ["order-7", "order-8"]
            async with connect(broker.urls[0], name="chief") as client:  # a later run
                assert (await client.submit("work", b"one", key="order-7")).number == first.number
            async with connect(broker.urls[0], name="other") as client:
                assert (await client.submit("work", b"one", key="order-7")).number != first.number

    run(test)


def test_many_at_once() -> None:
    async def test() -> None:
        async with (
            service() as broker,
            connect(broker.urls[0], send_buffer_bytes=100_000) as client,
            at_work(worker(broker, capacity=100, work=echo)),
        ):
            jobs = await client.submit_many(("work", f"{number}") for number in range(1000))  # more than fit
            assert [job.number for job in jobs] == list(range(1, 1001))
            payloads = [(await job.results())[0].payload for job in jobs]
            assert payloads == [f"{number}".encode() for number in range(1000)]

    run(test)


def test_the_largest_payload_and_result() -> None:
    async def test() -> None:
        async with service() as broker, connect(broker.urls[0]) as client, at_work(worker(broker, work=echo)):
            payload = bytes(range(256)) * (MAX_JOB_PAYLOAD_BYTES // 256)
            jobs = await client.submit_many([("work", payload)] * 5)
            for job in jobs:
                assert (await job.results())[0].payload == payload

    run(test)


def test_invalid_arguments_are_refused_by_the_client() -> None:
    async def test() -> None:
        async with service() as broker, connect(broker.urls[0]) as client:
            wrong: list[dict[str, Any]] = [
                {"workers": 0},
                {"workers": -3},
                {"workers": MAX_TASKS_OF_JOB + 1},
                {"priority": 1000},
                {"retries": -1},
                {"delay_s": -1},
                {"deadline_s": 0},
                {"time_limit_s": 1e12},
                {"key": ""},
                {"key": 5},
                {"time_limit_s": "x"},
            ]
            for options in wrong:
                with pytest.raises(UsageError, match=next(iter(options)).removesuffix("_s")):
                    await client.submit("work", **options)
            with pytest.raises(UsageError, match=f"accepts at most {MAX_JOB_PAYLOAD_BYTES}: send larger things"):
                await client.submit("work", bytes(MAX_JOB_PAYLOAD_BYTES + 1))
            for kind in ("", "a/#", "$jobs", "x" * (MAX_KIND_BYTES + 1)):
                with pytest.raises(BadKindError):
                    await client.submit(kind)
            no_kinds: list[Any] = [5, None, []]
            for no_kind in no_kinds:
                with pytest.raises(UsageError, match="give a text"):
                    await client.submit(no_kind)
            no_payload: Any = {"x": {1}}
            with pytest.raises(UsageError, match="a payload of type dict is not valid as JSON"):
                await client.submit("work", no_payload)
            no_option: Any = {"wrokers": 2}
            with pytest.raises(UsageError, match="submit has no option 'wrokers': choose from key, timeout_s, workers"):
                await client.submit("work", **no_option)
            assert await client.jobs() == []

    run(test)


def test_without_the_right_a_job_is_refused() -> None:
    access = Access(rules=(Rule(clients=("*",), allow=ALL, topics=("pictures/#",)),))

    async def test() -> None:
        async with service(access=access) as broker, connect(broker.urls[0]) as client:
            with pytest.raises(AccessError):
                await client.submit("letters")
            fine, refused = await client.submit_many([("pictures/small", b""), ("letters", b"")])
            assert (fine.state, refused.state, refused.is_ended) == ("waiting", "refused", True)
            with pytest.raises(AccessError):
                await refused.results()

    run(test)


# -- look after -------------------------------------------------------------------------------------------------------


def test_a_job_can_be_cancelled() -> None:
    async def test() -> None:
        async with (
            service() as broker,
            connect(broker.urls[0], name="chief") as client,
            at_work(worker(broker, work=hang)),
        ):
            job = await client.submit("work")
            await until_leased(client, job.number, by="anna")
            await job.cancel("not wanted any more")
            with pytest.raises(JobCancelledError, match="not wanted any more"):
                await job.results()
            waiting = await client.submit("unknown/kind")
            await client.cancel_job(waiting.number)
            with pytest.raises(JobCancelledError):
                await waiting.results()
            with pytest.raises(JobError):
                await client.cancel_job(4711)

    run(test)


def test_a_cancelled_job_is_retried_also_after_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        started = Service(replace(configuration(), data=tmp_path / "data"))
        await started.start()
        async with connect(started.urls[0], name="chief") as client:
            job = await client.submit("work", "photo")
            with pytest.raises(JobError, match="job 1 is waiting: only a failed or cancelled job can be retried"):
                await client.retry_job(job.number)
            await job.cancel()
            again = await restarted(started)
            retried = await client.retry_job(job.number, timeout_s=60.0)
            assert (retried.number, retried.state) == (2, "waiting")
            async with at_work(worker(again, work=echo)):
                assert (await retried.results())[0].payload == b"photo"
            with pytest.raises(JobError):
                await client.retry_job(4711)
        await again.stop()

    run(test)


def test_a_deadline_ends_a_job() -> None:
    async def test() -> None:
        async with service() as broker, connect(broker.urls[0]) as client:
            job = await client.submit("unknown/kind", deadline_s=0.05)
            with pytest.raises(JobFailedError, match="deadline"):
                await job.results()
            assert (await _whats(job))[-1] == "failed"

    run(test)


def test_when_a_job_may_begin_is_known() -> None:
    async def test() -> None:
        async with service() as broker, connect(broker.urls[0]) as client:
            now_us = time.time_ns() // 1000
            soon = await client.submit("work")
            late = await client.submit("work", delay_s=100)
            assert soon.begins_us == 0
            assert now_us + 100_000_000 <= late.begins_us <= time.time_ns() // 1000 + 100_000_000
            found = await client.job(late.number)
            assert abs(found.begins_us - late.begins_us) < 10_000_000

    run(test)


def test_jobs_are_listed_and_shown() -> None:
    async def test() -> None:
        async with (
            service() as broker,
            connect(broker.urls[0], name="chief") as client,
            at_work(worker(broker, work=echo)),
        ):
            done = await client.submit("work", b"xyz", priority=3)
            await done.results()
            waiting = await client.submit("other", workers="all")
            assert [info.job for info in await client.jobs()] == [waiting.number, done.number]
            assert [info.job for info in await client.jobs(kind="work")] == [done.number]
            assert [info.job for info in await client.jobs(states=["waiting"])] == [waiting.number]
            assert await client.jobs(controller="unknown") == []
            info, tasks = await client.job_info(done.number)
            assert (info.of_kind, info.controller, info.state, info.priority) == ("work", "chief", "done", 3)
            assert (info.payload_bytes, info.agreed, info.finished) == (3, 1, 1)
            assert [(task.task, task.state, task.worker, task.result_bytes) for task in tasks] == [
                (0, "finished", "anna", 3)
            ]
            with pytest.raises(JobError):
                await client.job_info(4711)
            no_state: Any = ["lost"]
            with pytest.raises(UsageError, match="there is no state 'lost' of a job"):
                await client.jobs(states=no_state)
            with pytest.raises(BadKindError):
                await client.jobs(kind="a/#")
            wrong: list[Any] = [{"limit": 0}, {"limit": "x"}, {"controller": 5}, {"kind": 5}]
            for options in wrong:
                with pytest.raises(UsageError, match=next(iter(options))):
                    await client.jobs(**options)

    run(test)


def test_long_lists_come_in_pages() -> None:
    async def test() -> None:
        async with service() as broker, connect(broker.urls[0], name="chief") as client:
            await client.submit_many([("work", b"")] * 3000)
            assert [info.job for info in await client.jobs()] == list(range(3000, 0, -1))
            for limit in (1, 2999, 4000):
                assert [info.job for info in await client.jobs(limit=limit)] == list(range(3000, 0, -1))[:limit]

    run(test)


def test_a_controller_that_comes_back_finds_its_jobs() -> None:
    async def test() -> None:
        async with service() as broker:
            async with connect(broker.urls[0], name="chief") as client:
                done, waiting = await client.submit_many([("work", b"x"), ("other", b"y")])
                async with at_work(worker(broker, work=echo)):
                    await done.results()
            async with connect(broker.urls[0], name="chief") as client:
                numbers = [info.job for info in await client.jobs(controller="chief")]
                assert numbers == [waiting.number, done.number]
                found = await client.job(done.number)
                assert (found.kind, found.key, found.state) == ("work", done.key, "done")
                assert await _whats(found) == ["accepted", "result", "done"]
                assert (await found.results())[0].payload == b"x"
                later = await client.job(waiting.number)
                async with at_work(worker(broker, other=echo)):
                    assert (await later.results())[0].payload == b"y"
                with pytest.raises(JobError):
                    await client.job(4711)
                with pytest.raises(UsageError, match="counted from 1"):
                    await client.job(0)
                with pytest.raises(UsageError, match="counted from 1"):
                    await client.job_info(-1)

    run(test)


# -- breaks -----------------------------------------------------------------------------------------------------------


def test_a_broker_that_comes_back_with_its_log_goes_on_with_its_jobs(tmp_path: Path) -> None:
    async def test() -> None:
        gate = asyncio.Event()

        async def wait(task: Task) -> bytes:
            await gate.wait()
            return b"after the restart"

        started = Service(replace(configuration(), data=tmp_path / "data"))
        await started.start()
        async with connect(started.urls[0], name="chief") as client:
            running = asyncio.create_task(worker(started, work=wait).run())
            job = await client.submit("work")
            await until_leased(client, job.number, by="anna")
            again = await restarted(started)
            gate.set()
            assert (await job.results())[0].payload == b"after the restart"
            _, (task,) = await client.job_info(job.number)
            assert (task.fence, task.losses) == (1, 0), "the worker kept its lease over the restart"
            running.cancel()
            await asyncio.wait([running])
        await again.stop()

    run(test)


def test_a_broker_that_comes_back_without_its_log_does_not_know_the_job() -> None:
    async def test() -> None:
        broker = service()
        await broker.start()
        async with connect(broker.urls[0]) as client:
            job = await client.submit("work")
            broker = await restarted(broker)
            with pytest.raises(JobError, match=r"gone|not know"):
                await job.results()
            assert job.state == "unknown"
        await broker.stop()

    run(test)


def test_waiting_calls_are_notified_of_the_end_of_the_client() -> None:
    async def test() -> None:
        async with service() as broker:
            client = await connect(broker.urls[0])
            job = await client.submit("work")
            waiting = asyncio.create_task(job.results())
            await turns()
            assert await client.close() is True
            with pytest.raises(UsageError, match="the client is closed"):
                await waiting
            with pytest.raises(UsageError, match="the client is closed"):
                await client.submit("work")

    run(test)
