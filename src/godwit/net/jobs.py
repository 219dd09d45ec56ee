"""Jobs as their controller sees them.

job = await client.submit("resize", payload, workers=4)
async for update in job: ...
results = await job.results()
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from copy import copy
from itertools import islice
from typing import Final, Literal, TypeAlias

import msgspec

from godwit.client.jobs import Change, JobView, TaskView, ViewState
from godwit.errors import GodwitError, JobCancelledError, JobFailedError
from godwit.wire.jobs import JobInfo

What: TypeAlias = Literal[
    "accepted", "settled", "progress", "result", "failure", "reassigned", "done", "failed", "cancelled"
]
CancelJob: TypeAlias = Callable[[int, str], Awaitable[None]]


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a job. What does not apply is None, or an empty text."""

    what: What
    task: int | None = None
    worker: str = ""
    """Who has the task, or had it last."""
    progress: float | None = None
    note: str = ""
    result: bytes | None = None
    error: str = ""
    """Why an attempt or the job failed, or why it was cancelled."""
    is_final: bool = False
    """Of a failure: the task is not tried again."""


class TaskResult(msgspec.Struct, frozen=True):
    """What one task brought."""

    task: int
    worker: str
    payload: bytes


_SHOWN: Final[dict[str, What]] = {
    "settled": "settled",
    "progress": "progress",
    "failure": "failure",
    "reassigned": "reassigned",
    "result": "result",
    "task_failed": "failure",
}
"""What of the client's changes an application hears of, and how it is called there. The end is told by itself."""
_SHOWN_ERRORS: Final = 3
_ENDS: Final[dict[str, What]] = {"done": "done", "failed": "failed", "cancelled": "cancelled"}


class AsyncJob:
    """One job, over reconnects. Made by `AsyncClient.submit` and `AsyncClient.job`.

    As an async iterator it gives what happens, from how it stands to the end: any number of times, and at any time.
    Whoever is slow misses steps of progress, but never a result, a failure or the end.
    """

    __slots__ = ("_cancel", "_followers", "_has_heard_end", "_view", "_waiters", "answer", "begins_us", "refusal")

    def __init__(self, cancel: CancelJob, view: JobView) -> None:
        self._cancel = cancel
        self._view = view
        self._followers: list[_Follower] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._has_heard_end = False
        """The view may have ended before: what happened is told a little later."""
        self.begins_us = 0
        """Not before then, in microseconds since 1970, if it was submitted with a delay. 0 or past: at once."""
        self.answer: Countdown | None = None
        """Who waits for the broker's answer to it."""
        self.refusal: GodwitError | None = None
        """Why nothing more will be known of it: the broker refused it, or does not know it, or the client ended."""

    def __repr__(self) -> str:
        return f"<AsyncJob {self.number}, {self.kind!r}, {self.state}>"

    # -- look ---------------------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """The broker's, for people and programs: `client.job(number)` finds it again."""
        return self._view.number or 0

    @property
    def key(self) -> str:
        """The controller's: to submit with the same one again is harmless."""
        return self._view.key

    @property
    def kind(self) -> str:
        return self._view.kind

    @property
    def agreed(self) -> int | None:
        """How many workers do it. None: no worker volunteers for its kind yet."""
        return self._view.agreed

    @property
    def state(self) -> ViewState:
        """waiting, running, done, failed or cancelled; refused by the broker, or unknown to it (any more)."""
        return self._view.state

    @property
    def is_ended(self) -> bool:
        return self._view.is_ended or self.refusal is not None

    @property
    def reason(self) -> str:
        """Why it failed or was cancelled."""
        return self._view.reason

    @property
    def tasks(self) -> Mapping[int, TaskView]:
        """How each task stands, as far as it is known."""
        return self._view.tasks

    # -- wait ---------------------------------------------------------------------------------------------------------

    async def results(self, timeout_s: float | None = None) -> list[TaskResult]:
        """Waits for the end; gives what each task brought. JobFailedError or JobCancelledError if one brought nothing.

        TimeoutError after so long: the job goes on.
        """
        if not self.is_ended:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._ended()
            except TimeoutError:
                raise TimeoutError(f"job {self.number} has not ended within {timeout_s:g} s: it goes on") from None
        return self._outcome()

    async def _ended(self) -> None:
        while not self.is_ended:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def _outcome(self) -> list[TaskResult]:
        view = self._view
        if self.refusal is not None:
            raise copy(self.refusal)
        tasks = sorted(view.tasks.items())
        results = [TaskResult(n, task.worker, task.result) for n, task in tasks if task.result is not None]
        if view.state == "done":
            if len(results) == len(tasks):
                return results
            text = f"job {view.number} is done, but the broker kept only {len(results)} of its {len(tasks)} results"
            raise JobFailedError(
                f"{text} until now: ask for them sooner, or let it keep jobs for longer", "done", results
            )
        errors = {n: task.error for n, task in tasks if task.state == "failed"}
        if view.state == "cancelled":
            text = f"job {view.number} was cancelled{f': {view.reason}' if view.reason else ''}"
            raise JobCancelledError(text, view.state, results, errors)
        details = "; ".join(f"task {n}: {error}" for n, error in islice(errors.items(), _SHOWN_ERRORS))
        text = f"job {view.number} failed with {len(results)} of {view.agreed or 0} results"
        raise JobFailedError(": ".join(filter(None, (text, view.reason, details))), view.state, results, errors)

    def __aiter__(self) -> AsyncIterator[Update]:
        return self._follow()

    async def _follow(self) -> AsyncIterator[Update]:
        has_ended = self.is_ended  # then the follower begins with all that there is
        follower = _Follower(self._view)
        self._followers.append(follower)
        try:
            yield Update(what="accepted")
            while True:
                has_ended = has_ended or self._has_heard_end or self.refusal is not None
                for update in follower.take():
                    yield update
                if has_ended:
                    break
                await follower.wait()
        finally:
            self._followers.remove(follower)
        yield self._end()

    def _end(self) -> Update:
        if self.refusal is not None:
            raise copy(self.refusal)
        return Update(what=_ENDS[self._view.state], error=self._view.reason)

    # -- do -----------------------------------------------------------------------------------------------------------

    async def cancel(self, reason: str = "") -> None:
        """Ends it: tasks that are at work are revoked. Returns when that is safe."""
        if self.refusal is not None:
            raise copy(self.refusal)
        await self._cancel(self.number, reason)

    # -- what the client tells ----------------------------------------------------------------------------------------

    def describe(self, info: JobInfo) -> None:
        """What an update does not tell of a job that was found by its number."""
        self._view.key, self._view.kind, self._view.workers = info.key, info.of_kind, info.workers
        self.begins_us = info.begins_us

    def on_changed(self, changes: list[Change]) -> None:
        if is_the_end(changes):
            self._has_heard_end = True
        for follower in self._followers:
            follower.on_changed(changes)
        if self._waiters and self.is_ended:
            self._wake()

    def on_refused(self, error: GodwitError) -> None:
        """Also when the client has ended: nothing more will be known."""
        self.refusal = error
        for follower in self._followers:
            follower.wake()
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Countdown:
    """Waits until so many jobs were answered."""

    __slots__ = ("_future", "_left")

    def __init__(self, count: int) -> None:
        self._left = count
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_answer(self) -> None:
        self._left -= 1
        if self._left <= 0 and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        if self._left > 0:
            await self._future


