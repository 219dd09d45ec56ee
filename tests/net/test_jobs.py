"""A job as its controller sees it: updates that are never lost, results, and every kind of end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.net.running import broker_in_thread, run, turns
from tests.net.work_stands import Core, as_client

from godwit.client.events import JobChanged, JobRefused, JobTaken, WorkIdle
from godwit.client.jobs import JOB_ENDED, Change, JobView, apply
from godwit.errors import (
    AccessError,
    BadKindError,
    BrokerError,
    JobCancelledError,
    JobError,
    JobFailedError,
    UsageError,
)
from godwit.limits import MAX_JOB_PAYLOAD_BYTES
from godwit.net.blocking import connect
from godwit.net.job_options import job_spec
from godwit.net.jobs import AsyncJob, ClientJobs, Countdown, TaskResult, Update
from godwit.net.tasks import Task
from godwit.net.worker import Worker
from godwit.wire.control import ControlMessage, Done
from godwit.wire.control_base import Code
from godwit.wire.jobs import CancelJob, JobInfo, JobState
from godwit.wire.work import JobUpdate, TaskUpdate


class Told:
    """A job, and a broker that reports its state."""

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
        self.job._on_changed(self.learn(*tasks, state=state, reason=reason, agreed=agreed))

    def learn(
        self, *tasks: TaskUpdate, state: JobState = "running", reason: str = "", agreed: int | None = None
    ) -> list[Change]:
        """The client's core knows, but has not reported yet."""
        update = JobUpdate(job=7, state=state, reason=reason, tasks=list(tasks), agreed=agreed)
        payloads = [f"result {task.task}".encode() if task.size else b"" for task in tasks]
        return apply(self.view, update, payloads, 0)

    def refuse(self) -> None:
        self.view.state = "unknown"
        self.job._on_refused(JobError(Code.NO_SUCH_JOB, "the broker does not know job 7"))


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
        job._describe(JobInfo(job=7, key="other", controller="c", of_kind="count", state="running"))
        assert (job.key, job.kind) == ("other", "count")
        await job.cancel("enough")
        assert told.cancelled == [(7, "enough")]

    run(test)


# -- updates ----------------------------------------------------------------------------------------------------------


def test_all_events_are_reported_in_order() -> None:
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


def test_a_late_iteration_returns_the_present_state_and_the_end() -> None:
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


def test_a_slow_iteration_misses_steps_but_no_result() -> None:
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


def test_an_end_that_the_core_knows_before_its_event_is_reported_once() -> None:
    async def test() -> None:
        told = Told(agreed=2)
        early = aiter(told.job)
        assert (await anext(early)).what == "accepted"
        first = told.learn(leased(0, progress=0.5), finished(1))
        second = told.learn(finished(0), state="done")
        late = aiter(told.job)  # it begins when all is known, and nothing was reported
        assert [update.what async for update in late] == ["accepted", "result", "result", "done"]
        assert told.job.is_ended
        told.job._on_changed(first)
        updates = [await anext(early), await anext(early)]
        assert [(update.what, update.task) for update in updates] == [("progress", 0), ("result", 1)]
        middle = aiter(told.job)
        assert (await anext(middle)).what == "accepted"
        told.job._on_changed(second)
        assert [(update.what, update.task) async for update in early] == [("result", 0), ("done", None)]
        assert [(update.what, update.task) async for update in middle] == [("result", 1), ("result", 0), ("done", None)]

    run(test)


def test_a_final_failure_is_marked() -> None:
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


def test_a_failed_job_raises_with_the_results_so_far() -> None:
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


def test_a_job_that_missed_its_deadline_is_reported() -> None:
    async def test() -> None:
        told = Told(agreed=None)
        told.tell(state="failed", reason="the deadline passed")
        with pytest.raises(JobFailedError, match=r"^job 7 failed with 0 of 0 results: the deadline passed$"):
            await told.job.results()
        assert [update.error async for update in told.job] == ["", "the deadline passed"]

    run(test)


@pytest.mark.parametrize(("reason", "text"), [("", "job 7 was cancelled"), ("enough", "job 7 was cancelled: enough")])
def test_a_cancelled_job_raises(reason: str, text: str) -> None:
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


def test_a_timeout_of_results_does_not_end_the_job() -> None:
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


