"""Lists of jobs: pages, filters, and that nobody sees what is not for him."""

from __future__ import annotations

import pytest
from tests.broker.durable import DurableWorld
from tests.broker.jobs.hands import Hand
from tests.broker.world import World

from godwit.broker.access import Access, Rule
from godwit.broker.jobs import listing
from godwit.broker.settings import Settings
from godwit.wire import jobs as j
from godwit.wire.control_base import Code


def listed(who: Hand, **fields: object) -> list[int]:
    """The numbers of all pages."""
    numbers: list[int] = []
    before: int | None = None
    while True:
        request = j.Jobs(request=who.peer.number(), before=before, **fields)  # type: ignore[arg-type]
        page = who.peer.expect(request, j.JobList)
        numbers += [job.job for job in page.jobs]
        if not page.more:
            return numbers
        assert before is None or page.before < before
        before = page.before


def test_the_newest_come_first_and_filters_narrow_them() -> None:
    world = DurableWorld()
    ann, bob, cid = Hand.of(world, "ann"), Hand.of(world, "bob"), Hand.of(world, "cid")
    bob.volunteer("resize")
    ann.submit("resize", b"1", b"2")
    cid.submit("scan", b"3")
    bob.finish(*bob.leases)
    assert listed(ann) == [3, 2, 1]
    assert listed(ann, of_kind="scan") == [3]
    assert listed(ann, controller="ann") == [2, 1]
    assert listed(ann, states=["done", "waiting"]) == [3, 1]
    assert listed(ann, states=[]) == []


def test_a_job_is_told_with_all_that_is_known() -> None:
    world = DurableWorld()
    ann, bob = Hand.of(world, "ann"), Hand.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"picture", keys=["k"], priority=3, deadline_ms=60_000)
    (job,) = ann.peer.expect(j.Jobs(request=90), j.JobList).jobs
    assert job == j.JobInfo(
        job=1,
        key="k",
        controller="ann",
        of_kind="resize",
        state="running",
        agreed=1,
        leased=1,
        priority=3,
        submitted_us=world.now_us,
        begins_us=world.now_us,
        deadline_us=world.now_us + 60_000_000,
        payload_bytes=7,
    )
    bob.finish(*bob.leases, result=b"small")
    shown = ann.peer.expect(j.Job(request=91, job=1), j.JobShown)
    assert (shown.job.state, shown.job.finished, shown.job.leased) == ("done", 1, 0)
    assert shown.tasks == [
        j.TaskInfo(task=0, state="finished", worker="bob", fence=1, since_us=world.now_us, result_bytes=5)
    ]


def test_long_lists_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    world = DurableWorld()
    ann = Hand.of(world, "ann")
    ann.submit("k" * 250, *(b"%d" % number for number in range(300)))
    assert len(ann.peer.expect(j.Jobs(request=90), j.JobList).jobs) < 300
    assert listed(ann) == list(range(300, 0, -1))
    monkeypatch.setattr(listing, "JOBS_A_PAGE", 7)
    assert listed(ann) == list(range(300, 0, -1))
    assert listed(ann, controller="nobody") == []


def test_tasks_come_in_pages() -> None:
    world = World()
    ann = Hand.of(world, "ann")
    for number in range(300):
        Hand.of(world, f"{number:->240}").volunteer("resize")
    ann.submit("resize", b"x", workers=0)
    tasks: list[int] = []
    more = True
    while more:
        shown = ann.peer.expect(j.Job(request=ann.peer.number(), job=1, first_task=len(tasks)), j.JobShown)
        tasks += [task.task for task in shown.tasks]
        more = shown.more
        assert len(shown.tasks) < 300
    assert tasks == list(range(300))
    assert ann.peer.expect(j.Job(request=ann.peer.number(), job=1, first_task=300), j.JobShown).tasks == []


def test_nobody_sees_what_is_not_for_him() -> None:
    rules = (
        Rule(clients=("*",), allow=frozenset(("submit",)), topics=("#",)),
        Rule(clients=("*",), allow=frozenset(("subscribe",)), topics=("$jobs/open/#",)),
    )
    world = DurableWorld(Settings(access=Access(rules=rules)))
    ann, eve = Hand.of(world, "ann"), Hand.of(world, "eve")
    ann.submit("secret", b"1")
    ann.submit("open/to/all", b"2")
    assert (listed(ann), listed(eve)) == ([2, 1], [2])
    assert eve.peer.refusal(j.Job(request=90, job=1)) == Code.NO_SUCH_JOB
    assert eve.peer.refusal(j.Job(request=91, job=99)) == Code.NO_SUCH_JOB


def test_a_list_waits_for_what_is_on_its_way_but_not_for_a_full_disk() -> None:
    world = DurableWorld()
    ann = Hand.of(world, "ann")
    ann.submit("resize", b"x")
    world.hold()
    ann.peer.say(j.Cancel(request=70, job=1))
    ann.peer.say(j.Jobs(request=71))
    world.run()
    assert ann.peer.all(j.JobList) == []
    world.fail()
    assert ann.peer.last(j.JobList).jobs[0].state == "cancelled"


def test_many_requests_for_lists_wait_and_are_all_answered() -> None:
    world = World()
    ann = Hand.of(world, "ann")
    for number in range(250):
        ann.peer.say(j.Jobs(request=number))
    world.run()
    assert len(ann.peer.all(j.JobList)) < 250, "a turn answers only a part of them"
    world.pass_s(1)
    assert [page.request for page in ann.peer.all(j.JobList)] == list(range(250))
    assert ann.peer.closed is None
