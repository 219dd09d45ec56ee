"""Jobs through the whole broker: clients that come and go, rights, and restarts."""

from __future__ import annotations

import pytest
from tests.broker.durable import DurableWorld
from tests.broker.world import World
from tests.native.job_clients import JobClient, job_service

from godwit.broker.access import Access, Rule
from godwit.broker.session import made_name
from godwit.broker.settings import Settings
from godwit.limits import JOB_KEEP_S, LEASE_S, RESTART_GRACE_S, SETTLE_S
from godwit.wire import control as c
from godwit.wire import jobs as j
from godwit.wire.control_base import Code

ONE_RUN = b"1" * 16
ANOTHER_RUN = b"2" * 16


def pair(world: World, *, capacity: int = 1) -> tuple[JobClient, JobClient]:
    """A controller, and a worker for `resize`."""
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob", instance=ONE_RUN)
    bob.volunteer("resize", capacity=capacity)
    return ann, bob


@pytest.mark.parametrize("kind_of_world", [World, DurableWorld])
def test_a_job_from_submission_to_result(kind_of_world: type[World]) -> None:
    world = kind_of_world()
    ann, bob = pair(world)
    ann.submit("resize", b"picture")
    assert [(job.key, job.agreed) for job in ann.taken] == [("picture", 1)]
    assert bob.payloads == [b"picture"]
    world.pass_s(0.3)
    assert ann.updates[-1].tasks[0].worker == "bob"
    bob.finish(*bob.leases, result=b"small")
    assert ann.states[-1] == (1, "done")
    assert ann.results == {(1, 0): b"small"}
    assert (ann.confirmed, bob.confirmed) == (1, 1)
    assert ann.peer.closed is bob.peer.closed is None


def test_all_volunteers_get_a_task_of_a_job_for_all() -> None:
    world = World()
    ann, bob = pair(world)
    dan = JobClient.of(world, "dan")
    dan.volunteer("resize", "other")
    ann.submit("resize", b"x", workers=0)
    assert ann.taken[0].agreed == 2
    assert sorted(bob.leases + dan.leases) == [(1, 0, 1), (1, 1, 1)]


def test_a_job_without_workers_waits_also_through_a_restart() -> None:
    world = DurableWorld()
    ann = JobClient.of(world, "ann")
    ann.submit("resize", b"x", workers=3)
    assert ann.taken[0].agreed is None
    world.restart()
    bob = JobClient.of(world, "bob")
    bob.volunteer("resize")
    assert bob.leases == []
    ann = JobClient.of(world, "ann")
    assert ann.watch(1) == []
    assert ann.states == [(1, "waiting")]
    world.pass_s(SETTLE_S)
    assert bob.leases == [(1, 0, 1)]
    assert (ann.updates[-1].state, ann.updates[-1].agreed) == ("running", 1)


def test_numbers_are_never_used_twice() -> None:
    world = DurableWorld(Settings(job_keep_s=0))
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    bob.finish(*bob.leases)
    world.pass_s(1)
    assert world.keeping.of("job") == {}
    world.restart()
    ann = JobClient.of(world, "ann")
    ann.submit("resize", b"x")
    assert ann.numbers == [2]


def test_a_job_that_is_deleted_at_once_is_sent_with_its_results() -> None:
    world = DurableWorld(Settings(job_keep_s=0))
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    bob.finish(*bob.leases, result=b"small")
    world.pass_s(1)
    assert ann.states[-1] == (1, "done")
    assert ann.results == {(1, 0): b"small"}


def test_an_ended_job_is_kept_for_a_while() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    bob.finish(*bob.leases)
    bob.volunteer()
    world.pass_s(JOB_KEEP_S - 1)
    assert ann.watch(1) == []
    assert set(world.keeping.of("job")) == {1}
    world.pass_s(2)
    assert ann.watch(1) == [1]
    assert world.keeping.of("job") == world.keeping.of("payload") == world.keeping.of("task") == {}


# -- workers that go and come -----------------------------------------------------------------------------------------


def test_a_worker_that_closes_its_connection_returns_its_tasks() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    dan = JobClient.of(world, "dan")
    ann.submit("resize", b"x")
    dan.volunteer("resize")
    bob.peer.leave()
    assert dan.leases == [(1, 0, 2)]
    assert world.keeping.of("task")[1, 0].losses == 0


def test_a_worker_that_dies_holds_its_tasks_until_its_lease_time_ends() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    dan = JobClient.of(world, "dan")
    ann.submit("resize", b"x")
    dan.volunteer("resize")
    world.pass_s(LEASE_S / 2)
    dan.report()
    bob.peer.die()
    world.pass_s(LEASE_S / 2 - 1)
    dan.report()
    assert dan.leases == []
    world.pass_s(1)
    assert dan.leases == [(1, 0, 2)]
    assert world.keeping.of("task")[1, 0].losses == 1
    assert ann.updates[-1].tasks[0].losses == 1


