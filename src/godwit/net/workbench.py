"""What a worker has on its hands: tasks from their lease to their report.

Async handlers run in *runners*, tasks of the event loop. A runner takes up one waiting task after another until one of
the handlers waits for something; then another runner goes on with the rest. So a thousand handlers that return at once
cost one task of the event loop, not a thousand, and each of them still runs in one, as asyncio.timeout and others need.
Plain handlers run in threads.

A handler that runs on after its task was revoked keeps its place: nobody can stop a thread. The broker is told that the
worker can do less, so that it never has more handlers at work than its capacity, however many of them hang.
"""

from __future__ import annotations

import asyncio
import time
import warnings
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
_LINGER_S: Final = 0.1
"""After so long the place of a revoked task whose handler still runs is told to be taken. Most end at once."""
CLOSE_PATIENCE_S: Final = 5.0
"""For async handlers that were cancelled. Commands need less, even those that are killed."""
HURRY_S: Final = 0.5
"""The same, if somebody does not want to wait: a command is killed at once then."""


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
        self._capacity = capacity
        self._places = capacity
        """What the broker was told last."""
        self._telling: asyncio.TimerHandle | None = None
        """Tells it something else soon."""
        self._lingering: set[Task] = set()
        """They were revoked, and their handlers run on."""
        self._in_threads = 0
        """Tasks that threads have, these among them."""
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
        self._threads = HandlerThreads(capacity)
        self._is_leaving = False
        self._failure: GodwitError | None = None
        self._changed: list[asyncio.Future[None]] = []
        core.volunteer(list(handlers), capacity)
        schedule_flush()

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
        for runner in self._runners:  # `close` waits for them; the end of the event loop, or a second Ctrl-C, does not
            asyncio.tasks._unregister_task(runner)

    async def idle(self) -> None:
        """Waits until it is withdrawn and its last task has ended. Raises why it may not work (any longer)."""
        while self._failure is None and not (self._is_leaving and not self._tasks):
            await self._next_change()
        if self._failure is not None:
            raise copy(self._failure)

    async def close(self, *, is_hurried: bool = False) -> None:
        """Waits a while for handlers that were told to end: in the event loop. Threads cannot be told.

        What does not end is left alone, with a warning. `is_hurried`, or cancelled: it hardly waits at all.
        """
        self._threads.stop()
        if not self._runners:
            return
        try:
            if not is_hurried:
                await asyncio.wait(self._runners, timeout=CLOSE_PATIENCE_S)
        except asyncio.CancelledError:
            is_hurried = True
            raise
        finally:
            if is_hurried and self._runners:
                for runner in self._runners:
                    runner.cancel()
                await asyncio.wait(self._runners, timeout=HURRY_S)
        stubborn = [task for task in self._lingering if task.runner in self._runners]
        if stubborn and not is_hurried:
            names = ", ".join(f"task {task.number} of job {task.job} ({task.kind!r})" for task in stubborn)
            warnings.warn(
                f"handlers run on although they were cancelled {CLOSE_PATIENCE_S:g} s ago: {names}; "
                "let CancelledError out of them",
                RuntimeWarning,
                stacklevel=2,
            )

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
        if not handler.is_async and self._in_threads >= self._capacity:  # the broker does not know yet who lingers
            self._tell_places()
            self._core.give_back(lease)
            return
        task = self._tasks[lease] = Task(self, lease, self._core.name)
        if not handler.is_async:
            try:
                self._threads.do(partial(self._run_in_thread, task, handler.call))
            except RuntimeError as error:
                self._on_failed(task, error)
            else:
                task.is_in_thread = True
                self._in_threads += 1
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
            if task.runner is not None or task.is_in_thread:
                self._lingering.add(task)
                self._tell_places_soon()
            self._note_change()

    # -- places -------------------------------------------------------------------------------------------------------

    def _tell_places_soon(self) -> None:
        if self._telling is None and not self._is_leaving:
            self._telling = self._loop.call_later(_LINGER_S, self._tell_places)

    def _tell_places(self) -> None:
        """How many tasks it can do at once, beside those whose handlers do not end."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        places = max(self._capacity - len(self._lingering), 0)
        if self._is_leaving or places == self._places:
            return
        self._places = places
        if places:
            self._core.volunteer(list(self._handlers), places)
        else:
            self._core.withdraw()
        self._schedule_flush()

    def _on_handler_ended(self, task: Task) -> None:
        """Of a task that was revoked: its place is free again."""
        self._lingering.discard(task)
        if self._places < self._capacity:
            self._tell_places_soon()

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
            if task.is_revoked:
                self._on_handler_ended(task)
            # A cancel may be on its way into a runner whose task was revoked, and a handler may leave values in its
            # context: neither is for the next handler.
            if task.is_revoked or copy_context() != context or time.monotonic() > until:
                return

    # -- in threads ---------------------------------------------------------------------------------------------------

    def _run_in_thread(self, task: Task, call: Callable[[Task], Any]) -> None:
        try:
            result = None if task.is_revoked else call(task)
        except BaseException as error:  # nothing that a handler raises ends more than its task
            self._crossing.call(self._on_thread_done, task, self._on_failed, error)
        else:
            self._crossing.call(self._on_thread_done, task, self._on_finished, result)

    def _on_thread_done(self, task: Task, report: Callable[[Task, Any], None], outcome: object) -> None:
        self._in_threads -= 1
        if task.is_revoked:
            self._on_handler_ended(task)
        else:
            report(task, outcome)

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
                task.runner, task.is_in_thread = None, False  # its handler has ended: there is nothing to cancel
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
