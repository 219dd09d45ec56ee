"""Controllers, workers and the real server in virtual time."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.client.test_with_durable_server import DurableBroker
from tests.client.test_with_server import Place
from tests.client.work_broker import spec
from tests.client.world import User

from godwit.broker.settings import Settings
from godwit.client.config import ClientConfig
from godwit.client.events import (
    JobChanged,
    JobRefused,
    JobTaken,
    Leased,
    Offline,
    Reported,
    Revoked,
    VolunteerAccepted,
)
from godwit.client.jobs import JobView
from godwit.client.worker import Lease
from godwit.errors import BufferFullError, RecordTooLargeError
from godwit.wire.control import Done
from godwit.wire.control_base import Code
from godwit.wire.jobs import CancelJob


class Handler:
    """Does what a client is given, each task with the upper case of its payload as its result."""

    def __init__(self, place: Place, user: User, kinds: tuple[str, ...] = ("shout",), capacity: int = 4) -> None:
        self.user = user
        self.running: list[Lease] = []
        self.done: list[tuple[int, int, int]] = []
        self._seen = 0
        self.is_quick = True
        user.client.volunteer(kinds, capacity)
        place.network.after_step.append(self.act)

    def act(self) -> None:
        self.user.note()
        for event in self.user.log[self._seen :]:
            if isinstance(event, Leased):
                self.running.append(event.lease)
            elif isinstance(event, Revoked):
                self.running.remove(event.lease)
        self._seen = len(self.user.log)
        if self.is_quick:
            self.finish_all()

    def finish_all(self) -> None:
        running, self.running = self.running, []
        for lease in running:
            try:
                self.user.client.finish(lease, lease.payload.upper())
            except BufferFullError:
                self.running.append(lease)
            else:
                self.done.append(lease.ref)


def changes(user: User, view: JobView) -> list[str]:
    return [change.what for event in user.all(JobChanged) if event.view is view for change in event.changes]


def named(name: str) -> ClientConfig:
    return ClientConfig(name=name)


def crew(place: Place, *names: str, capacity: int = 4) -> list[Handler]:
    handlers = [Handler(place, place.user(named(name)), capacity=capacity) for name in names]
    place.network.run_until(lambda: all(handler.user.all(VolunteerAccepted) for handler in handlers))
    return handlers


def all_ended(*views: JobView) -> bool:
    return all(view.is_ended for view in views)


def test_jobs_are_done() -> None:
    place = Place()
    boss = place.user(named("boss"))
    (anna,) = crew(place, "anna", capacity=50)
    views = [boss.client.submit(spec("shout"), b"job %d" % number) for number in range(1000)]
    place.network.run_until(lambda: all_ended(*views), 20)
    place.network.run(1)
    assert [view.tasks[0].result for view in views] == [b"JOB %d" % number for number in range(1000)]
    assert {(view.state, view.agreed, view.tasks[0].worker) for view in views} == {("done", 1, "anna")}
    assert sorted(view.number or 0 for view in views) == list(range(1, 1001))
    assert len(anna.user.all(Reported)) == len(anna.done) == 1000
    assert boss.client.work_held == anna.user.client.work_held == 0
    for view in views:
        assert changes(boss, view)[-2:] == ["result", "ended"]


def test_a_job_for_several_and_one_for_all() -> None:
    place = Place()
    boss = place.user()
    crew(place, "anna", "ben", "cleo")
    two, everyone, many = (boss.client.submit(spec("shout", workers=workers), b"x") for workers in (2, 0, 10))
    place.network.run_until(lambda: all_ended(two, everyone, many), 10)
    assert (two.agreed, everyone.agreed, many.agreed) == (2, 3, 3)
    assert {task.worker for task in everyone.tasks.values()} == {"anna", "ben", "cleo"}
    assert len({task.worker for task in two.tasks.values()}) == 2


def test_a_job_waits_for_its_first_worker() -> None:
    place = Place()
    boss = place.user()
    view = boss.client.submit(spec("shout", workers=2), b"x")
    place.network.run(5)
    assert (view.state, view.agreed) == ("waiting", None)
    crew(place, "anna", "ben")
    place.network.run_until(lambda: view.is_ended, 10)
    assert changes(boss, view)[0] == "settled"
    assert view.agreed == 2


def test_progress_failure_and_another_attempt() -> None:
    place = Place()
    boss = place.user()
    (anna,) = crew(place, "anna")
    anna.is_quick = False
    view = boss.client.submit(spec("shout", retries=1, retry_delay_ms=500), b"x")
    place.network.run_until(lambda: bool(anna.running), 5)
    (lease,) = anna.running
    anna.user.client.step(lease, 0.5, "half")
    place.network.run(0.3)
    assert (view.tasks[0].progress, view.tasks[0].note) == (0.5, "half")
    anna.running.clear()
    anna.user.client.fail(lease, "a thing broke")
    place.network.run_until(lambda: bool(anna.running), 5)
    assert anna.running[0].failures == 1
    assert view.tasks[0].error == "a thing broke"
    anna.user.client.fail(anna.running.pop(), "again")
    place.network.run_until(lambda: view.is_ended, 5)
    assert [what for what in changes(boss, view) if what != "leased"] == [
        "progress",
        "failure",
        "reassigned",
        "task_failed",
        "ended",
    ]
    assert (view.state, view.tasks[0].error) == ("failed", "again")


def test_a_task_that_is_handed_back_goes_to_another() -> None:
    place = Place()
    boss = place.user()
    anna, ben = crew(place, "anna", "ben")
    anna.is_quick = ben.is_quick = False
    view = boss.client.submit(spec("shout"), b"x")
    place.network.run_until(lambda: bool(anna.running or ben.running), 5)
    first, second = (anna, ben) if anna.running else (ben, anna)
    first.user.client.withdraw()
    first.user.client.give_back(first.running.pop())
    place.network.run_until(lambda: bool(second.running), 5)
    second.finish_all()
    place.network.run_until(lambda: view.is_ended, 5)
    assert [what for what in changes(boss, view) if what != "leased"] == ["reassigned", "result", "ended"]
    assert (view.tasks[0].failures, view.tasks[0].losses) == (0, 0)


def test_a_cancelled_job_is_revoked() -> None:
    place = Place()
    boss = place.user()
    (anna,) = crew(place, "anna")
    anna.is_quick = False
    view = boss.client.submit(spec("shout"), b"x")
    place.network.run_until(lambda: bool(anna.running), 5)
    number = view.number
    assert number is not None
    request = boss.client.request(lambda request: CancelJob(request=request, job=number, reason="enough"))
    assert isinstance(place.ask(boss, request), Done)
    assert (view.state, view.reason, changes(boss, view)[-1]) == ("cancelled", "enough", "ended")
    assert len(anna.user.all(Revoked)) == 1
    assert anna.running == []


def test_the_same_key_is_the_same_job_also_in_another_run() -> None:
    place = Place()
    crew(place, "anna")
    boss = place.user(named("boss"))
    one = boss.client.submit(spec("shout", key="order 7"), b"x")
    place.network.run_until(lambda: one.is_ended, 5)
    again = boss.client.submit(spec("shout", key="order 7"), b"other")
    place.network.run_until(lambda: again.is_ended, 5)
    boss.client.close(place.network.now)
    place.network.run(1)
    later = place.user(named("boss")).client.submit(spec("shout", key="order 7"), b"other")
    place.network.run_until(lambda: later.is_ended, 5)
    assert [(view.number, view.state, view.tasks[0].result) for view in (one, again, later)] == [(1, "done", b"X")] * 3


def test_two_views_of_one_job_both_get_all_changes() -> None:
    place = Place()
    boss = place.user(named("boss"))
    (anna,) = crew(place, "anna")
    anna.is_quick = False
    one = boss.client.submit(spec("shout", key="k"), b"x")
    place.network.run_until(lambda: bool(anna.running), 5)
    place.network.run(0.2)
    two, three = boss.client.submit(spec("shout", key="k"), b"x"), boss.client.watch(1)
    place.network.run(0.2)
    assert [view.tasks[0].state for view in (one, two, three)] == ["leased"] * 3
    anna.finish_all()
    place.network.run_until(lambda: all_ended(one, two, three), 5)
    for view in (one, two, three):
        assert [what for what in changes(boss, view) if what != "settled"] == ["leased", "result", "ended"]


def test_a_job_of_another_client_is_followed_or_refused() -> None:
    place = Place()
    boss, friend = place.user(named("boss")), place.user(named("friend"))
    view = boss.client.submit(spec("shout"), b"x")
    place.network.run_until(lambda: view.number is not None, 5)
    seen, missing = friend.client.watch(1), friend.client.watch(2)
    place.network.run(0.2)
    assert seen.state == "waiting"
    assert [(event.view, event.code) for event in friend.all(JobRefused)] == [(missing, Code.NO_SUCH_JOB)]
    crew(place, "anna")
    place.network.run_until(lambda: all_ended(view, seen), 10)
    assert seen.tasks[0].result == b"X"


def test_a_broker_that_has_lost_everything() -> None:
    """Without a disk the numbers of jobs begin anew, and new ones must not be taken for old ones."""
    place = Place()
    boss = place.user(named("boss"))
    (anna,) = crew(place, "anna")
    anna.is_quick = False
    old = boss.client.submit(spec("shout"), b"old")
    place.network.run_until(lambda: bool(anna.running), 5)
    place.broker.stop()
    (lease,) = anna.running
    anna.user.client.finish(lease, b"OLD")
    anna.running.clear()
    place.broker.start()
    new = boss.client.submit(spec("shout"), b"new")
    place.network.run_until(lambda: bool(anna.running), 60)
    anna.finish_all()
    place.network.run_until(lambda: all_ended(old, new), 60)
    assert (old.state, new.state, new.tasks[0].result) == ("unknown", "done", b"NEW")
    assert (old.number, new.number) == (1, 1)


def test_a_broker_that_accepts_only_short_messages() -> None:
    place = Place(settings=Settings(max_message_bytes=1000))
    boss = place.user(named("boss"))
    crew(place, "anna", capacity=500)
    views = [boss.client.submit(spec("shout", priority=number % 3), b"x" * 1000) for number in range(500)]
    with pytest.raises(RecordTooLargeError, match="the broker accepts at most 1000"):
        boss.client.submit(spec("shout"), b"x" * 1001)
    place.network.run_until(lambda: all_ended(*views), 20)
    assert {view.tasks[0].result for view in views} == {b"X" * 1000}
    assert boss.all(Offline) == []


# -- breaks -----------------------------------------------------------------------------------------------------------


def check_all_done(place: Place, boss: User, views: list[JobView], handlers: list[Handler]) -> None:
    seed = f"seed {place.network.seed}"
    assert [view.state for view in views] == ["done"] * len(views), seed
    assert [view.tasks[0].result for view in views] == [view.key.encode().upper() for view in views], seed
    assert len({view.number for view in views}) == len(views), seed
    counts = Counter((event.view, change) for event in boss.all(JobChanged) for change, *_ in event.changes)
    assert {counts[view, what] for view in views for what in ("result", "ended")} == {1}, seed
    assert len(boss.all(JobTaken)) == len(views), seed
    place.network.run_until(lambda: all(handler.user.client.work_held == 0 for handler in handlers), 60)
    assert boss.client.work_held == 0
    offline = [event for handler in handlers for event in handler.user.all(Offline)] + boss.all(Offline)
    assert Code.PROTOCOL not in {event.code for event in offline}, (seed, offline)


@pytest.mark.parametrize("seed", range(6))
def test_connections_that_break_cost_nothing(seed: int) -> None:
    place = Place(seed)
    boss = place.user(named("boss"))
    handlers = crew(place, "anna", "ben", capacity=10)
    rng = place.network.rng
    place.network.lost = lambda _source, _target: rng.random() < 0.02
    views: list[JobView] = []
    for _ in range(40):
        for _ in range(10):
            key = f"job {len(views)}"
            views.append(boss.client.submit(spec("shout", key=key), key.encode()))
        place.network.run(rng.choice([0.001, 0.01, 0.05]))
        if rng.random() < 0.3:
            place.broker.drop_connections()
            place.network.run(rng.choice([0.0, 0.2]))
    place.network.run_until(lambda: all_ended(*views), 300)
    check_all_done(place, boss, views, handlers)


@pytest.mark.parametrize("seed", range(6))
def test_a_broker_that_is_killed_and_remembers(seed: int) -> None:
    place = Place(seed, Settings(lease_s=20), kind=DurableBroker)
    boss = place.user(named("boss"))
    handlers = crew(place, "anna", "ben", capacity=10)
    rng = place.network.rng
    views: list[JobView] = []
    for round_ in range(20):
        for _ in range(20):
            key = f"job {len(views)}"
            views.append(boss.client.submit(spec("shout", key=key), key.encode()))
        place.network.run(rng.choice([0.001, 0.006, 0.02]))
        if round_ % 4 == 0:
            place.broker.stop()
            place.network.run(rng.choice([0.0, 0.4]))
            place.broker.start()
            place.network.run(rng.choice([0.0, 0.4, 3]))
    place.network.run_until(lambda: all_ended(*views), 300)
    check_all_done(place, boss, views, handlers)
    finished = Counter(ref[:2] for handler in handlers for ref in handler.done)
    assert len(finished) == len(views)


def test_a_long_task_outlives_a_break() -> None:
    place = Place(3, Settings(lease_s=20), kind=DurableBroker)
    boss = place.user(named("boss"))
    (anna,) = crew(place, "anna")
    anna.is_quick = False
    view = boss.client.submit(spec("shout"), b"x")
    place.network.run_until(lambda: bool(anna.running), 5)
    for _ in range(3):
        place.broker.stop()
        place.network.run(2)
        place.broker.start()
        place.network.run(60)
        assert len(anna.running) == 1
    assert anna.user.all(Revoked) == []
    anna.finish_all()
    place.network.run_until(lambda: view.is_ended, 10)
    assert (view.tasks[0].fence, view.tasks[0].losses, view.tasks[0].result) == (1, 0, b"X")
    assert [what for what in changes(boss, view) if what != "settled"] == ["leased", "result", "ended"]
