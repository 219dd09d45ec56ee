"""An event loop in a thread of its own, for programs that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from godwit.errors import UsageError
from godwit.net.fork import disown_in_children, forked_error
from godwit.net.loop import new_event_loop

JOIN_PATIENCE_S: Final = 5.0
T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads. A daemon: a program that just ends does not wait for it.

    A forked child inherits the object, but not the thread: there everything is refused.
    """

    def __init__(self, name: str = "godwit") -> None:
        self._loop = new_event_loop()
        self._lock = threading.Lock()
        self._is_stopped = False
        self.is_inherited = False
        """Whether this process is a forked child of the one that runs the thread."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        disown_in_children(self)
        self._thread.start()

    def on_forked(self) -> None:
        self.is_inherited = True

    def require_own_process(self) -> None:
        """Raise ForkedError in a forked child. Before any lock: another thread may have held it at the fork."""
        if self.is_inherited:
            raise forked_error()

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Wait for the result of a coroutine, and raise what it raises. Ctrl-C cancels it and returns at once.

        TimeoutError after `timeout_s` seconds: the coroutine was cancelled, and has ended. The limit is watched by the
        loop, which either brings a result or ends the coroutine; out here both could happen at once.
        """
        call = _Call(coroutine, timeout_s)
        try:
            self._post(call)
            return call.result()
        except BaseException:
            if not call.is_done:
                self._give_up(call)
            raise

    def _post(self, call: _Call[Any]) -> None:
        self.require_own_process()
        with self._lock:
            if self._is_stopped:
                raise UsageError("the client is closed: connect anew")
            if threading.current_thread() is self._thread:
                raise UsageError("a callback may not call its own client, which waits for it: do it in the main thread")
            self._loop.call_soon_threadsafe(call.begin)

    def _give_up(self, call: _Call[Any]) -> None:
        if not self.is_inherited:
            with self._lock:
                if not self._is_stopped:
                    self._loop.call_soon_threadsafe(call.cancel)
                    return
        call.coroutine.close()

    def call_soon(self, callback: Callable[[], object]) -> bool:
        """Has something done in the thread, without waiting. False: it is stopped."""
        self.require_own_process()
        with self._lock:
            if not self._is_stopped:
                self._loop.call_soon_threadsafe(callback)
            return not self._is_stopped

    def stop(self) -> None:
        """Cancels what still runs and ends the thread. May be repeated."""
        self.require_own_process()
        with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(JOIN_PATIENCE_S)

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
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

    Not a concurrent.futures.Future: there both threads enter a Condition, which stays locked for ever if Ctrl-C comes
    just then, and the loop with it. Here the loop's thread waits for no lock.
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
        """Wait, in any thread but the loop's."""
        self._ended.acquire()
        assert self._task is not None
        if self._task.cancelled():
            raise UsageError("the client was closed while a call waited for it: connect anew")
        return self._task.result()

    # -- in the loop's thread -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._on_done)

    async def _run(self) -> T:
        async with asyncio.timeout(self._timeout_s):
            return await self.coroutine

    def cancel(self) -> None:
        """No thread waits any more. It may not have begun."""
        if self._task is None:
            self.coroutine.close()
        else:
            self._task.cancel()

    def _on_done(self, task: asyncio.Task[T]) -> None:
        self.coroutine.close()  # if it was cancelled before its first step
        if not task.cancelled():
            task.exception()  # retrieved, whether or not a thread still waits for it
        self.is_done = True
        self._ended.release()
