"""A job as its controller sees it: updates that are never lost, results, and every kind of end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.net.running import run, turns

from godwit.client.comparing import Change, JobView, apply
from godwit.errors import JobCancelledError, JobError, JobFailedError
from godwit.net.jobs import AsyncJob, Countdown, TaskResult, Update
from godwit.wire.control_base import Code
from godwit.wire.jobs import JobInfo, JobState
from godwit.wire.work import JobUpdate, TaskUpdate


class Told:
    """A job, and a broker that tells how it stands."""

    def __init__(self, agreed: int | None = 1) -> None:
        self.view = JobView("key-1", "resize", 1, 7, "waiting")
        if agreed is not None:
            self.view.settle(agreed)
            self.view.state = "running"
        self.cancelled: list[tuple[int, str]] = []
        self.job = AsyncJob(self.cancel, self.view)

    async def cancel(self, number: int, reason: str) -> None:
        self.cancelled.append((number, reason))

    def tell(
        self, *tasks: TaskUpdate, state: JobState = "running", reason: str = "", agreed: int | None = None
    ) -> None:
        self.job.on_changed(self.learn(*tasks, state=state, reason=reason, agreed=agreed))

    def learn(
        self, *tasks: TaskUpdate, state: JobState = "running", reason: str = "", agreed: int | None = None
    ) -> list[Change]:
        """The client's core knows, but has not told yet."""
        update = JobUpdate(job=7, state=state, reason=reason, tasks=list(tasks), agreed=agreed)
        payloads = [f"result {task.task}".encode() if task.size else b"" for task in tasks]
        return apply(self.view, update, payloads, 0)

    def refuse(self) -> None:
        self.view.state = "unknown"
        self.job.on_refused(JobError(Code.NO_SUCH_JOB, "the broker does not know job 7"))


def leased(task: int = 0, *, fence: int = 1, **more: Any) -> TaskUpdate:
    return TaskUpdate(task=task, state="leased", worker="anna", fence=fence, **more)


def finished(task: int = 0, **more: Any) -> TaskUpdate:
    return TaskUpdate(task=task, state="finished", worker="anna", fence=1, size=8, **more)


def failed(task: int = 0, error: str = "no") -> TaskUpdate:
    return TaskUpdate(task=task, state="failed", worker="bert", fence=1, failures=1, error=error)


async def whats(job: AsyncJob) -> list[tuple[str, int | None]]:
    return [(update.what, update.task) async for update in job]


def test_what_it_looks_like() -> None:
    async def test() -> None:
        told = Told(agreed=2)
        job = told.job
        assert (job.number, job.key, job.kind, job.agreed, job.state) == (7, "key-1", "resize", 2, "running")
        assert (job.is_ended, job.reason, len(job.tasks)) == (False, "", 2)
        assert repr(job) == "<AsyncJob 7, 'resize', running>"
        told.tell(leased(1))
        assert job.tasks[1].worker == "anna"
        job.describe(JobInfo(job=7, key="other", controller="c", of_kind="count", state="running"))
        assert (job.key, job.kind) == ("other", "count")
        await job.cancel("enough")
        assert told.cancelled == [(7, "enough")]

    run(test)


# -- updates ----------------------------------------------------------------------------------------------------------


def test_everything_that_happens_is_told_in_order() -> None:
    async def test() -> None:
        told = Told(agreed=None)
        updates: list[Update] = []

        async def follow() -> None:
            async for update in told.job:
                updates.append(update)

        following = asyncio.create_task(follow())
        await turns()
        told.tell(agreed=1)
        for task in (
            leased(progress=0.5, note="half"),
            TaskUpdate(task=0, state="waiting", worker="anna", fence=1, failures=1, error="ValueError: x"),
            leased(fence=2, failures=1),
        ):
            await turns()
            told.tell(task)
        await turns()
        told.tell(
            TaskUpdate(task=0, state="finished", worker="bert", fence=2, failures=1, error="ValueError: x", size=8),
            state="done",
        )
        await following
        assert updates == [
            Update(what="accepted"),
            Update(what="settled"),
            Update(what="progress", task=0, worker="anna", progress=0.5, note="half"),
            Update(what="failure", task=0, worker="anna", error="ValueError: x"),
            Update(what="reassigned", task=0, worker="anna"),
            Update(what="result", task=0, worker="bert", result=b"result 0"),
            Update(what="done"),
        ]

    run(test)


