"""Workers with a real broker: all kinds of handlers, every way to end, and nothing that is lost on the way."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.net.running import both_loops, configuration, restarted, run, service, turns
from tests.ports import free_port

from godwit.broker.access import Access, Action, Rule
from godwit.errors import (
    AccessError,
    AddressError,
    BadKindError,
    ConfigurationError,
    JobFailedError,
    KickedError,
    NameInUseError,
    UsageError,
)
from godwit.limits import MAX_CAPACITY, MAX_KIND_BYTES, MAX_KINDS
from godwit.net.client import AsyncClient, connect
from godwit.net.service import Service
from godwit.net.tasks import Task, TaskFailed
from godwit.net.udp import UdpSocket
from godwit.net.worker import Handlers, Worker

DEADLINE_S = 120.0
ALL: frozenset[Action] = frozenset(("publish", "subscribe", "create", "kick", "submit", "work"))


async def echo(task: Task) -> bytes:
    return task.payload


def worker(broker: Service, name: str | None = "anna", *, capacity: int = 4, **handlers: Any) -> Worker:
    made = Worker(broker.urls[0], name=name, capacity=capacity)
    for kind, handler in handlers.items():
        made.handles(kind)(handler)
    return made


@asynccontextmanager
async def at_work(made: Worker) -> AsyncIterator[asyncio.Task[None]]:
    """It runs, and is stopped at the end if it has not ended before."""
    running = asyncio.create_task(made.run())
    try:
        ready = asyncio.ensure_future(made.ready())
        await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        await ready
        yield running
        made.stop()
        await running
    finally:
        running.cancel()
        await asyncio.wait([running])


async def until_leased(client: AsyncClient, number: int, *, by: str) -> None:
    while True:
        _, tasks = await client.job_info(number)
        if any(task.state == "leased" and task.worker == by for task in tasks):
            return
        await asyncio.sleep(0.005)


# -- handlers ---------------------------------------------------------------------------------------------------------


@both_loops
def test_handlers_of_all_sorts(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    def in_thread(task: Task) -> str:
        task.progress(0.5, "half")
        return f"{task.worker} {threading.current_thread().name.startswith('godwit-handler')}"

    async def test() -> None:
        async with service() as broker, connect(broker.urls[0], name="chief") as client:
            made = worker(broker, asynchronous=echo, plain=in_thread)
            made.handles("command", command=["tr", "a-z", "A-Z"])
            async with at_work(made):
                jobs = [await client.submit(kind, b"text") for kind in ("asynchronous", "plain", "command")]
                results = [(await job.results())[0].payload for job in jobs]
                assert results == [b"text", b"anna True", b"TEXT"]

    run(test, loop)


def test_a_task_knows_whose_it_is_and_how_often_it_was_tried() -> None:
    seen: list[tuple[object, ...]] = []

    async def stumble(task: Task) -> bytes:
        seen.append((task.job, task.number, task.attempt, task.controller, task.worker, task.agreed, task.fence))
        if task.attempt < 3:
            raise ValueError(f"not at attempt {task.attempt}")
        return b"at last"

    async def test() -> None:
        async with (
            service() as broker,
            connect(broker.urls[0], name="chief") as client,
            at_work(worker(broker, work=stumble)),
        ):
            job = await client.submit("work", retry_delay_s=0.01)
            failures = [update.error async for update in job if update.what == "failure"]
            assert (await job.results())[0].payload == b"at last"
            assert failures == ["ValueError: not at attempt 1", "ValueError: not at attempt 2"]
            assert seen == [(job.number, 0, attempt, "chief", "anna", 1, attempt) for attempt in (1, 2, 3)]

    run(test)


def test_failures_that_are_final_and_results_that_are_none() -> None:
    attempts: list[int] = []

    async def final(task: Task) -> bytes:
        attempts.append(task.attempt)
        raise TaskFailed("the picture is damaged", final=True)

    async def wrong(task: Task) -> set[str]:
        return {"a"}

    async def test() -> None:
        async with (
            service() as broker,
            connect(broker.urls[0]) as client,
            at_work(worker(broker, final=final, wrong=wrong)),
        ):
            with pytest.raises(JobFailedError, match="the picture is damaged") as caught:
                await (await client.submit("final", retries=5)).results()
            assert caught.value.errors == {0: "the picture is damaged"}
            assert attempts == [1]
            with pytest.raises(JobFailedError, match="a result of type set"):
                await (await client.submit("wrong", retries=0)).results()

    run(test)


def test_capacity_is_how_many_run_at_once() -> None:
    async def test() -> None:
        running = most = 0

        async def count(task: Task) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1

        async with (
            service() as broker,
            connect(broker.urls[0]) as client,
            at_work(worker(broker, capacity=3, work=count)),
        ):
            for job in await client.submit_many([("work", b"")] * 20):
                await job.results()
        assert most == 3

    run(test)


def test_a_cancelled_job_stops_its_handler_with_the_reason() -> None:
    async def test() -> None:
        heard = asyncio.Event()
        reasons: list[str] = []

        async def wait(task: Task) -> None:
            try:
                await asyncio.sleep(DEADLINE_S)
            finally:
                reasons.append(task.revoked_because)
                heard.set()

        async with (
            service() as broker,
            connect(broker.urls[0], name="chief") as client,
            at_work(worker(broker, work=wait)) as running,
        ):
            job = await client.submit("work")
            await until_leased(client, job.number, by="anna")
            await job.cancel("not wanted any more")
            await heard.wait()
            assert not running.done()
            assert "not wanted any more" in reasons[0]

    run(test)


def test_a_handler_that_takes_too_long_is_stopped() -> None:
    async def test() -> None:
        cancelled = asyncio.Event()

        async def wait(task: Task) -> None:
            try:
                await asyncio.sleep(DEADLINE_S)
            finally:
                cancelled.set()

        async with service() as broker, connect(broker.urls[0]) as client, at_work(worker(broker, work=wait)):
            job = await client.submit("work", time_limit_s=0.05, retries=0)
            with pytest.raises(JobFailedError, match="took longer"):
                await job.results()
            await cancelled.wait()

    run(test)


# -- ends -------------------------------------------------------------------------------------------------------------


def test_handlers_that_hang_never_overrun_the_capacity() -> None:
    async def test() -> None:
        gate = threading.Event()
        began: list[int] = []

        def hang(task: Task) -> bytes:
            began.append(task.attempt)
            if task.kind == "broken":
                gate.wait(DEADLINE_S)
            return task.payload

        async with (
            service() as broker,
            connect(broker.urls[0]) as client,
            at_work(worker(broker, capacity=1, broken=hang, fine=hang)),
        ):
            job = await client.submit("broken", time_limit_s=0.05, retries=100, retry_delay_s=0.01)
            async for update in job:
                if update.what == "failure" and began:  # a busy machine may begin no handler within the limit
                    break
            other = await client.submit("fine", b"x")
            with pytest.raises(TimeoutError):
                await other.results(timeout_s=0.3)
            assert len(began) == 1, "nothing begins beside the handler that hangs"
            gate.set()
            assert (await other.results())[0].payload == b"x"

    run(test)


def test_stop_hands_tasks_back_at_once() -> None:
    async def test() -> None:
        async def wait(task: Task) -> None:
            await asyncio.sleep(DEADLINE_S)

        async with service() as broker, connect(broker.urls[0], name="chief") as client:
            async with at_work(worker(broker, work=wait)):
                job = await client.submit("work")
                await until_leased(client, job.number, by="anna")
            assert (await client.job_info(job.number))[1][0].state == "waiting"
            async with at_work(worker(broker, "bert", work=echo)):
                (result,) = await job.results()
            _, (task,) = await client.job_info(job.number)
            assert (result.worker, task.failures, task.losses, task.fence) == ("bert", 0, 0, 2)

    run(test)


def test_stop_may_let_running_tasks_end() -> None:
    async def test() -> None:
        gate = asyncio.Event()

        async def wait(task: Task) -> bytes:
            await gate.wait()
            return b"done"

        async with service() as broker, connect(broker.urls[0]) as client:
            made = worker(broker, capacity=1, work=wait)
            async with at_work(made) as running:
                first, second = await client.submit_many([("work", b"")] * 2)
                await until_leased(client, first.number, by="anna")
                made.stop(finish=True)
                await turns(10)
                assert not running.done()
                gate.set()
                await running
            assert (await first.results())[0].payload == b"done"
            assert (await client.job_info(second.number))[1][0].state == "waiting"

    run(test)


def test_a_second_stop_ends_the_wait() -> None:
    async def test() -> None:
        async def wait(task: Task) -> None:
            await asyncio.sleep(DEADLINE_S)

        async with service() as broker, connect(broker.urls[0]) as client:
            made = worker(broker, work=wait)
            async with at_work(made) as running:
                job = await client.submit("work")
                await until_leased(client, job.number, by="anna")
                made.stop(finish=True)
                made.stop()
                made.stop(finish=True)  # does not take it back
                await running
            assert (await client.job_info(job.number))[1][0].state == "waiting"

    run(test)


def test_cancelling_a_worker_hands_its_tasks_back() -> None:
    async def test() -> None:
        async def wait(task: Task) -> None:
            await asyncio.sleep(DEADLINE_S)

        async with service() as broker, connect(broker.urls[0]) as client:
            running = asyncio.create_task(worker(broker, work=wait).run())
            job = await client.submit("work")
            await until_leased(client, job.number, by="anna")
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (await client.job_info(job.number))[1][0].state == "waiting"

    run(test)


def test_a_thread_that_does_not_end_does_not_hold_the_worker_up() -> None:
    async def test() -> None:
        release = threading.Event()

        def stubborn(task: Task) -> bytes:
            release.wait(DEADLINE_S)
            return b"too late"

        async with service() as broker, connect(broker.urls[0]) as client:
            async with at_work(worker(broker, work=stubborn)):
                job = await client.submit("work")
                await until_leased(client, job.number, by="anna")
                began = time.monotonic()
            assert time.monotonic() - began < DEADLINE_S / 2
            release.set()
            async with at_work(worker(broker, "bert", work=echo)):
                assert (await job.results())[0].worker == "bert"

    run(test)


def test_a_worker_may_be_run_again() -> None:
    async def test() -> None:
        async with service() as broker, connect(broker.urls[0]) as client:
            made = worker(broker, work=echo)
            for payload in (b"one", b"two"):
                async with at_work(made):
                    (result,) = await (await client.submit("work", payload)).results()
                    assert result.payload == payload

    run(test)


def test_a_stop_before_the_beginning_counts() -> None:
    async def test() -> None:
        with UdpSocket("127.0.0.1") as silent:
            made = Worker(f"127.0.0.1:{silent.local_address[1]}")
            made.handles("work")(echo)
            made.stop()
            await made.run()  # no broker is there, but it does not try
            running = asyncio.create_task(made.run())
            ready = asyncio.ensure_future(made.ready())
            await turns(10)
            made.stop()
            await running
            with pytest.raises(UsageError, match="ended before it was ready"):
                await ready

    run(test)


# -- brokers ----------------------------------------------------------------------------------------------------------


def test_a_worker_started_before_its_broker_keeps_trying() -> None:
    async def test() -> None:
        port = free_port()
        made = Worker(f"127.0.0.1:{port}", name="anna")
        made.handles("work")(echo)
        running = asyncio.create_task(made.run())
        await turns(10)
        async with (
            Service(configuration(f"127.0.0.1:{port}")) as broker,
            connect(broker.urls[0]) as client,
        ):
            await made.ready()
            assert await (await client.submit("work")).results()
            made.stop()
            await running

    run(test)


def test_a_worker_goes_on_with_a_broker_that_was_restarted() -> None:
    async def test() -> None:
        broker = service()
        await broker.start()
        async with at_work(worker(broker, work=echo)):
            broker = await restarted(broker)
            async with connect(broker.urls[0]) as client:
                job = await client.submit("work", b"again")
                assert (await job.results())[0].payload == b"again"
        await broker.stop()

    run(test)


def test_a_worker_without_the_right_is_refused() -> None:
    access = Access(rules=(Rule(clients=("*",), allow=ALL, topics=("pictures/#",)),))

    async def test() -> None:
        async with service(access=access) as broker:
            made = worker(broker)
            made.handles("letters/write")(echo)
            with pytest.raises(AccessError, match="letters/write"):
                await made.run()

    run(test)


def test_a_worker_that_is_kicked_ends_with_the_reason() -> None:
    async def test() -> None:
        cancelled = asyncio.Event()

        async def wait(task: Task) -> None:
            try:
                await asyncio.sleep(DEADLINE_S)
            finally:
                cancelled.set()

        access = Access(rules=(Rule(clients=("*",), allow=ALL, topics=("#",)),))
        async with service(access=access) as broker, connect(broker.urls[0], name="chief") as client:
            running = asyncio.create_task(worker(broker, work=wait).run())
            job = await client.submit("work")
            await until_leased(client, job.number, by="anna")
            await client.kick("anna", reason="lazy")
            with pytest.raises(KickedError, match="lazy"):
                await running
            assert cancelled.is_set()
            assert (await client.job_info(job.number))[1][0].state == "waiting"

    run(test)


def test_a_name_is_one_worker() -> None:
    async def test() -> None:
        async with service() as broker, at_work(worker(broker, work=echo)):
            with pytest.raises(NameInUseError):
                await worker(broker, work=echo).run()

    run(test)


# -- with a client that is there --------------------------------------------------------------------------------------


def test_a_client_that_is_there_can_work_and_go_on_after() -> None:
    async def test() -> None:
        async with service() as broker, connect(broker.urls[0], name="both") as client:
            made = Worker()
            made.handles("work")(echo)
            for _ in range(2):
                running = asyncio.create_task(made.serve(client))
                await made.ready()
                assert (await (await client.submit("work", b"x")).results())[0].worker == "both"
                other = Worker()
                other.handles("work")(echo)
                with pytest.raises(UsageError, match="this client works already"):
                    await other.serve(client)
                made.stop()
                await running
            assert await client.ping() > 0
            job = await client.submit("work")
            assert job.agreed is None

    run(test)


def test_the_end_of_the_client_is_the_end_of_its_work() -> None:
    async def test() -> None:
        async with service() as broker:
            client = await connect(broker.urls[0])
            made = Worker()
            made.handles("work")(echo)
            running = asyncio.create_task(made.serve(client))
            await made.ready()
            await client.close()
            with pytest.raises(UsageError, match="the client is closed"):
                await running

    run(test)


# -- invalid arguments ------------------------------------------------------------------------------------------------


def test_invalid_arguments_are_refused_at_once() -> None:
    wrong: list[Any] = [0, -1, MAX_CAPACITY + 1, 1.5, True]
    for capacity in wrong:
        with pytest.raises(UsageError, match="capacity"):
            Worker(capacity=capacity)
    with pytest.raises(AddressError):
        Worker("tcp://x")
    with pytest.raises(ConfigurationError):
        Worker(name="")
    with pytest.raises(TypeError):
        Worker(colour="green")  # type: ignore[call-arg]
    made = Worker()
    made.handles("work")(echo)
    with pytest.raises(UsageError, match="already"):
        made.handles("work", command=["true"])
    with pytest.raises(BadKindError):
        made.handles("a/#")  # before a function follows
    without_brackets: Any = made.handles
    with pytest.raises(UsageError, match="name the kind of work"):
        without_brackets(echo)

    async def without_handlers() -> None:
        with pytest.raises(UsageError, match="a worker without handlers"):
            await Worker().run()

    run(without_handlers)


def test_a_running_worker_is_not_changed_or_run_twice() -> None:
    async def test() -> None:
        async with service() as broker:
            made = worker(broker, work=echo)
            async with at_work(made):
                with pytest.raises(UsageError, match="name all handlers before"):
                    made.handles("other")
                with pytest.raises(UsageError, match="runs already"):
                    await made.run()

    run(test)


# -- as a program -----------------------------------------------------------------------------------------------------

PROGRAM = """
import sys, time
import godwit

