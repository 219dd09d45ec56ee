"""Event loops: which one to run, one in a thread of its own for blocking programs, and clients in forked children.

A forked child inherits the memory and the sockets of a client, but not the thread that runs its event loop. A call
would wait for that thread forever, and a datagram from the child would break the parent's connection. So every client
refuses all calls in a forked child (`disown_in_children`).
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import WeakSet

from godwit.errors import ForkedError, ReplyTimeoutError, UsageError
from godwit.limits import MAX_TIMEOUT_S

SWITCH_INTERVAL_S: Final = 0.0005
JOIN_TIMEOUT_S: Final = 5.0
SIGNAL_S: Final = 0.25
"""No thread waits longer at a time. A signal that arrives just before the main thread begins to wait, or in another
thread, does not end the wait: Ctrl-C is raised when it ends."""
PAUSE_S: Final = 0.003
"""How long a paused loop waits for the next use of its client by a caller's thread, before it continues."""
LONGEST_PAUSE_S: Final = 0.05
"""How long a loop is paused at most: its timers are late by no more than this."""
BUSY_S: Final = 0.1
"""The loop is not paused within this time after a call that needs it: other threads may follow with more of them."""
LAST_TURNS: Final = 8
"""Turns of the loop between the end of a time limit and the cancellation. A loop that was busy needs some of them to
read the packets that have arrived, and to wake the task that waits for one of them."""
T = TypeVar("T")


# -- the loop ---------------------------------------------------------------------------------------------------------


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like `asyncio.run`, in the fastest event loop that is installed.

    Ctrl-C cancels `main`, which may clean up, and is then raised as KeyboardInterrupt.

    Args:
        main: The coroutine to run.

    Returns:
        The result of the coroutine.
    """
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new uvloop event loop or, without uvloop, a selector loop of asyncio."""
    try:
        import uvloop
    except ImportError:  # Windows; its default loop has no add_reader
        return asyncio.SelectorEventLoop()
    return uvloop.new_event_loop()


