"""An event loop in a thread of its own, for programs that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from godwit.errors import UsageError
from godwit.net.loop import new_event_loop

JOIN_PATIENCE_S: Final = 5.0
T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads. A daemon: a program that just ends does not wait for it."""

    def __init__(self, name: str = "godwit") -> None:
        self._loop = new_event_loop()
        self._lock = threading.Lock()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Waits for the result. TimeoutError, and Ctrl-C too, cancel the coroutine and return at once."""
        with self._lock:
            if self._is_stopped or threading.current_thread() is self._thread:
                coroutine.close()
                if self._is_stopped:
                    raise UsageError("the client is closed: connect anew")
                raise UsageError("a callback may not call its own client, which waits for it: do it in the main thread")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()  # does nothing if it was the coroutine that failed
            raise

    def call_soon(self, callback: Callable[[], object]) -> bool:
        """Has something done in the thread, without waiting. False: it is stopped."""
        with self._lock:
            if not self._is_stopped:
                self._loop.call_soon_threadsafe(callback)
            return not self._is_stopped

    def stop(self) -> None:
        """Cancels what still runs and ends the thread. May be repeated."""
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
