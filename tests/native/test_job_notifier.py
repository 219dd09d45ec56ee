"""Output for clients: groups, full windows, states instead of events."""

from __future__ import annotations

import pytest
from tests.broker.durable import DurableWorld
from tests.broker.world import World
from tests.native.job_clients import JobClient, job_notifier, job_service, peer_of

from godwit.broker.effects import Append
from godwit.broker.settings import Settings
from godwit.limits import MAX_GROUP, MAX_JOB_PAYLOAD_BYTES, MAX_WORK_HEAD_BYTES
from godwit.native import job_notifier as job_notifier_module
from godwit.wire import jobs as j
from godwit.wire import work as w
from godwit.wire.changes import JobRow
from godwit.wire.control import Done

BIG = bytes(MAX_JOB_PAYLOAD_BYTES)


def pair(world: World, *, capacity: int = 1) -> tuple[JobClient, JobClient]:
    ann, bob = JobClient.of(world, "ann"), JobClient.of(world, "bob")
    bob.volunteer("resize", capacity=capacity)
    return ann, bob


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_leases_answers_and_updates_go_in_groups() -> None:
    world = World()
    ann, bob = pair(world, capacity=1000)
    ann.submit("resize", *numbered(400))
    assert len(bob.leases) == 400
    assert len(bob.groups(w.LeaseGroup)) <= 3
    assert len(ann.groups(w.SubmitReplyGroup)) == 1
    bob.finish(*bob.leases)
    assert len(ann.results) == 400
    assert len(ann.groups(w.UpdateGroup)) <= 6


def test_a_job_takes_two_commits_the_first_with_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    commits: list[list[str]] = []
    rows: list[tuple[str, str]] = []
    append = world.log.append

    def noted(effect: Append, now_us: int) -> None:
        commits.append([type(change).__name__ for change in effect.changes])
        rows.extend((row.state, row.task.state) for row in effect.changes if isinstance(row, JobRow) and row.task)
        append(effect, now_us)

    monkeypatch.setattr(world.log, "append", noted)
    ann.submit("resize", b"1")
    assert len(bob.leases) == 1
    bob.finish(*bob.leases)
    assert len(ann.results) == 1
    assert len(commits) == 2
    assert sorted(commits[0]) == ["JobRow", "NextJobRow", "TopicRow"]  # one row for the job, its payload and its task
    assert commits[1] == ["JobRow"]
    assert rows == [("running", "leased"), ("done", "finished")]


def test_no_record_has_more_parts_or_bytes_than_it_may() -> None:
    world = World()
    ann, bob = JobClient.of(world, "a" * 64 * 4), JobClient.of(world, "b" * 256)
    kind = "ü" * 120
    bob.volunteer(kind, capacity=4096)
    for first in range(0, 3000, 200):
        ann.submit(kind, *numbered(200), keys=[f"{first + number}" for number in range(200)], retries=0)
    leases = bob.leases
    assert len(leases) == 3000
    for at in range(0, 3000, 100):
        note = "\N{GRINNING FACE}" * 1000
        bob.report(steps=[w.ProgressReport(task=lease, progress=0.5, note=note) for lease in leases[at : at + 20]])
        bob.fail(*leases[at : at + 100], error="\N{GRINNING FACE}" * 300)
    assert {update.job for update in ann.updates if update.state == "failed"} == set(range(1, 3001))
    for hand in (ann, bob):
        for head, _ in hand.peer.work:
            match head:
                case w.UpdateGroup():
                    assert len(head.jobs) + sum(len(job.tasks) for job in head.jobs) <= MAX_GROUP + 1
                case w.RevokeGroup():
                    assert len(head.tasks) <= MAX_GROUP
                case w.SubmitReplyGroup() | w.LeaseGroup():
                    assert len(getattr(head, "jobs", None) or getattr(head, "tasks", [])) <= MAX_GROUP
            assert len(w.encode_group(head)) <= MAX_WORK_HEAD_BYTES


def test_long_payloads_have_records_of_their_own() -> None:
    world = World()
    ann, bob = pair(world, capacity=9)
    for key in ("1", "2"):
        ann.submit("resize", BIG, keys=[key])
    ann.submit("resize", b"small", b"also")
    assert sorted(map(len, bob.payloads)) == [4, 5, len(BIG), len(BIG)]
    bob.finish(*bob.leases[2:])
    for lease in bob.leases[:2]:
        bob.finish(lease, result=BIG)
    assert [len(ann.results[number, 0]) for number in (1, 2, 3, 4)] == [len(BIG), len(BIG), 2, 2]