class _Follower:
    """One who iterates over a job: what it has not heard yet. Each thing of a task once, however often it happened."""

    __slots__ = ("_is_woken", "_news", "_told", "_waiter")

    def __init__(self, view: JobView) -> None:
        self._waiter: asyncio.Future[None] | None = None
        self._is_woken = False
        self._told: set[int] = set()
        """Tasks whose end was told. It may come again: the view knows it a little before it is told."""
        self._news: dict[tuple[str, int | None], TaskView | None] = {}
        for number, task in view.tasks.items():
            if task.state == "finished":
                self._news["result", number] = task
            elif task.state == "failed":
                self._news["task_failed", number] = task
            elif task.progress is not None or task.note:
                self._news["progress", number] = task

    def on_changed(self, changes: list[Change]) -> None:
        for what, number, task in changes:
            self._news.pop((what, number), None)  # its latest place is the right one
            self._news[what, number] = task
        self.wake()

    def wake(self) -> None:
        self._is_woken = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Until something has happened since the last wait."""
        if not self._is_woken:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._is_woken = False

    def take(self) -> Iterator[Update]:
        news, self._news = self._news, {}
        for (what, number), task in news.items():
            shown = _SHOWN.get(what)
            if shown is None or number in self._told:
                continue
            if number is not None and what in ("result", "task_failed"):
                self._told.add(number)
            yield _update(shown, number, task, is_final=what == "task_failed")


def is_the_end(changes: list[Change]) -> bool:
    """Whether the job has ended with these changes."""
    return bool(changes) and changes[-1].what == "ended"


def _update(what: What, number: int | None, task: TaskView | None, *, is_final: bool) -> Update:
    if task is None:
        return Update(what=what)
    return Update(
        what=what,
        task=number,
        worker=task.worker,
        progress=task.progress if what == "progress" else None,
        note=task.note if what == "progress" else "",
        result=task.result if what == "result" else None,
        error=task.error if what == "failure" else "",
        is_final=is_final,
    )
