"""Threads for plain handlers, and the way back from them into the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeAlias

Work: TypeAlias = Callable[[], object]


class Crossing:
    """Calls things in the event loop's thread, in order, from any other: many calls wake the loop once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_woken = False

    @property
    def is_here(self) -> bool:
        """Whether the caller is in the event loop's thread."""
        return threading.get_ident() == self._thread

    def call(self, callback: Callable[..., object], *arguments: Any) -> None:
        # In this order, and the opposite one in _take: what is put in is either seen there, or wakes the loop again.
        self._calls.append((callback, arguments))
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
                self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        self._is_woken = False
        calls = self._calls
        while calls:
            callback, arguments = calls.popleft()
            callback(*arguments)


class HandlerThreads:
    """As many threads as there is work at once, at most `most`. Daemons: a program that ends waits for no handler."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0
        self._work = 0
        """What is being done or waits for it."""

    def do(self, work: Work) -> None:
        """Has it done soon. What it raises is its own affair. RuntimeError: the system gives not even one thread."""
        with self._lock:
            if self._count <= self._work and self._count < self._most:
                self._start()
            self._work += 1
        self._queue.put(work)

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name=f"godwit-handler-{self._count + 1}", daemon=True).start()
        except RuntimeError:
            if not self._count:
                raise
            return  # one of those that there are comes to it
        self._count += 1

    def stop(self) -> None:
        """Threads end when their work has; nobody waits for that."""
        for _ in range(self._count):
            self._queue.put(None)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work  # it is not kept while the thread waits
            with self._lock:
                self._work -= 1
