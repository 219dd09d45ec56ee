"""Workers: they volunteer, fall silent, go, come back, come as another run, and lose the right to work."""

from __future__ import annotations

from tests.broker.jobs.benches import LEASE_S, Bench, holders


def test_what_a_worker_says_replaces_what_it_said() -> None:
    bench = Bench()
    bench.volunteer("anna", ["cut", "cut", "paint"], capacity=1)
    assert bench.board.workers["anna"].kinds == ("cut", "paint")
    bench.volunteer("anna", ["paint", "glue"], capacity=2)
    assert holders(bench.submit("paint")) == ["anna"]
    assert holders(bench.submit("glue")) == ["anna"]
    assert bench.submit("cut").state == "waiting"


def test_who_withdraws_keeps_what_it_has_and_gets_nothing_new() -> None:
    for is_by_volunteering in (True, False):
        bench = Bench()
        bench.volunteer("anna", capacity=2)
        job = bench.submit()
        if is_by_volunteering:
            bench.volunteer("anna", [], capacity=1)
        else:
            bench.board.withdraw("anna", None, bench.now_us)
        late = bench.submit()
        assert (holders(job), late.state) == (["anna"], "waiting")
        bench.finish(job.tasks[0])
        assert job.state == "done"
        assert not bench.board.workers, "nothing is known of it that matters"


def test_who_says_goodbye_hands_back_what_it_has() -> None:
    bench = Bench()
    bench.volunteer("anna", capacity=3)
    jobs = [bench.submit() for _ in range(3)]
    bench.volunteer("bert", capacity=2)
    bench.told()
    bench.board.leave("anna", bench.now_us)
    leased = bench.turn()
    assert {task.worker for task in leased} == {"bert"}
    assert len(leased) == 2
    assert bench.told() == ["returned"] * 3 + ["leased"] * 2
    assert [job.tasks[0].losses for job in jobs] == [0, 0, 0]
    assert set(bench.board.workers) == {"bert"}
    assert bench.revoked == []


def test_who_loses_its_connection_has_a_while_to_come_back() -> None:
    bench = Bench()
    bench.volunteer("anna")
    job = bench.submit()
    bench.wait(10)
    bench.board.heard("anna", bench.now_us)
    bench.board.away("anna", bench.now_us)
    assert bench.submit().state == "waiting", "it is no volunteer for now"
    bench.wait(LEASE_S - 0.001)
    assert holders(job) == ["anna"]
    assert bench.volunteer("anna", holding=[(1, 0, 1)], is_new_link=True) == []
    bench.wait(60, heard=["anna"])
    assert (job.tasks[0].fence, job.tasks[0].losses) == (1, 0)


def test_who_does_not_come_back_in_time_loses_what_it_has() -> None:
    bench = Bench()
    bench.volunteer("anna")
    job = bench.submit()
    bench.board.away("anna", bench.now_us)
    bench.volunteer("bert")
    bench.told()
    assert bench.wait(LEASE_S - 0.001, heard=["bert"]) == []
    assert bench.wait(0.001, heard=["bert"]) == [job.tasks[0]]
    assert (holders(job), job.tasks[0].losses, job.tasks[0].fence) == (["bert"], 1, 2)
    assert bench.told() == ["lost", "leased"]
    assert set(bench.board.workers) == {"bert"}
    assert bench.revoked == [], "there is nobody to tell"
    assert bench.volunteer("anna", holding=[(1, 0, 1)], is_new_link=True) == [(1, 0, 1)]


def test_a_worker_that_reports_nothing_loses_all_and_is_no_volunteer() -> None:
    bench = Bench()
    bench.volunteer("anna", capacity=2)
    jobs = [bench.submit(), bench.submit()]
    bench.volunteer("bert", capacity=1)
    bench.wait(LEASE_S - 0.001, heard=["bert"])
    assert holders(jobs[0]) == ["anna"]
    bench.board.on_time(bench.now_us + 1000)
    assert bench.board.silent == ["anna"]
    bench.now_us += 1000
    bench.turn()
    assert [job.tasks[0].losses for job in jobs] == [1, 1]
    assert [(name, ref) for name, ref, _ in bench.revoked] == [("anna", (1, 0, 1)), ("anna", (2, 0, 1))]
    assert (holders(jobs[0]), holders(jobs[1])) == (["bert"], [])
    assert bench.submit(workers=0).agreed == 1


def test_any_report_renews_all_leases() -> None:
    bench = Bench()
    bench.volunteer("anna", capacity=2)
    jobs = [bench.submit(), bench.submit()]
    bench.wait(LEASE_S * 20, heard=["anna"])
    assert [job.tasks[0].fence for job in jobs] == [1, 1]


def test_a_silent_worker_is_a_volunteer_again_when_it_reports() -> None:
    bench = Bench()
    bench.volunteer("anna", capacity=2)
    bench.wait(LEASE_S * 3)
    bench.board.heard("anna", bench.now_us)
    assert holders(bench.submit()) == ["anna"]
    bench.wait(LEASE_S - 0.001)
    assert holders(bench.board.jobs[1]) == ["anna"]
    bench.board.heard("nobody", bench.now_us)
    assert set(bench.board.workers) == {"anna"}


def test_a_silent_worker_can_be_taken_a_kind_and_can_go() -> None:
    bench = Bench()
    bench.volunteer("anna", ["cut", "paint"])
    bench.wait(LEASE_S)
    bench.board.withdraw("anna", ["cut"], bench.now_us)
    assert bench.submit("paint").state == "waiting", "it is still silent"
    bench.board.heard("anna", bench.now_us)
    assert [queue.kind for queue in bench.board.workers["anna"].queues] == ["paint"]
    bench.wait(LEASE_S)
    bench.board.away("anna", bench.now_us)
    assert not bench.board.workers
    assert not [at_us for at_us in [bench.board.next_timer_us] if at_us is not None]


