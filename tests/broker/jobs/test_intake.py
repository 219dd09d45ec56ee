"""Groups from clients: submissions and reports, good and bad, and when they are confirmed."""

from __future__ import annotations

import pytest
from tests.broker.durable import FULL, DurableWorld
from tests.broker.jobs.hands import Hand
from tests.broker.world import World

from godwit.broker.access import Access, Rule
from godwit.broker.jobs import intake, shelf, telling
from godwit.broker.settings import Settings
from godwit.limits import MAX_GROUP, MAX_JOB_PAYLOAD_BYTES
from godwit.wire import control as c
from godwit.wire import jobs as j
from godwit.wire import work as w
from godwit.wire.control import Code


def pair(world: World, *, capacity: int = 1) -> tuple[Hand, Hand]:
    ann, bob = Hand.of(world, "ann"), Hand.of(world, "bob")
    bob.volunteer("resize", capacity=capacity)
    return ann, bob


# -- submissions -------------------------------------------------------------------------------------------------------


def test_a_group_is_one_append_and_one_answer() -> None:
    world = DurableWorld()
    ann, _ = pair(world)
    before = len(world.keeping.appends)
    ann.submit("resize", *(b"%d" % number for number in range(500)))
    assert len(world.keeping.appends) == before + 1
    assert ann.numbers == list(range(1, 501))
    assert len(ann.groups(w.Taken)) == 1


def test_the_same_key_is_the_same_job() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x", keys=["k"])
    ann.submit("resize", b"another payload", b"y", keys=["k", "other"], priority=5)
    assert ann.numbers == [1, 1, 2]
    assert bob.payloads == [b"x"]
    bob.finish(*bob.leases, result=b"small")
    ann.peer.die()
    again = Hand.of(world, "ann")
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
    cid = Hand.of(world, "cid")
    ann.submit("resize", b"x", keys=["k"])
    cid.submit("resize", b"y", keys=["k"])
    assert (ann.numbers, cid.numbers) == ([1], [2])


@pytest.mark.parametrize("kind", ["$jobs", "a/+", "#", "new\nline", "ü" * 129, "/" * 63])
def test_a_kind_that_cannot_be_is_refused_and_the_others_are_taken(kind: str) -> None:
    world = World()
    ann, _ = pair(world)
    jobs = [w.Submission(key=key, of_kind=name) for key, name in (("1", "resize"), ("2", kind), ("3", "resize"))]
    ann.send(w.Submit(jobs=jobs))
    assert [(job.key, job.job, job.code) for job in ann.taken] == [("1", 1, 0), ("2", 0, Code.BAD_KIND), ("3", 2, 0)]
    assert "kind of work" in ann.taken[1].text
    assert ann.peer.closed is None


def test_a_key_that_is_too_long_as_bytes_is_refused() -> None:
    ann, _ = pair(World())
    ann.submit("resize", b"x", b"y", keys=["ü" * 33, "ü" * 32])
    assert [(job.job, job.code) for job in ann.taken] == [(0, Code.MALFORMED), (1, 0)]


def test_who_may_not_submit_a_kind_is_told_so() -> None:
    access = Access(rules=(Rule(clients=("*",), allow=frozenset(("submit",)), topics=("open/#",)),))
    ann = Hand.of(World(Settings(access=access)), "ann")
    ann.submit("secret", b"x")
    ann.submit("open/to/all", b"y")
    assert [(job.job, job.code) for job in ann.taken] == [(0, Code.NOT_ALLOWED), (1, 0)]
    assert "may not submit jobs of the kind 'secret'" in ann.taken[0].text


def test_more_jobs_than_there_is_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MAX_JOBS", 4)
    ann = Hand.of(World(), "ann")
    ann.submit("resize", b"1", b"2", b"3")
    assert [(job.job, job.code) for job in ann.taken] == [(1, 0), (2, 0), (0, Code.TOO_MANY)]


def test_new_kinds_are_refused_when_there_are_too_many_topics() -> None:
    ann = Hand.of(World(Settings(topics=("a",), max_topics=1)), "ann")
    ann.submit("first", b"x")
    assert [job.code for job in ann.taken] == [Code.TOO_MANY]
    assert "need a topic" in ann.taken[0].text


# -- groups that are none ----------------------------------------------------------------------------------------------


def head(plain: w.Submit | w.Report) -> bytes:
    return w.encode_group(plain)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\x00",
        b"\x00\x00\x00\x05abc",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x01\xa0",
        head(w.Report()) + b"more",
        head(w.Submit(jobs=[w.Submission(key="k", of_kind="resize", size=5)])) + b"four",
        w.encode_group(w.Taken(jobs=[])),
    ],
)
def test_what_is_no_group_closes_the_connection(body: bytes) -> None:
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
    ann.send(w.Submit(jobs=[w.Submission(**submission)]))  # type: ignore[arg-type]
    assert ann.peer.end == Code.PROTOCOL
    assert world.server.broker.jobs._board.jobs == {}


