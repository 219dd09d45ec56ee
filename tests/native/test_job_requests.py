"""Control messages about jobs: volunteer, watch, cancel and lists; and which clients may see a job."""

from __future__ import annotations

import pytest
from tests.broker.durable import DurableWorld
from tests.broker.world import World
from tests.native.job_clients import JobClient, peer_of

from godwit.broker.access import Access, Rule
from godwit.broker.settings import Settings
from godwit.limits import LEASE_S, MAX_CAPACITY, MAX_JOB_PAYLOAD_BYTES
from godwit.native import job_notifier, job_requests
from godwit.wire import control as c
from godwit.wire import jobs as j
from godwit.wire.control_base import Code

SECRETS = {name: name.encode() for name in ("ann", "bob", "eve", "root")}


def guarded() -> World:
    """Ann submits, bob works, eve may watch, root may kick; no client may do more."""
    rules = (
        Rule(clients=("ann",), allow=frozenset(("submit",)), topics=("#",)),
        Rule(clients=("bob",), allow=frozenset(("work",)), topics=("resize", "scan")),
        Rule(clients=("eve",), allow=frozenset(("subscribe",)), topics=("$jobs/#",)),
        Rule(clients=("root",), allow=frozenset(("kick", "subscribe")), topics=("$jobs/#",)),
    )
    return DurableWorld(Settings(access=Access(secrets=SECRETS, rules=rules)))


def hand(world: World, name: str) -> JobClient:
    return JobClient.of(world, name, secret=SECRETS.get(name, b""))


def cancel(who: JobClient, number: int, reason: str = "") -> c.ControlMessage:
    return who.peer.ask(j.CancelJob(request=who.peer.number(), job=number, reason=reason))


# -- volunteer --------------------------------------------------------------------------------------------------------


def test_a_volunteer_learns_its_lease_time() -> None:
    world = World()
    bob = JobClient.of(world, "bob")
    assert bob.volunteer("resize", "scan", capacity=3).lease_ms == LEASE_S * 1000
    assert world.told("volunteered") == ["bob volunteered for resize, scan, 3 at once"]


def test_only_new_kinds_are_logged() -> None:
    world = World()
    bob = JobClient.of(world, "bob")
    bob.volunteer("resize")
    bob.volunteer("resize")
    bob.volunteer()
    bob.volunteer()
    assert world.told("volunteered") == ["bob volunteered for resize, 1 at once"]
    assert world.told("withdrew") == ["bob withdrew: it takes no more tasks"]


def test_a_client_that_withdraws_keeps_its_leases_and_gets_no_more() -> None:
    world = DurableWorld()
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"x", b"y")
    bob.volunteer()
    bob.finish(*bob.leases)
    assert bob.leases == [(1, 0, 1)]
    assert ann.states[-1] == (1, "done")
    bob.volunteer("resize")
    assert bob.leases[1:] == [(2, 0, 1)]


def test_leases_under_way_are_no_reason_to_take_them_back() -> None:
    """On the same connection `holding` is not used for that: its leases may be in transit."""
    world = DurableWorld()
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    bob.volunteer("resize", capacity=2)
    assert bob.revoked == []
    bob.finish((1, 0, 1))
    assert ann.states[-1] == (1, "done")


def test_leases_that_a_worker_wrongly_believes_to_hold_are_revoked() -> None:
    bob = JobClient.of(World(), "bob")
    bob.volunteer("resize", holding=[(7, 0, 1), (8, 2, 3)])
    assert bob.revoked == [(7, 0, 1), (8, 2, 3)]


def test_a_volunteer_that_takes_nothing_is_refused_at_last() -> None:
    world = World()
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
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
def test_a_volunteer_for_a_forbidden_or_invalid_kind_is_refused(kind: str, code: Code) -> None:
    bob = hand(guarded(), "bob")
    assert bob.peer.refusal(j.Volunteer(request=5, kinds=["resize", kind])) == code


# -- watch ------------------------------------------------------------------------------------------------------------