def test_who_comes_late_hears_how_it_stands_and_the_end() -> None:
    async def test() -> None:
        told = Told(agreed=4)
        told.tell(leased(0, progress=0.5), finished(1), failed(2), leased(3))
        late = [
            ("accepted", None),
            ("progress", 0),
            ("result", 1),
            ("failure", 2),
        ]
        updates = aiter(told.job)
        assert [(update.what, update.task) for update in [await anext(updates) for _ in range(4)]] == late
        told.tell(finished(0), finished(3), state="failed", reason="a task failed")
        assert [(update.what, update.task) async for update in updates] == [
            ("result", 0),
            ("result", 3),
            ("failed", None),
        ]
        again = [
            ("accepted", None),
            ("result", 0),
            ("result", 1),
            ("failure", 2),
            ("result", 3),
            ("failed", None),
        ]
        assert await whats(told.job) == again
        assert await whats(told.job) == again

    run(test)


def test_who_is_slow_misses_steps_but_no_result() -> None:
    async def test() -> None:
        told = Told(agreed=2)
        updates = aiter(told.job)
        assert (await anext(updates)).what == "accepted"
        for step in range(1, 1000):
            told.tell(leased(0, progress=step / 1000))
        told.tell(finished(1))
        first = await anext(updates)
        assert (first.what, first.progress) == ("progress", 0.999)
        assert (await anext(updates)).what == "result"
        told.tell(finished(0), state="done")
        assert [update.what async for update in updates] == ["result", "done"]

    run(test)


def test_several_follow_at_once_and_one_leaves() -> None:
    async def test() -> None:
        told = Told()
        following = [asyncio.create_task(whats(told.job)) for _ in range(3)]
        await turns()
        async for _ in told.job:
            break  # it leaves
        told.tell(leased(progress=0.1))
        await turns()
        following[0].cancel()
        await turns()
        told.tell(finished(), state="done")
        expected = [("accepted", None), ("progress", 0), ("result", 0), ("done", None)]
        assert await asyncio.gather(*following[1:]) == [expected, expected]

    run(test)


def test_what_the_core_knows_but_has_not_told_is_told_once() -> None:
    async def test() -> None:
        told = Told(agreed=2)
        early = aiter(told.job)
        assert (await anext(early)).what == "accepted"
        first = told.learn(leased(0, progress=0.5), finished(1))
        second = told.learn(finished(0), state="done")
        late = aiter(told.job)  # it begins when all is known, and nothing was told
        assert [update.what async for update in late] == ["accepted", "result", "result", "done"]
        assert told.job.is_ended
        told.job.on_changed(first)
        updates = [await anext(early), await anext(early)]
        assert [(update.what, update.task) for update in updates] == [("progress", 0), ("result", 1)]
        middle = aiter(told.job)
        assert (await anext(middle)).what == "accepted"
        told.job.on_changed(second)
        assert [(update.what, update.task) async for update in early] == [("result", 0), ("done", None)]
        assert [(update.what, update.task) async for update in middle] == [("result", 1), ("result", 0), ("done", None)]

    run(test)


def test_a_final_failure_says_so() -> None:
    async def test() -> None:
        told = Told(agreed=1)
        told.tell(failed(error="the picture is damaged"), state="failed")
        updates = [update async for update in told.job]
        assert updates[1] == Update(
            what="failure", task=0, worker="bert", error="the picture is damaged", is_final=True
        )

    run(test)