def test_another_run_of_a_worker_has_lost_what_the_one_before_had() -> None:
    bench = Bench()
    bench.volunteer("anna", instance=b"run 1")
    job = bench.submit()
    bench.told()
    assert bench.volunteer("anna", instance=b"run 2", holding=[(1, 0, 1)], is_new_link=True) == [(1, 0, 1)]
    task = job.tasks[0]
    assert (task.losses, task.fence, task.instance) == (1, 2, b"run 2")
    assert bench.told() == ["lost", "leased"]
    assert bench.revoked == []


def test_a_run_that_only_logs_in_displaces_another_one() -> None:
    bench = Bench()
    bench.volunteer("anna", instance=b"run 1")
    job = bench.submit()
    bench.board.logged_in("anna", b"run 1", bench.now_us)
    bench.board.logged_in("nobody", b"run 1", bench.now_us)
    assert holders(job) == ["anna"]
    bench.board.logged_in("anna", b"run 2", bench.now_us)
    assert bench.turn() == []
    assert (holders(job), job.tasks[0].losses) == ([], 1)
    assert not bench.board.workers


def test_a_lease_that_was_lost_on_the_way_goes_back_on_a_new_connection_only() -> None:
    bench = Bench()
    bench.volunteer("anna", capacity=2)
    jobs = [bench.submit(), bench.submit()]
    bench.volunteer("anna", capacity=2, holding=[], is_new_link=False)
    assert [job.tasks[0].fence for job in jobs] == [1, 1], "leases may be under way"
    bench.told()
    bench.volunteer("anna", capacity=2, holding=[(1, 0, 1)], is_new_link=True)
    assert [job.tasks[0].fence for job in jobs] == [1, 2]
    assert [(job.tasks[0].failures, job.tasks[0].losses) for job in jobs] == [(0, 0), (0, 0)]
    assert bench.told() == ["returned", "leased"]


def test_a_worker_hears_which_of_its_leases_it_does_not_have() -> None:
    bench = Bench()
    bench.volunteer("anna", capacity=3)
    jobs = [bench.submit(retries=0) for _ in range(3)]
    bench.finish(jobs[0].tasks[0])
    bench.fail(jobs[1].tasks[0])
    held = [(1, 0, 1), (2, 0, 1), (3, 0, 1), (3, 0, 2), (3, 7, 1), (9, 0, 1)]
    unknown = bench.volunteer("anna", capacity=3, holding=held)
    assert unknown == [(2, 0, 1), (3, 0, 2), (3, 7, 1), (9, 0, 1)], "not the one whose result is known"


def test_who_loses_the_right_to_a_kind_loses_its_tasks_of_it() -> None:
    bench = Bench()
    bench.volunteer("anna", ["cut", "paint"], capacity=4)
    cut, paint = bench.submit("cut"), bench.submit("paint")
    bench.told()
    bench.board.withdraw("anna", ["cut"], bench.now_us)
    bench.turn()
    assert (holders(cut), holders(paint)) == ([], ["anna"])
    assert bench.revoked == [("anna", (1, 0, 1), "it may not do this kind of work any more")]
    assert bench.told() == ["returned"]
    bench.board.withdraw("anna", ["paint"], bench.now_us)
    bench.board.withdraw("nobody", None, bench.now_us)
    bench.board.leave("nobody", bench.now_us)
    bench.board.away("nobody", bench.now_us)
    assert not bench.board.workers


def test_a_longer_lease_holds_for_all_at_once() -> None:
    bench = Bench()
    bench.volunteer("anna")
    job = bench.submit()
    bench.board.change(lease_us=60_000_000, keep_us=1)
    assert bench.board.lease_us == 60_000_000
    bench.wait(59.999)
    assert holders(job) == ["anna"]
    bench.wait(0.001)
    assert job.tasks[0].losses == 1


def test_a_shorter_lease_holds_for_those_who_were_told() -> None:
    bench = Bench()
    bench.volunteer("anna")
    job = bench.submit()
    bench.board.change(lease_us=6_000_000, keep_us=1)
    bench.wait(20)
    bench.board.heard("anna", bench.now_us)
    bench.wait(LEASE_S - 0.001)
    assert holders(job) == ["anna"], "it reports as often as it was told"
    bench.volunteer("anna", holding=[(1, 0, 1)])
    bench.wait(5.999)
    assert holders(job) == ["anna"]
    bench.wait(0.001)
    assert job.tasks[0].losses == 1


def test_to_leave_costs_the_same_whoever_else_is_there() -> None:
    """Counted in looks at names, not in time."""
    bench = Bench()
    names = [f"worker {number}" for number in range(2000)]
    for name in names:
        bench.volunteer(name, is_turn=False)
    job = bench.submit(workers=0)
    assert job.leased == len(names)
    bench.volunteer("heir", capacity=1000)
    looks = 0

    class Counted(set[str]):
        def __contains__(self, name: object) -> bool:
            nonlocal looks
            looks += 1
            return super().__contains__(name)

    job.had = Counted(job.had)
    for line in job.queue._lines.values():
        line.had = job.had
    for name in names[:100]:
        bench.board.leave(name, bench.now_us)
        bench.turn()
    assert len(bench.board.workers["heir"].leases) == 100
    assert looks < 10 * len(names), f"{looks} looks for 100 that left"
