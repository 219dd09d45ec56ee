"""Requests about work: volunteer, watch, unwatch, cancel, and who may."""

from __future__ import annotations

import pytest
from tests.broker.durable import DurableWorld
from tests.broker.jobs.hands import Hand
from tests.broker.world import World

from godwit.broker.access import Access, Rule
from godwit.broker.jobs import telling
from godwit.broker.settings import Settings
from godwit.limits import LEASE_S, MAX_CAPACITY, MAX_JOB_PAYLOAD_BYTES
from godwit.wire import control as c
from godwit.wire import jobs as j
from godwit.wire.control import Code

SECRETS = {name: name.encode() for name in ("ann", "bob", "eve", "root")}


def guarded() -> World:
    """Ann submits, bob works, eve may look on, root may kick; nobody may do more."""
    rules = (
        Rule(clients=("ann",), allow=frozenset(("submit",)), topics=("#",)),
        Rule(clients=("bob",), allow=frozenset(("work",)), topics=("resize", "scan")),
        Rule(clients=("eve",), allow=frozenset(("subscribe",)), topics=("$jobs/#",)),
        Rule(clients=("root",), allow=frozenset(("kick", "subscribe")), topics=("$jobs/#",)),
    )
    return DurableWorld(Settings(access=Access(secrets=SECRETS, rules=rules)))


def hand(world: World, name: str) -> Hand:
    return Hand.of(world, name, secret=SECRETS.get(name, b""))


def cancel(who: Hand, number: int, reason: str = "") -> c.ControlMessage:
    return who.peer.ask(j.Cancel(request=who.peer.number(), job=number, reason=reason))


# -- volunteer ---------------------------------------------------------------------------------------------------------


def test_a_volunteer_learns_how_long_it_may_be_silent() -> None:
    world = World()
    bob = Hand.of(world, "bob")
    assert bob.volunteer("resize", "scan", capacity=3).lease_ms == LEASE_S * 1000
    assert world.told("volunteered") == ["bob volunteered for resize, scan, 3 at once"]


def test_people_are_told_of_what_is_new_alone() -> None:
    world = World()
    bob = Hand.of(world, "bob")
    bob.volunteer("resize")
    bob.volunteer("resize")
    bob.volunteer()
    bob.volunteer()
    assert world.told("volunteered") == ["bob volunteered for resize, 1 at once"]
    assert world.told("withdrew") == ["bob withdrew: it takes no more tasks"]


def test_who_withdraws_keeps_what_it_has_and_gets_no_more() -> None:
    world = DurableWorld()
    ann, bob = Hand.of(world, "ann"), Hand.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"x", b"y")
    bob.volunteer()
    bob.finish(*bob.leases)
    assert bob.leases == [(1, 0, 1)]
    assert ann.states[-1] == (1, "done")
    bob.volunteer("resize")
    assert bob.leases[1:] == [(2, 0, 1)]


def test_leases_under_way_are_no_reason_to_take_them_back() -> None:
    """On the same connection what it holds is not looked at for that: it may not have heard of them yet."""
    world = DurableWorld()
    ann, bob = Hand.of(world, "ann"), Hand.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    bob.volunteer("resize", capacity=2)
    assert bob.revoked == []
    bob.finish((1, 0, 1))
    assert ann.states[-1] == (1, "done")


def test_what_it_believes_to_hold_and_does_not_is_revoked() -> None:
    bob = Hand.of(World(), "bob")
    bob.volunteer("resize", holding=[(7, 0, 1), (8, 2, 3)])
    assert bob.revoked == [(7, 0, 1), (8, 2, 3)]


