"""Work channels: the channel towards a client, the names of controllers and workers, submissions and reports."""

from __future__ import annotations

import pytest
from tests.broker.durable import FULL, DurableWorld
from tests.broker.world import World
from tests.native.job_clients import JobClient, job_service

from godwit.broker.access import Access, Rule
from godwit.broker.effects import Effect
from godwit.broker.jobs import job_table
from godwit.broker.jobs.model import Job
from godwit.broker.jobs.queue import JobQueue
from godwit.broker.jobs.service import job_name
from godwit.broker.session import Session
from godwit.broker.settings import Settings
from godwit.limits import MAX_GROUP, MAX_JOB_PAYLOAD_BYTES, RECORD_COST_BYTES, WORK_WINDOW_BYTES
from godwit.native import job_notifier, work_channel
from godwit.native.effects import OpenChannel, SendRecord
from godwit.native.peer import NativePeer
from godwit.native.work_channel import OutgoingWorkChannel, SubmitResult, job_peer
from godwit.wire import changes as ch
from godwit.wire import control as c
from godwit.wire import jobs as j
from godwit.wire import work as w
from godwit.wire.control import Work, decode_control
from godwit.wire.control_base import Code
from godwit.wire.work import LeasedTask, LeaseGroup, RevokeGroup, decode_from_broker

# -- the channel towards a client -------------------------------------------------------------------------------------


REVOKE = RevokeGroup(tasks=[(1, 0, 1)])


def make_link() -> NativePeer:
    return NativePeer(World().peer(), 1000, [])


def make_channel() -> tuple[OutgoingWorkChannel, list[Effect], NativePeer]:
    link = make_link()
    effects: list[Effect] = []
    return OutgoingWorkChannel(link, effects), effects, link


def test_it_is_opened_with_the_first_group() -> None:
    made, effects, link = make_channel()
    assert (link.take_channel(), link.take_channel()) == (1, 2)
    assert made.channel == 0
    made.send(REVOKE)
    made.send(REVOKE)
    assert made.channel == 3
    opened, first, *groups = effects
    assert opened == OpenChannel(link.connection, 3)
    assert isinstance(first, SendRecord)
    assert decode_control(first.body) == Work()
    assert [decode_from_broker(group.body)[0] for group in groups if isinstance(group, SendRecord)] == [REVOKE] * 2
    assert link.take_channel() == 4


def test_it_has_room_while_less_than_the_window_is_unconfirmed() -> None:
    made, _, _ = make_channel()
    payload = bytes(MAX_JOB_PAYLOAD_BYTES)
    big = LeaseGroup(tasks=[LeasedTask(task=(1, 0, 1), of_kind="k", controller="c", size=len(payload))])
    rooms: list[bool] = []
    made.send(REVOKE)
    rooms.append(made.has_room)
    made.send(big, [payload])
    rooms.append(made.has_room)
    for record in (1, 2, 2):
        made.handle_confirm(record)
        rooms.append(made.has_room)
    assert rooms == [True, False, False, True, True]
    assert made._unconfirmed_bytes == 0


def test_small_records_cost_something_too() -> None:
    made, effects, _ = make_channel()
    while made.has_room:
        made.send(REVOKE)
    sent = [effect for effect in effects if isinstance(effect, SendRecord)]
    cost_bytes = sum(len(effect.body) + RECORD_COST_BYTES for effect in sent)
    assert WORK_WINDOW_BYTES <= cost_bytes < WORK_WINDOW_BYTES + 1000
    made.handle_confirm(len(sent) - 1)
    assert made._unconfirmed_bytes == 0


# -- names and peers --------------------------------------------------------------------------------------------------


def session(name: str, instance: bytes, *, is_remembered: bool) -> Session:
    made = Session(name, 1, is_remembered=is_remembered)
    made.instance = instance
    return made


def test_a_client_with_a_name_is_called_by_it() -> None:
    assert job_name(session("ann", bytes(16), is_remembered=True)) == "ann"


def test_a_nameless_client_is_named_after_its_instance() -> None:
    """The name of its session changes with each connection."""
    names = [
        job_name(session(name, b"12345678abcdefgh", is_remembered=False)) for name in ("anonymous-1", "anonymous-2")
    ]
    assert len(set(names)) == 1
    assert b"12345678".hex() not in names[0]  # the name is public, while the instance proves the name


