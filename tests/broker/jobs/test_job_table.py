"""Room for jobs: when ended jobs are deleted and new ones refused; and the rows of jobs and tasks in the log."""

from __future__ import annotations

import gc
import sys
from typing import Any

import msgspec
import pytest
from tests.broker.jobs.driver import KEEP_S, SchedulerDriver

from godwit.broker.jobs import job_table
from godwit.broker.jobs.job_table import DirtyJobs, job_from_row, job_row, task_row
from godwit.broker.jobs.model import Job, JobTask
from godwit.broker.jobs.queue import JobQueue
from godwit.broker.ports import RequestFailure
from godwit.wire import changes as ch
from godwit.wire.control_base import Code
from godwit.wire.jobs import JobSpec


def ended(driver: SchedulerDriver, count: int, payload: bytes = b"", result: bytes = b"") -> list[Job]:
    jobs = []
    for _ in range(count):
        job = driver.submit(payload=payload)
        driver.finish(job.tasks[0], result)
        jobs.append(job)
        driver.wait(0.001)
    return jobs


def test_ended_jobs_are_kept_for_a_while_then_deleted() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    first = driver.submit(key="mine")
    driver.finish(first.tasks[0])
    driver.wait(10, reporting=["anna"])
    second = driver.submit()
    driver.finish(second.tasks[0])
    driver.wait(KEEP_S - 10.001, reporting=["anna"])
    assert set(driver.scheduler.jobs) == {1, 2}
    assert driver.submit(key="mine") is first, "a key is known for as long as its job"
    driver.wait(0.002, reporting=["anna"])
    assert set(driver.scheduler.jobs) == {2}
    assert driver.deleted == [1]
    assert driver.submit(key="mine").number == 3, "no number is used twice"
    driver.wait(10, reporting=["anna"])
    assert driver.deleted == [1, 2]


def test_jobs_that_have_not_ended_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table, "MAX_JOBS", 6)
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=9)
    ended(driver, 5)
    waiting = [driver.submit("paint") for _ in range(2)]
    job = driver.submit()
    for kind in ("resize", "paint", "unknown"):
        with pytest.raises(RequestFailure, match="submit it again when some have ended") as refused:
            driver.submit(kind)
        assert refused.value.code == Code.TOO_MANY
    assert "unknown" not in driver.scheduler._dispatcher.queues
    driver.finish(job.tasks[0])
    driver.submit()
    assert (driver.scheduler.unended, driver.scheduler.unsettled) == (3, len(waiting))


def test_the_oldest_ended_jobs_make_room_for_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table, "MAX_TASKS", 9)
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=9)
    driver.volunteer("bert", capacity=9)
    driver.volunteer("cleo", capacity=9)
    jobs = ended(driver, 7)
    driver.submit(workers=3)
    assert driver.deleted == [jobs[0].number]
    driver.submit(workers=3, by="dora")
    assert driver.deleted == [job.number for job in jobs[:4]]
    with pytest.raises(RequestFailure, match="half of what those of the others leave"):
        driver.submit(by="dora")
    with pytest.raises(RequestFailure, match="half of what those of the others leave"):
        driver.submit(workers=3, by="emil")
    assert driver.deleted == [job.number for job in jobs[:4]], "no job is deleted for one that does not fit after all"


def test_a_waiting_job_settles_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table, "MAX_TASKS", 6)
    driver = SchedulerDriver()
    driver.volunteer("anna", ["other"])
    other = driver.submit("other", by="dora")
    job = driver.submit(workers=3)
    for name in ("bert", "cleo", "dora"):
        driver.volunteer(name)
    driver.wait(10)
    assert (job.state, job.agreed) == ("waiting", None)
    driver.finish(other.tasks[0])
    driver.wait(1)
    assert (job.state, job.agreed, job.leased) == ("running", 3, 3)


