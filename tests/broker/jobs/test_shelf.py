"""Room: ended jobs go when their time has come, or when others need their room; what cannot fit is refused."""

from __future__ import annotations

import gc
import sys

import pytest
from tests.broker.jobs.benches import KEEP_S, Bench

from godwit.broker.failure import RequestFailure
from godwit.broker.jobs import shelf, starts
from godwit.broker.jobs.model import Job
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
    monkeypatch.setattr(starts, "MAX_JOBS", 3)
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
    monkeypatch.setattr(shelf, "MAX_TASKS", 6)
    bench = Bench()
    bench.volunteer("anna", capacity=9)
    bench.volunteer("bert", capacity=9)
    bench.volunteer("cleo", capacity=9)
    jobs = ended(bench, 4)
    bench.submit(workers=3)
    assert bench.gone == [jobs[0].number]
    bench.submit(workers=3)
    assert bench.gone == [job.number for job in jobs]
    with pytest.raises(RequestFailure, match="as many jobs as it can hold"):
        bench.submit()
    assert bench.gone == [job.number for job in jobs], "nobody goes for one that does not fit after all"


def test_a_waiting_job_settles_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MAX_TASKS", 3)
    bench = Bench()
    bench.volunteer("anna", ["other"])
    other = bench.submit("other")
    job = bench.submit(workers=3)
    for name in ("bert", "cleo", "dora"):
        bench.volunteer(name)
    bench.wait(10)
    assert (job.state, job.agreed) == ("waiting", None)
    bench.finish(other.tasks[0])
    bench.wait(1)
    assert (job.state, job.agreed, job.leased) == ("running", 3, 3)
    assert bench.gone == [other.number]


def test_ended_jobs_make_room_for_payloads_and_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MAX_JOBS_BYTES", 100)
    bench = Bench()
    bench.volunteer("anna", capacity=9)
    ended(bench, 2, b"p" * 10, b"r" * 20)
    job = bench.submit(payload=b"p" * 40)
    assert bench.gone == []
    bench.finish(job.tasks[0], b"r" * 50)
    assert (bench.gone, job.state) == ([1, 2], "done")
    with pytest.raises(RequestFailure):
        bench.submit(payload=b"p" * 101)
    assert bench.gone == [1, 2]
    bench.submit(payload=b"p" * 100)
    assert bench.gone == [1, 2, 3]


def test_the_payload_of_an_ended_job_takes_no_room_once_it_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MAX_JOBS_BYTES", 100)
    bench = Bench()
    bench.volunteer("anna", capacity=9)
    for _ in range(5):
        job = bench.submit(payload=b"p" * 50)
        job.is_stored = True
        bench.finish(job.tasks[0], b"r" * 10)
        assert (job.payload, job.payload_bytes) == (b"", 50)
    bench.submit(payload=b"p" * 50)
    assert bench.gone == []
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
    monkeypatch.setattr(shelf, "MAX_JOBS_BYTES", 100)
    bench = Bench()
    bench.volunteer("anna", capacity=9)
    job = bench.submit(payload=b"p" * 60, retries=5)
    bench.finish(job.tasks[0], b"r" * 41)
    assert (job.state, job.tasks[0].state, job.tasks[0].error) == ("failed", "failed", "no room for its result")
    assert job.result_bytes == 0


def test_errors_take_room_too_and_all_of_it_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MAX_JOBS_BYTES", 100)
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
