"""Which event loop runs, and how it ends."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from tests.net.interrupting import Interrupter
from tests.net.running import both_loops, run

from godwit.errors import ForkedError, ReplyTimeoutError, UsageError
from godwit.net import loop
from godwit.net.loop import LoopThread, TimeLimit, completes, within
from godwit.net.publisher import AsyncPublisher


async def add_reader_works() -> bool:
    running = asyncio.get_running_loop()
    one, other = socket.socketpair()
    with one, other:
        seen = asyncio.Event()
        running.add_reader(one.fileno(), seen.set)
        other.send(b"!")
        await asyncio.wait_for(seen.wait(), DEADLINE_S)
        running.remove_reader(one.fileno())
    return True


def test_it_can_watch_a_socket() -> None:
    assert loop.run(add_reader_works())


def test_without_uvloop_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop.run(add_reader_works())
    made = loop.new_event_loop()
    assert isinstance(made, asyncio.SelectorEventLoop)
    made.close()


class Flushing(AsyncPublisher):
    """A publisher whose messages are confirmed by a reply."""

    def __init__(self, reply: Callable[[], Coroutine[Any, Any, str]]) -> None:
        self._reply = reply

    async def _flush(self) -> None:
        assert await self._reply() == "confirmed"


@both_loops
def test_a_reply_that_has_arrived_counts_although_the_limit_has_passed(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """The limit is due in the turn in which the loop finds the packet, as after a turn that was longer than it."""

    async def test() -> None:
        running = asyncio.get_running_loop()
        one, other = socket.socketpair()
        with one, other:

            async def reply() -> str:
                arrived: asyncio.Future[str] = running.create_future()

                def read() -> None:
                    received = one.recv(9).decode()
                    if not arrived.done():
                        arrived.set_result(received)

                running.add_reader(one.fileno(), read)
                try:
                    other.send(b"confirmed")
                    return await arrived
                finally:
                    running.remove_reader(one.fileno())

            assert await within(reply(), 0.0, "no reply", "try again") == "confirmed"
            async with TimeLimit(0) as limit:
                assert await reply() == "confirmed"
            assert not limit.expired()
            await Flushing(reply).flush(0.0)

    run(test, loop)


@both_loops
def test_a_limit_ends_what_gets_no_reply(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    steps: list[str] = []

    async def waiting() -> None:
        steps.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("cancelled")

    async def test() -> None:
        with pytest.raises(ReplyTimeoutError, match=r"^no reply within 0 s: try again$"):
            await within(waiting(), 0, "no reply", "try again")
        assert steps == ["begun", "cancelled"]
        with pytest.raises(TimeoutError):
            async with TimeLimit(0.001) as limit:
                await waiting()
        assert limit.expired()
        with pytest.raises(TimeoutError, match="its own"):
            await within(_failing(TimeoutError("its own")), 60, "no reply", "try again")
        async with TimeLimit(None):  # no limit
            await asyncio.sleep(0)

    run(test, loop)


async def _failing(error: Exception) -> None:
    raise error


async def cancelled(clean_up: Callable[[], Coroutine[Any, Any, object]]) -> object:
    """What a clean-up returns in a task that was cancelled."""
    found: list[object] = []
    begun = asyncio.Event()

    async def main() -> None:
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            found.append(await clean_up())

    task = asyncio.get_running_loop().create_task(main())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return found[0]


@both_loops
def test_a_clean_up_has_an_end_also_in_a_cancelled_task(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("endless")

    async def failing() -> None:
        raise OSError("no")

    async def test() -> None:
        assert await cancelled(lambda: completes(endless(), 0.01)) is False
        assert await cancelled(lambda: completes(asyncio.sleep(0), 60)) is True
        assert await completes(asyncio.sleep(0), 60)
        assert not await completes(endless(), 0)
        with pytest.raises(OSError, match="no"):
            await completes(failing(), 60)
        await asyncio.sleep(0)
        assert ended == ["endless"] * 2

    run(test, loop)


INTERRUPTED = """
import asyncio, os, signal
from godwit.net.loop import run

async def main():
    asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGINT)
    try:
        await asyncio.sleep(30)
    finally:
        print("tidied up")

try:
    run(main())
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent in another way there")
def test_an_interrupt_lets_the_coroutine_tidy_up() -> None:
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert (result.stdout, result.stderr) == ("tidied up\ninterrupted\n", "")


