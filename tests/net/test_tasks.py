"""Tasks from their lease to their report: in the event loop and in threads, revoked, handed back, and all at once."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
import warnings
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest
from tests.net.running import both_loops, run, turns
from tests.net.work_stands import Bench, lease

from godwit.client.batches import Payload
from godwit.client.events import Reported, VolunteerAccepted, VolunteerRefused
from godwit.errors import AccessError, TaskFailedError, UsageError
from godwit.limits import MAX_JOB_PAYLOAD_BYTES
from godwit.net import tasks
from godwit.net.tasks import HandlerThreads, LoopCalls, Task, TaskFailed, failure_text, to_result
from godwit.wire.control_base import Code


async def echo(task: Task) -> bytes:
    return task.payload


def stubborn_handler(gate: asyncio.Event, cancels: list[int]) -> Callable[[Task], Awaitable[None]]:
    """Return a handler that ends when the gate opens, and records its cancellations."""

    async def stubborn(task: Task) -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                cancels.append(task.job)

    return stubborn


# -- results ----------------------------------------------------------------------------------------------------------


@both_loops
def test_what_a_handler_gives_is_the_result(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def wait(task: Task) -> bytearray:
        await asyncio.sleep(0.001)
        return bytearray(b"later")

    def text(task: Task) -> str:
        return f"für {task.controller}"

    async def nothing(task: Task) -> None:
        return None

    async def test() -> None:
        bench = Bench(echo=echo, wait=wait, text=text, nothing=nothing)
        assert bench.core.said == [("volunteer", ["echo", "wait", "text", "nothing"], 100)]
        bench.give(1, kind="echo", payload=b"same")
        bench.give(2, kind="wait")
        bench.give(3, kind="text")
        bench.give(4, kind="nothing")
        assert sorted(await bench.until(4)) == [
            ("finish", 1, b"same"),
            ("finish", 2, b"later"),
            ("finish", 3, "für controller".encode()),
            ("finish", 4, b""),
        ]

    run(test, loop)


def test_what_is_no_result_is_a_failure() -> None:
    async def no_json(task: Task) -> set[int]:
        return {7}

    def too_much(task: Task) -> bytes:
        return bytes(MAX_JOB_PAYLOAD_BYTES + 1)

    async def test() -> None:
        bench = Bench(no_json=no_json, too_much=too_much)
        bench.give(1, kind="no_json")
        bench.give(2, kind="too_much")
        (_, _, first, _), (_, _, second, _) = sorted(await bench.until(2))
        assert first.startswith("UsageError: a result of type set: give bytes or a text, or a dict, list, number, ")
        assert second.startswith(f"RecordTooLargeError: the result of a task has {MAX_JOB_PAYLOAD_BYTES + 1} bytes, ")

    run(test)


def test_many_handlers_that_return_at_once_share_a_task_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_RUN_S", 60.0)  # on a busy machine

    async def test() -> None:
        runners: set[object] = set()

        async def quick(task: Task) -> None:
            runners.add(asyncio.current_task())

        bench = Bench(work=quick)
        bench.give(*range(1, 101))
        assert [job for _, job, _ in await bench.until(100)] == list(range(1, 101))
        assert len(runners) == 1

    run(test)


def test_handlers_that_wait_run_side_by_side() -> None:
    async def test() -> None:
        gate = asyncio.Event()
        started: list[int] = []

        async def slow(task: Task) -> None:
            started.append(task.job)
            async with asyncio.timeout(20):  # needs a task of the event loop around it
                await gate.wait()

        bench = Bench(work=slow)
        bench.give(1, 2, 3)
        await turns(10)
        bench.give(4)
        await turns(10)
        assert started == [1, 2, 3, 4]
        gate.set()
        assert len(await bench.until(4)) == 4

    run(test)


def test_what_a_handler_leaves_in_its_context_is_not_seen_by_the_next() -> None:
    trace: contextvars.ContextVar[int] = contextvars.ContextVar("trace", default=0)

    async def test() -> None:
        seen: list[int] = []

        async def leave(task: Task) -> None:
            seen.append(trace.get())
            trace.set(task.job)

        bench = Bench(work=leave)
        bench.give(*range(1, 6))
        await bench.until(5)
        assert seen == [0] * 5

    run(test)


def test_the_event_loop_has_its_turn_between_handlers_that_never_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_RUN_S", -1.0)

    async def test() -> None:
        order: list[object] = []

        async def note(task: Task) -> None:
            order.append(task.job)
            asyncio.get_running_loop().call_soon(order.append, "loop")

        bench = Bench(work=note)
        bench.give(1, 2, 3)
        await bench.until(3)
        assert order == [1, "loop", 2, "loop", 3, "loop"]

    run(test)


# -- failures ---------------------------------------------------------------------------------------------------------


def test_whatever_a_handler_raises_is_a_failure() -> None:
    class OddError(BaseException):
        pass

    async def fails(task: Task) -> bytes:
        match task.job:
            case 1:
                raise ValueError("no such picture")
            case 2:
                raise TaskFailed("it is damaged", final=True)
            case 3:
                raise TaskFailed("try later")
            case 4:
                raise asyncio.CancelledError  # it was not cancelled from outside
            case 5:
                raise OddError
        return b"fine"

    async def test() -> None:
        bench = Bench(work=fails)
        bench.give(1, 2, 3, 4, 5, 6)
        assert await bench.until(6) == [
            ("fail", 1, "ValueError: no such picture", False),
            ("fail", 2, "it is damaged", True),
            ("fail", 3, "try later", False),
            ("fail", 4, "CancelledError", False),
            ("fail", 5, "OddError", False),
            ("finish", 6, b"fine"),
        ]

    run(test)


def test_whatever_a_handler_in_a_thread_raises_is_a_failure() -> None:
    def fails(task: Task) -> bytes:
        if task.job == 1:
            raise SystemExit(3)
        raise TaskFailed("never", final=True)

    async def test() -> None:
        bench = Bench(work=fails)
        bench.give(1, 2)
        assert sorted(await bench.until(2)) == [("fail", 1, "SystemExit: 3", False), ("fail", 2, "never", True)]

    run(test)


def test_a_thread_that_cannot_be_had_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        bench = Bench(work=lambda task: b"done")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
            bench.give(1)
        bench.give(2)
        assert await bench.until(2) == [
            ("fail", 1, "RuntimeError: can't start new thread", False),
            ("finish", 2, b"done"),
        ]

    run(test)


@both_loops
@pytest.mark.parametrize("wish", [KeyboardInterrupt, SystemExit])
def test_a_handler_may_end_the_program_and_its_task_goes_back(
    wish: type[BaseException], loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    benches: list[Bench] = []

    async def ends(task: Task) -> None:
        raise wish

    async def test() -> None:
        bench = Bench(work=ends)
        benches.append(bench)
        bench.give(1, 2)
        await asyncio.sleep(20)

    with pytest.raises(wish):
        run(test, loop)
    assert benches[0].core.said[1:] == [("give back", 1), ("withdraw",), ("give back", 2)]


def test_a_task_that_the_event_loop_cancels_goes_back() -> None:
    """As when asyncio.run ends."""

    async def test() -> None:
        mine: list[asyncio.Task[object] | None] = []

        async def wait(task: Task) -> None:
            mine.append(asyncio.current_task())
            await asyncio.sleep(20)

        bench = Bench(work=wait)
        bench.give(1)
        await turns()
        (runner,) = mine
        assert runner is not None
        runner.cancel()
        assert await bench.until(1) == [("give back", 1)]

    run(test)


# -- revoked ----------------------------------------------------------------------------------------------------------


def test_a_revoked_handler_is_cancelled_and_reports_nothing() -> None:
    async def test() -> None:
        heard: list[tuple[bool, str]] = []

        async def wait(task: Task) -> None:
            try:
                await asyncio.sleep(20)
            finally:
                heard.append((task.is_revoked, task.revoked_because))

        bench = Bench(work=wait)
        bench.give(1, 2)
        await turns(10)
        bench.revoke(1, "it took too long")
        bench.revoke(1, "twice does nothing")
        await turns(10)
        assert heard == [(True, "it took too long")]
        assert bench.reports == []
        assert list(bench.bench._tasks) == [bench.leases[2]]

    run(test)


def test_a_handler_that_does_not_heed_its_cancel_reports_nothing() -> None:
    async def test() -> None:
        async def stubborn(task: Task) -> bytes:
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                task.progress(0.5)
            return b"too late"

        bench = Bench(stubborn=stubborn, echo=echo)
        bench.give(1, kind="stubborn")
        await turns(10)
        bench.revoke(1)
        bench.give(2, kind="echo")
        assert await bench.until(1) == [("finish", 2, b"")]

    run(test)


def test_a_task_that_is_revoked_before_it_begins_never_begins() -> None:
    async def test() -> None:
        began: list[int] = []

        async def note(task: Task) -> None:
            began.append(task.job)

        bench = Bench(work=note)
        bench.give(1, 2, 3)
        bench.revoke(2)
        await bench.until(2)
        assert began == [1, 3]

    run(test)


def test_a_handler_that_revokes_itself_does_not_harm_the_next() -> None:
    """Its calls may bring the client's events about; the cancel comes at the next await, which may be another's."""

    async def test() -> None:
        async def work(task: Task) -> bytes:
            if task.job == 1:
                bench.revoke(1)
            else:
                await asyncio.sleep(0.001)
            return b"done"

        bench = Bench(work=work)
        bench.give(1, 2, 3)
        assert await bench.until(2) == [("finish", 2, b"done"), ("finish", 3, b"done")]

    run(test)


def test_a_thread_can_see_that_its_task_was_revoked() -> None:
    async def test() -> None:
        begun, ended = threading.Event(), threading.Event()

        def work(task: Task) -> bytes:
            begun.set()
            while not task.is_revoked:
                time.sleep(0.001)
            ended.set()
            return b"too late"

        bench = Bench(work=work, echo=echo)
        bench.give(1)
        assert await asyncio.to_thread(begun.wait, 20)
        bench.revoke(1)
        assert await asyncio.to_thread(ended.wait, 20)
        bench.give(2, kind="echo")
        assert await bench.until(1) == [("finish", 2, b"")]

    run(test)


# -- places -----------------------------------------------------------------------------------------------------------


def test_a_thread_that_does_not_end_keeps_its_place() -> None:
    """However many attempts of a broken handler hang, no more threads are there than the worker has capacity."""

    async def test() -> None:
        gate, begun = threading.Event(), threading.Semaphore(0)

        def hang(task: Task) -> None:
            begun.release()
            gate.wait(20)

        bench = Bench(capacity=2, work=hang)
        before = set(threading.enumerate())
        bench.give(1, 2)
        assert await asyncio.to_thread(begun.acquire, True, 20)
        assert await asyncio.to_thread(begun.acquire, True, 20)
        bench.revoke(1)
        bench.give(3)  # the broker, which does not know yet, fills the place
        assert bench.core.said[1:] == [("volunteer", ["work"], 1), ("give back", 3)]
        bench.revoke(2)
        bench.give(4)
        assert bench.core.said[3:] == [("withdraw",), ("give back", 4)]
        new = [thread.name for thread in set(threading.enumerate()) - before]
        assert sorted(name for name in new if name.startswith("godwit")) == ["godwit-handler-1", "godwit-handler-2"]
        gate.set()
        while bench.core.said[-1][0] != "volunteer":
            await asyncio.sleep(0.001)
        assert bench.core.said[-1] == ("volunteer", ["work"], 2)
        bench.give(5)
        assert (await bench.until(3))[-1] == ("finish", 5, b"")

    run(test)


def test_a_handler_that_ends_soon_after_its_task_was_revoked_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_LINGER_S", 0.01)

    async def test() -> None:
        async def wait(task: Task) -> None:
            await asyncio.sleep(20)

        bench = Bench(capacity=1, work=wait)
        bench.give(1)
        await turns(10)
        bench.revoke(1)
        await asyncio.sleep(0.05)
        assert bench.core.said[1:] == []

    run(test)


def test_an_async_handler_that_does_not_end_keeps_its_place_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_LINGER_S", 0.01)

    async def test() -> None:
        gate = asyncio.Event()

        async def stubborn(task: Task) -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(20)
            await gate.wait()

        bench = Bench(capacity=3, work=stubborn)
        bench.give(1)
        await turns(10)
        bench.revoke(1)
        while len(bench.core.said) < 2:
            await asyncio.sleep(0.001)
        gate.set()
        while len(bench.core.said) < 3:
            await asyncio.sleep(0.001)
        assert bench.core.said[1:] == [("volunteer", ["work"], 2), ("volunteer", ["work"], 3)]

    run(test)


def test_a_result_that_waits_for_room_has_no_handler_that_could_linger() -> None:
    async def test() -> None:
        async def work(task: Task) -> None:
            if task.job == 2:
                await asyncio.sleep(0.01)

        bench = Bench(room=0, capacity=2, work=work)
        bench.give(1, 2)
        await turns(10)
        bench.revoke(1)
        assert not bench.bench._lingering
        bench.core.room = 1
        assert await bench.until(1) == [("finish", 2, b"")], "the runner that had done the first was not cancelled"

    run(test)


# -- progress ---------------------------------------------------------------------------------------------------------


def test_progress_from_the_loop_and_from_threads() -> None:
    async def asynchronous(task: Task) -> None:
        task.progress(0.25, "begun")
        await asyncio.to_thread(task.progress, 0.5)

    def plain(task: Task) -> None:
        for step in range(1001):
            task.progress(step / 1000)

    async def test() -> None:
        bench = Bench(asynchronous=asynchronous, plain=plain)
        bench.give(1, kind="asynchronous")
        assert await bench.until(3) == [("step", 1, 0.25, "begun"), ("step", 1, 0.5, ""), ("finish", 1, b"")]
        bench.core.said.clear()
        bench.give(2, kind="plain")
        while ("finish", 2, b"") not in bench.reports:
            await asyncio.sleep(0.001)
        steps = [report[2] for report in bench.reports[:-1]]
        assert steps == sorted(steps)
        assert steps[-1] == 1.0, "the newest is never lost"
        assert bench.reports[-1] == ("finish", 2, b"")

    run(test)


# -- the end ----------------------------------------------------------------------------------------------------------


def test_it_tells_once_when_the_broker_knows() -> None:
    async def test() -> None:
        ready: list[bool] = []
        bench = Bench(on_ready=lambda: ready.append(True), work=echo)
        before = bench.bench.is_ready
        bench.bench.on_event(VolunteerAccepted(30.0))
        bench.bench.on_event(VolunteerAccepted(30.0))
        assert (before, bench.bench.is_ready, ready) == (False, True, [True])

    run(test)


def test_a_refused_volunteer_hands_back_what_it_has_and_fails() -> None:
    """As when its rights were changed during a break."""

    async def test() -> None:
        bench = Bench(work=echo)
        bench.give(1)
        bench.bench.on_event(VolunteerRefused(Code.NOT_ALLOWED, "anna may not work"))
        with pytest.raises(AccessError, match="anna may not work"):
            await bench.bench.wait_until_idle()
        await turns(10)
        assert bench.reports == [("give back", 1)]

    run(test)


def test_after_a_withdrawal_what_runs_may_end_and_nothing_begins() -> None:
    async def test() -> None:
        gate = asyncio.Event()

        async def wait(task: Task) -> bytes:
            await gate.wait()
            return b"done"

        bench = Bench(work=wait)
        bench.give(1)
        await turns()
        bench.bench.withdraw()
        bench.bench.withdraw()
        bench.give(2)
        bench.give(3, kind="unknown")
        idle = asyncio.create_task(bench.bench.wait_until_idle())
        await turns(10)
        assert not idle.done()
        gate.set()
        await idle
        assert bench.core.said[1:] == [("withdraw",), ("give back", 2), ("give back", 3), ("finish", 1, b"done")]

    run(test)


def test_handing_back_goes_first_and_handlers_end_after() -> None:
    async def test() -> None:
        order: list[object] = []

        async def wait(task: Task) -> None:
            try:
                await asyncio.sleep(20)
            finally:
                await asyncio.sleep(0.001)
                order.append((list(bench.reports), task.revoked_because))

        bench = Bench(work=wait)
        bench.give(1)
        await turns()
        bench.bench.return_all("enough")
        await bench.bench.wait_until_idle()
        await bench.bench.close()
        assert order == [([("give back", 1)], "enough")]

    run(test)


def test_a_handler_that_never_ends_is_abandoned_after_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "CLOSE_TIMEOUT_S", 0.05)

    async def test() -> None:
        gate = asyncio.Event()
        bench = Bench(work=stubborn_handler(gate, []))
        bench.give(7)
        await turns(10)
        (runner,) = bench.bench._runners
        bench.bench.return_all("enough")
        with pytest.warns(RuntimeWarning, match=r"task 0 of job 7 \('work'\); let CancelledError out of them"):
            await bench.bench.close()
        assert runner not in asyncio.all_tasks(), "or the end of the event loop would wait for it"
        gate.set()
        await runner

    run(test)


def test_a_hurried_close_does_not_wait() -> None:
    """As after a second Ctrl-C: handlers are cancelled once more, so that commands are killed."""

    async def test() -> None:
        cancels: list[int] = []

        async def slow(task: Task) -> None:
            for _ in range(2):
                try:
                    await asyncio.sleep(20)
                except asyncio.CancelledError:
                    cancels.append(task.job)

        bench = Bench(work=slow)
        bench.give(1)
        await turns(10)
        bench.bench.return_all("enough")
        closing = asyncio.create_task(bench.bench.close())
        await turns(10)
        assert cancels == [1]
        closing.cancel()
        await asyncio.wait([closing])
        assert (closing.cancelled(), cancels) == (True, [1, 1])
        hurried = Bench(work=slow)
        hurried.give(2)
        await turns(10)
        hurried.bench.return_all("enough")
        await turns(10)
        await hurried.bench.close(is_hurried=True)
        assert cancels == [1, 1, 2, 2]

    run(test)


def test_a_hurried_close_does_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a second Ctrl-C while the last reports are flushed: a handler has had no time to end."""
    monkeypatch.setattr(tasks, "HURRIED_CLOSE_TIMEOUT_S", 0.01)

    async def test() -> None:
        gate = asyncio.Event()
        cancels: list[int] = []
        bench = Bench(work=stubborn_handler(gate, cancels))
        bench.give(7)
        await turns(10)
        (runner,) = bench.bench._runners
        bench.bench.return_all("enough")
        await turns(10)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            await bench.bench.close(is_hurried=True)
        assert (caught, cancels, runner.done()) == ([], [7, 7], False)
        gate.set()
        await runner

    run(test)