def test_a_connection_has_one_peer() -> None:
    link = make_link()
    ann = session("ann", bytes(16), is_remembered=True)
    peer = job_peer(link, ann, [])
    assert job_peer(link, ann, []) is peer is link.job_peer
    assert peer.name == "ann"


def test_a_result_holds_the_agreed_number_of_its_turn() -> None:
    job = Job(1, "ann", j.JobSpec(key="k", of_kind="resize", workers=2), JobQueue("resize"), b"", 0)
    result = SubmitResult("k", job, job.agreed)
    job.agreed = 2
    assert (result.agreed, SubmitResult("k", job, job.agreed).agreed, SubmitResult("k").agreed) == (None, 2, None)


# -- submissions and reports ------------------------------------------------------------------------------------------


def pair(world: World, *, capacity: int = 1) -> tuple[JobClient, JobClient]:
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
    bob.volunteer("resize", capacity=capacity)
    return ann, bob


# -- submissions ------------------------------------------------------------------------------------------------------


def test_a_group_is_one_append_and_one_answer() -> None:
    world = DurableWorld()
    ann, _ = pair(world)
    before = len(world.keeping.appends)
    ann.submit("resize", *(b"%d" % number for number in range(500)))
    assert len(world.keeping.appends) == before + 1
    assert ann.numbers == list(range(1, 501))
    assert len(ann.groups(w.SubmitReplyGroup)) == 1


def test_one_job_at_a_time_takes_two_commits_each() -> None:
    """The lease is stored with the submission and sent with its commit, the result when its own commit is durable."""
    world = DurableWorld()
    ann, bob = pair(world)
    for number in range(1, 4):
        world.hold()
        before = len(world.keeping.appends)
        ann.submit("resize", b"%d" % number)
        assert len(world.log.waiting) == 1
        (row,) = [change for change in world.log.waiting[0].changes if isinstance(change, ch.JobRow)]
        assert row.task is not None
        assert row.task.state == "leased"
        assert (len(ann.numbers), len(bob.leases)) == (number - 1, number - 1)
        world.commit()
        assert (len(ann.numbers), len(bob.leases)) == (number, number)
        world.hold()
        bob.finish(bob.leases[-1], result=b"done")
        assert len(world.log.waiting) == 1
        assert (number, 0) not in ann.results
        world.commit()
        assert ann.results[number, 0] == b"done"
        assert len(world.keeping.appends) == before + 2


def test_the_same_key_is_the_same_job() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x", keys=["k"])
    ann.submit("resize", b"another payload", b"y", keys=["k", "other"], priority=5)
    assert ann.numbers == [1, 1, 2]
    assert bob.payloads == [b"x"]
    bob.finish(*bob.leases, result=b"small")
    ann.peer.die()
    again = JobClient.of(world, "ann")
    again.submit("resize", b"x", keys=["k"])
    assert again.numbers == [1]
    assert again.states == [(1, "done")]
    assert again.results == {(1, 0): b"small"}


def test_two_with_the_same_key_in_one_group_are_one_job() -> None:
    world = DurableWorld()
    ann, _ = pair(world)
    ann.submit("resize", b"x", b"y", keys=["k", "k"])
    assert ann.numbers == [1, 1]
    assert set(world.keeping.of("job")) == {1}


def test_keys_of_different_controllers_never_mix() -> None:
    world = World()
    ann, _ = pair(world)
    cid = JobClient.of(world, "cid")
    ann.submit("resize", b"x", keys=["k"])
    cid.submit("resize", b"y", keys=["k"])
    assert (ann.numbers, cid.numbers) == ([1], [2])


@pytest.mark.parametrize("kind", ["$jobs", "a/+", "#", "new\nline", "ü" * 129, "/" * 63])
def test_a_kind_that_cannot_be_is_refused_and_the_others_are_taken(kind: str) -> None:
    world = World()
    ann, _ = pair(world)
    jobs = [j.JobSpec(key=key, of_kind=name) for key, name in (("1", "resize"), ("2", kind), ("3", "resize"))]
    ann.send(w.SubmitGroup(jobs=jobs))
    assert [(job.key, job.job, job.code) for job in ann.taken] == [("1", 1, 0), ("2", 0, Code.BAD_KIND), ("3", 2, 0)]
    assert "kind of work" in ann.taken[1].text
    assert ann.peer.closed is None


