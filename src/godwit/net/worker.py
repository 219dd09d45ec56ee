"""A worker: execute tasks of some kinds with handlers, until it is stopped.

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
import inspect
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, Literal, TypeAlias, TypeVar, overload

from godwit.broker.topics import check_kind
from godwit.client.batches import Payload
from godwit.client.config import SEND_BUFFER_BYTES
from godwit.errors import UsageError
from godwit.limits import MAX_CAPACITY, MAX_KINDS, SESSION_EXPIRY_S
from godwit.net.address import Brokers
from godwit.net.client import FLUSH_TIMEOUT_S, AsyncClient, connect
from godwit.net.command import run_command
from godwit.net.loop import run
from godwit.net.runtime import OnState
from godwit.net.security import Security
from godwit.net.tasks import Handler, Task, TaskExecutor
from godwit.transport.config import EndpointConfig
from godwit.wire.control import Will

StopMode: TypeAlias = Literal["finish", "now"]
TaskHandler: TypeAlias = Callable[[Task], Payload | Awaitable[Payload]]
"""A handler: it gets a task, and returns its result as bytes, a text, or a value to be sent as JSON; None is an empty
result. An async function runs in the event loop, a plain one in a thread."""
F = TypeVar("F", bound=TaskHandler)

STOPPED: Final = "the worker stops"
"""The reason with which the tasks of a worker that stops are revoked."""


class Handlers:
    """The handlers of one worker, by kind."""

    def __init__(self) -> None:
        self.by_kind: dict[str, Handler] = {}

    def check(self, kind: str) -> None:
        """Raise UsageError if the kind is invalid, has a handler already, or is one too many."""
        if not isinstance(kind, str):
            raise UsageError(f"a handler for {kind!r}: name the kind of work, as in @worker.handles('kind')")
        check_kind(kind)
        if kind in self.by_kind:
            raise UsageError(f"there is a handler for {kind!r} already: a kind has one")
        if len(self.by_kind) == MAX_KINDS:
            raise UsageError(f"handlers for more than {MAX_KINDS} kinds: let another worker do {kind!r}")

    def add(self, kind: str, function: F) -> F:
        """Add a function: an async one runs in the event loop, a plain one in a thread."""
        if not callable(function):
            raise UsageError(f"the handler for {kind!r} is {function!r}: give a function, or command=[...]")
        self._put(kind, Handler(function, _is_async(function)))
        return function

    def add_command(self, kind: str, command: Sequence[str]) -> None:
        """Add a command that is run for each task."""
        if not isinstance(command, list | tuple) or not command or not all(isinstance(word, str) for word in command):
            raise UsageError(f"the command for {kind!r} is {command!r}: give a list of words, such as ['wc', '-c']")
        if not hasattr(os, "killpg"):
            raise UsageError("a command needs a system with process groups: give a function that runs it instead")
        words = tuple(command)

        async def handle(task: Task) -> bytes:
            return await run_command(task, words)

        self._put(kind, Handler(handle, is_async=True))

    def _put(self, kind: str, handler: Handler) -> None:
        self.check(kind)
        self.by_kind[kind] = handler


def _is_async(function: Callable[[Task], object]) -> bool:
    """Return whether a function, a callable object or a functools.partial is async."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


