"""The checker of what clients are told: what is safe may be told, nothing else, and never back in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.sim.jobs_models import Truth

from godwit.client.comparing import JobView, TaskView
from godwit.client.leasing import Lease
from godwit.wire.jobs import JobInfo, TaskInfo
from godwit_sim.checkers import ViolationError
from godwit_sim.jobs_notifications import JobObservation

INFO = JobInfo(job=1, key="key 1", controller="boss", of_kind="resize", state="done", agreed=1)
LEASE = Lease((1, 0, 1), "resize", "boss", b"job 1", 1, 0, None, None)


def done() -> tuple[Truth, JobObservation]:
    """A job that is done, and somebody who follows it."""
    truth = Truth()
    truth.volunteers("anna")
    truth.submit()
    truth.lease()
    truth.says("anna", (1, 0, 1), b"result")
    truth.records.runs[1, 0, 1].steps.append((0.5, "half"))
    truth.end_lease("finished", "finished", result=b"result")
    truth.end("done", "done")
    return truth, JobObservation("c0.1", truth.records.requested_jobs["boss", "key 1"])


def task(state: Any = "finished", fence: int = 1, **changes: Any) -> TaskView:
    made = TaskView(state, "anna", fence, None, "", 0, 0, "", b"result" if state == "finished" else None)
    return msgspec.structs.replace(made, **changes)


def view(state: Any = "done", *tasks: TaskView, **changes: Any) -> JobView:
    made = {"number": 1, "state": state, "agreed": 1, "tasks": dict(enumerate(tasks))} | changes
    return JobView("key 1", "resize", **made)


def test_a_job_as_it_went() -> None:
    truth, observation = done()
    notifications = truth.notifications
    notifications.taken(observation, view("running"))
    notifications.changed(observation, view("running", task("leased", progress=0.5, note="half")), truth.now)
    notifications.changed(observation, view("running", task("leased")), truth.now)
    notifications.changed(observation, view("done", task()), truth.now)
    notifications.ended(observation, view("done", task()), truth.now)
    assert (observation.position, observation.task_positions) == (1, {0: 2})
    notifications.changed(JobObservation("c0.1", None), view("done", task(result=None)), truth.now + truth.keep_s)
    notifications.ended(observation, view("done"), truth.now + truth.keep_s)
    notifications.unknown(observation, 9, truth.now)
    notifications.unknown(observation, 1, truth.now + truth.keep_s)
    notifications.over("c0.1", 1)
    run = truth.records.runs[1, 0, 1]
    notifications.leased(run, LEASE)
    notifications.reported(run)
    assert run.is_reported


def test_who_looks_sees_what_is() -> None:
    truth, _ = done()
    shown = TaskInfo(task=0, state="finished", worker="anna", fence=1)
    truth.notifications.listed("c1.1", INFO, [shown])
    truth.notifications.listed("c1.1", msgspec.structs.replace(INFO, state="running"))
    for wrong in ({"job": 9}, {"agreed": 2}, {"state": "failed"}):
        with pytest.raises(ViolationError, match="but it is"):
            truth.notifications.listed("c1.1", msgspec.structs.replace(INFO, **wrong))
    with pytest.raises(ViolationError, match="was asked for"):
        truth.notifications.listed("c1.1", msgspec.structs.replace(INFO, key="other"))
    for number, fence in ((1, 1), (0, 7)):
        with pytest.raises(ViolationError, match="which was never its state"):
            truth.notifications.listed("c1.1", INFO, [msgspec.structs.replace(shown, task=number, fence=fence)])


def other_order(truth: Truth, observation: JobObservation) -> None:
    observation.requested_job = None
    truth.notifications.taken(observation, view("running"))


def never_agreed(truth: Truth, observation: JobObservation) -> None:
    truth.notifications.taken(observation, view("running", agreed=3))


def not_safe(truth: Truth, observation: JobObservation) -> None:
    truth.notifications.changed(observation, view("running", number=2), truth.now)


def never_so(truth: Truth, observation: JobObservation) -> None:
    truth.notifications.changed(observation, view("cancelled"), truth.now)


def back_in_time(truth: Truth, observation: JobObservation) -> None:
    truth.notifications.changed(observation, view("done", task()), truth.now)
    truth.notifications.changed(observation, view("running", task("leased")), truth.now)


def task_back_in_time(truth: Truth, observation: JobObservation) -> None:
    truth.notifications.changed(observation, view("running", task()), truth.now)
    truth.notifications.changed(observation, view("running", task("leased")), truth.now)


def no_such_task(truth: Truth, observation: JobObservation) -> None:
    truth.notifications.changed(observation, view("running", task(), task()), truth.now)


def other_result(truth: Truth, observation: JobObservation) -> None:
    truth.notifications.changed(observation, view("done", task(result=b"other")), truth.now)


def made_up_error(truth: Truth, observation: JobObservation) -> None:
    truth.notifications.changed(observation, view("done", task(error="oh")), truth.now)


def made_up_progress(truth: Truth, observation: JobObservation) -> None:
    truth.notifications.changed(observation, view("done", task("leased", progress=0.7)), truth.now)


def not_the_end(truth: Truth, observation: JobObservation) -> None:
    truth.notifications.ended(observation, view("failed", task()), truth.now)


def a_task_is_missing(truth: Truth, observation: JobObservation) -> None:
    truth.notifications.ended(observation, view("done"), truth.now)


def known(truth: Truth, observation: JobObservation) -> None:
    truth.notifications.unknown(observation, 1, truth.now)


def not_over(truth: Truth, observation: JobObservation) -> None:
    truth.submit(2)
    truth.notifications.over("c0.1", 2)


def lease_of_nothing(truth: Truth, observation: JobObservation) -> None:
    run = truth.records.begin((7, 0, 1), "anna", "w0.1", 0.0)
    truth.notifications.leased(run, msgspec.structs.replace(LEASE, ref=(7, 0, 1)))


def lease_never_given(truth: Truth, observation: JobObservation) -> None:
    run = truth.records.begin((1, 0, 2), "anna", "w0.1", 0.0)
    truth.notifications.leased(run, msgspec.structs.replace(LEASE, ref=(1, 0, 2)))


def other_payload(truth: Truth, observation: JobObservation) -> None:
    truth.notifications.leased(truth.records.runs[1, 0, 1], msgspec.structs.replace(LEASE, payload=b"other"))


def other_controller(truth: Truth, observation: JobObservation) -> None:
    truth.notifications.leased(truth.records.runs[1, 0, 1], msgspec.structs.replace(LEASE, controller="chief"))


def confirmed_in_vain(truth: Truth, observation: JobObservation) -> None:
    truth.submit(2)
    truth.lease(number=2)
    run = truth.records.begin((2, 0, 1), "anna", "w0.1", 0.0)
    run.result = b"x"
    truth.notifications.reported(run)


def confirmed_nothing(truth: Truth, observation: JobObservation) -> None:
    run = truth.records.runs[1, 0, 1]
    run.result = None
    truth.notifications.reported(run)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (other_order, "its None is job 1"),
        (never_agreed, "agreed on 3, which it never did"),
        (not_safe, "of job 2, which is not durable"),
        (never_so, "but never was"),
        (back_in_time, "but never again was"),
        (task_back_in_time, "task 0 of job 1 .* but never again was"),
        (no_such_task, "has no task 1"),
        (other_result, "brought another result"),
        (made_up_error, "failed with 'oh'"),
        (made_up_progress, "is at 0.7 '', which was never reported"),
        (not_the_end, "it ended failed"),
        (a_task_is_missing, "its tasks are"),
        (known, "is not known, but it is there"),
        (not_over, "was notified that job 2 is over"),
        (lease_of_nothing, "this task is not durable"),
        (lease_never_given, "given as"),
        (other_payload, "not those of the job"),
        (other_controller, "but it is JobKept"),
        (confirmed_in_vain, "by the log it still has the task"),
        (confirmed_nothing, "it was not reported"),
    ],
)
def test_what_must_not_be_told_is_caught(fault: Callable[[Truth, JobObservation], None], text: str) -> None:
    with pytest.raises(ViolationError, match=text):
        fault(*done())