@pytest.mark.parametrize("when", ["before", "while it waits", "between two updates"])
def test_a_job_that_the_broker_does_not_know_any_more(when: str) -> None:
    async def test() -> None:
        told = Told()
        if when == "before":
            told.refuse()
        updates = aiter(told.job)
        assert (await anext(updates)).what == "accepted"
        if when == "between two updates":
            told.tell(leased(progress=0.1))
            assert (await anext(updates)).what == "progress"
            told.refuse()
        following = asyncio.ensure_future(anext(updates))
        await turns()
        if when == "while it waits":
            told.refuse()
        with pytest.raises(JobError, match="does not know job 7"):
            await following
        with pytest.raises(JobError, match="does not know job 7"):
            await told.job.results()
        with pytest.raises(JobError, match="does not know job 7"):
            await told.job.cancel()
        assert told.job.is_ended
        assert told.job.state == "unknown"

    run(test)


# -- results ----------------------------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_tasks() -> None:
    async def test() -> None:
        told = Told(agreed=2)
        waiting = [asyncio.create_task(told.job.results()) for _ in range(2)]
        await turns()
        told.tell(finished(1))
        await turns()
        assert not waiting[0].done()
        told.tell(TaskUpdate(task=0, state="finished", worker="bert", fence=1), state="done")
        expected = [TaskResult(0, "bert", b""), TaskResult(1, "anna", b"result 1")]
        assert await asyncio.gather(*waiting) == [expected, expected]
        assert await told.job.results() == expected

    run(test)


def test_a_failed_job_says_what_there_is() -> None:
    async def test() -> None:
        told = Told(agreed=3)
        told.tell(finished(0), failed(1, "no such picture"), failed(2, "damaged"), state="failed")
        with pytest.raises(JobFailedError) as caught:
            await told.job.results()
        error = caught.value
        assert str(error) == "job 7 failed with 1 of 3 results: task 1: no such picture; task 2: damaged"
        assert (error.state, error.errors) == ("failed", {1: "no such picture", 2: "damaged"})
        assert error.results == [TaskResult(0, "anna", b"result 0")]

    run(test)


def test_results_that_the_broker_has_not_kept_are_missed() -> None:
    async def test() -> None:
        told = Told(agreed=2)
        told.tell(finished(1), state="done")
        with pytest.raises(
            JobFailedError, match="job 7 is done, but the broker kept only 1 of its 2 results"
        ) as caught:
            await told.job.results()
        assert (caught.value.state, [result.task for result in caught.value.results]) == ("done", [1])

    run(test)


def test_a_job_that_missed_its_deadline_says_so() -> None:
    async def test() -> None:
        told = Told(agreed=None)
        told.tell(state="failed", reason="the deadline passed")
        with pytest.raises(JobFailedError, match=r"^job 7 failed with 0 of 0 results: the deadline passed$"):
            await told.job.results()
        assert [update.error async for update in told.job] == ["", "the deadline passed"]

    run(test)


@pytest.mark.parametrize(("reason", "text"), [("", "job 7 was cancelled"), ("enough", "job 7 was cancelled: enough")])
def test_a_cancelled_job_says_so(reason: str, text: str) -> None:
    async def test() -> None:
        told = Told()
        waiting = asyncio.create_task(told.job.results())
        await turns()
        told.tell(state="cancelled", reason=reason)
        with pytest.raises(JobCancelledError) as caught:
            await waiting
        assert str(caught.value) == text
        assert await whats(told.job) == [("accepted", None), ("cancelled", None)]

    run(test)


def test_whoever_waits_only_for_so_long_is_told_that_the_job_goes_on() -> None:
    async def test() -> None:
        told = Told()
        with pytest.raises(TimeoutError, match=r"job 7 has not ended within 0.01 s: it goes on"):
            await told.job.results(timeout_s=0.01)
        told.tell(finished(), state="done")
        assert len(await told.job.results(timeout_s=0)) == 1

    run(test)


def test_a_countdown_of_nothing_does_not_wait() -> None:
    async def test() -> None:
        await Countdown(0).wait()
        countdown = Countdown(2)
        waiting = asyncio.create_task(countdown.wait())
        for _ in range(2):
            await turns()
            assert not waiting.done()
            countdown.on_answer()
        await waiting
        countdown.on_answer()  # one too many does no harm

    run(test)