class Worker:
    """Volunteers for the kinds of work for which it has handlers, and executes the tasks that the broker leases to it.

    It can be run again after it has ended.

        worker = godwit.Worker("localhost", name="anna", capacity=2)

        @worker.handles("resize")
        async def resize(task):
            return smaller(task.payload)

        worker.run_forever()
    """

    def __init__(
        self,
        broker: Brokers = "localhost",
        *,
        name: str | None = None,
        capacity: int = 1,
        secret: bytes | str = b"",
        will: Will | None = None,
        timeout_s: float | None = None,
        session_expiry_s: int = SESSION_EXPIRY_S,
        fresh: bool = False,
        send_buffer_bytes: int = SEND_BUFFER_BYTES,
        on_state: OnState | None = None,
        endpoint: EndpointConfig | None = None,
        security: Security | None = None,
    ) -> None:
        """Make a worker. It connects when it is run.

        Args:
            broker: The address of the broker, or several, see `godwit.connect`.
            name: The worker's name; the broker assigns one to a worker without.
            capacity: How many tasks it executes at once.
            secret: Proves the name, see `godwit.connect`.
            will: A message that the broker publishes if the worker is lost without closing.
            timeout_s: How long to wait for the broker when it is run; None waits for ever.
            session_expiry_s: See `godwit.connect`.
            fresh: See `godwit.connect`.
            send_buffer_bytes: Size of the buffer for results that are not confirmed yet.
            on_state: Called as `on_state(state, reason)` when the connection is lost, found again or closed.
            endpoint: Settings of the transport.
            security: How connections are sealed and brokers verified.

        Raises:
            UsageError: An option is invalid.
            AddressError: The broker's address is invalid.
        """
        if type(capacity) is not int or not 1 <= capacity <= MAX_CAPACITY:
            raise UsageError(f"capacity is {capacity!r}: a worker does 1 to {MAX_CAPACITY} tasks at once")
        self._connecting = partial(
            connect,
            broker,
            name=name,
            secret=secret,
            will=will,
            timeout_s=timeout_s,
            session_expiry_s=session_expiry_s,
            fresh=fresh,
            send_buffer_bytes=send_buffer_bytes,
            on_state=on_state,
            endpoint=endpoint,
            security=security,
        )
        self._connecting()  # raises errors of invalid options here, not when it runs
        self._name = name
        self._capacity = capacity
        self._handlers = Handlers()
        self._lock = threading.Lock()
        self._stop_mode: StopMode | None = None
        """How it should stop, once `stop` was called."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which it runs, while it does."""
        self._connect_timeout: asyncio.Timeout | None = None
        """Ends its attempts to connect."""
        self._executor: TaskExecutor | None = None
        self._waiting_for_ready: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        kinds = ", ".join(map(repr, self._handlers.by_kind)) or "no kinds yet"
        state = "running" if self._loop is not None else "not running"
        return f"<Worker {self._name or 'without a name'}, {kinds}, capacity {self._capacity}, {state}>"

    @overload
    def handles(self, kind: str) -> Callable[[F], F]: ...

    @overload
    def handles(self, kind: str, *, command: Sequence[str]) -> None: ...

    def handles(self, kind: str, *, command: Sequence[str] | None = None) -> Callable[[F], F] | None:
        """Set the handler of a kind: the decorated function, or a command.

        A handler takes a Task and returns bytes, a str, or a dict, list, number or bool, which are sent as JSON; None
        is an empty result. If it raises an exception, the attempt has failed, and is repeated as the job's options say.
        `godwit.TaskFailed` fails with a text of its own, and with `final=True` for good. When its task is revoked, an
        async handler is cancelled, a command is terminated, and a handler in a thread should check `task.is_revoked`.
        Long computations belong into a plain function: in an async one they would block the worker's keep-alives, and
        the broker would give its tasks to others.

        Args:
            kind: The kind of work.
            command: A program and its arguments, run without a shell: the payload is its standard input, and its
                standard output is the result.

        Raises:
            UsageError: The kind or the command is invalid, the kind has a handler already, or the worker is running.
        """
        if self._loop is not None:
            raise UsageError(f"a handler for {kind!r} while the worker runs: name all handlers before")
        if command is None:
            self._handlers.check(kind)  # here too: without parentheses after `handles` no function follows
            return partial(self._handlers.add, kind)
        self._handlers.add_command(kind, command)
        return None

    # -- running ------------------------------------------------------------------------------------------------------

    def run_forever(self) -> None:
        """Run in an own event loop until Ctrl-C, SIGTERM or stop(). Unfinished tasks are returned to the broker.

        Raises:
            GodwitError: See `run`.
        """
        with suppress(KeyboardInterrupt):
            run(self._run_until_terminated())

    async def run(self) -> None:
        """Connect and execute tasks until it is cancelled or stopped. Waits for a broker that is not reachable.

        Raises:
            UsageError: It has no handlers, or runs already.
            BrokerUnreachableError: No broker answered within `timeout_s`, if that option was given.
            BrokerError: The broker refused the login or the worker.
        """
        with self._running():
            try:
                async with asyncio.timeout(None) as self._connect_timeout:
                    self._apply_stop()
                    client = await self._connecting()
            except TimeoutError:
                return  # stopped before the broker was reached
            finally:
                self._connect_timeout = None
            try:
                await self._serve(client)
            finally:
                await client.close(timeout_s=0)  # _serve has waited for the last reports already

    async def serve(self, client: AsyncClient) -> None:
        """Run with a client that is connected already, and remains connected. The worker has the client's name.

        Raises:
            UsageError: It has no handlers or runs already, or the client is another worker.
            BrokerError: The broker refused the worker.
        """
        if not isinstance(client, AsyncClient):
            raise UsageError(f"serve with {client!r}: give an AsyncClient, from `await godwit.connect(...)`")
        with self._running():
            await self._serve(client)

    def stop(self, *, finish: bool = False) -> None:
        """Stop it, from any thread. May be repeated.

        Args:
            finish: Execute the present tasks to their end first. By default they are returned to the broker at once.
        """
        with self._lock:
            if self._stop_mode != "now":
                self._stop_mode = "finish" if finish else "now"
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._apply_stop)

    async def ready(self) -> None:
        """Wait until the broker has accepted the worker.

        Raises:
            UsageError: The worker ended before.
        """
        if self._executor is None or not self._executor.is_ready:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting_for_ready.append(future)
            await future

    # -- internal -----------------------------------------------------------------------------------------------------

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
                self._loop = self._stop_mode = None
            self._notify_ready(UsageError("the worker has ended before it was ready"))

    async def _serve(self, client: AsyncClient) -> None:
        runtime = client._runtime
        executor = self._executor = runtime.begin_work(self._handlers.by_kind, self._capacity, self._notify_ready)
        try:
            self._apply_stop()
            await executor.wait_until_idle()
        finally:
            self._executor = None
            timeout_s = FLUSH_TIMEOUT_S if self._stop_mode == "finish" else None
            await runtime.end_work(executor, STOPPED, timeout_s)

    def _apply_stop(self) -> None:
        """Carry out `stop`, while connecting or while executing tasks."""
        if self._stop_mode is None:
            return
        if self._executor is None:
            if self._connect_timeout is not None and self._loop is not None and not self._connect_timeout.expired():
                self._connect_timeout.reschedule(self._loop.time())
        elif self._stop_mode == "finish":
            self._executor.withdraw()
        else:
            self._executor.return_all(STOPPED)

    def _notify_ready(self, error: UsageError | None = None) -> None:
        waiting, self._waiting_for_ready = self._waiting_for_ready, []
        for future in waiting:
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