def test_a_watching_client_gets_the_state_then_the_changes_until_the_end() -> None:
    world = DurableWorld()
    ann, bob, eve = (JobClient.of(world, name) for name in ("ann", "bob", "eve"))
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    assert eve.watch(1, 1) == []
    assert eve.states == [(1, "running")]
    bob.finish(*bob.leases, result=b"small")
    assert eve.states == [(1, "running"), (1, "done")]
    assert eve.results == {(1, 0): b"small"}
    assert not peer_of(world, "eve").watched


def test_to_watch_again_tells_everything_again() -> None:
    world = DurableWorld()
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
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
    ann = JobClient.of(World(), "ann")
    assert ann.watch(5, 6) == [5, 6]


def test_a_job_that_is_not_safe_yet_is_not_there_yet() -> None:
    world = DurableWorld()
    ann, eve = JobClient.of(world, "ann"), JobClient.of(world, "eve")
    world.hold()
    ann.submit("resize", b"x")
    assert eve.watch(1) == [1]
    world.commit()
    assert eve.watch(1) == []


def test_no_updates_after_unwatch() -> None:
    world = DurableWorld()
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    ann.peer.expect(j.UnwatchJobs(request=50, jobs=[1, 77]), c.Done)
    told = len(ann.updates)
    bob.finish(*bob.leases)
    assert len(ann.updates) == told


def test_a_client_watches_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    world = DurableWorld()
    ann, eve = JobClient.of(world, "ann"), JobClient.of(world, "eve")
    ann.submit("resize", b"1", b"2", b"3")
    monkeypatch.setattr(job_notifier, "MAX_WATCHED", 2)
    assert eve.watch(1, 2) == []
    assert eve.peer.refusal(j.WatchJobs(request=60, jobs=[2, 3])) == Code.TOO_MANY
    assert eve.watch(1) == []


def test_which_clients_may_see_a_job() -> None:
    world = guarded()
    ann, bob, eve, mallory = (hand(world, name) for name in ("ann", "bob", "eve", "mallory"))
    ann.submit("resize", b"x")
    assert [one.watch(1) for one in (ann, eve, bob, mallory)] == [[], [], [1], [1]]
    bob.volunteer("resize")
    world.pass_s(1)
    assert bob.leases == [(1, 0, 1)]
    ask = j.ShowJob(request=60, job=1)
    assert bob.peer.expect(ask, j.JobDetails).job.job == 1  # it works on it now
    assert bob.watch(1) == [1]  # it would receive the results of the others
    bob.finish(*bob.leases)
    assert bob.peer.refusal(j.ShowJob(request=61, job=1)) == Code.NO_SUCH_JOB


# -- cancel -----------------------------------------------------------------------------------------------------------


def test_a_cancelled_job_ends_and_its_tasks_are_revoked() -> None:
    world = DurableWorld()
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    assert isinstance(cancel(ann, 1, "no longer needed"), c.Done)
    assert bob.revoked == [(1, 0, 1)]
    assert (ann.updates[-1].state, ann.updates[-1].reason) == ("cancelled", "no longer needed")
    assert bob.finish((1, 0, 1)) == bob.confirmed
    assert isinstance(cancel(ann, 1), c.Done)


def test_a_waiting_job_can_be_cancelled() -> None:
    world = DurableWorld()
    ann = JobClient.of(world, "ann")
    ann.submit("resize", b"x")
    cancel(ann, 1)
    assert (ann.updates[-1].state, ann.updates[-1].reason) == ("cancelled", "cancelled by ann")


def test_a_job_that_has_ended_cannot_be_cancelled() -> None:
    world = DurableWorld()
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    bob.finish(*bob.leases)
    reply = cancel(ann, 1)
    assert isinstance(reply, c.Error)
    assert (reply.code, reply.text) == (Code.NO_SUCH_JOB, "job 1 has ended already, it is done")


def test_that_a_job_has_ended_is_said_when_it_is_safe() -> None:
    world = DurableWorld()
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    world.hold()
    bob.finish(*bob.leases)
    ann.peer.say(j.CancelJob(request=70, job=1))
    world.run()
    assert ann.peer.all(c.Error) == []
    world.commit()
    assert ann.peer.last(c.Error).code == Code.NO_SUCH_JOB


