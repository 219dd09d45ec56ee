"""The thread of an engine's adapter: an event loop that carries out the requests of a node.

node's thread    send (requests)         --->  event loop of the adapter  --->  servers of the engine
node's thread    report (EngineReport)   <---  event loop of the adapter  <---  servers of the engine
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from godwit.cluster.engine import EngineReport, EngineRequest, FollowRequest

BACKLOG: Final = 512
"""A follower reads no further while this many reports wait for the node."""
_BACKLOG_PAUSE_S: Final = 0.005


class EngineThread(ABC):
    """Carries out the requests of one node; see godwit.cluster.engine."""

    def __init__(self, report: Callable[[EngineReport], None], *, backlog: Callable[[], int] = lambda: 0) -> None:
        """Make an adapter that is not connected.

        Args:
            report: Called in the adapter's thread with each report. It must not wait.
            backlog: Returns how many reports the node has not handled yet.
        """
        self._report = report
        self._backlog = backlog
        self._loop: asyncio.AbstractEventLoop
        self._tasks: set[asyncio.Task[None]] = set()
        self._follower: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="godwit-engine", daemon=True)

    @abstractmethod
    def start(self, timeout_s: float = 60.0) -> None:
        """Check the servers, connect, and create the replicated log if it does not exist.

        Raises:
            ConfigurationError: Something is not suitable.
            EngineUnavailableError: There was no answer in time.
        """

    def send(self, requests: Sequence[EngineRequest]) -> None:
        """Carry out requests. May be called in any thread."""
        if requests:
            self._loop.call_soon_threadsafe(self._begin, requests)

    def renew(self, context: ssl.SSLContext) -> None:
        """Use other certificates for new connections. May be called in any thread, once it is started."""
        self._loop.call_soon_threadsafe(self._use, context)

    def close(self) -> None:
        """Close the connections, and end the thread."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10.0)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    # -- in the thread ------------------------------------------------------------------------------------------------

    @abstractmethod
    async def _carry_out(self, request: EngineRequest) -> None:
        """Carry out any request but FollowRequest."""

    @abstractmethod
    async def _follow(self, after: int) -> None:
        """Report the records behind a position until this is cancelled."""

    @abstractmethod
    def _use(self, context: ssl.SSLContext) -> None:
        """Use this context for new connections."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """Close the connections. No task uses them any more."""

    def _launch(self, opening: Coroutine[Any, Any, None]) -> None:
        """Start the thread, and wait for this coroutine in it. If it fails, the thread ends."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(opening, self._loop).result()
        except BaseException:
            self.close()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _close(self) -> None:
        tasks = [*self._tasks, *([self._follower] if self._follower else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._disconnect()
        rest = asyncio.all_tasks() - {asyncio.current_task()}  # of the library, perhaps about to reconnect
        for left in rest:
            left.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def _begin(self, requests: Sequence[EngineRequest]) -> None:
        for request in requests:
            if isinstance(request, FollowRequest):
                if self._follower is not None:
                    self._follower.cancel()
                self._follower = None if request.after is None else self._loop.create_task(self._follow(request.after))
            else:
                self._keep(self._loop.create_task(self._carry_out(request)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait_for_node(self) -> None:
        """Wait until the node has handled most reports."""
        while self._backlog() > BACKLOG:
            await asyncio.sleep(_BACKLOG_PAUSE_S)


def without_password(url: str) -> str:
    """Return the address of a server as it may be shown."""
    scheme, _, rest = url.partition("?")[0].rpartition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if scheme else rest.rpartition("@")[2]