def test_a_worker_that_comes_back_continues_its_tasks() -> None:
    world = DurableWorld()
    ann, bob = pair(world, capacity=2)
    ann.submit("resize", b"x", b"y")
    held, lost = bob.leases
    bob.peer.die()
    bob = JobClient.of(world, "bob", instance=ONE_RUN)
    bob.volunteer("resize", capacity=2, holding=[held])
    assert bob.leases == [(*lost[:2], 2)]
    bob.finish(held, (*lost[:2], 2))
    assert [state for _, state in ann.states][-2:] == ["done", "done"]


def test_another_instance_of_a_worker_has_no_leases_of_the_one_before() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    bob.peer.die()
    again = JobClient.of(world, "bob", instance=ANOTHER_RUN)
    assert world.keeping.of("task")[1, 0].losses == 1
    again.volunteer("resize")
    assert again.leases == [(1, 0, 2)]


def test_a_name_that_is_taken_over_by_the_same_run_keeps_its_tasks() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    again = JobClient.of(world, "bob", instance=ONE_RUN)
    assert bob.peer.end == Code.TAKEN_OVER
    again.volunteer("resize", holding=bob.leases)
    again.finish(*bob.leases, result=b"done")
    assert ann.results == {(1, 0): b"done"}
    assert world.keeping.of("task")[1, 0].fence == 1


def test_a_name_that_is_taken_over_by_another_run_loses_its_tasks() -> None:
    secrets = {"bob": b"secret of bob's"}
    access = Access(secrets=secrets, rules=(Rule(clients=("*",), allow=frozenset(("submit", "work")), topics=("#",)),))
    world = DurableWorld(Settings(access=access))
    ann = JobClient.of(world, "ann")
    bob = JobClient.of(world, "bob", instance=ONE_RUN, secret=secrets["bob"])
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    again = JobClient.of(world, "bob", instance=ANOTHER_RUN, secret=secrets["bob"])
    assert bob.peer.end == Code.TAKEN_OVER
    again.volunteer("resize", holding=bob.leases)
    assert again.revoked == bob.leases
    assert again.leases == [(1, 0, 2)]
    assert world.keeping.of("task")[1, 0].losses == 1


def test_nameless_clients_keep_their_name_after_a_lost_connection() -> None:
    world = DurableWorld()
    ann, bob = JobClient.of(world, None, instance=b"a" * 16), JobClient.of(world, None, instance=b"b" * 16)
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    kept = world.keeping.of("job")[1]
    assert kept.controller == made_name(b"a" * 16)
    ann.peer.die()
    bob.peer.die()
    ann, again = JobClient.of(world, None, instance=b"a" * 16), JobClient.of(world, None, instance=b"b" * 16)
    assert ann.watch(1) == []
    again.volunteer("resize", holding=bob.leases)
    again.finish(*bob.leases)
    assert ann.states[-1] == (1, "done")


def test_the_second_connection_of_a_nameless_worker_takes_over_from_the_first() -> None:
    world = DurableWorld()
    ann = JobClient.of(world, "ann")
    first = JobClient.of(world, None, instance=b"b" * 16)
    first.volunteer("resize")
    second = JobClient.of(world, None, instance=b"b" * 16)
    assert first.peer.end is Code.TAKEN_OVER
    second.volunteer("resize")
    ann.submit("resize", b"x")
    assert second.leases == [(1, 0, 1)]
    second.peer.die()
    assert ann.taken[0].agreed == 1


def test_a_kicked_worker_hands_its_tasks_back() -> None:
    world = DurableWorld()
    ann, _ = pair(world)
    dan = JobClient.of(world, "dan")
    ann.submit("resize", b"x")
    dan.volunteer("resize")
    ann.peer.expect(c.Kick(request=90, client="bob"), c.Done)
    assert dan.leases == [(1, 0, 2)]
    task = world.keeping.of("task")[1, 0]
    assert (task.losses, task.failures) == (0, 0)


def test_a_worker_that_left_its_tasks_behind_can_be_kicked() -> None:
    world = DurableWorld()
    ann = JobClient.of(world, "ann")
    bob = JobClient.of(world, "bob", session_expiry_s=1000)
    bob.peer.subscribe("news")
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    bob.peer.die()
    dan = JobClient.of(world, "dan")
    dan.volunteer("resize")
    assert dan.leases == []
    ann.peer.expect(c.Kick(request=90, client="bob"), c.Done)
    assert dan.leases == [(1, 0, 2)]


def test_a_worker_that_never_reports_loses_its_tasks_and_gets_no_more() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    world.pass_s(LEASE_S)
    assert bob.revoked == bob.leases == [(1, 0, 1)]
    assert world.told("silent") == [f"bob reported nothing for {LEASE_S:g} s: its tasks go to others"]
    ann.submit("resize", b"y")
    assert ann.taken[-1].agreed is None
    bob.report()
    assert bob.leases[1:] == [(1, 0, 2)]


# -- a restart --------------------------------------------------------------------------------------------------------


