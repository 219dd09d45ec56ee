"""How leases, tasks and jobs end: results, failures, back-off, time limits, losses, deadlines, cancelling."""

from __future__ import annotations

import pytest
from tests.broker.jobs.benches import LEASE_S, Bench, holders

from godwit.broker.jobs.ends import DEADLINE_PASSED
from godwit.limits import MAX_LOSSES, MAX_RETRY_DELAY_S


def test_a_job_is_done_when_all_its_tasks_have_results() -> None:
    bench = Bench()
    bench.volunteer("anna")
    bench.volunteer("bert")
    job = bench.submit(workers=2)
    bench.told()
    bench.wait(3)
    first, second = job.tasks
    bench.finish(first, b"one")
    assert (job.state, job.finished, first.state, first.result) == ("running", 1, "finished", b"one")
    bench.finish(second, b"three")
    assert (job.state, job.finished, job.ended_us, job.result_bytes) == ("done", 2, bench.now_us, 8)
    assert [event.event for event in bench.events] == ["finished", "finished", "done"]
    event = bench.events[0]
    assert (event.task, event.worker, event.fence, event.result_bytes, event.ran_us) == (
        0, first.worker, 1, 3, 3_000_000,
    )  # fmt: skip


def test_a_failure_is_tried_again_with_pauses_that_double() -> None:
    bench = Bench()
    bench.volunteer("anna")
    job = bench.submit(retries=3, retry_delay_ms=1000)
    task = job.tasks[0]
    for pause_s in (1, 2, 4):
        bench.fail(task, "no luck")
        assert (task.state, task.error) == ("waiting", "no luck")
        assert bench.wait(pause_s - 0.001, heard=["anna"]) == []
        assert bench.wait(0.001, heard=["anna"]) == [task]
    bench.told()
    bench.fail(task, "no luck at all")
    assert (task.state, task.failures, task.fence) == ("failed", 4, 4)
    assert (job.state, job.reason, job.failed) == ("failed", "its task failed", 1)
    assert [event.event for event in bench.events] == ["failed", "task_failed", "job_failed"]
    assert (bench.events[0].failures, bench.events[0].error) == (4, "no luck at all")


def test_a_pause_is_never_longer_than_its_limit() -> None:
    bench = Bench()
    bench.volunteer("anna")
    task = bench.submit(retries=1000, retry_delay_ms=200_000).tasks[0]
    bench.fail(task)
    bench.wait(200, heard=["anna"])
    for _ in range(100):
        bench.fail(task)
        assert task.begins_us == bench.now_us + int(MAX_RETRY_DELAY_S * 1e6)
        bench.wait(MAX_RETRY_DELAY_S, heard=["anna"])


def test_a_final_failure_is_not_tried_again() -> None:
    bench = Bench()
    bench.volunteer("anna")
    job = bench.submit(retries=3)
    bench.fail(job.tasks[0], "never", is_final=True)
    assert (job.state, job.tasks[0].state, job.tasks[0].failures) == ("failed", "failed", 1)


def test_without_retries_the_first_failure_is_the_last() -> None:
    bench = Bench()
    bench.volunteer("anna")
    job = bench.submit(retries=0)
    bench.fail(job.tasks[0])
    assert job.state == "failed"


def test_the_other_tasks_go_on_when_one_has_failed_for_good() -> None:
    bench = Bench()
    bench.volunteer("anna")
    bench.volunteer("bert")
    job = bench.submit(workers=2)
    bench.fail(job.tasks[0], is_final=True)
    assert (job.state, job.leased) == ("running", 1)
    bench.finish(job.tasks[1])
    assert (job.state, job.reason) == ("failed", "1 of 2 tasks failed")
    assert (job.finished, job.failed) == (1, 1)


def test_an_attempt_that_takes_too_long_has_failed() -> None:
    bench = Bench()
    bench.volunteer("anna")
    job = bench.submit(time_limit_ms=2500, retries=1, retry_delay_ms=0)
    task = job.tasks[0]
    bench.wait(2.499)
    assert task.fence == 1
    bench.wait(0.001)
    assert (task.failures, task.error, task.fence, task.state) == (1, "took longer than 2.5 s", 2, "leased")
    assert bench.revoked == [("anna", (1, 0, 1), "took longer than 2.5 s")]
    bench.wait(2.5)
    assert (job.state, task.state, task.failures) == ("failed", "failed", 2)


