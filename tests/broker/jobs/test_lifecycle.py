"""How jobs and tasks start and end: submissions, delays, settling, results, failures, returns and losses."""

from __future__ import annotations

import pytest
from tests.broker.jobs.driver import LEASE_S, SchedulerDriver, holders

from godwit.broker.jobs import job_table, lifecycle
from godwit.broker.jobs import scheduler as schedulers
from godwit.broker.jobs.lifecycle import DEADLINE_PASSED
from godwit.broker.jobs.scheduler import Scheduler
from godwit.broker.ports import RequestFailure
from godwit.limits import MAX_LOSSES, MAX_RETRY_DELAY_S, SETTLE_S
from godwit.wire.control_base import Code

# -- starts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "agreed"), [(1, 1), (2, 2), (3, 3), (4, 3), (9999, 3), (0, 3)])
def test_agreed_is_the_smaller_of_the_requested_and_the_present_workers(workers: int, agreed: int) -> None:
    driver = SchedulerDriver()
    for name in ("anna", "bert", "cleo"):
        driver.volunteer(name)
    driver.volunteer("dora", ["paint"])
    job = driver.submit(workers=workers)
    assert (job.state, job.agreed, len(job.tasks)) == ("running", agreed, agreed)
    assert job.leased == agreed


def test_busy_volunteers_count_and_absent_ones_do_not() -> None:
    driver = SchedulerDriver()
    for name in ("anna", "bert", "cleo"):
        driver.volunteer(name)
    driver.submit(workers=0)
    driver.scheduler.disconnect("cleo", driver.now_us)
    job = driver.submit(workers=0)
    assert (job.agreed, job.leased) == (2, 0)


def test_the_agreed_number_holds_when_volunteers_leave() -> None:
    driver = SchedulerDriver()
    for name in ("anna", "bert", "cleo"):
        driver.volunteer(name)
    job = driver.submit(workers=3)
    for name in ("bert", "cleo"):
        driver.scheduler.leave(name, driver.now_us)
    driver.turn()
    while job.leased:
        driver.finish(next(task for task in job.tasks if task.state == "leased"))
    assert (job.state, job.agreed, job.finished) == ("done", 3, 3)


def test_without_volunteers_a_job_waits_and_settles_a_second_after_the_first() -> None:
    driver = SchedulerDriver()
    job = driver.submit(workers=3)
    assert (job.state, job.agreed, job.tasks) == ("waiting", None, [])
    driver.wait(1000)
    assert job.state == "waiting"
    driver.volunteer("anna")
    driver.wait(SETTLE_S - 0.001)
    driver.volunteer("bert")
    assert job.state == "waiting"
    driver.take_events()
    driver.wait(0.001)
    assert (job.state, job.agreed, sorted(holders(job))) == ("running", 2, ["anna", "bert"])
    assert [(event.event, event.agreed) for event in driver.events] == [
        ("settled", 2),
        ("leased", None),
        ("leased", None),
    ]


def test_a_worker_that_has_left_when_a_job_settles_does_not_count() -> None:
    driver = SchedulerDriver()
    job = driver.submit(workers=0)
    driver.volunteer("anna")
    driver.scheduler.leave("anna", driver.now_us)
    driver.wait(5)
    assert (job.state, job.agreed) == ("waiting", None)
    driver.volunteer("bert")
    driver.wait(SETTLE_S)
    assert (job.state, job.agreed) == ("running", 1)


def test_a_job_that_comes_while_others_settle_begins_at_once() -> None:
    driver = SchedulerDriver()
    early = driver.submit()
    driver.volunteer("anna", capacity=2)
    late = driver.submit()
    assert (early.state, late.state) == ("waiting", "running")
    driver.wait(SETTLE_S)
    assert early.state == "running"


def test_a_stalled_worker_that_reports_again_is_a_first_volunteer() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    driver.wait(40)
    job = driver.submit()
    assert job.state == "waiting"
    driver.scheduler.renew_leases("anna", driver.now_us)
    driver.wait(SETTLE_S)
    assert holders(job) == ["anna"]