PLAIN = job_spec()


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
        self.followed_jobs = ClientJobs(as_client(self.core), self.flush, self.ask)

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
        waiting = asyncio.create_task(stand.followed_jobs.submit(job_spec("resize", "mine"), "picture"))
        await turns()
        assert stand.core.said == [("submit", job_spec("resize", "mine"), b"picture")]
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
        waiting = asyncio.create_task(stand.followed_jobs.submit(job_spec("resize"), b""))
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
        assert [(said[1].of_kind, said[2]) for said in stand.core.said] == [("a", b"1"), ("b", b"2"), ("a", b"3")]
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
        with pytest.raises(UsageError, match=f"accepts at most {MAX_JOB_PAYLOAD_BYTES}: send larger things"):
            await stand.followed_jobs.submit_many([("a", b""), ("a", bytes(MAX_JOB_PAYLOAD_BYTES + 1))], PLAIN)
        wrong: list[tuple[str, bytes]] = [("a", b""), ("a", object())]  # type: ignore[list-item]
        with pytest.raises(UsageError, match="a payload of type object"):
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
        assert stand.asked == [CancelJob(request=5, job=7, reason="enough")]
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


def test_cancelled_waits_do_no_harm() -> None:
    async def test() -> None:
        stand = Stand()
        for _ in range(2):
            waiting = asyncio.create_task(stand.followed_jobs.submit(job_spec("a"), b""))
            await turns()
            waiting.cancel()
            await turns()
        stand.take(0)
        stand.end(0)
        stand.refuse(1)
        stand.end(0)  # of a job that is not followed

    run(test)


def test_all_waits_end_with_the_client() -> None:
    async def test() -> None:
        stand = Stand(room=2)
        taken = asyncio.create_task(stand.followed_jobs.submit(job_spec("a"), b""))
        await turns()
        stand.take(0)
        job = await taken
        stand.core.work_held = 1
        waiting = [
            asyncio.create_task(job.results()),
            asyncio.create_task(stand.followed_jobs.submit(job_spec("a"), b"")),
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


DEADLINE_S = 120.0


@contextmanager
def worker_in_thread(url: str) -> Iterator[Worker]:
    worker = Worker(url, name="anna", capacity=4)

    @worker.handles("count")
    def count(task: Task) -> str:
        task.progress(0.5, "half")
        return str(len(task.payload))

    thread = threading.Thread(target=worker.run_forever)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_a_job_from_its_submission_to_its_result() -> None:
    with broker_in_thread() as url, worker_in_thread(url), connect(url, name="chief") as client:
        job = client.submit("count", b"seven 7", workers="all")
        (result,) = job.results(timeout_s=DEADLINE_S)
        assert (result.worker, result.payload) == ("anna", b"7")
        whats = [update.what for update in job]
        assert (whats[0], whats[-2:]) == ("accepted", ["result", "done"])
        assert (job.number, job.kind, job.agreed, job.state) == (1, "count", 1, "done")
        assert (job.is_ended, job.reason, job.tasks[0].state) == (True, "", "finished")
        assert job.begins_us == 0, "it had no delay"
        assert repr(job) == "<BlockingJob 1, 'count', done>"
        many = client.submit_many([("count", "x" * number) for number in range(5)])
        assert [job.results()[0].payload for job in many] == [b"0", b"1", b"2", b"3", b"4"]


def test_looking_after_jobs() -> None:
    with broker_in_thread() as url, connect(url, name="chief") as client:
        job = client.submit("count", key="mine")
        assert job.key == "mine"
        with pytest.raises(TimeoutError, match=r"has not ended within 0\.01 s"):
            job.results(timeout_s=0.01)
        assert [info.job for info in client.jobs(kind="count", controller="chief", states=["waiting"])] == [job.number]
        assert client.job_info(job.number)[0].state == "waiting"
        found = client.job(job.number)
        found.cancel("enough")
        for view in (job, found):
            with pytest.raises(JobCancelledError, match="enough"):
                view.results(timeout_s=DEADLINE_S)
            assert [update.what for update in view] == ["accepted", "cancelled"]
        another = client.submit("count").number
        client.cancel_job(another, "this too")
        assert [info.job for info in client.jobs(limit=1)] == [another]
        assert client.retry_job(another).number > another
        with pytest.raises(JobError):
            client.job(4711)
        with pytest.raises(UsageError, match="workers"):
            client.submit("count", workers=0)


def test_a_worker_in_a_thread_is_stopped_from_another() -> None:
    with broker_in_thread() as url, worker_in_thread(url) as worker, connect(url) as client:
        assert client.submit("count", b"x").results(timeout_s=DEADLINE_S)
        worker.stop(finish=True)
        worker.stop()
