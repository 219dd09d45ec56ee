"""Tasks of a worker, from lease to report: `Task`, which handlers get, and `TaskExecutor`, which runs the handlers.

Async handlers run in *runners*, tasks of the event loop. A runner executes one waiting task after another until a
handler awaits something; then a new runner continues with the rest. So a thousand handlers that return at once need one
task of the event loop, not a thousand, and each handler still runs in one, as asyncio.timeout and others require. Plain
handlers run in threads.

A handler may still run after its task was revoked: a thread cannot be stopped. It occupies its slot until it ends, and
the worker volunteers with a smaller capacity meanwhile, so that never more than `capacity` handlers run.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from copy import copy
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

from godwit.client.batches import Payload, to_bytes
from godwit.client.events import Leased, Reported, Revoked, VolunteerAccepted, VolunteerRefused
from godwit.client.message import decode_json, decode_text
from godwit.client.protocol import ClientProtocol
from godwit.client.worker import Lease
from godwit.errors import BufferFullError, GodwitError, TaskFailedError, UsageError, broker_error, printable

TaskFailed = TaskFailedError
"""Raised by a handler: `raise TaskFailed("the picture is damaged", final=True)` is not tried again."""

CLOSE_TIMEOUT_S: Final = 5.0
"""How long to wait for async handlers that were cancelled. Commands need less time, even if they are killed."""
HURRIED_CLOSE_TIMEOUT_S: Final = 0.5
"""The same for a program that does not want to wait: a command is killed at once then."""
_RUN_S: Final = 0.005
"""A runner lets the event loop run after this time."""
_LINGER_S: Final = 0.1
"""A handler that still runs this long after its task was revoked reduces the capacity. Most handlers end at once."""
_ROUNDING: Final = 1e-6
"""Tolerance for a progress that is a sum of fractions."""

_logger = logging.getLogger(__name__)


class Task:
    """One task of one job, leased to this worker: the argument of a handler, which may use it from any thread."""

    __slots__ = (
        "_has_unsent_step",
        "_is_in_thread",
        "_lease",
        "_on_progress",
        "_runner",
        "_step",
        "is_revoked",
        "revoked_because",
        "worker",
    )

    def __init__(self, on_progress: Callable[[Task], None], lease: Lease, worker: str) -> None:
        self._lease = lease
        """Internal: the lease of the sans-IO client."""
        self.worker = worker
        """The name of the worker."""
        self.is_revoked = False
        """Whether the result is not wanted any more. A long handler in a thread should check it, and return."""
        self.revoked_because = ""
        """Why the task was revoked."""
        self._runner: asyncio.Task[None] | None = None
        """Internal: the runner of its async handler."""
        self._is_in_thread = False
        """Internal: whether its plain handler has a thread, or waits for one."""
        self._step: tuple[float | None, str] = None, ""
        """Internal: the last progress and its note."""
        self._has_unsent_step = False
        """Internal: whether `step` is being passed from the handler's thread to the event loop's."""
        self._on_progress = on_progress

    def __repr__(self) -> str:
        return f"<Task {self.number} of job {self.job}, {self.kind!r}, attempt {self.attempt}>"

    @property
    def job(self) -> int:
        """The number of the job."""
        return self._lease.ref[0]

    @property
    def number(self) -> int:
        """The number of the task in its job, from 0."""
        return self._lease.ref[1]

    @property
    def fence(self) -> int:
        """The number of the task's lease. It grows with each lease, so that other systems can reject writes of an
        older one."""
        return self._lease.ref[2]

    @property
    def kind(self) -> str:
        """The kind of work."""
        return self._lease.kind

    @property
    def payload(self) -> bytes:
        """The payload of the job, the same for all its tasks."""
        return self._lease.payload

    @property
    def text(self) -> str:
        """The payload as a text.

        Raises:
            PayloadError: The payload is not valid UTF-8.
        """
        return decode_text(self.payload, f"the payload of job {self.job}")

    def json(self) -> Any:
        """Return the value that the payload has as JSON: a dict, list, str, number, bool or None.

        Raises:
            PayloadError: The payload is not valid JSON.
        """
        return decode_json(self.payload, f"the payload of job {self.job}")

    @property
    def controller(self) -> str:
        """The name of the client that submitted the job."""
        return self._lease.controller

    @property
    def attempt(self) -> int:
        """1 for the first attempt, and one more for each attempt that failed before."""
        return self._lease.failures + 1

    @property
    def agreed(self) -> int:
        """The number of tasks of the job."""
        return self._lease.agreed

    def progress(self, fraction: float | None, note: str = "") -> None:
        """Report progress to the controller. May be called from any thread, as often as you like.

        Args:
            fraction: From 0 to 1; None if it is unknown.
            note: A text for the controller.

        Raises:
            UsageError: The fraction is not between 0 and 1, or the note is not a text.
        """
        if not isinstance(note, str):
            raise UsageError(f"the note is of the type {type(note).__name__}: give a text (str)")
        if fraction is not None:
            if not -_ROUNDING <= fraction <= 1 + _ROUNDING:
                raise UsageError(f"progress is {fraction!r}: it must be between 0 and 1")
            fraction = min(max(float(fraction), 0.0), 1.0)
        self._step = fraction, note
        self._on_progress(self)


def to_result(result: Payload) -> bytes:
    """Return the result of a handler as bytes; None is an empty result.

    Raises UsageError, whose text the controller reads, for a wrong type.
    """
    return b"" if result is None else to_bytes(result, "a result")


def failure_text(error: BaseException) -> str:
    """Return an error as the controller reads it, such as `ValueError: no such picture`. TaskFailed has no prefix."""
    try:
        text = str(error)
    except Exception as second:  # the __str__ of the handler's own exception class failed
        text = f"its text cannot be shown: {type(second).__name__}"
    if not isinstance(error, TaskFailedError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text or "failed"


@dataclass(frozen=True, slots=True)
class Handler:
    """The function for one kind of work."""

    call: Callable[[Task], Any]
    is_async: bool
    """Whether it runs in the event loop, and returns an awaitable. Else it runs in a thread."""


class TaskExecutor:
    """Run the handlers for the tasks of one worker in the running event loop. Made by `ClientRuntime.begin_work`."""

    def __init__(
        self,
        core: ClientProtocol,
        schedule_flush: Callable[[], None],
        handlers: Mapping[str, Handler],
        capacity: int,
        on_ready: Callable[[], None],
    ) -> None:
        self.is_ready = False
        """Whether the broker has accepted the worker."""
        self._on_ready = on_ready
        self._core = core
        self._schedule_flush = schedule_flush
        self._handlers = handlers
        self._capacity = capacity
        self._volunteered = capacity
        """The capacity that the broker knows."""
        self._capacity_timer: asyncio.TimerHandle | None = None
        """Calls _update_capacity soon."""
        self._lingering: set[Task] = set()
        """Revoked tasks whose handlers still run."""
        self._in_threads = 0
        """Number of tasks in threads, including revoked ones."""
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[Lease, Task] = {}
        """Waiting and running tasks that were not revoked."""
        self._results: deque[tuple[Task, bytes]] = deque()
        """Results for which the client has no room yet."""
        self._waiting: deque[tuple[Task, Handler]] = deque()
        """Tasks for async handlers that no runner has begun."""
        self._is_starting = False
        """Whether _start_runner will be called soon. It is True while tasks wait."""
        self._runners: set[asyncio.Task[None]] = set()
        self._loop_calls = LoopCalls(self._loop)
        self._threads = HandlerThreads(capacity)
        self._is_leaving = False
        self._failure: GodwitError | None = None
        self._changed: list[asyncio.Future[None]] = []
        core.volunteer(list(handlers), capacity)
        schedule_flush()

    # -- the end ------------------------------------------------------------------------------------------------------

    def withdraw(self) -> None:
        """Accept no more tasks. Running ones may end. May be repeated."""
        if not self._is_leaving:
            self._is_leaving = True
            self._core.withdraw()
            self._schedule_flush()
            self._notify_change()

    def return_all(self, reason: str) -> None:
        """Accept no more tasks, and return all unfinished ones to the broker for other workers."""
        self.withdraw()
        for lease in list(self._tasks):
            self._core.give_back(lease)
            self._revoke(lease, reason)
        self._waiting.clear()
        for runner in self._runners:  # `close` waits for them; asyncio.run and a second Ctrl-C must not
            asyncio.tasks._unregister_task(runner)

    async def wait_until_idle(self) -> None:
        """Wait until it is withdrawn and the last task has ended.

        Raises:
            GodwitError: The broker does not accept the worker (any more), or the client has ended.
        """
        while self._failure is None and not (self._is_leaving and not self._tasks):
            await self._next_change()
        if self._failure is not None:
            raise copy(self._failure)

    async def close(self, *, is_hurried: bool = False) -> None:
        """Wait a few seconds for async handlers that were cancelled. Handlers in threads are not waited for.

        Handlers that do not end are abandoned with a warning. If it is hurried or cancelled it hardly waits, and does
        not warn: the handlers had no time to end.
        """
        self._threads.stop()
        if not self._runners:
            return
        try:
            if not is_hurried:
                await asyncio.wait(self._runners, timeout=CLOSE_TIMEOUT_S)
        except asyncio.CancelledError:
            is_hurried = True
            raise
        finally:
            if is_hurried and self._runners:
                for runner in self._runners:
                    runner.cancel()
                await asyncio.wait(self._runners, timeout=HURRIED_CLOSE_TIMEOUT_S)
        if is_hurried:
            return
        stubborn = [task for task in self._lingering if task._runner in self._runners]
        if stubborn:
            names = ", ".join(f"task {task.number} of job {task.job} ({task.kind!r})" for task in stubborn)
            warnings.warn(
                f"handlers run on although they were cancelled {CLOSE_TIMEOUT_S:g} s ago: {names}; "
                "let CancelledError out of them",
                RuntimeWarning,
                stacklevel=2,
            )

    async def _next_change(self) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self._changed.append(future)
        await future

    def _notify_change(self) -> None:
        changed, self._changed = self._changed, []
        for future in changed:
            if not future.done():
                future.set_result(None)

    def on_client_ended(self, error: GodwitError) -> None:
        self._failure = error
        self._is_leaving = True
        for lease in list(self._tasks):  # without a connection they cannot be returned
            self._revoke(lease, str(error))
        self._waiting.clear()
        self._notify_change()

    # -- events of the client -----------------------------------------------------------------------------------------

    def on_event(self, event: Leased | Revoked | Reported | VolunteerAccepted | VolunteerRefused) -> None:
        if isinstance(event, Leased):
            self._on_leased(event.lease)
        elif isinstance(event, Revoked):
            self._revoke(event.lease, event.reason)
        elif isinstance(event, VolunteerAccepted):
            if not self.is_ready:  # the event is repeated after each reconnect
                self.is_ready = True
                _logger.info("worker %s volunteers for %s", self._core.name, ", ".join(self._handlers))
                self._on_ready()
        elif isinstance(event, VolunteerRefused):
            _logger.warning("the broker refused worker %s: %s", self._core.name, printable(event.text))
            self._failure = broker_error(event.code, event.text)
            self.return_all(event.text)  # tasks that it was given before its rights changed

    def _on_leased(self, lease: Lease) -> None:
        handler = self._handlers.get(lease.kind)
        if self._is_leaving or handler is None:  # the broker sent it before it received the withdrawal
            self._core.give_back(lease)
            return
        if not handler.is_async and self._in_threads >= self._capacity:  # the broker does not know of lingering ones
            self._update_capacity()
            self._core.give_back(lease)
            return
        task = self._tasks[lease] = Task(self.on_progress, lease, self._core.name)
        if not handler.is_async:
            try:
                self._threads.execute(partial(self._run_in_thread, task, handler.call))
            except RuntimeError as error:
                self._on_failed(task, error)
            else:
                task._is_in_thread = True
                self._in_threads += 1
            return
        self._waiting.append((task, handler))
        if not self._is_starting:
            self._start_runner()

    def _revoke(self, lease: Lease, reason: str) -> None:
        task = self._tasks.pop(lease, None)
        if task is not None:
            _logger.info("%r was revoked: %s", task, printable(reason))
            task.revoked_because = reason
            task.is_revoked = True
            if task._runner is not None:
                task._runner.cancel()
            if task._runner is not None or task._is_in_thread:
                self._lingering.add(task)
                self._update_capacity_soon()
            self._notify_change()

    # -- capacity -----------------------------------------------------------------------------------------------------

    def _update_capacity_soon(self) -> None:
        if self._capacity_timer is None and not self._is_leaving:
            self._capacity_timer = self._loop.call_later(_LINGER_S, self._update_capacity)

    def _update_capacity(self) -> None:
        """Volunteer with a capacity that excludes the slots of revoked tasks whose handlers still run."""
        if self._capacity_timer is not None:
            self._capacity_timer.cancel()
            self._capacity_timer = None
        capacity = max(self._capacity - len(self._lingering), 0)
        if self._is_leaving or capacity == self._volunteered:
            return
        self._volunteered = capacity
        if capacity:
            self._core.volunteer(list(self._handlers), capacity)
        else:
            self._core.withdraw()
        self._schedule_flush()

    def _on_lingering_ended(self, task: Task) -> None:
        """Free the slot of a revoked task whose handler has ended."""
        self._lingering.discard(task)
        if self._volunteered < self._capacity:
            self._update_capacity_soon()

    # -- handlers in the event loop -----------------------------------------------------------------------------------

    def _start_runner(self) -> None:
        self._is_starting = bool(self._waiting)
        if self._is_starting:
            runner = self._loop.create_task(self._run_waiting())
            self._runners.add(runner)
            runner.add_done_callback(self._on_runner_done)
            # After the runner's first step: tasks that it left, because a handler awaits something, get another runner.
            self._loop.call_soon(self._start_runner)

    def _on_runner_done(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if not runner.cancelled():
            runner.exception()  # marked as retrieved: KeyboardInterrupt and SystemExit have ended the loop already

    async def _run_waiting(self) -> None:
        runner = asyncio.current_task()
        assert runner is not None
        waiting = self._waiting
        context = copy_context()
        until = time.monotonic() + _RUN_S
        while waiting:
            task, handler = waiting.popleft()
            if task._lease not in self._tasks:  # it was revoked
                continue
            task._runner = runner
            try:
                result = await handler.call(task)
            except asyncio.CancelledError as error:
                if runner.cancelling() and not task.is_revoked:  # the event loop is about to end
                    self._give_back(task)
                    raise
                self._on_failed(task, error)
            except (KeyboardInterrupt, SystemExit):  # the handler wants to end the whole program
                self._give_back(task)
                self.return_all("the worker ends")
                raise
            except BaseException as error:
                self._on_failed(task, error)
            else:
                self._on_finished(task, result)
            if task.is_revoked:
                self._on_lingering_ended(task)
            # A runner whose task was revoked may be cancelled a moment later, and a handler may have set context
            # variables: neither must affect the next handler.
            if task.is_revoked or copy_context() != context or time.monotonic() > until:
                return

    # -- handlers in threads ------------------------------------------------------------------------------------------

    def _run_in_thread(self, task: Task, call: Callable[[Task], Any]) -> None:
        try:
            result = None if task.is_revoked else call(task)
        except BaseException as error:  # whatever a handler raises, only its task fails
            self._loop_calls.call(self._on_thread_done, task, self._on_failed, error)
        else:
            self._loop_calls.call(self._on_thread_done, task, self._on_finished, result)

    def _on_thread_done(self, task: Task, report: Callable[[Task, Any], None], outcome: object) -> None:
        self._in_threads -= 1
        if task.is_revoked:
            self._on_lingering_ended(task)
        else:
            report(task, outcome)

    def on_progress(self, task: Task) -> None:
        """Report the step of a task, from any thread."""
        if self._loop_calls.is_in_loop:
            self._report_step(task)
        elif not task._has_unsent_step:
            task._has_unsent_step = True
            self._loop_calls.call(self._report_step, task)

    # -- reports ------------------------------------------------------------------------------------------------------

    def _report_step(self, task: Task) -> None:
        task._has_unsent_step = False  # before the step is read, so that a newer one is reported too
        if task._lease in self._tasks:
            self._core.step(task._lease, *task._step)

    def _on_finished(self, task: Task, result: Payload) -> None:
        if task._lease not in self._tasks:
            return  # it was revoked
        try:
            payload = to_result(result)
            try:
                self._core.finish(task._lease, payload)
            except BufferFullError:
                task._runner, task._is_in_thread = None, False  # the handler has ended: nothing to cancel
                self._results.append((task, payload))
            else:
                self._remove(task)
        except UsageError as error:  # the result has a wrong type, or is too large
            self._on_failed(task, error)

    def on_room(self) -> None:
        """Report waiting results, because the client has room for them again."""
        for _ in range(len(self._results)):
            self._on_finished(*self._results.popleft())

    def _on_failed(self, task: Task, error: BaseException) -> None:
        if task._lease in self._tasks:
            is_final = isinstance(error, TaskFailedError) and bool(error.final)
            if isinstance(error, TaskFailedError):
                _logger.info("%r failed: %s", task, failure_text(error))
            else:
                _logger.warning("the handler of %r raised %s", task, type(error).__name__, exc_info=error)
            self._core.fail(task._lease, failure_text(error), is_final=is_final)
            self._remove(task)

    def _give_back(self, task: Task) -> None:
        if task._lease in self._tasks:
            self._core.give_back(task._lease)
            self._remove(task)

    def _remove(self, task: Task) -> None:
        """Forget a task: the sans-IO client reports its outcome."""
        del self._tasks[task._lease]
        if self._changed:
            self._notify_change()


class LoopCalls:
    """Call functions in the event loop's thread, in order, from any thread. Several calls wake the loop once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_woken = False

    @property
    def is_in_loop(self) -> bool:
        """Whether the caller is in the event loop's thread."""
        return threading.get_ident() == self._thread

    def call(self, callback: Callable[..., object], *arguments: Any) -> None:
        # In this order, and the opposite one in _run_calls: a new call is either seen there, or wakes the loop again.
        self._calls.append((callback, arguments))
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._run_calls)

    def _run_calls(self) -> None:
        self._is_woken = False
        calls = self._calls
        while calls:
            callback, arguments = calls.popleft()
            callback(*arguments)


class HandlerThreads:
    """Run functions in up to `limit` daemon threads, which are started as needed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0
        self._busy = 0
        """Number of functions that are running or waiting."""

    def execute(self, function: Callable[[], object]) -> None:
        """Run a function soon. It must handle its errors itself.

        Raises:
            RuntimeError: The system refused to start even one thread.
        """
        with self._lock:
            if self._count <= self._busy and self._count < self._limit:
                self._start()
            self._busy += 1
        self._queue.put(function)

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name=f"godwit-handler-{self._count + 1}", daemon=True).start()
        except RuntimeError:
            if not self._count:
                raise
            return  # an existing thread will run the function
        self._count += 1

    def stop(self) -> None:
        """Let each thread end after its current function, without waiting for that."""
        for _ in range(self._count):
            self._queue.put(None)

    def _run(self) -> None:
        while (function := self._queue.get()) is not None:
            function()
            del function  # so that it is freed while the thread waits
            with self._lock:
                self._busy -= 1
