"""What a worker has on its hands: tasks from their lease to their report.

Async handlers run in *runners*, tasks of the event loop. A runner takes up one waiting task after another until one of
the handlers waits for something; then another runner goes on with the rest. So a thousand handlers that return at once
cost one task of the event loop, not a thousand, and each of them still runs in one, as asyncio.timeout and others need.
Plain handlers run in threads.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import copy_context
from copy import copy
from functools import partial
from typing import Any, Final

from godwit.client.client import Client
from godwit.client.events import Leased, Reported, Revoked, Volunteered, VolunteerRefused
from godwit.client.leasing import Lease
from godwit.errors import BufferFullError, GodwitError, TaskFailedError, UsageError, broker_error
from godwit.net.handlers import Handler
from godwit.net.task import Task, failure_text, to_result
from godwit.net.threads import Crossing, HandlerThreads

_RUN_S: Final = 0.005
"""After so long a runner lets the event loop have its turn."""


class Workbench:
    """The tasks of one worker, in the running event loop. Made by `ClientShell.begin_work`."""

    def __init__(
        self,
        core: Client,
        schedule_flush: Callable[[], None],
        handlers: Mapping[str, Handler],
        capacity: int,
        on_ready: Callable[[], None],
    ) -> None:
        self.is_ready = False
        """The broker has said that it knows of the worker."""
        self._on_ready = on_ready
        self._core = core
        self._schedule_flush = schedule_flush
        self._handlers = handlers
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[Lease, Task] = {}
        """Those that are waiting or at work here."""
        self._results: deque[tuple[Task, bytes]] = deque()
        """Those for which the client has no room yet."""
        self._waiting: deque[tuple[Task, Handler]] = deque()
        """Tasks for async handlers that no runner has taken up."""
        self._is_starting = False
        """_start_runner will be called soon. It is so as long as tasks wait."""
        self._runners: set[asyncio.Task[None]] = set()
        self._crossing = Crossing(self._loop)
        self._threads = HandlerThreads()
        self._is_leaving = False
        self._failure: GodwitError | None = None
        self._changed: list[asyncio.Future[None]] = []
        core.volunteer(list(handlers), capacity)
        schedule_flush()

    @property
    def tasks(self) -> int:
        """How many it has."""
        return len(self._tasks)

    # -- the end ------------------------------------------------------------------------------------------------------

    def withdraw(self) -> None:
        """No more tasks: those that are at work may end. May be repeated."""
        if not self._is_leaving:
            self._is_leaving = True
            self._core.withdraw()
            self._schedule_flush()
            self._note_change()

    def hand_back(self, reason: str) -> None:
        """No more tasks, and those that are not done go to others at once."""
        self.withdraw()
        for lease in list(self._tasks):
            self._core.give_back(lease)
            self._revoke(lease, reason)
        self._waiting.clear()

    async def idle(self) -> None:
        """Waits until it is withdrawn and its last task has ended. Raises why it may not work (any longer)."""
        while self._failure is None and not (self._is_leaving and not self._tasks):
            await self._next_change()
        if self._failure is not None:
            raise copy(self._failure)

    async def close(self) -> None:
        """Waits for handlers that were told to end: in the event loop. Threads cannot be told, and are left alone."""
        self._threads.stop()
        if self._runners:
            await asyncio.wait(self._runners)

    async def _next_change(self) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self._changed.append(future)
        await future

    def _note_change(self) -> None:
        changed, self._changed = self._changed, []
        for future in changed:
            if not future.done():
                future.set_result(None)

    def on_client_ended(self, error: GodwitError) -> None:
        self._failure = error
        self._is_leaving = True
        for lease in list(self._tasks):  # there is nobody to hand them back to
            self._revoke(lease, str(error))
        self._waiting.clear()
        self._note_change()

    # -- what the client tells ----------------------------------------------------------------------------------------

    def on_event(self, event: Leased | Revoked | Reported | Volunteered | VolunteerRefused) -> None:
        if isinstance(event, Leased):
            self._on_leased(event.lease)
        elif isinstance(event, Revoked):
            self._revoke(event.lease, event.reason)
        elif isinstance(event, Volunteered):
            if not self.is_ready:  # it is told again after each reconnect
                self.is_ready = True
                self._on_ready()
        elif isinstance(event, VolunteerRefused):
            self._failure = broker_error(event.code, event.text)
            self.hand_back(event.text)  # what it had before its rights were changed

    def _on_leased(self, lease: Lease) -> None:
        handler = self._handlers.get(lease.kind)
        if self._is_leaving or handler is None:  # it was on its way
            self._core.give_back(lease)
            return
        task = self._tasks[lease] = Task(self, lease, self._core.name)
        if not handler.is_async:
            try:
                self._threads.do(partial(self._run_in_thread, task, handler.call))
            except RuntimeError as error:
                self._on_failed(task, error)
            return
        self._waiting.append((task, handler))
        if not self._is_starting:
            self._start_runner()

    def _revoke(self, lease: Lease, reason: str) -> None:
        task = self._tasks.pop(lease, None)
        if task is not None:
            task.revoked_because = reason
            task.is_revoked = True
            if task.runner is not None:
                task.runner.cancel()
            self._note_change()

    # -- in the event loop --------------------------------------------------------------------------------------------

    def _start_runner(self) -> None:
        self._is_starting = bool(self._waiting)
        if self._is_starting:
            runner = self._loop.create_task(self._run_waiting())
            self._runners.add(runner)
            runner.add_done_callback(self._on_runner_done)
            # After the runner's first step: whatever it has left, because a handler waits, is for another one.
            self._loop.call_soon(self._start_runner)

    def _on_runner_done(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if not runner.cancelled():
            runner.exception()  # what there can be has gone through the event loop already

    async def _run_waiting(self) -> None:
        runner = asyncio.current_task()
        assert runner is not None
        waiting = self._waiting
        context = copy_context()
        until = time.monotonic() + _RUN_S
        while waiting:
            task, handler = waiting.popleft()
            if task.lease not in self._tasks:  # it was revoked
                continue
            task.runner = runner
            try:
                result = await handler.call(task)
            except asyncio.CancelledError as error:
                if runner.cancelling() and not task.is_revoked:  # the event loop is about to end
                    self._give_back(task)
                    raise
                self._on_failed(task, error)
            except (KeyboardInterrupt, SystemExit):  # it wants the whole program to end
                self._give_back(task)
                self.hand_back("the worker ends")
                raise
            except BaseException as error:
                self._on_failed(task, error)
            else:
                self._on_finished(task, result)
            # A cancel may be on its way into a runner whose task was revoked, and a handler may leave values in its
            # context: neither is for the next handler.
            if task.is_revoked or copy_context() != context or time.monotonic() > until:
                return

    # -- in threads ---------------------------------------------------------------------------------------------------

    def _run_in_thread(self, task: Task, call: Callable[[Task], Any]) -> None:
        if not task.is_revoked:
            try:
                result = call(task)
            except BaseException as error:  # nothing that a handler raises ends more than its task
                self._crossing.call(self._on_failed, task, error)
            else:
                self._crossing.call(self._on_finished, task, result)

    def on_progress(self, task: Task) -> None:
        """For any thread."""
        if self._crossing.is_here:
            self._tell_step(task)
        elif not task.is_told:
            task.is_told = True
            self._crossing.call(self._tell_step, task)

    # -- reports ------------------------------------------------------------------------------------------------------

    def _tell_step(self, task: Task) -> None:
        task.is_told = False  # before the step is read: a newer one comes along, or is told anew
        if task.lease in self._tasks:
            self._core.step(task.lease, *task.step)

    def _on_finished(self, task: Task, result: object) -> None:
        if task.lease not in self._tasks:
            return  # it was revoked
        try:
            payload = to_result(result)
            try:
                self._core.finish(task.lease, payload)
            except BufferFullError:
                self._results.append((task, payload))
            else:
                self._take_away(task)
        except UsageError as error:  # it is no result, or larger than the broker takes
            self._on_failed(task, error)

    def on_room(self) -> None:
        """The client has room for results again."""
        for _ in range(len(self._results)):
            self._on_finished(*self._results.popleft())

    def _on_failed(self, task: Task, error: BaseException) -> None:
        if task.lease in self._tasks:
            is_final = isinstance(error, TaskFailedError) and error.final
            self._core.fail(task.lease, failure_text(error), is_final=is_final)
            self._take_away(task)

    def _give_back(self, task: Task) -> None:
        if task.lease in self._tasks:
            self._core.give_back(task.lease)
            self._take_away(task)

    def _take_away(self, task: Task) -> None:
        """Its outcome is the client's to tell."""
        del self._tasks[task.lease]
        if self._changed:
            self._note_change()
