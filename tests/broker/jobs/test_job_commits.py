"""From the scheduler into the log: storing, sending and retries; and job events as messages on `$jobs/<kind>`."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.broker.durable import DurableWorld
from tests.broker.world import Peer, World
from tests.native.job_clients import JobClient, job_service

from godwit.broker.access import Access, Rule
from godwit.broker.jobs import job_commits
from godwit.broker.settings import Settings
from godwit.limits import LEASE_S
from godwit.wire import changes as ch
from godwit.wire import jobs as j
from godwit.wire import work as w
from godwit.wire.control_base import Code


def pair(world: DurableWorld, *, capacity: int = 1) -> tuple[JobClient, JobClient]:
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob", instance=b"b" * 16)
    bob.volunteer("resize", capacity=capacity)
    return ann, bob


def test_a_lease_that_the_disk_refuses_is_taken_back_and_given_out_anew() -> None:
    world = DurableWorld()
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
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
    """The worker could not be notified, and its lease time would run."""
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
        ann.peer.say(j.CancelJob(request=90, job=1))
    else:
        bob.finish(bob.leases[0])  # frees it for the next lease, too
    world.run()
    said = len(ann.peer.work) + len([one for one in bob.peer.work if isinstance(one[0], w.LeaseGroup)])
    world.restart()
    assert said == (0 if phase == "submit" else 2)
    ann, again = JobClient.of(world, "ann"), JobClient.of(world, "bob", instance=b"b" * 16)
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


def test_a_failure_ends_all_later_appends_and_no_earlier_one() -> None:
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


def test_a_task_that_has_changed_again_is_not_sent_before_it_is_stored() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x", workers=1, retry_delay_ms=60_000)
    told = len(ann.updates)
    world.hold()
    bob.report(outcomes=[w.TaskOutcome(task=bob.leases[0], error="no")])
    ann.peer.say(j.CancelJob(request=90, job=1))
    world.run()
    world.log.commit(world.now_us)
    world.run()
    assert ann.updates[told:] == []
    world.commit()
    (update,) = ann.updates[told:]
    assert (update.state, update.tasks[0].state, update.tasks[0].failures) == ("cancelled", "cancelled", 1)


def test_a_result_is_not_sent_early_with_the_update_of_its_lease() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    eve = JobClient.of(world, "eve")
    world.hold()
    bob.finish(*bob.leases, result=b"small")
    assert eve.watch(1) == []
    assert (eve.updates, eve.results) == ([], {})
    world.commit()
    assert eve.states == [(1, "done")]
    assert eve.results == {(1, 0): b"small"}


def test_a_job_continues_after_a_lasting_failure() -> None:
    """Changes that the store can never accept are dropped; the others are written with the next change."""
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
    """Its changes need no row, so no other append would confirm it."""
    world = DurableWorld()
    _, bob = pair(world)
    alice = world.client("alice")
    channel = alice.open("news")
    world.hold()
    alice.publish(channel, b"x")
    record = bob.report()
    world.fail()
    assert bob.confirmed == record


def test_a_record_with_a_failed_submission_is_confirmed() -> None:
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
    dan = JobClient.of(world, "dan")
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
    commits = job_service(world).commits
    assert (ann.updates, world.keeping.of("job"), commits._unstored) == ([], {}, {})


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


def test_deletions_are_written_after_a_failure() -> None:
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


# -- events -----------------------------------------------------------------------------------------------------------


def told(peer: Peer) -> list[dict[str, Any]]:
    return [msgspec.json.decode(got.payload) for got in peer.got]


@pytest.mark.parametrize("kind_of_world", [World, DurableWorld])
def test_subscribers_hear_everything_but_progress(kind_of_world: type[World]) -> None:
    world = kind_of_world()
    eve = world.client("eve")
    eve.subscribe("$jobs/#")
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
    bob.volunteer("print/colour")
    ann.submit("print/colour", b"x", retry_delay_ms=0)
    bob.fail(*bob.leases, error="out of ink")
    bob.finish(bob.leases[-1])
    assert [event["event"] for event in told(eve)] == ["submitted", "leased", "failed", "leased", "finished", "done"]
    assert {(got.topic, got.publisher, got.qos) for got in eve.got} == {("$jobs/print/colour", "$broker", 1)}
    assert told(eve)[2]["error"] == "out of ink"
    assert all(event["job"] == 1 and event["controller"] == "ann" for event in told(eve))


def test_a_turn_is_one_batch_of_each_kind_in_the_same_append_as_the_change() -> None:
    world = DurableWorld()
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
    bob.volunteer("a", "b", capacity=9)
    ann.submit("a", b"1", b"2", run=False)
    ann.submit("b", b"3")
    entries, changes = world.keeping.appends[-1]
    assert [(entry.topic, entry.count) for entry in entries] == [("$jobs/a", 4), ("$jobs/b", 2)]
    kept = [change.job for change in changes if isinstance(change, ch.JobRow)]
    assert kept == [1, 2, 3]
    assert [type(change) for change in changes if not isinstance(change, ch.TopicRow)] == [
        ch.NextJobRow, *[ch.JobRow] * 3,
    ]  # fmt: skip


def test_very_many_events_are_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_commits, "MESSAGES_PER_BATCH", 4)
    world = DurableWorld()
    ann = JobClient.of(world, "ann")
    ann.submit("a", *(b"%d" % number for number in range(10)))
    entries, _ = world.keeping.appends[-1]
    assert [entry.count for entry in entries] == [4, 4, 2]
    eve = world.client("eve")
    eve.subscribe("$jobs/a", start="earliest")
    assert [event["job"] for event in told(eve)] == list(range(1, 11))


def test_events_of_an_append_that_failed_are_written_with_the_change_later() -> None:
    world = DurableWorld()
    eve = world.client("eve")
    eve.subscribe("$jobs/#")
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    before = len(eve.got)
    world.hold()
    bob.finish(*bob.leases)
    world.fail()
    assert len(eve.got) == before
    ann.submit("resize", b"y")  # is written with the next append
    assert [(event["job"], event["event"]) for event in told(eve)[before:]] == [
        (1, "finished"), (1, "done"), (2, "submitted"), (2, "leased"),
    ]  # fmt: skip
    assert world.keeping.of("job")[1].state == "done"


def test_a_discarded_job_has_no_events() -> None:
    world = DurableWorld()
    eve = world.client("eve")
    eve.subscribe("$jobs/#")
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
    bob.volunteer("resize", capacity=2)
    ann.submit("resize", b"x")
    world.hold()
    bob.finish(*bob.leases, run=False)
    ann.submit("resize", b"y")
    world.fail()
    world.pass_s(2)
    assert [(event["job"], event["event"]) for event in told(eve)] == [
        (1, "submitted"), (1, "leased"), (1, "finished"), (1, "done"),
    ]  # fmt: skip


def test_the_right_to_subscribe_is_needed() -> None:
    rules = (
        Rule(clients=("*",), allow=frozenset(("submit",)), topics=("#",)),
        Rule(clients=("*",), allow=frozenset(("subscribe",)), topics=("#", "$jobs/open")),
    )
    world = World(Settings(access=Access(rules=rules)))
    eve = world.client("eve")
    assert eve.refused_subscribe("$jobs/#") == Code.NOT_ALLOWED
    eve.subscribe("$jobs/open")
    eve.subscribe("#")
    ann = JobClient.of(world, "ann")
    ann.submit("open", b"x")
    ann.submit("secret", b"x")
    assert [event["job"] for event in told(eve)] == [1]


@pytest.mark.parametrize("policy", ["open", "publishers", "explicit"])
def test_a_kind_can_be_subscribed_to_before_the_first_job(policy: str) -> None:
    world = World(Settings(default_policy=policy))  # type: ignore[arg-type]
    eve = world.client("eve")
    eve.subscribe("$jobs/resize")
    JobClient.of(world, "ann").submit("resize", b"x")
    assert [event["event"] for event in told(eve)] == ["submitted"]


def test_no_client_publishes_below_jobs() -> None:
    eve = World().client("eve")
    assert eve.refused_open("$jobs/resize") == Code.NOT_ALLOWED
