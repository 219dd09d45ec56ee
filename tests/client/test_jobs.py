"""Jobs of a client: checks, submissions and watches over reconnects, and the changes between two states."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.work_broker import WorkBroker, at_work, break_connection, spec
from tests.client.world import Network, User
from tests.transport.world import examples

from godwit.client.config import ClientConfig
from godwit.client.events import JobChanged, JobRefused, JobTaken, WorkBufferAvailable, WorkIdle
from godwit.client.jobs import (
    MAX_CACHED_KINDS,
    Change,
    JobView,
    apply,
    catch_up,
    check_key,
    check_options,
    check_payload,
)
from godwit.errors import BadKindError, BufferFullError, DecodeError, RecordTooLargeError, UsageError
from godwit.limits import (
    MAX_JOB_PAYLOAD_BYTES,
    MAX_JOB_TIME_MS,
    MAX_PRIORITY,
    MAX_RETRIES,
    MAX_TASKS_OF_JOB,
    MAX_WATCHED_AT_ONCE,
)
from godwit.wire.control import Error
from godwit.wire.control_base import Code
from godwit.wire.jobs import JobState, TaskState, UnwatchJobs, WatchJobs
from godwit.wire.work import JobUpdate, SubmitReply, SubmitReplyGroup, TaskUpdate


def changes(user: User, view: JobView) -> list[str]:
    return [change.what for event in user.all(JobChanged) if event.view is view for change in event.changes]


def leased(fence: int = 1, worker: str = "anna") -> TaskUpdate:
    return TaskUpdate(task=0, state="leased", worker=worker, fence=fence)


def finished(fence: int = 1, worker: str = "anna") -> TaskUpdate:
    return TaskUpdate(task=0, state="finished", worker=worker, fence=fence)


def test_a_job_is_accepted_done_and_reported() -> None:
    network, broker, user = at_work()
    view = user.client.submit(
        spec("resize", workers=0, priority=3, delay_ms=5, deadline_ms=6, time_limit_ms=7), b"image"
    )
    assert (view.state, view.number, user.client.work_held) == ("sending", None, 1)
    network.run(0.1)
    ((submission, payload),) = broker.submitted
    assert payload == b"image"
    assert (submission.of_kind, submission.workers, submission.priority) == ("resize", 0, 3)
    assert (submission.delay_ms, submission.deadline_ms, submission.time_limit_ms) == (5, 6, 7)
    assert [event.view for event in user.all(JobTaken)] == [view]
    assert (view.state, view.number, view.agreed) == ("running", 1, 1)
    assert (user.client.work_held, len(user.all(WorkIdle))) == (0, 1)
    broker.update(1, "running", leased())
    broker.update(1, "done", finished())
    network.run(0.1)
    assert changes(user, view) == ["leased", "result", "ended"]
    assert view.tasks[0].result == b"anna"
    assert view.is_ended


def test_many_jobs_travel_together() -> None:
    network, broker, user = at_work()
    views = [user.client.submit(spec("resize"), b"%d" % number) for number in range(2000)]
    network.run(1)
    assert [payload for _, payload in broker.submitted] == [b"%d" % number for number in range(2000)]
    assert len(broker.groups) < 10
    assert [event.view for event in user.all(JobTaken)] == views
    keys = {view.key for view in views}
    assert len(keys) == 2000
    assert len({key.partition("-")[0] for key in keys}) == 1


def test_keys_of_two_runs_differ() -> None:
    _, _, one = at_work(seed=1)
    _, _, other = at_work(seed=2)
    assert one.client.submit(spec("k"), b"").key != other.client.submit(spec("k"), b"").key


def test_a_job_that_waits_settles_later() -> None:
    network, broker, user = at_work()
    broker.takes = False
    view = user.client.submit(spec("resize"), b"")
    network.run(0.1)
    broker.take(broker.link, view.key, agreed=None)
    network.run(0.1)
    assert (view.state, view.agreed, view.tasks) == ("waiting", None, {})
    broker.update(1, "running", agreed=3)
    network.run(0.1)
    assert changes(user, view) == ["settled"]
    assert (view.agreed, len(view.tasks)) == (3, 3)


def test_a_refused_job_is_at_its_end() -> None:
    network, broker, user = at_work()
    broker.takes = False
    view = user.client.submit(spec("resize"), b"image")
    network.run(0.1)
    broker.send_group(SubmitReplyGroup(jobs=[SubmitReply(key=view.key, code=Code.NOT_ALLOWED, text="no right")]))
    network.run(0.1)
    assert user.all(JobRefused) == [JobRefused(view, Code.NOT_ALLOWED, "no right")]
    assert (view.state, view.reason, view.is_ended, view.payload) == ("refused", "no right", True, b"")
    break_connection(network, broker, user)
    network.run(0.1)
    assert len(broker.submitted) == 1


# -- over reconnects --------------------------------------------------------------------------------------------------


def test_pending_jobs_are_submitted_again_in_order_under_the_same_keys() -> None:
    network, broker, user = at_work()
    broker.takes = False
    views = [user.client.submit(spec("resize"), b"%d" % number) for number in range(5)]
    network.run(0.1)
    broker.take(broker.link, views[1].key)
    network.run(0.1)
    assert len(broker.submitted) == 5
    broker.takes = True
    break_connection(network, broker, user)
    network.run(0.1)
    again = broker.submitted[5:]
    assert [(job.key, payload) for job, payload in again] == [
        (views[number].key, b"%d" % number) for number in (0, 2, 3, 4)
    ]
    assert len(user.all(JobTaken)) == 5
    assert len({view.number for view in views}) == 5


def test_a_confirm_is_no_answer() -> None:
    """The connection breaks between the two."""
    network, broker, user = at_work()
    broker.takes = False
    view = user.client.submit(spec("resize"), b"image")
    network.run(0.1)
    assert broker.confirms
    assert user.client.work_held == 1
    broker.takes = True
    break_connection(network, broker, user)
    network.run(0.1)
    assert [payload for _, payload in broker.submitted] == [b"image", b"image"]
    assert view.number == 1


def test_jobs_submitted_without_a_broker_go_when_it_comes() -> None:
    network = Network()
    user = User(network)
    views = [user.client.submit(spec("resize"), b"") for _ in range(3)]
    network.run(3)
    broker = WorkBroker(network)
    network.run_until(lambda: all(view.number for view in views))
    assert broker.groups == [3]


def test_followed_jobs_are_watched_again_and_no_change_is_reported_twice() -> None:
    network, broker, user = at_work()
    one, two = user.client.submit(spec("resize"), b""), user.client.submit(spec("resize"), b"")
    network.run(0.1)
    broker.update(1, "running", leased())
    broker.update(2, "done", finished())
    network.run(0.1)
    break_connection(network, broker, user)
    network.run(0.1)
    assert [watch.jobs for watch in broker.link.all(WatchJobs)] == [[1]]
    broker.update(1, "running", leased())
    broker.update(1, "done", finished())
    network.run(0.1)
    assert changes(user, one) == ["leased", "result", "ended"]
    assert changes(user, two) == ["result", "ended"]
    break_connection(network, broker, user)
    network.run(0.1)
    assert broker.link.all(WatchJobs) == []


def test_a_job_that_the_broker_has_forgotten_ends() -> None:
    network, broker, user = at_work()
    views = [user.client.submit(spec("resize"), b"") for _ in range(2)]
    network.run(0.1)
    broker.unknown = {2}
    break_connection(network, broker, user)
    network.run(0.1)
    assert user.all(JobRefused) == [JobRefused(views[1], Code.NO_SUCH_JOB, "the broker does not know job 2")]
    assert (views[1].state, views[1].is_ended, views[0].state) == ("unknown", True, "running")


def test_many_jobs_are_watched_a_page_at_a_time() -> None:
    network, broker, user = at_work()
    for _ in range(MAX_WATCHED_AT_ONCE + 1):
        user.client.submit(spec("resize"), b"")
    network.run(1)
    break_connection(network, broker, user)
    network.run(0.1)
    assert [len(watch.jobs) for watch in broker.link.all(WatchJobs)] == [MAX_WATCHED_AT_ONCE, 1]


# -- watching ---------------------------------------------------------------------------------------------------------


def test_a_job_is_followed_by_its_number() -> None:
    network, broker, user = at_work()
    view = user.client.watch(7)
    network.run(0.1)
    broker.update(7, "waiting", agreed=None)
    network.run(0.1)
    assert user.all(JobChanged) == [JobChanged(view, [])]
    assert (view.number, view.state) == (7, "waiting")
    broker.update(7, "cancelled", agreed=None, reason="enough")
    network.run(0.1)
    assert changes(user, view) == ["ended"]
    assert view.reason == "enough"


def test_a_job_that_does_not_exist_is_refused() -> None:
    network, broker, user = at_work()
    broker.unknown = {7}
    view = user.client.watch(7)
    network.run(0.1)
    assert [(event.view, event.code) for event in user.all(JobRefused)] == [(view, Code.NO_SUCH_JOB)]


def test_a_refused_watch() -> None:
    network, broker, user = at_work()
    broker.answers = False
    view = user.client.watch(7)
    network.run(0.1)
    (watch,) = broker.link.all(WatchJobs)
    broker.link.send(Error(request=watch.request, code=Code.TOO_MANY, text="enough"))
    network.run(0.1)
    assert user.all(JobRefused) == [JobRefused(view, Code.TOO_MANY, "enough")]
    assert view.state == "refused"


def test_an_unwatched_job_reports_nothing() -> None:
    network, broker, user = at_work()
    one, two = user.client.submit(spec("resize"), b""), user.client.submit(spec("resize"), b"")
    network.run(0.1)
    user.client.unwatch(one)
    user.client.unwatch(one)
    network.run(0.1)
    assert [unwatch.jobs for unwatch in broker.link.all(UnwatchJobs)] == [[1]]
    broker.update(1, "done", finished())
    broker.update(2, "done", finished())
    network.run(0.1)
    assert [event.view for event in user.all(JobChanged)] == [two]
    break_connection(network, broker, user)
    network.run(0.1)
    assert broker.link.all(WatchJobs) == []


def test_unwatch_before_the_job_is_accepted() -> None:
    network, broker, user = at_work()
    view = user.client.submit(spec("resize"), b"")
    user.client.unwatch(view)
    network.run(0.1)
    assert [event.view for event in user.all(JobTaken)] == [view]
    assert [unwatch.jobs for unwatch in broker.link.all(UnwatchJobs)] == [[1]]


def test_a_job_submitted_after_an_unwatch_is_watched() -> None:
    """The unwatch and the submission of a job travel on two channels, and may arrive in either order."""
    network, broker, user = at_work()
    one = user.client.submit(spec("resize", key="k"), b"")
    network.run(0.1)
    user.client.unwatch(one)
    again = user.client.submit(spec("resize", key="k"), b"")
    network.run(0.1)
    assert again.number == 1
    assert [type(message) for message in broker.link.received if isinstance(message, WatchJobs | UnwatchJobs)] == [
        UnwatchJobs,
        WatchJobs,
    ]
    user.client.unwatch(again)
    network.run(0.1)
    user.client.submit(spec("resize", key="k"), b"")
    network.run(0.1)
    assert len(broker.link.all(WatchJobs)) == 1, "the broker had answered"


def test_several_views_of_one_job() -> None:
    network, broker, user = at_work()
    one, two = user.client.submit(spec("resize", key="k"), b""), user.client.submit(spec("resize", key="k"), b"other")
    network.run(0.1)
    assert [job.key for job, _ in broker.submitted] == ["k"]
    three, four = user.client.submit(spec("resize", key="k"), b""), user.client.watch(1)
    network.run(0.1)
    assert {event.view for event in user.all(JobTaken)} == {one, two, three}
    assert broker.link.all(WatchJobs) == []
    assert (four.state, four.agreed) == ("running", 1)
    broker.update(1, "running", leased())
    network.run(0.1)
    user.client.unwatch(two)
    network.run(0.1)
    assert broker.link.all(UnwatchJobs) == []
    broker.update(1, "done", finished())
    network.run(0.1)
    for view in (one, three):
        assert changes(user, view) == ["leased", "result", "ended"]
    assert changes(user, four) == ["settled", "leased", "result", "ended"]
    assert changes(user, two) == ["leased"]
    assert [view.number for view in (one, two, three, four)] == [1, 1, 1, 1]


def test_a_late_view_gets_all_changes_at_once() -> None:
    """Before the next update, which may contain the end of the job and only one task of many."""
    network, broker, user = at_work()
    broker.takes = False
    one = user.client.submit(spec("resize", workers=3, key="k"), b"")
    network.run(0.1)
    broker.take(broker.link, "k", agreed=3)
    failed = TaskUpdate(task=1, state="failed", worker="ben", fence=2, failures=1, error="no")
    broker.update(1, "running", finished(), failed, agreed=3)
    network.run(0.1)
    late = user.client.watch(1)
    assert broker.link.all(WatchJobs) == []
    broker.update(1, "failed", TaskUpdate(task=2, state="cancelled"), agreed=3)
    network.run(0.1)
    assert changes(user, late) == ["settled", "result", "reassigned", "task_failed", "ended"]
    assert late.tasks == one.tasks
    assert late.tasks[0].result == b"anna"


# -- invalid calls ----------------------------------------------------------------------------------------------------


def test_the_callers_errors_are_found_before_anything_is_sent() -> None:
    network, broker, user = at_work()
    client = user.client
    with pytest.raises(RecordTooLargeError, match="send larger things as files"):
        client.submit(spec("resize"), bytes(MAX_JOB_PAYLOAD_BYTES + 1))
    for kind in ("", "a/+", "$jobs/x", "x" * 257, "a\nb"):
        with pytest.raises(BadKindError):
            client.submit(spec(kind), b"")
    with pytest.raises(UsageError, match="workers is -1"):
        client.submit(spec("resize", workers=-1), b"")
    with pytest.raises(UsageError, match="key"):
        client.submit(spec("resize", key="x" * 65), b"")
    for number in (0, -1, 2**63):
        with pytest.raises(UsageError, match="no job has the number"):
            client.watch(number)
    network.run(0.1)
    assert broker.submitted == []
    assert client.work_held == 0


def test_a_broker_with_a_lower_limit() -> None:
    network = Network()
    user = User(network)
    early, short = user.client.submit(spec("resize"), bytes(50_000)), user.client.submit(spec("resize"), b"")
    broker = WorkBroker(network)
    broker.max_message_bytes = 10_000
    user.until("online")
    network.run(0.1)
    assert [(event.view, event.code) for event in user.all(JobRefused)] == [(early, Code.TOO_LARGE)]
    assert short.number == 1
    with pytest.raises(RecordTooLargeError, match="the broker accepts at most 10000"):
        user.client.submit(spec("resize"), bytes(10_001))
    user.client.submit(spec("resize"), bytes(10_000))
    network.run(0.1)
    assert user.client.work_held == 0


def test_kinds_are_not_remembered_without_bound() -> None:
    network, broker, user = at_work()
    for number in range(MAX_CACHED_KINDS + 1):
        user.client.submit(spec(f"kind/{number}"), b"")
    network.run(1)
    assert len(broker.submitted) == MAX_CACHED_KINDS + 1
    assert len(user.client._work.jobs._kind_bytes) == 1


def test_the_buffer_is_bounded() -> None:
    network, broker, user = at_work(ClientConfig(send_buffer_bytes=100_000))
    broker.takes = False
    views = [user.client.submit(spec("resize"), bytes(10_000)) for _ in range(9)]
    with pytest.raises(BufferFullError, match="wait for room"):
        user.client.submit(spec("resize"), bytes(10_000))
    network.run(0.1)
    broker.take(broker.link, *[view.key for view in views])
    network.run(0.1)
    assert len(user.all(WorkBufferAvailable)) == 1
    user.client.submit(spec("resize"), bytes(10_000))


def test_answers_to_nothing_are_passed_over() -> None:
    network, broker, user = at_work()
    view = user.client.submit(spec("resize"), b"")
    network.run(0.1)
    broker.take(broker.link, view.key, "unknown")
    broker.update(99, "done")
    network.run(0.1)
    assert len(user.all(JobTaken)) == 1
    assert user.all(JobChanged) == []
    assert broker.link.closed is None


def test_the_defaults_are_valid() -> None:
    check_options(spec("kind"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workers", -1),
        ("workers", MAX_TASKS_OF_JOB + 1),
        ("workers", "all"),
        ("workers", True),
        ("workers", None),
        ("priority", -MAX_PRIORITY - 1),
        ("priority", MAX_PRIORITY + 1),
        ("delay_ms", -1),
        ("delay_ms", 1.5),
        ("deadline_ms", 0),
        ("deadline_ms", MAX_JOB_TIME_MS + 1),
        ("retries", -1),
        ("retries", MAX_RETRIES + 1),
        ("retry_delay_ms", -1),
        ("retry_delay_ms", None),
        ("time_limit_ms", 0),
    ],
)
def test_invalid_options(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=name):
        check_options(spec("kind", **{name: value}))


@pytest.mark.parametrize(
    "changed",
    [
        {"workers": 0},
        {"workers": MAX_TASKS_OF_JOB},
        {"priority": -MAX_PRIORITY},
        {"delay_ms": MAX_JOB_TIME_MS, "deadline_ms": MAX_JOB_TIME_MS, "time_limit_ms": 1},
        {"retries": 0, "retry_delay_ms": 0},
    ],
)
def test_valid_options(changed: dict[str, int]) -> None:
    check_options(spec("kind", **changed))


def test_keys() -> None:
    assert check_key("order-7") == 7
    assert check_key("ü" * 32) == 64
    wrong: list[Any] = ["", "x" * 65, "ü" * 33, "\ud800", 5, b"x"]
    for bad in wrong:
        with pytest.raises(UsageError, match="key"):
            check_key(bad)


def test_payloads() -> None:
    check_payload("it", b"", 1000)
    check_payload("it", bytes(1000), 1000)
    with pytest.raises(
        RecordTooLargeError, match="the thing has 1001 bytes, the broker accepts at most 1000: send larger"
    ):
        check_payload("the thing", bytes(1001), 1000)
    text: Any = "text"
    with pytest.raises(UsageError, match="str"):
        check_payload("it", text, 1000)


def view(agreed: int | None = 2) -> JobView:
    made = JobView("key", "kind", 2, 7)
    made.state = "waiting" if agreed is None else "running"
    if agreed is not None:
        made.settle(agreed)
    return made


def tell(
    job: JobView, *tasks: TaskUpdate, state: JobState = "running", agreed: int | None = 2, reason: str = ""
) -> list[tuple[str, int | None]]:
    payloads = [b"before", *[b"result %d" % task.task for task in tasks]]
    changes = apply(job, JobUpdate(job=7, state=state, agreed=agreed, reason=reason, tasks=list(tasks)), payloads, 1)
    return [(change.what, change.task) for change in changes]


def task(number: int, state: TaskState, fence: int = 1, **more: object) -> TaskUpdate:
    return TaskUpdate(task=number, state=state, fence=fence, worker=f"w{fence}", **more)  # type: ignore[arg-type]


def test_a_job_from_its_beginning_to_its_end() -> None:
    job = view(None)
    assert tell(job, state="waiting", agreed=None) == []
    assert tell(job) == [("settled", None)]
    assert (job.agreed, set(job.tasks)) == (2, {0, 1})
    assert tell(job, task(0, "leased")) == [("leased", 0)]
    assert tell(job, task(0, "leased", progress=0.5), task(1, "leased")) == [("progress", 0), ("leased", 1)]
    assert tell(job, task(1, "finished")) == [("result", 1)]
    assert job.tasks[1].result == b"result 1"
    assert tell(job, task(0, "waiting", failures=1, error="no")) == [("failure", 0)]
    assert tell(job, task(0, "leased", 2, failures=1, error="no")) == [("reassigned", 0)]
    assert job.tasks[0].worker == "w2"
    assert tell(job, task(0, "finished", 2, failures=1), state="done") == [("result", 0), ("ended", None)]
    assert job.state == "done"
    assert job.is_ended


def test_a_repeated_state_has_no_changes() -> None:
    job = view()
    state = [task(0, "leased", progress=0.5, note="half", failures=1), task(1, "finished")]
    assert tell(job, *state) == [("failure", 0), ("leased", 0), ("progress", 0), ("result", 1)]
    before = dict(job.tasks)
    assert tell(job, *state) == []
    assert job.tasks == before


def test_skipped_states_are_not_invented() -> None:
    job = view()
    assert tell(job, task(0, "finished")) == [("result", 0)]
    assert tell(job, task(1, "leased", 4, failures=3)) == [("failure", 1), ("reassigned", 1)]


def test_the_last_failure_is_the_tasks() -> None:
    job = view()
    assert tell(
        job, task(0, "failed", failures=4, error="never"), task(1, "cancelled"), state="failed", reason="x"
    ) == [
        ("task_failed", 0),
        ("ended", None),
    ]
    assert (job.tasks[0].error, job.tasks[1].state, job.reason) == ("never", "cancelled", "x")


def test_a_lost_worker_is_reported_with_the_next_lease() -> None:
    job = view()
    tell(job, task(0, "leased", progress=0.9))
    assert tell(job, task(0, "waiting", losses=1)) == []
    assert tell(job, task(0, "leased", 2, losses=1)) == [("reassigned", 0)]
    assert job.tasks[0].progress is None


def test_progress_that_the_broker_has_lost_remains() -> None:
    job = view()
    tell(job, task(0, "leased", progress=0.5, note="half"))
    assert tell(job, task(0, "leased")) == []
    assert (job.tasks[0].progress, job.tasks[0].note) == (0.5, "half")
    assert tell(job, task(0, "leased", note="more")) == [("progress", 0)]


def test_an_ended_task_does_not_change() -> None:
    job = view()
    tell(job, task(0, "finished", 2))
    assert tell(job, task(0, "leased", 3), task(0, "finished", 3), task(0, "failed", 3)) == []
    assert job.tasks[0].worker == "w2"
    tell(job, task(1, "leased", 5))
    assert tell(job, task(1, "finished", 4)) == []
    assert tell(job, state="waiting", agreed=None) == []
    assert (job.state, job.agreed) == ("running", 2)


def test_a_change_shows_the_task_as_it_stood_then() -> None:
    job = view()
    (first,) = apply(job, JobUpdate(job=7, state="running", tasks=[task(0, "leased", progress=0.1)]), [b""], 0)[1:]
    tell(job, task(0, "leased", progress=0.7))
    assert first.view is not None
    assert first.view.progress == 0.1
    assert Change("ended") == ("ended", None, None)


@pytest.mark.parametrize("number", [2, 3, 2**62])
def test_more_tasks_than_agreed(number: int) -> None:
    with pytest.raises(DecodeError, match="were agreed"):
        tell(view(), task(number, "leased"))
    with pytest.raises(DecodeError, match="were agreed"):
        tell(view(None), task(number, "leased"), agreed=None)


@pytest.mark.parametrize("agreed", [0, MAX_TASKS_OF_JOB + 1])
def test_agreed_out_of_range(agreed: int) -> None:
    with pytest.raises(DecodeError, match=f"with {agreed} tasks"):
        tell(view(None), agreed=agreed)


@pytest.mark.parametrize("progress", [-0.1, 1.1, math.nan, math.inf])
def test_progress_out_of_range(progress: float) -> None:
    with pytest.raises(DecodeError, match="done"):
        tell(view(), task(0, "leased", progress=progress))


def test_another_view_catches_up() -> None:
    known = view(3)
    tell(known, task(0, "finished"), task(1, "leased", 2, progress=0.5, failures=1))
    late = JobView("", "", number=7)
    assert [(change.what, change.task) for change in catch_up(late, known)] == [
        ("settled", None),
        ("result", 0),
        ("failure", 1),
        ("reassigned", 1),
        ("progress", 1),
    ]
    assert (late.state, late.tasks) == ("running", known.tasks)
    assert catch_up(view(2), view(2)) == []
    tell(known, task(1, "finished", 2, failures=1))
    assert late.tasks[1].state == "leased"


_updates = st.builds(
    TaskUpdate,
    task=st.integers(0, 1),
    state=st.sampled_from(["waiting", "leased", "finished", "failed", "cancelled"]),
    fence=st.integers(0, 3),
    failures=st.integers(0, 3),
    progress=st.none() | st.floats(0, 1),
)


@examples(1.0)
@given(st.lists(st.lists(_updates, max_size=3), max_size=8))
def test_each_end_is_reported_once(rounds: list[list[TaskUpdate]]) -> None:
    job = view()
    seen: list[tuple[str, int | None]] = []
    for tasks in rounds:
        seen += tell(job, *tasks)
        assert tell(job, *tasks) == [] or len({task.task for task in tasks}) < len(tasks)
    for number in (0, 1):
        ends = [what for what, which in seen if which == number and what in ("result", "task_failed")]
        assert len(ends) <= 1
        assert (job.tasks[number].state == "finished") == (ends == ["result"])
        assert (job.tasks[number].state == "failed") == (ends == ["task_failed"])
