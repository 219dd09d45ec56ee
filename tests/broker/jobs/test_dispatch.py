"""Who gets what: order, fairness, capacity, and the rule that nobody gets a job twice while another can take it."""

from __future__ import annotations

import pytest
from tests.broker.jobs.benches import LEASE_S, Bench, holders

from godwit.broker.jobs import model
from godwit.limits import MAX_HAD


def test_the_highest_priority_comes_first_then_age() -> None:
    bench = Bench()
    bench.volunteer("anna", capacity=1)
    first = bench.submit()
    jobs = [bench.submit(priority=priority) for priority in (0, 5, -5, 5)]
    order = []
    leased = bench.finish(first.tasks[0])
    while leased:
        order.append(leased[0].job)
        leased = bench.finish(leased[0])
    assert order == [jobs[1], jobs[3], jobs[0], jobs[2]]


def test_a_controller_with_many_jobs_does_not_keep_others_waiting() -> None:
    bench = Bench()
    bench.volunteer("anna", capacity=1)
    leased = [bench.submit(by="many").tasks[0]]
    for _ in range(20):
        bench.submit(by="many")
    bench.submit(by="few")
    bench.submit(by="few")
    order = []
    for _ in range(6):
        leased = bench.finish(leased[0])
        order.append(leased[0].job.controller)
    assert order == ["many", "few", "many", "few", "many", "many"]


def test_a_job_with_many_tasks_counts_as_many() -> None:
    bench = Bench()
    bench.volunteer("anna", capacity=1)
    bench.volunteer("bert", capacity=1)
    bench.submit(by="busy", workers=2)
    large = bench.submit(by="large", workers=2)
    small = bench.submit(by="small", workers=1)
    assert large.tag > small.tag, "the later one is first, because it asks for less"


def test_kinds_take_turns_and_the_higher_priority_comes_first() -> None:
    bench = Bench()
    bench.volunteer("anna", ["cut", "paint"], capacity=1)
    leased = [bench.submit("cut").tasks[0]]
    for _ in range(4):
        bench.submit("cut")
    bench.submit("paint")
    bench.submit("paint")
    bench.submit("paint", priority=1)
    order = []
    while leased := bench.finish(leased[0]):
        order.append(leased[0].job.kind)
    assert order == ["paint", "cut", "paint", "cut", "paint", "cut", "cut"]


def test_who_has_least_for_its_capacity_comes_first_then_who_waited_longest() -> None:
    bench = Bench()
    bench.volunteer("anna", capacity=1)
    bench.volunteer("bert", capacity=3)
    bench.volunteer("cleo", capacity=3)
    order = [bench.submit().tasks[0].worker for _ in range(7)]
    assert order == ["anna", "bert", "cleo", "bert", "cleo", "bert", "cleo"]
    assert holders(bench.submit()) == [], "all are busy"


def test_who_claims_to_do_anything_leaves_others_their_work() -> None:
    bench = Bench()
    bench.volunteer("hole", capacity=4096)
    for number in range(10):
        bench.volunteer(f"worker {number}", capacity=8)
    for _ in range(200):
        bench.submit()
    assert [len(worker.leases) for worker in bench.board.workers.values()] == [120] + [8] * 10


def test_a_worker_with_less_capacity_than_before_gets_nothing_more() -> None:
    bench = Bench()
    bench.volunteer("anna", capacity=3)
    jobs = [bench.submit() for _ in range(2)]
    bench.volunteer("anna", capacity=1)
    waiting = bench.submit()
    bench.finish(jobs[0].tasks[0])
    assert holders(waiting) == []
    bench.finish(jobs[1].tasks[0])
    assert holders(waiting) == ["anna"]


def test_the_tasks_of_a_job_go_to_different_workers() -> None:
    bench = Bench()
    for name in ("anna", "bert", "cleo"):
        bench.volunteer(name, capacity=8)
    assert sorted(holders(bench.submit(workers=0))) == ["anna", "bert", "cleo"]


