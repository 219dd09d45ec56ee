"""The model of jobs: requests by key, unique leases, expected states; and the checker of `$jobs` messages.

The events of a correct broker pass, and each forbidden one is caught.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.sim.jobs_models import INSTANCE, SECOND_US, Models

from godwit.wire.jobs import JobSpec
from godwit_sim.checkers import ViolationError
from godwit_sim.jobs_log_model import JobRecords, read_event


def test_the_same_key_is_the_same_order_for_the_same_controller() -> None:
    records = JobRecords()
    submission = JobSpec(key="k", of_kind="resize")
    requested_job = records.request("boss", submission, b"one", 1.0)
    assert records.request("boss", submission, b"two", 2.0) is requested_job
    assert records.request("chief", submission, b"three", 3.0) is not requested_job
    assert [request.payload for request in requested_job.requests] == [b"one", b"two"]
    assert str(requested_job) == "job 'k' of boss"


def test_a_lease_is_given_once() -> None:
    records = JobRecords()
    run = records.begin((1, 0, 1), "anna", "w0.1", 1.0)
    was_over = run.is_over
    run.result = b""
    assert (was_over, run.is_over) == (False, True)
    records.begin((1, 0, 2), "anna", "w0.2", 1.0)
    with pytest.raises(ViolationError, match=r"task 0 of job 1 under fence 1 at w0.1 was given to w1.1 too"):
        records.begin((1, 0, 1), "berta", "w1.1", 2.0)


def test_events_are_read() -> None:
    event = read_event(b'{"event":"leased","job":3,"controller":"boss","at_us":5,"task":1,"worker":"anna","fence":2}')
    assert (event.event, event.ref, event.worker) == ("leased", (3, 1, 2), "anna")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"event":"done","job":"1"}', b'{"event":"done","job":1,"x":1}'])
def test_an_invalid_event(body: bytes) -> None:
    with pytest.raises(ViolationError, match="is not an event"):
        read_event(body)


def test_an_expected_job_has_a_history() -> None:
    models = Models()
    models.volunteers("anna", "berta")
    models.submit(agreed=2, workers=2)
    job = models.log_model.jobs[1]
    models.lease()
    job.note()
    assert [status[0] for status in job.tasks[0].history] == ["waiting", "leased"], (
        "an unchanged status is not repeated"
    )
    job.end("cancelled", models.now_us, "cancelled")
    job.note()
    assert job.is_ended
    assert [task.history[-1] for task in job.tasks.values()] == [
        ("cancelled", "anna", 1, 0, 0),
        ("cancelled", "", 0, 0, 0),
    ]
    assert job.history == [("running", 2), ("cancelled", 2)]
    assert str(job) == "job 1 (job 'key 1' of boss, 'resize', cancelled)"


def leased(**wishes: int) -> Models:
    """Return models with a leased task."""
    models = Models()
    models.volunteers("anna")
    models.submit(**wishes)
    models.lease()
    return models


def finish(models: Models, result: bytes = b"result") -> None:
    models.says("anna", (1, 0, 1), result)
    models.end_lease("finished", "finished", result=result)


def test_a_job_that_is_done() -> None:
    models = leased()
    finish(models)
    models.end("done", "done")
    job = models.log_model.jobs[1]
    assert (job.state, job.tasks[0].result, job.history) == ("done", b"result", [("running", 1), ("done", 1)])
    assert [status[0] for status in job.tasks[0].history] == ["waiting", "leased", "finished"]
    assert models.log_model.unended() == []
    models.now += 100.0
    models.remove()
    assert job.is_removed
    models.submit(2, key="key 1")
    assert models.log_model.jobs[1].requested_job.numbers == [1, 2], "long after its end a key is free again"


def test_a_job_that_waits_for_volunteers() -> None:
    models = Models()
    models.submit(agreed=None, workers=0)
    models.volunteers("anna", "berta")
    models.append(
        "resize",
        [{"event": "settled", "job": 1, "agreed": 2}],
        models.job(1, state="running", agreed=2),
        models.task(1, 0),
        models.task(1, 1),
    )
    assert models.log_model.jobs[1].history == [("waiting", None), ("running", 2)]


def test_failures_losses_and_returns() -> None:
    models = leased(retries=1, retry_delay_ms=500)
    models.says("anna", (1, 0, 1), error="oh")
    models.end_lease("failed", failures=1, error="oh")
    models.lease(fence=2)
    models.now += 11.0
    models.end_lease("lost", losses=1)
    models.volunteers("berta")
    models.lease("berta", fence=3)
    models.workers._worker("berta").returned[1, 0, 3] = models.now
    models.end_lease("returned")
    models.volunteers("anna")
    models.lease(fence=4)
    models.says("anna", (1, 0, 4), error="oh")
    models.end_lease("failed", failures=2, error="oh")
    models.append("resize", [{"event": "task_failed", "job": 1, "task": 0}], models.task(1, state="failed"))
    models.end("job_failed", "failed")
    assert models.log_model.jobs[1].is_ended


def test_ends_that_come_early() -> None:
    models = leased(deadline_ms=3000)
    models.now += 2.0
    models.end("job_failed", "failed", tasks="failed", reason="the deadline passed")
    models.submit(2, agreed=None, workers=0, of_kind="mail")
    models.records.cancels.add(2)
    changes = models.job(2, state="cancelled", ended_us=models.now_us)
    models.append("mail", [{"event": "cancelled", "job": 2}], changes)
    assert [job.state for job in models.log_model.jobs.values()] == ["failed", "cancelled"]


def test_one_append_with_several_turns_is_read_in_order() -> None:
    """After a disk failure, one append has several turns."""
    models = leased()
    models.says("anna", (1, 0, 1), b"x")
    reported = {"job": 1, "task": 0, "worker": "anna", "fence": 1, "ran_us": SECOND_US, "result_bytes": 1}
    done = {"event": "done", "job": 1, "at_us": models.now_us + 5}
    models.append(
        "resize",
        [reported | {"event": "finished"}, done],
        models.task(1, state="finished", result=b"x"),
        models.job(1, state="done", ended_us=models.now_us + 5),
    )
    assert models.log_model.jobs[1].state == "done"


# -- forbidden events -------------------------------------------------------------------------------------------------


def twice_finished(models: Models) -> None:
    finish(models)
    finish(models)


def leased_after_the_end(models: Models) -> None:
    finish(models)
    models.lease(fence=2)


def two_leases(models: Models) -> None:
    models.volunteers("berta")
    models.lease("berta", fence=2)


def old_fence(models: Models) -> None:
    models.workers._worker("anna").returned[1, 0, 1] = 0.0
    models.end_lease("returned")
    models.lease(fence=1)


def unreported_result(models: Models) -> None:
    models.end_lease("finished", "finished", result=b"made up")


def wrong_result(models: Models) -> None:
    models.says("anna", (1, 0, 1), b"result")
    models.workers._worker("anna").outcomes[1, 0, 1] = [
        (outcome, b"other!") for outcome, _ in models.workers._worker("anna").outcomes[1, 0, 1]
    ]
    models.end_lease("finished", "finished", result=b"result")


def other_result_kept(models: Models) -> None:
    models.says("anna", (1, 0, 1), b"result")
    models.append(
        "resize",
        [
            {
                "event": "finished",
                "job": 1,
                "task": 0,
                "worker": "anna",
                "fence": 1,
                "ran_us": SECOND_US,
                "result_bytes": 6,
            }
        ],
        models.task(1, state="finished", result=b"kitten"),
    )


def not_given_up(models: Models) -> None:
    models.end_lease("returned")


def lost_too_soon(models: Models) -> None:
    models.end_lease("lost", losses=1)


def too_silent(models: Models) -> None:
    models.now += 11.0
    finish(models)


def unreported_failure(models: Models) -> None:
    models.end_lease("failed", failures=1, error="oh")


def tried_too_soon(models: Models) -> None:
    models.says("anna", (1, 0, 1), error="oh")
    models.end_lease("failed", failures=1, error="oh")
    models.now -= 0.5
    models.lease(fence=2)


def tried_too_often(models: Models) -> None:
    models.says("anna", (1, 0, 1), error="oh", is_final=True)
    models.end_lease("failed", failures=1, error="oh")
    models.lease(fence=2)


def given_up_too_soon(models: Models) -> None:
    models.says("anna", (1, 0, 1), error="oh")
    models.end_lease("failed", failures=1, error="oh")
    models.append("resize", [{"event": "task_failed", "job": 1, "task": 0}], models.task(1, state="failed"))


def done_too_soon(models: Models) -> None:
    models.end("done", "done")


def no_deadline(models: Models) -> None:
    models.end("job_failed", "failed", tasks="failed")


def unrequested_cancel(models: Models) -> None:
    models.end("cancelled", "cancelled", tasks="cancelled")


def same_number(models: Models) -> None:
    models.submit(1, key="another")


def same_key(models: Models) -> None:
    models.submit(2, key="key 1")


def unrequested_job(models: Models) -> None:
    requested_jobs = models.records.requested_jobs
    models.records.requested_jobs = {}
    models.records.request = lambda *_: requested_jobs["boss", "key 1"]  # type: ignore[method-assign]
    models.submit(2)


def another_wish(models: Models) -> None:
    models.submit(2)
    models.append("resize", [], models.job(2, state="done"))


def forgotten(models: Models) -> None:
    models.remove()


def forgotten_too_soon(models: Models) -> None:
    finish(models)
    models.end("done", "done")
    models.remove()


def too_few(models: Models) -> None:
    models.volunteers("berta")
    models.submit(2, agreed=1, workers=0)


def too_many(models: Models) -> None:
    models.submit(2, agreed=2, workers=0)


def waits_for_nothing(models: Models) -> None:
    models.submit(2, agreed=None)


def no_volunteer(models: Models) -> None:
    models.submit(2)
    models.lease("zoe", number=2)


def beyond_capacity(models: Models) -> None:
    models.submit(2)
    models.lease("anna", number=2)


def same_worker(models: Models) -> None:
    models.volunteers("berta")
    models.workers._worker("anna").returned[1, 0, 1] = 0.0
    models.end_lease("returned")
    models.lease(fence=2)


def less_urgent(models: Models) -> None:
    models.volunteers("berta", capacity=2)
    models.submit(2, priority=1)
    models.submit(3)
    models.lease("berta", number=3)


def another_run(models: Models) -> None:
    models.append("resize", [], models.task(1, instance=b"o" * 16))


def kept_otherwise(models: Models) -> None:
    models.append("resize", [], models.task(1, fence=7))


def not_kept(models: Models) -> None:
    event = {"event": "returned", "job": 1, "task": 0, "worker": "anna", "fence": 1, "ran_us": SECOND_US}
    models.workers._worker("anna").returned[1, 0, 1] = 0.0
    models.append("resize", [event])


def kept_without_a_word(models: Models) -> None:
    models.append("resize", [], models.task(1, 3))


def no_event(models: Models) -> None:
    models.append("resize", [{"event": "exploded", "job": 1}])


def unreadable(models: Models) -> None:
    models.append("resize", [{"event": "done", "job": 1, "secret": 2}])


def no_job(models: Models) -> None:
    models.append("resize", [{"event": "done", "job": 7}])


def no_task(models: Models) -> None:
    models.append("resize", [{"event": "leased", "job": 1, "task": 4, "worker": "anna", "fence": 1}])


def other_kind(models: Models) -> None:
    models.append("mail", [{"event": "done", "job": 1}])


def back_in_time(models: Models) -> None:
    models.append("resize", [{"event": "done", "job": 1, "at_us": 5}])


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (twice_finished, "it is finished"),
        (leased_after_the_end, "it is finished under fence 1"),
        (two_leases, "it is leased under fence 1"),
        (old_fence, "it is waiting under fence 1"),
        (unreported_result, "it reported no result"),
        (wrong_result, "6 came to the broker"),
        (other_result_kept, "is stored with another result"),
        (not_given_up, "it never gave it up"),
        (lost_too_soon, "active in time"),
        (too_silent, "it was idle for 14.000 s, and still had it"),
        (unreported_failure, "it did not report that"),
        (tried_too_soon, "it was to wait until"),
        (tried_too_often, "after 1 failures with 3 retries"),
        (given_up_too_soon, "after 1 failures and 0 losses"),
        (done_too_soon, r"its tasks are \['leased'\]"),
        (no_deadline, "the deadline None"),
        (unrequested_cancel, "no cancel was requested"),
        (same_number, "a number was given twice"),
        (same_key, "the key is that of job 1"),
        (unrequested_job, "which was never submitted"),
        (another_wish, "but JobRow"),
        (forgotten, "is no longer stored"),
        (forgotten_too_soon, "is no longer stored"),
        (too_few, "agreed on 1 of all, there were 2 to 2"),
        (too_many, "agreed on 2 of all, there were 1 to 1"),
        (waits_for_nothing, "waits, though anna was there"),
        (no_volunteer, "it did not volunteer"),
        (beyond_capacity, "it has 2 tasks, and takes 1"),
        (same_worker, "it had the job before, and berta had not"),
        (less_urgent, "priority 0, while job 2"),
        (another_run, "a run not connected"),
        (kept_otherwise, "is stored"),
        (not_kept, "is stored"),
        (kept_without_a_word, "without an event"),
        (no_event, "unknown event"),
        (unreadable, "is not an event"),
        (no_job, "no job with this number"),
        (no_task, "has 1 tasks"),
        (other_kind, "of 'mail'"),
        (back_in_time, "before the event at"),
    ],
)
def test_forbidden_events_are_caught(fault: Callable[[Models], None], text: str) -> None:
    with pytest.raises(ViolationError, match=text):
        fault(leased())


def test_nothing_happens_after_the_end() -> None:
    models = leased()
    finish(models)
    models.end("done", "done")
    with pytest.raises(ViolationError, match="after its end"):
        models.lease(fence=2)


def test_a_time_limit_counts_as_a_failure() -> None:
    models = leased(time_limit_ms=500)
    models.end_lease("failed", failures=1, error="took longer than 0.5 s")
    assert models.log_model.jobs[1].tasks[0].failures == 1
    slow = leased(time_limit_ms=5000)
    with pytest.raises(ViolationError, match="its time limit is 5000 ms"):
        slow.end_lease("failed", failures=1, error="took longer than 5 s")


@pytest.mark.parametrize(
    ("submission", "text"), [("time_limit_ms", "longer than 500 ms"), ("deadline_ms", "its deadline")]
)
def test_nothing_is_finished_after_its_time_unless_the_broker_was_dead(submission: str, text: str) -> None:
    models = leased(**{submission: 500 if submission == "time_limit_ms" else 1500})
    with pytest.raises(ViolationError, match=text):
        finish(models)
    models = leased(**{submission: 500 if submission == "time_limit_ms" else 1500})
    models.workers.started(models.now)
    finish(models)
    assert models.log_model.jobs[1].tasks[0].state == "finished"


def test_a_lease_belongs_to_a_run_that_was_there() -> None:
    assert leased().log_model.jobs[1].tasks[0].instance == INSTANCE
