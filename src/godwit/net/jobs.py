"""Jobs as their controller sees them: `AsyncJob`, `BlockingJob`, their updates and results, and all jobs of a client.

job = await client.submit("resize", payload, workers=4)
async for update in job: ...
results = await job.results()
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from copy import copy
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

import msgspec

from godwit.broker.topics import check_kind
from godwit.client.batches import Payload, to_bytes
from godwit.client.events import JobChanged, JobRefused, JobTaken, WorkIdle
from godwit.client.jobs import PAYLOAD, Change, JobView, TaskView, ViewState, check_payload
from godwit.client.message import decode_json, decode_text, shorten
from godwit.client.protocol import ClientProtocol
from godwit.errors import BufferFullError, GodwitError, JobCancelledError, JobFailedError, UsageError, broker_error
from godwit.net.job_options import JobLike, Submission, check_number, check_submissions, listed_jobs
from godwit.net.loop import LoopThread, TimeLimit, check_timeout, within
from godwit.wire.control import ControlMessage, Done
from godwit.wire.control_base import MAX_TEXT_CHARACTERS
from godwit.wire.jobs import CancelJob, JobInfo, JobSpec

What: TypeAlias = Literal[
    "accepted", "settled", "progress", "result", "failure", "reassigned", "done", "failed", "cancelled"
]
CancelCall: TypeAlias = Callable[[int, str], Coroutine[Any, Any, None]]
Request: TypeAlias = Callable[[Callable[[int], ControlMessage], type[Done]], Awaitable[Done]]


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a job. Fields that do not apply are None or empty."""

    what: What
    """accepted: the broker has stored the job. settled: the number of workers is known. progress, result, failure,
    reassigned: of the task `task`. done, failed, cancelled: the end of the job."""
    task: int | None = None
    """The number of the task, from 0."""
    worker: str = ""
    """The worker that has the task, or had it last."""
    progress: float | None = None
    """From 0 to 1."""
    note: str = ""
    """The text that the handler reported with its progress."""
    result: bytes | None = None
    error: str = ""
    """Why an attempt or the job failed, or why the job was cancelled."""
    is_final: bool = False
    """Of a failure: the task is not tried again."""


class TaskResult(msgspec.Struct, frozen=True):
    """The result of one task."""

    task: int
    """The number of the task, from 0."""
    worker: str
    """The worker that did the task."""
    payload: bytes
    """The bytes that its handler returned."""

    @property
    def text(self) -> str:
        """The payload as a text.

        Raises:
            PayloadError: The payload is not valid UTF-8.
        """
        return decode_text(self.payload, f"the result of task {self.task} by {self.worker}")

    def json(self) -> Any:
        """Return the value that the payload has as JSON: a dict, list, str, number, bool or None.

        Raises:
            PayloadError: The payload is not valid JSON.
        """
        return decode_json(self.payload, f"the result of task {self.task} by {self.worker}")

    def __repr__(self) -> str:
        return f"<TaskResult of task {self.task} by {self.worker!r}: {shorten(self.payload)}>"


_SHOWN: Final[dict[str, What]] = {
    "settled": "settled",
    "progress": "progress",
    "failure": "failure",
    "reassigned": "reassigned",
    "result": "result",
    "task_failed": "failure",
}
"""The changes of a JobView that become updates, and their names there. The end of the job is reported separately."""
_SHOWN_ERRORS: Final = 3
_ENDS: Final[dict[str, What]] = {"done": "done", "failed": "failed", "cancelled": "cancelled"}