def test_the_end_of_the_client_ends_everything() -> None:
    async def test() -> None:
        bench = Bench(work=lambda task: time.sleep(0.01), wait=echo)
        bench.give(1)
        bench.bench.on_client_ended(UsageError("the client is closed"))
        with pytest.raises(UsageError, match="closed"):
            await bench.bench.wait_until_idle()
        bench.bench.return_all("nothing is left")
        await bench.bench.close()
        assert bench.reports == []

    run(test)


def test_results_wait_for_room_in_the_client() -> None:
    async def test() -> None:
        bench = Bench(room=1, work=echo)
        bench.give(1, 2, 3, 4, payload=b"x")
        await turns(10)
        assert bench.reports == [("finish", 1, b"x")]
        bench.revoke(3)
        bench.core.room = 1
        bench.bench.on_room()
        assert bench.reports[1:] == [("finish", 2, b"x")]
        bench.core.room = 5
        bench.bench.on_room()
        assert bench.reports[2:] == [("finish", 4, b"x")]
        assert not bench.bench._tasks
        bench.bench.on_event(Reported(bench.leases[4]))  # nothing follows from it

    run(test)


class Steps:
    def __init__(self) -> None:
        self.seen: list[tuple[float | None, str]] = []

    def on_progress(self, task: Task) -> None:
        self.seen.append(task._step)