def test_nobody_gets_a_job_twice_while_another_is_only_busy() -> None:
    bench = Bench()
    bench.volunteer("anna")
    bench.volunteer("bert")
    busy = bench.submit()
    other = "bert" if holders(busy) == ["anna"] else "anna"
    job = bench.submit(retry_delay_ms=0)
    assert holders(job) == [other]
    assert bench.fail(job.tasks[0]) == [], f"{other} is free, but had it"
    leased = bench.finish(busy.tasks[0])
    assert [task.worker for task in leased] == [busy.tasks[0].worker]
    assert leased == [job.tasks[0]]


def test_who_had_it_gets_it_again_when_the_last_other_goes() -> None:
    bench = Bench()
    bench.volunteer("anna")
    job = bench.submit(retry_delay_ms=0, retries=9)
    bench.volunteer("bert")
    busy = bench.submit()
    assert (holders(job), holders(busy)) == (["anna"], ["bert"])
    assert bench.fail(job.tasks[0]) == []
    bench.board.away("bert", bench.now_us)
    assert bench.turn() == [job.tasks[0]]
    assert (job.tasks[0].worker, job.tasks[0].fence) == ("anna", 2)


def test_who_had_it_gets_it_again_when_there_is_no_other() -> None:
    bench = Bench()
    bench.volunteer("anna")
    job = bench.submit(retry_delay_ms=0, retries=9)
    assert bench.fail(job.tasks[0]) == [job.tasks[0]]
    assert job.tasks[0].worker == "anna"


def test_work_behind_a_job_that_nobody_free_may_take_goes_on() -> None:
    bench = Bench()
    bench.volunteer("anna")
    bench.volunteer("bert")
    jobs = [bench.submit(retry_delay_ms=0, retries=9, priority=1) for _ in range(2)]
    failed = jobs[0] if holders(jobs[0]) == ["anna"] else jobs[1]
    bench.fail(failed.tasks[0])
    assert holders(bench.submit()) == ["anna"], "a later one with less priority"


@pytest.mark.parametrize("shared_had", [1, 8], ids=["lines of their own", "shared lines"])
def test_a_worker_that_fails_everything_is_passed_over(shared_had: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "SHARED_HAD", shared_had)
    bench = Bench()
    bench.volunteer("hole", capacity=50)
    jobs = [bench.submit(retry_delay_ms=0, retries=9) for _ in range(50)]
    bench.volunteer("anna")
    for job in jobs:
        bench.fail(job.tasks[0])
    order = []
    for _ in jobs:
        (job,) = (job for job in jobs if "anna" in holders(job))
        order.append(job)
        assert not [job for job in jobs if "hole" in holders(job)]
        bench.finish(job.tasks[0])
    assert order == jobs
    assert all(job.state == "done" for job in jobs)


@pytest.mark.parametrize("shared_had", [1, 2, 8])
def test_a_wide_job_reaches_everybody_as_they_become_free(shared_had: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "SHARED_HAD", shared_had)
    bench = Bench()
    names = [f"worker {number}" for number in range(12)]
    for name in names:
        bench.volunteer(name)
    busy = [bench.submit() for _ in names]
    wide = bench.submit(workers=0, retry_delay_ms=0, retries=9)
    assert wide.agreed == 12
    had = []
    for job in busy:
        bench.finish(job.tasks[0])
        had.append(job.tasks[0].worker)
        assert sorted(holders(wide)) == sorted(had)
    again = wide.tasks[3]
    assert bench.fail(again) == [again], "all have had it"
    bench.volunteer("late")
    bench.submit()
    worker = again.worker
    assert bench.fail(again) == [], "late has not had it, and is busy"
    bench.board.away("late", bench.now_us)
    assert bench.turn() == [again]
    assert again.worker == worker, "the only one that is free"


def test_many_kinds_of_one_worker_know_its_capacity() -> None:
    bench = Bench()
    kinds = [f"kind {number}" for number in range(8)]
    bench.volunteer("anna", kinds, capacity=3)
    jobs = [bench.submit(kind, is_turn=False) for kind in kinds]
    leased = bench.turn()
    assert [task.job for task in leased] == jobs[:3]
    leased = bench.finish(leased[1])
    assert [task.job for task in leased] == [jobs[3]]