def test_a_key_that_is_too_long_as_bytes_is_refused() -> None:
    ann, _ = pair(World())
    ann.submit("resize", b"x", b"y", keys=["ü" * 33, "ü" * 32])
    assert [(job.job, job.code) for job in ann.taken] == [(0, Code.MALFORMED), (1, 0)]


def test_a_client_that_may_not_submit_a_kind_is_refused() -> None:
    access = Access(rules=(Rule(clients=("*",), allow=frozenset(("submit",)), topics=("open/#",)),))
    ann = JobClient.of(World(Settings(access=access)), "ann")
    ann.submit("secret", b"x")
    ann.submit("open/to/all", b"y")
    assert [(job.job, job.code) for job in ann.taken] == [(0, Code.NOT_ALLOWED), (1, 0)]
    assert "may not submit jobs of the kind 'secret'" in ann.taken[0].text


def test_more_jobs_than_there_is_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table, "MAX_JOBS", 4)
    ann = JobClient.of(World(), "ann")
    ann.submit("resize", b"1", b"2", b"3")
    assert [(job.job, job.code) for job in ann.taken] == [(1, 0), (2, 0), (0, Code.TOO_MANY)]


def test_new_kinds_are_refused_when_there_are_too_many_topics() -> None:
    ann = JobClient.of(World(Settings(topics=("a",), max_topics=1)), "ann")
    ann.submit("first", b"x")
    assert [job.code for job in ann.taken] == [Code.TOO_MANY]
    assert "need a topic" in ann.taken[0].text


# -- groups that are none ---------------------------------------------------------------------------------------------


def head(plain: w.SubmitGroup | w.ReportGroup) -> bytes:
    return w.encode_group(plain)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\x00",
        b"\x00\x00\x00\x05abc",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x01\xa0",
        head(w.ReportGroup()) + b"more",
        head(w.SubmitGroup(jobs=[j.JobSpec(key="k", of_kind="resize", size=5)])) + b"four",
        w.encode_group(w.SubmitReplyGroup(jobs=[])),
    ],
)
def test_an_invalid_group_closes_the_connection(body: bytes) -> None:
    world = World()
    ann, _ = pair(world)
    ann.peer.record(ann.channel, body)
    world.run()
    assert ann.peer.end == Code.PROTOCOL


@pytest.mark.parametrize(
    "submission",
    [
        {"key": "", "of_kind": "resize"},
        {"key": "k", "of_kind": ""},
        {"key": "k", "of_kind": "resize", "workers": -1},
        {"key": "k", "of_kind": "resize", "size": MAX_JOB_PAYLOAD_BYTES + 1},
        {"key": "k", "of_kind": "resize", "delay_ms": 2**62},
    ],
)
def test_a_submission_with_a_field_that_cannot_be_closes_the_connection(submission: dict[str, object]) -> None:
    world = World()
    ann, _ = pair(world)
    ann.send(w.SubmitGroup(jobs=[j.JobSpec(**submission)]))  # type: ignore[arg-type]
    assert ann.peer.end == Code.PROTOCOL
    assert job_service(world).scheduler.jobs == {}


def test_a_group_has_a_bounded_number_of_parts() -> None:
    ann, _ = pair(World())
    ann.submit("resize", *(b"%d" % number for number in range(MAX_GROUP + 1)))
    assert ann.peer.end == Code.PROTOCOL


def test_an_unreliable_record_closes_the_connection() -> None:
    world = World()
    ann, _ = pair(world)
    ann.peer.record(ann.channel, head(w.ReportGroup()), reliable=False)
    world.run()
    assert ann.peer.end == Code.PROTOCOL


def test_the_end_of_the_channel_is_no_group() -> None:
    world = World()
    ann, _ = pair(world)
    ann.peer.record(ann.channel, b"", last=True)
    world.run()
    assert ann.peer.closed is None


# -- reports ----------------------------------------------------------------------------------------------------------


def test_progress_is_sent_at_once_and_not_stored() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    world.hold()
    before = len(world.keeping.appends)
    bob.report(steps=[w.ProgressReport(task=bob.leases[0], progress=0.5, note="half")])
    task = ann.updates[-1].tasks[0]
    assert (task.progress, task.note, task.state) == (0.5, "half", "leased")
    assert bob.confirmed == 1
    assert len(world.keeping.appends) == before
    assert not world.log.waiting