def test_a_broker_looks_for_garbage_rarely() -> None:
    script = (
        "import gc; from godwit.net.loop import collect_garbage_rarely; collect_garbage_rarely(); "
        "print(gc.isenabled(), gc.get_threshold()[0] > 10_000, gc.get_freeze_count() > 1000)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "True True True\n"


def test_a_broker_hands_over_between_its_threads_quickly() -> None:
    script = (
        "import sys; from godwit.net.loop import switch_threads_quickly; switch_threads_quickly(); "
        "print(sys.getswitchinterval() < 0.001)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "True\n"


DEADLINE_S = 120.0


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def fail() -> None:
    raise ValueError("broken")


async def for_ever(cancelled: threading.Event) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.set()
        raise


def test_results_and_errors_come_back() -> None:
    thread = LoopThread()
    assert thread.call(double(4)) == 8
    with pytest.raises(ValueError, match="broken"):
        thread.call(fail())
    thread.stop()


def test_a_time_limit_cancels() -> None:
    thread = LoopThread()
    cancelled = threading.Event()
    with pytest.raises(TimeoutError):
        thread.call(for_ever(cancelled), 0.01)
    assert cancelled.wait(DEADLINE_S)
    assert thread.call(double(1)) == 2
    thread.stop()


def test_what_exceeds_its_limit_has_ended_when_the_caller_hears_of_it() -> None:
    thread = LoopThread()
    for _ in range(100):
        cancelled = threading.Event()
        with pytest.raises(TimeoutError):
            thread.call(for_ever(cancelled), 0.0)
        assert thread.call(_others()) == 0
    thread.stop()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_ctrl_c_at_any_step_neither_stops_the_loop_nor_leaves_anything_running() -> None:
    thread = LoopThread()
    step = 0
    has_raised = True
    while has_raised:
        step += 1
        interrupter = Interrupter(step)
        with suppress(KeyboardInterrupt, TimeoutError):
            interrupter.run(lambda: thread.call(for_ever(threading.Event()), 0.001))
        has_raised = interrupter.has_raised
        while thread.call(_others(), DEADLINE_S):
            pass
        assert thread.call(double(step), DEADLINE_S) == 2 * step
    assert step > 8
    thread.stop()


def test_a_cancelled_call_may_fail_silently() -> None:
    thread = LoopThread()
    failed = threading.Event()

    async def fail_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            failed.set()
            raise ValueError("too late")

    class Impatient(LoopThread):
        def post(self, callback: Callable[[], object]) -> None:
            super().post(callback)
            raise KeyboardInterrupt

    impatient = Impatient()
    with pytest.raises(KeyboardInterrupt):
        impatient.call(fail_when_cancelled())
    impatient.stop()
    assert thread.call(double(1)) == 2
    thread.stop()


def test_an_inherited_thread_refuses_everything() -> None:
    thread = LoopThread()
    thread._on_forked()  # as in a child
    for refused in (
        lambda: thread.call(double(1)),
        lambda: thread.call_soon(lambda: None),
        thread.stop,
        thread.require_own_process,
    ):
        with pytest.raises(ForkedError, match="connect again in the child"):
            refused()
    thread.is_inherited = False
    assert thread.call(double(1)) == 2
    thread.stop()


def test_many_threads_may_call() -> None:
    thread = LoopThread()
    results: list[int] = []
    callers = [threading.Thread(target=lambda n=n: results.append(thread.call(double(n)))) for n in range(20)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(DEADLINE_S)
    assert sorted(results) == [2 * n for n in range(20)]
    thread.stop()


def test_after_the_end_everything_is_refused_kindly() -> None:
    thread = LoopThread()
    thread.stop()
    thread.stop()
    with pytest.raises(UsageError, match="closed"):
        thread.call(double(1))
    assert not thread.call_soon(lambda: None)


def test_the_end_cancels_what_runs() -> None:
    thread = LoopThread()
    cancelled = threading.Event()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            thread.call(for_ever(cancelled))
        except BaseException as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not thread.call(_others()):
        pass
    thread.stop()
    waiting.join(DEADLINE_S)
    assert cancelled.is_set()
    assert [type(error) for error in errors] == [UsageError]


async def _others() -> int:
    return len(asyncio.all_tasks()) - 1


def test_its_own_thread_cannot_wait_for_itself() -> None:
    thread = LoopThread()

    async def inside() -> None:
        with pytest.raises(UsageError, match="callback"):
            thread.call(double(1))
        thread.stop()  # does not wait for itself either

    thread.call(inside())
    thread.stop()


def test_something_is_done_soon() -> None:
    thread = LoopThread()
    done = threading.Event()
    assert thread.call_soon(done.set)
    assert done.wait(DEADLINE_S)
    thread.stop()
