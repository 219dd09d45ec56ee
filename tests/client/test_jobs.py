"""Jobs of a client with a scripted broker: answered once, followed to their end, over reconnects."""

from __future__ import annotations

import pytest
from tests.client.office import WorkBroker, at_work, break_connection
from tests.client.world import Network, User

from godwit.client.comparing import JobView
from godwit.client.config import ClientConfig
from godwit.client.events import JobChanged, JobRefused, JobTaken, WorkIdle, WorkRoom
from godwit.client.jobs import REMEMBERED_KINDS
from godwit.errors import BadKindError, BufferFullError, RecordTooLargeError, UsageError
from godwit.limits import MAX_JOB_PAYLOAD_BYTES, MAX_WATCHED_AT_ONCE
from godwit.wire.control import Error
from godwit.wire.control_base import Code
from godwit.wire.jobs import Unwatch, Watch
from godwit.wire.work import Taken, TakenJob, TaskUpdate


def changes(user: User, view: JobView) -> list[str]:
    return [change.what for event in user.all(JobChanged) if event.view is view for change in event.changes]


def leased(fence: int = 1, worker: str = "anna") -> TaskUpdate:
    return TaskUpdate(task=0, state="leased", worker=worker, fence=fence)


def finished(fence: int = 1, worker: str = "anna") -> TaskUpdate:
    return TaskUpdate(task=0, state="finished", worker=worker, fence=fence)


def test_a_job_is_taken_done_and_told() -> None:
    network, broker, user = at_work()
    view = user.client.submit("resize", b"image", workers=0, priority=3, delay_ms=5, deadline_ms=6, time_limit_ms=7)
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
    views = [user.client.submit("resize", b"%d" % number) for number in range(2000)]
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
    assert one.client.submit("k", b"").key != other.client.submit("k", b"").key


def test_a_job_that_waits_settles_later() -> None:
    network, broker, user = at_work()
    broker.takes = False
    view = user.client.submit("resize", b"")
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
    view = user.client.submit("resize", b"image")
    network.run(0.1)
    broker.say(Taken(jobs=[TakenJob(key=view.key, code=Code.NOT_ALLOWED, text="no right")]))
    network.run(0.1)
    assert user.all(JobRefused) == [JobRefused(view, Code.NOT_ALLOWED, "no right")]
    assert (view.state, view.reason, view.is_ended, view.payload) == ("refused", "no right", True, b"")
    break_connection(network, broker, user)
    network.run(0.1)
    assert len(broker.submitted) == 1


# -- over reconnects --------------------------------------------------------------------------------------------------


def test_what_was_not_answered_is_submitted_again_in_order_under_the_same_keys() -> None:
    network, broker, user = at_work()
    broker.takes = False
    views = [user.client.submit("resize", b"%d" % number) for number in range(5)]
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
    view = user.client.submit("resize", b"image")
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
    views = [user.client.submit("resize", b"") for _ in range(3)]
    network.run(3)
    broker = WorkBroker(network)
    network.run_until(lambda: all(view.number for view in views))
    assert broker.groups == [3]


def test_what_has_not_ended_is_watched_again_and_nothing_is_told_twice() -> None:
    network, broker, user = at_work()
    one, two = user.client.submit("resize", b""), user.client.submit("resize", b"")
    network.run(0.1)
    broker.update(1, "running", leased())
    broker.update(2, "done", finished())
    network.run(0.1)
    break_connection(network, broker, user)
    network.run(0.1)
    assert [watch.jobs for watch in broker.link.all(Watch)] == [[1]]
    broker.update(1, "running", leased())
    broker.update(1, "done", finished())
    network.run(0.1)
    assert changes(user, one) == ["leased", "result", "ended"]
    assert changes(user, two) == ["result", "ended"]
    break_connection(network, broker, user)
    network.run(0.1)
    assert broker.link.all(Watch) == []