def test_the_properties_of_a_task() -> None:
    task = Task(Steps().on_progress, lease(7, kind="resize", payload=b"picture", failures=2), "anna")
    assert (task.job, task.number, task.fence, task.kind, task.payload) == (7, 0, 1, "resize", b"picture")
    assert (task.controller, task.attempt, task.agreed, task.worker) == ("controller", 3, 1, "anna")
    assert not task.is_revoked
    assert repr(task) == "<Task 0 of job 7, 'resize', attempt 3>"


def test_progress_lies_between_0_and_1() -> None:
    steps = Steps()
    task = Task(steps.on_progress, lease(), "anna")
    task.progress(0)
    task.progress(sum([0.1] * 10) + 1e-9, "all but done")
    task.progress(None, "only a note")
    assert steps.seen == [(0.0, ""), (1.0, "all but done"), (None, "only a note")]
    for wrong in (-0.1, 1.1, 50, float("nan")):
        with pytest.raises(UsageError, match="it must be between 0 and 1"):
            task.progress(wrong)
    assert len(steps.seen) == 3


@pytest.mark.parametrize(
    ("given", "travels"),
    [
        (b"x", b"x"),
        (bytearray(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
        ("ä", "ä".encode()),
        (None, b""),
        (b"", b""),
        ({"a": [1, None]}, b'{"a":[1,null]}'),
        (False, b"false"),
    ],
)
def test_results(given: Payload, travels: bytes) -> None:
    assert to_result(given) == travels


@pytest.mark.parametrize("wrong", [(1,), {1}, [b"x"], {"a": object()}, float("nan"), object()])
def test_what_is_no_result(wrong: Any) -> None:
    with pytest.raises(UsageError, match=f"a result of type {type(wrong).__name__}"):
        to_result(wrong)


def test_failures_in_words() -> None:
    class WordlessError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert TaskFailed is TaskFailedError
    assert failure_text(TaskFailed("the picture is damaged", final=True)) == "the picture is damaged"
    assert failure_text(TaskFailed("")) == "failed"
    assert failure_text(KeyError("x")) == "KeyError: 'x'"
    assert failure_text(TimeoutError()) == "TimeoutError"
    assert failure_text(WordlessError()) == "WordlessError: its text cannot be shown: RuntimeError"


def test_calls_cross_in_order_and_none_is_lost() -> None:
    async def test() -> None:
        crossing = LoopCalls(asyncio.get_running_loop())
        seen: list[tuple[int, int]] = []
        where: set[int] = set()
        done = asyncio.Event()

        def note(thread: int, number: int) -> None:
            seen.append((thread, number))
            where.add(threading.get_ident())
            if len(seen) == 4000:
                done.set()

        def send(thread: int) -> None:
            assert not crossing.is_in_loop
            for number in range(1000):
                crossing.call(note, thread, number)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        await done.wait()
        for thread in threads:
            thread.join()
        assert crossing.is_in_loop
        assert where == {threading.get_ident()}
        for thread_number in range(4):
            assert [number for found, number in seen if found == thread_number] == list(range(1000))

    run(test)


def test_calls_for_a_closed_loop_are_dropped() -> None:
    loop = asyncio.new_event_loop()
    crossing = LoopCalls(loop)
    loop.close()
    crossing.call(print, "dropped")


def test_threads_are_used_again() -> None:
    threads = HandlerThreads(10)
    names: list[str] = []
    for _ in range(5):
        done = threading.Event()

        def work(done: threading.Event = done) -> None:
            names.append(threading.current_thread().name)
            done.set()

        threads.execute(work)
        assert done.wait(20)
        while threads._busy:  # until the thread is back
            time.sleep(0.001)
    assert set(names) == {"godwit-handler-1"}
    threads.stop()


def test_a_system_without_more_threads_is_made_do_with(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = HandlerThreads(10)
    done = threading.Event()
    gate = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="can't start"):
            threads.execute(done.set)
    threads.execute(lambda: gate.wait(20))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        threads.execute(done.set)
    assert not done.is_set()
    gate.set()
    assert done.wait(20)
    threads.stop()


def test_what_is_there_at_once_runs_at_once_and_then_the_threads_end() -> None:
    threads = HandlerThreads(10)
    together = threading.Barrier(4)
    mine: list[threading.Thread] = []

    def work() -> None:
        mine.append(threading.current_thread())
        together.wait(20)

    for _ in range(3):
        threads.execute(work)
    together.wait(20)
    threads.stop()
    assert len(set(mine)) == 3
    for thread in mine:
        assert thread.daemon, "a program that ends does not wait for a handler"
        thread.join(20)
        assert not thread.is_alive()


def test_no_more_threads_than_allowed() -> None:
    threads = HandlerThreads(2)
    gate, done = threading.Event(), threading.Semaphore(0)
    mine: set[str] = set()

    def work() -> None:
        gate.wait(20)
        mine.add(threading.current_thread().name)
        done.release()

    for _ in range(5):
        threads.execute(work)
    gate.set()
    for _ in range(5):
        assert done.acquire(timeout=20)
    assert mine <= {"godwit-handler-1", "godwit-handler-2"}
    threads.stop()
