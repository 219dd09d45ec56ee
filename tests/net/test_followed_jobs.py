"""A client's jobs, without a broker: answers, refusals, room, and the client's end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.net.running import run, turns
from tests.net.work_stands import Core, as_client

from godwit.client.comparing import JOB_ENDED, JobView
from godwit.client.events import JobChanged, JobRefused, JobTaken, WorkIdle
from godwit.errors import AccessError, BadKindError, BrokerError, JobError, UsageError
from godwit.limits import MAX_JOB_PAYLOAD_BYTES
from godwit.net.followed_jobs import FollowedJobs
from godwit.net.submitting import core_options
from godwit.wire.control import ControlMessage, Done
from godwit.wire.control_base import Code
from godwit.wire.jobs import Cancel

PLAIN = core_options()


class Stand:
    def __init__(self, room: int = 1000) -> None:
        self.core = Core(room)
        self.views: list[JobView] = []
        self.flushes = 0
        submit, watch = self.core.submit, self.core.watch

        def remember(view: JobView) -> JobView:
            self.views.append(view)
            return view

        self.core.submit = lambda *a, **k: remember(submit(*a, **k))  # type: ignore[method-assign]
        self.core.watch = lambda number: remember(watch(number))  # type: ignore[method-assign]
        self.asked: list[object] = []
        self.followed_jobs = FollowedJobs(as_client(self.core), self.flush, self.ask)

    def flush(self) -> None:
        self.flushes += 1

    async def ask(self, make: Callable[[int], ControlMessage], kind: type[Done]) -> Done:
        self.asked.append(make(5))
        return kind(request=5)

    def take(self, *numbers: int) -> None:
        for number in numbers:
            view = self.views[number]
            view.number, view.state = number + 1, "running"
            self.followed_jobs.handlers[JobTaken](JobTaken(view))

    def refuse(self, number: int, code: Code = Code.NOT_ALLOWED) -> None:
        view = self.views[number]
        view.state = "refused"
        self.followed_jobs.handlers[JobRefused](JobRefused(view, code, "no"))

    def end(self, number: int) -> None:
        self.views[number].state = "done"
        self.followed_jobs.handlers[JobChanged](JobChanged(self.views[number], [JOB_ENDED]))


def test_a_submission_waits_for_its_answer() -> None:
    async def test() -> None:
        stand = Stand()
        waiting = asyncio.create_task(stand.followed_jobs.submit("resize", "picture", "mine", PLAIN))
        await turns()
        assert stand.core.said == [("submit", "resize", b"picture", "mine", dict(PLAIN))]
        assert not waiting.done()
        stand.take(0)
        job = await waiting
        assert (job.number, job.key) == (1, "mine")
        ended = asyncio.create_task(job.results())
        await turns()
        stand.end(0)
        assert await ended == []

    run(test)


def test_a_refusal_is_raised() -> None:
    async def test() -> None:
        stand = Stand()
        waiting = asyncio.create_task(stand.followed_jobs.submit("resize", b"", None, PLAIN))
        await turns()
        stand.refuse(0)
        with pytest.raises(AccessError):
            await waiting

    run(test)


def test_of_many_one_that_is_refused_stops_no_other() -> None:
    async def test() -> None:
        stand = Stand()
        waiting = asyncio.create_task(stand.followed_jobs.submit_many([("a", b"1"), ("b", "2"), ("a", b"3")], PLAIN))
        await turns()
        assert [said[1:3] for said in stand.core.said] == [("a", b"1"), ("b", b"2"), ("a", b"3")]
        stand.take(0, 2)
        await turns()
        assert not waiting.done()
        stand.refuse(1, Code.TOO_MANY)
        jobs = await waiting
        assert [job.state for job in jobs] == ["running", "refused", "running"]
        with pytest.raises(BrokerError, match="no"):
            await jobs[1].results()
        assert await stand.followed_jobs.submit_many([], PLAIN) == []

    run(test)


def test_of_many_none_is_sent_if_one_cannot_be() -> None:
    async def test() -> None:
        stand = Stand()
        with pytest.raises(BadKindError):
            await stand.followed_jobs.submit_many([("a", b""), ("b/+", b"")], PLAIN)
        with pytest.raises(UsageError, match=f"takes {MAX_JOB_PAYLOAD_BYTES}: send larger things"):
            await stand.followed_jobs.submit_many([("a", b""), ("a", bytes(MAX_JOB_PAYLOAD_BYTES + 1))], PLAIN)
        wrong: list[tuple[str, bytes]] = [("a", b""), ("a", 3)]  # type: ignore[list-item]
        with pytest.raises(UsageError, match="a payload of type int"):
            await stand.followed_jobs.submit_many(wrong, PLAIN)
        assert stand.core.said == []

    run(test)


def test_submissions_wait_for_room() -> None:
    async def test() -> None:
        stand = Stand(room=2)
        waiting = asyncio.create_task(stand.followed_jobs.submit_many([("a", b"")] * 5, PLAIN))
        await turns()
        assert len(stand.views) == 2
        stand.core.room = 2
        stand.followed_jobs.on_room()
        await turns()
        assert len(stand.views) == 4
        stand.core.room = 1
        stand.followed_jobs.on_room()
        await turns()
        stand.take(*range(5))
        assert len(await waiting) == 5

    run(test)


def test_a_watched_job_is_known_when_its_state_is() -> None:
    async def test() -> None:
        stand = Stand()
        waiting = asyncio.create_task(stand.followed_jobs.watch(7))
        await turns()
        assert stand.core.said == [("watch", 7)]
        assert stand.flushes == 1
        assert not waiting.done()
        stand.end(0)
        assert (await waiting).state == "done"
        unknown = asyncio.create_task(stand.followed_jobs.watch(8))
        await turns()
        stand.refuse(1, Code.NO_SUCH_JOB)
        with pytest.raises(JobError):
            await unknown

    run(test)


def test_a_cancel_is_looked_at_before_it_goes() -> None:
    async def test() -> None:
        stand = Stand()
        await stand.followed_jobs.cancel(7, "enough")
        assert stand.asked == [Cancel(request=5, job=7, reason="enough")]
        wrong: list[Any] = [0, -1, 2**63, "7", True]
        for number in wrong:
            with pytest.raises(
                UsageError, match=r"no job has the number|the number of a job is .*: give a whole number"
            ):
                await stand.followed_jobs.cancel(number, "")
        with pytest.raises(UsageError, match="a reason of 1025 characters"):
            await stand.followed_jobs.cancel(7, "x" * 1025)
        no_text: Any = 5
        with pytest.raises(UsageError, match="a reason of the type int: give a text"):
            await stand.followed_jobs.cancel(7, no_text)
        assert len(stand.asked) == 1

    run(test)


def test_who_does_not_wait_any_more_is_no_trouble() -> None:
    async def test() -> None:
        stand = Stand()
        for _ in range(2):
            waiting = asyncio.create_task(stand.followed_jobs.submit("a", b"", None, PLAIN))
            await turns()
            waiting.cancel()
            await turns()
        stand.take(0)
        stand.end(0)
        stand.refuse(1)
        stand.end(0)  # of a job that nobody follows

    run(test)


def test_the_end_of_the_client_is_told_to_everybody() -> None:
    async def test() -> None:
        stand = Stand(room=2)
        taken = asyncio.create_task(stand.followed_jobs.submit("a", b"", None, PLAIN))
        await turns()
        stand.take(0)
        job = await taken
        stand.core.work_held = 1
        waiting = [
            asyncio.create_task(job.results()),
            asyncio.create_task(stand.followed_jobs.submit("a", b"", None, PLAIN)),
            asyncio.create_task(stand.followed_jobs.submit_many([("a", b"")], PLAIN)),  # there is no room
        ]
        drained = asyncio.create_task(stand.followed_jobs.drained())
        await turns()
        stand.followed_jobs.on_ended(UsageError("the client is closed"))
        for task in waiting:
            with pytest.raises(UsageError, match="the client is closed"):
                await task
        await drained
        assert job.is_ended

    run(test)


def test_it_is_drained_when_everything_is_answered() -> None:
    async def test() -> None:
        stand = Stand()
        await stand.followed_jobs.drained()
        stand.core.work_held = 2
        waiting = asyncio.create_task(stand.followed_jobs.drained())
        await turns()
        assert not waiting.done()
        stand.core.work_held = 0
        stand.followed_jobs.handlers[WorkIdle](WorkIdle())
        await waiting

    run(test)
