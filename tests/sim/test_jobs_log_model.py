"""The ledger of jobs: what was asked for by key, and leases that nobody else has.

The stories of jobs: what an event may say, and every way that jobs and tasks stood.

The checker of `$jobs` messages: a good broker's pass, and each thing that must not happen is caught.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.sim.jobs_models import INSTANCE, SECOND_US, Truth

from godwit.wire.work import Submission
from godwit_sim.checkers import ViolationError
from godwit_sim.jobs_log_model import JobRecords, read_event


def test_the_same_key_is_the_same_order_for_the_same_controller() -> None:
    records = JobRecords()
    submission = Submission(key="k", of_kind="resize")
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
def test_what_is_no_event(body: bytes) -> None:
    with pytest.raises(ViolationError, match="is not an event"):
        read_event(body)


def test_a_story_knows_how_everything_stood() -> None:
    truth = Truth()
    truth.volunteers("anna", "berta")
    truth.submit(agreed=2, workers=2)
    job = truth.log_model.jobs[1]
    truth.lease()
    job.note()
    assert [status[0] for status in job.tasks[0].history] == ["waiting", "leased"], "what does not change is not noted"
    job.end("cancelled", truth.now_us, "cancelled")
    job.note()
    assert job.is_ended
    assert [task.history[-1] for task in job.tasks.values()] == [
        ("cancelled", "anna", 1, 0, 0),
        ("cancelled", "", 0, 0, 0),
    ]
    assert job.history == [("running", 2), ("cancelled", 2)]
    assert str(job) == "job 1 (job 'key 1' of boss, 'resize', cancelled)"


def leased(**wishes: int) -> Truth:
    """A worker has a task of a job."""
    truth = Truth()
    truth.volunteers("anna")
    truth.submit(**wishes)
    truth.lease()
    return truth


def finish(truth: Truth, result: bytes = b"result") -> None:
    truth.says("anna", (1, 0, 1), result)
    truth.end_lease("finished", "finished", result=result)


def test_a_job_that_is_done() -> None:
    truth = leased()
    finish(truth)
    truth.end("done", "done")
    job = truth.log_model.jobs[1]
    assert (job.state, job.tasks[0].result, job.history) == ("done", b"result", [("running", 1), ("done", 1)])
    assert [status[0] for status in job.tasks[0].history] == ["waiting", "leased", "finished"]
    assert truth.log_model.unended() == []
    truth.now += 100.0
    truth.remove()
    assert job.is_removed
    truth.submit(2, key="key 1")
    assert truth.log_model.jobs[1].requested_job.numbers == [1, 2], "long after its end a key is free again"


def test_a_job_that_waits_for_volunteers() -> None:
    truth = Truth()
    truth.submit(agreed=None, workers=0)
    truth.volunteers("anna", "berta")
    truth.append(
        "resize",
        [{"event": "settled", "job": 1, "agreed": 2}],
        truth.job(1, state="running", agreed=2),
        truth.task(1, 0),
        truth.task(1, 1),
    )
    assert truth.log_model.jobs[1].history == [("waiting", None), ("running", 2)]


def test_failures_losses_and_returns() -> None:
    truth = leased(retries=1, retry_delay_ms=500)
    truth.says("anna", (1, 0, 1), error="oh")
    truth.end_lease("failed", failures=1, error="oh")
    truth.lease(fence=2)
    truth.now += 11.0
    truth.end_lease("lost", losses=1)
    truth.volunteers("berta")
    truth.lease("berta", fence=3)
    truth.workers._worker("berta").returned[1, 0, 3] = truth.now
    truth.end_lease("returned")
    truth.volunteers("anna")
    truth.lease(fence=4)
    truth.says("anna", (1, 0, 4), error="oh")
    truth.end_lease("failed", failures=2, error="oh")
    truth.append("resize", [{"event": "task_failed", "job": 1, "task": 0}], truth.task(1, state="failed"))
    truth.end("job_failed", "failed")
    assert truth.log_model.jobs[1].is_ended


def test_ends_that_come_early() -> None:
    truth = leased(deadline_ms=3000)
    truth.now += 2.0
    truth.end("job_failed", "failed", tasks="failed", reason="the deadline passed")
    truth.submit(2, agreed=None, workers=0, of_kind="mail")
    truth.records.cancels.add(2)
    changes = truth.job(2, state="cancelled", ended_us=truth.now_us)
    truth.append("mail", [{"event": "cancelled", "job": 2}], changes)
    assert [job.state for job in truth.log_model.jobs.values()] == ["failed", "cancelled"]


def test_what_turns_up_at_once_is_taken_in_its_order() -> None:
    """After the disk had failed, several turns are in one append."""
    truth = leased()
    truth.says("anna", (1, 0, 1), b"x")
    reported = {"job": 1, "task": 0, "worker": "anna", "fence": 1, "ran_us": SECOND_US, "result_bytes": 1}
    done = {"event": "done", "job": 1, "at_us": truth.now_us + 5}
    truth.append(
        "resize",
        [reported | {"event": "finished"}, done],
        truth.task(1, state="finished", result=b"x"),
        truth.job(1, state="done", ended_us=truth.now_us + 5),
    )
    assert truth.log_model.jobs[1].state == "done"


# -- what must not happen ---------------------------------------------------------------------------------------------


def twice_finished(truth: Truth) -> None:
    finish(truth)
    finish(truth)


def leased_after_the_end(truth: Truth) -> None:
    finish(truth)
    truth.lease(fence=2)


def two_leases(truth: Truth) -> None:
    truth.volunteers("berta")
    truth.lease("berta", fence=2)


def old_fence(truth: Truth) -> None:
    truth.workers._worker("anna").returned[1, 0, 1] = 0.0
    truth.end_lease("returned")
    truth.lease(fence=1)


def nobody_s_result(truth: Truth) -> None:
    truth.end_lease("finished", "finished", result=b"made up")


def wrong_result(truth: Truth) -> None:
    truth.says("anna", (1, 0, 1), b"result")
    truth.workers._worker("anna").outcomes[1, 0, 1] = [
        (outcome, b"other!") for outcome, _ in truth.workers._worker("anna").outcomes[1, 0, 1]
    ]
    truth.end_lease("finished", "finished", result=b"result")


def other_result_kept(truth: Truth) -> None:
    truth.says("anna", (1, 0, 1), b"result")
    truth.append(
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
        truth.task(1, state="finished", result=b"kitten"),
    )


def not_given_up(truth: Truth) -> None:
    truth.end_lease("returned")


def lost_too_soon(truth: Truth) -> None:
    truth.end_lease("lost", losses=1)


def too_silent(truth: Truth) -> None:
    truth.now += 11.0
    finish(truth)


def failed_by_nobody(truth: Truth) -> None:
    truth.end_lease("failed", failures=1, error="oh")


def tried_too_soon(truth: Truth) -> None:
    truth.says("anna", (1, 0, 1), error="oh")
    truth.end_lease("failed", failures=1, error="oh")
    truth.now -= 0.5
    truth.lease(fence=2)


def tried_too_often(truth: Truth) -> None:
    truth.says("anna", (1, 0, 1), error="oh", is_final=True)
    truth.end_lease("failed", failures=1, error="oh")
    truth.lease(fence=2)


def given_up_too_soon(truth: Truth) -> None:
    truth.says("anna", (1, 0, 1), error="oh")
    truth.end_lease("failed", failures=1, error="oh")
    truth.append("resize", [{"event": "task_failed", "job": 1, "task": 0}], truth.task(1, state="failed"))


def done_too_soon(truth: Truth) -> None:
    truth.end("done", "done")


def no_deadline(truth: Truth) -> None:
    truth.end("job_failed", "failed", tasks="failed")


def nobody_cancelled(truth: Truth) -> None:
    truth.end("cancelled", "cancelled", tasks="cancelled")


def same_number(truth: Truth) -> None:
    truth.submit(1, key="another")


def same_key(truth: Truth) -> None:
    truth.submit(2, key="key 1")


def nobody_s_job(truth: Truth) -> None:
    requested_jobs = truth.records.requested_jobs
    truth.records.requested_jobs = {}
    truth.records.request = lambda *_: requested_jobs["boss", "key 1"]  # type: ignore[method-assign]
    truth.submit(2)


def another_wish(truth: Truth) -> None:
    truth.submit(2)
    truth.append("resize", [], truth.job(2, state="done"))


def forgotten(truth: Truth) -> None:
    truth.remove()


def forgotten_too_soon(truth: Truth) -> None:
    finish(truth)
    truth.end("done", "done")
    truth.remove()


def too_few(truth: Truth) -> None:
    truth.volunteers("berta")
    truth.submit(2, agreed=1, workers=0)


def too_many(truth: Truth) -> None:
    truth.submit(2, agreed=2, workers=0)


def waits_for_nothing(truth: Truth) -> None:
    truth.submit(2, agreed=None)


def no_volunteer(truth: Truth) -> None:
    truth.submit(2)
    truth.lease("zoe", number=2)


def beyond_capacity(truth: Truth) -> None:
    truth.submit(2)
    truth.lease("anna", number=2)


def same_worker(truth: Truth) -> None:
    truth.volunteers("berta")
    truth.workers._worker("anna").returned[1, 0, 1] = 0.0
    truth.end_lease("returned")
    truth.lease(fence=2)


def less_urgent(truth: Truth) -> None:
    truth.volunteers("berta", capacity=2)
    truth.submit(2, priority=1)
    truth.submit(3)
    truth.lease("berta", number=3)


def another_run(truth: Truth) -> None:
    truth.append("resize", [], truth.task(1, instance=b"o" * 16))


def kept_otherwise(truth: Truth) -> None:
    truth.append("resize", [], truth.task(1, fence=7))


def not_kept(truth: Truth) -> None:
    event = {"event": "returned", "job": 1, "task": 0, "worker": "anna", "fence": 1, "ran_us": SECOND_US}
    truth.workers._worker("anna").returned[1, 0, 1] = 0.0
    truth.append("resize", [event])


def kept_without_a_word(truth: Truth) -> None:
    truth.append("resize", [], truth.task(1, 3))


def no_event(truth: Truth) -> None:
    truth.append("resize", [{"event": "exploded", "job": 1}])


def unreadable(truth: Truth) -> None:
    truth.append("resize", [{"event": "done", "job": 1, "secret": 2}])


def no_job(truth: Truth) -> None:
    truth.append("resize", [{"event": "done", "job": 7}])


def no_task(truth: Truth) -> None:
    truth.append("resize", [{"event": "leased", "job": 1, "task": 4, "worker": "anna", "fence": 1}])


def other_kind(truth: Truth) -> None:
    truth.append("mail", [{"event": "done", "job": 1}])


def back_in_time(truth: Truth) -> None:
    truth.append("resize", [{"event": "done", "job": 1, "at_us": 5}])


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (twice_finished, "it is finished"),
        (leased_after_the_end, "it is finished under fence 1"),
        (two_leases, "it is leased under fence 1"),
        (old_fence, "it is waiting under fence 1"),
        (nobody_s_result, "it reported no result"),
        (wrong_result, "6 came to the broker"),
        (other_result_kept, "is stored with another result"),
        (not_given_up, "it never gave it up"),
        (lost_too_soon, "active in time"),
        (too_silent, "it was idle for 14.000 s, and still had it"),
        (failed_by_nobody, "it did not report that"),
        (tried_too_soon, "it was to wait until"),
        (tried_too_often, "after 1 failures with 3 retries"),
        (given_up_too_soon, "after 1 failures and 0 losses"),
        (done_too_soon, r"its tasks are \['leased'\]"),
        (no_deadline, "the deadline None"),
        (nobody_cancelled, "no cancel was requested"),
        (same_number, "a number was given twice"),
        (same_key, "the key is that of job 1"),
        (nobody_s_job, "which was never submitted"),
        (another_wish, "but JobKept"),
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
def test_what_must_not_happen_is_caught(fault: Callable[[Truth], None], text: str) -> None:
    with pytest.raises(ViolationError, match=text):
        fault(leased())


def test_nothing_happens_after_the_end() -> None:
    truth = leased()
    finish(truth)
    truth.end("done", "done")
    with pytest.raises(ViolationError, match="after its end"):
        truth.lease(fence=2)


def test_a_time_limit_counts_as_a_failure() -> None:
    truth = leased(time_limit_ms=500)
    truth.end_lease("failed", failures=1, error="took longer than 0.5 s")
    assert truth.log_model.jobs[1].tasks[0].failures == 1
    slow = leased(time_limit_ms=5000)
    with pytest.raises(ViolationError, match="its time limit is 5000 ms"):
        slow.end_lease("failed", failures=1, error="took longer than 5 s")


@pytest.mark.parametrize(
    ("submission", "text"), [("time_limit_ms", "longer than 500 ms"), ("deadline_ms", "its deadline")]
)
def test_nothing_is_finished_after_its_time_unless_the_broker_was_dead(submission: str, text: str) -> None:
    truth = leased(**{submission: 500 if submission == "time_limit_ms" else 1500})
    with pytest.raises(ViolationError, match=text):
        finish(truth)
    truth = leased(**{submission: 500 if submission == "time_limit_ms" else 1500})
    truth.workers.started(truth.now)
    finish(truth)
    assert truth.log_model.jobs[1].tasks[0].state == "finished"


def test_a_lease_belongs_to_a_run_that_was_there() -> None:
    assert leased().log_model.jobs[1].tasks[0].instance == INSTANCE