class AsyncJob:
    """A job, followed over reconnects. Made by `AsyncClient.submit` and `AsyncClient.job`.

    As an async iterator it returns updates (`Update`), from the present state to the end. It can be iterated any number
    of times, at any time. A slow iteration misses steps of progress, but never a result, a failure or the end.

        job = await client.submit("resize", picture, workers=4)
        async for update in job:
            print(update.what, update.task, update.progress)
        results = await job.results()
    """

    __slots__ = ("_answer", "_cancel", "_followers", "_has_reported_end", "_refusal", "_view", "_waiters", "begins_us")

    def __init__(self, cancel: CancelCall, view: JobView) -> None:
        self._cancel = cancel
        self._view = view
        self._followers: list[_Follower] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._has_reported_end = False
        """Whether the end was reported as an event. The view may have ended a little earlier."""
        self.begins_us = 0
        """When the job may begin, in microseconds since 1970, if it was submitted with a delay; else 0."""
        self._answer: Countdown | None = None
        """The wait for the broker's answer to the submission."""
        self._refusal: GodwitError | None = None
        """Why there are no more updates: the broker refused the job or does not know it, or the client has ended."""

    def __repr__(self) -> str:
        return f"<AsyncJob {self.number}, {self.kind!r}, {self.state}>"

    # -- properties ---------------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """The number that the broker gave the job: `client.job(number)` finds it again."""
        return self._view.number or 0

    @property
    def key(self) -> str:
        """The controller's key of the job. A second submission with the same key has no effect."""
        return self._view.key

    @property
    def kind(self) -> str:
        """The kind of work, which decides which workers can do it."""
        return self._view.kind

    @property
    def agreed(self) -> int | None:
        """The number of workers that do the job, each as one task. None until a worker volunteers for its kind."""
        return self._view.agreed

    @property
    def state(self) -> ViewState:
        """waiting, running, done, failed or cancelled; or refused by the broker, or unknown to it (any more)."""
        return self._view.state

    @property
    def is_ended(self) -> bool:
        """Whether no more updates will follow."""
        return self._view.is_ended or self._refusal is not None

    @property
    def reason(self) -> str:
        """Why the job failed or was cancelled."""
        return self._view.reason

    @property
    def tasks(self) -> Mapping[int, TaskView]:
        """The last known state of each task, by number."""
        return self._view.tasks

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def results(self, timeout_s: float | None = None) -> list[TaskResult]:
        """Wait for the end of the job and return the results of its tasks.

        Args:
            timeout_s: How long to wait; None waits forever. The job itself continues after a timeout.

        Returns:
            One result for each task, in the order of their numbers.

        Raises:
            JobFailedError: A task failed for good, or the broker has deleted some of the results already.
            JobCancelledError: The job was cancelled.
            TimeoutError: The job has not ended within `timeout_s` seconds.
            GodwitError: The broker refused the job or does not know it, or the client has ended.
        """
        check_timeout(timeout_s)
        if not self.is_ended:
            try:
                async with TimeLimit(timeout_s):
                    await self._wait_for_end()
            except TimeoutError:
                raise TimeoutError(f"job {self.number} has not ended within {timeout_s:g} s: it goes on") from None
        return self._outcome()

    async def _wait_for_end(self) -> None:
        while not self.is_ended:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def _outcome(self) -> list[TaskResult]:
        view = self._view
        if self._refusal is not None:
            raise copy(self._refusal)
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
        has_ended = self.is_ended  # then the follower begins with the whole outcome
        follower = _Follower(self._view)
        self._followers.append(follower)
        try:
            yield Update(what="accepted")
            while True:
                has_ended = has_ended or self._has_reported_end or self._refusal is not None
                for update in follower.take_updates():
                    yield update
                if has_ended:
                    break
                await follower.wait()
        finally:
            self._followers.remove(follower)
        yield self._end()

    def _end(self) -> Update:
        if self._refusal is not None:
            raise copy(self._refusal)
        return Update(what=_ENDS[self._view.state], error=self._view.reason)

    async def cancel(self, reason: str = "", *, timeout_s: float | None = None) -> None:
        """Cancel the job and wait until the broker has stored that. Running tasks are revoked.

        Args:
            reason: Shown to the workers and to clients that watch the job.
            timeout_s: How long to wait for the broker; None waits for ever.

        Raises:
            ReplyTimeoutError: The broker has not answered within `timeout_s`.
            JobError: The broker does not know the job (any more), or this client may not see it.
            GodwitError: The broker refused the job, or the client has ended.
        """
        if self._refusal is not None:
            raise copy(self._refusal)
        await within(
            self._cancel(self.number, reason),
            timeout_s,
            f"the broker did not confirm the end of job {self.number}",
            "the job may be cancelled or not; try again",
        )

    # -- events of the client -----------------------------------------------------------------------------------------

    def _describe(self, info: JobInfo) -> None:
        """Set the properties of a job found by its number that updates do not contain."""
        self._view.key, self._view.kind, self._view.workers = info.key, info.of_kind, info.workers
        self.begins_us = info.begins_us

    def _on_changed(self, changes: list[Change]) -> None:
        if is_the_end(changes):
            self._has_reported_end = True
        for follower in self._followers:
            follower.on_changed(changes)
        if self._waiters and self.is_ended:
            self._wake()

    def _on_refused(self, error: GodwitError) -> None:
        """End all waits with this error, also when the client has ended."""
        self._refusal = error
        for follower in self._followers:
            follower.wake()
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        _wake_all(waiters)


