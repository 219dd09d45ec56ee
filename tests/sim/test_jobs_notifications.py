"""The checker of notifications: only durable states are allowed, and never an older one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.sim.jobs_models import Models

from godwit.client.jobs import JobView, TaskView
from godwit.client.worker import Lease
from godwit.wire.jobs import JobInfo, TaskInfo
from godwit_sim.checkers import ViolationError
from godwit_sim.jobs_notifications import JobObservation

INFO = JobInfo(job=1, key="key 1", controller="boss", of_kind="resize", state="done", agreed=1)
LEASE = Lease((1, 0, 1), "resize", "boss", b"job 1", 1, 0, None, None)


def done() -> tuple[Models, JobObservation]:
    """Return models with a job that is done, and a client's observation of it."""
    models = Models()
    models.volunteers("anna")
    models.submit()
    models.lease()
    models.says("anna", (1, 0, 1), b"result")
    models.records.runs[1, 0, 1].steps.append((0.5, "half"))
    models.end_lease("finished", "finished", result=b"result")
    models.end("done", "done")
    return models, JobObservation("c0.1", models.records.requested_jobs["boss", "key 1"])


def task(state: Any = "finished", fence: int = 1, **changes: Any) -> TaskView:
    made = TaskView(state, "anna", fence, None, "", 0, 0, "", b"result" if state == "finished" else None)
    return msgspec.structs.replace(made, **changes)


def view(state: Any = "done", *tasks: TaskView, **changes: Any) -> JobView:
    made = {"number": 1, "state": state, "agreed": 1, "tasks": dict(enumerate(tasks))} | changes
    return JobView("key 1", "resize", **made)


def test_a_job_as_it_went() -> None:
    models, observation = done()
    notifications = models.notifications
    notifications.taken(observation, view("running"))
    notifications.changed(observation, view("running", task("leased", progress=0.5, note="half")), models.now)
    notifications.changed(observation, view("running", task("leased")), models.now)
    notifications.changed(observation, view("done", task()), models.now)
    notifications.ended(observation, view("done", task()), models.now)
    assert (observation.position, observation.task_positions) == (1, {0: 2})
    notifications.changed(JobObservation("c0.1", None), view("done", task(result=None)), models.now + models.keep_s)
    notifications.ended(observation, view("done"), models.now + models.keep_s)
    notifications.unknown(observation, 9, models.now)
    notifications.unknown(observation, 1, models.now + models.keep_s)
    notifications.over("c0.1", 1)
    run = models.records.runs[1, 0, 1]
    notifications.leased(run, LEASE)
    notifications.reported(run)
    assert run.is_reported


def test_a_list_shows_the_present_state() -> None:
    models, _ = done()
    shown = TaskInfo(task=0, state="finished", worker="anna", fence=1)
    models.notifications.listed("c1.1", INFO, [shown])
    models.notifications.listed("c1.1", msgspec.structs.replace(INFO, state="running"))
    for wrong in ({"job": 9}, {"agreed": 2}, {"state": "failed"}):
        with pytest.raises(ViolationError, match="but it is"):
            models.notifications.listed("c1.1", msgspec.structs.replace(INFO, **wrong))
    with pytest.raises(ViolationError, match="was asked for"):
        models.notifications.listed("c1.1", msgspec.structs.replace(INFO, key="other"))
    for number, fence in ((1, 1), (0, 7)):
        with pytest.raises(ViolationError, match="which was never its state"):
            models.notifications.listed("c1.1", INFO, [msgspec.structs.replace(shown, task=number, fence=fence)])


def other_order(models: Models, observation: JobObservation) -> None:
    observation.requested_job = None
    models.notifications.taken(observation, view("running"))


def never_agreed(models: Models, observation: JobObservation) -> None:
    models.notifications.taken(observation, view("running", agreed=3))


def not_safe(models: Models, observation: JobObservation) -> None:
    models.notifications.changed(observation, view("running", number=2), models.now)


def never_so(models: Models, observation: JobObservation) -> None:
    models.notifications.changed(observation, view("cancelled"), models.now)


def back_in_time(models: Models, observation: JobObservation) -> None:
    models.notifications.changed(observation, view("done", task()), models.now)
    models.notifications.changed(observation, view("running", task("leased")), models.now)


def task_back_in_time(models: Models, observation: JobObservation) -> None:
    models.notifications.changed(observation, view("running", task()), models.now)
    models.notifications.changed(observation, view("running", task("leased")), models.now)


def no_such_task(models: Models, observation: JobObservation) -> None:
    models.notifications.changed(observation, view("running", task(), task()), models.now)


def other_result(models: Models, observation: JobObservation) -> None:
    models.notifications.changed(observation, view("done", task(result=b"other")), models.now)


def made_up_error(models: Models, observation: JobObservation) -> None:
    models.notifications.changed(observation, view("done", task(error="oh")), models.now)


def made_up_progress(models: Models, observation: JobObservation) -> None:
    models.notifications.changed(observation, view("done", task("leased", progress=0.7)), models.now)


def not_the_end(models: Models, observation: JobObservation) -> None:
    models.notifications.ended(observation, view("failed", task()), models.now)


def a_task_is_missing(models: Models, observation: JobObservation) -> None:
    models.notifications.ended(observation, view("done"), models.now)


def known(models: Models, observation: JobObservation) -> None:
    models.notifications.unknown(observation, 1, models.now)


def not_over(models: Models, observation: JobObservation) -> None:
    models.submit(2)
    models.notifications.over("c0.1", 2)


def lease_of_nothing(models: Models, observation: JobObservation) -> None:
    run = models.records.begin((7, 0, 1), "anna", "w0.1", 0.0)
    models.notifications.leased(run, msgspec.structs.replace(LEASE, ref=(7, 0, 1)))


def lease_never_given(models: Models, observation: JobObservation) -> None:
    run = models.records.begin((1, 0, 2), "anna", "w0.1", 0.0)
    models.notifications.leased(run, msgspec.structs.replace(LEASE, ref=(1, 0, 2)))


def other_payload(models: Models, observation: JobObservation) -> None:
    models.notifications.leased(models.records.runs[1, 0, 1], msgspec.structs.replace(LEASE, payload=b"other"))


def other_controller(models: Models, observation: JobObservation) -> None:
    models.notifications.leased(models.records.runs[1, 0, 1], msgspec.structs.replace(LEASE, controller="chief"))


def confirmed_in_vain(models: Models, observation: JobObservation) -> None:
    models.submit(2)
    models.lease(number=2)
    run = models.records.begin((2, 0, 1), "anna", "w0.1", 0.0)
    run.result = b"x"
    models.notifications.reported(run)


def confirmed_nothing(models: Models, observation: JobObservation) -> None:
    run = models.records.runs[1, 0, 1]
    run.result = None
    models.notifications.reported(run)


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
        (made_up_progress, "is at 0.7 '', never reported"),
        (not_the_end, "it ended failed"),
        (a_task_is_missing, "its tasks are"),
        (known, "is not known, but it is there"),
        (not_over, "was notified that job 2 is over"),
        (lease_of_nothing, "this task is not durable"),
        (lease_never_given, "given as"),
        (other_payload, "not those of the job"),
        (other_controller, "but it is JobRow"),
        (confirmed_in_vain, "by the log it still has the task"),
        (confirmed_nothing, "it was not reported"),
    ],
)
def test_forbidden_notifications_are_caught(fault: Callable[[Models, JobObservation], None], text: str) -> None:
    with pytest.raises(ViolationError, match=text):
        fault(*done())