def test_a_group_has_a_bounded_number_of_parts() -> None:
    ann, _ = pair(World())
    ann.submit("resize", *(b"%d" % number for number in range(MAX_GROUP + 1)))
    assert ann.peer.end == Code.PROTOCOL


def test_an_unreliable_record_closes_the_connection() -> None:
    world = World()
    ann, _ = pair(world)
    ann.peer.record(ann.channel, head(w.Report()), reliable=False)
    world.run()
    assert ann.peer.end == Code.PROTOCOL


def test_the_end_of_the_channel_is_no_group() -> None:
    world = World()
    ann, _ = pair(world)
    ann.peer.record(ann.channel, b"", last=True)
    world.run()
    assert ann.peer.closed is None


# -- reports -----------------------------------------------------------------------------------------------------------


def test_progress_is_told_at_once_and_written_nowhere() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    world.hold()
    before = len(world.keeping.appends)
    bob.report(steps=[w.Step(task=bob.leases[0], progress=0.5, note="half")])
    task = ann.updates[-1].tasks[0]
    assert (task.progress, task.note, task.state) == (0.5, "half", "leased")
    assert bob.confirmed == 1
    assert len(world.keeping.appends) == before
    assert not world.log.waiting


def test_progress_with_the_outcome_is_told_with_it_when_it_is_safe() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    told = len(ann.updates)
    world.hold()
    lease = bob.leases[0]
    bob.send(w.Report(steps=[w.Step(task=lease, progress=1.0)], outcomes=[w.Outcome(task=lease, size=1)]), [b"!"])
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
    assert bob.revoked == [late]  # its sender is done with it
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
    bob.report(steps=[w.Step(task=lease, progress=0.1)])
    assert bob.revoked == [lease]  # it is still at work on it, as it says
    bob.report(returned=[lease])
    assert ann.updates == []
    assert world.keeping.of("task")[1, 0].state == "leased"
    assert bob.peer.closed is None


def test_a_report_of_somebody_who_never_had_the_task_changes_nothing() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    mallory = Hand.of(world, "mallory")
    ann.submit("resize", b"x")
    assert mallory.finish(*bob.leases, result=b"forged") == mallory.confirmed
    assert mallory.revoked == []
    bob.finish(*bob.leases, result=b"true")
    assert ann.results == {(1, 0): b"true"}


def test_a_failure_is_told_and_tried_again_until_there_are_no_retries() -> None:
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


def test_what_is_handed_back_goes_to_somebody_else() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x")
    dan = Hand.of(world, "dan")
    dan.volunteer("resize")
    bob.report(returned=bob.leases)
    assert dan.leases == [(1, 0, 2)]


# -- when they are confirmed -------------------------------------------------------------------------------------------


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
    assert world.server.broker.jobs._board.jobs == {}
    world.pass_s(5)
    assert (ann.updates, bob.leases, world.keeping.of("job")) == ([], [], {})
    ann.submit("resize", b"x")
    assert (ann.taken[-1].job, bob.leases) == (3, [(3, 0, 1)])


def test_a_result_that_the_disk_refuses_is_written_confirmed_and_told_later() -> None:
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


def test_answers_that_nobody_fetches_hold_back_the_credit() -> None:
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


def test_what_comes_from_a_connection_that_is_over_is_not_answered() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    world.hold()
    ann.submit("resize", b"x")
    ann.peer.die()
    world.commit()
    assert (ann.peer.work, ann.confirmed) == ([], -1)
    assert bob.leases == [(1, 0, 1)]
    again = Hand.of(world, "ann")
    again.submit("resize", b"x")
    assert again.numbers == [1]
    assert isinstance(again.peer.said[0], c.Welcome)


def test_reports_of_leases_that_never_were_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_REVOKES_WAITING", 10)
    world = DurableWorld()
    _, bob = pair(world)
    bob.report(steps=[w.Step(task=(9, number, 1), progress=0.5) for number in range(100)])
    assert len(bob.revoked) == 10


def test_the_same_key_many_times_in_a_record_is_told_once() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x", keys=["k"])
    bob.finish(*bob.leases, result=b"!")
    told = len(ann.updates)
    ann.send(w.Submit(jobs=[w.Submission(key="k", of_kind="resize")] * MAX_GROUP))
    assert len(ann.updates) == told + 1
    assert ann.results == {(1, 0): b"!"}


def test_who_does_not_take_the_ends_of_its_jobs_cannot_submit_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "MAX_WATCHED", 2)
    world = DurableWorld()
    ann = Hand.of(world, "ann")
    ann.submit("resize", b"a", b"b")
    ann.submit("resize", b"c")
    assert [job.code for job in ann.taken] == [0, 0, Code.TOO_MANY]