def test_a_delayed_job_is_agreed_on_when_its_time_comes() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    job = driver.submit(workers=0, delay_ms=5000)
    assert (job.state, job.begins_us) == ("waiting", driver.now_us + 5_000_000)
    driver.volunteer("bert")
    driver.wait(4.999)
    assert job.state == "waiting"
    driver.wait(0.001)
    assert (job.state, job.agreed, job.leased) == ("running", 2, 2)


def test_a_delayed_job_without_volunteers_waits_on() -> None:
    driver = SchedulerDriver()
    job = driver.submit(delay_ms=5000)
    driver.volunteer("anna")
    driver.scheduler.leave("anna", driver.now_us)
    driver.wait(60)
    assert job.state == "waiting"
    driver.volunteer("anna")
    driver.wait(SETTLE_S)
    assert holders(job) == ["anna"]


def test_the_same_key_of_the_same_controller_is_the_same_job() -> None:
    driver = SchedulerDriver()
    job = driver.submit("one", by="carla", key="a")
    driver.take_events()
    again = driver.submit("another/kind", b"other payload", by="carla", key="a", workers=5)
    assert again is job
    assert (job.kind, job.payload, job.spec.workers) == ("one", b"", 1)
    assert driver.take_events() == []
    assert driver.submit(by="dora", key="a").number == 2


@pytest.mark.parametrize("kind", ["", "a/+", "#", "$sys", "tab\t", "k" * 257])
def test_no_kind_is_called_so(kind: str) -> None:
    driver = SchedulerDriver()
    with pytest.raises(RequestFailure, match="the kind of work") as refused:
        driver.submit(kind)
    assert refused.value.code == Code.BAD_KIND
    with pytest.raises(RequestFailure, match="the kind of work"):
        driver.volunteer("anna", ["good", kind])
    assert not driver.scheduler.workers
    assert not driver.scheduler._dispatcher.queues
    assert driver.submit("a/b c").number == 1, "refused ones get no number"


def test_the_fields_of_a_submitted_event() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    job = driver.submit("resize", b"payload", by="carla", workers=3, priority=7, is_turn=False)
    assert driver.scheduler.output.new_jobs == [job]
    assert driver.scheduler.output.changed_jobs == {}
    assert driver.scheduler.output.changed_tasks == {}, "tasks that were never leased follow from the agreed number"
    driver.turn()
    event = driver.events[0]
    assert (event.event, event.job, event.controller, event.at_us) == ("submitted", 1, "carla", driver.now_us)
    assert (event.agreed, event.workers, event.priority, event.payload_bytes) == (1, 3, 7, 7)


def test_a_waiting_job_without_room_does_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table, "MAX_TASKS", 24)
    driver = SchedulerDriver()
    large = [driver.submit(by="greedy", workers=0) for _ in range(3)]
    small = driver.submit(by="mine")
    for number in range(8):
        driver.volunteer(f"worker {number}")
    driver.wait(SETTLE_S)
    assert [job.state for job in (*large, small)] == ["running", "waiting", "waiting", "running"]
    while large[0].leased:
        driver.finish(next(task for task in large[0].tasks if task.state == "leased"))
    driver.wait(SETTLE_S)
    assert [job.state for job in large].count("running") == 1, "the next one has room now"


def test_a_volunteer_that_comes_and_goes_does_not_put_settling_off() -> None:
    driver = SchedulerDriver(Scheduler(lease_us=500_000, keep_us=0))
    job = driver.submit()
    driver.volunteer("anna")
    for _ in range(4):
        driver.wait(0.55)
        driver.scheduler.renew_leases("anna", driver.now_us)
    assert job.state == "running"


def test_many_that_are_due_are_seen_to_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedulers, "MAX_DUE_AT_ONCE", 10)
    monkeypatch.setattr(lifecycle, "MAX_DUE_AT_ONCE", 10)
    driver = SchedulerDriver()
    for _ in range(35):
        driver.submit("paint", deadline_ms=5000)
        driver.submit("cut", workers=1)
    driver.volunteer("anna", ["cut"], capacity=100)
    leased = []
    driver.now_us += int(SETTLE_S * 1e6)
    for turn in range(8):
        driver.scheduler.handle_timers(driver.now_us)
        leased.append(len(driver.turn()))
        driver.now_us += 1
        at_us = driver.scheduler.next_timer_us
        assert at_us is not None
        assert (at_us <= driver.now_us) == (turn < 3)
    assert leased == [10, 10, 10, 5, 0, 0, 0, 0]
    driver.now_us += 5_000_000
    failed = []
    for _ in range(5):
        driver.scheduler.handle_timers(driver.now_us)
        driver.turn()
        failed.append(sum(job.state == "failed" for job in driver.scheduler.jobs.values()))
    assert failed == [10, 20, 30, 35, 35]