worker = godwit.Worker(sys.argv[1], name="anna", capacity=3)

@worker.handles("in-thread")
def in_thread(task):
    time.sleep(60)

@worker.handles("in-loop")
async def in_loop(task):
    import asyncio
    await asyncio.sleep(60)

worker.handles("command", command=["sleep", "60"])
worker.run_forever()
print("bye", flush=True)
"""

STUBBORN_PROGRAM = """
import asyncio, sys
import godwit
from godwit.net import tasks

tasks.CLOSE_TIMEOUT_S = float(sys.argv[2])
worker = godwit.Worker(sys.argv[1], name="anna")

@worker.handles("work")
async def stubborn(task):
    print("begun", flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            print("no", flush=True)

worker.run_forever()
print("bye", flush=True)
"""


@pytest.mark.parametrize(("patience_s", "second"), [(0.2, False), (60.0, True)], ids=["patience", "second Ctrl-C"])
def test_a_handler_that_swallows_its_cancel_does_not_keep_the_program(
    patience_s: float, second: bool, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(STUBBORN_PROGRAM)

    async def test() -> None:
        async with service() as broker, connect(broker.urls[0]) as client:
            process = subprocess.Popen(
                [sys.executable, str(program), broker.urls[0], str(patience_s)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert process.stdout is not None
            try:
                job = await client.submit("work")
                assert await asyncio.to_thread(process.stdout.readline) == "begun\n"
                process.send_signal(signal.SIGINT)
                assert await asyncio.to_thread(process.stdout.readline) == "no\n"
                if second:
                    while (await client.job_info(job.number))[1][0].state != "waiting":  # handed back: it waits now
                        await asyncio.sleep(0.01)
                    process.send_signal(signal.SIGINT)
                out, err = await asyncio.to_thread(process.communicate, None, DEADLINE_S)
                assert (out.splitlines()[-1], process.returncode) == ("bye", 0)
                assert ("task 0 of job 1 ('work'); let CancelledError out of them" in err) is not second
            finally:
                process.kill()
                process.wait()

    run(test, deadline_s=2 * DEADLINE_S)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_ctrl_c_hands_tasks_back_at_once_and_ends_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    async def test() -> None:
        async with service() as broker, connect(broker.urls[0]) as client:
            process = subprocess.Popen(
                [sys.executable, str(program), broker.urls[0]],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
            try:
                jobs = [await client.submit(kind) for kind in ("in-thread", "in-loop", "command")]
                for job in jobs:
                    await until_leased(client, job.number, by="anna")
                process.send_signal(number)
                out, err = await asyncio.to_thread(process.communicate, None, DEADLINE_S)
                assert (out, err, process.returncode) == ("bye\n", "", 0)
                for job in jobs:
                    _, (task,) = await client.job_info(job.number)
                    assert (task.state, task.failures, task.losses) == ("waiting", 0, 0)
            finally:
                process.kill()
                process.wait()

    run(test, deadline_s=2 * DEADLINE_S)


async def asynchronous(task: Task, extra: int = 0) -> bytes:
    return task.payload


def plain(task: Task) -> bytes:
    return task.payload


class AsyncObject:
    async def __call__(self, task: Task) -> bytes:
        return task.payload


class PlainObject:
    def __call__(self, task: Task) -> bytes:
        return task.payload


@pytest.mark.parametrize("function", [asynchronous, functools.partial(asynchronous, extra=1), AsyncObject()])
def test_what_runs_in_the_event_loop(function: Any) -> None:
    handlers = Handlers()
    assert handlers.add("work", function) is function
    assert handlers.by_kind["work"].is_async


@pytest.mark.parametrize("function", [plain, lambda task: None, PlainObject(), len])
def test_what_runs_in_a_thread(function: Any) -> None:
    handlers = Handlers()
    handlers.add("work", function)
    assert not handlers.by_kind["work"].is_async


def test_a_command_is_a_list_of_words() -> None:
    handlers = Handlers()
    handlers.add_command("work", ["wc", "-c"])
    assert handlers.by_kind["work"].is_async
    wrong: list[Any] = ["wc -c", [], ["wc", 3]]
    for command in wrong:
        with pytest.raises(UsageError, match="give a list of words"):
            handlers.add_command("other", command)


def test_where_there_are_no_process_groups_there_are_no_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "killpg")
    with pytest.raises(UsageError, match="give a function that runs it instead"):
        Handlers().add_command("work", ["wc", "-c"])


def test_a_kind_has_one_handler() -> None:
    handlers = Handlers()
    handlers.add("work", plain)
    with pytest.raises(UsageError, match="there is a handler for 'work' already"):
        handlers.add("work", asynchronous)
    with pytest.raises(UsageError, match="already"):
        handlers.add_command("work", ["true"])


def test_what_cannot_be() -> None:
    handlers = Handlers()
    with pytest.raises(UsageError, match=r"name the kind of work, as in @worker.handles\('kind'\)"):
        handlers.check(plain)  # type: ignore[arg-type]
    no_function: Any = b"no function"
    with pytest.raises(UsageError, match="give a function"):
        handlers.add("work", no_function)
    for kind in ("", "a/+", "$sys", "x" * (MAX_KIND_BYTES + 1)):
        with pytest.raises(BadKindError):
            handlers.add(kind, plain)
    for number in range(MAX_KINDS):
        handlers.add(f"work/{number}", plain)
    with pytest.raises(UsageError, match=f"more than {MAX_KINDS} kinds"):
        handlers.add("one/more", plain)