def test_a_volunteer_that_takes_nothing_is_refused_at_last() -> None:
    world = World()
    ann, bob = Hand.of(world, "ann"), Hand.of(world, "bob")
    bob.volunteer("resize")
    bob.peer.confirms_itself = False
    ann.submit("resize", bytes(MAX_JOB_PAYLOAD_BYTES), keys=["fills the window"])
    believed = [(job, 0, 1) for job in range(100, 100 + MAX_CAPACITY)]
    for _ in range(5):
        bob.volunteer("resize", holding=believed)
    request = j.Volunteer(request=90, kinds=["resize"], holding=believed)
    assert bob.peer.refusal(request) == Code.TOO_MANY
    bob.peer.confirms_itself = True
    world.run()
    assert bob.revoked == believed * 5
    bob.volunteer("resize")


@pytest.mark.parametrize(("kind", "code"), [("secret", Code.NOT_ALLOWED), ("#", Code.BAD_KIND)])
def test_a_volunteer_for_what_it_may_not_or_cannot_do_is_refused(kind: str, code: Code) -> None:
    bob = hand(guarded(), "bob")
    assert bob.peer.refusal(j.Volunteer(request=5, kinds=["resize", kind])) == code


# -- watch -------------------------------------------------------------------------------------------------------------


def test_a_watcher_is_told_how_it_stands_then_what_changes_until_it_ends() -> None:
    world = DurableWorld()
    ann, bob, eve = (Hand.of(world, name) for name in ("ann", "bob", "eve"))
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    assert eve.watch(1, 1) == []
    assert eve.states == [(1, "running")]
    bob.finish(*bob.leases, result=b"small")
    assert eve.states == [(1, "running"), (1, "done")]
    assert eve.results == {(1, 0): b"small"}
    link = world.server.broker.sessions["eve"].peer
    assert link is not None
    assert link.party is not None
    assert not link.party.watched


def test_to_watch_again_tells_everything_again() -> None:
    world = DurableWorld()
    ann, bob = Hand.of(world, "ann"), Hand.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    bob.finish(*bob.leases, result=b"small")
    before = len(ann.peer.work)
    for _ in range(2):
        assert ann.watch(1) == []
    assert len(ann.peer.work) == before + 2
    assert ann.updates[-1] == ann.updates[-2]
    assert ann.updates[-1].tasks[0].size == 5


def test_jobs_that_are_not_there_are_named() -> None:
    ann = Hand.of(World(), "ann")
    assert ann.watch(5, 6) == [5, 6]


def test_a_job_that_is_not_safe_yet_is_not_there_yet() -> None:
    world = DurableWorld()
    ann, eve = Hand.of(world, "ann"), Hand.of(world, "eve")
    world.hold()
    ann.submit("resize", b"x")
    assert eve.watch(1) == [1]
    world.commit()
    assert eve.watch(1) == []


def test_who_unwatches_hears_no_more() -> None:
    world = DurableWorld()
    ann, bob = Hand.of(world, "ann"), Hand.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    ann.peer.expect(j.Unwatch(request=50, jobs=[1, 77]), c.Done)
    told = len(ann.updates)
    bob.finish(*bob.leases)
    assert len(ann.updates) == told


def test_a_client_watches_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    world = DurableWorld()
    ann, eve = Hand.of(world, "ann"), Hand.of(world, "eve")
    ann.submit("resize", b"1", b"2", b"3")
    monkeypatch.setattr(telling, "MAX_WATCHED", 2)
    assert eve.watch(1, 2) == []
    assert eve.peer.refusal(j.Watch(request=60, jobs=[2, 3])) == Code.TOO_MANY
    assert eve.watch(1) == []


def test_who_may_see_a_job() -> None:
    world = guarded()
    ann, bob, eve, mallory = (hand(world, name) for name in ("ann", "bob", "eve", "mallory"))
    ann.submit("resize", b"x")
    assert [one.watch(1) for one in (ann, eve, bob, mallory)] == [[], [], [1], [1]]
    bob.volunteer("resize")
    world.pass_s(1)
    assert bob.leases == [(1, 0, 1)]
    ask = j.Job(request=60, job=1)
    assert bob.peer.expect(ask, j.JobShown).job.job == 1  # it works on it now
    assert bob.watch(1) == [1]  # but would go on hearing what others bring
    bob.finish(*bob.leases)
    assert bob.peer.refusal(j.Job(request=61, job=1)) == Code.NO_SUCH_JOB


