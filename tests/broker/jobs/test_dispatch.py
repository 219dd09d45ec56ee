"""Which worker gets which task: order, fairness, capacity, and no second try while another worker can; timers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.jobs.driver import LEASE_S, SchedulerDriver, holders

from godwit.broker.jobs import model
from godwit.broker.jobs.dispatch import JobTimers
from godwit.limits import MAX_HAD


def test_the_highest_priority_comes_first_then_age() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=1)
    first = driver.submit()
    jobs = [driver.submit(priority=priority) for priority in (0, 5, -5, 5)]
    order = []
    leased = driver.finish(first.tasks[0])
    while leased:
        order.append(leased[0].job)
        leased = driver.finish(leased[0])
    assert order == [jobs[1], jobs[3], jobs[0], jobs[2]]


def test_a_controller_with_many_jobs_does_not_keep_others_waiting() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=1)
    leased = [driver.submit(by="many").tasks[0]]
    for _ in range(20):
        driver.submit(by="many")
    driver.submit(by="few")
    driver.submit(by="few")
    order = []
    for _ in range(6):
        leased = driver.finish(leased[0])
        order.append(leased[0].job.controller)
    assert order == ["many", "few", "many", "few", "many", "many"]


def test_a_job_with_many_tasks_counts_as_many() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=1)
    driver.volunteer("bert", capacity=1)
    driver.submit(by="busy", workers=2)
    large = driver.submit(by="large", workers=2)
    small = driver.submit(by="small", workers=1)
    assert large.tag > small.tag, "the later one is first, because it asks for less"


def test_kinds_take_turns_and_the_higher_priority_comes_first() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", ["cut", "paint"], capacity=1)
    leased = [driver.submit("cut").tasks[0]]
    for _ in range(4):
        driver.submit("cut")
    driver.submit("paint")
    driver.submit("paint")
    driver.submit("paint", priority=1)
    order = []
    while leased := driver.finish(leased[0]):
        order.append(leased[0].job.kind)
    assert order == ["paint", "cut", "paint", "cut", "paint", "cut", "cut"]


def test_the_worker_with_the_lowest_load_comes_first_then_the_one_that_waited_longest() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=1)
    driver.volunteer("bert", capacity=3)
    driver.volunteer("cleo", capacity=3)
    order = [driver.submit().tasks[0].worker for _ in range(7)]
    assert order == ["anna", "bert", "cleo", "bert", "cleo", "bert", "cleo"]
    assert holders(driver.submit()) == [], "all are busy"


def test_a_worker_with_a_huge_capacity_leaves_tasks_for_others() -> None:
    driver = SchedulerDriver()
    driver.volunteer("hole", capacity=4096)
    for number in range(10):
        driver.volunteer(f"worker {number}", capacity=8)
    for _ in range(200):
        driver.submit()
    assert [len(worker.leases) for worker in driver.scheduler.workers.values()] == [120] + [8] * 10


def test_a_worker_with_less_capacity_than_before_gets_nothing_more() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=3)
    jobs = [driver.submit() for _ in range(2)]
    driver.volunteer("anna", capacity=1)
    waiting = driver.submit()
    driver.finish(jobs[0].tasks[0])
    assert holders(waiting) == []
    driver.finish(jobs[1].tasks[0])
    assert holders(waiting) == ["anna"]


def test_the_tasks_of_a_job_go_to_different_workers() -> None:
    driver = SchedulerDriver()
    for name in ("anna", "bert", "cleo"):
        driver.volunteer(name, capacity=8)
    assert sorted(holders(driver.submit(workers=0))) == ["anna", "bert", "cleo"]


def test_no_worker_gets_a_job_twice_while_another_is_only_busy() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    driver.volunteer("bert")
    busy = driver.submit()
    other = "bert" if holders(busy) == ["anna"] else "anna"
    job = driver.submit(retry_delay_ms=0)
    assert holders(job) == [other]
    assert driver.fail(job.tasks[0]) == [], f"{other} is free, but tried it"
    leased = driver.finish(busy.tasks[0])
    assert [task.worker for task in leased] == [busy.tasks[0].worker]
    assert leased == [job.tasks[0]]


def test_a_worker_gets_a_job_again_when_the_last_other_worker_leaves() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    job = driver.submit(retry_delay_ms=0, retries=9)
    driver.volunteer("bert")
    busy = driver.submit()
    assert (holders(job), holders(busy)) == (["anna"], ["bert"])
    assert driver.fail(job.tasks[0]) == []
    driver.scheduler.disconnect("bert", driver.now_us)
    assert driver.turn() == [job.tasks[0]]
    assert (job.tasks[0].worker, job.tasks[0].fence) == ("anna", 2)


def test_a_worker_gets_a_job_again_when_there_is_no_other_worker() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    job = driver.submit(retry_delay_ms=0, retries=9)
    assert driver.fail(job.tasks[0]) == [job.tasks[0]]
    assert job.tasks[0].worker == "anna"


def test_a_job_without_an_eligible_free_worker_does_not_block_others() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    driver.volunteer("bert")
    jobs = [driver.submit(retry_delay_ms=0, retries=9, priority=1) for _ in range(2)]
    failed = jobs[0] if holders(jobs[0]) == ["anna"] else jobs[1]
    driver.fail(failed.tasks[0])
    assert holders(driver.submit()) == ["anna"], "a later one with less priority"


@pytest.mark.parametrize("shared_workers", [1, 8], ids=["groups of their own", "shared groups"])
def test_a_worker_that_fails_everything_is_passed_over(shared_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MAX_SHARED_WORKERS", shared_workers)
    driver = SchedulerDriver()
    driver.volunteer("hole", capacity=50)
    jobs = [driver.submit(retry_delay_ms=0, retries=9) for _ in range(50)]
    driver.volunteer("anna")
    for job in jobs:
        driver.fail(job.tasks[0])
    order = []
    for _ in jobs:
        (job,) = (job for job in jobs if "anna" in holders(job))
        order.append(job)
        assert not [job for job in jobs if "hole" in holders(job)]
        driver.finish(job.tasks[0])
    assert order == jobs
    assert all(job.state == "done" for job in jobs)


@pytest.mark.parametrize("shared_workers", [1, 2, 8])
def test_a_wide_job_reaches_all_workers_as_they_become_free(
    shared_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "MAX_SHARED_WORKERS", shared_workers)
    driver = SchedulerDriver()
    names = [f"worker {number}" for number in range(12)]
    for name in names:
        driver.volunteer(name)
    busy = [driver.submit() for _ in names]
    wide = driver.submit(workers=0, retry_delay_ms=0, retries=9)
    assert wide.agreed == 12
    tried = []
    for job in busy:
        driver.finish(job.tasks[0])
        tried.append(job.tasks[0].worker)
        assert sorted(holders(wide)) == sorted(tried)
    again = wide.tasks[3]
    assert driver.fail(again) == [again], "all have tried it"
    driver.volunteer("late")
    driver.submit()
    worker = again.worker
    assert driver.fail(again) == [], "late has not tried it, and is busy"
    driver.scheduler.disconnect("late", driver.now_us)
    assert driver.turn() == [again]
    assert again.worker == worker, "the only one that is free"


def test_many_kinds_of_one_worker_know_its_capacity() -> None:
    driver = SchedulerDriver()
    kinds = [f"kind {number}" for number in range(8)]
    driver.volunteer("anna", kinds, capacity=3)
    jobs = [driver.submit(kind, is_turn=False) for kind in kinds]
    leased = driver.turn()
    assert [task.job for task in leased] == jobs[:3]
    leased = driver.finish(leased[1])
    assert [task.job for task in leased] == [jobs[3]]


def test_the_fields_of_a_lease() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", instance=b"run 7")
    blocking = driver.submit()
    job = driver.submit(time_limit_ms=1000)
    driver.wait(2)
    driver.take_events()
    (task,) = driver.finish(blocking.tasks[0])
    assert (task.job, task.worker, task.instance, task.fence, task.since_us) == (
        job,
        "anna",
        b"run 7",
        1,
        driver.now_us,
    )
    event = next(event for event in driver.events if event.event == "leased")
    assert (event.job, event.task, event.worker, event.fence) == (job.number, 0, "anna", 1)
    assert event.waited_us == 2_000_000


def test_unused_queues_are_deleted() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", ["cut"])
    job = driver.submit("cut")
    unwanted = driver.submit("paint")
    queues = driver.scheduler._dispatcher.queues
    assert set(queues) == {"cut", "paint"}
    driver.scheduler.cancel(unwanted, "", driver.now_us)
    driver.finish(job.tasks[0])
    driver.scheduler.leave("anna", driver.now_us)
    driver.turn()
    assert not queues


@pytest.mark.parametrize("shared_workers", [0, 8], ids=["groups of their own", "shared groups"])
def test_a_task_does_not_wait_for_ever_for_a_busy_worker(shared_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MAX_SHARED_WORKERS", shared_workers)
    driver = SchedulerDriver()
    driver.volunteer("busy")
    driver.submit()
    driver.volunteer("anna", capacity=10)
    jobs = [driver.submit(retry_delay_ms=0, retries=9) for _ in range(3)]
    for job in jobs:
        assert driver.fail(job.tasks[0]) == []
        driver.wait(1, reporting=["anna", "busy"])
    leased = driver.wait(LEASE_S - 3.001, reporting=["anna", "busy"])
    assert leased == []
    for job in jobs:
        assert driver.wait(0.001, reporting=["anna", "busy"]) == [job.tasks[0]]
        assert driver.wait(0.999, reporting=["anna", "busy"]) == []
        assert holders(job) == ["anna"]


def test_a_wide_job_that_stood_in_a_queue_for_long_still_goes_to_different_workers() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=3)
    driver.volunteer("bert", capacity=1)
    busy = [driver.submit() for _ in range(4)]
    wide = driver.submit(workers=2)
    driver.wait(10 * LEASE_S, reporting=["anna", "bert"])
    for task in [job.tasks[0] for job in busy if holders(job) == ["anna"]]:
        driver.finish(task)
    assert holders(wide) == ["anna"], "bert is busy; the other task waits from now on"
    assert len(driver.wait(LEASE_S, reporting=["anna", "bert"])) == 1
    assert holders(wide) == ["anna", "anna"]


def test_a_worker_that_reconnects_has_still_tried_the_job() -> None:
    driver = SchedulerDriver()
    driver.volunteer("busy")
    driver.submit()
    driver.volunteer("anna")
    job = driver.submit(retry_delay_ms=0, retries=9)
    driver.fail(job.tasks[0])
    driver.scheduler.disconnect("anna", driver.now_us)
    driver.turn()
    driver.volunteer("anna")
    assert holders(job) == [], "a reconnected worker has the same name"
    driver.volunteer("cleo")
    assert holders(job) == ["cleo"]


def test_a_task_remembers_its_last_workers() -> None:
    driver = SchedulerDriver()
    driver.volunteer("worker 0")
    job = driver.submit()
    for number in range(3 * MAX_HAD):
        driver.scheduler.leave(f"worker {number}", driver.now_us)
        driver.turn()
        driver.volunteer(f"worker {number + 1}")
        driver.wait(61, reporting=[f"worker {number + 1}"])
    task = job.tasks[0]
    assert task.worker == f"worker {3 * MAX_HAD}"
    assert task.previous_workers == tuple(f"worker {number}" for number in range(2 * MAX_HAD, 3 * MAX_HAD))
    assert job.tried_workers == {*task.previous_workers, task.worker}


# -- timers -----------------------------------------------------------------------------------------------------------


def test_they_come_in_order_and_once() -> None:
    timers: JobTimers[str] = JobTimers()
    for owner, at_us in (("b", 20), ("a", 10), ("c", 20)):
        timers.set(owner, at_us)
    assert timers.next_us() == 10
    assert timers.pop_due(9) is None
    assert [timers.pop_due(20) for _ in range(4)] == ["a", "b", "c", None]
    assert timers.next_us() is None


def test_the_last_time_that_was_set_counts() -> None:
    timers: JobTimers[str] = JobTimers()
    timers.set("a", 10)
    timers.set("a", 30)
    timers.set("b", 20)
    timers.stop("b")
    timers.stop("unknown")
    assert timers.next_us() == 30
    assert timers.pop_due(29) is None
    timers.set("a", 10)
    assert (timers.pop_due(29), timers.pop_due(99)) == ("a", None)


def test_stopped_timers_are_not_kept() -> None:
    timers: JobTimers[int] = JobTimers()
    for owner in range(10_000):
        timers.set(owner, 10**15)
        timers.stop(owner)
        assert len(timers._heap) <= 200
    for owner in range(10_000):
        timers.set(owner, 10**15)
    for owner in range(10_000):
        timers.stop(owner)
    assert len(timers._heap) <= 200
    assert len(timers) == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9) | st.none())))
def test_they_are_like_a_table_of_times(steps: list[tuple[int, int | None]]) -> None:
    timers: JobTimers[int] = JobTimers()
    table: dict[int, int] = {}
    for owner, at_us in steps:
        if at_us is None:
            timers.stop(owner)
            table.pop(owner, None)
        else:
            timers.set(owner, at_us)
            table[owner] = at_us
        assert timers.next_us() == min(table.values(), default=None)
        assert len(timers) == len(table)
    for now_us in range(10):
        due = set()
        while (owner_or_none := timers.pop_due(now_us)) is not None:
            due.add(owner_or_none)
        assert due == {owner for owner, at_us in table.items() if at_us == now_us}


def test_owners_of_timers_are_known() -> None:
    timers: JobTimers[str] = JobTimers()
    timers.set("a", 5)
    assert "a" in timers
    assert timers.pop_due(5) == "a"
    assert "a" not in timers