class Countdown:
    """Wait until `count` jobs were answered."""

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
    """One iteration over a job: its unread updates. Several updates of one kind and task are merged into the last."""

    __slots__ = ("_is_woken", "_reported", "_unread", "_waiter")

    def __init__(self, view: JobView) -> None:
        self._waiter: asyncio.Future[None] | None = None
        self._is_woken = False
        self._reported: set[int] = set()
        """Tasks whose end was returned. The event may follow: the view contains it a little earlier."""
        self._unread: dict[tuple[str, int | None], TaskView | None] = {}
        for number, task in view.tasks.items():
            if task.state == "finished":
                self._unread["result", number] = task
            elif task.state == "failed":
                self._unread["task_failed", number] = task
            elif task.progress is not None or task.note:
                self._unread["progress", number] = task

    def on_changed(self, changes: list[Change]) -> None:
        for what, number, task in changes:
            self._unread.pop((what, number), None)  # re-inserted below, so that the order is that of the last change
            self._unread[what, number] = task
        self.wake()

    def wake(self) -> None:
        self._is_woken = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until `wake` was called since the last wait."""
        if not self._is_woken:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._is_woken = False

    def take_updates(self) -> Iterator[Update]:
        unread, self._unread = self._unread, {}
        for (what, number), task in unread.items():
            shown = _SHOWN.get(what)
            if shown is None or number in self._reported:
                continue
            if number is not None and what in ("result", "task_failed"):
                self._reported.add(number)
            yield _update(shown, number, task, is_final=what == "task_failed")


def is_the_end(changes: list[Change]) -> bool:
    """Return whether the job has ended with these changes."""
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


class ClientJobs:
    """The jobs that one client submitted or watches, until they end."""

    def __init__(self, core: ClientProtocol, schedule_flush: Callable[[], None], request: Request) -> None:
        self._core = core
        self._schedule_flush = schedule_flush
        self._request = request
        self._followed: dict[JobView, AsyncJob] = {}
        self._starved: list[asyncio.Future[None]] = []
        self._drained: list[asyncio.Future[None]] = []
        self._ended: GodwitError | None = None
        self.handlers: dict[type[Any], Callable[[Any], None]] = {
            JobTaken: self._on_taken,
            JobRefused: self._on_refused,
            JobChanged: self._on_changed,
            WorkIdle: self._on_idle,
        }

    async def submit(self, spec: JobSpec, payload: Payload) -> AsyncJob:
        """Submit a job and wait until the broker has stored it. Raise its refusal."""
        check_kind(spec.of_kind)
        body = payload if type(payload) is bytes else to_bytes(payload)
        (job,) = await self._submit_all([(spec, body)])
        if job._refusal is not None:
            raise copy(job._refusal)
        return job

    async def submit_many(self, jobs: Iterable[JobLike], spec: JobSpec) -> list[AsyncJob]:
        """Submit jobs with the options of `spec`, and wait until all are answered. A refused one has its `refusal`."""
        submissions = check_submissions(listed_jobs(jobs), spec)  # all are checked before the first one is sent
        longest = max((body for _, body in submissions), key=len, default=b"")
        check_payload(PAYLOAD, longest, self._core.max_payload_bytes)
        return await self._submit_all(submissions)

    async def _submit_all(self, submissions: list[Submission]) -> list[AsyncJob]:
        answer = Countdown(len(submissions))
        submitted: list[AsyncJob] = []
        for spec, body in submissions:
            while True:
                try:
                    view = self._core.submit(spec, body)
                except BufferFullError:
                    await self._room()
                else:
                    break
            job = self._follow(view, answer)
            if spec.delay_ms:
                job.begins_us = time.time_ns() // 1000 + spec.delay_ms * 1000
            submitted.append(job)
        await answer.wait()
        if self._ended is not None:
            raise copy(self._ended)
        return submitted

    async def watch(self, number: int) -> AsyncJob:
        """Follow a job by its number, and wait until its state is known."""
        answer = Countdown(1)
        job = self._follow(self._core.watch(number), answer)
        self._schedule_flush()
        await answer.wait()
        if job._refusal is not None:
            raise copy(job._refusal)
        return job

    async def cancel(self, number: int, reason: str) -> None:
        """Cancel a job and wait until the broker has stored that."""
        check_number(number)
        if not isinstance(reason, str):
            raise UsageError(f"a reason of the type {type(reason).__name__}: give a text")
        if len(reason) > MAX_TEXT_CHARACTERS:
            raise UsageError(f"a reason of {len(reason)} characters: at most {MAX_TEXT_CHARACTERS}")
        await self._request(lambda n: CancelJob(request=n, job=number, reason=reason), Done)

    def _follow(self, view: JobView, answer: Countdown) -> AsyncJob:
        job = self._followed[view] = AsyncJob(self.cancel, view)
        job._answer = answer
        return job

    async def _room(self) -> None:
        """Wait until there is room for more submissions. Raise the client's error if it ends."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starved.append(future)
        await future
        if self._ended is not None:
            raise copy(self._ended)

    async def drained(self) -> None:
        """Wait until all jobs are answered and all reports confirmed, or the client has ended."""
        while self._core.work_held and self._ended is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._drained.append(future)
            await future

    # -- events of the client -----------------------------------------------------------------------------------------

    def _on_taken(self, event: JobTaken) -> None:
        job = self._followed.get(event.view)
        if job is not None:
            _answer(job)

    def _on_changed(self, event: JobChanged) -> None:
        view = event.view
        job = self._followed.get(view)
        if job is not None:
            if job._answer is not None:
                _answer(job)
            if is_the_end(event.changes):  # the view may have ended before this event
                del self._followed[view]
            job._on_changed(event.changes)

    def _on_refused(self, event: JobRefused) -> None:
        job = self._followed.pop(event.view, None)
        if job is not None:
            job._on_refused(broker_error(event.code, event.text))
            _answer(job)

    def on_room(self) -> None:
        starved, self._starved = self._starved, []
        _wake_all(starved)

    def _on_idle(self, event: WorkIdle | None = None) -> None:
        drained, self._drained = self._drained, []
        _wake_all(drained)

    def on_ended(self, error: GodwitError) -> None:
        self._ended = error
        followed, self._followed = self._followed, {}
        for job in followed.values():
            job._on_refused(error)
            _answer(job)
        self.on_room()
        self._on_idle()