# -- cancel ------------------------------------------------------------------------------------------------------------


def test_a_cancelled_job_ends_and_its_tasks_are_revoked() -> None:
    world = DurableWorld()
    ann, bob = Hand.of(world, "ann"), Hand.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    assert isinstance(cancel(ann, 1, "no longer needed"), c.Done)
    assert bob.revoked == [(1, 0, 1)]
    assert (ann.updates[-1].state, ann.updates[-1].reason) == ("cancelled", "no longer needed")
    assert bob.finish((1, 0, 1)) == bob.confirmed
    assert isinstance(cancel(ann, 1), c.Done)


def test_a_waiting_job_can_be_cancelled() -> None:
    world = DurableWorld()
    ann = Hand.of(world, "ann")
    ann.submit("resize", b"x")
    cancel(ann, 1)
    assert (ann.updates[-1].state, ann.updates[-1].reason) == ("cancelled", "cancelled by ann")


def test_a_job_that_has_ended_cannot_be_cancelled() -> None:
    world = DurableWorld()
    ann, bob = Hand.of(world, "ann"), Hand.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    bob.finish(*bob.leases)
    reply = cancel(ann, 1)
    assert isinstance(reply, c.Error)
    assert (reply.code, reply.text) == (Code.NO_SUCH_JOB, "job 1 has ended already, it is done")


def test_that_a_job_has_ended_is_said_when_it_is_safe() -> None:
    world = DurableWorld()
    ann, bob = Hand.of(world, "ann"), Hand.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    world.hold()
    bob.finish(*bob.leases)
    ann.peer.say(j.Cancel(request=70, job=1))
    world.run()
    assert ann.peer.all(c.Error) == []
    world.commit()
    assert ann.peer.last(c.Error).code == Code.NO_SUCH_JOB


def test_that_a_job_has_ended_is_not_said_when_the_disk_cannot_keep_it() -> None:
    """After a crash it would go on."""
    world = DurableWorld()
    ann, bob = Hand.of(world, "ann"), Hand.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    world.hold()
    bob.finish(*bob.leases)
    ann.peer.say(j.Cancel(request=70, job=1))
    world.run()
    world.fail()
    assert [error.code for error in ann.peer.all(c.Error)] == [Code.STORAGE]


def test_who_may_cancel() -> None:
    world = guarded()
    ann, bob, eve, root, mallory = (hand(world, name) for name in ("ann", "bob", "eve", "root", "mallory"))
    ann.submit("resize", b"1", b"2")
    codes = [getattr(cancel(one, 1), "code", 0) for one in (bob, mallory, eve, root)]
    assert codes == [Code.NO_SUCH_JOB, Code.NO_SUCH_JOB, Code.NOT_ALLOWED, 0]
    assert isinstance(cancel(ann, 2), c.Done)


def test_a_cancel_is_done_when_it_is_safe() -> None:
    world = DurableWorld()
    ann, bob = Hand.of(world, "ann"), Hand.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    world.hold()
    ann.peer.say(j.Cancel(request=70, job=1))
    world.run()
    assert (ann.peer.all(c.Done), ann.updates) == ([], [])
    assert bob.revoked == [(1, 0, 1)]  # that does not wait: after a crash it would end all the same
    world.commit()
    assert ann.peer.last(c.Done).request == 70
    assert ann.states[-1] == (1, "cancelled")


def test_a_cancel_that_the_disk_refuses_holds_all_the_same() -> None:
    world = DurableWorld()
    ann = Hand.of(world, "ann")
    ann.submit("resize", b"x")
    world.hold()
    ann.peer.say(j.Cancel(request=70, job=1))
    world.run()
    world.fail()
    assert ann.peer.last(c.Error).code == Code.STORAGE
    assert ann.updates == []
    world.pass_s(1)
    assert ann.states == [(1, "cancelled")]
    assert world.keeping.of("job")[1].state == "cancelled"