def test_a_job_with_more_tasks_than_a_group_may_have_comes_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_notifier_module, "MAX_GROUP", 4)
    world = World()
    ann, eve = JobClient.of(world, "ann"), JobClient.of(world, "eve")
    hands = [JobClient.of(world, f"w{number}") for number in range(9)]
    for one in hands:
        one.volunteer("resize")
    ann.submit("resize", b"x", workers=0)
    for one in hands:
        one.finish(*one.leases)
    assert eve.watch(1) == []
    assert [(update.state, len(update.tasks)) for update in eve.updates] == [
        ("running", 4), ("running", 4), ("done", 1),
    ]  # fmt: skip
    assert len(eve.results) == 9


def test_results_that_do_not_fit_one_record_end_the_job_with_the_last() -> None:
    world = World()
    ann = JobClient.of(world, "ann")
    hands = [JobClient.of(world, f"w{number}") for number in range(6)]
    for one in hands:
        one.volunteer("resize")
    ann.submit("resize", b"x", workers=0)
    ann.peer.expect(j.UnwatchJobs(request=50, jobs=[1]), Done)
    for one in hands:
        one.finish(*one.leases, result=bytes(40_000))
    ann.peer.work.clear()
    assert ann.watch(1) == []
    assert [state for _, state in ann.states] == ["running"] * 5 + ["done"]
    assert len(ann.results) == 6


# -- leases, a little later -------------------------------------------------------------------------------------------


def test_a_quick_task_has_one_update() -> None:
    world = DurableWorld()
    ann, bob = pair(world, capacity=2)
    ann.submit("resize", b"quick", b"slow")
    assert ann.updates == []
    bob.finish((1, 0, 1))
    assert ann.states == [(1, "done")]
    world.pass_s(0.2)
    assert ann.states == [(1, "done")]
    world.pass_s(0.1)
    assert ann.states == [(1, "done"), (2, "running")]
    assert ann.updates[-1].tasks[0].worker == "bob"
    bob.finish((2, 0, 1))
    world.pass_s(1)
    assert ann.states[2:] == [(2, "done")]
    assert not job_notifier(world).delayed


def test_progress_and_later_leases_are_sent_at_once() -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    ann.submit("resize", b"x", retry_delay_ms=0)
    bob.report(steps=[w.ProgressReport(task=(1, 0, 1), progress=0.25)])
    assert [task.progress for task in ann.updates[-1].tasks] == [0.25]
    bob.fail((1, 0, 1), error="again")
    assert [(task.state, task.fence, task.error) for task in ann.updates[-1].tasks] == [("leased", 2, "again")]


def test_a_client_that_has_left_gets_no_delayed_updates() -> None:
    world = DurableWorld()
    ann, bob = pair(world, capacity=4)
    ann.submit("resize", b"1", b"2", b"3")
    ann.peer.expect(j.UnwatchJobs(request=50, jobs=[1]), Done)
    assert ann.watch(2) == []
    assert [update.job for update in ann.updates] == [2]
    world.pass_s(1)
    assert [update.job for update in ann.updates] == [2, 3]
    ann.submit("resize", b"4")
    assert bob.leases[-1] == (4, 0, 1)
    ann.peer.die()
    world.pass_s(1)
    assert not job_notifier(world).delayed


# -- windows ----------------------------------------------------------------------------------------------------------


def test_leases_wait_for_room_as_references() -> None:
    world = World()
    ann, bob = pair(world, capacity=8)
    bob.peer.confirms_itself = False
    for number in range(4):
        ann.submit("resize", BIG, keys=[f"{number}"])
    assert bob.leases == [(1, 0, 1)]
    assert [(task.job.number, fence) for task, fence in peer_of(world, "bob").leases] == [(2, 1), (3, 1), (4, 1)]
    bob.peer.confirms_itself = True
    world.run()
    assert bob.leases == [(number, 0, 1) for number in (1, 2, 3, 4)]


def test_a_lease_that_ended_while_it_waited_is_not_sent() -> None:
    world = World()
    ann, bob = pair(world, capacity=8)
    bob.peer.confirms_itself = False
    for number in range(3):
        ann.submit("resize", BIG, keys=[f"{number}"])
    ann.peer.ask(j.CancelJob(request=90, job=2))
    bob.peer.confirms_itself = True
    world.run()
    assert bob.leases == [(1, 0, 1), (3, 0, 1)]


