"""Threads for handlers: no more than are needed, and a way back that loses nothing and wakes the loop seldom."""

from __future__ import annotations

import asyncio
import threading
import time
from unittest.mock import Mock

import pytest
from tests.net.running import run

from godwit.net.threads import Crossing, HandlerThreads


def test_calls_cross_in_order_and_none_is_lost() -> None:
    async def test() -> None:
        crossing = Crossing(asyncio.get_running_loop())
        seen: list[tuple[int, int]] = []
        where: set[int] = set()
        done = asyncio.Event()

        def note(thread: int, number: int) -> None:
            seen.append((thread, number))
            where.add(threading.get_ident())
            if len(seen) == 4000:
                done.set()

        def send(thread: int) -> None:
            assert not crossing.is_here
            for number in range(1000):
                crossing.call(note, thread, number)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        await done.wait()
        for thread in threads:
            thread.join()
        assert crossing.is_here
        assert where == {threading.get_ident()}
        for thread_number in range(4):
            assert [number for found, number in seen if found == thread_number] == list(range(1000))

    run(test)


def test_a_loop_that_is_closed_is_told_nothing() -> None:
    loop = asyncio.new_event_loop()
    crossing = Crossing(loop)
    loop.close()
    crossing.call(print, "nobody hears this")


def test_threads_are_used_again() -> None:
    threads = HandlerThreads(10)
    names: list[str] = []
    for _ in range(5):
        done = threading.Event()

        def work(done: threading.Event = done) -> None:
            names.append(threading.current_thread().name)
            done.set()

        threads.do(work)
        assert done.wait(20)
        while threads._work:  # until the thread is back
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
            threads.do(done.set)
    threads.do(lambda: gate.wait(20))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        threads.do(done.set)
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
        threads.do(work)
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
        threads.do(work)
    gate.set()
    for _ in range(5):
        assert done.acquire(timeout=20)
    assert mine <= {"godwit-handler-1", "godwit-handler-2"}
    threads.stop()