def test_progress_with_the_outcome_is_sent_with_it_when_it_is_stored() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    told = len(ann.updates)
    world.hold()
    lease = bob.leases[0]
    bob.send(
        w.ReportGroup(steps=[w.ProgressReport(task=lease, progress=1.0)], outcomes=[w.TaskOutcome(task=lease, size=1)]),
        [b"!"],
    )
    assert len(ann.updates) == told
    world.commit()
    assert ann.states[told:] == [(1, "done")]


def test_a_late_report_changes_nothing() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x", time_limit_ms=1000, retry_delay_ms=0)
    late = bob.leases[0]
    world.pass_s(1)
    assert bob.revoked == [late]
    assert bob.leases[1:] == [(1, 0, 2)]
    record = bob.finish(late, result=b"late")
    assert bob.confirmed == record
    assert bob.revoked == [late]  # its sender has finished the task
    bob.finish((1, 0, 2), result=b"in time")
    assert ann.results == {(1, 0): b"in time"}


def test_a_report_that_is_repeated_is_confirmed_without_a_revoke() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    bob.finish(*bob.leases, result=b"first")
    assert bob.finish(*bob.leases, result=b"second") == bob.confirmed
    assert bob.revoked == []
    assert ann.results == {(1, 0): b"first"}


@pytest.mark.parametrize("lease", [(1, 0, 2), (1, 1, 1), (2, 0, 1), (0, 0, 0), (2**63 - 1, 2**32 - 1, 2**32 - 1)])
def test_a_report_of_a_lease_that_never_was_changes_nothing(lease: j.Ref) -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    bob.finish(lease)
    bob.fail(lease)
    bob.report(steps=[w.ProgressReport(task=lease, progress=0.1)])
    assert bob.revoked == [lease]  # the worker reports that it still works on it
    bob.report(returned=[lease])
    assert ann.updates == []
    assert world.keeping.of("task")[1, 0].state == "leased"
    assert bob.peer.closed is None


def test_a_report_of_a_worker_that_never_held_the_task_changes_nothing() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    mallory = JobClient.of(world, "mallory")
    ann.submit("resize", b"x")
    assert mallory.finish(*bob.leases, result=b"forged") == mallory.confirmed
    assert mallory.revoked == []
    bob.finish(*bob.leases, result=b"true")
    assert ann.results == {(1, 0): b"true"}


def test_a_failed_task_is_tried_again_until_its_retries_are_used_up() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x", retries=1, retry_delay_ms=0)
    bob.fail(bob.leases[-1], error="out of ink")
    assert ann.updates[-1].tasks[0].error == "out of ink"
    assert bob.leases == [(1, 0, 1), (1, 0, 2)]
    bob.fail(bob.leases[-1], error="out of paper")
    assert ann.updates[-1].state == "failed"
    assert ann.updates[-1].tasks[0].failures == 2


def test_a_final_failure_is_not_tried_again() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x", retries=9)
    bob.fail(bob.leases[0], is_final=True)
    assert ann.states[-1] == (1, "failed")


def test_a_returned_task_goes_to_another_worker() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    dan = JobClient.of(world, "dan")
    dan.volunteer("resize")
    bob.report(returned=bob.leases)
    assert dan.leases == [(1, 0, 2)]


# -- when they are confirmed ------------------------------------------------------------------------------------------


def test_nothing_is_said_before_it_is_safe() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    world.hold()
    ann.submit("resize", b"x")
    assert (ann.peer.work, bob.peer.work, ann.confirmed) == ([], [], 0 - 1)
    world.commit()
    assert (ann.numbers, bob.leases, ann.confirmed) == ([1], [(1, 0, 1)], 1)
    world.hold()
    told = len(ann.updates)
    bob.finish(*bob.leases)
    assert (len(ann.updates), bob.confirmed) == (told, -1)
    world.commit()
    assert (ann.states[told:], bob.confirmed) == ([(1, "done")], 1)