def test_that_a_job_has_ended_is_not_said_when_the_disk_cannot_keep_it() -> None:
    """After a crash the job would continue."""
    world = DurableWorld()
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    world.hold()
    bob.finish(*bob.leases)
    ann.peer.say(j.CancelJob(request=70, job=1))
    world.run()
    world.fail()
    assert [error.code for error in ann.peer.all(c.Error)] == [Code.STORAGE]


def test_which_clients_may_cancel() -> None:
    world = guarded()
    ann, bob, eve, root, mallory = (hand(world, name) for name in ("ann", "bob", "eve", "root", "mallory"))
    ann.submit("resize", b"1", b"2")
    codes = [getattr(cancel(one, 1), "code", 0) for one in (bob, mallory, eve, root)]
    assert codes == [Code.NO_SUCH_JOB, Code.NO_SUCH_JOB, Code.NOT_ALLOWED, 0]
    assert isinstance(cancel(ann, 2), c.Done)


def test_a_cancel_is_done_when_it_is_safe() -> None:
    world = DurableWorld()
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    world.hold()
    ann.peer.say(j.CancelJob(request=70, job=1))
    world.run()
    assert (ann.peer.all(c.Done), ann.updates) == ([], [])
    assert bob.revoked == [(1, 0, 1)]  # without waiting for the log: after a crash the lease would end all the same
    world.commit()
    assert ann.peer.last(c.Done).request == 70
    assert ann.states[-1] == (1, "cancelled")


def test_a_cancel_that_the_disk_refuses_holds_all_the_same() -> None:
    world = DurableWorld()
    ann = JobClient.of(world, "ann")
    ann.submit("resize", b"x")
    world.hold()
    ann.peer.say(j.CancelJob(request=70, job=1))
    world.run()
    world.fail()
    assert ann.peer.last(c.Error).code == Code.STORAGE
    assert ann.updates == []
    world.pass_s(1)
    assert ann.states == [(1, "cancelled")]
    assert world.keeping.of("job")[1].state == "cancelled"


# -- retry ------------------------------------------------------------------------------------------------------------


def retry(who: JobClient, number: int, key: str = "again") -> c.ControlMessage:
    return who.peer.ask(j.RetryJob(request=who.peer.number(), job=number, key=key))


def test_a_failed_job_is_submitted_once_more_with_its_payload_and_options() -> None:
    world = World()
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"photo", retries=0, priority=7)
    bob.fail(*bob.leases)
    assert ann.states[-1] == (1, "failed")
    reply = retry(ann, 1)
    assert isinstance(reply, j.RetryReply)
    assert (reply.job, bob.payloads) == (2, [b"photo", b"photo"])
    assert retry(ann, 1) == j.RetryReply(request=ann.peer.last(j.RetryReply).request, job=2), "the same key"
    info = ann.peer.expect(j.ShowJob(request=90, job=2), j.JobDetails).job
    assert (info.controller, info.key, info.priority, info.payload_bytes) == ("ann", "again", 7, 5)
    bob.finish(bob.leases[-1])
    assert ann.peer.expect(j.ShowJob(request=91, job=2), j.JobDetails).job.state == "done"
    assert ann.peer.expect(j.ShowJob(request=92, job=1), j.JobDetails).job.state == "failed"


def test_a_cancelled_job_is_retried_without_its_delay() -> None:
    world = World()
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"photo", delay_ms=3_600_000)
    cancel(ann, 1)
    assert bob.leases == []
    assert isinstance(retry(ann, 1), j.RetryReply)
    assert bob.payloads == [b"photo"]


def test_jobs_that_cannot_be_retried() -> None:
    world = World()
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
    ann.submit("resize", b"x")
    for number, text in ((1, "job 1 is waiting"), (9, "")):
        error = retry(ann, number)
        assert isinstance(error, c.Error)
        assert error.code == Code.NO_SUCH_JOB
        assert text in error.text
    bob.volunteer("resize")
    world.pass_s(1)
    bob.finish(*bob.leases)
    error = retry(ann, 1)
    assert isinstance(error, c.Error)
    assert "job 1 is done: only a failed or cancelled job can be retried" in error.text
    error = retry(ann, 1, key="ä" * 40)
    assert isinstance(error, c.Error)
    assert error.code == Code.MALFORMED


