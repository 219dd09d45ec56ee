"""A restart: jobs, tasks and leases are as they were, and those who had them have a while to come back."""

from __future__ import annotations

import pytest
from tests.broker.jobs.benches import KEEP_S, LEASE_S, Bench, holders
from tests.broker.jobs.test_board import Disk

from godwit.broker.jobs.board import Board
from godwit.broker.jobs.model import Task
from godwit.broker.jobs.states import ENDED
from godwit.limits import RESTART_GRACE_S, SETTLE_S


class Kept(Bench):
    """Writes down what changes, and starts again from that."""

    def __init__(self, lease_s: float = LEASE_S) -> None:
        super().__init__(Board(lease_us=int(lease_s * 1e6), keep_us=int(KEEP_S * 1e6)))
        self.disk = Disk()

    def turn(self) -> list[Task]:
        self.board.dispatch(self.now_us)
        self.disk.take(self.board)
        return super().turn()

    def restart(self, after_s: float = 0) -> None:
        self.now_us += int(after_s * 1e6)
        before = self.board
        self.board = Board(lease_us=before.lease_us, keep_us=before.keep_us)
        self.board.restore(self.disk.state(before.next_job), self.now_us)
        assert all(job.is_stored for job in self.board.jobs.values())
        self.turn()


@pytest.mark.parametrize("lease_s", [LEASE_S, 200.0])
def test_a_worker_that_comes_back_goes_on_under_the_same_fence(lease_s: float) -> None:
    bench = Kept(lease_s)
    bench.volunteer("anna", capacity=2)
    bench.submit(payload=b"payload")
    bench.restart(after_s=1000)
    bench.wait(max(RESTART_GRACE_S, lease_s) - 0.001)
    job = bench.board.jobs[1]
    assert (job.payload, holders(job)) == (b"payload", ["anna"])
    assert bench.volunteer("anna", holding=[(1, 0, 1)], is_new_link=True) == []
    bench.finish(job.tasks[0])
    assert (job.state, job.tasks[0].fence, job.tasks[0].losses) == ("done", 1, 0)


def test_who_does_not_come_back_has_lost_it() -> None:
    bench = Kept()
    bench.volunteer("anna")
    bench.submit()
    bench.restart()
    bench.volunteer("bert")
    bench.wait(RESTART_GRACE_S - 0.001, heard=["bert"])
    task = bench.board.jobs[1].tasks[0]
    assert task.worker == "anna"
    bench.wait(0.001, heard=["bert"])
    assert (task.worker, task.losses, task.fence) == ("bert", 1, 2)


def test_what_a_worker_does_not_hold_any_more_goes_back() -> None:
    bench = Kept()
    bench.volunteer("anna", capacity=2)
    bench.submit()
    bench.submit()
    bench.restart()
    bench.volunteer("anna", capacity=2, holding=[(2, 0, 1)], is_new_link=True)
    first, second = (bench.board.jobs[number].tasks[0] for number in (1, 2))
    assert (first.fence, second.fence, first.losses) == (2, 1, 0)


def test_another_run_has_lost_what_the_one_before_had() -> None:
    bench = Kept()
    bench.volunteer("anna", instance=b"run 1")
    bench.submit()
    bench.restart()
    assert bench.volunteer("anna", instance=b"run 2", holding=[(1, 0, 1)], is_new_link=True) == [(1, 0, 1)]
    task = bench.board.jobs[1].tasks[0]
    assert (task.fence, task.losses) == (2, 1)


def test_tasks_that_nobody_had_follow_from_what_was_agreed() -> None:
    bench = Kept()
    for name in ("anna", "bert", "cleo"):
        bench.volunteer(name)
    bench.submit(workers=0)
    wide = bench.submit(workers=0)
    assert (wide.agreed, wide.leased) == (3, 0)
    assert not [key for key in bench.disk.tasks if key[0] == wide.number]
    bench.restart()
    again = bench.board.jobs[wide.number]
    assert [(task.number, task.state) for task in again.tasks] == [(0, "waiting"), (1, "waiting"), (2, "waiting")]
    bench.volunteer("dora")
    assert holders(again) == ["dora"]