def test_a_time_limit_ends_with_its_lease() -> None:
    bench = Bench()
    bench.volunteer("anna")
    task = bench.submit(time_limit_ms=2500).tasks[0]
    bench.wait(2)
    assert bench.give_back(task) == [task]
    bench.wait(2)
    assert (task.fence, task.failures) == (2, 0)
    bench.finish(task)
    bench.wait(2)
    assert bench.board.jobs[1].state == "done"


def test_what_is_handed_back_counts_for_nothing() -> None:
    bench = Bench()
    bench.volunteer("anna")
    bench.volunteer("bert")
    task = bench.submit(retries=0).tasks[0]
    first = task.worker
    bench.told()
    assert bench.give_back(task) == [task]
    assert (task.failures, task.losses, task.fence, task.had) == (0, 0, 2, (first,))
    assert task.worker != first
    assert bench.told() == ["returned", "leased"]


def test_a_task_that_ends_its_workers_has_failed() -> None:
    bench = Bench()
    job = bench.submit(retries=0)
    bench.volunteer("anna", instance=b"0")
    bench.wait(1)
    task = job.tasks[0]
    for number in range(1, MAX_LOSSES + 1):
        assert (task.losses, job.state) == (number - 1, "running")
        bench.volunteer("anna", instance=b"%d" % number, is_new_link=True)
    assert (task.losses, task.state, task.failures) == (MAX_LOSSES, "failed", 0)
    assert (job.state, task.error) == ("failed", f"{MAX_LOSSES} workers were lost while they had it")


@pytest.mark.parametrize("state", ["delayed", "waiting", "leased", "pausing"])
def test_a_job_that_has_not_ended_by_its_deadline_has_failed(state: str) -> None:
    bench = Bench()
    if state != "waiting":
        bench.volunteer("anna")
    job = bench.submit(deadline_ms=10_000, delay_ms=20_000 if state == "delayed" else 0, retry_delay_ms=100_000)
    if state == "pausing":
        bench.fail(job.tasks[0])
    bench.told()
    bench.wait(9.999)
    assert job.state == ("waiting" if state in ("delayed", "waiting") else "running")
    bench.wait(0.001)
    assert (job.state, job.reason, job.ended_us) == ("failed", DEADLINE_PASSED, bench.now_us)
    assert [task.state for task in job.tasks] == ([] if state in ("delayed", "waiting") else ["failed"])
    assert bench.revoked == ([("anna", (1, 0, 1), DEADLINE_PASSED)] if state == "leased" else [])
    assert bench.events[-1].event == "job_failed"
    assert bench.wait(200, heard=["anna"]) == []
    bench.volunteer("anna")
    assert holders(bench.submit()) == ["anna"], "its capacity came back"


def test_a_deadline_leaves_what_has_ended() -> None:
    bench = Bench()
    bench.volunteer("anna", capacity=2)
    bench.volunteer("bert", capacity=2)
    in_time = bench.submit(deadline_ms=10_000)
    half = bench.submit(workers=2, deadline_ms=10_000)
    bench.finish(in_time.tasks[0])
    bench.finish(half.tasks[0])
    bench.wait(10)
    assert (in_time.state, half.state) == ("done", "failed")
    assert [task.state for task in half.tasks] == ["finished", "failed"]
    assert (half.finished, half.failed) == (1, 1)


@pytest.mark.parametrize("state", ["delayed", "waiting", "leased", "pausing"])
def test_cancelling_ends_a_job_in_any_state(state: str) -> None:
    bench = Bench()
    if state != "waiting":
        bench.volunteer("anna")
    job = bench.submit(delay_ms=20_000 if state == "delayed" else 0, retry_delay_ms=5000)
    if state == "pausing":
        bench.fail(job.tasks[0])
    bench.told()
    bench.board.cancel(job, "not needed", bench.now_us)
    bench.turn()
    assert (job.state, job.reason) == ("cancelled", "not needed")
    assert [task.state for task in job.tasks] == ([] if state in ("delayed", "waiting") else ["cancelled"])
    assert bench.revoked == ([("anna", (1, 0, 1), "cancelled: not needed")] if state == "leased" else [])
    assert bench.told() == ["cancelled"]
    bench.volunteer("anna")
    assert bench.wait(100, heard=["anna"]) == []
    bench.board.cancel(job, "again", bench.now_us)
    assert (job.reason, bench.told()) == ("not needed", [])


