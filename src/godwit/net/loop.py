"""The event loop that suits the system: uvloop where it runs, elsewhere the one of asyncio that can watch sockets."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

SWITCH_INTERVAL_S: Final = 0.0005
T = TypeVar("T")


def collect_garbage_rarely() -> None:
    """For a process that is a broker and nothing else: it makes very many objects, and hardly a cycle among them.

    Looking for cycles in all connections again and again would cost a tenth of its time, and halt it meanwhile.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def switch_threads_quickly() -> None:
    """For a process whose event loop and log share Python's lock: a commit needs it several times.

    By default a thread that waits for it lets the other one work on for 5 ms each time. With this, beside an event loop
    that was always busy, half as many commits more were done in a second, and the loop did as much as before.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)


async def completes(work: Coroutine[Any, Any, object], timeout_s: float) -> bool:
    """Run a coroutine for at most `timeout_s`, then cancel it. Return whether it completed.

    For clean-up code, which may run in a task that is being cancelled: there asyncio.timeout raises CancelledError
    instead of TimeoutError before Python 3.11.3, and the rest of the clean-up would be skipped.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=timeout_s)
        if task.done():
            task.result()
        return task.done()
    finally:
        task.cancel()


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run: Ctrl-C cancels `main`, which may tidy up, and comes out as KeyboardInterrupt."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # Windows; its default loop has no add_reader
        return asyncio.SelectorEventLoop()
    return uvloop.new_event_loop()