# -- ends -------------------------------------------------------------------------------------------------------------


def test_a_job_is_done_when_all_its_tasks_have_results() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    driver.volunteer("bert")
    job = driver.submit(workers=2)
    driver.take_events()
    driver.wait(3)
    first, second = job.tasks
    driver.finish(first, b"one")
    assert (job.state, job.finished, first.state, first.result) == ("running", 1, "finished", b"one")
    driver.finish(second, b"three")
    assert (job.state, job.finished, job.ended_us, job.result_bytes) == ("done", 2, driver.now_us, 8)
    assert [event.event for event in driver.events] == ["finished", "finished", "done"]
    event = driver.events[0]
    assert (event.task, event.worker, event.fence, event.result_bytes, event.ran_us) == (
        0, first.worker, 1, 3, 3_000_000,
    )  # fmt: skip


def test_a_failure_is_tried_again_with_pauses_that_double() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    job = driver.submit(retries=3, retry_delay_ms=1000)
    task = job.tasks[0]
    for pause_s in (1, 2, 4):
        driver.fail(task, "no luck")
        assert (task.state, task.error) == ("waiting", "no luck")
        assert driver.wait(pause_s - 0.001, reporting=["anna"]) == []
        assert driver.wait(0.001, reporting=["anna"]) == [task]
    driver.take_events()
    driver.fail(task, "no luck at all")
    assert (task.state, task.failures, task.fence) == ("failed", 4, 4)
    assert (job.state, job.reason, job.failed) == ("failed", "its task failed", 1)
    assert [event.event for event in driver.events] == ["failed", "task_failed", "job_failed"]
    assert (driver.events[0].failures, driver.events[0].error) == (4, "no luck at all")


def test_a_pause_is_never_longer_than_its_limit() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    task = driver.submit(retries=1000, retry_delay_ms=200_000).tasks[0]
    driver.fail(task)
    driver.wait(200, reporting=["anna"])
    for _ in range(100):
        driver.fail(task)
        assert task.begins_us == driver.now_us + int(MAX_RETRY_DELAY_S * 1e6)
        driver.wait(MAX_RETRY_DELAY_S, reporting=["anna"])


def test_a_final_failure_is_not_tried_again() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    job = driver.submit(retries=3)
    driver.fail(job.tasks[0], "never", is_final=True)
    assert (job.state, job.tasks[0].state, job.tasks[0].failures) == ("failed", "failed", 1)


def test_without_retries_the_first_failure_is_the_last() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    job = driver.submit(retries=0)
    driver.fail(job.tasks[0])
    assert job.state == "failed"


def test_the_other_tasks_go_on_when_one_has_failed_for_good() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    driver.volunteer("bert")
    job = driver.submit(workers=2)
    driver.fail(job.tasks[0], is_final=True)
    assert (job.state, job.leased) == ("running", 1)
    driver.finish(job.tasks[1])
    assert (job.state, job.reason) == ("failed", "1 of 2 tasks failed")
    assert (job.finished, job.failed) == (1, 1)


def test_an_attempt_that_takes_too_long_has_failed() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    job = driver.submit(time_limit_ms=2500, retries=1, retry_delay_ms=0)
    task = job.tasks[0]
    driver.wait(2.499)
    assert task.fence == 1
    driver.wait(0.001)
    assert (task.failures, task.error, task.fence, task.state) == (1, "took longer than 2.5 s", 2, "leased")
    assert driver.revoked == [("anna", (1, 0, 1), "took longer than 2.5 s")]
    driver.wait(2.5)
    assert (job.state, task.state, task.failures) == ("failed", "failed", 2)