def test_ended_jobs_make_room_for_payloads_and_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table, "MAX_JOBS_BYTES", 200)
    monkeypatch.setattr(job_table, "MAX_SUBMITTED_BYTES", 150)
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=9)
    ended(driver, 2, b"p" * 20, b"r" * 50)
    job = driver.submit(payload=b"p" * 40)
    assert driver.deleted == []
    driver.finish(job.tasks[0], b"r" * 60)
    assert (driver.deleted, job.state) == ([1], "done")
    with pytest.raises(RequestFailure):
        driver.submit(payload=b"p" * 76)
    assert driver.deleted == [1]
    driver.submit(payload=b"p" * 75)
    assert driver.deleted == [1, 2]


def test_the_payload_of_an_ended_job_takes_no_room_once_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table, "MAX_JOBS_BYTES", 120)
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=9)
    for _ in range(5):
        job = driver.submit(payload=b"p" * 50)
        job.is_stored = True
        driver.finish(job.tasks[0], b"r" * 10)
        assert (job.payload, job.spec.size) == (b"", 50)
    driver.submit(payload=b"p" * 50)
    driver.submit()
    assert driver.deleted == []


def test_the_payload_of_a_job_that_can_be_retried_remains_until_others_need_the_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_table, "MAX_JOBS_BYTES", 120)
    driver = SchedulerDriver()
    job = driver.submit(payload=b"p" * 50)
    job.is_stored = True
    driver.scheduler.cancel(job, "", driver.now_us)
    assert (job.state, job.payload) == ("cancelled", b"p" * 50)
    driver.submit(payload=b"p" * 60)
    assert driver.deleted == []
    driver.submit(payload=b"p" * 20)
    assert driver.deleted == [1]


def test_a_removed_job_does_not_wait_for_the_garbage_collector() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    result = bytes(1000)
    gc.disable()
    try:
        driver.finish(driver.submit().tasks[0], result)
        known = sys.getrefcount(result)
        driver.wait(KEEP_S, reporting=["anna"])
        assert driver.deleted == [1]
        assert sys.getrefcount(result) == known - 1
    finally:
        gc.enable()


def test_a_result_without_room_fails_its_task_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table, "MAX_JOBS_BYTES", 141)
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=9)
    job = driver.submit(payload=b"p" * 60, retries=5)
    driver.finish(job.tasks[0], b"r" * 41)
    assert (job.state, job.tasks[0].state, job.tasks[0].error) == ("failed", "failed", "no room for its result")
    assert job.result_bytes == 0


def test_errors_take_room_too_and_all_of_it_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table, "MAX_SUBMITTED_BYTES", 200)
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=9)
    job = driver.submit(payload=b"p" * 10, retries=5, retry_delay_ms=0)
    driver.fail(job.tasks[0], "e" * 60)
    driver.fail(job.tasks[0], "e" * 50)
    with pytest.raises(RequestFailure):
        driver.submit(payload=b"p" * 41)
    driver.submit(payload=b"p" * 40)
    for known in list(driver.scheduler.jobs.values()):
        driver.scheduler.cancel(known, "", driver.now_us)
    waiting = driver.submit("paint")
    driver.scheduler.discard(waiting)
    driver.wait(KEEP_S)
    table = driver.scheduler._table
    assert (table.task_count, table.total_bytes, table.unended, table.unsettled, table.keys) == (0, 0, 0, 0, {})
    assert not table._usage


def fill(driver: SchedulerDriver, by: str, **options: Any) -> int:
    """Submit as many jobs as a controller may; return their number."""
    count = 0
    while True:
        try:
            driver.submit("unserved", by=by, **options)
        except RequestFailure as refused:
            if refused.code != Code.TOO_MANY:
                raise
            return count
        count += 1


@pytest.mark.parametrize(
    ("limit", "most", "payload"),
    [("MAX_JOBS", 64, b""), ("MAX_TASKS", 64, b""), ("MAX_SUBMITTED_BYTES", 640, bytes(10))],
)
def test_no_controller_takes_all_the_room(
    limit: str, most: int, payload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_table, limit, most)
    driver = SchedulerDriver()
    assert [fill(driver, by, payload=payload) for by in ("greedy", "next", "third")] == [32, 16, 8]
    driver.submit(by="late", payload=payload)
    jobs = [job for job in driver.scheduler.jobs.values() if job.controller == "greedy"]
    for job in jobs:
        driver.scheduler.cancel(job, "", driver.now_us)
    assert fill(driver, "late", payload=payload) > 8, "ended jobs count for no controller"