def test_a_job_that_the_broker_has_forgotten_ends() -> None:
    network, broker, user = at_work()
    views = [user.client.submit("resize", b"") for _ in range(2)]
    network.run(0.1)
    broker.unknown = {2}
    break_connection(network, broker, user)
    network.run(0.1)
    assert user.all(JobRefused) == [JobRefused(views[1], Code.NO_SUCH_JOB, "the broker does not know job 2")]
    assert (views[1].state, views[1].is_ended, views[0].state) == ("unknown", True, "running")


def test_many_jobs_are_watched_a_page_at_a_time() -> None:
    network, broker, user = at_work()
    for _ in range(MAX_WATCHED_AT_ONCE + 1):
        user.client.submit("resize", b"")
    network.run(1)
    break_connection(network, broker, user)
    network.run(0.1)
    assert [len(watch.jobs) for watch in broker.link.all(Watch)] == [MAX_WATCHED_AT_ONCE, 1]


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


def test_a_job_that_is_not_there_cannot_be_watched() -> None:
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
    (watch,) = broker.link.all(Watch)
    broker.link.tell(Error(request=watch.request, code=Code.TOO_MANY, text="enough"))
    network.run(0.1)
    assert user.all(JobRefused) == [JobRefused(view, Code.TOO_MANY, "enough")]
    assert view.state == "refused"


def test_who_does_not_want_to_know_is_told_nothing() -> None:
    network, broker, user = at_work()
    one, two = user.client.submit("resize", b""), user.client.submit("resize", b"")
    network.run(0.1)
    user.client.unwatch(one)
    user.client.unwatch(one)
    network.run(0.1)
    assert [unwatch.jobs for unwatch in broker.link.all(Unwatch)] == [[1]]
    broker.update(1, "done", finished())
    broker.update(2, "done", finished())
    network.run(0.1)
    assert [event.view for event in user.all(JobChanged)] == [two]
    break_connection(network, broker, user)
    network.run(0.1)
    assert broker.link.all(Watch) == []


def test_who_does_not_want_to_know_before_it_is_taken() -> None:
    network, broker, user = at_work()
    view = user.client.submit("resize", b"")
    user.client.unwatch(view)
    network.run(0.1)
    assert [event.view for event in user.all(JobTaken)] == [view]
    assert [unwatch.jobs for unwatch in broker.link.all(Unwatch)] == [[1]]


def test_who_wants_to_know_again_is_not_taken_for_who_does_not() -> None:
    """The word that nobody wants to know and the job itself go on two channels, and may be heard in either order."""
    network, broker, user = at_work()
    one = user.client.submit("resize", b"", key="k")
    network.run(0.1)
    user.client.unwatch(one)
    again = user.client.submit("resize", b"", key="k")
    network.run(0.1)
    assert again.number == 1
    assert [type(said) for said in broker.link.said if isinstance(said, Watch | Unwatch)] == [Unwatch, Watch]
    user.client.unwatch(again)
    network.run(0.1)
    user.client.submit("resize", b"", key="k")
    network.run(0.1)
    assert len(broker.link.all(Watch)) == 1, "the broker had answered"


def test_several_views_of_one_job() -> None:
    network, broker, user = at_work()
    one, two = user.client.submit("resize", b"", key="k"), user.client.submit("resize", b"other", key="k")
    network.run(0.1)
    assert [job.key for job, _ in broker.submitted] == ["k"]
    three, four = user.client.submit("resize", b"", key="k"), user.client.watch(1)
    network.run(0.1)
    assert {event.view for event in user.all(JobTaken)} == {one, two, three}
    assert broker.link.all(Watch) == []
    assert (four.state, four.agreed) == ("running", 1)
    broker.update(1, "running", leased())
    network.run(0.1)
    user.client.unwatch(two)
    network.run(0.1)
    assert broker.link.all(Unwatch) == []
    broker.update(1, "done", finished())
    network.run(0.1)
    for view in (one, three):
        assert changes(user, view) == ["leased", "result", "ended"]
    assert changes(user, four) == ["settled", "leased", "result", "ended"]
    assert changes(user, two) == ["leased"]
    assert [view.number for view in (one, two, three, four)] == [1, 1, 1, 1]


