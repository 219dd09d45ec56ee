"""Workers that volunteer, report, stall, leave and come back; and the scheduler after a restart of the broker."""

from __future__ import annotations

import pytest
from tests.broker.jobs.driver import KEEP_S, LEASE_S, SchedulerDriver, holders
from tests.broker.jobs.test_scheduler_random import Disk

from godwit.broker.jobs.model import ENDED, JobTask
from godwit.broker.jobs.scheduler import Scheduler
from godwit.limits import RESTART_GRACE_S, SETTLE_S


def test_a_new_volunteer_request_replaces_the_last_one() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", ["cut", "cut", "paint"], capacity=1)
    assert driver.scheduler.workers["anna"].kinds == ("cut", "paint")
    driver.volunteer("anna", ["paint", "glue"], capacity=2)
    assert holders(driver.submit("paint")) == ["anna"]
    assert holders(driver.submit("glue")) == ["anna"]
    assert driver.submit("cut").state == "waiting"


def test_a_worker_that_withdraws_keeps_its_leases_and_gets_no_more() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=2)
    job = driver.submit()
    driver.volunteer("anna", [], capacity=1)
    late = driver.submit()
    assert (holders(job), late.state) == (["anna"], "waiting")
    driver.finish(job.tasks[0])
    assert job.state == "done"
    assert not driver.scheduler.workers, "an idle worker is forgotten"


def test_a_worker_that_leaves_returns_its_tasks() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=3)
    jobs = [driver.submit() for _ in range(3)]
    driver.volunteer("bert", capacity=2)
    driver.take_events()
    driver.scheduler.leave("anna", driver.now_us)
    leased = driver.turn()
    assert {task.worker for task in leased} == {"bert"}
    assert len(leased) == 2
    assert driver.take_events() == ["returned"] * 3 + ["leased"] * 2
    assert [job.tasks[0].losses for job in jobs] == [0, 0, 0]
    assert set(driver.scheduler.workers) == {"bert"}
    assert driver.revoked == []


def test_a_worker_that_loses_its_connection_has_some_time_to_come_back() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    job = driver.submit()
    driver.wait(10)
    driver.scheduler.renew_leases("anna", driver.now_us)
    driver.scheduler.disconnect("anna", driver.now_us)
    assert driver.submit().state == "waiting", "it gets no tasks for now"
    driver.wait(LEASE_S - 0.001)
    assert holders(job) == ["anna"]
    assert driver.volunteer("anna", holding=[(1, 0, 1)], is_new_link=True) == []
    driver.wait(60, reporting=["anna"])
    assert (job.tasks[0].fence, job.tasks[0].losses) == (1, 0)


def test_a_worker_that_does_not_come_back_in_time_loses_its_tasks() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    job = driver.submit()
    driver.scheduler.disconnect("anna", driver.now_us)
    driver.volunteer("bert")
    driver.take_events()
    assert driver.wait(LEASE_S - 0.001, reporting=["bert"]) == []
    assert driver.wait(0.001, reporting=["bert"]) == [job.tasks[0]]
    assert (holders(job), job.tasks[0].losses, job.tasks[0].fence) == (["bert"], 1, 2)
    assert driver.take_events() == ["lost", "leased"]
    assert set(driver.scheduler.workers) == {"bert"}
    assert driver.revoked == [], "the worker is not connected"
    assert driver.volunteer("anna", holding=[(1, 0, 1)], is_new_link=True) == [(1, 0, 1)]


def test_a_worker_that_reports_nothing_loses_all_and_is_no_volunteer() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=2)
    jobs = [driver.submit(), driver.submit()]
    driver.volunteer("bert", capacity=1)
    driver.wait(LEASE_S - 0.001, reporting=["bert"])
    assert holders(jobs[0]) == ["anna"]
    driver.scheduler.handle_timers(driver.now_us + 1000)
    assert driver.scheduler.output.stalled == ["anna"]
    driver.now_us += 1000
    driver.turn()
    assert [job.tasks[0].losses for job in jobs] == [1, 1]
    assert [(name, ref) for name, ref, _ in driver.revoked] == [("anna", (1, 0, 1)), ("anna", (2, 0, 1))]
    assert (holders(jobs[0]), holders(jobs[1])) == (["bert"], [])
    assert driver.submit(workers=0).agreed == 1


def test_any_report_renews_all_leases() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=2)
    jobs = [driver.submit(), driver.submit()]
    driver.wait(LEASE_S * 20, reporting=["anna"])
    assert [job.tasks[0].fence for job in jobs] == [1, 1]