def test_a_slow_client_gets_only_the_last_state_of_each_task() -> None:
    world = World()
    ann, bob = pair(world, capacity=4)
    eve = JobClient.of(world, "eve")
    ann.submit("resize", b"big", b"other", retry_delay_ms=0)
    bob.finish((1, 0, 1), result=BIG)
    eve.peer.confirms_itself = False
    assert eve.watch(1, 2) == []
    assert eve.states == [(1, "done")]
    for fence in range(1, 4):
        bob.report(steps=[w.ProgressReport(task=(2, 0, fence), progress=0.5)])
        bob.fail((2, 0, fence))
    bob.finish((2, 0, 4), result=b"at last")
    assert len(eve.updates) == 1
    eve.peer.confirms_itself = True
    world.run()
    (update,) = eve.updates[1:]
    assert (update.job, update.state, update.tasks[0].failures) == (2, "done", 3)
    assert eve.results[2, 0] == b"at last"


def test_a_deleted_job_is_reported_to_a_slow_client_without_results() -> None:
    world = World(Settings(job_keep_s=2))
    ann, bob = pair(world, capacity=4)
    eve = JobClient.of(world, "eve")
    ann.submit("resize", b"big", b"other")
    bob.finish((1, 0, 1), result=BIG)
    eve.peer.confirms_itself = False
    assert eve.watch(1, 2) == []
    bob.finish((2, 0, 1), result=b"lost")
    world.pass_s(3)
    assert job_service(world).scheduler.jobs == {}
    assert not peer_of(world, "eve").updates
    eve.peer.confirms_itself = True
    world.run()
    assert [(update.job, update.state, update.tasks) for update in eve.updates[1:]] == [(2, "done", [])]
    assert not peer_of(world, "eve").watched


def test_the_reply_to_a_submission_precedes_all_updates() -> None:
    world = World()
    ann, bob = pair(world, capacity=4)
    ann.peer.confirms_itself = False
    ann.submit("resize", b"x")
    bob.finish(*bob.leases, result=BIG)
    ann.submit("resize", b"y")
    bob.finish(bob.leases[-1])
    assert ann.numbers == [1]
    ann.peer.confirms_itself = True
    world.run()
    assert ann.numbers == [1, 2]
    first_taken = next(at for at, (head, _) in enumerate(ann.peer.work) if 2 in _taken_numbers(head))
    first_update = next(at for at, (head, _) in enumerate(ann.peer.work) if 2 in _updated_numbers(head))
    assert first_taken < first_update


def _taken_numbers(head: object) -> list[int]:
    return [job.job for job in head.jobs] if isinstance(head, w.SubmitReplyGroup) else []


def _updated_numbers(head: object) -> list[int]:
    return [job.job for job in head.jobs] if isinstance(head, w.UpdateGroup) else []


def test_revoked_leases_come_before_new_ones() -> None:
    world = World()
    ann, bob = pair(world)
    ann.submit("resize", b"x", b"y")
    ann.peer.ask(j.CancelJob(request=90, job=1))
    kinds = [type(head) for head, _ in bob.peer.work]
    assert kinds == [w.LeaseGroup, w.RevokeGroup, w.LeaseGroup]
    assert bob.groups(w.RevokeGroup)[0].reason == "cancelled: cancelled by ann"


def test_revokes_are_grouped_by_their_reason() -> None:
    world = World()
    ann, bob = pair(world, capacity=3)
    ann.submit("resize", b"1", b"2", deadline_ms=1000)
    ann.submit("resize", b"3", time_limit_ms=1000)
    world.pass_s(1)
    assert [(len(group.tasks), group.reason) for group in bob.groups(w.RevokeGroup)] in (
        [(2, "the deadline passed"), (1, "took longer than 1 s")],
        [(1, "took longer than 1 s"), (2, "the deadline passed")],
    )


@pytest.mark.parametrize("count", [1, 3])
def test_all_watching_clients_get_updates(count: int) -> None:
    world = DurableWorld()
    ann, bob = pair(world)
    others = [JobClient.of(world, f"eve{number}") for number in range(count)]
    ann.submit("resize", b"x")
    for one in others:
        assert one.watch(1) == []
    others[0].peer.die()
    bob.finish(*bob.leases)
    assert [one.states[-1] for one in others] == [(1, "running")] + [(1, "done")] * (count - 1)
    assert job_notifier(world)._watchers == {}