def test_a_restart_repeats_no_finished_task_and_loses_no_job() -> None:
    world = DurableWorld()
    ann, bob = pair(world, capacity=2)
    ann.submit("resize", b"x", workers=1)
    ann.submit("resize", b"y", b"z")
    bob.finish(bob.leases[0], result=b"small")
    held = bob.leases[1:]
    world.restart()
    ann, again = JobClient.of(world, "ann"), JobClient.of(world, "bob", instance=ONE_RUN)
    assert ann.watch(1, 2, 3) == []
    assert ann.results == {(1, 0): b"small"}
    again.volunteer("resize", capacity=2, holding=held)
    assert again.leases == again.revoked == []
    again.finish(*held)
    assert dict(ann.states) == {1: "done", 2: "done", 3: "done"}


def test_a_worker_that_does_not_come_back_after_a_restart_loses_its_tasks() -> None:
    world = DurableWorld()
    ann, _ = pair(world)
    ann.submit("resize", b"x")
    world.restart()
    dan = JobClient.of(world, "dan")
    dan.volunteer("resize")
    for _ in range(int(RESTART_GRACE_S // 10) - 1):
        world.pass_s(10)
        dan.report()
    assert dan.leases == []
    world.pass_s(10)
    assert dan.leases == [(1, 0, 2)]


def test_a_broker_that_is_stopped_keeps_leases_for_its_successor() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    world.server.close(world.now)
    for hand in (ann, bob):
        hand.peer.leave(Code.SHUTDOWN, "local")
    world.restart()
    again = JobClient.of(world, "bob", instance=ONE_RUN)
    again.volunteer("resize", holding=bob.leases)
    again.finish(*bob.leases)
    assert world.keeping.of("job")[1].state == "done"


# -- new rules --------------------------------------------------------------------------------------------------------


def allowing(*rules: tuple[str, str, str]) -> Settings:
    """Of triples: clients, action, filter."""
    secrets = {name: name.encode() for name in ("ann", "bob", "eve")}
    made = tuple(Rule(clients=(who,), allow=frozenset((what,)), topics=(where,)) for who, what, where in rules)  # type: ignore[arg-type]
    return Settings(access=Access(secrets=secrets, rules=made))


def test_a_client_that_may_no_longer_work_loses_the_kind_and_its_tasks() -> None:
    world = DurableWorld(allowing(("ann", "submit", "#"), ("bob", "work", "#")))
    ann, bob = JobClient.of(world, "ann", secret=b"ann"), JobClient.of(world, "bob", secret=b"bob")
    bob.volunteer("resize", "scan", capacity=4)
    ann.submit("resize", b"x")
    ann.submit("scan", b"y")
    world.server.change_settings(allowing(("ann", "submit", "#"), ("bob", "work", "scan")))
    world.run()
    assert bob.revoked == [(1, 0, 1)]
    assert world.told("withdrew") == ["bob may no longer work on resize"]
    assert world.keeping.of("task")[1, 0].state == "waiting"
    assert world.keeping.of("task")[2, 0].state == "leased"


def test_a_client_that_may_no_longer_see_a_job_is_notified_once() -> None:
    seen = ("eve", "subscribe", "$jobs/#")
    rules = (("ann", "submit", "#"), ("bob", "work", "#"))
    world = DurableWorld(allowing(*rules, seen))
    ann, bob, eve = (JobClient.of(world, name, secret=name.encode()) for name in ("ann", "bob", "eve"))
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    assert eve.watch(1) == []
    assert eve.states == [(1, "running")]
    world.server.change_settings(allowing(*rules))
    world.run()
    bob.finish(*bob.leases)
    assert eve.states == [(1, "running")]
    assert j.WatchReply(request=j.UNASKED, unknown=[1]) in eve.peer.said
    assert ann.states[-1] == (1, "done")


def test_figures_of_work_stand_under_sys() -> None:
    world = World(Settings(sys_interval_s=1))
    ann, _ = pair(world)
    ann.submit("resize", b"x", b"y")
    ann.submit("other", b"z")
    figures = world.server.broker.figures()
    names = ("jobs/waiting", "jobs/running", "tasks/leased", "workers")
    assert [figures[name] for name in names] == [1, 2, 1, 1]
    eve = world.client("eve")
    eve.subscribe("$sys/jobs/#")
    assert sorted((got.topic, got.payload) for got in eve.got) == [
        ("$sys/jobs/running", b"0"),
        ("$sys/jobs/waiting", b"0"),
    ]
    world.pass_s(1)
    assert sorted((got.topic, got.payload) for got in eve.got[2:]) == [
        ("$sys/jobs/running", b"2"),
        ("$sys/jobs/waiting", b"1"),
    ]


def test_the_job_part_is_inactive_without_jobs() -> None:
    world = World()
    alice = world.client("alice")
    channel = alice.open("news")
    alice.publish(channel, b"x")
    assert not job_service(world).activity.is_active
    assert job_service(world).commits.last_turn == 0
    assert job_service(world).due_us is None


def test_a_second_channel_for_work_closes_the_connection() -> None:
    world = World()
    ann = JobClient.of(world, "ann")
    JobClient(ann.peer)
    assert ann.peer.end == Code.PROTOCOL
    assert isinstance(ann.peer.said[0], c.Welcome)


def test_the_requests_need_a_login() -> None:
    peer = World().peer()
    assert peer.refusal(j.Volunteer(request=1, kinds=["resize"])) == Code.NOT_LOGGED_IN
