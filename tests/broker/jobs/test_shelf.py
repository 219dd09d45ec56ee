"""Room: ended jobs go when their time has come, or when others need their room; what cannot fit is refused."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
from tests.broker.jobs.benches import KEEP_S, Bench

from godwit.broker.jobs import shelf
from godwit.broker.jobs.model import Job
from godwit.broker.ports import RequestFailure
from godwit.wire.codes import Code


def ended(bench: Bench, count: int, payload: bytes = b"", result: bytes = b"") -> list[Job]:
    jobs = []
    for _ in range(count):
        job = bench.submit(payload=payload)
        bench.finish(job.tasks[0], result)
        jobs.append(job)
        bench.wait(0.001)
    return jobs


def test_ended_jobs_are_kept_for_a_while_then_they_are_gone() -> None:
    bench = Bench()
    bench.volunteer("anna")
    first = bench.submit(key="mine")
    bench.finish(first.tasks[0])
    bench.wait(10, heard=["anna"])
    second = bench.submit()
    bench.finish(second.tasks[0])
    bench.wait(KEEP_S - 10.001, heard=["anna"])
    assert set(bench.board.jobs) == {1, 2}
    assert bench.submit(key="mine") is first, "a key is known for as long as its job"
    bench.wait(0.002, heard=["anna"])
    assert set(bench.board.jobs) == {2}
    assert bench.gone == [1]
    assert bench.submit(key="mine").number == 3, "no number is given twice"
    bench.wait(10, heard=["anna"])
    assert bench.gone == [1, 2]


def test_jobs_that_have_not_ended_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MAX_JOBS", 6)
    bench = Bench()
    bench.volunteer("anna", capacity=9)
    ended(bench, 5)
    waiting = [bench.submit("paint") for _ in range(2)]
    job = bench.submit()
    for kind in ("resize", "paint", "unknown"):
        with pytest.raises(RequestFailure, match="submit it again when some have ended") as refused:
            bench.submit(kind)
        assert refused.value.code == Code.TOO_MANY
    assert "unknown" not in bench.board._dispatch.queues
    bench.finish(job.tasks[0])
    bench.submit()
    assert (bench.board.unended, bench.board.unsettled) == (3, len(waiting))


def test_the_oldest_ended_jobs_make_room_for_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MAX_TASKS", 9)
    bench = Bench()
    bench.volunteer("anna", capacity=9)
    bench.volunteer("bert", capacity=9)
    bench.volunteer("cleo", capacity=9)
    jobs = ended(bench, 7)
    bench.submit(workers=3)
    assert bench.gone == [jobs[0].number]
    bench.submit(workers=3, by="dora")
    assert bench.gone == [job.number for job in jobs[:4]]
    with pytest.raises(RequestFailure, match="as many jobs as the others' leave room for"):
        bench.submit(by="dora")
    with pytest.raises(RequestFailure, match="as many jobs as the others' leave room for"):
        bench.submit(workers=3, by="emil")
    assert bench.gone == [job.number for job in jobs[:4]], "nobody goes for one that does not fit after all"


def test_a_waiting_job_settles_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MAX_TASKS", 6)
    bench = Bench()
    bench.volunteer("anna", ["other"])
    other = bench.submit("other", by="dora")
    job = bench.submit(workers=3)
    for name in ("bert", "cleo", "dora"):
        bench.volunteer(name)
    bench.wait(10)
    assert (job.state, job.agreed) == ("waiting", None)
    bench.finish(other.tasks[0])
    bench.wait(1)
    assert (job.state, job.agreed, job.leased) == ("running", 3, 3)


def test_ended_jobs_make_room_for_payloads_and_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MAX_JOBS_BYTES", 200)
    monkeypatch.setattr(shelf, "MAX_SUBMITTED_BYTES", 150)
    bench = Bench()
    bench.volunteer("anna", capacity=9)
    ended(bench, 2, b"p" * 20, b"r" * 50)
    job = bench.submit(payload=b"p" * 40)
    assert bench.gone == []
    bench.finish(job.tasks[0], b"r" * 60)
    assert (bench.gone, job.state) == ([1], "done")
    with pytest.raises(RequestFailure):
        bench.submit(payload=b"p" * 76)
    assert bench.gone == [1]
    bench.submit(payload=b"p" * 75)
    assert bench.gone == [1, 2]


def test_the_payload_of_an_ended_job_takes_no_room_once_it_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MAX_JOBS_BYTES", 120)
    bench = Bench()
    bench.volunteer("anna", capacity=9)
    for _ in range(5):
        job = bench.submit(payload=b"p" * 50)
        job.is_stored = True
        bench.finish(job.tasks[0], b"r" * 10)
        assert (job.payload, job.payload_bytes) == (b"", 50)
    bench.submit(payload=b"p" * 50)
    bench.submit()
    assert bench.gone == []


def test_a_removed_job_does_not_wait_for_the_garbage_collector() -> None:
    bench = Bench()
    bench.volunteer("anna")
    result = bytes(1000)
    gc.disable()
    try:
        bench.finish(bench.submit().tasks[0], result)
        known = sys.getrefcount(result)
        bench.wait(KEEP_S, heard=["anna"])
        assert bench.gone == [1]
        assert sys.getrefcount(result) == known - 1
    finally:
        gc.enable()


def test_a_result_without_room_fails_its_task_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MAX_JOBS_BYTES", 141)
    bench = Bench()
    bench.volunteer("anna", capacity=9)
    job = bench.submit(payload=b"p" * 60, retries=5)
    bench.finish(job.tasks[0], b"r" * 41)
    assert (job.state, job.tasks[0].state, job.tasks[0].error) == ("failed", "failed", "no room for its result")
    assert job.result_bytes == 0


def test_errors_take_room_too_and_all_of_it_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MAX_SUBMITTED_BYTES", 200)
    bench = Bench()
    bench.volunteer("anna", capacity=9)
    job = bench.submit(payload=b"p" * 10, retries=5, retry_delay_ms=0)
    bench.fail(job.tasks[0], "e" * 60)
    bench.fail(job.tasks[0], "e" * 50)
    with pytest.raises(RequestFailure):
        bench.submit(payload=b"p" * 41)
    bench.submit(payload=b"p" * 40)
    for known in list(bench.board.jobs.values()):
        bench.board.cancel(known, "", bench.now_us)
    waiting = bench.submit("paint")
    bench.board.discard(waiting)
    bench.wait(KEEP_S)
    kept = bench.board._shelf
    assert (kept.task_count, kept.total_bytes, kept.unended, kept.unsettled, kept.keys) == (0, 0, 0, 0, {})
    assert not kept._shares


def fill(bench: Bench, by: str, **options: Any) -> int:
    """As many jobs as this controller may submit."""
    count = 0
    while True:
        try:
            bench.submit("unserved", by=by, **options)
        except RequestFailure as refused:
            if refused.code != Code.TOO_MANY:
                raise
            return count
        count += 1


@pytest.mark.parametrize(
    ("limit", "most", "payload"),
    [("MAX_JOBS", 64, b""), ("MAX_TASKS", 64, b""), ("MAX_SUBMITTED_BYTES", 640, bytes(10))],
)
def test_no_controller_fills_the_shelf_for_others(
    limit: str, most: int, payload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, limit, most)
    bench = Bench()
    assert [fill(bench, by, payload=payload) for by in ("greedy", "next", "third")] == [32, 16, 8]
    bench.submit(by="late", payload=payload)
    jobs = [job for job in bench.board.jobs.values() if job.controller == "greedy"]
    for job in jobs:
        bench.board.cancel(job, "", bench.now_us)
    assert fill(bench, "late", payload=payload) > 8, "ended jobs are nobody's share"


def test_submissions_leave_room_for_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MAX_JOBS_BYTES", 4000)
    monkeypatch.setattr(shelf, "MAX_SUBMITTED_BYTES", 3000)
    bench = Bench()
    bench.volunteer("anna")
    mine = bench.submit(by="mine")
    for number in range(20):
        fill(bench, f"greedy {number}", payload=bytes(10))
    assert bench.board._shelf.total_bytes > 2900
    bench.finish(mine.tasks[0], bytes(500))
    assert (mine.state, mine.result_bytes) == ("done", 500)


def test_results_of_one_controller_leave_room_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MAX_JOBS_BYTES", 1000)
    bench = Bench()
    for number in range(12):
        bench.volunteer(f"worker {number}", capacity=2)
    wide = bench.submit(by="greedy", workers=0)
    mine = bench.submit(by="mine")
    for task in wide.tasks[:-1]:
        bench.finish(task, bytes(100))
    assert (wide.finished, wide.failed, wide.state) == (5, 6, "running")
    bench.finish(mine.tasks[0], bytes(150))
    assert mine.state == "done"


def test_many_ended_jobs_may_be_discarded() -> None:
    bench = Bench()
    jobs = [bench.submit(is_turn=False) for _ in range(5)]
    for job in jobs:
        bench.board.cancel(job, "", bench.now_us)
    for job in (jobs[3], jobs[0], jobs[4]):
        bench.board.discard(job)
    assert list(bench.board._shelf._ended) == [jobs[1], jobs[2]]
    bench.wait(KEEP_S)
    assert bench.gone == [2, 3]