def test_what_a_lease_says() -> None:
    bench = Bench()
    bench.volunteer("anna", instance=b"run 7")
    blocking = bench.submit()
    job = bench.submit(time_limit_ms=1000)
    bench.wait(2)
    bench.told()
    (task,) = bench.finish(blocking.tasks[0])
    assert (task.job, task.worker, task.instance, task.fence, task.since_us) == (job, "anna", b"run 7", 1, bench.now_us)
    event = next(happening for happening in bench.events if happening.event == "leased")
    assert (event.job, event.task, event.worker, event.fence) == (job.number, 0, "anna", 1)
    assert event.waited_us == 2_000_000


def test_queues_that_nobody_needs_are_forgotten() -> None:
    bench = Bench()
    bench.volunteer("anna", ["cut"])
    job = bench.submit("cut")
    unwanted = bench.submit("paint")
    queues = bench.board._dispatch.queues
    assert set(queues) == {"cut", "paint"}
    bench.board.cancel(unwanted, "", bench.now_us)
    bench.finish(job.tasks[0])
    bench.board.leave("anna", bench.now_us)
    bench.turn()
    assert not queues


@pytest.mark.parametrize("shared_had", [0, 8], ids=["lines of their own", "shared lines"])
def test_a_task_does_not_wait_for_ever_for_somebody_busy(shared_had: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "SHARED_HAD", shared_had)
    bench = Bench()
    bench.volunteer("busy")
    bench.submit()
    bench.volunteer("anna", capacity=10)
    jobs = [bench.submit(retry_delay_ms=0, retries=9) for _ in range(3)]
    for job in jobs:
        assert bench.fail(job.tasks[0]) == []
        bench.wait(1, heard=["anna", "busy"])
    leased = bench.wait(LEASE_S - 3.001, heard=["anna", "busy"])
    assert leased == []
    for job in jobs:
        assert bench.wait(0.001, heard=["anna", "busy"]) == [job.tasks[0]]
        assert bench.wait(0.999, heard=["anna", "busy"]) == []
        assert holders(job) == ["anna"]


def test_a_wide_job_that_stood_in_a_queue_for_long_still_goes_to_different_workers() -> None:
    bench = Bench()
    bench.volunteer("anna", capacity=3)
    bench.volunteer("bert", capacity=1)
    busy = [bench.submit() for _ in range(4)]
    wide = bench.submit(workers=2)
    bench.wait(10 * LEASE_S, heard=["anna", "bert"])
    for task in [job.tasks[0] for job in busy if holders(job) == ["anna"]]:
        bench.finish(task)
    assert holders(wide) == ["anna"], "bert is busy; the other task waits from now on"
    assert len(bench.wait(LEASE_S, heard=["anna", "bert"])) == 1
    assert holders(wide) == ["anna", "anna"]


def test_a_job_waits_for_those_who_have_yet_to_come_after_they_were_gone() -> None:
    bench = Bench()
    bench.volunteer("busy")
    bench.submit()
    bench.volunteer("anna")
    job = bench.submit(retry_delay_ms=0, retries=9)
    bench.fail(job.tasks[0])
    bench.board.away("anna", bench.now_us)
    bench.turn()
    bench.volunteer("anna")
    assert holders(job) == [], "she is another one, but under the same name"
    bench.volunteer("cleo")
    assert holders(job) == ["cleo"]


def test_a_task_remembers_the_last_who_had_it() -> None:
    bench = Bench()
    bench.volunteer("worker 0")
    job = bench.submit()
    for number in range(3 * MAX_HAD):
        bench.board.leave(f"worker {number}", bench.now_us)
        bench.turn()
        bench.volunteer(f"worker {number + 1}")
        bench.wait(61, heard=[f"worker {number + 1}"])
    task = job.tasks[0]
    assert task.worker == f"worker {3 * MAX_HAD}"
    assert task.had == tuple(f"worker {number}" for number in range(2 * MAX_HAD, 3 * MAX_HAD))
    assert job.had == {*task.had, task.worker}
