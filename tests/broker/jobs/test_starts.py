"""How jobs begin: keys, kinds, what is agreed, delays, settling."""

from __future__ import annotations

import pytest
from tests.broker.jobs.benches import Bench, holders

from godwit.broker.jobs import board, shelf, starts
from godwit.broker.jobs.board import Board
from godwit.broker.ports import RequestFailure
from godwit.limits import SETTLE_S
from godwit.wire.codes import Code


@pytest.mark.parametrize(("workers", "agreed"), [(1, 1), (2, 2), (3, 3), (4, 3), (9999, 3), (0, 3)])
def test_agreed_is_what_was_asked_for_or_what_there_is(workers: int, agreed: int) -> None:
    bench = Bench()
    for name in ("anna", "bert", "cleo"):
        bench.volunteer(name)
    bench.volunteer("dora", ["paint"])
    job = bench.submit(workers=workers)
    assert (job.state, job.agreed, len(job.tasks)) == ("running", agreed, agreed)
    assert job.leased == agreed


def test_busy_volunteers_count_and_absent_ones_do_not() -> None:
    bench = Bench()
    for name in ("anna", "bert", "cleo"):
        bench.volunteer(name)
    bench.submit(workers=0)
    bench.board.away("cleo", bench.now_us)
    job = bench.submit(workers=0)
    assert (job.agreed, job.leased) == (2, 0)


def test_what_was_agreed_holds_when_volunteers_go() -> None:
    bench = Bench()
    for name in ("anna", "bert", "cleo"):
        bench.volunteer(name)
    job = bench.submit(workers=3)
    for name in ("bert", "cleo"):
        bench.board.leave(name, bench.now_us)
    bench.turn()
    while job.leased:
        bench.finish(next(task for task in job.tasks if task.state == "leased"))
    assert (job.state, job.agreed, job.finished) == ("done", 3, 3)


def test_without_volunteers_a_job_waits_and_settles_a_second_after_the_first() -> None:
    bench = Bench()
    job = bench.submit(workers=3)
    assert (job.state, job.agreed, job.tasks) == ("waiting", None, [])
    bench.wait(1000)
    assert job.state == "waiting"
    bench.volunteer("anna")
    bench.wait(SETTLE_S - 0.001)
    bench.volunteer("bert")
    assert job.state == "waiting"
    bench.told()
    bench.wait(0.001)
    assert (job.state, job.agreed, sorted(holders(job))) == ("running", 2, ["anna", "bert"])
    assert [(event.event, event.agreed) for event in bench.events] == [
        ("settled", 2),
        ("leased", None),
        ("leased", None),
    ]


def test_who_is_gone_when_a_job_settles_does_not_count() -> None:
    bench = Bench()
    job = bench.submit(workers=0)
    bench.volunteer("anna")
    bench.board.leave("anna", bench.now_us)
    bench.wait(5)
    assert (job.state, job.agreed) == ("waiting", None)
    bench.volunteer("bert")
    bench.wait(SETTLE_S)
    assert (job.state, job.agreed) == ("running", 1)


def test_a_job_that_comes_while_others_settle_begins_at_once() -> None:
    bench = Bench()
    early = bench.submit()
    bench.volunteer("anna", capacity=2)
    late = bench.submit()
    assert (early.state, late.state) == ("waiting", "running")
    bench.wait(SETTLE_S)
    assert early.state == "running"


def test_a_silent_worker_that_reports_again_is_a_first_volunteer() -> None:
    bench = Bench()
    bench.volunteer("anna")
    bench.wait(40)
    job = bench.submit()
    assert job.state == "waiting"
    bench.board.heard("anna", bench.now_us)
    bench.wait(SETTLE_S)
    assert holders(job) == ["anna"]


def test_a_delayed_job_is_agreed_on_when_its_time_comes() -> None:
    bench = Bench()
    bench.volunteer("anna")
    job = bench.submit(workers=0, delay_ms=5000)
    assert (job.state, job.begins_us) == ("waiting", bench.now_us + 5_000_000)
    bench.volunteer("bert")
    bench.wait(4.999)
    assert job.state == "waiting"
    bench.wait(0.001)
    assert (job.state, job.agreed, job.leased) == ("running", 2, 2)