def test_a_view_that_comes_late_hears_all_at_once() -> None:
    """Before the broker says more: what that is may be the job's end and one task of many."""
    network, broker, user = at_work()
    broker.takes = False
    one = user.client.submit("resize", b"", workers=3, key="k")
    network.run(0.1)
    broker.take(broker.link, "k", agreed=3)
    failed = TaskUpdate(task=1, state="failed", worker="ben", fence=2, failures=1, error="no")
    broker.update(1, "running", finished(), failed, agreed=3)
    network.run(0.1)
    late = user.client.watch(1)
    assert broker.link.all(Watch) == []
    broker.update(1, "failed", TaskUpdate(task=2, state="cancelled"), agreed=3)
    network.run(0.1)
    assert changes(user, late) == ["settled", "result", "reassigned", "task_failed", "ended"]
    assert late.tasks == one.tasks
    assert late.tasks[0].result == b"anna"


# -- what cannot be ---------------------------------------------------------------------------------------------------


def test_the_callers_errors_are_found_before_anything_is_sent() -> None:
    network, broker, user = at_work()
    client = user.client
    with pytest.raises(RecordTooLargeError, match="send larger things as files"):
        client.submit("resize", bytes(MAX_JOB_PAYLOAD_BYTES + 1))
    for kind in ("", "a/+", "$jobs/x", "x" * 257, "a\nb"):
        with pytest.raises(BadKindError):
            client.submit(kind, b"")
    with pytest.raises(UsageError, match="workers is -1"):
        client.submit("resize", b"", workers=-1)
    with pytest.raises(UsageError, match="key"):
        client.submit("resize", b"", key="x" * 65)
    for number in (0, -1, 2**63):
        with pytest.raises(UsageError, match="no job has the number"):
            client.watch(number)
    network.run(0.1)
    assert broker.submitted == []
    assert client.work_held == 0


def test_a_broker_may_take_less() -> None:
    network = Network()
    user = User(network)
    early, short = user.client.submit("resize", bytes(50_000)), user.client.submit("resize", b"")
    broker = WorkBroker(network)
    broker.max_message_bytes = 10_000
    user.until("online")
    network.run(0.1)
    assert [(event.view, event.code) for event in user.all(JobRefused)] == [(early, Code.TOO_LARGE)]
    assert short.number == 1
    with pytest.raises(RecordTooLargeError, match="the broker takes 10000"):
        user.client.submit("resize", bytes(10_001))
    user.client.submit("resize", bytes(10_000))
    network.run(0.1)
    assert user.client.work_held == 0


def test_kinds_are_not_remembered_without_bound() -> None:
    network, broker, user = at_work()
    for number in range(REMEMBERED_KINDS + 1):
        user.client.submit(f"kind/{number}", b"")
    network.run(1)
    assert len(broker.submitted) == REMEMBERED_KINDS + 1
    assert len(user.client._work.jobs._kind_bytes) == 1


def test_the_buffer_is_bounded() -> None:
    network, broker, user = at_work(ClientConfig(send_buffer_bytes=100_000))
    broker.takes = False
    views = [user.client.submit("resize", bytes(10_000)) for _ in range(9)]
    with pytest.raises(BufferFullError, match="wait for room"):
        user.client.submit("resize", bytes(10_000))
    network.run(0.1)
    broker.take(broker.link, *[view.key for view in views])
    network.run(0.1)
    assert len(user.all(WorkRoom)) == 1
    user.client.submit("resize", bytes(10_000))


def test_answers_to_nothing_are_passed_over() -> None:
    network, broker, user = at_work()
    view = user.client.submit("resize", b"")
    network.run(0.1)
    broker.take(broker.link, view.key, "nobody")
    broker.update(99, "done")
    network.run(0.1)
    assert len(user.all(JobTaken)) == 1
    assert user.all(JobChanged) == []
    assert broker.link.closed is None