def test_a_time_limit_ends_with_its_lease() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    task = driver.submit(time_limit_ms=2500).tasks[0]
    driver.wait(2)
    assert driver.return_task(task) == [task]
    driver.wait(2)
    assert (task.fence, task.failures) == (2, 0)
    driver.finish(task)
    driver.wait(2)
    assert driver.scheduler.jobs[1].state == "done"


def test_a_returned_task_counts_as_neither_failure_nor_loss() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    driver.volunteer("bert")
    task = driver.submit(retries=0).tasks[0]
    first = task.worker
    driver.take_events()
    assert driver.return_task(task) == [task]
    assert (task.failures, task.losses, task.fence, task.previous_workers) == (0, 0, 2, (first,))
    assert task.worker != first
    assert driver.take_events() == ["returned", "leased"]


def test_a_task_that_ends_its_workers_has_failed() -> None:
    driver = SchedulerDriver()
    job = driver.submit(retries=0)
    driver.volunteer("anna", instance=b"0")
    driver.wait(1)
    task = job.tasks[0]
    for number in range(1, MAX_LOSSES + 1):
        assert (task.losses, job.state) == (number - 1, "running")
        driver.volunteer("anna", instance=b"%d" % number, is_new_link=True)
    assert (task.losses, task.state, task.failures) == (MAX_LOSSES, "failed", 0)
    assert (job.state, task.error) == ("failed", f"{MAX_LOSSES} workers were lost while they held it")


@pytest.mark.parametrize("state", ["delayed", "waiting", "leased", "pausing"])
def test_a_job_that_has_not_ended_by_its_deadline_has_failed(state: str) -> None:
    driver = SchedulerDriver()
    if state != "waiting":
        driver.volunteer("anna")
    job = driver.submit(deadline_ms=10_000, delay_ms=20_000 if state == "delayed" else 0, retry_delay_ms=100_000)
    if state == "pausing":
        driver.fail(job.tasks[0])
    driver.take_events()
    driver.wait(9.999)
    assert job.state == ("waiting" if state in ("delayed", "waiting") else "running")
    driver.wait(0.001)
    assert (job.state, job.reason, job.ended_us) == ("failed", DEADLINE_PASSED, driver.now_us)
    assert [task.state for task in job.tasks] == ([] if state in ("delayed", "waiting") else ["failed"])
    assert driver.revoked == ([("anna", (1, 0, 1), DEADLINE_PASSED)] if state == "leased" else [])
    assert driver.events[-1].event == "job_failed"
    assert driver.wait(200, reporting=["anna"]) == []
    driver.volunteer("anna")
    assert holders(driver.submit()) == ["anna"], "its capacity came back"


def test_a_deadline_does_not_change_ended_tasks() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=2)
    driver.volunteer("bert", capacity=2)
    in_time = driver.submit(deadline_ms=10_000)
    half = driver.submit(workers=2, deadline_ms=10_000)
    driver.finish(in_time.tasks[0])
    driver.finish(half.tasks[0])
    driver.wait(10)
    assert (in_time.state, half.state) == ("done", "failed")
    assert [task.state for task in half.tasks] == ["finished", "failed"]
    assert (half.finished, half.failed) == (1, 1)


@pytest.mark.parametrize("state", ["delayed", "waiting", "leased", "pausing"])
def test_cancelling_ends_a_job_in_any_state(state: str) -> None:
    driver = SchedulerDriver()
    if state != "waiting":
        driver.volunteer("anna")
    job = driver.submit(delay_ms=20_000 if state == "delayed" else 0, retry_delay_ms=5000)
    if state == "pausing":
        driver.fail(job.tasks[0])
    driver.take_events()
    driver.scheduler.cancel(job, "not needed", driver.now_us)
    driver.turn()
    assert (job.state, job.reason) == ("cancelled", "not needed")
    assert [task.state for task in job.tasks] == ([] if state in ("delayed", "waiting") else ["cancelled"])
    assert driver.revoked == ([("anna", (1, 0, 1), "cancelled: not needed")] if state == "leased" else [])
    assert driver.take_events() == ["cancelled"]
    driver.volunteer("anna")
    assert driver.wait(100, reporting=["anna"]) == []
    driver.scheduler.cancel(job, "again", driver.now_us)
    assert (job.reason, driver.take_events()) == ("not needed", [])