def test_jobs_that_waited_wait_on() -> None:
    bench = Kept()
    for delay_ms in (0, 5000, 50_000):
        bench.submit(delay_ms=delay_ms, deadline_ms=100_000)
    bench.restart(after_s=10)
    assert [job.state for job in bench.board.jobs.values()] == ["waiting"] * 3
    assert bench.board.unsettled == 3
    bench.volunteer("anna", capacity=3)
    bench.wait(SETTLE_S)
    assert [job.state for job in bench.board.jobs.values()] == ["running", "running", "waiting"]
    bench.wait(39, heard=["anna"])
    assert [job.state for job in bench.board.jobs.values()] == ["running"] * 3
    bench.wait(50, heard=["anna"])
    assert {job.reason for job in bench.board.jobs.values()} == {"the deadline passed"}


def test_time_goes_on_while_the_broker_is_away() -> None:
    bench = Kept()
    bench.volunteer("anna", capacity=3)
    bench.submit(time_limit_ms=10_000, retries=0)
    bench.submit(deadline_ms=10_000)
    pausing = bench.submit(retry_delay_ms=10_000)
    bench.fail(pausing.tasks[0])
    bench.restart(after_s=9)
    states = [[task.state for task in job.tasks] for job in bench.board.jobs.values()]
    assert states == [["leased"], ["leased"], ["waiting"]]
    bench.volunteer("bert")
    assert bench.wait(0.999) == []
    bench.wait(0.001)
    assert [job.state for job in bench.board.jobs.values()] == ["failed", "failed", "running"]
    assert bench.board.jobs[1].tasks[0].error == "took longer than 10 s"
    assert holders(bench.board.jobs[3]) == ["bert"]


def test_nobody_gets_a_job_twice_because_of_a_restart() -> None:
    bench = Kept()
    bench.volunteer("anna")
    job = bench.submit(retry_delay_ms=0, retries=9)
    bench.volunteer("bert")
    bench.fail(job.tasks[0])
    assert job.tasks[0].worker == "bert"
    bench.fail(job.tasks[0])
    bench.board.leave("anna", bench.now_us)
    bench.board.leave("bert", bench.now_us)
    bench.turn()
    bench.restart()
    again = bench.board.jobs[1]
    assert again.had == {"anna", "bert"}
    for name in ("anna", "bert", "cleo"):
        bench.volunteer(name, is_turn=False)
    assert bench.turn() == [again.tasks[0]]
    assert again.tasks[0].worker == "cleo"


def test_ended_jobs_are_known_until_their_time_is_over() -> None:
    bench = Kept()
    bench.volunteer("anna", capacity=2)
    jobs = [bench.submit(key="a"), bench.submit(key="b"), bench.submit("paint", key="c")]
    bench.finish(jobs[1].tasks[0], b"result")
    bench.wait(5)
    bench.finish(jobs[0].tasks[0], b"result")
    bench.board.cancel(jobs[2], "", bench.now_us)
    bench.turn()
    bench.restart()
    assert [job.state for job in bench.board.jobs.values()] == ["done", "done", "cancelled"]
    assert bench.board.unended == bench.board.unsettled == 0
    assert all(job.state in ENDED for job in bench.board.jobs.values())
    assert bench.board.jobs[2].tasks[0].result == b"result"
    assert bench.board.is_repeat((2, 0, 1), "anna")
    assert bench.submit(key="a") is bench.board.jobs[1]
    assert not bench.board._dispatch.queues
    bench.wait(KEEP_S - 5)
    assert bench.gone == [2]
    bench.wait(5)
    assert bench.gone == [2, 1, 3]
    assert bench.submit().number == 4