def test_which_clients_may_retry() -> None:
    world = guarded()
    ann, bob, eve, root = (hand(world, name) for name in ("ann", "bob", "eve", "root"))
    ann.submit("resize", b"1")
    cancel(ann, 1)
    codes = [getattr(retry(one, 1), "code", 0) for one in (bob, eve, root, ann)]
    assert codes == [Code.NO_SUCH_JOB, Code.NOT_ALLOWED, Code.NOT_ALLOWED, 0]


def test_a_retry_is_answered_when_it_is_safe() -> None:
    world = DurableWorld()
    ann = JobClient.of(world, "ann")
    ann.submit("resize", b"x")
    cancel(ann, 1)
    world.hold()
    ann.peer.say(j.RetryJob(request=70, job=1, key="again"))
    world.run()
    assert ann.peer.all(j.RetryReply) == []
    world.commit()
    assert ann.peer.last(j.RetryReply) == j.RetryReply(request=70, job=2)
    world.hold()
    ann.peer.say(j.RetryJob(request=71, job=1, key="and again"))
    world.run()
    world.fail()
    assert ann.peer.last(c.Error).code == Code.STORAGE
    assert listed(ann) == [2, 1]


# -- lists ------------------------------------------------------------------------------------------------------------


def listed(who: JobClient, **fields: object) -> list[int]:
    """The numbers of all pages."""
    numbers: list[int] = []
    before: int | None = None
    while True:
        request = j.ListJobs(request=who.peer.number(), before=before, **fields)  # type: ignore[arg-type]
        page = who.peer.expect(request, j.JobList)
        numbers += [job.job for job in page.jobs]
        if not page.more:
            return numbers
        assert before is None or page.before < before
        before = page.before


def test_the_newest_come_first_and_filters_narrow_them() -> None:
    world = DurableWorld()
    ann, bob, cid = JobClient.of(world, "ann"), JobClient.of(world, "bob"), JobClient.of(world, "cid")
    bob.volunteer("resize")
    ann.submit("resize", b"1", b"2")
    cid.submit("scan", b"3")
    bob.finish(*bob.leases)
    assert listed(ann) == [3, 2, 1]
    assert listed(ann, of_kind="scan") == [3]
    assert listed(ann, controller="ann") == [2, 1]
    assert listed(ann, states=["done", "waiting"]) == [3, 1]
    assert listed(ann, states=[]) == []


def test_all_fields_of_a_shown_job() -> None:
    world = DurableWorld()
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"picture", keys=["k"], priority=3, deadline_ms=60_000)
    (job,) = ann.peer.expect(j.ListJobs(request=90), j.JobList).jobs
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
    shown = ann.peer.expect(j.ShowJob(request=91, job=1), j.JobDetails)
    assert (shown.job.state, shown.job.finished, shown.job.leased) == ("done", 1, 0)
    assert shown.tasks == [
        j.TaskInfo(task=0, state="finished", worker="bob", fence=1, since_us=world.now_us, result_bytes=5)
    ]


def test_long_lists_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    world = DurableWorld()
    ann = JobClient.of(world, "ann")
    ann.submit("k" * 250, *(b"%d" % number for number in range(300)))
    assert len(ann.peer.expect(j.ListJobs(request=90), j.JobList).jobs) < 300
    assert listed(ann) == list(range(300, 0, -1))
    monkeypatch.setattr(job_requests, "JOBS_PER_PAGE", 7)
    assert listed(ann) == list(range(300, 0, -1))
    assert listed(ann, controller="unknown") == []


def test_tasks_come_in_pages() -> None:
    world = World()
    ann = JobClient.of(world, "ann")
    for number in range(300):
        JobClient.of(world, f"{number:->240}").volunteer("resize")
    ann.submit("resize", b"x", workers=0)
    tasks: list[int] = []
    more = True
    while more:
        shown = ann.peer.expect(j.ShowJob(request=ann.peer.number(), job=1, first_task=len(tasks)), j.JobDetails)
        tasks += [task.task for task in shown.tasks]
        more = shown.more
        assert len(shown.tasks) < 300
    assert tasks == list(range(300))
    assert ann.peer.expect(j.ShowJob(request=ann.peer.number(), job=1, first_task=300), j.JobDetails).tasks == []