async def completes(work: Coroutine[Any, Any, object], timeout_s: float | None) -> bool:
    """Run a coroutine for at most `timeout_s` (None: to its end), then cancel it. Return whether it completed.

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


class TimeLimit:
    """Cancel the block of an `async with` after a time, like asyncio.timeout, but process arrived replies first.

    asyncio.timeout discards a reply that waits in the socket, or was handed to the task in the same turn, when the loop
    has been busy until after the limit. The caller would repeat a request that the broker has confirmed in time.

    Args:
        timeout_s: The limit in seconds; None sets none.

    Raises:
        TimeoutError: At the end of the block, if it was cancelled.
    """

    __slots__ = ("_handle", "_loop", "_timeout", "_timeout_s")

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._timeout = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None

    async def __aenter__(self) -> TimeLimit:
        await self._timeout.__aenter__()
        if self._timeout_s is not None:
            self._handle = self._loop.call_later(self._timeout_s, self._expire, LAST_TURNS)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._handle is not None:
            self._handle.cancel()
        await self._timeout.__aexit__(kind, error, traceback)

    def expired(self) -> bool:
        """Whether the limit has cancelled the block."""
        return self._timeout.expired()

    def _expire(self, turns: int) -> None:
        if turns:
            self._handle = self._loop.call_soon(self._expire, turns - 1)
        else:
            self._timeout.reschedule(self._loop.time())


async def within(work: Coroutine[Any, Any, T], timeout_s: float | None, what: str, after: str) -> T:
    """Return the result of a call of the application, which may take at most `timeout_s`; None sets no limit.

    Args:
        work: The call.
        timeout_s: The limit as the application gave it.
        what: The subject of the error's text, such as "the message".
        after: The consequence of a timeout, as the end of the text.

    Raises:
        ReplyTimeoutError: It took longer. The call was cancelled.
        UsageError: The limit is not a number of seconds.
    """
    if timeout_s is None:
        return await work
    try:
        check_timeout(timeout_s)
        async with TimeLimit(timeout_s) as limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise ReplyTimeoutError(f"{what} within {timeout_s:g} s: {after}") from None
    finally:
        work.close()  # if the limit is invalid


def check_timeout(timeout_s: object) -> None:
    """Raise UsageError if this is not a number of seconds, or None."""
    if timeout_s is None:
        return
    is_flag = isinstance(timeout_s, bool)
    if is_flag or not isinstance(timeout_s, int | float) or not 0 <= timeout_s <= MAX_TIMEOUT_S:
        raise UsageError(f"timeout_s is {timeout_s!r}: give seconds (0 does not wait), or None to wait for ever")


def collect_garbage_rarely() -> None:
    """Make garbage collections rare, in a process that only runs a broker.

    A broker creates many objects and hardly any cycles. Searching all connections for cycles would take a tenth of its
    time, and pause it meanwhile.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def switch_threads_quickly() -> None:
    """Shorten the thread switch interval, in a process whose event loop and log threads share Python's lock.

    A commit needs the lock several times, and by default waits 5 ms each time for a busy event loop to release it. With
    this interval, beside an event loop that was always busy, the log did 50 % more commits per second, and the loop did
    as much work as before.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)


# -- forked children --------------------------------------------------------------------------------------------------


class ProcessBound(Protocol):
    """An object that works only in the process that created it."""

    def _on_forked(self) -> None:
        """Refuse all calls from now on. Called in a forked child, before any other code of the program runs there.

        It must not acquire a lock, which another thread of the parent may have held at the fork, nor use a socket or an
        event loop.
        """


_bound: WeakSet[ProcessBound] = WeakSet()


def disown_in_children(bound: ProcessBound) -> None:
    """Call `bound._on_forked` in every child that this process forks."""
    _bound.add(bound)


def forked_error() -> ForkedError:
    """Return the error that every call of an inherited client raises."""
    return ForkedError(
        f"this client was inherited by a fork and works only in the parent (process {os.getppid()}): connect again in "
        "the child, or start processes with the method 'spawn'"
    )


def _on_forked() -> None:
    inherited = list(_bound)
    _bound.clear()
    for bound in inherited:
        bound._on_forked()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_on_forked)


# -- a loop in a thread -----------------------------------------------------------------------------------------------


class LoopThread:
    """Run coroutines in an event loop for other threads.

    The thread is a daemon: a program that ends does not wait for it. A forked child inherits the object, but not the
    thread: there every call is refused.

    The thread may pause its loop, so that a caller's thread can run the client in the meantime without a change of
    threads, see godwit.net.direct. A call that needs the loop ends the pause, and so does a moment without a use.
    """

    def __init__(self, name: str = "godwit") -> None:
        self._loop = new_event_loop()
        self._lock = threading.Lock()
        self._is_stopped = False
        self.running = threading.Lock()
        """Held by the thread that runs the loop or, while it is paused, its client."""
        self.is_paused = False
        """Whether callers' threads may acquire `running`. Changes from True to False only while it is held."""
        self.is_wanted = False
        """Whether the loop waits for `running`, to end its pause."""
        self.uses = 0
        """Counts the uses of the client by callers' threads."""
        self.used_by = 0
        """The thread that handles events, perhaps in a callback of the application, while the loop is paused; or 0."""
        self.on_resumed: Callable[[], None] | None = None
        """Called in the loop after each pause."""
        self._resume = threading.Lock()
        self._resume.acquire()
        self._busy_until = 0.0
        self.is_inherited = False
        """Whether this process is a forked child of the one that runs the thread."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        disown_in_children(self)
        self._thread.start()

    def _on_forked(self) -> None:
        self.is_inherited = True

    def require_own_process(self) -> None:
        """Raise ForkedError in a forked child. Call it before any lock: another thread may have held it at the fork."""
        if self.is_inherited:
            raise forked_error()

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine, wait for its end, and return its result or raise its error.

        Ctrl-C cancels the coroutine and returns at once. The loop watches the time limit, so that the coroutine either
        has a result or was cancelled; out here both could happen at once.

        Raises:
            TimeoutError: It took longer than `timeout_s` seconds. The coroutine was cancelled, and has ended.
            UsageError: The thread is stopped, or the caller is a callback in the loop's own thread.
            ForkedError: This process is a forked child.
        """
        call = _Call(coroutine, timeout_s)
        try:
            self._busy_until = time.monotonic() + BUSY_S
            self.post(call.begin)
            return call.result()
        except BaseException:
            if not call.is_done:
                self._give_up(call)
            raise

    def post(self, callback: Callable[[], object]) -> None:
        """Call a function in the thread, for a caller that will wait for its effect. Raises the errors of `call`."""
        self.require_own_process()
        with self._lock:
            if self._is_stopped:
                raise UsageError("the client is closed: connect again")
            if threading.get_ident() in (self._thread.ident, self.used_by):
                raise UsageError(
                    "a callback may not call its own client, which waits for the callback to return: call it in the "
                    "main thread"
                )
            self._call_in_loop(callback)

    def _call_in_loop(self, callback: Callable[[], object]) -> None:
        """Call a function in the loop, and end a pause for that. Called with the lock held."""
        self._loop.call_soon_threadsafe(callback)
        if self.is_paused:
            self.end_pause()

    def _give_up(self, call: _Call[Any]) -> None:
        if not self.is_inherited:
            with self._lock:
                if not self._is_stopped:
                    self._call_in_loop(call.cancel)
                    return
        call.coroutine.close()

    def call_soon(self, callback: Callable[[], object]) -> bool:
        """Call a function in the thread, without waiting for it. Return False if the thread is stopped."""
        self.require_own_process()
        with self._lock:
            if not self._is_stopped:
                self._call_in_loop(callback)
            return not self._is_stopped

    def stop(self) -> None:
        """Cancel all running coroutines and end the thread. May be repeated."""
        self.require_own_process()
        with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                self._call_in_loop(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(JOIN_TIMEOUT_S)

    def end_pause(self) -> None:
        """Have the loop continue as soon as no caller's thread uses the client."""
        self.is_wanted = True
        with suppress(RuntimeError):  # another thread was quicker
            self._resume.release()

    # -- in the loop's thread -----------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pause the loop after all callbacks that are ready, unless it is needed. Called in the loop."""
        with self._lock:
            is_needed = self._is_stopped or time.monotonic() < self._busy_until or asyncio.all_tasks(self._loop)
            if not is_needed and not self.is_paused:
                self.is_paused = True
                self._loop.call_soon(self._loop.stop)

    def _wait_in_pause(self) -> None:
        until = time.monotonic() + LONGEST_PAUSE_S
        uses = -1
        while self.uses != uses and time.monotonic() < until:
            uses = self.uses
            if self._resume.acquire(timeout=PAUSE_S):
                break
        self.is_wanted = True

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while self._run_until_paused():
                self._wait_in_pause()
        finally:
            self._end_loop()

    def _run_until_paused(self) -> bool:
        """Run the loop. Return whether it is paused, and not stopped."""
        with self.running:
            self._resume.acquire(blocking=False)  # a request that came too late for the last pause
            if self.is_paused and self.on_resumed is not None:
                self._loop.call_soon(self.on_resumed)
            self.is_paused = self.is_wanted = False
            self._loop.run_forever()
            return self.is_paused and not self._is_stopped

    def _end_loop(self) -> None:
        loop = self._loop
        with self.running:
            self.is_paused = False
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.wait(tasks))
            loop.run_until_complete(loop.shutdown_asyncgens())
            asyncio.set_event_loop(None)
            loop.close()


