"""A client's jobs: who waits for which answer, and who is told what becomes of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from copy import copy
from typing import Any, TypeAlias

from godwit.client.client import Client
from godwit.client.comparing import JobView
from godwit.client.events import JobChanged, JobRefused, JobTaken, WorkIdle
from godwit.client.jobs import PAYLOAD
from godwit.client.packing import Payload
from godwit.client.submitting import check_payload
from godwit.errors import BufferFullError, GodwitError, UsageError, broker_error
from godwit.net.jobs import AsyncJob, Countdown, is_the_end
from godwit.net.submitting import CoreOptions, JobLike, Wanted, check_number, wanted_jobs
from godwit.wire.control import ControlMessage, Done
from godwit.wire.control_base import MAX_TEXT_CHARACTERS
from godwit.wire.jobs import Cancel

Request: TypeAlias = Callable[[Callable[[int], ControlMessage], type[Done]], Awaitable[Done]]


class FollowedJobs:
    """The jobs that one client submitted or watches, until they end."""

    def __init__(self, core: Client, schedule_flush: Callable[[], None], request: Request) -> None:
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

    async def submit(self, kind: str, payload: Payload, key: str | None, options: CoreOptions) -> AsyncJob:
        """Returns when the broker has it safe; raises why it does not take it."""
        (job,) = await self._submit_all(wanted_jobs([(kind, payload, key)]), options)
        if job.refusal is not None:
            raise copy(job.refusal)
        return job

    async def submit_many(self, jobs: Iterable[JobLike], options: CoreOptions) -> list[AsyncJob]:
        """Returns when all are answered. One that is refused has its refusal."""
        wanted = wanted_jobs(jobs)  # all are looked at before the first is on its way
        longest = max((body for _, body, _ in wanted), key=len, default=b"")
        check_payload(PAYLOAD, longest, self._core.max_payload_bytes)
        return await self._submit_all(wanted, options)

    async def _submit_all(self, wanted: list[Wanted], options: CoreOptions) -> list[AsyncJob]:
        answer = Countdown(len(wanted))
        submitted: list[AsyncJob] = []
        for kind, body, key in wanted:
            while True:
                try:
                    view = self._core.submit(kind, body, key=key, **options)
                except BufferFullError:
                    await self._room()
                else:
                    break
            submitted.append(self._follow(view, answer))
        if delay_ms := options["delay_ms"]:
            begins_us = time.time_ns() // 1000 + delay_ms * 1000
            for job in submitted:
                job.begins_us = begins_us
        await answer.wait()
        if self._ended is not None:
            raise copy(self._ended)
        return submitted

    async def watch(self, number: int) -> AsyncJob:
        """Returns when it is known how the job stands."""
        answer = Countdown(1)
        job = self._follow(self._core.watch(number), answer)
        self._schedule_flush()
        await answer.wait()
        if job.refusal is not None:
            raise copy(job.refusal)
        return job

    async def cancel(self, number: int, reason: str) -> None:
        """Returns when the job's end is safe."""
        check_number(number)
        if not isinstance(reason, str):
            raise UsageError(f"a reason of the type {type(reason).__name__}: give a text")
        if len(reason) > MAX_TEXT_CHARACTERS:
            raise UsageError(f"a reason of {len(reason)} characters: at most {MAX_TEXT_CHARACTERS}")
        await self._request(lambda n: Cancel(request=n, job=number, reason=reason), Done)

    def _follow(self, view: JobView, answer: Countdown) -> AsyncJob:
        job = self._followed[view] = AsyncJob(self.cancel, view)
        job.answer = answer
        return job

    async def _room(self) -> None:
        """Until there is room for more, or none will come."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starved.append(future)
        await future
        if self._ended is not None:
            raise copy(self._ended)

    async def drained(self) -> None:
        """Waits until all jobs are answered and all reports confirmed, or none will be any more."""
        while self._core.work_held and self._ended is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._drained.append(future)
            await future

    # -- what the client tells ----------------------------------------------------------------------------------------

    def _on_taken(self, event: JobTaken) -> None:
        job = self._followed.get(event.view)
        if job is not None:
            _answer(job)

    def _on_changed(self, event: JobChanged) -> None:
        view = event.view
        job = self._followed.get(view)
        if job is not None:
            if job.answer is not None:
                _answer(job)
            if is_the_end(event.changes):  # the view may be ahead of what is told
                del self._followed[view]
            job.on_changed(event.changes)

    def _on_refused(self, event: JobRefused) -> None:
        job = self._followed.pop(event.view, None)
        if job is not None:
            job.on_refused(broker_error(event.code, event.text))
            _answer(job)

    def on_room(self) -> None:
        starved, self._starved = self._starved, []
        _wake(starved)

    def _on_idle(self, event: WorkIdle | None = None) -> None:
        drained, self._drained = self._drained, []
        _wake(drained)

    def on_ended(self, error: GodwitError) -> None:
        self._ended = error
        followed, self._followed = self._followed, {}
        for job in followed.values():
            job.on_refused(error)
            _answer(job)
        self.on_room()
        self._on_idle()


def _answer(job: AsyncJob) -> None:
    answer, job.answer = job.answer, None
    if answer is not None:
        answer.on_answer()


def _wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