def test_a_job_that_the_log_refused_was_never_there() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=2)
    driver.volunteer("bert", capacity=1)
    job = driver.submit(workers=3, key="a", deadline_ms=1000, time_limit_ms=500, is_turn=False)
    driver.scheduler.lease_tasks(driver.now_us)
    assert job.leased == 2
    driver.scheduler.discard(job)
    assert not driver.scheduler.jobs
    assert (driver.scheduler.output.changed_tasks, driver.scheduler.output.changed_jobs) == ({}, {})
    assert {task.state for task in driver.scheduler.output.leased} == {"cancelled"}
    assert not [worker for worker in driver.scheduler.workers.values() if worker.leases]
    again = driver.submit(key="a", workers=2)
    assert (again.number, again.leased) == (2, 2)
    driver.wait(2)
    assert again.state == "running"


def test_a_discarded_job_removes_workers_known_only_for_it() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    job = driver.submit()
    driver.scheduler.disconnect("anna", driver.now_us)
    driver.scheduler.discard(job)
    assert not driver.scheduler.workers
    assert driver.scheduler.next_timer_us is None


def test_late_reports_are_ignored_and_repeats_are_known() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    task = driver.submit().tasks[0]
    old = task.ref
    driver.wait(LEASE_S)
    driver.volunteer("bert")
    assert (task.worker, task.fence, task.losses) == ("bert", 2, 1)
    scheduler, now_us = driver.scheduler, driver.now_us
    for name, ref in (("anna", old), ("bert", old), ("anna", task.ref), ("unknown", task.ref), ("bert", (1, 0, 3))):
        assert not scheduler.finish(name, ref, b"late", now_us)
        assert not scheduler.fail(name, ref, "late", True, now_us)
        assert not scheduler.return_task(name, ref, now_us)
        assert scheduler.set_progress(name, ref, 1.0, "late") is None
        assert not scheduler.has_result(ref, name)
    assert not scheduler.finish("bert", (1, 1, 1), b"", now_us)
    assert not scheduler.finish("bert", (2, 0, 1), b"", now_us)
    assert not scheduler.has_result((1, 1, 1), "bert")
    assert not scheduler.has_result((2, 0, 1), "bert")
    driver.finish(task, b"mine")
    assert not scheduler.finish("bert", task.ref, b"again", now_us)
    assert scheduler.has_result(task.ref, "bert")
    assert not scheduler.has_result(task.ref, "anna")
    assert not scheduler.has_result(old, "anna")
    assert task.result == b"mine"


def test_progress_is_seen_until_the_lease_ends() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    task = driver.submit().tasks[0]
    assert driver.scheduler.set_progress("anna", task.ref, 0.5, "half of it") is task
    assert (task.progress, task.note) == (0.5, "half of it")
    assert driver.scheduler.output.changed_tasks == {}
    driver.fail(task)
    assert (task.progress, task.note) == (None, "")


def test_a_task_that_is_handed_back_again_and_again_waits() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    task = driver.submit().tasks[0]
    assert driver.return_task(task) == [task], "the first time it can be leased at once"
    for pause_s in (1, 2, 4, 8, 16, 32, 60, 60):
        assert driver.return_task(task) == []
        assert driver.wait(pause_s - 0.001, reporting=["anna"]) == []
        assert driver.wait(0.001, reporting=["anna"]) == [task]
    driver.wait(60, reporting=["anna"])
    assert driver.return_task(task) == [task], "she held it for some time"
    assert (task.failures, task.losses) == (0, 0)


def test_a_failure_in_between_begins_anew() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    task = driver.submit(retry_delay_ms=0, retries=9).tasks[0]
    for _ in range(3):
        assert driver.return_task(task) == [task]
        assert driver.fail(task) == [task]


def test_a_withdrawn_lease_can_go_to_others_at_once() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    task = driver.submit().tasks[0]
    for _ in range(5):
        ref = task.ref
        assert driver.scheduler.withdraw_lease("anna", ref, driver.now_us)
        assert driver.turn() == [task]
        assert not driver.scheduler.withdraw_lease("anna", ref, driver.now_us)
    assert driver.take_events().count("returned") == 5
    assert driver.revoked == []