def _answer(job: AsyncJob) -> None:
    answer, job._answer = job._answer, None
    if answer is not None:
        answer.on_answer()


def _wake_all(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


class BlockingJob:
    """A job, followed over reconnects. Made by `BlockingClient.submit` and `BlockingClient.job`.

    As an iterator it returns updates (`Update`), from the present state to the end.
    """

    def __init__(self, thread: LoopThread, inner: AsyncJob) -> None:
        self._thread = thread
        self._inner = inner

    def __repr__(self) -> str:
        return f"<BlockingJob {self.number}, {self.kind!r}, {self.state}>"

    @property
    def number(self) -> int:
        """The number that the broker gave the job: `client.job(number)` finds it again."""
        return self._inner.number

    @property
    def key(self) -> str:
        """The controller's key of the job. A second submission with the same key has no effect."""
        return self._inner.key

    @property
    def kind(self) -> str:
        """The kind of work, which decides which workers can do it."""
        return self._inner.kind

    @property
    def agreed(self) -> int | None:
        """The number of workers that do the job, each as one task. None until a worker volunteers for its kind."""
        return self._inner.agreed

    @property
    def state(self) -> ViewState:
        """waiting, running, done, failed or cancelled; or refused by the broker, or unknown to it (any more)."""
        return self._inner.state

    @property
    def begins_us(self) -> int:
        """When the job may begin, in microseconds since 1970, if it was submitted with a delay; else 0."""
        return self._inner.begins_us

    @property
    def is_ended(self) -> bool:
        """Whether no more updates will follow."""
        return self._inner.is_ended

    @property
    def reason(self) -> str:
        """Why the job failed or was cancelled."""
        return self._inner.reason

    @property
    def tasks(self) -> Mapping[int, TaskView]:
        """The last known state of each task, by number."""
        return self._inner.tasks

    def results(self, timeout_s: float | None = None) -> list[TaskResult]:
        """Wait for the end of the job and return the results of its tasks, see `AsyncJob.results`."""
        return self._thread.call(self._inner.results(timeout_s))

    def cancel(self, reason: str = "", *, timeout_s: float | None = None) -> None:
        """Cancel the job and wait until the broker has stored that, see `AsyncJob.cancel`."""
        self._thread.call(self._inner.cancel(reason, timeout_s=timeout_s))

    def __iter__(self) -> Iterator[Update]:
        updates = aiter(self._inner)
        while (update := self._thread.call(_next(updates))) is not None:
            yield update


async def _next(updates: AsyncIterator[Update]) -> Update | None:
    return await anext(updates, None)
