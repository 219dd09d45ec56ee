"""What is safe and what is not: the disk fails in every phase, and nothing is said that a crash would take back."""

from __future__ import annotations

import pytest
from tests.broker.durable import DurableWorld
from tests.broker.jobs.hands import Hand

from godwit.broker.settings import Settings
from godwit.limits import LEASE_S
from godwit.wire import jobs as j
from godwit.wire import work as w
from godwit.wire.control import Code


def pair(world: DurableWorld, *, capacity: int = 1) -> tuple[Hand, Hand]:
    ann, bob = Hand.of(world, "ann"), Hand.of(world, "bob", instance=b"b" * 16)
    bob.volunteer("resize", capacity=capacity)
    return ann, bob


def test_a_lease_that_the_disk_refuses_is_taken_back_and_given_out_anew() -> None:
    world = DurableWorld()
    ann, bob = Hand.of(world, "ann"), Hand.of(world, "bob")
    ann.submit("resize", b"x")
    bob.volunteer("resize")
    world.hold()
    world.pass_s(1)  # it settles
    world.keeping.is_full = True
    world.fail()
    world.pass_s(5)
    assert (bob.leases, ann.updates) == ([], [])
    assert world.keeping.of("job")[1].state == "waiting"
    world.keeping.is_full = False
    world.pass_s(1)
    assert bob.leases == [(1, 0, 2)]
    assert world.keeping.of("task")[1, 0].fence == 2
    assert ann.states[-1] == (1, "running")


def test_nothing_is_leased_while_the_disk_fails() -> None:
    """Who would get it could not be told; and its time would run."""
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x", b"y", time_limit_ms=2000, retries=0)
    world.keeping.is_full = True
    bob.finish(bob.leases[0])
    for _ in range(10):
        world.pass_s(1)
        bob.report()
    world.keeping.is_full = False
    world.pass_s(1)
    assert bob.leases == [(1, 0, 1), (2, 0, 2)]
    assert dict(ann.states) == {1: "done", 2: "running"}
    assert ann.updates[-1].tasks[0].failures == 0


@pytest.mark.parametrize("phase", ["submit", "lease", "result", "cancel"])
def test_a_crash_before_the_commit_takes_back_nothing_that_was_said(phase: str) -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    if phase != "submit":
        ann.submit("resize", b"x", b"y")
    world.hold()
    if phase == "submit":
        ann.submit("resize", b"x")
    elif phase == "cancel":
        ann.peer.say(j.Cancel(request=90, job=1))
    else:
        bob.finish(bob.leases[0])  # frees it for the next lease, too
    world.run()
    said = len(ann.peer.work) + len([one for one in bob.peer.work if isinstance(one[0], w.Lease)])
    world.restart()
    assert said == (0 if phase == "submit" else 2)
    ann, again = Hand.of(world, "ann"), Hand.of(world, "bob", instance=b"b" * 16)
    if phase == "submit":
        assert ann.watch(1) == [1]
        return
    assert ann.watch(1, 2) == []
    assert dict(ann.states) == {1: "running", 2: "running"}
    again.volunteer("resize", holding=[(1, 0, 1)])
    again.finish((1, 0, 1))
    again.finish(*again.leases)
    assert dict(ann.states) == {1: "done", 2: "done"}


def test_appends_under_way_are_safe_one_by_one() -> None:
    world = DurableWorld()
    ann, bob = pair(world, capacity=2)
    world.hold()
    ann.submit("resize", b"x")
    ann.submit("resize", b"y")
    world.log.commit(world.now_us)
    world.run()
    assert (ann.numbers, bob.leases, ann.confirmed) == ([1], [(1, 0, 1)], 1)
    world.log.commit(world.now_us)
    world.run()
    assert (ann.numbers, bob.leases, ann.confirmed) == ([1, 2], [(1, 0, 1), (2, 0, 1)], 2)


def test_what_is_behind_a_failure_fails_with_it_and_what_was_before_stays() -> None:
    world = DurableWorld()
    ann, bob = pair(world, capacity=3)
    world.hold()
    for payload in (b"x", b"y", b"z"):
        ann.submit("resize", payload)
    world.log.commit(world.now_us)
    world.fail()
    assert [(job.job, job.code) for job in ann.taken] == [(1, 0), (0, Code.STORAGE), (0, Code.STORAGE)]
    assert bob.leases == [(1, 0, 1)]
    assert set(world.keeping.of("job")) == {1}


