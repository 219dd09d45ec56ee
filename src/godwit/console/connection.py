"""The websocket of one browser window: requests with their replies, and events.

A request is `{"id": 1, "do": "topics", "with": {...}}`. Its reply has the same id, and `"is"` with the result or
`"error"` with a text for people. Events have `"on"` with their kind.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

import msgspec
from aiohttp import WSMsgType, web

from godwit.console.lake import ConsoleLake
from godwit.console.link import BrokerLink
from godwit.errors import GodwitError

MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
MAX_RUNNING: Final = 16
"""Requests of one window that are answered at the same time."""
CACHE_S: Final = 1.5
CACHE_DUTY: Final = 5
"""A list is read anew when it is this many times as old as reading it took."""
MAX_CACHED: Final = 16
T = TypeVar("T")
_logger = logging.getLogger(__name__)


class PageRequestError(Exception):
    """A request that makes no sense, with a text for people."""


class Part(Protocol):
    """Something that a window has begun and that sends events."""

    async def stop(self) -> None: ...


class WindowRequest(msgspec.Struct, rename={"action": "do", "arguments": "with"}):
    """A message of the browser."""

    id: int
    action: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class CachedRead:
    """A list for a window, which is being read, or was a moment ago."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self._began = time.monotonic()
        self._valid_until: float | None = None
        task.add_done_callback(self._on_end)

    def is_outdated(self, now: float) -> bool:
        """Return whether it has to be read again."""
        return self._valid_until is not None and now >= self._valid_until

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._valid_until = 0.0  # waiting requests get the error, the next one reads again
        else:
            now = time.monotonic()
            self._valid_until = now + max(CACHE_S, CACHE_DUTY * (now - self._began))


class BrowserConnection:
    """One window of a browser."""

    def __init__(self, socket: web.WebSocketResponse, link: BrokerLink, *, lake: ConsoleLake | None) -> None:
        self._socket = socket
        self.link = link
        self.lake = lake
        self.parts: dict[str, Part] = {}
        """The tail and the values that the window shows."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue(maxsize=100)
        self._cache: OrderedDict[str, CachedRead] = OrderedDict()

    async def run(self, answers: Mapping[str, tuple[type[Any], Callable[[Any, Any], Awaitable[Any]]]]) -> None:
        """Answer requests until the window is closed."""
        self.link.listeners.add(self._on_event)
        sender = asyncio.get_running_loop().create_task(self._send_events())
        try:
            self._on_event({"on": "state", **self.link.describe()})
            async for message in self._socket:
                if message.type is not WSMsgType.TEXT:
                    break
                if len(self._tasks) >= MAX_RUNNING:
                    await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                task = asyncio.get_running_loop().create_task(self._answer(message.data, answers))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            self.link.listeners.discard(self._on_event)
            tasks = [sender, *self._tasks, *(one.task for one in self._cache.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for name in list(self.parts):
                await self.stop(name)

    async def send(self, event: dict[str, Any]) -> None:
        """Send a message to the browser, and wait while its window does not read."""
        with suppress(ConnectionError, RuntimeError):  # the window was closed
            await self._socket.send_str(msgspec.json.encode(event).decode())

    async def stop(self, name: str) -> None:
        """Stop a part, if it has begun."""
        part = self.parts.pop(name, None)
        if part is not None:
            await part.stop()

    async def cached(self, name: str, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return a list that was read a moment ago, or read it. Tables request the same list page by page.

        Requests that come while it is being read share the result.
        """
        known = self._cache.get(name)
        if known is None or known.is_outdated(time.monotonic()):
            self.forget(name)
            known = self._cache[name] = CachedRead(asyncio.get_running_loop().create_task(read()))
            while len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        found: T = await asyncio.shield(known.task)
        return found

    def forget(self, prefix: str) -> None:
        """Read the lists with such names anew when they are requested again."""
        for name in [name for name in self._cache if name.startswith(prefix)]:
            del self._cache[name]

    def _on_event(self, event: dict[str, Any]) -> None:
        if self._events.full():  # the window does not read: it gets the later events
            self._events.get_nowait()
        self._events.put_nowait(event)

    async def _send_events(self) -> None:
        while True:
            await self.send(await self._events.get())

    async def _answer(
        self, text: str, answers: Mapping[str, tuple[type[Any], Callable[[Any, Any], Awaitable[Any]]]]
    ) -> None:
        number = -1
        try:
            request = msgspec.json.decode(text.encode("utf-8", "replace"), type=WindowRequest)
            number = request.id
            if request.action not in answers:
                raise PageRequestError("The console does not know this request: load the page again.")
            kind, answer = answers[request.action]
            arguments = msgspec.json.decode(request.arguments, type=kind)
            reply = {"id": number, "is": await answer(self, arguments)}
        except msgspec.DecodeError as error:
            reply = {"id": number, "error": f"The request is invalid: {error}"}
        except (PageRequestError, GodwitError) as error:
            reply = {"id": number, "error": str(error)}
        except Exception:
            _logger.exception("a request of the console failed")
            reply = {"id": number, "error": "The console failed; its standard error has the details."}
        await self.send(reply)