def test_a_job_that_the_log_refused_was_never_there() -> None:
    bench = Bench()
    bench.volunteer("anna", capacity=2)
    bench.volunteer("bert", capacity=1)
    job = bench.submit(workers=3, key="a", deadline_ms=1000, time_limit_ms=500, is_turn=False)
    bench.board.dispatch(bench.now_us)
    assert job.leased == 2
    bench.board.discard(job)
    assert not bench.board.jobs
    assert (bench.board.changed_tasks, bench.board.changed_jobs) == ({}, {})
    assert {task.state for task in bench.board.leased} == {"cancelled"}
    assert not [worker for worker in bench.board.workers.values() if worker.leases]
    again = bench.submit(key="a", workers=2)
    assert (again.number, again.leased) == (2, 2)
    bench.wait(2)
    assert again.state == "running"


def test_a_refused_job_takes_those_along_who_were_only_there_for_it() -> None:
    bench = Bench()
    bench.volunteer("anna")
    job = bench.submit()
    bench.board.away("anna", bench.now_us)
    bench.board.discard(job)
    assert not bench.board.workers
    assert bench.board.next_timer_us is None


def test_late_reports_are_ignored_and_repeats_are_known() -> None:
    bench = Bench()
    bench.volunteer("anna")
    task = bench.submit().tasks[0]
    old = task.ref
    bench.wait(LEASE_S)
    bench.volunteer("bert")
    assert (task.worker, task.fence, task.losses) == ("bert", 2, 1)
    board, now_us = bench.board, bench.now_us
    for name, ref in (("anna", old), ("bert", old), ("anna", task.ref), ("nobody", task.ref), ("bert", (1, 0, 3))):
        assert not board.finish(name, ref, b"late", now_us)
        assert not board.fail(name, ref, "late", True, now_us)
        assert not board.give_back(name, ref, now_us)
        assert board.step(name, ref, 1.0, "late") is None
        assert not board.is_repeat(ref, name)
    assert not board.finish("bert", (1, 1, 1), b"", now_us)
    assert not board.finish("bert", (2, 0, 1), b"", now_us)
    assert not board.is_repeat((1, 1, 1), "bert")
    assert not board.is_repeat((2, 0, 1), "bert")
    bench.finish(task, b"mine")
    assert not board.finish("bert", task.ref, b"again", now_us)
    assert board.is_repeat(task.ref, "bert")
    assert not board.is_repeat(task.ref, "anna")
    assert not board.is_repeat(old, "anna")
    assert task.result == b"mine"


def test_progress_is_seen_until_the_lease_ends() -> None:
    bench = Bench()
    bench.volunteer("anna")
    task = bench.submit().tasks[0]
    assert bench.board.step("anna", task.ref, 0.5, "half of it") is task
    assert (task.progress, task.note) == (0.5, "half of it")
    assert bench.board.changed_tasks == {}
    bench.fail(task)
    assert (task.progress, task.note) == (None, "")


def test_a_task_that_is_handed_back_again_and_again_waits() -> None:
    bench = Bench()
    bench.volunteer("anna")
    task = bench.submit().tasks[0]
    assert bench.give_back(task) == [task], "the first time it is for others at once"
    for pause_s in (1, 2, 4, 8, 16, 32, 60, 60):
        assert bench.give_back(task) == []
        assert bench.wait(pause_s - 0.001, heard=["anna"]) == []
        assert bench.wait(0.001, heard=["anna"]) == [task]
    bench.wait(60, heard=["anna"])
    assert bench.give_back(task) == [task], "she had it for a while"
    assert (task.failures, task.losses) == (0, 0)


def test_a_failure_in_between_begins_anew() -> None:
    bench = Bench()
    bench.volunteer("anna")
    task = bench.submit(retry_delay_ms=0, retries=9).tasks[0]
    for _ in range(3):
        assert bench.give_back(task) == [task]
        assert bench.fail(task) == [task]


def test_what_the_broker_takes_back_is_for_others_at_once() -> None:
    bench = Bench()
    bench.volunteer("anna")
    task = bench.submit().tasks[0]
    for _ in range(5):
        ref = task.ref
        assert bench.board.take_back("anna", ref, bench.now_us)
        assert bench.turn() == [task]
        assert not bench.board.take_back("anna", ref, bench.now_us)
    assert bench.told().count("returned") == 5
    assert bench.revoked == []