def test_submissions_leave_room_for_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table, "MAX_JOBS_BYTES", 4000)
    monkeypatch.setattr(job_table, "MAX_SUBMITTED_BYTES", 3000)
    driver = SchedulerDriver()
    driver.volunteer("anna")
    mine = driver.submit(by="mine")
    for number in range(20):
        fill(driver, f"greedy {number}", payload=bytes(10))
    assert driver.scheduler._table.total_bytes > 2900
    driver.finish(mine.tasks[0], bytes(500))
    assert (mine.state, mine.result_bytes) == ("done", 500)


def test_results_of_one_controller_leave_room_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table, "MAX_JOBS_BYTES", 1000)
    driver = SchedulerDriver()
    for number in range(12):
        driver.volunteer(f"worker {number}", capacity=2)
    wide = driver.submit(by="greedy", workers=0)
    mine = driver.submit(by="mine")
    for task in wide.tasks[:-1]:
        driver.finish(task, bytes(100))
    assert (wide.finished, wide.failed, wide.state) == (5, 6, "running")
    driver.finish(mine.tasks[0], bytes(150))
    assert mine.state == "done"


def test_many_ended_jobs_may_be_discarded() -> None:
    driver = SchedulerDriver()
    jobs = [driver.submit(is_turn=False) for _ in range(5)]
    for job in jobs:
        driver.scheduler.cancel(job, "", driver.now_us)
    for job in (jobs[3], jobs[0], jobs[4]):
        driver.scheduler.discard(job)
    assert list(driver.scheduler._table._ended) == [jobs[1], jobs[2]]
    driver.wait(KEEP_S)
    assert driver.deleted == [2, 3]


# -- rows -------------------------------------------------------------------------------------------------------------


def job(number: int, tasks: int = 1) -> Job:
    spec = JobSpec(
        key=f"k{number}", of_kind="resize", size=7, workers=2, priority=5, delay_ms=1, deadline_ms=2, retries=4,
        retry_delay_ms=1000, time_limit_ms=60_000,
    )  # fmt: skip
    made = Job(number, "ann", spec, JobQueue("resize"), b"payload", 100)
    made.state = "running"
    made.agreed = tasks
    made.tasks = [JobTask(made, place, 150) for place in range(tasks)]
    return made


def row_of(one: Job) -> ch.JobRow:
    """Return the only row that is written for a job."""
    dirty = DirtyJobs()
    dirty.add([one], one.tasks, [], 0)
    (row,) = dirty.changes()
    assert isinstance(row, ch.JobRow)
    return row


def test_a_new_job_is_one_row_with_its_payload_and_its_task() -> None:
    dirty = DirtyJobs()
    one = job(7)
    dirty.add([one], one.tasks, [], 8)
    kept = ch.JobRow(
        7, "ann", "k7", "resize", 2, 5, 100, 1100, 2100, 4, 1000, 60_000, "running", 1, None, "", 7, b"payload"
    )
    assert dirty.changes() == [ch.NextJobRow(8), kept]
    one.tasks[0].state, one.tasks[0].fence = "leased", 1
    leased = ch.TaskRow(7, 0, "leased", "", b"", 1, 0, 0, 150, 150)
    assert row_of(one) == msgspec.structs.replace(kept, task=leased)


def test_a_task_that_ends_without_a_lease_is_in_the_row_of_its_job() -> None:
    one = job(7)
    one.state = one.tasks[0].state = "cancelled"
    row = row_of(one)
    assert row.task is not None
    assert (row.state, row.task.state) == ("cancelled", "cancelled")


def test_a_long_payload_is_written_once() -> None:
    dirty = DirtyJobs()
    one = job(7)
    one.payload = bytes(job_table.SHORT_PAYLOAD_BYTES + 1)
    dirty.add([one], one.tasks, [], 0)
    row, payload = dirty.changes()
    assert isinstance(row, ch.JobRow)
    assert row.payload is None
    assert payload == ch.JobPayloadRow(7, one.payload)
    one.is_stored = True
    assert row_of(one) == row