def test_a_stalled_worker_is_a_volunteer_again_when_it_reports() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=2)
    driver.wait(LEASE_S * 3)
    driver.scheduler.renew_leases("anna", driver.now_us)
    assert holders(driver.submit()) == ["anna"]
    driver.wait(LEASE_S - 0.001)
    assert holders(driver.scheduler.jobs[1]) == ["anna"]
    driver.scheduler.renew_leases("unknown", driver.now_us)
    assert set(driver.scheduler.workers) == {"anna"}


def test_a_stalled_worker_can_lose_a_kind_and_can_leave() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", ["cut", "paint"])
    driver.wait(LEASE_S)
    driver.scheduler.remove_kinds("anna", ["cut"], driver.now_us)
    assert driver.submit("paint").state == "waiting", "it is still stalled"
    driver.scheduler.renew_leases("anna", driver.now_us)
    assert [queue.kind for queue in driver.scheduler.workers["anna"].queues] == ["paint"]
    driver.wait(LEASE_S)
    driver.scheduler.disconnect("anna", driver.now_us)
    assert not driver.scheduler.workers
    assert not [at_us for at_us in [driver.scheduler.next_timer_us] if at_us is not None]


def test_another_instance_of_a_worker_loses_the_leases_of_the_one_before() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", instance=b"run 1")
    job = driver.submit()
    driver.take_events()
    assert driver.volunteer("anna", instance=b"run 2", holding=[(1, 0, 1)], is_new_link=True) == [(1, 0, 1)]
    task = job.tasks[0]
    assert (task.losses, task.fence, task.instance) == (1, 2, b"run 2")
    assert driver.take_events() == ["lost", "leased"]
    assert driver.revoked == []


def test_a_run_that_only_logs_in_displaces_another_one() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", instance=b"run 1")
    job = driver.submit()
    driver.scheduler.replace_instance("anna", b"run 1", driver.now_us)
    driver.scheduler.replace_instance("unknown", b"run 1", driver.now_us)
    assert holders(job) == ["anna"]
    driver.scheduler.replace_instance("anna", b"run 2", driver.now_us)
    assert driver.turn() == []
    assert (holders(job), job.tasks[0].losses) == ([], 1)
    assert not driver.scheduler.workers


def test_a_lease_that_was_lost_on_the_way_goes_back_on_a_new_connection_only() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=2)
    jobs = [driver.submit(), driver.submit()]
    driver.volunteer("anna", capacity=2, holding=[], is_new_link=False)
    assert [job.tasks[0].fence for job in jobs] == [1, 1], "leases may be in transit"
    driver.take_events()
    driver.volunteer("anna", capacity=2, holding=[(1, 0, 1)], is_new_link=True)
    assert [job.tasks[0].fence for job in jobs] == [1, 2]
    assert [(job.tasks[0].failures, job.tasks[0].losses) for job in jobs] == [(0, 0), (0, 0)]
    assert driver.take_events() == ["returned", "leased"]


def test_a_worker_learns_which_leases_it_does_not_hold() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", capacity=3)
    jobs = [driver.submit(retries=0) for _ in range(3)]
    driver.finish(jobs[0].tasks[0])
    driver.fail(jobs[1].tasks[0])
    held = [(1, 0, 1), (2, 0, 1), (3, 0, 1), (3, 0, 2), (3, 7, 1), (9, 0, 1)]
    unknown = driver.volunteer("anna", capacity=3, holding=held)
    assert unknown == [(2, 0, 1), (3, 0, 2), (3, 7, 1), (9, 0, 1)], "except for the lease whose result is known"


def test_a_worker_that_loses_the_right_to_a_kind_loses_its_tasks_of_that_kind() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna", ["cut", "paint"], capacity=4)
    cut, paint = driver.submit("cut"), driver.submit("paint")
    driver.take_events()
    driver.scheduler.remove_kinds("anna", ["cut"], driver.now_us)
    driver.turn()
    assert (holders(cut), holders(paint)) == ([], ["anna"])
    assert driver.revoked == [("anna", (1, 0, 1), "it may not do this kind of work any more")]
    assert driver.take_events() == ["returned"]
    driver.scheduler.remove_kinds("anna", ["paint"], driver.now_us)
    driver.scheduler.remove_kinds("unknown", ["paint"], driver.now_us)
    driver.scheduler.leave("unknown", driver.now_us)
    driver.scheduler.disconnect("unknown", driver.now_us)
    assert not driver.scheduler.workers


def test_a_longer_lease_holds_for_all_at_once() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    job = driver.submit()
    driver.scheduler.change_settings(lease_us=60_000_000, keep_us=1)
    assert driver.scheduler.lease_us == 60_000_000
    driver.wait(59.999)
    assert holders(job) == ["anna"]
    driver.wait(0.001)
    assert job.tasks[0].losses == 1