def test_a_repeated_submission_is_answered_when_the_first_is_safe() -> None:
    world = DurableWorld()
    ann, _ = pair(world)
    world.hold()
    ann.submit("resize", b"x")
    ann.submit("resize", b"x")
    assert ann.peer.work == []
    world.commit()
    assert ann.numbers == [1, 1]


def test_a_submission_that_the_disk_refuses_never_was() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    world.hold()
    ann.submit("resize", b"x")
    ann.submit("resize", b"x", b"y")
    world.fail()
    assert [(job.key, job.job, job.code, job.text) for job in ann.taken] == [
        (key, 0, Code.STORAGE, FULL) for key in ("x", "x", "y")
    ]
    assert ann.confirmed == 2
    assert job_service(world).scheduler.jobs == {}
    world.pass_s(5)
    assert (ann.updates, bob.leases, world.keeping.of("job")) == ([], [], {})
    ann.submit("resize", b"x")
    assert (ann.taken[-1].job, bob.leases) == (3, [(3, 0, 1)])


def test_a_result_that_the_disk_refuses_is_stored_confirmed_and_sent_later() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    told = len(ann.updates)
    world.hold()
    bob.finish(*bob.leases, result=b"small")
    world.keeping.is_full = True
    world.fail()
    world.pass_s(3)
    assert (bob.confirmed, ann.updates[told:]) == (-1, [])
    world.keeping.is_full = False
    world.pass_s(1)
    assert bob.confirmed == 1
    assert ann.results == {(1, 0): b"small"}
    assert world.keeping.of("task")[1, 0].result == b"small"
    assert world.keeping.of("job")[1].state == "done"


def test_a_record_is_not_confirmed_before_the_one_before_it() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    world.hold()
    bob.finish(*bob.leases)
    bob.submit("resize", b"by the worker")
    world.keeping.is_full = True
    world.fail()
    assert (bob.confirmed, bob.taken) == (-1, [])
    world.keeping.is_full = False
    world.pass_s(1)
    assert bob.confirmed == 2
    assert [job.code for job in bob.taken] == [Code.STORAGE]


def test_unread_replies_hold_back_the_credit() -> None:
    world = World()
    ann, bob = pair(world, capacity=4)
    bob.peer.confirms_itself = False
    big = bytes(MAX_JOB_PAYLOAD_BYTES)
    ann.submit("resize", big, keys=["1"], workers=1)
    ann.submit("resize", big, keys=["2"], workers=1)
    assert len(bob.leases) == 1
    before = bob.peer.consumed[bob.channel]
    bob.submit("resize", b"mine")
    assert bob.confirmed == 1
    assert (bob.taken, bob.peer.consumed[bob.channel]) == ([], before)
    bob.peer.confirms_itself = True
    world.run()
    assert len(bob.taken) == 1
    assert bob.peer.consumed[bob.channel] > before
    assert len(bob.leases) == 3


def test_records_of_a_closed_connection_are_not_answered() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    world.hold()
    ann.submit("resize", b"x")
    ann.peer.die()
    world.commit()
    assert (ann.peer.work, ann.confirmed) == ([], -1)
    assert bob.leases == [(1, 0, 1)]
    again = JobClient.of(world, "ann")
    again.submit("resize", b"x")
    assert again.numbers == [1]
    assert isinstance(again.peer.said[0], c.Welcome)


def test_reports_of_leases_that_never_were_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_channel, "MAX_PENDING_REVOKES", 10)
    world = DurableWorld()
    _, bob = pair(world)
    bob.report(steps=[w.ProgressReport(task=(9, number, 1), progress=0.5) for number in range(100)])
    assert len(bob.revoked) == 10


def test_the_same_key_many_times_in_a_record_has_one_update() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x", keys=["k"])
    bob.finish(*bob.leases, result=b"!")
    told = len(ann.updates)
    ann.send(w.SubmitGroup(jobs=[j.JobSpec(key="k", of_kind="resize")] * MAX_GROUP))
    assert len(ann.updates) == told + 1
    assert ann.results == {(1, 0): b"!"}


def test_a_client_that_does_not_read_its_updates_cannot_submit_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_notifier, "MAX_WATCHED", 2)
    world = DurableWorld()
    ann = JobClient.of(world, "ann")
    ann.submit("resize", b"a", b"b")
    ann.submit("resize", b"c")
    assert [job.code for job in ann.taken] == [0, 0, Code.TOO_MANY]