def test_a_delayed_job_without_volunteers_waits_on() -> None:
    bench = Bench()
    job = bench.submit(delay_ms=5000)
    bench.volunteer("anna")
    bench.board.leave("anna", bench.now_us)
    bench.wait(60)
    assert job.state == "waiting"
    bench.volunteer("anna")
    bench.wait(SETTLE_S)
    assert holders(job) == ["anna"]


def test_the_same_key_of_the_same_controller_is_the_same_job() -> None:
    bench = Bench()
    job = bench.submit("one", by="carla", key="a")
    bench.told()
    again = bench.submit("another/kind", b"other payload", by="carla", key="a", workers=5)
    assert again is job
    assert (job.kind, job.payload, job.workers) == ("one", b"", 1)
    assert bench.told() == []
    assert bench.submit(by="dora", key="a").number == 2


@pytest.mark.parametrize("kind", ["", "a/+", "#", "$sys", "tab\t", "k" * 257])
def test_no_kind_is_called_so(kind: str) -> None:
    bench = Bench()
    with pytest.raises(RequestFailure, match="the kind of work") as refused:
        bench.submit(kind)
    assert refused.value.code == Code.BAD_KIND
    with pytest.raises(RequestFailure, match="the kind of work"):
        bench.volunteer("anna", ["good", kind])
    assert not bench.board.workers
    assert not bench.board._dispatch.queues
    assert bench.submit("a/b c").number == 1, "refused ones get no number"


def test_what_a_submission_says() -> None:
    bench = Bench()
    bench.volunteer("anna")
    job = bench.submit("resize", b"payload", by="carla", workers=3, priority=7, is_turn=False)
    assert bench.board.new_jobs == [job]
    assert bench.board.changed_jobs == {}
    assert bench.board.changed_tasks == {}, "tasks that nobody had follow from the number agreed"
    bench.turn()
    event = bench.events[0]
    assert (event.event, event.job, event.controller, event.at_us) == ("submitted", 1, "carla", bench.now_us)
    assert (event.agreed, event.workers, event.priority, event.payload_bytes) == (1, 3, 7, 7)


def test_a_waiting_job_without_room_does_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MAX_TASKS", 24)
    bench = Bench()
    large = [bench.submit(by="greedy", workers=0) for _ in range(3)]
    small = bench.submit(by="mine")
    for number in range(8):
        bench.volunteer(f"worker {number}")
    bench.wait(SETTLE_S)
    assert [job.state for job in (*large, small)] == ["running", "waiting", "waiting", "running"]
    while large[0].leased:
        bench.finish(next(task for task in large[0].tasks if task.state == "leased"))
    bench.wait(SETTLE_S)
    assert [job.state for job in large].count("running") == 1, "the next one has room now"


def test_a_volunteer_that_comes_and_goes_does_not_put_settling_off() -> None:
    bench = Bench(Board(lease_us=500_000, keep_us=0))
    job = bench.submit()
    bench.volunteer("anna")
    for _ in range(4):
        bench.wait(0.55)
        bench.board.heard("anna", bench.now_us)
    assert job.state == "running"


def test_many_that_are_due_are_seen_to_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "MAX_DUE_AT_ONCE", 10)
    monkeypatch.setattr(starts, "MAX_DUE_AT_ONCE", 10)
    bench = Bench()
    for _ in range(35):
        bench.submit("paint", deadline_ms=5000)
        bench.submit("cut", workers=1)
    bench.volunteer("anna", ["cut"], capacity=100)
    leased = []
    bench.now_us += int(SETTLE_S * 1e6)
    for turn in range(8):
        bench.board.on_time(bench.now_us)
        leased.append(len(bench.turn()))
        bench.now_us += 1
        at_us = bench.board.next_timer_us
        assert at_us is not None
        assert (at_us <= bench.now_us) == (turn < 3)
    assert leased == [10, 10, 10, 5, 0, 0, 0, 0]
    bench.now_us += 5_000_000
    failed = []
    for _ in range(5):
        bench.board.on_time(bench.now_us)
        bench.turn()
        failed.append(sum(job.state == "failed" for job in bench.board.jobs.values()))
    assert failed == [10, 20, 30, 35, 35]