def test_a_shorter_lease_time_applies_from_the_next_volunteer_request() -> None:
    driver = SchedulerDriver()
    driver.volunteer("anna")
    job = driver.submit()
    driver.scheduler.change_settings(lease_us=6_000_000, keep_us=1)
    driver.wait(20)
    driver.scheduler.renew_leases("anna", driver.now_us)
    driver.wait(LEASE_S - 0.001)
    assert holders(job) == ["anna"], "it reports as often as its lease time demands"
    driver.volunteer("anna", holding=[(1, 0, 1)])
    driver.wait(5.999)
    assert holders(job) == ["anna"]
    driver.wait(0.001)
    assert job.tasks[0].losses == 1


def test_the_cost_of_leaving_does_not_depend_on_the_other_workers() -> None:
    """Counted in lookups of names, not in time."""
    driver = SchedulerDriver()
    names = [f"worker {number}" for number in range(2000)]
    for name in names:
        driver.volunteer(name, is_turn=False)
    job = driver.submit(workers=0)
    assert job.leased == len(names)
    driver.volunteer("heir", capacity=1000)
    looks = 0

    class Counted(set[str]):
        def __contains__(self, name: object) -> bool:
            nonlocal looks
            looks += 1
            return super().__contains__(name)

    job.tried_workers = Counted(job.tried_workers)
    for group in job.queue._groups.values():
        group.excluded_workers = job.tried_workers
    for name in names[:100]:
        driver.scheduler.leave(name, driver.now_us)
        driver.turn()
    assert len(driver.scheduler.workers["heir"].leases) == 100
    assert looks < 10 * len(names), f"{looks} looks for 100 that left"


# -- restart ----------------------------------------------------------------------------------------------------------


class StoringDriver(SchedulerDriver):
    """Writes the changed rows, and restarts the scheduler from them."""

    def __init__(self, lease_s: float = LEASE_S) -> None:
        super().__init__(Scheduler(lease_us=int(lease_s * 1e6), keep_us=int(KEEP_S * 1e6)))
        self.disk = Disk()

    def turn(self) -> list[JobTask]:
        self.scheduler.lease_tasks(self.now_us)
        self.disk.take(self.scheduler.output)
        return super().turn()

    def restart(self, after_s: float = 0) -> None:
        self.now_us += int(after_s * 1e6)
        before = self.scheduler
        self.scheduler = Scheduler(lease_us=before.lease_us, keep_us=before.keep_us)
        self.scheduler.restore(self.disk.state(before.next_job), self.now_us)
        assert all(job.is_stored for job in self.scheduler.jobs.values())
        self.turn()


@pytest.mark.parametrize("lease_s", [LEASE_S, 200.0])
def test_a_worker_that_comes_back_continues_under_the_same_fence(lease_s: float) -> None:
    driver = StoringDriver(lease_s)
    driver.volunteer("anna", capacity=2)
    driver.submit(payload=b"payload")
    driver.restart(after_s=1000)
    driver.wait(max(RESTART_GRACE_S, lease_s) - 0.001)
    job = driver.scheduler.jobs[1]
    assert (job.payload, holders(job)) == (b"payload", ["anna"])
    assert driver.volunteer("anna", holding=[(1, 0, 1)], is_new_link=True) == []
    driver.finish(job.tasks[0])
    assert (job.state, job.tasks[0].fence, job.tasks[0].losses) == ("done", 1, 0)


def test_a_worker_that_does_not_come_back_loses_its_lease() -> None:
    driver = StoringDriver()
    driver.volunteer("anna")
    driver.submit()
    driver.restart()
    driver.volunteer("bert")
    driver.wait(RESTART_GRACE_S - 0.001, reporting=["bert"])
    task = driver.scheduler.jobs[1].tasks[0]
    assert task.worker == "anna"
    driver.wait(0.001, reporting=["bert"])
    assert (task.worker, task.losses, task.fence) == ("bert", 1, 2)


def test_leases_that_a_worker_does_not_hold_any_more_are_returned() -> None:
    driver = StoringDriver()
    driver.volunteer("anna", capacity=2)
    driver.submit()
    driver.submit()
    driver.restart()
    driver.volunteer("anna", capacity=2, holding=[(2, 0, 1)], is_new_link=True)
    first, second = (driver.scheduler.jobs[number].tasks[0] for number in (1, 2))
    assert (first.fence, second.fence, first.losses) == (2, 1, 0)


def test_another_instance_loses_the_leases_restored_for_the_one_before() -> None:
    driver = StoringDriver()
    driver.volunteer("anna", instance=b"run 1")
    driver.submit()
    driver.restart()
    assert driver.volunteer("anna", instance=b"run 2", holding=[(1, 0, 1)], is_new_link=True) == [(1, 0, 1)]
    task = driver.scheduler.jobs[1].tasks[0]
    assert (task.fence, task.losses) == (2, 1)