def test_a_row_shows_the_present_state() -> None:
    dirty = DirtyJobs()
    one = job(7)
    dirty.add([], one.tasks, [], 0)
    task = one.tasks[0]
    task.state, task.worker, task.previous_workers, task.result = "finished", "bob", ("cid",), b"small"
    one.state, one.payload = "done", b""
    (row,) = dirty.changes()
    assert isinstance(row, ch.JobRow)
    kept = row.task
    assert kept is not None
    assert (kept.state, kept.worker, kept.previous_workers, kept.result) == ("finished", "bob", ("cid",), b"small")
    assert (row.state, row.payload, row.payload_bytes) == ("done", b"", 7)


def test_rows_of_one_type_are_adjacent_and_deletions_come_last() -> None:
    dirty = DirtyJobs()
    first, second, third = job(1, 2), job(2, 2), job(3)
    third.is_stored = True
    for one in (first, second, third):
        one.payload = bytes(job_table.SHORT_PAYLOAD_BYTES + 1)
    dirty.add([first, second, third], [*first.tasks, *second.tasks, *third.tasks], [9], 4)
    assert [type(change) for change in dirty.changes()] == [
        ch.NextJobRow, *[ch.JobRow] * 3, *[ch.JobPayloadRow] * 2, *[ch.TaskRow] * 4, ch.JobDeleted,
    ]  # fmt: skip


def test_a_deleted_job_has_no_other_rows() -> None:
    older, dirty = DirtyJobs(), DirtyJobs()
    one = job(7)
    older.add([one], one.tasks, [], 8)
    dirty.add([], [], [7], 9)
    dirty.put_back(older)
    assert dirty.changes() == [ch.NextJobRow(9), ch.JobDeleted(7)]  # the job number is not used again


def test_rows_put_back_are_written_once_with_the_highest_number() -> None:
    older, dirty = DirtyJobs(), DirtyJobs()
    one, two = job(7, 2), job(8)
    older.add([one], one.tasks[:1], [], 8)
    dirty.add([two, one], one.tasks[:1], [], 9)
    dirty.put_back(older)
    changes = dirty.changes()
    assert changes[0] == ch.NextJobRow(9)
    assert [change.job for change in changes if isinstance(change, ch.JobRow)] == [8, 7]
    assert len([change for change in changes if isinstance(change, ch.TaskRow)]) == 1


def test_a_forgotten_job_is_not_written() -> None:
    dirty = DirtyJobs()
    one = job(7, 3)
    dirty.add([one], one.tasks, [], 8)
    assert dirty
    dirty.forget(one)
    assert not dirty
    assert dirty.changes() == [ch.NextJobRow(8)]


def test_a_row_restores_all_options_of_a_job() -> None:
    for spec in (job(7).spec, JobSpec(key="k", of_kind="resize", size=7)):
        made = Job(7, "ann", spec, JobQueue("resize"), b"payload", 100)
        made.state = "running"
        made.agreed = 2
        made.tasks = [JobTask(made, number, made.begins_us) for number in range(2)]
        made.tasks[1].worker = "bob"
        again = job_from_row(job_row(made), b"payload", [task_row(made.tasks[1])], JobQueue("resize"))
        assert again.spec == spec
        assert job_row(again) == job_row(made)
        assert [task_row(task) for task in again.tasks] == [task_row(task) for task in made.tasks]
        assert (again.is_stored, again.tried_workers) == (True, {"bob"})


def test_a_job_that_is_done_keeps_the_length_of_its_payload() -> None:
    one = job(7)
    one.state, one.payload, one.tasks[0].state = "done", b"", "finished"
    row, payload, task = ch.job_parts(job_row(one))
    assert payload is not None
    assert task is not None
    again = job_from_row(row, payload.payload, [task], JobQueue("resize"))
    assert (again.payload, again.spec) == (b"", one.spec)