def test_no_client_sees_jobs_that_it_may_not_see() -> None:
    rules = (
        Rule(clients=("*",), allow=frozenset(("submit",)), topics=("#",)),
        Rule(clients=("*",), allow=frozenset(("subscribe",)), topics=("$jobs/open/#",)),
    )
    world = DurableWorld(Settings(access=Access(rules=rules)))
    ann, eve = JobClient.of(world, "ann"), JobClient.of(world, "eve")
    ann.submit("secret", b"1")
    ann.submit("open/to/all", b"2")
    assert (listed(ann), listed(eve)) == ([2, 1], [2])
    assert eve.peer.refusal(j.ShowJob(request=90, job=1)) == Code.NO_SUCH_JOB
    assert eve.peer.refusal(j.ShowJob(request=91, job=99)) == Code.NO_SUCH_JOB


def test_a_list_waits_for_appends_in_flight_but_not_for_a_full_disk() -> None:
    world = DurableWorld()
    ann = JobClient.of(world, "ann")
    ann.submit("resize", b"x")
    world.hold()
    ann.peer.say(j.CancelJob(request=70, job=1))
    ann.peer.say(j.ListJobs(request=71))
    world.run()
    assert ann.peer.all(j.JobList) == []
    world.fail()
    assert ann.peer.last(j.JobList).jobs[0].state == "cancelled"


def test_many_requests_for_lists_wait_and_are_all_answered() -> None:
    world = World()
    ann = JobClient.of(world, "ann")
    for number in range(250):
        ann.peer.say(j.ListJobs(request=number))
    world.run()
    assert len(ann.peer.all(j.JobList)) < 250, "a turn answers only a part of them"
    world.pass_s(1)
    assert [page.request for page in ann.peer.all(j.JobList)] == list(range(250))
    assert ann.peer.closed is None


# -- workers ----------------------------------------------------------------------------------------------------------


def workers(world: World, name: str = "root") -> list[j.WorkerInfo]:
    peer = world.client(name, secret=SECRETS[name])
    found: list[j.WorkerInfo] = []
    while True:
        after = found[-1].name if found else None
        page = peer.expect(j.ListWorkers(request=peer.number(), after=after), j.WorkerList)
        found += page.workers
        if not page.more:
            return found


def test_workers_are_listed_with_their_tasks() -> None:
    world = guarded()
    ann, bob = hand(world, "ann"), hand(world, "bob")
    bob.volunteer("resize", "scan", capacity=3)
    ann.submit("resize", b"1", b"2")
    (found,) = workers(world)
    assert (found.name, found.state, found.kinds) == ("bob", "ready", ["resize", "scan"])
    assert (found.capacity, found.tasks) == (3, 2)
    bob.peer.die()
    (found,) = workers(world)
    assert (found.state, found.tasks) == ("gone", 2)


def test_a_worker_that_does_not_report_is_stalled() -> None:
    world = guarded()
    ann, bob = hand(world, "ann"), hand(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"1")
    world.pass_s(LEASE_S + 1)
    (found,) = workers(world)
    assert (found.state, found.tasks) == ("stalled", 0)


def test_a_list_of_workers_needs_the_right_to_kick_and_has_pages() -> None:
    world = guarded()
    peer = world.client("eve", secret=SECRETS["eve"])
    assert peer.refusal(j.ListWorkers(request=50)) is Code.NOT_ALLOWED
    world = World()
    names = [f"worker-{number:03}" for number in range(300)]
    for name in names:
        JobClient.of(world, name).volunteer("k" * 250)
    asking = world.client("asking")
    page = asking.expect(j.ListWorkers(request=50), j.WorkerList)
    assert page.more
    rest = asking.expect(j.ListWorkers(request=51, after=page.workers[-1].name), j.WorkerList)
    assert [one.name for one in (*page.workers, *rest.workers)][: len(page.workers) + 1] == names[
        : len(page.workers) + 1
    ]