def test_a_task_that_has_changed_again_is_not_told_before_that_is_safe() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x", workers=1, retry_delay_ms=60_000)
    told = len(ann.updates)
    world.hold()
    bob.report(outcomes=[w.Outcome(task=bob.leases[0], error="no")])
    ann.peer.say(j.Cancel(request=90, job=1))
    world.run()
    world.log.commit(world.now_us)
    world.run()
    assert ann.updates[told:] == []
    world.commit()
    (update,) = ann.updates[told:]
    assert (update.state, update.tasks[0].state, update.tasks[0].failures) == ("cancelled", "cancelled", 1)


def test_a_result_that_came_while_its_lease_was_told_is_not_told_early() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    eve = Hand.of(world, "eve")
    world.hold()
    bob.finish(*bob.leases, result=b"small")
    assert eve.watch(1) == []
    assert (eve.updates, eve.results) == ([], {})
    world.commit()
    assert eve.states == [(1, "done")]
    assert eve.results == {(1, 0): b"small"}


def test_a_job_goes_on_after_a_lasting_failure() -> None:
    """What the store can never take is given up; what it did not write is written with the next change."""
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x", workers=1)
    world.hold()
    bob.finish(*bob.leases)
    world.fail(is_lasting=True)
    world.pass_s(2)
    assert bob.confirmed == 1
    assert ann.states[-1] == (1, "done")
    ann.submit("resize", b"y")
    assert bob.leases[-1] == (2, 0, 1)


def test_a_sign_of_life_that_waited_for_a_failed_append_is_confirmed() -> None:
    """Nothing of it is to be written, so nothing else would bring it forward."""
    world = DurableWorld()
    _, bob = pair(world)
    alice = world.client("alice")
    channel = alice.open("news")
    world.hold()
    alice.publish(channel, b"x")
    record = bob.report()
    world.fail()
    assert bob.confirmed == record


def test_what_came_with_a_submission_that_failed_is_confirmed() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    world.hold()
    ann.submit("resize", b"x", run=False)
    record = bob.report()
    world.fail()
    world.pass_s(1)
    assert bob.confirmed == record


def test_tasks_are_leased_again_after_nothing_but_submissions_failed() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x", b"y")
    world.hold()
    ann.submit("resize", b"z")
    world.fail()
    dan = Hand.of(world, "dan")
    dan.volunteer("resize")
    world.pass_s(1)
    assert dan.leases == [(2, 0, 1)]
    assert bob.leases == [(1, 0, 1)]


def test_a_job_that_ends_with_its_submission_is_discarded_with_it() -> None:
    world = DurableWorld(Settings(job_keep_s=0))
    ann, _ = pair(world)
    world.hold()
    ann.submit("resize", b"x", deadline_ms=1)
    world.pass_s(1)
    assert len(world.log.waiting) > 1
    world.fail()
    assert [job.code for job in ann.taken] == [Code.STORAGE]
    world.pass_s(2)
    ledger = world.server.broker.jobs._ledger
    assert (ann.updates, world.keeping.of("job"), ledger._unsafe) == ([], {}, {})


def test_workers_are_not_lost_while_the_disk_fails() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    world.keeping.is_full = True
    for _ in range(int(LEASE_S / 5) * 2):
        world.pass_s(5)
        bob.report()
    assert bob.revoked == []
    bob.finish(*bob.leases)
    world.keeping.is_full = False
    world.pass_s(1)
    assert ann.states[-1] == (1, "done")
    assert world.keeping.of("task")[1, 0].losses == 0


def test_what_is_gone_is_gone_after_a_failure_too() -> None:
    world = DurableWorld(Settings(job_keep_s=5))
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    bob.finish(*bob.leases)
    world.hold()
    world.pass_s(6)
    world.fail()
    assert set(world.keeping.of("job")) == {1}
    world.pass_s(1)
    assert world.keeping.of("job") == world.keeping.of("task") == world.keeping.of("payload") == {}