class _Call(Generic[T]):
    """A coroutine in the loop for which another thread waits.

    Not a concurrent.futures.Future: there both threads enter a Condition, which stays locked forever if Ctrl-C comes
    at that moment, and the loop with it. Here the loop's thread never waits for a lock.
    """

    __slots__ = ("_ended", "_task", "_timeout_s", "coroutine", "is_done")

    def __init__(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None) -> None:
        self.coroutine = coroutine
        self.is_done = False
        self._timeout_s = timeout_s
        self._task: asyncio.Task[T] | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    def result(self) -> T:
        """Wait for the end, in any thread except the loop's."""
        while not self._ended.acquire(timeout=SIGNAL_S):
            pass
        assert self._task is not None
        if self._task.cancelled():
            raise UsageError("the client was closed while a call waited for it: connect again")
        return self._task.result()

    # -- in the loop's thread -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._on_done)

    async def _run(self) -> T:
        async with TimeLimit(self._timeout_s):
            return await self.coroutine

    def cancel(self) -> None:
        """Cancel the coroutine, which may not have begun, because no thread waits for it any longer."""
        if self._task is None:
            self.coroutine.close()
        else:
            self._task.cancel()

    def _on_done(self, task: asyncio.Task[T]) -> None:
        self.coroutine.close()  # if it was cancelled before its first step
        if not task.cancelled():
            task.exception()  # marked as retrieved, whether or not a thread still waits
        self.is_done = True
        self._ended.release()