def test_tasks_that_were_never_leased_follow_from_the_agreed_number() -> None:
    driver = StoringDriver()
    for name in ("anna", "bert", "cleo"):
        driver.volunteer(name)
    driver.submit(workers=0)
    wide = driver.submit(workers=0)
    assert (wide.agreed, wide.leased) == (3, 0)
    assert not [key for key in driver.disk.tasks if key[0] == wide.number]
    driver.restart()
    again = driver.scheduler.jobs[wide.number]
    assert [(task.number, task.state) for task in again.tasks] == [(0, "waiting"), (1, "waiting"), (2, "waiting")]
    driver.volunteer("dora")
    assert holders(again) == ["dora"]


def test_jobs_that_waited_wait_on() -> None:
    driver = StoringDriver()
    for delay_ms in (0, 5000, 50_000):
        driver.submit(delay_ms=delay_ms, deadline_ms=100_000)
    driver.restart(after_s=10)
    assert [job.state for job in driver.scheduler.jobs.values()] == ["waiting"] * 3
    assert driver.scheduler.unsettled == 3
    driver.volunteer("anna", capacity=3)
    driver.wait(SETTLE_S)
    assert [job.state for job in driver.scheduler.jobs.values()] == ["running", "running", "waiting"]
    driver.wait(39, reporting=["anna"])
    assert [job.state for job in driver.scheduler.jobs.values()] == ["running"] * 3
    driver.wait(50, reporting=["anna"])
    assert {job.reason for job in driver.scheduler.jobs.values()} == {"the deadline passed"}


def test_time_passes_while_the_broker_is_stopped() -> None:
    driver = StoringDriver()
    driver.volunteer("anna", capacity=3)
    driver.submit(time_limit_ms=10_000, retries=0)
    driver.submit(deadline_ms=10_000)
    pausing = driver.submit(retry_delay_ms=10_000)
    driver.fail(pausing.tasks[0])
    driver.restart(after_s=9)
    states = [[task.state for task in job.tasks] for job in driver.scheduler.jobs.values()]
    assert states == [["leased"], ["leased"], ["waiting"]]
    driver.volunteer("bert")
    assert driver.wait(0.999) == []
    driver.wait(0.001)
    assert [job.state for job in driver.scheduler.jobs.values()] == ["failed", "failed", "running"]
    assert driver.scheduler.jobs[1].tasks[0].error == "took longer than 10 s"
    assert holders(driver.scheduler.jobs[3]) == ["bert"]


def test_no_worker_gets_a_job_twice_because_of_a_restart() -> None:
    driver = StoringDriver()
    driver.volunteer("anna")
    job = driver.submit(retry_delay_ms=0, retries=9)
    driver.volunteer("bert")
    driver.fail(job.tasks[0])
    assert job.tasks[0].worker == "bert"
    driver.fail(job.tasks[0])
    driver.scheduler.leave("anna", driver.now_us)
    driver.scheduler.leave("bert", driver.now_us)
    driver.turn()
    driver.restart()
    again = driver.scheduler.jobs[1]
    assert again.tried_workers == {"anna", "bert"}
    for name in ("anna", "bert", "cleo"):
        driver.volunteer(name, is_turn=False)
    assert driver.turn() == [again.tasks[0]]
    assert again.tasks[0].worker == "cleo"


def test_ended_jobs_are_known_until_their_time_is_over() -> None:
    driver = StoringDriver()
    driver.volunteer("anna", capacity=2)
    jobs = [driver.submit(key="a"), driver.submit(key="b"), driver.submit("paint", key="c")]
    driver.finish(jobs[1].tasks[0], b"result")
    driver.wait(5)
    driver.finish(jobs[0].tasks[0], b"result")
    driver.scheduler.cancel(jobs[2], "", driver.now_us)
    driver.turn()
    driver.restart()
    assert [job.state for job in driver.scheduler.jobs.values()] == ["done", "done", "cancelled"]
    assert driver.scheduler.unended == driver.scheduler.unsettled == 0
    assert all(job.state in ENDED for job in driver.scheduler.jobs.values())
    assert driver.scheduler.jobs[2].tasks[0].result == b"result"
    assert driver.scheduler.has_result((2, 0, 1), "anna")
    assert driver.submit(key="a") is driver.scheduler.jobs[1]
    assert not driver.scheduler._dispatcher.queues
    driver.wait(KEEP_S - 5)
    assert driver.deleted == [2]
    driver.wait(5)
    assert driver.deleted == [2, 1, 3]
    assert driver.submit().number == 4
