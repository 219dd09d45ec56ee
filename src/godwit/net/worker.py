"""A worker: does the tasks of some kinds with handlers, until it is stopped.

worker = godwit.Worker("localhost", name="anna", capacity=2)

@worker.handles("resize")
async def resize(task):                # an async function; a plain one runs in a thread
    task.progress(0.5)
    return smaller(task.payload)

worker.handles("count", command=["wc", "-c"])

worker.run_forever()                   # or: await worker.run()
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, Literal, TypeAlias, overload

from godwit.errors import UsageError
from godwit.limits import MAX_CAPACITY
from godwit.net.connect import FLUSH_PATIENCE_S, connect
from godwit.net.handlers import F, Handlers
from godwit.net.loop import run
from godwit.net.shell import ClientShell
from godwit.net.workbench import Workbench

Wish: TypeAlias = Literal["finish", "now"]

STOPPED: Final = "the worker stops"
"""Why the tasks of a worker that ends are revoked, as they see it themselves."""


class Worker:
    """Volunteers for the kinds that it has handlers for. May be run again after it has ended."""

    def __init__(
        self, broker: str = "localhost", *, name: str | None = None, capacity: int = 1, **options: Any
    ) -> None:
        """`capacity`: so many tasks at once. The other options are those of godwit.connect: secret, timeout_s, ..."""
        if type(capacity) is not int or not 1 <= capacity <= MAX_CAPACITY:
            raise UsageError(f"capacity is {capacity!r}: a worker does 1 to {MAX_CAPACITY} tasks at once")
        self._connecting = partial(connect, broker, name=name, **options)
        self._connecting()  # options that cannot be are told here, not when it runs
        self._capacity = capacity
        self._handlers = Handlers()
        self._lock = threading.Lock()
        self._wish: Wish | None = None
        """How it is to end, once it is to."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """In which it runs, while it does."""
        self._patience: asyncio.Timeout | None = None
        """Of its attempts to connect."""
        self._bench: Workbench | None = None
        self._starters: list[asyncio.Future[None]] = []
        """Who waits until it is ready."""

    @overload
    def handles(self, kind: str) -> Callable[[F], F]: ...

    @overload
    def handles(self, kind: str, *, command: Sequence[str]) -> None: ...

    def handles(self, kind: str, *, command: Sequence[str] | None = None) -> Callable[[F], F] | None:
        """Names the handler of a kind: the function below, or a command.

        A handler gives bytes, a text or None. Whatever it raises is a failure, which is tried again as the job says;
        godwit.TaskFailed is a failure with a text of its own, and for good if it is `final`. When its task is revoked,
        an async handler is cancelled, a command terminated, and a handler in a thread may look at task.is_revoked.
        What computes for long without an await belongs into a plain function: it would keep the worker from saying
        that it lives.
        """
        if self._loop is not None:
            raise UsageError(f"a handler for {kind!r} while the worker runs: name all handlers before")
        if command is None:
            self._handlers.check(kind)  # here, not when a function follows: none may, if the brackets were forgotten
            return partial(self._handlers.add, kind)
        self._handlers.add_command(kind, command)
        return None

    # -- run ----------------------------------------------------------------------------------------------------------

    def run_forever(self) -> None:
        """Works until Ctrl-C, SIGTERM or stop(). Tasks that are not done are handed back at once then."""
        with suppress(KeyboardInterrupt):
            run(self._run_until_terminated())

    async def run(self) -> None:
        """Works until it is cancelled or stopped: connects, and goes on trying if the broker is not there."""
        with self._running():
            try:
                async with asyncio.timeout(None) as self._patience:
                    self._obey()
                    client = await self._connecting()
            except TimeoutError:
                return  # stopped before the broker was found
            finally:
                self._patience = None
            try:
                await self._serve(client)
            finally:
                await client.close(timeout_s=0)  # its last reports were waited for already

    async def serve(self, client: ClientShell) -> None:
        """As run, with a client that is connected already, and stays so. The worker's name is the client's."""
        with self._running():
            await self._serve(client)

    def stop(self, *, finish: bool = False) -> None:
        """Ends it, from any thread: tasks that are not done are handed back at once. `finish`: they are done before."""
        with self._lock:
            if self._wish != "now":
                self._wish = "finish" if finish else "now"
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._obey)

    async def ready(self) -> None:
        """Waits until the broker knows of the worker. UsageError if it ends before."""
        if self._bench is None or not self._bench.is_ready:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._starters.append(future)
            await future

    # -- inside -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _running(self) -> Iterator[None]:
        if not self._handlers.by_kind:
            raise UsageError("a worker without handlers: name what it does with @worker.handles('kind')")
        with self._lock:
            if self._loop is not None:
                raise UsageError("this worker runs already: make another one")
            self._loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            with self._lock:
                self._loop = self._wish = None
            self._tell_starters(UsageError("the worker has ended before it was ready"))

    async def _serve(self, client: ClientShell) -> None:
        bench = self._bench = client.begin_work(self._handlers.by_kind, self._capacity, self._tell_starters)
        try:
            self._obey()
            await bench.idle()
        finally:
            self._bench = None
            patience_s = FLUSH_PATIENCE_S if self._wish == "finish" else None
            await client.end_work(bench, STOPPED, patience_s)

    def _obey(self) -> None:
        """Does what `stop` wishes, as far as the worker has come."""
        if self._wish is None:
            return
        if self._bench is None:
            if self._patience is not None and self._loop is not None and not self._patience.expired():
                self._patience.reschedule(self._loop.time())
        elif self._wish == "finish":
            self._bench.withdraw()
        else:
            self._bench.hand_back(STOPPED)

    def _tell_starters(self, error: UsageError | None = None) -> None:
        starters, self._starters = self._starters, []
        for future in starters:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    async def _run_until_terminated(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError, RuntimeError, ValueError):  # Windows, or not the main thread
            loop.add_signal_handler(signal.SIGTERM, self.stop)
        try:
            await self.run()
        finally:
            with suppress(NotImplementedError, RuntimeError, ValueError):
                loop.remove_signal_handler(signal.SIGTERM)
